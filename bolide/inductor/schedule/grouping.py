"""Which stages share a kernel: greedy fusion over the dependence graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from bolide.inductor.ir.definitions import Extern, Program, WriteBack
from bolide.inductor.schedule.fuse import fuse
from bolide.inductor.schedule.stages import Group, Refusal, Scheduling, Unit, stage_of, unit_reads, unit_writes
from bolide.tracing.numbers.data import require

REACH = 48  # a group is only joined with groups this many units back


@dataclass(slots=True)
class _Vertex:
    """A unit in the dependence graph. `before`: bit set of the units that must run before it, transitively; `needs`:
    direct ones; `last`: the place in the program of the last thing it does."""

    unit: Unit
    before: int
    needs: set[int]
    last: int
    alive: bool = True


@dataclass(slots=True)
class _Graph:
    ctx: Scheduling
    vertices: list[_Vertex] = field(default_factory=list)
    maker: dict[str, int] = field(default_factory=dict)  # buffer -> vertex that wrote it last
    readers: dict[str, list[int]] = field(default_factory=dict)
    barrier: int | None = None  # the last vertex that tells or checks a size, which all later ones come after


def group(program: Program, ctx: Scheduling, fusion: bool) -> list[Unit]:
    """The units of a program, in a valid order of execution."""
    graph = _Graph(ctx)
    for definition in program.definitions:
        unit: Unit
        if isinstance(definition, (Extern, WriteBack)):
            unit = definition
        else:
            stage = stage_of(definition)
            unit = Group((stage,), stage.axes, stage.reduce_axes)
        _add(graph, unit, fusion)
    return _ordered(graph)


def _add(graph: _Graph, unit: Unit, fusion: bool) -> None:
    index = len(graph.vertices)
    names = unit_reads(unit)
    needs = {graph.maker[name] for name in names if name in graph.maker}
    changes = set(unit_writes(unit)) & (graph.maker.keys() | graph.readers.keys())
    for name in changes:  # writes of what exists already come after all its readers and its maker
        needs.update(graph.readers.get(name, ()))
        if name in graph.maker:
            needs.add(graph.maker[name])
    if graph.barrier is not None:
        needs.add(graph.barrier)
    before = 0
    for i in needs:
        before |= graph.vertices[i].before | 1 << i
    graph.vertices.append(_Vertex(unit, before, needs, index))
    for name in names:
        graph.readers.setdefault(name, []).append(index)
    for name in unit_writes(unit):
        graph.maker[name] = index
    if isinstance(unit, Extern) and (unit.binds or unit.op is require):
        graph.barrier = index
    if fusion and isinstance(unit, Group) and not changes:
        _join_with_earlier(graph, index, names)


def _join_with_earlier(graph: _Graph, index: int, names: set[str]) -> None:
    """Fuses the newest vertex with the groups that make what it reads, then with those that read the same."""
    producers = {graph.maker[name] for name in names if name in graph.maker}
    siblings = {i for name in names for i in graph.readers[name] if index - i < REACH}
    current = index
    for candidate in (*sorted(producers, reverse=True), *sorted(siblings - producers, reverse=True)):
        vertex = graph.vertices[candidate]
        if candidate == current or not vertex.alive or not isinstance(vertex.unit, Group):
            continue
        mine = graph.vertices[current]
        if _path_between(graph, candidate, current):
            continue
        first, second = (mine, vertex) if current in vertex.needs else (vertex, mine)
        assert isinstance(first.unit, Group) and isinstance(second.unit, Group)
        joined = fuse(first.unit, second.unit, graph.ctx.buffers)
        if isinstance(joined, str):
            graph.ctx.refusals.append(Refusal(first.unit.stages[-1].name, second.unit.stages[-1].name, joined))
            continue
        _replace(graph, candidate, current, joined)
        current = candidate


def _path_between(graph: _Graph, first: int, second: int) -> bool:
    """Whether some third unit depends on one and is needed by the other."""
    return any(
        need != a and graph.vertices[need].before & 1 << a
        for a, b in ((first, second), (second, first))
        for need in graph.vertices[b].needs
    )


def _replace(graph: _Graph, kept: int, gone: int, unit: Group) -> None:
    """Vertex `kept` becomes `unit`, which does the work of both."""
    old, new = graph.vertices[gone], graph.vertices[kept]
    either = 1 << kept | 1 << gone
    new.unit = unit
    new.needs = (new.needs | old.needs) - {kept, gone}
    new.before = (new.before | old.before) & ~either
    new.last = max(new.last, old.last)
    old.alive = False
    for vertex in graph.vertices:
        if vertex.alive and vertex is not new and vertex.before & either:
            vertex.before = (vertex.before | new.before | 1 << kept) & ~(1 << gone)
            if gone in vertex.needs:
                vertex.needs = (vertex.needs - {gone}) | {kept}
    for name in unit_writes(unit):
        if graph.maker.get(name) == gone:
            graph.maker[name] = kept
    for name in unit_reads(old.unit):
        graph.readers[name] = list(dict.fromkeys(kept if i == gone else i for i in graph.readers[name]))


def _ordered(graph: _Graph) -> list[Unit]:
    """A topological order that stays close to the order of the program."""
    order: dict[int, Unit] = {}
    alive = [index for index, vertex in enumerate(graph.vertices) if vertex.alive]
    stack = sorted(alive, key=lambda i: graph.vertices[i].last, reverse=True)
    while stack:
        top = stack[-1]
        missing = [i for i in graph.vertices[top].needs if i not in order]
        if missing:
            stack.extend(missing)
        else:
            order.setdefault(stack.pop(), graph.vertices[top].unit)
    return list(order.values())
