"""The values that one thread of a GPU computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bolide.inductor.codegen.analysis import Dependences
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.cuda.bfloat16 import in_bfloat16
from bolide.inductor.codegen.cuda.widths import WIDEST
from bolide.inductor.codegen.function_values import FunctionValues, Parts
from bolide.inductor.codegen.instructions import MEMORY
from bolide.inductor.codegen.scope import fits, integer_atom, multiple_of, step_along
from bolide.inductor.ir.loops import Node
from bolide.symbolic import Expr, as_expr
from bolide.symbolic.expr import Atom

#: Lanes whose places are looked at one by one.
MOST_APART = 16


class ThreadValues(FunctionValues):
    """The values that one thread computes. `are_aligned`: arguments are multiples of `WIDEST`, those in `aligned` are
    used as such. `rooms`: the thread's own elements of buffers that it holds, from `slot` on those of this turn."""

    def __init__(self, b: Builder, dependences: Dependences) -> None:
        super().__init__(b, dependences)
        self.are_aligned = True
        self.aligned: set[str] = set()
        self.numels: dict[str, Expr] = {}
        self.rooms: dict[str, Value] = {}
        self.slot = b.const(0, "i64")

    def step(self, index: Expr) -> Expr | None:
        if self.vector is None or self.varying & index.free_vars != {self.vector}:
            return None
        return step_along(index, self.vector, self.lanes)

    def held(self, buffer: str) -> Value | None:
        room = self.rooms.get(buffer)
        if room is None:
            return None
        return self.b.emit(f"getelementptr {MEMORY[self.types[buffer]]}, {room}, {self.slot}", "ptr")

    def alignment(self, buffer: str, index: Expr) -> int:
        if self.vector is None:
            return 0
        size = self.types[buffer].itemsize
        known = math.gcd(multiple_of(index, {self.vector: self.lanes}) * size, WIDEST)
        if known > size:
            self.aligned.add(buffer)
        return known

    def windows(self, buffer: str, index: Expr, stride: int | None) -> tuple[Expr, Sequence[int | None], int] | None:
        numel, longest = self.numels.get(buffer), WIDEST // self.types[buffer].itemsize
        if not self.are_aligned or self.vector is None or numel is None or self.lanes == 1:
            return None
        run = None if stride is None else (index, [lane * stride for lane in range(self.lanes)])
        known = run or self._places(index, self.vector)
        if known is None:
            return None
        first, places = known
        fixed = first - first.offset
        length = math.gcd(multiple_of(fixed, {self.vector: self.lanes}), multiple_of(numel), longest)
        if length < (longest if stride is not None else 2):
            return None
        self.aligned.add(buffer)
        rest = first.offset % length
        return first - rest, [None if place is None else place + rest for place in places], length

    def _places(self, index: Expr, vector: str) -> tuple[Expr, Sequence[int | None]] | None:
        """What a place is at some lane, of quotients of neighbours say, and how far from there it is in each, where
        that is known of several: the first one is at a multiple of their number."""
        if self.varying & index.free_vars != {vector} or self.lanes > MOST_APART:
            return None
        turn = Expr.var("$turn", 0, None)
        lanes = [index.subs({vector: turn * self.lanes + lane}) for lane in range(self.lanes)]
        middle = lanes[self.lanes // 2]
        places = [(place - middle).offset if (place - middle).is_const else None for place in lanes]
        if len({place for place in places if place is not None}) < 2:
            return None
        return middle.subs({"$turn": index.variables()[vector] // self.lanes}), places

    def read(self, name: str) -> Value:
        """An accumulator's value; partial results that are nothing yet are left out."""
        accumulator, kept = self.accumulators[name], dict(self.partials)
        for key in self.partials_of((name,)):
            if key[1] > 1 and texts(kept[key]) == texts(accumulator.initial(self.b, key[1])):
                del self.partials[key]
        value = super().read(name)
        self.partials = kept
        return value

    def _compute(self, node: Node) -> Value:
        return in_bfloat16(self, node) or super()._compute(node)

    def _compare_places(self, node: Node) -> Value | None:
        """A comparison that has one result for all of a thread's lanes, whose first one is at a multiple of so many:
        the halves of a row, or what is concatenated."""
        bound = _bound(node)
        if self.vector is None or bound is None:
            return super()._compare_places(node)
        is_below, place = bound
        step = place.coefficient(self.vector)
        if step is not None and step.is_const and step.value == -1:
            is_below, place, step = not is_below, -place - 1, -step
        if self.varying & place.free_vars != {self.vector} or step is None or not (step.is_const and step.value == 1):
            return super()._compare_places(node)
        if multiple_of(place, {self.vector: self.lanes}) % self.lanes:
            return self._at_edges(is_below, place, self.vector) or super()._compare_places(node)
        return self.b.compare("icmp slt" if is_below else "icmp sge", self.scalar(place), 0)

    def _at_edges(self, is_below: bool, place: Expr, vector: str) -> Value | None:
        """A comparison of places that follow one another, if it is known in most lanes, wherever the first one is: an
        edge (of a padding, of a window) lies in few of them."""
        most, b, lanes = place.variables()[vector].bounds()[1], self.b, self.lanes
        if place.free_vars != {vector} or most is None or most + 1 < lanes:
            return None
        first = (0, (most + 1) // lanes * lanes - lanes)
        found = [{(start + lane + place.offset < 0) is is_below for start in first} for lane in range(lanes)]
        edges = [lane for lane, truths in enumerate(found) if len(truths) > 1]
        if len(edges) > lanes // 2:
            return None
        result = Value(b, "<" + ", ".join([f"i1 {str(True in truths).lower()}" for truths in found]) + ">", "i1", lanes)
        for lane in edges:
            own = b.compare("icmp slt" if is_below else "icmp sge", self.scalar(place + lane), 0)
            result = b.insert(result, own, lane)
        return result

    def argument(self, position: int, kind: str) -> Value:
        return Value(self.b, f"%a{position}", kind, 1)

    def lane_atom(self, atom: Atom, kind: str) -> Value:
        """Quotients and rests of neighbouring places of which the first is a multiple of the divisor are those of the
        first one and numbers that are known."""
        if atom.kind not in ("//", "%") or self.vector is None:
            return super().lane_atom(atom, kind)
        whole, divisor = atom.args
        step, rest = whole.coefficient(self.vector), whole.offset
        one_by_one = step is not None and step.is_const and step.value == 1 and divisor.is_const
        if not one_by_one or self.varying & whole.free_vars != {self.vector} or divisor.value <= 0:
            return super().lane_atom(atom, kind)
        if multiple_of(whole - rest, {self.vector: self.lanes}) % divisor.value:
            few = divisor.value < self.lanes or not (fits(whole.terms, rest) and kind == "i32")
            return super().lane_atom(atom, kind) if few else self._lanes_over(atom, whole, divisor)
        known = [divmod(lane + rest, divisor.value)[atom.kind == "%"] for lane in range(self.lanes)]
        lanes = Value(self.b, "<" + ", ".join([f"{kind} {number}" for number in known]) + ">", kind, self.lanes)
        if atom.kind == "%":
            return lanes
        first = self.scalar((whole - rest) // divisor)
        return self.wide(first if kind == "i64" else self.b.convert("trunc", first, kind)) + lanes

    def _lanes_over(self, atom: Atom, whole: Expr, divisor: Expr) -> Value:
        """Quotients or rests of neighbours, of which at most one is a multiple of the divisor: one division for all."""
        key = ("lanes over", whole, divisor)
        if (known := self.recall(key)) is None:
            b = self.b
            first = b.convert("trunc", self.scalar(whole % divisor), "i32")
            rests = b.splat(first, self.lanes) + b.lane_numbers("i32", self.lanes)
            known = self.remember(key, rests)
        over = self.b.compare("icmp sge", known, divisor.value)
        if atom.kind == "%":
            return self.b.select(over, known - divisor.value, known)
        quotient = self.b.convert("trunc", self.scalar(whole // divisor), "i32")
        return self.b.splat(quotient, self.lanes) + self.b.convert("zext", over, "i32")

    def atom(self, atom: Atom) -> Value:
        """Divisions take 32 bits where these are enough: of 64 bits, they are long functions."""
        if atom.kind not in ("//", "%") or not all(fits(arg.terms, arg.offset) for arg in atom.args):
            return super().atom(atom)
        known = self.recall(("atom", atom))
        if known is not None:
            return known
        left, right = (self.b.convert("trunc", self.scalar(arg), "i32") for arg in atom.args)
        return self.remember(("atom", atom), self.b.convert("sext", integer_atom(atom, left, right), "i64"))


def _bound(node: Node) -> tuple[bool, Expr] | None:
    """An expression, and whether a comparison of places says that it is below 0, or that it is not."""
    left, right = (as_expr(o.arg if o.op == "index" else int(o.arg)) for o in node.src)
    difference = left - right - (node.op in ("le", "gt"))
    return (node.op in ("lt", "le"), difference) if node.op in ("lt", "le", "gt", "ge") else None


def texts(parts: Parts) -> list[str]:
    """How the values of an accumulator are written."""
    return [part.text for part in parts]
