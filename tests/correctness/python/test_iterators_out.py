"""Iterators that leave a compiled function are what Python gives: of the same class, as lazy, and as far as they were
drawn from."""

# ruff: noqa: C417

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide


class Index:
    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Items:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return [5, 6, 7][index]


def three(x: Any) -> Any:
    for i in range(3):
        yield x + i


def drawn(iterator: Any, count: int = 1) -> Any:
    for _ in range(count):
        next(iterator)
    return iterator


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: map(lambda v: v * 2, [x, x + 1]),
    "map, drawn": lambda x: drawn(map(lambda a, b: a + b, [x, x + 1, x + 2], (1, 2))),
    "map, at its end": lambda x: drawn(map(lambda v: v * 2, [x])),
    "map of three": lambda x: list(map(lambda a, b, c: a + b * c, [x, x], [1, 2, 3], three(x))),
    "map of functions in C": lambda x: (map(str, [1, 2]), map(abs, [-1]), map(operator.add, [x], [2])),
    "filter": lambda x: drawn(filter(lambda v: v is not None, [None, x, None, x + 1])),
    "filter without a function": lambda x: (filter(None, [0, 1, ""]), filter(None, [x.shape[0], 0])),
    "zip": lambda x: drawn(zip([x, x + 1], three(x))),
    "zip, strict": lambda x: (zip([1, 2], [x, x], strict=True), zip(three(x), three(x), strict=True)),
    "zip, strict, unequal": lambda x: _raised(lambda: list(zip([x], [1, 2], strict=True))),
    "zip, strict, unequal generators": lambda x: _raised(lambda: list(zip([x] * 3, three(x), [1], strict=True))),
    "enumerate": lambda x: drawn(enumerate(three(x), 5)),
    "enumerate from an index": lambda x: (enumerate([x], start=Index(3)), list(enumerate([x], Index(2)))),
    "reversed": lambda x: (drawn(reversed([x, x + 1])), reversed(range(4)), reversed((1, 2))),
    "reversed items": lambda x: (drawn(reversed(Items())), type(reversed(Items())).__name__),
    "chain": lambda x: (drawn(itertools.chain([x], three(x)), 2), itertools.chain.from_iterable([three(x), [x]])),
    "cycle": lambda x: (itertools.islice(drawn(itertools.cycle(three(x)), 4), 5), drawn(itertools.cycle([x, 1]))),
    "islice": lambda x: (drawn(itertools.islice(three(x), 1, None)), drawn(itertools.islice(three(x), 0, 3, 2))),
    "accumulate": lambda x: drawn(itertools.accumulate([x, x, x], lambda p, q: p * q)),
    "accumulate from": lambda x: (
        itertools.accumulate([x, x], lambda p, q: p + q, initial=x),
        drawn(itertools.accumulate(three(x))),
        itertools.accumulate([x, x]),
    ),
    "takewhile": lambda x: (drawn(itertools.takewhile(lambda v: v < 3, [1, 2, 3])), x),
    "dropwhile": lambda x: (
        itertools.dropwhile(lambda v: v < 2, [1, 2, 3, 1]),
        drawn(itertools.dropwhile(lambda v: v < 2, [1, 2, 3, 1])),
    ),
    "filterfalse": lambda x: (itertools.filterfalse(lambda v: v, [0, 1, 0]), x),
    "starmap": lambda x: (itertools.starmap(lambda a, b: a * b, [(x, 2), (x, 3)]), itertools.starmap(pow, [(2, 3)])),
    "compress": lambda x: (drawn(itertools.compress([x, 1, x], [1, 0, 1])), itertools.compress(three(x), [1, 1])),
    "count": lambda x: (itertools.islice(drawn(itertools.count(x.shape[0], 2)), 3), itertools.repeat(x, 2)),
    "zip_longest": lambda x: drawn(itertools.zip_longest(three(x), [1], fillvalue=x), 2),
    "views and iterators of a dict": lambda x: (drawn(iter({"a": x, "b": 1}.items())), reversed({"a": x})),
    "classes": lambda x: [
        type(each).__name__ for each in (map(lambda v: v, [x]), zip(three(x)), enumerate(three(x)), three(x))
    ],
    "instances": lambda x: [
        (isinstance(each, map), isinstance(each, zip), hasattr(each, "send"), hasattr(each, "__next__"))
        for each in (map(lambda v: v, [x]), zip(three(x)), three(x))
    ],
    "refused at once": lambda x: [
        _raised(lambda: map(lambda v: v, 3)),
        _raised(lambda: zip([x], 3)),
        _raised(lambda: enumerate(3)),
        _raised(lambda: filter(None, 3)),
        _raised(lambda: itertools.starmap(pow, 3)),
        _raised(lambda: map(lambda v: v)),
    ],
    "indices": lambda x: [
        range(10)[Index(2)],
        range(10)[torch.tensor(3)],
        list(range(Index(1), Index(5), Index(2))),
        range(10)[Index(1) : Index(5)],
        [1, 2, 3][Index(1)],
        (x, x + 1)[torch.tensor(1)],
        list(range(torch.tensor(3))),
        x[Index(0)],
    ],
    "lazy": lambda x: _lazy(x),
    "drawn before a break": lambda x: [drawn(map(lambda v: v * 2, [x, x + 1, x])), _broken(x) + 1],
    "in a loop that breaks": lambda x: [
        _broken(v + i) for i, v in enumerate(map(lambda v: v * 2, itertools.chain([x], three(x))))
    ],
}


def _raised(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error)


def _lazy(x: Any) -> Any:
    seen: list[int] = []
    iterator = map(lambda v: seen.append(1) or v, [x, x])
    before = len(seen)
    next(iterator)
    return before, len(seen), iterator, seen


def _broken(value: Any) -> Any:
    bolide.graph_break()
    return value


def plain(value: Any) -> Any:
    """A value with what its iterators still give, and their classes."""
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item) for item in value]
    if hasattr(value, "__next__"):
        return type(value), [plain(item) for item in itertools.islice(value, 8)]
    return value


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_iterators_leave_as_what_they_are(name: str, grad: bool) -> None:
    program = PROGRAMS[name]

    def outcome(function: Callable[[Any], Any], size: int) -> Any:
        x = (torch.arange(size) / 4).requires_grad_(grad)
        result = function(x)
        return plain(result), x

    compiled = bolide.compile(program)
    for size in (3, 5, 3, 7):
        expected, _ = outcome(program, size)
        assert outcome(compiled, size)[0] == expected


def test_gradients_go_through_a_map_that_leaves() -> None:
    program = PROGRAMS["map, drawn"]
    for compiled in (program, bolide.compile(program)):
        for size in (3, 4):
            x = torch.randn(size, requires_grad=True)
            (rest,) = compiled(x)
            rest.sum().backward()
            assert torch.equal(x.grad, torch.ones(size))


ASSERTS = """
def program(x):
    assert x.sum() > 0
    assert x.shape[0] < 5
    return x * 2
"""


def test_a_bare_assertion_raises_its_error() -> None:
    namespace: dict[str, Any] = {}
    exec(ASSERTS, namespace)  # not as pytest rewrites it
    program = namespace["program"]
    compiled = bolide.compile(program)
    for x, fails in ((torch.ones(3), False), (-torch.ones(3), True), (torch.ones(6), True), (torch.ones(4), False)):
        if not fails:
            assert torch.equal(compiled(x), x * 2)
            continue
        with pytest.raises(AssertionError) as raised:
            compiled(x)
        assert raised.value.args == ()


BESIDE = """next_of(iter({1, 2, n})); reversed([n, 3]); iter([n, 3]); enumerate([n, 2]); zip([n], [3])
itertools.chain([n], [2]); itertools.islice([n, 1, 2], 1, None); itertools.product([n, 1], [2]); map(str, [n])
partial([1, n]); {1: [n]}; [n, [n]]; (n, [n]); {n, 2}; frozenset([n, 2]); collections.deque([n, [n]])
collections.Counter([n, n]); collections.OrderedDict(a=[n]); ValueError([n], 3)
collections.defaultdict(list, {1: [n]}); zip([n, 2], [3, 4]); itertools.zip_longest([n], [2, 3])
filter(None, [0, n]); itertools.starmap(max, [(n, 2)]); itertools.compress([n, 2], [1, 0])
itertools.takewhile(bool, [n, 0]); itertools.chain.from_iterable([[n], [2]])"""


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("what", [part.strip() for line in BESIDE.splitlines() for part in line.split(";")])
def test_values_beside_one_that_contains_itself(what: str, breaks: bool) -> None:
    """Containers are made empty and filled later then: what looks into one must not be made of it before."""

    def next_of(iterator: Any) -> Any:
        next(iterator)
        return iterator

    def partial(tag: Any) -> Any:
        made: Any = functools.partial(max, 3)
        made.tag = tag
        return made

    names: dict[str, Any] = {"collections": collections, "itertools": itertools, "next_of": next_of, "partial": partial}
    lines = [
        "def program(x, n):",
        "def again(p): return again(p)",
        f"value = {what}",
        "print(end='')" if breaks else "",
    ]
    exec("\n    ".join([*lines, "return x + n, again, value"]), names)
    compiled = bolide.compile(names["program"])
    for number in (5, 6, 7):
        x = torch.randn(number)
        mine, theirs = compiled(x, number), names["program"](x, number)
        torch.testing.assert_close(mine[0], theirs[0])
        assert type(mine[2]) is type(theirs[2])
        assert _laid_open(mine[2]) == _laid_open(theirs[2])


def _laid_open(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return value.args, value.tag  # type: ignore[attr-defined]
    if isinstance(value, BaseException):
        return value.args
    return value if hasattr(value, "__len__") else list(value)


OUTSIDE: dict[str, Callable[[], Any]] = {
    "list": lambda: iter([1, 2, 3]),
    "empty": lambda: iter([]),
    "tuple": lambda: iter((1, 2)),
    "range": lambda: iter(range(4)),
    "dict": lambda: iter({1: 2, 3: 4}),
    "set": lambda: iter({1, 2}),
    "zip": lambda: zip([1], [2]),
    "reversed": lambda: reversed([1, 2]),
    "enumerate": lambda: enumerate([1, 2]),
}
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "hint": lambda it: operator.length_hint(it),
    "hint with default": lambda it: operator.length_hint(it, 9),
    "hint after a step": lambda it: (next(it, None), operator.length_hint(it)),
    "hint at the end": lambda it: (list(it), operator.length_hint(it, 3)),
    "hint behind a break": lambda it: (next(it, None), bolide.graph_break(), operator.length_hint(it)),
    "class": lambda it: (type(it).__name__, isinstance(it, types.GeneratorType), isinstance(it, type(it))),
    "attributes": lambda it: (hasattr(it, "send"), hasattr(it, "__length_hint__"), iter(it) is it),
    "copy": lambda it: (list(copy.copy(it)), list(it)),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_to_iterators_from_outside(question: str) -> None:
    ask = QUESTIONS[question]
    for make in OUTSIDE.values():
        compiled = bolide.compile(lambda x, it: (x + 1, ask(it)))
        for _ in range(2):
            assert compiled(torch.ones(2), make())[1] == ask(make())


def test_the_length_of_an_iterator_is_guarded() -> None:
    compiled = bolide.compile(lambda x, it: (x + 1, operator.length_hint(it)), fullgraph=True)
    for count in (2, 3, 2, 0):
        assert compiled(torch.ones(2), iter([1] * count))[1] == count
