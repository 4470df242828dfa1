"""Control flow that depends on data: `torch.cond` and `while_loop` become operations over graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._higher_order_ops import while_loop
from torch.utils import _pytree as pytree

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.parts import part_of
from bolide.dynamo.polyfills import control_flow
from bolide.dynamo.torch_autograd import effects_so_far
from bolide.support.errors import Unsupported
from bolide.tracing import TensorMeta, TracedTensor, branches
from bolide.tracing.branches import Part, Places, Repetition, as_function
from bolide.tracing.tables import enter

Args = list[Any]
Kwargs = dict[str, Any]


@intercept(torch.cond)
def _cond(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A condition that is known chooses now; one that is data becomes an operation on the graphs of both branches."""
    given = {**dict(zip(("pred", "true_fn", "false_fn", "operands"), args)), **kwargs}
    pred, operands = given["pred"], list(given.get("operands", ()))
    if type(pred) is not TracedTensor or (known := vm.trace.known(pred)) is not None:
        chosen = pred if type(pred) is not TracedTensor else bool(known)
        return Call(control_flow.cond, [chosen, given["true_fn"], given["false_fn"], operands])
    vm.trace.where = vm.where()
    vm.world.trace.functional_only = "control flow depends on data"
    recorded = [_record(vm, given[name], operands) for name in ("true_fn", "false_fn")]
    specs = [spec for _, _, spec in recorded]
    plain = [[_meta(result) for result in results] for _, results, _ in recorded]
    if specs[0] != specs[1] or plain[0] != plain[1]:
        raise Unsupported(
            f"the branches of torch.cond give different results: {plain[0]} and {plain[1]}",
            vm.where(),
            "return tensors of equal shapes and types",
            kind="control_flow",
        )
    made = branches.choose(vm.trace, pred, [(part, results) for part, results, _ in recorded])
    return pytree.tree_unflatten(made, specs[0])


def _record(vm: Machine, function: Any, operands: Sequence[Any]) -> tuple[Part, list[TracedTensor], Any]:
    """The graph of one branch, its results, and how they are arranged."""
    before = effects_so_far(vm)
    with part_of(vm) as part:
        result = vm.evaluate(function, list(operands))
    if effects_so_far(vm) != before:
        raise Unsupported(
            "a branch that depends on data has an effect outside",
            vm.where(),
            "return the value instead",
            kind="control_flow",
        )
    results, spec = pytree.tree_flatten(result)
    for value in results:
        if type(value) is not TracedTensor:
            raise Unsupported(
                f"a branch that depends on data returns a {type(value).__name__}", vm.where(), kind="control_flow"
            )
    part.check()
    return part, [part.adopt(value) for value in results], spec


def _meta(result: TracedTensor) -> TensorMeta:
    return branches.dense(result.meta)


@intercept(while_loop)
def _while(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A loop on data is an operation; with gradients it is a loop of the program."""
    given = {**dict(zip(("cond_fn", "body_fn", "carried_inputs"), args)), **kwargs}
    goes_on, step, carried = given["cond_fn"], given["body_fn"], list(given["carried_inputs"])
    plain = Call(control_flow.while_loop, [goes_on, step, tuple(carried)])
    if not all(type(value) is TracedTensor for value in carried) or torch.is_grad_enabled():
        return plain
    vm.trace.where = vm.where()
    vm.world.trace.functional_only = "control flow depends on data"
    parts = []
    for function in (goes_on, step):
        part, results, _ = _loop_part(vm, function, carried)
        parts.append((part, results))
    if [_meta(result) for result in parts[1][1]] != [_meta(value) for value in carried]:
        return plain
    mine = {id(value) for value in carried}
    others = {id(operand): operand for part, _ in parts for operand in part.operands if id(operand) not in mine}
    outer = [*carried, *others.values()]
    place = Places(outer, [part for part, _ in parts])
    runs = [place.picking(as_function(part, results), part) for part, results in parts]
    table = enter(Repetition(runs[0], runs[1], tuple(_meta(result) for result in parts[1][1])))
    nodes = [vm.trace.adopt(operand).node for operand in outer]
    sizes = vm.trace.unwrap(place.sizes(vm.trace))
    made = vm.trace.call(branches.repeat, nodes[: len(carried)], nodes[len(carried) :], sizes, table)
    return tuple(vm.trace.wrap(made))


def _loop_part(vm: Machine, function: Any, carried: list[TracedTensor]) -> tuple[Part, list[TracedTensor], Any]:
    part, results, spec = _record(vm, function, carried)
    if spec.type not in (tuple, list, None):
        raise Unsupported("a loop whose body returns no tuple", vm.where(), kind="control_flow")
    return part, [part.adopt(result) for result in results], spec
