"""Iterators that begin anew whenever they are asked for an iterator, as classes of users often do
(``def __iter__(self): self.at = 0; return self``): how often they are asked, and when, is as in CPython, with breaks
and without."""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
import operator
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bolide

_asked: list[str] = []


class Anew:
    def __init__(self, *values: Any) -> None:
        self.values, self.at = values, 0

    def __iter__(self) -> Iterator[Any]:
        _asked.append("i")
        self.at = 0
        return self

    def __next__(self) -> Any:
        _asked.append("n")
        if self.at >= len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]


class Breaking(Anew):
    def __next__(self) -> Any:
        bolide.graph_break()
        return super().__next__()


def some() -> Anew:
    return Anew(3, 1, 2, 2)


def more() -> Anew:
    return Anew(5, 6, 7, 8, 9)


def _told(call: Callable[[], object]) -> object:
    try:
        return call()
    except (TypeError, ValueError) as error:
        return str(error), type(error.__context__)


def _strict(one: Callable[[], Anew], other: Callable[[], Anew]) -> object:
    return list(zip(one(), other(), strict=True))


def _starred() -> object:
    first, *rest = some()
    return first, rest


def _between() -> object:
    first, *rest, last = Anew(1)
    return first, rest, last


def _delegated() -> object:
    def inner() -> Any:
        yield from some()

    return list(inner())


def _sliced(step: int | None, *values: int) -> object:
    items = [0, 1, 2, 3]
    items[0:4:step] = Anew(*values)  # type: ignore[call-overload]
    return items


def _teed() -> object:
    one, other = itertools.tee(some())
    return list(itertools.islice(one, 2)), list(other), list(one)


def _kept(cls: type, keep: Callable[..., Any], value: object) -> object:
    kept = cls()
    made = keep(kept, value)
    return [item is value for item in (made if isinstance(made, dict) else kept).values()]


MODULES = torch.nn.Sequential(torch.nn.ReLU())  # which is an iterable
DICTS = (dict, collections.OrderedDict)
KEEPING: tuple[Callable[..., Any], ...] = (
    lambda kept, value: type(kept)(a=value),
    lambda kept, value: type(kept)({"b": value}, a=value),
    lambda kept, value: type(kept)([("b", value)], a=value),
    lambda kept, value: type(kept)((pair for pair in [("b", value)]), a=value),
    lambda kept, value: collections.defaultdict(list, {"b": value}, a=value),
    lambda kept, value: kept.update(a=value),
    lambda kept, value: kept.update({"b": 1}, a=value),
    lambda kept, value: kept.update([("b", value)], a=value),
    lambda kept, value: kept.__init__(a=value),
    lambda kept, value: kept.setdefault("a", value),
    lambda kept, value: type(kept).update(kept, {"a": value}, b={"c": value}),
)
FINDING = (operator.countOf, operator.indexOf, list.count, list.index, operator.contains)
USES: dict[str, Callable[[], object]] = {
    "zip": lambda: list(zip(more(), some(), more())),
    "zip_strict": lambda: [
        _told(functools.partial(_strict, *two)) for two in itertools.product((some, more), repeat=2)
    ],
    "map": lambda: list(map(operator.add, some(), more())),
    "filter": lambda: list(filter(lambda v: v > 1, some())),
    "enumerate": lambda: list(enumerate(some(), 2)),
    "reduce": lambda: functools.reduce(operator.sub, some()),
    "reduce_from": lambda: functools.reduce(operator.sub, some(), 10),
    "reduce_nothing": lambda: _told(lambda: functools.reduce(operator.sub, Anew())),
    "least": lambda: (min(some()), max(some(), key=lambda v: -v), min(Anew(), default=4)),
    "sums": lambda: (sum(some()), any(some()), all(some()), math.prod(some()), math.fsum(some())),
    "containers": lambda: (list(some()), tuple(some()), set(some()), dict(zip(some(), more())), dict.fromkeys(some())),
    "counted": lambda: (collections.Counter(some()), collections.deque(some(), maxlen=2), sorted(some())),
    "accumulate": lambda: list(itertools.accumulate(some())),
    "accumulate_from": lambda: list(itertools.accumulate(some(), operator.mul, initial=2)),
    "pairwise": lambda: list(itertools.pairwise(some())),
    "chain": lambda: list(itertools.chain(some(), more())),
    "chain_of": lambda: list(itertools.chain.from_iterable(Anew(some(), more()))),
    "islice": lambda: list(itertools.islice(more(), 1, 4, 2)),
    "takewhile": lambda: list(itertools.takewhile(lambda v: v != 2, some())),
    "dropwhile": lambda: list(itertools.dropwhile(lambda v: v > 2, some())),
    "filterfalse": lambda: list(itertools.filterfalse(lambda v: v > 2, some())),
    "starmap": lambda: list(itertools.starmap(operator.add, Anew((1, 2), (3, 4)))),
    "groupby": lambda: [(key, list(group)) for key, group in itertools.groupby(some())],
    "zip_longest": lambda: list(itertools.zip_longest(some(), more(), fillvalue=0)),
    "product": lambda: list(itertools.product(some(), Anew(1, 2))),
    "combinations": lambda: list(itertools.combinations(some(), 2)),
    "cycle": lambda: list(itertools.islice(itertools.cycle(some()), 9)),
    "compress": lambda: list(itertools.compress(some(), Anew(1, 0, 1, 1))),
    "tee": _teed,
    "merge": lambda: list(heapq.merge(Anew(1, 4), Anew(2, 3))),
    "in": lambda: (2 in some(), 7 in some(), operator.countOf(some(), 2), operator.indexOf(some(), 2)),
    "as_item": lambda: [find([1, item, 2, item], item) for find in FINDING for item in (some(), more())],
    "as_value": lambda: [_kept(cls, by, value) for cls in DICTS for by in KEEPING for value in (some(), MODULES)],
    "not_there": lambda: [_told(functools.partial(operator.indexOf, [1, some()], other)) for other in (2, more())],
    "star": _starred,
    "between": lambda: _told(_between),
    "call": lambda: (lambda *args: args)(*some()),
    "display": lambda: [0, *some(), *more()],
    "delegated": _delegated,
    "slice": lambda: _sliced(None, 5),
    "steps": lambda: _sliced(2, 7, 8),
    "of_tensors": lambda: sum(map(torch.ones(2).mul, some())).tolist(),  # type: ignore[union-attr]
}
if sys.version_info >= (3, 12):
    USES["batched"] = lambda: list(itertools.batched(more(), 2))

LAZY: dict[str, Callable[[type], Iterator[Any]]] = {
    "zip": lambda cls: zip(cls(3, 1, 2, 2), cls(5, 6, 7, 8, 9)),
    "map": lambda cls: map(operator.add, cls(3, 1, 2, 2), cls(5, 6, 7, 8, 9)),
    "filter": lambda cls: filter(lambda v: v > 1, cls(3, 1, 2, 2)),
    "enumerate": lambda cls: enumerate(cls(3, 1, 2, 2), 2),
    "accumulate": lambda cls: itertools.accumulate(cls(3, 1, 2, 2)),
    "chain": lambda cls: itertools.chain(cls(3, 1, 2), cls(2, 5)),
    "islice": lambda cls: itertools.islice(cls(5, 6, 7, 8, 9), 1, 4, 2),
    "takewhile": lambda cls: itertools.takewhile(lambda v: v < 8, cls(5, 6, 7, 8, 9)),
    "dropwhile": lambda cls: itertools.dropwhile(lambda v: v > 2, cls(3, 1, 2, 2)),
    "filterfalse": lambda cls: itertools.filterfalse(lambda v: v > 2, cls(3, 1, 2, 2)),
    "zip_longest": lambda cls: itertools.zip_longest(cls(3, 1, 2, 2), cls(5, 6, 7, 8, 9)),
    "compress": lambda cls: itertools.compress(cls(5, 6, 7, 8, 9), cls(3, 1, 2, 2)),
    "cycle": lambda cls: itertools.islice(itertools.cycle(cls(3, 1, 2, 2)), 9),
    "itself": lambda cls: iter(cls(3, 1, 2, 2)),
}


def _seen(fn: Callable[..., Any], *args: object) -> tuple[object, str]:
    """What a program answers, and what its iterators were asked for."""
    _asked.clear()
    answer = fn(*args)
    if len(answer) == 3:
        answer = answer[0], answer[1], list(itertools.islice(answer[2], 12))
    return (answer[0].tolist(), *answer[1:]), "".join(_asked)


@pytest.mark.parametrize("name", USES)
def test_iterators_are_asked_as_in_c(name: str) -> None:
    use = USES[name]

    def fn(x: torch.Tensor) -> Any:
        return x + 1, use()

    x = torch.randn(2)
    assert _seen(bolide.compile(fn), x) == _seen(fn, x)


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("cls", [Anew, Breaking])
def test_iterators_live_across_breaks(name: str, cls: type) -> None:
    """They go on after a break, in a loop or out of one, and in what leaves the program."""

    def fn(x: torch.Tensor, before: int, leaves: bool) -> Any:
        items, iterator = [], LAZY[name](cls)
        for item in iterator:
            items.append(item)
            x = x * 2
            if len(items) == before:
                bolide.graph_break()
            if len(items) > before:
                break
        return (x, items, iterator) if leaves else (x, items + list(itertools.islice(iterator, 12)))

    compiled = bolide.compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            given = torch.randn(2), random.randint(1, 2), random.random() < 0.5
            assert _seen(compiled, *given) == _seen(fn, *given)
