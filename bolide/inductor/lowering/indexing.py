"""Gathers and scatters: embedding, index, gather, index_put, scatter and their relatives.

An index read from a tensor is checked once (`bolide::check_index`, which raises IndexError as eager does), and is
clamped where it is used, so that a kernel never reads or writes out of bounds even before the check has been made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from bolide.inductor.ir.definitions import Extern, Layout, axis_var, volume
from bolide.inductor.ir.loops import MOST_SORTED, Node, ScatterMode
from bolide.inductor.ir.scalar_ops import JOINED_BY, identity
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.reductions import reduction
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ONE, Coords, Operand, Reader, TensorValue, broadcast_shape, replaced
from bolide.inductor.lowering.views import reshape
from bolide.symbolic import Expr, as_expr, hint_of
from bolide.tracing.fallible import done
from bolide.tracing.graph import operator

aten = torch.ops.aten


def _check_index(bad: torch.Tensor, message: str, index_error: bool) -> None:
    """Raises eager's class of error, IndexError or RuntimeError, if `bad`, a 0-dim bool tensor, is true."""
    if bad.item():
        raise IndexError(message) if index_error else RuntimeError(message)


check_index = operator("check_index(Tensor bad, str message, bool index_error) -> ()", _check_index)

ZERO = Expr.const(0)
_BOUNDS = "index is out of bounds for its dimension"

Place = Callable[[Coords], tuple[Coords, tuple[Node, ...]]]
"""From coordinates to those of another tensor, and the operands they use."""


@lowering(done)
def nothing(ctx: Lowering, value: TensorValue) -> object:
    """What kernels would compute need not be: their checks are operations of their own."""
    called = any(isinstance(d, Extern) and value.buffer in d.names for d in ctx.definitions)
    return EXTERN if called else None


def operand_var(place: int, size: Expr) -> Expr:
    """The value of operand `place` of an indirect load from a dimension of `size`."""
    return axis_var(f"${place}", size)


def checked_index(
    ctx: Lowering,
    index: TensorValue,
    size: Expr,
    wraps: bool = True,
    ignore: int | None = None,
    what: str = "index out of range in self",
    index_error: bool = True,
) -> Reader:
    """A reader of `index` as places 0 … size - 1. `wraps`: negative ones count from the end. `ignore`: this value is
    allowed and reads place 0. `what`, `index_error`: message and class (else RuntimeError) of eager's error."""
    length, last = sc.index(size), sc.index(Expr.max(size - 1, 0))
    raw = ctx.reader(index, torch.int64)

    strides = () if index.maps else ctx.layout_of(index.buffer).stride

    def bad(coords: Coords) -> Node:  # of what is expanded one element is enough
        once = [coord if stride is not ZERO else ZERO for coord, stride in zip(coords, strides)]
        value = raw(tuple(once) if strides else coords)
        outside = sc.logical_or(sc.lt(value, sc.index(-size) if wraps else 0), sc.ge(value, length))
        return outside if ignore is None else sc.logical_and(outside, sc.ne(value, ignore))

    key = (index.buffer, index.maps, index.shape, size, wraps, ignore)
    if key not in ctx.checked and not index.is_empty and not _decided(ctx, index, bad):
        ctx.checked.add(key)
        flag = reduction(ctx, index, tuple(range(len(index.shape))), "any", bad, torch.bool, hint="check")
        ctx.effect(check_index, flag, what, index_error)

    def read(coords: Coords) -> Node:
        value = raw(coords)
        if wraps:
            value = sc.where(sc.lt(value, 0), sc.add(value, length), value)
        if ignore is None and value.op not in ("const", "index"):
            return sc.binary("umin", value, last)  # a negative one, which is bad, reads the last place
        return sc.minimum(sc.maximum(value, 0), last)

    return read


def _decided(ctx: Lowering, index: TensorValue, bad: Reader) -> bool:
    """Whether bounds alone tell that no index is bad."""
    outside = bad(ctx.axes(index.shape)[1])
    return outside.op == "const" and not outside.arg


# ---- embedding -----------------------------------------------------------------------------------------------------


@lowering(aten.embedding.default)
def embedding(ctx: Lowering, weight: TensorValue, indices: TensorValue, *_: object) -> object:
    if weight.is_empty:
        return EXTERN
    rank = len(indices.shape)
    place = checked_index(ctx, indices, weight.shape[0], wraps=False)
    row = operand_var(0, weight.shape[0])
    return ctx.compute(*ctx.out, lambda coords: weight.load_indirect((row, *coords[rank:]), (place(coords[:rank]),)))


@lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Lowering, grad: TensorValue, indices: TensorValue, num_weights: object, padding_idx: object, by_freq: bool
) -> object:
    shape, dtype = ctx.out
    if by_freq or shape[0].least() < 1:
        return EXTERN
    compute = sc.compute_dtype(dtype)
    rank = len(indices.shape)
    place = checked_index(ctx, indices, shape[0], wraps=False)
    row = operand_var(0, shape[0])

    def value(axes: Coords) -> Node:
        g = sc.cast(grad.load(axes), compute)
        if isinstance(padding_idx, int) and padding_idx < 0:
            return g
        index = sc.cast(indices.load(axes[:rank]), torch.int64)
        return sc.where(sc.eq(index, sc.index(as_expr(padding_idx))), 0, g)

    given, made = [meta.shape for meta in (ctx.node.all_input_nodes[1].meta["val"], ctx.node.meta["val"])]
    if dtype is not compute and 2 * math.prod(map(hint_of, given)) <= hint_of(made[0]):
        return _summed_apart(ctx, indices, place, grad, value)
    zeros = ctx.compute(shape, compute, lambda coords: sc.const(0, compute), hint="zeros")
    total = ctx.scatter(zeros, grad.shape, lambda axes: ((row, *axes[rank:]), (place(axes[:rank]),)), value, "add")
    return total if dtype is compute else ctx.compute(shape, dtype, ctx.reader(total, dtype))


def _summed_apart(ctx: Lowering, indices: TensorValue, place: Reader, grad: TensorValue, value: Reader) -> TensorValue:
    """The sums, for each row of the node's result, of the rows of value(i) whose index is that row. They are summed in
    the value's wider type in a table of as many rows as there are indices, fewer than the result has: the last index of
    each row says where its sum is, none that it is 0."""
    shape, dtype = ctx.out
    count, rank = volume(indices.shape), len(indices.shape)
    row, slot = operand_var(0, shape[0]), operand_var(0, count)
    none = ctx.compute(shape[:1], torch.int64, lambda _: sc.const(-1, torch.int64), hint="none")

    def number(axes: Coords) -> Node:
        return sc.index(Layout.row_major(indices.shape).address(axes))

    last = ctx.scatter(none, indices.shape, lambda axes: ((row,), (place(axes),)), number, "max")

    def into(axes: Coords) -> tuple[Coords, tuple[Node, ...]]:
        return (slot, *axes[rank:]), (last.load_indirect((row,), (place(axes[:rank]),)),)

    compute = sc.compute_dtype(dtype)
    zeros = ctx.compute((count, *shape[1:]), compute, lambda _: sc.const(0, compute), hint="zeros")
    sums = ctx.scatter(zeros, grad.shape, into, value, "add")

    def result(coords: Coords) -> Node:
        at = last.load(coords[:1])
        return sc.cast(sums.load_indirect((slot, *coords[1:]), (at,), sc.ge(at, 0)), dtype)

    return ctx.compute(shape, dtype, result)


# ---- index, index_put ------------------------------------------------------------------------------------------------


class _Indexed:
    """The pattern of x[indices]: which dimensions are indexed, by which tensors, and where the broadcast index
    dimensions stand in the result."""

    def __init__(self, ctx: Lowering, x: TensorValue, indices: Sequence[TensorValue | None], what: str) -> None:
        self.rank = len(x.shape)
        self.dims = [d for d, index in enumerate(indices) if index is not None]
        tensors = [index for index in indices if index is not None]
        self.shape = broadcast_shape(*(index.shape for index in tensors))
        contiguous = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.start = self.dims[0] if contiguous else 0  # separated index tensors put their dimensions first
        self.readers = [checked_index(ctx, index, x.shape[d], what=what) for d, index in zip(self.dims, tensors)]
        self.vars = [operand_var(k, x.shape[d]) for k, d in enumerate(self.dims)]
        kept = [x.shape[d] for d in range(self.rank) if d not in self.dims]
        self.result_shape = (*kept[: self.start], *self.shape, *kept[self.start :])

    def places(self, coords: Coords) -> tuple[Coords, tuple[Node, ...]]:
        """The coordinates in x of element `coords` of the result, and the operands they use."""
        end = self.start + len(self.shape)
        inner, others = coords[self.start : end], iter((*coords[: self.start], *coords[end:]))
        by_dim = dict(zip(self.dims, self.vars))
        source = tuple(by_dim[d] if d in by_dim else next(others) for d in range(self.rank))
        return source, tuple(reader(inner) for reader in self.readers)


def _plain(indices: Sequence[TensorValue | None]) -> bool:
    """Whether these are integer index tensors (masks have data-dependent results)."""
    given = [index for index in indices if index is not None]
    return bool(given) and all(index.dtype in (torch.int64, torch.int32) for index in given)


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(ctx: Lowering, x: TensorValue, indices: Sequence[TensorValue | None]) -> object:
    if not _plain(indices) or x.is_empty:
        return EXTERN
    pattern = _Indexed(ctx, x, indices, _BOUNDS)
    return ctx.compute(*ctx.out, lambda coords: x.load_indirect(*pattern.places(coords)))


@lowering(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    ctx: Lowering, x: TensorValue, indices: Sequence[TensorValue | None], values: TensorValue, accumulate: bool = False
) -> object:
    if x.is_empty:
        return EXTERN
    if not _plain(indices):
        mask = indices[0] if len(indices) == 1 else None
        if mask is None or mask.dtype is not torch.bool or values.shape or accumulate:
            return EXTERN
        return _masked_put(ctx, x, mask, values)
    mode: ScatterMode = "add" if accumulate else "set"
    if x.may_be_empty or _rounds(x, mode):
        return EXTERN
    pattern = _Indexed(ctx, x, indices, _BOUNDS)
    return ctx.scatter(x, pattern.result_shape, pattern.places, ctx.reader(values, x.dtype), mode)


def _masked_put(ctx: Lowering, x: TensorValue, mask: TensorValue, value: TensorValue) -> TensorValue:
    """x[mask] = value, for a mask over the leading dimensions and a 0-dim value: a selection."""
    new, rank = ctx.reader(value, x.dtype), len(mask.shape)
    return ctx.compute(x.shape, x.dtype, lambda coords: sc.where(mask.load(coords[:rank]), new(()), x.load(coords)))


def _rounds(x: TensorValue, mode: str) -> bool:
    """Whether eager rounds at every addition to an element, or product."""
    return mode in ("add", "mul") and sc.compute_dtype(x.dtype) is not x.dtype


def _can_write(ctx: Lowering, x: TensorValue, mode: str) -> bool:
    """Whether there are elements to write to, and what is added to them, if so, is rounded as in eager: Hopper adds
    bfloat16s atomically."""
    adds = mode == "add" and x.dtype is torch.bfloat16 and ctx.machine.target.adds_four
    return not x.may_be_empty and (adds or not _rounds(x, mode))


# ---- along one dimension --------------------------------------------------------------------------------------------


def _one_for_each(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue) -> Place | None:
    """Element i of a tensor of the shape of `index` is at index(i) of `dim` in `x`. None: this is ATen's."""
    if not x.shape or len(index.shape) != len(x.shape) or x.is_empty:  # an empty index has any rank
        return None
    dim %= len(x.shape)
    reader = checked_index(ctx, index, x.shape[dim], wraps=False, what=_BOUNDS, index_error=False)
    row = operand_var(0, x.shape[dim])
    return lambda coords: (replaced(coords, dim, row), (reader(coords),))


def _rows(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, wraps: bool = False) -> Place | None:
    """Slice i of `dim` is slice index(i) of `x`; `index` is one-dimensional or a single place. None: this is ATen's."""
    if not x.shape or x.is_empty:
        return None
    dim %= len(x.shape)
    reader = checked_index(ctx, index, x.shape[dim], wraps=wraps)
    row = operand_var(0, x.shape[dim])
    return lambda coords: (replaced(coords, dim, row), (reader((coords[dim],) if index.shape else ()),))


@lowering(aten.index_select.default)
def index_select(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue) -> object:
    place = _rows(ctx, x, dim, index)
    return EXTERN if place is None else ctx.compute(*ctx.out, lambda coords: x.load_indirect(*place(coords)))


@lowering(aten.gather.default)
def gather(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, *, sparse_grad: bool = False) -> object:
    place = _one_for_each(ctx, x, dim, index)
    return EXTERN if place is None else ctx.compute(*ctx.out, lambda coords: x.load_indirect(*place(coords)))


# ---- sorts ----------------------------------------------------------------------------------------------------------

#: Types of which 16 bits tell the order.
_SHORT = (torch.bfloat16, torch.int16, torch.int8, torch.uint8, torch.bool)


def _order(x: TensorValue, value: Node, descending: bool) -> Node:
    """An int32 that sorts as eager sorts elements: NaN is the largest."""
    if sc.is_float(x.dtype):
        order = _turned(Node.make("bits", torch.int32, (value,)))
        order = sc.where(sc.isnan(value), 0x7FFFFFFF, order)
    else:
        order = sc.cast(value, torch.int32)
    return sc.unary("not", order) if descending else order


def _turned(bits: Node) -> Node:
    """The bits of a float32 as an integer that is larger where the number is, and back again."""
    return sc.binary("xor", bits, sc.binary("and", sc.binary("shr", bits, 31), 0x7FFFFFFF))


def _keys(x: TensorValue, descending: bool) -> Reader:
    """An integer for each element, with its place in the lower half, which sorts as eager does: -0.0 is 0.0, and equal
    elements stay in their order."""

    def body(coords: Coords) -> Node:
        value, place = x.load(coords), sc.index(coords[-1])
        if sc.is_float(x.dtype):
            value = sc.add(sc.cast(value, torch.float32), 0.0)
        order = _order(x, value, descending)
        if x.dtype in _SHORT:
            order = order if sc.is_float(x.dtype) else sc.binary("shl", order, 16)
            return sc.binary("or", sc.binary("and", order, -0x10000), sc.cast(place, torch.int32))
        return sc.binary("or", sc.binary("shl", sc.cast(order, torch.int64), 32), place)

    return body


def _is_sorted(ctx: Lowering, x: TensorValue, dim: int) -> bool:
    """Whether kernels sort rows like these; otherwise, ATen does."""
    known = (*_SHORT, torch.float32, torch.float16, torch.int32)
    if ctx.machine.device != "cuda" or x.dtype not in known or not x.shape or x.is_empty:
        return False
    length = x.shape[-1]
    return dim % len(x.shape) == len(x.shape) - 1 and length.is_const and 2 <= length.value <= MOST_SORTED


def _places(ctx: Lowering, x: TensorValue, descending: bool) -> Reader:
    """Where the elements of each row are, in order."""
    dtype = torch.int32 if x.dtype in _SHORT else torch.int64
    keys = ctx.scan(x.shape, dtype, _keys(x, descending), "sort", len(x.shape) - 1)
    mask = 0xFFFF if x.dtype in _SHORT else 0xFFFFFFFF
    return lambda coords: sc.cast(sc.binary("and", keys.load(coords), mask), torch.int64)


def _in_any_order(ctx: Lowering, x: TensorValue, descending: bool) -> tuple[TensorValue, None]:
    """The elements of each row, in order, made again of what is sorted: of equal ones any may be the first, of zeros
    too."""
    is_float, rank = sc.is_float(x.dtype), len(x.shape)

    def key(coords: Coords) -> Node:
        value = x.load(coords)
        return _order(x, sc.cast(value, torch.float32) if is_float else value, descending)

    def value(coords: Coords) -> Node:
        order = keys.load(coords)
        order = sc.unary("not", order) if descending else order
        return Node.make("of_bits", torch.float32, (_turned(order),)) if is_float else order

    keys = ctx.scan(x.shape, torch.int32, key, "sort", rank - 1)
    return ctx.compute(ctx.shape_of(ctx.metas[0]), x.dtype, value), None


def _only_values(ctx: Lowering) -> bool:
    """Whether nobody asks for the places."""
    return all(user.args[1] == 0 for user in ctx.node.users)


def _in_order(ctx: Lowering, x: TensorValue, places: Reader) -> tuple[TensorValue, TensorValue]:
    shape, row = ctx.shape_of(ctx.metas[0]), operand_var(0, x.shape[-1])
    values = ctx.compute(shape, x.dtype, lambda coords: x.load_indirect((*coords[:-1], row), (places(coords),)))
    return values, ctx.compute(shape, torch.int64, places)


@lowering(aten.sort.default)
def sort(ctx: Lowering, x: TensorValue, dim: int = -1, descending: bool = False) -> object:
    if not _is_sorted(ctx, x, dim):
        return EXTERN
    return _in_any_order(ctx, x, descending) if _only_values(ctx) else _in_order(ctx, x, _places(ctx, x, descending))


@lowering(aten.sort.stable)
def sort_stable(
    ctx: Lowering, x: TensorValue, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> object:
    if not stable or not _is_sorted(ctx, x, dim):
        return sort(ctx, x, dim, descending)
    return _in_order(ctx, x, _places(ctx, x, descending))


@lowering(aten.topk.default)
def topk(ctx: Lowering, x: TensorValue, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> object:
    """Without its places: of equal elements eager gives any."""
    only_values = type(k) is int and k > 0 and _only_values(ctx)
    return _in_any_order(ctx, x, largest) if only_values and _is_sorted(ctx, x, dim) else EXTERN


# ---- scatters -------------------------------------------------------------------------------------------------------


def _register_scatter(overload: object, mode: ScatterMode) -> None:
    """x with `source` written or added at index(i) of `dim`, for i over the shape of `index`."""

    @lowering(overload)
    def lower(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, source: Operand) -> object:
        place = _one_for_each(ctx, x, dim, index) if _can_write(ctx, x, mode) else None
        if place is None:
            return EXTERN
        return ctx.scatter(x, index.shape, place, ctx.reader(source, x.dtype), mode)


_register_scatter(aten.scatter.src, "set")
_register_scatter(aten.scatter.value, "set")
_register_scatter(aten.scatter_add.default, "add")


def _rows_written(
    ctx: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    value: Reader,
    mode: ScatterMode,
    wraps: bool = False,
) -> object:
    """x with value(i) at slice index(i[dim]) of `dim`."""
    place = _rows(ctx, x, dim, index, wraps) if _can_write(ctx, x, mode) else None
    if place is None:
        return EXTERN
    length = index.shape[0] if index.shape else ONE
    return ctx.scatter(x, replaced(x.shape, dim % len(x.shape), length), place, value, mode)


@lowering(aten.index_add.default)
def index_add(
    ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, source: TensorValue, *, alpha: Operand = 1
) -> object:
    if len(source.shape) != len(x.shape) or x.dtype is torch.bool:
        return EXTERN
    added = ctx.each(sc.compute_dtype(x.dtype), sc.mul, source, alpha)
    return _rows_written(ctx, x, dim, index, lambda coords: sc.rounded(added(coords), x.dtype), "add")


@lowering(aten.index_copy.default)
def index_copy(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, source: TensorValue) -> object:
    if len(source.shape) != len(x.shape):
        return EXTERN
    return _rows_written(ctx, x, dim, index, source.load, "set")


@lowering(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, value: Operand) -> object:
    return _rows_written(ctx, x, dim, index, ctx.reader(value, x.dtype), "set", wraps=True)


# ---- reductions by index -------------------------------------------------------------------------------------------

#: The reduction that each name of ATen's stands for; a mean is a sum, divided.
_REDUCTIONS = {"sum": "sum", "prod": "prod", "amin": "min", "amax": "max", "mean": "sum"}


@lowering(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> object:
    place = None if _is_atens(x, reduce) else _one_for_each(ctx, x, dim, index)
    if place is None:
        return EXTERN
    return _reduced_into(ctx, x, index.shape, place, ctx.reader(source, x.dtype), reduce, include_self)


@lowering(aten.index_reduce.default)
def index_reduce(
    ctx: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> object:
    same_rank = len(source.shape) == len(x.shape)
    place = None if _is_atens(x, reduce) or not same_rank else _rows(ctx, x, dim, index)
    if place is None:
        return EXTERN
    extents = replaced(x.shape, dim % len(x.shape), index.shape[0] if index.shape else ONE)
    return _reduced_into(ctx, x, extents, place, source.load, reduce, include_self)


def _is_atens(x: TensorValue, reduce: str) -> bool:
    mode = JOINED_BY[_REDUCTIONS[reduce]]
    return x.dtype is torch.bool or x.dtype.is_complex or x.may_be_empty or _rounds(x, mode)


def _reduced_into(
    ctx: Lowering, x: TensorValue, extents: Coords, place: Place, value: Reader, reduce: str, include_self: bool
) -> TensorValue:
    """`x` with each element the reduction of all values at its place, and of what it was if it is to be included: else
    those that get a value begin with the reduction of nothing."""
    op, dtype = _REDUCTIONS[reduce], x.dtype
    base = x
    if not include_self:
        base = ctx.scatter(x, extents, place, lambda _: sc.const(identity(op, dtype), dtype), "set")
    mode: ScatterMode = JOINED_BY[op]  # type: ignore[assignment]
    total = ctx.scatter(base, extents, place, value, mode)
    if reduce != "mean":
        return total
    own = ctx.compute(x.shape, dtype, lambda _: sc.const(int(include_self), dtype), hint="own")
    count = ctx.scatter(own, extents, place, lambda _: sc.const(1, dtype), "add")

    def mean(coords: Coords) -> Node:
        number = count.load(coords)
        divisor = sc.where(sc.eq(number, 0), 1, number)
        if dtype.is_floating_point:
            return sc.div(total.load(coords), divisor)
        return sc.binary("floordiv", total.load(coords), divisor)

    return ctx.compute(x.shape, dtype, mean)


@lowering(aten.histc.default)
def histc(ctx: Lowering, x: TensorValue, bins: object = 100, min: object = 0, max: object = 0) -> object:
    """Counts of the values in `bins` intervals of equal length from `min` to `max`; the last one holds `max` too. Where
    these are equal the data say them, which is ATen's."""
    if not isinstance(bins, int) or not isinstance(min, (int, float)) or not isinstance(max, (int, float)):
        return EXTERN
    dtype, number, bin = x.dtype, as_expr(bins), operand_var(0, as_expr(bins))
    if x.is_empty or dtype not in (torch.float32, torch.float64):
        return EXTERN
    ends = torch.tensor([float(min), float(max)], dtype=dtype)
    low, width = ends[0].item(), (ends[1] - ends[0]).item()
    if not 0 < width < math.inf:
        return EXTERN

    def inside(coords: Coords) -> Node:
        value = x.load(coords)
        return sc.logical_and(sc.ge(value, low), sc.le(value, ends[1].item()))

    def place(coords: Coords) -> tuple[Coords, tuple[Node, ...]]:
        scaled = sc.div(sc.mul(sc.sub(x.load(coords), low), bins), width)
        at = sc.cast(sc.where(inside(coords), scaled, 0), torch.int64)
        return (bin,), (sc.minimum(at, sc.index(number - 1)),)

    zeros = ctx.compute((number,), dtype, lambda _: sc.const(0, dtype), hint="zeros")
    return ctx.scatter(zeros, x.shape, place, lambda coords: sc.cast(inside(coords), dtype), "add")


# ---- masks -----------------------------------------------------------------------------------------------------------


@lowering(aten.masked_scatter.default)
def masked_scatter(ctx: Lowering, x: TensorValue, mask: TensorValue, source: TensorValue) -> object:
    """Each element that the mask shows is the next one of `source`, by how many are shown before it."""
    count, given = volume(x.shape), volume(source.shape)
    if mask.shape != x.shape or mask.dtype is not torch.bool or x.is_empty or source.is_empty or not x.shape:
        return EXTERN
    flat, line = reshape(mask, (count,)), reshape(source, (given,))
    shown = ctx.scan((count,), torch.int64, ctx.reader(flat, torch.int64), "sum", 0)
    if not (isinstance(count, Expr) and count == given):
        few = ctx.compute((), torch.bool, lambda _: sc.gt(shown.load((count - 1,)), sc.index(given)))
        ctx.effect(check_index, few, "Number of elements of source < number of ones in mask", False)
    number, element = reshape(shown, x.shape), operand_var(0, given)

    def read(coords: Coords) -> Node:
        is_shown, place = mask.load(coords), sc.sub(number.load(coords), 1)
        is_there = sc.logical_and(is_shown, sc.lt(place, sc.index(given)))  # of no elements none may be read
        return sc.where(is_shown, line.load_indirect((element,), (place,), is_there), x.load(coords))

    return ctx.compute(x.shape, x.dtype, read)
