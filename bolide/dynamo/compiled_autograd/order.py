"""The order in which the engine would run the nodes of a backward pass. The hook of the engine hands nodes over in
another one, in which gradients would be accumulated, and hooks be called, late.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch.fx as fx
from torch.autograd.graph import Node as GradNode

from bolide.tracing.tensor import nodes_behind


class Ready:
    """A node that may run, in the engine's queue, which is a heap: the newest node is the first."""

    def __init__(self, node: GradNode) -> None:
        self.node = node
        self.age = -node._sequence_nr()

    def __lt__(self, other: Ready) -> bool:
        return self.age < other.age


def visits(
    roots: Sequence[GradNode],
    following: Mapping[GradNode, Sequence[GradNode]],
    put: Callable[[GradNode], None],
    take: Callable[[], GradNode | None],
) -> Iterator[GradNode]:
    """The nodes, in the order in which they are taken from where they are put as soon as all that lead to them have
    been visited."""
    waiting = Counter(itertools.chain(roots, *following.values()))

    def arrive(nodes: Iterable[GradNode]) -> None:
        for node in nodes:
            waiting[node] -= 1
            if not waiting[node]:
                put(node)

    arrive(roots)
    while (node := take()) is not None:
        yield node
        arrive(following[node])


def edges(roots: Sequence[GradNode], inputs: Sequence[GradNode]) -> dict[GradNode, list[GradNode]]:
    """The nodes of a pass from `roots`, and where each leads to. With `inputs` only what leads to them."""
    following = {node: [to for to, _ in node.next_functions if to is not None] for node in nodes_behind(roots)}
    if not inputs:
        return following
    before: dict[GradNode, list[GradNode]] = {node: [] for node in following}
    for node, nodes in following.items():
        for to in nodes:
            before[to].append(node)
    needed = reached([node for node in inputs if node in before], before)
    return {node: [to for to in nodes if to in needed] for node, nodes in following.items() if node in needed}


def reached(start: Iterable[GradNode], following: Mapping[GradNode, Sequence[GradNode]]) -> set[GradNode]:
    """All that one comes to from the nodes of `start`, these included."""
    found = set(start)
    waiting = [*found]
    while waiting:
        fresh = set(following[waiting.pop()]) - found
        found |= fresh
        waiting += fresh
    return found


def positions(
    roots: Sequence[GradNode], following: Mapping[GradNode, Sequence[GradNode]], names: Sequence[str]
) -> dict[int, int] | None:
    """When each call, in the order in which calls are handed over, would have been made by the engine. `names` are
    those of the calls; the first one begins the pass. The hook takes nodes from a stack.

    None if the calls are not those of this pass.
    """
    roots = [root for root in roots if root in following]
    heap: list[Ready] = []
    ready = visits(
        roots,
        following,
        lambda node: heapq.heappush(heap, Ready(node)),
        lambda: heapq.heappop(heap).node if heap else None,
    )
    place = {node: index for index, node in enumerate(ready)}
    stack: list[GradNode] = []
    handed = list(visits(roots, following, stack.append, lambda: stack.pop() if stack else None))
    if [type(node).name(node) for node in handed] != [*names[1:]]:  # a custom function's ctx may have a name of its own
        return None
    return {0: -1} | {call: place[node] for call, node in enumerate(handed, 1)}


def rearrange(graph: fx.Graph, call_of: Callable[[fx.Node], int], place: dict[int, int]) -> None:
    """Sort the nodes by the place of the call that they belong to (-1: first); the order within a call stays."""
    place = {**place, -1: -2}
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    anchor = graph.find_nodes(op="placeholder")[-1]
    for node in sorted(nodes, key=lambda node: place[call_of(node)]):
        anchor.append(node)
        anchor = node
