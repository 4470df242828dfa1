"""Graphs in PyTorch's conventions: what compilers and partition functions of others are given, and how what these
return is taken back.

Such a graph is functional: what is written to inputs are its first results. Its placeholders are the tensors of the
program in order (a backward's: saved numbers, saved tensors, tangents); sizes are read from them. ``meta["val"]``
holds tensors without data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata

from bolide.functorch.aot import partitioned
from bolide.functorch.graph_compilers.drawing import draw_graph
from bolide.functorch.graphs import (
    aten,
    constants_of,
    give,
    is_size,
    is_tensor,
    output_node,
    placeholders,
    results,
    root,
)
from bolide.functorch.partitioners import Joint, Partition, Strategy
from bolide.symbolic import same_size
from bolide.tracing.described import describe
from bolide.tracing.fallible import done
from bolide.tracing.graph import Graph, mapped
from bolide.tracing.meta import TensorMeta, meta_of

PartitionFn = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A graph of ours in PyTorch's conventions. `takes`: the placeholders of ours that are its own, in order, as
    positions; `writes`: the placeholders of ours that its first results are to be written to; `gives`: for each result
    of ours its place among those of the module (None: it is left out).
    """

    module: fx.GraphModule
    takes: tuple[int, ...]
    writes: tuple[int, ...]
    gives: tuple[int | None, ...]


# ---- out -------------------------------------------------------------------------------------------------------------


def outgoing(
    graph: fx.Graph,
    constants: Mapping[str, Any],
    names: Mapping[int, str],
    *,
    reads_sizes: bool = True,
    keeps_writes: bool = False,
    left_out: int = 0,
) -> Outgoing:
    """`names`: of placeholders, by position, where they are not to stay what they are. Without `reads_sizes` numbers
    are placeholders in front of the tensors; with `keeps_writes` writes to inputs stay in the graph. `left_out`: so
    many results at the end are. A forward's results are followed by all that is saved, inputs too."""
    slots, part, flat = placeholders(graph), Graph(), results(graph)
    outputs, saved = output_node(graph).meta.get(SAVED, (len(flat) - left_out, ()))
    used = [at for at, slot in enumerate(slots) if is_tensor(slot) or slot.users or slot in saved]
    read = {at: place for at in used if reads_sizes and (place := _extent_read(slots, slots[at])) is not None}
    takes = sorted((at for at in used if at not in read), key=lambda at: is_tensor(slots[at]))
    copies: dict[fx.Node, fx.Node] = {}
    for at in takes:
        copies[slots[at]] = part.placeholder(names.get(at, slots[at].name))
        copies[slots[at]].meta = dict(slots[at].meta)
    for at, (tensor, dim) in read.items():
        copies[slots[at]] = part.call_function(aten.sym_size.int, (copies[tensor], dim))
        copies[slots[at]].meta = dict(slots[at].meta)
    written: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node.target is done:
            continue
        if not keeps_writes and node.target is aten.copy_.default and node.args[0] in slots:
            written[node.args[0]] = copies[node.args[1]]
        else:
            copies[node] = part.node_copy(node, copies.__getitem__)
    extra = [value for value in flat[outputs : len(flat) - left_out] if value not in saved]
    order = [*flat[:outputs], *saved, *extra]
    gives = [
        at if at < outputs else order.index(value, outputs) for at, value in enumerate(flat[: len(flat) - left_out])
    ]
    part.output((*written.values(), *(copies[value] if isinstance(value, fx.Node) else value for value in order)))
    module, writes = _leaving(part, constants), tuple(map(slots.index, written))
    return Outgoing(module, tuple(takes), writes, (*(len(writes) + at for at in gives), *[None] * left_out))


SAVED = "saved"
"""In the meta of a forward's output: the number of results that are the program's, and the nodes that are saved."""


def _extent_read(slots: Sequence[fx.Node], size: fx.Node) -> tuple[fx.Node, int] | None:
    """The tensor, and its dimension, that a size can be read from."""
    if not is_size(size):
        return None
    value = size.meta["val"]
    tensors = (slot for slot in slots if is_tensor(slot))
    places = ((slot, dim) for slot in tensors for dim, extent in enumerate(slot.meta["val"].shape))
    return next((place for place in places if _is_same(place[0].meta["val"].shape[place[1]], value)), None)


def _is_same(extent: Any, size: Any) -> bool:
    return isinstance(extent, torch.SymInt) and isinstance(size, torch.SymInt) and same_size(extent, size)


def _leaving(graph: fx.Graph, constants: Mapping[str, Any]) -> fx.GraphModule:
    """A module of a graph whose metas are ours."""
    known = {node: node.meta["val"] for node in graph.nodes if "val" in node.meta}
    describe(graph, replace=True)
    for node, ours in known.items():
        value = node.meta["val"]
        node.meta[OURS] = value, ours
        if isinstance(value, torch.Tensor):
            node.meta["tensor_meta"] = _extract_tensor_metadata(value)
    used = {str(node.target): constants[str(node.target)] for node in graph.find_nodes(op="get_attr")}
    return fx.GraphModule(used, graph)


OURS = "of_bolide"
"""In metas: the value that others read, and what it is made of."""


# ---- back ------------------------------------------------------------------------------------------------------------


def _ours(node: fx.Node) -> Any:
    """What is known of the value of a node that others have made. Raises ValueError where that is not said."""
    described, ours = node.meta.get(OURS, (None, None))
    if described is not None and described is node.meta.get("val"):
        return ours
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    if value is None and node.op in ("placeholder", "call_function") and "val" not in node.meta:
        raise ValueError(f'the node {node} has no meta["val"]: trace the graph with example inputs')
    if isinstance(value, TensorMetadata):
        return TensorMeta(tuple(value.shape), tuple(value.stride), 0, value.dtype, torch.device("cpu"))
    return mapped(value, lambda item: meta_of(item) if isinstance(item, torch.Tensor) else item)


def _copied_into(part: fx.Graph, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> list[Any]:
    """Copies the operations of a graph of others, whose placeholders are known; its results as they are in `part`."""
    for node in graph.nodes:
        if node.op == "output":
            continue
        if node.op != "placeholder":
            copies[node] = part.node_copy(node, copies.__getitem__)
        copies[node].meta = {**node.meta, "val": _ours(node)}
    return [copies[value] if isinstance(value, fx.Node) else value for value in results(graph)]


def split_by(function: PartitionFn, constants: dict[str, torch.Tensor], joint: Joint) -> Partition:
    """The partition of a joint graph that a function of others makes; ours are spared the way out and back."""
    own = _own_strategy(function)
    if own is not None:
        made = partitioned(_asked_for(joint), *own)
        pool = [*placeholders(made.forward), *results(made.forward)]
        read = zip(made.saved_at, placeholders(made.backward))
        saved = tuple([pool[at] for at, slot in read if is_tensor(slot) or slot.users])
        output_node(made.forward).meta[SAVED] = joint.outputs, saved
        return made
    slots = placeholders(joint.graph)
    tensors = [at for at in range(joint.inputs) if is_tensor(slots[at])]
    names = {at: f"primals_{number}" for number, at in enumerate(tensors, 1)}
    names |= {at: f"tangents_{number}" for number, at in enumerate(range(joint.inputs, len(slots)), 1)}
    out = outgoing(joint.graph, constants, names, left_out=joint.inputs - len(tensors))
    given = [node.meta["val"] for node in placeholders(out.module.graph)]
    inputs = given[: len(tensors)], given[len(tensors) :]
    parts = function(out.module, inputs, num_fwd_outputs=len(out.writes) + joint.outputs)
    for part in parts:
        for node in part.graph.find_nodes(op="get_attr"):
            constants.setdefault(str(node.target), getattr(part, str(node.target)))
    return _taken_back(joint, out, *(part.graph for part in parts))


def _taken_back(joint: Joint, out: Outgoing, forward: fx.Graph, backward: fx.Graph) -> Partition:
    slots, part = placeholders(joint.graph), Graph()
    inputs, copies = [], {}
    theirs = dict(zip(out.takes, placeholders(forward)))
    for at, slot in enumerate(slots[: joint.inputs]):
        inputs.append(part.placeholder(theirs[at].name if at in theirs else slot.name))
        inputs[at].meta = dict(slot.meta)
        if at in theirs:
            copies[theirs[at]] = inputs[at]
    values = _copied_into(part, forward, copies)
    written = dict(zip((inputs[at] for at in out.writes), values))
    kept = len(written) + joint.outputs
    changing = {inputs[at] for at in joint.written}
    saved = [_from_before(part, node, changing) for node in values[kept:]]
    for slot, value in written.items():
        copy = part.create_node("call_function", aten.copy_.default, (slot, value), name="copy_")
        copy.meta = {**value.meta, "val": slot.meta["val"]}
    pool = [*inputs, *values[len(written) : kept]]
    position = {node: at for at, node in reversed([*enumerate(pool)]) if isinstance(node, fx.Node)}
    for node in saved:
        if node not in position:
            position[node] = len(pool)
            pool.append(node)
    part.output(tuple(pool[len(inputs) :])).meta[SAVED] = joint.outputs, tuple(saved)
    saved = sorted(saved, key=lambda node: not is_tensor(node))
    sizes = [node for node in inputs if is_size(node)]  # metas speak of them
    return Partition(
        part,
        _backward(backward, saved, sizes),
        (*saved, *sizes),
        tuple([position[node] for node in (*saved, *sizes)]),
    )


def _from_before(part: fx.Graph, node: fx.Node, written: Container[fx.Node]) -> fx.Node:
    """What is saved: a copy of an input, or of a view of one, that is written to."""
    if root(node) not in written:
        return node
    copy = part.call_function(aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def _backward(graph: fx.Graph, saved: Sequence[fx.Node], sizes: Sequence[fx.Node]) -> fx.Graph:
    """A backward of others, which takes numbers first, for tensors, numbers, sizes and tangents."""
    slots, part = placeholders(graph), Graph()
    numbers = sum(not is_tensor(node) for node in saved)
    order = [*slots[numbers : len(saved)], *slots[:numbers]]
    copies = {slot: part.placeholder(slot.name) for slot in order}
    for node, slot in zip(saved, order):
        copies[slot].meta = dict(node.meta)
    for size in sizes:
        part.placeholder(size.name).meta = dict(size.meta)
    copies |= {slot: part.placeholder(slot.name) for slot in slots[len(saved) :]}
    values = _copied_into(part, graph, copies)
    part.output((*values, *[None] * len(sizes)))
    return part


# ---- partition functions ---------------------------------------------------------------------------------------------


def default_partition(
    joint_module: fx.GraphModule,
    joint_inputs: object,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: object = None,
    static_lifetime_input_nodes: object = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward of a joint graph, of which the first `num_fwd_outputs` results are the forward's:
    what eager would save is saved. The forward's results are followed by what is saved, tensors before numbers; the
    backward takes numbers, tensors, tangents. `joint_inputs`, and what says which inputs stay where they are, are not
    read.

    Raises ValueError for a graph that does not say what is known of its values (``meta["val"]``)."""
    return _partitioned(joint_module, num_fwd_outputs, "default", None)


def min_cut_rematerialization_partition(
    joint_module: fx.GraphModule,
    joint_inputs: object,
    compiler: str = "inductor",
    recomputable_ops: Container[object] | None = None,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: object = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """As `default_partition`, but what is cheaper to compute again than to save is computed again by the backward.

    recomputable_ops: the operations (overloads or packets) that may be; None: those that cost little. Views always
    may. compiler: the one that the graphs are for, which changes nothing."""
    return _partitioned(joint_module, num_fwd_outputs, "min_cut", recomputable_ops)


_STRATEGIES: dict[object, Strategy] = {
    default_partition: "default",
    min_cut_rematerialization_partition: "min_cut",
}


def _own_strategy(function: PartitionFn) -> tuple[Strategy, Container[object] | None] | None:
    """What a partition function of ours does, and the operations that may be done again; None for one of others."""
    if not isinstance(function, functools.partial):
        return (_STRATEGIES[function], None) if function in _STRATEGIES else None
    plain = not function.args and function.keywords.keys() <= {"compiler", "recomputable_ops"}
    known = plain and function.func in _STRATEGIES
    return (_STRATEGIES[function.func], function.keywords.get("recomputable_ops")) if known else None


def _asked_for(joint: Joint) -> Joint:
    """Who asks for a partition by name wants what can be computed again from any inputs."""
    return dataclasses.replace(joint, steady=frozenset(range(joint.inputs)))


def _partitioned(
    module: fx.GraphModule, outputs: int, strategy: Strategy, recomputable: Container[object] | None
) -> tuple[fx.GraphModule, fx.GraphModule]:
    graph, constants = Graph(), constants_of(module)
    copies = {slot: graph.placeholder(slot.name) for slot in module.graph.find_nodes(op="placeholder")}
    graph.output(tuple(_copied_into(graph, module.graph, copies)))
    slots = placeholders(graph)
    inputs = sum("tangents" not in str(slot.target) for slot in slots)
    writes = graph.find_nodes(op="call_function", target=aten.copy_.default)
    written = frozenset(at for at, slot in enumerate(slots) if any(write.args[0] is slot for write in writes))
    parts = partitioned(_asked_for(Joint(graph, inputs, outputs, written)), strategy, recomputable)
    pool = [*placeholders(parts.forward), *results(parts.forward)]
    give(parts.forward, [*pool[inputs : inputs + outputs], *(pool[at] for at in parts.saved_at)])
    slots = placeholders(parts.backward)
    first = next((slot for slot in slots if is_tensor(slot)), None)
    for slot in slots[: len(parts.saved)]:
        if first is not None and not is_tensor(slot):
            first.prepend(slot)
    return _leaving(parts.forward, constants), _leaving(parts.backward, constants)


# ---- pictures --------------------------------------------------------------------------------------------------------


def draw_joint_graph(
    graph: fx.GraphModule,
    joint_inputs: object,
    file_name: str = "full_graph.png",
    dot_graph_shape: str | None = None,
    *,
    num_fwd_outputs: int,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """As `default_partition`, and draws the joint graph (see `draw_graph`)."""
    draw_graph(graph, file_name, dot_graph_shape=dot_graph_shape)
    return default_partition(graph, joint_inputs, num_fwd_outputs=num_fwd_outputs)
