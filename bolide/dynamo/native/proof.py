"""Whether the native check can be trusted in this process: its functions are there, objects are laid out as it reads
them, and the machine code answers rightly for known objects. It is asked once, before the first check becomes native.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from bolide.dynamo.guards import texts as guards
from bolide.dynamo.native import machine_code, native, pins
from bolide.dynamo.native.layout import Layout, layout
from bolide.dynamo.native.notes import Habits
from bolide.dynamo.program.captured import Guard, Source
from bolide.support import log
from bolide.support.caches import on_reset
from bolide.support.symbols import symbol_address

_log = log.logger("dynamo")

Readable = Callable[[Sequence[str], Sequence[Guard], Sequence[Source], str], tuple[str, native.Form]]


SYMBOLS = tuple(function.symbol for function in machine_code.EXTERNALS.values())
"""The functions that the native check calls."""


class Unproved(Exception):
    """The native check answers wrongly."""


_underway = threading.Lock()


def underway() -> bool:
    """Whether the question is being asked, by another thread or below a signal handler that runs now: there is no
    answer yet."""
    return _underway.locked()


@functools.cache
def proved(readable: Readable) -> Layout | None:
    """The layout that the native check may use, None where the check has to stay in Python. `readable` makes the
    readable form.
    """
    known = layout()
    missing = [name for name in SYMBOLS if symbol_address(name) is None]
    if known is None or missing:
        _log.info("checks stay in Python: %s", f"no {missing[0]}" if missing else "objects are laid out otherwise")
        return None
    try:
        native.method(known)  # which takes a lock that this thread may hold
        # In a thread of its own: signal handlers, which may do anything, do not run there under the proof's modes.
        with _underway, ThreadPoolExecutor(1, "bolide proof") as thread:
            thread.submit(_prove, known, readable).result()
    except Exception as error:
        _log.info("checks stay in Python: %s: %s", type(error).__name__, error)
        return None
    return known


on_reset(proved.cache_clear)


class _Object:
    """What is looked into."""

    def __init__(self) -> None:
        self.gain = 2.0
        self.weight = torch.ones(3)


_NAMES = ("x", "leaf", "number", "items", "table", "owner")


def _values() -> list[Any]:
    return [
        torch.ones(2, 3),
        torch.ones(2, 1, 2, 1, 2, 1, requires_grad=True),
        3,
        [torch.ones(2), "text"],
        {"a": torch.ones(4, dtype=torch.int64), "b": 5},
        _Object(),
    ]


def _prove(layout: Layout, readable: Readable) -> None:
    """Raises Unproved, or whatever else goes wrong."""
    values = _values()
    checks, wanted = _guards(values)
    in_python = readable(_NAMES, checks, wanted, "proof")[1]
    known: list[list[Any]] = []

    def rest(loose: Sequence[Guard], left: Sequence[Source]) -> native.Form:
        return readable(_NAMES, loose, left, "proof")[1]

    def recorded(habits: Habits) -> native.Form:
        program = pins.record(layout, _NAMES, (), values, checks, wanted, habits, rest).program
        return native.make_check(layout, len(_NAMES), [program], lambda *given: None)

    def compare(what: str, check: native.Form, given: Sequence[Any]) -> None:
        expected, answer = in_python(*given), check(*given)
        if answer is not None and (expected is None or not all(map(operator.is_, answer, expected))):
            raise Unproved(f"it takes {what} for what it is not")
        if given is values and answer is not None:
            known.append(answer)

    by_value = Habits()
    by_value.values.add(Source("local", None, "x"))  # it is new in each call, the others stay
    for habits in (by_value, Habits()):
        check = recorded(habits)
        compare("the same objects", check, values)
        for what, given in _others(values):
            compare(what, check, given)
        for what, change in _changes(values):
            check = recorded(habits)
            with change:
                compare(what, check, values)
        compare("the same objects", recorded(habits), values)
    if len(known) < 4:
        raise Unproved("it does not know the same objects again")


def _guards(values: Sequence[Any]) -> tuple[list[Guard], list[Source]]:
    """Guards of many kinds that hold for these values, and what is wanted of them."""
    x, leaf, number, items, table, owner = (Source("local", None, name) for name in _NAMES)
    first, a = Source("item", items, 0), Source("item", table, "a")
    gain, weight = Source("attr", owner, "gain"), Source("attr", owner, "weight")
    tensors = [
        (x, values[0]),
        (leaf, values[1]),
        (first, values[3][0]),
        (a, values[4]["a"]),
        (weight, values[5].weight),
    ]
    checks = [
        *(Guard(source, "tensor", guards.tensor_guard(tensor)) for source, tensor in tensors),
        Guard(number, "equals", values[2]),
        Guard(items, "type", list),
        Guard(items, "length", 2),
        Guard(Source("item", items, 1), "equals", "text"),
        Guard(table, "type", dict),
        Guard(table, "dict_keys", list(values[4])),
        Guard(Source("item", table, "b"), "equals", 5),
        Guard(owner, "type", _Object),
        Guard(gain, "equals", 2.0),
        Guard(None, "distinct", (x, leaf)),
    ]
    return guards.prepare(checks, guards.global_state()), [x, leaf, first, a, weight]


class _Mode(TorchFunctionMode):
    """A mode under which nothing compiled runs."""


def _others(values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Calls with other values."""
    yield "equal objects", _values()
    one = values[0]
    with torch.inference_mode():
        inference = torch.ones(2, 3)
    tensors = {
        "another type": one.double(),
        "another size": torch.ones(3, 3),
        "more dimensions": torch.ones(2, 3, 1),
        "other strides": torch.ones(3, 2).t(),
        "another place in memory": torch.ones(7)[1:].view(2, 3),
        "a tensor that requires grad": torch.ones(2, 3, requires_grad=True),
        "a result that requires grad": torch.ones(2, 3, requires_grad=True) * 2,
        "another device": torch.empty(2, 3, device="meta"),
        "a parameter": torch.nn.Parameter(one.clone(), requires_grad=False),
        "a negated view": torch.zeros(2, 3, dtype=torch.complex64).conj().imag,
        "a sparse tensor": one.to_sparse(),
        "an inference tensor": inference,
        "None": None,
    }
    for name, tensor in tensors.items():
        yield name, [tensor, *values[1:]]
    yield "a tensor that is no leaf", [values[0], values[1] * 1, *values[2:]]
    yield "a tensor without gradients", [values[0], values[1].detach(), *values[2:]]
    taken = values[1] * 1
    taken.retain_grad()
    yield "a tensor whose gradient was kept", [values[0], taken.detach_(), *values[2:]]
    yield "the same tensor twice", [values[1], *values[1:]]
    others: dict[int, list[Any]] = {
        2: [4, 3.0, True, None],
        3: [[values[3][0]], [values[3][0], "next"], tuple(values[3]), []],
    }
    others[4] = [{"b": 5, "a": values[4]["a"]}, {"a": values[4]["a"]}, {**values[4], "c": 1}, {**values[4], "b": 6}]
    others[5] = [_Object(), None]
    for place, given in others.items():
        for other in given:
            yield f"{other!r}", [*values[:place], other, *values[place + 1 :]]


def _changes(values: Sequence[object]) -> Iterator[tuple[str, AbstractContextManager[Any]]]:
    """The same objects, changed for a while; other states of the thread."""
    items, table, owner = values[3:]
    yield "another attribute", _put(vars(owner), "gain", 3.0)
    yield "another weight", _put(vars(owner), "weight", torch.ones(4))
    yield "another item", _put(table, "b", 6)
    yield "another key", _put(table, "c", 1)
    yield "another item of a list", _put(items, 1, "next")
    yield "no grad mode", torch.no_grad()
    yield "inference mode", torch.inference_mode()
    yield "a function mode", _Mode()


@contextlib.contextmanager
def _put(container: Any, key: Any, value: Any) -> Iterator[None]:
    """An item of a list or dict is another one for a while."""
    absent = type(container) is dict and key not in container
    before = None if absent else container[key]
    container[key] = value
    yield
    if absent:
        del container[key]
    else:
        container[key] = before
