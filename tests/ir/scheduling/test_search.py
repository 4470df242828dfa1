"""`max_autotune`: schedules and libraries are chosen by running them, and what was found is remembered."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch

import bolide
from bolide.inductor import CompiledGraph, compile_graph
from bolide.inductor.ir.definitions import Program
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.machine import Machine, host_machine
from bolide.inductor.plan import Call
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.schedule.products import Way
from bolide.inductor.search import Run, Search, searching
from bolide.support import artifacts
from tests.schedule_tools import Rescheduled, assert_same, graph_of


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    artifacts.reset()
    yield
    artifacts.reset()


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous() * 2


def on_one_thread() -> Machine:
    return replace(host_machine(), threads=1)


class Times:
    """A clock that tells these times, of what is run in the order in which it comes first; it counts the runs."""

    def __init__(self, *times: float) -> None:
        self.times, self.count = times, 0
        self.seen: list[Run] = []

    def __call__(self, run: Run) -> float:
        self.count += 1
        if run not in self.seen:
            self.seen.append(run)
        run()
        return self.times[self.seen.index(run)]


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_fastest_is_taken_and_remembered(best: int) -> None:
    x = torch.randn(4, 5, 6, 32)
    for again in (False, True):
        clock = Times(*[2.0 if place != best else 1.0 for place in range(6)])
        graph = compile_graph(*graph_of(turned, (x,)), tuner=Search(on_one_thread(), {}, clock))
        (plain,) = compile_graph(*graph_of(turned, (x,))).kernels
        assert_same(graph([x])[0], turned(x))
        assert (clock.count == 0) == again
        (report,) = graph.kernels
        assert report.schedule.outer == [plain.schedule, *plain.schedule.alternatives(on_one_thread(), {})][best].outer
        assert ("the fastest when measured" in report.schedule.why) == (best > 0)


@pytest.mark.parametrize("best", range(5))
def test_numbers_of_threads_are_tried_for_the_fastest_schedule(best: int) -> None:
    machine = replace(host_machine(), threads=4)
    x = torch.randn(4, 5, 6, 32)
    (plain,) = compile_graph(*graph_of(turned, (x,))).kernels
    schedules = [plain.schedule, *plain.schedule.alternatives(machine, {})]
    threads = [schedules[1], *schedules[1].alternative_threads(machine)]
    assert len({schedule.grain for schedule in threads}) == len(threads) == 5
    times = [2.0 if place != 1 else 1.0 for place in range(len(schedules))]
    times += [1.5 if place != best else 0.5 for place in range(len(threads))]
    clock = Times(*times)
    graph = compile_graph(*graph_of(turned, (x,)), tuner=Search(machine, {}, clock))
    assert_same(graph([x])[0], turned(x))
    (report,) = graph.kernels
    assert len(clock.seen) == len(times)
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
            graph = compile_graph(*graph_of(turned, (x,)), tuner=Rescheduled(lambda *_, made=schedule: made))
            assert_same(graph([x])[0], turned(x))


def test_a_small_gain_is_none() -> None:
    clock = Times(*[1.0 - 0.001 * place for place in range(6)])
    x = torch.randn(4, 5, 6, 32)
    graph = compile_graph(*graph_of(turned, (x,)), tuner=Search(on_one_thread(), {}, clock))
    assert "the fastest when measured" not in graph.kernels[0].schedule.why and len(clock.seen) > 1


def test_choices_are_artifacts() -> None:
    x = torch.randn(4, 5, 6, 32)
    compile_graph(*graph_of(turned, (x,)), tuner=Search(on_one_thread(), {}, Times(2.0, 1.0, *[2.0] * 6)))
    saved = artifacts.save_cache_artifacts()
    assert saved is not None and len(saved[1].artifacts["choices"]) == 1
    artifacts.reset()
    assert artifacts.load_cache_artifacts(saved[0]).artifacts == saved[1].artifacts
    clock = Times()
    compile_graph(*graph_of(turned, (x,)), tuner=Search(on_one_thread(), {}, clock))
    assert not clock.count


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w, b).relu()


def residual(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.addmm(x[:, :1] + b, x.t().contiguous().t(), w.t())


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, w, b, stride=2, padding=1)


def weights_gradient(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    backward = torch.ops.aten.convolution_backward.default
    return backward(g, x, w, [w.shape[0]], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])


R = torch.randn
CALLS = [
    (linear, (R(24, 96), R(80, 96), R(80))),
    (residual, (R(24, 96), R(80, 96), R(80))),
    (lambda x, w: x @ w, (R(3, 40, 32), R(3, 32, 48))),
    (convolved, (R(1, 4, 9, 9), R(8, 4, 3, 3), R(8))),
    (convolved, (R(2, 4, 9, 9).to(memory_format=torch.channels_last), R(8, 4, 3, 3), R(8))),
    (weights_gradient, (R(2, 5, 6, 6), R(2, 4, 6, 6), R(5, 4, 3, 3))),
]


class Asked(Search):
    """A search that notes what it was asked, and leaves schedules as they are."""

    def __init__(self, choice: int, machine: Machine) -> None:
        super().__init__(machine, {}, Times(*[1.0 if place == choice else 2.0 for place in range(9)]))
        self.asked: list[tuple[Sequence[Way], Way]] = []

    def schedule(self, usual: Schedule, kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        return usual

    def library(self, ways: Sequence[Way], program_of: Callable[[Way], Program]) -> Way:
        self.asked.append((ways, super().library(ways, program_of)))
        return self.asked[-1][1]


@pytest.mark.parametrize("choice", range(3))
@pytest.mark.parametrize("fn, inputs", CALLS)
def test_every_way_of_a_call_computes_the_same(
    fn: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], choice: int
) -> None:
    marks = {"aten": "aten.", "onednn": "mkldnn.", "product": "aten.mm|_linear_pointwise", "kernel": "^$"}
    for again in (False, True):
        search = Asked(choice, on_one_thread())
        graph = compile_graph(*graph_of(fn, inputs), tuner=search)
        for mine, theirs in zip(graph([*inputs]), [*flat(fn(*inputs))], strict=True):
            assert_same(mine, theirs, rtol=1e-4, atol=1e-4)
        for ways, way in search.asked:
            assert way == ways[choice if choice < len(ways) else 0]
            assert len({*ways}) == len(ways) > 1 and "aten" in ways
            assert re.search(marks[way], " ".join(calls_of(graph)))
        assert isinstance(search.clock, Times) and (search.clock.count == 0) == (again or not search.asked)
    movable = inputs[0].is_contiguous()
    assert bool(search.asked) == movable


def flat(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else value


def calls_of(graph: CompiledGraph) -> list[str]:
    return [str(step.operator) for step in graph.plan.steps if isinstance(step, Call)]


def test_calls_that_are_alike_are_measured_once() -> None:
    """In all layers and graphs; not those of other sizes, or stored otherwise."""
    searches = []
    for rows, columns in ((24, 96), (24, 96), (25, 96)):
        x, w, v = R(rows, columns), R(columns, columns), R(columns, columns)
        searches.append(Asked(1, on_one_thread()))
        compile_graph(*graph_of(lambda x, w, v: ((x @ w).exp() @ v).exp() @ w.t(), (x, w, v)), tuner=searches[-1])
    first, second, third = searches
    assert len(first.asked) == len(second.asked) == 3
    assert isinstance(first.clock, Times) and isinstance(second.clock, Times) and isinstance(third.clock, Times)
    assert len(first.clock.seen) == len(third.clock.seen) == sum(len(ways) for ways, _ in first.asked[1:])
    assert not second.clock.count


@pytest.mark.parametrize("way", range(3))
def test_ways_hold_for_other_sizes_and_gradients(monkeypatch: pytest.MonkeyPatch, way: int) -> None:
    """A mode that takes always this one, on the default backend."""
    monkeypatch.setattr(Search, "_fastest", lambda self, makers, label: min(way, len(makers) - 1))

    def network(x: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.conv2d(x, k, padding=1).relu()
        return torch.addmm(w[0], y.mean((2, 3)).sigmoid() @ w, w)

    compiled = bolide.compile(network, mode="max-autotune")
    for batch in (5, 3, 8):
        x, k, w = R(batch, 4, 6, 6), R(32, 4, 3, 3, requires_grad=True), R(32, 32, requires_grad=True)
        results = [fn(x, k, w) for fn in (network, compiled)]
        gradients = [torch.autograd.grad(result.square().sum(), (k, w)) for result in results]
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-2)


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
            compile_graph(*graph_of(turned, (torch.randn(4, 5, 6, 16),)), tuner=search)
        assert ("max_autotune" in stream.getvalue()) == shown
