"""Normalisations and their derivatives.

Statistics are two passes in the computation type: the mean, then the mean of squared deviations. With x̂ = (x -
mean)·rstd and g = grad·weight the derivative
with respect to x is rstd·(g - mean(g) - x̂·mean(g·x̂)), the means over the normalised elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.factories import constant
from bolide.inductor.lowering.reductions import count, keep, moments, summed
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ONE, ZERO, Coords, TensorValue
from bolide.inductor.lowering.views import reshape
from bolide.symbolic import Expr, as_expr

aten = torch.ops.aten

Reader = Callable[[Coords], Node]


def _reader(ctx: Lowering, x: TensorValue, compute: torch.dtype) -> Reader:
    return lambda coords: ctx.operand(x, coords, compute)


def _affine(ctx: Lowering, x: Node, weight: Any, bias: Any, coords: Coords, compute: torch.dtype) -> Node:
    """x·weight + bias."""
    if weight is not None:
        x = sc.mul(x, ctx.operand(weight, coords, compute))
    return x if bias is None else sc.add(x, ctx.operand(bias, coords, compute))


def _rstd(ctx: Lowering, variance: TensorValue, eps: float, compute: torch.dtype) -> TensorValue:
    """1 / sqrt(variance + eps)."""
    return ctx.compute(
        variance.shape,
        compute,
        lambda c: sc.div(sc.const(1.0, compute), sc.unary("sqrt", sc.add(variance.load(c), sc.const(eps, compute)))),
        hint="rstd",
    )


def _as_result(ctx: Lowering, value: TensorValue, meta: Any) -> TensorValue:
    """A statistic in the shape and dtype in which ATen returns it."""
    value = reshape(value, ctx.shape_of(meta))
    return value if value.dtype is meta.dtype else ctx.compute(value.shape, meta.dtype, value.load)


def _input_gradient(
    ctx: Lowering, shape: Coords, dims: tuple[int, ...], normal: Reader, slope: Reader, rstd: Reader, dtype: torch.dtype
) -> TensorValue:
    """rstd·(g - mean(g) - x̂·mean(g·x̂)) with `slope` g and `normal` x̂ over `shape`, means over `dims`."""
    compute = sc.compute_dtype(dtype)
    whole = TensorValue("", dtype, shape)
    total = summed(ctx, whole, dims, slope, compute, True, "gsum")
    dot = summed(ctx, whole, dims, lambda c: sc.mul(slope(c), normal(c)), compute, True, "gdot")
    n = sc.index(count(whole, dims), compute)

    def body(coords: Coords) -> Node:
        mean = sc.div(ctx.operand(total, coords, compute), n)
        along = sc.mul(normal(coords), sc.div(ctx.operand(dot, coords, compute), n))
        return sc.mul(rstd(coords), sc.sub(sc.sub(slope(coords), mean), along))

    return ctx.compute(shape, dtype, body, hint="grad_input")


# ---- layer norm ------------------------------------------------------------------------------------------------------


@lowering(aten.native_layer_norm.default)
def native_layer_norm(ctx: Lowering, x: TensorValue, normalized: Any, weight: Any, bias: Any, eps: float) -> Any:
    """(out, mean, rstd); the statistics keep the normalised dimensions with size 1."""
    metas = ctx.meta
    compute = sc.compute_dtype(x.dtype)
    dims = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    if not sc.is_float(x.dtype) or any(size is ZERO for size in x.shape):
        return EXTERN
    variance, mean = moments(ctx, x, dims, 0, compute)
    rstd = _rstd(ctx, variance, eps, compute)

    def body(coords: Coords) -> Node:
        centred = sc.sub(ctx.operand(x, coords, compute), ctx.operand(mean, coords, compute))
        return _affine(ctx, sc.mul(centred, ctx.operand(rstd, coords, compute)), weight, bias, coords, compute)

    out = ctx.compute(x.shape, x.dtype, body, hint="layer_norm")
    return out, _as_result(ctx, mean, metas[1]), _as_result(ctx, rstd, metas[2])


@lowering(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    normalized: Any,
    mean: TensorValue,
    rstd: TensorValue,
    weight: Any,
    bias: Any,
    output_mask: Any,
) -> Any:
    if any(size is ZERO for size in x.shape):
        return EXTERN
    compute = sc.compute_dtype(x.dtype)
    split = len(x.shape) - len(normalized)
    g, scale = _reader(ctx, grad, compute), _reader(ctx, rstd, compute)

    def normal(coords: Coords) -> Node:
        centred = sc.sub(ctx.operand(x, coords, compute), ctx.operand(mean, coords, compute))
        return sc.mul(centred, scale(coords))

    def slope(coords: Coords) -> Node:
        return g(coords) if weight is None else sc.mul(g(coords), ctx.operand(weight, coords, compute))

    outer = tuple(range(split))
    result: list[Any] = [None, None, None]
    if output_mask[0]:
        result[0] = _input_gradient(ctx, x.shape, tuple(range(split, len(x.shape))), normal, slope, scale, x.dtype)
    if output_mask[1]:
        result[1] = summed(ctx, x, outer, lambda c: sc.mul(g(c), normal(c)), weight.dtype, False, "grad_weight")
    if output_mask[2]:
        result[2] = summed(ctx, x, outer, g, ctx.meta[2].dtype, False, "grad_bias")
    return tuple(result)


# ---- root mean square norm -------------------------------------------------------------------------------------------


@lowering(aten._fused_rms_norm.default)
def fused_rms_norm(ctx: Lowering, x: TensorValue, normalized: Any, weight: Any, eps: Any) -> Any:
    """(out, rstd)."""
    metas = ctx.meta
    compute = sc.compute_dtype(x.dtype)
    dims = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    if not sc.is_float(x.dtype) or any(size is ZERO for size in x.shape):
        return EXTERN
    epsilon = torch.finfo(x.dtype if eps is None and compute is x.dtype else compute).eps if eps is None else eps
    squares = summed(ctx, x, dims, lambda c: sc.square(ctx.operand(x, c, compute)), compute, True, "squares")
    n = sc.index(count(x, dims), compute)
    mean = ctx.compute(squares.shape, compute, lambda c: sc.div(squares.load(c), n), hint="meansq")
    rstd = ctx.compute(
        mean.shape,
        compute,
        lambda c: sc.unary("rsqrt", sc.add(mean.load(c), sc.const(epsilon, compute))),
        hint="rstd",
    )

    def body(coords: Coords) -> Node:
        normal = sc.mul(ctx.operand(x, coords, compute), ctx.operand(rstd, coords, compute))
        return _affine(ctx, normal, weight, None, coords, compute)

    return ctx.compute(x.shape, metas[0].dtype, body, hint="rms_norm"), _as_result(ctx, rstd, metas[1])


# ---- group norm ------------------------------------------------------------------------------------------------------


def _grouped(x: TensorValue, groups: int) -> TensorValue:
    """[N, C, *] as [N, groups, C/groups, *]."""
    size = Expr.const(groups)
    return reshape(x, (x.shape[0], size, x.shape[1] // size, *x.shape[2:]))


def _per_channel(x: Any, groups: int, rank: int) -> Any:
    """A vector of channels so that it broadcasts against [N, groups, C/groups, *]."""
    if x is None:
        return None
    size = Expr.const(groups)
    return reshape(x, (size, x.shape[0] // size, *[ONE] * (rank - 2)))


def _is_of(x: TensorValue, batch: Any, channels: Any) -> bool:
    """Whether the sizes that an operation is told are those of the tensor's dimensions, and not only as many."""
    return len(x.shape) > 1 and as_expr(batch) == x.shape[0] and as_expr(channels) == x.shape[1]


@lowering(aten.native_group_norm.default)
def native_group_norm(
    ctx: Lowering, x: TensorValue, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> Any:
    """(out, mean [N, group], rstd [N, group])."""
    if not sc.is_float(x.dtype) or any(size is ZERO for size in x.shape) or not _is_of(x, N, C):
        return EXTERN
    metas = ctx.meta
    compute = sc.compute_dtype(x.dtype)
    whole = _grouped(x, group)
    dims = tuple(range(2, len(whole.shape)))
    variance, mean = moments(ctx, whole, dims, 0, compute)
    rstd = _rstd(ctx, variance, eps, compute)
    w, b = (_per_channel(t, group, len(x.shape)) for t in (weight, bias))

    def body(coords: Coords) -> Node:
        centred = sc.sub(ctx.operand(whole, coords, compute), ctx.operand(mean, coords, compute))
        return _affine(ctx, sc.mul(centred, ctx.operand(rstd, coords, compute)), w, b, coords, compute)

    out = _channels(ctx, x, group, body, x.dtype, "group_norm")
    return out, _as_result(ctx, mean, metas[1]), _as_result(ctx, rstd, metas[2])


def _channels(ctx: Lowering, x: TensorValue, groups: int, body: Reader, dtype: torch.dtype, hint: str) -> TensorValue:
    """`body` over [N, groups, C/groups, *] as a tensor of the shape of `x`."""
    size = x.shape[1] // groups

    def ungrouped(coords: Coords) -> Node:
        return body((coords[0], coords[1] // size, coords[1] % size, *coords[2:]))

    return ctx.compute(x.shape, dtype, ungrouped, hint=hint)


@lowering(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: Any,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Any,
) -> Any:
    if any(size is ZERO for size in x.shape) or not _is_of(x, N, C):
        return EXTERN
    metas = ctx.meta
    compute = sc.compute_dtype(x.dtype)
    whole, whole_grad = _grouped(x, group), _grouped(grad, group)
    rank = len(whole.shape)
    dims = tuple(range(2, rank))
    centre, scale = (_reader(ctx, keep(t, rank, dims), compute) for t in (mean, rstd))
    w = _per_channel(weight, group, len(x.shape))
    g = _reader(ctx, whole_grad, compute)

    def normal(coords: Coords) -> Node:
        return sc.mul(sc.sub(ctx.operand(whole, coords, compute), centre(coords)), scale(coords))

    def slope(coords: Coords) -> Node:
        return g(coords) if w is None else sc.mul(g(coords), ctx.operand(w, coords, compute))

    result: list[Any] = [None, None, None]
    if output_mask[0]:
        grouped = _input_gradient(ctx, whole.shape, dims, normal, slope, scale, x.dtype)
        result[0] = reshape(grouped, x.shape)
    channels = (0, *range(3, rank))
    for place, body in ((1, lambda c: sc.mul(g(c), normal(c))), (2, g)):
        if output_mask[place]:
            total = summed(ctx, whole, channels, body, metas[place].dtype, False, "grad_affine")
            result[place] = reshape(total, ctx.shape_of(metas[place]))
    return tuple(result)


# ---- batch norm ------------------------------------------------------------------------------------------------------


def _channel(x: Any, rank: int) -> Any:
    """A vector of channels so that it broadcasts against [N, C, *]."""
    return None if x is None else reshape(x, (x.shape[0], *[ONE] * (rank - 2)))


class _BatchNorm:
    """One batch norm: its statistics over all dimensions but 1, in the computation type, with dimension 1 kept."""

    def __init__(self, ctx: Lowering, x: TensorValue, training: bool, mean: Any, var: Any, eps: float) -> None:
        self.ctx, self.x, self.rank = ctx, x, len(x.shape)
        self.compute = sc.compute_dtype(x.dtype)
        self.dims = (0, *range(2, self.rank))
        self.variance: TensorValue
        if training:
            self.variance, self.mean = moments(ctx, x, self.dims, 0, self.compute)
        else:
            self.variance, self.mean = _channel(var, self.rank), _channel(mean, self.rank)
        self.eps = eps
        self.rstd = _rstd_of(ctx, self.variance, eps, self.compute)

    def output(self, weight: Any, bias: Any) -> TensorValue:
        w, b = _channel(weight, self.rank), _channel(bias, self.rank)

        def body(coords: Coords) -> Node:
            centred = sc.sub(self.read(self.x, coords), self.read(self.mean, coords))
            return _affine(self.ctx, sc.mul(centred, self.read(self.rstd, coords)), w, b, coords, self.compute)

        return self.ctx.compute(self.x.shape, self.x.dtype, body, hint="batch_norm")

    def read(self, x: TensorValue, coords: Coords) -> Node:
        return self.ctx.operand(x, coords, self.compute)

    def updated(self, running: TensorValue, batch: TensorValue, momentum: float, unbiased: bool) -> TensorValue:
        """momentum·batch + (1 - momentum)·running; the running variance takes the unbiased batch variance."""
        batch, compute = reshape(batch, running.shape), sc.compute_dtype(running.dtype)
        n = count(self.x, self.dims)

        def body(coords: Coords) -> Node:
            value = sc.cast(batch.load(coords), compute)
            if unbiased:
                size, freedom = sc.index(n, compute), sc.index(n - 1, compute)
                value = sc.div(sc.mul(value, size), freedom)
            old = sc.cast(running.load(coords), compute)
            share = sc.const(momentum, compute)
            return sc.add(sc.mul(share, value), sc.mul(sc.const(1.0 - momentum, compute), old))

        return self.ctx.compute(running.shape, running.dtype, body, hint="running")


def _rstd_of(ctx: Lowering, variance: TensorValue, eps: float, compute: torch.dtype) -> TensorValue:
    narrow = ctx.compute(variance.shape, compute, variance.load) if variance.dtype is not compute else variance
    return _rstd(ctx, narrow, eps, compute)


def _batch_norm(
    ctx: Lowering, x: TensorValue, weight: Any, bias: Any, mean: Any, var: Any, training: bool, eps: float
) -> Any:
    """The norm and its (out, save_mean, save_invstd); None: this case is ATen's."""
    if any(size is ZERO for size in x.shape):
        return None
    metas = ctx.meta
    norm = _BatchNorm(ctx, x, training, mean, var, eps)
    out = norm.output(weight, bias)
    if not training:  # nothing is saved
        return norm, (out, *(constant(ctx, ctx.shape_of(meta), 0, meta.dtype) for meta in metas[1:3]))
    return norm, (out, _as_result(ctx, norm.mean, metas[1]), _as_result(ctx, norm.rstd, metas[2]))


@lowering(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    ctx: Lowering,
    x: TensorValue,
    weight: Any,
    bias: Any,
    running_mean: TensorValue,
    running_var: TensorValue,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """(out, save_mean, save_invstd, running_mean, running_var)."""
    made = _batch_norm(ctx, x, weight, bias, running_mean, running_var, training, eps)
    if made is None:
        return EXTERN
    norm, results = made
    if not training:
        return (*results, ctx.copy(running_mean), ctx.copy(running_var))
    return (
        *results,
        norm.updated(running_mean, norm.mean, momentum, False),
        norm.updated(running_var, norm.variance, momentum, True),
    )


@lowering(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    ctx: Lowering, x: TensorValue, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    made = _batch_norm(ctx, x, weight, bias, None, None, True, eps)
    return EXTERN if made is None else made[1]


@lowering(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    ctx: Lowering, x: TensorValue, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    made = _batch_norm(ctx, x, weight, bias, mean, var, False, eps)
    return EXTERN if made is None else made[1]


@lowering(aten.native_batch_norm.default)
def native_batch_norm(
    ctx: Lowering,
    x: TensorValue,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """In a functional graph only without statistics to update."""
    if training and mean is not None:
        return EXTERN
    made = _batch_norm(ctx, x, weight, bias, mean, var, training, eps)
    return EXTERN if made is None else made[1]


@lowering(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: float,
    output_mask: Any,
) -> Any:
    if any(size is ZERO for size in x.shape):
        return EXTERN
    metas = ctx.meta
    rank, compute = len(x.shape), sc.compute_dtype(x.dtype)
    dims = (0, *range(2, rank))
    if train:
        mean, rstd = _channel(save_mean, rank), _channel(save_invstd, rank)
    else:
        mean, rstd = _channel(running_mean, rank), _rstd_of(ctx, _channel(running_var, rank), eps, compute)
    w = _channel(weight, rank)
    g, scale = _reader(ctx, grad, compute), _reader(ctx, rstd, compute)

    def normal(coords: Coords) -> Node:
        return sc.mul(sc.sub(ctx.operand(x, coords, compute), ctx.operand(mean, coords, compute)), scale(coords))

    def slope(coords: Coords) -> Node:
        return g(coords) if w is None else sc.mul(g(coords), ctx.operand(w, coords, compute))

    result: list[Any] = [None, None, None]
    if output_mask[0] and train:
        result[0] = _batch_input_gradient(ctx, x, dims, normal, g, w, scale)
    elif output_mask[0]:
        result[0] = ctx.compute(x.shape, x.dtype, lambda c: sc.mul(slope(c), scale(c)), hint="grad_input")
    if output_mask[1]:
        result[1] = summed(ctx, x, dims, lambda c: sc.mul(g(c), normal(c)), metas[1].dtype, False, "grad_weight")
    if output_mask[2]:
        result[2] = summed(ctx, x, dims, g, metas[2].dtype, False, "grad_bias")
    return tuple(result)


def _batch_input_gradient(
    ctx: Lowering, x: TensorValue, dims: tuple[int, ...], normal: Reader, g: Reader, weight: Any, rstd: Reader
) -> TensorValue:
    """weight·rstd·(g - mean(g) - x̂·mean(g·x̂)): the sums are those of grad_bias and grad_weight, so that one pass
    makes them."""
    compute = sc.compute_dtype(x.dtype)
    total = summed(ctx, x, dims, g, compute, True, "gsum")
    dot = summed(ctx, x, dims, lambda c: sc.mul(g(c), normal(c)), compute, True, "gdot")
    n = sc.index(count(x, dims), compute)

    def body(coords: Coords) -> Node:
        mean = sc.div(ctx.operand(total, coords, compute), n)
        along = sc.mul(normal(coords), sc.div(ctx.operand(dot, coords, compute), n))
        scale = rstd(coords) if weight is None else sc.mul(rstd(coords), ctx.operand(weight, coords, compute))
        return sc.mul(scale, sc.sub(sc.sub(g(coords), mean), along))

    return ctx.compute(x.shape, x.dtype, body, hint="grad_input")
