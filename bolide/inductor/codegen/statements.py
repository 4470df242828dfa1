"""Kernels as LLVM IR text.

A kernel becomes ``void @name(ptr args)``, where args is an array of 64-bit words: the parameters' addresses in order,
then the sizes. Each top-level statement (or run of statements that are not parallel) is one *region*: an internal
function ``(ptr args, i64 begin, i64 end)`` that runs part of an iteration range; the entry function runs the regions
one after the other, each on one thread or, if there is enough work, split evenly over the threads of torch's OpenMP
pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

from bolide.inductor.codegen import parallel
from bolide.inductor.codegen.accesses import prepare, store, turned, turned_loads
from bolide.inductor.codegen.analysis import (
    Dependences,
    changed_by,
    cost,
    lanes_for,
    strip_lanes,
    takes_pairs,
    updated_in,
)
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.function_values import Accumulator, FunctionValues, Parts
from bolide.inductor.codegen.instructions import MEMORY
from bolide.inductor.codegen.scope import fits
from bolide.inductor.ir.loops import VECTOR_KINDS, Axis, Init, Kernel, Local, Loop, Node, Stmt, Store, Update
from bolide.inductor.ir.walks import nodes_below, roots_in, roots_of, statements
from bolide.inductor.machine import Machine
from bolide.symbolic import Expr

#: Sums of floats over more iterations than this are added up in blocks of so many, these again, and so on up to so many
#: levels: then the rounding error is near that of pairwise summation.
BLOCK, LEVELS = 32, 3

Body = Callable[[], None]


def kernel_code(kernel: Kernel, name: str, machine: Machine, declarations: dict[str, str]) -> str:
    """The text of the functions of `kernel`, whose entry is @`name`."""
    dependences = Dependences(kernel)
    regions = parallel.regions_of(kernel.body, name)
    functions = [RegionWriter(kernel, dependences, machine, declarations).region(region) for region in regions]
    return "\n".join((*functions, parallel.entry(kernel, name, regions, machine, declarations)))


class RegionWriter:
    """Writes one region's function."""

    Values: ClassVar[type[FunctionValues]] = FunctionValues

    def __init__(
        self, kernel: Kernel, dependences: Dependences, machine: Machine, declarations: dict[str, str]
    ) -> None:
        self.kernel, self.machine, self.target = kernel, machine, machine.target
        self.b = Builder(declarations, machine.target)
        self.r = self.Values(self.b, dependences)
        self.levels = LEVELS
        self._lanes: dict[int, int] = {}

    # ---- the function ----

    def region(self, region: parallel.Region) -> str:
        b, r = self.b, self.r
        self.parameters(region.body)
        begin, end = Value(b, "%begin", "i64", 1), Value(b, "%end", "i64", 1)
        if region.axes:
            self._parallel(region, begin, end)
        elif region.vector is not None:
            loop = region.vector
            lanes = self.lanes(loop)
            stop = end * lanes
            extent = r.scalar(loop.axis.extent)
            divides = extent.number is not None and extent.number % lanes == 0
            stop = stop if divides else b.intrinsic("smin", stop, extent)
            self._vector(loop, begin * lanes, stop, divides)
        else:
            self.statements(region.body)
        b.do("ret void")
        head = f"define internal void @{region.name}(ptr %args, i64 %begin, i64 %end) {self.target.attributes}"
        return "\n".join((f"{head} {{", *b.body(), "}"))

    def parameters(self, body: Sequence[Stmt]) -> None:
        """Load the addresses and sizes from the argument words, and make room for scratch memory."""
        r = self.r
        used = {s.access.buffer for s in statements(body) if isinstance(s, Store)}
        used |= {node.arg.buffer for node in nodes_below(roots_in(body)) if node.op == "load"}
        for position, param in enumerate(self.kernel.params):
            r.types[param.name] = param.dtype
            if param.name in used:
                r.buffers[param.name] = r.argument(position, "ptr")
        r.load_sizes(self.kernel)
        r.messages.update({flag.name: flag.message for flag in self.kernel.flags})
        for local in self.kernel.locals:
            r.types[local.name] = local.dtype
            if local.name in used:
                r.buffers[local.name] = self.room(local)

    def room(self, local: Local) -> Value:
        """The address of scratch memory."""
        return self.b.emit(f"alloca {MEMORY[local.dtype]}, {self.r.scalar(local.numel)}, align 64", "ptr")

    def _parallel(self, region: parallel.Region, begin: Value, end: Value) -> None:
        """A loop over the linear range of a nest of parallel axes; the axes count along like the digits of a clock."""
        b, r = self.b, self.r
        extents = [r.scalar(axis.extent) for axis in region.axes]
        starts = self.digits(begin, extents)
        self.hoist(region.body, changed_by(region.body).union(axis.name for axis in region.axes))
        before, label, done = b.block, b.new_label("range"), b.new_label("done")
        b.jump(label)
        b.label(label)
        linear, ticket = b.phi("i64", 1, begin, before)
        digits = [b.phi("i64", 1, start, before) for start in starts]
        places = {axis.name: digit for axis, (digit, _) in zip(region.axes, digits)}
        self.iteration(places, lambda: self.statements(region.body))
        carry: Value | None = None
        for (digit, digit_ticket), extent in zip(reversed(digits), reversed(extents)):
            up = digit + (1 if carry is None else b.convert("zext", carry, "i64"))
            carry = b.compare("icmp eq", up, extent)
            b.close_phi(digit_ticket, b.select(carry, 0, up), b.block)
        following = linear + 1
        b.close_phi(ticket, following, b.block)
        b.branch(b.compare("icmp ult", following, end), label, done)
        b.label(done)

    def digits(self, number: Value, extents: Sequence[Value]) -> list[Value]:
        """A number, as a clock with these extents shows it."""
        rest, digits = number, list[Value]()
        for extent in reversed(extents[1:]):
            digits.insert(0, self.b.binary("urem", rest, extent))
            rest = self.b.binary("udiv", rest, extent)
        return [rest, *digits]

    # ---- statements ----

    def statements(self, body: Sequence[Stmt]) -> None:
        declared: list[str] = []
        for position, statement in enumerate(body):
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Init):
                self.init(statement, body[position + 1 :])
                declared.append(statement.name)
            elif isinstance(statement, Update):
                self.update(statement)
            else:
                self.store(statement)
        for name in declared:
            self.r.forget((f"acc:{name}",))
            for key in self.r.partials_of((name,)):
                del self.r.partials[key]
            del self.r.accumulators[name]

    def store(self, statement: Store) -> None:
        r = self.r
        values = tuple(r.value(node) for node in statement.operands)
        store(r, statement, r.value(statement.value), values)
        r.forget((f"buf:{statement.access.buffer}",))

    def init(self, statement: Init, following: Iterable[Stmt]) -> None:
        """Declare an accumulator with one set of partial results for each number of lanes that it is updated with."""
        r = self.r
        widths: dict[int, None] = {}
        places: list[tuple[Node | None, tuple[Axis, ...]]] = []

        def visit(statements: Iterable[Stmt], lanes: int, loops: tuple[Axis, ...]) -> None:
            for inner in statements:
                if isinstance(inner, Loop):
                    own = self.lanes(inner) if inner.axis.kind in VECTOR_KINDS else lanes
                    visit(inner.body, own, (*loops, inner.axis))
                elif isinstance(inner, Update) and inner.name == statement.name:
                    widths[lanes] = None
                    places.append((inner.position, loops))

        visit(following, r.lanes, ())
        accumulator = Accumulator(statement.op, statement.dtype, r.lanes, *_kept_places(places))
        r.accumulators[statement.name] = accumulator
        for lanes in widths or (r.lanes,):
            r.partials[statement.name, lanes] = accumulator.initial(self.b, lanes)
        r.depth[f"acc:{statement.name}"] = r.level

    def update(self, statement: Update) -> None:
        r, b = self.r, self.b
        if (statement.name, r.lanes) not in r.partials:
            self._scan(statement.name, r.wide(r.value(statement.value)))
            return
        old, accumulator = r.partials[statement.name, r.lanes], r.accumulators[statement.name]
        if accumulator.blocked and statement.value.op == "product":
            left, right = (r.wide(r.value(factor)) for factor in statement.value.src)
            result: Parts = (b.intrinsic("fmuladd", left, right, old[0]),)  # fused where the target can
        else:
            new = r.wide(r.value(statement.value))
            place = () if statement.position is None else (r.place(statement.position, accumulator.places),)
            result = accumulator.updated(old, (new, *place))
        if (mask := r.mask) is not None:
            result = tuple(b.select(mask, changed, kept) for changed, kept in zip(result, old))
        r.partials[statement.name, r.lanes] = result
        r.forget((f"acc:{statement.name}",))

    def _scan(self, name: str, new: Value) -> None:
        """Update an accumulator that is one for all lanes, in a ``scan`` loop whose iterations are lanes: the sums up
        to each lane, in as many steps as lanes are doubled, and the last one for the next vectors."""
        r, b = self.r, self.b
        accumulator = r.accumulators[name]
        nothing = accumulator.initial(b, r.lanes)[0]
        total = new if r.mask is None else b.select(r.mask, new, nothing)
        distance = 1
        while distance < r.lanes:
            order = [lane - distance if lane >= distance else r.lanes for lane in range(r.lanes)]
            (total,) = accumulator.join((b.shuffle(total, order, nothing.text),), (total,))
            distance *= 2
        (carry,) = r.partials[name, 1]
        r.partials[name, 1] = accumulator.join((carry,), (b.extract(total, r.lanes - 1),))
        (r.scanned[name],) = accumulator.join((b.splat(carry, r.lanes),), (total,))
        r.forget((f"acc:{name}",))

    # ---- loops ----

    def lanes(self, loop: Loop) -> int:
        if id(loop) not in self._lanes:
            self._lanes[id(loop)] = lanes_for(loop, self.machine)
        return self._lanes[id(loop)]

    def hoist(self, body: Sequence[Stmt], changing: frozenset[str]) -> None:
        """Compute what `body` needs and what does not change in it."""
        r = self.r

        def visit(statements: Sequence[Stmt], safe: bool) -> None:
            nodes: list[Node] = []
            for statement in statements:
                if isinstance(statement, Loop):
                    extent = statement.axis.extent
                    if changing.isdisjoint(extent.free_vars):
                        r.scalar(extent)
                    visit(statement.body, safe and (extent.bounds()[0] or 0) > 0)
                elif not isinstance(statement, Init):
                    nodes.extend(roots_of(statement))
                    if isinstance(statement, Store):
                        prepare(r, statement.access, changing)
            r.hoist(nodes, changing, safe)

        visit(body, True)

    def loop(self, loop: Loop) -> None:
        start, stop = self.b.const(0, "i64"), self.r.scalar(loop.axis.extent)
        if loop.axis.kind in VECTOR_KINDS or (loop.axis.kind == "scan" and self.r.vector is None):
            self._vector(loop, start, stop, False)
            self.r.scanned.clear()
        elif loop.axis.kind == "tile":
            self._tile(loop)
        else:
            self.serial(loop, start, stop)

    def _tile(self, loop: Loop) -> None:
        """A ``tile`` loop: whole tiles written out, with transposed registers for the loads that run along it; what is
        left of the axis as a plain loop."""
        b, r = self.b, self.r
        count, whole = r.scalar(loop.axis.extent), loop.axis.extent.bounds()[1] or 0
        loads = turned_loads(loop, r.vector) if r.vector is not None and whole % r.lanes == 0 else []
        if not loads or (count.number is not None and count.number != whole):
            self.serial(loop, b.const(0, "i64"), count)
            return

        def written_out() -> None:
            self.hoist(loop.body, changed_by((loop,)))
            for first in range(0, whole, r.lanes):
                rows = [turned(r, load, loop.axis.name, first) for load in loads]
                for step in range(r.lanes):
                    values = {load: row[step] for load, row in zip(loads, rows)}
                    self.iteration({loop.axis.name: b.const(first + step, "i64")}, partial(self._given, values, loop))

        if count.number == whole:
            written_out()
        else:
            is_whole = b.compare("icmp eq", count, whole)
            self.guarded(is_whole, written_out)
            self.guarded(is_whole ^ -1, lambda: self.serial(loop, b.const(0, "i64"), count))

    def _given(self, values: dict[Node, Value], loop: Loop) -> None:
        """The body of a loop, where these values are known."""
        for node, value in values.items():
            self.r.remember(node, value)
        self.statements(loop.body)

    def serial(self, loop: Loop, start: Value, stop: Value) -> None:
        def run() -> None:
            self.hoist(loop.body, changed_by((loop,)))
            self.counted(loop, start, stop, 1, lambda: self.statements(loop.body))

        self._unless_empty(loop, start, stop, run)

    def _vector(self, loop: Loop, start: Value, stop: Value, whole: bool) -> None:
        """A loop that takes `lanes` iterations at a time from `start` (a multiple of lanes) to `stop`. `whole`: their
        number is a multiple of lanes."""
        lanes = self.lanes(loop)
        if lanes == 1:
            self.serial(loop, start, stop)
            return
        strip = strip_lanes(loop, lanes, self.machine)
        if strip > lanes:
            self._strips(loop, start, stop, whole, strip)
        else:
            self._in_lanes(loop, start, stop, whole)

    def _in_lanes(self, loop: Loop, start: Value, stop: Value, whole: bool) -> None:
        """`_vector`, with the lanes that the loop has now."""
        b, r, lanes = self.b, self.r, self.lanes(loop)
        paired = lanes % (self.target.vector_bits // 16) == 0 and takes_pairs(loop, self.machine)
        whole = whole or (start.number is not None and stop.number is not None and stop.number % lanes == 0)

        def inside(mask: Callable[[], Value] | None) -> Body:
            def run() -> None:
                r.mask = None if mask is None else mask()
                r.paired = mask is None and paired
                self.statements(loop.body)
                r.mask, r.paired = None, False

            return run

        def enabled() -> Value:
            place = r.env[loop.axis.name]
            last = place.number is not None and stop.number == place.number + 1
            left = b.const(1, "i64") if last else b.intrinsic("smin", stop - place, b.const(lanes, "i64"))
            left = b.convert("trunc", b.hidden(left) if last else left, "i32")
            return b.compare("icmp ult", b.lane_numbers("i32", lanes), b.splat(left, lanes))

        def run() -> None:
            self.hoist(loop.body, changed_by((loop,)))
            if whole:
                self.counted(loop, start, stop, lanes, inside(None))
            elif cost(loop.body) > self.machine.twice:
                self.counted(loop, start, stop, lanes, inside(enabled))
            else:
                self._twice(loop, start, stop, inside(None), inside(enabled))

        outer = r.vector, r.lanes, set(r.varying)
        if r.vector is not None:
            raise ValueError(f"vector loop {loop.axis.name} inside vector loop {r.vector}")
        r.vector, r.lanes = loop.axis.name, lanes
        r.varying.add(loop.axis.name)
        self._unless_empty(loop, start, stop, run)
        r.vector, r.lanes, r.varying = outer

    def _strips(self, loop: Loop, start: Value, stop: Value, whole: bool, strip: int) -> None:
        """A vector loop that takes `strip` lanes at a time as far as it can, then as many as it has."""
        b, lanes = self.b, self.lanes(loop)
        if start.number is None or stop.number is None:
            middle = start + ((stop - start) & -strip)
        else:
            middle = b.const(stop.number - (stop.number - start.number) % strip, "i64")
        for begin, end, own in ((start, middle, strip), (middle, stop, lanes)):
            if begin.text == end.text:
                continue
            self._lanes[id(loop)] = own
            run = partial(self._in_lanes, loop, begin, end, whole or own == strip)
            self.guarded(b.compare("icmp slt", begin, end), run)
        self._lanes[id(loop)] = lanes

    def _twice(self, loop: Loop, start: Value, stop: Value, full: Body, rest: Body) -> None:
        """Whole vectors first, then one iteration with the lanes that are left."""
        b = self.b
        lanes = self.lanes(loop)
        if start.number is not None and stop.number is not None:
            middle = b.const(stop.number // lanes * lanes, "i64")
            if stop.number // lanes * lanes > start.number:
                self.counted(loop, start, middle, lanes, full)
            self.at(loop, middle, rest)
            return
        middle = stop & -lanes  # start is a multiple of lanes, a power of two
        self.guarded(b.compare("icmp slt", start, middle), lambda: self.counted(loop, start, middle, lanes, full))
        self.guarded(b.compare("icmp slt", middle, stop), lambda: self.at(loop, middle, rest))

    def at(self, loop: Loop, position: Value, body: Body) -> None:
        """One iteration."""
        self.r.forget(changed_by(loop.body))
        self.iteration({loop.axis.name: position}, body)

    def iteration(self, places: dict[str, Value], body: Body) -> None:
        """`body` with the axes at these places."""
        r = self.r
        r.level += 1
        r.push()
        for axis, place in places.items():
            r.env[axis], r.depth[axis] = place, r.level
        body()
        r.pop()
        r.level -= 1

    def _unless_empty(self, loop: Loop, start: Value, stop: Value, run: Body) -> None:
        if (loop.axis.extent.bounds()[0] or 0) > 0:
            run()
        else:
            self.guarded(self.b.compare("icmp slt", start, stop), run)

    def guarded(self, condition: Value, run: Body) -> None:
        """Run code under a condition; accumulators keep their values if it does not hold."""
        b, r = self.b, self.r
        before = dict(r.partials)
        before_block = b.block
        then, join_label = b.new_label("then"), b.new_label("join")
        b.branch(condition, then, join_label)
        b.label(then)
        r.push()
        run()
        r.pop()
        then_block = b.block
        b.jump(join_label)
        b.label(join_label)
        for key, old in before.items():
            new = r.partials[key]
            if new is not old:
                r.partials[key] = tuple(b.merge(n, then_block, o, before_block) for n, o in zip(new, old))
                r.forget((f"acc:{key[0]}",))

    def counted(self, loop: Loop, start: Value, stop: Value, step: int, body: Body) -> None:
        """A loop that runs at least once. Long sums are added up in blocks, and these in blocks of blocks."""
        accumulators = self.r.accumulators
        sums = [name for name in updated_in(loop.body) if name in accumulators and accumulators[name].blocked]
        if loop.axis.kind == "scan":
            sums = []  # each sum is read
        levels: list[int] = []
        while sums and len(levels) < self.levels and not _at_most(loop, start, stop, step * BLOCK ** (len(levels) + 1)):
            levels.append(step * BLOCK ** (len(levels) + 1))
        self._blocks(loop, start, stop, [step, *levels], sums, body)

    def _blocks(self, loop: Loop, start: Value, stop: Value, steps: list[int], sums: list[str], body: Body) -> None:
        """A loop over blocks of the last of `steps`, each of which adds up blocks of the step before it."""
        *inner, step = steps
        if not inner:
            self.repeat(loop, start, stop, step, body)
            return
        b, r = self.b, self.r

        def block() -> None:
            first = r.env[loop.axis.name]
            last = b.intrinsic("smin", first + step, stop)
            before = {key: r.partials[key] for key in r.partials_of(sums)}
            for name, lanes in before:
                r.partials[name, lanes] = r.accumulators[name].initial(b, lanes)
            self._blocks(loop, first, last, inner, sums, body)
            for key, parts in before.items():
                r.partials[key] = r.accumulators[key[0]].join(parts, r.partials[key])

        self.repeated(loop, start, stop, step, block)

    def repeat(self, loop: Loop, start: Value, stop: Value, step: int, body: Body) -> None:
        """The iterations of a loop, which runs at least once."""
        self.repeated(loop, start, stop, step, body)

    def repeated(self, loop: Loop, start: Value, stop: Value, step: int, body: Body) -> None:
        """The plain loop: phis for the position and for the accumulators that are updated in it. Few cheap iterations
        are written out."""
        b, r = self.b, self.r
        if _is_short(loop, start, stop, step, self.machine.written_out):
            assert start.number is not None and stop.number is not None
            for place in range(start.number, stop.number, step):
                self.at(loop, b.const(place, "i64"), body)
            r.forget(changed_by(loop.body))
            return
        before, label, done = b.block, b.new_label("loop"), b.new_label("done")
        b.jump(label)
        b.label(label)
        position, ticket = b.phi("i64", 1, start, before)
        tickets = []
        for key in r.partials_of(updated_in(loop.body)):
            phis = [b.phi(part.scalar, part.lanes, part, before) for part in r.partials[key]]
            r.partials[key] = tuple(value for value, _ in phis)
            tickets.append((key, [number for _, number in phis]))
        axis = loop.axis.name
        outer = (r.env[axis], r.depth[axis]) if axis in r.env else None
        self.at(loop, position, body)
        following = position + step
        end = b.block
        b.close_phi(ticket, following, end)
        for key, numbers in tickets:
            for part, number in zip(r.partials[key], numbers):
                b.close_phi(number, part, end)
        b.branch(b.compare("icmp slt", following, stop), label, done)
        b.label(done)
        if outer is not None:
            r.env[axis], r.depth[axis] = outer
        r.forget(changed_by(loop.body))


def _is_short(loop: Loop, start: Value, stop: Value, step: int, most: int) -> bool:
    """Whether a loop takes at most so many instructions all in all: counting would cost a good part of them."""
    if start.number is None or stop.number is None or any(isinstance(inner, Loop) for inner in loop.body):
        return False
    return -(-(stop.number - start.number) // step) * cost(loop.body) <= most


def _at_most(loop: Loop, start: Value, stop: Value, count: int) -> bool:
    """Whether a loop from `start` to `stop` has at most so many iterations."""
    most = loop.axis.extent.bounds()[1]
    if start.number is not None and stop.number is not None:
        most = stop.number - start.number
    return most is not None and most <= count


def _kept_places(places: list[tuple[Node | None, tuple[Axis, ...]]]) -> tuple[str, Expr | None]:
    """The type of an accumulator's positions, and the first one where they rise: of updates, each with its position and
    the loops that it stands in. What may be a reduction over nothing has a position of 64 bits, the largest."""
    if len(places) != 1:
        return "i64", None
    position, loops = places[0]
    if position is None or position.op != "index" or not all((axis.extent.bounds()[0] or 0) > 0 for axis in loops):
        return "i64", None
    place: Expr = position.arg
    step = place.coefficient(loops[0].name) if len(loops) == 1 else None
    rises = step is not None and step.is_const and step.value > 0
    return "i32" if fits(place.terms, place.offset) else "i64", place.subs({loops[0].name: 0}) if rises else None
