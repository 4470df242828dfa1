"""Mathematical functions as the target has them: written out, or called. Called are Sleef's vector functions inside
libtorch_cpu (the ones eager uses), or the C library's lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable

from bolide.inductor.codegen import math32
from bolide.inductor.codegen.builder import Value
from bolide.support.symbols import symbol_address

#: The functions, for float32 and float64 alike, and Sleef's suffix for its accuracy (None: not Sleef's).
MATH_CALLS: dict[str, str | None] = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"), "_u10"),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "tanh", "atanh", "erf", "lgamma", "pow", "atan2"), "_u10"),
    "erfc": "_u15",
    "hypot": "_u05",
    "fmod": "",  # exact, but where the quotient overflows: NaN, as in eager's vectors
    "nextafter": None,
    "acosh": None,
    "asinh": None,  # Sleef's overflow above 1e19
}


ELEMENTARY = frozenset((*math32.INLINE, *MATH_CALLS))


def elementary(op: str, *args: Value) -> Value:
    """`op` (of `ELEMENTARY`) of float or double values. NotImplementedError where the target has no such function."""
    kind, target = args[0].scalar, args[0].b.target
    if target.triple:
        from bolide.inductor.codegen.functions import inline_function

        function = inline_function(op, kind)
        if function is None:
            raise NotImplementedError(f"no code for {op} of {kind} on {target.name}")
        return function(*args) if kind == "float" and op in math32.INLINE else _by_lane(function, args)
    if kind == "float" and op in math32.INLINE:
        return math32.INLINE[op](*args) if args[0].lanes > 1 else _in_one_of_four(math32.INLINE[op], args)
    if kind == "float" and op in ("cosh", "sinh"):
        return _hyperbolic(op, args[0])
    return 1.0 / (_call("exp", (-args[0],)) + 1.0) if op == "sigmoid" else _call(op, args)


def _in_one_of_four(function: Callable[..., Value], args: tuple[Value, ...]) -> Value:
    """A function of float32 numbers in a lane of a register: selections there are no branches (log takes 0.4 of the
    time)."""
    b = args[0].b
    zeros = Value(b, "zeroinitializer", "float", 4)
    return b.extract(function(*(b.insert(zeros, arg, 0) for arg in args)), 0)


def _hyperbolic(op: str, x: Value) -> Value:
    """cosh or sinh; 1 ulp: Sleef's, which is infinite too early, but for large numbers."""
    b = x.b
    size = b.intrinsic("fabs", x)
    far = math32.half_exp(size)
    large = far if op == "cosh" else b.intrinsic("copysign", far, x)
    return b.select(b.compare("fcmp ogt", size, 80.0), large, _call(op, (x,)))


def _call(op: str, args: tuple[Value, ...]) -> Value:
    """`op` on float or double values with any number of lanes, by a library."""
    accuracy = MATH_CALLS[op]
    b, kind = args[0].b, args[0].scalar
    width = b.target.sleef_f64 if kind == "double" else b.target.sleef_f32
    name = f"Sleef_{op}{'d' if kind == 'double' else 'f'}{width}{accuracy}"
    alone = op == "fmod" and args[0].lanes == 1  # exact, as Python's and eager's of one number
    if not width or alone or accuracy is None or symbol_address(name) is None:
        library = op if kind == "double" else op + "f"
        return _by_lane(lambda *one: b.call(library, one, kind), args)
    return b.in_chunks(lambda *chunk: b.call(name, chunk, kind, width), width, args)


def _by_lane(function: Callable[..., Value], args: tuple[Value, ...]) -> Value:
    """A function that takes one lane."""
    first = args[0]
    b = first.b
    if first.lanes == 1:
        return function(*args)
    result = Value(b, "poison", first.scalar, first.lanes)
    for lane in range(first.lanes):
        element = function(*(b.extract(arg, lane) for arg in args))
        result = b.insert(result, element, lane)
    return result
