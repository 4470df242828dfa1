"""A sample of the sweep: Hugging Face architectures at tiny scale, captured whole, equal to eager to the bit."""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from benchmarks import zoo

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
    verdict = zoo.check(name, partial(zoo.build, name, training), training, zoo.Options("eager"))
    assert verdict.status == "ok", verdict


class Talkative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        print(end="")
        return x * 2


def test_a_model_that_breaks_is_compared_as_well() -> None:
    verdict = zoo.check("talkative", lambda: (Talkative(), [{"x": torch.randn(8)}]), False, zoo.Options("eager"))
    assert verdict.status == "break" and "broken" in verdict.detail, verdict


class SlowInFloat64(nn.Module):
    """Stands for a model whose float64 run meets the time limit."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype is torch.float64:
            time.sleep(20)
        return x * self.weight


def test_a_model_that_meets_its_limit_is_not_judged_without_its_float64_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "build", lambda name, training, batches: (SlowInFloat64(), [{"x": torch.randn(8)}]))
    handler = signal.getsignal(signal.SIGALRM)
    try:
        (verdict,) = zoo.checked("slow", [True], 1, zoo.Options(limit=2))
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert verdict.status == "error" and "TookTooLong" in verdict.detail, verdict
