"""Polyfills of built-in functions, operators and protocols. These run in the interpreter: they may use everything it
supports, except each other's natives.

Primitives are answered by the interpreter itself; their bodies are what they do in eager, after a break (see
`builtins`).
"""

from __future__ import annotations

import collections
import operator
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)


def is_lazy(value: object) -> bool:
    """Whether iterating over `value` runs code that has to be interpreted (primitive)."""
    return False


def is_stored(value: object) -> bool:
    """Whether a dict is copied with the items that are stored in it, whatever methods its class has (primitive)."""
    return isinstance(value, dict) and type(value).__iter__ is dict.__iter__


def rest_of(iterator: Iterator[Item]) -> Iterator[Item]:
    """What a loop goes on with: the items of an iterator, which may begin anew when it is asked for one (primitive)."""
    return drawn(iterator)


def drawn(iterator: Iterator[Item]) -> Iterator[Item]:
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


def drain(iterable: Any) -> Any:
    return [item for item in iterable]  # noqa: C416


def iterate(iterable: Any) -> Any:
    if hasattr(type(iterable), "__iter__"):
        iterator = iterator_by_method(type(iterable).__iter__, iterable)
        if not is_lazy(iterator):
            yield from iterator
            return
        while True:
            try:
                item = iterator.__next__()
            except StopIteration:
                return
            yield item
    else:
        index = 0
        while True:
            try:
                item = iterable[index]
            except IndexError:
                return
            yield item
            index += 1


def drained_call(function: Any, args: Any, kwargs: Any) -> Any:
    """A call of a native function with the lazy iterables among its arguments turned into lists first."""
    words = {key: drain(arg) if is_lazy(arg) else arg for key, arg in kwargs.items()}
    return function(*[drain(arg) if is_lazy(arg) else arg for arg in args], **words)


def next_item(iterator: Any, *default: Any) -> Any:
    if default:
        try:
            return type(iterator).__next__(iterator)
        except StopIteration:
            return default[0]
    return type(iterator).__next__(iterator)


def any_item(iterable: Any) -> Any:
    for item in iterable:  # noqa: SIM110
        if item:
            return True
    return False


def all_items(iterable: Any) -> Any:
    for item in iterable:  # noqa: SIM110
        if not item:
            return False
    return True


def enumerate_items(iterable: Any, start: Any = 0) -> Any:
    return _enumerate(iter(iterable), operator.index(start))


def _enumerate(iterator: Any, count: Any) -> Any:
    for item in rest_of(iterator):
        count += 1
        yield count - 1, item


def zip_items(*iterables: Any, strict: Any = False) -> Any:
    return _zip([iter(iterable) for iterable in iterables], strict)


def _zip(iterators: Any, strict: Any) -> Any:
    while iterators:
        items = []
        for position, iterator in enumerate(iterators):
            try:
                items.append(next(iterator))
                continue
            except StopIteration:
                pass
            if strict and position:
                raise ValueError(_mismatch(position, "shorter"))
            if strict:
                for other, rest in enumerate(iterators[1:]):
                    for _ in rest_of(rest):
                        raise ValueError(_mismatch(other + 1, "longer"))
            return
        yield tuple(items)


def _mismatch(position: Any, how: Any) -> Any:
    before = "argument 1" if position == 1 else f"arguments 1-{position}"
    return f"zip() argument {position + 1} is {how} than {before}"


def map_items(function: Any, *iterables: Any) -> Any:
    if not iterables:
        raise TypeError("map() must have at least two arguments.")
    return _map(function, [iter(iterable) for iterable in iterables])


def _map(function: Any, iterators: Any) -> Any:
    for args in _zip(iterators, False):
        yield function(*args)


def begin(body: Any, function: Any, iterable: Any) -> Any:
    """A generator over the items of an iterable."""
    return body(function, iter(iterable))


def _filter(function: Any, iterator: Any) -> Any:
    for item in rest_of(iterator):
        if item if function is None else function(item):
            yield item


def reversed_items(sequence: Any) -> Any:
    return _reversed(sequence, len(sequence) - 1)


def _reversed(sequence: Any, index: Any) -> Any:
    while index >= 0:
        try:
            item = sequence[index]
        except (IndexError, StopIteration):
            return
        index -= 1
        yield item


def sum_items(iterable: Any, /, start: Any = 0) -> Any:
    for item in iterable:
        start = start + item
    return start


def reduce_items(function: Any, iterable: Any, *initial: Any) -> Any:
    rest = rest_of(iter(iterable))
    if initial:
        value = initial[0]
    else:
        for first in rest:
            value = first
            break
        else:
            raise TypeError("reduce() of empty iterable with no initial value")
    for item in rest:
        value = function(value, item)
    return value


def count_of(iterable: Iterable[object], value: object) -> int:
    """`operator.countOf`."""
    count = 0
    for item in iterable:
        if item is value or item == value:
            count += 1
    return count


def index_of(iterable: Iterable[object], value: object) -> int:
    """`operator.indexOf`."""
    for index, item in enumerate(iterable):
        if item is value or item == value:
            return index
    raise ValueError("sequence.index(x): x not in sequence")


def sort_by(items: Any, keys: Any, reverse: Any) -> Any:
    """Sorts a list by plain keys; None where comparing them has to be interpreted (primitive)."""
    return reorder(items, sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse))


def reorder(items: Any, order: Any) -> bool:
    items[:] = [items[index] for index in order]
    return True


def sorted_items(iterable: Any, *, key: Any = None, reverse: Any = False) -> Any:
    items = list(iterable)
    sort_list(items, key=key, reverse=reverse)
    return items


def sort_list(items: Any, *, key: Any = None, reverse: Any = False) -> Any:
    keys = list(items) if key is None else [key(item) for item in items]
    if sort_by(items, keys, reverse):
        return
    order: list[int] = []
    for index in range(len(keys)):  # binary insertion: few comparisons, and only `<`
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            before = keys[order[middle]] < keys[index] if reverse else keys[index] < keys[order[middle]]
            if before:
                high = middle
            else:
                low = middle + 1
        order.insert(low, index)
    reorder(items, order)


_MISSING = object()


def extreme_of(largest: bool, best: object, other: object) -> object:
    """The larger or smaller of two numbers as one of the graph; None where they have to be compared (primitive)."""
    return None


def extreme_item(largest: bool, iterable: Any, *, key: Any = None, default: Any = _MISSING) -> Any:
    """`max` or `min`."""
    best = best_key = _MISSING
    for item in iterable:
        item_key = item if key is None else key(item)
        if key is None and best is not _MISSING and (chosen := extreme_of(largest, best, item)) is not None:
            best = best_key = chosen
        elif best_key is _MISSING or (item_key > best_key if largest else item_key < best_key):
            best, best_key = item, item_key
    if best is not _MISSING:
        return best
    if default is not _MISSING:
        return default
    return max(()) if largest else min(())  # raises as this version of Python does


def attribute_or(find: Any, args: Any, fallback: Any, owner: Any, name: Any) -> Any:
    """What a class with a `__getattr__` answers: that is also for attributes whose computation raises."""
    try:
        return find(*args)
    except AttributeError:
        pass
    return fallback(owner, name)


def getattr_default(owner: Any, name: Any, default: Any) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        return default


def has_attribute(owner: Any, name: Any) -> Any:
    try:
        getattr(owner, name)
    except AttributeError:
        return False
    return True


def cached_property_get(owner: Any, function: Any, name: Any) -> Any:
    value = function(owner)
    owner.__dict__[name] = value
    return value


def instantiate(cls: Any, args: Any, kwargs: Any) -> Any:
    instance = cls.__new__(cls, *args, **kwargs)
    if type.__subclasscheck__(cls, type(instance)):  # past what the class, or the object, says of that
        type(instance).__init__(instance, *args, **kwargs)
    return instance


def truth(value: Any) -> Any:
    cls = type(value)
    if hasattr(cls, "__bool__"):
        result = cls.__bool__(value)
        if type(result) is not bool:
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result
    return as_length(cls.__len__(value)) != 0


def composed(outer: Any, inner: Any, *args: Any) -> Any:
    return outer(inner(*args))


def as_length(value: Any) -> Any:
    """What `__len__` has answered, if it is a length. Answered by an intercept while capturing."""
    length = operator.index(value)
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    if length > sys.maxsize:
        raise OverflowError("cannot fit 'int' into an index-sized integer")
    return length


def iterator_by_method(method: Any, value: Any) -> Any:
    """`iter` of what has a method of its own."""
    iterator = method(value)
    if not hasattr(type(iterator), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type '{type(iterator).__name__}'")
    return iterator


def equal(left: Any, right: Any) -> Any:
    a: Any = type(left)
    b: Any = type(right)
    if a is not b and issubclass(b, a):
        a, b, left, right = b, a, right, left
    result = a.__eq__(left, right)
    if result is NotImplemented:
        result = b.__eq__(right, left)
    return left is right if result is NotImplemented else result


def object_unequal(left: Any, right: Any) -> Any:
    """`object.__ne__`."""
    cls: Any = type(left)
    result = cls.__eq__(left, right)
    return result if result is NotImplemented else not result


def unequal(left: Any, right: Any) -> Any:
    a: Any = type(left)
    b: Any = type(right)
    result: Any = NotImplemented
    if a.__ne__ is not object.__ne__:
        result = a.__ne__(left, right)
    if result is NotImplemented and b.__ne__ is not object.__ne__:
        result = b.__ne__(right, left)
    return not left == right if result is NotImplemented else result  # noqa: SIM201


def _repeats_by_no_number(sequence: type, other: type, symbol: str) -> bool:
    return sequence in _SEQUENCES and symbol in ("*", "*=") and not hasattr(other, "__index__")


def binary(left: Any, right: Any, in_place: Any, forward: Any, reflected: Any, symbol: Any) -> Any:
    """An arithmetic operator by its special methods."""
    a, b = type(left), type(right)
    first, then = hasattr(a, forward), a is not b and hasattr(b, reflected)
    if then and a in _SEQUENCES:
        result = getattr(b, reflected)(right, left)  # sequences concatenate and repeat only when nobody else can
        if result is not NotImplemented:
            return result
        then = False
    if _repeats_by_no_number(a, b, symbol):
        raise TypeError(f"can't multiply sequence by non-int of type '{b.__name__}'")
    if in_place is not None and hasattr(a, in_place):
        result = getattr(a, in_place)(left, right)
        if result is not NotImplemented:
            return result
    if then and issubclass(b, a) and getattr(b, reflected) is not getattr(a, reflected, None):
        result = getattr(b, reflected)(right, left)
        if result is not NotImplemented:
            return result
        then = False
    if first:
        result = getattr(a, forward)(left, right)
        if result is not NotImplemented:
            return result
    then = then and not (b in _SEQUENCES and symbol == "*=")  # a sequence on the right is repeated by `*` only
    if then and _repeats_by_no_number(b, a, symbol):
        raise TypeError(f"can't multiply sequence by non-int of type '{a.__name__}'")
    if then:
        result = getattr(b, reflected)(right, left)
        if result is not NotImplemented:
            return result
    raise TypeError(f"unsupported operand type(s) for {symbol}: '{a.__name__}' and '{b.__name__}'")


def compare(left: Any, right: Any, forward: Any, reflected: Any, symbol: Any) -> Any:
    """`<`, `<=`, `>` or `>=` by its special methods."""
    a, b = type(left), type(right)
    right_first = a is not b and issubclass(b, a)
    result = getattr(b, reflected)(right, left) if right_first else getattr(a, forward)(left, right)
    if result is NotImplemented:
        result = getattr(a, forward)(left, right) if right_first else getattr(b, reflected)(right, left)
    if result is NotImplemented:
        raise TypeError(f"'{symbol}' not supported between instances of '{a.__name__}' and '{b.__name__}'")
    return result


def contains(container: Any, item: Any) -> Any:
    cls = type(container)
    method = getattr(cls, "__contains__", list.__contains__)
    if method is not list.__contains__ and method is not tuple.__contains__:
        return True if cls.__contains__(container, item) else False  # noqa: SIM210
    if not (hasattr(cls, "__iter__") or hasattr(cls, "__getitem__")):
        raise TypeError(f"argument of type {cls.__name__!r} is not iterable")
    for other in container:  # noqa: SIM110
        if other is item or other == item:
            return True
    return False


def contains_not(container: Any, item: Any) -> Any:
    return not contains(container, item)


def match_keys(subject: Any, keys: Any) -> Any:
    missing = object()
    values = []
    for key in keys:
        value = subject.get(key, missing)
        if value is missing:
            return None
        values.append(value)
    return tuple(values)


def dict_without_keys(subject: Any, keys: Any) -> Any:
    rest = dict(subject)
    for key in keys:
        del rest[key]
    return rest


_SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def match_class(subject: Any, cls: Any, count: Any, names: Any) -> Any:
    if not isinstance(subject, cls):
        return None
    positional: Any = ()
    if count:
        positional = getattr(cls, "__match_args__", None)
        if positional is None and (count > 1 or not issubclass(cls, _SELF_MATCHING)):
            raise TypeError(f"{cls.__name__}() accepts 0 positional sub-patterns ({count} given)")
    values = [subject] if positional is None else []
    for name in (*(positional or ())[:count], *names):
        if not hasattr(subject, name):
            return None
        values.append(getattr(subject, name))
    return tuple(values)


def holds_for_any(check: Any, value: Any, classes: Any) -> Any:
    for cls in classes:  # noqa: SIM110
        if check(value, cls):
            return True
    return False


# ---- parts of statements and calls: unpacking, `**keywords` ----------------------------------------------------------


def take(iterable: Any, count: Any) -> Any:
    """The first `count` items, of which there is one at least."""
    items = []
    for item in iterable:
        items.append(item)
        if len(items) == count:
            break
    return items


def take_all(iterable: Iterable[object], before: int) -> list[object]:
    """What ``a, *b = iterable`` draws, with `before` names in front of the star; of the rest a list is made, for which
    the iterator is asked for one."""
    iterator = iter(iterable)
    items: list[object] = []
    while len(items) < before:
        try:
            items.append(next(iterator))
        except StopIteration:
            return items
    return [*items, *iterator]


def merge(target: Any, mapping: Any) -> Any:
    """``{**target, **mapping}``: where it raises AttributeError, that is no mapping."""
    try:
        for key in list(mapping.keys()):
            target[key] = mapping[key]
        return
    except AttributeError:
        pass
    raise TypeError(f"'{type(mapping).__name__}' object is not a mapping")


def merge_keywords(target: Any, mapping: Any, function: Any, misread: Any) -> Any:
    """``function(**target, **mapping)``. With `misread`, a KeyError of the mapping's is taken for that of a key that is
    there already."""
    message = f"{function} argument after ** must be a mapping, not {type(mapping).__name__}"
    try:
        for key in list(mapping.keys()):
            if key in target:
                raise TypeError(f"{function} got multiple values for keyword argument '{key}'")
            target[key] = mapping[key]
        return
    except AttributeError:
        pass
    except KeyError as error:
        if not misread or len(error.args) != 1:
            raise
        message = f"{function} got multiple values for keyword argument '{error.args[0]!s}'"
    raise TypeError(message)


def init_subclass(cls: Any, keywords: Any) -> None:
    """What making a class does last."""
    super(cls, cls).__init_subclass__(**keywords)
