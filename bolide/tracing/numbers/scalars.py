"""Floats that are computed in the graph: Python numbers that stand for 0-dim float64 tensors.

A `TracedFloat` is what the program holds for a float that is data (an optimizer's step count) or that changes from
call to call (a learning rate). Arithmetic on it is recorded. ATen takes it wherever it takes a number (see
`numbers.forms`). What must know the value (`repr`) asks `TracedFloat.__float__`; a comparison of numbers from outside,
or their `int`, is assumed to come out as it does now (`TracedFloat.decide`).
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from bolide.support.leaks import fleeting, symbolic
from bolide.symbolic import Expr, SymNode
from bolide.tracing.meta import DataDependent
from bolide.tracing.numbers import data
from bolide.tracing.recording.recorder import Recorder

aten = torch.ops.aten
Pin = Callable[[], object]
Origin = tuple[Callable[..., Any], tuple[Any, ...]]


class ScalarNode:
    """What C++ carries of a `TracedFloat`, its `owner`."""

    __slots__ = ("owner",)

    def __init__(self, owner: TracedFloat) -> None:
        self.owner = owner

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_bool = is_nested_int = is_constant = has_hint = is_int

    def is_symbolic(self) -> bool:
        return True

    def maybe_as_float(self) -> None:
        return None

    maybe_as_int = maybe_as_bool = constant_int = constant_bool = nested_int = maybe_as_float

    def clone(self) -> ScalarNode:
        return self

    def guard_float(self, file: str = "", line: int = 0) -> float:
        return float(self.owner)

    float_ = value = guard_float

    def in_graph(self) -> TracedFloat:
        """The number itself (as of the nodes of sizes)."""
        return self.owner

    def wrap_float(self, value: float) -> ScalarNode:
        return _constant(self.owner.trace, value).node  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"float({self.owner.tensor.node.name})"

    str = __str__ = _graph_repr = __repr__  # torch calls `str`


symbolic(torch.SymInt, torch.SymFloat, torch.SymBool)


@fleeting
class TracedFloat(torch.SymFloat):
    """A float in the graph.

    - `tensor`: its value, 0-dim and float64
    - `now`: its value, if it is an argument's (or computed from arguments')
    - `pins` are called when the program depends on that value: they guard the arguments, or refuse (draws)
    - `formula`: how it follows from numbers of the outside world, as Python over their names, if there is a simple way
    - `origin`: the Python function and the numbers (sizes as expressions) it was computed from, None for a tensor's
    - `within`: the least and the largest value that it can have, where that is known
    """

    def __init__(
        self,
        trace: Recorder,
        tensor: Any,
        now: float | None = None,
        pins: tuple[Pin, ...] = (),
        formula: str | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(ScalarNode(self))  # type: ignore[no-untyped-call]
        self.trace, self.tensor, self.now = trace, tensor, now
        self.pins, self.formula, self.origin = pins, formula, origin
        self.within: tuple[float, float] | None = None

    def __float__(self) -> float:
        """The value; from here on the program depends on it. Raises DataDependent where it is data."""
        for pin in self.pins:
            pin()
        if self.now is None:
            raise DataDependent("Tensor.item", self.trace.where)
        return self.now

    def decide(self, form: str, known: Callable[..., Any], *others: Any) -> Any:
        """What `known` gives of this number and others, of which the program depends on no more than that. `form`:
        the same as text, with {} for each number."""
        operands = (self, *map(_beside, others))
        parts = list(map(_in_guards, operands))
        if None in parts:
            return known(
                float(self), *[float(each) if isinstance(each, TracedFloat) else each for each in operands[1:]]
            )
        result = known(*map(_hint, operands))
        assert self.trace.assume is not None
        self.trace.assume(f"{form.format(*parts)} == {result!r}", self.trace.where)
        return result

    def derive(self, form: str, known: Callable[..., Any], *others: Any) -> Any:
        """As `decide`, but where that can be the result is another number in each call."""
        formula = _formula(form, (self, *others))
        derive, number = self.trace.shapes.derive, None
        if formula is not None and derive is not None:
            number = derive(formula, known(self.now, *others))
        return self.decide(form, known, *others) if number is None else number

    def whole(self) -> Any:
        """The integer part."""
        return self.derive("({}).__int__()", int)

    def __bool__(self) -> bool:
        return self.decide("({} != 0)", bool)  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return self.decide("({}).__int__()", int)  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return hash(float(self))

    def __repr__(self) -> str:
        return repr(float(self))

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return format(float(self), specification)

    def __round__(self, digits: int | None = None) -> Any:
        symbol = None if digits is not None else self._whole(torch.round)
        form = f"round({{}}, {digits})"
        return self.derive(form, lambda value: round(value, digits)) if symbol is None else symbol

    def is_integer(self) -> bool:
        return self.decide("({}).is_integer()", float.is_integer)  # type: ignore[no-any-return]

    def __neg__(self) -> Any:
        return compute(torch.neg, self, known=operator.neg, form="(-{})")

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return compute(torch.abs, self, known=abs, form="({}).__abs__()")

    def __trunc__(self) -> Any:
        symbol = self._whole(torch.trunc)
        return self.whole() if symbol is None else symbol

    def __floor__(self) -> Any:
        symbol = self._whole(torch.floor)
        return self.derive("({}).__floor__()", math.floor) if symbol is None else symbol

    def __ceil__(self) -> Any:
        symbol = self._whole(torch.ceil)
        return self.derive("({}).__ceil__()", math.ceil) if symbol is None else symbol

    def _whole(self, function: Callable[..., torch.Tensor]) -> torch.SymInt | torch.SymBool | None:
        """The integer next to a number that is data, as a symbol (one that no int64 holds is left to eager); None for
        other numbers."""
        if self.now is not None or self.trace.captures_numbers is False:
            return None
        with torch._C._DisableAutocast():
            whole: Any = function(self.tensor)
            data.check_tensor(whole._trace, whole.abs() < 2.0**63)
            return data.number(whole._trace, whole.to(torch.int64))


def of(value: torch.SymFloat | torch.SymInt) -> TracedFloat:
    """The traced float that a symbolic number is: one that C++ has wrapped, or one made of sizes."""
    number: TracedFloat = value.node.in_graph()
    return number


def of_tensor(
    trace: Recorder,
    tensor: torch.Tensor,
    hint: float | None = None,
    pins: tuple[Pin, ...] = (),
    formula: str | None = None,
    origin: Origin | None = None,
) -> TracedFloat:
    """A Python float whose value is that of a tensor of one element of the graph."""
    trace.shapes.has_floats = True
    trace.reads_floats |= hint is None
    value: Any = tensor.detach().to(torch.float64)
    value = value.reshape(()) if value.dim() else value  # promotes as a number does
    value = value.clone() if value.group is tensor.group else value  # type: ignore[attr-defined]  # later writes
    return TracedFloat(trace, value, hint, pins, formula, origin)


def of_size(trace: Recorder, expr: Expr, hint: int) -> TracedFloat:
    """A size as a float of the graph."""
    if not (data.fits(trace, expr) or trace.shapes.is_data(expr)) and trace.shapes.derive is not None:
        derived = trace.shapes.derive(f"({expr.text()}) / 1", float(hint))  # of an integer that no int64 holds
        if isinstance(derived, TracedFloat):
            return derived
    node = trace.call(aten.full.default, [], trace.size_node(expr), dtype=torch.float64, device=torch.device("cpu"))
    formula = None if trace.assume is None or trace.shapes.is_data(expr) else f"({expr.text()})"
    pin = functools.partial(trace.shapes.specialise, expr, hint)
    known = None if trace.shapes.is_computed(expr) else float(hint)
    with torch._C._DisableFuncTorch():  # a transform would wrap what it computes
        number = of_tensor(trace, trace.wrap(node), known, (pin,), formula, (float, (expr,)))
    number.within = float(expr.least()), 2.0**63
    return number


def _hint(operand: Any) -> Any:
    return operand.now if isinstance(operand, TracedFloat) else operand


def _tensor(operand: Any) -> Any:
    return operand.tensor if isinstance(operand, TracedFloat) else operand


def _in_guards(operand: Any) -> str | None:
    """A number as it may stand in a guard, where nothing may raise, as roots and logarithms do; None if it cannot."""
    formula = _formula("{}", (operand,))
    if formula is not None and isinstance(operand, TracedFloat) and _MAY_RAISE.search(formula):
        named = operand.trace.shapes.named
        return (None if named is None else named(formula, operand.now)) or formula
    return formula


_MAY_RAISE = re.compile(r"\*\*|\bmath\b")


def _formula(form: str, operands: tuple[Any, ...]) -> str | None:
    """The formula of an operation on numbers; None where one of them has none."""
    parts = []
    for operand in operands:
        if isinstance(operand, TracedFloat) and operand.formula is not None:
            parts.append(operand.formula)
        elif type(operand) is int or (type(operand) is float and not math.isnan(operand)):
            parts.append(f"({operand!r})".replace("inf", "1e999"))
        else:
            return None
    return form.format(*parts)


def _constant(trace: Recorder, value: float) -> TracedFloat:
    tensor = trace.wrap(trace.call(aten.full.default, [], value, dtype=torch.float64))
    return TracedFloat(trace, tensor, value, formula=_formula("{}", (value,)))


_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)
#: what Python computes of all floats without raising
_TOTAL = (operator.add, operator.sub, operator.mul, torch.neg, torch.abs)


def compute(
    function: Callable[..., torch.Tensor], *operands: Any, known: Callable[..., float] | None = None, form: str = ""
) -> Any:
    """`function` of numbers, some of them traced, as a traced float; `known` computes its value from theirs, and `form`
    is the text of that, with {} for each operand. That Python does not raise is guarded, or checked in the graph; where
    it does, or the result is complex, that of these very numbers is given."""
    traced = [operand for operand in operands if isinstance(operand, TracedFloat)]
    if traced[0].trace.derivation.running and known is operator.truediv:
        known = _quotient
    hint, domain = None, DOMAINS.get(known)
    divisor = operands[1] if function in _DIVISIONS else None
    total = function in _TOTAL or (domain is not None and _always(domain, operands))
    total |= divisor is not None and (known is _quotient or not _may_be_zero(divisor))
    if known is not None and all(operand.now is not None for operand in traced):
        if domain is not None and not total and all(operand.formula is not None for operand in traced):
            total = domain(*operands)
            if not total:  # an error, a complex number, or close to these: so much for these values only
                return known(*[float(operand) for operand in operands])
        hint = known(*map(_hint, operands))
    pins = tuple(dict.fromkeys(pin for operand in traced for pin in operand.pins))
    origin = None if known is None else (known, operands)
    formula = _formula(form, operands) if form else None
    with torch._C._DisableAutocast(), torch._C._DisableFuncTorch():
        first, *others = map(_tensor, operands)
        if divisor is traced[0]:  # torch multiplies a number by the reciprocal
            first = _tensor(_constant(divisor.trace, float(first)))
        value: Any = function(first, *others)
        if function is operator.mod:  # Python's zero has the divisor's sign
            value = torch.where(value == 0, torch.copysign(value, *others), value)
        trace = value._trace  # that of a way of a branch, perhaps
        unsure = hint is None or domain is not None
        if unsure and not total and trace.captures_numbers is not False:  # else Python may raise: eager does
            data.check_tensor(trace, value.isfinite() if divisor is None else _tensor(divisor) != 0)
        result = TracedFloat(trace, value, hint, pins, formula, origin)
        result.within = _bounds(function, known, operands)
        return result


def _may_be_zero(divisor: Any) -> bool:
    """Whether a number may be zero that is data; of others, who divides by them asks (`_arithmetic`)."""
    is_data = isinstance(divisor, TracedFloat) and divisor.now is None
    return is_data and (divisor.within is None or divisor.within[0] <= 0 <= divisor.within[1])


def _quotient(a: float, b: float) -> float:
    """As C++ divides, in the formulas of derivatives: there nothing raises."""
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _ends(operands: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The operands with the bounds of the traced one in its place; none if they are not known, or negative."""
    traced = [operand for operand in operands if isinstance(operand, TracedFloat)]
    if len(traced) != 1 or traced[0].within is None or traced[0].within[0] < 0:
        return []
    return [tuple([end if each is traced[0] else each for each in operands]) for end in traced[0].within]


def _always(domain: Callable[..., bool], operands: tuple[Any, ...]) -> bool:
    """Whether numbers are in a domain wherever the traced one is in its bounds. (Positive numbers that are in a domain
    are an interval.)"""
    ends = _ends(operands)
    return bool(ends) and all(domain(*end) for end in ends)


def _bounds(function: Any, known: Any, operands: tuple[Any, ...]) -> tuple[float, float] | None:
    """The bounds of a result that follow from those of the one traced operand; the function is monotonic."""
    has_sign = function is operator.pow and not isinstance(operands[0], TracedFloat) and operands[0] < 0
    if known is None or function not in _MONOTONIC or has_sign:
        return None
    try:
        ends = sorted(float(known(*end)) for end in _ends(operands))
    except ArithmeticError:
        return None
    return (ends[0], ends[1]) if ends and not any(map(math.isnan, ends)) else None


_MONOTONIC = frozenset({operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, torch.sqrt})


# ---- where Python raises, or a power is complex: the functions here give a float where these say so ------------------

_LARGEST = 709.0  # of what an exponential is a float


def _has_power(base: Any, exponent: Any) -> bool:
    """Whether the power of two floats is surely a float."""
    if not isinstance(exponent, TracedFloat):
        return _is_base(base, float(exponent))
    if not isinstance(base, TracedFloat):
        return _is_exponent(float(base), exponent)
    if 0 <= base <= 1:
        return exponent >= 0  # type: ignore[no-any-return]
    return bool(2**-7 <= base <= 2**7 and -100 <= exponent <= 100)


def _is_base(base: Any, exponent: float) -> bool:
    if exponent in (0, 1):
        return True
    if not math.isfinite(exponent):
        return False
    most = math.exp(_LARGEST / abs(exponent)) if abs(exponent) >= 1 else math.inf
    size = abs(base) if exponent.is_integer() else base
    if exponent < 0:
        return size >= 1 / most if most < math.inf else size > 0  # type: ignore[no-any-return]
    return bool(0 <= size <= most)


def _is_exponent(base: float, exponent: Any) -> bool:
    if base == 1:
        return True
    if not 0 < base < math.inf:
        return bool(base == 0 and exponent >= 0)
    limit = _LARGEST / math.log(base)
    return bool(exponent <= limit if base > 1 else exponent >= limit)


def _is_finite(x: Any) -> bool:
    return bool(-math.inf < x < math.inf)


def _up_to(most: float, least: float = -math.inf) -> Callable[[Any], bool]:
    return lambda x: bool(least <= x <= most)


def _above(least: float) -> Callable[[Any], bool]:
    return lambda x: bool(x > least)


DOMAINS: dict[Any, Callable[..., bool]] = {
    **dict.fromkeys((operator.pow, math.pow), _has_power),
    **dict.fromkeys((math.sin, math.cos, math.tan), _is_finite),
    **dict.fromkeys((math.log, math.log2, math.log10), _above(0)),
    **dict.fromkeys((math.exp, math.expm1), _up_to(_LARGEST)),
    **dict.fromkeys((math.sinh, math.cosh), _up_to(_LARGEST, -_LARGEST)),
    **dict.fromkeys((math.asin, math.acos), _up_to(1, -1)),
    math.log1p: _above(-1),
    math.sqrt: _up_to(math.inf, 0),
}


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def _number(value: Any) -> Any:
    """An operand as a float, or as a number of the graph if it is one or made of sizes."""
    return of(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value)


def _beside(value: object) -> object:
    """As `_number`, where Python converts nothing: an integer is compared with a float exactly."""
    if type(value) is torch.SymInt and not value.node.is_exact():
        value = value.node.exact_value()
    return value if type(value) is int and abs(value) > 1 << 53 else _number(value)


# ---- what C++ asks of nodes: it is decided as the program's own questions are


def _computing(method: str) -> Callable[..., ScalarNode]:
    def operate(self: ScalarNode, *others: ScalarNode | SymNode) -> ScalarNode:
        number = getattr(self.owner, method)(*[other.in_graph() for other in others])
        return (number if isinstance(number, TracedFloat) else _constant(self.owner.trace, number)).node  # type: ignore[no-any-return]

    return operate


def _comparing(method: str) -> Callable[..., SymNode]:
    def ask(self: ScalarNode, other: ScalarNode | SymNode) -> SymNode:
        trace, number = self.owner.trace, other.in_graph()
        if method == "__eq__" and trace.derivation.running and _is_one(number):
            return SymNode.truth(trace.shapes, False)  # asked to leave out a product, which does no harm
        return SymNode.truth(trace.shapes, getattr(self.owner, method)(number))

    return ask


def _is_one(number: object) -> bool:
    """Whether a number is the constant 1."""
    if isinstance(number, TracedFloat):
        return number.now == 1 and not number.pins
    return type(number) in (int, float) and number == 1


def _rounding(method: str) -> Callable[..., SymNode]:
    def ask(self: ScalarNode) -> SymNode:
        whole = getattr(self.owner, method)()
        return SymNode.number(self.owner.trace.shapes, whole) if type(whole) is int else whole.node

    return ask


for _name in ("add", "sub", "mul", "truediv", "pow", "neg", "abs"):
    setattr(ScalarNode, _name, _computing(f"__{_name}__"))
for _name in ("truediv", "pow"):
    setattr(ScalarNode, f"float_{_name}", getattr(ScalarNode, _name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(ScalarNode, _name, _comparing(f"__{_name}__"))
for _name in ("trunc", "floor", "ceil"):
    setattr(ScalarNode, _name, _rounding(f"__{_name}__"))


# ---- arithmetic and comparisons of the program


def _arithmetic(name: str, sign: str, function: Callable[..., Any]) -> None:
    form = f"({{}} {sign} {{}})"

    def operate(left: Any, right: Any) -> Any:
        derives = sign == "/" and (right if isinstance(right, TracedFloat) else left).trace.derivation.running
        known = not isinstance(right, TracedFloat) or right.now is not None
        if function in _DIVISIONS and known and not derives and not right:  # a guard sees to it that it stays so
            function(1.0, float(right))  # raises
        return compute(function, left, right, known=function, form=form)

    def forward(self: TracedFloat, other: Any) -> Any:
        return operate(self, _number(other)) if isinstance(other, _NUMBERS) else NotImplemented

    def reflected(self: TracedFloat, other: Any) -> Any:
        return operate(_number(other), self) if isinstance(other, _NUMBERS) else NotImplemented

    setattr(TracedFloat, f"__{name}__", forward)
    setattr(TracedFloat, f"__r{name}__", reflected)


def _compared(name: str, sign: str, function: Callable[..., bool]) -> None:
    def compare(self: TracedFloat, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        if self.within is not None and type(other) in (int, float) and sign not in ("==", "!="):
            first, last = (function(bound, other) for bound in self.within)
            if first is last:
                return first
        operands = (self, _beside(other))
        is_data = any(isinstance(number, TracedFloat) and number.now is None for number in operands)
        if type(operands[1]) is int:
            return self.decide(f"({{}} {sign} {{}})", function, operands[1])
        if is_data and self.trace.captures_numbers is not False:
            with torch._C._DisableAutocast():
                truth: Any = function(*map(_tensor, operands))
            return data.number(truth._trace, truth)  # a branch of the graph may depend on it
        return self.decide(f"({{}} {sign} {{}})", function, operands[1])

    setattr(TracedFloat, f"__{name}__", compare)


for _name, _sign, _function in (
    ("add", "+", operator.add),
    ("sub", "-", operator.sub),
    ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv),
    ("pow", "**", operator.pow),
    ("floordiv", "//", operator.floordiv),
    ("mod", "%", operator.mod),
):
    _arithmetic(_name, _sign, _function)
for _name, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    _compared(_name, _sign, getattr(operator, _name))

_OF_MATH = "sqrt exp log log2 log10 log1p expm1 sin cos tan tanh sinh cosh asin acos atan erf erfc"
MATH: dict[Callable[..., float], Callable[..., torch.Tensor]] = {
    **{getattr(math, name): getattr(torch, name) for name in _OF_MATH.split()},
    math.fabs: torch.abs,
    math.pow: torch.pow,
}
"""Functions of `math` that have one of a tensor."""
