"""Attention whose heads share keys and values: these are not repeated, and results are eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bolide
from bolide.inductor.plan import Alloc
from tests.plan_tools import plans

BATCH, GROUPS, TIMES, KEYS, TERMS = 2, 3, 4, 12, 16
HEADS = GROUPS * TIMES


@pytest.fixture(autouse=True)
def inference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bolide.dynamo.config, "suppress_errors", False)
    with torch.no_grad():
        yield


def expanded(x: Tensor) -> Tensor:
    batch, groups, length, terms = x.shape
    return x[:, :, None].expand(batch, groups, TIMES, length, terms).reshape(batch, groups * TIMES, length, terms)


def interleaved(x: Tensor) -> Tensor:
    return x.repeat_interleave(TIMES, dim=1)


def is_repeated(program: Callable[..., Any], *args: Tensor, **options: Any) -> bool:
    """Whether a compiled program takes memory for repeated keys; its results are those of eager."""
    with plans() as graphs:
        ours, eager = bolide.compile(program, **options)(*args), program(*args)
    wide = torch.promote_types(eager.dtype, torch.float32)
    tolerance = 2e-2 if eager.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(ours.to(wide), eager.to(wide), rtol=tolerance, atol=tolerance, equal_nan=True)
    assert ours.stride() == eager.stride()
    allocated = [step.type.shape for graph in graphs for step in graph.plan.steps if isinstance(step, Alloc)]
    numbers = [math.prod(size.value for size in shape if size.is_const) for shape in allocated]
    return any(number >= HEADS * KEYS * TERMS for number in numbers)


def operands(queries: int, dtype: torch.dtype = torch.float32, keys: int = KEYS) -> list[Tensor]:
    shapes = (HEADS, queries), (GROUPS, keys), (GROUPS, keys)
    return [torch.randn(BATCH, *shape, TERMS).to(dtype) for shape in shapes]


@pytest.mark.parametrize("repeated", [expanded, interleaved, None])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_kernel(repeated: Callable[[Tensor], Tensor] | None, queries: int, dtype: torch.dtype) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        k, v = (k, v) if repeated is None else (repeated(k), repeated(v))
        found = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=0.3, enable_gqa=repeated is None)
        return found.transpose(1, 2).flatten(2) + 1

    assert not is_repeated(program, *operands(queries, dtype))
    assert not is_repeated(lambda q, k, v: program(q, k, v, None, True), *operands(queries, dtype))
    for shape in [(1, 1, 1, KEYS), (BATCH, 1, queries, KEYS), (1, HEADS, 1, KEYS), (queries, KEYS)]:
        added, seen = torch.randn(shape).to(dtype), torch.rand(shape) > 0.4
        assert not is_repeated(program, *operands(queries, dtype), added)
        assert not is_repeated(program, *operands(queries, dtype), seen)


@pytest.mark.parametrize("queries", [1, 3])
def test_results_of_the_program(queries: int) -> None:
    """The attention itself is what the program gives, with eager's strides."""
    q, k, v = operands(queries)
    assert not is_repeated(lambda q, k, v: F.scaled_dot_product_attention(q, expanded(k), expanded(v)), q, k, v)
    q = torch.randn(BATCH, queries, HEADS, TERMS).transpose(1, 2)
    assert not is_repeated(lambda q, k, v: F.scaled_dot_product_attention(q, expanded(k), expanded(v)), q, k, v)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_products(queries: int, transposed: bool) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, expanded(k).transpose(2, 3)) * 0.3
        return torch.matmul(scores.softmax(-1), expanded(v)).transpose(1, 2).flatten(2)

    args = operands(queries)
    if transposed:
        args = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in args]
    assert not is_repeated(program, *args)


def test_keys_that_grow() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, expanded(k), expanded(v)) * 2

    compiled: Any = bolide.compile(program, dynamic=True)
    for keys in (5, 9, 6):
        args = operands(1, keys=keys)
        torch.testing.assert_close(compiled(*args), program(*args))


def test_other_repetitions_stay() -> None:
    """Heads in another order, and keys that are repeated otherwise than the values."""

    def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k.repeat(1, TIMES, 1, 1), v.repeat(1, TIMES, 1, 1)) + 1

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        v = v[:, :1].expand(BATCH, HEADS, KEYS, TERMS)
        return F.scaled_dot_product_attention(q, expanded(k), v) + 1

    for queries in (1, 3):
        assert is_repeated(tiled, *operands(queries))
        is_repeated(mixed, *operands(queries))


def test_gradients() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, expanded(k), expanded(v)).square().sum()

    for queries in (1, 3):
        with torch.enable_grad():
            mine = [x.requires_grad_() for x in operands(queries)]
            theirs = [x.detach().clone().requires_grad_() for x in mine]
            bolide.compile(program)(*mine).backward()
            program(*theirs).backward()
        torch.testing.assert_close([x.grad for x in mine], [x.grad for x in theirs], rtol=1e-4, atol=1e-5)
