"""What switches the capture of backward passes on and off, and what the graphs look like."""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo import compiled_autograd
from bolide.dynamo.config import config
from bolide.support import events, log
from bolide.tracing import modes
from tests.compiled_autograd_tools import captures
from tests.thread_tools import together


def backward(size: int = 3) -> torch.Tensor:
    x = torch.randn(size, requires_grad=True)
    x.exp().sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    return x


def test_contexts_nest_and_put_back_what_was_there() -> None:
    compiled_autograd.reset()
    used: list[str] = []

    def compiler(name: str) -> Any:
        return lambda gm: lambda *args: (used.append(name), gm(*args))[1]

    threads = torch.autograd.is_multithreading_enabled()
    assert not compiled_autograd.compiled_autograd_enabled
    with compiled_autograd.enable(compiler("outer")):
        assert compiled_autograd.compiled_autograd_enabled
        assert not torch.autograd.is_multithreading_enabled()
        backward()
        with compiled_autograd.disable():
            assert not compiled_autograd.compiled_autograd_enabled
            backward()
            with compiled_autograd.enable(compiler("inner")):
                assert compiled_autograd.compiled_autograd_enabled
                y = torch.randn(3, requires_grad=True)
                y.sin().sum().backward()
            backward()
        assert compiled_autograd.compiled_autograd_enabled
        backward()
    assert not compiled_autograd.compiled_autograd_enabled
    backward()
    assert torch.autograd.is_multithreading_enabled() == threads
    assert used == ["outer", "inner", "outer"]
    assert captures() == 2


def test_it_is_off_again_after_an_error() -> None:
    engine = torch.autograd.Variable._execution_engine
    with pytest.raises(ZeroDivisionError), compiled_autograd.enable(lambda gm: gm):
        raise ZeroDivisionError
    assert not compiled_autograd.compiled_autograd_enabled
    assert torch.autograd.Variable._execution_engine is engine


def test_errors_of_the_compiler_and_of_the_graph_arrive() -> None:
    compiled_autograd.reset()

    def fails(*args: Any) -> Any:
        raise ZeroDivisionError("as expected")

    for compiler in (fails, lambda gm: fails):
        compiled_autograd.reset()
        with compiled_autograd.enable(compiler), pytest.raises(Exception, match="as expected"):
            backward()
        assert not compiled_autograd.in_compiled_autograd_region
    compiled_autograd.reset()
    with compiled_autograd.enable(lambda gm: gm):
        backward()


def test_the_region_is_where_the_graph_runs() -> None:
    compiled_autograd.reset()
    seen: list[bool] = []

    def compiler(gm: Any) -> Any:
        seen.append(compiled_autograd.in_compiled_autograd_region)
        return lambda *args: (seen.append(compiled_autograd.in_compiled_autograd_region), gm(*args))[1]

    with compiled_autograd.enable(compiler):
        backward()
        seen.append(compiled_autograd.in_compiled_autograd_region)
    assert seen == [False, True, False]


def test_reset_forgets_what_was_captured() -> None:
    compiled_autograd.reset()
    for _ in range(2):
        with compiled_autograd.enable(lambda gm: gm):
            backward()
            backward(5)
        assert captures() == 1
        bolide.reset()
        assert captures() == 0


def test_reset_inside_of_a_captured_backward_is_refused() -> None:
    compiled_autograd.reset()

    def compiler(gm: Any) -> Any:
        return lambda *args: compiled_autograd.reset()

    with compiled_autograd.enable(compiler), pytest.raises(RuntimeError, match="cannot be reset"):
        backward()


def test_the_graph() -> None:
    compiled_autograd.reset()
    modules: list[Any] = []
    seen: list[Any] = []
    with events.subscribed(seen.append), compiled_autograd.enable(lambda gm: modules.append(gm) or gm):
        backward()
    (module,) = modules
    assert type(module).__name__.startswith("CompiledAutograd")
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    assert names == ["inputs", "sizes", "scalars", "hooks", "packed_data"]
    module.graph.lint()
    origins = [str(node.meta.get("stack_trace")) for node in module.graph.nodes if "backward0" in node.name]
    assert [re.findall(r"\w+ \(NodeCall \d+\)", origin) for origin in origins] == [
        ["SumBackward0 (NodeCall 1)"],
        ["ExpBackward0 (NodeCall 2)"],
    ]
    (event,) = [event for event in seen if isinstance(event, events.BackwardCaptured)]
    assert event.graph is module


def test_inputs_are_released_as_they_are_consumed() -> None:
    compiled_autograd.reset()
    left: list[int] = []

    def compiler(gm: Any) -> Any:
        def run(inputs: list[Any], *others: Any) -> Any:
            results = gm(inputs, *others)
            left.append(len(inputs))
            return results

        return run

    with compiled_autograd.enable(compiler):
        backward()
    assert left == [0]


def test_threads() -> None:
    """They take turns; afterwards passes are captured as before."""
    compiled_autograd.reset()

    def work(_: int) -> None:
        for size in range(1, 60):
            backward(size)

    with compiled_autograd.enable(lambda gm: gm):
        together(work, 4)
        torch.randn(3, requires_grad=True).cos().sum().backward()
    assert captures() == 2
    assert not compiled_autograd.compiled_autograd_enabled
    torch.randn(3, requires_grad=True).sinh().sum().backward()
    assert captures() == 2


def toggled(step: int) -> None:
    with modes.uncaptured:
        pass


def switched(step: int) -> None:
    with compiled_autograd.enable(lambda gm: gm), compiled_autograd.disable():
        pass


def compiled(step: int) -> None:
    x = torch.randn(3, requires_grad=True)
    bolide.compile(lambda x: (x.sin() * step).exp().sum(), backend="eager")(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * step * (x.detach().sin() * step).exp())


def forgotten(step: int) -> None:
    bolide.reset()


@pytest.mark.parametrize("disturb", [toggled, switched, compiled, forgotten], ids=lambda disturb: disturb.__name__)
def test_what_other_threads_do_while_passes_are_captured(disturb: Callable[[int], None]) -> None:
    """They compile, capture for themselves, reset: gradients are eager's, nothing hangs, all is off in the end."""
    compiled_autograd.reset()
    failed: list[BaseException] = []
    over = threading.Event()
    engine = torch.autograd.Variable._execution_engine

    def work(first: int) -> None:
        for step in range(first, first + 60):
            x = torch.randn(2 + step % 3, requires_grad=True)
            y = x
            for _ in range(step % 5 + 1):  # other kinds of passes, which are captured
                y = y.sin()
            y.backward(torch.ones_like(y))
            with torch.no_grad():
                expected, inner = torch.ones_like(x), x
                for _ in range(step % 5 + 1):
                    expected, inner = expected * inner.cos(), inner.sin()
            torch.testing.assert_close(x.grad, expected)

    def others() -> None:
        for step in itertools.count(1):
            if over.is_set():
                break
            disturb(step % 4)

    def noted(function: Callable[..., None], *args: int) -> None:
        try:
            function(*args)
        except BaseException as error:
            failed.append(error)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with (
            # a search for leaks would hold tuples that other threads are making, which CPython then refuses to finish
            bolide.dynamo.config.patch(detect_leaks=False),
            compiled_autograd.enable(lambda gm: gm),
        ):
            workers = [threading.Thread(target=noted, args=(work, first), daemon=True) for first in (0, 1)]
            disturbing = [threading.Thread(target=noted, args=(others,), daemon=True) for _ in range(2)]
            for thread in (*workers, *disturbing):
                thread.start()
            for thread in workers:
                thread.join(60)
            over.set()
            for thread in disturbing:
                thread.join(60)
            assert not any(thread.is_alive() for thread in (*workers, *disturbing))
    finally:
        over.set()
        sys.setswitchinterval(switching)
    assert not failed
    assert not compiled_autograd.compiled_autograd_enabled
    assert torch.autograd.Variable._execution_engine is engine


def test_contexts_of_threads_end_in_any_order() -> None:
    """Counted by what the compiler is given: counts and what is known are cleared when no thread runs a pass."""
    seen: list[torch.fx.GraphModule] = []

    def compiler(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        seen.append(gm)
        return gm

    compiled_autograd.reset()
    first, second = compiled_autograd.enable(compiler), compiled_autograd.enable(compiler)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert compiled_autograd.compiled_autograd_enabled
    torch.randn(3, requires_grad=True).sinh().atan().tanh().sum().backward()
    assert len(seen) == 1
    second.__exit__(None, None, None)
    assert not compiled_autograd.compiled_autograd_enabled
    torch.randn(3, requires_grad=True).cosh().atan().sinh().sum().backward()
    assert len(seen) == 1


def test_anomaly_mode_finds_gradients_that_are_no_numbers() -> None:
    compiled_autograd.reset()
    x = torch.zeros(3, requires_grad=True)
    with compiled_autograd.enable(lambda gm: gm):
        with (
            torch.autograd.detect_anomaly(),
            pytest.raises(RuntimeError, match="SqrtBackward0' returned nan"),
        ):
            (x.sqrt() * 0).sum().backward()
        x.grad = None
        (x.sqrt() * 0).sum().backward()


def test_logs(caplog: pytest.LogCaptureFixture) -> None:
    compiled_autograd.reset()
    bolide.set_logs(compiled_autograd=True, compiled_autograd_verbose=True)
    try:
        with compiled_autograd.enable(lambda gm: gm):
            backward()
            torch.randn(3, requires_grad=True).sin().sum().backward()
    finally:
        bolide.set_logs()
    by_name = {name: [r.getMessage() for r in caplog.records if r.name.endswith(f".{name}")] for name in log.ARTIFACTS}
    assert len(by_name["compiled_autograd"]) == 2
    assert "SinBackward0 (NodeCall 2)" in by_name["compiled_autograd"][1]
    verbose = "\n".join(by_name["compiled_autograd_verbose"])
    assert "CompiledAutograd1" in verbose and "ExpBackward0" in verbose


def test_a_program_that_is_captured_with_its_passes_counts_once() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for factor in (1, 2, 3):
            weight = torch.full((3,), float(factor), requires_grad=True)
            (weight * x).sin().sum().backward()
            found.append(weight.grad)
        return found  # type: ignore[return-value]

    x = torch.randn(3)
    expected, counted = program(x), compiled_autograd.counters["compiled_autograd"]
    for wanted, backend in ((False, "inductor"), (True, "inductor"), (True, "aot_eager")):
        before = counted["captures"]
        with config.patch(compiled_autograd=wanted):
            compiled = bolide.compile(program, backend=backend)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), expected)
        assert counted["captures"] - before == wanted
