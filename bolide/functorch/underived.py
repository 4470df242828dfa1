"""Results with a history of which no gradient comes: eager raises when a backward pass comes to an operation that has
no derivative, and not before; what depends on nothing but leaves made inside has gradients that nobody sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bolide.functorch.graphs import CompiledGraph
from bolide.functorch.signature import Signature
from bolide.support.errors import Unsupported
from bolide.tracing.tensor import inner_leaves, reaches, takes_gradient


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """What eager raises when the backward of a result comes to an operation without a derivative (None: nothing, no
    gradient goes anywhere), and the places of the inputs that the history goes back to."""

    message: str | None
    inputs: tuple[int, ...] = ()


def without_underived(
    signature: Signature, leaves: Sequence[torch.Tensor], own_gradients: bool
) -> tuple[Signature, dict[int, Fault]]:
    """The signature with results that give `leaves` no gradients as results without history; and which those are.
    With `own_gradients`, those are derived all the same that go back to leaves made inside only: code of the program's
    runs there.

    Raises Unsupported for a result that gives some of them gradients past the operation that has no derivative."""
    faults: dict[int, Fault] = {}
    tracked = [result.tensor.grad_fn for result in signature.results if result.tensor is not None]
    visible = any(map(takes_gradient, leaves)) and not inner_leaves(tracked, leaves)
    messages: dict[Any, str | None] = {None: None}
    for position, result in enumerate(signature.results):
        if result.tensor is None:
            continue
        message = _fault(result.tensor.grad_fn, messages)
        if message is not None:
            faults[position] = Fault(message, _behind(result.tensor.grad_fn, leaves, message))
        elif not (own_gradients or visible or reaches(result.tensor.grad_fn, leaves)):
            faults[position] = Fault(None)
    if not faults:
        return signature, faults
    results = [
        dataclasses.replace(result, tensor=None) if position in faults else result
        for position, result in enumerate(signature.results)
    ]
    return dataclasses.replace(signature, results=tuple(results)), faults


def _behind(root: Any, leaves: Sequence[torch.Tensor], message: str) -> tuple[int, ...]:
    """The leaves that the history of `root` goes back to, all of them through operations without a derivative."""
    places = {id(leaf): place for place, leaf in enumerate(leaves)}
    found: dict[bool, set[int]] = {False: set(), True: set()}
    seen = {(root, False)}
    waiting = [*seen]
    while waiting:
        node, through = waiting.pop()
        through = through or _own_message(node) is not None
        place = places.get(id(getattr(node, "variable", None)))
        if place is not None:
            found[through].add(place)
        following = {(other, through) for other, _ in node.next_functions if other is not None} - seen
        seen |= following
        waiting += following
    if found[False] - found[True]:
        raise Unsupported(
            f"gradients go past an operation without one: {message}",
            remedy="detach its arguments where no gradient is wanted",
            kind="operator",
        )
    return tuple(sorted(found[True]))


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
        own = _own_message(node)
        if own is not None:
            messages[node] = own
        else:
            messages[node] = next(filter(None, map(messages.__getitem__, following)), None)
    return messages[root]


def _own_message(node: Any) -> str | None:
    return _message(node) if type(node).__name__ == "NotImplemented" else _without_formula(node)


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


def with_history(run: CompiledGraph, faults: Mapping[int, Fault]) -> CompiledGraph:
    """Gives these results a history that raises or leads nowhere."""

    def wrapped(inputs: list[Any]) -> list[Any]:
        given = list(inputs)
        results = list(run(inputs))
        with torch.enable_grad():
            for position, fault in faults.items():
                value = results[position].detach()
                if fault.message is None:
                    results[position] = value.requires_grad_().clone()
                else:
                    results[position] = _raising(fault.message, value, [given[place] for place in fault.inputs])
        return results

    return wrapped


def _raising(message: str, value: torch.Tensor, roots: Sequence[torch.Tensor]) -> torch.Tensor:
    class NoDerivative(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *roots: torch.Tensor) -> torch.Tensor:
            return value

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            raise RuntimeError(message)

    made: torch.Tensor = NoDerivative.apply(*(roots or [value.clone().requires_grad_()]))  # type: ignore[no-untyped-call]
    return made
