"""Backward passes that are called inside torch's transforms, on tangents that belong to them: batches (`vmap`, and
``is_grads_batched``), which are taken apart, or tangents with derivatives of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

Tangents = tuple[torch.Tensor | None, ...]
Pullback = Callable[[Tangents], Sequence[torch.Tensor | None]]
"""From the tangents of the results to the gradients of the inputs."""

Part = tuple[torch.Tensor | None, int | None]
"""A tangent without the batch of a level, and the dimension that the batch is in, if it is one."""

_functorch = torch._C._functorch
_active = _functorch.peek_interpreter_stack
is_batch: Callable[[torch.Tensor], bool] = _functorch.is_legacy_batchedtensor
"""Whether it is one of ``is_grads_batched``, which belongs to no transform."""


def is_differentiated() -> bool:
    """Whether a transform is active here, or forward-mode differentiation."""
    return _active() is not None or forward_ad._current_level >= 0


def is_transformed(tangents: Tangents) -> bool:
    """Whether a transform is active here, or forward-mode differentiation, or tangents are batches."""
    if is_differentiated():
        return True
    for tangent in tangents:  # noqa: SIM110 (a generator would cost more than the rest)
        if tangent is not None and is_batch(tangent):
            return True
    return False


def through(compute: Pullback, replay: Pullback, tangents: Tangents) -> Sequence[torch.Tensor | None]:
    """The gradients inside the active transforms: by `compute`, which takes plain tensors outside of transforms, once
    for each item of a batch; by `replay`, which takes anything, where the tangents have derivatives of their own."""

    def further(items: Tangents) -> Sequence[torch.Tensor | None]:
        return through(compute, replay, items)

    if any(tangent is not None and is_batch(tangent) for tangent in tangents):
        parts, level = _old_parts(tangents)
        return _for_each(further, parts, lambda value: torch._add_batch_dim(value, 0, level), contextlib.nullcontext())
    top = _active()
    if top is None:
        return replay(tangents) if any(map(_has_derivative, tangents)) else compute(tangents)
    level = top.level()
    if top.key() is _functorch.TransformType.Vmap:
        parts = [
            (None, None) if tangent is None else _functorch._unwrap_batched(tangent, level) for tangent in tangents
        ]
        return _for_each(further, parts, lambda value: _functorch._add_batch_dim(value, 0, level), _below())
    if any(tangent is not None and _functorch.maybe_get_level(tangent) == level for tangent in tangents):
        return replay(tangents)
    with _below():
        return further(tangents)


def _old_parts(tangents: Tangents) -> tuple[list[Part], int]:
    """Tangents without the innermost batch of the old kind, and its level."""
    level = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    parts: list[Part] = [(tangent, None) for tangent in tangents]
    while all(dim is None for _, dim in parts):
        level -= 1
        parts = [_old_part(tangent, level) for tangent in tangents]
    return parts, level


def _old_part(tangent: torch.Tensor | None, level: int) -> Part:
    if tangent is None or not is_batch(tangent):
        return tangent, None
    once, twice = [torch._remove_batch_dim(tangent, level, length, 0) for length in (1, 2)]
    return (once, 0) if once.shape == twice.shape else (tangent, None)  # what is no batch is expanded to one


def _has_derivative(tangent: torch.Tensor | None) -> bool:
    if tangent is None or forward_ad._current_level < 0:
        return False
    return forward_ad.unpack_dual(tangent).tangent is not None  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _below() -> Iterator[None]:
    """Outside of the innermost transform."""
    layer = _functorch.pop_dynamic_layer_stack()
    try:
        yield
    finally:
        _functorch.push_dynamic_layer_stack(layer)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Outside of all transforms."""
    with contextlib.ExitStack() as stack:
        while _active() is not None:
            stack.enter_context(_below())
        yield


def _for_each(
    compute: Pullback,
    parts: Sequence[Part],
    batch: Callable[[torch.Tensor], torch.Tensor],
    below: contextlib.AbstractContextManager[None],
) -> Sequence[torch.Tensor | None]:
    """The gradients for each item of a batch of tangents (or once, where none of them is one), as a `batch`."""
    lengths = [value.shape[dim] for value, dim in parts if value is not None and dim is not None]
    with below:
        if not lengths:
            return compute(tuple([value for value, _ in parts]))
        items = [_items(value, dim, lengths[0]) for value, dim in parts]
        of_inputs = zip(*[compute(tangents) for tangents in zip(*items)])
        stacked = [_stacked(gradients, lengths[0]) for gradients in of_inputs]
    return [None if value is None else batch(value) for value in stacked]


def _items(value: Any, dim: int | None, length: int) -> Sequence[Any]:
    """The items of a batch, or as often what is none; of an empty one there is one of zeros, which tells the shapes."""
    if value is None or dim is None:
        return [value] * max(length, 1)
    if not length:
        return [value.sum(dim)]
    items: Sequence[Any] = value.unbind(dim)
    return items


def _stacked(gradients: Sequence[torch.Tensor | None], length: int) -> torch.Tensor | None:
    """Pullback of the items as a batch; where some items have none, zeros."""
    like = next((gradient for gradient in gradients if gradient is not None), None)
    if like is None:
        return None
    return torch.stack([torch.zeros_like(like) if value is None else value for value in gradients])[:length]
