"""The transforms of `torch.func` that are active where control flow is recorded. What they have wrapped lies around
traced tensors, one wrapper for each level."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

_functorch = torch._C._functorch
_VMAP = _functorch.TransformType.Vmap


def _active() -> Sequence[torch._C._functorch.CInterpreter]:
    """The levels, outermost first."""
    return torch._C._functorch.get_interpreter_stack() or ()


def only_batched() -> bool:
    """Whether no transform derives: what is computed for all items of a batch is one tensor then."""
    return all(level.key() == _VMAP for level in _active())


def inside(value: object) -> object:
    """The tensor in all wrappers."""
    while isinstance(value, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(value):
        value = _functorch.get_unwrapped(value)
    return value


def stripped(value: object) -> object:
    """A tensor with the dimensions of all batches in front; anything else as it is."""
    levels = _active()
    if not levels or not isinstance(value, torch.Tensor):
        return value
    for level in reversed(levels):
        size = _functorch.CVmapInterpreterPtr(level).batchSize()
        value = _functorch._remove_batch_dim(value, level.level(), size, 0)
    return value.contiguous()  # where the dimensions were before is not to be seen


def entered(value: torch.Tensor) -> torch.Tensor:
    """What `stripped` has made plain, as it is inside of the levels."""
    for level in _active():
        value = _functorch._add_batch_dim(value, 0, level.level())
    return value


@contextlib.contextmanager
def left() -> Iterator[None]:
    """While it is active, no transform is."""
    layers = [_functorch.pop_dynamic_layer_stack() for _ in _active()]
    try:
        yield
    finally:
        for layer in reversed(layers):
            _functorch.push_dynamic_layer_stack(layer)
