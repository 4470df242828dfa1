"""Mathematical functions called, not inlined: Sleef's vector functions inside libtorch_cpu (the ones eager uses), or
the C library's lane by lane.
"""

from __future__ import annotations

from bolide.inductor.codegen.builder import Value
from bolide.inductor.codegen.target import Target

#: op -> (Sleef's stem, Sleef's accuracy suffix ("": not Sleef's), the C library's name)
FUNCTIONS: dict[str, tuple[str, str, str]] = {
    name: (name, "u10", name)
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
        *("sinh", "cosh", "tanh", "atanh", "erf", "lgamma", "pow", "atan2"),
    )
}
# Sleef's overflow above 1e19.
FUNCTIONS.update((name, (name, "", name)) for name in ("acosh", "asinh"))
FUNCTIONS["erfc"] = ("erfc", "u15", "erfc")
FUNCTIONS["hypot"] = ("hypot", "u05", "hypot")
FUNCTIONS["fmod"] = ("fmod", "", "fmod")
FUNCTIONS["nextafter"] = ("nextafter", "", "nextafter")


def has_library(op: str) -> bool:
    """Whether `call_library` knows `op`, for float32 and float64 alike."""
    return op in FUNCTIONS


def call_library(op: str, args: tuple[Value, ...], target: Target) -> Value:
    """`op` on float or double values with any number of lanes."""
    stem, accuracy, plain = FUNCTIONS[op]
    double = args[0].scalar == "double"
    width = target.sleef_f64 if double else target.sleef_f32
    if not width or not accuracy:
        return _by_lane(plain if double else plain + "f", args)
    return _by_chunk(f"Sleef_{stem}{'d' if double else 'f'}{width}_{accuracy}", width, args)


def _by_lane(name: str, args: tuple[Value, ...]) -> Value:
    first = args[0]
    b = first.b
    if first.lanes == 1:
        return b.call(name, args, first.scalar)
    result = b.poison(first.scalar, first.lanes)
    for lane in range(first.lanes):
        element = b.call(name, tuple(b.extract(arg, lane) for arg in args), first.scalar)
        result = b.insert(result, element, lane)
    return result


def _by_chunk(name: str, width: int, args: tuple[Value, ...]) -> Value:
    """Calls of a function of fixed `width`; narrower values are filled up with copies of their first lane."""
    first = args[0]
    b = first.b
    lanes = first.lanes
    if lanes == width:
        return b.call(name, args, first.scalar, width)
    if lanes < width:
        order = [lane if lane < lanes else 0 for lane in range(width)]
        wide = tuple(b.splat(arg, width) if lanes == 1 else b.shuffle(arg, order) for arg in args)
        result = b.call(name, wide, first.scalar, width)
        return b.extract(result, 0) if lanes == 1 else b.shuffle(result, list(range(lanes)))
    half = lanes // 2
    low = _by_chunk(name, width, tuple(b.shuffle(arg, list(range(half))) for arg in args))
    high = _by_chunk(name, width, tuple(b.shuffle(arg, list(range(half, lanes))) for arg in args))
    return b.concat(low, high)
