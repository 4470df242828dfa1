"""Functions of float64 as arithmetic alone, with all special values. Bounds in the docstrings are largest errors that
were seen, in units in the last place (ulp); ``tests/ir/loops/test_gpu_functions.py`` sweeps them.

Every function takes and gives values of scalar type ``double``. A *pair* is the sum of two numbers, the second of which
is at most half a unit of the first.
"""

from __future__ import annotations

import math

from bolide.inductor.codegen.builder import Operand, Value
from bolide.inductor.codegen.functions.coefficients import (
    ASIN,
    ATAN,
    ATANH,
    ATANH_REST,
    ERF,
    ERFC,
    EXP,
)
from bolide.inductor.codegen.math32 import clamp, horner, log_specials

Pair = tuple[Value, Value]

LOG2_E = 1.4426950408889634
LOG2_E_LOW = 2.0355273740931033e-17
LOG10_E = 0.4342944819032518
LOG10_E_LOW = 1.098319650216765e-17
LN2_HIGH = 0.693147180559663  # 41 bits: n * LN2_HIGH is exact for |n| < 2048
LN2_LOW = 2.8235290563031577e-13
LOG10_2_HIGH = 0.30102999566383914
LOG10_2_LOW = 1.42050232272661e-13
TWO_THIRDS, TWO_THIRDS_LOW = 2 / 3, 3.700743415417188e-17
HALF_PI, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17
ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt 1/2
ONE = 0x3FF0000000000000
FRACTION = 0x000FFFFFFFFFFFFF


# ---- pairs ---------------------------------------------------------------------------------------------------------


def product(a: Value, b: Value) -> Pair:
    """a · b exactly."""
    high = a * b
    return high, a.b.fma(a, b, -high)


def ordered_sum(a: Value, b: Value) -> Pair:
    """a + b exactly, where |a| >= |b| or a is 0."""
    high = a + b
    return high, b - (high - a)


def absolute(x: Value) -> Value:
    return x.b.intrinsic("fabs", x)


def with_sign(size: Value, x: Value) -> Value:
    return x.b.intrinsic("copysign", size, x)


# ---- powers of e ---------------------------------------------------------------------------------------------------


def _power_of_two(n: Value) -> Value:
    """2^n for an i64 with -1022 <= n <= 1023."""
    return n.b.bitcast((n + 1023) << 52, "double")


def scaled(value: Value, n: Value) -> Value:
    """value · 2^n for integral -1200 <= n <= 1100, rounded once. Where n is NaN, the value must be, too."""
    b = value.b
    whole = b.convert("fptosi", n, "i64")
    half = b.binary("ashr", whole, b.like(1, whole))
    return value * _power_of_two(half) * _power_of_two(whole - half)


def _reduce_exp(x: Value) -> Pair:
    """(n, r): x = n ln 2 + r with integral n and |r| <= ln 2 / 2."""
    b = x.b
    n = b.intrinsic("roundeven", x * LOG2_E)
    return n, b.fma(n, -LN2_LOW, b.fma(n, -LN2_HIGH, x))


def _exp_parts(x: Value, low: Value | None = None) -> Pair:
    """(n, m): e^(x + low) = 2^n m, for -1500 < x < 1500."""
    n, r = _reduce_exp(x)
    if low is not None:
        r = r + low
    return n, r.b.fma(r * r, horner(r, EXP), r) + 1.0


def exp(x: Value) -> Value:
    """e^x; 1 ulp."""
    n, power = _exp_parts(clamp(x, -746.0, 710.0))
    return scaled(power, n)


def _half_exp(size: Value) -> Value:
    """e^x / 2 for x >= 0: finite where e^x itself is not."""
    n, power = _exp_parts(clamp(size, 0.0, 711.0))
    return scaled(power, n - 1.0)


def exp2(x: Value) -> Value:
    """2^x; 1 ulp."""
    b = x.b
    x = clamp(x, -1076.0, 1025.0)
    n = b.intrinsic("roundeven", x)
    high, low = product(x - n, b.like(math.log(2), x))
    low = b.fma(x - n, 2.3190468138462996e-17, low)  # ln 2 as a pair
    r = high + low
    return scaled(b.fma(r * r, horner(r, EXP), r) + 1.0, n)


def expm1(x: Value) -> Value:
    """e^x - 1; 1.1 ulp."""
    b = x.b
    x = clamp(x, -40.0, 710.0)
    n = b.intrinsic("roundeven", x * LOG2_E)
    near = b.fma(n, -LN2_HIGH, x)
    r = b.fma(n, -LN2_LOW, near)
    p, low = ordered_sum(r, r * r * horner(r, EXP))
    low = low + b.fma(n, -LN2_LOW, near - r)
    scale = _power_of_two(b.convert("fptosi", n, "i64") - 1)  # half of 2^n: n may be 1024
    high, more = ordered_sum(scale - 0.5, scale * p)
    result = (high + b.fma(scale, low, more)) * 2.0
    return with_sign(b.select(b.compare("fcmp oeq", n, 0.0), p + low, result), x)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent; 1.5 ulp: t / (t + 2) with t = e^(2|x|) - 1, and what rounding lost of the quotient."""
    b = x.b
    grown = expm1(clamp(absolute(x) * 2.0, 0.0, 50.0))
    divisor = grown + 2.0
    lost = b.select(b.compare("fcmp olt", grown, 2.0), grown - (divisor - 2.0), 2.0 - (divisor - grown))
    quotient = grown / divisor
    rest = b.fma(-quotient, divisor, grown) - quotient * lost
    return with_sign(quotient + rest / divisor, x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), eager's formula; 2.5 ulp for x > -709, below which e^-x is infinite and the result 0."""
    return 1.0 / (exp(-x) + 1.0)


def sinh(x: Value) -> Value:
    """Hyperbolic sine; 2.1 ulp."""
    b = x.b
    size = absolute(x)
    grown = expm1(clamp(size, 0.0, 40.0))
    small = (grown + grown / (grown + 1.0)) * 0.5
    return with_sign(b.select(b.compare("fcmp ogt", size, 22.0), _half_exp(size), small), x)


def cosh(x: Value) -> Value:
    """Hyperbolic cosine; 1.5 ulp."""
    half = _half_exp(absolute(x))
    return half + 0.25 / half


# ---- logarithms ----------------------------------------------------------------------------------------------------


def _split(x: Value) -> Pair:
    """(e, f): x = 2^e (1 + f), 1 + f in [sqrt 1/2, sqrt 2), for positive finite x; e is a double."""
    b = x.b
    tiny = b.compare("fcmp olt", x, 2.2250738585072014e-308)  # subnormals are scaled up first
    bits = b.bitcast(b.select(tiny, x * 2.0**54, x), "i64")
    shifted = bits + (ONE - ROOT_HALF)
    exponent = b.convert("sitofp", b.binary("ashr", shifted, b.like(52, shifted)) - 1023, "double")
    mantissa = b.bitcast((shifted & FRACTION) + ROOT_HALF, "double")
    return b.select(tiny, exponent - 54.0, exponent), mantissa - 1.0


def _log1p_tail(f: Value) -> Value:
    """log(1 + f) - f = s (f^2 / 2 + z P(z)) - f^2 / 2 with s = f / (2 + f), z = s^2."""
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    return f.b.fma(s, half_square + z * horner(z, ATANH), -half_square)


def log(x: Value) -> Value:
    """Natural logarithm; 1 ulp."""
    b = x.b
    e, f = _split(x)
    return log_specials(x, b.fma(e, LN2_HIGH, f + b.fma(e, LN2_LOW, _log1p_tail(f))))


def log1p(x: Value) -> Value:
    """log(1 + x); 1 ulp."""
    b = x.b
    u = x + 1.0
    # What rounding 1 + x lost; nothing is lost in the other direction once x > 1.
    lost = b.select(b.compare("fcmp olt", x, 1.0), x - (u - 1.0), 1.0 - (u - x))
    e, f = _split(u)
    lost = lost * _power_of_two(-b.convert("fptosi", clamp(e, -1000.0, 1000.0), "i64"))
    low = b.fma(e, LN2_LOW, _log1p_tail(f) + lost / (f + 1.0))
    result = log_specials(u, b.fma(e, LN2_HIGH, f + low))
    return b.select(b.compare("fcmp olt", absolute(x), 2.0**-54), x, result)


def _log_base(x: Value, factor: float, factor_low: float, of_two: float, of_two_low: float) -> Value:
    """log(x) · factor, all factors as pairs; `of_two`: the result for 2."""
    b = x.b
    e, f = _split(x)
    main, lost = product(f, b.like(factor, f))
    low = b.fma(f, factor_low, _log1p_tail(f) * factor) + lost
    return log_specials(x, b.fma(e, of_two, main + b.fma(e, of_two_low, low)))


def log2(x: Value) -> Value:
    """Base-2 logarithm; 1.2 ulp."""
    return _log_base(x, LOG2_E, LOG2_E_LOW, 1.0, 0.0)


def log10(x: Value) -> Value:
    """Base-10 logarithm; 1 ulp."""
    return _log_base(x, LOG10_E, LOG10_E_LOW, LOG10_2_HIGH, LOG10_2_LOW)


def asinh(x: Value) -> Value:
    """Inverse hyperbolic sine; 1.8 ulp."""
    b = x.b
    size = absolute(x)
    square = size * size
    near = log1p(size + square / (b.intrinsic("sqrt", square + 1.0) + 1.0))
    far = log(size) + math.log(2)
    return with_sign(b.select(b.compare("fcmp ogt", size, 2.0**28), far, near), x)


def acosh(x: Value) -> Value:
    """Inverse hyperbolic cosine; 1.9 ulp."""
    b = x.b
    t = x - 1.0
    near = log1p(t + b.intrinsic("sqrt", b.fma(t, t, t + t)))
    result = b.select(b.compare("fcmp ogt", x, 2.0**28), log(x) + math.log(2), near)
    return b.select(b.compare("fcmp olt", x, 1.0), math.nan, result)


def atanh(x: Value) -> Value:
    """Inverse hyperbolic tangent; 1.7 ulp."""
    b = x.b
    size = absolute(x)
    twice = size + size
    result = log1p(b.fma(twice, size / (1.0 - size), twice)) * 0.5
    result = b.select(b.compare("fcmp oeq", size, 1.0), math.inf, result)
    return with_sign(b.select(b.compare("fcmp ogt", size, 1.0), math.nan, result), x)


# ---- powers --------------------------------------------------------------------------------------------------------


def _log_pair(x: Value) -> Pair:
    """log(x) as a pair, of some 65 bits."""
    b = x.b
    e, f = _split(x)
    divisor, divisor_low = ordered_sum(b.like(2.0, f), f)
    s = f / divisor
    s_low = (b.fma(-s, divisor, f) - s * divisor_low) / divisor
    z, z_low = product(s, s)
    z_low = b.fma(s + s, s_low, z_low)
    # 2s + s z (2/3 + z P(z))
    factor, factor_low = ordered_sum(b.like(TWO_THIRDS, f), z * horner(z, ATANH_REST))
    factor_low = factor_low + TWO_THIRDS_LOW
    cube, cube_low = product(z, factor)
    cube_low = cube_low + b.fma(z, factor_low, z_low * factor)
    rest, rest_low = product(s, cube)
    rest_low = rest_low + b.fma(s, cube_low, s_low * cube)
    high, low = ordered_sum(s + s, rest)
    low = low + (b.fma(s_low, 2.0, rest_low))
    high, more = ordered_sum(e * LN2_HIGH, high)
    return ordered_sum(high, more + b.fma(e, LN2_LOW, low))


def power(x: Value, y: Value, wide: bool = True) -> Value:
    """x^y; 1.2 ulp. Without `wide`, of float32 numbers, as near as is enough for one."""
    b = x.b
    size = absolute(x)
    if wide:
        high, low = _log_pair(size)
        exponent, rest = product(y, high)
        rest = b.fma(y, low, rest)
        bounded = b.compare("fcmp olt", absolute(exponent), 800.0)
        n, m = _exp_parts(clamp(exponent, -800.0, 800.0), b.select(bounded, rest, 0.0))
    else:
        n, m = _exp_parts(clamp(y * log(size), -800.0, 800.0))
    return _power_specials(x, y, scaled(m, n))


def _power_specials(x: Value, y: Value, result: Value) -> Value:
    """The values of x^y where a formula with log |x| gives |x|^y, or nothing."""
    b = x.b
    size = absolute(x)
    falls = b.compare("fcmp olt", y, 0.0)
    result = b.select(b.compare("fcmp oeq", size, 0.0), b.select(falls, b.like(math.inf, x), 0.0), result)
    result = b.select(b.compare("fcmp oeq", size, math.inf), b.select(falls, b.like(0.0, x), math.inf), result)
    result = b.select(b.compare("fcmp oeq", size, 1.0), 1.0, result)
    whole = b.compare("fcmp oeq", b.intrinsic("trunc", y), y)
    half = y * 0.5
    odd = whole & b.compare("fcmp une", b.intrinsic("trunc", half), half)
    result = b.select(odd, with_sign(result, x), result)
    inner = b.compare("fcmp olt", x, 0.0) & b.compare("fcmp ogt", x, -math.inf)
    result = b.select(inner & (whole ^ -1), math.nan, result)
    result = b.select(b.compare("fcmp uno", x, y), math.nan, result)
    return b.select(b.compare("fcmp oeq", y, 0.0) | b.compare("fcmp oeq", x, 1.0), 1.0, result)


def hypot(x: Value, y: Value) -> Value:
    """sqrt(x² + y²); 1 ulp."""
    b = x.b
    x, y = absolute(x), absolute(y)
    swapped = b.compare("fcmp olt", x, y)
    large, small = b.select(swapped, y, x), b.select(swapped, x, y)
    up, down = b.compare("fcmp olt", large, 2.0**-400), b.compare("fcmp ogt", large, 2.0**500)
    factor = b.select(down, 2.0**-600, b.select(up, 2.0**600, b.like(1.0, x)))
    back = b.select(down, 2.0**600, b.select(up, 2.0**-600, b.like(1.0, x)))
    large, small = large * factor, small * factor
    square, rest = product(large, large)
    root = b.intrinsic("sqrt", square + b.fma(small, small, rest)) * back
    infinite = b.compare("fcmp oeq", x, math.inf) | b.compare("fcmp oeq", y, math.inf)
    root = b.select(b.compare("fcmp uno", x, y), math.nan, root)
    return b.select(infinite, math.inf, root)


# ---- errors of the normal distribution -----------------------------------------------------------------------------


def _erf_small(x: Value) -> Value:
    """erf(x) for |x| < 0.9."""
    return x.b.fma(x, horner(x * x, ERF), x)


def _erfc_large(size: Value) -> Value:
    """erfc(x) for x > 0.4."""
    b = size.b
    size = clamp(size, 0.4, 28.0)
    square, low = product(size, size)
    n, power_ = _exp_parts(-square, -low)
    ratio = (size - 4.0) / (size + 4.0)
    return scaled(power_ * (horner(ratio, ERFC) / b.fma(size, 2.0, 1.0)), n)


def erf(x: Value) -> Value:
    """Error function; 1 ulp."""
    b = x.b
    size = absolute(x)
    large = with_sign(1.0 - _erfc_large(size), x)
    return b.select(b.compare("fcmp ogt", size, 0.9), large, _erf_small(x))


def erfc(x: Value) -> Value:
    """1 - erf(x); 3.5 ulp."""
    b = x.b
    size = absolute(x)
    large = _erfc_large(size)
    large = b.select(b.compare("fcmp olt", x, 0.0), 2.0 - large, large)
    return b.select(b.compare("fcmp ogt", size, 0.5), large, 1.0 - _erf_small(x))


# ---- inverses of the trigonometric functions -----------------------------------------------------------------------


def _arc(t: Value, coefficients: tuple[float, ...], low: Operand = 0.0) -> Pair:
    """(t, rest): the sum is t + low + t z P(z), z = t^2."""
    z = t * t
    return t, t.b.fma(t * z, horner(z, coefficients), low)


def atan(x: Value) -> Value:
    """Inverse tangent; 1.5 ulp."""
    b = x.b
    size = absolute(x)
    large = b.compare("fcmp ogt", size, 1.0)
    t, rest = _arc(b.select(large, 1.0 / size, size), ATAN)
    angle = t + rest
    return with_sign(b.select(large, HALF_PI - (angle - HALF_PI_LOW), angle), x)


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y); 1.5 ulp."""
    b = x.b
    width, height = absolute(x), absolute(y)
    steep = b.compare("fcmp ogt", height, width)
    ratio = b.select(steep, width, height) / b.select(steep, height, width)
    ratio = b.select(b.compare("fcmp oeq", width, height), 1.0, ratio)  # both may be infinite
    ratio = b.select(b.compare("fcmp oeq", b.select(steep, height, width), 0.0), 0.0, ratio)
    t, rest = _arc(ratio, ATAN)
    angle = t + rest
    angle = b.select(steep, HALF_PI - (angle - HALF_PI_LOW), angle)
    left = b.compare("icmp slt", b.bitcast(x, "i64"), 0)
    angle = b.select(left, 2 * HALF_PI - (angle - 2 * HALF_PI_LOW), angle)
    return b.select(b.compare("fcmp uno", x, y), math.nan, with_sign(angle, y))


def _arc_of_root(size: Value) -> Pair:
    """asin(sqrt((1 - x) / 2)) for x >= 1/2, as a sum."""
    b = size.b
    z = (1.0 - size) * 0.5
    root = b.intrinsic("sqrt", z)
    lost = b.fma(-root, root, z) / (root + root)
    return _arc(root, ASIN, b.select(b.compare("fcmp oeq", z, 0.0), 0.0, lost))


def asin(x: Value) -> Value:
    """Inverse sine; 1.6 ulp."""
    b = x.b
    size = absolute(x)
    t, rest = _arc(size, ASIN)
    root, more = _arc_of_root(size)
    far = (HALF_PI - (root + root)) - (more * 2.0 - HALF_PI_LOW)
    return with_sign(b.select(b.compare("fcmp olt", size, 0.5), t + rest, far), x)


def acos(x: Value) -> Value:
    """Inverse cosine; 1.1 ulp."""
    b = x.b
    size = absolute(x)
    t, rest = _arc(x, ASIN)
    near = HALF_PI - (t - (HALF_PI_LOW - rest))
    root, more = _arc_of_root(size)
    angle = (root + more) * 2.0
    far = b.select(b.compare("fcmp olt", x, 0.0), 2 * HALF_PI - (angle - 2 * HALF_PI_LOW), angle)
    return b.select(b.compare("fcmp olt", size, 0.5), near, far)
