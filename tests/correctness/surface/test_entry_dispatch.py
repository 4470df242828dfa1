"""Compiled functions: signatures, entries, recompilation, limits, threads, global state. Programs are captured by
hand."""

from __future__ import annotations

import inspect
import random
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry import versions
from bolide.dynamo.entry.dispatch import Dispatcher
from bolide.dynamo.entry.versions import Wishes
from bolide.dynamo.guards import texts as guards
from bolide.dynamo.program.captured import Captured, Effect, Guard, Recipe, Source
from bolide.support import events
from bolide.support.errors import BolideWarning, CompileError, RecompileError, Unsupported
from bolide.symbolic import ShapeEnv
from tests.thread_tools import together

OUTPUT: Any = SimpleNamespace(requires_grad=False)


def graph_of_x() -> torch.fx.Graph:
    graph = torch.fx.Graph()
    graph.placeholder("x")
    return graph


class Doubler:
    """A capture and a backend for functions of `x` and constants: the result is ``x * 2`` whatever the function
    says."""

    def __init__(self) -> None:
        self.captures = 0

    def capture(self, fn: Any, args: Any, kwargs: Any, history: Any = None) -> Captured:
        self.captures += 1
        bound = inspect.signature(fn).bind(*args, **kwargs)
        bound.apply_defaults()
        found = []
        for name, value in bound.arguments.items():
            source = Source("local", None, name)
            if isinstance(value, torch.Tensor):
                found.append(Guard(source, "tensor", guards.tensor_guard(value)))
            else:
                found.append(Guard(source, "equals", value))
        return Captured(
            fn.__name__,
            SimpleNamespace(inputs=[0], shapes=ShapeEnv(), graph=graph_of_x(), refutable=False, mutated_inputs=list),
            [Source("local", None, "x")],
            [OUTPUT],
            found,
            Recipe("output", 0),
            [],
        )

    def backend(self, captured: Captured) -> Any:
        return lambda inputs: [inputs[0] * 2]

    def compile(self, fn: Any, **more: Any) -> Any:
        return Dispatcher(fn, self.capture, self.backend, **more).function


def plain(x, y=3, /, z=4, *, k=5, m):
    return x * 2


def gathered(x, *_args, __k=1, **_kwargs):
    return x * 2


def test_signature_is_the_users() -> None:
    doubler = Doubler()
    f = doubler.compile(plain)
    assert inspect.signature(f) == inspect.signature(plain) and f.__name__ == "plain"
    x = torch.randn(3)
    for call in (lambda: f(x, m=1), lambda: f(x, 3, m=1), lambda: f(x, z=4, m=1)):
        torch.testing.assert_close(call(), x * 2)
    assert doubler.captures == 1
    f(x, z=5, m=1)
    assert doubler.captures == 2
    with pytest.raises(TypeError, match=r"plain|public"):
        f(x)
    g = doubler.compile(gathered)
    torch.testing.assert_close(g(x, 1, 2, other=3), x * 2)
    torch.testing.assert_close(g(x, 1, 2, other=3), x * 2)
    assert doubler.captures == 3


def test_an_entry_for_each_assumption_and_the_newest_is_tried_first() -> None:
    doubler = Doubler()
    f = doubler.compile(lambda x: x * 2)
    variants = [torch.randn(3), torch.randn(4), torch.randn(3, dtype=torch.float64), torch.randn(3, requires_grad=True)]
    for _ in range(2):
        for x in variants:
            torch.testing.assert_close(f(x), x * 2)
    assert doubler.captures == 4
    with torch.no_grad():
        f(variants[0])
    with torch.inference_mode():
        f(variants[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f(variants[0])
    with torch.autocast("cpu", dtype=torch.float16):
        f(variants[0])
    assert doubler.captures == 8
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f(variants[0])
    assert doubler.captures == 8


def test_parameter_replaced_under_the_same_object_is_noticed() -> None:
    doubler = Doubler()
    f = doubler.compile(lambda x: x * 2)
    p = torch.nn.Parameter(torch.randn(4, 4))
    f(p)
    p.data = torch.randn(4, 4, dtype=torch.float64)
    assert f(p).dtype is torch.float64 and doubler.captures == 2
    p.data = p.data.t()
    f(p)
    p.requires_grad_(False)
    f(p)
    assert doubler.captures == 4


def test_limit_warns_once_and_says_what_changed() -> None:
    doubler = Doubler()

    def f(x, n):
        return x * 2

    g = doubler.compile(f)
    x = torch.randn(2)
    with config.patch(cache_size_limit=3), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(8):
            torch.testing.assert_close(g(x, n), x * 2)
    assert doubler.captures == 3
    (warning,) = [w for w in seen if issubclass(w.category, BolideWarning)]
    text = str(warning.message)
    assert "n == 2, found 3" in text and "cache_size_limit" in text and "remedy" in text and __file__ in text
    torch.testing.assert_close(g(x, 1), x * 2)
    g._bolide.reset()
    g(x, 100)
    assert doubler.captures == 4


def test_programs_that_have_phases_are_compiled_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that served the longest ago makes room for another, after some calls in eager."""
    monkeypatch.setattr(versions, "_SHARE", 1e9)  # making versions may take all the time
    doubler = Doubler()
    g = doubler.compile(lambda x, n: x * 2)
    x = torch.randn(2)
    with config.patch(cache_size_limit=3), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(6):
            for _ in range(40):
                torch.testing.assert_close(g(x, n), x * 2)
        assert doubler.captures == 6 and len(g._bolide.entries) == 3
        assert [entry.number for entry in g._bolide.entries] == [3, 4, 5]
        for n in (4, 3, 5):
            torch.testing.assert_close(g(x, n), x * 2)
        assert doubler.captures == 6
        for _ in range(40):
            g(x, 0)
        for n in (3, 5, 0, 3):
            g(x, n)
        assert doubler.captures == 7
    assert sum(issubclass(w.category, BolideWarning) for w in seen) == 1


def test_versions_that_take_turns_are_not_made_anew_all_the_time() -> None:
    doubler = Doubler()
    g = doubler.compile(lambda x, n: x * 2)
    x = torch.randn(2)
    with config.patch(cache_size_limit=3), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at in range(600):
            torch.testing.assert_close(g(x, at % 7), x * 2)
        assert 3 <= doubler.captures <= 3 + 600 // 32
        before = doubler.captures
        g._bolide._newest = (time.perf_counter(), 1e9)  # the last one took long
        for at in range(100):
            g(x, 7 + at)
        assert doubler.captures == before


def test_accumulated_limit_counts_all_functions_with_one_code() -> None:
    doubler = Doubler()

    def f(x):
        return x * 2

    made = [doubler.compile(f) for _ in range(4)]
    with (
        config.patch(accumulated_cache_size_limit=2),
        pytest.warns(BolideWarning, match="accumulated_cache_size_limit"),
    ):
        for g in made:
            g(torch.ones(2))
    assert doubler.captures == 2


def test_error_on_recompile_names_the_guard() -> None:
    f = Doubler().compile(lambda x, n: x * 2)
    f(torch.ones(2), 1)
    with config.patch(error_on_recompile=True), pytest.raises(RecompileError, match="n == 1, found 2"):
        f(torch.ones(2), 2)


def test_events_tell_about_captures_failures_and_fallbacks() -> None:
    f = Doubler().compile(lambda x, n: x * 2)
    seen: list[Any] = []
    with events.subscribed(seen.append):
        f(torch.ones(2), 1)
        f(torch.ones(2), 1)
        f(torch.ones(2), 2)
    assert [type(e).__name__ for e in seen] == ["Captured", "Installed", "GuardFailed", "Captured", "Installed"]
    assert seen[2].guard == "n == 1" and seen[2].actual == "2" and seen[1].seconds > 0


class Foreign(TorchFunctionMode):
    """A mode that torch itself refuses: its method is a class method."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_and_transforms_run_in_eager() -> None:
    doubler = Doubler()
    f = doubler.compile(lambda x: x * 3)
    x = torch.randn(3)
    with pytest.warns(BolideWarning, match=r"torch\.func"):
        torch.testing.assert_close(torch.func.vmap(f)(x), x * 3)
    with Foreign(), pytest.warns(BolideWarning, match="function mode"):
        f(1)
    assert doubler.captures == 0


def failing(error: Exception, fullgraph: bool = False) -> Any:
    def capture(fn: Any, args: Any, kwargs: Any, history: Any) -> Any:
        raise error

    return Dispatcher(lambda x: x / 2, capture, Doubler().backend, name="f", wishes=Wishes(fullgraph))


def test_what_cannot_be_captured_runs_in_eager_with_one_warning_and_is_given_up() -> None:
    d = failing(Unsupported("print is called", None, "remove it", operation="print('x')"))
    with pytest.warns(BolideWarning) as seen:
        for _ in range(3):
            assert d.function(4) == 2
    (warning,) = seen
    assert all(part in str(warning.message) for part in ("print is called", "print('x')", "remove it"))
    assert d.given_up
    with pytest.raises(Unsupported, match="print is called"):
        failing(Unsupported("print is called"), fullgraph=True).function(4)


def test_reasons_that_differ_by_sizes_alone_are_one() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sigmoid()
        y[0] = 2.0 * y[1]  # what the derivative of sigmoid needs: eager refuses the backward, in words with sizes
        return y

    compiled = bolide.compile(program)
    with pytest.warns(BolideWarning, match="no backward") as seen:
        for size in random.sample(range(2, 30), 5):
            x = torch.randn(size, requires_grad=True)
            assert torch.equal(compiled(x), program(x))
    assert len(seen) == 1
    assert compiled._bolide.given_up  # type: ignore[attr-defined]


def test_user_exception_surfaces_from_eager() -> None:
    error = Unsupported("the user's code raised", kind="user_exception")
    error.__cause__ = TypeError("unsupported operand")
    d = failing(error, fullgraph=True)
    with pytest.raises(TypeError, match="unsupported operand") as info:
        d.function("text")
    assert info.value.__context__ is None
    with pytest.warns(BolideWarning, match="did not raise"):
        assert d.function(4) == 2


def test_a_fault_of_bolide_falls_back_or_raises() -> None:
    def backend(captured: Captured) -> Any:
        raise ZeroDivisionError("in a pass")

    d = Dispatcher(lambda x: x / 2, Doubler().capture, backend)
    with config.patch(suppress_errors=True), pytest.warns(BolideWarning, match="in a pass"):
        assert d.function(torch.tensor(4.0)) == 2
    with config.patch(suppress_errors=False), pytest.raises(CompileError, match="ZeroDivisionError"):
        d.function(torch.tensor(4.0))


def test_recipes_and_effects() -> None:
    box = SimpleNamespace(n=1, items=[1, 2], table={"a": 1})
    out = Recipe("output", 0)
    shared = Recipe("list", None, (out, Recipe("constant", 7)))
    target = Recipe("source", Source("local", None, "box"))
    old = Recipe("source", Source("attr", Source("local", None, "box"), "n"))
    effects = [
        Effect("setattr", target, "n", Recipe("constant", 5)),
        Effect("list_assign", Recipe("source", Source("attr", Source("local", None, "box"), "items")), None, shared),
        Effect(
            "setitem",
            Recipe("source", Source("attr", Source("local", None, "box"), "table")),
            Recipe("constant", "b"),
            shared,
        ),
    ]
    result = Recipe("tuple", None, (out, shared, old, Recipe("dict", None, (Recipe("constant", "k"), shared))))

    def capture(fn: Any, args: Any, kwargs: Any, history: Any) -> Captured:
        return Captured(
            "f",
            SimpleNamespace(inputs=[0], shapes=ShapeEnv(), graph=graph_of_x(), refutable=False, mutated_inputs=list),
            [Source("local", None, "x")],
            [OUTPUT],
            [],
            result,
            effects,
        )

    f = Dispatcher(lambda x, box: None, capture, Doubler().backend).function
    x = torch.randn(2)
    y, made, before, table = f(x, box)
    torch.testing.assert_close(y, x * 2)
    assert made[0] is y and table["k"] is made and before == 1
    assert box.n == 5 and box.items == made and box.table["b"] is made


def test_threads_compile_once() -> None:
    doubler = Doubler()
    capture = doubler.capture

    def slow(fn: Any, args: Any, kwargs: Any, history: Any) -> Captured:
        time.sleep(0.02)
        return capture(fn, args, kwargs)

    f = Dispatcher(lambda x: x * 2, slow, doubler.backend).function
    sizes = [2, 3, 4, 5]

    def work(offset: int) -> None:
        for i in range(40):
            x = torch.randn(sizes[(i + offset) % 4])
            torch.testing.assert_close(f(x), x * 2)

    together(work, 6)
    assert doubler.captures == 4


def test_an_entry_that_does_not_fit_its_own_call_is_a_fault_of_bolide() -> None:
    doubler = Doubler()

    def capture(fn: Any, args: Any, kwargs: Any, history: Any) -> Captured:
        captured = doubler.capture(fn, args, kwargs)
        captured.guards.append(Guard(Source("local", None, "n"), "equals", 17))
        return captured

    f = Dispatcher(lambda x, n: x * 3, capture, doubler.backend).function
    x = torch.randn(2)
    torch.testing.assert_close(f(x, 1), x * 3)  # once may be another thread's doing
    with config.patch(suppress_errors=True), pytest.warns(BolideWarning, match="n == 17 does not hold"):
        torch.testing.assert_close(f(x, 1), x * 3)
    with config.patch(suppress_errors=False), pytest.raises(CompileError, match="found 1"):
        f(x, 1)


class _Named(torch.nn.Module):
    def forward(_, **given: Any) -> Any:
        return sum(given.values()) * 3


def _breaks_between(**given: Any) -> Any:
    total = sum(given.values())
    print(end="")
    return total * 2


@bolide.disable
def _in_eager(**given: Any) -> Any:
    return sum(given.values())


def _calls_eager(**given: Any) -> Any:
    return _in_eager(**given) + 1


@pytest.mark.parametrize("wrapper", [bolide.compile, bolide.shadow, bolide.disable])
@pytest.mark.parametrize("function", [lambda **given: sum(given.values()), _breaks_between, _calls_eager, _Named()])
def test_arguments_may_have_any_name(function: Any, wrapper: Any) -> None:
    own = not isinstance(function, torch.nn.Module)  # which calls itself self
    for name in ("self",) * own + ("cls", "function", "fn", "fault", "dispatcher", "args", "kwargs", "name", "x"):
        wrapped = wrapper(function)
        for size in (3, 4):
            given = {name: torch.randn(size), "other": torch.randn(size)}
            torch.testing.assert_close(wrapped(**given), function(**given))


def test_a_default_device_that_is_the_cpu_changes_nothing() -> None:
    """Versions made under it serve calls outside of it, and the other way round."""
    f = bolide.compile(lambda x: x + torch.ones(3) * torch.arange(3.0), fullgraph=True)
    x = torch.randn(3)
    expected = x + torch.arange(3.0)
    for _ in range(2):
        with torch.device("cpu"):
            torch.testing.assert_close(f(x), expected)
        torch.testing.assert_close(f(x), expected)
        torch.set_default_device("cpu")
        try:
            torch.testing.assert_close(f(x), expected)
            assert torch._C._len_torch_function_stack() == 1
        finally:
            torch.set_default_device(None)
    assert len(f._bolide.entries) == 1


def test_tensors_without_data_run_in_eager_in_silence() -> None:
    f = bolide.compile(lambda x: (x @ torch.ones(4, 3)).relu(), fullgraph=True)
    mode = torch._subclasses.FakeTensorMode()
    outside = bolide.compile(lambda x: (x @ x.T).relu(), fullgraph=True)
    x = torch.randn(2, 4)
    for _ in range(2):
        with mode:
            assert f(mode.from_tensor(x)).shape == (2, 3)
        assert type(outside(mode.from_tensor(x))) is type(mode.from_tensor(x))
        torch.testing.assert_close(f(x), (x @ torch.ones(4, 3)).relu())
    assert len(f._bolide.entries) == 1 and not outside._bolide.entries


def test_functions_run_as_they_are_under_functionalize() -> None:
    """torch takes their operations apart there, writes included, and there is nothing to compile."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1.0) + torch.nn.functional.relu_(x[1:]).sum()

    compiled, x = bolide.compile(program, fullgraph=True), torch.randn(3, 4)
    for call in (compiled, torch.func.functionalize(compiled), compiled):
        given, expected = x.clone(), x.clone()
        torch.testing.assert_close(call(given), program(expected))
        torch.testing.assert_close(given, expected)
