"""What iterates over its arguments in C is given generators, iterators and objects of the program's."""

# ruff: noqa: C417

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide


class Numbers:
    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __iter__(self) -> Any:
        yield from self.numbers


class Items:
    """Iterated over by its items."""

    def __getitem__(self, index: int) -> int:
        return [4, 5][index]


class Listed(list[Any]):
    def append(self, item: Any) -> None:
        raise AssertionError("nobody calls this")

    def __setitem__(self, place: Any, item: Any) -> None:
        raise AssertionError("nobody calls this")


class Table(dict[Any, Any]):
    def __setitem__(self, key: Any, item: Any) -> None:
        super().__setitem__(key, (item, "by the table"))


class Ordered(collections.OrderedDict[Any, Any]):
    def __setitem__(self, key: Any, item: Any) -> None:
        super().__setitem__(key, (item, "by the table"))


def failing() -> Any:
    yield 1
    raise ValueError("in the generator")


SOURCES: dict[str, Callable[[], Any]] = {
    "generator": lambda: (i for i in range(3)),
    "map": lambda: map(lambda q: q + 1, [7, 8]),
    "filter": lambda: filter(lambda q: q > 7, [7, 8]),
    "object": lambda: Numbers([5, 6]),
    "items": Items,
    "failing": failing,
    "tuple": lambda: (1, 2),
}


def plus(w: Any, s: Any) -> Any:
    w += s
    return w


def put(w: Any, place: slice, s: Any) -> Any:
    w[place] = s
    return w


def ored(w: Any, s: Any) -> Any:
    w |= s
    return w


LISTS: dict[str, Callable[[Any, Any], Any]] = {
    "+=": plus,
    "iadd": operator.iadd,
    "__iadd__": lambda w, s: w.__iadd__(s),
    "list.__iadd__": lambda w, s: list.__iadd__(w, s) is w,
    "list.extend": list.extend,
}
SLICES: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda w, s: put(w, slice(0, 1), s),
    "steps": lambda w, s: put(w, slice(None, None, 2), s),
    "setitem": lambda w, s: operator.setitem(w, slice(0, 1), s),
    "__setitem__": lambda w, s: w.__setitem__(slice(1, 2), s),
}
BY_LIST: dict[str, Callable[[Any, Any], Any]] = {
    "list.__setitem__": lambda w, s: list.__setitem__(w, slice(1, 2), s),
}
DEQUES: dict[str, Callable[[Any, Any], Any]] = {
    "+=": plus,
    "__iadd__": lambda w, s: w.__iadd__(s) is w,
    "extend": lambda w, s: w.extend(s),
    "extendleft": lambda w, s: w.extendleft(s),
}
PAIRS: dict[str, Callable[[], Any]] = {
    "generator": lambda: ((i, i + 1) for i in range(3)),
    "map": lambda: map(lambda q: (q, q), [0, 7]),
    "object": lambda: Numbers([(5, 6)]),
    "list": lambda: [(1, 2)],
    "dict": lambda: {1: 2},
}
DICTS: dict[str, Callable[[Any, Any], Any]] = {
    "|=": ored,
    "ior": operator.ior,
    "__ior__": lambda w, s: w.__ior__(s) is w,
    "update": lambda w, s: w.update(s),
    "defaultdict": lambda w, s: (collections.defaultdict(int, s, a=1), collections.defaultdict(int, w)),
}


def check(act: Callable[[Any, Any], Any], make: Callable[[], Any], source: Callable[[], Any]) -> None:
    """`act` on a container that is made inside, and on one from outside."""

    def outcome(w: Any) -> Any:
        try:
            answer = act(w, source())
        except (TypeError, ValueError) as error:
            answer = type(error).__name__, str(error)
        return ("itself" if answer is w else answer), w

    def inside(x: Any, n: int) -> Any:
        return x + n, outcome(make())

    def outside(x: Any, w: Any) -> Any:
        return x + len(w), outcome(w)

    compiled = bolide.compile(inside)
    for n in (1, 2, 3):
        got, wanted = compiled(x := torch.randn(2), n), inside(x, n)
        assert torch.equal(got[0], wanted[0])
        assert described(got[1]) == described(wanted[1])
    compiled = bolide.compile(outside)
    for _ in range(3):
        mine, theirs = make(), make()
        got, wanted = compiled(x, mine), outside(x, theirs)
        assert torch.equal(got[0], wanted[0])
        assert described((got[1], mine)) == described((wanted[1], theirs))
        assert got[1][1] is mine


def described(value: Any) -> Any:
    if isinstance(value, tuple):
        return [described(part) for part in value]
    return (type(value), list(value.items()) if isinstance(value, dict) else value)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("act", LISTS | SLICES | BY_LIST)
def test_lists(act: str, source: str) -> None:
    check((LISTS | SLICES | BY_LIST)[act], lambda: [3, 4, 5, 6], SOURCES[source])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("act", LISTS | BY_LIST)
def test_lists_of_a_class_of_their_own(act: str, source: str) -> None:
    check((LISTS | BY_LIST)[act], lambda: Listed([3, 4, 5, 6]), SOURCES[source])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("act", SLICES)
def test_bytearrays(act: str, source: str) -> None:
    check(SLICES[act], lambda: bytearray([3, 4, 5, 6]), SOURCES[source])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("act", DEQUES)
def test_deques(act: str, source: str) -> None:
    check(DEQUES[act], lambda: collections.deque([3, 4], 4), SOURCES[source])


@pytest.mark.parametrize("source", PAIRS)
@pytest.mark.parametrize("act", DICTS)
@pytest.mark.parametrize("cls", [dict, collections.OrderedDict, Table, Ordered])
def test_dicts(cls: Any, act: str, source: str) -> None:
    check(DICTS[act], lambda: cls([(0, 1), (7, 2)]), PAIRS[source])


def test_a_list_that_is_added_to_itself() -> None:
    check(lambda w, s: plus(w, w), lambda: Listed([1, 2]), tuple)


class Some(set[Any]):
    pass


class Queue(collections.deque[Any]):
    pass


@pytest.mark.parametrize(
    ("cls", "name", "other"),
    [
        (Listed, "__iadd__", [3]),
        (Listed, "__imul__", 2),
        (Queue, "__iadd__", [3]),
        (Queue, "__imul__", 2),
        (Some, "__ior__", {3}),
        (Some, "__iand__", {1}),
        (Some, "__isub__", {1}),
        (Some, "__ixor__", {1, 3}),
    ],
)
def test_methods_that_answer_the_container(cls: Any, name: str, other: Any) -> None:
    check(lambda w, s: getattr(w, name)(other), lambda: cls([1, 2]), tuple)
    check(lambda w, s: getattr(cls.__base__, name)(w, other), lambda: cls([1, 2]), tuple)
