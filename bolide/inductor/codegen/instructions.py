"""How each scalar operation of loop IR is written in LLVM, with eager's semantics.

Registers hold: float32/float64 as themselves, float16 as ``half``, bfloat16 as its 16 bits (as a float32 in loops that
take pairs, see `accesses`), bool as ``i1``, integers as themselves. In memory bool is a byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from bolide.inductor.codegen import math32
from bolide.inductor.codegen.builder import BITS, FLOATS, Builder, Value, llvm_type
from bolide.inductor.codegen.math_calls import ELEMENTARY, elementary
from bolide.inductor.ir.scalar_ops import NARROW_FLOATS

REGISTER = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "half",
    torch.bfloat16: "i16",
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
MEMORY = {**REGISTER, torch.bool: "i8"}
UNSIGNED = frozenset((torch.uint8, torch.bool))


def constant(b: Builder, value: float, dtype: torch.dtype) -> Value:
    """A number as a value of one lane, rounded as torch rounds it."""
    if dtype in NARROW_FLOATS:
        bits = int(torch.tensor(value, dtype=dtype).view(torch.int16))
        return b.const(bits, "i16") if dtype == torch.bfloat16 else Value(b, f"0xH{bits & 0xFFFF:04X}", "half", 1)
    return b.const(value, REGISTER[dtype])


# ---- casts ----------------------------------------------------------------------------------------------------------


def cast(value: Value, source: torch.dtype, target: torch.dtype) -> Value:
    """`value` converted as torch converts on x86: floats to narrow integers through a wider one, all to
    bfloat16/float16 through float32."""
    if source == target:
        return value
    b = value.b
    if target == torch.bool:
        if source == torch.bfloat16:  # both zeros are false
            return b.compare("icmp ne", value & 0x7FFF, 0)
        return b.compare("fcmp une" if value.scalar in FLOATS else "icmp ne", value, 0)
    if source in NARROW_FLOATS:
        return cast(_widen(value, source), torch.float32, target)
    if target in NARROW_FLOATS:
        value = cast(value, source, torch.float32)
        if target == torch.float16:
            return b.convert("fptrunc", value, "half")
        return _rounded(value) if b.target.rounds else upper_half(through_bfloat16(value))
    kind = REGISTER[target]
    if source == torch.bool and kind in FLOATS:
        return b.select(value, b.const(1.0, kind, value.lanes), 0.0)
    if source.is_floating_point:
        if target.is_floating_point:
            return b.convert("fpext" if kind == "double" else "fptrunc", value, kind)
        # Truncation. Out of range, x86's conversion instructions give the smallest number of the width converted to,
        # which torch narrows by dropping bits.
        wide = "i64" if target in (torch.int64, torch.uint8) else "i32"
        return _resize(b.convert("fptosi", value, wide), kind, False)
    if kind in FLOATS:
        return b.convert("uitofp" if source in UNSIGNED else "sitofp", value, kind)
    return _resize(value, kind, source in UNSIGNED)


def _widen(value: Value, source: torch.dtype) -> Value:
    b = value.b
    if value.scalar == "float":  # a bfloat16 of a pair
        return value
    if source == torch.float16:
        return b.convert("fpext", value, "float")
    if b.target.triple and value.lanes > 1:
        return _widen_pairs(value)
    return b.bitcast(b.convert("zext", value, "i32") << 16, "float")


def _widen_pairs(value: Value) -> Value:
    """bfloat16s as float32s, where 32 bits of a register hold two: an instruction each."""
    b, count = value.b, value.lanes // 2
    pairs = b.emit(f"bitcast {value} to {llvm_type('i32', count)}", "i32", count)
    even, odd = (b.bitcast(half, "float") for half in (pairs << 16, pairs & -0x10000))
    if count == 1:
        return b.insert(b.insert(Value(b, "poison", "float", 2), even, 0), odd, 1)
    return b.shuffle(even, [lane // 2 + lane % 2 * count for lane in range(value.lanes)], odd.text)


def _rounded(value: Value) -> Value:
    """A float32 rounded to bfloat16 by an instruction."""
    return value.b.bitcast(value.b.convert("fptrunc", value, "bfloat"), "i16")


def upper_half(value: Value) -> Value:
    """A float32 that is a bfloat16, as one."""
    bits = value.b.bitcast(value, "i32")
    return value.b.convert("trunc", value.b.binary("lshr", bits, value.b.like(16, bits)), "i16")


def through_bfloat16(value: Value, short_nans: bool = False) -> Value:
    """A float32 rounded to the nearest bfloat16, ties to even, without moving bits between lanes; NaN becomes a quiet
    NaN. `short_nans`: the lower half of each NaN's bits is zero, so rounding leaves it a NaN."""
    b = value.b
    bits = b.bitcast(value, "i32")
    lanes = b.target.vector_bits // 32
    if b.target.dots and bits.lanes % lanes == 0:
        rounded = b.in_chunks(_rounded_by_dots, lanes, (bits,))
    else:
        rounded = bits + ((b.binary("lshr", bits, b.like(16, bits)) & 1) + 0x7FFF)
    result = b.bitcast(rounded & -0x10000, "float")
    return result if short_nans else b.select(b.compare("fcmp uno", value, value), float("nan"), result)


def _rounded_by_dots(bits: Value) -> Value:
    """Adds 0x7FFF and the lowest bit of the upper half: the sum of the products of the halves (1, that bit) and
    (0x7FFF, 1)."""
    b = bits.b
    name = f"llvm.x86.avx512.vpdpwssd.{32 * bits.lanes}"
    return b.call(name, (bits, (bits & 0x10000) | 1, b.const(0x17FFF, "i32", bits.lanes)), "i32", bits.lanes)


def _resize(value: Value, kind: str, unsigned: bool) -> Value:
    if value.scalar == kind:
        return value
    if BITS[kind] < BITS[value.scalar]:
        return value.b.convert("trunc", value, kind)
    return value.b.convert("zext" if unsigned else "sext", value, kind)


# ---- two operands ---------------------------------------------------------------------------------------------------

COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def compare(op: str, dtype: torch.dtype, a: Value, b: Value) -> Value:
    """`op` is a key of `COMPARISONS`; `dtype` that of the operands."""
    if a.scalar in FLOATS:
        return a.b.compare(f"fcmp {COMPARISONS[op]}", a, b)
    signed = "" if op in ("eq", "ne") else "u" if dtype in UNSIGNED else "s"
    return a.b.compare(f"icmp {signed}{op}", a, b)


def minimum(op: str, dtype: torch.dtype, a: Value, b: Value) -> Value:
    """``min``/``max``: NaN if either is NaN; of equal ones (0.0 and -0.0) the second. ``fmin``/``fmax``: NaN only if
    both are; of equal ones the first."""
    if a.b.target.triple and a.scalar == "float" and not op.startswith("f"):
        return a.b.intrinsic(f"{op}imum", a, b)  # one instruction; 0.0 is above -0.0
    if op.startswith("f"):
        a, b = b, a
    better = compare("lt" if op.endswith("min") else "gt", dtype, a, b)
    result = a.b.select(better, a, b)
    if a.scalar not in FLOATS:
        return result
    # `result` is b whenever either is NaN.
    suspect = b if op.startswith("f") else a
    return a.b.select(a.b.compare("fcmp uno", suspect, suspect), a, result)


def _safe_divisor(a: Value, d: Value, unsigned: bool) -> Value:
    """A divisor the CPU does not trap on: 1 in place of 0, and of -1 under the smallest number (whose quotient wraps
    to itself)."""
    b = d.b
    bad = b.compare("icmp eq", d, 0)
    if not unsigned:
        smallest = -1 << (BITS[d.scalar] - 1)
        bad = bad | (b.compare("icmp eq", d, -1) & b.compare("icmp eq", a, smallest))
    return b.select(bad, b.like(1, d), d)


def _integer_division(op: str, unsigned: bool, a: Value, d: Value) -> Value:
    b = a.b
    d = _safe_divisor(a, d, unsigned)
    if unsigned:
        return b.binary("udiv" if op in ("floordiv", "truncdiv") else "urem", a, d)
    if op in ("truncdiv", "fmod"):
        return b.binary("sdiv" if op == "truncdiv" else "srem", a, d)
    return floor_division(op == "mod", a, d)


def floor_division(rest_only: bool, a: Value, d: Value) -> Value:
    """The quotient of integers with signs, rounded to minus infinity, or its rest."""
    b = a.b
    rest = b.binary("srem", a, d)
    # The signs of remainder and divisor differ, and the remainder is not zero: one more towards minus infinity.
    wrong = b.compare("icmp slt", rest ^ d, 0) & b.compare("icmp ne", rest, 0)
    if rest_only:
        return b.select(wrong, rest + d, rest)
    return b.binary("sdiv", a, d) - b.convert("zext", wrong, a.scalar)


def _float_division(op: str, a: Value, d: Value) -> Value:
    """eager's formulas for floor division and remainder (c10::div_floor_floating, remainder)."""
    b = a.b
    if op == "truncdiv":
        return b.intrinsic("trunc", a / d)
    rest = elementary("fmod", a, d)
    if op == "fmod":
        return rest
    signs_differ = b.binary("xor", b.compare("fcmp olt", d, 0.0), b.compare("fcmp olt", rest, 0.0))
    wrong = b.compare("fcmp une", rest, 0.0) & signs_differ
    if op == "mod":
        return b.select(wrong, rest + d, rest)
    quotient = (a - rest) / d
    quotient = b.select(wrong, quotient - 1.0, quotient)
    floor = b.intrinsic("floor", quotient)
    floor = b.select(b.compare("fcmp ogt", quotient - floor, 0.5), floor + 1.0, floor)
    floor = b.select(b.compare("fcmp oeq", quotient, 0.0), b.intrinsic("copysign", b.like(0.0, a), a / d), floor)
    return b.select(b.compare("fcmp oeq", d, 0.0), a / d, floor)


def _divide(op: str, dtype: torch.dtype, a: Value, d: Value) -> Value:
    if a.scalar in FLOATS:
        return a / d if op == "div" else _float_division(op, a, d)
    return _integer_division(op, dtype in UNSIGNED, a, d)


def _shift(op: str, dtype: torch.dtype, a: Value, n: Value) -> Value:
    """torch's shifts: by a negative count or one of at least the width, 0 (or -1 for a negative number shifted
    right)."""
    b = a.b
    bits = BITS[a.scalar]
    outside = b.compare("icmp uge", n, bits)
    if op == "shr" and dtype not in UNSIGNED:
        return b.binary("ashr", a, b.select(outside, bits - 1, n))
    return b.select(outside, 0, b.binary("shl" if op == "shl" else "lshr", a, b.select(outside, 0, n)))


# ---- one operand ----------------------------------------------------------------------------------------------------


def _sign(dtype: torch.dtype, x: Value) -> Value:
    b = x.b
    if x.scalar == "i1":
        return x
    if x.scalar in FLOATS:
        up = b.select(b.compare("fcmp ogt", x, 0.0), b.like(1.0, x), 0.0)
        return b.select(b.compare("fcmp olt", x, 0.0), -1.0, up)
    positive = b.select(b.compare("icmp ne", x, 0), b.like(1, x), 0)
    return positive if dtype in UNSIGNED else b.select(b.compare("icmp slt", x, 0), -1, positive)


def _abs(dtype: torch.dtype, x: Value) -> Value:
    if x.scalar in FLOATS:
        return x.b.intrinsic("fabs", x)
    return x if dtype in UNSIGNED else x.b.select(x.b.compare("icmp slt", x, 0), -x, x)


def _signbit(dtype: torch.dtype, x: Value) -> Value:
    b = x.b
    if x.scalar in FLOATS:
        x = b.bitcast(x, "i32" if x.scalar == "float" else "i64")
    return b.like(0, x) if dtype in UNSIGNED else b.compare("icmp slt", x, 0)


# ---- mathematics ----------------------------------------------------------------------------------------------------


def _function(op: str, dtype: torch.dtype, *args: Value) -> Value:
    if dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"no code for {op} on {dtype}")
    return elementary(op, *args)


def _erf_plus_1(dtype: torch.dtype, x: Value) -> Value:
    return math32.erf_plus_1(x) if dtype == torch.float32 else elementary("erf", x) + 1.0


def _exp_term(dtype: torch.dtype, x: Value) -> Value:
    return math32.exp_term(x) if dtype == torch.float32 else elementary("exp", x)


# ---- the table ------------------------------------------------------------------------------------------------------


def _intrinsic(name: str) -> Callable[..., Value]:
    return lambda dtype, x, *more: x.b.intrinsic(name, x, *more)


def _rounding(name: str) -> Callable[..., Value]:
    return lambda dtype, x: x.b.intrinsic(name, x) if x.scalar in FLOATS else x


#: What writes an operation: a function of the operands' dtype and the operands.
INSTRUCTIONS: dict[str, Callable[..., Value]] = {
    **{op: partial(_function, op) for op in ELEMENTARY},
    "erf_plus_1": _erf_plus_1,
    "exp_term": _exp_term,
    "where": lambda dtype, condition, yes, no: condition.b.select(condition, yes, no),
    "bits": lambda dtype, x: x.b.bitcast(x, "i32"),
    "of_bits": lambda dtype, x: x.b.bitcast(x, "float"),
    "neg": lambda dtype, x: -x,
    "abs": _abs,
    "sign": _sign,
    "not": lambda dtype, x: x ^ -1,
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": lambda dtype, x: 1.0 / x.b.intrinsic("sqrt", x),
    "recip": lambda dtype, x: 1.0 / x,
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "trunc": _rounding("trunc"),
    "round": _rounding("roundeven"),
    "isnan": lambda dtype, x: x.b.compare("fcmp uno", x, x),
    "isinf": lambda dtype, x: x.b.compare("fcmp oeq", x.b.intrinsic("fabs", x), math.inf),
    "signbit": _signbit,
    "add": lambda dtype, a, b: a + b,
    "sub": lambda dtype, a, b: a - b,
    "mul": lambda dtype, a, b: a * b,
    "product": lambda dtype, a, b: a * b,
    "quotient": lambda dtype, a, b: math32.quotient(a, b),
    "and": lambda dtype, a, b: a & b,
    "or": lambda dtype, a, b: a | b,
    "xor": lambda dtype, a, b: a ^ b,
    "fma": _intrinsic("fma"),
    "umin": lambda dtype, a, b: a.b.select(a.b.compare("icmp ult", a, b), a, b),
    "copysign": _intrinsic("copysign"),
    **{op: partial(compare, op) for op in COMPARISONS},
    **{op: partial(minimum, op) for op in ("min", "max", "fmin", "fmax")},
    **{op: partial(_divide, op) for op in ("div", "floordiv", "truncdiv", "mod", "fmod")},
    **{op: partial(_shift, op) for op in ("shl", "shr")},
}


def computed(op: str, args: tuple[Value, ...], dtype: torch.dtype, result: torch.dtype) -> Value:
    """The value of `op` on operands of `dtype`, all with the same number of lanes (a condition of ``where`` may be one
    i1)."""
    return cast(args[0], dtype, result) if op == "cast" else INSTRUCTIONS[op](dtype, *args)
