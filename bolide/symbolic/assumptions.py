"""What is assumed of the symbols of a trace: guards, and facts on data.

Where torch or the user's program must know a truth value, the values in this run decide, and the condition is noted as
a guard.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic.expr import Atom, Cond, Expr

MOST_ELEMENTS = 1 << 40  # of a tensor: no product of its sizes is larger
LARGEST = 1 << 62  # what a graph computes of numbers is no larger: two such numbers may be added, and compared


@dataclass(frozen=True, slots=True)
class Ratio:
    """The float ``over / under`` that is made of sizes. Where `under` is a power of two this is the exact quotient, and
    so are sums and products of such floats (of sizes below 2**31 and factors below 2**20)."""

    over: Expr
    under: int

    @property
    def exact(self) -> bool:
        """Whether it can be calculated with."""
        return self.under & (self.under - 1) == 0

    @property
    def free_vars(self) -> frozenset[str]:
        """The names of the sizes in it."""
        return self.over.free_vars

    def text(self) -> str:
        """Python source of the float."""
        return f"({self.over.text()}) / {self.under}"


Value = Expr | Cond | Ratio | float


class Assumptions:
    """The symbols of one trace, their values in this run, and what was assumed of them.

    `guards` maps each assumption to the user's line that needed it first (None: not known). `where` tells that line.
    """

    def __init__(self, where: Callable[[], UserFrame | None] = lambda: None) -> None:
        self.hints: dict[str, int] = {}
        self.guards: dict[Cond, UserFrame | None] = {}
        self._where = where
        self.scalar: Callable[[Expr, int], Any] | None = None  # makes a number of the graph of an integer
        self.has_floats = False  # whether there are floats of the graph
        self.answers: dict[object, Any] = {}  # what shape rules have said of these sizes
        self.keys: dict[int, tuple[object, object]] = {}  # by ids of metas: what they count as in those answers
        self._values: dict[Expr, int] = {}
        self._truths: dict[tuple[str, Expr], bool] = {}  # what `holds` has found, of conditions that are not data
        self.nodes: dict[object, Any] = {}  # results of arithmetic: C++ asks for the same ones all the time
        self.needed: Callable[[Expr, int], None] | None = None  # is told before the value of an expression is assumed
        self.too_large: Callable[[Expr], None] | None = None  # is told of an integer that no graph computes
        self.derive: Callable[[str, float | None], Any] | None = None  # makes a number of what Python computes
        self.named: Callable[[str, float | None], str | None] | None = None  # names it, for conditions only
        self.quiet = False  # texts are for messages, which are made before anybody knows whether they are needed
        self.said: list[Value] = []  # what stands in those texts
        self.closed = False  # whether the trace is finished: nothing more may be assumed
        self.facts = Facts()  # what is known of symbols that are data
        self.of_ragged: set[str] = set()  # symbols that are sizes of ragged dimensions: they have no value
        self.fits: Callable[[Expr, int], bool] = lambda expr, most: True  # sees to it that an integer is no larger
        self.exact = False  # whether the graph is Python, which computes with integers of any size
        self.numbers: set[str] = set()  # symbols that are integers of any value, no sizes
        self.rooms: dict[str, int] = {}  # those of them from outside that are guarded to be in -room..room
        self.unbacked: set[str] = set()  # those of them that the user has marked as such
        self.violation: tuple[str, str, UserFrame | None] | None = None  # one of those, and what was asked of it
        self.require: Callable[[Cond], None] | None = None  # records a check of a condition on data

    def value(self, expr: Expr) -> int:
        """The value of an expression in this run; asking assumes nothing."""
        value = self._values.get(expr)
        if value is None:
            value = self._values[expr] = expr.evaluate(self.hints)
        return value

    def mark_unbacked(self, size: torch.SymInt) -> None:
        """Treat a size of an input as data."""
        (name,) = size.node.expr.free_vars
        self.facts.names.add(name)
        self.unbacked.add(name)

    def is_data(self, value: Cond | Expr | Ratio) -> bool:
        """Whether there is a symbol in it whose value is data."""
        return bool(self.facts.names) and not self.facts.names.isdisjoint(value.free_vars)

    def is_ragged(self, value: Cond | Expr) -> bool:
        """Whether the size of a ragged dimension is in it."""
        return bool(self.of_ragged) and not self.of_ragged.isdisjoint(value.free_vars)

    def truth_of_ragged(self, condition: Cond) -> bool:
        """As torch says: the size of a ragged dimension is no number, but at least 2."""
        known = _always(condition)
        if known is None and condition.op not in ("==", "!="):
            raise ValueError("ge: relation is indeterminate")
        return condition.op == "!=" if known is None else known

    def is_computed(self, value: Cond | Expr | Ratio) -> bool:
        """Whether there is a symbol in it that the graph computes: it is data, but no size of an input."""
        return not (value.free_vars - self.unbacked).isdisjoint(self.facts.names)

    def decide(self, condition: Cond) -> bool | None:
        """Whether a condition holds for all values of the symbols; None: that is not known. Adds no guard."""
        return condition.value if condition.is_const else self.facts.decide(condition)

    def likely(self, condition: Cond) -> bool:
        """As `holds`, where sizes of 0 and 1 that are data may be taken for others. Two sizes that are compared are
        equal, else the operation is an error: that is checked when the program runs."""
        if not self.is_data(condition):
            return self.holds(condition)
        known = self.facts.decide(condition)
        known = self.facts.decide(condition, least=2) if known is None else known
        if known is None and _compares_sizes(condition) and not self.closed:
            self.suppose(condition.expr.eq(0))
            return condition.op == "=="
        return self.holds(condition) if known is None else known

    def presume(self, condition: Cond) -> bool:
        """As `likely`; that it is so is checked when the program runs."""
        known = self.decide(condition)
        if known is None:
            known = self.likely(condition)
            self.suppose(condition if known else condition.negate())
        return known

    def surely(self, condition: Cond) -> bool:
        """As `holds`, but for conditions on data: whether it is known to hold."""
        return self.facts.decide(condition) is True if self.is_data(condition) else self.holds(condition)

    def suppose(self, condition: Cond) -> bool:
        """Whether a condition holds. One on data that is not known is taken to hold from here on: the program checks it
        when it runs, and is run in eager if it does not. Others become guards."""
        if not self.is_data(condition) or self.closed:
            return self.holds(condition)
        known = self.facts.decide(condition)
        if known is None:
            self.facts.add(condition)
            if self.require is not None:
                self.require(condition)
        return known is not False

    def holds(self, condition: Cond) -> bool:
        """Whether the condition holds in this run; what is found becomes a guard unless it always holds.

        Raises Unsupported for a condition on data that is not known."""
        if condition.is_const:
            return condition.value
        key = (condition.op, condition.expr)
        truth = self._truths.get(key)
        if truth is None:
            if self.is_data(condition):
                return self._holds_of_data(condition)
            truth = _always(condition)
            if truth is None and self.closed:
                return self._known(condition)
            if truth is None:
                truth = condition.holds_at(self.value(condition.expr))
                self.guards.setdefault(condition if truth else condition.negate(), self._where())
            self._truths[key] = truth
        return truth

    def _holds_of_data(self, condition: Cond) -> bool:
        known = self.facts.decide(condition)
        if known is None and self.closed and condition.op != ">=":
            known = condition.op == "!="
        if known is None and self.quiet:  # a shape rule chooses strides
            known = self.facts.decide(condition, least=2)
        if known is None:
            raise self.undecided(condition)
        return known

    def undecided(self, condition: Cond) -> Unsupported:
        """The error for a condition on data that the program needs the truth of."""
        text = condition.text()
        marked = sorted(condition.free_vars & self.unbacked)
        if marked:
            self.violation = marked[0], text, self._where()
        return Unsupported(
            f"whether {text} holds depends on the data of a tensor",
            self._where(),
            f"state what holds before this line, as in torch._check({text}), or use torch.where or torch.cond",
            "data_condition",
        )

    def is_assumed(self, condition: Cond) -> bool:
        """Whether a condition is known to hold: by a guard, or, of data, by what the program has checked."""
        return condition in self.guards or self.decide(condition) is True

    def _known(self, condition: Cond) -> bool:
        """Whether a condition was assumed. Of a finished trace sizes count as different unless they are known to be
        equal; raises AssertionError for an order that is not known."""
        if condition in self.guards or condition.negate() in self.guards:
            return condition in self.guards
        if condition.op == ">=":
            raise AssertionError(f"{condition.text()} is asked of a program that is finished")
        return condition.op == "!="

    def specialise(self, expr: Expr, value: int) -> int:
        """Assume that the expression has the value it has now. Raises Unsupported where that is data."""
        if self.is_data(expr) and self.decide(expr.eq(value)) is not True:
            raise Unsupported(f"the value of {expr.text()} is needed, which is data", self._where(), kind="data_value")
        self.rely_on(expr, value)
        self.holds(expr.eq(value))
        return value

    def rely_on_messages(self) -> None:
        """An operation has raised, and the program may read its text: sizes in it have the values of now. It seldom
        does, so that is no reason to break, however many values there have been."""
        said, self.said = self.said, []
        for value in said:
            if isinstance(value, Expr) and not self.is_data(value):
                self.holds(value.eq(self.value(value)))
            elif isinstance(value, Cond):
                self.holds(value)
            elif isinstance(value, (Expr, Ratio)):
                whole = value if isinstance(value, Expr) else value.over
                self.specialise(whole, self.value(whole))

    def rely_on(self, expr: Expr, value: int) -> None:
        """What is recorded from here on is only right for this value of the expression. May raise Unsupported."""
        if self.needed is not None and not expr.is_const:
            self.needed(expr, value)


# ---- integers that do not fit --------------------------------------------------------------------------------------


def room_in(expr: Expr, numbers: Collection[str], most: int = LARGEST) -> int | None:
    """Between which bounds, -room and room, the `numbers` in an expression have to be for nothing to be larger than
    `most` that is computed of it; None if there are none."""
    bits = bisect.bisect(range(62), most, key=lambda bits: _largest(expr, numbers, 1 << bits)[1])
    return 1 << (bits - 1) if bits else None


def _largest(expr: Expr, numbers: Collection[str], room: int) -> tuple[int, int]:
    """What the value of an expression does not exceed, and what nothing does that is computed of it."""
    value = peak = abs(expr.offset)
    for mono, factor in expr.terms:
        most, sizes = abs(factor), False
        for atom in mono:
            own, inside = _largest_of(atom, numbers, room) if atom.args else (room, 1)
            peak = max(peak, inside)
            if atom.free_vars.isdisjoint(numbers):
                sizes = True
            else:
                most *= own
        if sizes:  # the factor may be one that is fixed
            most = most * MOST_ELEMENTS // min(abs(factor), MOST_ELEMENTS)
        value += most
    return value, max(value, peak)


def _largest_of(atom: Atom, numbers: Collection[str], room: int) -> tuple[int, int]:
    (a, inside), (b, beside) = [_largest(arg, numbers, room) for arg in atom.args]
    if atom.kind == "//" and atom.args[1].is_const:
        a = a // b + 1
    return max(b if atom.kind == "%" else a if atom.kind == "//" else max(a, b), 1), max(inside, beside)


def parts_of(expr: Expr) -> Iterator[Expr]:
    """The expression, and the operands of quotients, rests, minima and maxima in it: where these are right in
    arithmetic that wraps around, all is."""
    yield expr
    for mono, _ in expr.terms:
        for atom in mono:
            for arg in atom.args:
                yield from parts_of(arg)


def sizes_beside(expr: Expr, numbers: Collection[str]) -> Iterator[Expr]:
    """The products of sizes that `numbers` are multiplied with."""
    for part in parts_of(expr):
        for mono, factor in part.terms:
            sizes = [atom.as_expr() for atom in mono if atom.free_vars.isdisjoint(numbers)]
            if 0 < len(sizes) < len(mono):
                yield math.prod(sizes, start=Expr.const(abs(factor)))


def _compares_sizes(condition: Cond) -> bool:
    """Whether it is asked if two sizes, none of which is an expression, are equal. (0 and 1 are no other sizes.)"""
    terms, offset = condition.expr.terms, condition.expr.offset
    factors = sorted(factor for _, factor in terms)
    if condition.op == ">=" or any(len(atoms) != 1 or atoms[0].kind != "var" for atoms, _ in terms):
        return False
    return (factors == [-1, 1] and not offset) or (factors in ([1], [-1]) and -offset * factors[0] > 1)


def _always(condition: Cond) -> bool | None:
    """The truth of a condition if it follows from the bounds of the variables."""
    if condition.op == ">=":
        return True if condition.expr.least() >= 0 else False if (-condition.expr).least() > 0 else None
    return condition.op == "!=" if condition.expr.least() > 0 or (-condition.expr).least() > 0 else None


# ---- data ----------------------------------------------------------------------------------------------------------


class Facts:
    """The symbols whose values are data (`names`), and conditions on them that the program has checked (`known`)."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.known: set[Cond] = set()
        self._positive: dict[str, list[Expr]] = {}  # expressions that are at least 0, by each symbol in them
        self._least: dict[str, int] = {}  # lower bounds of symbols, better than those they were made with

    def add(self, condition: Cond) -> None:
        """Note that a condition holds."""
        if condition.is_const:
            return
        self.known.add(condition)
        if condition.op in (">=", "=="):
            self._add_positive(condition.expr)
        if condition.op == "==":
            self._add_positive(-condition.expr)

    def _add_positive(self, expr: Expr) -> None:
        for name in expr.free_vars:
            self._positive.setdefault(name, []).append(expr)
        if len(expr.free_vars) == 1:
            (name,) = expr.free_vars
            least = -expr.offset
            if (expr + least) is expr.variables()[name]:  # name - least >= 0
                self._least[name] = max(least, self._least.get(name, least))

    def decide(self, condition: Cond, least: int | None = None) -> bool | None:
        """Whether a condition holds for all values that are possible; None if that does not follow from the bounds of
        the symbols and one fact. `least`: as if no size among the symbols (what is at least 0, and may be that large)
        were less than that."""
        if condition in self.known or condition.negate() in self.known:
            return condition in self.known
        raised = self._raised(condition.expr, least)
        expr = condition.expr.subs(raised) if raised else condition.expr
        told = dict.fromkeys([fact for name in expr.free_vars for fact in self._positive.get(name, ())])
        facts = [fact.subs(raised) for fact in told]
        if condition.op == ">=":
            return True if is_at_least_0(expr, facts) else False if is_at_least_0(-expr - 1, facts) else None
        if is_at_least_0(expr - 1, facts) or is_at_least_0(-expr - 1, facts):
            return condition.op == "!="
        if is_at_least_0(expr, facts) and is_at_least_0(-expr, facts):
            return condition.op == "=="
        return None

    def _raised(self, expr: Expr, least: int | None) -> dict[str, Expr]:
        """The symbols in `expr` that are known to be larger than what they were made with."""
        raised = {}
        for name, variable in expr.variables().items():
            lo, hi = variable.bounds()
            better = self._least.get(name, lo)
            is_size = name in self.names and better is not None and better >= 0
            if least is not None and is_size and not is_at_least_0(least - 1 - variable, self._positive.get(name, ())):
                better = max(better or 0, least)
            if better is not None and (lo is None or better > lo):
                raised[name] = Expr.var(name, better, hi if hi is None or hi >= better else None)
        return raised


def is_at_least_0(expr: Expr, facts: Sequence[Expr], depth: int = 3) -> bool:
    """Whether an expression is never negative, by its bounds or because it is at least one that is not; minima and
    maxima are taken apart up to `depth` times."""
    if expr.least() >= 0 or any((expr - fact).least() >= 0 for fact in facts):
        return True
    for mono, coefficient in expr.terms if depth else ():
        if len(mono) == 1 and mono[0].kind in ("min", "max"):
            rest = expr - mono[0].as_expr() * coefficient
            either = (mono[0].kind == "max") is (coefficient > 0)  # the larger of two numbers, or of two losses
            cases = (is_at_least_0(arg * coefficient + rest, facts, depth - 1) for arg in mono[0].args)
            if any(cases) if either else all(cases):
                return True
    return False
