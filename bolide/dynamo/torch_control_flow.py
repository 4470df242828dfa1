"""torch's control-flow operators (`torch.cond`, `while_loop`, `scan`, `associative_scan`, `map`) are interpreted as the
Python they stand for."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import _higher_order_ops as operators

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.polyfills import control_flow

POLYFILLS: dict[Any, types.FunctionType] = {
    torch.cond: control_flow.cond,
    operators.while_loop: control_flow.while_loop,
    operators.scan: control_flow.scan,
    operators.associative_scan: control_flow.associative_scan,
    operators.map: control_flow.map_over,
}


def _register(function: Any, polyfill: types.FunctionType) -> None:
    @intercept(function)
    def answer(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return Call(polyfill, args, kwargs)


for _function, _polyfill in POLYFILLS.items():
    _register(_function, _polyfill)
