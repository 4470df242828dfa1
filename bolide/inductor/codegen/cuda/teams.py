"""What the threads of a team do together: barriers, and partial results joined across threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bolide.inductor.codegen.builder import BITS, Builder, Value
from bolide.inductor.codegen.function_values import Accumulator, Parts
from bolide.inductor.ir.loops import WARP

#: Bytes that shared memory is given out in.
ROOM = 16


def special(b: Builder, register: str) -> Value:
    """One of the registers that tell a thread its place, as an i32."""
    return b.call(f"llvm.nvvm.read.ptx.sreg.{register}", (), "i32")


class Team:
    """The threads that share an iteration of the grid: `size` of them, `thread` is the number of this one (i64)."""

    def __init__(self, b: Builder, size: int, thread: Value, symbol: str) -> None:
        self.b, self.size, self.thread, self.symbol = b, size, thread, symbol
        self.is_first = b.compare("icmp eq", thread, 0)
        self.lane = b.convert("trunc", thread & (WARP - 1), "i32")
        self.sites = 0
        self.rooms: dict[str, int] = {}  # bytes of shared memory

    def barrier(self) -> None:
        """Waits for all of the team: what they have written is there for all."""
        if self.size <= WARP:
            self.b.call_void("llvm.nvvm.bar.warp.sync", (self.b.const(-1, "i32"),))
        else:
            self.b.call_void("llvm.nvvm.barrier.cta.sync.aligned.all", (self.b.const(0, "i32"),))

    @property
    def has_warps(self) -> bool:
        """Whether partial results go through memory: then `joined` waits for all of the team."""
        return self.size > WARP

    def joined(self, parts: Mapping[str, Parts], accumulators: Mapping[str, Accumulator]) -> dict[str, Parts]:
        """The results of all threads together, which all of them know. Every thread of the team must get here."""
        joined = {name: self._across(accumulators[name], part, WARP) for name, part in parts.items()}
        if self.has_warps:
            joined = self._across_warps(joined, accumulators)
        return {name: self._agreed(accumulators[name], part) for name, part in joined.items()}

    def _across(self, accumulator: Accumulator, parts: Parts, width: int) -> Parts:
        """The join of the values of groups of so many threads of a warp, a power of two."""
        distance = width // 2
        while distance:
            parts = accumulator.join(parts, tuple([self._shuffled("bfly", part, distance) for part in parts]))
            distance //= 2
        return parts

    def _agreed(self, accumulator: Accumulator, parts: Parts) -> Parts:
        """What the first thread of a warp has, where they may differ."""
        is_ordered = accumulator.op in ("min", "max") and parts[0].scalar == "double"  # of 0.0 and -0.0, the second
        return tuple([self._shuffled("idx", part, 0) for part in parts]) if is_ordered else parts

    def _across_warps(self, parts: Mapping[str, Parts], accumulators: Mapping[str, Accumulator]) -> dict[str, Parts]:
        b, warps = self.b, self.size // WARP
        warp = b.binary("lshr", self.thread, b.const(5, "i64"))
        rooms = {name: [self._room(part.scalar, warps) for part in values] for name, values in parts.items()}
        with b.when(b.compare("icmp eq", self.lane, 0)):
            for name, values in parts.items():
                for room, value in zip(rooms[name], values):
                    if value.scalar == "i1":
                        value = b.convert("zext", value, "i8")
                    b.do(f"store {value}, {_element(room, value.scalar, warp)}")
        self.barrier()
        width = 1 << (warps - 1).bit_length()
        place = self.lane & (width - 1)
        there = b.compare("icmp ult", place, warps)
        mine = b.convert("zext", b.select(there, place, 0), "i64")
        joined = {}
        for name, values in parts.items():
            accumulator = accumulators[name]
            nothing = accumulator.initial(b, 1)
            found = [_loaded(room, part.scalar, mine) for room, part in zip(rooms[name], values)]
            others = tuple([b.select(there, value, none) for value, none in zip(found, nothing)])
            joined[name] = self._across(accumulator, others, width)
        return joined

    def scanned(self, accumulator: Accumulator, value: Value, carry: Value) -> tuple[Value, Value]:
        """The reductions up to each lane of each thread, threads in order, joined to `carry`; and those of all. Every
        thread of the team must get here."""
        b = self.b
        (nothing,) = accumulator.initial(b, 1)

        def join(left: Value, right: Value) -> Value:
            return accumulator.join((left,), (right,))[0]

        within = [b.extract(value, 0)]
        for lane in range(1, value.lanes):
            within.append(join(within[-1], b.extract(value, lane)))
        mine = self._up_to(join, within[-1], WARP)
        start, end = carry, self._shuffled("idx", mine, WARP - 1)
        if self.has_warps:
            lower, end = self._scan_of_warps(join, end, nothing)
            start = join(carry, lower)
        start = join(start, b.select(self._is_from(1), self._from_below(mine, 1), nothing))
        results = [join(start, each) for each in within]
        lanes = results[0]
        if value.lanes > 1:
            lanes = Value(b, "poison", value.scalar, value.lanes)
            for lane, result in enumerate(results):
                lanes = b.insert(lanes, result, lane)
        return lanes, join(carry, end)

    def sorted(self, values: Sequence[Value]) -> list[Value]:
        """The integers of a warp in order, the smallest first: thread t has those number t, t + 32 … A bitonic network:
        places that differ in one bit are compared, and exchanged where they are not as the run wants that they are
        in."""
        b, found, size = self.b, list(values), 2
        while size <= WARP * len(found):
            distance = size // 2
            while distance >= WARP:
                step = distance // WARP
                for k in [k for k in range(len(found)) if not k & step]:
                    pair = self._in_order(found[k], found[k + step])
                    found[k], found[k + step] = pair if not k * WARP & size else pair[::-1]
                distance //= 2
            while distance:
                is_low = b.compare("icmp eq", self.lane & distance, 0)
                takes_less = is_low ^ b.compare("icmp ne", self.lane & size, 0) if size < WARP else is_low
                for k, mine in enumerate(found):
                    other = self._shuffled("bfly", mine, distance)
                    found[k] = self._one_of(mine, other, takes_less, turned=size >= WARP and bool(k * WARP & size))
                distance //= 2
            size *= 2
        return found

    def _in_order(self, one: Value, other: Value) -> tuple[Value, Value]:
        """Two integers, the smaller one first."""
        b = self.b
        if BITS[one.scalar] == 32:
            return b.intrinsic("smin", one, other), b.intrinsic("smax", one, other)
        less = b.compare("icmp slt", other, one)
        return b.select(less, other, one), b.select(less, one, other)

    def _one_of(self, mine: Value, other: Value, takes_less: Value, turned: bool) -> Value:
        """The smaller one of two integers, or the other one, also if `turned`. Of 32 bits either is an instruction."""
        b = self.b
        if BITS[mine.scalar] == 32:
            pair = self._in_order(mine, other)
            return b.select(takes_less, *(pair[::-1] if turned else pair))
        stays = b.compare("icmp sgt" if turned else "icmp slt", other, mine)
        return b.select(stays ^ takes_less, mine, other)

    def _up_to(self, join: Callable[[Value, Value], Value], value: Value, width: int) -> Value:
        """The reductions of the values of a warp's first threads, so many, up to each of them."""
        distance = 1
        while distance < width:
            joined = join(self._from_below(value, distance), value)
            value = self.b.select(self._is_from(distance), joined, value)
            distance *= 2
        return value

    def _is_from(self, lane: int) -> Value:
        return self.b.compare("icmp uge", self.lane, lane)

    def _from_below(self, value: Value, distance: int) -> Value:
        """The value of the thread so many numbers below; of the warp's first ones, another one's."""
        return self._shuffled("idx", value, (self.lane - distance) & (WARP - 1))

    def _scan_of_warps(
        self, join: Callable[[Value, Value], Value], value: Value, nothing: Value
    ) -> tuple[Value, Value]:
        """The reduction of the values that all warps before this one have, and that of all warps."""
        b, warps = self.b, self.size // WARP
        room = self._room(value.scalar, warps)
        warp = b.binary("lshr", self.thread, b.const(5, "i64"))
        self.barrier()  # what the last turn has left here may still be read
        with b.when(b.compare("icmp eq", self.lane, 0)):
            b.do(f"store {value}, {_element(room, value.scalar, warp)}")
        self.barrier()
        there = b.compare("icmp ult", self.lane, warps)
        found = _loaded(room, value.scalar, b.convert("zext", b.select(there, self.lane, 0), "i64"))
        sums = self._up_to(join, b.select(there, found, nothing), 1 << (warps - 1).bit_length())
        below = b.convert("trunc", warp, "i32") - 1
        lower = self._shuffled("idx", sums, below & (WARP - 1))
        is_first = b.compare("icmp slt", below, 0)
        return b.select(is_first, nothing, lower), self._shuffled("idx", sums, warps - 1)

    def _room(self, scalar: str, count: int) -> Value:
        """Shared memory for so many values, of this place in the code alone."""
        self.sites += 1
        return self.memory(f"part{self.sites}", _stored(scalar), count)

    def memory(self, name: str, scalar: str, count: int) -> Value:
        """The address of so many elements that the threads of a block share."""
        b, symbol, room = self.b, f"{self.symbol}_{name}", f"[{count} x {scalar}]"
        b.declarations[symbol] = f"@{symbol} = internal addrspace(3) global {room} poison, align {ROOM}"
        size = count * BITS[scalar] // 8
        self.rooms[symbol] = size + -size % ROOM
        return Value(b, f"addrspacecast (ptr addrspace(3) @{symbol} to ptr)", "ptr", 1)

    def _shuffled(self, mode: str, value: Value, lane: int | Value) -> Value:
        """The value of another thread of the warp: ``bfly``, of the one whose number differs in this bit; ``idx``, of
        the one with this number."""
        b, scalar = value.b, value.scalar
        if BITS[scalar] == 64:
            whole = b.bitcast(value, "i64") if scalar == "double" else value
            low = self._shuffled(mode, b.convert("trunc", whole, "i32"), lane)
            upper = b.convert("trunc", b.binary("lshr", whole, b.const(32, "i64")), "i32")
            high = b.convert("zext", self._shuffled(mode, upper, lane), "i64") << 32
            result = high | b.convert("zext", low, "i64")
            return b.bitcast(result, "double") if scalar == "double" else result
        if scalar in ("float", "half"):
            bits = b.bitcast(value, "i32" if scalar == "float" else "i16")
            return b.bitcast(self._shuffled(mode, bits, lane), scalar)
        if scalar != "i32":
            return b.convert("trunc", self._shuffled(mode, b.convert("zext", value, "i32"), lane), scalar)
        number = lane if isinstance(lane, Value) else b.const(lane, "i32")
        numbers = (b.const(-1, "i32"), value, number, b.const(WARP - 1, "i32"))
        return b.call(f"llvm.nvvm.shfl.sync.{mode}.i32", numbers, "i32")


def _stored(scalar: str) -> str:
    return "i8" if scalar == "i1" else scalar


def _element(room: Value, scalar: str, position: Value) -> Value:
    return room.b.emit(f"getelementptr {scalar}, {room}, {position}", "ptr")


def _loaded(room: Value, scalar: str, position: Value) -> Value:
    b, kind = room.b, _stored(scalar)
    value = b.emit(f"load {kind}, {_element(room, kind, position)}", kind)
    return b.compare("icmp ne", value, 0) if scalar == "i1" else value
