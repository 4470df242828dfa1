"""Histories of tensors: what autograd has recorded behind them, and results whose graph has been released."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def behind(tensors: Iterable[Any]) -> list[Any]:
    """The nodes of autograd's graph behind `tensors`, each after the nodes that it leads to."""
    order: list[Any] = []
    seen: set[Any] = set()
    waiting = [(tensor.grad_fn, False) for tensor in tensors]
    while waiting:
        node, done = waiting.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting += [(following, False) for following, _ in node.next_functions]
    return order


def is_spent(tensor: Any) -> bool:
    """Whether the program has already released what the tensor's gradient needs, by calling backward inside."""
    return not tensor._trace.spent.isdisjoint(behind([tensor]))


def detached(tensor: Any) -> Any:
    with torch.no_grad():
        return tensor.detach()


def released(value: torch.Tensor) -> Any:
    """`value` with a history that cannot be differentiated, as eager leaves it."""
    message = "Trying to backward through the graph a second time (or directly access saved tensors after they have "
    message += "already been freed): backward was called inside the compiled function, without retain_graph=True"
    with torch.enable_grad():
        return torch._C._functions.DelayedError(message, 1)(value.requires_grad_())
