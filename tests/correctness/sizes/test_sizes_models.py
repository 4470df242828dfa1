"""Models called with batches and sequences (or images) of changing size: each dimension's second size compiles once
more, later ones never; results and gradients are eager's."""

from __future__ import annotations

import copy
import types
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from benchmarks import models
from tests.model_tools import installed, run, strides, without_dropout

SIZES = ((4, 12), (5, 12), (5, 13), (3, 17), (7, 5), (2, 2), (11, 24))  # batch, sequence
#: model, and the versions it takes: one, one for each dimension that changes, those for sizes that are special to it
VERSIONS = {"mlp": 2, "gpt2": 3, "bert": 3, "llama": 3, "vit": 2, "t5": 5, "resnet18": 3}
CASES = [(name, training) for name in VERSIONS for training in (False, True) if not (training and name == "t5")]


def scale(name: str, batch: int, length: int) -> models.Scale:
    sizes = replace(models.SCALES["tiny"], batch=batch, sequence=length)
    return replace(sizes, image=48 + 16 * (length % 3)) if name == "resnet18" else sizes


def build(name: str, sizes: models.Scale) -> models.Workload:
    torch.manual_seed(0)
    return models.BUILDERS[name](sizes)


@pytest.mark.parametrize(("name", "training"), CASES)
def test_model(name: str, training: bool) -> None:
    module = without_dropout(build(name, replace(scale(name, 2, 64))).module)
    compiled: Any = bolide.compile(copy.deepcopy(module), fullgraph=True)
    start = copy.deepcopy(module.state_dict())
    for batch, length in SIZES:
        work = build(name, scale(name, batch, length))
        for each in (module, compiled):
            each.load_state_dict(start)
            each.zero_grad(set_to_none=True)
        found = run(work, compiled, training, torch.float32, False)
        exact = run(work, copy.deepcopy(module).double(), training, torch.float64, False)
        expected = run(work, module, training, torch.float32, False)
        largest = max(float(t.double().abs().max()) for t in exact[training:] if t.is_floating_point())
        for ours, eager, true in zip(found, expected, exact):
            assert (ours.shape, ours.dtype, strides(ours)) == (eager.shape, eager.dtype, strides(eager))
            if true.is_floating_point():
                true = true.double()
                allowed = 4 * (eager - true).norm() + 2e-5 * (true.norm() + 0.01 * largest * true.numel() ** 0.5)
                assert (ours - true).norm() <= allowed, (batch, length)
    made = len(compiled._bolide_call._bolide.entries)
    assert made == VERSIONS[name]


GENERATIONS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True},
    "beam": {"num_beams": 3},
    "without cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
}


def test_one_model_generates_in_five_ways() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=43,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=42,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    compiled: Any = bolide.compile(copy.deepcopy(model), backend="eager")
    total: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", bolide.BolideWarning)
        for lengths in ((5, 9), (4, 7, 12)):
            for options in GENERATIONS.values():
                for length in lengths:
                    ids = torch.randint(2, 40, (2, length))
                    settings = {"max_new_tokens": 3, "min_new_tokens": 3, **options}
                    torch.manual_seed(1)
                    got, new = installed(lambda i=ids, s=settings: compiled.generate(i, **s))
                    torch.manual_seed(1)
                    assert torch.equal(got, model.generate(ids, **settings))
                    total.append(new)
    assert not any(total[len(GENERATIONS) * 2 :]), total


class Positions(torch.nn.Module):
    """A table that grows with the longest sequence so far, as models with rotary positions have it."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        self.scale = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("table", torch.empty(0, 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > self.longest:
            self.longest = x.shape[0]
            angles = torch.outer(torch.arange(self.longest) + 1.0, torch.arange(4.0))
            self.register_buffer("table", angles.cos(), persistent=False)
        return x * self.table[: x.shape[0]] * self.scale


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_table_that_grows_with_every_call_is_soon_of_any_size(dynamic: bool | None) -> None:
    bolide.reset()
    eager = Positions()
    copied = copy.deepcopy(eager)
    compiled: Any = bolide.compile(copied, dynamic=dynamic)
    lengths = [*torch.randint(2, 9, (14,)).cumsum(0).tolist(), *torch.randint(2, 40, (8,)).tolist()]
    for length in lengths:  # one that would run in eager from some call on warns, which is an error in tests
        x = torch.randn(length, 4)
        for module, call in ((eager, eager), (copied, compiled)):
            module.zero_grad()
            call(x).square().sum().backward()
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(copied.scale.grad, eager.scale.grad)
        torch.testing.assert_close(copied.table, eager.table)
    assert len(bolide.dynamo.get_compilation_metrics()) <= 4  # longer or not; fixed, and of any size


class Kept(nn.Module):
    """Keeps what it has seen, as models do for later looks at them; none of it is read by the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.size: Any = None
        self.activations: Any = None
        self.loss: Any = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows, self.columns = self.size = x.shape
        self.activations = [self.layer(x)]
        self.loss = self.activations[0].square().mean()
        return self.loss * self.rows


def test_what_a_model_only_writes_is_no_reason_for_a_version() -> None:
    theirs = Kept()
    ours = copy.deepcopy(theirs)
    compiled: Any = bolide.compile(ours, fullgraph=True)
    versions = []
    for rows in (3, 3, 5, 7, 4):
        x = torch.randn(rows, 4)
        got, new = installed(lambda x=x: compiled(x))
        versions.append(new)
        torch.testing.assert_close(got, theirs(x))
        torch.testing.assert_close((ours.activations, ours.loss), (theirs.activations, theirs.loss))
        assert (ours.size, ours.rows, ours.columns) == (theirs.size, theirs.rows, theirs.columns)
        assert list(vars(ours)) == list(vars(theirs)), "the order of attributes"
    assert versions == [1, 0, 1, 0, 0]


def test_an_attribute_that_is_written_may_have_been_deleted_since() -> None:
    theirs, ours = types.SimpleNamespace(a=1, b=2), types.SimpleNamespace(a=1, b=2)

    def program(x: torch.Tensor, box: Any) -> Any:
        box.a = x + 1
        before = box.b
        del box.b
        return x * before

    compiled: Any = bolide.compile(program, backend="eager")
    for gone in (False, True, True):
        results = []
        for function, box in ((program, theirs), (compiled, ours)):
            box.b = 3
            if gone:
                del box.a
            results.append(function(torch.ones(2), box))
        assert torch.equal(*results) and list(vars(ours)) == list(vars(theirs))
