"""Joins two groups into one kernel: finds their common space, or says why there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bolide.inductor.ir.definitions import Element
from bolide.inductor.ir.loops import Node
from bolide.inductor.schedule.stages import (
    Buffer,
    Group,
    Space,
    Stage,
    loads_of,
    product,
    rewrite,
    stage_roots,
    substitution,
)
from bolide.inductor.schedule.unify import Unifier
from bolide.symbolic import Expr

#: A reduction over fewer rows, each longer than LONG_ROW, does not pull work over its whole space into its kernel.
FEW_ROWS = 8
LONG_ROW = 1 << 14
MOST_STAGES = 40
MOST_BUFFERS = 48


@dataclass(frozen=True, slots=True)
class Read:
    """One way in which a group reads a buffer."""

    element: Element
    indirect: bool


def reads_by_buffer(stages: Iterable[Stage]) -> dict[str, list[Read]]:
    """What the stages read, in the order of first use."""
    found: dict[str, dict[Read, None]] = {}
    for node in loads_of([root for stage in stages for root in stage_roots(stage)]):
        read = Read(node.arg, len(node.src) > (1 if node.arg.masked else 0))
        found.setdefault(node.arg.buffer, {})[read] = None
    return {name: list(reads) for name, reads in found.items()}


def defined(group: Group) -> dict[str, Stage]:
    return {stage.name: stage for stage in group.stages}


def fuse(left: Group, right: Group, buffers: dict[str, Buffer]) -> Group | str:
    """One group that does what `left` and then `right` does; or the reason why not. Names of axes are the left's."""
    if any(stage.mode != "define" for stage in (*left.stages, *right.stages)):
        return "one of them updates a buffer in place (scatter)"
    if len(left.stages) + len(right.stages) > MOST_STAGES:
        return "the kernel would become too large"
    left_reads, right_reads = reads_by_buffer(left.stages), reads_by_buffer(right.stages)
    if len(left_reads.keys() | right_reads.keys()) > MOST_BUFFERS:
        return "the kernel would have too many arguments"
    unifier = Unifier((*left.outer, *left.inner), (*right.outer, *right.inner))
    reason = (
        _relate(left, left_reads, right_reads, buffers, unifier, _are_numbers(left, right))
        or _cover(left, right, unifier)
        or _profit(left, right, buffers)
    )
    if reason:
        return reason
    return _join(left, right, unifier)


def _relate(
    left: Group,
    left_reads: dict[str, list[Read]],
    right_reads: dict[str, list[Read]],
    buffers: dict[str, Buffer],
    unifier: Unifier,
    are_numbers: bool,
) -> str | None:
    """Tells the unifier what follows from the data: the right reads what the left defines at the same points, or both
    read an input at the same points. Numbers are computed together whatever they read."""
    made = defined(left)
    related = False
    for name, reads in right_reads.items():
        stage = made.get(name)
        if stage is None:
            continue
        for read in reads:
            if read.indirect:
                return f"{name} is read at places that depend on data"
            if not unifier.equate(stage.coords, read.element.coords):
                return f"{name} is read at other points than it is computed at"
            related = True
    if related or are_numbers:
        return None
    shared = [name for name in left_reads if name in right_reads]
    shared.sort(key=lambda name: -_count(product(buffers[name].shape)))
    for name in shared:
        for a in left_reads[name]:
            for b in right_reads[name]:
                plain = not (a.indirect or b.indirect or a.element.masked or b.element.masked)
                if plain and unifier.equate(a.element.coords, b.element.coords):
                    return None
                return f"both read {name}, at points that do not correspond"
    return "they share no data"


def _are_numbers(left: Group, right: Group) -> bool:
    return not (left.outer or left.inner or right.outer or right.inner)


def _cover(left: Group, right: Group, unifier: Unifier) -> str | None:
    """Pairs the axes that data did not decide, in row-major order, and checks that rows meet rows."""
    if left.inner and right.inner:
        fits = unifier.equate_axes(left.outer, right.outer) and unifier.equate_axes(left.inner, right.inner)
        if not fits or {unifier.name(a) for a, _ in unifier.leaves(right.outer)} != {
            a for a, _ in unifier.leaves(left.outer)
        }:
            return "they reduce over different axes"
        return None
    whole_left, whole_right = (*left.outer, *left.inner), (*right.outer, *right.inner)
    free_right = [d for d in unifier.leaves(whole_right) if d[0] not in unifier.pairs]
    paired = set(unifier.pairs.values())
    free_left = [d for d in unifier.leaves(whole_left) if d[0] not in paired]
    if not free_left and not free_right:
        return None
    if left.inner and not free_right and {a for a, _ in free_left} == {a for a, _ in unifier.leaves(left.inner)}:
        return None  # the right works on rows only
    if right.inner and not free_left and {a for a, _ in free_right} == {a for a, _ in unifier.leaves(right.inner)}:
        return None  # the left works on rows only
    if not unifier.equate_axes(whole_left, whole_right):
        return "their index spaces differ"
    return None


def _profit(left: Group, right: Group, buffers: dict[str, Buffer]) -> str | None:
    """Refuses what is possible but slow."""
    for reduction, other in ((left, right), (right, left)):
        if not reduction.inner:
            continue
        rows, length = product(e for _, e in reduction.outer), product(e for _, e in reduction.inner)
        pointwise = not other.inner and len(other.outer) > len(reduction.outer)
        if pointwise and _count(rows) < FEW_ROWS and _count(length) > LONG_ROW:
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
    for name, reads in reads_by_buffer(group.stages).items():
        strides = buffers[name].layout.stride
        for read in reads:
            used = set().union(*(coord.free_vars for coord in read.element.coords))
            weight = 4 if not (used.isdisjoint(inner) or used.isdisjoint(outer)) else 1
            for coord, stride in zip(read.element.coords, strides):
                if stride.is_const and stride.value == 1:
                    votes += weight * (
                        sum(_moves(coord, axis) for axis in inner) - sum(_moves(coord, axis) for axis in outer)
                    )
    return votes >= 0


def _moves(coord: Expr, axis: str) -> bool:
    coefficient = coord.coefficient(axis)
    return coefficient is not None and coefficient.is_const and coefficient.value == 1


def _count(extent: Expr) -> int:
    """A number to compare sizes by; symbolic ones count as large."""
    return extent.value if extent.is_const else 1 << 40


def _join(left: Group, right: Group, unifier: Unifier) -> Group | str:
    stages = [*_moved(left, unifier), *_moved(right, unifier)]
    made: dict[str, Stage] = {}
    for stage in stages:
        for name, reads in reads_by_buffer((stage,)).items():
            if name in made and any(read.element.coords != made[name].coords for read in reads):
                return f"{name} is read at other points than it is computed at"
        made[stage.name] = stage
    inner = left.inner or right.inner
    whole = (
        unifier.leaves(left.outer + left.inner)
        if left.inner or not right.inner
        else [(unifier.name(a), e) for a, e in unifier.leaves(right.outer + right.inner)]
    )
    inner_names = {unifier.name(a) for a, _ in unifier.leaves(inner)}
    outer = tuple([d for d in whole if d[0] not in inner_names])
    return Group(tuple(stages), outer, tuple([d for d in whole if d[0] in inner_names]))


def _moved(group: Group, unifier: Unifier) -> list[Stage]:
    """The stages of a group over the axes that the unifier found."""
    axes = unifier.substitution((*group.outer, *group.inner))

    def space(old: Space) -> Space:
        return tuple([(unifier.name(a), e) for a, e in unifier.leaves(old)])

    if not axes:
        return list(group.stages)
    rule = substitution(axes)
    memo: dict[Node, Node] = {}
    return [
        replace(
            stage,
            axes=space(stage.axes),
            reduce_axes=space(stage.reduce_axes),
            coords=tuple([coord.subs(axes) for coord in stage.coords]),
            value=rewrite(stage.value, rule, memo),
            position=None if stage.position is None else rewrite(stage.position, rule, memo),
        )
        for stage in group.stages
    ]
