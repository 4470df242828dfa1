"""Activation functions and their derivatives: eager's formulas in eager's order of operations, computed in float32
for the 16-bit floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.formulas import arithmetic_formula, elementwise, formula
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import Coords, TensorValue, replaced
from bolide.inductor.lowering.views import sliced
from bolide.symbolic import Expr
from bolide.tracing.traits import ROUNDS_SHRINKING

aten = torch.ops.aten

_KAPPA = 0.044715
_SIXTH = torch.tensor(1.0 / 6.0, dtype=torch.float32).item()  # a float32 constant in eager also for float64
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


# ---- gelu, silu, mish ----------------------------------------------------------------------------------------------


def _gelu_tanh(x: Node) -> Node:
    cube = sc.mul(sc.mul(x, x), x)
    return sc.tanh(sc.mul(sc.fma(_KAPPA, cube, x), _SQRT_2_OVER_PI))


def _gelu_erf(x: Node) -> Node:
    """1 + erf(x / √2): `erf` by itself is exact near 0 as well, which is lost when 1 is added."""
    return sc.unary("erf_plus_1", sc.mul(x, math.sqrt(0.5)))


@formula(aten.gelu.default)
def gelu(x: Node, *, approximate: str = "none") -> Node:
    return sc.mul(sc.mul(x, 0.5), sc.add(_gelu_tanh(x), 1.0) if approximate == "tanh" else _gelu_erf(x))


@formula(aten.gelu_backward.default)
def gelu_backward(g: Node, x: Node, *, approximate: str = "none") -> Node:
    if approximate == "tanh":
        t = _gelu_tanh(x)
        inner = sc.mul(sc.add(sc.mul(sc.square(x), 3.0 * _KAPPA), 1.0), _SQRT_2_OVER_PI)
        along = sc.mul(sc.mul(sc.mul(x, 0.5), sc.sub(1.0, sc.square(t))), inner)
        return sc.mul(g, sc.add(sc.mul(sc.add(t, 1.0), 0.5), along))
    density = sc.mul(sc.exp(sc.mul(sc.square(x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return sc.mul(g, sc.fma(x, density, sc.mul(_gelu_erf(x), 0.5)))


@formula(aten.silu_backward.default)
def silu_backward(g: Node, x: Node) -> Node:
    s = sc.sigmoid(x)
    return sc.mul(sc.mul(g, s), sc.add(sc.mul(x, sc.sub(1.0, s)), 1.0))


def _mish_tanh(x: Node) -> Node:
    return sc.tanh(sc.log1p(sc.exp(x)))


@formula(aten.mish_backward.default)
def mish_backward(g: Node, x: Node) -> Node:
    t = _mish_tanh(x)
    return sc.mul(g, sc.add(t, sc.mul(sc.mul(x, sc.sigmoid(x)), sc.sub(1.0, sc.square(t)))))


# ---- saturating ----------------------------------------------------------------------------------------------------


@formula(aten.softplus.default)
def softplus(x: Node, beta: sc.Number = 1, threshold: sc.Number = 20) -> Node:
    scaled = sc.mul(x, beta)
    return sc.where(sc.gt(scaled, threshold), x, sc.div(sc.log1p(sc.exp(scaled)), beta))


@formula(aten.softplus_backward.default)
def softplus_backward(g: Node, x: Node, beta: sc.Number, threshold: sc.Number) -> Node:
    scaled = sc.mul(x, beta)
    z = sc.exp(scaled)
    return sc.where(sc.gt(scaled, threshold), g, sc.div(sc.mul(g, z), sc.add(z, 1.0)))


def log_sigmoid(x: Node) -> Node:
    return sc.sub(sc.minimum(0.0, x), sc.log1p(sc.exp_of_minus_abs(x)))


@lowering(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(ctx: Lowering, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """(min(0, x) - log1p(z), z) with z = exp(-|x|); the second is empty where eager needs none."""
    out, buffer = (
        ctx.compute(ctx.shape_of(meta), x.dtype, ctx.each(sc.compute_dtype(x.dtype), body, x))
        for meta, body in zip(ctx.metas, (log_sigmoid, sc.exp_of_minus_abs))
    )
    return out, buffer


@formula(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(g: Node, x: Node, buffer: Node) -> Node:
    z, negative = sc.exp_of_minus_abs(x), sc.lt(x, 0.0)
    one = sc.const(1.0, x.dtype)
    most, sign = sc.where(negative, one, 0.0), sc.where(negative, one, -1.0)
    return sc.mul(g, sc.sub(most, sc.mul(sign, sc.div(z, sc.add(z, 1.0)))))


# ---- piecewise -----------------------------------------------------------------------------------------------------


@formula(aten.elu.default)
def elu(x: Node, alpha: sc.Number = 1, scale: sc.Number = 1, input_scale: sc.Number = 1) -> Node:
    curved = sc.mul(sc.unary("expm1", sc.mul(x, input_scale)), float(alpha) * float(scale))
    return sc.where(sc.lt(x, 0.0), curved, sc.mul(x, scale))


@formula(aten.elu_backward.default)
def elu_backward(g: Node, alpha: sc.Number, scale: sc.Number, input_scale: sc.Number, is_result: bool, x: Node) -> Node:
    negative = float(alpha) * float(scale)
    if is_result:
        curved = sc.mul(sc.mul(g, input_scale), sc.add(x, negative))
    else:
        curved = sc.mul(sc.mul(g, float(input_scale) * negative), sc.exp(sc.mul(x, input_scale)))
    return sc.where(sc.le(x, 0.0), curved, sc.mul(g, scale))


@formula(aten.celu.default)
def celu(x: Node, alpha: float = 1.0) -> Node:
    curved = sc.mul(alpha, sc.unary("expm1", sc.mul(x, 1.0 / alpha)))
    return sc.where(sc.lt(x, 0.0), curved, x)


@lowering(aten._prelu_kernel.default)
def prelu(ctx: Lowering, x: TensorValue, weight: TensorValue) -> object:
    if not sc.is_float(x.dtype):
        return EXTERN
    return elementwise(ctx, lambda v, w: sc.where(sc.gt(v, 0.0), v, sc.mul(w, v)), x, weight)


@lowering(aten._prelu_kernel_backward.default)
def prelu_backward(
    ctx: Lowering, grad: TensorValue, x: TensorValue, weight: TensorValue
) -> tuple[TensorValue, TensorValue]:
    compute = sc.compute_dtype(x.dtype)
    by_x = ctx.each(compute, lambda v, g, w: sc.where(sc.gt(v, 0.0), g, sc.mul(w, g)), x, grad, weight)
    by_weight = ctx.each(compute, lambda v, g: sc.where(sc.gt(v, 0.0), 0.0, sc.mul(v, g)), x, grad)
    return ctx.compute(x.shape, x.dtype, by_x), ctx.compute(x.shape, x.dtype, by_weight)


def _relu6_of_3_more(x: Node) -> Node:
    return sc.minimum(sc.maximum(sc.add(x, 3.0), 0.0), 6.0)


@formula(aten.hardswish_backward.default)
def hardswish_backward(g: Node, x: Node) -> Node:
    middle = sc.mul(g, sc.add(sc.div(x, 3.0), 0.5))
    return sc.where(sc.le(x, -3.0), 0.0, sc.where(sc.lt(x, 3.0), middle, g))


@(arithmetic_formula if ROUNDS_SHRINKING else formula)(aten.softshrink.default)
def softshrink(x: Node, lambd: Node | float = 0.5) -> Node:
    low = sc.where(sc.gt(sc.neg(x), lambd), sc.add(x, lambd), sc.mul(x, 0.0))
    return sc.where(sc.gt(x, lambd), sc.sub(x, lambd), low)


@arithmetic_formula(aten.hardshrink.default)
def hardshrink(x: Node, lambd: Node | float = 0.5) -> Node:
    return shrink_backward(x, x, lambd)


@arithmetic_formula(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def shrink_backward(g: Node, x: Node, lambd: Node | float) -> Node:
    return sc.where(sc.le(sc.absolute(x), lambd), 0.0, g)


#: those that are a single expression
_FORMULAS: dict[str, Callable[..., Node]] = {
    "silu": lambda x: sc.quotient(x, sc.add(sc.exp(sc.neg(x)), 1.0)),
    "mish": lambda x: sc.mul(x, _mish_tanh(x)),
    "tanh_backward": lambda g, out: sc.mul(g, sc.fma(sc.neg(out), out, 1.0)),
    "sigmoid_backward": lambda g, out: sc.mul(sc.mul(g, sc.sub(1.0, out)), out),
    "threshold": lambda x, threshold, value: sc.where(sc.le(x, threshold), value, x),
    "threshold_backward": lambda g, x, threshold: sc.where(sc.le(x, threshold), 0, g),
    "leaky_relu": lambda x, negative_slope=0.01: sc.where(sc.gt(x, 0.0), x, sc.mul(x, negative_slope)),
    "leaky_relu_backward": lambda g, x, slope, self_is_result: sc.where(sc.gt(x, 0.0), g, sc.mul(g, slope)),
    "hardtanh": lambda x, min_val=-1, max_val=1: sc.minimum(max_val, sc.maximum(min_val, x)),
    "hardtanh_backward": lambda g, x, low, high: sc.where(sc.logical_or(sc.le(x, low), sc.ge(x, high)), 0.0, g),
    "hardsigmoid": lambda x: sc.div(_relu6_of_3_more(x), 6.0),
    "hardsigmoid_backward": lambda g, x: sc.where(
        sc.logical_and(sc.gt(x, -3.0), sc.lt(x, 3.0)), sc.mul(g, _SIXTH), 0.0
    ),
    "hardswish": lambda x: sc.div(sc.mul(x, _relu6_of_3_more(x)), 6.0),
}

for _op, _body in _FORMULAS.items():
    formula(getattr(aten, _op).default)(_body)


# ---- gated ---------------------------------------------------------------------------------------------------------


@lowering(aten.glu.default)
def glu(ctx: Lowering, x: TensorValue, dim: int = -1) -> TensorValue:
    length = ctx.out[0][dim]
    left, right = sliced(x, dim, length * 0, length), sliced(x, dim, length, length)
    return elementwise(ctx, lambda a, b: sc.mul(a, sc.sigmoid(b)), left, right)


@lowering(aten.glu_backward.default)
def glu_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, dim: int) -> TensorValue:
    """grad·sigmoid(b) for the first half a, and grad·a·sigmoid(b)·(1 - sigmoid(b)) for the second half b."""
    shape, dtype = ctx.out
    compute = sc.compute_dtype(dtype)
    dim %= len(shape)
    length = grad.shape[dim]
    left, right = sliced(x, dim, Expr.const(0), length), sliced(x, dim, length, length)

    def body(coords: Coords) -> Node:
        half = replaced(coords, dim, coords[dim] % length)
        g, a, b = (sc.cast(t.load(half), compute) for t in (grad, left, right))
        s = sc.sigmoid(b)
        slope = sc.mul(sc.mul(sc.mul(sc.sub(1.0, s), s), g), a)
        return sc.where(sc.lt(sc.index(coords[dim]), sc.index(length)), sc.mul(s, g), slope)

    return ctx.compute(shape, dtype, body)
