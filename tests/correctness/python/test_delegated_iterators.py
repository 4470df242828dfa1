"""`yield from` iterators of the program's classes and of C: what is sent and raised comes to them, and they are closed
where CPython closes them; iterators of the outside are of their classes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bolide
from bolide.support.errors import BolideWarning
from tests.everyday_tools import described

pytestmark = pytest.mark.filterwarnings(f"error::{BolideWarning.__module__}.{BolideWarning.__name__}")
STEP = 1


def caught(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except BaseException as error:
        return repr(error)


class Plain:
    def __init__(self, log: list[Any], count: int) -> None:
        self.log, self.left = log, count

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration("end")
        self.left -= 1
        return self.left * STEP


class Closing(Plain):
    def close(self) -> None:
        self.log.append("closed")


class Driven(Closing):
    def throw(self, *given: Any) -> Any:
        self.log.append((len(given), isinstance(given[0], type)))
        if not self.left:
            raise StopIteration("thrown")
        return 100

    def send(self, value: Any) -> Any:
        if value == "stop":
            raise StopIteration(value)
        return value


class Failing(Closing):
    def close(self) -> None:
        raise KeyError("close")


def outer(inner: Any, log: list[Any]) -> Iterator[Any]:
    try:
        log.append((yield from inner))
        yield 7
    except ValueError as error:
        log.append(repr(error))
        yield 8


def drained(x: torch.Tensor, make: Any) -> Any:
    log: list[Any] = []
    return x + 1, list(outer(make(log, 3), log)), log


def dropped(x: torch.Tensor, make: Any) -> Any:
    log: list[Any] = []
    for _ in outer(make(log, 3), log):
        break
    return x + 1, log


def driven(x: torch.Tensor, make: Any) -> Any:
    log: list[Any] = []
    first: Any = outer(make(log, 3), log)
    said = [next(first), caught(first.send, 4), caught(first.throw, ValueError), caught(first.throw, ValueError("x"))]
    said += [caught(first.send, "stop"), caught(next, first)]
    second: Any = outer(make(log, 3), log)
    said += [next(second), caught(second.close), caught(next, second)]
    third: Any = outer(make(log, 1), log)
    said += [next(third), caught(third.throw, ValueError), caught(next, third)]
    return x + 1, said, log


def driven_across_breaks(x: torch.Tensor, make: Any) -> Any:
    log: list[Any] = []
    it: Any = outer(make(log, 3), log)
    said = [next(it)]
    for step in (lambda: it.send(4), lambda: it.throw(ValueError), lambda: next(it), lambda: it.close()):
        bolide.graph_break()
        said.append(caught(step))
    return x + 1, said, log


def of_c(log: list[Any], count: int) -> Any:
    return iter([*range(count)])


@pytest.mark.parametrize("make", [Plain, Closing, Driven, of_c])
@pytest.mark.parametrize("program", [drained, dropped, driven, driven_across_breaks])
def test_what_a_generator_delegates_to(program: Callable[..., Any], make: Any) -> None:
    global STEP
    compiled = bolide.compile(program, fullgraph=program is not driven_across_breaks)
    for STEP in (1, 2):
        assert described(compiled(torch.ones(STEP), make)) == described(program(torch.ones(STEP), make))


def test_an_iterator_that_fails_to_close() -> None:
    assert described(bolide.compile(driven)(torch.ones(1), Failing)) == described(driven(torch.ones(1), Failing))


def left(x: torch.Tensor, make: Any) -> Any:
    log: list[Any] = []
    it: Any = outer(make(log, 3), log)
    return x + next(it), it, log


@pytest.mark.parametrize("make", [Plain, Closing, Driven, of_c])
def test_a_generator_that_delegates_leaves_the_function(make: Any) -> None:
    expected = []
    for run in (left, bolide.compile(left)):
        first, it, log = run(torch.ones(1), make)
        expected.append([first.item(), caught(it.send, 4), caught(it.throw, ValueError("x")), caught(it.close), log])
    assert expected[0] == expected[1]


def asked(x: torch.Tensor, it: Any) -> Any:
    names = ("send", "close", "throw", "missing", "__next__", "__length_hint__")
    said = [type(it).__name__, isinstance(it, (zip, enumerate)), [hasattr(it, name) for name in names], iter(it) is it]
    return x + 1, said, caught(lambda: it.missing), caught(it.__next__)


@pytest.mark.parametrize(
    "make", [lambda: iter([1, 2]), lambda: zip([1], [2]), lambda: enumerate("ab"), lambda: iter(())]
)
def test_iterators_of_the_outside_are_of_their_classes(make: Any) -> None:
    compiled, (mine, its) = bolide.compile(asked), (make(), make())
    for _ in range(3):
        assert described(compiled(torch.ones(1), its)) == described(asked(torch.ones(1), mine))


NESTED: dict[str, Callable[[list[int]], Any]] = {
    "mapped first": lambda items: (map(str, [1]), zip(items)),
    "enumerated first": lambda items: (enumerate(items), zip(items)),
    "sliced": lambda items: (map(str, [1]), itertools.islice(items, 5)),
    "repeated": lambda items: itertools.repeat(iter([1, 2, 3, 4, 5]), 2),
    "filled up": lambda items: itertools.chain.from_iterable([[iter([1, 2, 3])], [iter([5])]]),
    "in an iterator": lambda items: iter([iter([1, 2, 3, 4, 5]), zip([1, 2, 3])]),
}


@pytest.mark.parametrize("name", NESTED)
def test_iterators_among_the_items_of_others_go_on(name: str) -> None:
    def program(x: torch.Tensor, items: list[int], held: Any) -> Any:
        items.append(9)
        return x + 1, [list(each) if type(held) is tuple else next(each) for each in itertools.islice(held, 2)]

    compiled = bolide.compile(program)
    mine, its = ([1, 2], [1, 2])
    my_held, its_held = NESTED[name](mine), NESTED[name](its)
    for _ in range(3):
        assert described(caught(compiled, torch.ones(1), its, its_held)) == described(
            caught(program, torch.ones(1), mine, my_held)
        )


@bolide.disable
def consumed(iterator: Iterator[Any]) -> list[Any]:
    return list(iterator)


def test_a_delegation_begins_where_native_code_resumes_a_generator_behind_a_break() -> None:
    def delegating(x: torch.Tensor) -> Iterator[Any]:
        yield x + 1
        yield from Plain([], 2)

    def f(x: torch.Tensor) -> Any:
        generator = delegating(x)
        return next(generator), consumed(generator)

    x = torch.ones(2)
    assert repr(bolide.compile(f)(x)) == repr(f(x))


def test_an_import_in_a_generator_that_native_code_resumes() -> None:
    def program(x: torch.Tensor) -> Any:
        def numbers() -> Any:
            yield 1
            import json
            from os import path as paths

            yield json.dumps([2]) + paths.basename("a/b")

        generator = numbers()
        return x + next(generator), consumed(generator)

    x = torch.randn(3)
    result, expected = bolide.compile(program)(x), program(x)
    assert torch.equal(result[0], expected[0]) and result[1] == expected[1] == ["[2]b"]
