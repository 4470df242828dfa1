"""Normalised values that the backward can make again from the statistics.

A norm's op gives its result, mean and reciprocal deviation at once; seen as one op it would have to be done again in
full to have the result again. Pointwise readers in the backward therefore read an expression of the input and the
statistics, which are saved for the norm's own backward anyway, so the result itself need not be saved. A log-softmax
becomes its formula: its statistics are the largest of each row and the logarithm of a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx

from bolide.functorch.cost import fuses
from bolide.functorch.graphs import aten, is_getitem, is_view
from bolide.symbolic import ShapeEnv, contiguous_strides
from bolide.tracing import TensorMeta
from bolide.tracing.rules import infer


class Writer:
    """Makes nodes in front of `place`, with their metas; `shapes` as for `infer`."""

    def __init__(self, place: fx.Node, shapes: ShapeEnv | None) -> None:
        self.place, self.shapes = place, shapes

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.place.graph.inserting_before(self.place):
            node = self.place.graph.call_function(op, args, kwargs)
        node.meta = {**self.place.meta, "val": infer(op, args, kwargs, self.shapes)}
        return node

    def viewed(self, node: Any, shape: list[Any]) -> fx.Node:
        return self(aten.view.default, node, shape)


Formula = Callable[[Writer, fx.Node, fx.Node, fx.Node], fx.Node]


def _layer_norm(write: Writer, norm: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
    x, _, weight, bias, _ = norm.args
    value = write(aten.mul.Tensor, write(aten.sub.Tensor, x, mean), rstd)
    if weight is not None:
        value = write(aten.mul.Tensor, value, weight)
    return value if bias is None else write(aten.add.Tensor, value, bias)


def _group_norm(write: Writer, norm: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
    x, weight, bias, batch, channels, _, groups, _ = norm.args
    shape = list(x.meta["val"].shape)  # type: ignore[union-attr]
    per_group, per_channel = [batch, groups, 1], [1, channels, 1]
    value = write(aten.sub.Tensor, write.viewed(x, [batch, groups, -1]), write.viewed(mean, per_group))
    value = write(aten.mul.Tensor, value, write.viewed(rstd, per_group))
    value = write.viewed(value, [batch, channels, -1])
    if weight is not None:
        value = write(aten.mul.Tensor, value, write.viewed(weight, per_channel))
    if bias is not None:
        value = write(aten.add.Tensor, value, write.viewed(bias, per_channel))
    return write.viewed(value, shape)


FORMULAS: dict[Any, Formula] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
}


def split_norms(graph: fx.Graph, forward: set[fx.Node], shapes: ShapeEnv | None = None) -> fx.Graph:
    """Lets readers outside of `forward` (the nodes that the forward computes) read a norm's formula instead of its
    result, where all of them fuse.
    """
    for op, formula in FORMULAS.items():
        for norm in graph.find_nodes(op="call_function", target=op):
            parts = {user.args[1]: user for user in norm.users if is_getitem(user)}
            if op is aten.native_group_norm.default and not _is_static(norm.args[0]):
                continue
            if len(parts) < 3 or not _is_plain(norm.args[0], parts[0], parts[1]):
                continue
            readers = [user for user in parts[0].users if user not in forward and user.op != "output"]
            if readers and all(fuses(reader) and not is_view(reader) for reader in readers):
                value = formula(Writer(max(parts.values()).next, shapes), norm, parts[1], parts[2])
                for reader in readers:
                    reader.replace_input_with(parts[0], value)
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        readers = [user for user in node.users if user not in forward and user.op != "output"]
        if readers and all(map(fuses, readers)) and _is_along_rows(node):
            value = _log_softmax(Writer(node, shapes), node)
            value.meta = node.meta
            node.replace_all_uses_with(value)
            graph.erase_node(node)
    return graph


def _log_softmax(write: Writer, node: fx.Node) -> fx.Node:
    """The result as its op computes it, 16-bit floats in float32. What is computed twice is written in two ways, so
    that it is not kept for the second one."""
    x, dim, _ = node.args
    dtype = node.meta["val"].dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if x.meta["val"].dtype != wide:  # type: ignore[union-attr]
        x = write(aten._to_copy.default, x, dtype=wide)
    top = write(aten.amax.default, x, [dim], True)
    total = write(aten.sum.dim_IntList, write(aten.exp.default, write(aten.sub.Tensor, x, top)), [dim], True)
    shifted = write(aten.add.Tensor, x, write(aten.neg.default, top))
    value = write(aten.sub.Tensor, shifted, write(aten.log.default, total))
    return value if dtype == wide else write(aten._to_copy.default, value, dtype=dtype)


def _is_along_rows(node: fx.Node) -> bool:
    """Row-major, and a row has elements."""
    x, out = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return bool(x.shape) and 0 not in x.shape and x.stride == out.stride == contiguous_strides(x.shape)


def _is_static(x: Any) -> bool:
    return all(isinstance(size, int) for size in x.meta["val"].shape)


def _is_plain(x: Any, out: fx.Node, mean: fx.Node) -> bool:
    """Row-major, statistics not rounded to less than the computation's precision."""
    metas: list[TensorMeta] = [x.meta["val"], out.meta["val"], mean.meta["val"]]
    if any(meta.dtype not in (torch.float32, torch.float64) for meta in metas):
        return False
    return all(meta.stride == contiguous_strides(meta.shape) for meta in metas[:2])
