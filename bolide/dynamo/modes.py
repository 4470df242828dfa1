"""Torch's global modes that a program may change while it is captured: read as data, put back, set by effects.

Inference mode and the profiler's regions are not among them: they can only be entered and left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.guards import AUTOCAST_DEVICES

_native: Any = torch._C
# Context managers that hold a native object: only the one that was entered can be left.
HOLDERS = (torch.inference_mode, torch.autograd.profiler.record_function, torch.autograd.profiler.profile)
Setting = tuple[Callable[..., Any], tuple[Any, ...]]


def _nesting() -> int:
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def set_nesting(depth: int) -> None:
    """How many autocast regions are entered."""
    for _ in range(_nesting(), depth):
        torch.autocast_increment_nesting()
    for _ in range(depth, _nesting()):
        torch.autocast_decrement_nesting()
    if depth == 0:
        torch.clear_autocast_cache()


_SDP = tuple(
    (getattr(_native, f"_get_{name}_sdp_enabled"), getattr(_native, f"_set_sdp_use_{name}"))
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(_native, f"_get_{name}_sdp_enabled") and hasattr(_native, f"_set_sdp_use_{name}")
)


def settings() -> list[Setting]:
    """The calls that bring the present state about, always of the same setters in the same order."""
    found: list[Setting] = [(_native._set_grad_enabled, (torch.is_grad_enabled(),))]
    for device in AUTOCAST_DEVICES:
        found.append((torch.set_autocast_enabled, (device, torch.is_autocast_enabled(device))))
        found.append((torch.set_autocast_dtype, (device, torch.get_autocast_dtype(device))))
    found.append((torch.set_autocast_cache_enabled, (torch.is_autocast_cache_enabled(),)))
    found.append((set_nesting, (_nesting(),)))
    found.append((torch.set_default_dtype, (torch.get_default_dtype(),)))
    found += [(setter, (getter(),)) for getter, setter in _SDP]
    return found


def changed(before: list[Setting], after: list[Setting]) -> list[Setting]:
    """The settings of `after` that differ from those of `before`."""
    return [new for old, new in zip(before, after, strict=True) if old[1] != new[1]]


def apply(wanted: list[Setting]) -> None:
    """Make these calls."""
    for setter, args in wanted:
        setter(*args)
