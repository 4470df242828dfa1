"""Joins two groups into one kernel: finds their common space, or says why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bolide.inductor.ir.definitions import Element, axis_var, volume
from bolide.inductor.ir.walks import is_indirect, loads_of, roots_of, substitute, with_roots
from bolide.inductor.schedule.stages import Buffer, Group, Parts, Scheduling, Stage, is_one
from bolide.inductor.schedule.unify import Unifier
from bolide.symbolic import Expr

#: (element, whether its place depends on data), by buffer
Ways = list[tuple[Element, bool]]
Reads = dict[str, Ways]


def reads_by_buffer(stages: Iterable[Stage]) -> Reads:
    """The ways in which stages read buffers, in the order of first use."""
    reads: dict[str, dict[tuple[Element, bool], None]] = {}
    for node in loads_of([root for stage in stages for root in roots_of(stage)]):
        reads.setdefault(node.arg.buffer, {})[node.arg, is_indirect(node)] = None
    return {name: list(ways) for name, ways in reads.items()}


def fuse(left: Group, right: Group, ctx: Scheduling) -> Group | str:
    """One group that does what `left` and then `right` does; or the reason why not. Names of axes are the left's."""
    if any(stage.updates for stage in (*left.stages, *right.stages)):
        return "one of them updates a buffer in place (scatter)"
    scan = next((stage.scan for stage in left.stages if stage.scan is not None), None)
    if any(stage.scan is not None for stage in right.stages) or (scan and not _follows(left, right, ctx)):
        return "one of them is a scan"
    if ctx.buffers[left.stages[0].name].device != ctx.buffers[right.stages[0].name].device:
        return "they are on two devices"
    if len(left.stages) + len(right.stages) > ctx.machine.most_stages:
        return "the kernel would become too large"
    spread = ctx.machine.spreads_marks and _can_be_spread(left, right)
    across = _are_across(left, right)
    met = replace(right, outer=right.inner, inner=right.outer) if across else right  # whose rows are the left's
    if not spread and (reason := _part(left, right, across, ctx) or _measure(left, met)):
        return reason
    left_reads, right_reads = reads_by_buffer(left.stages), reads_by_buffer(right.stages)
    if len(left_reads.keys() | right_reads.keys()) > ctx.machine.most_buffers:
        return "the kernel would have too many arguments"
    unifier = Unifier(left.space, right.space)
    reason = (
        _relate(left, right, left_reads, right_reads, ctx.buffers, unifier)
        or (_cover_marks if spread else _cover)(left, met, unifier)
        or _profit(left, right, ctx, across)
    )
    joined = reason or _join(left, right, unifier, spread, across)
    if scan and isinstance(joined, Group):
        whole = all(len(stage.axes) == len(joined.space) for stage in joined.stages)
        return joined if whole and [name for name, _ in joined.inner] == [scan] else "the scan's axis differs"
    return joined


def _follows(scan: Group, other: Group, ctx: Scheduling) -> bool:
    """Whether a group only computes elements from those of a scan: a GPU does so in the scan's loop."""
    scanned = {stage.name for stage in scan.stages if stage.scan is not None}
    pointwise = not other.inner and all(stage.reduce_op is None and stage.mode == "define" for stage in other.stages)
    return ctx.machine.device == "cuda" and pointwise and not scanned.isdisjoint(reads_by_buffer(other.stages))


def _only_marks(group: Group) -> bool:
    return all(stage.mode == "any" for stage in group.stages)


def _can_be_spread(left: Group, right: Group) -> bool:
    """Whether one group only marks, and may do so at all points of a larger space, of which there are some."""
    marks, other = (left, right) if _only_marks(left) else (right, left)
    some = all((extent.bounds()[0] or 0) > 0 for _, extent in other.outer)
    return _only_marks(marks) and not other.inner and some and len(marks.outer) < len(other.outer)


def _cover_marks(left: Group, right: Group, unifier: Unifier) -> str | None:
    """Checks that the data tell which points of the larger space each mark is for."""
    is_left = _only_marks(left)
    marks, paired = (left, set(unifier.pairs.values())) if is_left else (right, unifier.pairs.keys())
    return None if unifier.axes(marks.space) <= paired else "their index spaces differ"


def _is_of_columns(group: Group) -> bool:
    """Whether all that a group does is to reduce in parts."""
    return all(stage.parts is not None for stage in group.stages) and not group.columns


def _are_across(left: Group, right: Group) -> bool:
    """Whether one group reduces rows, and the other one the columns of these, in parts: each team has some rows."""
    return bool(left.inner and right.inner) and _is_of_columns(left) != _is_of_columns(right)


def _part(left: Group, right: Group, across: bool, ctx: Scheduling) -> str | None:
    """Refuses reductions in parts that one team cannot make in the same loops."""
    if left.parts and right.parts and (left.parts.count, left.parts.size) != (right.parts.count, right.parts.size):
        return "they reduce in different parts"
    if _is_of_columns(left) != _is_of_columns(right) and not across:
        return "one of them reduces in parts"
    if len([s for s in (*left.stages, *right.stages) if s.parts]) > ctx.machine.most_columns:
        return "a thread would have too many sums of columns"
    if (left.columns or right.columns or across) and any(s.mode == "any" for s in (*left.stages, *right.stages)):
        return "one of them sets flags"
    return None


def _measure(left: Group, right: Group) -> str | None:
    """Refuses what differs in size: rows must meet rows, whatever the data are."""
    rows, other_rows = volume(e for _, e in left.outer), volume(e for _, e in right.outer)
    length, other_length = volume(e for _, e in left.inner), volume(e for _, e in right.inner)
    if left.inner and right.inner:
        same = _may_equal(rows, other_rows) and _may_equal(length, other_length)
        return None if same else "they reduce over different axes"
    size, other_size = rows * length, other_rows * other_length
    fits = _may_equal(size, other_size) or _may_equal(rows, other_size) or _may_equal(size, other_rows)
    return None if fits else "their index spaces differ"


def _may_equal(a: Expr, b: Expr) -> bool:
    return a is b or not (a.is_const and b.is_const)


def _relate(
    left: Group, right: Group, left_reads: Reads, right_reads: Reads, buffers: dict[str, Buffer], unifier: Unifier
) -> str | None:
    """Tells the unifier what follows from the data: the right reads what the left defines at the same points, or both
    read an input at the same points. Numbers are computed together whatever they read."""
    defined = {stage.name: stage for stage in left.stages}
    handed = [name for name in right_reads if name in defined]
    for name in handed:
        for element, indirect in right_reads[name]:
            if indirect:
                return f"{name} is read at places that depend on data"
            if not unifier.equate(defined[name].coords, element.coords):
                return f"{name} is read at other points than it is computed at"
    if handed or not (left.space or right.space):
        return None
    shared = [name for name in left_reads if name in right_reads]
    if not shared:
        return "they share no data"
    name = max(shared, key=lambda name: _count(volume(buffers[name].shape)))
    (a, a_indirect), (b, b_indirect) = left_reads[name][0], right_reads[name][0]
    if not (a_indirect or b_indirect or a.masked or b.masked) and unifier.equate(a.coords, b.coords):
        return None
    if _read_alike(left, right, left_reads[name], right_reads[name]):
        return None
    return f"both read {name}, at points that do not correspond"


def _read_alike(left: Group, right: Group, left_ways: Ways, right_ways: Ways) -> bool:
    """Whether two groups with axes of the same extents read a tensor at one point at least that is the same one for
    both, as what is made of a window's elements does."""
    if [extent for _, extent in left.space] != [extent for _, extent in right.space]:
        return False
    same = {mine: axis_var(theirs, extent) for (theirs, extent), (mine, _) in zip(left.space, right.space)}
    points = {way.coords for way, indirect in left_ways if not indirect}
    return any(tuple([c.subs(same) for c in way.coords]) in points for way, indirect in right_ways if not indirect)


def _cover(left: Group, right: Group, unifier: Unifier) -> str | None:
    """Pairs the axes that data did not decide, in row-major order, and checks that rows meet rows."""
    if left.inner and right.inner:
        fits = unifier.equate_axes(left.outer, right.outer) and unifier.equate_axes(left.inner, right.inner)
        same = fits and {unifier.name(a) for a in unifier.axes(right.outer)} == unifier.axes(left.outer)
        return None if same else "they reduce over different axes"
    free_right = unifier.axes(right.space) - unifier.pairs.keys()
    free_left = unifier.axes(left.space) - set(unifier.pairs.values())
    if not free_left and not free_right:
        return None
    if left.inner and not free_right and free_left == unifier.axes(left.inner):
        return None  # the right works on rows only
    if right.inner and not free_left and free_right == unifier.axes(right.inner):
        return None  # the left works on rows only
    return None if unifier.equate_axes(left.space, right.space) else "their index spaces differ"


def _profit(left: Group, right: Group, ctx: Scheduling, across: bool) -> str | None:
    """Refuses what is possible but slow."""
    machine, buffers = ctx.machine, ctx.buffers
    if across:
        by_rows = right if _is_of_columns(left) else left
        return None if contiguous_inside(by_rows, buffers) else "the rows lie across memory"
    for reduction, other in ((left, right), (right, left)):
        if not reduction.inner:
            continue
        rows, length = volume(e for _, e in reduction.outer), volume(e for _, e in reduction.inner)
        pointwise = not other.inner and len(other.outer) > len(reduction.outer)
        if pointwise and _count(rows) < machine.few_rows and _count(length) > machine.long_row:
            return f"{rows} rows are too few for all threads"
        if pointwise and other is left and not contiguous_inside(reduction, buffers):
            return "the reduction runs across memory, the pointwise part along it"
    if left.inner and right.inner and contiguous_inside(left, buffers) != contiguous_inside(right, buffers):
        return "one reduction runs along memory, the other across it"
    return None


def contiguous_inside(group: Group, buffers: dict[str, Buffer]) -> bool:
    """Whether the reductions of a group run along memory: their loads are consecutive along a reduced axis rather than
    along a row axis."""
    votes = 0
    inner, outer = {name for name, _ in group.inner}, {name for name, _ in group.outer}
    for name, ways in reads_by_buffer(group.stages).items():
        for element, _ in ways:
            used = element.free_vars
            weight = 4 if used >= inner | outer else 1  # what is the same for rows is small
            for coord, stride in zip(element.coords, buffers[name].layout.stride):
                if is_one(stride):
                    along = sum(_moves(coord, axis) for axis in inner) - sum(_moves(coord, axis) for axis in outer)
                    votes += weight * along
    return votes >= 0


def _moves(coord: Expr, axis: str) -> bool:
    coefficient = coord.coefficient(axis)
    return coefficient is not None and is_one(coefficient)


def _count(extent: Expr) -> int:
    """A number to compare sizes by; symbolic ones count as large."""
    return extent.value if extent.is_const else 1 << 40


def _join(left: Group, right: Group, unifier: Unifier, spread: bool, across: bool) -> Group | str:
    columns_first = across and _is_of_columns(left)
    larger = right if (right.inner and not left.inner) or (spread and _only_marks(left)) or columns_first else left
    whole = unifier.leaves(larger.space)
    stages = [*_moved(left, unifier), *_moved(right, unifier)]
    if left.parts and right.parts:
        stages = [_numbered(stage, left.parts) for stage in stages]
    if spread:
        stages = [replace(stage, axes=whole) for stage in stages]
    defined: dict[str, Stage] = {}
    for stage in stages:
        for name, ways in reads_by_buffer((stage,)).items():
            if name in defined and any(element.coords != defined[name].coords for element, _ in ways):
                return f"{name} is read at other points than it is computed at"
        defined[stage.name] = stage
    inner = unifier.leaves(larger.inner)
    outer = tuple([axis for axis in whole if axis not in inner])
    return Group(tuple(stages), outer, tuple([axis for axis in whole if axis in inner]))


def _numbered(stage: Stage, parts: Parts) -> Stage:
    """A stage with its parts numbered by this axis."""
    if stage.parts is None or stage.parts == parts:
        return stage
    place = {stage.parts.axis: axis_var(parts.axis, parts.count)}
    return replace(stage, coords=tuple([coord.subs(place) for coord in stage.coords]), parts=parts)


def _moved(group: Group, unifier: Unifier) -> Sequence[Stage]:
    """The stages of a group over the axes that the unifier gives it."""
    axes = unifier.substitution(group.space)
    if not axes:
        return group.stages
    new = substitute(axes)
    return [
        with_roots(
            stage,
            new,
            axes=unifier.leaves(stage.axes),
            reduce_axes=unifier.leaves(stage.reduce_axes),
            coords=tuple([coord.subs(axes) for coord in stage.coords]),
        )
        for stage in group.stages
    ]
