"""Results whose histories have nothing in common: each may be derived in a backward pass of its own, as in eager,
though they are results of one node of autograd's graph, which releases what it has saved after the first pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

_PREFIX = "_raw_saved_"


def histories(ends: Sequence[Node | None]) -> tuple[int, ...]:
    """For the results that go back to these nodes, which history each is of: those of one have nodes in common that
    save values, so that eager derives them in one pass. -1: of one that saves nothing. () if no more than one does."""
    if sum(end is not None for end in ends) < 2:
        return ()
    homes: dict[Node, Node] = {}  # a forest, in which the nodes of a history are a tree; of those that lead to values
    seen: set[Node] = set()
    waiting = [(end, False) for end in ends if end is not None]
    while waiting:
        node, done = waiting.pop()
        behind = [following for following, _ in node.next_functions if following is not None]
        if done:
            saving = [following for following in behind if following in homes]
            if saving or _saves(node):
                homes[node] = node
                for following in saving:
                    homes[_home(homes, following)] = node
        elif node not in seen:
            seen.add(node)
            waiting += [(node, True), *[(following, False) for following in behind if following not in seen]]
    numbers: dict[Node, int] = {}
    found = []
    for end in ends:
        home = _home(homes, end) if end is not None and end in homes else None
        found.append(-1 if home is None else numbers.setdefault(home, len(numbers)))
    return tuple(found) if len(numbers) > 1 else ()


def _home(homes: dict[Node, Node], node: Node) -> Node:
    while homes[node] is not node:
        node = homes[node]
    return node


def _saves(node: Node) -> bool:
    """Whether a node has saved tensors."""
    if isinstance(node, BackwardCFunction):
        return True
    try:
        return any(getattr(node, name) not in (None, ()) for name in _saved(type(node)))
    except RuntimeError:  # one was written to since
        return True


@functools.cache
def _saved(cls: type) -> tuple[str, ...]:
    """The names of what nodes of a class save."""
    return tuple([f"_saved_{name.removeprefix(_PREFIX)}" for name in dir(cls) if name.startswith(_PREFIX)])


@dataclass(frozen=True, slots=True)
class Rest:
    """What was saved, for the histories that have not been derived; `versions`: of the tensors; `derived`: those that
    have been."""

    values: Sequence[object]
    versions: Sequence[int | None]
    derived: frozenset[int]

    @classmethod
    def after(cls, derived: frozenset[int], values: Sequence[object], before: Rest | None) -> Rest:
        """What is left after a pass; `before`: what was left after those before it."""
        return cls(values, versions_of(values) if before is None else before.versions, derived)

    def taken(self, needed: Callable[[], Sequence[int]]) -> list[object]:
        """The values, of which those at the places `needed` are read. Raises RuntimeError where one of those was
        written to since, as autograd does."""
        now = versions_of(self.values)
        if now != self.versions:
            for place in needed():
                value = self.values[place]
                if isinstance(value, torch.Tensor) and now[place] != self.versions[place]:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an inplace "
                        f"operation: a tensor of shape {list(value.shape)} is at version {now[place]}; expected "
                        f"version {self.versions[place]} instead."
                    )
        return [*self.values]


def versions_of(values: Sequence[object]) -> list[int | None]:
    """How often tensors were written to; None for what does not count it."""
    return [
        value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None for value in values
    ]
