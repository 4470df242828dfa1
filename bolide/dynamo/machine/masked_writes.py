"""Writes of differentiable values where a mask is true: torch's derivative gathers with the mask, so it has a size that
is data."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.machine.interpreter import Machine
from bolide.tracing import TracedTensor

_BASIC = (slice, int, types.NoneType, types.EllipsisType)


def _is_mask(part: Any) -> bool:
    return type(part) is TracedTensor and part.dtype is torch.bool


def concerns(parts: tuple[Any, ...], value: Any) -> bool:
    """Whether such a value goes where a mask among the parts of an index says."""
    derives = type(value) is TracedTensor and value.requires_grad and torch.is_grad_enabled()
    return derives and any(map(_is_mask, parts))


def write(vm: Machine, function: Any, arguments: list[Any], parts: tuple[Any, ...], assign: Callable[..., Any]) -> Any:
    """A call of `function` with such a value. Its arguments: a tensor (in place of which a copy is written by functions
    that write nothing), an index of these parts, the value, and perhaps whether it is added. `assign` is given the
    tensor to write and an index without masks."""
    owner, _, value, *adds = arguments

    def compute() -> Any:
        target = owner.clone() if function is torch.Tensor.index_put else owner
        if not _fill(target, parts, value, any(adds)):
            assign(target, _gathered(target, parts))
        return target

    recorder = vm.recorder
    return compute() if recorder is None else recorder.as_one(function, arguments, compute)


def _fill(owner: TracedTensor, parts: tuple[Any, ...], value: TracedTensor, adds: bool) -> bool:
    """Write, or add, one value wherever the only mask is true, without gathering; False where it is otherwise."""
    masks = [place for place, part in enumerate(parts) if _is_mask(part)]
    if len(masks) != 1 or value.dtype is not owner.dtype:
        return False
    before, mask, after = parts[: masks[0]], parts[masks[0]], parts[masks[0] + 1 :]
    if not all(isinstance(part, _BASIC) and type(part) is not bool for part in (*before, *after)):
        return False
    view = owner[(*before, *[slice(None)] * mask.dim(), *after)] if before or after else owner
    behind = _width(after)
    if not any(part is Ellipsis for part in before):
        behind = view.dim() - _width(before) - mask.dim()
    rest = view.shape[view.dim() - behind :]
    if behind < 0 or tuple(view.shape[view.dim() - behind - mask.dim() : view.dim() - behind]) != tuple(mask.shape):
        return False
    sizes = zip(reversed(value.shape), reversed(rest), strict=False)
    if value.dim() > len(rest) or not all(mine == other or mine == 1 for mine, other in sizes):
        return False
    spread = mask[(..., *[None] * behind)]
    view.copy_(torch.where(spread, view + value if adds else value, view))
    return True


def _width(parts: tuple[Any, ...]) -> int:
    """How many dimensions of the result the basic parts of an index are about."""
    return sum(part is None or isinstance(part, slice) for part in parts)


def _gathered(owner: TracedTensor, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index with the places where its masks are true, found once for the write and its derivative. Masks that do
    not fit are left for torch to refuse."""
    if any(part is Ellipsis or part is None for part in parts):
        return parts
    places: list[Any] = []
    dim = 0
    for part in parts:
        taken = part.dim() if _is_mask(part) else 1
        if _is_mask(part) and (not taken or tuple(owner.shape[dim : dim + taken]) != tuple(part.shape)):
            return parts
        places += part.nonzero().unbind(1) if _is_mask(part) else [part]
        dim += taken
    return tuple(places)
