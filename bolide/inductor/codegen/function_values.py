"""The values of one LLVM function under construction: nodes of loop IR, accumulators, and the code motion there is.

Before a loop starts, `FunctionValues.hoist` asks for the values that do not change in it. Values that depend on memory
or on accumulators are forgotten when these change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bolide.inductor.codegen.accesses import load, prepare
from bolide.inductor.codegen.analysis import READS, Dependences
from bolide.inductor.codegen.builder import BITS, FLOATS, Builder, Value
from bolide.inductor.codegen.instructions import (
    COMPARISONS,
    INSTRUCTIONS,
    REGISTER,
    compare,
    computed,
    constant,
    through_bfloat16,
    upper_half,
)
from bolide.inductor.codegen.philox import philox_normal, philox_uniform, philox_uniforms
from bolide.inductor.codegen.scope import Scope, fits, multiple_of
from bolide.inductor.ir.loops import Node, ReduceOp
from bolide.inductor.ir.scalar_ops import DRAWS, JOINED_BY, identity
from bolide.inductor.ir.walks import nodes_below
from bolide.symbolic import Expr, as_expr

#: The values of one accumulator: (value,), or (value, position) for argmin/argmax.
Parts = tuple[Value, ...]


def no_position(places: str) -> int:
    """What stands for the place of nothing, behind all others: the largest number of that type."""
    return int((1 << BITS[places] - 1) - 1)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """`home`: lanes of the block it was declared in. Its value is in partial results, one for each number of lanes that
    it is updated with. `places`: the type that positions are kept in. `first`: the position of the first element, if
    there is one and each lane is given positions in rising order."""

    op: ReduceOp
    dtype: torch.dtype
    home: int
    places: str = "i64"
    first: Expr | None = None

    @property
    def blocked(self) -> bool:
        """Whether long loops should add up in blocks, to keep the rounding error small."""
        return self.op == "sum" and self.dtype.is_floating_point

    def initial(self, b: Builder, lanes: int) -> Parts:
        """What a reduction over nothing gives."""
        start = b.const(identity(self.op, self.dtype), REGISTER[self.dtype], lanes)
        if self.op not in ("argmin", "argmax"):
            return (start,)
        return (start, b.const(no_position(self.places), self.places, lanes))

    def updated(self, old: Parts, new: Parts) -> Parts:
        """`old` after an update. Where positions rise, only what is better counts, not what is as good: then what is as
        good as nothing has no position (see `position`)."""
        if self.first is None:
            return self.join(old, new)
        (a, place), (c, new_place) = old, new
        if c.scalar in FLOATS:  # NaN is better than numbers
            better = a.b.compare("fcmp ult" if self.op == "argmin" else "fcmp ugt", c, a)
            better = better & a.b.compare("fcmp ord", a, a)
        else:
            better = compare("lt" if self.op == "argmin" else "gt", self.dtype, c, a)
        return a.b.select(better, c, a), a.b.select(better, new_place, place)

    def position(self, place: Value, first: Value | None = None) -> Value:
        """An int64 of a position. Where nothing was better than nothing, all elements are equal, so it is `first`."""
        b = place.b
        whole = place if self.places == "i64" else b.convert("sext", place, "i64")
        if first is None:
            return whole
        return b.select(b.compare("icmp eq", place, no_position(self.places)), first, whole)

    def join(self, left: Parts, right: Parts) -> Parts:
        """Both together; `right` comes later in order."""
        a, c = left[0], right[0]
        if self.op in JOINED_BY:
            return (INSTRUCTIONS[JOINED_BY[self.op]](self.dtype, a, c),)
        chosen = self._wins(left, right)
        return (a.b.select(chosen, c, a), a.b.select(chosen, right[1], left[1]))

    def _wins(self, left: Parts, right: Parts) -> Value:
        """Whether `right` is the one argmin/argmax wants: better, or NaN against a number, or as good at a smaller
        position."""
        a, c = left[0], right[0]
        b = a.b
        earlier = b.compare("icmp slt", right[1], left[1])
        order = "lt" if self.op == "argmin" else "gt"
        if c.scalar in FLOATS:
            nan_a, nan_c = b.compare("fcmp uno", a, a), b.compare("fcmp uno", c, c)
            better = compare(order, self.dtype, c, a) | (nan_c & (nan_a ^ -1))
            equal = b.compare("fcmp oeq", a, c) | (nan_a & nan_c)
        else:
            better, equal = compare(order, self.dtype, c, a), b.compare("icmp eq", a, c)
        return better | (equal & earlier)

    def across_lanes(self, parts: Parts) -> Parts:
        """One lane from many: halves are joined until one is left."""
        lanes = parts[0].lanes
        while lanes > 1:
            lanes //= 2
            parts = self.join(_half(parts, 0, lanes), _half(parts, lanes, lanes))
        return parts


def _half(parts: Parts, start: int, lanes: int) -> Parts:
    if lanes == 1:
        return tuple(part.b.extract(part, start) for part in parts)
    return tuple(part.b.shuffle(part, list(range(start, start + lanes))) for part in parts)


def _rounded_to_bfloat16(node: Node) -> Node | None:
    """The float32 that `node` is a cast of to bfloat16, perhaps to make a float32 of it again."""
    if node.op == "cast" and node.dtype is torch.float32 and node.src[0].op == "cast":
        node = node.src[0]
    is_rounded = node.op == "cast" and node.dtype is torch.bfloat16 and node.src[0].dtype is torch.float32
    return node.src[0] if is_rounded else None


class FunctionValues(Scope):
    """`Scope`, the values of nodes, and the accumulators in scope."""

    def __init__(self, b: Builder, dependences: Dependences) -> None:
        super().__init__(b, dependences)
        self.accumulators: dict[str, Accumulator] = {}
        self.partials: dict[tuple[str, int], Parts] = {}  # by name and lanes
        self.scanned: dict[str, Value] = {}  # accumulators of a scan whose iterations are lanes: up to each lane
        self._stateful: dict[str, set[Node]] = {}

    def forget(self, names: Iterable[str]) -> None:
        """Drop the values that depend on these accumulators and buffers."""
        for name in names:
            for node in self._stateful.pop(name, ()):
                self._cache.pop(node, None)

    def value(self, node: Node) -> Value:
        """The value of `node`: one lane if it is the same in all lanes, else `self.lanes`."""
        known = self._cache.get(node)
        if known is not None:
            return known
        for inner in nodes_below((node,), self._cache.__contains__):
            result = self._compute(inner)
            self.remember(inner, result)
            for name in self.dependences.names(inner):
                if name.startswith(("acc:", "buf:")):
                    self._stateful.setdefault(name, set()).add(inner)
        return self._cache[node]

    def _compute(self, node: Node) -> Value:
        if node.op == "const":
            return constant(self.b, node.arg, node.dtype)
        if node.op == "index":
            return self.index(node.arg)
        if node.op == "acc":
            return self.read(node.arg)
        choice = self.dependences.choices.of(node)
        if choice is not None:
            return self._chosen(*choice, node.dtype)
        args = tuple(self._cache[operand] for operand in node.src)
        if node.op == "load":
            return load(self, node, args)
        if node.op in DRAWS:
            return self._drawn(node, args[0])
        if node.op in COMPARISONS and all(operand.op in ("index", "const") for operand in node.src):
            narrow = self._compare_places(node)
            if narrow is not None:
                return narrow
        if any(arg.lanes > 1 for arg in args):
            keeps = node.op == "where" and args[0].lanes == 1 and bool(self.b.target.triple)
            args = (*args[:keeps], *(self.wide(arg) for arg in args[keeps:]))
        whole = None if self.b.target.rounds else _rounded_to_bfloat16(node)
        if whole is not None and whole in self._cache:
            rounded = self._through_bfloat16(whole)
            return rounded if node.dtype is torch.float32 or self.paired else upper_half(rounded)
        return computed(node.op, args, node.src[-1].dtype, node.dtype)

    def _chosen(self, condition: Node, yes: float, no: float, dtype: torch.dtype) -> Value:
        """One of two numbers."""
        b, on = self.b, self.value(condition)
        dtype = torch.float32 if self.paired and dtype is torch.bfloat16 else dtype
        return b.select(on, *(b.splat(constant(b, number, dtype), on.lanes) for number in (yes, no)))

    def _drawn(self, node: Node, seed: Value) -> Value:
        """A random number."""
        counter, element = node.arg
        if node.op == "philox_normal":
            return philox_normal(seed, counter, self.index(element))
        if self._is_run_of_blocks(element):
            return philox_uniforms(seed, counter, self.scalar(element), self.lanes)
        return philox_uniform(seed, counter, self.index(element))

    def _is_run_of_blocks(self, element: Expr) -> bool:
        """Whether lanes take neighbours, four of which share a block."""
        if self.vector is None or self.paired or self.lanes % 4 or self.varying & element.free_vars != {self.vector}:
            return False
        step = element.coefficient(self.vector)
        is_run = step is not None and step.is_const and step.value == 1
        return is_run and multiple_of(element, {self.vector: self.lanes}) % 4 == 0

    def _through_bfloat16(self, node: Node) -> Value:
        """A float32 rounded to what a bfloat16 holds, if it may be anything else."""
        value, short = self._cache[node], self.dependences.short
        if short.is_short(node):
            return value
        key = ("bfloat16", value.text)
        return self.recall(key) or self.remember(key, through_bfloat16(value, short.has_short_nans(node)))

    def _compare_places(self, node: Node) -> Value | None:
        """A comparison of index values (the edge of a padding, a causal mask) in 32 bits per lane, if that is
        enough."""
        if node.src[0].dtype != torch.int64:
            return None
        left, right = (as_expr(o.arg if o.op == "index" else int(o.arg)) for o in node.src)
        difference = left - right
        if self.varying.isdisjoint(difference.free_vars) or not fits(difference.terms, difference.offset):
            return None
        lanes = self.lane_sum(difference.terms, difference.offset, "i32")
        return compare(node.op, torch.int32, lanes, self.b.like(0, lanes))

    # ---- accumulators ----

    def partials_of(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """The keys of the partial results of accumulators in scope."""
        return [key for name in names for key in self.partials if key[0] == name]

    def read(self, name: str) -> Value:
        """The value of an accumulator now, its partial results joined."""
        if name in self.scanned:
            return self.scanned[name]
        accumulator = self.accumulators[name]
        total: Parts | None = None
        for key in self.partials_of((name,)):
            parts = self.partials[key]
            if key[1] != accumulator.home:
                parts = accumulator.across_lanes(parts)
            total = parts if total is None else accumulator.join(total, parts)
        assert total is not None
        if len(total) == 1:
            return total[0]
        first = accumulator.first
        if first is None:
            return accumulator.position(total[1])
        if accumulator.home == 1:
            return accumulator.position(total[1], self.sum(first.terms, first.offset))
        return accumulator.position(total[1], self.lane_sum(first.terms, first.offset, "i64"))

    def place(self, node: Node, places: str) -> Value:
        """The value of a position in every lane, in the type that positions are kept in."""
        if places == "i64":
            return self.wide(self.value(node))
        return self.lane_sum(node.arg.terms, node.arg.offset, places)

    # ---- code motion ----

    def hoist(self, roots: Iterable[Node], changing: frozenset[str], safe_to_read: bool) -> None:
        """Compute now what is under `roots` and does not depend on `changing`, and such parts of addresses. Unless
        `safe_to_read` (the loop may not run at all), memory is left alone."""
        forbidden = changing if safe_to_read else changing | {READS}

        def is_done(node: Node) -> bool:
            done = node in self._cache or self.dependences.names(node).isdisjoint(forbidden)
            if done:
                self.wide(self.value(node))
            return done

        for node in nodes_below(roots, is_done):
            if node.op == "load":
                prepare(self, node.arg, changing)
