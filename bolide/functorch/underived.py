"""Results with a history of which no gradient comes: eager raises when a backward pass comes to an operation that has
no derivative, and not before; what depends on nothing but leaves made inside has gradients that nobody sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from bolide.functorch.graphs import CompiledGraph
from bolide.functorch.signature import Signature


def without_underived(signature: Signature, leaves: Iterable[torch.Tensor]) -> tuple[Signature, dict[int, str | None]]:
    """The signature with results that give `leaves` no gradients as results without history; and which those are, with
    what eager raises, if it does."""
    faults: dict[int, str | None] = {}
    visible = any(leaf.requires_grad for leaf in leaves)
    messages: dict[Any, str | None] = {None: None}
    for position, result in enumerate(signature.results):
        if result.tensor is None:
            continue
        message = _fault(result.tensor.grad_fn, messages)
        if message is not None or not visible:
            faults[position] = message
    if not faults:
        return signature, faults
    results = [
        dataclasses.replace(result, tensor=None) if position in faults else result
        for position, result in enumerate(signature.results)
    ]
    return dataclasses.replace(signature, results=tuple(results)), faults


def _fault(root: Any, messages: dict[Any, str | None]) -> str | None:
    """What the first node behind `root` without a derivative raises. `messages` remembers the answers for nodes."""
    waiting = [root]
    while waiting:
        node = waiting[-1]
        if node in messages:
            waiting.pop()
            continue
        following = [other for other, _ in node.next_functions]
        unknown = [other for other in following if other not in messages]
        if unknown:
            waiting += unknown
            continue
        own = _message(node) if type(node).__name__ == "NotImplemented" else _without_formula(node)
        if own is not None:
            messages[node] = own
        else:
            messages[node] = next(filter(None, map(messages.__getitem__, following)), None)
    return messages[root]


def _without_formula(node: Any) -> str | None:
    """What the node of an operator of the user's raises that has no autograd formula; None for other nodes."""
    if not type(node).__name__.startswith("GeneratedBackwardFor_"):
        return None
    backward = type(node)._forward_cls.backward
    captured = {name: cell.cell_contents for name, cell in zip(backward.__code__.co_freevars, backward.__closure__)}
    if "info" not in captured or captured["info"]._backward_fn is not None:
        return None
    try:
        backward(None)
    except RuntimeError as error:
        return str(error)
    return None


def _message(node: Any) -> str:
    try:
        node(*[None] * len(node._input_metadata))
    except RuntimeError as error:
        return str(error)
    return "an operation has no derivative"


def with_history(run: CompiledGraph, faults: Mapping[int, str | None]) -> CompiledGraph:
    """Gives these results a history that raises or leads nowhere."""

    def wrapped(inputs: list[Any]) -> list[Any]:
        results = list(run(inputs))
        with torch.enable_grad():
            for position, message in faults.items():
                leaf = results[position].detach().requires_grad_()
                results[position] = (
                    leaf.clone() if message is None else torch._C._functions.DelayedError(message, 1)(leaf)
                )
        return results

    return wrapped
