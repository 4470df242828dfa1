"""Code that looks at its callers, and tracebacks: they show the user's frames where bolide has none of them."""

from __future__ import annotations

import gc
import inspect
import io
import logging
import sys
import traceback
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
