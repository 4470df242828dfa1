"""Softmax, attention and losses with their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from bolide.inductor.ir.definitions import volume
from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.activations import log_sigmoid
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.indexing import checked_index, operand_var
from bolide.inductor.lowering.reductions import averaged, reduced_dims, reduction, summed
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ZERO, Coords, MaybeTensor, Reader, TensorValue, broadcast_shape, replaced
from bolide.inductor.lowering.views import permuted, reshape
from bolide.symbolic import Expr, as_expr, hint_of
from bolide.tracing import libraries

aten = torch.ops.aten

_NONE, _MEAN, _SUM = 0, 1, 2  # ATen's codes of the reductions of a loss

# ---- softmax: maximum, exponentials, their sum, quotient -------------------------------------------------------------


def _exp_shifted(exp: str, v: Node, top: Node) -> Node:
    return sc.unary(exp, sc.sub(v, top))


def _maximum(ctx: Lowering, x: TensorValue, dim: int, compute: torch.dtype) -> TensorValue:
    return reduction(ctx, x, reduced_dims(x, dim), "max", ctx.reader(x, compute), compute, True, hint="max")


def _softmax(safe: bool, ctx: Lowering, x: TensorValue, dim: int, *_: object, **__: object) -> TensorValue:
    """`safe`: with zeros for rows that are -inf throughout."""
    shape, dtype = ctx.out
    compute = sc.compute_dtype(dtype)
    top = _maximum(ctx, x, dim, compute)
    shifted = partial(_exp_shifted, _exp_for(ctx, dtype))
    power = ctx.compute(shape, compute, ctx.each(compute, shifted, x, top), hint="exp")
    total = summed(ctx, power, reduced_dims(x, dim), power.load, compute, True, "sum")

    def body(p: Node, sum_: Node, most: Node) -> Node:
        share = sc.quotient(p, sum_)
        return sc.where(sc.eq(most, -torch.inf), 0.0, share) if safe else share

    return ctx.compute(shape, dtype, ctx.each(compute, body, power, total, top), hint="softmax")


lowering(aten._softmax.default)(partial(_softmax, False))
lowering(aten._safe_softmax.default)(partial(_softmax, True))


@lowering(aten._log_softmax.default)
def log_softmax(ctx: Lowering, x: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    shape, dtype = ctx.out
    compute = sc.compute_dtype(dtype)
    top = _maximum(ctx, x, dim, compute)
    power = ctx.each(compute, partial(_exp_shifted, "exp"), x, top)
    total = summed(ctx, x, reduced_dims(x, dim), power, compute, True, "sumexp")
    log = ctx.compute(total.shape, compute, ctx.each(compute, sc.log, total), hint="logsum")
    result = ctx.each(compute, lambda v, most, s: sc.sub(sc.sub(v, most), s), x, top, log)
    return ctx.compute(shape, dtype, result, hint="log_softmax")


def _exp_for(ctx: Lowering, dtype: torch.dtype) -> str:
    """e^x of what is at most 0: rounding to 16 bits leaves none of the error of a quick one."""
    return "exp_term" if ctx.machine.device == "cuda" and dtype.itemsize == 2 else "exp"


def _register_softmax_backward(
    overload: object, part: Callable[[Node, Node], Node], hint: str, slope: Callable[[str, Node, Node, Node], Node]
) -> None:
    """slope(the exponential function, grad, out, sum of `part`(grad, out))."""

    @lowering(overload)
    def lower(ctx: Lowering, grad: TensorValue, out: TensorValue, dim: int, input_dtype: torch.dtype) -> TensorValue:
        compute = sc.compute_dtype(grad.dtype)
        total = summed(ctx, grad, reduced_dims(grad, dim), ctx.each(compute, part, grad, out), compute, True, hint)
        shape, dtype = ctx.out
        return ctx.compute(shape, dtype, ctx.each(compute, partial(slope, _exp_for(ctx, dtype)), grad, out, total))


_register_softmax_backward(
    aten._softmax_backward_data.default, sc.mul, "dot", lambda exp, g, y, s: sc.mul(sc.sub(g, s), y)
)
_register_softmax_backward(
    aten._log_softmax_backward_data.default,
    lambda g, y: g,
    "gradsum",
    lambda exp, g, y, s: sc.sub(g, sc.mul(sc.unary(exp, y), s)),
)


# ---- attention in 16 bits: the steps of the fused kernel as products and kernels -------------------------------------

_WIDE = torch.float32


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention of `queries` (batch, heads, length, terms) over `keys` (batch, groups, count, terms): the queries of
    the heads of a group are rows of one matrix. `product`: the type of products with weights. In the forward it is
    float32, since the kernel rounds weights before it divides them: the largest of a row is exact then."""

    ctx: Lowering
    queries: TensorValue
    keys: TensorValue
    mask: MaybeTensor
    causal: bool
    scale: sc.Scalar
    product: torch.dtype

    @property
    def shape(self) -> Coords:
        """That of the scores."""
        return (*self.queries.shape[:3], self.keys.shape[2])

    def matrices(self, x: TensorValue, dtype: torch.dtype) -> TensorValue:
        """A tensor of all heads, or of groups, as a matrix for each group."""
        batch, groups = self.keys.shape[:2]
        rows = x.shape[1] // groups * x.shape[2]
        whole = x if x.dtype is dtype else self.ctx.compute(x.shape, dtype, self.ctx.reader(x, dtype), hint="wide")
        return reshape(whole, (batch * groups, rows, x.shape[3]))

    def rows_by_rows(self, left: TensorValue, right: TensorValue) -> TensorValue:
        """The float32 products of rows, in the shape of the scores."""
        turned = permuted(self.matrices(right, _WIDE), (0, 2, 1))
        return reshape(self.ctx.multiplied(self.matrices(left, _WIDE), turned), self.shape)

    def by_columns(self, weights: TensorValue, x: TensorValue) -> TensorValue:
        """What the weights (of the type of products) make of the rows of `x`, in the shape of the queries."""
        found = self.ctx.multiplied(self.matrices(weights, self.product), self.matrices(x, self.product))
        return self.rounded(found, self.queries.shape)

    def by_rows(self, weights: TensorValue, x: TensorValue) -> TensorValue:
        """What they make of the rows of `x` for each key, in the shape of the keys."""
        turned = permuted(self.matrices(weights, self.product), (0, 2, 1))
        return self.rounded(self.ctx.multiplied(turned, self.matrices(x, self.product)), self.keys.shape)

    def rounded(self, x: TensorValue, shape: Coords) -> TensorValue:
        dtype, x = self.queries.dtype, reshape(x, shape)
        return x if x.dtype is dtype else self.ctx.compute(shape, dtype, self.ctx.reader(x, dtype), hint="narrow")

    def scores(self) -> Reader:
        """What softmax is given."""
        products = self.rows_by_rows(self.queries, self.keys)

        def score(coords: Coords) -> Node:
            value = sc.mul(self.ctx.operand(products, coords, _WIDE), self.scale)
            if self.mask is not None:
                value = sc.add(value, self.ctx.operand(self.mask, coords, _WIDE))
            return sc.where(sc.ge(sc.index(coords[2]), sc.index(coords[3])), value, -math.inf) if self.causal else value

        return score


def _attention(
    ctx: Lowering,
    queries: TensorValue,
    keys: TensorValue,
    mask: MaybeTensor,
    causal: bool,
    scale: float | None,
    backward: bool = False,
) -> _Attention | None:
    """A call of the fused kernel that is done with products; None where the kernel was measured to be faster.

    AMD EPYC with AVX512_BF16, one thread, ms: bfloat16, 2×4×128×128 scores of 64 terms, 0.57 in the kernel and 0.46;
    backward 2.6 and 1.0. Of float16 the kernel's backward takes ten times as long, the products in float32 do not.
    """
    if queries.dtype not in (torch.bfloat16, torch.float16):
        return None
    given = [source.meta["val"] for source in ctx.node.args[backward:] if isinstance(source, torch.fx.Node)]
    batch, heads, length, width = map(hint_of, given[0].shape)
    count = hint_of(given[1].shape[2])
    if libraries.attention(queries.dtype, batch * heads, length, count, width, causal, backward) != "products":
        return None
    factor: sc.Scalar = scale if scale is not None else _reciprocal_root(queries.shape[3])
    product = queries.dtype if backward and libraries.takes(queries.dtype) else _WIDE
    return _Attention(ctx, queries, keys, mask, causal, factor, product)


def _reciprocal_root(terms: Expr) -> sc.Scalar:
    """The scale of attention unless one is given."""
    if terms.is_const:
        return 1 / math.sqrt(terms.value)
    return sc.cast(sc.div(1.0, sc.unary("sqrt", sc.index(terms, torch.float64))), _WIDE)


def _is_empty(top: Node) -> Node:
    """Whether a row has no key that it may see."""
    return sc.eq(top, -math.inf)


@lowering(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    ctx: Lowering,
    queries: TensorValue,
    keys: TensorValue,
    values: TensorValue,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: MaybeTensor = None,
    scale: float | None = None,
) -> object:
    """The attention, and the logarithm of the sum of each row's exponentials. As the kernel's, both are 0 for a row
    without keys."""
    found = _attention(ctx, queries, keys, attn_mask, causal, scale)
    if found is None:
        return EXTERN
    scores = found.scores()
    whole = TensorValue("", _WIDE, found.shape)
    top = reduction(ctx, whole, (3,), "max", scores, _WIDE, True, hint="max")
    shift = ctx.each(_WIDE, lambda most: sc.where(_is_empty(most), 0.0, most), top)
    power = ctx.compute(found.shape, _WIDE, lambda at: sc.exp(sc.sub(scores(at), shift((*at[:3], ZERO)))), hint="exp")
    total = summed(ctx, power, (3,), power.load, _WIDE, True, "sum")
    count = ctx.each(_WIDE, lambda all_, most: sc.where(_is_empty(most), 1.0, all_), total, top)
    weights = ctx.compute(found.shape, _WIDE, lambda at: sc.div(power.load(at), count((*at[:3], ZERO))), hint="weights")
    rows = found.shape[:3]
    logs = ctx.compute(rows, _WIDE, lambda at: sc.add(shift((*at, ZERO)), sc.log(count((*at, ZERO)))), hint="logsumexp")
    return found.by_columns(weights, values), logs


@lowering(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    ctx: Lowering,
    grad: TensorValue,
    queries: TensorValue,
    keys: TensorValue,
    values: TensorValue,
    out: TensorValue,
    logsumexp: TensorValue,
    dropout: float,
    causal: bool,
    *,
    attn_mask: MaybeTensor = None,
    scale: float | None = None,
) -> object:
    """The gradients of queries, keys and values. The weights are made again from the scores."""
    found = _attention(ctx, queries, keys, attn_mask, causal, scale, backward=True)
    if found is None:
        return EXTERN
    scores, shape = found.scores(), found.shape
    weights = ctx.compute(shape, _WIDE, lambda at: sc.exp(sc.sub(scores(at), logsumexp.load(at[:3]))), hint="weights")
    slopes = found.rows_by_rows(grad, values)
    mean = summed(ctx, weights, (3,), ctx.each(_WIDE, sc.mul, weights, slopes), _WIDE, True, "mean")

    def slope(weight: Node, gain: Node, expected: Node) -> Node:
        return sc.mul(sc.mul(weight, sc.sub(gain, expected)), found.scale)

    change = ctx.compute(shape, found.product, ctx.each(_WIDE, slope, weights, slopes, mean), hint="slopes")
    narrow = ctx.compute(shape, found.product, weights.load, hint="narrow")
    return found.by_columns(change, keys), found.by_rows(change, queries), found.by_rows(narrow, grad)


# ---- losses of a difference ------------------------------------------------------------------------------------------


def _reduced_loss(ctx: Lowering, shape: Coords, body: Reader, reduction_code: int) -> TensorValue:
    """The loss of every element, or its mean or sum."""
    dtype = ctx.meta.dtype
    if reduction_code == _NONE:
        return ctx.compute(shape, dtype, body)
    losses = ctx.compute(shape, dtype, body, hint="loss")  # as eager, which makes it first
    read = ctx.reader(losses, sc.compute_dtype(dtype))
    finish = averaged if reduction_code == _MEAN else summed
    return finish(ctx, losses, tuple(range(len(shape))), read, dtype, False)


Step = Callable[[Node], Node]
"""A value after a step of a loss's formula: rounded to the result's dtype where eager stores it in between."""

Scaled = Callable[[float], Node]
"""k/n for a mean, else k."""


def _register_difference(
    name: str,
    loss: Callable[[Node, float, Step], Node],
    slope: Callable[[Node, Node, float, Scaled, Step], Node],
    rounds: bool,
) -> None:
    """A loss of the difference of two tensors, loss(x - target, width, step), and its derivative slope(x - target,
    grad, width, scaled, step). `rounds`: eager stores what is between two steps."""

    def step_of(dtype: torch.dtype) -> Step:
        return lambda value: sc.rounded(value, dtype) if rounds else value

    @lowering(getattr(aten, name).default)
    def forward(
        ctx: Lowering, x: TensorValue, target: TensorValue, reduction: int = _MEAN, width: float = 1.0
    ) -> TensorValue:
        dtype = ctx.meta.dtype
        step = step_of(dtype)
        body = ctx.each(sc.compute_dtype(dtype), lambda v, t: loss(step(sc.sub(v, t)), width, step), x, target)
        return _reduced_loss(ctx, broadcast_shape(target.shape, x.shape), body, reduction)

    @lowering(getattr(aten, f"{name}_backward").default)
    def backward(
        ctx: Lowering, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int, width: float = 1.0
    ) -> TensorValue:
        shape, dtype = ctx.out
        compute, step = sc.compute_dtype(dtype), step_of(dtype)
        count = volume(broadcast_shape(target.shape, x.shape))

        def scaled(value: float) -> Node:
            if reduction != _MEAN:
                return step(sc.const(value, compute))
            if count.is_const:
                return step(sc.const(value / count.value if count.value else torch.nan, compute))
            return step(sc.div(value, sc.index(count, compute)))

        def body(v: Node, t: Node, g: Node) -> Node:
            return slope(step(sc.sub(v, t)), g, width, scaled, step)

        return ctx.compute(shape, dtype, ctx.each(compute, body, x, target, grad))


def _smooth_l1(d: Node, beta: float, step: Step) -> Node:
    size, half = sc.absolute(d), sc.const(0.5, d.dtype)
    if beta == 0:
        return size
    curved = sc.div(sc.mul(sc.mul(half, size), size), beta)
    return sc.where(sc.lt(size, beta), curved, sc.sub(size, sc.mul(half, beta)))


def _smooth_l1_slope(d: Node, g: Node, beta: float, scaled: Scaled, step: Step) -> Node:
    norm = scaled(1.0)
    middle = sc.div(sc.mul(sc.mul(norm, d), g), beta)
    outside = sc.where(sc.ge(d, beta), sc.mul(norm, g), middle)
    return sc.where(sc.le(d, -beta), sc.mul(sc.neg(norm), g), outside)


def _huber(d: Node, delta: float, step: Step) -> Node:
    size, width, half = sc.absolute(d), step(sc.const(delta, d.dtype)), sc.const(0.5, d.dtype)
    linear = sc.mul(width, step(sc.sub(size, sc.mul(half, width))))
    return sc.where(sc.lt(size, width), sc.mul(sc.mul(half, size), size), linear)


def _huber_slope(d: Node, g: Node, delta: float, scaled: Scaled, step: Step) -> Node:
    norm, low, high = scaled(1.0), step(sc.const(-delta, d.dtype)), step(sc.const(delta, d.dtype))
    inside = sc.mul(step(sc.mul(norm, d)), g)
    above = sc.mul(step(sc.mul(norm, g)), high)
    below = sc.mul(step(sc.mul(sc.neg(norm), g)), high)
    return sc.where(sc.le(d, low), below, sc.where(sc.ge(d, high), above, inside))


def _square_slope(d: Node, g: Node, width: float, scaled: Scaled, step: Step) -> Node:
    return sc.mul(step(sc.mul(scaled(2.0), d)), g)


_register_difference("mse_loss", lambda d, width, step: sc.square(d), _square_slope, rounds=True)
_register_difference("smooth_l1_loss", _smooth_l1, _smooth_l1_slope, rounds=False)
_register_difference("huber_loss", _huber, _huber_slope, rounds=True)


# ---- binary cross-entropy --------------------------------------------------------------------------------------------


@lowering(aten.binary_cross_entropy_with_logits.default)
def bce_with_logits(
    ctx: Lowering,
    x: TensorValue,
    target: TensorValue,
    weight: MaybeTensor = None,
    pos_weight: MaybeTensor = None,
    reduction: int = _MEAN,
) -> object:
    if sc.compute_dtype(x.dtype) is not x.dtype:
        return EXTERN  # eager rounds between its composite's steps

    def body(coords: Coords) -> Node:
        v, t = ctx.operand(x, coords, x.dtype), ctx.operand(target, coords, x.dtype)
        softplus = sc.neg(log_sigmoid(v))
        if pos_weight is not None:
            excess = sc.sub(ctx.operand(pos_weight, coords, x.dtype), 1.0)
            softplus = sc.mul(sc.add(1.0, sc.mul(excess, t)), softplus)
        loss = sc.add(sc.mul(sc.sub(1.0, t), v), softplus)
        return loss if weight is None else sc.mul(loss, ctx.operand(weight, coords, x.dtype))

    return _reduced_loss(ctx, broadcast_shape(target.shape, x.shape), body, reduction)


@lowering(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: MaybeTensor = None,
    reduction: int = _MEAN,
) -> object:
    """grad·(x - t) / max((1 - x)·x, 1e-12). The forward is ATen's: it refuses inputs outside [0, 1]."""
    if sc.compute_dtype(x.dtype) is not x.dtype:
        return EXTERN
    count = volume(x.shape)

    def body(coords: Coords) -> Node:
        g, v, t = (ctx.operand(operand, coords, x.dtype) for operand in (grad, x, target))
        slope = sc.div(sc.mul(g, sc.sub(v, t)), sc.maximum(sc.mul(sc.sub(1.0, v), v), 1e-12))
        if weight is not None:
            slope = sc.mul(slope, ctx.operand(weight, coords, x.dtype))
        return sc.div(slope, sc.index(count, v.dtype)) if reduction == _MEAN else slope

    return ctx.compute(x.shape, x.dtype, body)


# ---- negative log likelihood -----------------------------------------------------------------------------------------


def _kept(ctx: Lowering, target: TensorValue, coords: Coords, ignore_index: int) -> Node:
    return sc.ne(ctx.operand(target, coords, torch.int64), sc.index(as_expr(ignore_index)))


@lowering(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    ctx: Lowering, x: TensorValue, target: TensorValue, weight: MaybeTensor, reduction: int, ignore_index: object
) -> object:
    """(loss, total weight). The classes are dimension 1 of `x`, or its only one."""
    if not isinstance(ignore_index, int) or target.is_empty or x.is_empty:
        return EXTERN
    class_dim = 0 if len(x.shape) == 1 else 1
    dtype, compute = x.dtype, sc.compute_dtype(x.dtype)
    classes = x.shape[class_dim]
    place = checked_index(ctx, target, classes, False, ignore_index, "Target is out of bounds.")

    def weight_at(coords: Coords) -> Node:
        if weight is None:
            return sc.const(1.0, compute)
        return sc.cast(weight.load_indirect((operand_var(0, weight.shape[0]),), (place(coords),)), compute)

    def loss_at(coords: Coords) -> Node:
        picked = x.load_indirect((*coords[:class_dim], operand_var(0, classes), *coords[class_dim:]), (place(coords),))
        return sc.mul(sc.neg(sc.cast(picked, compute)), weight_at(coords))

    def kept(body: Reader) -> Reader:
        return lambda coords: sc.where(_kept(ctx, target, coords, ignore_index), body(coords), 0.0)

    dims = tuple(range(len(target.shape)))
    if reduction == _NONE and dims:
        loss = ctx.compute(target.shape, dtype, kept(loss_at))
        return loss, ctx.compute((), dtype, lambda coords: sc.const(0.0, dtype))
    total = summed(ctx, target, dims, kept(loss_at), compute, False, "nll")
    total_weight = summed(ctx, target, dims, kept(weight_at), compute, False, "weights")
    rounded_weight = ctx.compute((), dtype, total_weight.load)
    mean = ctx.each(compute, sc.div, total, total_weight)
    return ctx.compute((), dtype, mean if reduction == _MEAN else total.load), rounded_weight


@lowering(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: MaybeTensor,
    reduction: int,
    ignore_index: object,
    total_weight: TensorValue,
) -> object:
    if not isinstance(ignore_index, int):
        return EXTERN
    class_dim = 0 if len(x.shape) == 1 else 1
    compute = sc.compute_dtype(x.dtype)

    def body(coords: Coords) -> Node:
        sample = replaced(coords, class_dim) if target.shape else ()
        here = sc.eq(ctx.operand(target, sample, torch.int64), sc.index(coords[class_dim]))
        value = sc.neg(ctx.operand(grad, sample if grad.shape else (), compute))
        if weight is not None:
            value = sc.mul(value, sc.cast(weight.load((coords[class_dim],)), compute))
        if reduction == _MEAN:
            value = sc.div(value, ctx.operand(total_weight, (), compute))
        return sc.where(sc.logical_and(here, _kept(ctx, target, sample, ignore_index)), value, 0.0)

    return ctx.compute(x.shape, x.dtype, body)
