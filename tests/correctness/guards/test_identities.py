"""`id()` of what a compiled function makes is the `id` of what it gives, keeps, or goes on with behind a break."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide


class Node:
    def __init__(self, value: Any) -> None:
        self.value, self.number = value, id(self)


MAKERS: dict[str, Callable[[Tensor], Any]] = {
    "an instance": Node,
    "a list": lambda x: [x],
    "a dict": lambda x: {"x": x},
    "a tuple": lambda x: (x, 1),
    "a function": lambda x: lambda: x,
    "a tensor": lambda x: x + 0,
    "a parameter": lambda x: torch.nn.Parameter(x.detach() * 1),
    "a module": lambda x: torch.nn.Linear(2, 2),
    "a method's owner": lambda x: Node(x).__init__,
}


@pytest.fixture(params=list(MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[[Tensor], Any]:
    return MAKERS[request.param]


def calls() -> list[Tensor]:
    return [torch.randn(size, 2, requires_grad=True) for size in (2, 2, 3, 5)]


def test_numbers_that_are_returned_and_kept(make: Callable[[Tensor], Any]) -> None:
    def program(x: Tensor, kept: dict[int, Any], table: list[Any]) -> Any:
        made = make(x * 2)
        kept[id(made)] = made
        table.append((id(made), type(id(made)) is int, isinstance(id(made), int)))
        return made, id(made), {id(made): x}, {id(made), 3}, (x * 3).sum()

    compiled = bolide.compile(program)
    for x in calls():
        kept: dict[int, Any] = {}
        table: list[Any] = []
        made, number, keys, members, y = compiled(x, kept, table)
        assert number == id(made) and type(number) is int
        assert set(keys) == {number} and members == {number, 3}
        assert list(kept) == [number] and kept[number] is made and type(next(iter(kept))) is int
        assert table == [(number, True, True)]
        torch.testing.assert_close(torch.autograd.grad(y, x)[0], torch.full_like(x, 3))


def test_numbers_that_are_used_behind_a_break(make: Callable[[Tensor], Any]) -> None:
    def program(x: Tensor) -> Any:
        made, other = make(x * 2), make(x)
        seen, number = {id(made): 1}, id(other)
        bolide.dynamo.graph_break()
        if id(other) in seen or number != id(other):
            return x * 0
        return x * 2 + seen[id(made)]

    compiled = bolide.compile(program)
    for x in calls():
        y, expected = compiled(x), program(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2))


def test_objects_that_hold_their_own_numbers() -> None:
    def program(x: Tensor) -> Any:
        node = Node(x * 2)
        chain = [node, Node(node)]
        bolide.dynamo.graph_break()
        return chain, [each.number == id(each) for each in chain], {each.number: each for each in chain}

    compiled = bolide.compile(program)
    for x in calls():
        chain, same, table = compiled(x)
        assert same == [True, True]
        assert all(each.number == id(each) and table[id(each)] is each for each in chain)


def test_numbers_keep_nothing_alive() -> None:
    def program(x: Tensor) -> Any:
        node = Node(x * 2)
        number, alive = id(node), weakref.ref(node)
        y = node.value
        del node
        return y, alive() is None, type(number)

    compiled = bolide.compile(program)
    for x in calls():
        y, gone, kind = compiled(x)
        assert (gone, kind) == (True, int)
        torch.testing.assert_close(y, x * 2)
    gc.collect()


def test_a_walk_that_remembers_what_it_has_seen_is_captured_whole() -> None:
    def program(x: Tensor) -> Tensor:
        nodes = [Node(x), Node(x * 2)]
        waiting, seen, total = [*nodes, nodes[0]], set(), x * 0
        for node in waiting:
            if id(node) not in seen:
                seen.add(id(node))
                total = total + node.value
        return total

    compiled = bolide.compile(program, fullgraph=True)
    for x in calls():
        torch.testing.assert_close(compiled(x), x * 3)
