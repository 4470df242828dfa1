"""Random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

Block j of the draw `counter` has the counter words (low j, high j, low counter, high counter) and the seed's two words
as its key. ``rand`` of element i takes (word i mod 4 >> 8) · 2^-24 of block i div 4; ``randn`` is Box-Muller's of words
0 and 1 of block i. `bolide.tracing`'s eager implementations give the same numbers.
"""

from __future__ import annotations

import math

from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.math32 import log
from bolide.inductor.codegen.math_calls import elementary

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF


def _halves(value: Value) -> tuple[Value, Value]:
    """The low and the high 32 bits of 64."""
    b = value.b
    return b.convert("trunc", value, "i32"), b.convert("trunc", b.binary("lshr", value, b.like(32, value)), "i32")


def _multiply(word: Value, factor: int) -> tuple[Value, Value]:
    b = word.b
    return _halves(b.convert("zext", word, "i64") * factor)


def _words(seed: Value, counter: int, block: Value) -> tuple[Value, Value, Value, Value]:
    """The words of each block (i64)."""
    if block.lanes > 1 and not block.b.target.triple:
        return _wide_words(seed, counter, block)
    b: Builder = block.b
    lanes = block.lanes
    c0, c1 = _halves(block)
    c2, c3 = b.const(counter & MASK, "i32", lanes), b.const(counter >> 32, "i32", lanes)
    k0, k1 = (b.splat(half, lanes) if lanes > 1 else half for half in _halves(seed))
    for number in range(ROUNDS):
        low0, high0 = _multiply(c0, MULTIPLIERS[0])
        low1, high1 = _multiply(c2, MULTIPLIERS[1])
        key0 = k0 + (number * WEYL[0] & MASK) if number else k0
        key1 = k1 + (number * WEYL[1] & MASK) if number else k1
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
    return c0, c1, c2, c3


def _wide_words(seed: Value, counter: int, block: Value) -> tuple[Value, Value, Value, Value]:
    """The same for vectors of a CPU, which multiply the lower halves of 64 bits: words stay there, and what is above
    them means nothing. Narrowed in every round they would take twice the time."""
    b, lanes = block.b, block.lanes
    c0, c1 = block, b.binary("lshr", block, b.like(32, block))
    c2, c3 = b.const(counter & MASK, "i64", lanes), b.const(counter >> 32, "i64", lanes)
    k0, k1 = seed, b.binary("lshr", seed, b.like(32, seed))
    for number in range(ROUNDS):
        product0, product1 = (c0 & MASK) * MULTIPLIERS[0], (c2 & MASK) * MULTIPLIERS[1]
        high0, high1 = (b.binary("lshr", product, b.like(32, product)) for product in (product0, product1))
        key0, key1 = (b.splat(key + number * step, lanes) for key, step in ((k0, WEYL[0]), (k1, WEYL[1])))
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, product1, high0 ^ c3 ^ key1, product0
    first, second, third, fourth = (b.convert("trunc", word, "i32") for word in (c0, c1, c2, c3))
    return first, second, third, fourth


def _unit(word: Value, plus: int = 0) -> Value:
    """((word >> 8) + plus) · 2^-24"""
    b = word.b
    top = b.binary("lshr", word, b.like(8, word))
    return b.convert("sitofp", top + plus if plus else top, "float") * 2.0**-24


def philox_uniform(seed: Value, counter: int, element: Value) -> Value:
    """A float32 in [0, 1) for each element number (i64)."""
    b = element.b
    first, *others = _words(seed, counter, b.binary("lshr", element, b.like(2, element)))
    place = b.convert("trunc", element, "i32") & 3
    word = first
    for number, other in enumerate(others, 1):
        word = b.select(b.compare("icmp eq", place, number), other, word)
    return _unit(word)


def philox_uniforms(seed: Value, counter: int, first: Value, lanes: int) -> Value:
    """The same for so many elements (a multiple of 4) from the one with this number on, which is a multiple of 4."""
    b, blocks = first.b, lanes // 4
    number = b.splat(b.binary("lshr", first, b.const(2, "i64")), blocks)
    words = _words(seed, counter, number + b.lane_numbers("i64", blocks) if blocks > 1 else number)
    result = Value(b, "poison", "i32", lanes)
    if blocks == 1:
        for lane, word in enumerate(words):
            result = b.insert(result, word, lane)
        return _unit(result)
    pairs = b.concat(words[0], words[1]), b.concat(words[2], words[3])
    order = [lane % 4 * blocks + lane // 4 for lane in range(lanes)]
    return _unit(b.shuffle(pairs[0], order, pairs[1].text))


def philox_normal(seed: Value, counter: int, element: Value) -> Value:
    """A standard normal float32 for each element number (i64): sqrt(-2 ln u1) cos(2 pi u2)."""
    w0, w1, _, _ = _words(seed, counter, element)
    radius = w0.b.intrinsic("sqrt", log(_unit(w0, 1)) * -2.0)
    return radius * elementary("cos", _unit(w1) * (2 * math.pi))
