"""The order in which the engine would run the nodes of a backward pass. The hook of the engine hands nodes over in
another one, in which gradients would be accumulated, and hooks be called, late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx as fx
from torch.autograd.graph import Node as GradNode


def engine_order() -> list[GradNode]:
    """The nodes as the engine would run them; none where it does not tell (it uses several threads)."""
    try:
        return list(torch._C._current_graph_task_execution_order())  # type: ignore[attr-defined]
    except RuntimeError:
        return []


def positions(wanted: Sequence[GradNode], names: Sequence[str]) -> dict[int, int] | None:
    """When each call, in the order in which calls are handed over, would have been made by the engine: the position in
    `wanted`. `names` are those of the calls; the first one is the root, which is not in `wanted`.

    The hook visits nodes from a stack, as soon as all that lead to them are visited. Several roots are found by their
    names. None if the calls are not those of `wanted`.
    """
    place = {node: index for index, node in enumerate(wanted)}
    if len(place) != len(names) - 1:
        return None
    following = {node: [to for to, _ in node.next_functions if to in place] for node in wanted}
    waiting = dict.fromkeys(wanted, 0)
    for nodes in following.values():
        for node in nodes:
            waiting[node] += 1
    roots = [node for node in wanted if not waiting[node]]
    stack: list[GradNode] = []
    found = {0: -1}
    for call, name in enumerate(names[1:], 1):
        if not stack:
            root = next((node for node in roots if node.name() == name), None)
            if root is None:
                return None
            roots.remove(root)
            stack.append(root)
        node = stack.pop()
        if node.name() != name:
            return None
        found[call] = place[node]
        for each in following[node]:
            waiting[each] -= 1
            if not waiting[each]:
                stack.append(each)
    return found


def rearrange(graph: fx.Graph, call_of: Callable[[fx.Node], int], place: dict[int, int]) -> None:
    """Sort the nodes by the place of the call that they belong to (-1: first); the order within a call stays."""
    place = {**place, -1: -2}
    nodes = [node for node in graph.nodes if node.op != "placeholder"]
    anchor = graph.find_nodes(op="placeholder")[-1]
    for node in sorted(nodes, key=lambda node: place[call_of(node)]):
        anchor.append(node)
        anchor = node
