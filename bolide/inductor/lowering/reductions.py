"""Reductions over dimensions: sums, extremes, truth, moments, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.inductor.ir.loops import Node, ReduceOp
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import Coords, TensorValue, numel, ravel
from bolide.inductor.lowering.views import reshape
from bolide.symbolic import Expr

aten = torch.ops.aten


def reduced_dims(x: TensorValue, dims: Any, empty_is_all: bool = True) -> tuple[int, ...]:
    """The reduced dimensions, ascending. None (and, by ATen's habit, an empty list) means all of them."""
    rank = len(x.shape)
    if dims is None or (empty_is_all and not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted({dim % rank for dim in dims})) if rank else ()


def kept_shape(x: TensorValue, dims: Sequence[int]) -> Coords:
    """The shape with the reduced dimensions left out."""
    return tuple(size for d, size in enumerate(x.shape) if d not in dims)


def full_coords(rank: int, dims: Sequence[int], kept: Coords, reduced: Coords) -> Coords:
    """Coordinates in the whole from those of the kept and those of the reduced dimensions, both in ascending order."""
    kept_left, reduced_left = iter(kept), iter(reduced)
    return tuple(next(reduced_left) if d in dims else next(kept_left) for d in range(rank))


def reduction(
    ctx: Lowering,
    x: TensorValue,
    dims: Sequence[int],
    op: ReduceOp,
    body: Callable[[Coords], Node],
    dtype: torch.dtype,
    keepdim: bool = False,
    position: Callable[[Coords], Node] | None = None,
    hint: str = "",
) -> TensorValue:
    """`op` over `dims` of body(i), i the coordinates in `x`'s shape. `keepdim`: reduced dimensions stay, with size
    1."""
    rank = len(x.shape)
    shape = kept_shape(x, dims)
    extents = tuple(x.shape[d] for d in dims)
    result = ctx.reduce(
        shape, dtype, extents, op, lambda kept, reduced: body(full_coords(rank, dims, kept, reduced)), position, hint
    )
    if not keepdim:
        return result
    return keep(result, rank, dims)


def keep(x: TensorValue, rank: int, dims: Sequence[int]) -> TensorValue:
    """A reduced tensor with the `dims` it lost put back with size 1."""
    kept = iter(x.shape)
    one = Expr.const(1)
    return reshape(x, tuple(one if d in dims else next(kept) for d in range(rank)))


def _loader(ctx: Lowering, x: TensorValue, dtype: torch.dtype) -> Callable[[Coords], Node]:
    return lambda coords: sc.cast(x.load(coords), dtype)


# ---- sums -----------------------------------------------------------------------------------------------------------


def summed(
    ctx: Lowering,
    x: TensorValue,
    dims: Sequence[int],
    body: Callable[[Coords], Node],
    dtype: torch.dtype,
    keepdim: bool,
    hint: str = "",
) -> TensorValue:
    return reduction(ctx, x, dims, "sum", body, dtype, keepdim, hint=hint)


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum_(ctx: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> TensorValue:
    out = ctx.meta.dtype
    load = x if dtype is None or sc.compute_dtype(out) is out else _rounded_once(ctx, x, out)
    return summed(ctx, x, reduced_dims(x, dim), _loader(ctx, load, sc.compute_dtype(out)), out, keepdim)


def _rounded_once(ctx: Lowering, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    """`x` converted to a 16-bit `dtype`, as eager converts the input of a sum with a narrower dtype."""
    return (
        x
        if x.dtype is dtype
        else ctx.compute(x.shape, dtype, lambda coords: sc.cast(x.load(coords), dtype), hint="narrow")
    )


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(ctx: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> TensorValue:
    out = ctx.meta.dtype
    return reduction(ctx, x, reduced_dims(x, dim), "prod", _loader(ctx, x, sc.compute_dtype(out)), out, keepdim)


def count(x: TensorValue, dims: Sequence[int]) -> Any:
    """How many elements are reduced, an Expr."""
    return numel([x.shape[d] for d in dims])


@lowering(aten.mean.default, aten.mean.dim)
def mean(ctx: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> TensorValue:
    out = ctx.meta.dtype
    dims = reduced_dims(x, dim)
    return averaged(ctx, x, dims, _loader(ctx, x, sc.compute_dtype(out)), out, keepdim)


def averaged(
    ctx: Lowering,
    x: TensorValue,
    dims: Sequence[int],
    body: Callable[[Coords], Node],
    dtype: torch.dtype,
    keepdim: bool,
    hint: str = "",
) -> TensorValue:
    """The mean over `dims`: the sum in the computation type, divided, rounded to `dtype`."""
    compute = sc.compute_dtype(dtype)
    total = summed(ctx, x, dims, body, compute, keepdim, hint)
    n = sc.index(count(x, dims), compute)
    return ctx.compute(total.shape, dtype, lambda coords: sc.div(total.load(coords), n), hint=hint)


# ---- moments --------------------------------------------------------------------------------------------------------


def moments(
    ctx: Lowering, x: TensorValue, dims: Sequence[int], correction: Any, out: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """(variance, mean) over `dims`, kept with size 1, in the computation type: two passes, sum((x - mean)^2) / max(n
    - correction, 0)."""
    compute = sc.compute_dtype(out)
    load = _loader(ctx, x, compute)
    average = averaged(ctx, x, dims, load, compute, True, "mean")

    def deviation(coords: Coords) -> Node:
        return sc.square(sc.sub(load(coords), ctx.operand(average, coords, compute)))

    total = summed(ctx, x, dims, deviation, compute, True, "sqdev")
    n = count(x, dims)
    if type(correction) is float and not correction.is_integer():
        freedom = sc.maximum(sc.sub(sc.index(n, compute), sc.const(correction, compute)), sc.const(0.0, compute))
    else:
        whole = correction if type(correction) is Expr else int(correction)
        freedom = sc.index(Expr.max(n - whole, 0), compute)
    variance = ctx.compute(
        total.shape, compute, lambda coords: sc.binary("div", total.load(coords), freedom), hint="var"
    )
    return variance, average


def _finish(
    ctx: Lowering, x: TensorValue, kept: TensorValue, dims: Sequence[int], meta: Any, body: Callable[[Node], Node]
) -> TensorValue:
    """A kept-dimension result in the shape and dtype of `meta`."""
    value = reshape(kept, ctx.shape_of(meta))
    return ctx.compute(value.shape, meta.dtype, lambda coords: body(value.load(coords)))


def _register_moments(name: str, body: Callable[[Node], Node], with_mean: bool) -> None:
    packet = getattr(aten, name)

    def lower(ctx: Lowering, x: TensorValue, dims: tuple[int, ...], correction: Any) -> Any:
        metas: Any = ctx.meta if with_mean else (ctx.meta,)
        variance, average = moments(ctx, x, dims, correction, metas[0].dtype)
        result = _finish(ctx, x, variance, dims, metas[0], body)
        return (result, _finish(ctx, x, average, dims, metas[1], lambda v: v)) if with_mean else result

    @lowering(packet.correction, takes_sizes=True)
    def lower_correction(
        ctx: Lowering, x: TensorValue, dim: Any = None, correction: Any = None, keepdim: bool = False
    ) -> Any:
        return lower(ctx, x, reduced_dims(x, dim), 1 if correction is None else correction)

    @lowering(packet.default)
    def lower_default(ctx: Lowering, x: TensorValue, unbiased: bool = True) -> Any:
        return lower(ctx, x, reduced_dims(x, None), int(unbiased))

    @lowering(packet.dim)
    def lower_dim(ctx: Lowering, x: TensorValue, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return lower(ctx, x, reduced_dims(x, dim), int(unbiased))


for _name, _root, _pair in (
    ("var", False, False),
    ("std", True, False),
    ("var_mean", False, True),
    ("std_mean", True, True),
):
    _register_moments(_name, (lambda v: sc.unary("sqrt", v)) if _root else (lambda v: v), _pair)


# ---- extremes -------------------------------------------------------------------------------------------------------


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which elements are compared."""
    return torch.int32 if dtype is torch.bool else sc.compute_dtype(dtype)


def _extreme(
    ctx: Lowering, x: TensorValue, dims: Sequence[int], op: ReduceOp, keepdim: bool, dtype: torch.dtype
) -> TensorValue:
    return reduction(ctx, x, dims, op, _loader(ctx, x, _exact(x.dtype)), dtype, keepdim)


def _place(ctx: Lowering, x: TensorValue, dims: Sequence[int], op: ReduceOp, keepdim: bool) -> TensorValue:
    """The row-major position within the reduced dimensions of the first extreme element."""
    extents = [x.shape[d] for d in dims]
    load = _loader(ctx, x, _exact(x.dtype))
    return reduction(ctx, x, dims, op, load, torch.int64, keepdim, lambda reduced: sc.index(ravel(reduced, extents)))


def _register_extreme(op: ReduceOp, place: ReduceOp, full: Any, along: Any, many: Any, arg: Any) -> None:
    @lowering(full)
    def lower_full(ctx: Lowering, x: TensorValue) -> TensorValue:
        return _extreme(ctx, x, reduced_dims(x, None), op, False, x.dtype)

    @lowering(many)
    def lower_many(ctx: Lowering, x: TensorValue, dim: Any = (), keepdim: bool = False) -> TensorValue:
        return _extreme(ctx, x, reduced_dims(x, dim), op, keepdim, x.dtype)

    @lowering(along)
    def lower_along(ctx: Lowering, x: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
        dims = reduced_dims(x, dim)
        return _extreme(ctx, x, dims, op, keepdim, x.dtype), _place(ctx, x, dims, place, keepdim)

    @lowering(arg)
    def lower_arg(ctx: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False) -> TensorValue:
        return _place(ctx, x, reduced_dims(x, dim), place, keepdim)


_register_extreme("max", "argmax", aten.max.default, aten.max.dim, aten.amax.default, aten.argmax.default)
_register_extreme("min", "argmin", aten.min.default, aten.min.dim, aten.amin.default, aten.argmin.default)


# ---- truth ----------------------------------------------------------------------------------------------------------


def _register_truth(op: ReduceOp, packet: Any) -> None:
    @lowering(packet.default, packet.dim, packet.dims)
    def lower(ctx: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False) -> TensorValue:
        dims = reduced_dims(x, dim, empty_is_all=False)
        compute = sc.compute_dtype(x.dtype)

        def body(coords: Coords) -> Node:
            value = sc.cast(x.load(coords), compute)
            return value if compute is torch.bool else sc.compare("ne", value, sc.const(0, compute))

        return reduction(ctx, x, dims, op, body, ctx.meta.dtype, keepdim)


_register_truth("any", aten.any)
_register_truth("all", aten.all)


# ---- norms of vectors, logsumexp ------------------------------------------------------------------------------------


def vector_norm(
    ctx: Lowering, x: TensorValue, order: float, dims: Sequence[int], keepdim: bool, out: torch.dtype
) -> TensorValue:
    """(sum |x|^order)^(1/order) over `dims`, and its limits for 0 and infinities."""
    compute = sc.compute_dtype(out)
    load = _loader(ctx, x, compute)

    def magnitude(coords: Coords) -> Node:
        return sc.unary("abs", load(coords))

    if math.isinf(order):
        return reduction(ctx, x, dims, "max" if order > 0 else "min", magnitude, out, keepdim)
    if order == 0:
        return summed(
            ctx, x, dims, lambda c: sc.cast(sc.compare("ne", load(c), sc.const(0, compute)), compute), out, keepdim
        )
    if order == 1:
        return summed(ctx, x, dims, magnitude, out, keepdim)
    if order == 2:
        total = summed(ctx, x, dims, lambda c: sc.square(load(c)), compute, keepdim)
        return ctx.compute(total.shape, out, lambda c: sc.unary("sqrt", total.load(c)))
    p, inverse = sc.const(order, compute), sc.const(1.0 / order, compute)
    total = summed(ctx, x, dims, lambda c: sc.binary("pow", magnitude(c), p), compute, keepdim)
    return ctx.compute(total.shape, out, lambda c: sc.binary("pow", total.load(c), inverse))


@lowering(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    ctx: Lowering, x: TensorValue, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    return vector_norm(ctx, x, float(ord), reduced_dims(x, dim), keepdim, ctx.meta.dtype)


@lowering(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(ctx: Lowering, x: TensorValue, p: Any = 2, dim: Any = None, keepdim: bool = False) -> TensorValue:
    return vector_norm(ctx, x, 2.0 if p is None else float(p), reduced_dims(x, dim), keepdim, ctx.meta.dtype)


@lowering(aten.logsumexp.default)
def logsumexp(ctx: Lowering, x: TensorValue, dim: Any, keepdim: bool = False) -> Any:
    if not sc.is_float(x.dtype):
        return EXTERN
    dims, out = reduced_dims(x, dim), ctx.meta.dtype
    compute = sc.compute_dtype(out)
    load = _loader(ctx, x, compute)
    top = reduction(ctx, x, dims, "max", load, compute, True, hint="max")

    def finite(coords: Coords) -> Node:
        value = ctx.operand(top, coords, compute)
        infinite = Node.make("isinf", torch.bool, (value,))
        return sc.where(infinite, sc.const(0.0, compute), value)

    total = summed(ctx, x, dims, lambda c: sc.unary("exp", sc.sub(load(c), finite(c))), compute, True)
    whole = ctx.compute(total.shape, out, lambda c: sc.add(sc.unary("log", total.load(c)), finite(c)))
    return reshape(whole, ctx.out[0])
