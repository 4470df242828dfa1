"""What programs say about sizes: torch's checks, and marks."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo import sizes
from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine


@intercept(torch._check, torch._check_index, torch._check_value, torch._check_type, torch._check_not_implemented)
def _check(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A condition that holds, guarded if it is about sizes. One that does not raises what torch raises; torch's own
    functions import sympy even to find that all is well."""
    condition = args[0] if args else kwargs.get("cond")
    if type(condition) is torch.SymBool:
        vm.trace.where = vm.where()
        condition = bool(condition)
    return None if condition is True else NATIVE


@intercept(torch._check_is_size)
def _check_is_size(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    vm.trace.where = vm.where()
    return None if args and isinstance(args[0], (int, torch.SymInt)) and args[0] >= 0 else NATIVE


@intercept(
    sizes.mark_dynamic, sizes.maybe_mark_dynamic, sizes.mark_static, sizes.mark_static_address, sizes.mark_unbacked
)
def _mark(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Marks are for what comes from outside; inside a program they say nothing."""
