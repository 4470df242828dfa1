"""Normalisations and their derivatives.

Statistics are two passes in the computation type: the mean, then the mean of squared deviations (`reductions.moments`;
of long rows on a GPU one pass). With x̂ = (x - mean)·rstd and g = grad·weight the derivative with respect to x is
rstd·(g - mean(g) - x̂·mean(g·x̂)), the means over the normalised elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.factories import constant
from bolide.inductor.lowering.reductions import count, keep, moments, summed, vector_norm
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ONE, Coords, MaybeTensor, Reader, TensorValue
from bolide.inductor.lowering.views import reshape
from bolide.symbolic import Expr, as_expr
from bolide.tracing import TensorMeta

aten = torch.ops.aten


def _affine(x: Node, weight: Node | None, bias: Node | None) -> Node:
    """x·weight + bias."""
    if weight is not None:
        x = sc.mul(x, weight)
    return x if bias is None else sc.add(x, bias)


def _rstd(ctx: Lowering, variance: TensorValue, eps: float, compute: torch.dtype) -> TensorValue:
    """1 / sqrt(variance + eps)."""
    if variance.dtype is not compute:
        variance = ctx.compute(variance.shape, compute, variance.load)
    body = ctx.each(compute, lambda v: sc.div(1.0, sc.sqrt(sc.add(v, eps))), variance)
    return ctx.compute(variance.shape, compute, body, hint="rstd")


def _as_result(ctx: Lowering, value: TensorValue, meta: TensorMeta) -> TensorValue:
    """A statistic in the shape and dtype in which ATen returns it."""
    value = reshape(value, ctx.shape_of(meta))
    return value if value.dtype is meta.dtype else ctx.compute(value.shape, meta.dtype, value.load)


def _normalised(
    ctx: Lowering, x: TensorValue, mean: MaybeTensor, rstd: TensorValue, weight: MaybeTensor, bias: MaybeTensor
) -> Reader:
    """(x - mean)·rstd·weight + bias, of operands that broadcast against `x`. The mean is None of the norm by the root
    mean square."""
    compute = sc.compute_dtype(x.dtype)

    def read(coords: Coords) -> Node:
        v, r = (ctx.operand(t, coords, compute) for t in (x, rstd))
        m, w, b = (None if t is None else ctx.operand(t, coords, compute) for t in (mean, weight, bias))
        return _affine(sc.mul(v if m is None else sc.sub(v, m), r), w, b)

    return read


@dataclass(frozen=True)
class _Derivative:
    """The derivative of a norm of `x`. `mean` (None: by the root mean square), `rstd` and `weight` broadcast against
    it."""

    ctx: Lowering
    grad: TensorValue
    x: TensorValue
    mean: MaybeTensor
    rstd: TensorValue
    weight: MaybeTensor

    @property
    def compute(self) -> torch.dtype:
        return sc.compute_dtype(self.x.dtype)

    def gradient(self, coords: Coords) -> Node:
        return self.ctx.operand(self.grad, coords, self.compute)

    def scale(self, coords: Coords) -> Node:
        return self.ctx.operand(self.rstd, coords, self.compute)

    def normal(self, coords: Coords) -> Node:
        """x̂."""
        return _normalised(self.ctx, self.x, self.mean, self.rstd, None, None)(coords)

    def along_weight(self, coords: Coords) -> Node:
        return sc.mul(self.gradient(coords), self.normal(coords))

    def weighted(self, body: Reader) -> Reader:
        if self.weight is None:
            return body
        weight = self.ctx.reader(self.weight, self.compute)
        return lambda coords: sc.mul(body(coords), weight(coords))

    def by_input(self, dims: Sequence[int], weight_is_factor: bool = False) -> TensorValue:
        """rstd·(g - mean(g) - x̂·mean(g·x̂)), means over `dims`; mean(g) is not there without a mean. `weight_is_factor`:
        the weight is the same for all that is reduced. The sums are then those of the derivatives by weight and bias,
        so that one pass makes them."""
        ctx, x, compute = self.ctx, self.x, self.compute
        slope: Reader = self.gradient if weight_is_factor else self.weighted(self.gradient)
        scale: Reader = self.weighted(self.scale) if weight_is_factor else self.scale
        total = None if self.mean is None else summed(ctx, x, dims, slope, compute, True, "gsum")
        dot = summed(ctx, x, dims, lambda c: sc.mul(slope(c), self.normal(c)), compute, True, "gdot")
        n = sc.index(count(x, dims), compute)

        def body(coords: Coords) -> Node:
            rest = slope(coords)
            if total is not None:
                rest = sc.sub(rest, sc.div(ctx.operand(total, coords, compute), n))
            along = sc.mul(self.normal(coords), sc.div(ctx.operand(dot, coords, compute), n))
            return sc.mul(scale(coords), sc.sub(rest, along))

        return ctx.compute(x.shape, x.dtype, body, hint="grad_input")

    def results(
        self, output_mask: Sequence[bool], by_input: Callable[[], TensorValue], dims: Sequence[int]
    ) -> tuple[MaybeTensor, ...]:
        """The wanted ones of the derivatives by input, weight and bias, the latter by sums over `dims`."""
        results = [by_input() if output_mask[0] else None]
        learned = (self.along_weight, "grad_weight"), (self.gradient, "grad_bias")
        for meta, wanted, (body, hint) in zip(self.ctx.metas[1:], output_mask[1:], learned):
            total = None
            if wanted:
                total = summed(self.ctx, self.x, dims, body, meta.dtype, False, hint)
                total = reshape(total, self.ctx.shape_of(meta))
            results.append(total)
        return tuple(results)


# ---- norms of weights -----------------------------------------------------------------------------------------------


@lowering(aten._weight_norm_interface.default)
def weight_norm(ctx: Lowering, v: TensorValue, g: TensorValue, dim: int = 0) -> tuple[TensorValue, TensorValue]:
    """(v·g/norm, norm): the norms over all dimensions but `dim`, in the shape of g."""
    compute = sc.compute_dtype(v.dtype)
    dims = tuple(d for d in range(len(v.shape)) if d != dim)
    norms = vector_norm(ctx, v, 2.0, dims, True, compute)
    scaled = ctx.each(compute, lambda x, scale, norm: sc.mul(x, sc.div(scale, norm)), v, g, norms)
    out = ctx.compute(v.shape, v.dtype, scaled)
    return out, ctx.compute(norms.shape, ctx.metas[1].dtype, norms.load)


@lowering(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    ctx: Lowering, grad: TensorValue, v: TensorValue, g: TensorValue, norms: TensorValue, dim: int
) -> tuple[TensorValue, TensorValue]:
    """(g/norm·(grad - v·Σ(grad·v)/norm²), Σ(grad·v)/norm)."""
    compute = sc.compute_dtype(v.dtype)
    dims = tuple(d for d in range(len(v.shape)) if d != dim)
    dot = summed(ctx, v, dims, ctx.each(compute, sc.mul, grad, v), compute, True, "dot")

    def slope(w: Node, x: Node, scale: Node, norm: Node, s: Node) -> Node:
        return sc.mul(sc.div(scale, norm), sc.sub(w, sc.div(sc.mul(x, s), sc.square(norm))))

    by_g = ctx.compute(g.shape, g.dtype, ctx.each(compute, sc.div, dot, norms))
    return ctx.compute(v.shape, v.dtype, ctx.each(compute, slope, grad, v, g, norms, dot)), by_g


# ---- layer norm ------------------------------------------------------------------------------------------------------


@lowering(aten.native_layer_norm.default)
def native_layer_norm(
    ctx: Lowering, x: TensorValue, normalized: Sequence[object], weight: MaybeTensor, bias: MaybeTensor, eps: float
) -> object:
    """(out, mean, rstd); the statistics keep the normalised dimensions with size 1."""
    if not sc.is_float(x.dtype) or x.is_empty:
        return EXTERN
    compute = sc.compute_dtype(x.dtype)
    dims = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    variance, mean = moments(ctx, x, dims, 0, compute)
    rstd = _rstd(ctx, variance, eps, compute)
    out = ctx.compute(x.shape, x.dtype, _normalised(ctx, x, mean, rstd, weight, bias), hint="layer_norm")
    return out, _as_result(ctx, mean, ctx.metas[1]), _as_result(ctx, rstd, ctx.metas[2])


@lowering(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    normalized: Sequence[object],
    mean: TensorValue,
    rstd: TensorValue,
    weight: MaybeTensor,
    bias: MaybeTensor,
    output_mask: Sequence[bool],
) -> object:
    return _derivative_of_rows(ctx, grad, x, normalized, mean, rstd, weight, output_mask)


def _derivative_of_rows(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    normalized: Sequence[object],
    mean: MaybeTensor,
    rstd: TensorValue,
    weight: MaybeTensor,
    output_mask: Sequence[bool],
) -> object:
    """The derivatives of a norm over the last dimensions."""
    if x.is_empty:
        return EXTERN
    rank = len(x.shape)
    split = rank - len(normalized)
    derivative = _Derivative(ctx, grad, x, mean, rstd, weight)
    return derivative.results(output_mask, lambda: derivative.by_input(range(split, rank)), range(split))


# ---- root mean square norm -------------------------------------------------------------------------------------------


@lowering(aten._fused_rms_norm.default)
def fused_rms_norm(
    ctx: Lowering, x: TensorValue, normalized: Sequence[object], weight: MaybeTensor, eps: float | None
) -> object:
    """(out, rstd)."""
    if not sc.is_float(x.dtype) or x.is_empty:
        return EXTERN
    compute = sc.compute_dtype(x.dtype)
    dims = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    epsilon = torch.finfo(compute).eps if eps is None else eps
    squares = summed(ctx, x, dims, ctx.each(compute, sc.square, x), compute, True, "squares")
    n = sc.index(count(x, dims), compute)
    mean = ctx.compute(squares.shape, compute, lambda c: sc.div(squares.load(c), n), hint="meansq")
    inverse = ctx.each(compute, lambda v: sc.unary("rsqrt", sc.add(v, epsilon)), mean)
    rstd = ctx.compute(mean.shape, compute, inverse, hint="rstd")
    out = ctx.compute(x.shape, ctx.metas[0].dtype, _normalised(ctx, x, None, rstd, weight, None), hint="rms_norm")
    return out, _as_result(ctx, rstd, ctx.metas[1])


@lowering(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    normalized: Sequence[object],
    rstd: TensorValue,
    weight: MaybeTensor,
    output_mask: Sequence[bool],
) -> object:
    """(grad_input, grad_weight)."""
    return _derivative_of_rows(ctx, grad, x, normalized, None, rstd, weight, output_mask)


# ---- group norm ------------------------------------------------------------------------------------------------------


def _grouped(x: TensorValue, groups: int) -> TensorValue:
    """[N, C, *] as [N, groups, C/groups, *]."""
    size = Expr.const(groups)
    return reshape(x, (x.shape[0], size, x.shape[1] // size, *x.shape[2:]))


def _per_channel(x: TensorValue, groups: int, rank: int) -> TensorValue:
    """A vector of channels so that it broadcasts against [N, groups, C/groups, *]."""
    size = Expr.const(groups)
    return reshape(x, (size, x.shape[0] // size, *[ONE] * (rank - 2)))


def _is_of(x: TensorValue, batch: object, channels: object) -> bool:
    """Whether the sizes that an operation is told are those of the tensor's dimensions, and not only as many."""
    return len(x.shape) > 1 and as_expr(batch) == x.shape[0] and as_expr(channels) == x.shape[1]


@lowering(aten.native_group_norm.default)
def native_group_norm(
    ctx: Lowering,
    x: TensorValue,
    weight: MaybeTensor,
    bias: MaybeTensor,
    N: object,
    C: object,
    HxW: object,
    group: int,
    eps: float,
) -> object:
    """(out, mean [N, group], rstd [N, group])."""
    if not sc.is_float(x.dtype) or x.is_empty or not _is_of(x, N, C):
        return EXTERN
    compute = sc.compute_dtype(x.dtype)
    whole = _grouped(x, group)
    variance, mean = moments(ctx, whole, range(2, len(whole.shape)), 0, compute)
    rstd = _rstd(ctx, variance, eps, compute)
    w, b = (t and _per_channel(t, group, len(x.shape)) for t in (weight, bias))
    normalised = _normalised(ctx, whole, mean, rstd, w, b)
    size = x.shape[1] // group

    def ungrouped(coords: Coords) -> Node:
        return normalised((coords[0], coords[1] // size, coords[1] % size, *coords[2:]))

    out = ctx.compute(x.shape, x.dtype, ungrouped, hint="group_norm")
    return out, _as_result(ctx, mean, ctx.metas[1]), _as_result(ctx, rstd, ctx.metas[2])


@lowering(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: MaybeTensor,
    N: object,
    C: object,
    HxW: object,
    group: int,
    output_mask: Sequence[bool],
) -> object:
    if x.is_empty or not _is_of(x, N, C):
        return EXTERN
    whole = _grouped(x, group)
    rank = len(whole.shape)
    dims = range(2, rank)
    m, r = (keep(t, rank, dims) for t in (mean, rstd))
    w = weight and _per_channel(weight, group, len(x.shape))
    derivative = _Derivative(ctx, _grouped(grad, group), whole, m, r, w)
    return derivative.results(output_mask, lambda: reshape(derivative.by_input(dims), x.shape), (0, *range(3, rank)))


# ---- batch norm ------------------------------------------------------------------------------------------------------


def _channel(x: TensorValue, rank: int) -> TensorValue:
    """A vector of channels so that it broadcasts against [N, C, *]."""
    return reshape(x, (x.shape[0], *[ONE] * (rank - 2)))


@lowering(aten.native_batch_norm.default)
def _batch_norm(
    ctx: Lowering,
    x: TensorValue,
    weight: MaybeTensor,
    bias: MaybeTensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    training: bool,
    momentum: float,
    eps: float,
    updates: bool = False,
) -> object:
    """(out, save_mean, save_invstd), and with `updates` the new running statistics. Statistics are over all dimensions
    but 1, in the computation type."""
    if x.is_empty or (training and running_mean is not None and not updates):  # the last writes: not in such graphs
        return EXTERN
    rank, compute = len(x.shape), sc.compute_dtype(x.dtype)
    dims = (0, *range(2, rank))
    if training:
        variance, mean = moments(ctx, x, dims, 0, compute)
    else:
        assert running_mean is not None and running_var is not None
        variance, mean = _channel(running_var, rank), _channel(running_mean, rank)
    rstd = _rstd(ctx, variance, eps, compute)
    w, b = (t and _channel(t, rank) for t in (weight, bias))
    normalised = _normalised(ctx, x, mean, rstd, w, b)
    results = [ctx.compute(x.shape, x.dtype, normalised, hint="batch_norm")]
    for value, meta in zip((mean, rstd), ctx.metas[1:3]):  # where not training nothing is saved
        saved = _as_result(ctx, value, meta) if training else constant(ctx, ctx.shape_of(meta), 0, meta.dtype)
        results.append(saved)
    if updates:
        assert running_mean is not None and running_var is not None
        n = count(x, dims)
        for running, batch, correct in ((running_mean, mean, False), (running_var, variance, True)):
            new = _updated(ctx, running, batch, momentum, n if correct else None) if training else ctx.copy(running)
            results.append(new)
    return tuple(results)


def _updated(
    ctx: Lowering, running: TensorValue, batch: TensorValue, momentum: float, corrected: Expr | None
) -> TensorValue:
    """momentum·batch + (1 - momentum)·running. `corrected`: the unbiased variance counts, of so many elements."""
    compute = sc.compute_dtype(running.dtype)

    def body(new: Node, old: Node) -> Node:
        if corrected is not None:
            new = sc.div(sc.mul(new, sc.index(corrected, compute)), sc.index(corrected - 1, compute))
        return sc.add(sc.mul(momentum, new), sc.mul(1.0 - momentum, old))

    mixed = ctx.each(compute, body, reshape(batch, running.shape), running)
    return ctx.compute(running.shape, running.dtype, mixed, hint="running")


lowering(aten._native_batch_norm_legit_functional.default)(partial(_batch_norm, updates=True))
lowering(aten._native_batch_norm_legit.no_stats)(
    lambda ctx, x, weight, bias, training, *rest: _batch_norm(ctx, x, weight, bias, None, None, True, *rest)
)
lowering(aten._native_batch_norm_legit_no_training.default)(
    lambda ctx, x, weight, bias, mean, var, *rest: _batch_norm(ctx, x, weight, bias, mean, var, False, *rest)
)


@lowering(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    weight: MaybeTensor,
    running_mean: MaybeTensor,
    running_var: MaybeTensor,
    save_mean: MaybeTensor,
    save_invstd: MaybeTensor,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> object:
    if x.is_empty:
        return EXTERN
    rank, compute = len(x.shape), sc.compute_dtype(x.dtype)
    dims = (0, *range(2, rank))
    mean, rstd = (save_mean, save_invstd) if train else (running_mean, running_var)
    assert mean is not None and rstd is not None
    mean, rstd = _channel(mean, rank), _channel(rstd, rank)
    if not train:
        rstd = _rstd(ctx, rstd, eps, compute)
    derivative = _Derivative(ctx, grad, x, mean, rstd, weight and _channel(weight, rank))

    def by_input() -> TensorValue:
        if train:
            return derivative.by_input(dims, weight_is_factor=True)
        slope, scale = derivative.weighted(derivative.gradient), derivative.scale
        return ctx.compute(x.shape, x.dtype, lambda c: sc.mul(slope(c), scale(c)), hint="grad_input")

    return derivative.results(output_mask, by_input, dims)
