"""Mistakes put into bolide's own code at random places, while it captures and compiles and while compiled programs
run: eager takes over, with a warning, and every effect happens once. Where nothing can take over, an error says so.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import random
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import bolide
from bolide.dynamo.breaks import concrete
from bolide.dynamo.config import config
from bolide.dynamo.entry import dispatch, replay, versions
from bolide.dynamo.entry.capture import _Attempt
from bolide.dynamo.program.captured import Recipe
from bolide.dynamo.state import state
from bolide.functorch import aot
from bolide.functorch.runtime import wrappers
from bolide.support.errors import HalfwayError

ROOT = str(Path(bolide.__file__).parent) + "/"
INJECTIONS = 24
_RUNNING = ("inductor/runtime/", "inductor/compiled_graph.py", "functorch/runtime/")  # what runs in each call
# What stands between calls and segments, and the functions in it that only hand a call on, or say of a mistake whose it
# is: one at their very first line comes out as it is.
AROUND = tuple(f"dynamo/{name}" for name in ("entry/dispatch", "entry/versions", "entry/replay", "breaks/", "opcodes/"))
AROUND += ("dynamo/machine/interpreter", "dynamo/machine/callers", "dynamo/world/frames")
AROUND += ("functorch/runtime", "inductor/runtime/driver")
WAYS_IN = ("miss", "_miss", "enter", "_enter", "eager", "others", "_asked", "again", "resume", "_resumed")
WAYS_IN += ("_rescue", "_is_final", "bug", "warn", "_not_compiled", "__init__", "unwind", "backward", "refuse_mistake")

MISTAKES = {
    "item": "{}['injected']",
    "attribute": "None.injected",
    "error": "int('injected')",
    "assertion": "fail()",
}


def _mistake(kind: str) -> Any:
    scope: dict[str, Any] = {}
    text = f"def fail():\n    assert False, 'injected'\ndef mistake(*args):\n    {MISTAKES[kind]}\n"
    exec(compile(text, f"{ROOT}injected.py", "exec"), scope)
    return scope["mistake"]


class Injector:
    """Counts the calls of functions of bolide's while it captures and compiles, and makes a mistake in one of them."""

    def __init__(self, at: int, kind: str = "item") -> None:
        self.at, self.count, self.where = at, 0, ""
        self.mistake = _mistake(kind)

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_flags & 0x20:
            return
        place = code.co_filename[len(ROOT) :]
        if not self.is_meant(place, code.co_name):
            return
        self.count += 1
        if self.count == self.at:
            self.where = f"{place}: {code.co_name}"
            self.mistake()

    def is_meant(self, place: str, name: str) -> bool:
        compiles = bool(state.stage) or place.startswith(("inductor/", "functorch/"))
        return compiles and not place.startswith(_RUNNING)


class RunningInjector(Injector):
    """The same in what looks for versions, runs them, goes from one segment to the next, and runs the backward."""

    def is_meant(self, place: str, name: str) -> bool:
        return place.startswith(AROUND) and not state.stage and name not in WAYS_IN


class Account:
    def __init__(self) -> None:
        self.calls = 0
        self.items: list[Any] = []


LOG: list[int] = []


def program(x: torch.Tensor, account: Account) -> tuple[torch.Tensor, list[Any]]:
    """Effects, a handler, a break, more effects."""
    account.calls += 1
    y = (x * 2).sin()
    try:
        z = -y
    except (AttributeError, LookupError, AssertionError):  # what is told from the program's own errors, see faults.py
        z = y * 0
        account.items.append("caught")
    account.items.append(y.shape[0])
    LOG.append(1)
    bolide.dynamo.graph_break()
    total = (z @ z.T).relu().sum()
    account.calls += 1
    return total, [y, account.calls]


def everything(f: Any) -> list[Any]:
    """What calls with two sizes give, their gradients, and what they have changed."""
    account, found = Account(), []
    LOG.clear()
    for size in (3, 3, 5):
        x = torch.linspace(-1, 1, size * 4).view(size, 4).requires_grad_()
        total, (y, calls) = f(x, account)
        found += [total, y, calls, *torch.autograd.grad(total + y.sum(), x)]
    return [*found, account.calls, account.items, list(LOG)]


def with_mistake(injector: Injector) -> tuple[list[Any], list[str]]:
    """The same, compiled; and bolide's warnings."""
    bolide.reset()
    compiled = bolide.compile(program)
    with config.patch(suppress_errors=True), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        known = sys.gettrace()
        sys.settrace(injector)
        try:
            found = everything(compiled)
        finally:
            sys.settrace(known)
    return found, [str(each.message) for each in said if issubclass(each.category, bolide.BolideWarning)]


@pytest.fixture(scope="module")
def total() -> Iterator[int]:
    counted = Injector(0)
    found, said = with_mistake(counted)
    torch.testing.assert_close(found, everything(program))
    assert not said and counted.count > 10000
    yield counted.count
    bolide.reset()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", range(INJECTIONS))
def test_eager_takes_over(number: int, total: int, seed: int) -> None:
    injector = Injector(random.randrange(1, total), random.choice(list(MISTAKES)))
    found, said = with_mistake(injector)
    print(injector.where, said)
    torch.testing.assert_close(found, everything(program))
    assert len(said) <= 1, said
    assert all("remedy" in text and "BR0704" in text for text in said), said


@pytest.mark.parametrize("mode", [TorchFunctionMode, TorchDispatchMode])
def test_a_recording_that_is_not_left(mode: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our code fails where a recording ends: nothing of the program is recorded any more."""
    interpret = _Attempt.run

    def run_halfway(self: _Attempt, *args: Any) -> Any:
        interpret(self, *args)
        mode().__enter__()
        raise KeyError("injected")

    monkeypatch.setattr(_Attempt, "run", run_halfway)
    depths = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    x = torch.randn(3, 4, requires_grad=True)
    with config.patch(suppress_errors=True), pytest.warns(bolide.BolideWarning, match="injected"):
        torch.testing.assert_close(bolide.compile(lambda x: x.sin())(x), x.sin())
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == depths


def test_a_backward_that_is_made_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward is over when our code fails: the backward runs by ATen calls."""
    made = aot.with_presence
    failing = [True]

    def fail_once(*args: Any) -> Any:
        if failing and failing.pop():
            raise KeyError("injected")
        return made(*args)

    monkeypatch.setattr(aot, "with_presence", fail_once)
    x = torch.randn(3, 4, requires_grad=True)
    with config.patch(suppress_errors=True), pytest.warns(bolide.BolideWarning, match="injected") as said:
        (found,) = torch.autograd.grad(bolide.compile(lambda x: (x * 2).sin().sum())(x), x)
    assert not failing and len(said) == 1
    torch.testing.assert_close(found, 2 * (x.detach() * 2).cos())


# ---- where nothing is being captured ---------------------------------------------------------------------------------


def looped(x: torch.Tensor, account: Account) -> torch.Tensor:
    """Breaks, handlers, effects; the operation at the break may raise what a mistake of ours does."""
    for turn in range(3):
        account.calls += 1
        y = (x * 2).sin()
        try:
            account.items.append({0.0: "zero", 2.0: "two"}[float(turn) + x[0, 0].item() * 0])
        except (AttributeError, LookupError, AssertionError):
            account.items.append("caught")
        x = x + y
    return x


def agrees(program: Any, message: str) -> None:
    """Calls with changing sizes give eager's results and effects, and gradients, with one warning."""
    compiled, accounts = bolide.compile(program), (Account(), Account())
    with config.patch(suppress_errors=True), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for size in (2, 2, 3, 3, 5):
            x = torch.randn(size, 4, requires_grad=True)
            results = [f(x, account) for f, account in zip((compiled, program), accounts)]
            torch.testing.assert_close(*results)
            torch.testing.assert_close(*[torch.autograd.grad(result.sum(), x) for result in results])
    assert vars(accounts[0]) == vars(accounts[1])
    told = [str(each.message) for each in said if issubclass(each.category, bolide.BolideWarning)]
    assert len(told) == 1 and message in told[0], told


PLACES = [
    (versions.Versions, "_other"),
    (versions.Versions, "_misfit"),
    (dispatch, "flatten"),
    (dispatch, "are_held"),
    (dispatch, "make_hop"),
    (concrete, "unflatten"),  # when it is rehearsed
]


@pytest.mark.parametrize("kind", ["item", "error"])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda place: getattr(place, "__name__", place))
def test_mistakes_around_what_runs(owner: Any, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time: looking for a version, at a break, and between breaks."""
    if name == "_misfit":
        monkeypatch.setattr(versions.Versions, "enter", _unfit)
        monkeypatch.setattr(dispatch.Dispatcher, "enter", _unfit)
    monkeypatch.setattr(owner, name, _mistake(kind))
    agrees(looped, "injected")


def _unfit(*args: Any) -> Any:
    raise versions._Unfit


@pytest.fixture(scope="module")
def running() -> Iterator[int]:
    counted = RunningInjector(0)
    assert everything_looped(counted)[-1] is None and counted.count > 1000
    yield counted.count
    bolide.reset()


def everything_looped(injector: Injector | None) -> list[Any]:
    """What calls with changing sizes give, eager or compiled with a mistake, their gradients and effects; and the
    error that has ended them."""
    account, found, ending = Account(), list[Any](), None
    compiled = looped if injector is None else bolide.compile(looped)
    known = sys.gettrace()
    sys.settrace(injector)
    try:
        for size in (2, 2, 2, 3, 3, 5, 5):
            x = torch.linspace(-1, 1, size * 4).view(size, 4).requires_grad_()
            found.append(compiled(x, account))
            found += torch.autograd.grad(found[-1].sum(), x)
    except HalfwayError as error:
        ending = error
    finally:
        sys.settrace(known)
    return [found, account.calls, account.items, ending]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", range(INJECTIONS))
def test_mistakes_while_it_runs(number: int, running: int, seed: int) -> None:
    """Each effect happens once, and none is lost, up to where an error says that nothing can take over."""
    bolide.reset()
    injector = RunningInjector(random.randrange(1, running), random.choice(["item", "attribute", "assertion"]))
    with config.patch(suppress_errors=True), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, calls, items, error = everything_looped(injector)
    wanted, wanted_calls, wanted_items, _ = everything_looped(None)
    told = [str(each.message) for each in said if issubclass(each.category, bolide.BolideWarning)]
    print(injector.where, error, told)
    assert len(told) <= 1
    if error is None:
        assert (calls, items) == (wanted_calls, wanted_items)
    else:
        assert "BR0709" in str(error) and not told
        done = len(found) // 2
        assert items == wanted_items[: len(items)] and 3 * done <= len(items) <= calls <= 3 * (done + 1)
    torch.testing.assert_close(found, wanted if error is None else wanted[: len(found)])


def test_a_mistake_while_effects_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is written, the next is not: an error says so, and nothing is done again."""
    written, count = replay._Builder.effect, itertools.count()

    def effect(self: Any, *args: Any) -> str:
        text = written(self, *args)
        return text if next(count) == 0 else f"None.injected; {text}"

    def program(x: torch.Tensor, account: Account) -> torch.Tensor:
        account.calls += 1
        account.first = x.shape[0]
        account.second = x * 2
        return x.sin()

    monkeypatch.setattr(replay._Builder, "effect", effect)
    account = Account()
    with pytest.raises(HalfwayError, match=r"its effects(.|\n)*BR0709(.|\n)*remedy"):
        bolide.compile(program)(torch.randn(3, 4), account)
    assert next(count) == 3 and sorted(vars(account)) == ["calls", "items"] and account.calls == 1


def test_an_effect_that_raises_as_in_eager() -> None:
    """What the program has called is the program's to answer for."""

    class Closed:
        def write(self, text: str) -> None:
            raise AttributeError("closed")

    def program(x: torch.Tensor, out: Any) -> torch.Tensor:
        print("sum", file=out)
        return x.sin()

    for f in (program, bolide.compile(program)):
        for out in (Closed(), 3):
            with pytest.raises(AttributeError, match=r"closed|write"):
                f(torch.randn(3), out)


@pytest.mark.parametrize("name", ["_laid_out", "_unpacked", "without_grad", "_recalled"])
def test_mistakes_in_a_backward_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward is over, and what it has saved is gone: an error says whose backward it is and what to do."""
    x = torch.randn(3, 4, requires_grad=True)
    result = bolide.compile(lambda x: (x * 2).sin())(x)
    tangent = torch.randn(4, 3).t()  # laid out otherwise than the result
    monkeypatch.setattr(wrappers, name, _mistake("attribute"))
    twice = name != "_laid_out"
    if name in ("without_grad", "_unpacked"):
        monkeypatch.setattr(wrappers, "_recalled", lambda *args: None)
    with pytest.raises(HalfwayError, match=r"<lambda> \(its backward pass\)(.|\n)*BR0709(.|\n)*remedy"):
        torch.autograd.grad(result, x, tangent, create_graph=twice)


@pytest.mark.parametrize("kind", list(MISTAKES))
def test_values_that_cannot_be_built_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been written yet when the graph has run: eager makes the call again."""
    made, failing = versions.make_entry, _mistake(kind)

    def with_mistake(signature: Any, replay: Any, *rest: Any) -> Any:
        failed = Recipe("call", lambda value: failing(), (replay.result,))
        return made(signature, dataclasses.replace(replay, result=failed), *rest)

    def program(x: torch.Tensor, account: Account) -> torch.Tensor:
        account.calls += 1
        account.items.append(x.shape[0])
        return x * 2

    monkeypatch.setattr(versions, "make_entry", with_mistake)
    agrees(program, "the compiled graph raised what eager does not")


@pytest.mark.parametrize("kind", ["item", "attribute", "assertion"])
def test_a_mistake_while_a_break_runs_is_not_handled_by_the_program(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else could run the instruction, and what was done before it cannot be undone: the user is told."""
    account, table = Account(), array.array("f", [1.0, 2.0])
    monkeypatch.setitem(concrete.NATIVE, "BINARY_SUBSCR", _mistake(kind))
    concrete._instructions.cache_clear()
    with pytest.raises(HalfwayError, match="a break"):
        bolide.compile(looks_up)(torch.randn(2, 4), account, table)
    concrete._instructions.cache_clear()
    assert account.calls == 1 and account.items == []


def looks_up(x: torch.Tensor, account: Account, table: Any) -> torch.Tensor:
    account.calls += 1
    y = (x * 2).sin()
    try:
        account.items.append(table[int(x.sum().item() * 0)])
    except (AttributeError, LookupError, AssertionError):
        account.items.append("caught")
    return y


def test_an_exception_that_only_a_later_segment_meets() -> None:
    """Capture takes a mistake for the program's own exception, behind a break: eager, which goes on, does not raise."""

    def program(x: torch.Tensor, account: Account) -> torch.Tensor:
        y = x.sin()
        account.calls += 1
        bolide.dynamo.graph_break()
        account.items.append(account.calls)
        if torch.compiler.is_compiling():
            raise ValueError("only while capturing")
        return y.cos()

    agrees(program, "only while capturing, which eager did not raise")

    def raises(x: torch.Tensor, account: Account) -> torch.Tensor:
        y = x.sin()
        bolide.dynamo.graph_break()
        if x.shape[0] > 2:
            raise ValueError("the user's")
        return y.cos()

    compiled = bolide.compile(raises)
    for size in (3, 2, 3, 3):
        x = torch.randn(size)
        if size == 2:
            torch.testing.assert_close(compiled(x, Account()), x.sin().cos())
            continue
        with pytest.raises(ValueError, match="the user's"):
            compiled(x, Account())
