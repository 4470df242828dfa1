"""Where the elements of every buffer are.

A buffer that is written back to an input is computed there: its *home* is the input's memory. It can be where, in the
order of execution,

- every other unit that reads the input, or updates it, comes before the one that computes the buffer;
- everything that may raise does too: nothing outside may have changed when a graph raises;
- no call can have kept the memory of either, and the buffer is no result of the graph;
- its elements may lie as the input's do, and its kernel reads those of the input before it stores there (`reuse`), or
  a product does not read them at all and is told where to write (`externs.WRITING`).

Inputs that are written share no memory with others, and no two of their elements do (contract of a graph).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bolide.inductor.ir.definitions import Computed, Extern, Layout, Program, WriteBack, described
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.walks import loads_of, may_raise, reads, viewed, views_in, writes
from bolide.inductor.runtime.externs import WRITING
from bolide.inductor.runtime.results import gives_new_memory
from bolide.inductor.schedule.reuse import overwrites_safely
from bolide.inductor.schedule.stages import Buffer, Group, Scheduling, Unit, unit_reads, unit_writes
from bolide.symbolic import Expr, is_packed

ZERO = Expr.const(0)


def decide_layouts(program: Program) -> dict[str, Buffer]:
    """The buffers of a program. Inputs and results of library calls are as they come; what a consumer must see is as it
    must be; any other buffer is laid out like what it is computed from, so that chains keep one order of memory."""
    buffers: dict[str, Buffer] = {}
    for given in program.inputs:
        buffers[given.name] = Buffer(given.dtype, given.shape, Layout(given.layout.stride, ZERO), given.device)
    fixed = strided_views(program)
    for definition in program.definitions:
        if isinstance(definition, WriteBack):
            continue
        for name, (dtype, shape, layout) in described(definition).items():
            if layout is None and isinstance(definition, Computed) and name not in fixed:
                layout = _like_operands(definition, buffers)
            device = definition.device_of(name) if isinstance(definition, Extern) else definition.device
            if name not in buffers:  # the update of a scatter works in the buffer of its copy
                buffers[name] = Buffer(dtype, shape, layout or Layout.row_major(shape), device)
    return buffers


def strided_views(program: Program) -> set[str]:
    """Buffers of which a call or a result is a strided view: its strides hold for the row-major layout."""
    views = views_in(program.results)
    for definition in program.definitions:
        if isinstance(definition, Extern):
            views += views_in((definition.args, definition.kwargs))
        elif isinstance(definition, WriteBack):
            views.append(definition.source)
    return {view.buffer for view in views if view.stride is not None}


def _like_operands(definition: Computed, buffers: dict[str, Buffer]) -> Layout | None:
    """The layout that all operands read element by element have, if it is dense and not row-major."""
    if definition.reduce_op is not None or len(definition.shape) < 3:
        return None
    elements = [node.arg for node in loads_of((definition.value,)) if node.arg.coords == definition.coords]
    strides = {buffers[element.buffer].layout.stride for element in elements if not element.masked}
    if len(strides) != 1:
        return None
    stride = strides.pop()
    return Layout(stride, ZERO) if _is_dense(definition.shape, stride) else None


def _is_dense(shape: tuple[Expr, ...], stride: tuple[Expr, ...]) -> bool:
    """Whether a layout has no gaps and no overlaps (static sizes only)."""
    if not all(expr.is_const for expr in (*shape, *stride)):
        return False
    order = sorted(range(len(shape)), key=lambda dim: (stride[dim].value, shape[dim].value))
    return is_packed(shape, stride, order)


# ---- homes ----------------------------------------------------------------------------------------------------------


def _free_layouts(program: Program) -> set[str]:
    """The buffers that may lie anyhow: only kernels see where their elements are."""
    seen = strided_views(program) | viewed(program.results)
    for definition in program.definitions:
        if isinstance(definition, Extern):
            seen |= reads(definition)
    free = {d.name for d in program.definitions if isinstance(d, Computed) and d.layout is None}
    return free - seen


@dataclass(slots=True)
class Homes:
    """`of`: the input in whose memory a buffer is to be; `layouts`: where its elements were to lie otherwise."""

    of: dict[str, str]
    layouts: dict[str, Layout]


def find_homes(units: Sequence[Unit], ctx: Scheduling, program: Program) -> Homes:
    """Homes for the sources of write-backs. The layouts of the buffers become those of the inputs."""
    homes = Homes({}, {})
    if not any(isinstance(unit, WriteBack) for unit in units):
        return homes
    facts, free = _Facts(units, ctx), _free_layouts(program)
    for at, unit in enumerate(units):
        if isinstance(unit, WriteBack) and unit.source.stride is None:
            name, target = unit.source.buffer, unit.target
            buffer, memory = ctx.buffers[name], ctx.buffers[target]
            alike = memory in (buffer, replace(buffer, layout=memory.layout) if name in free else None)
            if alike and name not in homes.of and facts.allow(name, target, at):
                homes.of[name], homes.layouts[name] = target, buffer.layout
                ctx.buffers[name] = memory
    return homes


class _Facts:
    """Where the units of a plan read and write, by position."""

    def __init__(self, units: Sequence[Unit], ctx: Scheduling) -> None:
        self.units = units
        self.taken = viewed(ctx.results)
        self.reads: dict[str, list[int]] = {}
        self.writes: dict[str, list[int]] = {}
        self.checks = -1
        for at, unit in enumerate(units):
            for name in unit_reads(unit):
                self.reads.setdefault(name, []).append(at)
            for name in unit_writes(unit):
                self.writes.setdefault(name, []).append(at)
            if isinstance(unit, Extern):
                if may_raise(unit):
                    self.checks = at
                if not gives_new_memory(unit.op):
                    self.taken |= reads(unit) | set(writes(unit))

    def allow(self, name: str, target: str, write: int) -> bool:
        """Whether `name` can be computed in the memory of `target`, to which unit `write` would copy it."""
        if name in self.taken or target in self.taken or name not in self.writes:
            return False
        maker = self.writes[name][0]
        unit = self.units[maker]
        if maker <= self.checks:
            return False
        if isinstance(unit, Group):
            if any(stage.name == name and stage.mode != "define" for stage in unit.stages):
                return False
        elif not isinstance(unit, Extern) or unit.op not in WRITING or target in unit_reads(unit):
            return False
        others = [*self.reads.get(target, ()), *self.writes[target]]
        return all(at < maker for at in others if at not in (maker, write))


def settle(homes: Homes, group: Group, kernel: Kernel, arguments: Sequence[str], ctx: Scheduling) -> bool:
    """Whether the kernel of a group, called with `arguments`, can be as it is; else those of its results that it cannot
    compute in their homes have none, and their layouts are again what they were."""
    own = {s.name: homes.of[s.name] for s in group.stages if s.mode == "define" and s.name in homes.of}
    safe = overwrites_safely(kernel, arguments, own) if own else {}
    for name in own:
        if not safe[name]:
            del homes.of[name]
            ctx.buffers[name] = replace(ctx.buffers[name], layout=homes.layouts[name])
    return all(safe.values())
