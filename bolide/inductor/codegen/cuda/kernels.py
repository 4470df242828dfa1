"""Kernels for GPUs as LLVM IR text.

Each region of a kernel (`parallel.regions_of`) is one entry function, whose parameters are those of the kernel: the
addresses, then the sizes. Its teams run an iteration of the grid nest each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from bolide.inductor.codegen.analysis import Dependences, changed_by, updated_in
from bolide.inductor.codegen.builder import Value
from bolide.inductor.codegen.cuda.hazards import MOST_EARLY, Hazards, early_loads, is_together
from bolide.inductor.codegen.cuda.held import held_by_threads, touches, width_of_held
from bolide.inductor.codegen.cuda.teams import ROOM, Team, special
from bolide.inductor.codegen.cuda.values import ThreadValues, texts
from bolide.inductor.codegen.cuda.widths import WIDEST, is_short, iterations_at_once, width_of
from bolide.inductor.codegen.function_values import Parts
from bolide.inductor.codegen.instructions import MEMORY
from bolide.inductor.codegen.parallel import Region, regions_of
from bolide.inductor.codegen.scope import multiple_of
from bolide.inductor.codegen.statements import Body, RegionWriter
from bolide.inductor.ir.definitions import volume
from bolide.inductor.ir.loops import WARP, Axis, Init, Kernel, Local, Loop, Node, Stmt, Store, Update
from bolide.inductor.ir.walks import loads_of, nodes_below, roots_in, roots_of, statements
from bolide.inductor.machine import Machine
from bolide.symbolic import Expr

#: A load, the number of a thread's turn in a loop, and how far turns are apart.
Kept = tuple[Node, int, int]

#: Threads of a block whose teams have one, and teams of a block whose teams are warps.
BLOCK, WARPS = 256, 4
#: Blocks that a multiprocessor has registers for, at least: one loads while another one computes, if all have so many
#: threads at most.
RESIDENT, MOST_THREADS = 2, 1 << 10
#: Elements of a scan, and turns, that a thread loads before it stores any.
SCANNED, SCANNED_TURNS = 16, 4
#: Bytes of shared memory that blocks have without asking for more.
SHARED = 48 << 10


@dataclass(frozen=True, slots=True)
class Launch:
    """One entry function: `symbol` is its name in the module. `teams` of `team` threads each run it, `teams_per_block`
    in a block: so a block has team · teams_per_block threads, and there are ⌈teams / teams_per_block⌉ blocks. `teams`
    is an expression in the kernel's sizes, and may be 0: then there is nothing to launch. Of a batch it is so for each
    set of arguments; the blocks of one set follow those of the other, and the parameters are two arrays: the first
    block of each set, and all words, if there are any."""

    symbol: str
    teams: Expr
    team: int
    teams_per_block: int


def gpu_module(kernels: Sequence[Kernel], machine: Machine) -> tuple[str, list[tuple[Launch, ...]]]:
    """One LLVM module with the code of `kernels`, and the launches of each, to be made one after the other on one
    stream. Kernel number n has the entries ``k<n>_0``, ``k<n>_1`` …, whose parameters are the addresses of
    `kernel.params`, then `kernel.sizes` as int64, or, of a batch, arrays (`Launch`). The kernels must be verified.
    ValueError for scratch memory without a bound, or more shared memory than a block has."""
    declarations: dict[str, str] = {}
    functions: list[str] = []
    launches: list[tuple[Launch, ...]] = []
    for number, kernel in enumerate(kernels):
        dependences = Dependences(kernel)
        made = []
        for place, region in enumerate(regions_of(kernel.body, f"k{number}")):
            size = kernel.team if _has_teams(region.body) else 1
            writer = TeamWriter(kernel, dependences, machine, declarations, f"k{number}_{place}", size)
            text, launch = writer.entry(region)
            functions.append(text)
            made.append(launch)
        launches.append(tuple(made))
    head = f'target triple = "{machine.target.triple}"'
    return "\n".join((head, *declarations.values(), *functions)), launches


class TeamWriter(RegionWriter):
    """Writes the entry function of a region, which each thread of its teams runs.

    Iterations of loops that are bound to the team are dealt out: a thread takes every so manyth. All else is run by all
    threads alike, but for stores, which the first one makes. So all threads know the value of an accumulator, except
    inside a loop in which the team updates it: there each has a part, and these are joined at the end."""

    Values = ThreadValues
    r: ThreadValues

    def __init__(
        self,
        kernel: Kernel,
        dependences: Dependences,
        machine: Machine,
        declarations: dict[str, str],
        symbol: str,
        size: int,
    ) -> None:
        """`size`: the threads of a team."""
        super().__init__(kernel, dependences, machine, declarations)
        self.levels = 2
        self.r.numels = {param.name: param.numel for param in kernel.params}
        self.symbol, self.written = symbol, dependences.written
        self.held = held_by_threads(kernel) if size > 1 else frozenset[str]()
        self.held_width = width_of_held(kernel, self.held)
        self.slow_rooms: dict[str, Value] = {}
        self.hazards = Hazards(kernel, self.held)
        self.axes: list[Axis] = []  # of the loops around
        self.in_parts: set[str] = set()  # accumulators of which each thread has a part
        self.is_apart = False  # whether each thread is at an iteration of its own
        self.per_block = BLOCK if size == 1 else _warps(kernel, self.held) if size == WARP else 1
        b = self.b
        block, thread = (b.convert("zext", special(b, name), "i64") for name in ("ctaid.x", "tid.x"))
        if kernel.batch > 1:
            block = self._in_its_set(block)
        #: The number of this team, and of those of its block.
        self.number, self.place, mine = block, b.const(0, "i64"), thread
        if size == 1:
            self.number, mine = block * BLOCK + thread, b.const(0, "i64")
        elif size == WARP:
            self.place = b.binary("lshr", thread, b.const(5, "i64"))
            self.number, mine = block * self.per_block + self.place, thread & (WARP - 1)
        self.team = Team(b, size, mine, symbol)

    # ---- the function ----

    def _in_its_set(self, block: Value) -> Value:
        """Finds the set of arguments that a block is for, by halves, loads these, and gives its number in the set."""
        b, kernel = self.b, self.kernel

        def word(array: str, place: Value, kind: str) -> str:
            at = b.emit(f"getelementptr i64, ptr %{array}, {place}", "ptr")
            return f"load {kind}, {at}, align 8"

        own, start, left = b.const(0, "i64"), b.const(0, "i64"), kernel.batch
        while left > 1:
            half = own + left // 2
            begin = b.emit(word("starts", half, "i64"), "i64")
            is_behind = b.compare("icmp sle", begin, block)
            own, start = b.select(is_behind, half, own), b.select(is_behind, begin, start)
            left -= left // 2
        params, sizes = len(kernel.params), len(kernel.sizes)
        for position in range(params):
            b.do(f"%a{position} = {word('args', own * params + position, 'ptr')}")
        for position in range(sizes):
            place = own * sizes + (kernel.batch * params + position)
            b.do(f"%a{params + position} = {word('args', place, 'i64')}")
        return block - start

    def entry(self, region: Region) -> tuple[str, Launch]:
        """The text of the function, and how it is launched."""
        b, r, kernel = self.b, self.r, self.kernel
        self.parameters(region.body)
        *outer, last = region.axes or (Axis("", Expr.const(1), "parallel"),)
        width = width_of(last, region.body) if last.kind == "vector" and self.team.size == 1 else 1
        extents = [*[axis.extent for axis in outer], last.extent.ceildiv(width)]
        teams = volume(extents)
        if self.per_block > 1:
            run, leave = b.new_label("run"), b.new_label("leave")
            b.branch(b.compare("icmp slt", self.number, r.scalar(teams)), run, leave)
            b.lines += [f"{leave}:", "  ret void"]
            b.label(run)
        self.axes += region.axes
        self.grid = len(region.axes)
        fast = b.new_label("fast")
        at = len(b.lines)
        b.jump(fast)
        b.label(fast)
        self._region(region, teams, extents, width)
        used = [r.buffers[param.name] for param in kernel.params if param.name in r.aligned]
        if used:
            self._if_aligned(used, at, fast)
            r.are_aligned, r.rooms = False, self.slow_rooms
            self.hazards.clear()
            self.team.sites = 0
            self._region(region, teams, extents, width)
        if (shared := sum(self.team.rooms.values())) > SHARED:
            raise ValueError(f"a block of kernel {kernel.name} needs {shared} bytes of shared memory, and has {SHARED}")
        kinds = ["ptr"] * len(kernel.params) + ["i64"] * len(kernel.sizes)
        params = ", ".join(f"{kind} %a{position}" for position, kind in enumerate(kinds))
        if kernel.batch > 1:
            arrays = (("starts", kernel.batch), ("args", kernel.words))
            params = ", ".join(f"ptr byval([{count} x i64]) align 8 %{name}" for name, count in arrays if count)
        threads = self.per_block * self.team.size
        limits = f'"nvvm.maxntid"="{threads}" "nvvm.minctasm"="{min(RESIDENT, MOST_THREADS // threads)}"'
        head = f"define ptx_kernel void @{self.symbol}({params}) nounwind {limits}"
        text = "\n".join((f"{head} {{", *b.body(), "}"))
        return text, Launch(self.symbol, teams, self.team.size, self.per_block)

    def _if_aligned(self, addresses: Sequence[Value], at: int, fast: str) -> None:
        """Puts in place of the jump to `fast` one to here where addresses are not as it takes them to be."""
        b = self.b
        end, slow = len(b.lines), b.new_label("slow")
        total = b.const(0, "i64")
        for address in addresses:
            total = total | b.convert("ptrtoint", address, "i64")
        b.branch(b.compare("icmp eq", total & (WIDEST - 1), 0), fast, slow)
        check = b.lines[end:]
        del b.lines[end:]
        b.lines[at : at + 1] = check
        b.label(slow)

    def _region(self, region: Region, teams: Expr, extents: Sequence[Expr], width: int) -> None:
        """What a thread does: its iteration of the grid, or `width` neighbouring ones. Where addresses are not aligned,
        one by one."""
        b = self.b
        self.r.push()
        digits = self._digits(teams, extents) if region.axes else []
        places = {axis.name: digit for axis, digit in zip(region.axes, digits)}
        if width == 1:
            self.iteration(places, lambda: self.statements(region.body))
        else:
            axis = region.axes[-1]
            first = places.pop(axis.name) * width
            self.iteration(places, lambda: self._neighbours(Loop(axis, region.body), first, width))
        self.r.pop()
        b.do("ret void")

    def _neighbours(self, loop: Loop, first: Value, width: int) -> None:
        """So many iterations of a loop from `first` on: at once, or what is left of them one by one."""
        b, r = self.b, self.r

        def body() -> None:
            self.statements(loop.body)

        def at_once() -> None:
            with self._lanes_of(loop, width):
                self.at(loop, first, body)

        divides = multiple_of(loop.axis.extent) % width == 0
        if divides and r.are_aligned:
            at_once()
            return
        stop = r.scalar(loop.axis.extent)
        if not r.are_aligned:
            last = first + width
            self.repeat(loop, first, last if divides else b.intrinsic("smin", last, stop), 1, body)
            return
        is_whole = b.compare("icmp sle", first + width, stop)
        self.guarded(is_whole, at_once)
        self.guarded(is_whole ^ -1, lambda: self.repeat(loop, first, stop, 1, body))

    @contextmanager
    def _lanes_of(self, loop: Loop, width: int) -> Iterator[None]:
        """Inside, so many iterations of a loop are done at once."""
        r = self.r
        if width == 1:
            yield
            return
        outer = r.vector, r.lanes, set(r.varying)
        r.vector, r.lanes = loop.axis.name, width
        r.varying.add(loop.axis.name)
        yield
        r.vector, r.lanes, r.varying = outer

    def _digits(self, teams: Expr, extents: Sequence[Expr]) -> list[Value]:
        """The place of this team on each axis of the grid."""
        b, r, number = self.b, self.r, self.number
        most = teams.bounds()[1]
        if most is None or most >= 1 << 31:
            return self.digits(number, [r.scalar(extent) for extent in extents])
        narrow = [b.convert("trunc", value, "i32") for value in (number, *map(r.scalar, extents))]
        return [b.convert("zext", digit, "i64") for digit in self.digits(narrow[0], narrow[1:])]

    def room(self, local: Local) -> Value:
        """Scratch memory: the thread's own, or shared by the team, next to that of the block's other teams."""
        b, kind = self.b, MEMORY[local.dtype]
        most = local.numel.bounds()[1]
        if most is None:
            raise ValueError(f"scratch buffer {local.name} of kernel {self.kernel.name} has no bound: {local.numel}")
        if self.team.size == 1:
            return b.emit(f"alloca [{most} x {kind}], align 16", "ptr")
        if local.name in self.held:
            for rooms, width in ((self.r.rooms, self.held_width), (self.slow_rooms, 1)):
                count = -(-most // (self.team.size * width)) * width
                rooms[local.name] = b.emit(f"alloca [{count} x {kind}], align 16", "ptr")
            return self.r.rooms[local.name]
        most += -most % ROOM
        whole = self.team.memory(str(len(self.r.buffers)), kind, most * self.per_block)
        return b.emit(f"getelementptr {kind}, {whole}, {self.place * most}", "ptr")

    # ---- statements ----

    def statements(self, body: Sequence[Stmt]) -> None:
        if self.team.size == 1 or self.is_apart:
            for load in early_loads(body, self.r.dependences):
                self.r.value(load)
        super().statements(body)

    def store(self, statement: Store) -> None:
        if self.team.size == 1 or self.is_apart:
            super().store(statement)
            return
        self._wait_before(statement)
        for node in roots_of(statement):
            self.r.value(node)
        self.guarded(self.team.is_first, partial(super().store, statement))
        self.hazards.note(statement)

    def update(self, statement: Update) -> None:
        if not self.is_apart:
            self._wait_before(statement)
            self.hazards.note(statement)
        super().update(statement)

    def _wait_before(self, statement: Stmt) -> None:
        if self.team.size > 1 and self.hazards.meets(statement):
            self._wait()

    def _wait(self) -> None:
        self.team.barrier()
        self.hazards.clear()

    # ---- loops ----

    def init(self, statement: Init, following: Iterable[Stmt]) -> None:
        super().init(statement, following)
        r = self.r
        r.partials.setdefault((statement.name, r.lanes), r.accumulators[statement.name].initial(self.b, r.lanes))

    def lanes(self, loop: Loop) -> int:
        """Elements that a thread takes at a time."""
        is_wide = loop.axis.bound == "team" and self.team.size > 1 and self.r.are_aligned
        if is_wide and touches(loop, self.held):
            return self.held_width
        return width_of(loop.axis, loop.body, self.team.size) if is_wide else 1

    def loop(self, loop: Loop) -> None:
        if self.team.size == 1 or self.is_apart:
            super().loop(loop)
            return
        self._wait_before(loop)
        if loop.axis.kind == "scan" and loop.axis.bound == "team":
            self.is_apart = True
            sorts = any(self.r.accumulators[name].op == "sort" for name in updated_in(loop.body))
            (self._sorted if sorts else self._scanned)(loop)
            self.is_apart = False
            self.hazards.note(loop)
            return
        r = self.r
        names = [name for name in updated_in(loop.body) if self._is_in_parts(name, loop)]
        before = {name: r.partials[name, 1] for name in names}
        self._set_nothing(names)
        self.in_parts.update(names)
        if is_together(loop):
            self._together(loop)
        else:
            self._shared(loop)
        self.in_parts.difference_update(names)
        if names:
            self._join(before)

    def repeat(self, loop: Loop, start: Value, stop: Value, step: int, body: Body) -> None:
        """What a thread adds up, or copies, it takes several iterations at a time of, so that loads do not wait for
        each other. The order is the same."""
        b, r, plain = self.b, self.r, self.repeated
        times = iterations_at_once(loop, r.lanes, self.team.size)
        if times <= 1:
            plain(loop, start, stop, step, body)
            return

        before = self.hazards

        def one() -> None:
            self.hazards = before.copy()  # with what other iterations leave (`Hazards.begin`)
            body()

        def several() -> None:
            first = r.env[loop.axis.name]
            places = [first + turn * step for turn in range(times)]
            given = self._loaded(loop, places)
            for place, values in zip(places, given):
                self.at(loop, place, partial(self._with, values, one))

        count = b.binary("sub", stop, start)
        if step > 1:
            count = b.binary("udiv", count + (step - 1), b.const(step, "i64"))
        whole = start + (count & -times) * step
        is_some, is_rest = b.compare("icmp slt", start, whole), b.compare("icmp slt", whole, stop)
        self.guarded(is_some, lambda: plain(loop, start, whole, times * step, several))
        self.guarded(is_rest, lambda: plain(loop, whole, stop, step, one))

    def _loaded(self, loop: Loop, places: Sequence[Value]) -> list[dict[Node, Value]]:
        """What iterations at these places load that none of them stores, if they store at all: loads behind a store
        would wait."""
        r, changed = self.r, changed_by(loop.body)
        stores = self.team.size == 1 and any(isinstance(statement, Store) for statement in loop.body)
        early = early_loads(loop.body, r.dependences) if stores else []
        loads = [load for load in early if changed.isdisjoint(r.dependences.names(load))]
        given: list[dict[Node, Value]] = []
        for place in places:
            self.at(loop, place, lambda: given.append({load: r.value(load) for load in loads}))
        return given

    def _with(self, values: dict[Node, Value], body: Body) -> None:
        """A body in which these values are known."""
        for node, value in values.items():
            self.r.remember(node, value)
        body()

    def _is_in_parts(self, name: str, loop: Loop) -> bool:
        """Whether each thread gets a part of an accumulator in a loop: the outermost one in which only the team updates
        it, and nobody reads it."""
        if name in self.in_parts or name not in self.r.accumulators:
            return False
        if loop.axis.bound == "team":
            return True
        updates = [inner for inner in _outside_teams(loop.body) if isinstance(inner, Update) and inner.name == name]
        reads = any(node.op == "acc" and node.arg == name for node in nodes_below(roots_in(loop.body)))
        return not updates and not reads

    def _join(self, before: dict[str, Parts]) -> None:
        """Joins the parts of accumulators, and to what these were."""
        r, team = self.r, self.team
        if team.has_warps and len(self.axes) > self.grid:
            team.barrier()  # the last parts may still be read
        parts = {name: self._of_all_lanes(name) for name in before}
        joined = team.joined(parts, r.accumulators)
        self._set_nothing(before)
        if team.has_warps:
            self.hazards.clear()
        for name, old in before.items():
            accumulator = r.accumulators[name]
            is_new = texts(old) == texts(accumulator.initial(self.b, 1))
            r.partials[name, 1] = joined[name] if is_new else accumulator.join(old, joined[name])
            r.forget((f"acc:{name}",))

    def _set_nothing(self, names: Iterable[str]) -> None:
        for name, lanes in self.r.partials_of(names):
            self.r.partials[name, lanes] = self.r.accumulators[name].initial(self.b, lanes)
            self.r.forget((f"acc:{name}",))

    def _of_all_lanes(self, name: str) -> Parts:
        """The part of an accumulator that this thread has."""
        r, accumulator = self.r, self.r.accumulators[name]
        total: Parts | None = None
        for key in r.partials_of((name,)):
            parts = r.partials[key]
            if texts(parts) != texts(accumulator.initial(self.b, key[1])):
                parts = accumulator.across_lanes(parts)
                total = parts if total is None else accumulator.join(total, parts)
        return accumulator.initial(self.b, 1) if total is None else total

    def _together(self, loop: Loop) -> None:
        """A loop whose iterations the team runs one after the other."""
        before = self.hazards.copy()
        self.hazards.begin(loop, tuple(self.axes))
        self.axes.append(loop.axis)
        super().loop(loop)
        self.axes.pop()
        self.hazards.add(before)

    def _shared(self, loop: Loop) -> None:
        """A loop whose iterations the threads share."""
        b, r, width = self.b, self.r, self.lanes(loop)
        start, stop = self.team.thread * width, r.scalar(loop.axis.extent)
        least, most = loop.axis.extent.bounds()
        step = self.team.size * width

        def body() -> None:
            if touches(loop, self.held):
                r.slot = b.binary("udiv", r.env[loop.axis.name], b.const(step, "i64")) * width
            self.statements(loop.body)

        def run() -> None:
            self.hoist(loop.body, changed_by((loop,)))
            self.counted(loop, start, stop, step, body)

        self.is_apart = True
        with self._lanes_of(loop, width):
            if r.are_aligned and least is not None and least == most and is_short(loop.body, -(-least // step), width):
                self._written_out(loop, start, step)
            elif least is not None and least >= step:
                run()
            else:
                self.guarded(b.compare("icmp slt", start, stop), run)
        self.is_apart = False
        self.hazards.note(loop)

    def _scanned(self, loop: Loop) -> None:
        """A scan whose iterations the threads share: they take turns together, a few elements each, of which a few
        turns load before the first one stores."""
        b, r, width = self.b, self.r, self.lanes(loop)
        step, stop, zero = self.team.size * width, r.scalar(loop.axis.extent), b.const(0, "i64")
        mine = self.team.thread * width
        updates = [statement for statement in loop.body if isinstance(statement, Update)]
        stores = [statement for statement in loop.body if isinstance(statement, Store)]

        def given(place: Value) -> list[Value]:
            values: list[Value] = []
            self.at(loop, place, lambda: values.extend(r.wide(r.value(update.value)) for update in updates))
            return values

        def scan(values: Sequence[Value]) -> None:
            for update, value in zip(updates, values):
                accumulator, (carry,) = r.accumulators[update.name], r.partials[update.name, 1]
                r.scanned[update.name], carry = self.team.scanned(accumulator, value, carry)
                r.partials[update.name, 1] = (carry,)

        def store(place: Value) -> None:
            self.at(loop, place, partial(self.statements, stores))

        def turns(count: int) -> None:
            places = [r.env[loop.axis.name] + mine + turn * step for turn in range(count)]
            for place, values in zip(places, [given(place) for place in places]):
                scan(values)
                store(place)

        def rest() -> None:
            place = whole + mine
            there = b.compare("icmp slt", place, stop)
            scan(self._or_nothing(there, updates, partial(given, place)))
            self.guarded(there, partial(store, place))

        several = min(SCANNED_TURNS, max(1, SCANNED // width))
        with self._lanes_of(loop, width):
            self.hoist((loop,), changed_by((loop,)))
            many = _multiple(stop, several * step)
            whole = _multiple(stop, step)
            for start, end, count in ((zero, many, several), (many, whole, 1)):
                run = partial(self.repeated, loop, start, end, count * step, partial(turns, count))
                self._if_below(start, end, run)
            self._if_below(whole, stop, rest)
        r.scanned.clear()

    def _sorted(self, loop: Loop) -> None:
        """A row that a warp sorts: thread t has the elements t, t + 32 …, as many as a power of two; what no other one
        is behind fills them up."""
        b, r = self.b, self.r
        update, *stores = loop.body
        assert isinstance(update, Update)
        length = loop.axis.extent.value
        places = [self.team.thread + first for first in range(0, WARP << (-(-length // WARP) - 1).bit_length(), WARP)]
        left = [length - WARP * turn for turn in range(len(places))]

        def given(place: Value) -> list[Value]:
            values: list[Value] = []
            self.at(loop, place, lambda: values.append(r.value(update.value)))
            return values

        self.hoist((loop,), changed_by((loop,)))
        there = [b.compare("icmp slt", place, length) for place in places]
        values: list[Value] = []
        for place, condition, count in zip(places, there, left):
            if count <= 0:
                values += r.accumulators[update.name].initial(b, 1)
            else:
                load = partial(given, place)
                values += load() if count >= WARP else self._or_nothing(condition, [update], load)
        for place, condition, count, value in zip(places, there, left, self.team.sorted(values)):
            r.scanned[update.name] = value
            store = partial(self.at, loop, place, partial(self.statements, stores))
            if count >= WARP:
                store()
            elif count > 0:
                self.guarded(condition, store)
        r.scanned.clear()

    def _or_nothing(self, condition: Value, updates: Sequence[Update], given: Callable[[], list[Value]]) -> list[Value]:
        """The values of updates under a condition; otherwise, what changes nothing."""
        b, r = self.b, self.r
        before, then, join = b.block, b.new_label("then"), b.new_label("join")
        b.branch(condition, then, join)
        b.label(then)
        r.push()
        values = given()
        r.pop()
        end = b.block
        b.jump(join)
        b.label(join)
        nothing = [r.accumulators[update.name].initial(b, r.lanes)[0] for update in updates]
        return [b.merge(value, end, none, before) for value, none in zip(values, nothing)]

    def _if_below(self, start: Value, stop: Value, run: Body) -> None:
        """Runs code if one number is below the other."""
        if start.number is None or stop.number is None:
            self.guarded(self.b.compare("icmp slt", start, stop), run)
        elif start.number < stop.number:
            run()

    def _written_out(self, loop: Loop, start: Value, step: int) -> None:
        """The turns that a thread takes of a loop, one after the other; the last one only some threads may have. What
        whole turns have loaded is kept for other loops, in registers."""
        b, r = self.b, self.r
        turns, rest = divmod(loop.axis.extent.value, step)
        self.hoist(loop.body, changed_by((loop,)))
        places = [start + turn * step for turn in range(turns)]
        stores = any(isinstance(statement, Store) for statement in loop.body)
        several = max(1, MOST_EARLY // max(1, len(self._kept(loop, (0, step))))) if stores else 1
        for turn, place in enumerate(places):
            for early in range(turn, min(turn + several, turns)) if several > 1 and turn % several == 0 else ():
                self._for_later(loop, places[early], partial(self._load_turn, loop, (early, step)))
            self._for_later(loop, place, partial(self._turn, loop, (turn, step)))
        if rest:
            last = start + turns * step
            r.slot = b.const(turns * r.lanes, "i64")
            body = partial(self.statements, loop.body)
            self.guarded(b.compare("icmp slt", last, r.scalar(loop.axis.extent)), partial(self.at, loop, last, body))
        r.forget(changed_by(loop.body))

    def _for_later(self, loop: Loop, place: Value, run: Callable[[dict[Kept, Value]], None]) -> None:
        """A turn, or a part of it, which notes what it has loaded."""
        loaded: dict[Kept, Value] = {}
        self.at(loop, place, partial(run, loaded))
        for key, value in loaded.items():
            self.r.remember(key, value)

    def _kept(self, loop: Loop, turn: tuple[int, int]) -> dict[Node, Kept]:
        """The loads of a turn that are kept: of buffers that do not change."""
        loads = [node for node in loads_of(roots_in(loop.body)) if loop.axis.name in node.arg.free_vars]
        return {node: (node, *turn) for node in loads if not node.src and node.arg.buffer not in self.written}

    def _load_turn(self, loop: Loop, turn: tuple[int, int], loaded: dict[Kept, Value]) -> None:
        """What a turn loads, before an earlier one stores."""
        for node, key in self._kept(loop, turn).items():
            if self.r.recall(key) is None:
                loaded[key] = self.r.value(node)

    def _turn(self, loop: Loop, turn: tuple[int, int], loaded: dict[Kept, Value]) -> None:
        """One whole turn."""
        r, kept = self.r, self._kept(loop, turn)
        r.slot = self.b.const(turn[0] * r.lanes, "i64")
        for node, key in kept.items():
            known = r.recall(key)
            if known is not None:
                r.remember(node, known)
        self.statements(loop.body)
        for node, key in kept.items():
            value = r.recall(node)
            if value is not None and r.recall(key) is None:
                loaded[key] = value


def _warps(kernel: Kernel, held: frozenset[str]) -> int:
    """Teams of a block, each a warp: one, if it is to have all of the block's scratch memory. `held`: what is none."""
    rooms = [local for local in kernel.locals if local.name not in held]
    sizes = [(local.numel.bounds()[1] or 0, local.dtype.itemsize) for local in rooms]
    scratch = sum([(most + -most % ROOM) * size for most, size in sizes])
    return WARPS if WARPS * scratch <= SHARED else 1


def _has_teams(body: Iterable[Stmt]) -> bool:
    return any(isinstance(statement, Loop) and statement.axis.bound == "team" for statement in statements(body))


def _multiple(value: Value, step: int) -> Value:
    """The largest multiple of `step` that is not above."""
    b = value.b
    if value.number is not None:
        return b.const(value.number // step * step, "i64")
    return b.binary("udiv", value, b.const(step, "i64")) * step


def _outside_teams(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """The statements that the team runs together."""
    for statement in body:
        if is_together(statement):
            assert isinstance(statement, Loop)
            yield from _outside_teams(statement.body)
        elif not isinstance(statement, Loop):
            yield statement
