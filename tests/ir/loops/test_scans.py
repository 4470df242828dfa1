"""Cumulative sums and products: eager's values, strides and gradients; the loop that makes them, against the oracle."""

from __future__ import annotations

import random

import pytest
import torch

import bolide
from bolide.inductor.ir.definitions import Computed
from bolide.inductor.ir.loops import Init, Kernel, Update
from bolide.inductor.ir.printer import program_text
from bolide.inductor.lowering import lower
from tests.ir.kernel_tools import acc, both, load, loop, op, param, store, var
from tests.schedule_tools import check, compiled, graph_of

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = ((), (1,), (5,), (1000,), (3, 50), (4, 1, 9), (2, 33, 17), (3, 5, 300))


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_scans_are_eagers(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = (torch.randn(shape) * 5).to(dtype)
        rank = max(len(shape), 1)
        for dim in (random.randrange(rank), -random.randint(1, rank)):
            check(lambda x, dim=dim: x.cumsum(dim), x)
            check(lambda x, dim=dim: x.cumsum(dim, dtype=torch.float32) + 1, x)
            if dtype in (torch.float32, torch.int64):
                check(lambda x, dim=dim: x.cumprod(dim), x)
            if len(shape) > 1:
                check(lambda x, dim=dim: (x.transpose(0, 1) + x.transpose(0, 1)).cumsum(dim), x)
    x = torch.randn(4, 70)
    x[0, 5], x[1, 40], x[2, 3], x[2, 66] = float("nan"), float("inf"), float("inf"), float("-inf")
    check(lambda x: x.cumsum(1), x)
    check(lambda x: x.cumsum(0), x)
    check(lambda x: x.cumsum(0), torch.randn(0, 3))


def test_a_scan_runs_in_a_kernel_with_what_it_reads() -> None:
    x = torch.randn(40, 60)
    (kernel,) = compiled(lambda x: (x * 2 + 1).cumsum(1), [x]).kernels
    assert set(kernel.origins) == {"mul", "add", "cumsum"}
    gm, _ = graph_of(lambda x: x.cumsum(0), [x])
    program = lower(gm)
    assert [d.scan is not None for d in program.definitions if isinstance(d, Computed)] == [True]
    assert "up to" in program_text(program)


@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_scan_loops_by_the_oracle(kind: str) -> None:
    for rows, columns in [(1, 1), (3, 7), (2, 16), (5, 33), (40, 20)]:
        i, j = var("i", rows), var("j", columns)
        body = (Update("a", load("x", i * columns + j)), store("out", i * columns + j, op("mul", acc("a"), acc("a"))))
        start = Init("a", kind, torch.float32)
        given = {"out": torch.zeros(rows * columns), "x": torch.rand(rows * columns) + 0.4}
        params = (param("out", rows * columns, role="out"), param("x", rows * columns))
        along = loop("parallel", "i", rows, start, loop("scan", "j", columns, *body))
        across = loop("vector", "j", columns, start, loop("scan", "i", rows, *body))
        for nest in (along, across):
            for _, mine, expected in both(Kernel("k", params, (nest,)), given):
                torch.testing.assert_close(mine, expected)


def test_symbolic_sizes_and_gradients() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0) * 2 + x.cumsum(-1)

    dynamic = bolide.compile(program, dynamic=True)
    for shape in ((4, 5), (40, 33), (1, 7), (7, 1), (0, 3), (3, 300)):
        mine = torch.randn(shape, requires_grad=True)
        theirs, grad = mine.detach().clone().requires_grad_(), torch.randn(shape)
        torch.testing.assert_close(dynamic(mine), program(theirs))
        dynamic(mine).backward(grad)
        program(theirs).backward(grad)
        torch.testing.assert_close(mine.grad, theirs.grad)
