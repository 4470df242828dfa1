"""`max_autotune`: schedules are chosen by running them, and what was found is remembered."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence

import pytest
import torch

import bolide
from bolide.inductor import compile_graph
from bolide.inductor.machine import host_machine
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
        graph = compile_graph(*graph_of(turned, (x,)), tune=Search(host_machine(), {}, clock))
        (plain,) = compile_graph(*graph_of(turned, (x,))).kernels
        assert_same(graph([x])[0], turned(x))
        assert (clock.runs == 0) == again
        (report,) = graph.kernels
        assert report.schedule.outer == [plain.schedule, *plain.schedule.alternatives()][best].outer
        assert ("the fastest when measured" in report.schedule.why) == (best > 0)


def test_a_small_gain_is_none() -> None:
    seen: list[CompiledKernel] = []

    def clock(kernel: CompiledKernel, words: Sequence[int]) -> float:
        if kernel not in seen:
            seen.append(kernel)
        return 1.0 - 0.001 * seen.index(kernel)

    x = torch.randn(4, 5, 6, 32)
    graph = compile_graph(*graph_of(turned, (x,)), tune=Search(host_machine(), {}, clock))
    assert "the fastest when measured" not in graph.kernels[0].schedule.why and len(seen) > 1


def test_choices_are_artifacts() -> None:
    x = torch.randn(4, 5, 6, 32)
    compile_graph(*graph_of(turned, (x,)), tune=Search(host_machine(), {}, Ran(1)))
    saved = artifacts.save_cache_artifacts()
    assert saved is not None and len(saved[1].artifacts["choices"]) == 1
    artifacts.reset()
    assert artifacts.load_cache_artifacts(saved[0]).artifacts == saved[1].artifacts
    clock = Ran(0)
    compile_graph(*graph_of(turned, (x,)), tune=Search(host_machine(), {}, clock))
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
    assert artifacts._choices


def test_there_is_a_bar_where_standard_error_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with searching("forward_1", host_machine(), {}) as search:
            compile_graph(*graph_of(turned, (torch.randn(4, 5, 6, 16),)), tune=search)
        assert ("max_autotune" in stream.getvalue()) == shown
