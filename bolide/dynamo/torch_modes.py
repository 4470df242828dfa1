"""Torch's function modes inside captured code."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.values.outside import Outside
from bolide.tracing.calls import CallRecorder

Args = list[Any]
Kwargs = dict[str, Any]
_native: Any = torch._C


def _asked(function: Any) -> None:
    @intercept(function)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        """The recorder of calls is no mode of the program's: it would have the interpreted function called anew."""
        recorder = vm.memory.get(CallRecorder)
        asked = args[0] if len(args) == 1 and type(args[0]) in (tuple, list) else args
        if recorder is None or any(type(arg) is Outside and hasattr(arg.cls, "__torch_function__") for arg in asked):
            return NATIVE
        return recorder.aside(function, args)


for _name in ("", "_unary", "_variadic"):
    _asked(getattr(_native, f"_has_torch_function{_name}"))
