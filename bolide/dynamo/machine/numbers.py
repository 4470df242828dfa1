"""Numbers that each call makes anew: those that Python or NumPy compute of sizes and that no expression over sizes says
(``2 ** k``, ``k.bit_length()``, ``round(k / 3, 2)``, ``numpy.log(k)``), and those that Python's and NumPy's random
generators draw.

A number of the first kind is one from outside, of its own: a symbol, or a float of the graph, which each call computes
from the size, as the program does. So it may be another one in each call, as the size is.

Those of the second kind are drawn in front of the graph, and given to it. The generators are the real ones, so the
numbers are eager's. While capturing, copies of them draw. Where the program has to know such a number (a branch on it,
an index into a list), the segment ends in front of the draw instead: then it is a value that the next segment begins
with.
"""

from __future__ import annotations

import copy
import functools
import math
import random
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.program.captured import Recipe, Source
from bolide.dynamo.program.kinds import MISSING, is_constant
from bolide.dynamo.program.sources import symbols_in, with_symbols
from bolide.dynamo.state import state
from bolide.dynamo.world.arrays import SCALARS, TracedArray, TracedScalar, as_tensor, layer
from bolide.dynamo.world.inputs import float_tensor
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported
from bolide.symbolic import Ratio, as_expr
from bolide.tracing import Trace
from bolide.tracing.numbers import data, scalars
from bolide.tracing.numbers.scalars import TracedFloat

# ---- computed of sizes -----------------------------------------------------------------------------------------------

Number = int | float
_INT64 = torch.iinfo(torch.int64)
_OF_NUMPY = (
    *("sqrt", "cbrt", "square", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power"),
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "hypot"),
    *("maximum", "minimum", "clip", "round", "rint", "prod", "sum", "mean", "median", "std", "max", "min"),
    *("absolute", "sign", "add", "subtract", "multiply", "divide", "floor_divide", "remainder"),
)
OF_NUMPY = {getattr(numpy, name): name for name in _OF_NUMPY}
"""Functions of NumPy's, of numbers and lists of them, whose results are numbers."""
_NAMES = {
    "math": math,
    "numpy": numpy,
    "__builtins__": {"min": min, "max": max, "round": round, "pow": pow, "divmod": divmod},
}
_KNOWN = {"n", "math", "min", "max", "round", "pow", "divmod", *vars(math), *vars(int), *vars(float)} - {*vars(object)}
_KNOWN |= {"numpy", "item", *_OF_NUMPY}
_HEAD = "(lambda n: "
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def is_number(value: object) -> bool:
    """Whether a value may be a symbol or a float of the graph."""
    return type(value) is float or (type(value) is int and _INT64.min <= value <= _INT64.max)


@functools.lru_cache(maxsize=1024)
def computing(text: str) -> Callable[[Number], Number | None]:
    """The function that computes an expression over `n`: an integer of 64 bits or a float; None for anything else, and
    where Python raises: then the program has to be captured anew."""
    name = f"{_HEAD}{text})"
    compute = eval(name, dict(_NAMES))

    def derived(n: Number) -> Number | None:
        try:
            value = compute(n)
        except (ArithmeticError, ValueError, TypeError):
            return None
        return value if is_number(value) else None

    derived.__name__ = name
    return derived


def text_of(function: object) -> str | None:
    """The expression that a function of `computing` computes; None for other functions."""
    is_ours = type(function) is types.FunctionType and function.__code__ in computing.__wrapped__.__code__.co_consts
    return function.__name__[len(_HEAD) : -1] if is_ours else None  # type: ignore[attr-defined]


def is_of_numbers(text: str) -> bool:
    """Whether an expression reads nothing but `n`, constants, and functions and methods of numbers."""
    code = compile(text, "", "eval")
    return _KNOWN.issuperset(code.co_names) and not any(type(part) is types.CodeType for part in code.co_consts)


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
    return shapes.derive(text, value.item() if isinstance(value, numpy.generic) else value)


def _text_of_call(function: Any, args: list[Any]) -> str | None:
    """A call of a function of `math` or `OF_NUMPY`, of a method of numbers, of `round` or `pow`, as text over sizes and
    floats from outside; None for any other."""
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
    if name in _OF_NUMPY and getattr(numpy, name) is function:
        return f"numpy.{name}({', '.join(map(str, operands))}).item()"
    return f"math.{name}({', '.join(map(str, operands))})" if vars(math).get(name) is function else None


def _text_of_number(value: object) -> str | None:
    """A number, or a list of numbers, as Python over symbols and floats from outside."""
    if isinstance(value, (list, tuple)):
        items = list(map(_text_of_number, value))
        return None if None in items else f"[{', '.join(map(str, items))}]"
    if type(value) is TracedFloat:
        return value.formula and f"({value.formula})"
    if type(value) is torch.SymInt or (type(value) is torch.SymFloat and isinstance(value.node.expr, Ratio)):
        return f"({value.node.expr.text()})"
    return f"({value!r})" if type(value) is int or (type(value) is float and math.isfinite(value)) else None


def _now(value: Any) -> Any:
    """The value that a number, or a list of numbers, has in this call; nothing is assumed."""
    if isinstance(value, (list, tuple)):
        return list(map(_now, value))
    if type(value) is TracedFloat:
        return value.now
    return value.node.hint if type(value) in (torch.SymInt, torch.SymFloat) else value


def derive(world: World, text: str, value: Any) -> Any:
    """The number that `text` says of sizes and floats from outside, `value` in this call; None where it is made of
    data."""
    source = _computed(world, text, value)
    if source is not None and source not in world.numbers.derived:
        world.numbers.derived[source] = _number(world, source, value, symbols_in(text))
    return None if source is None else world.numbers.derived[source]


def named(world: World, text: str, value: object) -> str | None:
    """As `derive`, for a float that only conditions speak of: its name in them."""
    source = _computed(world, text, value) if type(value) is float else None
    if source is None:
        return None
    world.guards.add(source, "type", float)
    return world.numbers.name_of(source)


def _computed(world: World, text: str, value: object) -> Source | None:
    """Where the number is found that `text` says of sizes and floats from outside; None for any other."""
    names = symbols_in(text)
    if not names or not is_number(value) or not world.trace.shapes.facts.names.isdisjoint(names):
        return None
    found = [source for name in names if (source := world.numbers.source_of(name)) is not None]
    if len(found) < len(names):
        return None
    first, *others = found
    if not others:
        return Source("apply", first, (), computing(with_symbols(text, {names[0]: "n"})))
    if all(one.kind == "item" and one.base == first.base for one in found):  # sizes of one tensor
        base, keys = first.base, [one.key for one in found]
    else:
        base, keys = Source("several", first, tuple(others)), list(range(len(found)))
    places = {name: f"n[{key!r}]" for name, key in zip(names, keys, strict=True)}
    return Source("apply", base, (), computing(with_symbols(text, places)))


def _number(world: World, source: Source, value: Number, of: list[str]) -> object:
    """The number at `source`, which is fixed if the program has needed its value before."""
    if world.symbols.history.is_fixed((source, None), value):
        world.guards.add(source, "equals", value)
        return value
    if isinstance(value, float):
        return world.numbers.float_of(source, value)
    world.guards.add(source, "integer", (None, None))
    marked = any(symbol.name in of and symbol.marked for symbol in world.symbols.all)
    return world.symbols.integer(source, value, f"number{len(world.numbers.derived)}", marked)


# ---- drawn -----------------------------------------------------------------------------------------------------------


@dataclass
class _Draw:
    """A draw of this run: what is to be said if the program needs to know the number, at which instruction it is, what
    is known of it, and whether it is needed."""

    refusal: Unsupported
    tick: int
    is_integer: bool
    sizes: Mapping[int, torch.SymInt]  # the dimensions of an array that are symbols
    needed: bool = False


_DRAWS: Slot[list[_Draw]] = Slot(list)
_COPIES: Slot[dict[int, Any]] = Slot(dict, undone=True)  # what draws in the place of generators, by their ids


def drawn(vm: Machine, function: Any, args: list[Any], kwargs: dict[str, Any], name: str) -> Any:
    """The value of a call of a random generator's method, if it is one that can be made in front of the graph: a float,
    an integer or an array; None where only the generator's state changes. MISSING for any other call. `name`: of the
    function, for messages.
    """
    if type(function) is types.MethodType:
        function, args = function.__func__, [function.__self__, *args]
    if not args or vm.base != 1 or state.stage == "backend" or type(vm.trace) is not Trace:
        return MISSING
    owner, *operands = args
    generator = owner.real if type(owner) is Outside else owner
    shapeless = pytree.tree_map_only(torch.Size, tuple, (tuple(operands), kwargs))
    given, form = pytree.tree_flatten(shapeless, is_leaf=_is_whole)
    if not is_generator(generator) or not all(is_constant(value) or _is_size(vm, value) for value in given):
        return MISSING
    copied = _copied(vm, generator)
    try:
        example = _called(function, copied, form, list(map(_now, given)))
    except Exception:  # the program's own; what the copy has drawn until then is a guess only
        return MISSING
    wrap = _WRAP.get(type(example))
    if wrap is None or not _fits(function.__name__, operands, example):
        return MISSING
    shape = getattr(example, "shape", ())
    tried = functools.partial(_called, function, copy.deepcopy(copied), form)
    sizes = _sizes(tried, given, shape) if shape else {}
    if sizes is None:
        return MISSING
    reason = f"the program needs to know what {name} draws, which differs from call to call"
    remedy = "draw it outside the compiled function and pass it"
    refusal = vm.unsupported(reason, "moment", remedy, f"{name}(...)")
    is_integer = isinstance(example, (int, numpy.int64))
    note = _Draw(refusal, vm.progress.present(), is_integer, sizes)
    _DRAWS.of(vm).append(note)
    source = Source("drawn", None, len(vm.world.draws))
    value = wrap(vm, source, example, note)
    number = value.number if isinstance(value, TracedScalar) else value
    if type(number) is TracedFloat and not kwargs:
        number.within = _range(function.__name__, operands)
    if is_integer and function.__name__ in _BOUNDED and not kwargs and _are_integers(operands):
        _bound(vm, number, operands, function)
    place = Recipe("source", owner.source) if type(owner) is Outside else Recipe("constant", owner)
    parts = (place, *(_operand(vm, operand) for operand in operands))
    named = tuple((key, _operand(vm, operand)) for key, operand in kwargs.items())
    vm.world.draws.append(Recipe("call", function, parts, named))
    return value


def _called(
    function: Callable[..., object], generator: object, form: pytree.TreeSpec, values: Sequence[object]
) -> object:
    """What is drawn with these values, which `form` arranges as operands."""
    operands, kwargs = pytree.tree_unflatten(values, form)
    return function(generator, *operands, **kwargs)


def _sizes(
    call: Callable[[Sequence[object]], object], given: Sequence[object], shape: tuple[int, ...]
) -> dict[int, torch.SymInt] | None:
    """The dimensions of a drawn array that are sizes which the call is `given`, found by trying other sizes; None if
    its shape depends on them in another way. `call` draws; `shape`: what it is in this call."""
    sizes: dict[int, torch.SymInt] = {}
    values = list(map(_now, given))
    for place, operand in enumerate(given):
        if type(operand) is not torch.SymInt:
            continue
        for step in (1, -1):
            try:
                array = call([*values[:place], values[place] + step, *values[place + 1 :]])
                break
            except Exception:  # as where more is to be chosen than there is
                continue
        else:
            return None
        other = getattr(array, "shape", ())
        if len(other) != len(shape):
            return None
        for dim in (dim for dim in range(len(shape)) if other[dim] != shape[dim]):
            if dim in sizes or (shape[dim], other[dim]) != (values[place], values[place] + step):
                return None
            sizes[dim] = operand
    return sizes


def _copied(vm: Machine, generator: object) -> object:
    """What draws in the place of a generator while capturing."""
    copies = _COPIES.of(vm)
    if id(generator) not in copies:
        copies[id(generator)] = copy.deepcopy(generator)
    return copies[id(generator)]


def _is_size(vm: Machine, value: object) -> bool:
    return type(value) is torch.SymInt and not data.is_computed(vm.trace, value)


def _is_whole(value: object) -> bool:
    """Whether a value is looked at as a whole: lists may be written to."""
    return type(value) is list or is_constant(value)


def _operand(vm: Machine, operand: object) -> Recipe:
    if isinstance(operand, tuple):
        return Recipe("tuple", None, tuple(_operand(vm, item) for item in operand))
    if type(operand) is not torch.SymInt:
        return Recipe("constant", operand)
    symbols = vm.world.symbols.read_by([operand.node.expr])
    return Recipe("size", operand.node.expr, tuple(Recipe("source", source) for _, source in symbols))


def _are_integers(operands: Sequence[object]) -> bool:
    return all(type(operand) in (int, torch.SymInt) for operand in operands)


def _bound(
    vm: Machine, value: torch.SymInt, operands: list[int | torch.SymInt], function: Callable[..., object]
) -> None:
    """Note between what bounds an integer is drawn."""
    first, end = operands if len(operands) == 2 else (0, operands[0])
    if function.__name__ == "getrandbits":
        end = 1 << int(end)
    if len(operands) < 3:
        facts, drawn = vm.trace.shapes.facts, as_expr(value)
        facts.add(drawn.ge(as_expr(first)))
        facts.add(drawn.lt(as_expr(end) + int(function is random.Random.randint)))


def _fits(name: str, operands: list[object], example: object) -> bool:
    """Whether what a function draws is as the example in each call: of its type, and an integer that a tensor can
    hold."""
    if name == "choice" and operands and type(operands[0]) is tuple:
        return all(type(item) is type(example) and is_number(item) for item in operands[0])
    if type(example) is not int:
        return True
    if name == "getrandbits":
        (bits,) = operands
        return type(bits) is int and bits < 63
    return name in _INTEGERS


_INTEGERS = ("randint", "randrange", "integers", "choice")
_BOUNDED = ("getrandbits", *_INTEGERS)
_UNIT = ("random", "rand", "random_sample")


def _range(name: str, operands: list[float]) -> tuple[float, float] | None:
    """The least and the largest number that a function draws, if that is known: layers that are dropped with
    probability 0 never are."""
    if name in _UNIT and not operands:
        return 0.0, math.nextafter(1.0, 0.0)
    if name == "uniform" and len(operands) in (0, 2) and all(type(operand) in (int, float) for operand in operands):
        first, last = operands or (0.0, 1.0)
        return min(first, last), max(first, last)
    return None


def is_generator(value: object) -> bool:
    """Whether this is a random generator of Python's or NumPy's."""
    if type(value) is random.Random:
        return True
    return type(value).__module__ in _NUMPY and type(value).__name__ in ("RandomState", "Generator")


_NUMPY = ("numpy.random.mtrand", "numpy.random._generator")  # not imported: most programs do without


def needed(vm: Machine, error: Unsupported) -> tuple[int, Unsupported] | None:
    """The draw that the program has to know the number of, if that is what is the matter: its instruction, in front of
    which the segment has to end, and what to say."""
    notes = _DRAWS.of(vm)
    of_data = error.about.code.startswith("BR01")
    draw = next((note for note in notes if note.needed or (note.is_integer and of_data)), None)
    return None if draw is None else (draw.tick, draw.refusal)


def state_of(generator: Any) -> Any:
    """The state of a generator; `set_state` puts it back."""
    if type(generator) is random.Random:
        return generator.getstate()
    bits = getattr(generator, "bit_generator", None)
    return generator.get_state() if bits is None else bits.state


def set_state(generator: Any, state: Any) -> None:
    """See `state_of`."""
    if type(generator) is random.Random:
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


# ---- as values of the program ----------------------------------------------------------------------------------------


def _nothing(vm: Machine, source: Source, example: None, note: _Draw) -> None:
    return None


def _float(vm: Machine, source: Source, example: float, note: _Draw) -> object:
    def pin() -> None:
        note.needed = True
        raise note.refusal

    number = scalars.of_tensor(vm.trace, vm.world.inputs.make(source, float_tensor, example), None, (pin,))
    return vm.world.identities.mirror(number, source)


def _integer(vm: Machine, source: Source, example: int, note: _Draw) -> object:
    number = data.number(vm.trace, vm.world.inputs.make(source, _integer_tensor, example))
    return vm.world.identities.mirror(number, source)


def _array(vm: Machine, source: Source, example: numpy.ndarray[Any, Any], note: _Draw) -> Any:
    array = TracedArray(layer().ndarray(vm.world.inputs.make(source, as_tensor, example, note.sizes)))
    return vm.world.identities.mirror(array, source)


def _integer_tensor(value: int) -> torch.Tensor:
    return torch.scalar_tensor(value, dtype=torch.int64)


_WRAP: dict[type, Callable[[Machine, Source, Any, _Draw], Any]] = {
    types.NoneType: _nothing,
    float: _float,
    int: _integer,
    numpy.float64: lambda *draw: SCALARS[numpy.float64](None, _float(*draw)),
    numpy.int64: lambda *draw: SCALARS[numpy.int64](None, _integer(*draw)),
    numpy.ndarray: _array,
}
