"""Accumulators of reductions: what they start from, how two are joined, how lanes are joined in the end."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bolide.inductor.codegen.builder import FLOATS, Builder, Value
from bolide.inductor.codegen.instructions import INSTRUCTIONS, REGISTER, compare
from bolide.inductor.ir.loops import ReduceOp
from bolide.inductor.ir.scalar_ops import JOINED_BY, identity

NO_POSITION = (1 << 63) - 1

#: The values of one accumulator: (value,), or (value, position) for argmin/argmax.
Parts = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """`home`: lanes of the block it was declared in. Its value is in partial results, one for each number of lanes that
    it is updated with."""

    op: ReduceOp
    dtype: torch.dtype
    home: int

    @property
    def blocked(self) -> bool:
        """Whether long loops should add up in blocks, to keep the rounding error small."""
        return self.op == "sum" and self.dtype.is_floating_point

    def initial(self, b: Builder, lanes: int) -> Parts:
        """What a reduction over nothing gives."""
        start = b.const(identity(self.op, self.dtype), REGISTER[self.dtype], lanes)
        return (start, b.const(NO_POSITION, "i64", lanes)) if self.op in ("argmin", "argmax") else (start,)

    def join(self, left: Parts, right: Parts) -> Parts:
        """Both together; `right` comes later in order."""
        a, c = left[0], right[0]
        if self.op in JOINED_BY:
            return (INSTRUCTIONS[JOINED_BY[self.op]](self.dtype, a, c),)
        chosen = self._wins(left, right)
        return (a.b.select(chosen, c, a), a.b.select(chosen, right[1], left[1]))

    def _wins(self, left: Parts, right: Parts) -> Value:
        """Whether `right` is the one argmin/argmax wants: better, or NaN against a number, or as good at a smaller
        position."""
        a, c = left[0], right[0]
        b = a.b
        earlier = b.compare("icmp slt", right[1], left[1])
        order = "lt" if self.op == "argmin" else "gt"
        if c.scalar in FLOATS:
            nan_a, nan_c = b.compare("fcmp uno", a, a), b.compare("fcmp uno", c, c)
            better = compare(order, self.dtype, c, a) | (nan_c & (nan_a ^ -1))
            equal = b.compare("fcmp oeq", a, c) | (nan_a & nan_c)
        else:
            better, equal = compare(order, self.dtype, c, a), b.compare("icmp eq", a, c)
        return better | (equal & earlier)

    def across_lanes(self, parts: Parts) -> Parts:
        """One lane from many: halves are joined until one is left."""
        lanes = parts[0].lanes
        while lanes > 1:
            lanes //= 2
            parts = self.join(_half(parts, 0, lanes), _half(parts, lanes, lanes))
        return parts


def _half(parts: Parts, start: int, lanes: int) -> Parts:
    if lanes == 1:
        return tuple(part.b.extract(part, start) for part in parts)
    return tuple(part.b.shuffle(part, list(range(start, start + lanes))) for part in parts)
