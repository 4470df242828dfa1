"""Torch's function modes inside captured code, and what would be compiled there: it is captured with the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.operations import class_of
from bolide.dynamo.machine.overrides import overridden, overrides
from bolide.dynamo.polyfills import torch_functions
from bolide.support.errors import Unsupported

Args = list[Any]
Kwargs = dict[str, Any]
_native: Any = torch._C


def _asked(function: Any) -> None:
    @intercept(function)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        """The recorder of calls is no mode of the program's: it would have the interpreted function called anew."""
        if any(map(overrides, args)):
            return True
        recorder = vm.recorder
        return NATIVE if recorder is None else recorder.aside(function, args)


for _name in ("", "_unary", "_variadic"):
    _asked(getattr(_native, f"_has_torch_function{_name}"))


@intercept(handle_torch_function)
def _handle(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    function, relevant, *given = args
    return overridden(function, relevant, given, kwargs) if overrides(relevant) else NATIVE


@intercept(TorchFunctionMode.__enter__, TorchDispatchMode.__enter__)
def _enter_mode(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """Torch's own modes run natively; the program's would, too, and what they do outside would be seen once."""
    if type(args[0]).__module__.partition(".")[0] != "torch":
        name = f"{class_of(args[0]).__qualname__}.__enter__"
        raise Unsupported("a mode of the program's own is entered", vm.where(), kind="context", operation=name)
    return NATIVE


@intercept(vars(torch)["compile"])  # recognised, never called
def nested_compile(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`compile(model)` is the model itself; without one, a decorator that changes nothing. (`bolide.compile` registers
    this for itself.)"""
    model = args[0] if args else kwargs.get("model")
    return torch_functions.identity if model is None else model
