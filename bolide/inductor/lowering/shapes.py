"""Ops that put tensors together or into one another: cat, stack, pad, repeat, roll, resizing, the scatters of views and
the backwards of views."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
import torch.fx

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering, view_axes
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ONE, ZERO, Coords, Reader, TensorValue, replaced, same_layout
from bolide.inductor.lowering.views import index_place, permuted, reshape, start_place
from bolide.symbolic import Expr, as_expr, contiguous_strides
from bolide.symbolic.expr import Cond
from bolide.tracing import TensorMeta
from bolide.tracing.traits import traits_of

aten = torch.ops.aten


def holds(cond: Cond) -> Node:
    """A condition on index expressions as a bool scalar."""
    if cond.is_const:
        return sc.const(cond.value, torch.bool)
    op = {"==": "eq", "!=": "ne", ">=": "ge"}[cond.op]
    return sc.compare(op, sc.index(cond.expr), sc.const(0, torch.int64))


def within(coord: Expr, lo: Expr | int, hi: Expr | int) -> Node:
    """lo <= coord < hi."""
    return sc.logical_and(holds(coord.ge(lo)), holds(coord.lt(hi)))


def concatenated(ctx: Lowering, parts: Sequence[TensorValue], dim: int) -> TensorValue:
    shape, dtype = ctx.out
    starts = [ZERO]
    for part in parts:
        starts.append(starts[-1] + part.shape[dim])

    def body(coords: Coords) -> Node:
        place = coords[dim]

        def loaded(part: TensorValue, start: Expr, end: Expr) -> Node:
            source = replaced(coords, dim, place - start)
            value = part.load(source) if part.formula else part.load_if(within(place, start, end), source)
            return sc.cast(value, dtype)

        *others, last = zip(parts, starts, starts[1:])
        value = loaded(*last)
        for piece in reversed(others):
            value = sc.where(holds(place.lt(piece[2])), loaded(*piece), value)
        return value

    return ctx.compute(shape, dtype, body)


@lowering(aten.cat.default)
def cat(ctx: Lowering, tensors: Sequence[TensorValue], dim: int = 0) -> object:
    shape, dtype = ctx.out
    # ATen skips empty 1-d tensors
    parts = [part for part in tensors if len(part.shape) == len(shape) and part.shape[dim] is not ZERO]
    if len(parts) > ctx.machine.most_joined:
        return EXTERN
    if not parts:
        return ctx.compute(shape, dtype, lambda coords: sc.const(0, dtype))
    return concatenated(ctx, parts, dim % len(shape))


@lowering(aten.stack.default)
def stack(ctx: Lowering, tensors: Sequence[TensorValue], dim: int = 0) -> object:
    if len(tensors) > ctx.machine.most_joined:
        return EXTERN
    dim %= len(ctx.out[0])
    parts = [reshape(part, (*part.shape[:dim], ONE, *part.shape[dim:])) for part in tensors]
    return concatenated(ctx, parts, dim)


def _before(rank: int, pad: Sequence[object]) -> dict[int, Expr]:
    """How many elements are put before each of the padded dimensions, of which the last comes first in `pad`."""
    return {rank - 1 - k: as_expr(before) for k, before in enumerate(pad[::2])}


@lowering(aten.constant_pad_nd.default)
def constant_pad_nd(ctx: Lowering, x: TensorValue, pad: Sequence[object], value: sc.Number = 0) -> TensorValue:
    shape, dtype = ctx.out
    before = _before(len(shape), pad)

    def body(coords: Coords) -> Node:
        source = tuple(coord - before[d] if d in before else coord for d, coord in enumerate(coords))
        inside = sc.all_of(within(source[d], 0, x.shape[d]) for d in before)
        return sc.where(inside, x.load_if(inside, source), sc.const(value, dtype))

    return ctx.compute(shape, dtype, body)


@lowering(aten.repeat.default)
def repeat(ctx: Lowering, x: TensorValue, repeats: object) -> TensorValue:
    shape, dtype = ctx.out
    extra = len(shape) - len(x.shape)

    def body(coords: Coords) -> Node:
        return x.load(tuple(c % size if size is not ZERO else ZERO for c, size in zip(coords[extra:], x.shape)))

    return ctx.compute(shape, dtype, body)


@lowering(aten.roll.default)
def roll(ctx: Lowering, x: TensorValue, shifts: Sequence[object], dims: Sequence[int] = ()) -> object:
    if not dims or x.is_empty:
        return EXTERN
    moves: dict[int, Expr] = {}
    for dim, shift in zip(dims, shifts):
        dim %= len(x.shape)
        moves[dim] = moves.get(dim, ZERO) + as_expr(shift)

    def body(coords: Coords) -> Node:
        return x.load(tuple((c - moves[d]) % x.shape[d] if d in moves else c for d, c in enumerate(coords)))

    return ctx.compute(x.shape, x.dtype, body)


# ---- tensors of which some elements are one in memory ------------------------------------------------------------


def may_overlap(node: torch.fx.Node) -> bool:
    """Whether elements of an FX node's result may be one in memory, one that is merely expanded excepted: copies of it
    have memory for every element, copies of the others lie as they do."""
    meta = node.meta["val"]
    if _apart(meta) or any(step.__class__ is int and step == 0 for step in meta.stride):
        return False
    while node.op == "call_function":
        if traits_of(node.target).overlaps:
            return True
        if node.target is not operator.getitem and not _keeps_layout(node.target):
            return False
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        node = source
    return hasattr(node.meta["val"], "stride") and not _apart(node.meta["val"])


def _keeps_layout(target: object) -> bool:
    if traits_of(target).laid_out_as_first:
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _apart(meta: TensorMeta | torch.Tensor) -> bool:
    """Whether each step is known to be longer than all that the smaller steps reach."""
    strides = meta.stride() if isinstance(meta, torch.Tensor) else meta.stride
    left = [
        (as_expr(step), as_expr(size))
        for step, size in zip(strides, meta.shape)
        if size.__class__ is not int or size != 1
    ]
    reached = as_expr(0)
    while left:
        step, size = next((dim for dim in left if all(_least(other[0] - dim[0]) >= 0 for other in left)), left[0])
        if _least(step - reached) < 1:
            return False
        left.remove((step, size))
        reached = reached + (size - 1) * step
    return True


def _least(expr: Expr) -> float:
    least = expr.bounds()[0]
    return -math.inf if least is None else least


# ---- writing into a view: functional forms -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Region:
    """The part of a tensor that a view shows. `find`: from an element of the tensor to whether the view shows it, and
    as which of its elements; `spot`: from an element of the view to that of the tensor."""

    find: Callable[[Coords], tuple[Node, Coords]]
    spot: Callable[[Coords], Coords]


def _register_written(name: str, region_of: Callable[..., Region]) -> None:
    """What writes into a view: region_of(shape, shape of what is written, arguments of the view)."""

    @lowering(getattr(aten, f"{name}_scatter").default)
    def scatter(ctx: Lowering, x: TensorValue, src: TensorValue, *args: object, **kwargs: object) -> object:
        if may_overlap(ctx.node.all_input_nodes[0]):
            return EXTERN
        region = region_of(x.shape, src.shape, *args, **kwargs)
        if ctx.node in ctx.updates and not src.is_empty:
            return _updated(ctx, x, src, region)
        return _written(ctx, x, src, region)

    @lowering(getattr(aten, f"{name}_backward").default)
    def backward(ctx: Lowering, grad: TensorValue, input_sizes: object, *args: object, **kwargs: object) -> TensorValue:
        return _written(ctx, None, grad, region_of(ctx.out[0], grad.shape, *args, **kwargs))


def _written(ctx: Lowering, base: TensorValue | None, source: TensorValue, region: Region) -> TensorValue:
    """`base` (None: zeros) with `source` in it."""
    shape, dtype = ctx.out
    if source.is_empty:
        return ctx.copy(base) if base else ctx.compute(shape, dtype, lambda coords: sc.const(0, dtype))

    def body(coords: Coords) -> Node:
        inside, at = region.find(coords)
        written = sc.cast(source.load_if(inside, at), dtype)
        return written if base is None else sc.where(inside, written, base.load(coords))

    return ctx.compute(shape, dtype, body)


def _updated(ctx: Lowering, base: TensorValue, source: TensorValue, region: Region) -> TensorValue:
    """`base`, of which an input is to become the result, with `source` in it. Where that is this very part of `base`,
    perhaps updated, nothing more is written."""
    _, axes = view_axes(source.shape)
    if source.at(axes) == base.at(region.spot(axes)):
        if source.buffer == base.buffer:
            return base
        updated = ctx.updated.get(source.buffer)
        if updated is not None and updated.base == base.buffer and updated.is_within(source):
            result = replace(base, buffer=source.buffer, formula=None)
            updated.within(result)
            return result
    return ctx.scatter(base, source.shape, lambda coords: (region.spot(coords), ()), source.load, "set")


def _in_slice(
    shape: Coords, written: Coords, dim: int = 0, start: object = None, end: object = None, step: int = 1
) -> Region:
    dim %= len(shape)
    first, length = start_place(start, shape[dim]), written[dim]

    def find(coords: Coords) -> tuple[Node, Coords]:
        steps = coords[dim] - first
        inside = within(steps, 0, (length - 1) * step + 1)
        if step != 1:
            inside = sc.logical_and(inside, holds((steps % step).eq(0)))
        return inside, replaced(coords, dim, steps // step)

    return Region(find, lambda coords: replaced(coords, dim, coords[dim] * step + first))


def _in_selected(shape: Coords, written: Coords, dim: int, index: object) -> Region:
    dim %= len(shape)
    chosen = index_place(index, shape[dim])
    return Region(
        lambda coords: (holds(coords[dim].eq(chosen)), replaced(coords, dim)),
        lambda coords: (*coords[:dim], chosen, *coords[dim:]),
    )


def _on_diagonal(shape: Coords, written: Coords, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Region:
    dim1, dim2 = dim1 % len(shape), dim2 % len(shape)

    def find(coords: Coords) -> tuple[Node, Coords]:
        others = tuple(coord for d, coord in enumerate(coords) if d not in (dim1, dim2))
        along = coords[dim1] if offset >= 0 else coords[dim2]
        return holds((coords[dim2] - coords[dim1]).eq(offset)), (*others, along)

    def spot(coords: Coords) -> Coords:
        others, along = iter(coords[:-1]), coords[-1]
        own = {dim1: along + max(-offset, 0), dim2: along + max(offset, 0)}
        return tuple(own[d] if d in own else next(others) for d in range(len(shape)))

    return Region(find, spot)


_register_written("slice", _in_slice)
_register_written("select", _in_selected)
_register_written("diagonal", _on_diagonal)


# ---- resampling by whole factors -------------------------------------------------------------------------------------


def whole_factors(large: Coords, small: Coords) -> tuple[int, ...] | None:
    """How often each element of `small` is repeated in `large`, if that is a whole number everywhere."""
    pairs = list(zip(large, small))
    if any(not (a.is_const and b.is_const) or b is ZERO or a.value % b.value or a is ZERO for a, b in pairs):
        return None
    return tuple(a.value // b.value for a, b in pairs)


def _usual(scales: Sequence[object], factors: tuple[int, ...]) -> bool:
    return all(scale is None or scale == factor for scale, factor in zip(scales, factors))


@lowering(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)
def upsample_nearest(ctx: Lowering, x: TensorValue, output_size: object, *scales: object) -> object:
    shape, dtype = ctx.out
    factors = whole_factors(shape[2:], x.shape[2:])
    if factors is None or not _usual(scales, factors):
        return EXTERN
    return ctx.compute(
        shape, dtype, lambda c: x.load((*c[:2], *(coord // factor for coord, factor in zip(c[2:], factors))))
    )


@lowering(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
)
def upsample_nearest_backward(
    ctx: Lowering, grad: TensorValue, output_size: object, input_size: object, *scales: object
) -> object:
    shape, dtype = ctx.out
    factors = whole_factors(grad.shape[2:], shape[2:])
    if factors is None or not _usual(scales, factors):
        return EXTERN

    def body(kept: Coords, window: Coords) -> Node:
        places = (coord * factor + step for coord, factor, step in zip(kept[2:], factors, window))
        return sc.cast(grad.load((*kept[:2], *places)), sc.compute_dtype(dtype))

    return ctx.reduce(shape, dtype, tuple(Expr.const(factor) for factor in factors), "sum", body)


# ---- bilinear resizing by powers of two -----------------------------------------------------------------------------
#
# Element s·i + p of a resized line lies at i + (p + 1/2) / s - 1/2 of the given one (s: the factor). With a power of
# two for s this is exact in floating point, as eager computes it: for every i the same two neighbours have the same
# weights, but at the ends. So lines are computed phase by phase. Other factors than 2 and 4 are ATen's, and so are
# planes that are not row-major. A GPU computes element by element, in any order. Gradients are gathered in any order,
# by more factors: ATen's scatter them element by element, and copy those of other orders first.

_BILINEAR = (2, 4)
_GATHERED = (1, 2, 4, 8, 16)


def _bilinear_factors(
    ctx: Lowering, large: Coords, small: Coords, aligned: bool, scales: Sequence[object], known: Container[int]
) -> list[int] | None:
    """The factors of height and width, if they are `known`; None: this is ATen's."""
    factors = whole_factors(large[2:], small[2:])
    if aligned or not sc.is_float(ctx.out[1]) or factors is None or not _usual(scales, factors):
        return None
    return list(factors) if all(factor in known for factor in factors) else None


@lowering(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(
    ctx: Lowering, x: TensorValue, output_size: object, align_corners: bool, *scales: object
) -> object:
    shape, dtype = ctx.out
    factors = _bilinear_factors(ctx, shape, x.shape, align_corners, scales, _BILINEAR)
    row_major = same_layout(shape, ctx.sizes(ctx.meta.stride), contiguous_strides(shape))
    if factors is None or (ctx.machine.device == "cpu" and (factors[1] != 2 or not row_major)):  # every fourth element
        return EXTERN  # of a row is stored as slowly as ATen does it
    compute = sc.compute_dtype(dtype)
    high, wide = factors
    if ctx.machine.device == "cuda":
        return ctx.compute(shape, dtype, _elementwise(ctx, x, high, wide, compute))

    def body(coords: Coords) -> Node:
        *outer, i, row, j, column = coords

        def element(inside: Node, place: Coords) -> Node:
            return sc.cast(x.load_if(inside, (*outer, *place)), compute)

        def along_row(inside: Node, place: Coords, phase: int) -> Node:
            return _between(
                lambda here, k: element(sc.logical_and(inside, here), (*place, k)), j, x.shape[3], wide, phase
            )

        def sample(down: int, right: int) -> Node:
            return _between(lambda inside, k: along_row(inside, (k,), right), i, x.shape[2], high, down)

        value = sample(high - 1, wide - 1)
        for down, right in reversed(list(product(range(high), range(wide)))[:-1]):
            here = sc.logical_and(within(row, 0, down + 1), within(column, 0, right + 1))
            value = sc.where(here, sample(down, right), value)
        return value

    phases = ctx.compute((*shape[:2], x.shape[2], Expr.const(high), x.shape[3], Expr.const(wide)), dtype, body)
    return reshape(phases, shape)


def _elementwise(ctx: Lowering, x: TensorValue, high: int, wide: int, compute: torch.dtype) -> Reader:
    """An element of the resized planes: all of them are computed in the same way, from four of `x`."""

    def body(coords: Coords) -> Node:
        *outer, i, j = coords
        rows, down = _neighbours(i, x.shape[2], high, compute)
        columns, right = _neighbours(j, x.shape[3], wide, compute)

        def mixed(first: Node, second: Node, weight: Node) -> Node:
            return sc.add(sc.mul(first, sc.sub(1.0, weight)), sc.mul(second, weight))

        def along_row(row: Expr) -> Node:
            first, second = (sc.cast(x.load((*outer, row, column)), compute) for column in columns)
            return mixed(first, second, right)

        first, second = map(along_row, rows)
        return mixed(first, second, down)

    return body


def _neighbours(place: Expr, size: Expr, factor: int, compute: torch.dtype) -> tuple[tuple[Expr, Expr], Node]:
    """The places on a line of `size` values around one of the resized line, and the weight of the second one. Before
    the first value it is the second one's, 0; behind the last one that is its own neighbour."""
    half = factor // 2
    second, phase = (place + half) // factor, (place + half) % factor
    weight = sc.const(0.5 / factor, compute)
    for step in range(1, factor):
        weight = sc.where(holds(phase.ge(step)), (step + 0.5) / factor, weight)
    weight = sc.where(holds(place.ge(half)), weight, 0.0)
    return (Expr.max(second - 1, 0), Expr.min(Expr.max(second, 1), size - 1)), weight


def _between(at: Callable[[Node, Expr], Node], i: Expr, size: Expr, factor: int, phase: int) -> Node:
    """What lies at phase `phase` of place `i` on a line of `size` values: at(inside, place), 0 where not `inside`. The
    first value has the second one with the weight 0 for a neighbour, the last one has itself."""
    weight = ((phase + 0.5) / factor - 0.5) % 1.0
    leftwards = 2 * phase < factor - 1
    neighbour = i - 1 if leftwards else i + 1
    inside, always = within(neighbour, 0, size), sc.const(True, torch.bool)
    here, there = at(always, i), at(inside, neighbour)
    if leftwards:
        between = sc.add(sc.mul(there, 1.0 - weight), sc.mul(here, weight))
        return sc.where(inside, between, sc.add(here, sc.mul(at(always, Expr.min(size - 1, 1)), 0.0)))
    return sc.add(sc.mul(here, 1.0 - weight), sc.mul(sc.where(inside, there, here), weight))


@lowering(aten.upsample_bilinear2d_backward.default)
def upsample_bilinear2d_backward(
    ctx: Lowering, grad: TensorValue, output_size: object, input_size: object, align_corners: bool, *scales: object
) -> object:
    shape, dtype = ctx.out
    factors = _bilinear_factors(ctx, grad.shape, shape, align_corners, scales, _GATHERED)
    if factors is None:
        return EXTERN
    channels_last = ctx.sizes(ctx.meta.stride)[1] is ONE
    order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)  # that of the rows between has to be that of the result
    high = _gathered(ctx, permuted(grad, order), order.index(2), factors[0], sc.compute_dtype(dtype))
    return _gathered(ctx, permuted(high, (0, 3, 1, 2) if channels_last else order), 3, factors[1], dtype)


def _gathered(ctx: Lowering, grad: TensorValue, dim: int, factor: int, dtype: torch.dtype) -> TensorValue:
    """The gradient of `_between`: an element gets from the 2 · factor places around it, by their distance; places
    beyond the first and the last element belong to these alone."""
    compute, length = sc.compute_dtype(dtype), grad.shape[dim]
    shape = replaced(grad.shape, dim, length // factor)

    def body(coords: Coords) -> Node:
        total = sc.const(0.0, compute)
        i = coords[dim]
        for step in range(-(factor // 2), factor + factor // 2):
            place = i * factor + step
            inside = within(place, 0, length)
            value = sc.cast(grad.load_if(inside, replaced(coords, dim, place)), compute)
            weight: Node = sc.const(1.0 - abs((step + 0.5) / factor - 0.5), compute)
            if 0 <= step < factor // 2:
                weight = sc.where(holds(i.ge(1)), weight, 1.0)
            elif factor // 2 <= step < factor:
                weight = sc.where(holds((i + 1).lt(shape[dim])), weight, 1.0)
            total = sc.add(total, sc.mul(value, weight))
        return total

    return ctx.compute(shape, dtype, body)


# ---- padding from the tensor itself, pixel shuffling -----------------------------------------------------------------


def _padded(
    place: Callable[[Expr, Expr], Expr], ctx: Lowering, x: TensorValue, padding: Sequence[object]
) -> TensorValue:
    """`x` with elements of its own before and after each of its last dimensions. place(i, size): where element i
    (negative or beyond the end in the padding) comes from."""
    shape, dtype = ctx.out
    before = _before(len(shape), padding)

    def body(coords: Coords) -> Node:
        return x.load(tuple(place(c - before[d], x.shape[d]) if d in before else c for d, c in enumerate(coords)))

    return ctx.compute(shape, dtype, body)


def _mirrored(i: Expr, size: Expr) -> Expr:
    return Expr.min(Expr.max(i, -i), (size - 1) * 2 - i)


for _name, _place in {
    "replication": lambda i, size: Expr.min(Expr.max(i, 0), size - 1),
    "reflection": _mirrored,
}.items():
    lowering(*(getattr(aten, f"{_name}_pad{rank}d").default for rank in (1, 2, 3)))(partial(_padded, _place))


@lowering(aten.pixel_shuffle.default)
def pixel_shuffle(ctx: Lowering, x: TensorValue, factor: int) -> TensorValue:
    """[*, C·f², H, W] to [*, C, H·f, W·f]."""
    shape, dtype = ctx.out

    def body(coords: Coords) -> Node:
        channel, row, column = coords[-3:]
        source = channel * (factor * factor) + (row % factor) * factor + column % factor
        return x.load((*coords[:-3], source, row // factor, column // factor))

    return ctx.compute(shape, dtype, body)


@lowering(aten.pixel_unshuffle.default)
def pixel_unshuffle(ctx: Lowering, x: TensorValue, factor: int) -> TensorValue:
    """The inverse of `pixel_shuffle`."""
    shape, dtype = ctx.out

    def body(coords: Coords) -> Node:
        channel, row, column = coords[-3:]
        inner = channel % (factor * factor)
        source = (channel // (factor * factor), row * factor + inner // factor, column * factor + inner % factor)
        return x.load((*coords[:-3], *source))

    return ctx.compute(shape, dtype, body)
