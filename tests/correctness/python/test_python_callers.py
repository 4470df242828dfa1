"""Code that looks at its callers, and tracebacks: they show the user's frames where bolide has none of them."""

from __future__ import annotations

import collections
import enum
import gc
import inspect
import io
import logging
import sys
import traceback
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide


def caller() -> tuple[str, int, Any]:
    frame = sys._getframe(1)
    return frame.f_code.co_name, frame.f_lineno, frame.f_globals["__name__"]


def stack() -> list[str]:
    return [entry.function for entry in inspect.stack()][:2]


def warns() -> None:
    warnings.warn("of the caller", stacklevel=2)


def of_a_function(x: Any) -> Any:
    y = x + 1
    return y, caller(), stack()


def after_a_break(x: Any) -> Any:
    y = x + 1
    print("a break")

    def inner(z: Any) -> Any:
        return z * 2, caller(), stack(), [entry.name for entry in traceback.extract_stack()][-2:]

    return inner(y)


def of_itself(x: Any) -> Any:
    y = x * 2
    return y, sys._getframe().f_code.co_name, sys._getframe().f_lineno, sorted(inspect.currentframe().f_locals)


def warned(x: Any) -> Any:
    y = x * 2
    warns()
    warnings.warn("of its own", stacklevel=1)
    print("a break")
    warns()
    return (y,)


def logged(x: Any) -> Any:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(funcName)s %(lineno)d %(message)s"))
    logger = logging.getLogger("bolide-test-callers")
    logger.propagate = False
    logger.addHandler(handler)
    y = x + 1
    logger.warning("hello")
    logger.removeHandler(handler)
    return y, stream.getvalue()


def entries(error: BaseException) -> list[tuple[str, int]]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    return found


def traceback_across_a_break(x: Any) -> Any:
    def fails(n: int) -> None:
        if n > 1:
            raise KeyError(n)
        fails(n + 1)

    try:
        fails(0)
    except KeyError as error:
        print("a break")
        x = x + 1
        first = entries(error)
        try:
            raise
        except KeyError as again:
            print("another one")
            return x - 1, first, entries(again), "in fails" in traceback.format_exc()


PROGRAMS = [of_a_function, after_a_break, of_itself, warned, logged, traceback_across_a_break]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_callers_are_the_users(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program, backend="eager")
    for _ in range(2):
        x = torch.rand(3)
        outcomes = []
        for function in (program, compiled):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result, *rest = function(x)
            outcomes.append((result.tolist(), rest, [(str(w.message), w.filename, w.lineno) for w in caught]))
        assert outcomes[0] == outcomes[1]


class Meta(type):
    def __new__(cls, name: str, bases: Any, body: dict[str, Any]) -> Any:
        return type.__new__(cls, name, bases, body)


class Plain(type):
    pass


MAKERS: list[Callable[[], Any]] = [
    lambda: type("Made", (torch.nn.Module,), {"size": 1}),
    lambda: Plain("Made", (), {}),
    lambda: Meta("Made", (), {}),
    lambda: collections.namedtuple("Made", "a b"),
    lambda: typing.NamedTuple("Made", [("a", int)]),
    lambda: typing.TypedDict("Made", {"a": int}),  # type: ignore[operator]
    lambda: enum.Enum("Made", "A B"),
    lambda: typing.TypeVar("Made"),  # type: ignore[misc]
    lambda: typing.NewType("Made", int),  # type: ignore[valid-newtype]
    lambda: types.new_class("Made"),
]


@pytest.mark.parametrize("place", range(len(MAKERS)))
def test_what_a_call_makes_is_of_the_module_that_calls(place: int) -> None:
    """In the graph's function, behind a break, and as the operation that is run for real."""
    make = MAKERS[place]

    def whole(x: Any) -> Any:
        return x * 2, make()

    def broken(x: Any) -> Any:
        y = x * 2
        bolide.dynamo.graph_break()
        return y, make()

    def real(x: Any) -> Any:
        y, made = x * 2, make
        if y.sum() > 0:
            print(end="")
        return y, made()

    for program in (whole, broken, real):
        compiled = bolide.compile(program)
        for size in (2, 2, 3):
            x = torch.rand(size)
            (y, made), (expected, other) = compiled(x), program(x)
            assert torch.equal(y, expected) and made.__module__ == other.__module__


def test_classes_that_are_made_on_the_way_over_a_break() -> None:
    def program(x: Any, cls: type) -> Any:
        y = x * 2
        return y, cls(f"Made{int(y.sum() * 0)}", (), {}).__module__

    compiled = bolide.compile(program)
    for cls in (type, type, type, Plain, Meta, Plain):
        x = torch.rand(3)
        assert compiled(x, cls)[1] == program(x, cls)[1] == __name__


class Thing:
    """Holds the exception that was raised about it."""

    error: Any = None


def test_what_a_call_for_real_has_held_can_be_collected() -> None:
    ends: list[Any] = []

    @bolide.disable
    def fails(thing: Thing) -> None:
        ends.append(weakref.ref(thing))
        try:
            raise KeyError
        except KeyError as error:
            thing.error = error

    def program(x: torch.Tensor) -> torch.Tensor:
        fails(Thing())
        return x + 1

    compiled = bolide.compile(program, backend="eager")
    for _ in range(3):
        compiled(torch.rand(4))
    gc.collect()
    assert len(ends) == 3 and all(end() is None for end in ends)
