"""Jagged tensors (`torch.nested`): arguments, results, made inside; gradients; one version for all batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bolide
from bolide.functorch import aot_function, nop

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of", "ignore:.*is_fx_tracing")
WIDTH = 6


def _jagged(*lengths: int, requires_grad: bool = False) -> Any:
    parts = [torch.randn(length, WIDTH) for length in lengths or _lengths()]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=requires_grad)


def _lengths() -> list[int]:
    return [random.randint(2, 7) for _ in range(random.randint(3, 6))] + [3, 5]


def _plain(value: Any) -> Any:
    return (value.values(), value.offsets()) if isinstance(value, Tensor) and value.is_nested else value


def _agree(found: Any, expected: Any) -> None:
    pairs = zip(found, expected, strict=True) if isinstance(expected, (list, tuple)) else [(found, expected)]
    for one, other in pairs:
        if isinstance(other, Tensor):
            assert (type(one), one.requires_grad) == (type(other), other.requires_grad)
        torch.testing.assert_close(_plain(one), _plain(other))


def _copy(value: Any) -> Any:
    return value.detach().clone().requires_grad_() if isinstance(value, Tensor) and value.requires_grad else value


def _derived(fn: Callable[..., Any], *given: Any) -> tuple[Any, list[Any]]:
    """Results, and gradients of what requires it."""
    copies = list(map(_copy, given))
    results = fn(*copies)
    outs = results if isinstance(results, (list, tuple)) else [results]
    losses = [out.values() if out.is_nested else out for out in outs if out.requires_grad]
    sum((loss * loss).sum() for loss in losses).backward()  # type: ignore[union-attr]
    return results, [one.grad for one in copies if isinstance(one, Tensor) and one.requires_grad]


def _agree_on(x: Tensor, compiled: Callable[..., Any], fn: Callable[..., Any], grad: bool) -> None:
    if not grad:
        _agree(compiled(x), fn(x))
        return
    (found, grads), (expected, wanted) = _derived(compiled, x), _derived(fn, x)
    _agree(found, expected)
    _agree(grads, wanted)


UNARY: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: F.gelu(x.sin() * 2 + x) - 1,
    "dense": lambda x: x * torch.arange(float(WIDTH)),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "views": lambda x: x.view(x.shape[0], -1, 2, 3).flatten(2).unsqueeze(-1).transpose(-1, -2),
    "chunks": lambda x: x.chunk(2, -1),
    "joined": lambda x: torch.cat([x, x.cos()], -1),
    "padded": lambda x: x.to_padded_tensor(0.5),
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "values": lambda x: (x * 2, x.values().sum(0)),
    "matmul": lambda x: x @ torch.ones(WIDTH, 3),
    "in_place": lambda x: x.clone().add_(1).mul_(x),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("grad", [False, True])
def test_programs_of_jagged_tensors_are_captured_whole(name: str, grad: bool) -> None:
    fn = UNARY[name]
    compiled = bolide.compile(fn, fullgraph=True)
    for _ in range(3):
        x = _jagged(requires_grad=grad)
        _agree_on(x, compiled, fn, grad)


@pytest.mark.parametrize("grad", [False, True])
def test_sequences_are_looked_at_one_by_one(grad: bool) -> None:
    """Their lengths are data, read of the offsets: numbers of the graph where they differ between calls; with gradients
    that is a break."""

    def fn(x: Any) -> Any:
        return torch.stack([part.sum(0) for part in x.sin().unbind()]) * 2

    compiled = bolide.compile(fn, fullgraph=not grad)
    first = random.sample(range(2, 9), 4)  # an offset that the first two calls have alike would be fixed in the second
    second = [length + 1 for length in first]
    for lengths in (first, second, *(random.sample(range(2, 9), 4) for _ in range(4))):
        _agree_on(_jagged(*lengths, requires_grad=grad), compiled, fn, grad)
    assert grad or len(compiled._bolide.entries) <= 2


def test_parameters_beside_jagged_tensors_get_gradients() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)
    )
    compiled, found = bolide.compile(model, fullgraph=True), []
    x = _jagged(requires_grad=True)
    for fn in (model, compiled):
        model.zero_grad()
        _, (grad,) = _derived(fn, x)
        found.append([_plain(grad), *[parameter.grad for parameter in model.parameters()]])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("grad", [False, True])
def test_one_version_serves_all_batches(grad: bool) -> None:
    """Raggedness is symbolic from the first version on, the number of sequences from the second."""

    def fn(x: Any) -> Any:
        return x.sin().to_padded_tensor(0.0) * 2

    compiled = bolide.compile(fn, fullgraph=True)
    for lengths in ((2, 3, 4), (5, 3, 7), (3, 9, 2), (2, 8, 3, 5), (6, 2, 4, 3, 2), (3, 5, 6, 7, 8, 9)):
        x = _jagged(*lengths, requires_grad=grad)
        _agree(*[_derived(function, x)[1] if grad else function(x) for function in (compiled, fn)])
    assert len(compiled._bolide.entries) <= 2


INSIDE: dict[str, Callable[..., Any]] = {
    "by_offsets": lambda x, y, o: torch.nested.nested_tensor_from_jagged(torch.cat([x, y]), o).sin() * 2,
    "of_lists": lambda x, y, o: torch.nested.as_nested_tensor([x, y], layout=torch.jagged) * 2,
    "with_lengths": lambda x, y, o: torch.nested.nested_tensor_from_jagged(
        torch.cat([x, y]), o, min_seqlen=2, max_seqlen=9
    ).to_padded_tensor(1.0),
    "masked": lambda x, y, o: torch.nested.masked_select(x, x > 0).values() + 1,
}


@pytest.mark.parametrize("name", INSIDE)
def test_jagged_tensors_are_made_inside(name: str) -> None:
    fn = INSIDE[name]
    compiled = bolide.compile(fn, fullgraph=True)
    for _ in range(3):
        sizes = [random.randint(2, 7) for _ in range(2)]
        offsets = torch.tensor([0, sizes[0], sum(sizes)])
        given = [torch.randn(size, WIDTH, requires_grad=name != "masked") for size in sizes]
        if name == "masked":
            _agree(compiled(*given, offsets), fn(*given, offsets))
        else:
            (found, grads), (expected, wanted) = _derived(compiled, *given, offsets), _derived(fn, *given, offsets)
            _agree(found, expected)
            _agree(grads, wanted)


def test_ragged_sizes_are_compared_as_eager_compares_them() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x.sin() if x.shape == y.shape else x.cos()

    for _ in range(3):
        compiled, lengths = bolide.compile(fn, fullgraph=True), _lengths()
        x, other = _jagged(*lengths), _jagged(*lengths)
        alike = torch.nested.nested_tensor_from_jagged(x.values() + 1, x.offsets())
        pairs = [(x, alike), (x, other), (x, x), (other, other.sin()), (other, x)]
        for one, another in random.sample(pairs, len(pairs)):
            _agree(compiled(one, another), fn(one, another))


def test_results_go_together_with_arguments() -> None:
    """A result has the argument's offsets, so eager operations take both; a size that leaves is the argument's."""
    x = _jagged()
    made, size = bolide.compile(lambda x: (x * 2, x.shape[1]), fullgraph=True)(x)
    assert made.offsets() is x.offsets() and size == x.shape[1] == made.shape[1]
    _agree(made + x, x * 3)
    with pytest.raises(RuntimeError, match="shapes"):
        bolide.compile(lambda x, y: x + y)(x, _jagged())


@pytest.mark.parametrize("name", ["pointwise", "softmax", "views", "joined"])
def test_aot_function_takes_jagged_tensors(name: str) -> None:
    x = _jagged(requires_grad=True)
    (found, grads), (expected, wanted) = _derived(aot_function(UNARY[name], nop), x), _derived(UNARY[name], x)
    _agree(found, expected)
    _agree(grads, wanted)
