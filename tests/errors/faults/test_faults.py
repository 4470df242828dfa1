"""What goes wrong inside bolide stays inside: a refusal or a mistake is never the program's exception."""

from __future__ import annotations

import contextlib
import reprlib
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.machine import operations
from bolide.support import events
from bolide.support.errors import CompileError, Unsupported, insistent


def results(f: Callable[..., Any], *args: Any) -> Any:
    """What a call gives or raises."""
    try:
        return f(*args)
    except Exception as error:
        return type(error), str(error)


def agree(f: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> None:
    """Compiled, each call gives what it gives in eager; gradients too."""
    compiled = bolide.compile(f, **options)
    for args in calls:
        expected, actual = results(f, *args), results(compiled, *args)
        assert type(actual) is type(expected), (expected, actual)
        if isinstance(expected, tuple) and isinstance(expected[0], type):
            assert actual == expected
            continue
        torch.testing.assert_close(actual, expected)
        if isinstance(expected, torch.Tensor) and expected.requires_grad:
            leaves = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
            grads = [torch.autograd.grad(result.sum(), leaves) for result in (actual, expected)]
            torch.testing.assert_close(*grads)


# ---- refusals that native code catches -------------------------------------------------------------------------------


def in_except(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    try:
        torch.testing.assert_close(x, y)
    except Exception:
        return x * 2
    return x + 1


def in_bare_except(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    try:
        torch.testing.assert_close(x, y)
    except:  # noqa: E722
        return x * 2
    finally:
        x = x * 3
    return x + 1


def in_suppress(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(BaseException):
        torch.testing.assert_close(x, y)
        return x + 1
    return x * 2


def in_a_loop_that_tries_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    while True:
        try:
            torch.testing.assert_close(x, y)
            return x * 5
        except AssertionError:
            y = x


def in_a_text(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + len(reprlib.repr([(x - y).sum() > 0.5]))


def in_an_exception(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    error = ValueError((x - y).sum() > 0.5)
    return x + len(traceback.format_exception_only(type(error), error)[0])


def in_a_key(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found = []

    def key(number: int) -> int:
        try:
            found.append(float(x.sum()))
        except Exception:
            found.append(-1.0)
        return number

    sorted([2, 1], key=key)
    return x * found[0]


@pytest.mark.parametrize(
    "f",
    [
        in_except,
        in_bare_except,
        in_suppress,
        in_a_loop_that_tries_again,
        in_a_text,
        in_an_exception,
        in_a_key,
    ],
)
def test_a_refusal_cannot_be_caught(f: Callable[..., Any]) -> None:
    x = torch.randn(3, requires_grad=True)
    calls = [(x, x.detach().clone()), (x, torch.randn(3)), (x, torch.randn(4 if f is in_except else 3))]
    longer = torch.randn(5, requires_grad=True)
    agree(f, *calls, (longer, longer.detach() + 1))


def test_a_refusal_that_is_caught_is_raised_again() -> None:
    def refuse(swallow: bool) -> str:
        try:
            raise Unsupported("inside", kind="operator")
        except Unsupported:
            if not swallow:
                raise ValueError("on purpose") from None
            return "as if nothing had been"

    def outer() -> str:
        with contextlib.suppress(Unsupported):
            insistent(refuse, True)
        return "outer"

    for call in (lambda: insistent(refuse, True), lambda: insistent(refuse, False), lambda: insistent(outer)):
        with pytest.raises(Unsupported, match="inside"):
            call()
    assert refuse(True) == "as if nothing had been"


# ---- mistakes of bolide's own ----------------------------------------------------------------------------------------

MISTAKES = {
    "item": "{}['nothing']",
    "attribute": "None.nothing",
    "name": "nothing",
    "assertion": "(lambda: [] and 1)() or fail()",
}


def mistaken(kind: str) -> Callable[..., Any]:
    """A function of bolide's that makes a mistake."""
    scope: dict[str, Any] = {}
    text = f"def fail():\n    assert False\ndef mistake(*args):\n    return {MISTAKES[kind]}"
    exec(compile(text, operations.__file__, "exec"), scope)
    made: Callable[..., Any] = scope["mistake"]
    return made


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_cannot_be_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            y = -x
        except Exception:
            return x * 0
        return y + 1

    x = torch.randn(3)
    monkeypatch.setattr(operations, "unary", mistaken(kind))
    with pytest.raises(CompileError, match="capture"):
        bolide.compile(f)(x)
    with config.patch(suppress_errors=True), pytest.warns(bolide.BolideWarning, match="capture met .*BR0704"):
        torch.testing.assert_close(bolide.compile(f)(x), f(x))


# ---- recursion -------------------------------------------------------------------------------------------------------


def down(x: torch.Tensor, n: int) -> torch.Tensor:
    return x + 1 if n == 0 else down(x, n - 1)


def guarded(x: torch.Tensor, n: int) -> torch.Tensor:
    try:
        return down(x, n)
    except RecursionError:
        return x - 1


def through_native_code(x: torch.Tensor, n: int) -> torch.Tensor:
    found = [x]
    if n:
        sorted([1], key=lambda _: found.append(through_native_code(x, n - 1) + 1))
    return found[-1]


def counted(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    depth = 0

    def go() -> None:
        nonlocal depth
        depth += 1
        go()

    try:
        go()
    except RecursionError:
        x = x + 1
    return x, depth


def test_recursion_as_deep_as_the_limit_says() -> None:
    x = torch.randn(2)
    known = sys.getrecursionlimit()
    agree(guarded, (x, 700), (x, known + 500), (x, 3), backend="eager")
    sys.setrecursionlimit(5000)
    try:
        agree(guarded, (x, 1200), (x, 5100), backend="eager", fullgraph=True)
    finally:
        sys.setrecursionlimit(known)


def test_recursion_without_end_raises_as_in_eager() -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        return endless(x) + 1

    for options in ({}, {"fullgraph": True}):
        with pytest.raises(RecursionError):
            bolide.compile(endless, **options)(torch.randn(2))
    depths = [f(torch.randn(2))[1] for f in (counted, bolide.compile(counted))]
    assert abs(depths[0] - depths[1]) < 30, depths


def test_recursion_through_native_code() -> None:
    x = torch.randn(2, requires_grad=True)
    agree(through_native_code, (x, 3), (x, 20), (x, 100))
    assert isinstance(results(bolide.compile(through_native_code), x, 2000)[0], type)


# ---- breaks under transforms -----------------------------------------------------------------------------------------


def broken(x: torch.Tensor) -> torch.Tensor:
    bolide.dynamo.graph_break()
    return (x * 2).sin().sum()


def whole(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).cos().sum()


TRANSFORMS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "vmap": lambda f, x: func.vmap(f)(x),
    "grad": lambda f, x: func.grad(f)(x),
    "grad_and_value": lambda f, x: func.grad_and_value(f)(x),
    "vmap of grad": lambda f, x: func.vmap(func.grad(f))(x),
    "jacrev": lambda f, x: func.jacrev(f)(x),
    "jacfwd": lambda f, x: func.jacfwd(f)(x),
    "jvp": lambda f, x: func.jvp(f, (x,), (x + 1,)),
    "vjp": lambda f, x: func.vjp(f, x)[1](x.new_ones(())),
    "functionalize": lambda f, x: func.functionalize(f)(x),
    "no_grad": lambda f, x: torch.no_grad()(f)(x),
}


@pytest.mark.parametrize("f", [broken, whole])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_breaks_under_transforms(name: str, f: Callable[..., Any]) -> None:
    transform = TRANSFORMS[name]

    def program(x: torch.Tensor) -> Any:
        return transform(f, x)

    def later(x: torch.Tensor) -> Any:
        if name == "vjp":
            value, pull = func.vjp(f, x)
            bolide.dynamo.graph_break()
            return value, pull(x.new_ones(()))
        return (transform(f, x), bolide.dynamo.graph_break())[0]

    for size in (3, 3, 5):
        x = torch.randn(size, 2)
        agree(program, (x,), (torch.randn(size, 2, requires_grad=True),))
    agree(later, *[(torch.randn(size, 2),) for size in (3, 3, 5)])


def test_a_transformed_function_lives_on_over_a_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        transformed = func.vmap(broken)
        bolide.dynamo.graph_break()
        return transformed(x + 1)

    agree(program, *[(torch.randn(size, 2),) for size in (3, 3, 5)])
    transformed = bolide.compile(lambda x: (func.vmap(whole), x + 1))(torch.randn(2))[0]
    x = torch.randn(4, 2)
    torch.testing.assert_close(transformed(x), func.vmap(whole)(x))


def test_tensors_of_a_transform_do_not_leave_it_as_traced_ones() -> None:
    kept: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x * 2

    compiled = bolide.compile(lambda x: func.vmap(keep)(x - 1))
    x = torch.randn(3, 2)
    with pytest.warns(bolide.BolideWarning, match="leaves the transformed function"):
        torch.testing.assert_close(compiled(x + 1), x * 2)
    assert len(kept) == 1 and "Traced" not in repr(kept)


# ---- objects that are not whole --------------------------------------------------------------------------------------


class Unwhole:
    """Its text wants what is set last; it is made with breaks in between."""

    def __init__(self, x: torch.Tensor) -> None:
        self.first = x * 2
        bolide.dynamo.graph_break()
        self.second = self.first.sin()
        self.lock = threading.RLock()
        self.last = 3

    def __repr__(self) -> str:
        return f"{self.last} of {self.first}"


def test_the_text_of_an_object_that_fails_is_none_of_the_programs_errors() -> None:
    """Guards and refusals are told in texts."""
    told: list[Any] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        made = Unwhole(x)
        return made.second * made.last

    with events.subscribed(told.append):
        agree(program, *[(torch.randn(size, requires_grad=True),) for size in (2, 3, 5)])
    assert not [event for event in told if isinstance(event, events.Fallback)]


# ---- locks of the user's ---------------------------------------------------------------------------------------------

LOCKS: dict[str, Callable[[], Any]] = {
    "Lock": threading.Lock,
    "RLock": threading.RLock,
    "Condition": threading.Condition,
    "Semaphore": lambda: threading.Semaphore(1),
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_is_waited_for(name: str) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.count = LOCKS[name](), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with self.lock:
                self.count += 1
                return x + self.count

    model = Counter()
    compiled, x = bolide.compile(model), torch.randn(2)
    for count in (1, 2, 3):
        torch.testing.assert_close(compiled(x), x + count)
    thread = threading.Thread(target=compiled, args=(x,))
    with model.lock:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and model.count == 3
    thread.join()
    assert model.count == 4
