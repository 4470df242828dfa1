"""Places of items that are objects: the program's own code says which integer they are."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide


class Index:
    def __init__(self, value: Any = 1) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value


class Number(int):
    def __index__(self) -> int:  # never asked: it is an int
        return 0

    __int__ = __index__


class Refuses:
    def __index__(self) -> int:
        raise KeyError("no index")


class Items(list[Any]):
    pass


def changed(items: Any, change: Callable[..., Any], *args: Any) -> Any:
    change(items, *args)
    return items


def caught(x: torch.Tensor, k: Any) -> Any:
    try:
        return x[k]
    except IndexError as error:
        return x + 1, str(error)


READS: dict[str, Callable[[Any, Any], Any]] = {
    "an item of a tensor": lambda x, k: x[k],
    "slices of a tensor": lambda x, k: (x[k:], x[:k], x[::k], x[:, k:], x[..., k:k]),
    "places in a tensor": lambda x, k: (x[k, :], x[:, k], x[k, k], x[None, k], x[0:k, k]),
    "tensors beside it": lambda x, k: (x[k, x[0].long() * 0], x[[0, 1], k]),
    "by name": lambda x, k: (torch.Tensor.__getitem__(x, slice(k, None)), operator.getitem(x, slice(k, None))),
    "sequences": lambda x, k: (x, [1, 2, 3][k:], [1, 2, 3][k], (1, 2, 3)[:k], "abc"[k], bytearray(b"abc")[k:]),
    "more sequences": lambda x, k: (x, range(9)[k:], b"abc"[k], Items([1, 2])[k], deque([1, 2])[k]),
    "methods": lambda x, k: (x, [1, 2, 3].__getitem__(k), list.__getitem__([1, 2, 3], slice(k, None))),
    "slice": lambda x, k: (x, slice(k, None).indices(5), slice(3).indices(k)),
    "islice": lambda x, k: (x, list(itertools.islice([1, 2, 3], k)), list(itertools.islice("abcd", 0, None, k))),
    "integers": lambda x, k: (x, operator.index(k), list(range(k)), hex(k), [0] * operator.index(k)),
    "caught": caught,
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "an item of a tensor": lambda x, k: changed(x.clone(), operator.setitem, k, 7),
    "a slice of a tensor": lambda x, k: changed(x.clone(), operator.setitem, slice(k, None), x[0]),
    "a place in a tensor": lambda x, k: changed(x.clone(), operator.setitem, (k, slice(None)), 7),
    "by name": lambda x, k: changed(x.clone(), torch.Tensor.__setitem__, (k, slice(None)), 7),
    "an item of a list": lambda x, k: (x, changed([1, 2, 3], operator.setitem, k, 7)),
    "a slice of a list": lambda x, k: (x, changed([1, 2, 3], operator.setitem, slice(k, None), (7, 8))),
    "an iterator": lambda x, k: (x, changed([1, 2], operator.setitem, slice(k, None), (i for i in range(3)))),
    "items that are deleted": lambda x, k: (x, changed([1, 2], operator.delitem, k), changed([1], list.__delitem__, 0)),
    "a slice that is deleted": lambda x, k: (x, changed([1, 2, 3], operator.delitem, slice(k, None))),
    "bytes": lambda x, k: (x, changed(bytearray(b"abc"), operator.setitem, k, 65)),
    "of a class": lambda x, k: (x, changed(Items([1, 2, 3]), operator.setitem, k, 7)),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "Index": Index,
    "Number": Number,
    "no integer": lambda n: Index("a"),
    "Refuses": lambda n: Refuses(),
}


def outcome(fn: Any, *args: Any) -> Any:
    try:
        return str(fn(*args))
    except Exception as error:
        return type(error).__name__, str(error)


def compare(program: Any, make: Callable[[int], Any]) -> None:
    compiled = bolide.compile(program)
    x = torch.arange(12.0).reshape(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 1, 2, 1):
            assert outcome(compiled, x, make(n)) == outcome(program, x, make(n)), n


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", READS)
def test_objects_that_are_indices(name: str, made: str) -> None:
    compare(READS[name], MADE[made])


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", WRITES)
def test_writes_at_objects_that_are_indices(name: str, made: str) -> None:
    compare(WRITES[name], MADE[made])


@pytest.mark.parametrize("name", READS)
def test_indices_made_inside_of_sizes(name: str) -> None:
    program = READS[name]
    compiled = bolide.compile(lambda x: program(x, Index(x.shape[0] - 2)))
    for n in (3, 4, 3):
        x = torch.arange(4.0 * n).reshape(n, 4)
        assert outcome(compiled, x) == outcome(program, x, Index(n - 2)), n


@pytest.mark.parametrize("convert", [int, float, complex, operator.index, bin, round])
def test_numbers_ask_the_first_method_that_a_class_has(convert: Any) -> None:
    def program(x: torch.Tensor, number: Any) -> Any:
        return x + 1, convert(number)

    class Float(float):
        def __index__(self) -> int:
            return 3

    compiled = bolide.compile(program)
    for made in (Number(5), Float(2.5), Index(4), Number(6)):
        assert outcome(compiled, torch.ones(2), made) == outcome(program, torch.ones(2), made), made
