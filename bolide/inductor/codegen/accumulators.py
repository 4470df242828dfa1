"""Accumulators of reductions: what they start from, how two are joined, how lanes are joined in the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bolide.inductor.codegen.builder import FLOATS, Builder, Value
from bolide.inductor.codegen.scalars import REGISTER, UNSIGNED, minimum
from bolide.inductor.ir.loops import ReduceOp

NO_POSITION = (1 << 63) - 1

#: The values of one accumulator: (value,), or (value, position) for argmin/argmax.
Parts = tuple[Value, ...]


@dataclass(slots=True)
class Accumulator:
    """`parts[lanes]`: independent partial results; together they are the accumulator's value. `home`: lanes of the
    scope it was declared in.
    """

    op: ReduceOp
    dtype: torch.dtype
    home: int
    parts: dict[int, Parts]

    @property
    def blocked(self) -> bool:
        """Whether long loops should add up in blocks, to keep the rounding error small."""
        return self.op == "sum" and self.dtype.is_floating_point


def identity(b: Builder, op: ReduceOp, dtype: torch.dtype, lanes: int) -> Parts:
    """What a reduction over nothing gives (for min, max, argmin, argmax: what everything else beats)."""
    kind = REGISTER[dtype]
    if op in ("sum", "xor", "any"):
        return (b.const(0, kind, lanes),)
    if op in ("prod", "all"):
        return (b.const(1, kind, lanes),)
    largest: float
    smallest: float
    if kind in FLOATS:
        largest, smallest = math.inf, -math.inf
    elif dtype in UNSIGNED:
        largest, smallest = (1 << _bits(kind)) - 1, 0
    else:
        largest, smallest = (1 << (_bits(kind) - 1)) - 1, -(1 << (_bits(kind) - 1))
    start = b.const(largest if op.endswith("min") else smallest, kind, lanes)
    if op in ("argmin", "argmax"):
        return (start, b.const(NO_POSITION, "i64", lanes))
    return (start,)


def _bits(kind: str) -> int:
    return int(kind[1:])


def join(op: ReduceOp, dtype: torch.dtype, left: Parts, right: Parts) -> Parts:
    """Both together; `right` comes later in order."""
    a, c = left[0], right[0]
    b = a.b
    if op == "sum":
        return (a + c,)
    if op == "prod":
        return (a * c,)
    if op in ("any", "all", "xor"):
        return (b.binary({"any": "or", "all": "and", "xor": "xor"}[op], a, c),)
    if op in ("min", "max"):
        return (minimum(op, a, c, dtype),)
    chosen = _wins(op, dtype, left, right)
    return (b.select(chosen, c, a), b.select(chosen, right[1], left[1]))


def _wins(op: ReduceOp, dtype: torch.dtype, left: Parts, right: Parts) -> Value:
    """Whether `right` is the one argmin/argmax wants: better, or NaN against a number, or as good at a smaller
    position.
    """
    a, c = left[0], right[0]
    b = a.b
    earlier = b.compare("icmp slt", right[1], left[1])
    if c.scalar in FLOATS:
        nan_a, nan_c = b.compare("fcmp uno", a, a), b.compare("fcmp uno", c, c)
        better = b.compare(f"fcmp {'olt' if op == 'argmin' else 'ogt'}", c, a)
        better = better | (nan_c & (nan_a ^ -1))
        equal = b.compare("fcmp oeq", a, c) | (nan_a & nan_c)
    else:
        sign = "u" if dtype in UNSIGNED else "s"
        better = b.compare(f"icmp {sign}{'lt' if op == 'argmin' else 'gt'}", c, a)
        equal = b.compare("icmp eq", a, c)
    return better | (equal & earlier)


def across_lanes(op: ReduceOp, dtype: torch.dtype, parts: Parts) -> Parts:
    """One lane from many: halves are joined until one is left."""
    lanes = parts[0].lanes
    while lanes > 1:
        lanes //= 2
        low, high = _half(parts, 0, lanes), _half(parts, lanes, lanes)
        parts = join(op, dtype, low, high)
    return parts


def _half(parts: Parts, start: int, lanes: int) -> Parts:
    if lanes == 1:
        return tuple(part.b.extract(part, start) for part in parts)
    return tuple(part.b.shuffle(part, list(range(start, start + lanes))) for part in parts)
