"""Which axes of two index spaces are the same, given that certain coordinates are equal.

A coordinate such as ``128*b + t`` is a number written in mixed radix; its digits are the axes b and t. Two equal
coordinates have equal digits once axes are split so that the radices agree. The result is a
renaming of the right space's axes, and splits of axes on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from bolide.inductor.ir.definitions import axis_var
from bolide.inductor.schedule.stages import Space, is_one
from bolide.symbolic import Expr

ZERO = Expr.const(0)

Digit = tuple[str, Expr]  # axis and its extent


def _weight(coefficient: Expr) -> tuple[int, int]:
    """What orders the coefficients of digits by size: a product of more sizes is the larger one."""
    return max(((len(mono), c) for mono, c in coefficient.terms), default=(0, coefficient.offset))


class Unifier:
    """Collects equalities between coordinates of a left and a right space."""

    def __init__(self, left: Space, right: Space) -> None:
        self._extents: dict[str, Expr] = dict((*left, *right))
        self._sizes = frozenset().union(*(extent.free_vars for extent in self._extents.values()))
        self._splits: dict[str, tuple[Digit, Digit]] = {}
        self.pairs: dict[str, str] = {}  # right digit -> left digit
        self._paired_left: set[str] = set()

    def equate(self, left: Sequence[Expr], right: Sequence[Expr]) -> bool:
        """Notes that these coordinates are equal, one by one. False: no renaming of axes makes them so."""
        return all(self._match(self._digits(a), self._digits(b)) for a, b in zip(left, right))

    def equate_axes(self, left: Space, right: Space) -> bool:
        """Notes that two spaces of the same size are equal in row-major order, as far as they are not decided yet."""
        free_left = [d for axis in left for d in self._leaves(axis) if d[0] not in self._paired_left]
        free_right = [d for axis in right for d in self._leaves(axis) if d[0] not in self.pairs]
        return self._match(free_left, free_right)

    def axes(self, space: Space) -> set[str]:
        """The axes that a space consists of after splitting."""
        return {name for axis in space for name, _ in self._leaves(axis)}

    def leaves(self, space: Space) -> Space:
        """A space after splitting, under the left's names."""
        return tuple([(self.name(name), extent) for axis in space for name, extent in self._leaves(axis)])

    def substitution(self, space: Space) -> dict[str, Expr]:
        """What replaces the axes of a space: splits, then the left's names."""
        values = {name: self._value(name, extent) for name, extent in space}
        return {name: values[name] for name, extent in space if values[name] is not axis_var(name, extent)}

    def name(self, axis: str) -> str:
        """The left's name of a digit."""
        return self.pairs.get(axis, axis)

    def _value(self, name: str, extent: Expr) -> Expr:
        split = self._splits.get(name)
        if split is None:
            return axis_var(self.pairs.get(name, name), extent)
        (high, high_extent), (low, low_extent) = split
        return self._value(high, high_extent) * low_extent + self._value(low, low_extent)

    def _leaves(self, axis: Digit) -> list[Digit]:
        name, extent = axis
        if is_one(extent):
            return []
        split = self._splits.get(name)
        return [axis] if split is None else [*self._leaves(split[0]), *self._leaves(split[1])]

    def _spelled(self, coord: Expr) -> Expr:
        """A coordinate over the digits of the axes that are split; ``i // k`` and ``i % k`` split the axis i by k."""
        while True:
            splits = {name: self._splits[name] for name in coord.free_vars if name in self._splits}
            if not splits:
                divided = self._divided(coord)
                if divided is None:
                    return coord
                splits = {divided[0]: self._split(*divided)}
            joined = {name: axis_var(*high) * low[1] + axis_var(*low) for name, (high, low) in splits.items()}
            coord = coord.subs(joined)

    def _divided(self, coord: Expr) -> tuple[str, Expr, Expr] | None:
        """An undecided axis that the coordinate divides by a divisor of its extent: (name, extent, divisor)."""
        for mono, _ in coord.terms:
            for atom in mono:
                if atom.kind in ("//", "%"):
                    (name, *others), divisor = atom.args[0].free_vars or ("",), atom.args[1]
                    extent = self._extents.get(name)
                    free = name not in self.pairs and name not in self._paired_left
                    whole = divisor is extent  # splitting by that leaves the axis as it is
                    if extent is not None and not others and free and not whole and self._divides(divisor, extent):
                        return name, extent, divisor
        return None

    def _digits(self, coord: Expr) -> list[Digit] | None:
        """The digits of a coordinate, most significant first, or None if it is not a number in mixed radix over whole
        axes."""
        coord = self._spelled(coord)
        if coord.offset:
            return None
        digits: list[tuple[Expr, Digit]] = []
        names: dict[str, None] = {}
        for mono, _ in coord.terms:
            factors = [atom for atom in mono if not atom.free_vars <= self._sizes]
            if len(factors) != 1 or factors[0].kind != "var" or factors[0].key not in self._extents:
                return None
            names[factors[0].key] = None
        for name in names:
            coefficient = coord.coefficient(name)
            assert coefficient is not None
            digits.append((coefficient, (name, self._extents[name])))
        digits.sort(key=lambda digit: _weight(digit[0]), reverse=True)
        step = Expr.const(1)
        for coefficient, (_, extent) in reversed(digits):
            if coefficient is not step:
                return None
            step = step * extent
        return [leaf for _, digit in digits for leaf in self._leaves(digit)]

    def _match(self, left: list[Digit] | None, right: list[Digit] | None) -> bool:
        """Pairs digits from the least significant one on, splitting where the radices differ."""
        if left is None or right is None:
            return False
        left, right = list(left), list(right)
        while left and right:
            (a, a_extent), (b, b_extent) = left.pop(), right.pop()
            if a_extent is not b_extent:
                if self._divides(b_extent, a_extent) and a not in self._paired_left:
                    high, low = self._split(a, a_extent, b_extent)
                    left.append(high)
                    a, a_extent = low
                elif self._divides(a_extent, b_extent) and b not in self.pairs:
                    high, low = self._split(b, b_extent, a_extent)
                    right.append(high)
                    b, b_extent = low
                else:
                    return False
            known = self.pairs.get(b)
            if known is None and a not in self._paired_left:
                self.pairs[b] = a
                self._paired_left.add(a)
            elif known != a:
                return False
        return not left and not right

    @staticmethod
    def _divides(small: Expr, large: Expr) -> bool:
        if small.is_const and large.is_const:
            return small.value > 0 and large.value % small.value == 0
        return small is not large and (small.bounds()[0] or 0) > 0 and large % small is ZERO

    def _split(self, name: str, extent: Expr, low_extent: Expr) -> tuple[Digit, Digit]:
        size = low_extent.text().replace("*", "x") if len(low_extent.terms) < 2 else f"e{len(self._splits)}"
        high = (f"{name}h{size}", extent // low_extent)
        low = (f"{name}l{size}", low_extent)
        self._splits[name] = (high, low)
        self._extents.update((high, low))
        return high, low
