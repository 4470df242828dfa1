"""Builders of scalar nodes: the vocabulary in which lowerings are written.

Each builder returns an interned `Node`; only foldings that are exact for every value (and that keep NaN, infinities
and the sign of zero) are made here. Where one operand may be a number, it takes the dtype of the other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import partial, reduce

import torch

from bolide.inductor.ir.loops import Node
from bolide.symbolic import Expr

Number = bool | int | float
Scalar = Node | Number

_REDUCED = frozenset({torch.bfloat16, torch.float16})
_MANTISSAS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_BITS = {torch.bool: 1, torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}

#: dtypes that kernels read and write; a tensor of any other dtype makes its op an Extern
SUPPORTED_DTYPES = frozenset({*_MANTISSAS, *_BITS})


def is_float(dtype: torch.dtype) -> bool:
    return dtype in _MANTISSAS


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager computes on elements of `dtype`: float32 for the 16-bit floats, else `dtype` itself."""
    return torch.float32 if dtype in _REDUCED else dtype


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every value of `narrow` is a value of `wide`, so that a round trip changes nothing."""
    if wide is narrow:
        return True
    if is_float(narrow):
        return wide is torch.float64 or (wide is torch.float32 and narrow in _REDUCED)
    if is_float(wide):
        return _BITS[narrow] <= _MANTISSAS[wide]
    return _BITS[wide] > _BITS[narrow] and not (narrow is torch.int8 and wide is torch.uint8)


def const(value: Number, dtype: torch.dtype) -> Node:
    """A literal converted to `dtype` as torch converts a Python number."""
    if dtype is torch.bool:
        return Node.make("const", dtype, (), bool(value))
    if is_float(dtype):
        value = float(value)
        if dtype is not torch.float64 and math.isfinite(value):
            value = torch.tensor(value, dtype=dtype).item() if not value.is_integer() or abs(value) > 256 else value
        return Node.make("const", dtype, (), value)
    return Node.make("const", dtype, (), int(value))


def index(expr: Expr, dtype: torch.dtype = torch.int64) -> Node:
    """The value of an index expression as a scalar."""
    return const(expr.value, dtype) if expr.is_const else cast(Node.make("index", torch.int64, (), expr), dtype)


def cast(x: Node, dtype: torch.dtype) -> Node:
    if x.dtype is dtype:
        return x
    if x.op == "const":
        if isinstance(x.arg, float) and not is_float(dtype) and dtype is not torch.bool:
            if math.isfinite(x.arg) and abs(x.arg) < 2**31:
                return const(math.trunc(x.arg) & 0xFF if dtype is torch.uint8 else math.trunc(x.arg), dtype)
        else:
            return const(x.arg, dtype)
    if x.op == "cast" and x.src[0].dtype is dtype and _holds(x.dtype, dtype):
        return x.src[0]
    return Node.make("cast", dtype, (x,))


def rounded(x: Node, dtype: torch.dtype) -> Node:
    """`x` as it is after being stored in `dtype` and read back: eager rounds between the steps of some 16-bit
    formulas."""
    return cast(cast(x, dtype), x.dtype)


def _alike(a: Scalar, b: Scalar) -> tuple[Node, Node]:
    """Two operands, a number among them as a constant."""
    if not isinstance(a, Node):
        assert isinstance(b, Node)
        return const(a, b.dtype), b
    return a, b if isinstance(b, Node) else const(b, a.dtype)


def where(condition: Node, then: Scalar, otherwise: Scalar) -> Node:
    then, otherwise = _alike(then, otherwise)
    if condition.op == "const":
        return then if condition.arg else otherwise
    if then.op == "where" and then.src[0] is condition:
        then = then.src[1]
    if otherwise.op == "where" and otherwise.src[0] is condition:
        otherwise = otherwise.src[2]
    return then if then is otherwise else Node.make("where", then.dtype, (condition, then, otherwise))


def unary(op: str, x: Node) -> Node:
    return Node.make(op, x.dtype, (x,))


def binary(op: str, a: Scalar, b: Scalar) -> Node:
    a, b = _alike(a, b)
    return Node.make(op, a.dtype, (a, b))


def index_value(x: Node) -> Expr | None:
    """The int64 node `x` as an index expression, if it is one."""
    if x.op == "index":
        return x.arg  # type: ignore[no-any-return]
    return Expr.const(x.arg) if x.op == "const" and x.dtype is torch.int64 else None


def _indices(a: Node, b: Node) -> tuple[Expr, Expr] | None:
    """Both operands as index expressions, if they are some: bounds checks and masks made of ranges then decide
    themselves."""
    if a.dtype is not torch.int64:
        return None
    left, right = index_value(a), index_value(b)
    return None if left is None or right is None else (left, right)


def _folded(op: Callable[[Expr, Expr], Expr], a: Node, b: Node) -> Node | None:
    indices = _indices(a, b)
    return None if indices is None else index(op(*indices))


def compare(op: str, a: Scalar, b: Scalar) -> Node:
    a, b = _alike(a, b)
    if indices := _indices(a, b):
        condition = getattr(indices[0], op)(indices[1])
        if condition.is_const:
            return const(condition.value, torch.bool)
    return Node.make(op, torch.bool, (a, b))


eq, ne, lt, le, gt, ge = (partial(compare, op) for op in ("eq", "ne", "lt", "le", "gt", "ge"))


def predicate(op: str, x: Node) -> Node:
    """A question about one number."""
    return Node.make(op, torch.bool, (x,))


isnan, isinf = partial(predicate, "isnan"), partial(predicate, "isinf")


def _is(x: Node, value: Number) -> bool:
    return x.op == "const" and x.arg == value


def add(a: Scalar, b: Scalar) -> Node:
    a, b = _alike(a, b)
    if not is_float(a.dtype):
        if _is(b, 0):
            return a
        if folded := _folded(operator.add, a, b):
            return folded
    return binary("or" if a.dtype is torch.bool else "add", a, b)


def sub(a: Scalar, b: Scalar) -> Node:
    a, b = _alike(a, b)
    if _is(b, 0) and not (is_float(b.dtype) and math.copysign(1.0, b.arg) < 0):  # x - (+0) is x, also for x = -0
        return a
    return _folded(operator.sub, a, b) or binary("sub", a, b)


def mul(a: Scalar, b: Scalar) -> Node:
    a, b = _alike(a, b)
    if _is(b, 1):
        return a
    if _is(a, 1):
        return b
    return _folded(operator.mul, a, b) or binary("and" if a.dtype is torch.bool else "mul", a, b)


def div(a: Scalar, b: Scalar) -> Node:
    a, b = _alike(a, b)
    return a if _is(b, 1) else binary("div", a, b)


def quotient(a: Scalar, b: Scalar) -> Node:
    """a / b of floats where the last bit of it is not what a user asked for."""
    a, b = _alike(a, b)
    return binary("quotient", a, b)


def mod(a: Node, b: Node) -> Node:
    """The rest of the division of integers that is rounded to minus infinity; `b` is a constant other than 0."""
    return _folded(operator.mod, a, b) or binary("mod", a, b)


def fma(a: Scalar, b: Scalar, c: Scalar) -> Node:
    """a*b + c rounded once, `b` or `c` a node: eager's vectorised kernels write this out for `alpha`, `addcmul` and
    `lerp`."""
    b, c = _alike(b, c)
    a, b = _alike(a, b)
    return Node.make("fma", a.dtype, (a, b, c))


def minimum(a: Scalar, b: Scalar) -> Node:
    """As torch.minimum: NaN if either is NaN."""
    a, b = _alike(a, b)
    return logical_and(a, b) if a.dtype is torch.bool else _folded(Expr.min, a, b) or binary("min", a, b)


def maximum(a: Scalar, b: Scalar) -> Node:
    """As torch.maximum: NaN if either is NaN."""
    a, b = _alike(a, b)
    return logical_or(a, b) if a.dtype is torch.bool else _folded(Expr.max, a, b) or binary("max", a, b)


def logical_not(x: Node) -> Node:
    """Of a bool."""
    return const(not x.arg, torch.bool) if x.op == "const" else unary("not", x)


def logical_and(a: Node, b: Node) -> Node:
    """Of bools."""
    if a.op == "const":
        return b if a.arg else a
    if b.op == "const":
        return a if b.arg else b
    return binary("and", a, b)


def logical_or(a: Node, b: Node) -> Node:
    """Of bools."""
    if a.op == "const":
        return a if a.arg else b
    if b.op == "const":
        return b if b.arg else a
    return binary("or", a, b)


logical_xor = partial(binary, "xor")


def all_of(conditions: Iterable[Node]) -> Node:
    return reduce(logical_and, conditions, const(True, torch.bool))


neg, absolute = partial(unary, "neg"), partial(unary, "abs")
exp, log, log1p = partial(unary, "exp"), partial(unary, "log"), partial(unary, "log1p")
sqrt, tanh, sigmoid = partial(unary, "sqrt"), partial(unary, "tanh"), partial(unary, "sigmoid")


def square(x: Node) -> Node:
    return mul(x, x)


def exp_of_minus_abs(x: Node) -> Node:
    return exp(neg(absolute(x)))
