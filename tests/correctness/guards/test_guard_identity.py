"""Whether two values are one object: guarded wherever a program can tell, both ways round."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide
from bolide.dynamo.config import config


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


def test_pairs_that_share_tensors_otherwise_in_each_call() -> None:
    def program(batch: Any) -> Any:
        states, following = (torch.stack(parts) for parts in zip(*batch))
        return (states - 2 * following).sum(0)

    compiled: Any = bolide.compile(program)
    steps = [torch.randn(3) for _ in range(9)]
    pairs = list(itertools.pairwise(steps))
    for places in ((0, 1, 5), (4, 2, 3), (6, 7, 6), (0, 3, 1), (2, 1, 0), (5, 5, 5), (0, 2, 4)):
        batch = [pairs[place] for place in places]
        torch.testing.assert_close(compiled(batch), program(batch))
    assert len(compiled._bolide.entries) == 2


TOLD: dict[str, Callable[[Any, Any, Any], Any]] = {
    "identity": lambda a, b, c: (a is b, b is c),
    "write": lambda a, b, c: (a.mul_(2), b + c),
    "write to what was read": lambda a, b, c: (b + c, a.mul_(2), b * 2),
    "set": lambda a, b, c: len({a, b, c}),
}


@pytest.mark.parametrize("name", TOLD)
def test_tensors_that_are_one_where_that_counts(name: str) -> None:
    program = TOLD[name]
    compiled = bolide.compile(program)
    for places in ((0, 0, 1), (0, 1, 1), (0, 1, 2), (1, 0, 1), (2, 2, 2), (0, 1, 1)):
        a, b = [torch.randn(3) for _ in range(3)], []
        b = [x.clone() for x in a]
        want, got = program(*[a[place] for place in places]), compiled(*[b[place] for place in places])
        torch.testing.assert_close((got, b), (want, a))


def squared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad((a * b).sum(), a)[0]


DERIVED: dict[str, Callable[[Any, Any], Any]] = {
    "grad": squared,
    "by the second": lambda a, b: squared(b, a),
    "twice": lambda a, b: (squared(a, b), squared(b, a)),
    "backward": lambda a, b: ((a * b).sum().backward(), a.grad)[1],
    "made to require grad": lambda a, b: squared(a.requires_grad_(), b),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_derivative_by_an_argument_that_is_another_one_too(name: str) -> None:
    program = DERIVED[name]
    compiled = bolide.compile(program)
    for same in (False, True, False, True):
        numbers = [torch.randn(3), torch.randn(3)]
        made = [[x.clone().requires_grad_(not name.startswith("made")) for x in numbers] for _ in range(2)]
        want, got = (f(pair[0], pair[0 if same else 1]) for f, pair in zip((program, compiled), made))
        torch.testing.assert_close(got, want)


class Incomparable:
    """What raises where it is compared, as a NumPy array does where the result is asked for."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("the program compares nothing")

    __hash__ = object.__hash__


class Holder:
    value: Any = None


ROLES: dict[str, Callable[[Any, Tensor], Any]] = {
    "key": lambda value, x: [each * 2 for each in {value: x}.values()],
    "attribute": lambda value, x: x + (Holder.value is value),
    "missing": lambda value, x: x + (value not in {1: x}),
    "argument": lambda value, x: (value is None, x * 2),
}


@pytest.mark.filterwarnings("ignore:.*cache_size_limit:bolide.support.errors.BolideWarning")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", [*KINDS.values(), Incomparable], ids=[*KINDS, "incomparable"])
def test_values_that_cannot_be_compared_at_the_limit_of_versions(kind: Callable[[], Any], role: str) -> None:
    x, use = torch.randn(2), ROLES[role]

    def in_a_table(table: dict[Any, Tensor]) -> Any:
        return [use(value, y) for value, y in table.items()]

    def given(value: Any, x: Tensor) -> Any:
        return use(value, x)

    for program, calls in ((in_a_table, lambda v: ({v: x},)), (given, lambda v: (v, x))):
        compiled = bolide.compile(program)
        with config.patch(cache_size_limit=2):
            for value in [kind() for _ in range(5)]:
                Holder.value = value
                assert str(compiled(*calls(value))) == str(program(*calls(value)))
