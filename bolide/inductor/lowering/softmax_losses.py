"""Softmax and losses with their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.indexing import checked_index, operand_var
from bolide.inductor.lowering.reductions import averaged, reduced_dims, reduction, summed
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ZERO, Coords, TensorValue, numel
from bolide.symbolic import Expr, as_expr

aten = torch.ops.aten

_NONE, _MEAN, _SUM = 0, 1, 2  # ATen's codes of the reductions of a loss

# ---- softmax: maximum, exponentials, their sum, quotient -------------------------------------------------------------


def _shifted(ctx: Lowering, x: TensorValue, dims: tuple[int, ...], compute: torch.dtype) -> Callable[[Coords], Node]:
    """x - max(x) over `dims`."""
    top = reduction(ctx, x, dims, "max", lambda c: sc.cast(x.load(c), compute), compute, True, hint="max")
    return lambda coords: sc.sub(sc.cast(x.load(coords), compute), ctx.operand(top, coords, compute))


@lowering(aten._softmax.default)
def softmax(ctx: Lowering, x: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    shape, dtype = ctx.out
    compute, dims = sc.compute_dtype(dtype), reduced_dims(x, dim)
    shifted = _shifted(ctx, x, dims, compute)
    power = ctx.compute(shape, compute, lambda coords: sc.unary("exp", shifted(coords)), hint="exp")
    total = summed(ctx, power, dims, power.load, compute, True, "sum")
    return ctx.compute(
        shape, dtype, lambda coords: sc.div(power.load(coords), ctx.operand(total, coords, compute)), hint="softmax"
    )


@lowering(aten._log_softmax.default)
def log_softmax(ctx: Lowering, x: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    shape, dtype = ctx.out
    compute, dims = sc.compute_dtype(dtype), reduced_dims(x, dim)
    shifted = _shifted(ctx, x, dims, compute)
    total = summed(ctx, x, dims, lambda coords: sc.unary("exp", shifted(coords)), compute, True, "sumexp")
    log = ctx.compute(total.shape, compute, lambda coords: sc.unary("log", total.load(coords)), hint="logsum")
    return ctx.compute(
        shape, dtype, lambda coords: sc.sub(shifted(coords), ctx.operand(log, coords, compute)), hint="log_softmax"
    )


@lowering(aten._safe_softmax.default)
def safe_softmax(ctx: Lowering, x: TensorValue, dim: int, dtype: Any = None) -> TensorValue:
    """Softmax with zeros for rows that are -inf throughout."""
    shape, out = ctx.out
    compute, dims = sc.compute_dtype(out), reduced_dims(x, dim)
    top = reduction(ctx, x, dims, "max", lambda c: sc.cast(x.load(c), compute), compute, True, hint="max")

    def hidden(coords: Coords) -> Node:
        return sc.compare("eq", ctx.operand(top, coords, compute), sc.const(float("-inf"), compute))

    def power_of(coords: Coords) -> Node:
        shifted = sc.sub(sc.cast(x.load(coords), compute), ctx.operand(top, coords, compute))
        return sc.unary("exp", shifted)

    power = ctx.compute(shape, compute, power_of, hint="exp")
    total = summed(ctx, power, dims, power.load, compute, True, "sum")

    def body(coords: Coords) -> Node:
        quotient = sc.div(power.load(coords), ctx.operand(total, coords, compute))
        return sc.where(hidden(coords), sc.const(0.0, compute), quotient)

    return ctx.compute(shape, out, body, hint="softmax")


@lowering(aten._softmax_backward_data.default)
def softmax_backward(
    ctx: Lowering, grad: TensorValue, out: TensorValue, dim: int, input_dtype: torch.dtype
) -> TensorValue:
    shape, dtype = ctx.out
    compute = sc.compute_dtype(grad.dtype)

    def product(coords: Coords) -> Node:
        return sc.mul(ctx.operand(grad, coords, compute), ctx.operand(out, coords, compute))

    total = summed(ctx, grad, reduced_dims(grad, dim), product, compute, True, "dot")

    def body(coords: Coords) -> Node:
        g, y, s = (ctx.operand(t, coords, compute) for t in (grad, out, total))
        return sc.mul(sc.sub(g, s), y)

    return ctx.compute(shape, dtype, body)


@lowering(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    ctx: Lowering, grad: TensorValue, out: TensorValue, dim: int, input_dtype: torch.dtype
) -> TensorValue:
    shape, dtype = ctx.out
    compute = sc.compute_dtype(grad.dtype)
    total = summed(
        ctx, grad, reduced_dims(grad, dim), lambda c: ctx.operand(grad, c, compute), compute, True, "gradsum"
    )

    def body(coords: Coords) -> Node:
        g, y, s = (ctx.operand(t, coords, compute) for t in (grad, out, total))
        return sc.sub(g, sc.mul(sc.unary("exp", y), s))

    return ctx.compute(shape, dtype, body)


# ---- losses of a difference ------------------------------------------------------------------------------------------


def _reduced_loss(ctx: Lowering, shape: Coords, body: Callable[[Coords], Node], reduction_code: int) -> TensorValue:
    """The loss of every element, or its mean or sum."""
    dtype = ctx.meta.dtype
    if reduction_code == _NONE:
        return ctx.compute(shape, dtype, body)
    # eager makes the tensor of losses in its dtype first
    losses = ctx.compute(shape, dtype, body, hint="loss")
    dims, compute = tuple(range(len(shape))), sc.compute_dtype(dtype)
    finish = averaged if reduction_code == _MEAN else summed
    return finish(ctx, losses, dims, lambda c: sc.cast(losses.load(c), compute), dtype, False)


def _broadcast_shape(a: TensorValue, b: TensorValue) -> Coords:
    """The broadcast shape of two tensors whose shapes eager has found compatible."""
    if len(a.shape) < len(b.shape):
        a, b = b, a
    tail = len(a.shape) - len(b.shape)
    one = Expr.const(1)
    return (*a.shape[:tail], *(y if x is one else x for x, y in zip(a.shape[tail:], b.shape)))


def _difference_loss(
    ctx: Lowering, x: TensorValue, target: TensorValue, reduction_code: int, loss: Callable[[Node], Node], rounds: bool
) -> TensorValue:
    """`rounds`: eager stores the difference in the result's dtype."""
    dtype = ctx.meta.dtype
    compute = sc.compute_dtype(dtype)

    def body(coords: Coords) -> Node:
        difference = sc.sub(ctx.operand(x, coords, compute), ctx.operand(target, coords, compute))
        return loss(sc.rounded(difference, dtype) if rounds else difference)

    return _reduced_loss(ctx, _broadcast_shape(x, target), body, reduction_code)


def _count(x: TensorValue, y: TensorValue) -> Expr:
    size = Expr.const(1)
    for extent in _broadcast_shape(x, y):
        size = size * extent
    return size


def _difference_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    reduction_code: int,
    slope: Callable[[Node, Node, Callable[[float], Node], Callable[[Node], Node]], Node],
    rounds: bool,
) -> TensorValue:
    """slope(x - target, grad, scaled, step): scaled(k) is k/n for a mean and k otherwise; step(v) is v after a step
    of the
    formula, rounded to the result's dtype if eager `rounds` there."""
    dtype = ctx.meta.dtype
    compute = sc.compute_dtype(dtype)
    count = _count(x, target)

    def step(value: Node) -> Node:
        return sc.rounded(value, dtype) if rounds else value

    def scaled(value: float) -> Node:
        if reduction_code != _MEAN:
            return step(sc.const(value, compute))
        if count.is_const:
            return step(sc.const(value / count.value if count.value else float("nan"), compute))
        return step(sc.div(sc.const(value, compute), sc.index(count, compute)))

    def body(coords: Coords) -> Node:
        difference = step(sc.sub(ctx.operand(x, coords, compute), ctx.operand(target, coords, compute)))
        return slope(difference, ctx.operand(grad, coords, compute), scaled, step)

    return ctx.compute(ctx.out[0], dtype, body)


@lowering(aten.mse_loss.default)
def mse_loss(ctx: Lowering, x: TensorValue, target: TensorValue, reduction: int = _MEAN) -> TensorValue:
    return _difference_loss(ctx, x, target, reduction, sc.square, True)


@lowering(aten.mse_loss_backward.default)
def mse_loss_backward(
    ctx: Lowering, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int
) -> TensorValue:
    def slope(d: Node, g: Node, scaled: Callable[[float], Node], step: Callable[[Node], Node]) -> Node:
        return sc.mul(step(sc.mul(scaled(2.0), d)), g)

    return _difference_backward(ctx, grad, x, target, reduction, slope, True)


def _absolute(x: Node) -> Node:
    return sc.unary("abs", x)


@lowering(aten.smooth_l1_loss.default)
def smooth_l1_loss(
    ctx: Lowering, x: TensorValue, target: TensorValue, reduction: int = _MEAN, beta: float = 1.0
) -> TensorValue:
    def loss(d: Node) -> Node:
        size, width, half = _absolute(d), sc.const(beta, d.dtype), sc.const(0.5, d.dtype)
        linear = sc.sub(size, sc.mul(half, width))
        if beta == 0:
            return size
        return sc.where(sc.compare("lt", size, width), sc.div(sc.mul(sc.mul(half, size), size), width), linear)

    return _difference_loss(ctx, x, target, reduction, loss, False)


@lowering(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    ctx: Lowering, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int, beta: float
) -> TensorValue:
    def slope(d: Node, g: Node, scaled: Callable[[float], Node], step: Callable[[Node], Node]) -> Node:
        norm = scaled(1.0)
        low, high = sc.const(-beta, d.dtype), sc.const(beta, d.dtype)
        middle = sc.div(sc.mul(sc.mul(norm, d), g), high)
        outside = sc.where(sc.compare("ge", d, high), sc.mul(norm, g), middle)
        return sc.where(sc.compare("le", d, low), sc.mul(sc.neg(norm), g), outside)

    return _difference_backward(ctx, grad, x, target, reduction, slope, False)


@lowering(aten.huber_loss.default)
def huber_loss(
    ctx: Lowering, x: TensorValue, target: TensorValue, reduction: int = _MEAN, delta: float = 1.0
) -> TensorValue:
    def loss(d: Node) -> Node:
        size, width, half = _absolute(d), sc.rounded(sc.const(delta, d.dtype), x.dtype), sc.const(0.5, d.dtype)
        linear = sc.mul(width, sc.rounded(sc.sub(size, sc.mul(half, width)), x.dtype))
        return sc.where(sc.compare("lt", size, width), sc.mul(sc.mul(half, size), size), linear)

    return _difference_loss(ctx, x, target, reduction, loss, True)


@lowering(aten.huber_loss_backward.default)
def huber_loss_backward(
    ctx: Lowering, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int, delta: float
) -> TensorValue:
    def slope(d: Node, g: Node, scaled: Callable[[float], Node], step: Callable[[Node], Node]) -> Node:
        norm, low, high = scaled(1.0), sc.const(-delta, d.dtype), sc.const(delta, d.dtype)
        inside = sc.mul(step(sc.mul(norm, d)), g)
        above = sc.mul(step(sc.mul(norm, g)), step(high))
        below = sc.mul(step(sc.mul(sc.neg(norm), g)), step(high))
        upper = sc.where(sc.compare("ge", d, step(high)), above, inside)
        return sc.where(sc.compare("le", d, step(low)), below, upper)

    return _difference_backward(ctx, grad, x, target, reduction, slope, True)


# ---- binary cross-entropy --------------------------------------------------------------------------------------------


@lowering(aten.binary_cross_entropy_with_logits.default)
def bce_with_logits(
    ctx: Lowering,
    x: TensorValue,
    target: TensorValue,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: int = _MEAN,
) -> Any:
    if sc.compute_dtype(x.dtype) is not x.dtype:
        return EXTERN  # eager rounds between its composite's steps

    def body(coords: Coords) -> Node:
        v, t = (ctx.operand(operand, coords, x.dtype) for operand in (x, target))
        one = sc.const(1.0, v.dtype)
        softplus = sc.neg(_log_sigmoid(v))
        if pos_weight is not None:
            log_weight = sc.add(one, sc.mul(sc.sub(ctx.operand(pos_weight, coords, x.dtype), one), t))
            softplus = sc.mul(log_weight, softplus)
        loss = sc.add(sc.mul(sc.sub(one, t), v), softplus)
        return loss if weight is None else sc.mul(loss, ctx.operand(weight, coords, x.dtype))

    return _reduced_loss(ctx, _broadcast_shape(x, target), body, reduction)


def _log_sigmoid(v: Node) -> Node:
    tail = sc.unary("log1p", sc.unary("exp", sc.neg(_absolute(v))))
    return sc.sub(sc.minimum(sc.const(0.0, v.dtype), v), tail)


@lowering(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    ctx: Lowering, grad: TensorValue, x: TensorValue, target: TensorValue, weight: Any = None, reduction: int = _MEAN
) -> Any:
    """grad·(x - t) / max((1 - x)·x, 1e-12). The forward is ATen's: it refuses inputs outside [0, 1]."""
    if sc.compute_dtype(x.dtype) is not x.dtype:
        return EXTERN
    count = numel(x.shape)

    def body(coords: Coords) -> Node:
        g, v, t = (ctx.operand(operand, coords, x.dtype) for operand in (grad, x, target))
        one, least = sc.const(1.0, v.dtype), sc.const(1e-12, v.dtype)
        slope = sc.div(sc.mul(g, sc.sub(v, t)), sc.maximum(sc.mul(sc.sub(one, v), v), least))
        if weight is not None:
            slope = sc.mul(slope, ctx.operand(weight, coords, x.dtype))
        return sc.div(slope, sc.index(count, v.dtype)) if reduction == _MEAN else slope

    return ctx.compute(x.shape, x.dtype, body)


# ---- negative log likelihood -----------------------------------------------------------------------------------------


def _kept(ctx: Lowering, target: TensorValue, coords: Coords, ignore_index: Any) -> Node:
    value = ctx.operand(target, coords, torch.int64)
    return sc.compare("ne", value, sc.index(as_expr(ignore_index)))


def _weight_at(ctx: Lowering, weight: Any, place: Node, compute: torch.dtype) -> Node:
    if weight is None:
        return sc.const(1.0, compute)
    return sc.cast(weight.load_indirect((operand_var(0, weight.shape[0]),), (place,)), compute)


@lowering(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    ctx: Lowering, x: TensorValue, target: TensorValue, weight: Any, reduction: int, ignore_index: Any
) -> Any:
    """(loss, total weight). The classes are dimension 1 of `x`, or its only one."""
    if not isinstance(ignore_index, int) or any(size is ZERO for size in target.shape):
        return EXTERN
    class_dim = 0 if len(x.shape) == 1 else 1
    dtype, compute = x.dtype, sc.compute_dtype(x.dtype)
    classes = x.shape[class_dim]
    place = checked_index(ctx, target, classes, False, ignore_index, "Target is out of bounds.")

    def weight_of(coords: Coords) -> Node:
        value = _weight_at(ctx, weight, place(coords), compute)
        return sc.where(_kept(ctx, target, coords, ignore_index), value, sc.const(0.0, compute))

    def loss(coords: Coords) -> Node:
        picked = x.load_indirect((*coords[:class_dim], operand_var(0, classes), *coords[class_dim:]), (place(coords),))
        value = sc.mul(sc.neg(sc.cast(picked, compute)), _weight_at(ctx, weight, place(coords), compute))
        return sc.where(_kept(ctx, target, coords, ignore_index), value, sc.const(0.0, compute))

    dims = tuple(range(len(target.shape)))
    if reduction == _NONE and dims:
        return ctx.compute(target.shape, dtype, loss), ctx.compute((), dtype, lambda coords: sc.const(0.0, dtype))
    total = summed(ctx, target, dims, loss, compute, False, "nll")
    total_weight = summed(ctx, target, dims, weight_of, compute, False, "weights")
    rounded_weight = ctx.compute((), dtype, lambda coords: total_weight.load(()))
    if reduction == _MEAN:
        quotient = ctx.compute((), dtype, lambda coords: sc.div(total.load(()), total_weight.load(())))
        return quotient, rounded_weight
    return ctx.compute((), dtype, lambda coords: total.load(())), rounded_weight


@lowering(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: Any,
    reduction: int,
    ignore_index: Any,
    total_weight: TensorValue,
) -> Any:
    if not isinstance(ignore_index, int):
        return EXTERN
    class_dim = 0 if len(x.shape) == 1 else 1
    dtype, compute = x.dtype, sc.compute_dtype(x.dtype)
    zero = sc.const(0.0, compute)

    def body(coords: Coords) -> Node:
        sample = (*coords[:class_dim], *coords[class_dim + 1 :]) if target.shape else ()
        chosen = ctx.operand(target, sample, torch.int64)
        here = sc.compare("eq", chosen, sc.index(coords[class_dim]))
        kept = _kept(ctx, target, sample, ignore_index)
        g = ctx.operand(grad, sample if grad.shape else (), compute)
        value = sc.neg(g)
        if weight is not None:
            value = sc.mul(value, sc.cast(weight.load((coords[class_dim],)), compute))
        if reduction == _MEAN:
            value = sc.div(value, ctx.operand(total_weight, (), compute))
        return sc.where(sc.logical_and(here, kept), value, zero)

    return ctx.compute(x.shape, dtype, body)
