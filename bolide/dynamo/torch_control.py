"""Control flow that depends on data: `torch.cond` and `while_loop` become operations over graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._higher_order_ops import while_loop
from torch.utils import _pytree as pytree

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Call, Machine, part_of
from bolide.dynamo.operations import class_of
from bolide.dynamo.polyfills import control_flow
from bolide.dynamo.torch_control_flow import (
    carried,
    check_alike,
    check_operands,
    check_results,
    leaves_of,
    refused,
    without_effects,
)
from bolide.tracing import TracedTensor, branches
from bolide.tracing.branches import Part, Places, Repetition, as_function, common_layout
from bolide.tracing.rules.common import is_dense
from bolide.tracing.tables import enter

Args = list[Any]
Kwargs = dict[str, Any]


@intercept(torch.cond)
def _cond(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A condition that is known chooses now; one that is data becomes an operation on the graphs of both branches."""
    given = {**dict(zip(("pred", "true_fn", "false_fn", "operands"), args)), **kwargs}
    pred, operands = given["pred"], _arguments(vm, given.get("operands", ()))
    functions = [given["true_fn"], given["false_fn"]]
    if isinstance(pred, torch.Tensor) and torch._C._functorch.is_batchedtensor(pred):
        return Call(control_flow.both, [pred, *functions, operands])
    if type(pred) is not TracedTensor or vm.trace.known(pred) is not None:
        chosen = pred if type(pred) is not TracedTensor else bool(pred)
        return Call(control_flow.cond, [chosen, *functions, operands])
    if pred.numel() != 1:
        raise refused(vm, "the condition of torch.cond has not one value")
    vm.trace.where = vm.where()
    vm.world.trace.functional_only = "control flow depends on data"
    ways, specs = [], []
    for function in functions:
        part, results, spec = _record(vm, function, operands)
        check_operands(vm, part.operands)
        ways.append((part, results))
        specs.append(spec)
    metas = [list(map(carried, results)) for _, results in ways]
    if specs[0] != specs[1] or metas[0] != metas[1] or not all(is_dense(meta.shape, meta.stride) for meta in metas[0]):
        raise refused(vm, f"the branches of torch.cond give different results: {metas[0]} and {metas[1]}")
    return pytree.tree_unflatten(branches.choose(vm.trace, pred, ways, always=True), specs[0])


def _arguments(vm: Machine, operands: Any) -> tuple[Any, ...]:
    """What the functions are called with."""
    if class_of(operands) not in (tuple, list):
        raise refused(vm, "the operands of control flow are no tuple")
    return tuple(vm.evaluate(tuple, [operands]))


def _record(vm: Machine, function: Any, operands: Sequence[Any]) -> tuple[Part, list[TracedTensor], Any]:
    """The graph of one branch or of a step of a loop, its results, and how they are arranged."""
    with part_of(vm) as part, without_effects(vm):
        result = vm.evaluate(function, list(operands))
    results, spec = pytree.tree_flatten(result)
    part.check()
    check_results(vm, results, part.has_made)
    return part, results, spec


@intercept(while_loop)
def _while(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A loop on data is an operation; with gradients it is a loop of the program."""
    given = {**dict(zip(("cond_fn", "body_fn", "carried_inputs"), args)), **kwargs}
    goes_on, step, inputs = given["cond_fn"], given["body_fn"], _arguments(vm, given["carried_inputs"])
    leaves = leaves_of(vm, inputs)
    if not all(type(value) is TracedTensor for value in leaves):
        return Call(control_flow.while_loop, [goes_on, step, inputs, inputs])
    vm.trace.where = vm.where()
    inside = vm.evaluate(pytree.tree_map, [torch.Tensor.detach, inputs])  # the functions may close over what is carried
    condition = _condition(vm, goes_on, inside)
    part, results, spec = _record(vm, step, inside)
    check_alike(vm, leaves, results)
    operands = [*leaves, *part.operands, *(condition[0].operands if condition else ())]
    if condition is None or (torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)):
        return Call(control_flow.while_loop, [goes_on, step, inputs, pytree.tree_unflatten(leaves, spec)])
    vm.world.trace.functional_only = "control flow depends on data"
    return pytree.tree_unflatten(_repeated(vm, leaves_of(vm, inside), [condition, (part, results)]), spec)


def _condition(vm: Machine, function: Any, inputs: Sequence[Any]) -> tuple[Part, list[TracedTensor]] | None:
    """The graph of the condition of a loop; None if it is no data."""
    with part_of(vm) as part, without_effects(vm):
        result = vm.evaluate(function, list(inputs))
    part.check()
    if type(result) is TracedTensor and result.dtype is torch.bool and not result.dim():
        return part, [part.adopt(result)]
    if isinstance(result, (bool, torch.SymBool)):
        return None
    raise refused(vm, "the condition of while_loop is neither a truth value nor a tensor of one")


def _repeated(vm: Machine, carried: Sequence[TracedTensor], parts: Sequence[tuple[Part, list[TracedTensor]]]) -> Any:
    """The operation `bolide::repeat` over the graphs of a condition and a step."""
    mine = {id(value) for value in carried}
    others = {id(operand): operand for part, _ in parts for operand in part.operands if id(operand) not in mine}
    outer = [*carried, *others.values()]
    place = Places(outer, [part for part, _ in parts])
    runs = [place.picking(as_function(part, results), part) for part, results in parts]
    metas = tuple([common_layout([result.meta]) for result in parts[1][1]])
    table = enter(Repetition(runs[0], runs[1], metas))
    nodes = [vm.trace.adopt(operand).node for operand in outer]
    sizes = vm.trace.unwrap(place.sizes(vm.trace))
    made = vm.trace.call(branches.repeat, nodes[: len(carried)], nodes[len(carried) :], sizes, table)
    return vm.trace.wrap(made)
