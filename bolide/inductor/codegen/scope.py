"""The names, integers and blocks of one LLVM function under construction.

A value is computed once, where it is first needed, and remembered until the scope (block) that computed it is left.
Sums are computed as partial sums by loop depth, so that what belongs to an outer loop is found there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import torch

from bolide.inductor.codegen.analysis import READS, Dependences
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.codegen.instructions import floor_division
from bolide.inductor.ir.loops import Kernel, Node
from bolide.symbolic import Expr
from bolide.symbolic.expr import Atom

Term = tuple[tuple[Atom, ...], int]
_NARROW = 1 << 31


class Scope:
    """One function's names and the integers made of them.

    `env` maps axes, sizes and operands of indirect accesses (as ``#n``) to integer values (i64); those in `varying`
    differ from lane to lane: for the vector axis `env` has the first lane's. `depth` tells how deep in the loop nest a
    name is defined. `mask` is the lanes that are switched on (None: all). `paired`: the lanes stand for the elements at
    even places, then for those at odd places (`analysis.takes_pairs`)."""

    def __init__(self, b: Builder, dependences: Dependences) -> None:
        self.b, self.dependences = b, dependences
        self.env: dict[str, Value] = {}
        self.depth: dict[str, int] = {}
        self.level = 0
        self.buffers: dict[str, Value] = {}
        self.types: dict[str, torch.dtype] = {}
        self.messages: dict[str, str] = {}  # of flags
        self.vector: str | None = None
        self.lanes = 1
        self.mask: Value | None = None
        self.paired = False
        self.varying: set[str] = set()
        self._cache: dict[Hashable, Value] = {}
        self._journal: list[list[Hashable]] = [[]]
        self._operands: dict[Node, str] = {}

    # ---- arguments of the function ----

    def argument(self, position: int, kind: str) -> Value:
        """One of the words that the function is given."""
        word = self.b.emit(f"getelementptr i64, ptr %args, i64 {position}", "ptr")
        return self.b.emit(f"load {kind}, {word}", kind)

    def load_sizes(self, kernel: Kernel) -> None:
        for position, size in enumerate(kernel.sizes, len(kernel.params)):
            self.env[size], self.depth[size] = self.argument(position, "i64"), 0

    def alignment(self, buffer: str, index: Expr) -> int:
        """Bytes that the address of the first of a run of elements is known to be a multiple of; 0: an element's."""
        return 0

    def step(self, index: Expr) -> Expr | None:
        """How far an index moves from lane to lane, if always alike."""
        if self.vector is None or self.varying & index.free_vars != {self.vector}:
            return None
        return index.coefficient(self.vector)

    def held(self, buffer: str) -> Value | None:
        """Where the elements of a buffer at this place are, if a thread holds its own."""
        return None

    def windows(self, buffer: str, index: Expr, stride: int | None) -> tuple[Expr, Sequence[int | None], int] | None:
        """Where pieces of a buffer start that are loaded as a whole, how far behind that the element of each lane is
        (None: it is loaded by itself), and how long they are; None where all elements are loaded by themselves, or as
        vectors. `stride`: of a run."""
        return None

    # ---- blocks ----

    def push(self) -> None:
        """Enter a block: what is computed from now on is forgotten by the matching `pop`."""
        self._journal.append([])

    def pop(self) -> None:
        for key in self._journal.pop():
            self._cache.pop(key, None)

    def recall(self, key: Hashable) -> Value | None:
        return self._cache.get(key)

    def remember(self, key: Hashable, value: Value) -> Value:
        self._cache[key] = value
        self._journal[-1].append(key)
        return value

    def wide(self, value: Value) -> Value:
        """`value` in all lanes."""
        if value.lanes == self.lanes:
            return value
        if not value.text.startswith("%"):
            return self.b.splat(value, self.lanes)
        key = ("splat", value.text, self.lanes)
        return self.recall(key) or self.remember(key, self.b.splat(value, self.lanes))

    # ---- integers ----

    def operand(self, node: Node, value: Value) -> str:
        """The name in index expressions that stands for `node` (an operand of an indirect access), whose value is
        `value`."""
        name = self._operands.get(node)
        if name is None:
            name = self._operands[node] = f"#{len(self._operands)}"
        if value.scalar != "i64":
            key = ("i64", node)
            value = self.recall(key) or self.remember(key, self.b.convert("sext", value, "i64"))
        self.env[name] = value
        self.depth[name] = max((self._name_depth(n) for n in self.dependences.names(node)), default=0)
        (self.varying.add if value.lanes > 1 else self.varying.discard)(name)
        return name

    def _name_depth(self, name: str) -> int:
        return 0 if name == READS else self.depth.get(name, self.level)

    def index(self, expr: Expr) -> Value:
        """The value of an index expression, i64: one lane if no lane differs."""
        if self.varying.isdisjoint(expr.free_vars):
            return self.sum(expr.terms, expr.offset)
        return self.lane_sum(expr.terms, expr.offset, "i64")

    def scalar(self, expr: Expr) -> Value:
        """The value of an expression that is the same in all lanes, i64."""
        return self.sum(expr.terms, expr.offset)

    def split(self, terms: tuple[Term, ...]) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """(terms of the outer loops, terms of the innermost loop that occurs): so that partial sums can stay
        outside."""
        depths = [max(self._name_depth(name) for atom in mono for name in atom.free_vars) for mono, _ in terms]
        deepest = max(depths)
        outer = tuple(term for term, depth in zip(terms, depths) if depth < deepest)
        return outer, tuple(term for term, depth in zip(terms, depths) if depth == deepest)

    def sum(self, terms: tuple[Term, ...], offset: int) -> Value:
        """The sum as one i64; varying names count as in the first lane."""
        if not terms:
            return self.b.const(offset, "i64")
        key = ("sum", terms, offset)
        known = self.recall(key)
        if known is not None:
            return known
        outer, inner = self.split(terms)
        return self.remember(key, _added(self.sum(outer, offset) if outer or offset else None, inner, self.atom))

    def atom(self, atom: Atom) -> Value:
        if atom.kind == "var":
            return self.env[atom.key]
        known = self.recall(("atom", atom))
        if known is not None:
            return known
        left, right = (self.scalar(arg) for arg in atom.args)
        return self.remember(("atom", atom), integer_atom(atom, left, right))

    def lane_sum(self, terms: tuple[Term, ...], offset: int, kind: str) -> Value:
        """The sum in every lane. `kind` may be i32 when the caller knows that all of it fits (`fits`)."""
        key = ("lanes", terms, offset, kind)
        known = self.recall(key)
        if known is not None:
            return known
        same = tuple(term for term in terms if self.is_same(term))
        base = self.sum(same, offset) if same or offset or not terms else None
        total = None if base is None else self.wide(self._as(base, kind))
        rest = tuple(term for term in terms if term not in same)
        return self.remember(key, _added(total, rest, lambda atom: self.lane_atom(atom, kind)))

    def is_same(self, term: Term) -> bool:
        """Whether a term is the same in all lanes."""
        return all(self.varying.isdisjoint(atom.free_vars) for atom in term[0])

    def _as(self, value: Value, kind: str) -> Value:
        return value if value.scalar == kind else self.b.convert("trunc", value, kind)

    def lane_atom(self, atom: Atom, kind: str) -> Value:
        key = ("lane atom", atom, kind)
        known = self.recall(key)
        if known is not None:
            return known
        if self.varying.isdisjoint(atom.free_vars):
            result = self.wide(self._as(self.atom(atom), kind))
        elif atom.kind == "var":
            result = self._as(self.env[atom.key], kind)
            if atom.key == self.vector:
                result = self.b.splat(result, self.lanes) + self.b.lane_numbers(kind, self.lanes)
        else:
            left, right = (self.lane_sum(arg.terms, arg.offset, kind) for arg in atom.args)
            result = integer_atom(atom, left, right)
        return self.remember(key, result)


def _added(total: Value | None, terms: tuple[Term, ...], value_of: Callable[[Atom], Value]) -> Value:
    """The sum of terms and, if there is one, a total."""
    for mono, coefficient in terms:
        product = value_of(mono[0])
        for atom in mono[1:]:
            product = product * value_of(atom)
        if coefficient != 1:
            product = product * coefficient
        total = product if total is None else total + product
    assert total is not None
    return total


def fits(terms: tuple[Term, ...], offset: int) -> bool:
    """Whether the sum, all its partial sums and everything inside it fit in 32 bits, whatever the variables are."""
    reach = abs(offset)
    for mono, coefficient in terms:
        size = abs(coefficient)
        for atom in mono:
            if atom.lo is None or atom.hi is None or not all(fits(arg.terms, arg.offset) for arg in atom.args):
                return False
            size *= max(abs(atom.lo), abs(atom.hi))
        reach += size
    return reach < _NARROW


def multiple_of(expr: Expr, known: dict[str, int] | None = None) -> int:
    """A number that every value of an expression is a multiple of (0: it is 0). `known`: such numbers of variables."""
    result = abs(expr.offset)
    for mono, coefficient in expr.terms:
        for atom in mono:
            if atom.kind == "%" and atom.args[1].is_const:
                coefficient *= math.gcd(multiple_of(atom.args[0], known), atom.args[1].value)
            elif atom.kind == "var":
                coefficient *= (known or {}).get(atom.key, 1)
        result = math.gcd(result, coefficient)
    return result


def step_along(index: Expr, axis: str, lanes: int) -> Expr | None:
    """How far an index moves at each step along an axis, where `lanes` steps begin at a multiple of `lanes`; None if
    not always alike. Where `lanes` divides a divisor, such steps stay between two of its multiples: quotients stay the
    same, and rests grow by one."""
    if (plain := index.coefficient(axis)) is not None:
        return plain
    step = 0
    for mono, coefficient in index.terms:
        moving = [atom for atom in mono if axis in atom.free_vars]
        if not moving:
            continue
        if len(mono) > 1 or moving[0].kind not in ("//", "%"):
            return None
        whole, divisor = moving[0].args
        by_one = whole.coefficient(axis)
        if not (divisor.is_const and by_one is not None and by_one.is_const and by_one.value == 1):
            return None
        if divisor.value % lanes or multiple_of(whole, {axis: lanes}) % lanes:
            return None
        step += coefficient if moving[0].kind == "%" else 0
    return Expr.const(step)


def integer_atom(atom: Atom, left: Value, right: Value) -> Value:
    """Python's //, %, min or max of two integer values; cheaper where the operands cannot be negative. Under a mask the
    divisor may be a size that is 0: what is computed then is not used, but must not trap."""
    b = left.b
    if atom.kind in ("min", "max"):
        return b.intrinsic("smin" if atom.kind == "min" else "smax", left, right)
    low, high = (arg.bounds()[0] for arg in atom.args)
    if high is None or high <= 0:
        right = b.select(b.compare("icmp eq", right, 0), b.like(1, right), right)
    if low is not None and low >= 0 and high is not None and high >= 0:
        return b.binary("udiv" if atom.kind == "//" else "urem", left, right)
    return floor_division(atom.kind == "%", left, right)
