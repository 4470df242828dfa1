"""`max_autotune` on a GPU that this machine plays: every candidate computes the same; those that fail are dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gpu_emulated
import pytest
import torch
from torch import Tensor

from bolide.inductor import compile_graph, search
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import HOPPER
from bolide.inductor.plan import Call
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.search import Run, Search
from bolide.support import artifacts
from tests.schedule_tools import Rescheduled, assert_same, graph_of


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gpu_emulated.emulate(monkeypatch.setattr)
    monkeypatch.setattr(search, "compile_kernels", gpu_emulated.compiled)
    artifacts.reset()
    yield
    artifacts.reset()


def normalized(x: Tensor) -> Tensor:
    return torch.softmax(x, -1) * 2


def columns(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(0), x.argmax(0)


def turned(x: Tensor) -> Tensor:
    return x.t().contiguous() + 1


def rows(x: Tensor) -> Tensor:
    return x.view(3, -1, x.shape[1]).amax((0, 2))


def flat(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("program", [normalized, columns, turned, rows], ids=lambda program: program.__name__)
@pytest.mark.parametrize("choice", range(6))
def test_every_alternative_computes_the_same(program: Callable[..., Any], choice: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(69, 45)

    def tune(usual: Schedule, kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        others = usual.alternatives(HOPPER, {})
        others += [each for other in (usual, *others) for each in other.alternative_threads(HOPPER)]
        assert len(others) > 1
        return others[choice % len(others)]

    graph = compile_graph(*graph_of(program, (x,)), tuner=Rescheduled(tune))
    for mine, theirs in zip(graph([x]), flat(program(x)), strict=True):
        assert_same(mine, theirs, rtol=1e-5, atol=1e-5)


class Slower:
    """A clock by which each candidate takes longer than the one before, or not as long."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.seen: list[Run] = []

    def __call__(self, run: Run) -> float:
        if run not in self.seen:
            run()
            self.seen.append(run)
        return self.factor ** self.seen.index(run)


@pytest.mark.parametrize("factor, team", [(0.5, 1024), (2.0, 32)])
def test_teams_are_tried(factor: float, team: int) -> None:
    x = torch.randn(150, 200)
    clock = Slower(factor)
    graph = compile_graph(*graph_of(normalized, (x,)), tuner=Search(HOPPER, {}, clock))
    assert_same(graph([x])[0], normalized(x))
    (report,) = graph.kernels
    assert (report.schedule.team, report.ir.team) == (team, team)
    assert len(clock.seen) >= 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_results_that_differ_are_seen(dtype: torch.dtype, seed: int) -> None:
    """By more than rounding, and also where some are NaN or infinite."""
    torch.manual_seed(seed)
    theirs = torch.randn(50, dtype=dtype) * 9 if dtype.is_floating_point or dtype.is_complex else None
    theirs = torch.randint(0, 2, (50,)).to(dtype) if theirs is None else theirs
    if dtype.is_floating_point:
        theirs[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert search._are_near(theirs.clone(), theirs)
    for place in (1, 2, 49):
        mine = theirs.clone()
        mine[place] = 1 - mine[place].to(torch.int64) if dtype in (torch.bool, torch.int64) else 100.0
        assert not search._are_near(mine, theirs)
    if dtype.is_floating_point:
        assert search._are_near(theirs * 1.01, theirs)


@pytest.mark.parametrize("bad", [{0}, {1, 2}, {0, 1}, {*range(20)}], ids=str)
@pytest.mark.parametrize("made", [True, False], ids=["made", "run"])
def test_what_fails_is_dropped(
    bad: set[int], made: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it cannot be made or not be launched; the others are looked at."""
    numbers = iter(range(99))

    def failing() -> None:
        raise RuntimeError("too many resources requested for launch")

    def compiled(kernels: Sequence[Kernel], *more: object) -> list[CompiledKernel]:
        results = gpu_emulated.compiled(kernels)
        if next(numbers) in bad:
            if made:
                failing()
            for result in results:
                result.raise_error = failing
        return results

    monkeypatch.setattr(search, "compile_kernels", compiled)
    monkeypatch.setattr(search, "FEWEST", 1)
    clock, x = Slower(2.0), torch.randn(20, 100)
    with caplog.at_level(logging.WARNING, "bolide.inductor"):
        graph = compile_graph(*graph_of(normalized, (x,)), tuner=Search(HOPPER, {}, clock))
    assert_same(graph([x])[0], normalized(x))
    assert caplog.text.count("is dropped") >= len(bad & {0, 1, 2})
    reasons = graph.kernels[0].schedule.why
    assert ("the fastest when measured" in reasons) == (0 in bad and len(bad) < 9)


def test_what_is_wrong_is_dropped(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """However fast it is: the second candidate does nothing at all."""
    numbers = iter(range(99))

    def compiled(kernels: Sequence[Kernel], *more: object) -> list[CompiledKernel]:
        results = gpu_emulated.compiled(kernels)
        if next(numbers) == 1:
            for result in results:
                monkeypatch.setattr(result, "launch", lambda *words: None)
        return results

    monkeypatch.setattr(search, "compile_kernels", compiled)
    x = torch.randn(20, 100)
    with caplog.at_level(logging.WARNING, "bolide.inductor"):
        graph = compile_graph(*graph_of(normalized, (x,)), tuner=Search(HOPPER, {}, Slower(0.5)))
    assert_same(graph([x])[0], normalized(x))
    assert caplog.text.count("it gives other results") == 1


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x @ w.t()


@pytest.mark.parametrize("program", [linear, plain], ids=lambda program: program.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("rows, inner, columns", [(1, 320, 70), (4, 257, 9), (3, 1024, 2)])
def test_products_of_few_rows_are_tried_as_kernels(
    program: Callable[..., Tensor], dtype: torch.dtype, rows: int, inner: int, columns: int, seed: int
) -> None:
    """Which then have what follows in them; other products are ATen's."""
    torch.manual_seed(seed)
    x, w, b = [torch.randn(size, dtype=dtype) for size in ((rows, inner), (columns, inner), (columns,))]
    search_of = Search(HOPPER, {}, Slower(0.5))
    graph = compile_graph(*graph_of(program, (x, w, b)), tuner=search_of)
    tolerance = {"rtol": 1e-2, "atol": 1e-1} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    assert_same(graph([x, w, b])[0], program(x, w, b), **tolerance)
    assert len(graph.kernels) == 1 and not any(isinstance(step, Call) for step in graph.plan.steps)
    large = torch.randn(40, inner, dtype=dtype)
    graph = compile_graph(*graph_of(program, (large, w, b)), tuner=search_of)
    assert any(isinstance(step, Call) for step in graph.plan.steps)
