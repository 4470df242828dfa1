"""Normalised values that the backward can make again from the statistics.

A norm's op gives its result, mean and reciprocal deviation at once; seen as one op it would have to be done again in
full to have the result again. Pointwise readers in the backward therefore read an expression of the input and the
statistics, which are saved for the norm's own backward anyway, so the result itself need not be saved. A log-softmax
becomes its formula: its statistics are the largest of each row and the logarithm of a sum. What it is made of is marked
as ``meta["scores"]`` where nobody else sees the result: of a large vocabulary both would take much memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx

from bolide.functorch.cost import fuses
from bolide.functorch.graphs import aten, is_getitem, is_view, root
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


def _batch_norm(write: Writer, norm: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
    x, weight, bias, *_ = norm.args
    meta, wide = x.meta["val"], mean.meta["val"].dtype  # type: ignore[union-attr]
    shape = [1, meta.shape[1], *[1] * (len(meta.shape) - 2)]
    value = x if meta.dtype == wide else write(aten._to_copy.default, x, dtype=wide)
    value = write(aten.mul.Tensor, write(aten.sub.Tensor, value, write.viewed(mean, shape)), write.viewed(rstd, shape))
    if weight is not None:
        value = write(aten.mul.Tensor, value, write.viewed(weight, shape))
    if bias is not None:
        value = write(aten.add.Tensor, value, write.viewed(bias, shape))
    return value if meta.dtype == wide else write(aten._to_copy.default, value, dtype=meta.dtype)


BATCH_NORMS = (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)
FORMULAS: dict[Any, Formula] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
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
            if not parts.keys() >= {0, 1, 2} or not _is_plain(norm.args[0], parts[0], parts[1], op in BATCH_NORMS):
                continue
            write = Writer(max(parts.values()).next, shapes)
            if readers := _readers(parts[0], forward):
                value = formula(write, norm, parts[1], parts[2])
                for reader in readers:
                    reader.replace_input_with(parts[0], value)
            for relu in [user for user in parts[0].users if user.target is aten.relu.default and user in forward]:
                if op in BATCH_NORMS and (readers := _readers(relu, forward)):
                    value = write(aten.relu.default, formula(write, norm, parts[1], parts[2]))
                    for reader in readers:
                        reader.replace_input_with(relu, value)
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        if _readers(node, forward) and _is_along_rows(node):
            if not any(user.op == "output" for user in node.users):
                _source(node.all_input_nodes[0]).meta["scores"] = True
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


def _source(node: fx.Node) -> fx.Node:
    """The value before views and conversions."""
    node = root(node)
    while node.target is aten._to_copy.default:
        node = root(node.all_input_nodes[0])
    return node


def _is_along_rows(node: fx.Node) -> bool:
    """Row-major, and a row has elements."""
    x, out = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return bool(x.shape) and 0 not in x.shape and x.stride == out.stride == contiguous_strides(x.shape)


def _readers(node: fx.Node, forward: set[fx.Node]) -> list[fx.Node]:
    """The readers outside of `forward`, if all of them fuse."""
    readers = [user for user in node.users if user not in forward and user.op != "output"]
    return readers if all(fuses(reader) and not is_view(reader) for reader in readers) else []


def _is_static(x: Any) -> bool:
    return all(isinstance(size, int) for size in x.meta["val"].shape)


def _is_plain(x: Any, out: fx.Node, mean: fx.Node, any_layout: bool) -> bool:
    """Row-major (or in the result's layout, whatever it is), statistics not rounded to less than the computation's
    precision."""
    metas: list[TensorMeta] = [x.meta["val"], out.meta["val"], mean.meta["val"]]
    if any_layout:
        return metas[2].dtype in (torch.float32, torch.float64) and metas[0].stride == metas[1].stride
    if any(meta.dtype not in (torch.float32, torch.float64) for meta in metas):
        return False
    return all(meta.stride == contiguous_strides(meta.shape) for meta in metas[:2])
