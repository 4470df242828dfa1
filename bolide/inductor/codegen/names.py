"""Names, integers and scopes of one LLVM function under construction.

A value is computed once, where it is first needed, and remembered until the scope (block) that computed it is left.
Sums are computed as partial sums by loop depth, so that what belongs to an outer loop is found there.
"""

from __future__ import annotations

from typing import Any

import torch

from bolide.inductor.codegen.analysis import READS, Dependences
from bolide.inductor.codegen.builder import Builder, Value
from bolide.inductor.ir.loops import Node
from bolide.symbolic import Expr
from bolide.symbolic.expr import Atom

Term = tuple[tuple[Atom, ...], int]
_NARROW = 1 << 31


class Names:
    """One function's names and the integers made of them.

    `env` maps axes, sizes and operands of indirect accesses (as ``#n``) to integer values (i64); those in `varying`
    differ from lane to lane: for the vector axis `env` has the first lane's. `depth` tells how deep in the loop nest a
    name is defined. `mask` is the lanes that are switched on (None: all).
    """

    def __init__(self, b: Builder, dependences: Dependences) -> None:
        self.b, self.dependences = b, dependences
        self.env: dict[str, Value] = {}
        self.depth: dict[str, int] = {}
        self.level = 0
        self.buffers: dict[str, Value] = {}
        self.types: dict[str, torch.dtype] = {}
        self.vector: str | None = None
        self.lanes = 1
        self.mask: Value | None = None
        self.varying: set[str] = set()
        self._cache: dict[Any, Value] = {}
        self._journal: list[list[Any]] = [[]]
        self._operands: dict[Node, str] = {}

    # ---- scopes ----

    def push(self) -> None:
        """Enter a block: what is computed from now on is forgotten by the matching `pop`."""
        self._journal.append([])

    def pop(self) -> None:
        for key in self._journal.pop():
            self._cache.pop(key, None)

    def recall(self, key: Any) -> Value | None:
        return self._cache.get(key)

    def remember(self, key: Any, value: Value) -> Value:
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
        `value`.
        """
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
        if name == READS:
            return 0
        return self.depth.get(name, self.level)

    def index(self, expr: Expr) -> Value:
        """The value of an index expression, i64: one lane if no lane differs."""
        if self.varying.isdisjoint(expr.free_vars):
            return self.sum(expr.terms, expr.offset)
        return self.lane_sum(expr.terms, expr.offset, "i64")

    def scalar(self, expr: Expr) -> Value:
        """The value of an expression that is the same in all lanes, i64."""
        return self.sum(expr.terms, expr.offset)

    def atom_depth(self, atom: Atom) -> int:
        return max(self._name_depth(name) for name in atom.free_vars)

    def split(self, terms: tuple[Term, ...]) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """(terms of the outer loops, terms of the innermost loop that occurs): so that partial sums can stay
        outside.
        """
        depths = [max(map(self.atom_depth, mono)) for mono, _ in terms]
        deepest = max(depths)
        outer = tuple(term for term, depth in zip(terms, depths) if depth < deepest)
        inner = tuple(term for term, depth in zip(terms, depths) if depth == deepest)
        return outer, inner

    def sum(self, terms: tuple[Term, ...], offset: int) -> Value:
        """The sum as one i64; varying names count as in the first lane."""
        if not terms:
            return self.b.const(offset, "i64")
        key = ("sum", terms, offset)
        found = self.recall(key)
        if found is not None:
            return found
        outer, inner = self.split(terms)
        total = self.sum(outer, offset) if outer or offset else None
        for mono, coefficient in inner:
            product = self.atom(mono[0])
            for atom in mono[1:]:
                product = product * self.atom(atom)
            if coefficient != 1:
                product = product * coefficient
            total = product if total is None else total + product
        assert total is not None
        return self.remember(key, total)

    def atom(self, atom: Atom) -> Value:
        if atom.kind == "var":
            return self.env[atom.key]
        found = self.recall(("atom", atom))
        if found is not None:
            return found
        left, right = (self.scalar(arg) for arg in atom.args)
        return self.remember(("atom", atom), integer_atom(atom, left, right))

    def lane_sum(self, terms: tuple[Term, ...], offset: int, kind: str) -> Value:
        """The sum in every lane. `kind` may be i32 when the caller knows that all of it fits (`fits`)."""
        key = ("lanes", terms, offset, kind)
        found = self.recall(key)
        if found is not None:
            return found
        same = tuple(term for term in terms if all(self.varying.isdisjoint(atom.free_vars) for atom in term[0]))
        base = self.sum(same, offset) if same or offset or not terms else None
        total = None if base is None else self.wide(self._as(base, kind))
        for mono, coefficient in terms:
            if (mono, coefficient) in same:
                continue
            product = self.lane_atom(mono[0], kind)
            for atom in mono[1:]:
                product = product * self.lane_atom(atom, kind)
            if coefficient != 1:
                product = product * coefficient
            total = product if total is None else total + product
        if total is None:
            total = self.b.const(offset, kind, self.lanes)
        return self.remember(key, total)

    def _as(self, value: Value, kind: str) -> Value:
        return value if value.scalar == kind else self.b.convert("trunc", value, kind)

    def lane_atom(self, atom: Atom, kind: str) -> Value:
        key = ("lane atom", atom, kind)
        found = self.recall(key)
        if found is not None:
            return found
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
    rest = b.binary("srem", left, right)
    wrong = b.compare("icmp slt", rest ^ right, 0) & b.compare("icmp ne", rest, 0)
    if atom.kind == "%":
        return b.select(wrong, rest + right, rest)
    return b.binary("sdiv", left, right) - b.convert("zext", wrong, left.scalar)
