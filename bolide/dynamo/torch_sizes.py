"""What programs say about sizes: torch's checks, and marks."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo import sizes
from bolide.dynamo.breaking import can_require, require, supposed
from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.config import config
from bolide.dynamo.interpreter import Machine
from bolide.tracing import TracedTensor


@intercept(torch._check, torch._check_index, torch._check_value, torch._check_type, torch._check_not_implemented)
def _check(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A condition that holds, guarded if it is about sizes, checked in the graph if it is about data. One that does
    not raises what torch raises; torch's own functions import sympy even to find that all is well."""
    condition = args[0] if args else kwargs.get("cond")
    if type(condition) is torch.SymBool:
        condition = supposed(vm, condition)
    return None if condition is True else NATIVE


@intercept(torch._assert_async, torch._assert, torch._check_tensor_all)
def _assert(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A tensor that has to be true (all of it, for the last one): looked at in the graph."""
    condition = args[0] if args else None
    if type(condition) is not TracedTensor or vm.trace.known(condition) is not None or not can_require(vm):
        return NATIVE
    if not config.do_not_emit_runtime_asserts:
        require(vm, condition.all())
    return None


@intercept(torch._check_is_size)
def _check_is_size(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    size, most = args[0] if args else kwargs.get("i"), kwargs.get("max")
    for condition in (size >= 0, most is None or size <= most):  # type: ignore[operator]
        if not (supposed(vm, condition) if type(condition) is torch.SymBool else condition):
            return NATIVE
    return None


@intercept(
    sizes.mark_dynamic, sizes.maybe_mark_dynamic, sizes.mark_static, sizes.mark_static_address, sizes.mark_unbacked
)
def _mark(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Marks are for what comes from outside; inside a program they say nothing."""
