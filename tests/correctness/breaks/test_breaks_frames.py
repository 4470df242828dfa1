"""What programs with breaks can see of their frames, objects and effects: the same as in eager.

Every program is called three times, compiled and in eager; results, printed and logged text, warnings with their lines,
and the tracebacks of exceptions must agree.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import bolide
from bolide.support import events

PROGRAMS: list[tuple[Callable[[Tensor], Any], int]] = []
logger = logging.getLogger("test_breaks_frames")


def program(segments: int) -> Callable[[Callable[[Tensor], Any]], Callable[[Tensor], Any]]:
    """A program to check, and how many segments its first call may make."""

    def register(fn: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        PROGRAMS.append((fn, segments))
        return fn

    return register


def observed(fn: Callable[[Tensor], Any], x: Tensor) -> tuple[list[Any], Any]:
    """The tensors of the result, and all else that a call of `fn` shows."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(funcName)s %(lineno)d %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        try:
            result = fn(x)
        except Exception as error:
            entries = [(e.name, e.lineno) for e in traceback.extract_tb(error.__traceback__) if e.filename == __file__]
            result = repr(error), repr(error.__context__), entries[1:]
    caught = [w for w in caught if w.category is not bolide.BolideWarning]
    told = [(str(w.message), w.lineno, w.filename) for w in caught]
    leaves, tree = pytree.tree_flatten(result)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    text = "".join(line for line in out.getvalue().splitlines(True) if "^^" not in line)  # columns are not kept
    return tensors, (tree, [leaf for leaf in leaves if not isinstance(leaf, Tensor)], text, told)


class Counted:
    """Says when it goes."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __del__(self) -> None:
        print("gone")


@program(3)
def goes_when_it_is_deleted(x: Tensor) -> Tensor:
    made = Counted(x * 2)
    y = made.value + 1
    print("before")
    del made
    print("after")
    return y


@program(2)
def goes_at_the_end(x: Tensor) -> Tensor:
    return Counted(x * 2).value + 1


@program(4)
def looks_at_its_caller(x: Tensor) -> Tensor:
    secret = 7

    def look() -> tuple[Any, ...]:
        frame = sys._getframe(1)
        return frame.f_locals["secret"], frame.f_code.co_name, frame.f_lineno

    y = x + 1
    found = look()
    print(found)
    secret = found[0]
    return y * secret


@program(1)
def logs_what_it_handles(x: Tensor) -> Tensor:
    def careful(y: Tensor) -> Tensor:
        try:
            raise ValueError("q")
        except ValueError as error:
            logger.exception("caught")
            logger.error("again", exc_info=error)
            logger.warning("flag", exc_info=True)
        return y + 1

    logger.warning("begin %d", 3)
    return careful(x * 2)


@program(1)
def warns_for_its_caller(x: Tensor) -> Tensor:
    def library(y: Tensor) -> Tensor:
        warnings.warn("careful", UserWarning, stacklevel=2)
        return y * 2

    return library(x + 1).sin()


class Countdown:
    """An iterator that says what is done with it."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __iter__(self) -> Iterator[int]:
        print("iter")
        return self

    def __next__(self) -> int:
        print("next", self.left)
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left


@program(4)
def unpacks_for_real(x: Tensor) -> Any:
    with bolide.dynamo.config.patch(cache_size_limit=1):
        a, b, c = Countdown(3)
        first, *rest = Countdown(3)
        try:
            a, b = Countdown(3)
        except ValueError as error:
            print(error)
        return x * a, b, c, first, rest


class Told:
    """Tells which attributes are asked for."""

    def __getattr__(self, name: str) -> int:
        print("asked for", name)
        return 2

    def __call__(self, y: Tensor) -> Tensor:
        print("called")
        return y * 3


told = Told()


@program(3)
def an_object_is_called(x: Tensor) -> Tensor:
    return told(x + 1) * told.size


@program(3)
def an_event_loop_runs(x: Tensor) -> Tensor:
    async def twice(y: Tensor) -> Tensor:
        await asyncio.sleep(0)
        return y * 2

    return asyncio.run(twice(x + 1)).sin()


@contextlib.contextmanager
def doubled(x: Tensor) -> Iterator[Tensor]:
    print("enter")
    try:
        yield x * 2
    except ValueError as error:
        print("in the manager", error)
    finally:
        print("exit")


@program(6)
def a_manager_swallows(x: Tensor) -> Tensor:
    y = x + 1
    with doubled(y) as z:
        y = y * z
        print("body")
        y = y + 1
        raise ValueError("no")
    return y.sin()


@program(4)
def an_error_goes_through_frames(x: Tensor) -> Tensor:
    def deep() -> None:
        y = x + 1
        print("deep")
        raise RuntimeError(y.dim())

    def middle() -> None:
        try:
            print("middle")
            deep()
        finally:
            print(sys.exc_info()[0])

    middle()
    return x


@program(5)
def a_decorator_breaks(x: Tensor) -> Tensor:
    def decorated(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Tensor:
            print("before", fn.__name__)
            result = fn(*args, **kwargs)
            print("after")
            return result + 1

        return wrapped

    @decorated
    def twice(y: Tensor, *, times: int = 2) -> Tensor:
        print("inside", times)
        return y * times + x

    return twice(x.sin(), times=3)


class Shown(list[Any]):
    """Overrides methods written in C, and breaks where the overridden ones have been found but not called."""

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name[0] != "_":
            print("get", name)
        return get(name)

    def append(self, value: Any) -> None:
        super().append(print("append") or value)  # type: ignore[func-returns-value]

    def __contains__(self, value: object) -> bool:
        return super().__contains__(print("contains") or value)  # type: ignore[func-returns-value]


SHOWN = Shown([1])


@program(20)
def overridden_methods_written_in_c(x: Tensor) -> Any:
    made = Shown()
    made.append(2)
    SHOWN[:] = [1]
    SHOWN.append(x.dim())
    return x + 1, 2 in made, 7 in SHOWN, made[:], SHOWN[:]


TABLES: list[dict[str, int]] = [{"a": 1, "b": 2}, collections.OrderedDict(a=1, b=2)]


@program(20)
def views_of_outside_dicts(x: Tensor) -> Any:
    found = []
    for table in TABLES:
        table.pop("new", None)
        keys, items = table.keys(), table.items()
        print("viewed")
        try:
            for _, value in items:
                table["new"] = value + 1
        except RuntimeError as error:
            print(error)
        found.append((len(keys), list(items)))
    return x + 1, found


@pytest.mark.parametrize(("fn", "segments"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_a_program_sees_what_it_sees_in_eager(fn: Callable[[Tensor], Any], segments: int) -> None:
    told: list[Any] = []
    compiled = bolide.compile(fn, backend="eager")
    for number in range(3):
        x = torch.randn(4)
        expected, shown = observed(fn, x)
        with events.subscribed(told.append):
            actual, also_shown = observed(compiled, x)
        assert also_shown == shown
        torch.testing.assert_close(actual, expected)
        if number == 0:
            assert sum(isinstance(event, events.Captured) for event in told) <= segments
