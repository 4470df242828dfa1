"""Optimizers inside captured code. Their Python code is interpreted; step counts are data, so what eager computes from
them in Python floats is computed in the graph, in float64 as well (`bolide.tracing.numbers.scalars`)."""

from __future__ import annotations

from typing import Any

from torch.optim import adagrad, adam, optimizer, sgd

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table
from bolide.dynamo.machine.calls import SWITCHED
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.torch_calls.tensors import float_in
from bolide.tracing import TracedTensor


@answers(optimizer._get_value)
def _get_value(vm: Machine, x: object) -> object:
    return float_in(vm, x) if type(x) is TracedTensor else x


@answers(optimizer._stack_if_compiling)
def _stack_if_compiling(vm: Machine, x: object) -> object:
    """As in eager: what comes from `_get_value` are floats here, too."""
    return x


@answers(optimizer.Optimizer._group_tensors_by_device_and_dtype)
def _group_tensors(vm: Machine, lists: Any, with_indices: bool = False) -> object:
    """As in eager, by device and type: code for compilers puts all in one group, of no type, which some ask for."""
    groups: dict[Any, Any] = {}
    for place, first in enumerate(lists[0]):
        grouped, indices = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for mine, theirs in zip(grouped, lists):
            if theirs:
                mine.append(theirs[place])
        if with_indices:
            indices.append(place)
    return groups


_MODULES: dict[str, Any] = {"sgd": sgd, "adam": adam, "adagrad": adagrad}
_FUSED = {
    getattr(module, f"_fused_{name}"): getattr(module, f"_single_tensor_{name}") for name, module in _MODULES.items()
}


@intercept_table(_FUSED)
def _compute_fused(fused: Any, single: object, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A fused kernel computes what the loop over parameters does, but for the last bits: it is called itself where a
    graph of calls is wanted."""
    if vm.recorder is None:
        return Call(single, args, kwargs)
    vm.enter(fused, args, kwargs)
    return SWITCHED
