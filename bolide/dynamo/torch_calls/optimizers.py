"""Optimizers inside captured code. Their Python code is interpreted; step counts are data, so what eager computes from
them in Python floats is computed in the graph, in float64 as well (`bolide.tracing.scalars`)."""

from __future__ import annotations

from typing import Any

from torch.optim import adagrad, adam, optimizer, sgd

from bolide.dynamo.machine.calls import SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.torch_calls.tensors import float_in
from bolide.tracing import TracedTensor

Args = list[Any]
Kwargs = dict[str, Any]


@intercept(optimizer._get_value)
def _get_value(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return float_in(vm, args[0]) if type(args[0]) is TracedTensor else args[0]


@intercept(optimizer._stack_if_compiling)
def _stack_if_compiling(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """As in eager: what comes from `_get_value` are floats here, too."""
    return args[0]


@intercept(optimizer.Optimizer._group_tensors_by_device_and_dtype)
def _group_tensors(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """As in eager, by device and type: code for compilers puts all in one group, of no type, which some ask for."""
    lists, *rest = args
    with_indices = rest[0] if rest else kwargs.get("with_indices", False)
    groups: dict[Any, Any] = {}
    for place, first in enumerate(lists[0]):
        grouped, indices = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for mine, theirs in zip(grouped, lists):
            if theirs:
                mine.append(theirs[place])
        if with_indices:
            indices.append(place)
    return groups


def _fused(module: Any, name: str) -> None:
    """A fused kernel computes what the loop over parameters does, but for the last bits: it is called itself where a
    graph of calls is wanted."""
    single, fused = getattr(module, f"_single_tensor_{name}"), getattr(module, f"_fused_{name}")

    @intercept(fused)
    def answer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        if vm.recorder is None:
            return Call(single, args, kwargs)
        vm.enter(fused, args, kwargs)
        return SWITCHED


for _module, _name in [(sgd, "sgd"), (adam, "adam"), (adagrad, "adagrad")]:
    _fused(_module, _name)
