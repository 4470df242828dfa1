"""What programs say about sizes: torch's checks, and marks."""

from __future__ import annotations

import functools
from typing import Any

import torch

from bolide.dynamo import sizes
from bolide.dynamo.breaking import supposed
from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine

_CHECKS: dict[Any, type[Exception]] = {
    torch._check: RuntimeError,
    torch._check_index: IndexError,
    torch._check_value: ValueError,
    torch._check_type: TypeError,
    torch._check_not_implemented: NotImplementedError,
}
_TEXT = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)


def _check(error: type[Exception], vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A condition that holds, guarded if it is about sizes, checked in the graph if it is about data. One that does
    not raises what torch raises; torch's own functions import sympy even to find that all is well."""
    condition = args[0] if args else kwargs.get("cond")
    if type(condition) is torch.SymBool:
        condition = supposed(vm, condition, _TEXT, error.__name__)
    return None if condition is True else NATIVE


for _function, _error in _CHECKS.items():
    intercept(_function)(functools.partial(_check, _error))


@intercept(torch._check_is_size)
def _check_is_size(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    size, most = args[0] if args else kwargs.get("i"), kwargs.get("max")
    for condition in (size >= 0, most is None or size <= most):  # type: ignore[operator]
        if not (supposed(vm, condition, _TEXT, "RuntimeError") if type(condition) is torch.SymBool else condition):
            return NATIVE
    return None


@intercept(
    sizes.mark_dynamic, sizes.maybe_mark_dynamic, sizes.mark_static, sizes.mark_static_address, sizes.mark_unbacked
)
def _mark(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Marks are for what comes from outside; inside a program they say nothing."""
