"""Tensors from nothing: constants, ranges, random numbers."""

from __future__ import annotations

from functools import partial

import torch

from bolide.inductor.ir.definitions import ravel
from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import Coords, NumberOrSize, Operand, TensorValue
from bolide.symbolic import Expr, as_expr
from bolide.tracing import rng

aten = torch.ops.aten


def constant(ctx: Lowering, shape: Coords, value: Operand, dtype: torch.dtype) -> TensorValue:
    """A tensor filled with a number, a size or the element of a 0-dim tensor."""
    return ctx.compute(shape, dtype, lambda coords: ctx.operand(value, (), dtype))


def _filled(ctx: Lowering, value: Operand) -> TensorValue:
    return constant(ctx, ctx.out[0], value, ctx.out[1])


lowering(aten.full.default, aten.full_like.default, takes_sizes=True)(lambda ctx, _, value, **__: _filled(ctx, value))
lowering(aten.new_full.default, takes_sizes=True)(lambda ctx, _, size, value, **__: _filled(ctx, value))
lowering(aten.scalar_tensor.default, takes_sizes=True)(lambda ctx, value, **_: _filled(ctx, value))
lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)(lambda ctx, *_, **__: _filled(ctx, 1))


@lowering(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.zero.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten.empty_permuted.default,
)
def zeros(ctx: Lowering, *_: object, **__: object) -> TensorValue:
    """`empty` included: what a functional graph reads of it is arbitrary."""
    return _filled(ctx, 0)


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step, takes_sizes=True)
def arange(
    ctx: Lowering, first: NumberOrSize, end: NumberOrSize | None = None, step: NumberOrSize = 1, **_: object
) -> object:
    start = 0 if end is None else first
    shape, dtype = ctx.out
    if isinstance(start, float) or isinstance(step, float):
        if not sc.is_float(dtype) or isinstance(start, Expr) or isinstance(step, Expr):
            return EXTERN
        if max(abs(start), abs(step)) > torch.finfo(torch.float32).max:  # eager computes in float64
            return EXTERN
        compute = sc.compute_dtype(dtype)  # eager: start + step * i in the accumulation type
        return ctx.compute(shape, dtype, lambda coords: sc.fma(step, sc.index(coords[0], compute), start))
    whole_start, whole_step = (int(value) if isinstance(value, bool) else value for value in (start, step))
    return ctx.compute(shape, dtype, lambda coords: sc.index(coords[0] * whole_step + whole_start, dtype))


@lowering(aten.eye.default, aten.eye.m)
def eye(ctx: Lowering, *_: object, **__: object) -> TensorValue:
    return ctx.compute(*ctx.out, lambda coords: sc.cast(sc.eq(*map(sc.index, coords)), ctx.meta.dtype))


def _triangle(op: str, ctx: Lowering, x: TensorValue, diagonal: int | Expr = 0) -> TensorValue:
    def body(coords: Coords) -> Node:
        inside = sc.compare(op, sc.index(coords[-1] - coords[-2]), sc.index(as_expr(diagonal)))
        return sc.where(inside, x.load(coords), 0)

    return ctx.compute(x.shape, x.dtype, body)


lowering(aten.tril.default)(partial(_triangle, "le"))
lowering(aten.triu.default)(partial(_triangle, "ge"))


def _drawn(op: str, ctx: Lowering, seed: TensorValue, counter: int, size: object) -> TensorValue:
    """The element's row-major position and the counter select the number."""
    shape, dtype = ctx.out

    def body(coords: Coords) -> Node:
        return Node.make(op, torch.float32, (ctx.operand(seed, (), torch.int64),), (counter, ravel(coords, shape)))

    return ctx.compute(shape, dtype, body)


lowering(rng.rand)(partial(_drawn, "philox"))
lowering(rng.randn)(partial(_drawn, "philox_normal"))
