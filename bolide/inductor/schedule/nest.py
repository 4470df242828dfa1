"""The schedule of a kernel: which axes are merged, their order, which one is the vector axis, and which may run in
parallel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bolide.inductor.ir.definitions import axis_var, volume
from bolide.inductor.ir.loops import ATOMIC, VECTOR_KINDS, WARP, Axis, Node, Store
from bolide.inductor.ir.printer import axis_text
from bolide.inductor.ir.rewrites import has_edges, piece_of, pieces_of
from bolide.inductor.ir.walks import crosses, loads_of, nodes_below, roots_in
from bolide.inductor.machine import Machine
from bolide.inductor.schedule.stages import Group, Parts, Space
from bolide.symbolic import Expr

FAR = 1 << 60  # the stride of a symbolic or irregular access, for sorting
ONE_THREAD = 1 << 60  # a grain that no work reaches
WIDEST = 16  # bytes that a GPU's thread stores at a time
_MOST_PLACES = 1 << 30  # that are divided as integers of 32 bits
_MOST_APART = 8  # loads of elements that do not follow one another as stores do


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a kernel runs: its axes and what they are bound to.

    `outer` and `inner`: loops, outermost first. An axis outside is parallel, vector, or serial (it must keep its order
    in one thread, inside all others); an axis inside is reduce or reduce_vector, which are serial and vector where a
    pass over them only stores. At most one axis is a vector axis, the innermost of its loops that are not serial.
    `jam`: the parallel axis of which so many iterations run side by side in one, each with accumulators of its own.
    `blocks`: axes outside that run in blocks of so many iterations (`rewrites.in_blocks`, for a GPU `in_shared_tiles`).
    `splits`: axes outside that are split at these places, wherever a condition on them changes there. Both are for
    kernels without axes inside.
    `grain`: the work that a thread must have (None: the machine's): it decides how many threads share the parallel
    axes, whatever their extents are in a call. `team`: the threads of a GPU that share the vector axis inside.
    `parts`: the rows outside go in these, one after the other, and a team adds up columns over its own.
    `rename`: what became of the group's axes that were merged. `scratch`:
    the most rows of memory that keep values from pass to pass. `why`: a reason for each choice."""

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    rename: tuple[tuple[str, Expr], ...] = ()
    scratch: int = 0
    jam: tuple[str, int] | None = None
    blocks: tuple[tuple[str, int], ...] = ()
    splits: tuple[tuple[str, tuple[int, ...]], ...] = ()
    grain: int | None = None
    team: int = 1
    parts: Parts | None = None
    why: tuple[str, ...] = ()

    @property
    def vector(self) -> str | None:
        """The vector axis."""
        return next((axis.name for axis in (*self.outer, *self.inner) if axis.kind in VECTOR_KINDS), None)

    @property
    def parallel(self) -> tuple[Axis, ...]:
        """The axes that threads may share: a vector axis outside is one of them if there is no other."""
        return tuple([axis for axis in self.outer if axis.kind == "parallel"]) or tuple(
            [axis for axis in self.outer if axis.kind == "vector"]
        )

    @property
    def space(self) -> Space:
        return tuple([(axis.name, axis.extent) for axis in (*self.outer, *self.inner)])

    def text(self) -> str:
        """The schedule for people: a line for what is bound, and one for each reason."""
        parts = [" ".join(map(axis_text, (*self.outer, *self.inner))) or "one element"]
        parts += [f"{', '.join(axis.name for axis in self.parallel)} on threads"] if self.parallel else []
        parts += ["{} {} at a time".format(*self.jam)] if self.jam is not None else []
        parts += [f"{name} in blocks of {size}" for name, size in self.blocks]
        parts += [f"{name} split at {', '.join(map(str, places))}" for name, places in self.splits]
        parts += [f"{self.scratch} rows of scratch memory at most"] if self.scratch else []
        parts += [f"at least {self.grain} of work for a thread"] if self.grain is not None else []
        parts += [f"teams of {self.team}"] if self.team > 1 else []
        parts += [f"parts of {self.parts.size} rows, with sums of their columns"] if self.parts is not None else []
        return "\n".join([", ".join(parts), *self.why])

    def with_vector(self, name: str | None, why: str = "as was asked") -> Schedule:
        """The schedule with another vector axis (None: without one)."""
        outer = [replace(axis, kind="parallel") if axis.kind == "vector" else axis for axis in self.outer]
        outer = [replace(axis, kind="vector") if axis.name == name else axis for axis in outer]
        inner = [replace(axis, kind="reduce_vector" if axis.name == name else "reduce") for axis in self.inner]
        outer.sort(key=lambda axis: ("parallel", "vector", "serial").index(axis.kind))
        inner.sort(key=lambda axis: axis.kind == "reduce_vector")
        reasons = (*self.why, f"vector {name}: {why}")
        return replace(self, outer=tuple(outer), inner=tuple(inner), jam=None, blocks=(), why=reasons)

    def alternatives(self, machine: Machine, sizes: Mapping[str, int]) -> list[Schedule]:
        """Other schedules that compute the same, and are good for these sizes, perhaps: for a search."""
        if self.parts is not None:
            return []
        names = [axis.name for axis in (*self.outer, *self.inner) if axis.kind != "serial" and axis.name != self.vector]
        others = [self.with_vector(name) for name in names]
        if machine.device == "cuda":
            others = [_with_team(other, machine, False, sizes) for other in others]
        others += [self._exchanged(place) for place in range(len(self.outer) - 1) if self._may_exchange(place)]
        if self.scratch:
            others.append(replace(self, scratch=0, why=(*self.why, "no scratch memory: as was asked")))
        if self.jam is not None:
            others.append(replace(self, jam=None, why=(*self.why, "nothing jammed: as was asked")))
        if self.splits:
            others.append(replace(self, splits=(), why=(*self.why, "nothing split: as was asked")))
        if self.blocks:
            (name, size), *rest = self.blocks
            others.append(replace(self, blocks=(), why=(*self.why, "no blocks: as was asked")))
            for other in (size // 2, size * 2):
                why = (*self.why, f"blocks of {other}: as was asked")
                others.append(replace(self, blocks=((name, other), *rest), why=why))
        return others

    def alternative_threads(self, machine: Machine) -> list[Schedule]:
        """The same schedule on more or fewer threads, down to one; on a GPU, with teams of more or fewer: for a
        search."""
        if machine.device == "cuda":
            shared = [axis for axis in self.inner if axis.name == self.vector]
            teams = [team for team in (*machine.teams, machine.largest_team) if team != self.team and shared]
            return [replace(self, team=team, why=(*self.why, f"teams of {team}: as was asked")) for team in teams]
        if machine.threads == 1 or not self.parallel:
            return []
        grains = [machine.grain // 4, machine.grain * 4, machine.grain * 16, ONE_THREAD]
        return [replace(self, grain=grain, why=(*self.why, f"grain {grain}: as was asked")) for grain in grains]

    def _may_exchange(self, place: int) -> bool:
        """Whether a parallel loop and the one inside it may change places."""
        return self.outer[place].kind == self.outer[place + 1].kind == "parallel"

    def _exchanged(self, place: int) -> Schedule:
        outer = [*self.outer]
        outer[place : place + 2] = outer[place + 1], outer[place]
        return replace(self, outer=tuple(outer), why=(*self.why, f"{outer[place].name} outside: as was asked"))


def choose_schedule(
    group: Group, addresses: list[Expr], stores: frozenset[Expr], indices: list[Expr], machine: Machine
) -> Schedule:
    """The schedule for a group with these addresses, `stores` among them, and other index expressions."""
    outer, inner = list(group.outer), list(group.inner)
    serial = frozenset(name for name, _ in outer if name in _ordered_axes(group))
    rename: dict[str, Expr] = {}
    expressions = [*addresses, *indices]
    if not inner:
        outer, expressions = _split(outer, expressions, serial, machine.lanes, rename)
    addresses, stores = expressions[: len(addresses)], _stores(stores, rename)
    ordering = addresses
    copies_runs = not inner and _has_runs(tuple(outer), addresses, machine.shortest_run)
    if copies_runs:  # memory is read ahead along its order, but not written so
        names = {name for name, _ in outer}  # first, those of what is as large as the result
        ordering = sorted(addresses, key=lambda expr: (-len(names & expr.free_vars), expr in stores))
    strides = {name: [_stride(expr, name) for expr in ordering] for name, _ in (*outer, *inner)}
    kept = serial if any(stage.mode == "set" for stage in group.stages) else ()  # of several values the last one stays
    outer.sort(key=lambda axis: (axis[0] in serial, 0 if axis[0] in kept else -_typical(strides[axis[0]])))
    inner.sort(key=lambda axis: -_typical(strides[axis[0]]))
    split = tuple(rename)
    outer, expressions = _merge(outer, expressions, serial, rename)
    inner, expressions = _merge(inner, expressions, frozenset(), rename)
    why = [f"serial {name}: a scatter may meet an element twice along it" for name, _ in outer if name in serial]
    why += [f"{name}: split, as an access divides it" for name in split]
    if merged := [name for name in rename if name not in split]:
        why.append(f"{', '.join(merged)}: merged, as every access allows it")
    schedule = Schedule(
        tuple([Axis(name, extent, "serial" if name in serial else "parallel") for name, extent in outer]),
        tuple([Axis(name, extent, "reduce") for name, extent in inner]),
        tuple(rename.items()),
        machine.most_scratch if inner else 0,
        parts=group.parts,
        why=tuple(why),
    )
    accesses = expressions[: len(addresses)]
    if group.parts is not None:
        return schedule.with_vector(inner[-1][0], "teams have rows")
    vector = _vector_axis(outer, inner, accesses, serial, machine.lanes)
    consecutive = sum(_stride(expr, vector) == 1 for expr in accesses) if vector is not None else 0
    if vector is None or (serial and not consecutive):  # lanes of a scatter go one after the other as well
        return schedule
    schedule = schedule.with_vector(vector, f"{consecutive} of {len(accesses)} accesses are consecutive along it")
    sums = sum(stage.reduce_op is not None for stage in group.stages)
    points = volume(extent for _, extent in group.space)
    if not sums or not points.is_const or points.value > machine.most_multiplications:
        return schedule  # fewer iterations would be left for threads to share
    return (
        schedule
        if any(stage.scan for stage in group.stages)
        else _jammed(schedule, accesses, machine.rows_at_once // sums)
    )


def cut(schedule: Schedule, stores: Sequence[Store], machine: Machine) -> Schedule:
    """The schedule of a kernel of these stores alone with its axes in blocks, and split, where that pays."""
    if machine.device == "cuda":
        return _in_shared_tiles(schedule, stores, machine)
    schedule = _in_tiles(schedule, stores, machine)
    schedule = _in_row_blocks(schedule, machine)
    if not any(map(has_edges, nodes_below(roots_in(stores)))):
        return schedule
    blocked = dict(schedule.blocks)
    found: dict[str, set[int]] = {}
    _splits([axis for axis in schedule.outer if axis.name not in blocked], list(roots_in(stores)), machine, found)
    splits = tuple([(name, tuple(sorted(places))) for name, places in found.items()])
    why = [f"split {name}: no conditions on it are left" for name in found]
    return replace(schedule, splits=splits, why=(*schedule.why, *why))


def in_teams(
    schedule: Schedule, machine: Machine, picks: bool, sizes: Mapping[str, int], scans: bool = False
) -> Schedule:
    """The schedule of a kernel for a GPU: a team shares a vector axis inside, of more threads the longer it is, and the
    more often they go through it. `picks`: it looks for places (of maxima), which are costly to join: so fewer threads
    have some. `scans`: each of its steps costs all threads time, so they are as few as keep the GPU busy. Symbolic
    `sizes` count as what they were while the program was traced."""
    return _with_team(_gathering(schedule, machine, sizes), machine, picks, sizes, scans)


def in_warps(schedule: Schedule) -> Schedule:
    """The schedule of a kernel that sorts rows: a warp each."""
    (axis,) = schedule.inner
    return replace(schedule.with_vector(axis.name, "it is sorted"), team=WARP)


def one_after_another(schedule: Schedule, stores: Sequence[Store]) -> tuple[Schedule, Mapping[str, Expr]]:
    """The schedule of a GPU's kernel of these stores alone with its last two axes as one, and what became of them:
    where what is stored has no gaps, but rows are no whole numbers of 128 bits (borders, odd lengths), a thread stores
    these all the same. (H200, bfloat16, scores of 197 × 197 and a mask: 0.90 ms, 3.99 row by row.)"""
    if len(schedule.outer) < 2 or schedule.outer[-1].kind != "vector" or schedule.outer[-2].kind != "parallel":
        return schedule, {}
    *rest, far, near = schedule.outer
    length, count = (axis.extent.value if axis.extent.is_const else 0 for axis in (near, far))
    lanes = WIDEST // max([store.value.dtype.itemsize for store in stores], default=WIDEST)
    if not (length >= lanes and length % lanes and 1 < count < _MOST_PLACES // length):
        return schedule, {}
    follow = all(
        store.mode == "set"
        and not store.operands
        and _stride(store.access.index, near.name) == 1
        and _stride(store.access.index, far.name) == length
        for store in stores
    )
    joint = Axis(near.name, near.extent * far.extent, "vector")
    place = axis_var(joint.name, joint.extent)
    step = {far.name: place // length, near.name: place % length}
    loads = [*loads_of(roots_in(stores))]
    apart = [load for load in loads if _stride(load.arg.index.subs(step), joint.name) != 1]
    if not follow or any(len(load.src) > load.arg.masked for load in loads) or len(apart) > _MOST_APART:
        return schedule, {}
    axes = tuple({**{name: value.subs(step) for name, value in schedule.rename}, **step}.items())
    why = f"{far.name}, {near.name}: one after the other, as rows of {length} are no multiple of {lanes}"
    return replace(schedule, outer=(*rest, joint), rename=axes, why=(*schedule.why, why)), step


def _with_team(
    schedule: Schedule, machine: Machine, picks: bool, sizes: Mapping[str, int], scans: bool = False
) -> Schedule:
    """The schedule with a team for its vector axis inside, or without one."""
    vector = next((axis for axis in schedule.inner if axis.name == schedule.vector), None)
    if vector is None:
        return replace(schedule, team=1)
    length = _usual(vector.extent, machine, sizes)
    if scans and length < machine.lanes // 2:
        return replace(schedule.with_vector(None, "few elements to scan"), team=1)
    points = math.prod([_usual(axis.extent, machine, sizes) for axis in schedule.inner])
    rows = math.prod([_usual(axis.extent, machine, sizes) for axis in schedule.outer])
    turns = 2 * machine.most_turns if picks else machine.most_turns
    turns = machine.lone_turns if rows <= machine.lone_rows and not picks and not scans else turns
    turns = turns // 2 if schedule.parts is not None else turns  # with registers for sums of columns
    known = (*machine.teams, machine.largest_team) if rows < machine.split_rows and not scans else machine.teams
    teams = [team for team in known if team <= length] or [*machine.teams[:1]]
    team = next((team for team in teams if points <= team * turns), teams[-1])
    if scans:
        team = next((each for each in teams if rows * each >= machine.scan_threads or each >= team), team)
    why = f"teams of {team}: each thread has at most {-(-length // team)} of {vector.name}"
    return replace(schedule, team=team, jam=None, why=(*schedule.why, why))


def _gathering(schedule: Schedule, machine: Machine, sizes: Mapping[str, int]) -> Schedule:
    """The schedule with its longest reduced axis for teams to share, if otherwise few threads would take long."""
    if not schedule.inner or schedule.vector in {axis.name for axis in schedule.inner}:
        return schedule
    lengths = {axis.name: _usual(axis.extent, machine, sizes) for axis in (*schedule.outer, *schedule.inner)}
    results = math.prod([lengths[axis.name] for axis in schedule.outer])
    longest = max([axis.name for axis in schedule.inner], key=lengths.__getitem__)
    few, small = results <= machine.few_threads, math.prod(lengths.values()) <= machine.most_gathered
    plain = all(axis.kind != "serial" for axis in schedule.outer)
    if not (few and small and plain and lengths[longest] >= machine.least_shared):
        return schedule
    return schedule.with_vector(longest, f"only {results} results")


def _usual(extent: Expr, machine: Machine, sizes: Mapping[str, int]) -> int:
    """What an extent is for these sizes; of a rest, the most that it may be."""
    most, usual = extent.bounds()[1], extent.subs(sizes)
    if most is not None and most < machine.unknown_extent:
        return most
    return usual.value if usual.is_const else machine.unknown_extent


def _in_tiles(schedule: Schedule, stores: Sequence[Store], machine: Machine) -> Schedule:
    """The schedule in blocks and tiles, if the stores read across memory along their vector axis: every line of memory
    is fetched once then."""
    if (axes := _crossed(schedule, stores, machine.tile)) is None:
        return schedule
    vector, along = axes
    why = f"blocks of {vector}, tiles of {along}: loads are consecutive along {along}"
    blocks = ((vector, machine.block), (along, machine.tile))
    return _storing_along(schedule, vector, blocks, why)


def _in_shared_tiles(schedule: Schedule, stores: Sequence[Store], machine: Machine) -> Schedule:
    """The schedule of a GPU's kernel in tiles of whole lines, where stores read across memory: these loads are made
    along it, and handed on in shared memory. A tile is for a warp, or, if all are whole, for a large team: then it has
    more lines, and threads take 16 bytes of them at a time."""
    if (axes := _crossed(schedule, stores, machine.tile)) is None:
        return schedule
    loads = [load for load in loads_of(roots_in(stores)) if not load.src and crosses(load.arg.index, axes[1], axes[0])]
    sizes = [node.dtype.itemsize for node in (*loads, *(store.value for store in stores))]
    side = min(max(machine.line // max(sizes), machine.tile), 2 * machine.tile)
    extents = [axis.extent for axis in schedule.outer if axis.name in axes]
    room = sum(load.dtype.itemsize for load in loads)

    def fits(side: int) -> bool:
        return side * (side + 4) * room <= machine.most_local_bytes

    whole = [size for size in (2 * machine.tile, side) if all(e.is_const and e.value % size == 0 for e in extents)]
    large = next(filter(fits, whole), None)
    if large is None and not fits(side):
        return schedule
    vector, along = axes
    side, team = (side, machine.lanes) if large is None else (large, machine.tile_team)
    why = f"tiles of {vector} and {along} in shared memory: loads are consecutive along {along}"
    return replace(_storing_along(schedule, vector, ((vector, side), (along, side)), why), team=team)


def _storing_along(schedule: Schedule, vector: str, blocks: tuple[tuple[str, int], ...], why: str) -> Schedule:
    if schedule.vector != vector:
        schedule = schedule.with_vector(vector, "stores are consecutive along it")
    return replace(schedule, blocks=blocks, why=(*schedule.why, why))


def _crossed(schedule: Schedule, stores: Sequence[Store], shortest: int) -> tuple[str, str] | None:
    """An axis along which stores are consecutive and loads go across memory, and one along which these loads are
    consecutive; both are at least so long."""
    axes = schedule.outer
    stores = [store for store in stores if store.mode != "any"]
    plain = all(store.mode == "set" and not store.operands for store in stores)
    if not plain or len(axes) < 2 or axes[-1].kind != "vector" or _rereads(stores):
        return None
    vectors = [axis for axis in axes if all(_stride(store.access.index, axis.name) == 1 for store in stores)]
    loads = [node.arg.index for node in loads_of(roots_in(stores)) if not node.src] if vectors else []
    for vector in vectors:
        for axis in axes:
            if axis is not vector and any(crosses(index, axis.name, vector.name) for index in loads):
                return None if min(map(_extent, (vector, axis))) < shortest else (vector.name, axis.name)
    return None


def _rereads(stores: Sequence[Store]) -> bool:
    stored = {store.access.buffer for store in stores}
    return any(node.arg.buffer in stored for node in loads_of(roots_in(stores)))


def _extent(axis: Axis) -> int:
    """A number to compare extents by; symbolic ones count as large."""
    return axis.extent.value if axis.extent.is_const else FAR


def _in_row_blocks(schedule: Schedule, machine: Machine) -> Schedule:
    """The schedule of a scatter with its vector axis in blocks outside the serial ones: whole blocks of rows are
    updated, and the place of each row is found once for all elements of its block, or, of short rows, for all."""
    vector = next((axis for axis in schedule.outer if axis.kind == "vector"), None)
    if vector is None or schedule.outer[-1].kind != "serial":
        return schedule
    length = _extent(vector)
    size = next((size for size in machine.row_blocks if length >= machine.fewest_blocks * size), length)
    if length < machine.lanes or length == FAR:
        return schedule
    why = f"blocks of {vector.name}: rows are scattered"
    return replace(schedule, blocks=((vector.name, size),), why=(*schedule.why, why))


def _splits(axes: Sequence[Axis], roots: list[Node], machine: Machine, found: dict[str, set[int]]) -> None:
    """Notes the places where the loops over `axes` around these values are worth a split."""
    for position, axis in enumerate(axes):
        if not axis.extent.is_const:
            continue
        nodes = list(nodes_below(roots))
        pieces = pieces_of(axis, nodes)
        longest = max(length for _, length in pieces)
        fits = 1 < len(pieces) <= machine.most_pieces and len(pieces) * len(nodes) <= machine.most_split
        if fits and (axis.kind != "vector" or longest >= machine.lanes):
            found.setdefault(axis.name, set()).update(start for start, _ in pieces[1:])
            for piece in pieces:
                _, new = piece_of(axis, *piece)
                _splits(axes[position + 1 :], [new(root) for root in roots], machine, found)
            return


def _jammed(schedule: Schedule, addresses: list[Expr], most: int) -> Schedule:
    """The schedule with an axis jammed along which a vector that is reduced stays the same: it is loaded once for
    several sums (the rows of a matrix product)."""
    inner = {axis.name for axis in schedule.inner}
    if schedule.vector is None or schedule.vector in inner:
        return schedule
    vectors = [
        expr for expr in addresses if _stride(expr, schedule.vector) == 1 and not inner.isdisjoint(expr.free_vars)
    ]
    for axis in reversed(schedule.outer):
        if axis.kind == "parallel" and any(axis.name not in expr.free_vars for expr in vectors):
            count = min(most, axis.extent.value)
            why = f"jam {axis.name}: vectors that are reduced are the same along it"
            return replace(schedule, jam=(axis.name, count), why=(*schedule.why, why)) if count > 1 else schedule
    return schedule


def _stride(expr: Expr, name: str) -> int:
    """The stride of an address along an axis; FAR if it is symbolic or not affine."""
    coefficient = expr.coefficient(name)
    if coefficient is None or not coefficient.is_const:
        return FAR
    return abs(coefficient.value)


def _has_runs(space: Space, addresses: list[Expr], shortest: int) -> bool:
    """Whether whole lines of memory are read and written, whatever the order of the other axes."""
    return any(
        extent.is_const
        and extent.value >= shortest
        and all(_stride(expr, name) == (name in expr.free_vars) for expr in addresses)
        for name, extent in space
    )


def _typical(strides: list[int]) -> int:
    """What orders an axis among others: the stride of the first access (a store, when there is one, unless runs are
    copied) that moves along it."""
    return next((stride for stride in strides if stride), 0)


def _ordered_axes(group: Group) -> frozenset[str]:
    """Axes along which a scatter may meet the same element twice. One without operands never does (`Scatter`)."""
    updates = [
        stage for stage in group.stages if stage.updates and stage.operands and stage.mode not in ATOMIC.values()
    ]
    return frozenset(name for stage in updates for name in still_axes([name for name, _ in stage.axes], stage.coords))


def still_axes(names: Iterable[str], coords: Sequence[Expr]) -> list[str]:
    """The axes that do not move a place by themselves."""
    return [name for name in names if not any(_moves_by_itself(coord, name) for coord in coords)]


def _moves_by_itself(coord: Expr, axis: str) -> bool:
    """Whether a coordinate differs wherever the axis does, whatever else may differ: it is c·axis + d."""
    step = coord.coefficient(axis)
    return step is not None and step.is_const and step.value != 0 and coord.subs({axis: 0}).is_const


def _split(
    axes: list[tuple[str, Expr]],
    expressions: list[Expr],
    serial: frozenset[str],
    shortest: int,
    rename: dict[str, Expr],
) -> tuple[list[tuple[str, Expr]], list[Expr]]:
    """Splits axes i into i // k and i % k, two loops, where an expression has these: what it reads lies in runs of k
    elements (heads that were joined to rows). Runs are not shorter than `shortest`."""
    axes = list(axes)
    while found := _divided([axis for axis in axes if axis[0] not in serial], expressions, shortest):
        name, extent, run = found
        high, low = (f"{name}h{run}", Expr.const(extent // run)), (f"{name}l{run}", Expr.const(run))
        step = {name: axis_var(*high) * run + axis_var(*low)}
        expressions = [expr.subs(step) for expr in expressions]
        for known, value in rename.items():
            rename[known] = value.subs(step)
        rename.update(step)
        place = [axis[0] for axis in axes].index(name)
        axes[place : place + 1] = [high, low]
    return axes, expressions


def _divided(axes: list[tuple[str, Expr]], expressions: list[Expr], shortest: int) -> tuple[str, int, int] | None:
    """An axis, its extent and the longest run of at least `shortest` elements that an expression divides it into."""
    known = {axis_var(*axis): axis for axis in axes if axis[1].is_const}
    atoms = [atom for expr in expressions for mono, _ in expr.terms for atom in mono if atom.kind in ("//", "%")]
    found = []
    for whole, divisor in (atom.args for atom in atoms):
        name, extent = known.get(whole, ("", divisor))
        if name and divisor.is_const and shortest <= divisor.value < extent.value and extent.value % divisor.value == 0:
            found.append((name, extent.value, divisor.value))
    return max(found, key=lambda one: one[2], default=None)


def _stores(stores: frozenset[Expr], rename: dict[str, Expr]) -> frozenset[Expr]:
    return frozenset(store.subs(rename) for store in stores) if rename else stores


def _merge(
    axes: list[tuple[str, Expr]], expressions: list[Expr], serial: frozenset[str], rename: dict[str, Expr]
) -> tuple[list[tuple[str, Expr]], list[Expr]]:
    """Joins neighbouring axes (outer, inner) into one where every expression moves along the outer one `extent of
    inner` times as far as along the inner one."""
    merged: list[tuple[str, Expr]] = []
    for axis in reversed(axes):
        if merged and (axis[0] in serial) == (merged[-1][0] in serial):
            name, extent = merged[-1]
            if all(_merges(expr, axis[0], name, extent) for expr in expressions):
                joint = extent * axis[1]
                step = {axis[0]: Expr.const(0), name: axis_var(name, joint)}
                expressions = [expr.subs(step) for expr in expressions]
                for known, value in rename.items():
                    rename[known] = value.subs(step)
                rename.update(step)
                merged[-1] = (name, joint)
                continue
        merged.append(axis)
    merged.reverse()
    return merged, expressions


def _merges(expr: Expr, outer: str, inner: str, extent: Expr) -> bool:
    if expr.free_vars.isdisjoint((outer, inner)):
        return True
    far, near = expr.coefficient(outer), expr.coefficient(inner)
    return far is not None and near is not None and far == near * extent


def _vector_axis(
    outer: list[tuple[str, Expr]],
    inner: list[tuple[str, Expr]],
    addresses: list[Expr],
    serial: frozenset[str],
    lanes: int,
) -> str | None:
    """The axis along which most addresses are consecutive. Those that move along every inner axis count most, or along
    every axis if there is no inner one: what moves along some of them only (a weight for each channel, statistics of
    each row) is small and stays in cache. A place that data tell moves along all: whoever looks up one row for all
    elements has it looked up outside."""
    best, best_votes = None, -1.0
    inner_names = {name for name, _ in inner or outer}
    for name, extent in [*(axis for axis in outer if axis[0] not in serial), *inner]:
        votes = 0.0
        for expr in addresses:
            stride = _stride(expr, name)
            told = any(variable[0] == "$" for variable in expr.free_vars)
            moving = len(inner_names if told else inner_names & expr.free_vars)
            weight = 4.0 if moving == len(inner_names) else 2.0 if moving else 1.0
            votes += (1.0 if stride == 1 else 0.1 if stride == 0 else 0.0) * weight
        if extent.is_const and extent.value < lanes:
            votes *= 0.3 if extent.value < lanes // 2 else 0.6
        if votes >= best_votes:
            best, best_votes = name, votes
    return best
