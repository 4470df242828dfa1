"""What `torch.SymInt`, `SymBool` and `SymFloat` carry while tracing.

torch asks a `SymInt` only through the methods of its node, from Python and from C++; any object that has them will do.
Ours holds an `Expr` (or a `Cond`) and a hint, the value in the run that is being traced.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch

from bolide.symbolic.assumptions import Assumptions, Ratio, Value
from bolide.symbolic.expr import Cond, Expr
from bolide.symbolic.sizes import is_packed

_LARGEST = torch.iinfo(torch.int64).max
_HALF = torch.iinfo(torch.int32).max
_EXACT = 1 << 53
"""Up to here floats are all integers."""
_DIGITS = 1075
"""More bits than there are in numerators and denominators of floats."""
_HASH = torch.SymInt.__hash__.__code__
_LONGEST = 4000
"""Characters of an expression that is kept: what a loop computes of its last number twice doubles with each trip."""

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "//": operator.floordiv,
    "/": operator.truediv,
    "**": operator.pow,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


class GraphFloat(Protocol):
    """The node of a float that is a number of the graph (`owner`)."""

    owner: Any

    def is_float(self) -> bool: ...


def _operation(op: str) -> Callable[[SymNode, SymNode | GraphFloat], SymNode | GraphFloat]:
    """An operation of nodes, of which those of integers are found again: then nothing but them decides the result."""

    def operate(self: SymNode, other: SymNode | GraphFloat) -> SymNode | GraphFloat:
        if not isinstance(other, SymNode):
            return self._float_arithmetic(op, other)
        nodes, key = self.env.nodes, (op, self.expr, other.expr)
        known: SymNode | None = nodes.get(key)
        if known is not None:
            return known
        if self.is_float() or other.is_float():
            return self._float_arithmetic(op, other)
        a, b = self._integer(), other._integer()
        if op in ("//", "%") and not self.env.suppose(b.ne(0)):
            _OPERATORS[op](1, 0)  # raises Python's own error
        result = nodes[key] = self._int(_OPERATORS[op](a, b))
        return result

    return operate


def _comparison(op: str) -> Callable[[SymNode, SymNode | GraphFloat], SymNode]:
    """A comparison of nodes."""

    def compare(self: SymNode, other: SymNode | GraphFloat) -> SymNode:
        compared: Callable[[Any, Any], bool] = getattr(operator, op)
        if not isinstance(other, SymNode):
            return self.wrap_bool(compared(self.in_graph() if self.is_exact() else self.exact_value(), other.owner))
        nodes, key = self.env.nodes, (op, self.expr, other.expr)
        known: SymNode | None = nodes.get(key)
        if known is not None:
            return known
        a, b = self.expr, other.expr
        if isinstance(a, Expr) and isinstance(b, Expr):
            if op == "le" and not b.terms and b.offset == _LARGEST and self.env.numbers.isdisjoint(a.free_vars):
                return self.wrap_bool(True)  # the end of a slice that has none
            result = nodes[key] = self._cond(getattr(a, op)(b))
            return result
        if self.is_float() or other.is_float():
            x, y = self._ratio(_DIGITS), other._ratio(_DIGITS)
            if x is None or y is None:  # an infinity, or NaN
                return self.wrap_bool(compared(*[a if isinstance(a, float) else 0.0 for a in (self.expr, other.expr)]))
            if not x.exact or not y.exact or not all(r.under == 1 or n.is_exact() for r, n in ((x, self), (y, other))):
                asked = [node.guard_float() if self.env.scalar is None else node.in_graph() for node in (self, other)]
                return SymNode.truth(self.env, compared(*asked))
            return self._cond(getattr(x.over * y.under, op)(y.over * x.under))
        return self._cond(getattr(self._integer(), op)(other._integer()))

    return compare


def _in_order(sizes: Sequence[SymNode], strides: Sequence[SymNode], order: Sequence[int]) -> bool:
    """Whether strides are those of dense memory in this order, for all sizes; no guard comes of it."""
    return is_packed([size._integer() for size in sizes], [stride._integer() for stride in strides], order)


def _like_channels_last(sizes: Sequence[SymNode], strides: Sequence[SymNode], order: Sequence[int]) -> bool:
    """As torch guesses it (TensorImpl::compute_strides_like_channels_last)."""
    env = sizes[0].env
    if any(env.is_data(part._integer()) for part in (*sizes, *strides)):
        return _in_order(sizes, strides, order)
    least = Expr.const(0)
    if env.holds(strides[1]._integer().eq(0)):
        return False
    for dim in order:
        size, stride = sizes[dim]._integer(), strides[dim]._integer()
        if env.holds(size.eq(0)) or env.holds(stride.lt(least)):
            return False
        if dim == 0 and least == strides[1]._integer():
            return False
        least = stride * size if env.holds(size.gt(1)) else stride
    return True


def _layout(
    order: Sequence[int], has_layout: Callable[[Sequence[SymNode], Sequence[SymNode], Sequence[int]], bool]
) -> Callable[[SymNode, Sequence[SymNode], Sequence[SymNode]], SymNode]:
    """A question about tensors of as many dimensions as `order` has."""

    def ask(self: SymNode, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self.wrap_bool(len(sizes) == len(order) and has_layout(sizes, strides, order))

    return ask


class SymNode:
    """The node of a `torch.SymInt` (`expr` is an Expr), `SymBool` (a Cond) or `SymFloat` (a Ratio or a number; other
    floats made of sizes are numbers of the graph, by `ShapeEnv.scalar`)."""

    __slots__ = ("env", "expr", "hint")

    def __init__(self, env: Assumptions, expr: Value, hint: int | bool | float) -> None:
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

    def guard_int(self, file: object = "", line: object = 0) -> int:
        if isinstance(self.expr, Expr):
            return self.env.specialise(self.expr, int(self.hint))
        return int(self.bool_() if isinstance(self.expr, Cond) else self.guard_float())

    int_ = nested_int = guard_int

    def guard_bool(self, file: object = "", line: object = 0) -> bool:
        """What C++ asks: whether sizes are 0 or 1 matters for speed there, or is an error's condition."""
        return self.env.likely(self.expr) if isinstance(self.expr, Cond) else bool(self.guard_int())

    def bool_(self) -> bool:
        """What Python asks: the program, or torch's own functions, mostly to raise errors."""
        if not isinstance(self.expr, Cond):
            return bool(self.guard_int())
        if self.env.is_data(self.expr) and str(sys._getframe(2).f_globals.get("__name__")).startswith("torch."):
            return self.env.presume(self.expr)
        return self.env.holds(self.expr)

    def expect_true(self, file: object = "", line: object = 0) -> bool:
        if isinstance(self.expr, Cond):
            return self.env.suppose(self.expr)
        return self.guard_bool()

    guard_size_oblivious = guard_bool

    def guard_or_false(self, file: object = "", line: object = 0) -> bool:
        return self._decided(False)

    def guard_or_true(self, file: object = "", line: object = 0) -> bool:
        return self._decided(True)

    def _decided(self, otherwise: bool) -> bool:
        """The truth, or `otherwise` where that is data."""
        if not isinstance(self.expr, Cond) or not self.env.is_data(self.expr):
            return self.guard_bool()
        known = self.env.decide(self.expr)
        return otherwise if known is None else known

    def expect_size(self, file: object = "", line: object = 0) -> bool:
        return self.env.suppose(self._integer().ge(0))

    def statically_known_true(self, file: object = "", line: object = 0) -> bool:
        if isinstance(self.expr, Cond) and self.env.is_data(self.expr):
            return self.env.decide(self.expr) is True
        return isinstance(self.expr, Cond) and self.expr.is_const and self.expr.value

    def guard_float(self, file: object = "", line: object = 0) -> float:
        if isinstance(self.expr, Ratio):
            return self.env.specialise(self.expr.over, self.env.value(self.expr.over)) / self.expr.under
        return self.expr if isinstance(self.expr, float) else float(self.guard_int())

    float_ = guard_float

    def value(self) -> int | bool | float:
        """The value it has now, which is assumed from here on."""
        return self.guard_int() if self.is_int() else self.bool_() if self.is_bool() else self.guard_float()

    def _derived(self, text: str, value: float) -> SymNode | None:
        """The node of a number that Python computes of sizes, `value` now; None if that cannot be one of its own."""
        number = None if self.env.derive is None else self.env.derive(text, value)
        if number is None:
            return None
        if type(number) not in (int, float):
            return number.node  # type: ignore[no-any-return]
        return self.wrap_int(number) if type(number) is int else self.wrap_float(number)

    # ---- making others --------------------------------------------------------------------------------------------

    def wrap_int(self, value: int) -> SymNode:
        node: SymNode | None = self.env.nodes.get(value)
        if node is None:
            node = self.env.nodes[value] = SymNode.number(self.env, value)
        return node

    def wrap_bool(self, value: bool) -> SymNode:
        return SymNode.truth(self.env, value)

    @staticmethod
    def number(env: Assumptions, value: int) -> SymNode:
        """What C++ carries of an integer that is known."""
        return SymNode(env, Expr.const(value), value)

    @staticmethod
    def truth(env: Assumptions, value: bool | torch.SymBool) -> SymNode:
        """What C++ carries of a condition that has been decided, or is data."""
        if isinstance(value, torch.SymBool):
            return cast(SymNode, value.node)
        return SymNode(env, Expr.const(0 if value else 1).eq(0), value)

    def wrap_float(self, value: float) -> SymNode:
        return SymNode(self.env, float(value), float(value))

    def _integer(self) -> Expr:
        return self.expr if isinstance(self.expr, Expr) else Expr.const(self.guard_int())

    def _int(self, expr: Expr) -> SymNode:
        value = self.env.value(expr)
        if expr.length() > _LONGEST:
            expr = Expr.const(self.env.specialise(expr, value))
        cls = RaggedNode if self.env.is_ragged(expr) else SymNode
        return cls(self.env, expr, value)

    def _cond(self, condition: Cond) -> SymNode:
        if self.env.is_ragged(condition):
            return self.wrap_bool(self.env.truth_of_ragged(condition))
        return SymNode(self.env, condition, condition.holds_at(self.env.value(condition.expr)))

    add, sub, mul, mod, int_floordiv = map(_operation, ("+", "-", "*", "%", "//"))
    floordiv = int_floordiv

    def _float_arithmetic(self, op: str, other: SymNode | GraphFloat) -> SymNode | GraphFloat:
        """Exactly where that is possible, else in the graph."""
        a = self._ratio()
        b = other._ratio() if isinstance(other, SymNode) else None
        if a is not None and b is not None and a.exact and b.exact:
            exact: SymNode | None = None
            if op in ("+", "-"):
                exact = self._exact(_OPERATORS[op](a.over * b.under, b.over * a.under), a.under * b.under)
            elif op == "*":
                exact = self._exact(a.over * b.over, a.under * b.under)
            if exact is not None:
                return exact
        if isinstance(other, SymNode) and isinstance(self.expr, float) and isinstance(other.expr, float):
            return self.wrap_float(_OPERATORS[op](self.expr, other.expr))
        if self.env.scalar is None and isinstance(other, SymNode):
            return self.wrap_float(_OPERATORS[op](self.guard_float(), other.guard_float()))
        result = _OPERATORS[op](self.in_graph(), other.in_graph() if isinstance(other, SymNode) else other.owner)
        return self.wrap_float(result) if isinstance(result, float) else result.node  # type: ignore[no-any-return]

    def _ratio(self, bits: int = 20) -> Ratio | None:
        """This number as a quotient, if it is one of integers of so many bits."""
        if isinstance(self.expr, Ratio):
            return self.expr
        if isinstance(self.expr, float):
            if not math.isfinite(self.expr):
                return None
            over, under = self.expr.as_integer_ratio()
            return Ratio(Expr.const(over), under) if max(abs(over), under) < 1 << bits else None
        return Ratio(self._integer(), 1)

    def is_exact(self) -> bool:
        """Whether no digit of it is lost where it is a float, or an integer becomes one."""
        over = self.expr.over if isinstance(self.expr, Ratio) else self.expr
        if not isinstance(over, Expr) or over.is_const:
            return not isinstance(over, Expr) or abs(over.offset) <= _EXACT
        return self.env.fits(over, _EXACT)

    def exact_value(self) -> float:
        """As `value`; an integer that torch has made a float of is one."""
        if isinstance(self.expr, Ratio) and self.expr.under == 1:
            return self.env.specialise(self.expr.over, self.env.value(self.expr.over))
        return self.value()

    def _exact(self, over: Expr, under: int) -> SymNode | None:
        """As `_quotient`; None where the float may be another one than of exact numbers."""
        return self._quotient(over, under) if over.is_const or self.env.fits(over, _EXACT) else None

    def _quotient(self, over: Expr, under: int) -> SymNode:
        value = self.env.value(over) / under
        if over.is_const:
            return self.wrap_float(value)
        common = math.gcd(under, over.offset, *(c for _, c in over.terms))
        self.env.has_floats = True
        return SymNode(self.env, Ratio(over // common if common > 1 else over, under // common), value)

    def in_graph(self) -> Any:
        """This number as one of the graph."""
        assert self.env.scalar is not None
        if isinstance(self.expr, Ratio):
            over = self.env.scalar(self.expr.over, self.env.value(self.expr.over))
            return over / float(self.expr.under)
        return self.expr if isinstance(self.expr, float) else self.env.scalar(self._integer(), int(self.hint))

    def int_truediv(self, other: SymNode | GraphFloat) -> SymNode | GraphFloat:
        b = other._integer() if isinstance(other, SymNode) and other.is_int() else None
        if b is not None and not self.env.suppose(b.ne(0)):
            operator.truediv(1, 0)  # raises Python's own error
        exact = self._exact(self._integer(), b.value) if b is not None and b.is_const and b.value > 0 else None
        if exact is not None:
            return exact
        if isinstance(other, SymNode) and not (self.is_exact() and other.is_exact()):
            value = operator.truediv(int(self.hint), int(other.hint))
            derived = self._derived(f"({self._integer().text()}) / ({other._integer().text()})", value)
            return derived or self.wrap_float(operator.truediv(self.guard_int(), other.guard_int()))
        return self._float_arithmetic("/", other)

    def float_truediv(self, other: SymNode | GraphFloat) -> SymNode | GraphFloat:
        a, b = self._ratio(), other._ratio() if isinstance(other, SymNode) else None
        if a is not None and b is not None and b.over.is_const and b.over.value > 0 and (a.under == 1 or a.exact):
            value = b.over.value
            if value & (value - 1) == 0 or (a.under == 1 and b.under == 1):
                exact = self._exact(a.over * b.under, a.under * value)
                if exact is not None:
                    return exact
        return self._float_arithmetic("/", other)

    truediv = float_truediv

    def float_pow(self, other: SymNode | GraphFloat) -> SymNode | GraphFloat:
        return self._float_arithmetic("**", other)

    def pow_by_natural(self, other: SymNode) -> SymNode:
        base, exponent, result = self._integer(), other._integer(), Expr.const(1)
        if not exponent.is_const:
            derived = self._derived(f"({base.text()}) ** ({exponent.text()})", self.hint**other.hint)
            if derived is not None:
                return derived
        for _ in range(other.guard_int()):
            result = result * base
        return self._int(result)

    def pow(self, other: SymNode | GraphFloat) -> SymNode | GraphFloat:
        if isinstance(other, SymNode) and not self.is_float() and not other.is_float():
            return self.pow_by_natural(other)
        return self.float_pow(other)

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
            derived = self._derived(f"round({self.expr.text()}, {digits})", round(self.hint, digits))
            if derived is not None:
                return derived
        rounded = round(self.guard_float(), digits)
        return self.wrap_int(rounded) if isinstance(rounded, int) else self.wrap_float(rounded)

    def is_integer(self) -> SymNode:
        """Whether a float is whole."""
        if isinstance(self.expr, Ratio):
            return self._cond((self.expr.over % self.expr.under).eq(0))
        return self.wrap_bool(self.guard_float().is_integer())

    eq, ne, lt, le, gt, ge = map(_comparison, ("eq", "ne", "lt", "le", "gt", "ge"))

    def and_(self, other: SymNode) -> SymNode:
        if not self.has_hint() or not other.has_hint():
            return self._cond(Expr.min(_positive_if(self.expr), _positive_if(other.expr)).ge(0))
        return self.wrap_bool(self.guard_bool() and other.guard_bool())

    def or_(self, other: SymNode) -> SymNode:
        if not self.has_hint() or not other.has_hint():
            return self._cond(Expr.max(_positive_if(self.expr), _positive_if(other.expr)).ge(0))
        return self.wrap_bool(self.guard_bool() or other.guard_bool())

    sym_and, sym_or = and_, or_

    def bitwise_and(self, other: SymNode) -> SymNode:
        return self.and_(other) if self.is_bool() else self._bits("&", other, lambda a, b, both: both)

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
            now = _OPERATORS[sign](self.env.value(a), self.env.value(b))
            derived = self._derived(f"({a.text()}) {sign} ({b.text()})", now)
            if derived is not None:
                return derived
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

    def sym_sum(self, others: Sequence[SymNode]) -> SymNode:
        total = Expr.const(0)
        for other in others:
            total = total + other._integer()
        return self._int(total)

    # ---- questions about layouts that C++ asks of the first symbolic size -----------------------------------------

    def is_contiguous(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self.wrap_bool(_in_order(sizes, strides, range(len(sizes) - 1, -1, -1)))

    def is_non_overlapping_and_dense(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        order = sorted(range(len(sizes)), key=lambda dim: (strides[dim].hint, sizes[dim].hint))
        return self.wrap_bool(_in_order(sizes, strides, order))

    is_channels_last_contiguous_2d = _layout((1, 3, 2, 0), _in_order)
    is_channels_last_contiguous_3d = _layout((1, 4, 3, 2, 0), _in_order)
    is_channels_last_strides_2d = _layout((1, 3, 2, 0), _like_channels_last)
    is_channels_last_strides_3d = _layout((1, 4, 3, 2, 0), _like_channels_last)

    def __repr__(self) -> str:
        return self.expr.text() if isinstance(self.expr, (Expr, Cond, Ratio)) else repr(self.expr)

    def _graph_repr(self) -> object:
        """The text of a `SymInt` or `SymBool` in the program: that of its value, which the program has then looked at.
        In messages of shape rules nothing is assumed until the program may read one, and after the trace nothing."""
        return self.str() if self.env.quiet or self.env.closed else repr(self.value())

    def str(self) -> object:
        """What torch's own messages say. It writes some before it knows whether they are needed, so nothing is assumed
        until one is raised."""
        if not self.env.closed:
            self.env.said.append(self.expr)
        return repr(self.hint) if isinstance(self.expr, float) or not self.env.is_data(self.expr) else repr(self)


class KeyNode(SymNode):
    """The node of a size that is a key of a dict, or in a set. While it is `placed` its hash is that of its value now,
    and nothing is assumed of it: it has been compared with all other keys."""

    __slots__ = ()
    env: ShapeEnv

    def nested_int(self, file: object = "", line: object = 0) -> int:
        return int(self.hint) if self.env.placing else self.guard_int()


class RaggedNode(SymNode):
    """The node of a size that is several numbers, of a jagged tensor's sequences (torch's nested integers): it is equal
    to itself alone."""

    __slots__ = ()

    def is_nested_int(self) -> bool:
        return True

    def nested_int(self, file: object = "", line: object = 0) -> int:
        return hash(self.expr) & _HALF

    def nested_int_coeff(self) -> int:
        return 1

    def guard_int(self, file: object = "", line: object = 0) -> int:
        raise RuntimeError(f"{self}, the size of a ragged dimension, is no number")

    int_ = guard_int


class ShapeEnv(Assumptions):
    """The size variables of one trace, their values in this run, and what was assumed of them."""

    placing = False  # whether the hash of a key is asked that has been compared

    def ragged(self) -> torch.SymInt:
        """A new size of a ragged dimension."""
        name = f"j{len(self.of_ragged)}"
        self.of_ragged.add(name)
        self.hints[name] = 2
        return torch.SymInt(RaggedNode(self, Expr.var(name, 2), 2))  # type: ignore[no-untyped-call]

    def sym_int(self, expr: Expr) -> torch.SymInt:
        """The size that an expression is."""
        return torch.SymInt(SymNode(self, expr, self.value(expr)))  # type: ignore[no-untyped-call]

    def size(self, hint: int, name: str | None = None, lo: int | None = 2, hi: int | None = None) -> torch.SymInt | int:
        """A new symbol with this value now, known to be in lo..hi (None: no bound). A value outside of that stays a
        number; so do sizes of 0 and 1, which torch treats specially everywhere."""
        if (lo is not None and hint < lo) or (hi is not None and hint > hi):
            return hint
        name = name or f"s{len(self.hints)}"
        self.hints[name] = hint
        return self.sym_int(Expr.var(name, lo, hi))

    def data(self, hint: int, name: str | None = None, lo: int | None = None) -> torch.SymInt:
        """A new symbol, at least `lo`, whose value is data: no condition on it becomes a guard. `hint` is what is
        likely, for choices that only matter for speed."""
        name = name or f"u{len(self.facts.names)}"
        self.hints[name] = hint
        self.facts.names.add(name)
        return self.sym_int(Expr.var(name, lo))


def _positive_if(condition: Value) -> Expr:
    """An expression that is at least 0 exactly if the condition holds."""
    assert isinstance(condition, Cond)
    expr = condition.expr
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
        power = exponent._derived(f"1 << ({exponent})", 1 << int(exponent.hint))
        if power is not None:
            return power._integer()
    shift = exponent.guard_int()
    return Expr.const(1 << shift)  # of a negative one: raises Python's own error


def _masked(expr: Expr, mask: int) -> Expr:
    """The bits of an integer that are in `mask`: of each run of ones a quotient's rest."""
    if mask < 0:
        return expr - _masked(expr, ~mask)
    bits, low = Expr.const(0), 0
    while mask >> low:
        length = next(k for k in itertools.count() if not mask >> (low + k) & 1)
        if length:
            bits = bits + expr // 2**low % 2**length * 2**low
        low += length + 1
    return bits
