"""The order of execution, chosen for less memory, and how long buffers live.

What frees more memory than it takes runs as soon as it can; then neighbours change places where that lowers the peak of
the two. The typical case: of the two products of a linear layer's backward, the weight's gradient goes first, because
the activation that it reads dies with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from bolide.inductor.ir.definitions import Computed, Definition, Element, Extern, Program, WriteBack, volume
from bolide.inductor.ir.walks import (
    is_impure,
    is_indirect,
    loads_of,
    may_raise,
    readers_of,
    reads,
    roots_of,
    viewed,
    writes,
)
from bolide.inductor.lowering.indexing import check_index
from bolide.inductor.runtime.externs import WRITING
from bolide.inductor.schedule.stages import Group, Unit, unit_reads, unit_writes
from bolide.tracing.traits import traits_of

ROUNDS = 3


# ---- what lives how long --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lifetimes:
    """How long buffers must live, as far as it follows from the program, whatever is fused. Time is counted in *waves*:
    how often, on the way from the inputs, something must lie in memory before the next can begin (a call, a scatter,
    reads of what lies around a point). `wave`: of what makes a buffer; `last`: of its last reader; `size`: its bytes,
    with sizes as they were seen; `kept`: buffers that live anyway."""

    wave: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()

    def wave_of(self, unit: Unit) -> int:
        """When a unit can run."""
        names = (*unit_reads(unit), *unit_writes(unit))
        return max([self.wave[name] for name in names if name in self.wave], default=0)

    def wasted(self, read: Iterable[str], made: Iterable[str], wave: int) -> int:
        """How many more bytes live until that time if what is `made` of buffers is not made before it; 0 unless these
        are twice as many as those."""
        held = [name for name in read if name not in self.kept and self.last.get(name, 0) < wave]
        longer, shorter = (sum([self.size[name] for name in names]) for names in (held, made))
        return longer - shorter if longer >= 2 * shorter else 0


def lifetimes_of(program: Program, static: Collection[str]) -> Lifetimes:
    """`static`: inputs that live anyway, as results do."""
    times = Lifetimes(kept=frozenset(static) | viewed(program.results))
    for name, (dtype, shape, _) in program.buffers().items():
        times.size[name] = volume(shape).evaluate(program.size_vars) * dtype.itemsize
    elements = [_elements(definition) for definition in program.definitions]
    points = Counter([element.buffer for read in elements for element in read])
    computed: set[str] = set()
    for definition, read in zip(program.definitions, elements):
        names = reads(definition)
        wave = max([times.wave.get(name, 0) for name in names], default=0)
        if isinstance(definition, Computed):
            # what is read at one point alone is inlined
            shifted = [element.buffer for element, elsewhere in read.items() if elsewhere]
            wave = max([wave, *[times.wave[name] + 1 for name in shifted if name in computed and points[name] > 1]])
            computed.add(definition.name)
        else:
            wave += 1
        for name in writes(definition):
            times.wave[name] = wave
        for name in names:
            times.last[name] = max(wave, times.last.get(name, 0))
    return times


def _elements(definition: Definition) -> dict[Element, bool]:
    """What a definition reads of each buffer, and whether that is elsewhere than at the point that is computed: what is
    computed for every point in turn cannot be read so in the same pass."""
    if not isinstance(definition, Computed):
        return {}
    loads = loads_of(roots_of(definition))
    return {
        load.arg: is_indirect(load) or load.arg.masked or any(coord.offset for coord in load.arg.coords if coord.terms)
        for load in loads
    }


# ---- the order of units ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Uses:
    """What a unit reads and writes, and how many bytes it takes from the allocator."""

    reads: frozenset[str]
    writes: frozenset[str]
    takes: int
    fixed: bool  # an effect on the world (random state, an input): keeps its place


def order_for_memory(units: list[Unit], times: Lifetimes, least: int) -> list[Unit]:
    """The units in an order that is valid and needs no more memory. Neighbours change places for `least` bytes."""
    known, held = times.size, times.kept
    items = _freed_early([(unit, _uses(unit, known)) for unit in units], held, known)
    for _ in range(ROUNDS):
        readers = {name: i for i, (_, uses) in enumerate(items) for name in uses.reads}  # the last ones
        changed = False
        for i in range(len(items) - 1):
            first, second = items[i][1], items[i + 1][1]
            if _independent(first, second) and _gain(first, second, i, readers, held, known) >= least:
                items[i], items[i + 1] = items[i + 1], items[i]
                for name in first.reads | second.reads:
                    if readers[name] in (i, i + 1):
                        readers[name] = i + 1 if name in first.reads else i
                changed = True
        if not changed:
            break
    return [unit for unit, _ in items]


def _freed_early(
    items: list[tuple[Unit, _Uses]], held: Collection[str], known: dict[str, int]
) -> list[tuple[Unit, _Uses]]:
    """The units with those that free as much as they take as soon as they can run, but for new values of inputs, which
    come after all that reads the old ones. What they wait for alone comes right before them, if both together free as
    much as they take. Nothing passes what keeps its place."""
    written = {unit.source.buffer for unit, _ in items if isinstance(unit, WriteBack)}
    readers: dict[str, list[int]] = {}
    makers: dict[str, int] = {}
    for at, (_, uses) in enumerate(items):
        for name in uses.reads:
            readers.setdefault(name, []).append(at)
    places: list[int] = []  # behind which unit each one runs
    barrier = -1
    for at, (_, uses) in enumerate(items):
        dying = [name for name in uses.reads if readers[name][-1] == at and name not in held]
        freed = sum([known.get(name, 0) for name in dying])
        places.append(at)
        if uses.fixed:
            barrier = at
        elif freed and freed >= uses.takes and written.isdisjoint(uses.writes):
            before = {makers[name] for name in uses.reads if name in makers}
            before.update([reader for name in dying for reader in readers[name][:-1]])
            late = {unit for unit in before if places[unit] == unit and written.isdisjoint(items[unit][1].writes)}
            late = {unit for unit in late if unit > barrier}
            if freed >= uses.takes + sum([items[unit][1].takes for unit in late]):
                before -= late
                before.update([makers[name] for unit in late for name in items[unit][1].reads if name in makers])
            else:
                late = set()
            place = max([barrier, *[places[unit] for unit in before]])
            for unit in (at, *late):
                places[unit] = min(place, places[unit])
        makers.update(dict.fromkeys(uses.writes, at))
    order = sorted(range(len(items)), key=lambda at: (places[at], at))
    return [items[at] for at in order]


def _uses(unit: Unit, known: dict[str, int]) -> _Uses:
    reads, writes = frozenset(unit_reads(unit)), frozenset(unit_writes(unit))
    updates = isinstance(unit, Group) and any(stage.updates for stage in unit.stages)
    fixed = updates or isinstance(unit, WriteBack) or (isinstance(unit, Extern) and is_impure(unit))
    return _Uses(reads, writes, sum(known.get(name, 0) for name in writes - reads), fixed)


def _independent(first: _Uses, second: _Uses) -> bool:
    conflict = first.writes & (second.reads | second.writes) or second.writes & first.reads
    return not (first.fixed or second.fixed or conflict)


def _gain(
    first: _Uses, second: _Uses, at: int, readers: dict[str, int], held: Collection[str], known: dict[str, int]
) -> int:
    """By how many bytes the peak of the two units is lower when the second one runs first."""
    dying = {name for name in first.reads | second.reads if readers[name] in (at, at + 1) and name not in held}
    only_first = sum(known.get(name, 0) for name in dying & first.reads - second.reads)
    only_second = sum(known.get(name, 0) for name in dying & second.reads - first.reads)
    as_it_is = max(first.takes, first.takes - only_first + second.takes)
    swapped = max(second.takes, second.takes - only_second + first.takes)
    return as_it_is - swapped


# ---- what may raise comes first -------------------------------------------------------------------------------------


def checks_first(program: Program) -> Program:
    """The program with all that may raise, and what it needs, before everything else, if inputs are written: these can
    be written in place behind it. Draws keep their order."""
    definitions = program.definitions
    if not any(isinstance(d, WriteBack) for d in definitions) or not any(map(may_raise, definitions)):
        return program
    needed: set[str] = set()
    first: list[Definition] = []
    rest: list[Definition] = []
    draws = False  # one of the first draws, so that all before it do
    for definition in reversed(definitions):
        made = () if isinstance(definition, WriteBack) else writes(definition)
        draw = isinstance(definition, Extern) and traits_of(definition.op).seeded
        if may_raise(definition) or not needed.isdisjoint(made) or (draw and draws):
            needed |= reads(definition)
            draws |= draw
            first.append(definition)
        else:
            rest.append(definition)
    return replace(program, definitions=[*reversed(first), *reversed(rest)])


def writes_late(program: Program) -> Program:
    """The program with the new value of an input, where nothing else reads it, behind all that reads the old one."""
    definitions = program.definitions
    writes_back = [definition for definition in definitions if isinstance(definition, WriteBack)]
    if not writes_back:
        return program
    readers = readers_of(definitions)
    last = {name: at for at, definition in enumerate(definitions) for name in reads(definition)}
    makers = {name: at for at, d in enumerate(definitions) if _can_be_told_where(d) for name in writes(d)}
    places: dict[int, int] = {}
    for write in writes_back:
        maker = makers.get(write.source.buffer)
        if maker is not None and len(readers[write.source.buffer]) == 1:
            places[maker] = max(maker, last.get(write.target, -1))
    order = sorted(range(len(definitions)), key=lambda at: (places.get(at, at), at in places, at))
    return replace(program, definitions=[definitions[at] for at in order])


def _can_be_told_where(definition: Definition) -> bool:
    """Whether the result may be computed in the memory of an input."""
    return isinstance(definition, Computed) or (isinstance(definition, Extern) and definition.op in WRITING)


def checked_only(program: Program) -> frozenset[str]:
    """What checks alone read, if inputs are written: kernels of their own make it, so that checks need not wait."""
    if not any(isinstance(definition, WriteBack) for definition in program.definitions):
        return frozenset()
    checked: set[str] = set()
    others = viewed(program.results)
    for definition in program.definitions:
        check = isinstance(definition, Extern) and not definition.names
        (checked if check else others).update(reads(definition))
    return frozenset(checked - others)


def marks_of(program: Program) -> frozenset[str]:
    """Flags, whether some index is bad, that only checks read: no kernel needs them, and hardly ever is one set. So
    they are no reductions: the kernel that has the indices at hand stores True where one is bad."""
    computed = [definition for definition in program.definitions if isinstance(definition, Computed)]
    flags = {definition.name for definition in computed if definition.reduce_op == "any" and not definition.shape}
    for definition in program.definitions:
        if not isinstance(definition, Extern) or definition.op is not check_index:
            flags -= reads(definition)
    return frozenset(flags - viewed(program.results))
