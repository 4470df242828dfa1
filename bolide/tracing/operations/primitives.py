"""Calls of torch's functions on tensors with symbolic sizes, where that costs less than asking torch.

While sizes are symbolic torch's Python dispatcher is on: it asks Python about each operation, also one that C++ calls,
and it takes 5 µs to hear that Python has nothing to say. Where every operation that is met is recorded as it is, it is
off.
"""

from __future__ import annotations

import functools
import operator as op
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._C import DispatchKey
from torch.autograd import forward_ad

from bolide.tracing import modes
from bolide.tracing.operations.kinds import is_recorded_as_is
from bolide.tracing.tensor import TracedTensor

_OWNERS = (torch._C.TensorBase, torch._C._VariableFunctions, torch._C._nn)  # type: ignore[attr-defined, unused-ignore]
_OPERATORS = frozenset((op.add, op.eq, op.ge, op.gt, op.le, op.lt, op.mul, op.ne, op.neg, op.sub))

_OF_ONE = frozenset(
    (
        *(F.batch_norm, torch.batch_norm, F.layer_norm, torch.layer_norm, F.relu),
        *(torch.conv1d, torch.conv2d, torch.conv3d),
    )
)
"""Functions in whose place C++ calls one operation that is recorded as it is, also for symbolic sizes."""

_ASKED = frozenset(
    {
        DispatchKey.ADInplaceOrView,
        DispatchKey.Autograd,
        DispatchKey.AutogradCPU,
        DispatchKey.BackendSelect,
        DispatchKey.CompositeImplicitAutograd,
    }
)
"""Where a kernel in Python would be met on the way of a call to its recording."""


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call one of torch's functions, or an operator."""
    if is_primitive(function) and not (_is_transformed() or any(map(_may_answer, (*args, *kwargs.values())))):
        with torch._C._DisablePythonDispatcher():
            return function(*args, **kwargs)
    return function(*args, **kwargs)


def _may_answer(arg: Any) -> bool:
    """Whether a tensor among the arguments may be of a class of the program's, which then does what it likes."""
    cls = arg.__class__
    if cls is list or cls is tuple:
        return any(map(_may_answer, arg))
    return cls is not TracedTensor and issubclass(cls, torch.Tensor)


def is_primitive(function: Callable[..., Any]) -> bool:
    """Whether a function does nothing but operations that are recorded as they are."""
    cls = function.__class__
    if cls is types.BuiltinFunctionType:
        owner = function.__self__  # type: ignore[attr-defined]
        if owner.__class__ is TracedTensor:
            return _is_recorded(function.__name__)
        return (owner is None or owner.__class__ is types.ModuleType) and _is_listed(function)
    if cls is types.FunctionType:
        return function in _OF_ONE
    return cls is types.MethodDescriptorType and _is_listed(function)


@functools.cache
def _is_listed(function: Callable[..., Any]) -> bool:
    name = function.__name__
    known = function in _OPERATORS or any(getattr(owner, name, None) is function for owner in _OWNERS)
    return function in _OF_ONE or (known and _is_recorded(name))


@functools.cache
def _is_recorded(name: str) -> bool:
    """Whether all forms of an operation are recorded as they are, and none has a kernel in Python of its own."""
    packet: Any = getattr(torch.ops.aten, name, None)
    listed = isinstance(packet, torch._ops.OpOverloadPacket)  # a namespace has attributes of its own
    forms = [getattr(packet, overload) for overload in packet.overloads()] if listed else []
    known = [  # without those for names of dimensions, which no traced tensor has
        form
        for form in forms
        if torch._C._dispatch_has_kernel(form.name()) and "name" not in form._overloadname.lower()
    ]
    own = any(not _ASKED.isdisjoint(form.py_kernels) for form in known)
    return bool(known) and not own and all(map(is_recorded_as_is, known))


def _is_transformed() -> bool:
    """Whether operations become others before they are recorded: by a transform, a forward derivative, autocast, or a
    function mode."""
    return (
        modes.asks_program()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._is_any_autocast_enabled()
    )
