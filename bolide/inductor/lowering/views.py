"""Views: index maps, never buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.fx

from bolide.inductor.ir.definitions import ravel, unravel, volume
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import (
    ONE,
    ZERO,
    Coords,
    IndexMap,
    TensorValue,
    broadcast,
    replaced,
)
from bolide.support.caches import on_reset
from bolide.symbolic import Expr, as_expr, contiguous_strides

aten = torch.ops.aten


def _grow(sizes: Coords, start: int, other: Coords, begin: int) -> tuple[int, int] | None:
    """The ends of the shortest runs sizes[start:end], other[begin:stop] with equal products, or None if it cannot be
    told which one to lengthen."""
    end, stop = start + 1, begin + 1
    left, right = sizes[start], other[begin]
    while left is not right:
        if left.is_const and right.is_const:
            lengthen = left.value < right.value
        elif (right % left) is ZERO:
            lengthen = True
        elif (left % right) is ZERO:
            lengthen = False
        else:
            return None
        if lengthen:
            if end == len(sizes):
                return None
            left, end = left * sizes[end], end + 1
        else:
            if stop == len(other):
                return None
            right, stop = right * other[stop], stop + 1
    return end, stop


@lru_cache(maxsize=4096)
def reshape_map(old: Coords, new: Coords) -> IndexMap:
    """The map of a row-major reshape: coordinates in `new` to coordinates in `old`. Runs of dimensions with equal
    products are mapped each by itself, so that a dimension that stays keeps its plain coordinate."""
    if any(size is ZERO for size in old):
        return lambda coords: (ZERO,) * len(old)
    olds = [d for d, size in enumerate(old) if size is not ONE]
    news = [d for d, size in enumerate(new) if size is not ONE]
    old_sizes, new_sizes = tuple(old[d] for d in olds), tuple(new[d] for d in news)
    runs: list[tuple[int, int, int, int]] = []
    i = j = 0
    while i < len(olds) and j < len(news):
        ends = _grow(old_sizes, i, new_sizes, j) or (len(olds), len(news))
        runs.append((i, ends[0], j, ends[1]))
        i, j = ends

    def step(coords: Coords) -> Coords:
        result = [ZERO] * len(old)
        for a, b, c, d in runs:
            if b - a == d - c == 1:
                result[olds[a]] = coords[news[c]]
                continue
            linear = ravel([coords[news[k]] for k in range(c, d)], new_sizes[c:d])
            for k, coord in zip(range(a, b), unravel(linear, old_sizes[a:b])):
                result[olds[k]] = coord
        return tuple(result)

    return step


on_reset(reshape_map.cache_clear)


def reshape(x: TensorValue, shape: Coords) -> TensorValue:
    return x if shape == x.shape else x.view(shape, reshape_map(x.shape, shape))


@lowering(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.view_copy.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.squeeze_copy.default,
    aten.unsqueeze_copy.default,
)
def view(ctx: Lowering, x: TensorValue, *_: object) -> TensorValue:
    return reshape(x, ctx.out[0])


@lowering(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default)
def alias(ctx: Lowering, x: TensorValue) -> TensorValue:
    return x


@lowering(aten.expand.default, aten.expand_copy.default)
def expand(ctx: Lowering, x: TensorValue, size: object, implicit: bool = False) -> TensorValue:
    shape = ctx.out[0]
    return x if shape == x.shape else x.view(shape, lambda coords: broadcast(x.shape, coords))


def permuted(x: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Dimension k of the result is dimension dims[k] of `x`."""
    order = [dim % len(dims) for dim in dims]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return x.view([x.shape[dim] for dim in order], lambda coords: tuple([coords[k] for k in inverse]))


lowering(aten.permute.default, aten.permute_copy.default)(lambda ctx, x, dims: permuted(x, dims))


@lowering(aten.transpose.int, aten.transpose_copy.int)
def transpose(ctx: Lowering, x: TensorValue, dim0: int, dim1: int) -> TensorValue:
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(x, order)


@lowering(aten.t.default, aten.t_copy.default)
def t(ctx: Lowering, x: TensorValue) -> TensorValue:
    return permuted(x, (1, 0)) if len(x.shape) == 2 else x


def selected(x: TensorValue, dim: int, place: Expr) -> TensorValue:
    dim %= len(x.shape)
    return x.view(replaced(x.shape, dim), lambda coords: (*coords[:dim], place, *coords[dim:]))


@lowering(aten.select.int, aten.select_copy.int)
def select(ctx: Lowering, x: TensorValue, dim: int, index: object) -> TensorValue:
    return selected(x, dim, index_place(index, x.shape[dim]))


def index_place(index: object, size: Expr) -> Expr:
    """The place that an index means. Symbols count from the front already (`tracing.operations.views`)."""
    place = as_expr(index)
    return place + size if place.is_const and place.value < 0 else place


def start_place(start: object, size: Expr) -> Expr:
    """The first place of a slice, as Python's rules for negative and too large bounds give it. Symbols count from the
    front already, and are within the dimension (`tracing.operations.views`)."""
    place = as_expr(0 if start is None else start)
    if not place.is_const:
        return place
    return Expr.max(place + size, 0) if place.value < 0 else Expr.min(place, size)


def sliced(x: TensorValue, dim: int, start: Expr, length: Expr, step: int = 1) -> TensorValue:
    dim %= len(x.shape)
    return x.view(replaced(x.shape, dim, length), lambda coords: replaced(coords, dim, coords[dim] * step + start))


@lowering(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(
    ctx: Lowering, x: TensorValue, dim: int = 0, start: object = None, end: object = None, step: int = 1
) -> TensorValue:
    length = ctx.out[0][dim]
    if length is x.shape[dim] and step == 1:
        return x
    return sliced(x, dim, start_place(start, x.shape[dim]), length, step)


@lowering(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default,
)
def split(ctx: Lowering, x: TensorValue, sizes: object, dim: int = 0) -> tuple[TensorValue, ...]:
    """Consecutive pieces of `x` along `dim`, with the lengths of the node's results."""
    start, parts = ZERO, []
    for meta in ctx.metas:
        length = ctx.shape_of(meta)[dim]
        parts.append(sliced(x, dim, start, length))
        start = start + length
    return tuple(parts)


@lowering(aten.unbind.int, aten.unbind_copy.int)
def unbind(ctx: Lowering, x: TensorValue, dim: int = 0) -> tuple[TensorValue, ...]:
    return tuple(selected(x, dim, Expr.const(k)) for k in range(len(ctx.metas)))


@lowering(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(ctx: Lowering, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    rank = len(x.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    others = [d for d in range(rank) if d not in (dim1, dim2)]

    def step(coords: Coords) -> Coords:
        result = [ZERO] * rank
        for d, coord in zip(others, coords):
            result[d] = coord
        result[dim1] = coords[-1] + max(-offset, 0)
        result[dim2] = coords[-1] + max(offset, 0)
        return tuple(result)

    return x.view(ctx.out[0], step)


@lowering(aten.flip.default)
def flip(ctx: Lowering, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    turned = {dim % len(x.shape) for dim in dims} if x.shape else set()

    def step(coords: Coords) -> Coords:
        return tuple(x.shape[d] - 1 - c if d in turned else c for d, c in enumerate(coords))

    return ctx.copy(x.view(x.shape, step))


@lowering(aten.unfold.default, aten.unfold_copy.default)
def unfold(ctx: Lowering, x: TensorValue, dim: int, size: int, step: int) -> TensorValue:
    if not x.shape:
        return reshape(x, ctx.out[0])
    dim %= len(x.shape)

    def move(coords: Coords) -> Coords:
        return (*coords[:dim], coords[dim] * step + coords[-1], *coords[dim + 1 : -1])

    return x.view(ctx.out[0], move)


@lowering(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    ctx: Lowering, x: TensorValue, size: object, stride: Sequence[object], storage_offset: object = None
) -> object:
    """Positions are counted in the storage eager would have: expressible where `x` itself fills it in row-major
    order."""
    meta = ctx.node.all_input_nodes[0].meta["val"]
    shape = ctx.out[0]
    if any(length is ZERO for length in shape):
        return x.view(shape, lambda coords: (ZERO,) * len(x.shape))
    if meta.offset != 0 or ctx.sizes(meta.stride) != contiguous_strides(x.shape):
        return EXTERN
    offset = as_expr(0 if storage_offset is None else storage_offset)
    strides = ctx.sizes(stride)

    def place(coords: Sequence[Expr]) -> Expr:
        return sum((coord * step for coord, step in zip(coords, strides)), start=offset)

    last_is_inside = place([length - 1 for length in shape]).lt(volume(x.shape))
    if not (last_is_inside.is_const and last_is_inside.value):
        return EXTERN
    return x.view(shape, lambda coords: unravel(place(coords), x.shape))
