"""Attention written by hand, ``softmax(q @ k.T * scale + mask) @ v``, as torch's fused kernel.

It pays where the scores do not stay in the caches (`tracing.libraries.Policy`).
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import torch
import torch.fx as fx

from bolide.functorch.graphs import aten, extract, output_node
from bolide.functorch.passes.norms import Writer
from bolide.functorch.passes.simplify import remove_dead
from bolide.tracing import TensorMeta
from bolide.tracing.called.branches import Branches, branch
from bolide.tracing.graph import enter, graph_module
from bolide.tracing.libraries import policy_of
from bolide.tracing.rules import infer

FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
LARGEST_SCORE = 1e38
"""What a bound of the scores must stay below for them to be surely finite."""
_AS_WRITTEN = "as written"
"""Marks a softmax, in its node's meta, that stays as it is."""


class _Attention(NamedTuple):
    """``product`` is ``softmax(scores * scale + mask) @ values``, the scores being `queries` (N, T, D) times `keys` (N,
    D, S). `mask`: what is added, or where -inf is put (of type bool). `growth`: at most so many times as large a score
    becomes while it is scaled."""

    queries: fx.Node
    keys: fx.Node
    values: fx.Node
    scale: float
    growth: float
    mask: fx.Node | None
    shape: tuple[int, ...]  # of the scores as they are masked
    product: fx.Node


def fuse_attention(graph: fx.Graph) -> fx.Graph:
    """An inference graph with attention in the fused kernel where that pays."""
    changed = False
    for node in graph.find_nodes(op="call_function", target=aten._softmax.default):
        found = _matched(node)
        if found is not None:
            fills = found.mask is not None and meta_of(found.mask).dtype is torch.bool
            (_rewrite_where_finite if fills else _rewrite)(found)
            changed = True
    return remove_dead(graph) if changed else graph


def meta_of(node: fx.Node) -> TensorMeta:
    """What is known of the tensor that a node stands for."""
    meta: TensorMeta = node.meta["val"]
    return meta


def _matched(softmax: fx.Node) -> _Attention | None:
    scores, dim, half = softmax.args
    shape = meta_of(softmax).shape
    static = all(type(size) is int for size in shape)
    if half or not static or _AS_WRITTEN in softmax.meta or len(shape) not in (3, 4) or dim not in (-1, len(shape) - 1):
        return None
    policy = policy_of(meta_of(softmax).device)
    large = min(shape[-2:]) >= policy.least_length and math.prod(shape) >= policy.least_scores
    if not large or meta_of(softmax).dtype is not torch.float32:
        return None
    product = _only_reader(softmax)
    if product is None or product.target is not aten.bmm.default or _source(product.args[0]) is not softmax:
        return None
    scale, growth, node = 1.0, 1.0, scores
    mask: fx.Node | None = None
    while isinstance(node, fx.Node) and node.target is not aten.bmm.default:
        if len(node.users) != 1 or meta_of(node).dtype is not torch.float32:
            return None
        first, other = (*node.args, None)[:2]
        if node.target is aten.view.default:
            pass
        elif node.target in (aten.mul.Tensor, aten.div.Tensor) and isinstance(other, (int, float)) and other:
            factor = 1 / other if node.target is aten.div.Tensor else other
            scale, growth = scale * factor, growth * max(1.0, abs(factor))
        elif mask is not None or scale != 1.0 or meta_of(node).shape != shape or not isinstance(first, fx.Node):
            return None  # a mask that is scaled as well, or a second one
        elif node.target is aten.add.Tensor and not node.kwargs and isinstance(other, fx.Node):
            first, mask = (first, other) if meta_of(first).shape == shape else (other, first)
        elif node.target is aten.masked_fill.Scalar and node.args[2] == -math.inf and isinstance(other, fx.Node):
            mask = other
        else:
            return None
        node = first
    if not isinstance(node, fx.Node) or len(node.users) != 1 or (mask is not None and not _is_mask(mask, shape)):
        return None
    queries, keys = node.args
    values = product.args[1]
    assert isinstance(queries, fx.Node) and isinstance(keys, fx.Node) and isinstance(values, fx.Node)
    fits = meta_of(values).shape[-1] == meta_of(queries).shape[-1] and math.isfinite(scale)
    fits &= math.prod(shape[:-2]) == meta_of(queries).shape[0] and meta_of(node).shape[1:] == shape[-2:]
    return _Attention(queries, keys, values, scale, growth, mask, shape, product) if fits else None


def _is_mask(mask: object, shape: tuple[int, ...]) -> bool:
    """Whether it broadcasts against the scores and is of a type that the kernel can be given."""
    if not isinstance(mask, fx.Node) or meta_of(mask).dtype not in (torch.float32, torch.bool):
        return False
    sizes = meta_of(mask).shape
    return len(sizes) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(sizes), reversed(shape)))


def _only_reader(node: fx.Node) -> fx.Node | None:
    """What alone reads a value, through views."""
    while len(node.users) == 1:
        (node,) = node.users
        if node.target is not aten.view.default:
            return node
    return None


def _source(node: object) -> object:
    """What a view looks at."""
    while isinstance(node, fx.Node) and node.target is aten.view.default:
        node = node.args[0]
    return node


def _rewrite(found: _Attention) -> None:
    write = Writer(found.product, None)
    batch, heads = found.shape[:2] if len(found.shape) == 4 else (found.shape[0], 1)

    def by_heads(node: fx.Node) -> fx.Node:
        return dense(write, write.viewed(node, [batch, heads, *meta_of(node).shape[1:]]))

    operands = [by_heads(found.queries), by_heads(write(aten.transpose.int, found.keys, 1, 2)), by_heads(found.values)]
    mask = None if found.mask is None else _additive(write, found.mask, len(found.shape))
    output = flash(write, operands, mask, found.scale)
    if mask is not None:  # of a row without keys softmax makes NaN, the kernel 0
        nothing = write(aten.eq.Scalar, write(aten.amax.default, mask, [-1], True), -math.inf)
        output = write(aten.masked_fill.Scalar, output, nothing, math.nan)
    result = write.viewed(dense(write, output), list(meta_of(found.product).shape))
    found.product.replace_all_uses_with(result)


def _rewrite_where_finite(found: _Attention) -> None:
    """A branch: the kernel where all scores are surely finite. It adds -inf, which leaves a score of NaN or infinity
    what it is; the program puts -inf in its place."""
    assert found.mask is not None
    slots = [*dict.fromkeys((found.queries, found.keys, found.values, found.mask))]
    kernel, written = (extract(found.product.graph, slots, [found.product], []) for _ in range(2))
    for way in (kernel, written):
        output_node(way).meta["val"] = None
    (softmax,) = kernel.find_nodes(op="call_function", target=aten._softmax.default)
    inside = _matched(softmax)
    assert inside is not None
    _rewrite(inside)
    remove_dead(kernel)
    (softmax,) = written.find_nodes(op="call_function", target=aten._softmax.default)
    softmax.meta[_AS_WRITTEN] = True
    graphs = tuple([graph_module(way, {}, "Way") for way in (kernel, written)])
    table = Branches(graphs, len(slots), (meta_of(found.product),), (), ())

    write = Writer(found.product, None)
    most = [write(aten.amax.default, write(aten.abs.default, x), []) for x in (found.queries, found.keys)]
    bound = LARGEST_SCORE / (meta_of(found.queries).shape[-1] * found.growth)
    finite = write(aten.lt.Scalar, write(aten.mul.Tensor, *most), bound)
    with write.place.graph.inserting_before(write.place):
        call = write.place.graph.call_function(branch, (finite, slots, [], enter(table)))
        call.meta = {**write.place.meta, "val": [*table.metas]}
        result = write.place.graph.call_function(operator.getitem, (call, 0))
        result.meta = dict(write.place.meta)
    found.product.replace_all_uses_with(result)


def _additive(write: Writer, mask: fx.Node, dims: int) -> fx.Node:
    """The mask as (batch, heads, queries, keys) of what is added to the scores; it is broadcast where a size is 1."""
    sizes = list(meta_of(mask).shape)
    sizes = [1] * (dims - len(sizes)) + sizes
    mask = write.viewed(dense(write, mask), sizes if dims == 4 else [sizes[0], 1, *sizes[1:]])
    if meta_of(mask).dtype is not torch.bool:
        return mask
    zeros = write(aten.full.default, list(meta_of(mask).shape), 0.0)
    return write(aten.masked_fill.Scalar, zeros, mask, -math.inf)


def flash(write: Writer, operands: list[fx.Node], mask: fx.Node | None, scale: float | None) -> fx.Node:
    """The first result of the fused kernel."""
    options: dict[str, fx.Node | float | None] = {"attn_mask": mask, "scale": scale}
    with write.place.graph.inserting_before(write.place):
        call = write.place.graph.call_function(FLASH, (*operands, 0.0, False), {**options})
        call.meta = {**write.place.meta, "val": infer(FLASH, call.args, options)}
        output = write.place.graph.call_function(operator.getitem, (call, 0))
        output.meta = {**write.place.meta, "val": call.meta["val"][0]}
    return output


def dense(write: Writer, node: fx.Node) -> fx.Node:
    """A row-major copy, which the kernel needs; lowering joins it with copies before it."""
    with write.place.graph.inserting_before(write.place):
        options = {"memory_format": torch.contiguous_format}
        copy = write.place.graph.call_function(aten.clone.default, (node,), options)  # type: ignore[arg-type]
    copy.meta = {**write.place.meta, "val": infer(aten.clone.default, (node,), options)}
    return copy
