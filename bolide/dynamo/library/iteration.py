"""Length, iteration and order: built-in functions, itertools, bisect and heapq.

They run natively where nothing of the program's is called by it, else as polyfills."""

from __future__ import annotations

import bisect
import builtins
import functools
import heapq
import itertools
import math
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.calls import SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill
from bolide.dynamo.machine.items import is_converted
from bolide.dynamo.machine.native_calls import setting_modes
from bolide.dynamo.machine.stand_ins import PLAIN, SYMBOLIC, class_of
from bolide.dynamo.policy import is_python_class
from bolide.dynamo.polyfills import generic, iteration
from bolide.dynamo.program.kinds import CONSTANT_TYPES, MISSING
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.outside import Outside
from bolide.tracing import TracedTensor
from bolide.tracing.meta import DataDependent
from bolide.tracing.numbers import data
from bolide.tracing.numbers.scalars import TracedFloat, compute

_SEQUENCES = (list, tuple, set, frozenset, dict)
_TEXTS = (str, bytes, range)


@intercept(len)
def _len(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    value = args[0]
    cls = class_of(value)
    if cls in PLAIN and type(value) is not Outside:
        grown = vm.world.containers.length_of(value) if cls is list else None
        return len(value) if grown is None else grown
    method = vm.world.classes.python_method(cls, "__len__")
    if method is not None:
        return Call(polyfill("composed"), [generic.as_length, method, value])
    if type(value) is Outside and value.items is not None:
        return value.dict_items.length()
    if type(value) is Outside and (asked := value.questions()) is not None:
        return asked.length()
    return len(operations.native_view(vm, value))


@answers(generic.as_length)
def _as_length(vm: Machine, value: Any) -> object:
    if type(value) in SYMBOLIC:
        return value
    if type(value) is int:
        return generic.as_length(value)
    return int(value) if type(value) is bool else Call(polyfill("composed"), [generic.as_length, operator.index, value])


@intercept(iter)
def _iter(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    value = args[0]
    if len(args) == 2:
        return Call(polyfill("iter_until"), args)
    if type(value) is Generator:
        return value
    method = vm.world.classes.python_method(class_of(value), "__iter__")
    if method is not None:
        return Call(polyfill("iterator_by_method"), [method, value])
    items = operations.native_iterable(vm, value)
    return Call(polyfill("iterate"), [value]) if items is MISSING else iter(items)


@intercept(next)
def _next(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    iterator = args[0]
    if type(iterator) is Generator:
        then, value = ("default", args[1]) if len(args) == 2 else ("stop", None)
        return SWITCHED if vm.resume(iterator, None, then, value) else vm.frames[-1].stack.pop()
    if vm.world.classes.python_method(class_of(iterator), "__next__") is not None:
        return Call(polyfill("next_item"), args)
    if type(iterator) is types.GeneratorType:  # of a context manager of torch's
        with setting_modes(vm):
            return next(*args)
    return next(*args)


@intercept(reversed)
def _reversed(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    value = args[0]
    cls = class_of(value)
    method = vm.world.classes.python_method(cls, "__reversed__")
    if method is not None:
        return Call(method, [value])
    if vm.world.classes.lookup(cls, "__reversed__") is None:
        raise TypeError(f"'{cls.__name__}' object is not reversible")
    if vm.world.classes.python_method(cls, "__getitem__") is not None and not issubclass(cls, (dict, list)):
        return Call(polyfill("reversed_items"), [value])
    vm.trace.where = vm.where()
    return reversed(operations.native_view(vm, value))


answers(generic.is_lazy)(operations.is_lazy)


@answers(generic.rest_of)
def _rest_of(vm: Machine, iterator: object) -> object:
    lazy = type(iterator) is not Generator and operations.is_lazy(vm, iterator)
    return Call(polyfill("drawn"), [iterator]) if lazy else iterator


# ---- functions over iterables ----------------------------------------------------------------------------------------


def _plain(value: Any) -> bool:
    """Whether native code may test, compare and call this item: it holds nothing of the program's."""
    cls = type(value)
    if cls is tuple or cls is list:
        return all(map(_plain, value))
    return (cls in CONSTANT_TYPES and cls is not types.FunctionType) or cls is TracedTensor


def _plain_iterable(value: Any) -> bool:
    return type(value) in _TEXTS or (type(value) in _SEQUENCES and all(map(_plain, value)))


def _plain_argument(value: Any) -> bool:
    """Whether native code that calls functions and looks at items does nothing of the program's with `value`."""
    if isinstance(value, type):
        return not is_python_class(value)
    if type(value) in _SEQUENCES:
        return all(map(_plain, value))
    return type(value) in CONSTANT_TYPES and not callable(value)


_LAZY = "chain cycle islice pairwise tee zip_longest batched"
_OVER_ITERABLES: dict[Any, str] = {
    enumerate: "enumerate_items",
    zip: "zip_items",
    **{getattr(itertools, name): name for name in _LAZY.split() if hasattr(itertools, name)},
}


@intercept_table(_OVER_ITERABLES)
def _over_iterables(function: Callable[..., object], name: str, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """These only iterate over their arguments, or make integers of them: they are native if that is."""
    views = [operations.native_iterable(vm, arg) for arg in args]
    if any(view is MISSING for view in views) or any(is_converted(vm, arg) for arg in args):
        return Call(polyfill(name), args, kwargs)
    return function(*views, **kwargs)


_ITERTOOLS = "accumulate compress groupby"
_HEAPQ = "heappush heappop heapify heapreplace heappushpop"
_OVER_ITEMS: dict[Any, tuple[Any, ...]] = {
    any: ("any_item",),
    all: ("all_items",),
    map: ("map_items",),
    functools.reduce: ("reduce_items",),
    itertools.chain.from_iterable: ("chain_from_iterable",),
    math.prod: ("product",),
    operator.countOf: ("count_of",),
    operator.indexOf: ("index_of",),
    filter: ("begin", generic._filter),
    itertools.dropwhile: ("begin", iteration._dropwhile),
    itertools.takewhile: ("begin", iteration._takewhile),
    itertools.filterfalse: ("begin", iteration._filterfalse),
    itertools.starmap: ("begin", iteration._starmap),
    bisect.bisect_left: ("bisect", True),
    bisect.bisect_right: ("bisect", False),
    bisect.insort_left: ("insort", True),
    bisect.insort_right: ("insort", False),
    **{getattr(itertools, name): (name,) for name in _ITERTOOLS.split()},
    **{getattr(heapq, name): (name,) for name in _HEAPQ.split()},
}
"""The names of polyfills, and what they are told first."""


@intercept_table(_OVER_ITEMS)
def _over_items(
    function: Callable[..., object], by: tuple[Any, ...], vm: Machine, args: Args, kwargs: Kwargs
) -> object:
    """These call, test or compare what they are given: they are native if all of that is plain."""
    plain = all(map(_plain_argument, args)) and all(map(_plain_argument, kwargs.values()))
    if plain and not (any(isinstance(arg, type) for arg in args) and any(map(_has_tensors, args))):
        vm.trace.where = vm.where()
        return function(*args, **kwargs)
    name, *told = by
    return Call(polyfill(name), [*told, *args], kwargs)


def _has_tensors(value: Any) -> bool:
    """Whether there are tensors among the items: a class may be called on them (`map(str, ...)`), or a branch of a
    polyfill, where they are compared, may be one of the graph."""
    return type(value) in _SEQUENCES and any(type(item) is TracedTensor for item in value)


@intercept(itertools.count)
def _count(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if all(type(arg) in (int, float, complex) for arg in [*args, *kwargs.values()]):
        return itertools.count(*args, **kwargs)
    return Call(polyfill("count"), args, kwargs)


# ---- order -----------------------------------------------------------------------------------------------------------


@intercept(sorted)
def _sorted(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if kwargs.get("key") is None and len(args) == 1 and _plain_iterable(args[0]):
        return sorted(args[0], **kwargs)
    return Call(polyfill("sorted_items"), args, kwargs)


@intercept(list.sort)
def _sort(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if kwargs.get("key") is None and len(args) == 1 and all(map(_plain, args[0])):
        return args[0].sort(**kwargs)
    return Call(polyfill("sort_list"), args, kwargs)


@answers(generic.sort_by)
def _sort_by(vm: Machine, items: Any, keys: Args, reverse: Any) -> object:
    """Sort by plain keys; None when comparing them runs code of the program, or is about sizes. Keys that are data are
    asked for all at once: after a break in each comparison there would be versions for each order."""
    if not all(map(_plain, keys)):
        if len(keys) > 1 and all(map(_is_number, keys)) and any(_has_data(vm, key) for key in keys):
            raise DataDependent("Tensor.item", vm.where())
        if type(items) is not list or not _are_sizes(keys) or any(map(operator.is_not, items, keys)):
            return None
        vm.trace.where = vm.where()
        items[:] = _in_order(keys)[:: -1 if reverse else 1]
        return True
    if type(items) is list:
        return generic.sort_by(items, keys, reverse)
    order = sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)
    return Call(polyfill("reorder"), [items, order])


_MOST = 4  # sizes that are sorted without a comparison; the expressions for more would be long


def _are_sizes(numbers: Args) -> bool:
    """Whether symbols are among a few integers, so that expressions may say what each order would be."""
    return len(numbers) <= _MOST and {torch.SymInt} <= set(map(type, numbers)) <= {torch.SymInt, int}


def _in_order(numbers: Args) -> list[object]:
    """The numbers from the smallest to the largest, whatever their values are."""
    smaller, larger = _EXTREMES[min][1], _EXTREMES[max][1]
    ordered: list[object] = []
    for number in numbers:
        for place, other in enumerate(ordered):
            ordered[place], number = smaller(other, number), larger(other, number)
        ordered.append(number)
    return ordered


def _is_number(value: Any) -> bool:
    """Whether a key is plain, but for symbolic numbers in it."""
    return all(map(_is_number, value)) if type(value) in (tuple, list) else type(value) in SYMBOLIC or _plain(value)


def _has_data(vm: Machine, value: Any) -> bool:
    """Whether there is a number in a key whose value the program does not know."""
    if type(value) in (tuple, list):
        return any(_has_data(vm, item) for item in value)
    if type(value) is TracedFloat:
        return value.formula is None
    return type(value) in SYMBOLIC and data.is_computed(vm.trace, value)


def _choose(better: Callable[[Any, Any], Any], best: Any, other: Any) -> object:
    """What Python chooses, in the graph."""
    return compute(lambda a, b: torch.where(better(b, a), b, a), best, other)


_Extreme = tuple[bool, Callable[..., object], Callable[..., object]]
_EXTREMES: dict[object, _Extreme] = {
    min: (False, torch.sym_min, functools.partial(_choose, operator.lt)),
    max: (True, torch.sym_max, functools.partial(_choose, operator.gt)),
}


@intercept_table(_EXTREMES)
def _extreme(function: Callable[..., object], facts: _Extreme, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    items = args[0] if len(args) == 1 else args
    vm.trace.where = vm.where()
    if len(args) > 1 and not kwargs and (chosen := _chosen(facts, args)) is not None:
        return chosen
    if kwargs.get("key") is None and (not args or (_plain_iterable(items) and not _has_tensors(items))):
        return function(*args, **kwargs)
    return Call(polyfill("extreme_item"), [facts[0], items], kwargs)


@answers(generic.extreme_of)
def _extreme_of(vm: Machine, largest: bool, best: object, other: object) -> object:
    vm.trace.where = vm.where()
    return _chosen(_EXTREMES[max if largest else min], (best, other))


def _chosen(facts: _Extreme, numbers: Sequence[object]) -> object:
    """The largest or smallest of sizes, or of numbers that are data, as one of the graph; None for other values."""
    _, symbolic, choose = facts
    if {torch.SymInt} <= set(map(type, numbers)) <= {torch.SymInt, int}:
        return functools.reduce(symbolic, numbers)
    return functools.reduce(choose, numbers) if _are_data(numbers) else None


def _are_data(numbers: Sequence[object]) -> bool:
    """Whether floats of the graph are among numbers whose comparison is not known."""
    unknown = any(type(number) is TracedFloat and number.formula is None for number in numbers)
    return unknown and all(type(number) in (int, float, TracedFloat) for number in numbers)


@intercept(builtins.sum)
def _sum(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if args and _plain_iterable(args[0]) and all(map(_plain, [*args[1:], *kwargs.values()])):
        vm.trace.where = vm.where()
        return sum(*args, **kwargs)
    return Call(polyfill("sum_items"), args, kwargs)
