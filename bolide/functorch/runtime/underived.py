"""Results with a history of which no gradient comes: eager raises when a backward pass comes to an operation that has
no derivative, and not before; what depends on nothing but leaves made inside has gradients that nobody sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bolide.functorch.graphs import Runner
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
    sound: set[Any] = set()
    for position, result in enumerate(signature.results):
        if result.tensor is None:
            continue
        message = _fault(result.tensor.grad_fn, sound)
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
    reached: dict[bool, set[int]] = {False: set(), True: set()}
    seen = {(root, False)}
    waiting = [*seen]
    while waiting:
        node, through = waiting.pop()
        through = through or _own_message(node) is not None
        place = places.get(id(getattr(node, "variable", None)))
        if place is not None:
            reached[through].add(place)
        following = {(other, through) for other, _ in node.next_functions if other is not None} - seen
        seen |= following
        waiting += following
    if reached[False] - reached[True]:
        raise Unsupported(
            f"gradients go past an operation without one: {message}",
            remedy="detach its arguments where no gradient is wanted",
            kind="operator",
        )
    return tuple(sorted(reached[True]))


def _fault(root: Any, sound: set[Any]) -> str | None:
    """What the first node behind `root` without a derivative raises. `sound` are nodes behind which there is none."""
    seen, waiting = set(sound), [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        message = _own_message(node)
        if message is not None:
            return message
        seen.add(node)
        waiting += [other for other, _ in reversed(node.next_functions)]
    sound |= seen
    return None


def _own_message(node: Any) -> str | None:
    """What a node without a derivative raises; None for other nodes."""
    name = type(node).__name__
    if name == "NotImplemented":
        return _raised(node, [None] * len(node._input_metadata)) or "an operation has no derivative"
    if not name.startswith("GeneratedBackwardFor_"):
        return None
    backward = type(node)._forward_cls.backward  # an operator of the user's, which may have no autograd formula
    captured = {name: cell.cell_contents for name, cell in zip(backward.__code__.co_freevars, backward.__closure__)}
    if "info" not in captured or captured["info"]._backward_fn is not None:
        return None
    return _raised(backward, [None])


def _raised(call: Callable[..., object], args: Sequence[None]) -> str | None:
    try:
        call(*args)
    except RuntimeError as error:
        return str(error)
    return None


def with_history(run: Runner, faults: Mapping[int, Fault]) -> Runner:
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
                    (results[position],) = raising(fault.message, [value], [given[place] for place in fault.inputs])
        return results

    return wrapped


class _Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, message: str, values: Sequence[torch.Tensor], *roots: torch.Tensor) -> Any:
        ctx.message = message
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(ctx.message)


def raising(message: str, values: Sequence[torch.Tensor], roots: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Fresh `values` with a history that goes back to `roots`, or nowhere, and raises."""
    fresh: Sequence[torch.Tensor] = _Raising.apply(message, values, *(roots or [torch.empty(0, requires_grad=True)]))  # type: ignore[no-untyped-call]
    return fresh
