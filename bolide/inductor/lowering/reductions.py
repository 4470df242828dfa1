"""Reductions over dimensions: sums, extremes, truth, moments, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverloadPacket

from bolide.inductor.ir.definitions import Computed, ravel, volume
from bolide.inductor.ir.loops import Node, ReduceOp
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.formulas import truth
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ONE, ZERO, Coords, NumberOrSize, Reader, TensorValue
from bolide.inductor.lowering.views import reshape, sliced
from bolide.symbolic import Expr
from bolide.tracing import TensorMeta

aten = torch.ops.aten

Dims = int | Sequence[int] | None


def reduced_dims(x: TensorValue, dims: Dims, empty_is_all: bool = True) -> tuple[int, ...]:
    """The reduced dimensions, ascending. None (and, by ATen's habit, an empty list) means all of them."""
    rank = len(x.shape)
    if dims is None or (empty_is_all and not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted({dim % rank for dim in dims})) if rank else ()


def reduction(
    ctx: Lowering,
    x: TensorValue,
    dims: Sequence[int],
    op: ReduceOp,
    body: Reader,
    dtype: torch.dtype,
    keepdim: bool = False,
    position: Reader | None = None,
    hint: str = "",
) -> TensorValue:
    """`op` over `dims`, ascending, of body(i), i the coordinates in `x`'s shape. `keepdim`: reduced dimensions stay,
    with size 1."""
    rank = len(x.shape)

    def whole(kept: Coords, reduced: Coords) -> Node:
        kept_left, reduced_left = iter(kept), iter(reduced)
        return body(tuple(next(reduced_left) if d in dims else next(kept_left) for d in range(rank)))

    shape = tuple(size for d, size in enumerate(x.shape) if d not in dims)
    result = ctx.reduce(shape, dtype, tuple(x.shape[d] for d in dims), op, whole, position, hint)
    return keep(result, rank, dims) if keepdim else result


def keep(x: TensorValue, rank: int, dims: Sequence[int]) -> TensorValue:
    """A reduced tensor with the `dims` it lost put back with size 1."""
    kept = iter(x.shape)
    return reshape(x, tuple(ONE if d in dims else next(kept) for d in range(rank)))


# ---- sums -----------------------------------------------------------------------------------------------------------


def summed(
    ctx: Lowering, x: TensorValue, dims: Sequence[int], body: Reader, dtype: torch.dtype, keepdim: bool, hint: str = ""
) -> TensorValue:
    return reduction(ctx, x, dims, "sum", body, dtype, keepdim, hint=hint)


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    ctx: Lowering, x: TensorValue, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TensorValue:
    out = ctx.meta.dtype
    compute = sc.compute_dtype(out)
    source = x
    if dtype is not None and compute is not out and x.dtype is not out:  # eager makes the input as narrow first
        source = ctx.compute(x.shape, out, ctx.reader(x, out), hint="narrow")
    return summed(ctx, x, reduced_dims(x, dim), ctx.reader(source, compute), out, keepdim)


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(ctx: Lowering, x: TensorValue, dim: Dims = None, keepdim: bool = False, **_: object) -> TensorValue:
    out = ctx.meta.dtype
    return reduction(ctx, x, reduced_dims(x, dim), "prod", ctx.reader(x, sc.compute_dtype(out)), out, keepdim)


def count(x: TensorValue, dims: Sequence[int]) -> Expr:
    """How many elements are reduced."""
    return volume([x.shape[d] for d in dims])


@lowering(aten.mean.default, aten.mean.dim)
def mean(ctx: Lowering, x: TensorValue, dim: Dims = None, keepdim: bool = False, **_: object) -> TensorValue:
    out = ctx.meta.dtype
    return averaged(ctx, x, reduced_dims(x, dim), ctx.reader(x, sc.compute_dtype(out)), out, keepdim)


def averaged(
    ctx: Lowering, x: TensorValue, dims: Sequence[int], body: Reader, dtype: torch.dtype, keepdim: bool, hint: str = ""
) -> TensorValue:
    """The mean over `dims`: the sum in the computation type, divided, rounded to `dtype`."""
    compute = sc.compute_dtype(dtype)
    total = summed(ctx, x, dims, body, compute, keepdim, hint)
    n = sc.index(count(x, dims), compute)
    return ctx.compute(total.shape, dtype, lambda coords: sc.div(total.load(coords), n), hint=hint)


@lowering(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(ctx: Lowering, x: TensorValue, dim: Dims = None) -> TensorValue:
    is_true = truth(ctx, x)
    return summed(ctx, x, reduced_dims(x, dim), lambda c: sc.cast(is_true(c), torch.int64), torch.int64, False)


@lowering(aten.nansum.default)
def nansum(
    ctx: Lowering, x: TensorValue, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> object:
    out = ctx.meta.dtype
    if not sc.is_float(x.dtype) or dtype is not None:
        return EXTERN
    body = ctx.each(sc.compute_dtype(out), lambda v: sc.where(sc.isnan(v), 0.0, v), x)
    return summed(ctx, x, reduced_dims(x, dim), body, out, keepdim)


@lowering(aten.trace.default)
def trace(ctx: Lowering, x: TensorValue) -> TensorValue:
    size, out = Expr.min(x.shape[0], x.shape[1]), ctx.meta.dtype
    return ctx.reduce((), out, (size,), "sum", lambda _, r: sc.cast(x.load((r[0], r[0])), sc.compute_dtype(out)))


# ---- moments --------------------------------------------------------------------------------------------------------


def moments(
    ctx: Lowering, x: TensorValue, dims: Sequence[int], correction: NumberOrSize, out: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """(variance, mean) over `dims`, kept with size 1, in the computation type: sum((x - mean)^2) / max(n - correction,
    0), in two passes, or in one (`_in_one_pass`)."""
    compute, n = sc.compute_dtype(out), count(x, dims)
    average, total = (_in_one_pass if _is_long(ctx, x, n) else _in_two_passes)(ctx, x, dims, compute)
    if isinstance(correction, float) and not correction.is_integer():
        freedom = sc.maximum(sc.sub(sc.index(n, compute), correction), 0.0)
    else:
        whole = correction if isinstance(correction, Expr) else int(correction)
        freedom = sc.index(Expr.max(n - whole, 0), compute)
    variance = ctx.compute(
        total.shape, compute, lambda coords: sc.binary("div", total.load(coords), freedom), hint="var"
    )
    return variance, average


def _in_two_passes(
    ctx: Lowering, x: TensorValue, dims: Sequence[int], compute: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """The mean, and the sum of squared deviations from it."""
    average = averaged(ctx, x, dims, ctx.reader(x, compute), compute, True, "mean")
    deviation = ctx.each(compute, lambda v, m: sc.square(sc.sub(v, m)), x, average)
    return average, summed(ctx, x, dims, deviation, compute, True, "sqdev")


def _is_long(ctx: Lowering, x: TensorValue, n: Expr) -> bool:
    """Whether a row, which is in memory, would be read from there twice."""
    if not n.is_const or n.value * x.dtype.itemsize <= ctx.machine.long_moments:
        return False
    return not any(isinstance(made, Computed) and made.name == x.buffer for made in ctx.definitions)


def _in_one_pass(
    ctx: Lowering, x: TensorValue, dims: Sequence[int], compute: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """The same, from the deviations from the mean of a part of each row, 1/64 or a little more. That is as good as the
    mean: its square distance from it is at most 64 variances, so that little cancels where it is taken off."""
    part, left = x, 64
    for dim in dims:
        size = part.shape[dim].value
        length = -(-size // left)
        part, left = sliced(part, dim, ZERO, Expr.const(length)), max(1, left * length // size)
    near = averaged(ctx, part, dims, ctx.reader(part, compute), compute, True, "near")
    apart = ctx.each(compute, sc.sub, x, near)
    total = summed(ctx, x, dims, apart, compute, True, "apart")
    squares = summed(ctx, x, dims, lambda coords: sc.square(apart(coords)), compute, True, "squares")
    n = sc.index(count(x, dims), compute)

    def deviations(square: Node, apart: Node) -> Node:
        return sc.maximum(sc.sub(square, sc.mul(apart, sc.div(apart, n))), 0.0)  # whose square may be infinite

    average = ctx.each(compute, lambda near, apart: sc.add(near, sc.div(apart, n)), near, total)
    return (
        ctx.compute(total.shape, compute, average, hint="mean"),
        ctx.compute(total.shape, compute, ctx.each(compute, deviations, squares, total), hint="sqdev"),
    )


def _register_moments(name: str, finish: Callable[[Node], Node], with_mean: bool) -> None:
    packet = getattr(aten, name)

    def as_result(ctx: Lowering, kept: TensorValue, meta: TensorMeta, body: Callable[[Node], Node]) -> TensorValue:
        value = reshape(kept, ctx.shape_of(meta))
        return ctx.compute(value.shape, meta.dtype, lambda coords: body(value.load(coords)))

    def lower(ctx: Lowering, x: TensorValue, dim: Dims, correction: NumberOrSize) -> object:
        metas = ctx.metas if with_mean else (ctx.meta,)
        variance, average = moments(ctx, x, reduced_dims(x, dim), correction, metas[0].dtype)
        result = as_result(ctx, variance, metas[0], finish)
        return (result, as_result(ctx, average, metas[1], lambda v: v)) if with_mean else result

    @lowering(packet.correction, takes_sizes=True)
    def lower_correction(
        ctx: Lowering,
        x: TensorValue,
        dim: Dims = None,
        correction: NumberOrSize | None = None,
        keepdim: bool = False,
    ) -> object:
        return lower(ctx, x, dim, 1 if correction is None else correction)

    @lowering(packet.default)
    def lower_default(ctx: Lowering, x: TensorValue, unbiased: bool = True) -> object:
        return lower(ctx, x, None, int(unbiased))

    @lowering(packet.dim)
    def lower_dim(ctx: Lowering, x: TensorValue, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> object:
        return lower(ctx, x, dim, int(unbiased))


_register_moments("var", lambda v: v, False)
_register_moments("std", sc.sqrt, False)
_register_moments("var_mean", lambda v: v, True)
_register_moments("std_mean", sc.sqrt, True)


# ---- scans ----------------------------------------------------------------------------------------------------------


def _register_scan(overload: object, op: ReduceOp, dtypes: Callable[[torch.dtype], bool]) -> None:
    """The reductions up to each element, accumulated as eager does: float32 in float64, 16-bit floats in float32,
    integers in int64."""

    @lowering(overload)
    def lower(ctx: Lowering, x: TensorValue, dim: int, *, dtype: torch.dtype | None = None) -> object:
        shape, out = ctx.out
        if x.is_empty or not dtypes(out):
            return EXTERN
        wide = torch.float64 if out is torch.float32 else sc.compute_dtype(out) if sc.is_float(out) else torch.int64
        read = ctx.reader(x, out)
        if not shape:
            return ctx.compute(shape, out, read)
        return ctx.scan(shape, out, lambda coords: sc.cast(read(coords), wide), op, dim % len(shape))


_register_scan(aten.cumsum.default, "sum", lambda dtype: dtype is not torch.bool)
_register_scan(aten.cumprod.default, "prod", lambda dtype: dtype in (torch.float32, torch.int64))


# ---- extremes -------------------------------------------------------------------------------------------------------


def _compared(ctx: Lowering, x: TensorValue) -> Reader:
    """The elements in the dtype in which they are compared."""
    return ctx.reader(x, torch.int32 if x.dtype is torch.bool else sc.compute_dtype(x.dtype))


def _register_extreme(op: ReduceOp, place: ReduceOp) -> None:
    """The reductions to an extreme element, and to the place of the first such one, row-major within the reduced
    dimensions."""

    @lowering(getattr(aten, op).default, getattr(aten, f"a{op}").default)
    def value(ctx: Lowering, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
        return reduction(ctx, x, reduced_dims(x, dim), op, _compared(ctx, x), x.dtype, keepdim)

    @lowering(getattr(aten, place).default)
    def position(ctx: Lowering, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
        dims = reduced_dims(x, dim)
        extents = [x.shape[d] for d in dims]
        return reduction(
            ctx, x, dims, place, _compared(ctx, x), torch.int64, keepdim, lambda at: sc.index(ravel(at, extents))
        )

    @lowering(getattr(aten, op).dim)
    def both(ctx: Lowering, x: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
        return value(ctx, x, dim, keepdim), position(ctx, x, dim, keepdim)


_register_extreme("max", "argmax")
_register_extreme("min", "argmin")


@lowering(aten.aminmax.default)
def aminmax(ctx: Lowering, x: TensorValue, *, dim: Dims = None, keepdim: bool = False) -> object:
    if x.dtype is torch.bool:
        return EXTERN
    dims, read = reduced_dims(x, dim), ctx.reader(x, sc.compute_dtype(x.dtype))
    return tuple(reduction(ctx, x, dims, op, read, x.dtype, keepdim) for op in ("min", "max"))


# ---- truth ----------------------------------------------------------------------------------------------------------


def _register_truth(op: ReduceOp, packet: OpOverloadPacket) -> None:
    @lowering(packet.default, packet.dim, packet.dims)
    def lower(ctx: Lowering, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
        return reduction(ctx, x, reduced_dims(x, dim, empty_is_all=False), op, truth(ctx, x), ctx.meta.dtype, keepdim)


_register_truth("any", aten.any)
_register_truth("all", aten.all)


# ---- norms of vectors, logsumexp ------------------------------------------------------------------------------------


def vector_norm(
    ctx: Lowering, x: TensorValue, order: float, dims: Sequence[int], keepdim: bool, out: torch.dtype
) -> TensorValue:
    """(sum |x|^order)^(1/order) over `dims`, and its limits for 0 and infinities."""
    compute = sc.compute_dtype(out)
    magnitude = ctx.each(compute, sc.absolute, x)
    if math.isinf(order):
        return reduction(ctx, x, dims, "max" if order > 0 else "min", magnitude, out, keepdim)
    if order == 0:
        return summed(ctx, x, dims, ctx.each(compute, lambda v: sc.cast(sc.ne(v, 0), v.dtype), x), out, keepdim)
    if order == 1:
        return summed(ctx, x, dims, magnitude, out, keepdim)
    if order == 2:
        total = summed(ctx, x, dims, ctx.each(compute, sc.square, x), compute, keepdim)
        return ctx.compute(total.shape, out, ctx.each(compute, sc.sqrt, total))
    powers = ctx.each(compute, lambda v: sc.binary("pow", sc.absolute(v), order), x)
    total = summed(ctx, x, dims, powers, compute, keepdim)
    return ctx.compute(total.shape, out, ctx.each(compute, lambda v: sc.binary("pow", v, 1.0 / order), total))


@lowering(aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.linalg_vector_norm.default)
def norm(
    ctx: Lowering, x: TensorValue, p: sc.Number | None = 2, dim: Dims = None, keepdim: bool = False, **_: object
) -> TensorValue:
    return vector_norm(ctx, x, 2.0 if p is None else float(p), reduced_dims(x, dim), keepdim, ctx.meta.dtype)


@lowering(aten.logsumexp.default)
def logsumexp(ctx: Lowering, x: TensorValue, dim: Dims, keepdim: bool = False) -> object:
    if not sc.is_float(x.dtype):
        return EXTERN
    dims, (shape, out) = reduced_dims(x, dim), ctx.out
    compute = sc.compute_dtype(out)
    top = reduction(ctx, x, dims, "max", ctx.reader(x, compute), compute, True, hint="max")

    def finite(value: Node) -> Node:
        return sc.where(sc.isinf(value), 0.0, value)

    powers = ctx.each(compute, lambda v, m: sc.exp(sc.sub(v, finite(m))), x, top)
    total = summed(ctx, x, dims, powers, compute, True)
    whole = ctx.each(compute, lambda v, m: sc.add(sc.log(v), finite(m)), total, top)
    return reshape(ctx.compute(total.shape, out, whole), shape)
