"""Mathematical functions called, not inlined: Sleef's vector functions inside libtorch_cpu (the ones eager uses), or
the C library's lane by lane.
"""

from __future__ import annotations

from bolide.inductor.codegen.builder import Value
from bolide.support.symbols import symbol_address

#: The functions, for float32 and float64 alike, and Sleef's suffix for its accuracy ("": not Sleef's).
MATH_CALLS: dict[str, str] = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"), "u10"),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "tanh", "atanh", "erf", "lgamma", "pow", "atan2"), "u10"),
    "erfc": "u15",
    "hypot": "u05",
    "fmod": "",
    "nextafter": "",
    "acosh": "",
    "asinh": "",  # Sleef's overflow above 1e19
}


def call_math(op: str, args: tuple[Value, ...]) -> Value:
    """`op` on float or double values with any number of lanes."""
    accuracy = MATH_CALLS[op]
    b, kind = args[0].b, args[0].scalar
    width = b.target.sleef_f64 if kind == "double" else b.target.sleef_f32
    name = f"Sleef_{op}{'d' if kind == 'double' else 'f'}{width}_{accuracy}"
    if not width or not accuracy or symbol_address(name) is None:
        return _by_lane(op if kind == "double" else op + "f", args)
    return b.in_chunks(lambda *chunk: b.call(name, chunk, kind, width), width, args)


def _by_lane(name: str, args: tuple[Value, ...]) -> Value:
    first = args[0]
    b = first.b
    if first.lanes == 1:
        return b.call(name, args, first.scalar)
    result = Value(b, "poison", first.scalar, first.lanes)
    for lane in range(first.lanes):
        element = b.call(name, tuple(b.extract(arg, lane) for arg in args), first.scalar)
        result = b.insert(result, element, lane)
    return result
