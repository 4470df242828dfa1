"""Floats that are computed in the graph: Python numbers that stand for 0-dim float64 tensors.

A `TracedFloat` is what the program holds for a float that is data (an optimizer's step count) or that changes from
call to call (a learning rate). Arithmetic on it is recorded. ATen takes it wherever it takes a number; operations that
are given one are recorded with the tensor in the number's place (`with_tensors`). What must know the value (`repr`)
asks `TracedFloat.__float__`; a comparison of numbers from outside, or their `int`, is assumed to come out as it does
now (`TracedFloat.decide`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bolide.support.leaks import fleeting, symbolic
from bolide.symbolic import Ratio, SymNode
from bolide.tracing.meta import DataDependent
from bolide.tracing.numbers import data

if TYPE_CHECKING:
    from bolide.tracing.tensor import TracedTensor
    from bolide.tracing.trace import Trace

aten = torch.ops.aten
Pin = Callable[[], object]
Made = tuple[Callable[..., Any], tuple[Any, ...]]


class ScalarNode:
    """What C++ carries of a `TracedFloat`. `tensor` is its value, 0-dim and float64."""

    __slots__ = ("owner", "tensor")

    def __init__(self, tensor: TracedTensor) -> None:
        self.tensor = tensor
        self.owner: TracedFloat

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

    def guard_float(self, file: Any = "", line: Any = 0) -> float:
        return float(self.owner)

    float_ = value = guard_float

    def in_graph(self) -> TracedFloat:
        """The number itself (as of the nodes of sizes)."""
        return self.owner

    def wrap_float(self, value: float) -> Any:
        return _constant(self.tensor, value).node

    def __repr__(self) -> str:
        return f"float({self.tensor.node.name})"

    str = __str__ = _graph_repr = __repr__  # torch calls `str`


symbolic(torch.SymInt, torch.SymFloat, torch.SymBool)


@fleeting
class TracedFloat(torch.SymFloat):
    """A float in the graph. `hint` is its value now, if it is an argument's (or computed from arguments'), and `pins`
    are called when the program depends on that value: they guard the arguments, or refuse (draws). `formula`: how it
    follows from numbers of the outside world, as Python over their names, where there is a simple way. `made`: the
    Python function and the numbers (sizes as expressions) that it was computed from, None if it is a tensor's.
    `within`: the least and the largest value that it can have, where that is known."""

    def __init__(
        self,
        tensor: TracedTensor,
        hint: float | None = None,
        pins: tuple[Pin, ...] = (),
        formula: str | None = None,
        made: Made | None = None,
    ) -> None:
        super().__init__(ScalarNode(tensor))  # type: ignore[no-untyped-call]
        self.node.owner = self
        self.tensor, self.hint, self.pins, self.formula, self.made = tensor, hint, pins, formula, made
        self.within: tuple[float, float] | None = None

    def __float__(self) -> float:
        """The value; from here on the program depends on it. Raises DataDependent where it is data."""
        for pin in self.pins:
            pin()
        if self.hint is None:
            raise DataDependent("Tensor.item", self.tensor._trace.where)
        return self.hint

    def decide(self, form: str, known: Callable[..., Any], *others: Any) -> Any:
        """What `known` gives of this number and others, of which the program depends on no more than that. `form`:
        the same as text, with {} for each number."""
        operands = (self, *map(_number, others))
        formula = _formula(form, tuple(map(_safely, operands)))
        if formula is None:
            return known(*[float(operand) for operand in operands])
        result = known(*map(_hint, operands))
        trace = self.tensor._trace
        assert trace.assume is not None
        trace.assume(f"{formula} == {result!r}", trace.where)
        return result

    def derive(self, form: str, known: Callable[..., Any], *others: Any) -> Any:
        """As `decide`, but where that can be the result is another number in each call."""
        formula = _formula(form, (self, *others))
        shapes, made = self.tensor._trace.shapes, None
        if formula is not None and shapes.derive is not None:
            made = shapes.derive(formula, known(self.hint, *others))
        return self.decide(form, known, *others) if made is None else made

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
        found = None if digits is not None else self._whole(torch.round)
        derived = f"round({{}}, {digits})"
        return self.derive(derived, lambda value: round(value, digits)) if found is None else found

    def is_integer(self) -> bool:
        return self.decide("({}).is_integer()", float.is_integer)  # type: ignore[no-any-return]

    def __trunc__(self) -> Any:
        found = self._whole(torch.trunc)
        return self.whole() if found is None else found

    def __floor__(self) -> Any:
        found = self._whole(torch.floor)
        return self.derive("({}).__floor__()", math.floor) if found is None else found

    def __ceil__(self) -> Any:
        found = self._whole(torch.ceil)
        return self.derive("({}).__ceil__()", math.ceil) if found is None else found

    def _whole(self, function: Callable[..., torch.Tensor]) -> Any:
        """The integer next to a number that is data, as a symbol (one that no int64 holds is left to eager); None for
        other numbers."""
        trace = self.tensor._trace
        if self.hint is not None or trace.captures_numbers is False:
            return None
        with torch._C._DisableAutocast():
            found: Any = function(self.tensor)
            data.check_tensor(trace, found.abs() < 2.0**63)
            return data.number(trace, found.to(torch.int64))


def _hint(operand: Any) -> Any:
    return operand.hint if isinstance(operand, TracedFloat) else operand


def _safely(operand: Any) -> Any:
    """A number whose formula may be written into a guard: there nothing may raise, as roots and logarithms do."""
    if isinstance(operand, TracedFloat) and operand.formula is not None and _MAY_RAISE.search(operand.formula):
        derive = operand.tensor._trace.shapes.derive
        made = None if derive is None else derive(operand.formula, operand.hint)
        return operand if made is None else made
    return operand


_MAY_RAISE = re.compile(r"\*\*|\bmath\b")


def _formula(form: str, operands: tuple[Any, ...]) -> str | None:
    """The formula of an operation on numbers; None where one of them has none."""
    parts = []
    for operand in operands:
        if isinstance(operand, TracedFloat) and operand.formula is not None:
            parts.append(operand.formula)
        elif type(operand) in (int, float) and not math.isnan(operand):
            parts.append(f"({operand!r})".replace("inf", "1e999"))
        else:
            return None
    return form.format(*parts)


def _constant(like: TracedTensor, value: float) -> TracedFloat:
    trace = like._trace
    made = trace.wrap(trace.call(aten.full.default, [], value, dtype=torch.float64))
    return TracedFloat(made, value, formula=_formula("{}", (value,)))


#: what Python computes of all floats without raising
_TOTAL = (operator.add, operator.sub, operator.mul, torch.neg, torch.abs)


def compute(
    function: Callable[..., torch.Tensor], *operands: Any, known: Callable[..., float] | None = None, form: str = ""
) -> Any:
    """`function` of numbers, some of them traced, as a traced float; `known` computes its value from theirs, and `form`
    is the text of that, with {} for each operand. That Python does not raise is guarded, or checked in the graph; where
    it does, or the result is complex, that of these very numbers is given."""
    traced = [operand for operand in operands if isinstance(operand, TracedFloat)]
    hint, domain = None, DOMAINS.get(known)
    total = function in _TOTAL or (domain is not None and _always(domain, operands))
    if known is not None and all(operand.hint is not None for operand in traced):
        if domain is not None and not total and all(operand.formula is not None for operand in traced):
            total = domain(*operands)
            if not total:  # an error, a complex number, or close to these: so much for these values only
                return known(*[float(operand) for operand in operands])
        hint = known(*map(_hint, operands))
    pins = tuple(dict.fromkeys(pin for operand in traced for pin in operand.pins))
    made = None if known is None else (known, operands)
    formula = _formula(form, operands) if form else None
    with torch._C._DisableAutocast():
        tensors = [operand.tensor if isinstance(operand, TracedFloat) else operand for operand in operands]
        found: Any = function(*tensors)
        trace = traced[0].tensor._trace
        unsure = hint is None or domain is not None
        if unsure and not total and trace.captures_numbers is not False:
            data.check_tensor(trace, found.isfinite())  # else Python may raise: eager does
        result = TracedFloat(found, hint, pins, formula, made)
        result.within = _bounds(function, known, operands)
        return result


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
    if known is None or function not in _MONOTONIC or (function is operator.pow and _has_sign(operands[0])):
        return None
    try:
        found = sorted(float(known(*end)) for end in _ends(operands))
    except ArithmeticError:
        return None
    return (found[0], found[1]) if found and not any(map(math.isnan, found)) else None


def _has_sign(base: Any) -> bool:
    return not isinstance(base, TracedFloat) and base < 0


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


def _arithmetic(name: str, sign: str, function: Callable[..., Any]) -> None:
    form = f"({{}} {sign} {{}})"

    def operate(left: Any, right: Any) -> Any:
        if sign in ("/", "//", "%") and isinstance(right, TracedFloat) and right.hint is not None:
            bool(right)  # Python raises where it is zero: `known` does now, and a guard sees to it that it stays so
        return compute(function, left, right, known=function, form=form)

    def forward(self: TracedFloat, other: Any) -> Any:
        return operate(self, _number(other)) if isinstance(other, _NUMBERS) else NotImplemented

    def reflected(self: TracedFloat, other: Any) -> Any:
        return operate(_number(other), self) if isinstance(other, _NUMBERS) else NotImplemented

    setattr(TracedFloat, f"__{name}__", forward)
    setattr(TracedFloat, f"__r{name}__", reflected)


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def _number(value: Any) -> Any:
    """An operand as a float, or as a number of the graph if it is one or made of sizes."""
    return of(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value)


def _of_nodes(name: str, method: str) -> None:
    """torch's own `SymFloat`, which C++ makes of a node, asks the node."""

    def operate(self: ScalarNode, *others: Any) -> Any:
        found = getattr(self.owner, method)(*[other.in_graph() for other in others])
        return (found if isinstance(found, TracedFloat) else _constant(self.tensor, found)).node

    setattr(ScalarNode, name, operate)


def _questions_of_nodes(name: str) -> None:
    """What C++ asks of a number, as derivatives whether a factor is 1, is decided as the program's own questions."""

    def ask(self: ScalarNode, other: Any) -> SymNode:
        shapes = self.tensor._trace.shapes
        return SymNode.truth(shapes, getattr(self.owner, f"__{name}__")(other.in_graph()))

    setattr(ScalarNode, name, ask)


def _integers_of_nodes(name: str) -> None:
    """The integer that C++ makes of a number is decided as well."""

    def ask(self: ScalarNode) -> SymNode:
        made = getattr(self.owner, f"__{name}__")()
        return SymNode.number(self.tensor._trace.shapes, made) if type(made) is int else made.node

    setattr(ScalarNode, name, ask)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _questions_of_nodes(_name)
for _name in ("trunc", "floor", "ceil"):
    _integers_of_nodes(_name)
for _name, _method in {
    "add": "__add__",
    "sub": "__sub__",
    "mul": "__mul__",
    "truediv": "__truediv__",
    "float_truediv": "__truediv__",
    "pow": "__pow__",
    "float_pow": "__pow__",
    "neg": "__neg__",
    "abs": "__abs__",
}.items():
    _of_nodes(_name, _method)


def _compared(name: str, sign: str, function: Callable[..., bool]) -> None:
    def compare(self: TracedFloat, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        if self.within is not None and type(other) in (int, float) and sign not in ("==", "!="):
            first, last = (function(bound, other) for bound in self.within)
            if first is last:
                return first
        operands, trace = (self, _number(other)), self.tensor._trace
        is_data = any(isinstance(number, TracedFloat) and number.hint is None for number in operands)
        if is_data and trace.captures_numbers is not False:
            with torch._C._DisableAutocast():
                found: Any = function(*[n.tensor if isinstance(n, TracedFloat) else n for n in operands])
            return data.number(trace, found)  # a branch of the graph may depend on it
        return self.decide(f"({{}} {sign} {{}})", function, other)

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
for _name, _unary in {
    "__neg__": lambda self: compute(torch.neg, self, known=operator.neg, form="(-{})"),
    "__pos__": lambda self: self,
    "__abs__": lambda self: compute(torch.abs, self, known=abs, form="({}).__abs__()"),
}.items():
    setattr(TracedFloat, _name, _unary)

#: functions of `math` that have one of a tensor
MATH: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(math, name): getattr(torch, name)
    for name in [
        "sqrt",
        "exp",
        "log",
        "log2",
        "log10",
        "log1p",
        "expm1",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "asin",
        "acos",
        "atan",
        "erf",
        "erfc",
        "fabs",
    ]
    if hasattr(torch, name)
} | {math.fabs: torch.abs, math.pow: torch.pow}


# ---- operations that are given one -----------------------------------------------------------------------------------


def with_tensors(trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operation some of whose numbers are traced floats, recorded with tensors in their place;
    NotImplemented when none of them is."""
    if not any(map(_has_scalar, args)) and not any(map(_has_scalar, kwargs.values())):
        return NotImplemented
    name, _, overload = func.name().removeprefix("aten::").partition(".")
    if name.startswith("_foreach_"):
        return NotImplemented  # taken apart first
    form = None if "out" in kwargs else _FORMS.get(name.rstrip("_"))
    with trace.recording():
        if form is None:
            return func(*map(_known, args), **{key: _known(value) for key, value in kwargs.items()})
        stands_for = _alone if _is_given_numbers(func, args) else _tensor
        result = form(overload, *map(stands_for, args), **{key: stands_for(value) for key, value in kwargs.items()})
        return args[0].copy_(result) if name.endswith("_") else result


#: functions whose derivatives compare numbers, which C++ cannot do with symbolic ones
_POWERS = frozenset(("pow", "pow_", "ipow", "__rpow__"))


def for_derivatives(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a function that C++ is going to derive: integers of a power are numbers, of which the program
    depends, and floats are tensors."""
    if getattr(function, "__name__", None) not in _POWERS:
        return args
    operands = (*args, getattr(function, "__self__", None))
    base = next((operand for operand in operands if isinstance(operand, torch.Tensor)), None)
    if base is None or not base.requires_grad:
        return args
    made = torch.result_type(base, 1.0)
    return tuple([_for_power(arg, made) for arg in args])


def _for_power(arg: Any, dtype: torch.dtype) -> Any:
    if isinstance(arg, torch.SymInt):
        return int(arg)
    return of(arg).tensor.to(dtype) if isinstance(arg, torch.SymFloat) else arg


def _has_scalar(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_has_scalar, value))
    return isinstance(value, torch.SymFloat) and (type(value.node) is ScalarNode or type(value.node.expr) is Ratio)


def of(value: torch.SymFloat | torch.SymInt) -> TracedFloat:
    """The traced float that a symbolic number is: one that C++ has wrapped, or one made of sizes."""
    found: TracedFloat = value.node.in_graph()
    return found


def _tensor(value: Any) -> Any:
    return of(value).tensor if _has_scalar(value) else value


def _is_given_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether all that a function of tensors is given are numbers."""
    return str(func._schema.arguments[0].type) == "Tensor" and not any(isinstance(arg, torch.Tensor) for arg in args)


def _alone(value: Any) -> Any:
    """A number that is given for a tensor, where there are only numbers, has the default type."""
    return of(value).tensor.to(torch.get_default_dtype()) if _has_scalar(value) else value


def _known(value: Any) -> Any:
    return float(of(value)) if _has_scalar(value) else value


def _like(scalar: Any, x: torch.Tensor) -> Any:
    """A scalar's tensor in the type that the number would have next to `x`: numbers never widen it."""
    if not isinstance(scalar, torch.Tensor) or scalar.dim() or not isinstance(x, torch.Tensor):
        return scalar
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return scalar.to(x.dtype) if x.dtype.itemsize >= 4 or not x.dim() else scalar
    return scalar.to(torch.get_default_dtype())


def _is_number_beside(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the number among two operands is the first; it is in float64."""
    return not x.dim() and bool(y.dim() or (x.dtype is torch.float64 and y.dtype is not torch.float64))


def _binary(op: Callable[..., torch.Tensor], sign: int = 1) -> Callable[..., torch.Tensor]:
    def form(overload: str, x: Any, y: Any, *rest: Any, alpha: Any = None, **options: Any) -> torch.Tensor:
        if isinstance(alpha, torch.Tensor):
            if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
                kind = torch.result_type(x, y)
                if not (kind.is_floating_point or kind.is_complex):
                    return op(x, y, alpha=0.5)  # which raises
                return _computed(lambda x, y: torch.addcmul(x, y, (sign * alpha).to(kind).to(x.dtype)), kind, x, y)
            y = y * _like(alpha, y)
        elif alpha is not None:
            y = y * alpha
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            x, y = (_like(x, y), y) if _is_number_beside(x, y) else (x, _like(y, x))
        return op(x, y, *rest, **options)

    return form


def _addc(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def form(overload: str, x: Any, a: Any, b: Any, value: Any = 1) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return op(x, a, b, value=value)
        if x.dtype is a.dtype is b.dtype:
            return _computed(lambda x, a, b: op(x, a * value.to(x.dtype), b), x.dtype, x, a, b)
        return op(x, a * _like(value, a), b)

    return form


def _computed(op: Callable[..., torch.Tensor], kind: torch.dtype, *operands: torch.Tensor) -> torch.Tensor:
    """An operation in the type in which eager's kernels compute results of type `kind`, rounded once. With them,
    ``x + alpha * y`` is one fused operation, as in `addcmul`, and ``alpha * a`` is the first product of three."""
    work = torch.float32 if kind.is_floating_point and kind.itemsize < 4 else kind
    return op(*(operand.to(work) for operand in operands)).to(kind)


def _lerp(overload: str, x: Any, end: Any, weight: Any) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return torch.lerp(x, end, 0.5)  # says what eager does of these
    return torch.lerp(x, end, _like(weight, x))


def _full(overload: str, size: Any, value: Any, **options: Any) -> torch.Tensor:
    dtype = options.get("dtype") or torch.get_default_dtype()
    return value.to(dtype).expand(size).clone(memory_format=torch.contiguous_format)  # type: ignore[no-any-return]


def _new_full(overload: str, x: torch.Tensor, size: Any, value: Any, **options: Any) -> torch.Tensor:
    value = torch.as_tensor(value, dtype=options.get("dtype") or x.dtype, device=options.get("device") or x.device)
    return value.expand(size).clone(memory_format=torch.contiguous_format)  # type: ignore[no-any-return]


def _clamp(overload: str, x: Any, low: Any = None, high: Any = None, **bounds: Any) -> torch.Tensor:
    low, high = bounds.get("min", low), bounds.get("max", high)
    for bound, op in ((low, torch.maximum), (high, torch.minimum)):
        if bound is not None:
            x = op(x, _like(bound, x) if isinstance(bound, torch.Tensor) else torch.full((), bound, dtype=x.dtype))
    return x  # type: ignore[no-any-return]


_FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "add": _binary(torch.add),
    "sub": _binary(torch.sub, -1),
    "rsub": lambda overload, x, y, alpha=None: _binary(torch.sub, -1)(overload, y, x, alpha=alpha),
    "mul": _binary(torch.mul),
    "div": _binary(torch.div),
    "pow": _binary(torch.pow),
    "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum),
    "addcmul": _addc(torch.addcmul),
    "addcdiv": _addc(torch.addcdiv),
    **{name: _binary(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod")},
    "lerp": _lerp,
    "full": _full,
    "new_full": _new_full,
    "masked_fill": lambda overload, x, mask, value: x.masked_fill(mask, _like(value, x).to(x.dtype)),
    "scalar_tensor": lambda overload, value, **options: _full(overload, (), value, **options),
    "fill": lambda overload, x, value: _like(value, x).to(x.dtype).expand_as(x),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "where": lambda overload, mask, x, y: torch.where(mask, _like(x, y), _like(y, x)),
}
