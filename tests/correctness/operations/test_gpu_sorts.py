"""Sorts of short rows on a GPU that this machine plays: eager's order, of equal elements and NaN too, in one kernel."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bolide

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))
import gpu_emulated
from gpu_emulator import emulate

from bolide.inductor.ir.interpret import interpret
from bolide.inductor.ir.loops import Axis, Init, Kernel, Loop, Update
from bolide.inductor.ir.verify import InvalidKernel, verify
from bolide.symbolic import as_expr
from tests.ir.kernel_tools import acc, load, param, store, var

DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16),
    *(torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)


def rows_of(dtype: torch.dtype, length: int) -> Tensor:
    """Rows with many equal elements, and with those that have a place of their own in the order."""
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, (3, length)).to(dtype)
    x = torch.randn(3, length).mul(3).round() / 2
    x[torch.rand(x.shape) < 0.1] = 0.0
    for special in (float("nan"), -float("nan"), float("inf"), -float("inf"), -0.0):
        x[torch.rand(x.shape) < 0.05] = special
    return x.to(dtype)


def same(function: Callable[[Tensor], object], x: Tensor) -> None:
    mine, theirs = bolide.compile(function)(x), function(x)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    for one, other in zip(mine, theirs) if isinstance(mine, tuple) else [(mine, theirs)]:
        assert one.stride() == other.stride()
        if one.dtype.is_floating_point:
            assert torch.equal(one.signbit(), other.signbit())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sorts_are_eagers(dtype: torch.dtype) -> None:
    for length in (random.randint(2, 31), random.choice((32, 64, 128)), random.randint(33, 256)):
        x, descending = rows_of(dtype, length), random.random() < 0.5
        same(lambda x, d=descending: tuple(x.sort(dim=-1, descending=d, stable=True)), x)
        same(lambda x, d=descending: x.sort(dim=1, descending=not d, stable=True)[1], x)
        same(lambda x: x.sort(stable=True).values, x.t().contiguous().t())
    same(lambda x: x.sort(stable=True, dim=0)[0], rows_of(dtype, 5))
    same(lambda x: x.sort(stable=True)[1], rows_of(dtype, 1)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_the_largest_elements(dtype: torch.dtype) -> None:
    x = rows_of(dtype, random.randint(5, 100))
    for k in (1, 4):
        mine, theirs = (run(lambda x, k=k: x.topk(k)[0] * 1)(x) for run in (bolide.compile, lambda f: f))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        mine, theirs = (run(lambda x, k=k: x.topk(k, largest=False)[0])(x) for run in (bolide.compile, lambda f: f))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    same(lambda x: tuple(x.topk(3)), torch.randperm(40).to(dtype))
    same(lambda x: x.topk(0)[0], x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_alone(dtype: torch.dtype) -> None:
    """Of equal elements any may be the first where nobody asks for their places: zeros may change theirs."""
    x, down = rows_of(dtype, random.randint(2, 256)), random.random() < 0.5
    for function in (
        lambda x: x.sort(descending=down)[0],
        lambda x: torch.sort(x, stable=False, dim=-1, descending=not down).values,
        lambda x: x.sort().values[:, ::2],
    ):
        mine, theirs = bolide.compile(function)(x), function(x)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        if dtype.is_floating_point and mine.shape == x.shape:
            assert torch.equal((mine.signbit() & (mine == 0)).sum(-1), (theirs.signbit() & (theirs == 0)).sum(-1))


def test_gradients_and_what_follows() -> None:
    x = torch.randn(5, 40, requires_grad=True)
    other, weights = x.detach().clone().requires_grad_(), torch.randn(40) / 40

    def weighted(x: Tensor) -> Tensor:
        return (x.sort(-1)[0] * weights).sum(1).exp()

    g = torch.randn(5)
    bolide.compile(weighted)(x).backward(g)
    weighted(other).backward(g)
    torch.testing.assert_close(x.grad, other.grad)


def in_one_kernel(function: Callable[[Tensor], object], x: Tensor) -> bool:
    torch.testing.assert_close(bolide.compile(function)(x), function(x))
    return "1 kernel (1 launch)" in str(bolide.explain(function)(x))


def test_what_follows_a_sort_or_a_scan_is_computed_in_its_loop() -> None:
    x = torch.randn(6, 50)
    assert in_one_kernel(lambda x: tuple((x * 2).sort(stable=True)), x)
    assert in_one_kernel(lambda x: x.sort(-1)[0].exp() + 1, x)
    assert in_one_kernel(lambda x: (x.cumsum(1) * 2, x.cumsum(1).sin()), x)
    assert in_one_kernel(lambda x: x.cumsum(0) - x, x)
    assert not in_one_kernel(lambda x: x.cumsum(1).flip(1), x)
    assert not in_one_kernel(lambda x: x.cumsum(1).sum(1), x)
    assert not in_one_kernel(lambda x: x.cumsum(1)[:, ::2] * 2, x)


def sort_of_rows(length: int, dtype: torch.dtype, team: int = 32, kind: str = "scan") -> Kernel:
    """out[i, j] = element j of row i in order."""
    i, j = var("i", 3), var("j", length)
    body = (Update("a", load("x", i * length + j, dtype)), store("out", i * length + j, acc("a", dtype)))
    scan = Loop(Axis("j", as_expr(length), kind, "team" if kind == "scan" else None), body)  # type: ignore[arg-type]
    loop = Loop(Axis("i", as_expr(3), "parallel", "grid"), (Init("a", "sort", dtype), scan))
    params = (param("out", 3 * length, dtype, "out"), param("x", 3 * length, dtype))
    return Kernel("k", params, (loop,), device=torch.device("cuda"), team=team)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_warp_sorts(dtype: torch.dtype) -> None:
    """Whichever thread comes first, whatever the length is; the largest number too."""
    for length in (1, random.randint(2, 31), 32, random.randint(33, 255), 256):
        kernel = sort_of_rows(length, dtype)
        verify(kernel)
        x = torch.randint(-50, 50, (3 * length,)).to(dtype)
        x[random.randrange(len(x))] = torch.iinfo(dtype).max
        wanted = {"out": torch.zeros_like(x), "x": x}
        interpret(kernel, wanted)
        assert torch.equal(wanted["out"].view(3, -1), x.view(3, -1).sort().values)
        for step in (1, -1):
            mine = {"out": torch.zeros_like(x), "x": x.clone()}
            emulate(kernel, mine, None, step)
            assert torch.equal(mine["out"], wanted["out"])


def test_only_a_warp_sorts() -> None:
    for kernel, why in (
        (sort_of_rows(64, torch.int32, 64), "no warp shares"),
        (sort_of_rows(64, torch.int32, 32, "serial"), "no warp shares"),
        (sort_of_rows(257, torch.int32), "at most 256"),
        (sort_of_rows(64, torch.float32), "sorts torch.float32"),
    ):
        with pytest.raises(InvalidKernel, match=why):
            verify(kernel)
