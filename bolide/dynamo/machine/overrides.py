"""`__torch_function__` of the program's own classes: it is interpreted, where torch's functions would call it."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import _pop_mode_temporarily, get_ignored_functions

from bolide.dynamo import polyfills
from bolide.dynamo.machine.interpreter import Call
from bolide.dynamo.world.outside import Outside
from bolide.tracing import TracedTensor


def class_of(value: Any) -> Any:
    return value.cls if type(value) is Outside else type(value)


def overrides(value: Any) -> bool:
    """Whether torch's functions ask `value`, or an element of it, what they return."""
    cls = type(value)
    if cls is list or cls is tuple:
        return any(overrides(item) for item in value if type(item) is not TracedTensor)
    if cls is TracedTensor:
        return False
    cls = class_of(value)
    return hasattr(cls, "__torch_function__") and not issubclass(cls, torch.Tensor)


class _Probe:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func


@functools.cache
def asked_by(operator: Callable[[Any, Any], Any], reflected: bool) -> Any:
    """The function that `__torch_function__` is told of for an operator between a tensor and (`reflected`: in front of
    it) an object."""
    with _pop_mode_temporarily() if torch._C._len_torch_function_stack() else contextlib.nullcontext():
        tensor = torch.nn.Parameter(torch.zeros(()), requires_grad=False)
        return operator(_Probe(), tensor) if reflected else operator(tensor, _Probe())


def is_overridable(function: Any) -> bool:
    """Whether a function is one of torch's that ask their arguments."""
    if type(function) is types.FunctionType:
        return "handle_torch_function" in function.__code__.co_names
    holder = getattr(function, "__objclass__", None)
    if holder is not None:
        return issubclass(torch.Tensor, holder) and holder is not object
    return isinstance(function, types.BuiltinFunctionType) and str(function.__module__).startswith("torch")


def goes_to_class(function: Any) -> bool:
    """Whether torch asks the classes of a function's arguments what it returns."""
    return is_overridable(function) and function not in get_ignored_functions()


def overridden(function: Any, relevant: Iterable[Any], args: list[Any], kwargs: dict[str, Any]) -> Call:
    """The call of the overrides of the `relevant` arguments: each class once, subclasses first. Functions written in
    Python count plain tensors among the classes."""
    owners: list[tuple[Any, Any]] = []
    with_tensors = type(function) is types.FunctionType
    for value in relevant:
        for item in value if type(value) in (list, tuple) else (value,):
            cls = torch.Tensor if type(item) is TracedTensor else class_of(item)
            wanted = with_tensors if cls is torch.Tensor else overrides(item)
            if wanted and all(known is not cls for known, _ in owners):
                place = next((i for i, (known, _) in enumerate(owners) if issubclass(cls, known)), len(owners))
                owners.insert(place, (cls, item))
    classes = tuple([cls for cls, _ in owners])
    asked = [item for cls, item in owners if cls is not torch.Tensor]
    return Call(polyfills.BY_NAME["torch_override"], [function, asked, classes, tuple(args), kwargs])
