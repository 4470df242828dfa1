"""Numbers that Python computes of sizes and that no expression over sizes says: ``2 ** k``, ``k.bit_length()``,
``round(k / 3, 2)``.

Such a number is one from outside, of its own: a symbol, or a float of the graph, which each call computes from the
size, as the program does. So it may be another one in each call, as the size is.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.sources import symbols_in, with_symbols
from bolide.dynamo.world.world import World
from bolide.symbolic import Ratio
from bolide.tracing.numbers.scalars import TracedFloat

Number = int | float
_INT64 = torch.iinfo(torch.int64)
_NAMES = {"math": math, "__builtins__": {"min": min, "max": max, "round": round, "pow": pow, "divmod": divmod}}
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def is_number(value: object) -> bool:
    """Whether a value may be a symbol or a float of the graph."""
    return type(value) is float or (type(value) is int and _INT64.min <= value <= _INT64.max)


@functools.lru_cache(maxsize=1024)
def computing(text: str) -> Callable[[Number], Number | None]:
    """The function that computes an expression over `n`: an integer of 64 bits or a float; None for anything else, and
    where Python raises: then the program has to be captured anew."""
    name = f"(lambda n: {text})"
    compute = eval(name, dict(_NAMES))

    def derived(n: Number) -> Number | None:
        try:
            value = compute(n)
        except (ArithmeticError, ValueError, TypeError):
            return None
        return value if is_number(value) else None

    derived.__name__ = name
    return derived


def derived(vm: Machine, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    """What a call gives that computes a number of sizes, as a number of its own; None for any other call."""
    shapes = vm.trace.shapes
    if shapes.derive is None or kwargs or (text := _text_of_call(function, args)) is None:
        return None
    try:
        value = function(*map(_now, args))
    except Exception:  # the program's own: it is raised where the numbers are known
        return None
    vm.trace.where = vm.where()
    return shapes.derive(text, value)


def _text_of_call(function: Any, args: list[Any]) -> str | None:
    """A call of a function of `math`, of a method of numbers, of `round` or `pow`, as text over sizes and floats from
    outside; None for any other."""
    if type(function) is types.BuiltinMethodType and not isinstance(function.__self__, types.ModuleType):
        function, args = getattr(type(function.__self__), function.__name__, None), [function.__self__, *args]
    operands = list(map(_text_of_number, args))
    if None in operands:
        return None
    if isinstance(function, _METHODS) and function.__objclass__ in (int, float):
        owner, *others = operands
        return f"{owner}.{function.__name__}({', '.join(map(str, others))})"
    name = getattr(function, "__name__", "")
    if function is round or function is pow:  # not by `==`, which runs code of the program's
        return f"{name}({', '.join(map(str, operands))})"
    return f"math.{name}({', '.join(map(str, operands))})" if vars(math).get(name) is function else None


def _text_of_number(value: Any) -> str | None:
    """A number as Python over symbols and floats from outside."""
    if type(value) is TracedFloat:
        return value.formula and f"({value.formula})"
    if type(value) is torch.SymInt or (type(value) is torch.SymFloat and isinstance(value.node.expr, Ratio)):
        return f"({value.node.expr.text()})"
    return f"({value!r})" if type(value) is int or (type(value) is float and math.isfinite(value)) else None


def _now(value: Any) -> Any:
    """The value that a number has in this call; nothing is assumed."""
    if type(value) is TracedFloat:
        return value.hint
    return value.node.hint if type(value) in (torch.SymInt, torch.SymFloat) else value


def derive(world: World, text: str, value: Any) -> Any:
    """The number that `text` says of sizes and floats from outside, `value` in this call; None where it is made of
    several of them, or of data."""
    names = symbols_in(text)
    known = world.numbers.floats | {symbol.name: symbol.source for symbol in world.symbols.found}
    if len(names) != 1 or names[0] not in known or names[0] in world.trace.shapes.facts.names or not is_number(value):
        return None
    source = Source("apply", known[names[0]], (), computing(with_symbols(text, {names[0]: "n"})))
    if source not in world.numbers.derived:
        world.numbers.derived[source] = _number(world, source, value, names[0])
    return world.numbers.derived[source]


def _number(world: World, source: Source, value: Number, of: str) -> Any:
    """The number at `source`, which is fixed if the program has needed its value before."""
    if world.symbols.history.is_fixed((source, None), value):
        world.guards.add(source, "equals", value)
        return value
    if isinstance(value, float):
        return world.numbers.float_of(source, value)
    world.guards.add(source, "integer", (None, None))
    marked = any(symbol.name == of and symbol.marked for symbol in world.symbols.found)
    return world.symbols.integer(source, value, f"number{len(world.numbers.derived)}", marked)
