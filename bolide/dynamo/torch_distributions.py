"""Distributions check their parameters and samples. In captured code the check is part of the graph, and where it fails
the call is made again in eager, which raises torch's own error. Where the graph cannot be left (one branch of a
`torch.cond`, a backward pass) what it finds is raised after the graph has run, before any effect."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo.breaking import can_require, require
from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine
from bolide.tracing import TracedTensor


def require_valid(valid: torch.Tensor, what: str) -> None:
    """Raises ValueError, as `torch.distributions` does, if not `valid`."""
    if not valid:
        raise ValueError(f"Expected {what} to satisfy its constraint, but found invalid values")


@intercept(torch._is_all_true)
def _is_all_true(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    frame = vm.frames[-1]
    if type(args[0]) is not TracedTensor or not str(frame.globals.get("__name__")).startswith("torch.distributions"):
        return NATIVE
    vm.trace.where = vm.where()
    valid = torch._is_all_true(args[0])
    if vm.trace.known(valid) is not None:
        return valid
    if can_require(vm):
        require(vm, valid)
        return True
    names = frame.code.locals_names
    parameter = frame.locals[names.index("param")] if "param" in names else "a value"
    owner = frame.locals[names.index("self")]
    what = f"{f'parameter {parameter}' if 'param' in names else parameter} of distribution {type(owner).__name__}"
    vm.required.append((require_valid, [valid, what], {}))
    return True
