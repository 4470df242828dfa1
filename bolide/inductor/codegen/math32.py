"""float32 mathematics on LLVM vectors: polynomial kernels in round-to-nearest, no fast-math, with all special values.

Coefficients are float32 minimax fits printed by ``tools/minimax.py``. The bounds in the docstrings are largest errors
in units in the last place (ulp) against float64, over all inputs with a finite result;
``tests/correctness/kernels/test_codegen_math.py`` sweeps them.
Every function takes and gives values of scalar type ``float`` with any number of lanes.
"""

from __future__ import annotations

import math

from bolide.inductor.codegen.builder import Operand, Value, to_float32

EXP = (0.5, 0.16666509211063385, 0.041666366159915924, 0.008370100520551205, 0.0013943960657343268)
LOG = (
    0.3333331048488617,
    -0.24999994039535522,
    0.20002201199531555,
    -0.1666865199804306,
    0.14218731224536896,
    -0.1239616870880127,
    0.11885220557451248,
    -0.11721846461296082,
    0.06803017854690552,
)
ERF_SMALL = (
    0.12837916612625122,
    -0.3761262893676758,
    0.11283625662326813,
    -0.02685573138296604,
    0.005192405078560114,
    -0.0008049769676290452,
    7.996649947017431e-05,
)
ERF_LARGE = (
    -1.128551721572876,
    -0.635625422000885,
    -0.10526234656572342,
    0.02267369069159031,
    -0.002929828828200698,
    4.9446640332462266e-05,
    4.5613294787472114e-05,
    -4.941268343827687e-06,
)
ERF_OVER = (1.1283791065216064, 0.18971458077430725, 0.05149790644645691, 0.00358091713860631, 0.00023037244682200253)
ERF_UNDER = (
    1.0,
    0.5014625787734985,
    0.11279778927564621,
    0.014426200650632381,
    0.0010537538910284638,
    2.3158974727266468e-05,
    -1.1220909357234632e-07,
)
LOG2_ERFC = (
    -1.6279085874557495,
    -0.918416440486908,
    -0.14848147332668304,
    0.02825346030294895,
    -0.0007744223694317043,
    -0.00148956838529557,
    0.0004455549642443657,
    -4.536640699370764e-05,
)
TANH_SMALL = (
    -0.3333331346511841,
    0.13332436978816986,
    -0.053835757076740265,
    0.021000375971198082,
    -0.006169613916426897,
)
LOG2_E = 1.4426950408889634
WHOLE = 1.5 * 2**23 + 127  # sums of float32s with it are integers, which lie in their lowest bits; 127: `_exp_by_exp2`
LN2_HIGH = 0.693145751953125  # 15 bits: n * LN2_HIGH is exact for |n| < 512
LN2_LOW = 1.428606765330187e-06


def quotient(a: Operand, d: Value) -> Value:
    """a / d; of float32 on a GPU, where d is at least 1, 2 ulp: the product with its approximation of 1 / d."""
    b = d.b
    if not b.target.triple or d.scalar != "float":
        return b.like(a, d) / d
    # A quarter, twice: the largest denominators have subnormal inverses, which the approximation takes for 0.
    inverse = _approximate("rcp.approx.ftz.f", d * 0.25) * 0.25
    return inverse if a == 1.0 else inverse * a


def _approximate(name: str, x: Value) -> Value:
    """An instruction of GPUs for one float32, on all lanes. Subnormal numbers are 0 to it."""
    b, results = x.b, Value(x.b, "poison", "float", x.lanes)
    for lane in range(x.lanes):
        result = b.call(f"llvm.nvvm.{name}", (b.extract(x, lane),), "float")
        results = b.insert(results, result, lane) if x.lanes > 1 else result
    return results


def horner(x: Value, coefficients: tuple[float, ...]) -> Value:
    """c0 + x (c1 + x (c2 + …)) in fused multiply-adds."""
    result = x.b.const(coefficients[-1], x.scalar, x.lanes)
    for coefficient in reversed(coefficients[:-1]):
        result = x.b.fma(result, x, coefficient)
    return result


def _power_of_two(n: Value) -> Value:
    """2^n for an integer vector with -126 <= n <= 127."""
    b = n.b
    return b.bitcast((n + 127) << 23, "float")


def _scaled(value: Value, n: Value) -> Value:
    """value · 2^n for integral -160 <= n <= 130, correct also where 2^n or the result is not a normal number."""
    b = value.b
    if b.target.scales and value.lanes > 1:

        def scale(a: Value, e: Value) -> Value:
            always, nearest = b.const(-1, "i16"), b.const(4, "i32")
            return b.call("llvm.x86.avx512.mask.scalef.ps.512", (a, e, a, always, nearest), "float", 16)

        return b.in_chunks(scale, 16, (value, n))
    # In two steps. NaN makes the integer meaningless, but then the value is NaN, too.
    whole = b.convert("fptosi", n, "i32")
    half = b.binary("ashr", whole, b.like(1, whole))
    return value * _power_of_two(half) * _power_of_two(whole - half)


def clamp(x: Value, low: float, high: float) -> Value:
    """x limited to [low, high]; NaN stays NaN."""
    b = x.b
    if b.target.triple and x.scalar == "float":  # an instruction each
        return b.intrinsic("minimum", b.intrinsic("maximum", x, b.like(low, x)), b.like(high, x))
    x = b.select(b.compare("fcmp olt", x, low), low, x)
    return b.select(b.compare("fcmp ogt", x, high), high, x)


def _reduce_exp(x: Value) -> tuple[Value, Value]:
    """(n, r): x = n ln 2 + r with integral n and |r| <= ln 2 / 2."""
    b = x.b
    n = b.intrinsic("roundeven", x * LOG2_E)
    return n, b.fma(n, -LN2_LOW, b.fma(n, -LN2_HIGH, x))


def _exp_scaled(n: Value, r: Value) -> Value:
    """2^n e^r."""
    return _scaled(r.b.fma(r * r, horner(r, EXP), r) + 1.0, n)


def exp(x: Value) -> Value:
    """e^x; 1.04 ulp, also where the result is subnormal. (On a GPU 1 ulp, and that of its 2^x.)"""
    if x.b.target.triple:
        return _exp_by_exp2(x)
    return _exp_scaled(*_reduce_exp(clamp(x, -104.0, 89.0)))


def _exp_by_exp2(x: Value) -> Value:
    """e^x = 2^n 2^rest, where n is an integer near x log2 e, the exponent of a normal number, and rest is what is left
    of x log2 e. The lowest bits of `whole` are n + 127: shifted, they are the float32 2^n."""
    b = x.b
    whole = b.fma(clamp(x, -87.0, 88.0), LOG2_E, WHOLE)
    n = whole - WHOLE
    rest = b.fma(x, LOG2_E - to_float32(LOG2_E), b.fma(x, LOG2_E, -n))
    return _approximate("ex2.approx.ftz.f32", rest) * b.bitcast(b.bitcast(whole, "i32") << 23, "float")


def exp_term(x: Value) -> Value:
    """e^x for x <= 0, on a GPU within 1.25 |x| + 3 units of 2^-24, a third of the work of `exp`."""
    return _approximate("ex2.approx.ftz.f32", x * LOG2_E) if x.b.target.triple else exp(x)


def expm1(x: Value) -> Value:
    """e^x - 1; 1.6 ulp."""
    b = x.b
    n, r = _reduce_exp(clamp(x, -18.0, 89.0))
    p = b.fma(r * r, horner(r, EXP), r)
    # Half of 2^n keeps n = 128 in range; for n = 0 the result is p itself (halving a subnormal would lose bits).
    scale = _power_of_two(b.convert("fptosi", n, "i32") - 1)
    result = b.fma(scale, p, scale - 0.5) * 2.0
    return b.intrinsic("copysign", b.select(b.compare("fcmp oeq", n, 0.0), p, result), x)  # for -0.0


def exp2(x: Value) -> Value:
    """2^x; 1.2 ulp."""
    b = x.b
    x = clamp(x, -151.0, 129.0)
    n = b.intrinsic("roundeven", x)
    # The fraction is exact; times ln 2 as a sum of two numbers.
    f = x - n
    high = f * LN2_HIGH
    return _exp_scaled(n, b.fma(f, LN2_LOW, high))


def _split_log(x: Value) -> tuple[Value, Value]:
    """(e, f): x = 2^e (1 + f), 1 + f in [sqrt 1/2, sqrt 2), for positive finite x; e is a float."""
    b = x.b
    tiny = b.compare("fcmp olt", x, 1.1754943508222875e-38)  # subnormals are scaled up first
    scaled = b.select(tiny, x * 8388608.0, x)
    bits = b.bitcast(scaled, "i32")
    # Adding the distance from sqrt 1/2 to 1 moves the cut between exponents to sqrt 1/2.
    shifted = bits + (0x3F800000 - 0x3F3504F3)
    exponent = b.convert("sitofp", b.binary("ashr", shifted, b.like(23, shifted)) - 127, "float")
    mantissa = b.bitcast((shifted & 0x007FFFFF) + 0x3F3504F3, "float")
    return b.select(tiny, exponent - 23.0, exponent), mantissa - 1.0


def log_specials(x: Value, result: Value) -> Value:
    """log's values at 0, infinity, NaN and below zero."""
    b = x.b
    result = b.select(b.compare("fcmp ult", x, math.inf), result, x)  # inf -> inf; NaN falls through the next lines
    result = b.select(b.compare("fcmp ult", x, 0.0), math.nan, result)
    return b.select(b.compare("fcmp oeq", x, 0.0), -math.inf, result)


def _log1p_tail(f: Value) -> Value:
    """log(1 + f) - f."""
    b = f.b
    square = f * f
    return b.fma(square * f, horner(f, LOG), square * -0.5)


def log(x: Value) -> Value:
    """Natural logarithm; 1 ulp."""
    e, f = _split_log(x)
    low = x.b.fma(e, LN2_LOW, _log1p_tail(f))
    return log_specials(x, x.b.fma(e, LN2_HIGH, f + low))


def log1p(x: Value) -> Value:
    """log(1 + x); 1 ulp."""
    b = x.b
    u = x + 1.0
    # What rounding 1 + x lost, relative to u; nothing is lost in the other direction once x > 1.
    lost = b.select(b.compare("fcmp olt", x, 1.0), x - (u - 1.0), 1.0 - (u - x))
    e, f = _split_log(u)
    scale = _power_of_two(-b.convert("fptosi", clamp(e, -126.0, 126.0), "i32"))
    f_low = lost * scale
    tail = _log1p_tail(f)
    low = b.fma(e, LN2_LOW, tail + f_low / (f + 1.0))
    result = log_specials(u, b.fma(e, LN2_HIGH, f + low))
    # Tiny x (also -0.0) is its own log1p.
    return b.select(b.compare("fcmp olt", b.intrinsic("fabs", x), 2.0**-25), x, result)


def _log_base(x: Value, factor: float, exponent_high: float, exponent_low: float) -> Value:
    """log(x) · factor; the exponent's factor, log(2) · factor, is given as a sum of two float32 numbers."""
    b = x.b
    high = to_float32(factor)
    e, f = _split_log(x)
    low = b.fma(f, factor - high, _log1p_tail(f) * high)
    if exponent_low:
        low = b.fma(e, exponent_low, low)
    main = f * high
    low = low + b.fma(f, high, -main)  # what rounding lost of the product
    return log_specials(x, b.fma(e, exponent_high, main + low))


def log2(x: Value) -> Value:
    """Base-2 logarithm; 1.1 ulp."""
    return _log_base(x, LOG2_E, 1.0, 0.0)


def log10(x: Value) -> Value:
    """Base-10 logarithm; 1.1 ulp."""
    return _log_base(x, 0.4342944819032518, 0.301025390625, 4.605038981195214e-06)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent; 1.5 ulp: a polynomial near zero, else 1 - 2 / (e^2|x| + 1)."""
    b = x.b
    square = x * x
    small = b.fma(x * square, horner(square, TANH_SMALL), x)
    size = b.intrinsic("fabs", x)
    is_large = b.compare("fcmp ogt", size, 0.55)
    size = b.select(b.compare("fcmp ogt", size, 10.0), 10.0, size)
    twice = size + size
    grown = _exp_by_exp2(twice) if b.target.triple else _exp_scaled(*_reduce_exp(twice))
    over = grown + 1.0
    large = 1.0 - (_approximate("rcp.approx.ftz.f", over) * 2.0 if b.target.triple else 2.0 / over)
    return b.intrinsic("copysign", b.select(is_large, large, small), x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), eager's formula; 2.5 ulp for x > -88.7, below which e^-x is infinite and the result 0."""
    return quotient(1.0, exp(-x) + 1.0)


def erf(x: Value) -> Value:
    """Error function; 1.1 ulp."""
    b = x.b
    small = b.fma(x, horner(x * x, ERF_SMALL), x)
    size = b.intrinsic("fabs", x)
    is_large = b.compare("fcmp ogt", size, 0.925)
    size = b.select(b.compare("fcmp ogt", size, 4.0), 4.0, size)
    power = size * horner(size, ERF_LARGE)
    large = 1.0 - (_exp_by_exp2(power) if b.target.triple else _exp_scaled(*_reduce_exp(power)))
    return b.select(is_large, b.intrinsic("copysign", large, x), small)


def erf_plus_1(x: Value) -> Value:
    """1 + erf(x), which is twice the normal distribution at x √2: within 2^-21 of it (not relative), exactly 0 and 2
    far out. x P(x^2) / Q(x^2), a third of the work of `erf`."""
    if x.b.target.triple:
        return _erf_plus_1_by_exp2(x)
    b = x.b
    x = clamp(x, -3.92, 3.92)
    square = x * x
    total = quotient(x * horner(square, ERF_OVER), horner(square, ERF_UNDER)) + 1.0
    total = b.select(b.compare("fcmp olt", total, 0.0), 0.0, total)
    return b.select(b.compare("fcmp ogt", total, 2.0), 2.0, total)


def _erf_plus_1_by_exp2(x: Value) -> Value:
    """Of e = 2^(|x| P(|x|)), the complement of erf |x|, e itself or 2 - e: within 2^-22, half the instructions of the
    quotient and its limits."""
    b = x.b
    size = b.intrinsic("fabs", x)
    rest = _approximate("ex2.approx.ftz.f32", size * horner(size, LOG2_ERFC))
    return b.select(b.compare("fcmp olt", x, 0.0), rest, 2.0 - rest)


def half_exp(size: Value) -> Value:
    """e^x / 2 for x >= 0: finite where e^x itself is not."""
    b = size.b
    n, r = _reduce_exp(b.select(b.compare("fcmp ogt", size, 90.0), 90.0, size))
    power = b.fma(r * r, horner(r, EXP), r) + 1.0
    return _scaled(power, n - 1.0)


INLINE = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "log2": log2,
    "log10": log10,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
}
