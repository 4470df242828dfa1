"""`aot_export_module` and `aot_export_joint_simple`: graphs for whoever differentiates, partitions or compiles them
otherwise, with the names, conventions and errors of PyTorch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from bolide.functorch.aot_autograd import Decompositions, functional, own_tensors, request_for
from bolide.functorch.calls import Function, Request
from bolide.functorch.compilers import interpret
from bolide.functorch.exported.whole import Whole, names_of_results, whole_graph
from bolide.functorch.foreign import default_partition
from bolide.functorch.graphs import give, output_node
from bolide.functorch.wrapped import Value


@dataclass
class BackwardSignature:
    """Of a graph with gradients: the names of results that are gradients, with the names of their parameters and, of
    arguments, of their placeholders; and the name of the result that is differentiated."""

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass
class GraphSignature:
    """What the placeholders and results of a module's graph are. Placeholders: parameters, buffers, arguments. Results:
    new values of what the module writes to, what it returns, gradients. Parameters and buffers go by their names in the
    module, placeholders and results by those of their nodes. `in_spec` and `out_spec` say how the arguments (after
    parameters and buffers) and results are made of leaves. There are never tokens."""

    parameters: list[str]
    buffers: list[str]
    user_inputs: list[str]
    user_outputs: list[str | None]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    parameters_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    backward_signature: BackwardSignature | None
    input_tokens: list[str] = field(default_factory=list)
    output_tokens: list[str] = field(default_factory=list)


def aot_export_module(
    mod: nn.Module,
    args: Iterable[object],
    *,
    decompositions: Decompositions | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    kwargs: dict[str, object] | None = None,
) -> tuple[fx.GraphModule, GraphSignature]:
    """A module's call as one functional graph of ATen operations, and what its placeholders and results are.

    args, kwargs: the call, with arguments in any structure; leaves that are no tensors are constants, whose
    placeholders nobody reads. The module returns a tuple or a list.
    decompositions: see `aot_function`.
    trace_joint: the graph returns gradients, too, of the result at `output_loss_index`, which has one element, for the
    parameters and arguments that require grad. No other result may require grad.
    pre_dispatch: gradients stay switched on while the module runs; composite operations are decomposed all the same.
    dynamic_shapes: sizes of arguments are symbols; those of parameters and buffers are not.

    Raises RuntimeError for a module that does not fit these conventions, or changes shapes of arguments in place;
    Unsupported for what no graph can do, tied parameters and arguments with symbolic sizes among it.
    """
    if pre_dispatch and trace_joint:
        raise RuntimeError("pre_dispatch is not supported when trace_joint is True: leave one of them out")
    if trace_joint and output_loss_index is None:
        raise RuntimeError("one of your forward outputs must be a scalar loss: give its place as output_loss_index")
    own = own_tensors(mod)
    call = functional(mod)

    def flat_call(*given: object, **kwargs: object) -> Value:
        result = call(dict(zip(own, given)), given[len(own) :], kwargs)
        if not isinstance(result, (tuple, list)):
            raise RuntimeError("Graph output must be a tuple or a list: let the module return one")
        return result

    def loss_of(result: Value) -> int:
        assert output_loss_index is not None
        _check_loss(result, output_loss_index)
        return output_loss_index

    with nullcontext() if trace_joint or pre_dispatch else torch.no_grad():
        request = _request(flat_call, decompositions, len(own), bool(dynamic_shapes))
        whole = whole_graph(request, [*own.values(), *args], kwargs or {}, loss_of if trace_joint else None)
    return whole.module, _signature(mod, whole, output_loss_index if trace_joint else None)


def _request(function: Function, decompositions: Decompositions | None, parameters: int, dynamic: bool) -> Request:
    """No compiler sees the graph."""
    return request_for(function, interpret, None, default_partition, decompositions, parameters, False, None, dynamic)


def _requires_grad(value: Value) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _check_loss(result: Sequence[Value], index: int) -> None:
    other = next((at for at, one in enumerate(result) if at != index and _requires_grad(one)), None)
    if other is not None:
        raise RuntimeError(
            f"Found an output of the forward that requires gradients, that was not the scalar loss: the one at index "
            f"{other}, while the loss is at index {index}. Call detach() on it."
        )
    loss = result[index]
    if not _requires_grad(loss):
        raise RuntimeError(f"The output at index {index} was marked as the loss, but it does not require gradients")
    if loss.numel() != 1:
        raise RuntimeError(
            f"We require the output marked as the loss (at index {index}) to be a scalar, "
            f"but it has shape {tuple(loss.shape)}"
        )


def _signature(mod: nn.Module, whole: Whole, loss: int | None) -> GraphSignature:
    parameters = [name for name, _ in mod.named_parameters(remove_duplicate=False)]
    buffers = [name for name, _ in mod.named_buffers(remove_duplicate=False)]
    known = len(parameters) + len(buffers)
    names = [*parameters, *buffers, *whole.inputs[known:]]
    given = names_of_results(whole.module)
    written, given = given[: len(whole.writes)], given[len(whole.writes) :]
    changed = {str(result): at for result, at in zip(written, whole.writes)}
    backward = None
    if loss is not None:
        gradients = dict(zip(whole.gradients, given[whole.outputs :]))
        missing = [names[at] for at, gradient in gradients.items() if gradient is None]
        if missing:
            raise RuntimeError(f"Found a parameter that did not receive a gradient: {', '.join(missing)}")
        backward = BackwardSignature(
            {str(gradient): names[at] for at, gradient in gradients.items() if at < known},
            {str(gradient): names[at] for at, gradient in gradients.items() if at >= known},
            str(given[loss]),
        )
    return GraphSignature(
        parameters=parameters,
        buffers=buffers,
        user_inputs=names[known:],
        user_outputs=given[: whole.outputs],
        inputs_to_parameters=dict(zip(whole.inputs, parameters)),
        inputs_to_buffers=dict(zip(whole.inputs[len(parameters) :], buffers)),
        buffers_to_mutate={name: names[at] for name, at in changed.items() if len(parameters) <= at < known},
        parameters_to_mutate={name: names[at] for name, at in changed.items() if at < len(parameters)},
        user_inputs_to_mutate={name: names[at] for name, at in changed.items() if at >= known},
        in_spec=whole.spec,
        out_spec=whole.result_spec,
        backward_signature=backward,
    )


def aot_export_joint_simple(
    func: Callable[..., object],
    args: Sequence[object],
    *,
    trace_joint: bool,
    num_params_buffers: int = 0,
    decompositions: Decompositions | None = None,
) -> fx.GraphModule:
    """A function of flat arguments, which returns a flat tuple or list, as one functional graph of ATen operations.

    With `trace_joint`, where an argument requires grad, the graph takes two tuples, arguments and tangents of the
    results that require grad, and returns ``(results, gradients)``, None for the arguments without any: partition
    functions take it. Else it takes and returns what `func` does. num_params_buffers changes nothing: sizes are
    numbers. decompositions: see `aot_function`.

    Raises RuntimeError for nested arguments and results, for writes to arguments, and for results that share memory
    with arguments or each other; Unsupported for what no graph can do.
    """
    with nullcontext() if trace_joint else torch.no_grad():
        request = _request(func, decompositions, num_params_buffers, False)
        whole = whole_graph(request, args, {}, (lambda result: None) if trace_joint else None)
    if whole.writes:
        raise RuntimeError("aot_export_joint_simple does not support input mutations: copy the argument first")
    if whole.aliased:
        raise RuntimeError("aot_export_joint_simple does not support outputs that alias inputs, or each other")
    if not all(child.is_leaf() for child in whole.spec.children()[0].children()):
        raise RuntimeError("aot_export_joint_simple requires individual inputs not to be pytrees")
    if whole.result_spec.is_leaf():
        raise RuntimeError("aot_export_joint_simple requires outputs to be a single list/tuple")
    if not all(child.is_leaf() for child in whole.result_spec.children()):
        raise RuntimeError("aot_export_joint_simple requires individual outputs not to be pytrees")
    if whole.gradients:
        _take_pairs(whole)
    return whole.module


def _take_pairs(whole: Whole) -> None:
    """The graph takes arguments and tangents, and returns results and gradients."""
    graph = whole.module.graph
    values = output_node(graph).args[0]
    assert isinstance(values, (tuple, list))
    outputs, gradients = values[: whole.outputs], dict(zip(whole.gradients, values[whole.outputs :]))
    inputs = len(whole.inputs)
    give(graph, (*outputs, *(gradients.get(at) for at in range(inputs))))
    tangents = len(graph.find_nodes(op="placeholder")) - inputs
    taken = pytree.tree_structure((((0,) * inputs, (0,) * tangents), {}))
    given = pytree.tree_structure(((0,) * whole.outputs, (0,) * inputs))
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(["primals", "tangents"], taken, given)))
    whole.module.recompile()
