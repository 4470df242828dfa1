"""What scheduling works on: definitions in loop form, and their groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

import torch

from bolide.inductor.ir.definitions import Computed, Extern, Layout, Result, Scatter, WriteBack, axis_var, part_length
from bolide.inductor.ir.loops import CPU, AtomicMode, Node, ReduceOp, ScatterMode
from bolide.inductor.ir.structure import Describer, Structure, number
from bolide.inductor.ir.walks import index_vars, loads_of, nodes_below, reads, roots_of, substitute, with_roots, writes
from bolide.inductor.machine import Machine
from bolide.symbolic import Expr

Space = tuple[tuple[str, Expr], ...]  # (axis name, extent), outermost first


@dataclass(frozen=True, slots=True)
class Parts:
    """How a reduction is made in parts: of so many elements of its axis each (the last one has what is left), `count`
    of them. `axis` numbers them."""

    axis: str
    count: Expr
    size: int


@dataclass(frozen=True, slots=True)
class Stage:
    """``name[coords] = value`` for every point of `axes`; with `reduce_op`, the reduction of `value` over
    `reduce_axes`.

    A plain definition has one axis per dimension and `coords` are those axes; fusion renames and splits axes, so that
    `coords` become expressions of them. Other modes, and `operands`, come from a Scatter: `coords` may
    then use ``$0, $1 …``, and the stage updates a buffer which already has contents. Mode ``any`` is of flags that only
    checks read (`order.marks_of`): the buffer's one element is True if the value is at some point; ``atomic_…`` is
    how a GPU joins where points may meet. `parts`: the reduction is made in these; `coords` have their axis, `axes` do
    not."""

    name: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    axes: Space
    coords: tuple[Expr, ...]
    value: Node
    reduce_op: ReduceOp | None = None
    reduce_axes: Space = ()
    position: Node | None = None
    operands: tuple[Node, ...] = ()
    mode: Literal["define", "any"] | AtomicMode | ScatterMode = "define"
    origins: tuple[str, ...] = ()
    scan: str | None = None
    parts: Parts | None = None

    @property
    def updates(self) -> bool:
        """Whether the buffer has contents before."""
        return self.mode not in ("define", "any")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two things were not fused (or one not inlined): kept for explain."""

    first: str
    second: str
    reason: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that kernels and library calls share. `layout.offset` counts from the address that kernels are given (an
    input's data pointer)."""

    dtype: torch.dtype
    shape: tuple[Expr, ...]
    layout: Layout
    device: torch.device = CPU

    @property
    def span(self) -> Expr:
        """How many elements lie between the first and the last one, both included."""
        if any(extent.is_const and extent.value == 0 for extent in self.shape):
            return Expr.const(0)
        return self.layout.address([extent - 1 for extent in self.shape]) + 1


@dataclass(slots=True)
class Scheduling:
    """What the passes may look at and add to. `sizes`: as they were while the program was traced."""

    results: list[Result]
    buffers: dict[str, Buffer]
    machine: Machine
    refusals: list[Refusal] = field(default_factory=list)
    sizes: Mapping[str, int] = field(default_factory=dict)


_ONE = Expr.const(1)


def is_one(extent: Expr) -> bool:
    return extent is _ONE


def stage_of(definition: Computed | Scatter, mark: bool = False) -> Stage:
    """The loop form of a definition; of a Scatter the updating part: the copy of its base is a stage of its own. Axes
    of extent 1 are left out; a reduction over one element is no reduction. `mark`: it is one of `order.marks_of`."""
    own = () if definition.origin is None else (definition.origin.name,)
    stage = Stage(
        definition.name,
        definition.dtype,
        definition.shape,
        _space(zip(definition.axes, definition.shape if isinstance(definition, Computed) else definition.extents)),
        definition.coords,
        definition.value,
        operands=definition.operands,
        origins=(*(node.name for node in definition.absorbed), *own),
    )
    if isinstance(definition, Scatter):
        return replace(stage, mode=definition.mode)
    if definition.scan in dict(stage.axes):
        scan = replace(stage, reduce_op=definition.reduce_op, scan=definition.scan)
        return scan if definition.run is None else _in_runs(scan, definition.scan, definition.run)
    reduced = _space(definition.reduce_axes)
    if definition.reduce_op is not None and not reduced:
        return stage if definition.position is None else replace(stage, value=definition.position)
    if mark:
        used = {name for node in nodes_below((definition.value,)) for name in index_vars(node)}
        needed = [axis for axis in reduced if axis[0] in used or (axis[1].bounds()[0] or 0) < 1]
        return replace(stage, axes=tuple(needed), mode="any")
    stage = replace(stage, reduce_op=definition.reduce_op, reduce_axes=reduced, position=definition.position)
    if definition.run is None:
        return stage
    parts = Parts(definition.axes[0], definition.shape[0], definition.run)
    return replace(stage, axes=tuple([axis for axis in stage.axes if axis[0] != parts.axis]), parts=parts)


def _in_runs(stage: Stage, axis: str, length: int) -> Stage:
    """A scan that begins anew at each multiple of `length`: the runs are an axis of their own."""
    extent = dict(stage.axes)[axis]
    runs = (f"{axis}h", extent.ceildiv(length))
    run = axis_var(*runs)
    within = (f"{axis}l", part_length(extent, run, length))
    place = {axis: run * length + axis_var(*within)}
    axes = [(runs, within) if known[0] == axis else (known,) for known in stage.axes]
    coords = tuple([coord.subs(place) for coord in stage.coords])
    return with_roots(stage, substitute(place), axes=tuple(chain.from_iterable(axes)), coords=coords, scan=within[0])


def _space(axes: Iterable[tuple[str, Expr]]) -> Space:
    return tuple([axis for axis in axes if not is_one(axis[1])])


# ---- groups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Stages that become one kernel, in a valid order. All of them run over `outer`; inside, `inner` is the space of
    their reductions and of the stages over the full space. Every stage's axes are exactly `outer`, or `outer` and
    `inner`; or `inner`, of reductions over `outer`, which are made in parts (`columns`)."""

    stages: tuple[Stage, ...]
    outer: Space
    inner: Space = ()

    @property
    def space(self) -> Space:
        return self.outer + self.inner

    @property
    def parts(self) -> Parts | None:
        """The parts in which it reduces, of which there are as many of all stages."""
        return next((stage.parts for stage in self.stages if stage.parts is not None), None)

    @property
    def columns(self) -> tuple[Stage, ...]:
        """The stages that reduce over `outer` what others reduce over `inner`."""
        inner = {name for name, _ in self.inner}
        in_parts = [stage for stage in self.stages if stage.parts is not None]
        return tuple([stage for stage in in_parts if inner.isdisjoint(name for name, _ in stage.reduce_axes)])


def with_parts_outside(group: Group) -> Group:
    """A group that reduces in parts alone, with the parts as an axis of their own."""
    if (parts := group.parts) is None or group.columns:
        return group
    ((name, extent),) = group.inner
    number = (parts.axis, parts.count)
    part = axis_var(*number)
    within = (f"{name}w", part_length(extent, part, parts.size))
    new = substitute({name: part * parts.size + axis_var(*within)})
    stages = [with_roots(s, new, axes=(number, *s.axes), reduce_axes=(within,), parts=None) for s in group.stages]
    return Group(tuple(stages), (number, *group.outer), (within,))


def group_of(stage: Stage) -> Group:
    """The group of one stage: a scan runs over its axis as a reduction does."""
    if stage.scan is None:
        return Group((stage,), stage.axes, stage.reduce_axes)
    along = [axis for axis in stage.axes if axis[0] == stage.scan]
    return Group((stage,), tuple([axis for axis in stage.axes if axis not in along]), tuple(along))


def description_of(
    group: Group, stored: Collection[str], buffers: Mapping[str, Buffer]
) -> tuple[Structure, tuple[str, ...]]:
    """A group that stores the buffers in `stored`, with numbers for names, and the buffers by number. Where that is
    equal, one kernel does for both groups: it is made of nothing else, and the axes' and the buffers' names do not
    matter to it."""
    describer = Describer()
    stages = []
    for stage in group.stages:
        name = number(describer.buffers, stage.name)
        for axis, _ in (*stage.axes, *stage.reduce_axes):
            number(describer.variables, axis)
        in_parts = None if (parts := stage.parts) is None else (number(describer.variables, parts.axis), parts.size)
        how = name, in_parts, stage.name in stored, stage.dtype, stage.reduce_op, stage.mode, stage.position is not None
        scan = None if stage.scan is None else describer.variables[stage.scan]
        roots = map(describer.node, roots_of(stage))
        stages.append((*how, scan, _over(describer, stage.axes), *map(describer.expr, stage.coords), *roots))
    spaces = _over(describer, group.outer), _over(describer, group.inner)
    memory = [_lies(describer, buffers[name]) for name in describer.buffers]
    return (*spaces, tuple(stages), tuple(describer.values), tuple(memory)), tuple(describer.buffers)


def _over(describer: Describer, space: Space) -> Structure:
    return tuple([(number(describer.variables, name), describer.expr(extent)) for name, extent in space])


def _lies(describer: Describer, buffer: Buffer) -> Structure:
    places = [tuple(map(describer.expr, exprs)) for exprs in (buffer.shape, buffer.layout.stride)]
    return buffer.dtype, buffer.device, *places, describer.expr(buffer.layout.offset)


Unit = Group | Extern | WriteBack


def unit_reads(unit: Unit) -> set[str]:
    """The buffers a unit reads from memory or updates."""
    if not isinstance(unit, Group):
        return reads(unit)
    defined: set[str] = set()
    read: set[str] = set()
    for stage in unit.stages:
        read |= {node.arg.buffer for node in loads_of(roots_of(stage))} - defined
        (read if stage.updates else defined).add(stage.name)
    return read


def unit_writes(unit: Unit) -> Sequence[str]:
    return [stage.name for stage in unit.stages] if isinstance(unit, Group) else writes(unit)
