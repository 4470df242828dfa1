"""Methods of tensors that touch the world outside: gradients, numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import NoneType
from typing import Any, cast

import torch
from torch.autograd import forward_ad
from torch.fx import Node

from bolide.dynamo.config import config
from bolide.dynamo.guards.sizes import as_exprs
from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table
from bolide.dynamo.machine.breaking import in_optimizer
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill
from bolide.dynamo.machine.items import is_masked_write, write_masked
from bolide.dynamo.machine.operations import is_lazy
from bolide.dynamo.machine.stand_ins import OUTSIDE_NODE
from bolide.dynamo.machine.tensors import change_flag, outside_attributes, refuse_in_reentrant
from bolide.dynamo.program.captured import Source
from bolide.dynamo.torch_calls.checkpoint import refuse_gradients
from bolide.dynamo.torch_calls.hooks import hooks_of
from bolide.dynamo.torch_calls.subclasses import is_handle
from bolide.dynamo.world.makers import behind
from bolide.support.errors import Unsupported
from bolide.symbolic import same_sizes, without_zeros
from bolide.tracing import DataDependent, Trace, TracedTensor
from bolide.tracing.modes import engine_pass
from bolide.tracing.numbers import scalars
from bolide.tracing.numbers.scalars import TracedFloat

_ASK_OUTSIDE = "ask outside the compiled function"


@answers(torch.Tensor.requires_grad_, recorded=True)
def _requires_grad(vm: Machine, tensor: object, requires_grad: object = True) -> object:
    if type(tensor) is not TracedTensor:
        return NATIVE
    if tensor.requires_grad is bool(requires_grad):
        return tensor
    if vm.world.inputs.place(tensor) is not None:
        return change_flag(vm, tensor, bool(requires_grad))
    return tensor.requires_grad_(requires_grad)  # type: ignore[arg-type]


@answers(torch.Tensor.stride)
def _stride(vm: Machine, tensor: object, dim: int | None = None) -> object:
    """Strides made of sizes that are data, which may be 0."""
    if type(tensor) is not TracedTensor or not vm.trace.shapes.facts.names:
        return NATIVE
    sym_int, strides = vm.trace.shapes.sym_int, tensor.stride()
    shown = without_zeros(as_exprs(tensor.shape), as_exprs(strides))
    answer = [stride if expr.is_const else sym_int(expr) for stride, expr in zip(strides, shown)]
    return tuple(answer) if dim is None else answer[dim]


@answers(torch.Tensor.storage_offset, TracedTensor.storage_offset)
def _storage_offset(vm: Machine, tensor: object) -> object:
    """Guarded where it is an input's; a wrapper of a transform may hold any."""
    if isinstance(tensor, TracedTensor):
        return tensor.storage_offset()
    for given in vm.world.trace.inputs:
        vm.world.trace.rely_on_offset(given.group)
    return NATIVE


@answers(torch.Tensor._is_view)
def _is_view(vm: Machine, tensor: torch.Tensor) -> object:
    place = vm.world.inputs.place(tensor)
    if place is None:
        return NATIVE
    given, source = vm.world.inputs.given(place)
    if type(given) not in (torch.Tensor, torch.nn.Parameter):
        raise vm.unsupported("a subclass of Tensor is asked", "tensor_method", _ASK_OUTSIDE, "Tensor._is_view")
    vm.world.guards.add(Source("apply", source, (), torch.Tensor._is_view), "equals", given._is_view())
    return given._is_view()


@intercept(torch.autograd.graph.get_gradient_edge)
def _gradient_edge(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A node that the history outside has made is not at hand."""
    for tensor in (*args, *kwargs.values()):
        if isinstance(tensor, TracedTensor) and type(tensor.grad_fn) is OUTSIDE_NODE:
            reason, remedy = "an input with a history is asked", "return the tensor"
            raise vm.unsupported(reason, "tensor_method", remedy, "get_gradient_edge")
    return NATIVE


@answers(torch._C._is_alias_of)  # type: ignore[attr-defined]
def _is_alias_of(vm: Machine, first: object, second: object) -> object:
    """Whether two tensors share a storage: known of those that are made here, or of views of one tensor."""
    if not isinstance(first, TracedTensor) or not isinstance(second, TracedTensor):
        return NATIVE
    if first.group is second.group:
        return True
    vm.world.aliases.refuse((first, second))
    outside = [group.frozen or vm.trace.input_of(group) is not None for group in (first.group, second.group)]
    if type(vm.trace) is not Trace or all(outside):
        raise vm.unsupported("tensors from outside are compared", "tensor_method", _ASK_OUTSIDE, "is_alias_of")
    return False


_PUT = ("self", "indices", "values", "accumulate")
_IN_PLACE = dict.fromkeys((torch.Tensor.index_put_, torch.index_put_), torch.Tensor.index_put_)
_COPYING = dict.fromkeys((torch.Tensor.index_put, torch.index_put), torch.Tensor.index_put)


@intercept_table({**_IN_PLACE, **_COPYING})
def _masked_put(asked: object, function: object, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Differentiable values that are put where a mask says."""
    given: Kwargs = dict(zip(_PUT, args)) | kwargs
    owner: Any
    indices: Any
    owner, indices, values, adds = [given.get(name) for name in _PUT]
    if type(owner) is not TracedTensor or type(indices) not in (tuple, list) or len(given) > len(_PUT):
        return NATIVE
    if not is_masked_write(tuple(indices), values) or type(adds) not in (bool, NoneType):
        return NATIVE
    if not all(isinstance(index, torch.Tensor) for index in indices):
        return NATIVE  # raises

    def assign(target: Any, places: tuple[Any, ...]) -> Any:
        return target.index_put_(places, values, bool(adds))

    return write_masked(vm, function, [owner, indices, values, bool(adds)], tuple(indices), assign)


# ---- the engine ------------------------------------------------------------------------------------------------------


def run_engine(
    vm: Machine, outputs: Sequence[Any], gradients: Any, inputs: Sequence[Any], options: Sequence[bool]
) -> Sequence[Any]:
    """The autograd engine over traced tensors; what it computes is recorded. (`torch.autograd` itself would import
    sympy.) `gradients`: of the outputs, or None. `options`: those of `differentiate`."""
    refuse_in_reentrant(vm, "gradients are computed")
    vm.trace.where = vm.where()
    given = [None] * len(outputs) if gradients is None else _several(gradients)
    if len(given) != len(outputs):
        raise _odd(vm)
    tangents = []
    for output, tangent in zip(outputs, given):
        if tangent is not None and not same_sizes(tangent.shape, output.shape) and tangent.shape != output.shape:
            raise _odd(vm)
        if tangent is None and output.requires_grad:
            if output.numel() != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            tangent = torch.ones_like(output, memory_format=torch.preserve_format)
        tangents.append(tangent)
    if not all(output.requires_grad for output in outputs):
        if len(outputs) == 1:
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        raise RuntimeError("one of the differentiated Tensors does not require grad")
    run = functools.partial(differentiate, list(outputs), tangents, list(inputs), *options)
    recorder, accumulates = vm.recorder, options[-1]
    if recorder is not None and not accumulates:
        return recorder.as_one(differentiate, run.args, run)  # type: ignore[no-any-return]
    vm.trace.functional_only, vm.trace.derivation.passes = "gradients are accumulated inside", accumulates
    return run()


def _odd(vm: Machine) -> Unsupported:
    return vm.unsupported("gradients are asked for in a way that eager refuses, or warns of", "tensor_method")


def differentiate(
    outputs: Sequence[Any], tangents: Sequence[Any], inputs: Sequence[Any], keep: bool, create: bool, *rest: bool
) -> Sequence[Any]:
    """What the engine answers. `rest`: allow_unreachable, accumulate_grad."""
    return engine_pass(tuple(outputs), tuple(tangents), keep, create, tuple(inputs), *rest)


@answers(torch.autograd.backward)
def _backward(
    vm: Machine,
    tensors: object,
    grad_tensors: object = None,
    retain_graph: object = None,
    create_graph: object = False,
    grad_variables: object = None,
    inputs: object = None,
) -> object:
    """Gradients are recorded, and accumulated in the `grad` of the leaves."""
    given = [tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs]
    if any(is_lazy(vm, value) for value in given):
        return Call(polyfill("drained_call"), [torch.autograd.backward, given, {}])
    outputs, create = _several(tensors), bool(create_graph)
    keep = create if retain_graph is None else bool(retain_graph)
    leaves_asked = None if inputs is None else _several(inputs)
    if grad_variables is not None or leaves_asked == []:
        raise _odd(vm)
    if leaves_asked is not None:
        refuse_gradients(vm)
        _refuse_outer_graph(vm, outputs, leaves_asked, "torch.autograd.backward")
    with torch.no_grad():
        for leaf in vm.trace.leaves:
            if leaf.requires_grad:
                leaf.grad = None
    run_engine(vm, outputs, grad_tensors, leaves_asked or (), (keep, create, True, True))
    for place, leaf in enumerate(vm.trace.leaves):
        if not leaf.is_leaf:
            continue  # data that was written to, and has a history since
        gradient, leaf.grad = leaf.grad, None
        if gradient is not None:
            _accumulate(vm, place, gradient, create)
    if not keep:
        _mark_spent(vm, outputs)
    return None


answers(torch.Tensor.backward)(
    lambda vm, tensor, gradient=None, retain_graph=None, create_graph=False, inputs=None: _backward(
        vm, tensor, gradient, retain_graph, create_graph, None, inputs
    )
)


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _accumulate(vm: Machine, place: int, gradient: Any, create: bool) -> None:
    """Adds to the `grad` of a leaf as the engine does: in place if there is one."""
    tensor = vm.trace.inputs[place]
    if not vm.world.inputs.tensors[place].is_leaf or is_handle(vm.world.inputs.sources[place]):
        raise _goes_on_outside(vm, "call backward there", "Tensor.backward")
    hooked = hooks_of(vm, place)
    if hooked is not None:
        raise vm.unsupported(hooked, "tensor_method", "call backward outside the function", "Tensor.backward")
    attributes = outside_attributes(vm, tensor)
    before = attributes.get("grad")
    if before is None:
        attributes.set("grad", gradient)
    elif create:
        attributes.set("grad", before + gradient)
    else:
        with torch.no_grad():
            before.add_(gradient)


def _mark_spent(vm: Machine, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> None:
    """Remembers the nodes of autograd's graph whose saved values the engine has released (those that lead to `inputs`,
    if given): what hangs on them cannot be differentiated again."""
    ends = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    leaves = {id(tensor) for tensor in inputs if tensor.grad_fn is None}
    for node in behind(outputs):
        following = [other for other, _ in node.next_functions]
        wanted = not inputs or any(
            other in ends or other in vm.trace.derivation.spent or id(getattr(other, "variable", None)) in leaves
            for other in following
        )
        if wanted:
            ends.add(node)
            if any(name.startswith(("_saved", "saved_tensors")) for name in dir(node)):
                vm.trace.derivation.spent.add(node)


@answers(torch.autograd.grad)
def _grad(
    vm: Machine,
    outputs: object,
    inputs: object,
    grad_outputs: object = None,
    retain_graph: object = None,
    create_graph: object = False,
    only_inputs: object = True,
    allow_unused: object = None,
    is_grads_batched: object = False,
    materialize_grads: object = False,
) -> object:
    given = [outputs, inputs, grad_outputs, retain_graph, create_graph, only_inputs, allow_unused]
    given += [is_grads_batched, materialize_grads]
    if any(is_lazy(vm, value) for value in given):
        return Call(polyfill("drained_call"), [torch.autograd.grad, given, {}])
    ends, starts = _several(outputs), _several(inputs)
    traced = all(type(tensor) is TracedTensor for tensor in (*ends, *starts))
    if is_grads_batched or torch._C._are_functorch_transforms_active() or not traced:
        return NATIVE
    if not only_inputs or (materialize_grads and not (allow_unused or allow_unused is None)):
        raise _odd(vm)
    create = bool(create_graph)
    keep = create if retain_graph is None else bool(retain_graph)
    unused = bool(materialize_grads or allow_unused)
    refuse_gradients(vm)
    if not all(tensor.requires_grad for tensor in starts):
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    _refuse_outer_graph(vm, ends, starts, "torch.autograd.grad")
    places = {place for tensor in starts if (place := vm.world.inputs.place(tensor)) is not None}
    vm.world.inputs.derived_by |= places
    for place in places:
        if (hooked := hooks_of(vm, place)) is not None:
            remedy = "compile what is called outside of the hook"
            raise vm.unsupported(hooked, "tensor_method", remedy, "torch.autograd.grad")
    gradients = run_engine(vm, ends, grad_outputs, starts, (keep, create, unused, False))
    if not unused and any(gradient is None for gradient in gradients):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if "
            "this is the desired behavior."
        )
    if materialize_grads:
        gradients = [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(starts, gradients)]
    if not keep:
        _mark_spent(vm, ends, starts)
    return tuple(gradients)


def _refuse_outer_graph(vm: Machine, outputs: Sequence[Any], inputs: Sequence[Any], operation: str) -> None:
    """An input that is no leaf has a history outside, which may lead to other inputs."""
    asked = [vm.world.inputs.place(tensor) for tensor in inputs]
    others = {
        id(vm.trace.leaves[place])
        for place, real in enumerate(vm.world.inputs.tensors)
        if real.requires_grad and not real.is_leaf and place not in asked
    }
    if others and any(place is not None for place in asked):
        for node in behind(outputs):
            if any(id(getattr(other, "variable", None)) in others for other, _ in node.next_functions):
                raise _goes_on_outside(vm, "compile that, too", operation)


def _goes_on_outside(vm: Machine, remedy: str, operation: str) -> Unsupported:
    return vm.unsupported("the gradient goes on outside of the function", "tensor_method", remedy, operation)


@intercept(forward_ad.make_dual)
def _make_dual(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    vm.trace.functional_only = "derivatives are taken forward"
    return NATIVE


@answers(torch.Tensor.retain_grad)
def _retain_grad(vm: Machine, tensor: torch.Tensor) -> object:
    """For gradients taken inside, and, on the real tensor, for those taken outside: these do not come to a tensor of
    which the compiled function makes others, so a segment ends where one is made.
    """
    if vm.world.inputs.place(tensor) is None:
        if tensor.requires_grad and not tensor.is_leaf:
            reason, remedy = "a gradient is kept of a tensor made here", "return the tensor"
            raise vm.unsupported(reason, "inner_gradient", remedy, "Tensor.retain_grad")
        return NATIVE
    vm.later.calls.append((torch.Tensor.retain_grad, [tensor], {}))
    return None


# ---- numbers ---------------------------------------------------------------------------------------------------------


@answers(torch.Tensor.item, recorded=True)
def _item(vm: Machine, tensor: object) -> object:
    """The number in a tensor: known, or in the graph where the configuration allows it."""
    if type(tensor) is not TracedTensor:
        return NATIVE
    if tensor.dtype.is_floating_point and in_optimizer(vm.frames[-1]):
        return float_in(vm, tensor)
    if tensor.dtype.is_floating_point and config.capture_scalar_outputs is False and vm.trace.read(tensor) is None:
        raise DataDependent("Tensor.item", vm.where())
    return tensor.item()


def float_in(vm: Machine, tensor: TracedTensor) -> TracedFloat | float:
    """The number in a tensor of one element as a float in the graph, if it is not known. That of an input, or of one
    that has been counted up, may decide a branch: how the comparison comes out is guarded."""
    vm.trace.where = vm.where()
    if vm.trace.known(tensor) is not None:
        return cast(float, tensor.item())
    node, added = tensor.node, 0.0
    while node.target is torch.ops.aten.add.Tensor and type(node.args[1]) in (int, float) and not node.kwargs:
        added += cast(float, node.args[1])
        node = cast(Node, node.args[0])
    place = node.meta.get("place")
    if place is None:
        return scalars.of_tensor(vm.trace, tensor)
    name, value = vm.world.numbers.in_input(place)
    vm.trace.functional_only = "numbers are computed in the graph"
    refused = functools.partial(_refuse_number, vm)
    number = scalars.of_tensor(vm.trace, tensor, value + added, (refused,), f"({name} + {added})")
    if value >= 0 and added >= 0:
        number.within = added, math.inf  # a count of steps, which never becomes negative
    return number


def _refuse_number(vm: Machine) -> None:
    raise DataDependent("Tensor.item", vm.where())
