"""Whether two values are one object: guarded wherever a program can tell, both ways round."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide


class Thing:
    def method(self) -> None: ...


def made() -> Callable[[Any], Any]:
    return lambda value: value


FIRST, SECOND = made(), made()
KNOWN = {FIRST}

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda a, b: len({a, b}),
    "frozenset": lambda a, b: len(frozenset([a, b])),
    "comprehension": lambda a, b: len({(each, 0) for each in (a, b)}),
    "dict": lambda a, b: len({a: 1, b: 2}),
    "get": lambda a, b: {a: 5}.get(b, 0),
    "subset": lambda a, b: {a} <= {b},
    "intersection": lambda a, b: len({a} & {b}),
    "in a set": lambda a, b: a in {b},
    "in a dict": lambda a, b: a in {b: 1},
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
    "id": lambda a, b: id(a) == id(b),
    "fromkeys": lambda a, b: len(dict.fromkeys([a, b])),
}
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda a, b: a == b,
    "unequal": lambda a, b: a != b,
    "lists": lambda a, b: [a] == [b],
    "tuples": lambda a, b: (a, 1) == (b, 1),
    "dicts": lambda a, b: {1: a} == {1: b},
    "count": lambda a, b: [a, b].count(a),
    "index": lambda a, b: [a, b].index(b),
    "in a list": lambda a, b: a in [b],
    "in a tuple": lambda a, b: a in (1, b),
}
KINDS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: torch.randn(2),
    "parameters": lambda: nn.Parameter(torch.randn(2)),
    "modules": lambda: nn.Linear(2, 2),
    "objects": Thing,
    "functions": made,
}


def agrees(program: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    compiled = bolide.compile(program)
    assert [compiled(*call) for call in calls] == [program(*call) for call in calls]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*PROGRAMS, *COMPARED])
def test_two_arguments_that_become_one_and_back(name: str, kind: str) -> None:
    if name in COMPARED and kind in ("tensors", "parameters"):
        return  # compared by their data
    program = {**PROGRAMS, **COMPARED}[name]
    a, b = KINDS[kind](), KINDS[kind]()
    agrees(program, (a, b), (a, a), (b, a))
    agrees(lambda a, b: program(a, b), (b, b), (a, b), (b, a))


@pytest.mark.parametrize("kind", [list, dict, set, bytearray])
def test_containers_that_become_one(kind: type) -> None:
    agrees(lambda a, b: a is b, *[(a, b) for a in [kind()] for b in (kind(), a)])


def test_bound_methods_of_two_objects() -> None:
    a, b = Thing(), Thing()
    agrees(lambda a, b: a.method == b.method, (a, b), (a, a), (b, a))


def test_global_sets_and_functions_of_one_code() -> None:
    def program(value: Any) -> Any:
        return value is FIRST, value == FIRST, value in KNOWN, {FIRST: 1, SECOND: 2}[value]

    agrees(program, (FIRST,), (SECOND,), (FIRST,))
    agrees(lambda value: program(value), (SECOND,), (FIRST,), (SECOND,))


def test_a_deep_copy_keeps_what_is_shared() -> None:
    def program(lists: Any) -> Any:
        copied = copy.deepcopy(lists)
        copied[0].append(1)
        return len(copied[1])

    shared: list[int] = []
    agrees(program, ([[], []],), ([shared, shared],), ([[], []],))


def test_weights_that_are_tied_after_the_first_call() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def program() -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    compiled = bolide.compile(program)
    assert compiled() == 12
    model[1].weight = model[0].weight
    assert compiled() == program() == 8
