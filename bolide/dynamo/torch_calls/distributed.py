"""Collectives inside captured code: those that write their argument are recorded in their functional form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from bolide.dynamo.library.handlers import answers
from bolide.dynamo.machine.calls import NATIVE
from bolide.dynamo.machine.interpreter import Machine
from bolide.tracing import TracedTensor

_REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max"}


def _collective(function: Any, results: str, compute: Callable[[Any, str, int], Any]) -> None:
    """`function` as an operation over the default group: `compute` takes its arguments, the group's name and size, and
    gives what is to be written to the argument `results`."""
    signature = inspect.signature(function)

    @answers(function)
    def answer(vm: Machine, *args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        world: Any = distributed.group.WORLD if distributed.is_initialized() else None
        op = getattr(given.get("op"), "name", "SUM")
        targets = given[results] if type(given[results]) is list else [given[results]]
        tensors = [*targets, *(value for value in given.values() if isinstance(value, torch.Tensor))]
        plain = (
            world is not None
            and (given["group"] is None or given["group"] is world)
            and not given["async_op"]
            and op in _REDUCTIONS
            and all(type(tensor) is TracedTensor and not tensor.requires_grad for tensor in tensors)
        )
        if not plain:
            return NATIVE
        vm.trace.where = vm.where()
        given["op"] = _REDUCTIONS[op]
        result = torch.ops._c10d_functional.wait_tensor(compute(given, world.group_name, world.size()))
        for target, value in zip(targets, result.chunk(len(targets))):
            target.copy_(value.view_as(target))
        return None


if distributed.is_available():
    _ops = torch.ops._c10d_functional
    _collective(
        distributed.all_reduce, "tensor", lambda given, name, _: _ops.all_reduce(given["tensor"], given["op"], name)
    )
    _collective(
        distributed.all_gather_into_tensor,
        "output_tensor",
        lambda given, name, size: _ops.all_gather_into_tensor(given["input_tensor"], size, name),
    )
    _collective(
        distributed.all_gather,
        "tensor_list",
        lambda given, name, size: _ops.all_gather_into_tensor(given["tensor"], size, name),
    )
    _collective(
        distributed.reduce_scatter_tensor,
        "output",
        lambda given, name, size: _ops.reduce_scatter_tensor(given["input"], given["op"], size, name),
    )
