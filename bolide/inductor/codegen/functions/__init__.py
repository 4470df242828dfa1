"""Mathematical functions as arithmetic alone, for machines without a library of them."""

from __future__ import annotations

from collections.abc import Callable

from bolide.inductor.codegen import math32
from bolide.inductor.codegen.builder import Value
from bolide.inductor.codegen.functions import bits, float64, trigonometry

Function = Callable[..., Value]

DOUBLE: dict[str, Function] = {
    "exp": float64.exp,
    "exp2": float64.exp2,
    "expm1": float64.expm1,
    "log": float64.log,
    "log2": float64.log2,
    "log10": float64.log10,
    "log1p": float64.log1p,
    "tanh": float64.tanh,
    "sigmoid": float64.sigmoid,
    "sinh": float64.sinh,
    "cosh": float64.cosh,
    "asinh": float64.asinh,
    "acosh": float64.acosh,
    "atanh": float64.atanh,
    "hypot": float64.hypot,
    "erf": float64.erf,
    "erfc": float64.erfc,
    "asin": float64.asin,
    "acos": float64.acos,
    "atan": float64.atan,
    "atan2": float64.atan2,
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
