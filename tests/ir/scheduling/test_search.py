"""`max_autotune`: schedules are chosen by running them, and what was found is remembered."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

import bolide
from bolide.inductor import compile_graph
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.machine import Machine, host_machine
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.inductor.search import Search, searching
from bolide.support import artifacts
from tests.schedule_tools import assert_same, graph_of


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    artifacts.reset()
    yield
    artifacts.reset()


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous() * 2


def on_one_thread() -> Machine:
    return replace(host_machine(), threads=1)


class Ran:
    """A clock that is slow for all kernels but the one that comes `best` in each turn; it counts the runs."""

    def __init__(self, best: int) -> None:
        self.best, self.runs = best, 0
        self.kernels: list[CompiledKernel] = []

    def __call__(self, kernel: CompiledKernel, words: Sequence[int]) -> float:
        self.runs += 1
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        kernel.launch(*words)
        return 1.0 if self.kernels.index(kernel) == self.best else 2.0


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_fastest_is_taken_and_remembered(best: int) -> None:
    x = torch.randn(4, 5, 6, 32)
    for again in (False, True):
        clock = Ran(best)
        graph = compile_graph(*graph_of(turned, (x,)), tune=Search(on_one_thread(), {}, clock))
        (plain,) = compile_graph(*graph_of(turned, (x,))).kernels
        assert_same(graph([x])[0], turned(x))
        assert (clock.runs == 0) == again
        (report,) = graph.kernels
        assert report.schedule.outer == [plain.schedule, *plain.schedule.alternatives()][best].outer
        assert ("the fastest when measured" in report.schedule.why) == (best > 0)


@pytest.mark.parametrize("best", range(5))
def test_numbers_of_threads_are_tried_for_the_fastest_schedule(best: int) -> None:
    machine = replace(host_machine(), threads=4)
    x = torch.randn(4, 5, 6, 32)
    (plain,) = compile_graph(*graph_of(turned, (x,))).kernels
    schedules = [plain.schedule, *plain.schedule.alternatives()]
    threads = [schedules[1], *schedules[1].alternative_threads(machine)]
    assert len({schedule.grain for schedule in threads}) == len(threads) == 5
    times = [2.0 if place != 1 else 1.0 for place in range(len(schedules))]  # of the kernels, as they come
    times += [1.5 if place != best else 0.5 for place in range(1, len(threads))]
    seen: list[CompiledKernel] = []

    def clock(kernel: CompiledKernel, words: Sequence[int]) -> float:
        if kernel not in seen:
            seen.append(kernel)
        kernel.launch(*words)
        return times[seen.index(kernel)]

    graph = compile_graph(*graph_of(turned, (x,)), tune=Search(machine, {}, clock))
    assert_same(graph([x])[0], turned(x))
    (report,) = graph.kernels
    assert len(seen) == len(times)
    assert (report.schedule.outer, report.schedule.grain) == (threads[best].outer, threads[best].grain)
    assert ("for a thread" in report.schedule.text()) == (f"grain {report.schedule.grain}" in kernel_text(report.ir))
    assert (report.schedule.grain is None) == (best == 0)


def test_work_is_shared_by_the_threads_that_the_schedule_asks_for() -> None:
    """Also when sizes are others than those that were measured: a grain is work, not a number of threads."""
    machine = replace(host_machine(), threads=4)
    for rows in (1, 7, 300):
        x = torch.randn(2, rows, 6, 32)
        (plain,) = compile_graph(*graph_of(turned, (x,))).kernels
        for schedule in plain.schedule.alternative_threads(machine):
            graph = compile_graph(*graph_of(turned, (x,)), tune=lambda _, kernel_of, schedule=schedule: schedule)
            assert_same(graph([x])[0], turned(x))


def test_a_small_gain_is_none() -> None:
    seen: list[CompiledKernel] = []

    def clock(kernel: CompiledKernel, words: Sequence[int]) -> float:
        if kernel not in seen:
            seen.append(kernel)
        return 1.0 - 0.001 * seen.index(kernel)

    x = torch.randn(4, 5, 6, 32)
    graph = compile_graph(*graph_of(turned, (x,)), tune=Search(on_one_thread(), {}, clock))
    assert "the fastest when measured" not in graph.kernels[0].schedule.why and len(seen) > 1


def test_choices_are_artifacts() -> None:
    x = torch.randn(4, 5, 6, 32)
    compile_graph(*graph_of(turned, (x,)), tune=Search(on_one_thread(), {}, Ran(1)))
    saved = artifacts.save_cache_artifacts()
    assert saved is not None and len(saved[1].artifacts["choices"]) == 1
    artifacts.reset()
    assert artifacts.load_cache_artifacts(saved[0]).artifacts == saved[1].artifacts
    clock = Ran(0)
    compile_graph(*graph_of(turned, (x,)), tune=Search(on_one_thread(), {}, clock))
    assert not clock.runs


def programs(x: torch.Tensor, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], w) + x.transpose(0, 1)[index].sum(1, keepdim=True).mean(0)
    return torch.softmax(y * w, -1).cumsum(0) + torch.rand_like(x) * 0


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_the_mode_gives_the_same_results_and_gradients(mode: str, dynamic: bool | None) -> None:
    compiled = bolide.compile(programs, mode=mode, dynamic=dynamic)
    for rows in (6, 6, 9, 1):
        index = torch.randint(0, 7, (3,))
        x, w = torch.randn(rows, 7, 40, requires_grad=True), torch.randn(40, requires_grad=True)
        results = [fn(x, w, index) for fn in (programs, compiled)]
        gradients = [torch.autograd.grad(result.square().sum(), (x, w)) for result in results]
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
    saved = artifacts.save_cache_artifacts()
    assert saved is not None and saved[1].artifacts["choices"]


def test_there_is_a_bar_where_standard_error_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with searching("forward_1", host_machine(), {}) as search:
            compile_graph(*graph_of(turned, (torch.randn(4, 5, 6, 16),)), tune=search)
        assert ("max_autotune" in stream.getvalue()) == shown
