"""torch's control-flow operators of known length (`scan`, `associative_scan`, `map`) are interpreted as the Python they
stand for. (`torch.cond` and `while_loop`: see `torch_control`.)"""

from __future__ import annotations

from typing import Any

from torch import _higher_order_ops as operators

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.polyfills import control_flow

POLYFILLS: dict[Any, Any] = {
    operators.scan: control_flow.scan,
    operators.associative_scan: control_flow.associative_scan,
    operators.map: control_flow.map_over,
}


def _register(function: Any, polyfill: Any) -> None:
    @intercept(function)
    def answer(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return Call(polyfill, args, kwargs)


for _function, _polyfill in POLYFILLS.items():
    _register(_function, _polyfill)
