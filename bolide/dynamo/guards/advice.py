"""What helps against a recompilation, by the guard that failed."""

from __future__ import annotations

import types

import torch

from bolide.dynamo.config import config
from bolide.dynamo.guards.texts import is_of_data
from bolide.dynamo.program.captured import Guard, GuardKind, TensorGuard

_ADVICE: dict[GuardKind, str] = {
    "type": "pass the same kinds of objects",
    "is": "pass the same object each time, or make the function take what it needs of it",
    "integer": "keep it an integer",
    "equals": "each value is compiled for itself: keep it fixed, or make it a tensor",
    "tensor": "a size that changes becomes a symbol in the next version (but 0, 1, and with dynamic=False); keep "
    "dtype, device, strides and requires_grad the same, or call mark_dynamic on what will change",
    "length": "keep the length fixed, or stack the elements into one tensor",
    "dict_keys": "keep the keys the same",
    "has_key": "keep the keys the same",
    "has_attr": "set the attribute before the first call",
    "class_attr": "change methods and other attributes of classes before the first call",
    "not_aliased": "pass tensors that do not share memory",
    "same": "pass the same object in both places, or different ones each time",
    "distinct": "pass the same object in both places, or different ones each time",
    "global_state": "call the function under the same grad mode, autocast and default dtype; modes inside of it are "
    "compiled",
    "relation": "the program depends on this relation of sizes or floats: keep it, or remove the branch on them",
}


def remedy(guard: Guard, actual: TensorGuard | None = None) -> str:
    """One line of advice; "" where there is none. `actual`: what is true of the tensor that does not fit."""
    if actual is not None:
        return _about_tensors(guard.expected, actual)
    if is_of_data(guard):
        return (
            "in the next version the data are symbols, if the program need not know them; if it must, it breaks soon: "
            "keep the data fixed, or keep it a tensor"
        )
    if guard.kind == "is" and (guard.expected is None or isinstance(guard.expected, bool)):
        return "True, False and None are compiled each for itself: keep the value fixed, or make it a tensor"
    if guard.kind == "is" and isinstance(guard.expected, types.FunctionType):
        return "pass the same function each time: define it once, not anew for each call"
    if guard.kind == "equals" and type(guard.expected) in (int, float):
        return "the number is a symbol in the next version, which fits others too, unless the program needs its value"
    return _ADVICE.get(guard.kind, "")


def _about_tensors(wanted: TensorGuard, actual: TensorGuard) -> str:
    if actual.cls is not wanted.cls:
        return f"pass a {wanted.cls.__name__} each time"
    if actual.dtype is not wanted.dtype:
        return "pass the same dtype each time, or convert it before the call"
    if actual.device != wanted.device:
        return "pass tensors on the same device each time"
    if len(actual.shape) != len(wanted.shape):
        return "each number of dimensions is compiled for itself: reshape before the call, or pass the same"
    if actual.requires_grad != wanted.requires_grad:
        return "with and without gradients are two versions: pass the same, or detach() what needs none"
    changed = [now for now, before in zip(actual.shape, wanted.shape) if type(before) is int and now != before]
    if any(size in (0, 1) for size in changed):
        return "sizes 0 and 1 are compiled for themselves (they broadcast, or give nothing): pad, or avoid them"
    if changed and issubclass(wanted.cls, torch.nn.Parameter) and config.force_parameter_static_shapes:
        return "sizes of parameters are compiled for each by itself (force_parameter_static_shapes)"
    if changed:
        return (
            "the size is a symbol in the next version, which fits other sizes too (unless dynamic=False); mark_dynamic "
            "or dynamic=True make it one from the start"
        )
    if any(type(before) is int and now != before for now, before in zip(actual.stride, wanted.stride)):
        return "pass tensors of the same layout, for instance x.contiguous()"
    return _ADVICE["tensor"]
