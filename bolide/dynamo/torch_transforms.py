"""Transforms of torch.func that are more than functions of tensors."""

from __future__ import annotations

from typing import Any

from torch import func

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Machine
from bolide.support.errors import Unsupported

Args = list[Any]
Kwargs = dict[str, Any]


@intercept(func.linearize)
def _linearize(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """It traces the function itself and folds what is constant in it, which nothing is here."""
    raise Unsupported(
        "torch.func.linearize traces its function", vm.where(), "use torch.func.jvp", "operator", operation="linearize"
    )
