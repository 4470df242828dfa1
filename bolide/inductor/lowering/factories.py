"""Tensors from nothing: constants, ranges, random numbers."""

from __future__ import annotations

from typing import Any

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import Coords, TensorValue, ravel
from bolide.symbolic import Expr, as_expr
from bolide.tracing import rng

aten = torch.ops.aten


def constant(ctx: Lowering, shape: Coords, value: Any, dtype: torch.dtype) -> TensorValue:
    """A tensor filled with a number, a size or the element of a 0-dim tensor."""
    return ctx.compute(shape, dtype, lambda coords: ctx.operand(value, (), dtype))


def filled(ctx: Lowering, value: Any) -> TensorValue:
    return constant(ctx, ctx.out[0], value, ctx.out[1])


@lowering(aten.full.default, aten.full_like.default, takes_sizes=True)
def full(ctx: Lowering, like: Any, value: Any, **_: Any) -> TensorValue:
    return filled(ctx, value)


@lowering(aten.new_full.default, takes_sizes=True)
def new_full(ctx: Lowering, like: Any, size: Any, value: Any, **_: Any) -> TensorValue:
    return filled(ctx, value)


@lowering(aten.scalar_tensor.default, takes_sizes=True)
def scalar_tensor(ctx: Lowering, value: Any, **_: Any) -> TensorValue:
    return filled(ctx, value)


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
def zeros(ctx: Lowering, *_: Any, **__: Any) -> TensorValue:
    """`empty` included: what a functional graph reads of it is arbitrary."""
    return filled(ctx, 0)


@lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(ctx: Lowering, *_: Any, **__: Any) -> TensorValue:
    return filled(ctx, 1)


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step, takes_sizes=True)
def arange(ctx: Lowering, first: Any, end: Any = None, step: Any = 1, **_: Any) -> Any:
    start = 0 if end is None else first
    shape, dtype = ctx.out
    if isinstance(start, float) or isinstance(step, float):
        if not sc.is_float(dtype) or type(start) is Expr or type(step) is Expr:
            return EXTERN
        compute = (
            torch.float64 if dtype is torch.float64 else torch.float32
        )  # eager: start + step * i in the accumulation type

        def body(coords: tuple[Expr, ...]) -> Node:
            return sc.fma(sc.const(step, compute), sc.index(coords[0], compute), sc.const(start, compute))

        return ctx.compute(shape, dtype, body)
    start, step = (int(value) if type(value) is bool else value for value in (start, step))
    return ctx.compute(shape, dtype, lambda coords: sc.index(coords[0] * step + start, dtype))


@lowering(aten.eye.default, aten.eye.m)
def eye(ctx: Lowering, *_: Any, **__: Any) -> TensorValue:
    shape, dtype = ctx.out
    return ctx.compute(shape, dtype, lambda coords: sc.cast(sc.compare("eq", *(sc.index(c) for c in coords)), dtype))


def _triangle(ctx: Lowering, x: TensorValue, diagonal: int | Expr, op: str) -> TensorValue:
    def body(coords: tuple[Expr, ...]) -> Node:
        inside = sc.compare(op, sc.index(coords[-1] - coords[-2]), sc.index(as_expr(diagonal)))
        return sc.where(inside, x.load(coords), sc.const(0, x.dtype))

    return ctx.compute(x.shape, x.dtype, body)


@lowering(aten.tril.default)
def tril(ctx: Lowering, x: TensorValue, diagonal: int | Expr = 0) -> TensorValue:
    return _triangle(ctx, x, diagonal, "le")


@lowering(aten.triu.default)
def triu(ctx: Lowering, x: TensorValue, diagonal: int | Expr = 0) -> TensorValue:
    return _triangle(ctx, x, diagonal, "ge")


def _register_random(op: str, overload: Any) -> None:
    @lowering(overload)
    def lower(ctx: Lowering, seed: TensorValue, counter: int, size: Any) -> TensorValue:
        """The element's row-major position and the counter select the number."""
        shape, dtype = ctx.out

        def body(coords: tuple[Expr, ...]) -> Node:
            return Node.make(op, torch.float32, (ctx.operand(seed, (), torch.int64),), (counter, ravel(coords, shape)))

        return ctx.compute(shape, dtype, body)


_register_random("philox", rng.rand)
_register_random("philox_normal", rng.randn)
