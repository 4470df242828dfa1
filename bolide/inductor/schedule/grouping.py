"""Which stages share a kernel: greedy fusion over the dependence graph.

Vertices have places in a topological order. Where two are joined, the order is mended as Pearce and Kelly do it for a
new edge (A dynamic topological sort algorithm for directed acyclic graphs, 2006): only what stands between the two and
depends on them changes places. As MOST_STEPS bounds the search for that, grouping is linear in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bolide.inductor.ir.definitions import Extern, Program, WriteBack
from bolide.inductor.schedule.fuse import fuse
from bolide.inductor.schedule.order import Lifetimes, checked_only, marks_of
from bolide.inductor.schedule.stages import (
    Group,
    Refusal,
    Scheduling,
    Unit,
    group_of,
    stage_of,
    unit_reads,
    unit_writes,
)
from bolide.tracing.numbers.data import require
from bolide.tracing.traits import traits_of

MOST_STEPS = 1 << 10  # edges that are followed from either of two groups before they count as too far from each other


@dataclass(slots=True)
class _Vertex:
    """A unit in the dependence graph. `needs` and `needed_by`: vertices that must run before and behind it, direct
    ones, as they were then (`_Graph.found` tells what became of them). `place`: where it stands in the order; `last`:
    the place in the program of the last thing it does; `wave`: see `Lifetimes`; `into`: what it was joined with."""

    unit: Unit
    reads: set[str]
    needs: set[int]
    place: int
    last: int
    wave: int
    needed_by: set[int] = field(default_factory=set)
    into: int | None = None


@dataclass(slots=True)
class _Graph:
    """`maker`: buffer -> vertex that wrote it last; `readers`: buffer -> vertices that read it; `barrier`: the last
    vertex that tells or checks a size, which all later ones come after; `effect`: the last one that draws, seeds or
    does something else to the world, which others of this kind come after."""

    ctx: Scheduling
    times: Lifetimes
    vertices: list[_Vertex] = field(default_factory=list)
    maker: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    barrier: int | None = None
    effect: int | None = None
    apart: frozenset[str] = frozenset()  # buffers that do not share kernels with others
    written: dict[str, str] = field(default_factory=dict)  # the new value of an input -> that input

    def found(self, index: int) -> int:
        """The vertex that does the work of this one now."""
        into = self.vertices[index].into
        if into is None:
            return index
        last = self.vertices[index].into = self.found(into)
        return last


def group(program: Program, ctx: Scheduling, times: Lifetimes, fusion: bool) -> list[Unit]:
    """The units of a program, in a valid order of execution."""
    writes = [definition for definition in program.definitions if isinstance(definition, WriteBack)]
    written = {write.source.buffer: write.target for write in writes}
    marks = marks_of(program)
    graph = _Graph(ctx, times, apart=checked_only(program), written=written)
    for definition in program.definitions:
        unit: Unit
        if isinstance(definition, (Extern, WriteBack)):
            unit = definition
        else:
            unit = group_of(stage_of(definition, definition.name in marks))
        _add(graph, unit, fusion)
    return _ordered(graph)


def _add(graph: _Graph, unit: Unit, fusion: bool) -> None:
    index = len(graph.vertices)
    names = unit_reads(unit)
    needs = {graph.maker[name] for name in names if name in graph.maker}
    changes = [name for name in unit_writes(unit) if name in graph.maker or name in graph.readers]
    for name in changes:  # writes of what exists already come after all its readers and its maker
        needs.update(graph.readers.get(name, ()))
        if name in graph.maker:
            needs.add(graph.maker[name])
    for name in unit_writes(unit):  # so that it can be computed there
        if name in graph.written and isinstance(unit, Group):
            needs.update(graph.readers.get(graph.written[name], ()))
    has_effect = _has_effect(unit)
    needs.update(last for last in (graph.barrier, graph.effect if has_effect else None) if last is not None)
    needs = {graph.found(need) for need in needs}
    graph.vertices.append(_Vertex(unit, names, needs, index, index, graph.times.wave_of(unit)))
    for need in needs:
        graph.vertices[need].needed_by.add(index)
    for name in names:
        graph.readers.setdefault(name, []).append(index)
    for name in unit_writes(unit):
        graph.maker[name] = index
    if isinstance(unit, Extern) and (unit.binds or unit.op is require):
        graph.barrier = index
    if has_effect:
        graph.effect = index
    if fusion and isinstance(unit, Group) and not changes:
        _join_with_earlier(graph, index)


def _has_effect(unit: Unit) -> bool:
    """Whether a unit has to keep its place among others of this kind. Our own checks and those of ATen need not."""
    if not isinstance(unit, Extern):
        return False
    traits = traits_of(unit.op)
    return traits.seeded or (traits.impure and unit.op.namespace not in ("aten", "bolide"))


def _join_with_earlier(graph: _Graph, index: int) -> None:
    """Fuses the newest vertex with the groups that make what it reads, then with those that read the same."""
    vertices = graph.vertices
    names = vertices[index].reads
    producers = {graph.found(graph.maker[name]) for name in names if name in graph.maker}
    near = range(max(0, index - graph.ctx.machine.reach + 1), index)
    siblings = [i for i in near if not names.isdisjoint(vertices[i].reads)]
    current = index
    for candidate in (*sorted(producers, reverse=True), *(i for i in reversed(siblings) if i not in producers)):
        vertex, mine = vertices[candidate], vertices[current]
        if candidate == current or vertex.into is not None or not isinstance(vertex.unit, Group):
            continue
        places = _joint_places(graph, candidate, current)
        if places is None or _is_apart(graph, vertex.unit) != _is_apart(graph, mine.unit):
            continue
        first, second = (mine, vertex) if current in map(graph.found, vertex.needs) else (vertex, mine)
        assert isinstance(first.unit, Group) and isinstance(second.unit, Group)
        more = _wasted(graph, vertex, mine)
        joined = f"{more} more bytes would live until then" if more else fuse(first.unit, second.unit, graph.ctx)
        if isinstance(joined, str):
            graph.ctx.refusals.append(Refusal(first.unit.stages[-1].name, second.unit.stages[-1].name, joined))
            continue
        _replace(graph, candidate, current, joined)
        for moved, place in places.items():
            vertices[moved].place = place
        current = candidate


def _wasted(graph: _Graph, one: _Vertex, other: _Vertex) -> int:
    """How many more bytes live if one of them waits for the other one, which can run in a later wave only."""
    early, late = (one, other) if one.wave <= other.wave else (other, one)
    if early.wave == late.wave:
        return 0
    return graph.times.wasted(early.reads, unit_writes(early.unit), late.wave)


def _is_apart(graph: _Graph, unit: Unit) -> bool:
    return graph.apart.issuperset(unit_writes(unit))


def _joint_places(graph: _Graph, kept: int, gone: int) -> dict[int, int] | None:
    """The places of `kept`, and of others that have to move, when it does the work of both. None: a third vertex needs
    one of the two and is needed by the other, or that was not found out in MOST_STEPS."""
    vertices = graph.vertices
    earlier, later = sorted((kept, gone), key=lambda index: vertices[index].place)
    begin, end = vertices[earlier].place, vertices[later].place

    before = _reached(graph, later, earlier, lambda vertex: vertex.needs)
    if before is not None and not before:
        return {kept: begin}
    if before is not None and earlier in before:
        return None
    behind = _reached(graph, earlier, later, lambda vertex: vertex.needed_by)
    if behind is not None and not behind:
        return {kept: end}
    if before is None or behind is None:
        return None
    moved = [*sorted(before, key=lambda i: vertices[i].place), kept, *sorted(behind, key=lambda i: vertices[i].place)]
    pool = sorted([begin, end, *(vertices[index].place for index in before | behind)])
    return dict(zip(moved, [*pool[: len(before) + 1], *pool[len(before) + 2 :]]))


def _reached(graph: _Graph, start: int, goal: int, edges: Callable[[_Vertex], Iterable[int]]) -> set[int] | None:
    """The vertices with places between these two that edges lead to from `start`; as soon as they lead from there to
    `goal`, this is among them, and the search ends. None: it takes more than MOST_STEPS."""
    low, high = sorted((graph.vertices[start].place, graph.vertices[goal].place))
    reached: set[int] = set()
    stack = [start]
    steps = 0
    while stack:
        at = stack.pop()
        for edge in edges(graph.vertices[at]):
            steps += 1
            if steps > MOST_STEPS:
                return None
            index = graph.found(edge)
            if index == goal and at != start:
                return {goal}
            if index not in reached and low < graph.vertices[index].place < high:
                reached.add(index)
                stack.append(index)
    return reached


def _replace(graph: _Graph, kept: int, gone: int, unit: Group) -> None:
    """Vertex `kept` becomes `unit`, which does the work of both."""
    old, new = graph.vertices[gone], graph.vertices[kept]
    old.into = kept
    new.unit = unit
    new.reads |= old.reads
    new.needs = {graph.found(need) for need in new.needs | old.needs} - {kept}
    new.needed_by |= old.needed_by
    new.last = max(new.last, old.last)
    new.wave = max(new.wave, old.wave)


def _ordered(graph: _Graph) -> list[Unit]:
    """A topological order that stays close to the order of the program."""
    order: dict[int, Unit] = {}
    alive = [index for index, vertex in enumerate(graph.vertices) if vertex.into is None]
    stack = sorted(alive, key=lambda i: graph.vertices[i].last, reverse=True)
    while stack:
        top = stack[-1]
        missing = [need for need in {*map(graph.found, graph.vertices[top].needs)} if need not in order]
        if missing:
            stack.extend(missing)
        else:
            order.setdefault(stack.pop(), graph.vertices[top].unit)
    return list(order.values())
