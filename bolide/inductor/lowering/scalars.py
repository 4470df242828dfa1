"""Builders of scalar nodes: the vocabulary in which lowerings are written.

Each builder returns an interned `Node`; only foldings that are exact for every value (and that keep NaN, infinities
and the sign of zero) are made here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch

from bolide.inductor.ir.loops import Node
from bolide.symbolic import Expr

Number = bool | int | float

#: dtypes that kernels read and write; a tensor of any other dtype makes its op an Extern
SUPPORTED_DTYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)
_REDUCED = frozenset({torch.bfloat16, torch.float16})
_FLOATS = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_BITS = {
    torch.bool: 1,
    torch.uint8: 8,
    torch.int8: 8,
    torch.int16: 16,
    torch.int32: 32,
    torch.int64: 64,
}


def is_float(dtype: torch.dtype) -> bool:
    return dtype in _FLOATS


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
        mantissa = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[wide]
        return _BITS[narrow] <= mantissa
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


def where(condition: Node, then: Node, otherwise: Node) -> Node:
    if condition.op == "const":
        return then if condition.arg else otherwise
    if then.op == "where" and then.src[0] is condition:
        then = then.src[1]
    if otherwise.op == "where" and otherwise.src[0] is condition:
        otherwise = otherwise.src[2]
    return then if then is otherwise else Node.make("where", then.dtype, (condition, then, otherwise))


def unary(op: str, x: Node) -> Node:
    return Node.make(op, x.dtype, (x,))


def binary(op: str, a: Node, b: Node) -> Node:
    return Node.make(op, a.dtype, (a, b))


def index_value(x: Node) -> Expr | None:
    """The int64 node `x` as an index expression, if it is one."""
    if x.op == "index":
        return x.arg  # type: ignore[no-any-return]
    return Expr.const(x.arg) if x.op == "const" and x.dtype is torch.int64 else None


def _folded(op: Callable[[Expr, Expr], Expr], a: Node, b: Node) -> Node | None:
    """op(a, b) as an index expression, if both are: bounds checks and masks made of ranges then decide themselves."""
    if a.dtype is not torch.int64:
        return None
    left, right = index_value(a), index_value(b)
    return None if left is None or right is None else index(op(left, right))


def compare(op: str, a: Node, b: Node) -> Node:
    if a.dtype is torch.int64:
        left, right = index_value(a), index_value(b)
        if left is not None and right is not None:
            condition = getattr(left, op)(right)
            if condition.is_const:
                return const(condition.value, torch.bool)
    return Node.make(op, torch.bool, (a, b))


def _is(x: Node, value: Number) -> bool:
    return x.op == "const" and x.arg == value


def add(a: Node, b: Node) -> Node:
    if not is_float(a.dtype):
        if _is(b, 0):
            return a
        if folded := _folded(operator.add, a, b):
            return folded
    return binary("or" if a.dtype is torch.bool else "add", a, b)


def sub(a: Node, b: Node) -> Node:
    if _is(b, 0) and not (is_float(b.dtype) and math.copysign(1.0, b.arg) < 0):  # x - (+0) is x, also for x = -0
        return a
    return _folded(operator.sub, a, b) or binary("sub", a, b)


def mul(a: Node, b: Node) -> Node:
    if _is(b, 1):
        return a
    if _is(a, 1):
        return b
    return _folded(operator.mul, a, b) or binary("and" if a.dtype is torch.bool else "mul", a, b)


def div(a: Node, b: Node) -> Node:
    return a if _is(b, 1) else binary("div", a, b)


def floordiv(a: Node, b: Node) -> Node:
    """Of integers, rounded to minus infinity; the divisor is a constant other than 0."""
    return _folded(operator.floordiv, a, b) or binary("floordiv", a, b)


def mod(a: Node, b: Node) -> Node:
    """The rest of `floordiv`."""
    return _folded(operator.mod, a, b) or binary("mod", a, b)


def neg(x: Node) -> Node:
    return unary("neg", x)


def fma(a: Node, b: Node, c: Node) -> Node:
    """a*b + c rounded once: eager's vectorised kernels write this out for `alpha`, `addcmul` and `lerp`."""
    return Node.make("fma", a.dtype, (a, b, c))


def minimum(a: Node, b: Node) -> Node:
    """As torch.minimum: NaN if either is NaN."""
    if a.dtype is torch.bool:
        return logical_and(a, b)
    return _folded(Expr.min, a, b) or binary("min", a, b)


def maximum(a: Node, b: Node) -> Node:
    """As torch.maximum: NaN if either is NaN."""
    if a.dtype is torch.bool:
        return logical_or(a, b)
    return _folded(Expr.max, a, b) or binary("max", a, b)


def logical_not(x: Node) -> Node:
    """Of a bool."""
    if x.op == "const":
        return const(not x.arg, torch.bool)
    return unary("not", x)


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


def all_of(conditions: list[Node]) -> Node:
    result = const(True, torch.bool)
    for condition in conditions:
        result = logical_and(result, condition)
    return result


def square(x: Node) -> Node:
    return mul(x, x)
