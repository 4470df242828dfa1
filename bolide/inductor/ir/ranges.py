"""Whether an index stays within a buffer, for all iterations of the loops around it and all values of the sizes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from bolide.inductor.ir.loops import Axis
from bolide.symbolic import Expr, is_at_least_0

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
