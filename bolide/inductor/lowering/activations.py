"""Activation functions and their derivatives: eager's formulas in eager's order of operations, computed in float32
for the 16-bit floats."""

from __future__ import annotations

import math
from typing import Any

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.pointwise import elementwise
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import TensorValue
from bolide.inductor.lowering.views import sliced

aten = torch.ops.aten

_KAPPA = 0.044715
_SIXTH = torch.tensor(1.0 / 6.0, dtype=torch.float32).item()  # a float32 constant in eager also for float64
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def _c(value: float, like: Node) -> Node:
    return sc.const(value, like.dtype)


def _times(value: float, x: Node) -> Node:
    return sc.mul(x, _c(value, x))


def _plus(value: float, x: Node) -> Node:
    return sc.add(x, _c(value, x))


def _one_minus(x: Node) -> Node:
    return sc.sub(_c(1.0, x), x)


def _gt(x: Node, value: float) -> Node:
    return sc.compare("gt", x, _c(value, x))


def _le(x: Node, value: float) -> Node:
    return sc.compare("le", x, _c(value, x))


def _lt(x: Node, value: float) -> Node:
    return sc.compare("lt", x, _c(value, x))


def _ge(x: Node, value: float) -> Node:
    return sc.compare("ge", x, _c(value, x))


def _zero(x: Node) -> Node:
    return _c(0.0, x)


# ---- gelu, silu, mish ----------------------------------------------------------------------------------------------


def _gelu_inner(x: Node) -> Node:
    cube = sc.mul(sc.mul(x, x), x)
    return _times(_SQRT_2_OVER_PI, sc.fma(_c(_KAPPA, x), cube, x))


@lowering(aten.gelu.default)
def gelu(ctx: Lowering, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    def tanh(v: Node) -> Node:
        return sc.mul(_times(0.5, v), _plus(1.0, sc.unary("tanh", _gelu_inner(v))))

    def erf(v: Node) -> Node:
        return sc.mul(_times(0.5, v), _plus(1.0, sc.unary("erf", _times(math.sqrt(0.5), v))))

    return elementwise(ctx, tanh if approximate == "tanh" else erf, x)


@lowering(aten.gelu_backward.default)
def gelu_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    def tanh(g: Node, v: Node) -> Node:
        squared, t = sc.square(v), sc.unary("tanh", _gelu_inner(v))
        left, right = _times(0.5, v), _plus(1.0, t)
        inner = _times(_SQRT_2_OVER_PI, _plus(1.0, _times(3.0 * _KAPPA, squared)))
        return sc.mul(g, sc.add(_times(0.5, right), sc.mul(sc.mul(left, _one_minus(sc.square(t))), inner)))

    def erf(g: Node, v: Node) -> Node:
        cdf = _times(0.5, _plus(1.0, sc.unary("erf", _times(math.sqrt(0.5), v))))
        pdf = _times(1.0 / math.sqrt(2.0 * math.pi), sc.unary("exp", _times(-0.5, sc.square(v))))
        return sc.mul(g, sc.fma(v, pdf, cdf))

    return elementwise(ctx, tanh if approximate == "tanh" else erf, grad, x)


@lowering(aten.silu.default)
def silu(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda v: sc.div(v, _plus(1.0, sc.unary("exp", sc.neg(v)))), x)


@lowering(aten.silu_backward.default)
def silu_backward(ctx: Lowering, grad: TensorValue, x: TensorValue) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        s = sc.unary("sigmoid", v)
        return sc.mul(sc.mul(g, s), _plus(1.0, sc.mul(v, _one_minus(s))))

    return elementwise(ctx, body, grad, x)


@lowering(aten.mish.default)
def mish(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda v: sc.mul(v, sc.unary("tanh", sc.unary("log1p", sc.unary("exp", v)))), x)


@lowering(aten.mish_backward.default)
def mish_backward(ctx: Lowering, grad: TensorValue, x: TensorValue) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        t = sc.unary("tanh", sc.unary("log1p", sc.unary("exp", v)))
        return sc.mul(g, sc.add(t, sc.mul(sc.mul(v, sc.unary("sigmoid", v)), _one_minus(sc.square(t)))))

    return elementwise(ctx, body, grad, x)


# ---- saturating ----------------------------------------------------------------------------------------------------


@lowering(aten.tanh_backward.default)
def tanh_backward(ctx: Lowering, grad: TensorValue, out: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda g, y: sc.mul(g, sc.fma(sc.neg(y), y, _c(1.0, y))), grad, out)


@lowering(aten.sigmoid_backward.default)
def sigmoid_backward(ctx: Lowering, grad: TensorValue, out: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda g, y: sc.mul(sc.mul(g, _one_minus(y)), y), grad, out)


@lowering(aten.softplus.default)
def softplus(ctx: Lowering, x: TensorValue, beta: Any = 1, threshold: Any = 20) -> TensorValue:
    def body(v: Node) -> Node:
        scaled = _times(beta, v)
        return sc.where(_gt(scaled, threshold), v, sc.div(sc.unary("log1p", sc.unary("exp", scaled)), _c(beta, v)))

    return elementwise(ctx, body, x)


@lowering(aten.softplus_backward.default)
def softplus_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, beta: Any, threshold: Any) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        scaled = _times(beta, v)
        z = sc.unary("exp", scaled)
        return sc.where(_gt(scaled, threshold), g, sc.div(sc.mul(g, z), _plus(1.0, z)))

    return elementwise(ctx, body, grad, x)


@lowering(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(ctx: Lowering, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """(min(0, x) - log1p(z), z) with z = exp(-|x|)."""
    dtype, compute = x.dtype, sc.compute_dtype(x.dtype)

    def z_of(v: Node) -> Node:
        return sc.unary("exp", sc.neg(sc.unary("abs", v)))

    def body(v: Node) -> Node:
        return sc.sub(sc.minimum(_zero(v), v), sc.unary("log1p", z_of(v)))

    out = ctx.compute(x.shape, dtype, lambda coords: body(sc.cast(x.load(coords), compute)))
    buffer_shape = ctx.shape_of(ctx.meta[1])  # empty where eager needs none
    buffer = ctx.compute(buffer_shape, dtype, lambda coords: z_of(sc.cast(x.load(coords), compute)))
    return out, buffer


@lowering(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, buffer: TensorValue) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        z = sc.unary("exp", sc.neg(sc.unary("abs", v)))
        negative = _lt(v, 0.0)
        most = sc.where(negative, _c(1.0, v), _zero(v))
        sign = sc.where(negative, _c(1.0, v), _c(-1.0, v))
        return sc.mul(g, sc.sub(most, sc.mul(sign, sc.div(z, _plus(1.0, z)))))

    return elementwise(ctx, body, grad, x)


# ---- piecewise -----------------------------------------------------------------------------------------------------


@lowering(aten.threshold.default)
def threshold(ctx: Lowering, x: TensorValue, threshold: Any, value: Any) -> TensorValue:
    return elementwise(ctx, lambda v: sc.where(_le(v, threshold), _c(value, v), v), x)


@lowering(aten.threshold_backward.default)
def threshold_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, threshold: Any) -> TensorValue:
    return elementwise(ctx, lambda g, v: sc.where(_le(v, threshold), _c(0, g), g), grad, x)


@lowering(aten.elu.default)
def elu(ctx: Lowering, x: TensorValue, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> TensorValue:
    def body(v: Node) -> Node:
        curved = _times(float(alpha) * float(scale), sc.unary("expm1", _times(input_scale, v)))
        return sc.where(_lt(v, 0.0), curved, _times(scale, v))

    return elementwise(ctx, body, x)


@lowering(aten.elu_backward.default)
def elu_backward(
    ctx: Lowering, grad: TensorValue, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: TensorValue
) -> TensorValue:
    negative = float(alpha) * float(scale)

    def body(g: Node, v: Node) -> Node:
        if is_result:
            curved = sc.mul(_times(input_scale, g), _plus(negative, v))
        else:
            curved = sc.mul(_times(float(input_scale) * negative, g), sc.unary("exp", _times(input_scale, v)))
        return sc.where(_le(v, 0.0), curved, _times(scale, g))

    return elementwise(ctx, body, grad, x)


@lowering(aten.leaky_relu.default)
def leaky_relu(ctx: Lowering, x: TensorValue, negative_slope: Any = 0.01) -> TensorValue:
    return elementwise(ctx, lambda v: sc.where(_gt(v, 0.0), v, _times(negative_slope, v)), x)


@lowering(aten.leaky_relu_backward.default)
def leaky_relu_backward(
    ctx: Lowering, grad: TensorValue, x: TensorValue, negative_slope: Any, self_is_result: bool
) -> TensorValue:
    return elementwise(ctx, lambda g, v: sc.where(_gt(v, 0.0), g, _times(negative_slope, g)), grad, x)


@lowering(aten._prelu_kernel.default)
def prelu(ctx: Lowering, x: TensorValue, weight: TensorValue) -> Any:
    if not sc.is_float(x.dtype):
        return EXTERN
    return elementwise(ctx, lambda v, w: sc.where(_gt(v, 0.0), v, sc.mul(w, v)), x, weight)


@lowering(aten._prelu_kernel_backward.default)
def prelu_backward(
    ctx: Lowering, grad: TensorValue, x: TensorValue, weight: TensorValue
) -> tuple[TensorValue, TensorValue]:
    compute = sc.compute_dtype(x.dtype)

    def part(other: TensorValue, is_input: bool) -> TensorValue:
        def body(coords: Any) -> Node:
            v, g, o = (ctx.operand(t, coords, compute) for t in (x, grad, other))
            product = sc.mul(o, g)
            return sc.where(_gt(v, 0.0), g if is_input else _zero(v), product)

        return ctx.compute(x.shape, x.dtype, body)

    return part(weight, True), part(x, False)


@lowering(aten.hardtanh.default)
def hardtanh(ctx: Lowering, x: TensorValue, min_val: Any = -1, max_val: Any = 1) -> TensorValue:
    return elementwise(ctx, lambda v: sc.minimum(_c(max_val, v), sc.maximum(_c(min_val, v), v)), x)


@lowering(aten.hardtanh_backward.default)
def hardtanh_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, min_val: Any, max_val: Any) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        return sc.where(sc.logical_or(_le(v, min_val), _ge(v, max_val)), _zero(g), g)

    return elementwise(ctx, body, grad, x)


def _relu6(x: Node) -> Node:
    return sc.minimum(sc.maximum(x, _zero(x)), _c(6.0, x))


@lowering(aten.hardsigmoid.default)
def hardsigmoid(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda v: sc.div(_relu6(_plus(3.0, v)), _c(6.0, v)), x)


@lowering(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(ctx: Lowering, grad: TensorValue, x: TensorValue) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        inside = sc.logical_and(_gt(v, -3.0), _lt(v, 3.0))
        return sc.where(inside, _times(_SIXTH, g), _zero(g))

    return elementwise(ctx, body, grad, x)


@lowering(aten.hardswish.default)
def hardswish(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda v: sc.div(sc.mul(v, _relu6(_plus(3.0, v))), _c(6.0, v)), x)


@lowering(aten.hardswish_backward.default)
def hardswish_backward(ctx: Lowering, grad: TensorValue, x: TensorValue) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        middle = sc.mul(g, _plus(0.5, sc.div(v, _c(3.0, v))))
        return sc.where(_le(v, -3.0), _zero(g), sc.where(_lt(v, 3.0), middle, g))

    return elementwise(ctx, body, grad, x)


@lowering(aten.softshrink.default)
def softshrink(ctx: Lowering, x: TensorValue, lambd: Any = 0.5) -> TensorValue:
    def body(v: Node) -> Node:
        low = sc.where(_lt(v, -lambd), _plus(lambd, v), _times(0.0, v))
        return sc.where(_gt(v, lambd), sc.sub(v, _c(lambd, v)), low)

    return elementwise(ctx, body, x)


@lowering(aten.hardshrink.default)
def hardshrink(ctx: Lowering, x: TensorValue, lambd: Any = 0.5) -> TensorValue:
    def body(v: Node) -> Node:
        return sc.where(sc.logical_and(_ge(v, -lambd), _le(v, lambd)), _zero(v), v)

    return elementwise(ctx, body, x)


@lowering(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def shrink_backward(ctx: Lowering, grad: TensorValue, x: TensorValue, lambd: Any) -> TensorValue:
    def body(g: Node, v: Node) -> Node:
        return sc.where(sc.logical_and(_ge(v, -lambd), _le(v, lambd)), _zero(g), g)

    return elementwise(ctx, body, grad, x)


@lowering(aten.glu.default)
def glu(ctx: Lowering, x: TensorValue, dim: int = -1) -> TensorValue:
    length = ctx.out[0][dim]
    left, right = sliced(x, dim, length * 0, length), sliced(x, dim, length, length)
    return elementwise(ctx, lambda a, b: sc.mul(a, sc.unary("sigmoid", b)), left, right)
