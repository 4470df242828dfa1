"""The table of scalar operations, and the reductions: what their operands and results are, how torch computes them, how
they are written, and what they cost. `codegen.instructions` says how LLVM computes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

ANY_NUMBER = -1
DRAWS = ("philox", "philox_normal")  # random numbers
NARROW_FLOATS = frozenset((torch.bfloat16, torch.float16))


class ScalarOp(NamedTuple):
    """An operation on scalars. Unless `result` is "own", the operands have one dtype, which is not a 16-bit float (cast
    to float32 first), and so has the result; "bool": the result is a bool."""

    operands: int
    evaluate: Callable[..., torch.Tensor] | None = None
    sign: str = ""  # that stands between two operands; "": written as a call
    result: Literal["same", "bool", "own"] = "same"
    of_floats: bool = False
    work: int = 1  # what computing it once more costs, for scheduling
    instructions: int = 1  # roughly, of vectors, for code generation


def _ops(names: str, operands: int, **traits: Any) -> dict[str, ScalarOp]:
    """Operations with the same traits, each computed by torch's function of that name."""
    return {name: ScalarOp(operands, getattr(torch, name, None), **traits) for name in names.split()}


def _elementary(names: str, work: int, instructions: int) -> dict[str, ScalarOp]:
    return _ops(names, 1, of_floats=True, work=work, instructions=instructions)


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return (a.double() * b.double() + c.double()).to(a.dtype)


def _erf_plus_1(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(x) + 1


def _unsigned_minimum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    is_less = torch.where((a < 0) == (b < 0), a < b, b < 0)  # a negative number is more than any other
    return torch.where(is_less, a, b)


#: Of floating-point numbers, under ATen's names.
ELEMENTARY_OPS = {
    **_elementary("sqrt", 4, 4),
    **_elementary("rsqrt", 4, 8),
    **_elementary("exp exp2 expm1 log log2 log10 log1p tanh erf sigmoid", 12, 20),
    **_elementary("sin cos", 12, 50),
    **_elementary("tan asin acos atan sinh cosh asinh acosh atanh erfc", 25, 50),
    **_elementary("lgamma", 25, 80),
}

SCALAR_OPS: dict[str, ScalarOp] = {
    "const": ScalarOp(0, result="own", work=0, instructions=0),  # arg: Python bool/int/float
    "index": ScalarOp(0, result="own", work=0, instructions=0),  # arg: Expr; its value as an int64
    # arg: Access; operands: those of the index ($0, $1 …), then a bool if Access.masked (false: no access, 0)
    "load": ScalarOp(ANY_NUMBER, result="own", work=0),
    "acc": ScalarOp(0, result="own", work=0, instructions=0),  # arg: name of an accumulator, after its loops
    "cast": ScalarOp(1, result="own"),  # with torch's conversion rules
    "where": ScalarOp(3, torch.where, result="own"),
    "bits": ScalarOp(1, lambda x: x.view(torch.int32), result="own"),  # of a float32, as an int32
    "of_bits": ScalarOp(1, lambda x: x.view(torch.float32), result="own"),  # the float32 of an int32
    # operand: seed (int64); arg: (counter, element index): float32, uniform in [0, 1) or standard normal
    "philox": ScalarOp(1, result="own", work=40, instructions=80),
    "philox_normal": ScalarOp(1, result="own", work=40, instructions=150),
    **ELEMENTARY_OPS,
    "erf_plus_1": ScalarOp(1, _erf_plus_1, of_floats=True, work=12, instructions=20),
    # e^x for x <= 0, of which an error of |x| roundings is none: of a term of a sum that has a term 1, or rounded to 16
    # bits
    "exp_term": ScalarOp(1, torch.exp, of_floats=True, work=12, instructions=20),
    "recip": ScalarOp(1, torch.reciprocal, of_floats=True, work=4, instructions=4),
    **_ops("neg abs sign floor ceil round trunc", 1),
    "not": ScalarOp(1, torch.bitwise_not),
    **_ops("isnan isinf signbit", 1, result="bool"),
    "add": ScalarOp(2, torch.add, "+"),
    "sub": ScalarOp(2, torch.sub, "-"),
    "mul": ScalarOp(2, torch.mul, "*"),
    "product": ScalarOp(2, torch.mul, of_floats=True),  # need not be rounded before it is added to a sum
    "div": ScalarOp(2, torch.div, "/", work=4, instructions=4),
    "quotient": ScalarOp(2, torch.div, of_floats=True, work=4, instructions=4),  # may be a product with the reciprocal
    "floordiv": ScalarOp(2, functools.partial(torch.div, rounding_mode="floor"), work=4, instructions=80),
    "truncdiv": ScalarOp(2, functools.partial(torch.div, rounding_mode="trunc"), work=4),
    "mod": ScalarOp(2, torch.remainder, work=4, instructions=80),
    "fmod": ScalarOp(2, torch.fmod, work=4, instructions=80),
    **_ops("pow atan2 hypot", 2, work=25, instructions=80),
    **_ops("fmin fmax copysign nextafter", 2),
    "min": ScalarOp(2, torch.minimum),  # NaN if either operand is NaN
    "max": ScalarOp(2, torch.maximum),
    "umin": ScalarOp(2, _unsigned_minimum),  # of integers, as unsigned numbers
    "and": ScalarOp(2, torch.bitwise_and, "&"),
    "or": ScalarOp(2, torch.bitwise_or, "|"),
    "xor": ScalarOp(2, torch.bitwise_xor, "^"),
    "shl": ScalarOp(2, torch.bitwise_left_shift, "<<"),
    "shr": ScalarOp(2, torch.bitwise_right_shift, ">>"),
    "eq": ScalarOp(2, torch.eq, "==", "bool"),
    "ne": ScalarOp(2, torch.ne, "!=", "bool"),
    "lt": ScalarOp(2, torch.lt, "<", "bool"),
    "le": ScalarOp(2, torch.le, "<=", "bool"),
    "gt": ScalarOp(2, torch.gt, ">", "bool"),
    "ge": ScalarOp(2, torch.ge, ">=", "bool"),
    "fma": ScalarOp(3, _fma),
}


def fault_of(op: str, operands: list[torch.dtype], result: torch.dtype) -> str | None:
    """What is wrong with an operation on these types, if something is."""
    known = SCALAR_OPS.get(op)
    if known is None:
        return f"there is no scalar operation {op}"
    if known.operands not in (ANY_NUMBER, len(operands)):
        return f"{op} takes {known.operands} operands, not {len(operands)}"
    types = ", ".join(str(dtype).removeprefix("torch.") for dtype in operands)
    if op == "where" and operands != [torch.bool, result, result]:
        return f"where on {types} gives {result}"
    if op == "bits" and (operands, result) != ([torch.float32], torch.int32):
        return f"bits of {types} as {result}"
    if op == "of_bits" and (operands, result) != ([torch.int32], torch.float32):
        return f"{result} of bits of {types}"
    if known.result == "own":
        return None
    if any(dtype != operands[0] for dtype in operands):
        return f"{op} on different types: {types}"
    if known.of_floats and not result.is_floating_point:
        return f"{op} on {types}: cast to a floating-point type first"
    if operands[0] in NARROW_FLOATS:
        return f"{op} on {types}: cast to float32 first"
    expected = torch.bool if known.result == "bool" else operands[0]
    return None if result == expected else f"{op} on {types} gives {expected}, not {result}"


# ---- reductions -----------------------------------------------------------------------------------------------------

#: The operation that joins two partial results; argmin and argmax have none.
JOINED_BY = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "any": "or", "all": "and", "xor": "xor"}


def identity(op: str, dtype: torch.dtype) -> float:
    """The reduction of nothing. For min, max, argmin, argmax, sort: what everything else beats."""
    if op in ("sum", "xor", "any", "prod", "all"):
        return int(op in ("prod", "all"))
    least = op in ("min", "argmin", "sort")
    if dtype.is_floating_point:
        return math.inf if least else -math.inf
    if dtype == torch.bool:
        return least
    limits = torch.iinfo(dtype)
    return limits.max if least else limits.min


def reduced(op: str, values: torch.Tensor) -> torch.Tensor:
    """The reduction over the last dimension, by torch; argmin and argmax give the place of the first best value."""
    if op in ("sum", "prod"):
        return values.sum(-1, dtype=values.dtype) if op == "sum" else values.prod(-1, dtype=values.dtype)
    if op == "xor":
        return functools.reduce(torch.bitwise_xor, values.unbind(-1))
    function = {"min": "amin", "max": "amax"}.get(op, op)
    return getattr(values, function)(-1)  # type: ignore[no-any-return]
