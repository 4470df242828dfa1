"""Iterators inside of a compiled function are what they are in eager: of the same class, alive after an exception,
copied like others, and over what the program writes to."""

# ruff: noqa: C417

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide

NUMBERS = [1, 2, 3, 2, 4]


def agree(program: Callable[..., Any], make: Callable[[], tuple[Any, ...]] = tuple, fullgraph: bool = False) -> None:
    compiled: Any = bolide.compile(program, fullgraph=fullgraph)
    for size in (2, 2, 3):
        x = torch.randn(size)
        got, wanted = compiled(x, *make()), program(x, *make())
        assert torch.equal(got[0], wanted[0])
        assert got[1:] == wanted[1:]


# ---- what raises ----


def fails(q: int) -> int:
    if q == 2:
        raise ValueError("two")
    return q


def stops(q: int) -> int:
    if q == 2:
        raise StopIteration
    return q


class Sequence:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise self.error
        return index


class Stepping:
    def __init__(self) -> None:
        self.numbers = iter(NUMBERS)

    def __iter__(self) -> Stepping:
        return self

    def __next__(self) -> int:
        return fails(next(self.numbers))

    def close(self) -> None:
        raise AssertionError


def until(function: Callable[[int], int]) -> Any:
    numbers = iter([1, 2, 3, 2, 4, 9, 5])
    return iter(lambda: function(next(numbers)), 9)


FAILING: dict[str, Callable[[], Any]] = {
    "map": lambda: map(fails, NUMBERS),
    "map of a map": lambda: map(fails, map(fails, NUMBERS)),
    "map, stopped": lambda: map(stops, NUMBERS),
    "map of two": lambda: map(lambda a, b: fails(a) + b, NUMBERS, iter(NUMBERS)),
    "filter": lambda: filter(fails, NUMBERS),
    "filterfalse": lambda: itertools.filterfalse(lambda q: not fails(q), NUMBERS),
    "takewhile": lambda: itertools.takewhile(fails, NUMBERS),
    "dropwhile": lambda: itertools.dropwhile(lambda q: fails(q) < 3, NUMBERS),
    "starmap": lambda: itertools.starmap(fails, [(q,) for q in NUMBERS]),
    "accumulate": lambda: itertools.accumulate(NUMBERS, lambda a, b: a + fails(b)),
    "accumulate from": lambda: itertools.accumulate([2, 1, 2], lambda a, b: a + fails(b), initial=5),
    "accumulate, not begun": lambda: itertools.accumulate(map(fails, [2, 2, 5, 6])),
    "groupby": lambda: map(lambda group: (group[0], list(group[1])), itertools.groupby([1, 1, 2, 3, 3, 2, 1], fails)),
    "groupby, keys": lambda: map(lambda group: group[0], itertools.groupby(NUMBERS, fails)),
    "until": lambda: until(fails),
    "until, stopped": lambda: until(stops),
    "zip": lambda: zip(map(fails, NUMBERS), map(lambda q: q * 10, NUMBERS)),
    "zip, strict": lambda: zip(map(fails, NUMBERS), NUMBERS, strict=True),
    "enumerate": lambda: enumerate(map(fails, NUMBERS)),
    "islice": lambda: itertools.islice(map(fails, NUMBERS), 1, 9),
    "compress": lambda: itertools.compress(map(fails, NUMBERS), [1] * 9),
    "cycle": lambda: itertools.cycle(map(fails, NUMBERS)),
    "tee": lambda: itertools.tee(map(fails, NUMBERS))[0],
    "chain": lambda: itertools.chain(map(fails, NUMBERS), [7], map(fails, NUMBERS)),
    "chain of an iterator of the program's": lambda: itertools.chain(Stepping(), [7], Stepping()),
    "cycle of an iterator of the program's": lambda: itertools.cycle(Stepping()),
    "chain of what is none": lambda: itertools.chain([1], map(fails, NUMBERS), 3, [2]),
    "chain.from_iterable": lambda: itertools.chain.from_iterable(map(lambda q: [fails(q)], NUMBERS)),
    "zip_longest": lambda: itertools.zip_longest(map(fails, NUMBERS), [1]),
    "pairwise": lambda: itertools.pairwise(map(fails, NUMBERS)),
    "reversed": lambda: reversed(Sequence(ValueError("two"))),
    "reversed, no item": lambda: reversed(Sequence(IndexError("two"))),
    "reversed, stopped": lambda: reversed(Sequence(StopIteration("two"))),
}


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("name", FAILING)
def test_an_iterator_goes_on_after_an_exception(name: str, breaks: bool) -> None:
    def program(x: Any) -> Any:
        found: list[Any] = []
        iterator = FAILING[name]()
        for _ in range(7):
            if breaks:
                bolide.graph_break()
            try:
                found.append(next(iterator))
            except (ValueError, TypeError, IndexError, StopIteration) as error:
                found.append((type(error).__name__, str(error)))
        return x + 1, found

    agree(program, fullgraph=not breaks)


def test_loops_end_where_a_function_stops_them() -> None:
    agree(lambda x: (x, list(map(stops, [1, 3, 2, 4])), [q for q in filter(stops, [1, 2, 3])]), fullgraph=True)  # noqa: C416


@pytest.mark.parametrize("kept", [itertools.chain, itertools.cycle, lambda it: itertools.dropwhile(bool, it)])
def test_what_an_iterator_draws_from_outlives_it(kept: Callable[[Any], Any]) -> None:
    def counting() -> Any:
        try:
            yield from [0, 1, 2, 3]
        finally:
            found.append("closed")

    found: list[Any] = []

    def program(x: Any) -> Any:
        numbers = counting()
        iterator = kept(numbers)
        found[:] = [next(iterator), next(iterator)]
        del iterator
        return x, [*found, *numbers, *found]

    agree(program, fullgraph=True)


# ---- classes and copies ----

ITERATORS: dict[str, Callable[[], Any]] = {
    "enumerate": lambda: enumerate([5, 6]),
    "zip": lambda: zip([1], [2]),
    "chain": lambda: itertools.chain([1], [2]),
    "count": lambda: itertools.count(3),
    "islice": lambda: itertools.islice([1, 2, 3], 1, None),
    "cycle": lambda: itertools.cycle([1, 2]),
    "product": lambda: itertools.product([1, 2], [3]),
    "repeat": lambda: itertools.repeat(3, 2),
    "accumulate": lambda: itertools.accumulate([1, 2]),
    "zip_longest": lambda: itertools.zip_longest([1], [2, 3]),
    "list": lambda: iter([1, 2]),
    "tuple": lambda: iter((1, 2)),
    "str": lambda: iter("ab"),
    "range": lambda: iter(range(3)),
    "dict": lambda: iter({1: 2}),
    "items": lambda: iter({1: 2}.items()),
    "set": lambda: iter({1, 2}),
    "reversed": lambda: reversed([1, 2]),
    "map": lambda: map(lambda q: q, [1, 2]),
    "filter": lambda: filter(lambda q: q > 1, [1, 2, 3]),
    "until": lambda: iter(functools.partial(next, iter([7, 6, 1]), 7), 1),
    "generator": lambda: (i for i in [1, 2]),
}


def rest(iterator: Any) -> list[Any]:
    return list(itertools.islice(iterator, 4))


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "class": lambda it: (type(it), it.__class__, isinstance(it, (enumerate, zip, map)), callable(it)),
    "abstract classes": lambda it: (
        isinstance(it, collections.abc.Iterator),
        isinstance(it, collections.abc.Generator),
    ),
    "attributes": lambda it: (hasattr(it, "send"), hasattr(it, "__next__"), hasattr(it, "real")),
    "methods": lambda it: (it.__next__(), it.__iter__() is it, iter(it) is it, rest(it)),
    "text": lambda it: [
        text.partition(" at ")[0] for text in (repr(it), f"{it}", object.__repr__(it), repr(functools.partial(max, it)))
    ],
    "hint": lambda it: operator.length_hint(it, 77),
    "truth": lambda it: (1 if it else 2, it == it, it in [it]),
    "reduced": lambda it: it.__reduce__()[0],
}


@pytest.mark.parametrize("place", ["inside", "argument", "across a break"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_an_iterator_is(question: str, place: str) -> None:
    for name, make in ITERATORS.items():
        if question in ("reduced", "text") and name in ("map", "filter", "until"):
            continue  # between two breaks native code sees a generator
        _ask(QUESTIONS[question], make, place)


def _ask(question: Callable[[Any], Any], make: Callable[[], Any], place: str) -> None:
    def answered(x: Any, iterator: Any) -> Any:
        try:
            return x + 1, question(iterator)
        except TypeError as error:
            return x - 1, type(error), str(error)

    def program(x: Any) -> Any:
        iterator = make()
        if place == "across a break":
            bolide.graph_break()
        return answered(x, iterator)

    bolide.reset()
    if place == "argument":
        agree(answered, lambda: (make(),))
    else:
        agree(program)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": lambda it: (rest(copy.copy(it)), rest(it)),
    "deepcopy": lambda it: (rest(copy.deepcopy(it)), rest(it)),
    "drawn from": lambda it: (next(it), rest(copy.copy(it)), rest(it)),
    "drawn from, deep": lambda it: (next(it), rest(copy.deepcopy([it, it])[1]), rest(it)),
    "at its end": lambda it: (rest(it), rest(copy.copy(it))),
    "class": lambda it: (type(copy.copy(it)), copy.copy(it) is it),
}


@pytest.mark.filterwarnings("ignore:Pickle, copy, and deepcopy support:DeprecationWarning")
@pytest.mark.parametrize("place", ["inside", "argument"])
@pytest.mark.parametrize("question", COPIES)
def test_copies_of_iterators(question: str, place: str) -> None:
    for make in ITERATORS.values():
        _ask(COPIES[question], make, place)


class Reducing:
    """Says itself what it is made of."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return Reducing, ([],), (self.parts,)

    def __setstate__(self, state: Any) -> None:
        (self.parts,) = state


class Slotted:
    __slots__ = ("a", "b")

    def __reduce__(self) -> Any:
        return Slotted, (), (None, {"a": self.a, "b": self.b})


class Growing(list[Any]):
    def __reduce__(self) -> Any:
        return Growing, (), {"tag": 1}, iter(list(self))


def slotted() -> Any:
    made = Slotted()
    made.a, made.b = 1, [2]
    return made


def described(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords, value.__dict__
    if isinstance(value, Slotted):
        return value.a, value.b
    return list(value) if isinstance(value, list) else None, getattr(value, "__dict__", value)


OBJECTS: dict[str, Callable[[], Any]] = {
    "partial": lambda: functools.partial(int, "3", base=8),
    "partial of the program's": lambda: functools.partial(lambda a: a, [3]),
    "reducing": lambda: Reducing([1, [2]]),
    "slotted": slotted,
    "growing": lambda: Growing([1, [2]]),
    "bytearray": lambda: bytearray(b"ab"),
    "error": lambda: ValueError("a", [1]),
}


@pytest.mark.parametrize("place", ["inside", "argument"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_by_reduce(copied: Any, place: str) -> None:
    for name, make in OBJECTS.items():
        made = make()
        if name == "partial of the program's":
            _ask(lambda value: (copied(value)(), copied(value).args[0] is value.args[0]), lambda made=made: made, place)
        elif name != "error":
            _ask(lambda value: described(copied(value)), lambda made=made: made, place)
        else:
            _ask(lambda value: (copied(value).args, type(copied(value))), lambda made=made: made, place)


# ---- written to while it is gone over ----

OVER: dict[str, Callable[[Any], Any]] = {
    "chain": lambda items: itertools.chain(items, [3]),
    "chain, later": lambda items: itertools.chain([3], items),
    "from_iterable": lambda items: itertools.chain.from_iterable([items, items]),
    "from a tuple": lambda items: itertools.chain.from_iterable((items, [4])),
    "zip": lambda items: zip(items, itertools.chain(items, [7, 8, 9])),
    "iter": iter,
    "enumerate": enumerate,
}


@pytest.mark.parametrize("drawn", [0, 1])
@pytest.mark.parametrize("how", ["graph_break", "disabled"])
@pytest.mark.parametrize("name", OVER)
def test_what_an_iterator_goes_over_is_written_to(name: str, how: str, drawn: int) -> None:
    given = bolide.disable(lambda iterator: iterator)

    def program(x: Any) -> Any:
        items = [1, 2]
        iterator = OVER[name](items)
        for _ in range(drawn):
            next(iterator)
        if how == "graph_break":
            bolide.graph_break()
        else:
            iterator = given(iterator)
        items.append(5)
        items[0] = 9
        return x + 1, list(iterator)

    agree(program)
