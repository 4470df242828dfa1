"""The joint graph: the C++ autograd engine runs over the traced outputs, and its formulas are recorded behind the
forward.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from bolide.functorch.graphs import argument_nodes, aten, is_impure, is_tuple, placeholders, root
from bolide.functorch.partitioners import Joint
from bolide.functorch.signature import Signature
from bolide.support.errors import BolideError, FixedSizesNeeded, Unsupported
from bolide.symbolic import contiguous_strides
from bolide.tracing import STANDS_FOR, TensorMeta, Trace, TracedTensor
from bolide.tracing.called.derivatives import check_phases, derivatives
from bolide.tracing.fallible import done, may_raise
from bolide.tracing.graph import behind
from bolide.tracing.modes import engine_pass
from bolide.tracing.operations.kinds import made_sparse, sum_of_sparse
from bolide.tracing.rules.common import is_dense
from bolide.tracing.tensor import inner_leaves, takes_gradient
from bolide.tracing.wrappers import Form, form_of, numbers, plain_parts


def finish_inference(trace: Trace, signature: Signature) -> None:
    """Ends the trace's graph with its results and writes; nothing is differentiated."""
    values = _results(trace, signature, set())
    _do_what_may_raise(trace, signature, values)
    _write_back(trace, signature)
    trace.graph.output(tuple(values))
    trace.shapes.closed = True


def finish_joint(trace: Trace, signature: Signature) -> Joint:
    """Ends the trace's graph with its results, gradients (None for inputs that have none) and writes.

    Tangents come for the differentiable results only, in their order. The gradients are eager's: they are recorded
    while the engine runs. Raises Unsupported where the engine refuses (a saved value was written since).
    """
    differentiable = [result.tensor for result in signature.results if result.tensor is not None]
    wanted = [leaf for leaf in trace.leaves if takes_gradient(leaf)]
    if trace.derivation.is_own:  # what the program does on the way to leaves that it has made is to be seen
        wanted += inner_leaves([tensor.grad_fn for tensor in differentiable], trace.leaves)
    taken: set[fx.Node] = set()
    values: list[Any] = _results(trace, signature, taken)
    outputs = len(values)
    _do_what_may_raise(trace, signature, values)
    trace.derivation.running = True
    if trace.derivation.is_own or trace.derivation.formulas:
        trace.derivation.past = frozenset(trace.graph.nodes)
    trace.differentiates = False  # what is derived once more is the forward
    with trace.recording(), torch._C._DisableAutocast(), torch.no_grad():
        tangents = [
            trace.placeholder(tangent_meta(tensor.meta), f"tangent{index}")
            for index, tensor in enumerate(differentiable)
        ]
        check_phases(trace, differentiable)
        with derivatives(trace, differentiable):
            gradients = _gradients(differentiable, tangents, wanted, trace.has_symbols)
    of_leaf = {id(leaf): gradient for leaf, gradient in zip(wanted, gradients)}
    sparse = _sparse(trace.graph)
    wrapped: dict[int, Form] = {}
    parts: list[fx.Node] = []
    for place, leaf in enumerate(trace.leaves):
        gradient = of_leaf.get(id(leaf))
        if isinstance(gradient, TracedTensor) and gradient.node in sparse:
            values.append(gradient.node)
        elif isinstance(gradient, TracedTensor):
            values.append(_settled(trace, gradient.node, tangent_meta(leaf.meta), taken))
        elif gradient is None:
            values.append(None)
        else:
            values.append(None)
            wrapped[place] = _form_of_gradient(gradient)
            parts += [_settled(trace, part.node, tangent_meta(part.meta), taken) for part in plain_parts(gradient)]
    values += [None] * len(trace.sizes) + parts
    _write_back(trace, signature)
    trace.graph.output(tuple(values))
    trace.shapes.closed = True
    written = frozenset(write.input for write in signature.writes)
    return Joint(trace.graph, len(trace.inputs) + len(trace.sizes), outputs, written, _steady_inputs(trace), wrapped)


def _form_of_gradient(gradient: object) -> Form:
    """How a wrapper is put together that is the gradient of a plain input."""
    form = form_of(gradient, lambda value: vars(type(value)).get(STANDS_FOR, type(value)))
    if not all(type(number) is int for number in numbers(form)):
        raise FixedSizesNeeded("the gradient of a plain input is a wrapper with symbolic sizes", kind="input")
    return form


def _steady_inputs(trace: Trace) -> frozenset[int]:
    """The places of parameters and other leaves that require grad: eager refuses writes to them while it records."""
    ours = enumerate(zip(trace.inputs, trace.leaves))
    return parameters_of(trace) | {place for place, (given, leaf) in ours if given is leaf and leaf.requires_grad}


def parameters_of(trace: Trace) -> frozenset[int]:
    """The places of inputs that are parameters of modules."""
    return frozenset(index for index, leaf in enumerate(trace.leaves) if isinstance(leaf, torch.nn.Parameter))


_WANTS_NUMBERS = ("concrete integers", "with symbolic sizes")  # what derivatives in C++ say that know no symbols


def _gradients(
    outputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], symbolic: bool
) -> Sequence[Any]:
    """As `run_engine`. What has no backward is eager's: there it raises when, and if, the backward runs."""
    try:
        return run_engine(outputs, tangents, inputs, create_graph=False)
    except BolideError:
        raise
    except (RuntimeError, TypeError) as error:
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        if isinstance(error, TypeError) and last.f_code is not engine_pass.__code__:
            raise  # of Python code; the engine itself says so of what hooks give that is no tensor
        said = str(error).partition("\nException raised from")[0]  # a long list of C++ frames
        numbers = symbolic and any(text in said for text in _WANTS_NUMBERS)
        kind = FixedSizesNeeded if numbers else Unsupported
        raise kind(f"the program has no backward: {said}", kind="operator") from error


def run_engine(
    outputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    *,
    create_graph: bool,
) -> Sequence[Any]:
    """`torch.autograd.grad` with None for unused inputs, without its checks: they import sympy, which takes 0.4 s."""
    return engine_pass(
        tuple(outputs),
        tuple(tangents),
        keep_graph=create_graph,
        create_graph=create_graph,
        inputs=tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )


def _sparse(graph: fx.Graph) -> set[fx.Node]:
    """The nodes of a joint graph whose values are sparse when it runs. Sums of these become `sum_of_sparse`. Raises
    Unsupported, with the line of the program that they come from, where anything else is done with them."""
    sparse = set(graph.find_nodes(op="call_function", target=made_sparse))
    for node in graph.nodes if sparse else ():
        given = [arg for arg in node.all_input_nodes if arg in sparse]
        if given and (node.target is not aten.add.Tensor or len(node.all_input_nodes) != 2 or node.kwargs):
            reason = f"{node.target} of a sparse gradient"
            raise Unsupported(reason, given[0].meta["where"], "leave out sparse=True", kind="layout")
        if given:
            node.target = sum_of_sparse
        if len(given) == 2:
            sparse.add(node)
    return sparse


def tangent_meta(meta: TensorMeta) -> TensorMeta:
    """The layout in which a result's tangent is expected: its own, or row-major where that has holes or overlaps. The
    engine can keep a gradient in a leaf's `grad` without copying it once more where it is laid out so."""
    stride = meta.stride if is_dense(meta.shape, meta.stride) else contiguous_strides(meta.shape)
    return TensorMeta(meta.shape, stride, 0, meta.dtype, meta.device)


def _results(trace: Trace, signature: Signature, taken: set[fx.Node]) -> list[Any]:
    return [*(_settled(trace, result.node, result.meta, taken) for result in signature.results), *signature.numbers]


def _do_what_may_raise(trace: Trace, signature: Signature, values: list[Any]) -> None:
    """Keeps the operations that eager may refuse for their data and that nothing else needs."""
    written = [trace.inputs[write.input].group.base for write in signature.writes]
    stays = [node for node in trace.graph.nodes if is_impure(node)]
    needed = behind([*argument_nodes(values), *written, *stays])
    for node in [node for node in trace.graph.nodes if node not in needed and may_raise(node)]:
        value = node
        while is_tuple(value.meta["val"]):
            first = value.meta["val"][0]
            value = trace.graph.call_function(operator.getitem, (value, 0))
            value.meta.update(node.meta, val=first)
        if isinstance(value.meta["val"], TensorMeta):
            trace.graph.call_function(done, (value,)).meta.update(node.meta, val=None)


def _settled(trace: Trace, node: fx.Node, wanted: TensorMeta, taken: set[fx.Node]) -> fx.Node:
    """`node`, or a copy of it, that has the strides of `wanted` and memory of its own: not that of a placeholder, of a
    constant or of what is in `taken`, to which its owner is added.

    Functional recording makes copies necessary: after ``y.copy_(x)`` the value of y is the node of x.
    """
    node = trace.restride(node, wanted)
    owner = root(node)
    if owner.op != "call_function" or owner in taken:
        node = trace.call(aten.clone.default, node)
    taken.add(root(node))
    return node


def _write_back(trace: Trace, signature: Signature) -> None:
    slots = placeholders(trace.graph)
    written = {slots[write.input] for write in signature.writes if write.result is None}
    writes = [(slots[write.input], trace.inputs[write.input].group.base) for write in signature.writes]
    values = [trace.call(aten.clone.default, value) if root(value) in written else value for _, value in writes]
    for (slot, _), value in zip(writes, values):
        if slot in written:
            copy = trace.graph.create_node("call_function", aten.copy_.default, (slot, value), name="copy_")
            copy.meta = {**value.meta, "val": slot.meta["val"]}
