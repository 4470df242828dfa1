"""Compiling inside captured code: what would be compiled there is captured with the rest."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.polyfills import torch_functions


@intercept(vars(torch)["compile"])  # recognised, never called
def nested_compile(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`compile(model)` is the model itself; without one, a decorator that changes nothing. (`bolide.compile` registers
    this for itself.)"""
    model = args[0] if args else kwargs.get("model")
    return torch_functions.identity if model is None else model
