"""Elementwise ops: arithmetic, comparison, selection, elementary functions, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.scalar_ops import ELEMENTARY_OPS
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.formulas import (
    arithmetic,
    arithmetic_formula,
    combined,
    elementwise,
    formula,
    promoted,
    rounded_reader,
    truth,
)
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import Coords, NumberOrSize, Operand, TensorValue, replaced
from bolide.symbolic import Expr

aten = torch.ops.aten

Binary = Callable[[sc.Scalar, sc.Scalar], Node]

# ---- arithmetic -----------------------------------------------------------------------------------------------------


@lowering(aten.add.Tensor, aten.add.Scalar, takes_sizes=True)
def add(ctx: Lowering, a: Operand, b: Operand, alpha: NumberOrSize = 1, sign: int = 1) -> TensorValue:
    """a + b·alpha·sign."""
    if alpha == 1:
        return arithmetic(ctx, sc.add if sign > 0 else sc.sub, a, b)
    if type(alpha) is Expr or not sc.is_float(ctx.meta.dtype):
        return arithmetic(ctx, lambda x, y, k: sc.add(x, sc.mul(y, k)), a, b, alpha * sign)
    return arithmetic(ctx, lambda x, y, k: sc.fma(y, k, x), a, b, alpha * sign)


lowering(aten.sub.Tensor, aten.sub.Scalar, takes_sizes=True)(partial(add, sign=-1))
lowering(aten.rsub.Tensor, aten.rsub.Scalar, takes_sizes=True)(
    lambda ctx, a, b, alpha=1: add(ctx, b, a, alpha, sign=-1)
)


def _is_scalar(x: Operand) -> bool:
    """A number, a size or a 0-dim tensor."""
    return not isinstance(x, TensorValue) or not x.shape


def _keeps_scalar(ctx: Lowering, body: Binary, a: Operand, b: Operand) -> TensorValue:
    """Products and quotients with a scalar keep it in the computation type; every other operand is rounded to the
    common dtype first."""
    dtype = ctx.meta.dtype
    right = ctx.reader(b, sc.compute_dtype(dtype)) if _is_scalar(b) else rounded_reader(ctx, b, dtype)
    return combined(ctx, body, rounded_reader(ctx, a, dtype), right)


@lowering(aten.mul.Tensor, aten.mul.Scalar, takes_sizes=True)
def mul(ctx: Lowering, a: Operand, b: Operand) -> TensorValue:
    return _keeps_scalar(ctx, sc.mul, *((b, a) if _is_scalar(a) and not _is_scalar(b) else (a, b)))


@lowering(aten.div.Tensor, aten.div.Scalar, takes_sizes=True)
def div(ctx: Lowering, a: Operand, b: Operand) -> TensorValue:
    return _keeps_scalar(ctx, sc.div, a, b)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode, takes_sizes=True)
def div_mode(ctx: Lowering, a: Operand, b: Operand, rounding_mode: str | None = None) -> object:
    dtype = ctx.meta.dtype
    if rounding_mode is None:
        return div(ctx, a, b)
    if not sc.is_float(dtype):
        op = "floordiv" if rounding_mode == "floor" else "truncdiv"
        return arithmetic(ctx, partial(sc.binary, op), a, b) if _is_nonzero(b) else EXTERN
    steps = sc.compute_dtype(dtype) if _is_scalar(b) else dtype
    if rounding_mode == "trunc":
        return _keeps_scalar(ctx, lambda x, y: sc.unary("trunc", sc.rounded(sc.div(x, y), steps)), a, b)
    return _keeps_scalar(ctx, lambda x, y: _floor_divide(x, y, steps), a, b)


lowering(aten.floor_divide.default, aten.floor_divide.Scalar, takes_sizes=True)(
    partial(div_mode, rounding_mode="floor")
)


def _is_nonzero(divisor: Operand) -> bool:
    """An integer divisor known not to be 0: eager raises for 0, kernels cannot."""
    return isinstance(divisor, int) and divisor != 0


def _rest(x: sc.Scalar, y: sc.Scalar, step: Callable[[Node], Node] = lambda value: value) -> tuple[Node, Node]:
    """The rest of C's division, after a `step`, and whether it is not 0 and its sign is not the divisor's."""
    rest = step(sc.binary("fmod", x, y))
    return rest, sc.logical_and(sc.ne(rest, 0.0), sc.logical_xor(sc.lt(y, 0.0), sc.lt(rest, 0.0)))


def _floor_divide(x: sc.Scalar, y: sc.Scalar, dtype: torch.dtype) -> Node:
    """Python's floor division, as c10::div_floor_floating: exact quotients are not rounded twice. Each step is in
    `dtype`."""

    def step(value: Node) -> Node:
        return sc.rounded(value, dtype)

    rest, differs = _rest(x, y, step)
    quotient = step(sc.div(step(sc.sub(x, rest)), y))
    quotient = sc.where(differs, step(sc.sub(quotient, 1.0)), quotient)
    floor = sc.unary("floor", quotient)
    up = sc.gt(step(sc.sub(quotient, floor)), 0.5)
    exact = sc.where(up, step(sc.add(floor, 1.0)), floor)
    result = sc.where(sc.ne(quotient, 0.0), exact, sc.binary("copysign", 0.0, sc.div(x, y)))
    return sc.where(sc.eq(y, 0.0), sc.div(x, y), result)


@lowering(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, takes_sizes=True)
def remainder(ctx: Lowering, a: Operand, b: Operand) -> object:
    if not sc.is_float(ctx.meta.dtype):
        return arithmetic(ctx, sc.mod, a, b) if _is_nonzero(b) else EXTERN

    def body(x: Node, y: Node) -> Node:
        rest, differs = _rest(x, y)
        return sc.where(differs, sc.add(rest, y), rest)

    return arithmetic(ctx, body, a, b)


@lowering(aten.fmod.Tensor, aten.fmod.Scalar, takes_sizes=True)
def fmod(ctx: Lowering, a: Operand, b: Operand) -> object:
    if not sc.is_float(ctx.meta.dtype) and not _is_nonzero(b):
        return EXTERN
    return arithmetic(ctx, partial(sc.binary, "fmod"), a, b)


@formula(aten.addcmul.default, takes_sizes=True)
def addcmul(x: Node, a: Node, b: Node, value: sc.Scalar = 1) -> Node:
    scaled = sc.mul(value, a)
    return sc.fma(scaled, b, x) if sc.is_float(x.dtype) else sc.add(x, sc.mul(scaled, b))


@formula(aten.addcdiv.default, takes_sizes=True)
def addcdiv(x: Node, a: Node, b: Node, value: sc.Scalar = 1) -> Node:
    return sc.add(x, sc.div(sc.mul(value, a), b))


@lowering(aten.lerp.Tensor, aten.lerp.Scalar, takes_sizes=True)
def lerp(ctx: Lowering, start: Operand, end: Operand, weight: Operand) -> TensorValue:
    def body(x: Node, y: Node, w: Node) -> Node:
        span = sc.sub(y, x)
        near, far = sc.fma(w, span, x), sc.fma(sc.neg(span), sc.sub(1.0, w), y)
        if w.op == "const":
            return near if abs(w.arg) < 0.5 else far
        return sc.where(sc.lt(sc.absolute(w), 0.5), near, far)

    return elementwise(ctx, body, start, end, weight)


#: powers by other means; those for integers as well before the others
_POWERS: dict[float, Callable[[Node, Callable[[Node], Node]], Node]] = {
    1: lambda v, step: v,
    2: lambda v, step: step(sc.square(v)),
    3: lambda v, step: sc.mul(step(sc.square(v)), v),
    0.5: lambda v, step: sc.sqrt(v),
    -0.5: lambda v, step: sc.unary("rsqrt", v),
    -1: lambda v, step: sc.unary("recip", v),
    -2: lambda v, step: sc.unary("recip", step(sc.square(v))),
}


@lowering(aten.pow.Tensor_Scalar, takes_sizes=True)
def pow_scalar(ctx: Lowering, x: TensorValue, exponent: NumberOrSize) -> object:
    shape, dtype = ctx.out
    if isinstance(exponent, Expr):
        return EXTERN
    if exponent == 0:
        return ctx.compute(shape, dtype, lambda coords: sc.const(1, dtype))
    if not sc.is_float(dtype) and exponent not in (1, 2, 3):
        return EXTERN
    power = _POWERS.get(exponent)
    if power is None:
        return arithmetic(ctx, partial(sc.binary, "pow"), x, exponent)
    return elementwise(ctx, lambda v: power(v, lambda value: sc.rounded(value, dtype)), x)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar, takes_sizes=True)
def pow_tensor(ctx: Lowering, base: Operand, exponent: Operand) -> object:
    if not sc.is_float(ctx.meta.dtype) or isinstance(base, Expr):
        return EXTERN
    return arithmetic(ctx, partial(sc.binary, "pow"), base, exponent)


for _op, _overloads in {
    "atan2": [aten.atan2.default],
    "copysign": [aten.copysign.Tensor, aten.copysign.Scalar],
    "hypot": [aten.hypot.default],
    "fmin": [aten.fmin.default],
    "fmax": [aten.fmax.default],
}.items():
    arithmetic_formula(*_overloads, takes_sizes=True)(partial(sc.binary, _op))

arithmetic_formula(aten.maximum.default, aten.clamp_min.Tensor)(sc.maximum)
arithmetic_formula(aten.minimum.default, aten.clamp_max.Tensor)(sc.minimum)


@lowering(aten.clamp.default, aten.clamp.Tensor, takes_sizes=True)
def clamp(ctx: Lowering, x: TensorValue, min: Operand | None = None, max: Operand | None = None) -> TensorValue:
    bounds = [bound for bound in (min, max) if bound is not None]
    shape, dtype = ctx.out
    if any(isinstance(bound, float) and math.isnan(bound) for bound in bounds):  # makes everything NaN
        return ctx.compute(shape, dtype, lambda coords: sc.const(math.nan, sc.compute_dtype(dtype)))

    def body(value: Node, *limits: Node) -> Node:
        if min is not None:
            value = sc.maximum(limits[0], value)  # of equal ones, -0.0 and 0.0, the second
        return sc.minimum(limits[-1], value) if max is not None else value

    return arithmetic(ctx, body, x, *bounds)


lowering(aten.clamp_min.default, takes_sizes=True)(clamp)
lowering(aten.clamp_max.default, takes_sizes=True)(lambda ctx, x, max: clamp(ctx, x, max=max))


# ---- functions of one number ----------------------------------------------------------------------------------------


def _rounding(op: str, v: Node) -> Node:
    """To an integer; integers are some."""
    return sc.unary(op, v) if sc.is_float(v.dtype) else v


_UNARY: dict[str, Callable[[Node], Node]] = {
    **{op: partial(sc.unary, op) for op in ELEMENTARY_OPS},
    **{op: partial(_rounding, op) for op in ("floor", "ceil", "round", "trunc")},
    "reciprocal": partial(sc.unary, "recip"),
    "neg": sc.neg,
    "square": sc.square,
    "frac": lambda v: sc.sub(v, sc.unary("trunc", v)),
    "abs": lambda v: v if v.dtype in (torch.bool, torch.uint8) else sc.absolute(v),
    "sign": lambda v: v if v.dtype is torch.bool else sc.unary("sign", v),
    "sgn": lambda v: v if v.dtype is torch.bool else sc.unary("sign", v),
    "relu": lambda v: sc.maximum(0, v),
    "bitwise_not": partial(sc.unary, "not"),
}

for _op, _body in _UNARY.items():
    formula(getattr(aten, _op).default)(_body)


# ---- rarer functions ----------------------------------------------------------------------------------------------


@arithmetic_formula(aten.logaddexp.default)
def logaddexp(x: Node, y: Node) -> Node:
    same_infinity = sc.logical_and(sc.isinf(x), sc.eq(x, y))
    return sc.where(same_infinity, x, sc.add(sc.maximum(x, y), sc.log1p(sc.exp_of_minus_abs(sc.sub(x, y)))))


def _times_log(log: str, x: Node, y: Node) -> Node:
    """x * log(y), 0 where x is 0 and y is not NaN."""
    product = sc.where(sc.eq(x, 0.0), 0.0, sc.mul(x, sc.unary(log, y)))
    return sc.where(sc.isnan(y), math.nan, product)


arithmetic_formula(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)(partial(_times_log, "log"))
arithmetic_formula(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)(
    partial(_times_log, "log1p")
)


@formula(aten.special_entr.default)
def special_entr(x: Node) -> Node:
    zero = sc.const(0.0, x.dtype)
    other = sc.where(sc.eq(x, zero), zero, -math.inf)
    return sc.where(sc.isnan(x), x, sc.where(sc.gt(x, zero), sc.mul(sc.neg(x), sc.log(x)), other))


@formula(aten.logit.default)
def logit(x: Node, eps: float | None = None) -> Node:
    if eps is not None:
        low = sc.const(eps, x.dtype)
        high = sc.sub(1.0, low)
        x = sc.where(sc.lt(x, low), low, sc.where(sc.gt(x, high), high, x))
    return sc.log(sc.div(x, sc.sub(1.0, x)))


@formula(aten.sinc.default)
def sinc(x: Node) -> Node:
    product = sc.mul(x, math.pi)
    return sc.where(sc.eq(x, 0.0), 1.0, sc.div(sc.unary("sin", product), product))


@lowering(aten.heaviside.default)
def heaviside(ctx: Lowering, x: TensorValue, values: TensorValue) -> object:
    def body(v: Node, at_zero: Node) -> Node:
        return sc.where(sc.eq(v, 0), at_zero, sc.cast(sc.gt(v, 0), v.dtype))

    return EXTERN if x.dtype is torch.bool else elementwise(ctx, body, x, values)


@lowering(aten.linalg_cross.default)
def linalg_cross(ctx: Lowering, a: TensorValue, b: TensorValue, *, dim: int = -1) -> TensorValue:
    shape, dtype = ctx.out
    compute, dim = sc.compute_dtype(dtype), dim % len(shape)

    def body(coords: Coords) -> Node:
        def element(x: TensorValue, ahead: int) -> Node:
            return ctx.operand(x, replaced(coords, dim, (coords[dim] + ahead) % 3), compute)

        left, right = sc.mul(element(a, 1), element(b, 2)), sc.mul(element(a, 2), element(b, 1))
        return sc.sub(sc.rounded(left, dtype), sc.rounded(right, dtype))

    return ctx.compute(shape, dtype, body)


# ---- comparison and logic -------------------------------------------------------------------------------------------


def _register_compare(op: str) -> None:
    packet = getattr(aten, op)

    @lowering(packet.Tensor, packet.Scalar, takes_sizes=True)
    def lower(ctx: Lowering, a: Operand, b: Operand) -> TensorValue:
        common = promoted(a, b)
        body = partial(_compare_bools if common is torch.bool else sc.compare, op)
        return combined(ctx, body, rounded_reader(ctx, a, common), rounded_reader(ctx, b, common))


def _compare_bools(op: str, a: Node, b: Node) -> Node:
    if op in ("eq", "ne"):
        differ = sc.logical_xor(a, b)
        return differ if op == "ne" else sc.logical_not(differ)
    if op in ("gt", "ge"):
        a, b = b, a
    return sc.logical_and(sc.logical_not(a), b) if op in ("lt", "gt") else sc.logical_or(sc.logical_not(a), b)


for _op in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register_compare(_op)


def _register_logical(combine: Callable[[Node, Node], Node], overload: object) -> None:
    @lowering(overload)
    def lower(ctx: Lowering, a: TensorValue, b: TensorValue) -> TensorValue:
        return combined(ctx, combine, truth(ctx, a), truth(ctx, b))


def _register_bitwise(op: str, combine: Callable[[Node, Node], Node], packet: str, *names: str) -> None:
    @lowering(*(getattr(getattr(aten, packet), name) for name in names), takes_sizes=True)
    def lower(ctx: Lowering, a: Operand, b: Operand) -> object:
        dtype = ctx.meta.dtype
        if sc.is_float(dtype):
            return EXTERN
        return elementwise(ctx, combine if dtype is torch.bool else partial(sc.binary, op), a, b)


_LOGICAL: dict[str, Callable[[Node, Node], Node]] = {
    "and": sc.logical_and,
    "or": sc.logical_or,
    "xor": sc.logical_xor,
}
for _op, _combine in _LOGICAL.items():
    _register_logical(_combine, getattr(aten, f"logical_{_op}").default)
    _register_bitwise(_op, _combine, f"bitwise_{_op}", "Tensor", "Scalar", "Scalar_Tensor")
for _op, _name, _long_name in (
    ("shl", "__lshift__", "bitwise_left_shift"),
    ("shr", "__rshift__", "bitwise_right_shift"),
):
    _register_bitwise(_op, partial(sc.binary, _op), _name, "Tensor", "Scalar")
    _register_bitwise(_op, partial(sc.binary, _op), _long_name, "Tensor", "Tensor_Scalar")


@lowering(aten.logical_not.default)
def logical_not(ctx: Lowering, x: TensorValue) -> TensorValue:
    return combined(ctx, sc.logical_not, truth(ctx, x))


def _register_predicate(op: str, body: Callable[[Node], Node]) -> None:
    @lowering(getattr(aten, op).default)
    def lower(ctx: Lowering, x: TensorValue) -> object:
        if sc.is_float(x.dtype):
            return elementwise(ctx, body, x, compute=sc.compute_dtype(x.dtype))
        return EXTERN if op == "signbit" else ctx.compute(*ctx.out, lambda coords: sc.const(False, torch.bool))


_register_predicate("isnan", sc.isnan)
_register_predicate("isinf", sc.isinf)
_register_predicate("isposinf", lambda v: sc.eq(v, math.inf))
_register_predicate("isneginf", lambda v: sc.eq(v, -math.inf))
_register_predicate("signbit", partial(sc.predicate, "signbit"))


@lowering(aten.nan_to_num.default)
def nan_to_num(
    ctx: Lowering, x: TensorValue, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> TensorValue:
    if not sc.is_float(x.dtype):
        return ctx.copy(x)
    limits = torch.finfo(x.dtype)

    def body(v: Node) -> Node:
        result = sc.where(sc.eq(v, -math.inf), limits.min if neginf is None else neginf, v)
        result = sc.where(sc.eq(v, math.inf), limits.max if posinf is None else posinf, result)
        return sc.where(sc.isnan(v), nan or 0.0, result)

    return elementwise(ctx, body, x)


# ---- selection ------------------------------------------------------------------------------------------------------


@lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, takes_sizes=True)
def where(ctx: Lowering, condition: TensorValue, a: Operand, b: Operand) -> TensorValue:
    dtype = ctx.meta.dtype
    return combined(ctx, sc.where, truth(ctx, condition), ctx.reader(a, dtype), ctx.reader(b, dtype))


lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor, takes_sizes=True)(
    lambda ctx, x, mask, value: where(ctx, mask, value, x)
)


# ---- casts and copies -----------------------------------------------------------------------------------------------


@lowering(
    aten._to_copy.default,
    aten.clone.default,
    aten.lift_fresh_copy.default,
    aten.contiguous.default,
    aten.alias_copy.default,
    aten.detach_copy.default,
    aten.to.dtype,
)
def to_copy(ctx: Lowering, x: TensorValue, *_: object, **__: object) -> TensorValue:
    dtype = ctx.meta.dtype
    return ctx.compute(x.shape, dtype, ctx.reader(x, dtype))


@lowering(aten.copy.default, aten.fill.Scalar, aten.fill.Tensor, takes_sizes=True)
def fill(ctx: Lowering, x: TensorValue, value: Operand, non_blocking: bool = False) -> TensorValue:
    return ctx.compute(x.shape, x.dtype, ctx.reader(value, x.dtype))


@lowering(aten.native_dropout_backward.default)
def native_dropout_backward(ctx: Lowering, grad: TensorValue, mask: TensorValue, scale: float) -> TensorValue:
    return elementwise(ctx, lambda g, m: sc.mul(sc.mul(g, m), scale), grad, mask)
