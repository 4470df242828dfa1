"""Elementwise ops: arithmetic, comparison, selection, elementary functions, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bolide.inductor.ir.loops import ELEMENTARY_OPS, Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import TensorValue
from bolide.symbolic import Expr

aten = torch.ops.aten


def elementwise(
    ctx: Lowering, body: Callable[..., Node], *operands: Any, compute: torch.dtype | None = None
) -> TensorValue:
    """out[i] = body(operands at i, each in dtype `compute`), where operands broadcast. `compute`: the computation
    type of the result's dtype unless given."""
    shape, dtype = ctx.out
    compute = compute or sc.compute_dtype(dtype)
    return ctx.compute(shape, dtype, lambda coords: body(*[ctx.operand(x, coords, compute) for x in operands]))


def is_scalar(x: Any) -> bool:
    """A number, a size or a 0-dim tensor."""
    return type(x) is not TensorValue or not x.shape


def promoted(*operands: Any) -> torch.dtype:
    """torch's promoted dtype of tensors, 0-dim tensors and Python numbers."""
    ranked: list[torch.dtype | None] = [None, None, None]  # tensors, 0-dim tensors, numbers
    for x in operands:
        if type(x) is TensorValue:
            rank, dtype = (0, x.dtype) if x.shape else (1, x.dtype)
        else:
            rank = 2
            dtype = (
                torch.bool
                if isinstance(x, bool)
                else torch.get_default_dtype()
                if isinstance(x, float)
                else torch.int64
            )
        known = ranked[rank]
        ranked[rank] = dtype if known is None else torch.promote_types(known, dtype)
    result: torch.dtype | None = None
    for candidate in ranked:
        if candidate is not None and (result is None or _category(candidate) > _category(result)):
            result = candidate
    assert result is not None
    return result


def _category(dtype: torch.dtype) -> int:
    return 0 if dtype is torch.bool else 2 if sc.is_float(dtype) else 1


def rounded(ctx: Lowering, x: Any, common: torch.dtype) -> Callable[[tuple[Expr, ...]], Node]:
    """`x` as eager's kernels read an operand of common dtype `common`: converted to it, then to the computation
    type. Numbers are rounded as well (a bf16 `add` of 1.00123 adds 1)."""
    compute = sc.compute_dtype(common)
    return lambda coords: sc.cast(ctx.operand(x, coords, common), compute)


def arithmetic(ctx: Lowering, body: Callable[..., Node], *operands: Any) -> TensorValue:
    """Like `elementwise`, every operand rounded to the result's dtype first."""
    shape, dtype = ctx.out
    readers = [rounded(ctx, x, dtype) for x in operands]
    return ctx.compute(shape, dtype, lambda coords: body(*[read(coords) for read in readers]))


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def _scaled_add(ctx: Lowering, a: Any, b: Any, alpha: Any, sign: int) -> TensorValue:
    if alpha == 1:
        return arithmetic(ctx, sc.add if sign > 0 else sc.sub, a, b)
    if type(alpha) is Expr:
        alpha = alpha * sign
        return arithmetic(ctx, lambda x, y, k: sc.add(x, sc.mul(y, k)), a, b, alpha)
    if not sc.is_float(ctx.meta.dtype):
        return arithmetic(ctx, lambda x, y, k: sc.add(x, sc.mul(y, k)), a, b, sign * alpha)
    return arithmetic(ctx, lambda x, y, k: sc.fma(y, k, x), a, b, sign * alpha)


@lowering(aten.add.Tensor, aten.add.Scalar, takes_sizes=True)
def add(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    return _scaled_add(ctx, a, b, alpha, 1)


@lowering(aten.sub.Tensor, aten.sub.Scalar, takes_sizes=True)
def sub(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    return _scaled_add(ctx, a, b, alpha, -1)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar, takes_sizes=True)
def rsub(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    return _scaled_add(ctx, b, a, alpha, -1)


def _keeps_scalar(ctx: Lowering, body: Callable[..., Node], a: Any, b: Any) -> TensorValue:
    """mul and div by a scalar keep it in the computation type; every other operand is rounded to the common dtype
    first."""
    shape, dtype = ctx.out
    compute = sc.compute_dtype(dtype)
    left = rounded(ctx, a, dtype)
    right = (lambda coords: ctx.operand(b, coords, compute)) if is_scalar(b) else rounded(ctx, b, dtype)
    return ctx.compute(shape, dtype, lambda coords: body(left(coords), right(coords)))


@lowering(aten.mul.Tensor, aten.mul.Scalar, takes_sizes=True)
def mul(ctx: Lowering, a: Any, b: Any) -> TensorValue:
    return _keeps_scalar(ctx, sc.mul, b, a) if is_scalar(a) and not is_scalar(b) else _keeps_scalar(ctx, sc.mul, a, b)


@lowering(aten.div.Tensor, aten.div.Scalar, takes_sizes=True)
def div(ctx: Lowering, a: Any, b: Any) -> TensorValue:
    return _keeps_scalar(ctx, sc.div, a, b)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode, takes_sizes=True)
def div_mode(ctx: Lowering, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return div(ctx, a, b)
    if not sc.is_float(ctx.meta.dtype):
        if not _nonzero_constant(b):
            return EXTERN
        return arithmetic(
            ctx, lambda x, y: sc.binary("floordiv" if rounding_mode == "floor" else "truncdiv", x, y), a, b
        )
    if rounding_mode == "trunc":
        return arithmetic(ctx, lambda x, y: sc.unary("trunc", sc.rounded(sc.div(x, y), ctx.meta.dtype)), a, b)
    return arithmetic(ctx, lambda x, y: floor_divide_floats(x, y, ctx.meta.dtype), a, b)


@lowering(aten.floor_divide.default, aten.floor_divide.Scalar, takes_sizes=True)
def floor_divide(ctx: Lowering, a: Any, b: Any) -> Any:
    return div_mode(ctx, a, b, rounding_mode="floor")


def _nonzero_constant(x: Any) -> bool:
    """An integer divisor known not to be 0: eager raises for 0, kernels cannot."""
    return isinstance(x, (int, bool)) and int(x) != 0


def floor_divide_floats(x: Node, y: Node, dtype: torch.dtype) -> Node:
    """Python's floor division, as c10::div_floor_floating: exact quotients are not rounded twice. Each step is in
    `dtype`."""

    def step(value: Node) -> Node:
        return sc.rounded(value, dtype)

    zero, one = sc.const(0.0, x.dtype), sc.const(1.0, x.dtype)
    rest = step(sc.binary("fmod", x, y))
    quotient = step(sc.div(step(sc.sub(x, rest)), y))
    other_sign = sc.binary("xor", sc.compare("lt", y, zero), sc.compare("lt", rest, zero))
    differs = sc.logical_and(sc.compare("ne", rest, zero), other_sign)
    quotient = sc.where(differs, step(sc.sub(quotient, one)), quotient)
    floor = sc.unary("floor", quotient)
    up = sc.compare("gt", step(sc.sub(quotient, floor)), sc.const(0.5, x.dtype))
    exact = sc.where(up, step(sc.add(floor, one)), floor)
    signed_zero = sc.binary("copysign", zero, sc.div(x, y))
    result = sc.where(sc.compare("ne", quotient, zero), exact, signed_zero)
    return sc.where(sc.compare("eq", y, zero), sc.div(x, y), result)


@lowering(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, takes_sizes=True)
def remainder(ctx: Lowering, a: Any, b: Any) -> Any:
    if not sc.is_float(ctx.meta.dtype):
        return arithmetic(ctx, sc.mod, a, b) if _nonzero_constant(b) else EXTERN

    def body(x: Node, y: Node) -> Node:
        rest, zero = sc.binary("fmod", x, y), sc.const(0.0, x.dtype)
        other_sign = sc.binary("xor", sc.compare("lt", y, zero), sc.compare("lt", rest, zero))
        return sc.where(sc.logical_and(sc.compare("ne", rest, zero), other_sign), sc.add(rest, y), rest)

    return arithmetic(ctx, body, a, b)


@lowering(aten.fmod.Tensor, aten.fmod.Scalar, takes_sizes=True)
def fmod(ctx: Lowering, a: Any, b: Any) -> Any:
    if not sc.is_float(ctx.meta.dtype) and not _nonzero_constant(b):
        return EXTERN
    return arithmetic(ctx, lambda x, y: sc.binary("fmod", x, y), a, b)


@lowering(aten.addcmul.default, takes_sizes=True)
def addcmul(ctx: Lowering, x: Any, a: Any, b: Any, value: Any = 1) -> TensorValue:
    if not sc.is_float(ctx.meta.dtype):
        return elementwise(ctx, lambda x, a, b, k: sc.add(x, sc.mul(sc.mul(k, a), b)), x, a, b, value)
    return elementwise(ctx, lambda x, a, b, k: sc.fma(sc.mul(k, a), b, x), x, a, b, value)


@lowering(aten.addcdiv.default, takes_sizes=True)
def addcdiv(ctx: Lowering, x: Any, a: Any, b: Any, value: Any = 1) -> TensorValue:
    return elementwise(ctx, lambda x, a, b, k: sc.add(x, sc.div(sc.mul(k, a), b)), x, a, b, value)


@lowering(aten.lerp.Tensor, aten.lerp.Scalar, takes_sizes=True)
def lerp(ctx: Lowering, start: Any, end: Any, weight: Any) -> TensorValue:
    def body(x: Node, y: Node, w: Node) -> Node:
        span, half, one = sc.sub(y, x), sc.const(0.5, x.dtype), sc.const(1.0, x.dtype)
        near = sc.compare("lt", sc.unary("abs", w), half)
        return sc.where(near, sc.fma(w, span, x), sc.fma(sc.neg(span), sc.sub(one, w), y))

    return elementwise(ctx, body, start, end, weight)


@lowering(aten.pow.Tensor_Scalar, takes_sizes=True)
def pow_scalar(ctx: Lowering, x: Any, exponent: Any) -> Any:
    if type(exponent) is Expr:
        return EXTERN
    dtype = ctx.meta.dtype
    if exponent == 0:
        return ctx.compute(ctx.out[0], dtype, lambda coords: sc.const(1, dtype))
    if exponent == 1:
        return elementwise(ctx, lambda v: v, x)

    def square_of(v: Node) -> Node:
        return sc.rounded(sc.square(v), dtype)

    if exponent in (2, 3):
        return elementwise(ctx, square_of if exponent == 2 else lambda v: sc.mul(square_of(v), v), x)
    if not sc.is_float(dtype):
        return EXTERN
    special: dict[float, Callable[[Node], Node]] = {
        0.5: lambda v: sc.unary("sqrt", v),
        -0.5: lambda v: sc.unary("rsqrt", v),
        -1.0: lambda v: sc.unary("recip", v),
        -2.0: lambda v: sc.unary("recip", square_of(v)),
    }
    if float(exponent) in special:
        return elementwise(ctx, special[float(exponent)], x)
    return arithmetic(ctx, lambda v, e: sc.binary("pow", v, e), x, exponent)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar, takes_sizes=True)
def pow_tensor(ctx: Lowering, base: Any, exponent: Any) -> Any:
    if not sc.is_float(ctx.meta.dtype) or type(base) is Expr:
        return EXTERN
    return arithmetic(ctx, lambda x, y: sc.binary("pow", x, y), base, exponent)


@lowering(aten.neg.default)
def negate(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, sc.neg, x)


@lowering(aten.square.default)
def square(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, sc.square, x)


def _register_binary(op: str, *overloads: Any) -> None:
    @lowering(*overloads, takes_sizes=True)
    def lower(ctx: Lowering, a: Any, b: Any) -> Any:
        return arithmetic(ctx, lambda x, y: sc.binary(op, x, y), a, b)


_register_binary("atan2", aten.atan2.default)
_register_binary("copysign", aten.copysign.Tensor, aten.copysign.Scalar)
_register_binary("hypot", aten.hypot.default)
_register_binary("fmin", aten.fmin.default)
_register_binary("fmax", aten.fmax.default)


@lowering(aten.maximum.default)
def maximum(ctx: Lowering, a: Any, b: Any) -> TensorValue:
    return arithmetic(ctx, sc.maximum, a, b)


@lowering(aten.minimum.default)
def minimum(ctx: Lowering, a: Any, b: Any) -> TensorValue:
    return arithmetic(ctx, sc.minimum, a, b)


@lowering(aten.clamp.default, aten.clamp.Tensor, takes_sizes=True)
def clamp(ctx: Lowering, x: Any, min: Any = None, max: Any = None) -> TensorValue:
    bounds = [bound for bound in (min, max) if bound is not None]

    def body(value: Node, *limits: Node) -> Node:
        if min is not None:
            value = sc.maximum(limits[0], value)  # of equal ones, -0.0 and 0.0, the second
        return sc.minimum(limits[-1], value) if max is not None else value

    nan = any(isinstance(bound, float) and bound != bound for bound in bounds)
    if nan:  # a NaN limit makes everything NaN
        return ctx.compute(*ctx.out, lambda coords: sc.const(float("nan"), sc.compute_dtype(ctx.meta.dtype)))
    return arithmetic(ctx, body, x, *bounds)


lowering(aten.clamp_min.Tensor)(maximum)
lowering(aten.clamp_max.Tensor)(minimum)


@lowering(aten.clamp_min.default, takes_sizes=True)
def clamp_min(ctx: Lowering, x: Any, min: Any) -> TensorValue:
    return clamp(ctx, x, min=min)


@lowering(aten.clamp_max.default, takes_sizes=True)
def clamp_max(ctx: Lowering, x: Any, max: Any) -> TensorValue:
    return clamp(ctx, x, max=max)


# ---- elementary functions -------------------------------------------------------------------------------------------


def _register_unary(op: str, overload: Any) -> None:
    @lowering(overload)
    def lower(ctx: Lowering, x: TensorValue) -> TensorValue:
        return elementwise(ctx, lambda v: sc.unary(op, v), x)


for _op in ELEMENTARY_OPS:
    _register_unary(_op, getattr(aten, _op).default)
_register_unary("recip", aten.reciprocal.default)


def _register_rounding(op: str) -> None:
    @lowering(getattr(aten, op).default)
    def lower(ctx: Lowering, x: TensorValue) -> TensorValue:
        return elementwise(ctx, (lambda v: sc.unary(op, v)) if sc.is_float(x.dtype) else (lambda v: v), x)


for _op in ("floor", "ceil", "round", "trunc"):
    _register_rounding(_op)


@lowering(aten.frac.default)
def frac(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda v: sc.sub(v, sc.unary("trunc", v)), x)


@lowering(aten.abs.default)
def absolute(ctx: Lowering, x: TensorValue) -> TensorValue:
    signed = x.dtype not in (torch.bool, torch.uint8)
    return elementwise(ctx, (lambda v: sc.unary("abs", v)) if signed else (lambda v: v), x)


@lowering(aten.sign.default, aten.sgn.default)
def sign(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, (lambda v: v) if x.dtype is torch.bool else (lambda v: sc.unary("sign", v)), x)


@lowering(aten.relu.default)
def relu(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda v: sc.maximum(sc.const(0, v.dtype), v), x)


# ---- comparison and logic -------------------------------------------------------------------------------------------


def _register_compare(op: str) -> None:
    packet = getattr(aten, op)

    @lowering(packet.Tensor, packet.Scalar, takes_sizes=True)
    def lower(ctx: Lowering, a: Any, b: Any) -> Any:
        common = promoted(a, b)
        if common is torch.bool:
            return ctx.compute(
                *ctx.out, lambda coords: _compare_bools(op, *(ctx.operand(x, coords, common) for x in (a, b)))
            )
        left, right = rounded(ctx, a, common), rounded(ctx, b, common)
        return ctx.compute(*ctx.out, lambda coords: sc.compare(op, left(coords), right(coords)))


def _compare_bools(op: str, a: Node, b: Node) -> Node:
    if op in ("eq", "ne"):
        differ = sc.binary("xor", a, b)
        return differ if op == "ne" else sc.logical_not(differ)
    if op in ("gt", "ge"):
        a, b = b, a
    return sc.logical_and(sc.logical_not(a), b) if op in ("lt", "gt") else sc.logical_or(sc.logical_not(a), b)


for _op in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register_compare(_op)


def truth(x: Any, ctx: Lowering, coords: tuple[Expr, ...]) -> Node:
    """Whether the element is not zero."""
    dtype = x.dtype if type(x) is TensorValue else promoted(x)
    value = ctx.operand(x, coords, sc.compute_dtype(dtype))
    return value if dtype is torch.bool else sc.compare("ne", value, sc.const(0, value.dtype))


def _register_logical(op: str, overload: Any) -> None:
    @lowering(overload)
    def lower(ctx: Lowering, a: Any, b: Any) -> TensorValue:
        combine = BOOLS[op]
        return ctx.compute(*ctx.out, lambda coords: combine(truth(a, ctx, coords), truth(b, ctx, coords)))


BOOLS: dict[str, Callable[[Node, Node], Node]] = {
    "and": sc.logical_and,
    "or": sc.logical_or,
    "xor": lambda a, b: sc.binary("xor", a, b),
}

for _op in ("and", "or", "xor"):
    _register_logical(_op, getattr(aten, f"logical_{_op}").default)


@lowering(aten.logical_not.default)
def logical_not(ctx: Lowering, x: TensorValue) -> TensorValue:
    return ctx.compute(*ctx.out, lambda coords: sc.logical_not(truth(x, ctx, coords)))


def _register_bitwise(op: str, packet: Any, *names: str) -> None:
    @lowering(*(getattr(packet, name) for name in names), takes_sizes=True)
    def lower(ctx: Lowering, a: Any, b: Any) -> Any:
        if sc.is_float(ctx.meta.dtype):
            return EXTERN
        if ctx.meta.dtype is torch.bool:
            return elementwise(ctx, BOOLS[op], a, b)
        return elementwise(ctx, lambda x, y: sc.binary(op, x, y), a, b)


for _op in ("and", "or", "xor"):
    _register_bitwise(_op, getattr(aten, f"bitwise_{_op}"), "Tensor", "Scalar", "Scalar_Tensor")
for _op, _packets in (("shl", ("__lshift__", "bitwise_left_shift")), ("shr", ("__rshift__", "bitwise_right_shift"))):
    _register_bitwise(_op, getattr(aten, _packets[0]), "Tensor", "Scalar")
    _register_bitwise(_op, getattr(aten, _packets[1]), "Tensor", "Tensor_Scalar")


@lowering(aten.bitwise_not.default)
def bitwise_not(ctx: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(ctx, lambda v: sc.unary("not", v), x)


def _register_test(overload: Any, body: Callable[[Node], Node]) -> None:
    @lowering(overload)
    def lower(ctx: Lowering, x: TensorValue) -> TensorValue:
        if not sc.is_float(x.dtype):
            return ctx.compute(*ctx.out, lambda coords: sc.const(False, torch.bool))
        return elementwise(ctx, body, x, compute=sc.compute_dtype(x.dtype))


def _test(op: str) -> Callable[[Node], Node]:
    return lambda v: Node.make(op, torch.bool, (v,))


_register_test(aten.isnan.default, _test("isnan"))
_register_test(aten.isinf.default, _test("isinf"))
_register_test(aten.isposinf.default, lambda v: sc.compare("eq", v, sc.const(float("inf"), v.dtype)))
_register_test(aten.isneginf.default, lambda v: sc.compare("eq", v, sc.const(float("-inf"), v.dtype)))


@lowering(aten.signbit.default)
def signbit(ctx: Lowering, x: TensorValue) -> Any:
    if not sc.is_float(x.dtype):
        return EXTERN
    return elementwise(ctx, _test("signbit"), x, compute=sc.compute_dtype(x.dtype))


@lowering(aten.nan_to_num.default)
def nan_to_num(ctx: Lowering, x: TensorValue, nan: Any = None, posinf: Any = None, neginf: Any = None) -> TensorValue:
    if not sc.is_float(x.dtype):
        return ctx.copy(x)
    limits = torch.finfo(x.dtype)

    def body(v: Node) -> Node:
        replaced = sc.where(
            sc.compare("eq", v, sc.const(float("-inf"), v.dtype)),
            sc.const(limits.min if neginf is None else neginf, v.dtype),
            v,
        )
        replaced = sc.where(
            sc.compare("eq", v, sc.const(float("inf"), v.dtype)),
            sc.const(limits.max if posinf is None else posinf, v.dtype),
            replaced,
        )
        return sc.where(_test("isnan")(v), sc.const(nan or 0.0, v.dtype), replaced)

    return elementwise(ctx, body, x)


# ---- selection ------------------------------------------------------------------------------------------------------


@lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, takes_sizes=True)
def where(ctx: Lowering, condition: TensorValue, a: Any, b: Any) -> TensorValue:
    shape, dtype = ctx.out

    def body(coords: tuple[Expr, ...]) -> Node:
        return sc.where(truth(condition, ctx, coords), ctx.operand(a, coords, dtype), ctx.operand(b, coords, dtype))

    return ctx.compute(shape, dtype, body)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor, takes_sizes=True)
def masked_fill(ctx: Lowering, x: TensorValue, mask: TensorValue, value: Any) -> TensorValue:
    return where(ctx, mask, value, x)


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
def to_copy(ctx: Lowering, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    dtype = ctx.meta.dtype
    return ctx.compute(x.shape, dtype, lambda coords: sc.cast(x.load(coords), dtype))


@lowering(aten.copy.default)
def copy(ctx: Lowering, target: TensorValue, source: Any, non_blocking: bool = False) -> TensorValue:
    shape, dtype = target.shape, target.dtype
    return ctx.compute(shape, dtype, lambda coords: ctx.operand(source, coords, dtype))


@lowering(aten.fill.Scalar, aten.fill.Tensor, takes_sizes=True)
def fill(ctx: Lowering, x: TensorValue, value: Any) -> TensorValue:
    return ctx.compute(x.shape, x.dtype, lambda coords: ctx.operand(value, coords, x.dtype))


@lowering(aten.native_dropout_backward.default)
def native_dropout_backward(ctx: Lowering, grad: TensorValue, mask: TensorValue, scale: float) -> TensorValue:
    return elementwise(ctx, lambda g, m, k: sc.mul(sc.mul(g, m), k), grad, mask, scale)
