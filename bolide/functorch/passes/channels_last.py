"""Convolutions of large activations in channels_last, where oneDNN is faster that way; on GPUs all in 16 bits.

The pass works on metas: convolutions that gain get their input in channels_last; the metas of ops whose results follow
their operands' order of memory (pointwise ops, BatchNorm, pooling) are inferred again, so that chains of layers keep
it. Any other op, result or write reads a row-major copy, and so sees exactly the strides that were recorded.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

import torch
import torch.fx as fx

from bolide.functorch.graphs import argument_nodes, aten, is_getitem, is_tuple
from bolide.symbolic import contiguous_strides
from bolide.tracing import TensorMeta
from bolide.tracing.libraries import policy_of
from bolide.tracing.rules import infer
from bolide.tracing.rules.common import is_channels_last
from bolide.tracing.traits import traits_of


def lay_out_convolutions(graph: fx.Graph) -> fx.Graph:
    """An inference graph with convolutions in channels_last where that pays; results keep their strides.

    Not for training: at batch 8, 224×224, weight gradients and the gradient of max-pooling lose what the others gain.
    Nor, for convolutions of all channels, in graphs with GroupNorm, whose kernels want a group's channels as one run of
    memory.
    """
    plain = movable_convolutions(graph, (torch.float32, torch.bfloat16, torch.float16))
    grouped = bool(graph.find_nodes(op="call_function", target=aten.native_group_norm.default))
    gaining = {node for node in plain if _gains_by_channel(node) or (not grouped and _gains(node))}
    if gaining:
        lay_out(graph, gaining, {node for node in plain if _is_indifferent(node)})
    return graph


def movable_convolutions(graph: fx.Graph, dtypes: Collection[torch.dtype]) -> list[fx.Node]:
    """The convolutions that may be laid out otherwise: of these types, two-dimensional, not transposed; row-major
    operands with static sizes."""
    found = graph.find_nodes(op="call_function", target=aten.convolution.default)
    return [node for node in found if _is_plain(node, dtypes)]


def lay_out(graph: fx.Graph, gaining: set[fx.Node], indifferent: Collection[fx.Node] = ()) -> None:
    """Brings the convolutions that gain into channels_last, and what lies between them; those that are indifferent take
    the order of their input."""
    _Relayout(graph, gaining, set(indifferent)).run()


def _gains(node: fx.Node) -> bool:
    """Whether a convolution of all channels is faster on a channels_last input, its weight being row-major."""
    kernel, result = _weight(node).shape, node.meta["val"]
    policy = policy_of(result.device)
    whole = policy.gains_pointwise or prod(kernel[2:]) > 1
    dense = node.args[8] == 1 and result.dtype in policy.convolved_types and whole
    return bool(dense and prod(kernel) <= policy.most_reordered and prod(result.shape) >= policy.least_convolved)


def _gains_by_channel(node: fx.Node) -> bool:
    """Whether a convolution of each channel by itself is faster on a channels_last input."""
    kernel, result = _weight(node).shape, node.meta["val"]
    by_channel = kernel[1] == 1 and node.args[8] != 1 and prod(kernel[2:]) > 1
    return bool(by_channel and prod(result.shape) >= policy_of(result.device).least_depthwise)


def _is_indifferent(node: fx.Node) -> bool:
    """Whether a convolution takes the order in which its input comes: on a CPU one of 1×1, as fast either way; on a GPU
    any other of a type that gains, for which two copies would cost more."""
    stride: Any = node.args[3]
    result = node.meta["val"]
    policy = policy_of(result.device)
    if policy.gains_pointwise:
        return result.dtype in policy.convolved_types
    return bool(prod(_weight(node).shape[2:]) == 1 and all(step == 1 for step in stride) and node.args[8] == 1)


def _is_plain(node: fx.Node, dtypes: Collection[torch.dtype]) -> bool:
    metas: list[TensorMeta] = [operand.meta["val"] for operand in argument_nodes(node.args[:2])]
    static = all(type(size) is int and size > 0 for meta in metas for size in meta.shape)
    plain = all(meta.dtype in dtypes and meta.ndim == 4 for meta in metas)
    return bool(not node.args[6] and static and plain and _is_row_major(tuple(metas)))


def _weight(node: fx.Node) -> TensorMeta:
    meta: TensorMeta = argument_nodes(node.args)[1].meta["val"]
    return meta


def _is_row_major(value: Any) -> bool:
    metas = value if is_tuple(value) else (value,)
    return all(meta.stride == contiguous_strides(meta.shape) for meta in metas)


class _Relayout:
    """One walk over a graph. `changed` holds every tensor that was recorded row-major and is not any more."""

    def __init__(self, graph: fx.Graph, gaining: set[fx.Node], indifferent: set[fx.Node]) -> None:
        self.graph, self.gaining, self.indifferent = graph, gaining, indifferent
        self.changed: set[fx.Node] = set()
        self.copies: dict[tuple[fx.Node, torch.memory_format], fx.Node] = {}

    def run(self) -> None:
        for node in list(self.graph.nodes):
            source: Any = node.args[0] if node.args else None
            if node in self.gaining:
                if not is_channels_last(source.meta["val"]):
                    node.update_arg(0, self._copy(source, torch.channels_last, node))
                self._set(node, infer(node.target, node.args, node.kwargs))
            elif is_getitem(node) and is_tuple(source.meta["val"]):
                self._set(node, source.meta["val"][node.args[1]])
            elif not self.changed.isdisjoint(node.all_input_nodes):
                if self._follows(node):
                    self._set(node, infer(node.target, node.args, node.kwargs))
                else:
                    self._restore(node)

    def _follows(self, node: fx.Node) -> bool:
        source: Any = node.args[0]
        if node in self.indifferent:
            return is_channels_last(source.meta["val"])
        return traits_of(node.target).any_order and _is_row_major(node.meta["val"])

    def _restore(self, reader: fx.Node) -> None:
        for source in reader.all_input_nodes:
            if source in self.changed:
                reader.replace_input_with(source, self._copy(source, torch.contiguous_format, reader))

    def _copy(self, source: fx.Node, memory_format: torch.memory_format, reader: fx.Node) -> fx.Node:
        """A copy in front of `reader`, or an earlier one."""
        key = (source, memory_format)
        if key not in self.copies:
            options: dict[str, Any] = {"memory_format": memory_format}
            with self.graph.inserting_before(reader):
                copy = self.graph.call_function(aten.clone.default, (source,), options)
            copy.meta = {**source.meta, "val": infer(aten.clone.default, (source,), options)}
            self.copies[key] = copy
        return self.copies[key]

    def _set(self, node: fx.Node, meta: Any) -> None:
        """Takes the strides of `meta`."""
        old = node.meta["val"]
        if is_tuple(old):  # readers see the items, which have nodes of their own
            node.meta["val"] = tuple(meta)
        elif old.stride != meta.stride:
            self.changed.add(node)
            node.meta["val"] = old._replace(stride=meta.stride)
