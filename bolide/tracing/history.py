"""The histories of traced tensors: nodes of autograd's graph, and the leaves that they go back to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


def takes_gradient(leaf: torch.Tensor) -> bool:
    """Whether gradients are taken with respect to an input's leaf. One without a gradient that the program writes to
    may have a history by now: it requires grad as a result does."""
    return leaf.requires_grad and leaf.grad_fn is None


def nodes_behind(nodes: Iterable[Any]) -> Iterator[Any]:
    """These nodes (None is none) and all that they go back to, each once."""
    seen, waiting = {None}, [*nodes]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def leaves_behind(nodes: Iterable[Any]) -> list[Any]:
    """The leaves that require grad and that the nodes go back to."""
    variables = (getattr(node, "variable", None) for node in nodes_behind(nodes))
    return [variable for variable in variables if variable is not None]


def inner_leaves(nodes: Iterable[Any], leaves: Sequence[torch.Tensor]) -> list[Any]:
    """Those behind the nodes that the program has made: nobody outside gets their gradients."""
    outer = {id(leaf) for leaf in leaves}
    return [leaf for leaf in leaves_behind(nodes) if id(leaf) not in outer]


def reaches(node: Any, leaves: Sequence[torch.Tensor]) -> bool:
    """Whether a gradient of one of an inputs' `leaves` comes through the node."""
    wanted = {id(leaf) for leaf in leaves if takes_gradient(leaf)}
    return any(id(leaf) in wanted for leaf in leaves_behind([node]))
