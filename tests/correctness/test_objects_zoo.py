"""A sample of the sweep: Hugging Face architectures at tiny scale, captured whole, equal to eager to the bit."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks import zoo, zoo_build

pytest.importorskip("transformers")

NAMES = [
    *(
        "GemmaForCausalLM",
        "OPTForCausalLM",
        "BloomForCausalLM",
        "Qwen3ForCausalLM",
        "OlmoeForCausalLM",
        "GPTNeoXForCausalLM",
    ),
    *("RobertaForMaskedLM", "AlbertForMaskedLM", "DebertaV2ForMaskedLM", "BartForConditionalGeneration"),
    *("MT5ForConditionalGeneration", "BeitForImageClassification", "ConvNextForImageClassification", "CLIPModel"),
    *("HubertForSequenceClassification", "BambaForCausalLM"),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_captured_whole_and_equal_to_eager(name: str, training: bool) -> None:
    verdict = zoo.check(name, partial(zoo_build.build, name), training, "eager")
    assert verdict.status == "ok", verdict


@pytest.mark.parametrize("name", ["LEDForConditionalGeneration", "XLMWithLMHeadModel", "JetMoeForCausalLM"])
def test_breaks_on_data_are_only_breaks(name: str) -> None:
    verdict = zoo.check(name, partial(zoo_build.build, name), True, "eager", breaks=True)
    assert verdict.status == "ok" and "broken" in verdict.detail, verdict
