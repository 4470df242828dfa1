"""Integer expressions for index arithmetic and symbolic sizes.

An `Expr` is a sum of integer multiples of products of atoms, plus a constant: 8*i + s0*j - 3. An `Atom` is a variable,
or something a sum cannot hold: a floor division, a remainder, a minimum or a maximum. Expressions are immutable and
interned, so equal ones are the same object; they are brought to normal form when they are made. Division and remainder
have Python's semantics (they round to minus infinity); every simplification holds for all values within the variables'
bounds.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from math import gcd, inf, prod
from typing import Any, Literal, TypeVar, cast
from weakref import WeakValueDictionary, ref

from bolide.support.caches import on_reset
from bolide.support.locks import tables

AtomKind = Literal["var", "//", "%", "min", "max"]
Relation = Literal["==", "!=", ">="]
Bounds = tuple[int | None, int | None]
F = TypeVar("F", bound=Callable[..., object])

_atoms: WeakValueDictionary[object, Atom] = WeakValueDictionary()
_exprs: WeakValueDictionary[object, Expr] = WeakValueDictionary()
_known: dict[object, ref[Expr]] = _exprs.data  # type: ignore[attr-defined]  # may be read without the lock
_small: dict[int, Expr] = {}  # constants are met most often; these are kept alive


def _remembered(function: F) -> F:
    """The function, which remembers its answers until `bolide.reset`."""
    cached = functools.lru_cache(1 << 15)(function)
    on_reset(cached.cache_clear)
    return cast(F, cached)


class Atom:
    """A variable or a non-linear operation: a factor of a term. Made by `Expr`'s operations only."""

    __slots__ = ("__weakref__", "args", "expr", "free_vars", "hi", "hi_expr", "key", "kind", "lo")
    kind: AtomKind
    args: tuple[Expr, ...]  # operands; empty for a variable
    key: str  # the Python source; also the order of factors and terms
    lo: int | None
    hi: int | None
    hi_expr: Expr | None  # a variable's symbolic upper bound
    free_vars: frozenset[str]

    @staticmethod
    def make(kind: AtomKind, args: tuple[Expr, ...], key: str, lo: int | None, hi: int | Expr | None) -> Atom:
        identity = (kind, args) if args else (key, lo, hi)
        with tables:
            atom = _atoms.get(identity)
            if atom is None:
                atom = object.__new__(Atom)
                atom.kind, atom.args, atom.key, atom.lo = kind, args, key, lo
                atom.hi_expr = hi if isinstance(hi, Expr) else None
                atom.hi = hi.bounds()[1] if isinstance(hi, Expr) else hi
                atom.free_vars = frozenset().union(*(arg.free_vars for arg in args)) if args else frozenset((key,))
                _atoms[identity] = atom
        return atom

    def as_expr(self) -> Expr:
        """The expression that is this atom alone."""
        return _intern((((self,), 1),), 0)


Mono = tuple[Atom, ...]  # a product of atoms
Term = tuple[Mono, int]  # with its coefficient
Terms = tuple[Term, ...]


class Expr:
    """An interned integer expression, ``offset + sum(coefficient * product of atoms)``: equal ones are one object."""

    __slots__ = ("__weakref__", "_bounds", "_free", "_least", "_text", "offset", "terms")
    terms: Terms
    offset: int
    _bounds: Bounds | None
    _free: frozenset[str] | None
    _least: float | None
    _text: str | None

    # ---- making ---------------------------------------------------------------------------------------------------

    @staticmethod
    def const(value: int) -> Expr:
        """The constant `value`."""
        return _small.get(value) or _intern((), int(value))

    @staticmethod
    def var(name: str, lo: int | None = 0, hi: int | Expr | None = None) -> Expr:
        """The variable `name` with lo <= value <= hi; None: no bound. An upper bound may itself be an expression (the
        last index of an axis of symbolic extent)."""
        return _variable(name, lo, hi)

    # ---- what it is -----------------------------------------------------------------------------------------------

    @property
    def is_const(self) -> bool:
        """Whether the value is known."""
        return not self.terms

    @property
    def value(self) -> int:
        """The value of a constant; ValueError if it is not one."""
        if self.terms:
            raise ValueError(f"{self.text()} is not a constant")
        return self.offset

    @property
    def free_vars(self) -> frozenset[str]:
        """The names of the variables in it."""
        if self._free is None:
            self._free = frozenset().union(*(atom.free_vars for mono, _ in self.terms for atom in mono))
        return self._free

    def variables(self) -> dict[str, Expr]:
        """Its variables by name, bounds included."""
        variables: dict[str, Expr] = {}
        for mono, _ in self.terms:
            for atom in mono:
                if atom.kind == "var":
                    variables[atom.key] = atom.as_expr()
                for arg in atom.args:
                    variables.update(arg.variables())
        return variables

    def bounds(self) -> Bounds:
        """(smallest, largest) value by interval arithmetic with the variables' bounds; None: not bounded."""
        if self._bounds is None:
            lo: int | None = self.offset
            hi: int | None = self.offset
            for mono, coefficient in self.terms:
                low, high = _mono_bounds(mono)
                if coefficient < 0:
                    low, high = high, low
                lo = None if lo is None or low is None else lo + coefficient * low
                hi = None if hi is None or high is None else hi + coefficient * high
            self._bounds = (lo, hi)
        return self._bounds

    def least(self) -> float:
        """A lower bound that `bounds` may not see, minus infinity if none is found: quotients are bounded by what they
        are quotients of, and with every variable counted from its own lower bound, a sum of products without negative
        coefficients is nowhere less than its constant. So s0*s1 - s1 - 1 is at least 1 for sizes from 2 on, and
        s0 - s0//2 at least 1."""
        if self._least is None:
            self._least = self._find_least()
        return self._least

    def _find_least(self) -> float:
        plain, scale = self, 1
        for mono, c in self.terms:
            if len(mono) == 1 and mono[0].kind == "//" and mono[0].args[1].is_const and mono[0].args[1].offset > 0:
                whole, k = mono[0].args[0], mono[0].args[1].offset
                least = whole - (k - 1) if c > 0 else whole  # of k * (whole // k)
                plain, scale = (plain - scale * c * mono[0].as_expr()) * k + scale * c * least, scale * k
        bounds = [plain.bounds()[0]]
        variables = plain.variables()
        if all(v.bounds()[0] is not None for v in variables.values()):
            bounds.append(
                plain.subs({name: Expr.var(name) + (v.bounds()[0] or 0) for name, v in variables.items()}).bounds()[0]
            )
        lowest = [-(-bound // scale) for bound in bounds if bound is not None]
        lowest += [bound for bound in self.bounds()[:1] if bound is not None]
        return max(lowest, default=-inf)

    def coefficient(self, name: str) -> Expr | None:
        """The stride with respect to a variable (0: it does not occur); None if it is not affine in that."""
        if name not in self.free_vars:
            return ZERO
        factors: dict[Mono, int] = {}
        for mono, coefficient in self.terms:
            hits = [atom for atom in mono if name in atom.free_vars]
            if not hits:
                continue
            if len(hits) > 1 or hits[0].kind != "var":
                return None
            rest = tuple(atom for atom in mono if atom is not hits[0])
            factors[rest] = factors.get(rest, 0) + coefficient
        return _from_terms(factors, factors.pop((), 0))

    def subs(self, values: Mapping[str, Expr | int]) -> Expr:
        """The expression with variables replaced."""
        if self.free_vars.isdisjoint(values):
            return self
        result = Expr.const(self.offset)
        kept: dict[Mono, int] = {}
        for mono, coefficient in self.terms:
            product = Expr.const(coefficient)
            fixed = []
            for atom in mono:
                if atom.free_vars.isdisjoint(values):
                    fixed.append(atom)
                else:
                    product = product * _subs_atom(atom, values)
            if len(fixed) == len(mono):
                kept[mono] = coefficient
            else:
                result = result + (product * _from_terms({tuple(fixed): 1}, 0) if fixed else product)
        return result + _from_terms(kept, 0) if kept else result

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value for these values of the variables; KeyError if one is missing."""
        total = self.offset
        for mono, coefficient in self.terms:
            for atom in mono:
                coefficient *= _evaluate_atom(atom, values)
            total += coefficient
        return total

    def length(self) -> int:
        """About how many characters its text has."""
        return sum([len(atom.key) for mono, _ in self.terms for atom in mono])

    def text(self) -> str:
        """Python source of the expression (``min`` and ``max`` are the builtins)."""
        if self._text is None:
            self._text = _sum_text(self.terms, self.offset)
        return self._text

    __str__ = __repr__ = text

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple[Any, ...]]:
        return (rebuild, (tuple((tuple(pack_atom(atom) for atom in mono), c) for mono, c in self.terms), self.offset))

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    # ---- arithmetic -----------------------------------------------------------------------------------------------

    def __add__(self, other: Expr | int) -> Expr:
        if not isinstance(other, Expr):
            if other.__class__ is not int:
                return NotImplemented
            return self if other == 0 else _intern(self.terms, self.offset + other)
        if not other.terms:
            return self + other.offset
        if not self.terms:
            return other + self.offset
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Expr | int) -> Expr:
        return self + -other

    def __rsub__(self, other: int) -> Expr:
        return -self + other

    def __neg__(self) -> Expr:
        return self * -1

    def __mul__(self, other: Expr | int) -> Expr:
        if not isinstance(other, Expr):
            if other.__class__ is not int:
                return NotImplemented
            return _scale(self, other)
        if not other.terms:
            return _scale(self, other.offset)
        if not self.terms:
            return _scale(other, self.offset)
        return _mul(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Expr | int) -> Expr:
        return _floordiv(self, as_expr(other))

    def __rfloordiv__(self, other: int) -> Expr:
        return as_expr(other) // self

    def __mod__(self, other: Expr | int) -> Expr:
        return _mod(self, as_expr(other))

    def __rmod__(self, other: int) -> Expr:
        return as_expr(other) % self

    def ceildiv(self, other: Expr | int) -> Expr:
        """Division rounded up."""
        return -(-self // other)

    @staticmethod
    def min(a: Expr | int, b: Expr | int) -> Expr:
        """The smaller of the two."""
        return _extreme("min", as_expr(a), as_expr(b))

    @staticmethod
    def max(a: Expr | int, b: Expr | int) -> Expr:
        """The larger of the two."""
        return _extreme("max", as_expr(a), as_expr(b))

    # ---- conditions -----------------------------------------------------------------------------------------------

    def eq(self, other: Expr | int) -> Cond:
        """The condition self == other."""
        return _equality("==", self - other)

    def ne(self, other: Expr | int) -> Cond:
        """The condition self != other."""
        return _equality("!=", self - other)

    def ge(self, other: Expr | int) -> Cond:
        """The condition self >= other."""
        return _at_least_zero(self - other)

    def gt(self, other: Expr | int) -> Cond:
        """The condition self > other."""
        return _at_least_zero(self - other - 1)

    def le(self, other: Expr | int) -> Cond:
        """The condition self <= other."""
        return _at_least_zero(-self + other)

    def lt(self, other: Expr | int) -> Cond:
        """The condition self < other."""
        return _at_least_zero(-self + other - 1)


class Cond:
    """A condition on integers in normal form: ``expr == 0``, ``expr != 0`` or ``expr >= 0``. One that follows from
    bounds is a constant. Compares by value."""

    __slots__ = ("expr", "op")
    op: Relation
    expr: Expr

    def __init__(self, op: Relation, expr: Expr) -> None:
        self.op, self.expr = op, expr

    @property
    def is_const(self) -> bool:
        """Whether the truth value is known."""
        return self.expr.is_const

    @property
    def value(self) -> bool:
        """The truth value of a constant condition; ValueError if it is not one."""
        return self.holds_at(self.expr.value)

    @property
    def free_vars(self) -> frozenset[str]:
        """The names of the variables in it."""
        return self.expr.free_vars

    def holds_at(self, value: int) -> bool:
        """Whether it holds where its expression has this value."""
        return value == 0 if self.op == "==" else value != 0 if self.op == "!=" else value >= 0

    def negate(self) -> Cond:
        """The opposite condition."""
        if self.op == ">=":
            return _at_least_zero(-self.expr - 1)
        return Cond("!=" if self.op == "==" else "==", self.expr)

    def subs(self, values: Mapping[str, Expr | int]) -> Cond:
        """The condition with variables replaced."""
        expr = self.expr.subs(values)
        return _at_least_zero(expr) if self.op == ">=" else _equality(self.op, expr)

    def evaluate(self, values: Mapping[str, int]) -> bool:
        """Whether it holds for these values of the variables."""
        return self.holds_at(self.expr.evaluate(values))

    def text(self) -> str:
        """Python source, with the negative terms brought to the right-hand side: ``8*i <= s0 - 1`` is written ``s0 >=
        8*i + 1``."""
        left = tuple((mono, c) for mono, c in self.expr.terms if c > 0)
        right = tuple((mono, -c) for mono, c in self.expr.terms if c < 0)
        offset = self.expr.offset
        positive = left and (offset < 0 or not right)
        lhs, rhs = (0, -offset) if positive else (offset, 0)
        return f"{_sum_text(left, lhs)} {self.op} {_sum_text(right, rhs)}"

    __repr__ = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cond) and self.op == other.op and self.expr is other.expr

    def __hash__(self) -> int:
        return hash((self.op, self.expr))


def as_expr(value: object) -> Expr:
    """An `Expr` for an int, a `torch.SymInt` of ours or an `Expr`; TypeError for anything else."""
    if value.__class__ is int:
        return Expr.const(value)
    if isinstance(value, Expr):
        return value
    if isinstance(value, int):
        return Expr.const(int(value))
    expr = getattr(getattr(value, "node", None), "expr", None)
    if isinstance(expr, Expr):
        return expr
    raise TypeError(f"not an integer expression: {value!r} ({type(value).__name__})")


# ---- making normal forms ------------------------------------------------------------------------------------------


def _intern(terms: Terms, offset: int) -> Expr:
    key = (terms, offset)
    known = _known.get(key)
    if known is not None and (expr := known()) is not None:
        return expr
    with tables:
        expr = _exprs.get(key)
        if expr is None:
            expr = object.__new__(Expr)
            expr.terms, expr.offset = terms, offset
            expr._bounds = expr._free = expr._least = expr._text = None
            _exprs[key] = expr
    return expr


@_remembered
def _variable(name: str, lo: int | None, hi: int | Expr | None) -> Expr:
    if isinstance(hi, Expr) and hi.is_const:
        hi = hi.value
    return Expr.const(lo) if lo is not None and lo == hi else Atom.make("var", (), name, lo, hi).as_expr()


_KEY = operator.attrgetter("key")


def _term_key(term: Term) -> list[str]:
    return [atom.key for atom in term[0]]


def _from_terms(terms: Mapping[Mono, int], offset: int) -> Expr:
    """The sum of these terms, without regard to recombination; zero coefficients are dropped."""
    kept = [term for term in terms.items() if term[1]]
    if len(kept) > 1:
        kept.sort(key=_term_key)
    return _intern(tuple(kept), offset)


def _scale(a: Expr, factor: int) -> Expr:
    if factor == 1:
        return a
    if factor == 0:
        return ZERO
    return _intern(tuple((mono, c * factor) for mono, c in a.terms), a.offset * factor)


@_remembered
def _add(a: Expr, b: Expr) -> Expr:
    terms = dict(a.terms)
    for mono, c in b.terms:
        terms[mono] = terms.get(mono, 0) + c
    return _recombine(terms, a.offset + b.offset)


def _recombine(terms: dict[Mono, int], offset: int) -> Expr:
    """The sum, with c*f*(x % m) + c*f*m*(x // m) joined to c*f*x."""
    for mono, c in terms.items():
        if not c:
            continue
        for atom in mono:
            if atom.kind != "%":
                continue
            x, m = atom.args
            rest = _from_terms({tuple(other for other in mono if other is not atom): c}, 0) if len(mono) > 1 else None
            factor = Expr.const(c) if rest is None else rest
            quotient = factor * m * (x // m)
            if quotient.terms and all(terms.get(other) == k for other, k in quotient.terms):
                gone = dict(quotient.terms)
                gone[mono] = c
                left = _from_terms({other: k for other, k in terms.items() if other not in gone}, offset)
                return left + factor * x - quotient.offset
    return _from_terms(terms, offset)


@_remembered
def _mul(a: Expr, b: Expr) -> Expr:
    terms: dict[Mono, int] = {}
    for mono_a, ca in (*a.terms, ((), a.offset)):
        for mono_b, cb in (*b.terms, ((), b.offset)):
            if ca and cb:
                mono = tuple(sorted(mono_a + mono_b, key=_KEY)) if mono_a and mono_b else mono_a or mono_b
                terms[mono] = terms.get(mono, 0) + ca * cb
    return _recombine(terms, terms.pop((), 0))


def _divide_term(mono: Mono, c: int, divisor: Expr) -> Term | None:
    """The term divided by a divisor of one term, when that goes without rest."""
    ((factors, k),) = divisor.terms or (((), divisor.offset),)
    if c % k:
        return None
    left = list(mono)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left), c // k


def _split(a: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """(q, r) with a == q*divisor + r; q takes what divides without rest. The divisor is a constant or one term."""
    quotient: dict[Mono, int] = {}
    rest: dict[Mono, int] = {}
    for mono, c in a.terms:
        divided = _divide_term(mono, c, divisor)
        if divided is None:
            rest[mono] = c
        else:
            quotient[divided[0]] = divided[1]
    # operators, as a program may have replaced `divmod`
    whole, offset = (a.offset // divisor.offset, a.offset % divisor.offset) if divisor.is_const else (0, a.offset)
    constant = quotient.pop((), 0)
    return _recombine(quotient, constant + whole), _from_terms(rest, offset)


def _within(r: Expr, divisor: Expr) -> int | None:
    """k with k*divisor <= r < (k+1)*divisor for all values, if it is provable."""
    lo, hi = r.bounds()
    if divisor.is_const:
        if lo is None or hi is None:
            return None
        k = lo // divisor.offset
        return k if k == hi // divisor.offset else None
    if lo is None or lo < 0:
        return None
    room = (divisor - 1 - _upper(r)).bounds()[0]
    return 0 if room is not None and room >= 0 else None


def _upper(a: Expr) -> Expr:
    """An expression nowhere less than `a`, with variables replaced by their symbolic upper bounds."""
    result = Expr.const(a.offset)
    for mono, c in a.terms:
        term = Expr.const(c)
        for position, atom in enumerate(mono):
            others = mono[:position] + mono[position + 1 :]
            if c > 0 and atom.kind == "var" and all(other.lo is not None and other.lo >= 0 for other in others):
                bound = atom.hi_expr or (Expr.const(atom.hi) if atom.hi is not None and others else None)
                term = term * (bound if bound is not None else atom.as_expr())
            else:
                term = term * atom.as_expr()
        result = result + term
    return result


def _narrow(r: Expr, b: int) -> tuple[int, Expr, Expr] | None:
    """(g, x, y) with r == g*x + y, g dividing b, g > 1 and 0 <= y < g for all values; None if there is none."""
    for g in sorted({gcd(b, c) for _, c in r.terms}, reverse=True):
        if g > 1:
            x, y = _split(r, Expr.const(g))
            k = _within(y, Expr.const(g))
            if k is not None:
                return g, x + k, y - k * g
    return None


def _is_simple(divisor: Expr) -> bool:
    """Whether a divisor is one positive term."""
    least = divisor.bounds()[0]
    return least is not None and least > 0 and len(divisor.terms) + bool(divisor.offset) == 1


def _lone(a: Expr) -> tuple[AtomKind | None, Expr, Expr, int]:
    """(kind, x, m, c) of an expression that is c * (x kind m) plus a constant; the kind is None of others."""
    if len(a.terms) == 1 and len(a.terms[0][0]) == 1 and a.terms[0][0][0].args:
        ((atom,), c) = a.terms[0]
        return atom.kind, *atom.args, c  # type: ignore[return-value]
    return None, ZERO, ZERO, 0


def _is_multiple(m: Expr, b: Expr, factor: int = 1) -> bool:
    return m.is_const and m.offset > 0 and factor * m.offset % b.offset == 0


@_remembered
def _floordiv(a: Expr, b: Expr) -> Expr:
    if b.is_const and b.offset <= 0:
        return -a // -b.offset if b.offset else Expr.const(1 // 0)  # Python's own error
    if b is ONE or a is ZERO:
        return a
    if not _is_simple(b):
        if (b.bounds()[0] or 0) > 0 and (a is b or _within(a, b) == 0):
            return ONE if a is b else ZERO
        return _atom_of("//", a, b)
    q, r = _split(a, b)
    k = _within(r, b)
    if k is not None:
        return q + k
    narrowed = _narrow(r, b.offset) if b.is_const else None
    if narrowed is not None:
        g, x, _ = narrowed
        return q + x // (b.offset // g)
    kind, x, m, c = _lone(r)
    if kind == "//" and c == 1 and (m.bounds()[0] or 0) > 0:  # (x//m + k)//b == (x + k*m)//(m*b)
        return q + (x + m * r.offset) // (m * b)
    if kind == "%" and c == 1 and not r.offset and b.is_const and _is_multiple(m, b):
        return q + (x // b) % (m.offset // b.offset)
    return q + _atom_of("//", r, b)


@_remembered
def _mod(a: Expr, b: Expr) -> Expr:
    if b.is_const and b.offset <= 0:
        return -(-a % -b.offset) if b.offset else Expr.const(1 % 0)  # Python's own error
    if b is ONE or a is ZERO or a is b:
        return ZERO
    if not _is_simple(b):
        return a if (b.bounds()[0] or 0) > 0 and _within(a, b) == 0 else _atom_of("%", a, b)
    _, r = _split(a, b)
    k = _within(r, b)
    if k is not None:
        return r - b * k
    narrowed = _narrow(r, b.offset) if b.is_const else None
    if narrowed is not None:
        g, x, y = narrowed
        return x % (b.offset // g) * g + y
    kind, x, m, c = _lone(r)
    if kind == "%" and b.is_const and _is_multiple(m, b, c):
        return (x * c + r.offset) % b
    return _atom_of("%", r, b)


def _extreme(kind: Literal["min", "max"], a: Expr, b: Expr) -> Expr:
    lo, hi = (a - b).bounds()
    if lo is not None and lo >= 0:
        return b if kind == "min" else a
    if hi is not None and hi <= 0:
        return a if kind == "min" else b
    return _atom_of(kind, *sorted((a, b), key=Expr.text))


def _atom_of(kind: AtomKind, a: Expr, b: Expr) -> Expr:
    (alo, ahi), (blo, bhi) = a.bounds(), b.bounds()
    lo: int | None = None
    hi: int | None = None
    if kind == "//" and blo is not None and blo > 0:
        lo = None if alo is None else alo // blo if alo < 0 else 0 if bhi is None else alo // bhi
        hi = None if ahi is None else ahi // blo if ahi >= 0 else -1 if bhi is None else ahi // bhi
    elif kind == "%" and blo is not None and blo > 0:
        lo, hi = 0, None if bhi is None else bhi - 1
        if alo is not None and alo >= 0 and ahi is not None and (hi is None or ahi < hi):
            hi = ahi
    elif kind == "min":
        lo = None if alo is None or blo is None else min(alo, blo)
        hi = bhi if ahi is None else ahi if bhi is None else min(ahi, bhi)
    elif kind == "max":
        lo = blo if alo is None else alo if blo is None else max(alo, blo)
        hi = None if ahi is None or bhi is None else max(ahi, bhi)
    if lo is not None and lo == hi:
        return Expr.const(lo)
    key = f"{kind}({a.text()}, {b.text()})" if kind in ("min", "max") else f"({_factor(a)} {kind} {_factor(b)})"
    return Atom.make(kind, (a, b), key, lo, hi).as_expr()


# ---- reading ------------------------------------------------------------------------------------------------------


def _mono_bounds(mono: Mono) -> Bounds:
    if len(mono) == 1:
        return mono[0].lo, mono[0].hi
    if all(atom.lo is not None and atom.lo >= 0 for atom in mono):
        highs = [atom.hi for atom in mono]
        return prod(cast(int, atom.lo) for atom in mono), None if None in highs else prod(cast("list[int]", highs))
    if any(atom.lo is None or atom.hi is None for atom in mono):
        return None, None
    lo, hi = 1, 1
    for atom in mono:
        corners = [x * cast(int, y) for x in (lo, hi) for y in (atom.lo, atom.hi)]
        lo, hi = min(corners), max(corners)
    return lo, hi


_OF_NUMBERS: dict[str, Callable[[int, int], int]]
_OF_NUMBERS = {"//": operator.floordiv, "%": operator.mod, "min": min, "max": max}
_OF_EXPRS: dict[str, Callable[[Expr, Expr], Expr]]
_OF_EXPRS = {"//": operator.floordiv, "%": operator.mod, "min": Expr.min, "max": Expr.max}


def _subs_atom(atom: Atom, values: Mapping[str, Expr | int]) -> Expr:
    if atom.kind == "var":
        return as_expr(values[atom.key])
    a, b = atom.args
    return _OF_EXPRS[atom.kind](a.subs(values), b.subs(values))


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if atom.kind == "var":
        return values[atom.key]
    a, b = atom.args
    return _OF_NUMBERS[atom.kind](a.evaluate(values), b.evaluate(values))


def _factor(a: Expr) -> str:
    simple = not a.terms and a.offset >= 0
    single = len(a.terms) == 1 and not a.offset and a.terms[0][1] == 1 and len(a.terms[0][0]) == 1
    return a.text() if simple or single else f"({a.text()})"


def _sum_text(terms: Iterable[Term], offset: int) -> str:
    text = ""
    for mono, c in terms:
        product = "*".join(([str(abs(c))] if abs(c) != 1 else []) + [atom.key for atom in mono])
        text += (" - " if c < 0 else " + ") + product if text else ("-" if c < 0 else "") + product
    if offset or not text:
        text += (" - " if offset < 0 else " + ") + str(abs(offset)) if text else str(offset)
    return text


def _equality(op: Literal["==", "!="], difference: Expr) -> Cond:
    lo, hi = difference.bounds()
    common = _common(difference)
    if (lo is not None and lo > 0) or (hi is not None and hi < 0) or (common and difference.offset % common):
        return Cond(op, ONE)
    if common:
        difference = _divided(difference, -common if difference.terms[0][1] < 0 else common)
    return Cond(op, difference)


def _range(a: Expr) -> Bounds:
    """As `bounds`, where need be with variables' symbolic upper bounds in their place: the last index of an axis is
    less than the axis's extent."""
    lo, hi = a.bounds()
    if (lo is None or hi is None) and any(atom.hi_expr is not None for mono, _ in a.terms for atom in mono):
        if hi is None:
            hi = _upper(a).bounds()[1]
        if lo is None:
            least = _upper(-a).bounds()[1]
            lo = None if least is None else -least
    return lo, hi


def _at_least_zero(a: Expr) -> Cond:
    lo, hi = _range(a)
    if lo is not None and lo >= 0:
        return Cond(">=", ZERO)
    if hi is not None and hi < 0:
        return Cond(">=", Expr.const(-1))
    common = _common(a)
    return Cond(">=", _divided(a, common) if common > 1 else a)


def _common(a: Expr) -> int:
    return gcd(*[c for _, c in a.terms])


def _divided(a: Expr, factor: int) -> Expr:
    """The quotient by a factor of all coefficients; the constant is rounded down."""
    return _intern(tuple((mono, c // factor) for mono, c in a.terms), a.offset // factor)


# ---- pickling -----------------------------------------------------------------------------------------------------


def pack_atom(atom: Atom) -> tuple[Any, ...]:
    """An atom as its kind and what it is made of: name and bounds of a variable, or two operands."""
    if atom.kind == "var":
        return ("var", atom.key, atom.lo, atom.hi_expr if atom.hi_expr is not None else atom.hi)
    return (atom.kind, *atom.args)


def rebuild(terms: Iterable[tuple[Iterable[tuple[Any, ...]], int]], offset: int) -> Expr:
    """The expression with these terms, of packed atoms and coefficients."""
    result = Expr.const(offset)
    for packed, c in terms:
        term = Expr.const(c)
        for kind, *args in packed:
            term = term * (Expr.var(*args) if kind == "var" else _atom_of(kind, *args))
        result = result + term
    return result


_small.update({value: _intern((), value) for value in range(-16, 1025)})
ZERO, ONE = Expr.const(0), Expr.const(1)
