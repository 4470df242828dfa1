"""torch's control-flow operators: what they ask of the functions that they are given, and those of known length, which
are interpreted as the Python they stand for: `map`, `scan`, `associative_scan`. (`cond` and `while_loop` are in
`torch_control`.)

The functions may have no effects, and their results are new. Eager refuses whatever does otherwise. In captured code
that is a break in front of the operator, so that eager says it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import _higher_order_ops as operators
from torch.utils import _pytree as pytree

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.polyfills import control_flow
from bolide.dynamo.undo import State
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor

Args = list[Any]
Kwargs = dict[str, Any]

REMEDY = "give the functions what they need as operands, and return new tensors"


def refused(vm: Machine, reason: str) -> Unsupported:
    return Unsupported(reason, vm.where(), REMEDY, kind="control_flow")


@contextlib.contextmanager
def without_effects(vm: Machine) -> Iterator[None]:
    """What is interpreted inside may change nothing that was there before."""
    before, versions = State(vm), _versions(vm)
    yield
    if before.changed() or before.writes() or _versions(vm) != versions:
        raise refused(vm, "a function that an operator of control flow calls has an effect outside")


def _versions(vm: Machine) -> list[int]:
    """How often inputs have been written; those that nothing has written may become more."""
    return [leaf.group.version for leaf in vm.world.trace.leaves if leaf.group.version]


def leaves_of(vm: Machine, value: Any) -> list[Any]:
    """The leaves of a tree that the program has, which may come from outside."""
    leaves: list[Any] = vm.evaluate(pytree.tree_leaves, [value])
    return list(leaves)


def check_results(vm: Machine, results: Sequence[Any], is_own: Callable[[TracedTensor], bool]) -> None:
    """Results are tensors, each in memory of its own."""
    for value in results:
        if type(value) is not TracedTensor:
            raise refused(vm, f"a function that an operator of control flow calls returns a {type(value).__name__}")
    if len({id(value.group) for value in results}) < len(results) or not all(map(is_own, results)):
        raise refused(vm, "a function that an operator of control flow calls returns a tensor that shares memory")


def check_operands(vm: Machine, operands: Sequence[Any]) -> None:
    """No two different operands share memory."""
    tensors = {id(value): value for value in operands if type(value) is TracedTensor}
    if len({id(tensor.group) for tensor in tensors.values()}) < len(tensors):
        raise refused(vm, "operands of control flow share memory")


def check_alike(vm: Machine, given: Sequence[Any], made: Sequence[Any]) -> None:
    """What a step of a loop makes of carried values can be carried on."""
    if [carried(value) for value in given] != [carried(value) for value in made]:
        raise refused(vm, f"a loop is given {list(map(carried, given))}, and goes on with {list(map(carried, made))}")


def carried(value: Any) -> Any:
    """What stays as it is of a value that a loop carries along."""
    if type(value) is not TracedTensor:
        return type(value).__name__
    return value.meta._replace(offset=0, requires_grad=False)


def check_slices(vm: Machine, leaves: Sequence[Any], dim: int = 0) -> None:
    """What a loop goes over is tensors that have this dimension, of one length, which is not 0."""
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise refused(vm, "an operator of control flow goes over something that is no tensor")
    if not isinstance(dim, int) or not all(-leaf.dim() <= dim < leaf.dim() for leaf in leaves):
        raise refused(vm, "an operator of control flow goes over a dimension that is not there")
    lengths = {int(leaf.shape[dim]) for leaf in leaves}
    if len(lengths) > 1 or 0 in lengths:
        raise refused(vm, "an operator of control flow goes over nothing, or over different lengths")


# ---- operators of known length ---------------------------------------------------------------------------------------


def _given(polyfill: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The arguments of a call by name. Raises TypeError where they do not fit."""
    bound = inspect.signature(polyfill).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


@intercept(operators.map)
def _map(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    given = _given(control_flow.map_over, args, kwargs)
    leaves = leaves_of(vm, given["xs"])
    check_slices(vm, leaves)
    check_operands(vm, [*leaves, *leaves_of(vm, given["args"])])
    with without_effects(vm):
        return vm.evaluate(control_flow.map_over, args, kwargs)


@intercept(operators.scan)
def _scan(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    given = _given(control_flow.scan, args, kwargs)
    leaves, init = leaves_of(vm, given["xs"]), leaves_of(vm, given["init"])
    if leaves:
        check_slices(vm, leaves, given["dim"])
        if not init or not all(type(value) is TracedTensor for value in init) or type(given["reverse"]) is not bool:
            raise refused(vm, "a scan begins with something that is no tensor")
    with without_effects(vm):
        carry, made = vm.evaluate(control_flow.scan, args, kwargs)
    if leaves:
        check_alike(vm, init, pytree.tree_leaves(carry))
    return carry, made


@intercept(operators.associative_scan)
def _associative_scan(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    given = _given(control_flow.associative_scan, args, kwargs)
    check_slices(vm, leaves_of(vm, given["xs"]), given["dim"])
    return Call(control_flow.associative_scan, args, kwargs)


@intercept(control_flow.applied)
def _applied(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A step of a loop that is unrolled."""
    function, *given = args
    graph = vm.trace.graph
    before = graph._root._prev
    result = vm.evaluate(function, given)
    node, made = graph._root._prev, set()
    while node is not before and node is not graph._root:
        made.add(node)
        node = node._prev
    check_results(vm, pytree.tree_leaves(result), lambda value: value.group.base in made)
    return result
