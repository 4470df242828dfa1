"""Symbolic sizes: what `torch.SymInt`, `SymBool` and `SymFloat` carry while tracing, and the assumptions made of them.

torch asks a `SymInt` only through the methods of its node, from Python and from C++; any object that has them will do.
Ours holds an `Expr` (or a `Cond`) and a hint, the
value in the run that is being traced. Where torch or the user's program must know a truth value, the hint decides and
the `ShapeEnv` notes the condition as a guard.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic.expr import Cond, Expr, as_expr
from bolide.symbolic.facts import Facts


class ShapeEnv:
    """The size variables of one trace, their values in this run, and what was assumed of them.

    `guards` maps each assumption to the user's line that needed it first (None: not known). `where` tells that line.
    """

    def __init__(self, where: Callable[[], UserFrame | None] = lambda: None) -> None:
        self.hints: dict[str, int] = {}
        self.guards: dict[Cond, UserFrame | None] = {}
        self._where = where
        self.scalar: Callable[[Expr, int], Any] | None = None  # makes a number of the graph of an integer
        self.has_floats = False  # whether there are floats that are made of sizes
        self.answers: dict[Any, Any] = {}  # what shape rules have said of these sizes
        self.keys: dict[int, tuple[Any, Any]] = {}  # metas of tensors by id, and what they count as among those answers
        self._values: dict[Expr, int] = {}
        self._truths: dict[tuple[str, Expr], bool] = {}  # what `holds` has found, of conditions that are not data
        self._nodes: dict[Any, SymNode] = {}  # results of arithmetic: C++ asks for the same ones all the time
        self.needed: Callable[[Expr, int], None] | None = None  # is told before the value of an expression is assumed
        self.derive: Callable[[str, Any], Any] | None = None  # see `derived`
        self.quiet = False  # texts are for messages, which are made before anybody knows whether they are needed
        self.said: list[SymNode] = []  # sizes in those texts
        self.closed = False  # whether the trace is finished: nothing more may be assumed
        self.facts = Facts()  # what is known of symbols that are data
        self.unbacked: set[str] = set()  # those of them that the user has marked as such
        self.violation: tuple[str, str, UserFrame | None] | None = None  # one of those, and what was asked of it
        self.require: Callable[[Cond], None] | None = None  # records a check of a condition on data

    def size(self, hint: int, name: str | None = None, lo: int | None = 2, hi: int | None = None) -> Any:
        """A new symbol with this value now, known to be in lo..hi (None: no bound). A value outside of that stays a
        number; so do sizes of 0 and 1, which torch treats specially everywhere."""
        if (lo is not None and hint < lo) or (hi is not None and hint > hi):
            return hint
        name = name or f"s{len(self.hints)}"
        self.hints[name] = hint
        return torch.SymInt(SymNode(self, Expr.var(name, lo, hi), hint))  # type: ignore[no-untyped-call]

    def value(self, expr: Expr) -> int:
        """The value of an expression in this run; asking assumes nothing."""
        found = self._values.get(expr)
        if found is None:
            found = self._values[expr] = expr.evaluate(self.hints)
        return found

    def data(self, hint: int, name: str | None = None, lo: int | None = None) -> Any:
        """A new symbol, at least `lo`, whose value is data: no condition on it becomes a guard. `hint` is what is
        likely, for choices that only matter for speed."""
        name = name or f"u{len(self.facts.names)}"
        self.hints[name] = hint
        self.facts.names.add(name)
        return torch.SymInt(SymNode(self, Expr.var(name, lo), hint))  # type: ignore[no-untyped-call]

    def mark_unbacked(self, size: torch.SymInt) -> None:
        """Treat a size of an input as data."""
        (name,) = size.node.expr.free_vars
        self.facts.names.add(name)
        self.unbacked.add(name)

    def is_data(self, value: Cond | Expr | Ratio) -> bool:
        """Whether there is a symbol in it whose value is data."""
        return bool(self.facts.names) and not self.facts.names.isdisjoint(value.free_vars)

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
        found = self._truths.get(key)
        if found is None:
            if self.is_data(condition):
                return self._holds_of_data(condition)
            found = _always(condition)
            if found is None and self.closed:
                return self._known(condition)
            if found is None:
                found = condition.holds_at(self.value(condition.expr))
                self.guards.setdefault(condition if found else condition.negate(), self._where())
            self._truths[key] = found
        return found

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

    def derived(self, text: str, value: Any) -> SymNode | None:
        """The node of a number that Python computes of sizes, `value` now; None if that cannot be one of its own."""
        made = None if self.derive is None else self.derive(text, value)
        if made is None:
            return None
        return (
            SymNode(self, Expr.const(made) if type(made) is int else made, made)
            if type(made) in (int, float)
            else made.node
        )

    def specialise(self, expr: Expr, value: int) -> int:
        """Assume that the expression has the value it has now. Raises Unsupported where that is data."""
        if self.is_data(expr) and self.decide(expr.eq(value)) is not True:
            raise Unsupported(f"the value of {expr.text()} is needed, which is data", self._where(), kind="data_value")
        self.rely_on(expr, value)
        self.holds(expr.eq(value))
        return value

    def rely_on_messages(self) -> None:
        """The program may read what a shape rule has raised: the sizes in its text have the values of now. Such a text
        is seldom looked at, so that is no reason to break, however many values there have been."""
        said, self.said = self.said, []
        for node in said:
            if isinstance(node.expr, Expr) and not self.is_data(node.expr):
                self.holds(node.expr.eq(node.expr.evaluate(self.hints)))
            else:
                node.value()

    def rely_on(self, expr: Expr, value: int) -> None:
        """What is recorded from here on is only right for this value of the expression. May raise Unsupported."""
        if self.needed is not None and not expr.is_const:
            self.needed(expr, value)


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
_LARGEST = torch.iinfo(torch.int64).max
_HASH = torch.SymInt.__hash__.__code__


_LONGEST = 4000
"""Characters of an expression that is kept: what a loop computes of its last number twice doubles with each trip."""


class SymNode:
    """The node of a `torch.SymInt` (`expr` is an Expr), `SymBool` (a Cond) or `SymFloat` (a Ratio or a number; other
    floats made of sizes are numbers of the graph, by `ShapeEnv.scalar`)."""

    __slots__ = ("env", "expr", "hint")

    def __init__(self, env: ShapeEnv, expr: Value, hint: int | bool | float) -> None:
        self.env, self.expr, self.hint = env, expr, hint

    # ---- what it is -----------------------------------------------------------------------------------------------

    def is_int(self) -> bool:
        return self.expr.__class__ is Expr

    def is_bool(self) -> bool:
        return self.expr.__class__ is Cond

    def is_float(self) -> bool:
        return isinstance(self.expr, (float, Ratio))

    def is_nested_int(self) -> bool:
        """Only what `SymInt.__hash__` asks is answered with yes: nested integers are all that it gives a hash to, and
        a size that is a key has to be a number."""
        return sys._getframe(1).f_code is _HASH

    def nested_int(self) -> int:
        return self.guard_int()

    def is_symbolic(self) -> bool:
        return not self.is_constant()

    def is_constant(self) -> bool:
        return isinstance(self.expr, (Expr, Cond)) and self.expr.is_const

    def has_hint(self) -> bool:
        """Whether a truth is known, if need be by a guard."""
        return not (isinstance(self.expr, Cond) and self.env.is_data(self.expr) and self.env.decide(self.expr) is None)

    def maybe_as_int(self) -> int | None:
        expr = self.expr
        return expr.offset if expr.__class__ is Expr and not expr.terms else None

    constant_int = maybe_as_int

    def maybe_as_bool(self) -> bool | None:
        return self.expr.value if isinstance(self.expr, Cond) and self.expr.is_const else None

    constant_bool = maybe_as_bool

    def maybe_as_float(self) -> float | None:
        return self.expr if isinstance(self.expr, float) else None

    constant_float = maybe_as_float

    def clone(self) -> SymNode:
        return self

    # ---- knowing the value ----------------------------------------------------------------------------------------

    def guard_int(self, file: Any = "", line: Any = 0) -> int:
        if isinstance(self.expr, Expr):
            return self.env.specialise(self.expr, int(self.hint))
        return int(self.bool_() if isinstance(self.expr, Cond) else self.guard_float())

    def int_(self) -> int:
        return self.guard_int()

    def guard_bool(self, file: Any = "", line: Any = 0) -> bool:
        """What C++ asks: whether sizes are 0 or 1 matters for speed there, or is an error's condition."""
        return self.env.likely(self.expr) if isinstance(self.expr, Cond) else bool(self.guard_int())

    def bool_(self) -> bool:
        """What Python asks: the program, or torch's own functions, mostly to raise errors."""
        if not isinstance(self.expr, Cond):
            return bool(self.guard_int())
        if self.env.is_data(self.expr) and str(sys._getframe(2).f_globals.get("__name__")).startswith("torch."):
            return self.env.presume(self.expr)
        return self.env.holds(self.expr)

    def expect_true(self, file: Any = "", line: Any = 0) -> bool:
        if isinstance(self.expr, Cond):
            return self.env.suppose(self.expr)
        return self.guard_bool()

    guard_size_oblivious = guard_bool

    def guard_or_false(self, file: Any = "", line: Any = 0) -> bool:
        return self._decided(False)

    def guard_or_true(self, file: Any = "", line: Any = 0) -> bool:
        return self._decided(True)

    def _decided(self, otherwise: bool) -> bool:
        """The truth, or `otherwise` where that is data."""
        if not isinstance(self.expr, Cond) or not self.env.is_data(self.expr):
            return self.guard_bool()
        known = self.env.decide(self.expr)
        return otherwise if known is None else known

    def expect_size(self, file: Any = "", line: Any = 0) -> bool:
        return self.env.suppose(self._integer().ge(0))

    def statically_known_true(self, file: Any = "", line: Any = 0) -> bool:
        if isinstance(self.expr, Cond) and self.env.is_data(self.expr):
            return self.env.decide(self.expr) is True
        return isinstance(self.expr, Cond) and self.expr.is_const and self.expr.value

    def guard_float(self, file: Any = "", line: Any = 0) -> float:
        if isinstance(self.expr, Ratio):
            return self.env.specialise(self.expr.over, self.env.value(self.expr.over)) / self.expr.under
        return self.expr if isinstance(self.expr, float) else float(self.guard_int())

    float_ = guard_float

    def value(self) -> int | bool | float:
        """The value it has now, which is assumed from here on."""
        return self.guard_int() if self.is_int() else self.bool_() if self.is_bool() else self.guard_float()

    # ---- making others --------------------------------------------------------------------------------------------

    def wrap_int(self, value: int) -> SymNode:
        nodes = self.env._nodes
        found = nodes.get(value)
        if found is None:
            found = nodes[value] = SymNode.number(self.env, value)
        return found

    def wrap_bool(self, value: bool) -> SymNode:
        return SymNode.truth(self.env, value)

    @staticmethod
    def number(env: ShapeEnv, value: int) -> SymNode:
        """What C++ carries of an integer that is known."""
        return SymNode(env, Expr.const(value), value)

    @staticmethod
    def truth(env: ShapeEnv, value: bool) -> SymNode:
        """What C++ carries of a condition that has been decided."""
        return SymNode(env, Expr.const(0 if value else 1).eq(0), value)

    def wrap_float(self, value: float) -> SymNode:
        return SymNode(self.env, float(value), float(value))

    def _integer(self) -> Expr:
        return self.expr if isinstance(self.expr, Expr) else Expr.const(self.guard_int())

    def _int(self, expr: Expr) -> SymNode:
        value = self.env.value(expr)
        if expr.length() > _LONGEST:
            expr = Expr.const(self.env.specialise(expr, value))
        return SymNode(self.env, expr, value)

    def _cond(self, condition: Cond) -> SymNode:
        return SymNode(self.env, condition, condition.holds_at(self.env.value(condition.expr)))

    def add(self, other: Any) -> Any:
        if other.__class__ is not SymNode:
            return self._arithmetic("+", other)
        key = ("+", self.expr, other.expr)
        return self.env._nodes.get(key) or self._remember(key, self._arithmetic("+", other))

    def _remember(self, key: Any, node: Any) -> Any:
        """The node, to be found again by `key` if it is about integers: then nothing but them decides it."""
        if node.__class__ is SymNode and (node.expr.__class__ is Expr or node.expr.__class__ is Cond):
            self.env._nodes[key] = node
        return node

    def sub(self, other: SymNode) -> Any:
        return self._arithmetic("-", other)

    def mul(self, other: Any) -> Any:
        if other.__class__ is not SymNode:
            return self._arithmetic("*", other)
        key = ("*", self.expr, other.expr)
        return self.env._nodes.get(key) or self._remember(key, self._arithmetic("*", other))

    def mod(self, other: SymNode) -> Any:
        return self._arithmetic("%", other)

    def int_floordiv(self, other: SymNode) -> Any:
        return self._arithmetic("//", other)

    floordiv = int_floordiv

    def _arithmetic(self, op: str, other: Any) -> Any:
        if self.is_float() or other.is_float():
            return self._float_arithmetic(op, other)
        a, b = self._integer(), other._integer()
        if op in ("//", "%") and not self.env.suppose(b.ne(0)):
            _OPERATORS[op](1, 0)  # raises Python's own error
        return self._int(_INT_OPS[op](a, b))

    def _float_arithmetic(self, op: str, other: Any) -> Any:
        """Exactly where that is possible, else in the graph."""
        a = self._ratio()
        b = other._ratio() if isinstance(other, SymNode) else None
        if a is not None and b is not None and a.exact and b.exact:
            if op in ("+", "-"):
                over = _INT_OPS[op](a.over * b.under, b.over * a.under)
                return self._quotient(over, a.under * b.under)
            if op == "*":
                return self._quotient(a.over * b.over, a.under * b.under)
        if isinstance(other, SymNode) and isinstance(self.expr, float) and isinstance(other.expr, float):
            return self.wrap_float(_OPERATORS[op](self.expr, other.expr))
        if self.env.scalar is None:
            return self.wrap_float(_OPERATORS[op](self.guard_float(), other.guard_float()))
        made = _OPERATORS[op](self._in_graph(), other._in_graph() if isinstance(other, SymNode) else other.owner)
        return self.wrap_float(made) if isinstance(made, float) else made.node

    def _ratio(self) -> Ratio | None:
        """This number as a quotient, if it is a simple one."""
        if isinstance(self.expr, Ratio):
            return self.expr
        if isinstance(self.expr, float):
            if not math.isfinite(self.expr):
                return None
            over, under = self.expr.as_integer_ratio()
            return Ratio(Expr.const(over), under) if max(abs(over), under) < 1 << 20 else None
        return Ratio(self._integer(), 1)

    def _quotient(self, over: Expr, under: int) -> SymNode:
        value = self.env.value(over) / under
        if over.is_const:
            return self.wrap_float(value)
        common = math.gcd(under, over.offset, *(c for _, c in over.terms))
        self.env.has_floats = True
        return SymNode(self.env, Ratio(over // common if common > 1 else over, under // common), value)

    def _in_graph(self) -> Any:
        """This number as one of the graph."""
        assert self.env.scalar is not None
        if isinstance(self.expr, Ratio):
            over = self.env.scalar(self.expr.over, self.env.value(self.expr.over))
            return over / float(self.expr.under)
        return self.expr if isinstance(self.expr, float) else self.env.scalar(self._integer(), int(self.hint))

    def in_graph(self) -> Any:
        """A float made of sizes as a number of the graph."""
        return self._in_graph()

    def int_truediv(self, other: Any) -> Any:
        b = other._integer() if other.is_int() else None
        if b is not None and not self.env.suppose(b.ne(0)):
            operator.truediv(1, 0)  # raises Python's own error
        if b is not None and b.is_const and b.value > 0:
            return self._quotient(self._integer(), b.value)
        return self._float_arithmetic("/", other)

    def float_truediv(self, other: Any) -> Any:
        a, b = self._ratio(), other._ratio() if isinstance(other, SymNode) else None
        if a is not None and b is not None and b.over.is_const and b.over.value > 0 and (a.under == 1 or a.exact):
            value = b.over.value
            if value & (value - 1) == 0 or (a.under == 1 and b.under == 1):
                return self._quotient(a.over * b.under, a.under * value)
        return self._float_arithmetic("/", other)

    truediv = float_truediv

    def float_pow(self, other: Any) -> Any:
        return self._float_arithmetic("**", other)

    def pow_by_natural(self, other: SymNode) -> SymNode:
        base, exponent, result = self._integer(), other._integer(), Expr.const(1)
        if not exponent.is_const:
            made = self.env.derived(f"({base.text()}) ** ({exponent.text()})", self.hint**other.hint)
            if made is not None:
                return made
        for _ in range(other.guard_int()):
            result = result * base
        return self._int(result)

    def pow(self, other: SymNode) -> Any:
        return self.float_pow(other) if self.is_float() or other.is_float() else self.pow_by_natural(other)

    def neg(self) -> SymNode:
        if isinstance(self.expr, Ratio):
            return self._quotient(-self.expr.over, self.expr.under)
        return self.wrap_float(-self.expr) if isinstance(self.expr, float) else self._int(-self._integer())

    def pos(self) -> SymNode:
        return self

    def abs(self) -> SymNode:
        if isinstance(self.expr, float):
            return self.wrap_float(abs(self.expr))
        over = self.expr.over if isinstance(self.expr, Ratio) else self._integer()
        size = Expr.max(over, -over)
        return self._quotient(size, self.expr.under) if isinstance(self.expr, Ratio) else self._int(size)

    def sym_min(self, other: SymNode) -> SymNode:
        return self._extreme(Expr.min, min, other)

    def sym_max(self, other: SymNode) -> SymNode:
        return self._extreme(Expr.max, max, other)

    def _extreme(self, symbolic: Callable[..., Expr], known: Callable[..., float], other: SymNode) -> SymNode:
        if self.is_float() or other.is_float():
            return self.wrap_float(known(self.guard_float(), other.guard_float()))
        return self._int(symbolic(self._integer(), other._integer()))

    def sym_float(self) -> SymNode:
        return self if self.is_float() else self._quotient(self._integer(), 1)

    def floor(self) -> SymNode:
        """The integer part, rounded down; of integers themselves (so are the next three)."""
        if isinstance(self.expr, Ratio):
            return self._int(self.expr.over // self.expr.under)
        return self if not self.is_float() else self.wrap_int(math.floor(self.guard_float()))

    def ceil(self) -> SymNode:
        if isinstance(self.expr, Ratio):
            return self._int(self.expr.over.ceildiv(self.expr.under))
        return self if not self.is_float() else self.wrap_int(math.ceil(self.guard_float()))

    def trunc(self) -> SymNode:
        if isinstance(self.expr, Ratio):
            return self.floor() if self.env.holds(self.expr.over.ge(0)) else self.ceil()
        return self if not self.is_float() else self.wrap_int(math.trunc(self.guard_float()))

    sym_int = trunc

    def round(self, digits: int | None = None) -> SymNode:
        if not self.is_float():
            return self
        if isinstance(self.expr, Ratio) and digits is None:
            return self._int(_rounded(self.expr))
        if isinstance(self.expr, Ratio):
            made = self.env.derived(f"round({self.expr.text()}, {digits})", round(self.hint, digits))
            if made is not None:
                return made
        rounded = round(self.guard_float(), digits)
        return self.wrap_int(rounded) if isinstance(rounded, int) else self.wrap_float(rounded)

    def eq(self, other: SymNode) -> SymNode:
        return self._compare("eq", other)

    def ne(self, other: SymNode) -> SymNode:
        return self._compare("ne", other)

    def lt(self, other: SymNode) -> SymNode:
        return self._compare("lt", other)

    def le(self, other: SymNode) -> SymNode:
        return self._compare("le", other)

    def gt(self, other: SymNode) -> SymNode:
        return self._compare("gt", other)

    def ge(self, other: SymNode) -> SymNode:
        return self._compare("ge", other)

    def _compare(self, op: str, other: Any) -> SymNode:
        if other.__class__ is not SymNode:
            return self.wrap_bool(_COMPARISONS[op](self._in_graph(), other.owner))
        key = (op, self.expr, other.expr)
        found = self.env._nodes.get(key)
        if found is not None:
            return found
        a, b = self.expr, other.expr
        if a.__class__ is Expr and b.__class__ is Expr:
            if op == "le" and not b.terms and b.offset == _LARGEST:  # the end of a slice that has none
                return self.wrap_bool(True)
            compared: SymNode = self._remember(key, self._cond(getattr(a, op)(b)))
            return compared
        if self.is_float() or other.is_float():
            x, y = self._ratio(), other._ratio()
            if x is None or y is None or not x.exact or not y.exact:
                return self.wrap_bool(_COMPARISONS[op](self.guard_float(), other.guard_float()))
            return self._cond(getattr(x.over * y.under, op)(y.over * x.under))
        return self._cond(getattr(self._integer(), op)(other._integer()))

    def and_(self, other: SymNode) -> SymNode:
        if not self.has_hint() or not other.has_hint():
            return self._cond(Expr.min(_positive_if(self.expr), _positive_if(other.expr)).ge(0))
        return self.wrap_bool(self.guard_bool() and other.guard_bool())

    sym_and = and_

    def bitwise_and(self, other: SymNode) -> SymNode:
        return self.and_(other) if self.is_bool() else self._bits("&", other, lambda a, b, both: both)

    def or_(self, other: SymNode) -> SymNode:
        if not self.has_hint() or not other.has_hint():
            return self._cond(Expr.max(_positive_if(self.expr), _positive_if(other.expr)).ge(0))
        return self.wrap_bool(self.guard_bool() or other.guard_bool())

    sym_or = or_

    def bitwise_or(self, other: SymNode) -> SymNode:
        return self.or_(other) if self.is_bool() else self._bits("|", other, lambda a, b, both: a + b - both)

    def bitwise_xor(self, other: SymNode) -> SymNode:
        return self._bits("^", other, lambda a, b, both: a + b - both * 2)

    def _bits(self, sign: str, other: SymNode, form: Callable[[Expr, Expr, Expr], Expr]) -> SymNode:
        """A bitwise operation, by the numbers and the bits that both have; with two symbols one becomes a number."""
        a, b = self._integer(), other._integer()
        if a.is_const:
            a, b = b, a
        if not b.is_const:
            made = self.env.derived(
                f"({a.text()}) {sign} ({b.text()})", _BITWISE[sign](self.env.value(a), self.env.value(b))
            )
            if made is not None:
                return made
            b = Expr.const(self.env.specialise(b, self.env.value(b)))
        return self._int(form(a, b, _masked(a, b.value)))

    def lshift(self, other: SymNode) -> SymNode:
        return self._int(self._integer() * _power_of_two(other))

    def rshift(self, other: SymNode) -> SymNode:
        return self._int(self._integer() // _power_of_two(other))

    def sym_not(self) -> SymNode:
        return self._cond(self.expr.negate()) if isinstance(self.expr, Cond) else self.wrap_bool(not self.guard_bool())

    def sym_ite(self, yes: SymNode, no: SymNode) -> SymNode:
        return yes if self.bool_() else no

    def sym_sum(self, others: Any) -> SymNode:
        total = Expr.const(0)
        for other in others:
            total = total + other._integer()
        return self._int(total)

    # ---- questions about layouts that C++ asks of the first symbolic size -----------------------------------------

    def is_contiguous(self, sizes: Any, strides: Any) -> SymNode:
        return self.wrap_bool(self._in_order(sizes, strides, range(len(sizes) - 1, -1, -1)))

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> SymNode:
        return self.wrap_bool(len(sizes) == 4 and self._in_order(sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> SymNode:
        return self.wrap_bool(len(sizes) == 5 and self._in_order(sizes, strides, (1, 4, 3, 2, 0)))

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> SymNode:
        return self.wrap_bool(len(sizes) == 4 and self._like_channels_last(sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> SymNode:
        return self.wrap_bool(len(sizes) == 5 and self._like_channels_last(sizes, strides, (1, 4, 3, 2, 0)))

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> SymNode:
        order = sorted(range(len(sizes)), key=lambda dim: (strides[dim].hint, sizes[dim].hint))
        return self.wrap_bool(self._in_order(sizes, strides, order))

    def _in_order(self, sizes: Any, strides: Any, order: Any) -> bool:
        """Whether strides are those of dense memory in this order, for all sizes; no guard comes of it."""
        step = Expr.const(1)
        for dim in order:
            size = sizes[dim]._integer()
            if size.is_const and size.value == 1:
                continue
            if strides[dim]._integer() is not step:
                return False
            step = step * size
        return True

    def _like_channels_last(self, sizes: Any, strides: Any, order: Any) -> bool:
        if any(self.env.is_data(part._integer()) for part in (*sizes, *strides)):
            return self._in_order(sizes, strides, order)
        least = Expr.const(0)
        if self.env.holds(strides[1]._integer().eq(0)):
            return False
        for dim in order:
            size, stride = sizes[dim]._integer(), strides[dim]._integer()
            if self.env.holds(size.eq(0)) or self.env.holds(stride.lt(least)):
                return False
            if dim == 0 and least == strides[1]._integer():
                return False
            least = stride * size if self.env.holds(size.gt(1)) else stride
        return True

    def __repr__(self) -> str:
        return self.expr.text() if isinstance(self.expr, (Expr, Cond, Ratio)) else repr(self.expr)

    def str(self) -> Any:
        """What torch's messages say of a size: as `_graph_repr`."""
        return self._graph_repr()

    def _graph_repr(self) -> Any:
        """The text of a `SymInt` or `SymBool`, in the program and in messages: that of its value, which the program has
        then looked at. In messages of shape rules nothing is assumed until the program may read one, and after the
        trace nothing."""
        if self.env.quiet or self.env.closed:
            self.env.said.extend([self] if self.env.quiet else ())
            return repr(self.hint) if isinstance(self.expr, float) or not self.env.is_data(self.expr) else repr(self)
        return repr(self.value())


def _positive_if(condition: Any) -> Expr:
    """An expression that is at least 0 exactly if the condition holds."""
    expr: Expr = condition.expr
    if condition.op == ">=":
        return expr
    return Expr.min(expr, -expr) if condition.op == "==" else Expr.max(expr, -expr) - 1


def _rounded(ratio: Ratio) -> Expr:
    """The nearest integer, of two the even one."""
    over, under = ratio.over * 2 + ratio.under, ratio.under * 2
    nearest = over // under
    if ratio.under % 2:
        return nearest
    is_tie = 1 - Expr.min(over % under, Expr.const(1))
    return nearest - is_tie * (nearest % 2)


def _power_of_two(exponent: SymNode) -> Expr:
    """What shifting multiplies with."""
    if not exponent._integer().is_const and exponent.hint >= 0:
        made = exponent.env.derived(f"1 << ({exponent})", 1 << int(exponent.hint))
        if made is not None:
            found: Expr = made._integer()
            return found
    shift = exponent.guard_int()
    return Expr.const(1 << shift)  # of a negative one: raises Python's own error


def _masked(expr: Expr, mask: int) -> Expr:
    """The bits of an integer that are in `mask`: of each run of ones a quotient's rest."""
    if mask < 0:
        return expr - _masked(expr, ~mask)
    found, low = Expr.const(0), 0
    while mask >> low:
        length = next(k for k in itertools.count() if not mask >> (low + k) & 1)
        if length:
            found = found + expr // 2**low % 2**length * 2**low
        low += length + 1
    return found


_INT_OPS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "%": lambda a, b: a % b,
    "//": lambda a, b: a // b,
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "//": operator.floordiv,
    "/": operator.truediv,
    "**": operator.pow,
}
_BITWISE: dict[str, Callable[[int, int], int]] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes (ints or SymInts) are equal for all values of the symbols in them. Adds no guard."""
    if a.__class__ is int or b.__class__ is int:
        return a is b or (a.__class__ is b.__class__ and bool(a == b))
    return a.node.expr is b.node.expr


def times(a: Any, b: Any) -> Any:
    """The product of two sizes, without the detours that a `SymInt`'s own operator makes (2 µs)."""
    if a.__class__ is int:
        if b.__class__ is int:
            return a * b
        a, b = b, a
    node = a.node.mul(b.node if b.__class__ is torch.SymInt else a.node.wrap_int(b))
    known = node.maybe_as_int()
    return torch.SymInt(node) if known is None else known  # type: ignore[no-untyped-call]


def product(sizes: Iterable[Any]) -> Any:
    """The product of sizes."""
    return reduce(times, sizes, 1)


def without_zeros(shape: Iterable[int | Expr], strides: Iterable[int | Expr]) -> tuple[Expr, ...]:
    """The strides of dense memory as torch computes them: for those of other dimensions a size of 0 counts as 1. Other
    strides stay what they are."""
    found = tuple(map(as_expr, strides))
    dense, real = [Expr.const(1)], [Expr.const(1)]
    for size in reversed([as_expr(size) for size in shape][1:]):
        dense.append(dense[-1] * size)
        real.append(real[-1] * (size if size.least() > 0 else Expr.max(size, 1)))
    return tuple(reversed(real)) if found == tuple(reversed(dense)) else found


def symbolic_strides(sizes: tuple[Any, ...], real: tuple[int, ...], hints: tuple[int, ...]) -> tuple[Any, ...]:
    """The strides of an input with symbolic sizes: products of sizes where the real strides are such products.

    `hints` are the real sizes. A stride that is not explained by the sizes inside of it stays a number (to be guarded).
    For the others' strides, a size of 0 counts as 1.
    """
    strides: list[Any] = list(real)
    sizes, hints = (
        tuple([size if size.__class__ is not int else size or 1 for size in sizes]),
        tuple([n or 1 for n in hints]),
    )
    order = sorted((dim for dim, size in enumerate(hints) if size != 1), key=lambda dim: (real[dim], hints[dim]))
    for inner, outer in itertools.pairwise(order):
        if real[outer] == real[inner] * hints[inner]:
            strides[outer] = times(strides[inner], sizes[inner])
    for outer, size in enumerate(hints):
        inside = [dim for dim in order if real[outer] == real[dim] * hints[dim]] if size == 1 else []
        if inside:
            strides[outer] = times(strides[inside[-1]], sizes[inside[-1]])
    return tuple(strides)
