"""Rarer elementwise functions and small compositions."""

from __future__ import annotations

import math
from typing import Any

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.pointwise import arithmetic, elementwise, truth
from bolide.inductor.lowering.reductions import keep, reduced_dims, reduction, summed, vector_norm
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import Coords, TensorValue
from bolide.inductor.lowering.views import sliced
from bolide.symbolic import Expr

aten = torch.ops.aten


def _isnan(x: Node) -> Node:
    return Node.make("isnan", torch.bool, (x,))


def _log1p_exp(x: Node) -> Node:
    return sc.unary("log1p", sc.unary("exp", x))


# ---- logarithms and their relatives ----------------------------------------------------------------------------------


@lowering(aten.logaddexp.default)
def logaddexp(ctx: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
    def body(x: Node, y: Node) -> Node:
        same_infinity = sc.logical_and(Node.make("isinf", torch.bool, (x,)), sc.compare("eq", x, y))
        tail = _log1p_exp(sc.neg(sc.unary("abs", sc.sub(x, y))))
        return sc.where(same_infinity, x, sc.add(sc.maximum(x, y), tail))

    return arithmetic(ctx, body, a, b)


def _times_log(ctx: Lowering, x: Any, y: Any, log: str) -> TensorValue:
    """x * log(y), 0 where x is 0 and y is not NaN."""

    def body(a: Node, b: Node) -> Node:
        zero = sc.const(0.0, a.dtype)
        product = sc.where(sc.compare("eq", a, zero), zero, sc.mul(a, sc.unary(log, b)))
        return sc.where(_isnan(b), sc.const(float("nan"), a.dtype), product)

    return arithmetic(ctx, body, x, y)


@lowering(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(ctx: Lowering, x: Any, y: Any) -> TensorValue:
    return _times_log(ctx, x, y, "log")


@lowering(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def special_xlog1py(ctx: Lowering, x: Any, y: Any) -> TensorValue:
    return _times_log(ctx, x, y, "log1p")


@lowering(aten.special_entr.default)
def special_entr(ctx: Lowering, x: TensorValue) -> TensorValue:
    def body(v: Node) -> Node:
        zero = sc.const(0.0, v.dtype)
        value = sc.mul(sc.neg(v), sc.unary("log", v))
        other = sc.where(sc.compare("eq", v, zero), zero, sc.const(float("-inf"), v.dtype))
        return sc.where(_isnan(v), v, sc.where(sc.compare("gt", v, zero), value, other))

    return elementwise(ctx, body, x)


@lowering(aten.logit.default)
def logit(ctx: Lowering, x: TensorValue, eps: float | None = None) -> TensorValue:
    def body(v: Node) -> Node:
        one = sc.const(1.0, v.dtype)
        if eps is not None:
            low, high = sc.const(eps, v.dtype), sc.sub(one, sc.const(eps, v.dtype))
            v = sc.where(sc.compare("lt", v, low), low, sc.where(sc.compare("gt", v, high), high, v))
        return sc.unary("log", sc.div(v, sc.sub(one, v)))

    return elementwise(ctx, body, x)


@lowering(aten.sinc.default)
def sinc(ctx: Lowering, x: TensorValue) -> TensorValue:
    def body(v: Node) -> Node:
        product = sc.mul(v, sc.const(math.pi, v.dtype))
        zero, one = sc.const(0.0, v.dtype), sc.const(1.0, v.dtype)
        return sc.where(sc.compare("eq", v, zero), one, sc.div(sc.unary("sin", product), product))

    return elementwise(ctx, body, x)


@lowering(aten.heaviside.default)
def heaviside(ctx: Lowering, x: TensorValue, values: TensorValue) -> TensorValue:
    def body(v: Node, at_zero: Node) -> Node:
        zero = sc.const(0, v.dtype)
        above = sc.cast(sc.compare("gt", v, zero), v.dtype)
        return sc.where(sc.compare("eq", v, zero), at_zero, above)

    return EXTERN if x.dtype is torch.bool else elementwise(ctx, body, x, values)  # type: ignore[return-value]


@lowering(aten.celu.default)
def celu(ctx: Lowering, x: TensorValue, alpha: Any = 1.0) -> TensorValue:
    def body(v: Node) -> Node:
        curved = sc.mul(sc.const(alpha, v.dtype), sc.unary("expm1", sc.mul(v, sc.const(1.0 / alpha, v.dtype))))
        return sc.where(sc.compare("lt", v, sc.const(0.0, v.dtype)), curved, v)

    return elementwise(ctx, body, x)


@lowering(aten.glu_backward.default)
def glu_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, dim: int) -> TensorValue:
    """grad·sigmoid(b) for the first half a, and grad·a·sigmoid(b)·(1 - sigmoid(b)) for the second half b."""
    shape, dtype = ctx.out
    compute = sc.compute_dtype(dtype)
    dim %= len(shape)
    length = grad.shape[dim]
    left, right = sliced(x, dim, Expr.const(0), length), sliced(x, dim, length, length)

    def body(coords: Coords) -> Node:
        place = coords[dim] % length
        half = (*coords[:dim], place, *coords[dim + 1 :])
        g, a, b = (sc.cast(t.load(half), compute) for t in (grad, left, right))
        s = sc.unary("sigmoid", b)
        slope = sc.mul(sc.mul(sc.mul(sc.sub(sc.const(1.0, compute), s), s), g), a)
        first = sc.compare("lt", sc.index(coords[dim]), sc.index(length))
        return sc.where(first, sc.mul(s, g), slope)

    return ctx.compute(shape, dtype, body)


# ---- products ------------------------------------------------------------------------------------------------------


@lowering(aten.linalg_cross.default)
def linalg_cross(ctx: Lowering, a: TensorValue, b: TensorValue, *, dim: int = -1) -> TensorValue:
    shape, dtype = ctx.out
    compute, dim = sc.compute_dtype(dtype), dim % len(shape)

    def body(coords: Coords) -> Node:
        def element(x: TensorValue, ahead: int) -> Node:
            return ctx.operand(x, (*coords[:dim], (coords[dim] + ahead) % 3, *coords[dim + 1 :]), compute)

        left, right = sc.mul(element(a, 1), element(b, 2)), sc.mul(element(a, 2), element(b, 1))
        return sc.sub(sc.rounded(left, dtype), sc.rounded(right, dtype))

    return ctx.compute(shape, dtype, body)


@lowering(aten._weight_norm_interface.default)
def weight_norm(ctx: Lowering, v: TensorValue, g: TensorValue, dim: int = 0) -> tuple[TensorValue, TensorValue]:
    """(v·g/norm, norm): the norms over all dimensions but `dim`, in the shape of g."""
    metas: Any = ctx.meta
    compute, rank = sc.compute_dtype(v.dtype), len(v.shape)
    dims = tuple(d for d in range(rank) if d != dim)
    norms = vector_norm(ctx, v, 2.0, dims, True, compute)

    def body(coords: Coords) -> Node:
        scale = sc.div(ctx.operand(g, coords, compute), ctx.operand(norms, coords, compute))
        return sc.mul(ctx.operand(v, coords, compute), scale)

    out = ctx.compute(v.shape, v.dtype, body)
    return out, ctx.compute(norms.shape, metas[1].dtype, norms.load)


@lowering(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    ctx: Lowering, grad: TensorValue, v: TensorValue, g: TensorValue, norms: TensorValue, dim: int
) -> tuple[TensorValue, TensorValue]:
    """(g/norm·(grad - v·Σ(grad·v)/norm²), Σ(grad·v)/norm)."""
    compute, rank = sc.compute_dtype(v.dtype), len(v.shape)
    dims = tuple(d for d in range(rank) if d != dim)

    def product(coords: Coords) -> Node:
        return sc.mul(ctx.operand(grad, coords, compute), ctx.operand(v, coords, compute))

    dot = summed(ctx, v, dims, product, compute, True, "dot")

    def slope(coords: Coords) -> Node:
        w, x, scale, norm, s = (ctx.operand(t, coords, compute) for t in (grad, v, g, norms, dot))
        along = sc.div(sc.mul(x, s), sc.square(norm))
        return sc.mul(sc.div(scale, norm), sc.sub(w, along))

    by_g = ctx.compute(g.shape, g.dtype, lambda c: sc.div(ctx.operand(dot, c, compute), ctx.operand(norms, c, compute)))
    return ctx.compute(v.shape, v.dtype, slope), by_g


# ---- reductions ----------------------------------------------------------------------------------------------------


@lowering(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(ctx: Lowering, x: TensorValue, dim: Any = None) -> TensorValue:
    dims = reduced_dims(x, dim)
    return summed(ctx, x, dims, lambda c: sc.cast(truth(x, ctx, c), torch.int64), torch.int64, False)


@lowering(aten.nansum.default)
def nansum(ctx: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    out = ctx.meta.dtype
    if not sc.is_float(x.dtype) or dtype is not None:
        return EXTERN
    compute = sc.compute_dtype(out)

    def body(coords: Coords) -> Node:
        value = sc.cast(x.load(coords), compute)
        return sc.where(_isnan(value), sc.const(0.0, compute), value)

    return summed(ctx, x, reduced_dims(x, dim), body, out, keepdim)


@lowering(aten.aminmax.default)
def aminmax(ctx: Lowering, x: TensorValue, *, dim: Any = None, keepdim: bool = False) -> Any:
    if x.dtype is torch.bool:
        return EXTERN
    dims, compute = reduced_dims(x, dim), sc.compute_dtype(x.dtype)
    results = []
    for op in ("min", "max"):
        value = reduction(ctx, x, dims, op, lambda c: sc.cast(x.load(c), compute), x.dtype)
        results.append(keep(value, len(x.shape), dims) if keepdim else value)
    return tuple(results)


@lowering(aten.trace.default)
def trace(ctx: Lowering, x: TensorValue) -> Any:
    size = Expr.min(x.shape[0], x.shape[1])
    out = ctx.meta.dtype
    return ctx.reduce((), out, (size,), "sum", lambda _, r: sc.cast(x.load((r[0], r[0])), sc.compute_dtype(out)))
