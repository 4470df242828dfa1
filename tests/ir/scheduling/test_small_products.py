"""Small matrix products are kernels: results, rounding, gradients, and what stays a call."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor import CompiledGraph
from bolide.inductor.machine import host_target
from bolide.inductor.plan import Call
from tests.schedule_tools import check, compiled

R = torch.randn


def calls(graph: CompiledGraph) -> list[str]:
    return [str(step.operator) for step in graph.plan.steps if isinstance(step, Call)]


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def columns_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Every other element of some rows."""
    return tensor.repeat_interleave(2, -1).view(*tensor.shape, 2).select(-1, 0)


def stored(view: Callable[[torch.Tensor], torch.Tensor], *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """What is of this shape under the view."""
    *batch, rows, columns = shape
    return R(*batch, columns, rows, dtype=dtype) if view is columns_of else R(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("left", [rows_of, columns_of, with_gaps])
@pytest.mark.parametrize("right", [rows_of, columns_of, with_gaps])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_every_orientation(dtype, left, right, batch) -> None:
    rows, inner, columns = random.randint(1, 21), 16 * random.randint(1, 4), 16 * random.randint(1, 4)
    print(f"{rows} x {inner} x {columns}")

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (torch.bmm if batch else torch.mm)(left(a), right(b))

    a, b = stored(left, *batch, rows, inner, dtype=dtype), stored(right, *batch, inner, columns, dtype=dtype)
    graph = check(multiply, a, b, rtol=1e-4, atol=1e-4)
    assert calls(graph) == []
    if dtype is torch.float32:
        # Roundings of a sum are independent, so they grow with the root of its length (Higham, Mary, "A new approach
        # to probabilistic rounding error analysis", 2019).
        bound = 2 * inner**0.5 * 2**-24 * multiply(a.double().abs(), b.double().abs())
        assert ((graph([a, b])[0] - multiply(a.double(), b.double())).abs() <= bound).all()


@pytest.mark.parametrize("rows", range(4, 14))
def test_rows_that_are_no_multiple_of_what_is_summed_at_once(rows: int) -> None:
    columns, inner = random.randint(16, 40), random.randint(2, 70)
    print(f"{rows} x {inner} x {columns}")
    graph = check(lambda a, b: torch.tanh(a @ b), R(rows, inner), R(inner, columns), rtol=1e-4, atol=1e-4)
    (schedule,) = [report.schedule for report in graph.kernels]
    assert schedule.jam is not None and schedule.jam[1] > 1 and "at a time" in schedule.text()
    assert calls(graph) == []


@pytest.mark.parametrize("bias", [(24,), (1,), (10, 24), (10, 1), (1, 24)])
def test_what_comes_after_is_in_the_same_kernel(bias: tuple[int, ...]) -> None:
    def linear(bias, a, b, residual):
        return F.gelu(torch.addmm(bias, a, b)) + residual

    graph = check(linear, R(bias), R(10, 33), R(33, 24), R(10, 24), rtol=1e-4, atol=1e-4)
    assert calls(graph) == [] and len(graph.plan.kernels) == 1


def test_values_that_are_not_finite() -> None:
    a, b = R(8, 20), R(20, 32)
    a[1, 3], a[2, 4], b[5, 6] = torch.inf, torch.nan, -torch.inf
    check(lambda a, b: torch.relu(a @ b), a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "program, left, right",
    [
        (torch.mm, (64, 65), (65, 64)),  # large
        (lambda a, b: a @ b.t(), (2, 32), (512, 32)),  # much to lay out for few rows
        (torch.mm, (8, 20), (20, 7)),  # idle lanes
        (lambda a, b: torch.addmm(a[0, 0], a, b, beta=0.5), (8, 20), (20, 32)),
        (lambda a, b: a @ b.t(), (8, 20), (33, 20)),  # transposed, and no whole tiles
    ],
)
def test_other_products_are_calls(program, left, right) -> None:
    assert len(calls(check(program, R(left), R(right), rtol=1e-4, atol=1e-4))) == 1


def test_a_product_that_is_added_is_not_rounded_before() -> None:
    """Where the target has such an instruction: what is left of x * y without its rounding is its error."""
    x, y = torch.rand(8, 1), torch.rand(1, 1)
    a, b = torch.cat([-(x * y), x], 1), torch.cat([torch.ones(1, 32), y.expand(1, 32)])
    exact = a.double() @ b.double()
    result = compiled(torch.mm, (a, b))([a, b])[0]
    fused = "+fma" in host_target().features
    torch.testing.assert_close(result.double(), exact if fused else torch.zeros_like(exact), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.Linear(48, 16)).to(dtype)
    mine = bolide.compile(model)
    for rows in (8, 13, 13, 40, 8):
        x = R(rows, 32, dtype=dtype, requires_grad=True)
        results = []
        for run in (model, mine):
            x.grad = None
            model.zero_grad()
            out = run(x)
            (out.square().sum() + out[0, 0]).backward()
            results.append([out.detach(), x.grad, *(parameter.grad for parameter in model.parameters())])
        torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-3)
        assert [t.stride() for t in results[0]] == [t.stride() for t in results[1]]


def test_products_in_a_chain() -> None:
    def chain(x, w, v):
        h = torch.softmax(x @ w, -1)
        return h @ v, (h @ v) @ w, h.t() @ x

    check(chain, R(12, 32), R(32, 16), R(16, 32), rtol=1e-4, atol=1e-4)
