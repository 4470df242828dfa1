"""Data of small inputs that the program reads: sizes and counts that are given as tensors.

Integers and booleans that `Tensor.tolist`, a branch or a mask asks for are read while capturing, and guarded: the data
is compared at every call. When it changes the next version does without, which is a break; only where a break is an
error is each value compiled for itself.
"""

from __future__ import annotations

import functools

import torch

from bolide.dynamo.breaking import break_is_error
from bolide.dynamo.config import config
from bolide.dynamo.guards import numbers
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.program import Source
from bolide.dynamo.state import state
from bolide.tracing.trace import Data


def data_of(vm: Machine, breaks: bool, place: int) -> Data | None:
    """The data of an input, and what to call to guard it; None if it cannot be, or differs from call to call (and
    the program may break: `breaks`)."""
    traced = vm.trace.inputs[place]
    fixed = all(type(size) is int for size in traced.shape)
    whole = not (traced.dtype.is_floating_point or traced.dtype.is_complex)
    small = fixed and 0 < traced.numel() <= config.specialize_data
    if not (whole and small and traced.device.type == "cpu"):
        return None
    if state.stage == "backend" or not vm.world.symbols.history.reads_data:
        return None
    source = Source("apply", vm.world.inputs[place], (), numbers)
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        real = vm.world.input_tensors[place]
        found = numbers(real)
        if not found or not (vm.world.symbols.has_stayed(source, found) or not breaks or break_is_error(vm)):
            return None
        return real.clone(), functools.partial(vm.world.guard, source, "equals", found)
