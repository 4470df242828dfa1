"""`nn.TransformerEncoder` in evaluation: eager computes on nested tensors where it can, and so leaves zeros where there
is padding. The same is computed here on padded ones."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo.calls import SWITCHED, intercept
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.operations import polyfill
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.program import Source

_FORWARD = torch.nn.TransformerEncoder.forward


@intercept(_FORWARD)
def _encode(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Call(polyfill("encode"), args, kwargs)


@intercept(torch_functions.encode_plainly)
def _encode_plainly(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    vm.enter(_FORWARD, args, kwargs)  # type: ignore[arg-type]
    return SWITCHED


@intercept(torch.backends.mha.get_fastpath_enabled)
def _is_enabled(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    enabled = torch.backends.mha.get_fastpath_enabled()
    vm.world.guard(Source("apply", Source("object", None, None, torch.backends.mha), (), _ask), "equals", enabled)
    return enabled


def _ask(module: Any) -> bool:
    return bool(module.get_fastpath_enabled())
