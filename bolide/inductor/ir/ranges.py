"""Whether an index stays within a buffer, for all iterations of the loops around it and all values of the sizes; and
whether iterations that run side by side touch different elements of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bolide.inductor.ir.loops import Axis
from bolide.symbolic import Expr, is_at_least_0
from bolide.symbolic.expr import Atom

ZERO = Expr.const(0)

#: how far the sizes are above their least values where an index that no proof covers is tried
_TRIALS = ((0, 0, 0, 0), (1, 2, 3, 4), (9, 15, 11, 5), (40, 3, 21, 30))


def extremes(index: Expr, axes: Sequence[Axis], facts: Sequence[Expr] = ()) -> tuple[Expr, Expr] | None:
    """The smallest and the largest value of an index as expressions in the sizes: the variables of `axes` (outer ones
    first) are replaced by their first or last value, as the sign of what they are multiplied with tells. None if the
    index is not affine in one of them, or a sign does not follow from the bounds and from `facts`, which are at least
    0."""
    low = high = index
    for axis in reversed(axes):
        first, last = Expr.const(0), axis.extent - 1
        rising, falling = _sign(high, axis, facts), _sign(low, axis, facts)
        if rising is None or falling is None:
            return None
        high = high.subs({axis.name: last if rising else first})
        low = low.subs({axis.name: first if falling else last})
    return low, high


def _sign(index: Expr, axis: Axis, facts: Sequence[Expr]) -> bool | None:
    """Whether an index never falls with an axis; False if it never rises, None if neither follows."""
    stride = index.coefficient(axis.name)
    if stride is None:
        return None
    return True if is_at_least_0(stride, facts) else False if is_at_least_0(-stride, facts) else None


def is_within(index: Expr, numel: Expr, axes: Sequence[Axis], sizes: Mapping[str, int] | None = None) -> bool | None:
    """Whether an index into a buffer of `numel` elements stays within it wherever the loops run. False if it leaves
    the buffer for the sizes that are tried; None if neither is known: what the program assumes of its sizes is not
    known here. `sizes`: some for which all that holds; no others are tried then."""
    least, most = index.bounds()
    if least is not None and least >= 0 and most is not None and numel.is_const and most < numel.value:
        return True
    facts = [axis.extent - 1 for axis in axes if not axis.extent.is_const]  # where the loops run at all
    ends = extremes(index, axes, facts)
    if ends is not None and is_at_least_0(ends[0], facts) and is_at_least_0(numel - 1 - ends[1], facts):
        return True
    verdicts = [_tried(values, index, numel, axes) for values in _trials(index, numel, axes, sizes)]
    return False if False in verdicts and True not in verdicts else None


def _trials(
    index: Expr, numel: Expr, axes: Sequence[Axis], sizes: Mapping[str, int] | None
) -> Sequence[Mapping[str, int]]:
    """Values of the sizes to try, and of numbers without a lower bound, which may be negative."""
    variables: dict[str, Expr] = {}
    for expr in (index, numel, *(axis.extent for axis in axes)):
        variables |= expr.variables()
    for bound in [bound for variable in variables.values() if (bound := _bound_of(variable)) is not None]:
        variables |= bound.variables()
    variables = {name: value for name, value in variables.items() if not name.startswith("$")}
    for axis in axes:
        variables.pop(axis.name, None)
    if not variables:
        return [{}]
    if sizes is not None:
        return [sizes] if variables.keys() <= sizes.keys() else []
    least = {name: variable.bounds()[0] for name, variable in sorted(variables.items())}
    signs = (1, -1) if None in least.values() else (1,)
    return [
        {name: sign * (more + (sign < 0)) if low is None else low + more for (name, low), more in zip(least.items(), n)}
        for sign in signs
        for n in map(itertools.cycle, _TRIALS)
    ]


def _tried(values: Mapping[str, int], index: Expr, numel: Expr, axes: Sequence[Axis]) -> bool | None:
    """As `_at`; None for sizes that cannot be, since something is divided by 0."""
    try:
        return _at(values, index, numel, axes)
    except ZeroDivisionError:
        return None


def _at(values: Mapping[str, int], index: Expr, numel: Expr, axes: Sequence[Axis]) -> bool | None:
    """As `is_within` for these sizes; None where a loop does not run, or its length depends on another's variable."""
    fixed = [Axis(axis.name, axis.extent.subs(values), axis.kind) for axis in axes]
    if any(not axis.extent.is_const or axis.extent.value < 1 for axis in fixed):
        return None
    ends = extremes(index.subs(values), fixed)
    return None if ends is None else ends[0].value >= 0 and ends[1].value < numel.evaluate(values)


# ---- iterations that run side by side ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Touched:
    """An element that a statement reads or writes: its index, and the loops around, outer ones first."""

    index: Expr
    axes: tuple[Axis, ...]


def are_apart(one: Touched, other: Touched, shared: Collection[str], sizes: Mapping[str, int] | None = None) -> bool:
    """Whether two accesses to a buffer are proven never to meet in an element in different iterations of the `shared`
    axes, which both stand in: for all sizes; or, if that is not found, for `sizes`; or, where these are not known, for
    some that are tried, as what the program assumes of its sizes is not known here."""
    if (one == other and _is_row_major(one, shared)) or _Apart(one, other, shared).is_proven():
        return True
    trials = _trials(one.index, other.index, (*one.axes, *other.axes), sizes)
    if trials == [{}]:
        return False
    verdicts = [_apart_for(values, one, other, shared) for values in trials]
    return True in verdicts or False not in verdicts


def _is_row_major(touched: Touched, shared: Collection[str]) -> bool:
    """Whether strides that are numbers tell that iterations of an access are apart: most proofs, at little cost."""
    reach = {axis.name: axis.extent.offset - 1 for axis in touched.axes if axis.extent.is_const}
    strides = {mono[0].key: abs(stride) for mono, stride in touched.index.terms if len(mono) == 1}
    if len(strides) < len(touched.index.terms) or not strides.keys() <= reach.keys():
        return False
    missing = {name for name in shared if reach.get(name) != 0}
    rest = sum([stride * reach[name] for name, stride in strides.items()])
    for name in sorted(strides, key=strides.__getitem__, reverse=True):
        rest -= strides[name] * reach[name]
        if not missing or strides[name] <= rest:
            break
        missing.discard(name)
    return not missing


def _apart_for(values: Mapping[str, int], one: Touched, other: Touched, shared: Collection[str]) -> bool | None:
    """As `are_apart` for these sizes; None where a loop does not run, or one that is shared runs only once, or where
    something is divided by 0."""
    try:
        fixed = [
            Touched(
                _with_bounds_fixed(touched.index, values),
                tuple([replace(axis, extent=axis.extent.subs(values)) for axis in touched.axes]),
            )
            for touched in (one, other)
        ]
    except ZeroDivisionError:
        return None
    axes = [axis for touched in fixed for axis in touched.axes if axis.extent.is_const]
    if any(axis.extent.value < 1 + (axis.name in shared) for axis in axes):
        return None
    return _Apart(fixed[0], fixed[1], shared).is_proven()


def _with_bounds_fixed(index: Expr, values: Mapping[str, int]) -> Expr:
    """The index for these sizes, which also replaces sizes in the bounds of its variables: those of operands."""
    bounded = {
        name: Expr.var(name, variable.bounds()[0], bound.subs(values))
        for name, variable in index.variables().items()
        if (bound := _bound_of(variable)) is not None
    }
    return index.subs({**values, **bounded})


def _bound_of(variable: Expr) -> Expr | None:
    """The upper bound of a variable where that is an expression."""
    (((atom,), _),) = variable.terms
    return atom.hi_expr


Variable = str | Atom | Expr
"""An axis; what else changes; a sum of a block's number and the place in the block."""
Steps = dict[Variable, tuple[Expr, Expr | None]]
"""By variable, the size of its stride and how far its values in two iterations may be apart."""


class _Apart:
    """A proof by mixed radix. Where the two indices are equal, the strides times how far the variables of the two
    iterations are apart make up the distance of what else is in the indices. A variable is the same in both iterations
    if its stride alone is more than all the rest can make up. A variable is an axis, or anything else that changes: the
    operand of an indirect access, a quotient, a remainder. What is divided is the same where both of these are. An axis
    in blocks counts as one variable first: its last block may be a short one."""

    def __init__(self, one: Touched, other: Touched, shared: Collection[str]) -> None:
        axes = (*one.axes, *other.axes)
        self.names = frozenset([axis.name for axis in axes])
        self.facts = [axis.extent - 1 for axis in axes if not axis.extent.is_const]
        self.reach: list[dict[str, Expr | None]] = [
            {axis.name: _reach(axis.extent, self.names) for axis in touched.axes} for touched in (one, other)
        ]
        self.blocks = [block for axis in one.axes if axis in other.axes and (block := _block(axis, self.names))]
        self.missing = {name for name in shared if self.reach[0][name] is not ZERO}
        self.equations = [(one.index, other.index, self.blocks)]
        self.same: set[Variable] = set()

    def is_proven(self) -> bool:
        """Whether all shared axes are the same, or no two iterations satisfy an equation."""
        while self.equations and self.missing:
            if self._impossible(*self.equations.pop()):
                return True
        return not self.missing

    def _impossible(self, left: Expr, right: Expr, blocks: Sequence[tuple[str, str, Expr, Expr]]) -> bool:
        """Whether an equation holds nowhere; notes what is the same where it holds."""
        mine, theirs = _strides(left, self.names), _strides(right, self.names)
        if mine is None or theirs is None:
            return False
        (lefts, left_rest), (rights, right_rest) = mine, theirs
        low = high = right_rest - left_rest
        steps: Steps = {}
        for axis, number, size, extent in blocks:
            stride = lefts.get(axis, ZERO)
            if stride is rights.get(axis) and lefts.get(number) is stride * size is rights.get(number):
                for side in (lefts, rights):
                    del side[axis], side[number]
                strided = self._size(stride)
                if strided is None:
                    return False
                steps[Expr.var(number) * size + Expr.var(axis)] = strided, extent - 1
        for variable in dict.fromkeys((*lefts, *rights)):
            strides = lefts.get(variable, ZERO), rights.get(variable, ZERO)
            spans = self._spans(variable)
            sizes = [self._size(stride) for stride in strides]
            start = 0 if isinstance(variable, str) else variable.lo
            if sizes[0] is None or sizes[1] is None:
                return False
            if strides[0] is strides[1] and spans[0] is spans[1]:
                steps[variable] = sizes[0], spans[0]
                continue
            for stride, span in ((-strides[0], spans[0]), (strides[1], spans[1])):  # variables of their own
                if span is None or start is None:
                    return False
                ends = stride * start, stride * (span + start)
                rises = self._holds(stride)
                low, high = low + ends[not rises], high + ends[rises]
        while known := [variable for variable in steps if self._is_same(variable, steps, low, high)]:
            del steps[known[0]]
            self._note(known[0])
        most = _made_up(steps)
        return most is not None and (self._holds(low - most - 1) or self._holds(-high - most - 1))

    def _spans(self, variable: str | Atom) -> tuple[Expr | None, Expr | None]:
        if isinstance(variable, Atom):
            width = _width(variable)
            return width, width
        one, other = (reach.get(variable, ZERO) for reach in self.reach)
        return one, other

    def _is_same(self, variable: Variable, steps: Steps, low: Expr, high: Expr) -> bool:
        size, _ = steps[variable]
        rest = _made_up({other: step for other, step in steps.items() if other is not variable})
        return rest is not None and self._holds(size - 1 - high - rest) and self._holds(size - 1 + low - rest)

    def _note(self, variable: Variable) -> None:
        self.same.add(variable)
        if isinstance(variable, str):
            self.missing.discard(variable)
        elif isinstance(variable, Expr):
            self.equations.append((variable, variable, []))
        elif variable.kind in ("//", "%"):
            halves = {known.kind for known in self.same if isinstance(known, Atom) and known.args == variable.args}
            if halves == {"//", "%"} and variable.args[1].free_vars.isdisjoint(self.names):
                self.equations.append((variable.args[0], variable.args[0], self.blocks))

    def _size(self, stride: Expr) -> Expr | None:
        return stride if self._holds(stride) else -stride if self._holds(-stride) else None

    def _holds(self, least: Expr) -> bool:
        return is_at_least_0(least, self.facts)


def _made_up(steps: Steps) -> Expr | None:
    """The most that variables can make up."""
    total = ZERO
    for size, span in steps.values():
        if span is None:
            return None
        total = total + size * span
    return total


def _reach(extent: Expr, axes: Collection[str]) -> Expr | None:
    """How far two iterations of an axis may be apart."""
    if extent.free_vars.isdisjoint(axes):
        return extent - 1
    most = extent.bounds()[1]
    return None if most is None else Expr.const(most - 1)


def _block(axis: Axis, axes: Collection[str]) -> tuple[str, str, Expr, Expr] | None:
    """(axis, the number of its block, size of a block, extent of all blocks) of an axis that runs within a block: its
    extent is the least of the size and of what is left."""
    extent = axis.extent
    if extent.offset or len(extent.terms) != 1 or len(extent.terms[0][0]) != 1 or extent.terms[0][0][0].kind != "min":
        return None
    for size, left in itertools.permutations(extent.terms[0][0][0].args):
        numbers = left.free_vars.intersection(axes)
        if len(numbers) == 1 and size.free_vars.isdisjoint(axes) and extent.terms[0][1] == 1:
            (number,) = numbers
            if left.coefficient(number) is -size:
                return axis.name, number, size, left.subs({number: 0})
    return None


def _width(atom: Atom) -> Expr | None:
    """How far two values of what changes may be apart."""
    if atom.lo is None or (atom.hi is None and atom.hi_expr is None):
        return None
    return (atom.hi_expr or Expr.const(atom.hi or 0)) - atom.lo


def _strides(index: Expr, axes: Collection[str]) -> tuple[dict[str | Atom, Expr], Expr] | None:
    """What an index is made of: strides of all that changes, and the rest. None if that is a product of two."""
    strides: dict[str | Atom, Expr] = {}
    rest = Expr.const(index.offset)
    for mono, coefficient in index.terms:
        changing = [atom for atom in mono if any(name in axes or name.startswith("$") for name in atom.free_vars)]
        factor = Expr.const(coefficient)
        for atom in mono:
            if atom not in changing:
                factor = factor * atom.as_expr()
        if len(changing) > 1:
            return None
        if changing:
            (atom,) = changing
            variable = atom.key if atom.kind == "var" and atom.key in axes else atom
            strides[variable] = strides.get(variable, ZERO) + factor
        else:
            rest = rest + factor
    return strides, rest
