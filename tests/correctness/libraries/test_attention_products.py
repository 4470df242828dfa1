"""The fused attention of 16-bit numbers, done with matrix products where these are faster: as precise as eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bolide
from bolide.inductor.plan import Call
from bolide.tracing import libraries
from tests.plan_tools import plans

HALF = [torch.bfloat16, torch.float16]
sdpa = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(libraries, "attention", lambda *_: "products")
    monkeypatch.setattr(bolide.dynamo.config, "suppress_errors", False)
    yield


def operands(queries: int, keys: int, dtype: torch.dtype, *, heads: int = 4, groups: int = 4) -> list[Tensor]:
    """Queries, keys and values as models have them: heads lie side by side in rows of memory."""
    shapes = ((queries, heads), (keys, groups), (keys, groups))
    return [torch.randn(2, length, count, 32).to(dtype).transpose(1, 2) for length, count in shapes]


def trained(program: Callable[..., Tensor], given: list[Tensor], grad: Tensor, *others: Any) -> list[Tensor]:
    """The result, and the gradients of the operands."""
    leaves = [x.detach().requires_grad_() for x in given]
    result = program(*leaves, *others)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad)]


def check(program: Callable[..., Tensor], given: list[Tensor], mask: Tensor | None = None, **options: Any) -> list[Any]:
    """Results and gradients have at most eager's errors; the compiled graphs."""
    others = [] if mask is None else [mask]
    exact_others = [] if mask is None else [mask.double() if mask.is_floating_point() else mask]
    grad = torch.randn(given[0].shape).to(given[0].dtype)
    with plans() as graphs:
        ours = trained(bolide.compile(program, **options), given, grad, *others)
    eager = trained(program, given, grad, *others)
    exact = trained(program, [x.double() for x in given], grad.double(), *exact_others)
    for found, theirs, true in zip(ours, eager, exact, strict=True):
        assert found.stride() == theirs.stride() and found.dtype is theirs.dtype
        assert torch.equal(found.isnan(), theirs.isnan())
        true = true.nan_to_num()
        error, least = ((x.nan_to_num().double() - true).square().mean().sqrt() for x in (found, theirs))
        assert error <= 1.15 * least + 1e-9, (error, least)
    return graphs


def kernels(graphs: list[Any]) -> list[str]:
    steps = [step for graph in graphs for step in graph.plan.steps if isinstance(step, Call)]
    return [str(step.operator) for step in steps if "flash" in str(step.operator)]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward_are_products(dtype: torch.dtype, causal: bool) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, is_causal=causal)

    assert not kernels(check(program, operands(48, 48, dtype)))
    assert not kernels(check(program, operands(24, 40, dtype)))
    assert not kernels(check(program, operands(40, 24, dtype), dynamic=True))


@pytest.mark.parametrize("dtype", HALF)
def test_scales_and_heads_that_share_keys(dtype: torch.dtype) -> None:
    given = operands(33, 47, dtype, heads=8, groups=2)
    assert not kernels(check(lambda q, k, v: sdpa(q, k, v, scale=0.4, enable_gqa=True), given))
    assert not kernels(check(lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True) * 2, given, dynamic=True))


@pytest.mark.parametrize("shape", [(24, 40), (2, 1, 1, 40), (2, 4, 24, 40), (1, 4, 24, 1)])
@pytest.mark.parametrize("dtype", HALF)
def test_masks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given, seen = operands(24, 40, dtype), torch.rand(shape) > 0.4
    assert not kernels(check(sdpa, given, torch.randn(shape).to(dtype)))
    assert not kernels(check(sdpa, given, seen))
    seen[..., 0] = True
    assert not kernels(check(sdpa, given, torch.randn(shape).to(dtype).masked_fill(~seen, -math.inf)))


@pytest.mark.parametrize("dtype", HALF)
def test_rows_without_keys_are_zero(dtype: torch.dtype) -> None:
    given, seen = operands(12, 20, dtype), torch.rand(12, 20) > 0.4
    seen[5] = False
    with torch.no_grad():
        result = bolide.compile(sdpa)(*given, seen)
    assert result[:, :, 5].eq(0).all() and result[:, :, 4].ne(0).any()
    leaves = [x.detach().requires_grad_() for x in given]
    gradients = torch.autograd.grad(bolide.compile(sdpa)(*leaves, seen).sum(), leaves)
    assert gradients[0][:, :, 5].eq(0).all() and not any(grad.isnan().any() for grad in gradients)


@pytest.mark.parametrize("dtype", HALF)
def test_what_is_not_finite_shows_where_it_does_in_eager(dtype: torch.dtype) -> None:
    for place in range(3):
        for value in (math.nan, math.inf):
            given = operands(48, 48, dtype)  # of fewer keys than a register has lanes the kernel loses NaN
            given[place][1, 2, 7, 3] = value
            for causal in (False, True):
                with torch.no_grad():
                    ours = bolide.compile(lambda q, k, v, c=causal: sdpa(q, k, v, is_causal=c), dynamic=False)(*given)
                    eager = sdpa(*given, is_causal=causal)
                if (
                    value is math.nan
                ):  # of infinities the kernel makes 0 or NaN, as the numbers of keys and lanes have it
                    assert torch.equal(ours.isnan(), eager.isnan()), (place, value, causal)
                elsewhere = torch.ones_like(eager, dtype=torch.bool)
                elsewhere[1, 2] = False
                torch.testing.assert_close(ours[elsewhere], eager[elsewhere], rtol=2e-2, atol=2e-2)


def test_sizes_that_change_and_results_that_are_used() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 4, 16).transpose(1, 2) for part in (x @ w).split(64, -1))
        return (sdpa(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape) + x).square()

    compiled, w = bolide.compile(program), torch.randn(64, 192) / 8
    for batch, length in ((2, 9), (3, 17), (1, 30)):
        x = torch.randn(batch, length, 64)
        found, wanted = [], []
        for run, results in ((compiled, found), (program, wanted)):
            given = [t.bfloat16().requires_grad_() for t in (x, w)]
            result = run(*given)
            results += [result, *torch.autograd.grad(result.float().sum(), given)]
        for ours, eager in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, eager, rtol=5e-2, atol=5e-2 * float(eager.detach().abs().max()))


def test_other_types_and_dropout_stay_as_they_are() -> None:
    given = operands(16, 16, torch.bfloat16)
    with plans() as graphs:
        bolide.compile(sdpa)(*[x.float() for x in given])
    assert len(kernels(graphs)) == 1
    torch.manual_seed(1)
    dropped = bolide.compile(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5))(*given)
    assert dropped.dtype is torch.bfloat16 and not torch.equal(dropped, sdpa(*given))


def test_the_faster_way_is_measured_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(libraries, "ATTENTION", {})
    given = operands(24, 24, torch.bfloat16)

    def calls() -> list[str]:
        leaves = [x.detach().requires_grad_() for x in given]
        with plans() as graphs:
            bolide.compile(lambda q, k, v: sdpa(q, k, v) * 3)(*leaves).sum().backward()
        return kernels(graphs)

    calls()
    assert sorted(alike.backward for alike in libraries.ATTENTION) == [False, True]
    assert all(min(times.values()) > 0 for times in libraries.ATTENTION.values())
    for way, count in (("products", 0), ("fused", 2)):
        for alike in libraries.ATTENTION:
            libraries.ATTENTION[alike] = {"fused": 2.0, "products": 1.0 if way == "products" else 3.0}
        assert len(calls()) == count
    assert libraries.attention(torch.bfloat16, 64, 1 << 10, 1 << 10, 64, False, False) == "fused"  # too many scores
