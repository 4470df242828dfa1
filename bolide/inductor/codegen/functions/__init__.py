"""Mathematical functions as arithmetic alone, for machines without a library of them."""

from __future__ import annotations

from collections.abc import Callable

from bolide.inductor.codegen import math32
from bolide.inductor.codegen.builder import Value
from bolide.inductor.codegen.functions import bits, float64, trigonometry

Function = Callable[..., Value]

DOUBLE: dict[str, Function] = {
    **{name: getattr(float64, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh")},
    **{name: getattr(float64, name) for name in ("sigmoid", "sinh", "cosh", "asinh", "acosh", "atanh", "hypot")},
    **{name: getattr(float64, name) for name in ("erf", "erfc", "asin", "acos", "atan", "atan2")},
    "pow": float64.power,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "tan": trigonometry.tan,
    "fmod": bits.fmod,
    "nextafter": bits.nextafter,
}


def _through_double(function: Function) -> Function:
    """The function of float32 numbers that one of float64 numbers gives, rounded."""

    def rounded(*args: Value) -> Value:
        b = args[0].b
        return b.convert("fptrunc", function(*(b.convert("fpext", arg, "double") for arg in args)), "float")

    return rounded


FLOAT: dict[str, Function] = {
    **{name: _through_double(function) for name, function in DOUBLE.items()},
    **math32.INLINE,
    "pow": _through_double(lambda x, y: float64.power(x, y, wide=False)),
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "fmod": bits.fmod,
    "nextafter": bits.nextafter,
}


def inline_function(op: str, scalar: str) -> Function | None:
    """What writes `op` of ``float`` or ``double`` values of one lane without a call; None: there is nothing."""
    return (DOUBLE if scalar == "double" else FLOAT).get(op)
