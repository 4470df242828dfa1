"""Functions of floats that are exact: arithmetic on their bits. Values have one lane."""

from __future__ import annotations

import math

from bolide.inductor.codegen.builder import BITS, Value


def fraction_bits(scalar: str) -> int:
    """The bits behind the point of a mantissa."""
    return 23 if scalar == "float" else 52


def nextafter(x: Value, y: Value) -> Value:
    """The number next to x in the direction of y."""
    b = x.b
    kind = f"i{BITS[x.scalar]}"
    bits = b.bitcast(x, kind)
    away = b.compare("fcmp ogt", y, x) ^ b.compare("fcmp olt", x, 0.0)
    step = b.bitcast(b.select(away, bits + 1, bits + -1), x.scalar)
    smallest = b.bitcast(b.like(1, bits), x.scalar)
    step = b.select(b.compare("fcmp oeq", x, 0.0), b.intrinsic("copysign", smallest, y), step)
    step = b.select(b.compare("fcmp oeq", x, y), y, step)
    return b.select(b.compare("fcmp uno", x, y), math.nan, step)


def _parts(size: Value) -> tuple[Value, Value]:
    """(m, e): a finite number that is not negative is m 2^e, up to a factor that all numbers share; both are i64."""
    b = size.b
    width = fraction_bits(size.scalar)
    bits = b.bitcast(size, f"i{BITS[size.scalar]}")
    bits = bits if bits.scalar == "i64" else b.convert("zext", bits, "i64")
    exponent = b.binary("lshr", bits, b.like(width, bits))
    fraction = bits & ((1 << width) - 1)
    subnormal = b.compare("icmp eq", exponent, 0)
    return b.select(subnormal, fraction, fraction | (1 << width)), b.select(subnormal, 1, exponent)


def fmod(x: Value, y: Value) -> Value:
    """The rest of x divided by y, with the sign of x; exact. The mantissa of x is divided by that of y; then zeros are
    drawn down, some at a time."""
    b = x.b
    room = 63 - (fraction_bits(x.scalar) + 1)  # bits that a rest can be shifted by
    size, divisor = b.intrinsic("fabs", x), b.intrinsic("fabs", y)
    (m, e), (d, f) = _parts(size), _parts(divisor)
    d = b.select(b.compare("icmp eq", d, 0), 1, d)
    left = e - f
    start, loop, after = b.block, b.new_label("rest"), b.new_label("done")
    first = b.binary("urem", m, d)
    entered = b.compare("icmp sgt", left, 0)
    b.branch(entered, loop, after)
    b.label(loop)
    rest, ticket = b.phi("i64", 1, first, start)
    todo, other = b.phi("i64", 1, left, start)
    now = b.select(b.compare("icmp slt", todo, room), todo, room)
    new = b.binary("urem", b.binary("shl", rest, now), d)
    remaining = todo - now
    b.close_phi(ticket, new, loop)
    b.close_phi(other, remaining, loop)
    b.branch(b.compare("icmp sgt", remaining, 0), loop, after)
    b.label(after)
    result = _value(b.merge(first, start, new, loop), f, x.scalar)
    # What is smaller than the divisor is its own rest.
    result = b.select(b.compare("fcmp olt", size, divisor), size, result)
    wrong = b.compare("fcmp oeq", divisor, 0.0) | b.compare("fcmp oeq", size, math.inf) | b.compare("fcmp uno", x, y)
    return b.select(wrong, math.nan, b.intrinsic("copysign", result, x))


def _value(m: Value, e: Value, scalar: str) -> Value:
    """The number m 2^e as `_parts` counts, where m < 2^(bits of a mantissa)."""
    b = m.b
    exact = b.convert("uitofp", m, "double")
    if scalar == "float":
        return b.convert("fptrunc", exact * b.bitcast((e + (1023 - 150)) << 52, "double"), "float")
    half = b.binary("lshr", e, b.like(1, e))
    # 2^(e - 1075) in two steps, both of which are normal.
    low, high = half + (1023 - 537), (e - half) + (1023 - 538)
    return exact * b.bitcast(low << 52, "double") * b.bitcast(high << 52, "double")
