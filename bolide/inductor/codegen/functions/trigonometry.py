"""Sine, cosine and tangent of any angle. Angles are reduced by multiples of pi/2: Cody and Waite's way where a product
with three parts of pi/2 is exact enough, and by 1200 bits of 2/pi (Payne and Hanek, "Radian reduction for trigonometric
functions", SIGNUM 1983) where it is not, which is behind a branch. Values have one lane."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from bolide.inductor.codegen.builder import Value
from bolide.inductor.codegen.functions.coefficients import COS, SIN
from bolide.inductor.codegen.functions.float64 import HALF_PI, HALF_PI_LOW, Pair, ordered_sum, product
from bolide.inductor.codegen.math32 import horner

SIN_32 = (-0.1666666716337204, 0.008333379402756691, -0.000198529742192477, 2.830628773153876e-06)
COS_32 = (0.04166664555668831, -0.00138873013202101, 2.4430664780084044e-05)
TWO_OVER_PI = 0.6366197723675814
HALF_PI_LEAST = -1.4973849048591698e-33  # what HALF_PI + HALF_PI_LOW lacks
PARTS_32 = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
NEAR, NEAR_32 = 2.0**30, 2.0**16
"""Angles below are reduced without the table."""

TABLE = """@two_over_pi = internal unnamed_addr addrspace(1) constant [20 x i64] [
i64 u0x0000000000000000, i64 u0xA2F9836E4E441529, i64 u0xFC2757D1F534DDC0, i64 u0xDB6295993C439041,
i64 u0xFE5163ABDEBBC561, i64 u0xB7246E3A424DD2E0, i64 u0x06492EEA09D1921C, i64 u0xFE1DEB1CB129A73E,
i64 u0xE88235F52EBB4484, i64 u0xE99C7026B45F7E41, i64 u0x3991D639835339F4, i64 u0x9C845F8BBDF9283B,
i64 u0x1FF897FFDE05980F, i64 u0xEF2F118B5A0A6D1F, i64 u0x6D367ECF27CB09B7, i64 u0x4F463F669E5FEA2D,
i64 u0x7527BAC7EBE5F17B, i64 u0x3D0739F78A5292EA, i64 u0x6BFB5FB11F8D5D08, i64 u0x56033046FC7B6BAB]"""
"""64 zeros, then 2/pi: its binary digits behind the point, the first ones first."""

Reduced = tuple[Value, Value, Value]
"""(q, r, low): an angle is q quarter turns (an i32, modulo 4) and r + low, between -pi/4 and pi/4."""


def rarely(condition: Value, slow: Callable[[], Reduced], usual: Reduced) -> Reduced:
    """`usual`, or where the condition holds `slow`, which is run only then."""
    b = condition.b
    start, then, after = b.block, b.new_label("rare"), b.new_label("usual")
    b.branch(condition, then, after)
    b.label(then)
    values, end = slow(), b.block
    b.jump(after)
    b.label(after)
    q, r, low = (b.merge(common, start, rare, end) for common, rare in zip(usual, values))
    return q, r, low


def reduced(x: Value) -> Reduced:
    """The reduction of a float64. Infinity and NaN give NaN."""
    b = x.b
    n = b.intrinsic("roundeven", x * TWO_OVER_PI)
    near = b.fma(n, -HALF_PI, x)  # exact
    taken, lost = product(n, b.like(-HALF_PI_LOW, x))
    r = near + taken
    back = r - near
    low = (near - (r - back)) + (taken - back) + b.fma(n, -HALF_PI_LEAST, lost)
    r, low = ordered_sum(r, low)
    far = b.compare("fcmp uge", b.intrinsic("fabs", x), NEAR)
    return rarely(far, lambda: _far(x), (b.convert("trunc", b.convert("fptosi", n, "i64"), "i32"), r, low))


def reduced_32(x: Value) -> Reduced:
    """The reduction of a float32; the low part is 0."""
    b = x.b
    n = b.intrinsic("roundeven", x * TWO_OVER_PI)
    r = x
    for part in PARTS_32:
        r = b.fma(n, -part, r)
    zero = b.like(0.0, r)

    def slow() -> Reduced:
        q, r, low = reduced(b.convert("fpext", x, "double"))
        return q, b.convert("fptrunc", r + low, "float"), zero

    far = b.compare("fcmp uge", b.intrinsic("fabs", x), NEAR_32)
    return rarely(far, slow, (b.convert("fptosi", n, "i32"), r, zero))


def _far(x: Value) -> Reduced:
    """The reduction by the table: the whole number of the mantissa times 192 bits of 2/pi, of which those before count
    whole turns only, as a fixed-point number with 126 bits behind the point."""
    b = x.b
    bits = b.bitcast(b.intrinsic("fabs", x), "i64")
    mantissa = (bits & 0x000FFFFFFFFFFFFF) | (1 << 52)
    exponent = b.binary("lshr", bits, b.like(52, bits)) - 1075
    first, second, third = _window(exponent + 62)
    total = (b.convert("zext", mantissa * first, "i128") << 64) + _wide(mantissa, second) + _high(mantissa, third)
    quarters = b.binary("lshr", total + (1 << 125), b.like(126, total))
    rest = total - (quarters << 126)
    negative = b.compare("icmp slt", rest, 0)
    size = b.select(negative, -rest, rest)
    upper = b.convert("trunc", b.binary("lshr", size, b.like(64, size)), "i64")
    lower = b.convert("trunc", size, "i64")
    main = b.convert("uitofp", upper, "double")
    lost = b.convert("sitofp", upper - b.convert("fptoui", main, "i64"), "double")
    high, low = ordered_sum(main, b.fma(b.convert("uitofp", lower, "double"), 2.0**-64, lost))
    high, low = high * 2.0**-62, low * 2.0**-62
    r, more = product(high, b.like(HALF_PI, high))
    low = more + b.fma(high, HALF_PI_LOW, low * HALF_PI)
    left = b.compare("icmp slt", b.bitcast(x, "i64"), 0)
    flip = b.binary("xor", left, negative)
    r, low = (b.select(flip, -part, part) for part in (r, low))
    q = b.convert("trunc", quarters, "i32")
    return b.select(left, -q, q), r + (x - x), low


def _window(offset: Value) -> tuple[Value, Value, Value]:
    """The 192 bits of the table from a bit on, the first ones first."""
    b = offset.b
    b.declarations.setdefault("two_over_pi", TABLE)
    start, shift = b.binary("lshr", offset, b.like(6, offset)), offset & 63
    words = []
    for i in range(4):
        place = b.emit(f"getelementptr i64, ptr addrspace(1) @two_over_pi, {start + i}", "ptr")
        words.append(b.emit(f"load i64, ptr addrspace(1) {place.text}, align 8", "i64"))
    shifted = []
    for word, following in pairwise(words):
        more = b.binary("lshr", b.binary("lshr", following, b.like(1, shift)), 63 - shift)
        shifted.append(b.binary("shl", word, shift) | more)
    return shifted[0], shifted[1], shifted[2]


def _wide(a: Value, c: Value) -> Value:
    """The product of two i64 without sign, an i128."""
    b = a.b
    return b.convert("zext", a, "i128") * b.convert("zext", c, "i128")


def _high(a: Value, c: Value) -> Value:
    """The upper half of the product, as an i128."""
    wide = _wide(a, c)
    return a.b.binary("lshr", wide, a.b.like(64, wide))


def _kernels(r: Value, low: Value) -> Pair:
    """The sine and the cosine of r + low."""
    b = r.b
    z = r * r
    if r.scalar == "float":
        sine = b.fma(r * z, horner(z, SIN_32), r)
        return sine, b.fma(z * z, horner(z, COS_32), b.fma(z, -0.5, 1.0))
    half = z * 0.5
    sine = r + b.fma(r * z, horner(z, SIN), low * (1.0 - half))
    main = 1.0 - half
    cosine = main + (((1.0 - main) - half) + b.fma(z * z, horner(z, COS), -(r * low)))
    return sine, cosine


def _both(x: Value) -> tuple[Value, Value, Value]:
    q, r, low = reduced(x) if x.scalar == "double" else reduced_32(x)
    return q, *_kernels(r, low)


def _odd(q: Value) -> Value:
    return q.b.compare("icmp ne", q & 1, 0)


def _turned(q: Value, value: Value) -> Value:
    """The value with the other sign in the second half of a turn."""
    return q.b.select(q.b.compare("icmp ne", q & 2, 0), -value, value)


def sin(x: Value) -> Value:
    """Sine; 1.6 ulp in float32, 1 ulp in float64."""
    q, sine, cosine = _both(x)
    result = _turned(q, x.b.select(_odd(q), cosine, sine))
    return x.b.select(x.b.compare("fcmp oeq", x, 0.0), x, result)  # for -0.0


def cos(x: Value) -> Value:
    """Cosine; 1.6 ulp in float32, 1 ulp in float64."""
    q, sine, cosine = _both(x)
    return _turned(q + 1, x.b.select(_odd(q), sine, cosine))


def tan(x: Value) -> Value:
    """Tangent of a float64; 2.5 ulp."""
    b = x.b
    q, sine, cosine = _both(x)
    over, under = b.select(_odd(q), -cosine, sine), b.select(_odd(q), sine, cosine)
    return b.select(b.compare("fcmp oeq", x, 0.0), x, over / under)
