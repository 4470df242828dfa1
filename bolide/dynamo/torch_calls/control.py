"""torch's control-flow operators. `torch.cond` and `while_loop`, which depend on data, become operations over graphs of
their own; those of known length are interpreted as the Python they stand for: `map`, `scan`, `associative_scan`. The
functions that they are given may have no effects, and their results are new; what eager refuses is a break.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import _higher_order_ops as operators
from torch._higher_order_ops import strict_mode, while_loop
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree

from bolide.dynamo.config import config
from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table
from bolide.dynamo.machine.calls import intercept
from bolide.dynamo.machine.interpreter import Call, Machine, part_of
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.opcodes.undo import State
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.state import state
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor
from bolide.tracing.called import branches, levels
from bolide.tracing.called.branches import Part
from bolide.tracing.numbers import data
from bolide.tracing.rng import DRAWS
from bolide.tracing.rules.common import is_dense


@answers(torch.cond)
def _cond(vm: Machine, pred: Any, true_fn: object, false_fn: object, operands: object = ()) -> object:
    """A condition that is known chooses now; one that is data becomes an operation on the graphs of both branches.
    Under a transform that has a condition for each item, or derives, both branches are computed."""
    operands, functions = _arguments(vm, operands), [true_fn, false_fn]
    if not issubclass(class_of(pred), (bool, int, float, torch.Tensor, torch.SymBool)):
        raise refused(vm, f"the condition of torch.cond is a {class_of(pred).__name__}")
    if state.exporting and type(pred) is torch.SymBool and pred.node.env.decide(pred.node.expr) is None:
        pred = data.as_tensor(vm.trace, pred)  # one graph for all sizes, where `compile` makes versions
    if not isinstance(pred, torch.Tensor):
        return Call(torch_functions.cond, [pred, *functions, operands])
    if type(pred) is not TracedTensor or not levels.only_batched():
        return Call(torch_functions.both, [pred, *functions, operands])
    if vm.trace.known(pred) is not None:
        return Call(torch_functions.cond, [bool(pred), *functions, operands])
    if pred.numel() != 1:
        raise refused(vm, "the condition of torch.cond has not one value")
    vm.trace.where = vm.where()
    vm.world.trace.functional_only = "control flow depends on data"
    first, second = [_record(vm, function, operands) for function in functions]
    for way in (first, second):
        way.part.check(writes=not torch.is_grad_enabled())  # as torch
    written = list({id(outer): outer for way in (first, second) for outer in way.part.written()}.values())
    ways = [(way.part, [*way.results, *map(way.part.adopt, written)]) for way in (first, second)]
    for way in (first, second):
        check_operands(vm, way.part.operands)
    metas = [list(map(carried, results)) for _, results in ways]
    dense = all(is_dense(meta.shape, meta.stride) for meta in metas[0])
    if first.spec != second.spec or first.numbers != second.numbers or metas[0] != metas[1] or not dense:
        raise refused(vm, f"the branches of torch.cond give different results: {metas[0]} and {metas[1]}")
    with levels.left():
        chosen = branches.choose(vm.trace, pred, ways, always=True)
    for outer, value in zip(written, chosen[len(first.results) :]):
        vm.evaluate(torch.Tensor.copy_, [outer, value])
    leaves = list(map(levels.entered, chosen[: len(first.results)]))
    for place in first.numbers:
        leaves[place] = vm.evaluate(torch.Tensor.item, [leaves[place]])
    return pytree.tree_unflatten(leaves, first.spec)


def _arguments(vm: Machine, operands: Any) -> tuple[Any, ...]:
    """What the functions are called with."""
    if class_of(operands) not in (tuple, list):
        raise refused(vm, "the operands of control flow are no tuple")
    return tuple(vm.evaluate(tuple, [operands]))


class _Way(NamedTuple):
    """The graph of one branch or of a step of a loop, its results, how they are arranged, and the places of those that
    the program has as integers."""

    part: Part
    results: list[TracedTensor]
    spec: pytree.TreeSpec
    numbers: list[int]


def _record(vm: Machine, function: object, operands: Sequence[object]) -> _Way:
    """What a function of the program's does. Its part has still to be checked."""
    with part_of(vm) as part, without_effects(vm):
        result = vm.evaluate(function, list(operands))
        results, spec = pytree.tree_flatten(result)
        numbers = [place for place, leaf in enumerate(results) if type(leaf) in (int, torch.SymInt)]
        for place in numbers:
            results[place] = torch.full((), results[place], dtype=torch.int64)
        results = [part.adopt(levels.stripped(value)) for value in results]
    check_results(vm, results, part.has_made)
    return _Way(part, results, spec, numbers)


@answers(while_loop)
def _while(vm: Machine, cond_fn: object, body_fn: object, carried_inputs: object) -> object:
    """A loop on data is an operation; with random numbers, or a length that turns out to be known, it is a loop of the
    program."""
    inputs = _arguments(vm, carried_inputs)
    leaves = leaves_of(vm, inputs)
    if not all(type(value) is TracedTensor for value in leaves):
        return Call(torch_functions.while_loop, [cond_fn, body_fn, inputs, inputs])
    vm.trace.where = vm.where()
    inside = vm.evaluate(pytree.tree_map, [torch.Tensor.detach, inputs])  # the functions may close over what is carried
    condition = _condition(vm, cond_fn, inside)
    part, results, spec, _ = _record(vm, body_fn, inside)
    part.check()
    check_alike(vm, leaves, results)
    derives = condition is not None and _derives(leaves, part, condition[0])
    draws = condition is not None and (_draws(part) or _draws(condition[0]))
    if condition is None or draws or (derives and not _is_derivable(vm, cond_fn, inputs, part)):
        return Call(torch_functions.while_loop, [cond_fn, body_fn, inputs, pytree.tree_unflatten(leaves, spec)])
    from bolide.tracing.called import loops  # of the few programs that have some

    vm.world.trace.functional_only = "control flow depends on data"
    known, others = leaves_of(vm, inside), [*part.operands, *condition[0].operands]
    mine = set(map(id, known))
    outer = list({id(operand): operand for operand in others if id(operand) not in mine}.values())
    return pytree.tree_unflatten(loops.looped(vm.trace, leaves, known, outer, [condition, (part, results)]), spec)


def _derives(leaves: Sequence[TracedTensor], *parts: Part) -> bool:
    """Whether a loop has gradients."""
    operands = [*leaves, *[operand for part in parts for operand in part.operands]]
    return torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)


def _is_derivable(vm: Machine, cond_fn: object, inputs: Sequence[object], step: Part) -> bool:
    """Whether a loop with gradients is an operation: its step can be derived, and its length is not known."""
    if step.derivation.is_own or step.functional_only:
        return False
    return vm.trace.known(vm.evaluate(cond_fn, list(inputs))) is None


def _draws(part: Part) -> bool:
    """Whether a part makes random numbers, which would be the same in each step of a loop."""
    return any(node.target in DRAWS for node in part.graph.nodes)


def _condition(vm: Machine, function: object, inputs: Sequence[object]) -> tuple[Part, list[TracedTensor]] | None:
    """The graph of the condition of a loop; None if it is no data."""
    with part_of(vm) as part, without_effects(vm):
        result = vm.evaluate(function, list(inputs))
    part.check()
    if type(result) is TracedTensor and result.dtype is torch.bool and not result.dim():
        return part, [part.adopt(result)]
    if isinstance(result, (bool, torch.SymBool)):
        return None
    raise refused(vm, "the condition of while_loop is neither a truth value nor a tensor of one")


REMEDY = "give the functions what they need as operands, and return new tensors"


def refused(vm: Machine, reason: str) -> Unsupported:
    return vm.unsupported(reason, "control_flow", REMEDY)


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
    results = list(map(levels.inside, results))
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


def check_alike(vm: Machine, given: Sequence[Any], results: Sequence[Any]) -> None:
    """What a step of a loop makes of carried values can be carried on."""
    if [carried(value) for value in given] != [carried(value) for value in results]:
        raise refused(
            vm, f"a loop is given {list(map(carried, given))}, and goes on with {list(map(carried, results))}"
        )


def carried(value: Any) -> Any:
    """What stays as it is of a value that a loop carries along."""
    if levels.inside(value) is not value:
        return value.shape, value.dtype
    if type(value) is not TracedTensor:
        return type(value).__name__
    return value.meta._replace(offset=0, requires_grad=False)


def check_slices(vm: Machine, leaves: Sequence[Any], dim: int = 0) -> None:
    """What a loop goes over is tensors that have this dimension, of one length, which is not 0."""
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise refused(vm, "an operator of control flow goes over something that is no tensor")
    if not isinstance(dim, int) or not all(-leaf.dim() <= dim < leaf.dim() for leaf in leaves):
        raise refused(vm, "an operator of control flow goes over a dimension that is not there")
    length = leaves[0].shape[dim]
    if length == 0 or not all(leaf.shape[dim] == length for leaf in leaves):
        raise refused(vm, "an operator of control flow goes over nothing, or over different lengths")


@answers(branches.again, recorded=True)
def _again(vm: Machine, graph: Outside, given: Sequence[object]) -> list[object]:
    """A graph of ours, that of a compiled function's backward, is recorded as a part of this one."""
    return list(branches.run_again(vm.trace, graph.real, given))


# ---- operators of known length ---------------------------------------------------------------------------------------


def _is_loop(vm: Machine, leaves: Sequence[torch.Tensor], dim: int = 0) -> bool:
    """Whether what goes over these tensors becomes a loop. Shorter ones are unrolled, and what transforms look into."""
    if torch._C._functorch.peek_interpreter_stack() is not None or not all(type(x) is TracedTensor for x in leaves):
        return False
    most, length = config.unrolled_steps, leaves[0].shape[dim]
    return most is not None and (not isinstance(length, int) or length > most)


def _looped(vm: Machine, function: object, init: object, xs: object, dim: int, reverse: bool) -> object:
    """A loop as an operation: what is carried on in the end, and the results stacked along the first dimension. None
    where it has to be unrolled: numbers among the results, random draws, derivatives of its own."""
    from bolide.tracing.called import scans  # of the few programs that have some

    carried_first, leaves = leaves_of(vm, init), leaves_of(vm, xs)
    slices = [vm.evaluate(torch.movedim, [leaf, dim, 0]) if dim else leaf for leaf in leaves]
    vm.trace.where = vm.where()
    inside = [vm.evaluate(torch.Tensor.detach, [value]) for value in carried_first]  # it may close over what is carried
    inside += [vm.evaluate(torch.select, [value, 0, 0]) for value in slices]
    first, items = inside[: len(carried_first)], inside[len(carried_first) :]
    given = [vm.evaluate(pytree.tree_structure, [tree]) for tree in (init, xs)]
    arguments = [pytree.tree_unflatten(values, spec) for values, spec in zip((first, items), given)]
    way = _record(vm, function, arguments if carried_first else arguments[1:])
    part = way.part
    if _draws(part) or part.draws() or way.numbers or part.derivation.is_own or part.functional_only:
        return None
    part.check()
    check_alike(vm, carried_first, way.results[: len(carried_first)])
    vm.world.trace.functional_only = "control flow is a loop"
    found = scans.over_slices(vm.trace, part, way.results, inside, (carried_first, slices), reverse)
    return pytree.tree_unflatten(found, way.spec)


@answers(operators.map)
def _map(vm: Machine, f: Callable[..., object], xs: object, *args: object) -> object:
    leaves = leaves_of(vm, xs)
    check_slices(vm, leaves)
    check_operands(vm, [*leaves, *leaves_of(vm, args)])
    if _is_loop(vm, leaves):
        looped = _looped(vm, functools.partial(torch_functions.map_step, f, args), (), xs, 0, False)
        if looped is not None:
            return looped
    with without_effects(vm):
        return vm.evaluate(torch_functions.map_over, [f, xs, *args])


@answers(operators.scan)
def _scan(vm: Machine, combine_fn: object, init: object, xs: object, *, dim: int = 0, reverse: bool = False) -> object:
    leaves, carried_first = leaves_of(vm, xs), leaves_of(vm, init)
    if leaves:
        check_slices(vm, leaves, dim)
        tensors = bool(carried_first) and all(isinstance(value, torch.Tensor) for value in carried_first)
        if not tensors or type(reverse) is not bool:
            raise refused(vm, "a scan begins with something that is no tensor")
        if _is_loop(vm, [*leaves, *carried_first], dim):
            looped = _looped(vm, combine_fn, init, xs, dim, reverse)
            if looped is not None:
                carry, results = cast(tuple[object, object], looped)
                return carry, vm.evaluate(torch_functions.moved_results, [results, dim % leaves[0].dim()])
    with without_effects(vm):
        options = {"dim": dim, "reverse": reverse}
        carry, results = vm.evaluate(torch_functions.scan, [combine_fn, init, xs], options)
    if leaves:
        check_alike(vm, carried_first, pytree.tree_leaves(carry))
    return carry, results


@answers(operators.associative_scan)
def _associative_scan(vm: Machine, combine_fn: object, xs: object, dim: int, *rest: object, **options: object) -> Call:
    check_slices(vm, leaves_of(vm, xs), dim)
    return Call(torch_functions.associative_scan, [combine_fn, xs, dim, *rest], options)


@answers(torch_functions.applied)
def _applied(vm: Machine, function: object, *given: object) -> object:
    """A step of a loop that is unrolled."""
    graph = vm.trace.graph
    before = graph._root._prev
    result = vm.evaluate(function, list(given))
    node, nodes = graph._root._prev, set()
    while node is not before and node is not graph._root:
        nodes.add(node)
        node = node._prev
    check_results(vm, pytree.tree_leaves(result), lambda value: value.group.base in nodes)
    return result


# ---- the operators themselves, as `torch.ops.higher_order` has them --------------------------------------------------
# Those that mark a region for others' compilers are a call of its function.

_operators = torch.ops.higher_order


def _call_of(operator: HigherOrderOperator) -> Callable[..., object]:
    return type(operator).__call__  # each class has its own


@intercept_table(
    {
        _call_of(_operators.cond): torch.cond,
        _call_of(_operators.while_loop): torch_functions.while_loop_operator,
        _call_of(_operators.map_impl): torch_functions.map_operator,
        _call_of(_operators.scan): torch_functions.scan_operator,
        _call_of(_operators.associative_scan): torch_functions.associative_scan_operator,
        _call_of(_operators.strict_mode): torch_functions.call_with,
        _call_of(_operators.hints_wrapper): torch_functions.call_with,
        _call_of(_operators.invoke_subgraph): torch_functions.call_subgraph,
    }
)
def _as_function(method: object, function: object, vm: Machine, args: Args, kwargs: Kwargs) -> Call:
    return Call(function, args[1:], kwargs)


answers(strict_mode)(lambda vm, callable, operands: Call(torch_functions.call_with, [callable, operands]))


@answers(invoke_subgraph_placeholder)
def _region(vm: Machine, func: object, *args: object, **kwargs: object) -> Call:
    """What `torch.compiler.nested_compile_region` has marked is called. The operations of a call are marked, so that
    code is generated once for calls that are alike."""
    return Call(torch_functions.nested, [func, args, kwargs])


@answers(torch_functions.begin_nested)
def _begin(vm: Machine) -> None:
    vm.trace.nested.append(object())


@answers(torch_functions.end_nested)
def _end(vm: Machine) -> None:
    if vm.trace.nested:  # else it began in another segment
        vm.trace.nested.pop()


@intercept(_call_of(_operators.out_dtype))
def _out_dtype(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Nothing of the program's is called: it runs natively."""
    vm.trace.where = vm.where()
    return _operators.out_dtype(*args[1:], **kwargs)


@intercept(_call_of(_operators.print))
def _print(vm: Machine, args: Args, kwargs: Kwargs) -> None:
    """What is printed is printed when the graph has run."""
    text = vm.evaluate(str.format, args[1:], kwargs)
    vm.later.calls.append((builtins.print, [text], {}))
