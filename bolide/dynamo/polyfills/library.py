"""Functions of the standard library and methods of built-in types that call back into the program."""

from __future__ import annotations

import _string  # type: ignore[import-not-found]
import collections
import copyreg
import functools
import operator
import re
import sys
import types
from typing import Any

from bolide.dynamo.polyfills.generic import is_stored

_NOTHING = object()

# ---- text ------------------------------------------------------------------------------------------------------------


def represent(value: Any) -> Any:
    """`repr` of a built-in container."""
    if isinstance(value, dict):
        return "{" + ", ".join([f"{key!r}: {item!r}" for key, item in value.items()]) + "}"
    parts = ", ".join([repr(item) for item in value])
    if isinstance(value, list):
        return "[" + parts + "]"
    if isinstance(value, tuple):
        return "(" + parts + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, frozenset):
        return "frozenset({" + parts + "})" if value else "frozenset()"
    return "{" + parts + "}" if value else "set()"


def represent_special(value: Any) -> Any:
    """`repr` of the containers of `collections`, and of tuples with names."""
    cls: Any = type(value)
    name = cls.__name__
    if isinstance(value, tuple):
        names = getattr(cls, "_fields", None)
        if names is None:  # torch's own
            parts = [f"{key}={item!r}" for key, item in zip(cls.__match_args__, value)]
            return f"{cls.__module__}.{name}(\n" + ",\n".join(parts) + ")"
        return name + "(" + ", ".join([f"{key}={item!r}" for key, item in zip(names, value)]) + ")"
    if isinstance(value, collections.defaultdict):
        return f"{name}({value.default_factory!r}, {represent(value)})"
    if isinstance(value, collections.OrderedDict):
        if sys.version_info < (3, 12):
            return f"{name}({list(value.items())!r})" if value else f"{name}()"
        return f"{name}({represent(value)})" if value else f"{name}()"
    return f"{name}({list(value)!r}" + (")" if value.maxlen is None else f", maxlen={value.maxlen})")


def repr_of_exception(error: Any) -> Any:
    args = error.args
    return type(error).__name__ + (f"({args[0]!r})" if len(args) == 1 else repr(args))


def text_of_exception(error: Any) -> Any:
    args = error.args
    if len(args) > 1:
        return repr(args)
    return str(args[0]) if args else ""


def text_by_method(method: Any, complaint: Any, *args: Any) -> Any:
    text = method(*args)
    if not isinstance(text, str):
        raise TypeError(complaint + type(text).__name__ + (")" if "(" in complaint else ""))
    return text


def format_text(value: Any, spec: Any) -> Any:
    """`object.__format__`."""
    if spec:
        raise TypeError(f"unsupported format string passed to {type(value).__name__}.__format__")
    return str(value)


def format_converted(value: Any, conversion: Any, spec: Any) -> Any:
    """`{value!conversion:spec}`; conversion as in FORMAT_VALUE."""
    text = str(value) if conversion == 1 else repr(value)
    if conversion == 3:
        text = text.encode("ascii", "backslashreplace").decode("ascii")
    return format(text, spec)


def format_pieces(template: Any) -> Any:
    """What `str.format` has to do: (literal, (first, path) or None, conversion, spec). Runs natively."""
    pieces = []
    for literal, field, spec, conversion in _string.formatter_parser(template):
        target = None
        if field is not None:
            first, rest = _string.formatter_field_name_split(field)
            target = (first, list(rest))
        pieces.append((literal, target, {None: 0, "s": 1, "r": 2, "a": 3}[conversion], spec))
    return pieces


def format_string(template: Any, args: Any, kwargs: Any, automatic: Any) -> Any:
    """`str.format`; `automatic` holds the number of the next unnamed field."""
    out = []
    for literal, target, conversion, spec in format_pieces(template):
        out.append(literal)
        if target is None:
            continue
        first, path = target
        if first == "":
            first = automatic[0]
            automatic[0] += 1
        value = args[first] if isinstance(first, int) else kwargs[first]
        for is_attribute, key in path:
            value = getattr(value, key) if is_attribute else value[key]
        spec = format_string(spec, args, kwargs, automatic)
        out.append(format_converted(value, conversion, spec) if conversion else format(value, spec))
    return "".join(out)


_PERCENT = re.compile(r"%(?:\(([^)]*)\))?([#0\- +]*)(\*|\d+)?(?:\.(\*|\d+)?)?[hlL]?(.)", re.DOTALL)


def percent_pieces(template: Any) -> Any:
    """What `%` has to do: (literal, key, what stands before the kind, number of stars, kind). Runs natively."""
    pieces = []
    at = 0
    for match in _PERCENT.finditer(template):
        key, _, width, digits, kind = match.groups()
        head = match.group()[:-1] if key is None else "%" + match.group()[len(key) + 3 : -1]
        pieces.append((template[at : match.start()], key, head, [width, digits].count("*"), kind))
        at = match.end()
    return [*pieces, (template[at:], None, "", 0, "")]


def percent(template: Any, values: Any) -> Any:
    """`template % values`."""
    args = values if isinstance(values, tuple) else (values,)
    out = []
    used = 0
    for literal, key, head, stars, kind in percent_pieces(template):
        out.append(literal)
        if kind == "%":
            out.append("%")
        elif kind:
            if key is None and len(args) < used + stars + 1:
                raise TypeError("not enough arguments for format string")
            value = args[used + stars] if key is None else values[key]
            sizes = args[used : used + stars]
            used = used + stars + 1 if key is None else len(args)
            if kind in ("s", "r", "a"):
                value = str(value) if kind == "s" else repr(value) if kind == "r" else ascii(value)
                kind = "s"
            out.append(value if head + kind == "%s" else percent_of(head + kind, (*sizes, value)))
    if used < len(args) and (isinstance(values, (tuple, str)) or not hasattr(values, "__getitem__")):
        raise TypeError("not all arguments converted during string formatting")
    return "".join(out)


def percent_of(template: Any, values: Any) -> Any:
    """`template % values`, one value and the sizes that it is given. Answered by an intercept while capturing."""
    return template % values


def print_texts(args: Any, kwargs: Any) -> None:
    """`print` of objects as their texts."""
    print(*[str(arg) for arg in args], **kwargs)


def print_to(*values: Any, file: Any, sep: Any = None, end: Any = None) -> Any:
    """`print` to a file of the program."""
    text = (" " if sep is None else sep).join([str(value) for value in values])
    file.write(text + ("\n" if end is None else end))


# ---- containers ------------------------------------------------------------------------------------------------------


def extend(append: Any, items: Any, iterable: Any) -> Any:
    for item in iterable:
        append(items, item)


def list_iadd(items: Any, iterable: Any) -> Any:
    base: Any = list if isinstance(items, list) else collections.deque
    base.extend(items, iterable)
    return items


def assign_slice(put: Any, items: Any, key: Any, iterable: Any) -> None:
    """`items[key] = iterable`, for a slice; a list makes one of the iterator, which so is asked for one."""
    put(items, key, [*(iter(iterable) if isinstance(items, list) else iterable)])


def list_index(items: Any, value: Any, start: Any = 0, stop: Any = None) -> Any:
    for index in range(*slice(start, stop).indices(len(items))):
        if items[index] is value or items[index] == value:
            return index
    raise ValueError("tuple.index(x): x not in tuple" if isinstance(items, tuple) else f"{value!r} is not in list")


def list_count(items: Any, value: Any) -> int:
    count = 0
    for item in items:
        if item is value or item == value:
            count += 1
    return count


def list_remove(items: Any, value: Any) -> None:
    for index in range(len(items)):
        if items[index] is value or items[index] == value:
            del items[index]
            return
    raise ValueError("list.remove(x): x not in list")


def sequences_equal(left: Any, right: Any) -> Any:
    if len(left) != len(right):
        return False
    for a, b in zip(left, right):  # noqa: SIM110
        if not (a is b or a == b):
            return False
    return True


def dicts_equal(left: Any, right: Any) -> Any:
    if len(left) != len(right):
        return False
    for key, value in left.items():
        other = right.get(key, _NOTHING)
        if other is _NOTHING or not (other is value or other == value):
            return False
    return True


def sequences_unequal(left: Any, right: Any) -> Any:
    return not sequences_equal(left, right)


def dicts_unequal(left: Any, right: Any) -> Any:
    return not dicts_equal(left, right)


def default_item(owner: Any, key: Any) -> Any:
    """`defaultdict.__missing__`."""
    factory = owner.default_factory
    if factory is None:
        raise KeyError(key)
    value = factory()
    owner[key] = value
    return value


def dict_update(target: Any, args: Any, kwargs: Any) -> None:
    """`dict.update`."""
    for source in (*args, kwargs):
        if is_stored(source):
            for key, value in dict.items(source):
                dict.__setitem__(target, key, value)
        elif hasattr(source, "keys"):
            for key in list(source.keys()):
                dict.__setitem__(target, key, source[key])
        else:
            for key, value in source:
                dict.__setitem__(target, key, value)


def ordered_update(target: Any, args: Any, kwargs: Any) -> None:
    """`OrderedDict.update`: it asks every mapping for its keys, and a subclass to put items in."""
    for source in (*args, kwargs):
        if hasattr(source, "keys"):
            for key in source.keys():  # noqa: SIM118
                target[key] = source[key]
        else:
            for key, value in source:
                target[key] = value


def ordered_copy(source: Any) -> Any:
    """`OrderedDict.copy` of an instance of a subclass."""
    copy = type(source)()
    for key in list(collections.OrderedDict.__iter__(source)):
        copy[key] = source[key]
    return copy


def dict_ior(target: Any, source: Any) -> Any:
    """`target |= source`."""
    update = ordered_update if isinstance(target, collections.OrderedDict) else dict_update
    update(target, (source,), {})
    return target


def dict_or(left: Any, right: Any) -> Any:
    """`left | right` of dicts that do not define it."""
    sides = [type(side) for side in (left, right) if isinstance(side, collections.OrderedDict)]
    cls: Any = sides[0] if sides else dict
    return dict_ior(cls(left), right)


def ordered_setdefault(target: Any, key: Any, default: Any = None) -> Any:
    """`OrderedDict.setdefault`, where a subclass has its own way of setting items."""
    if key in target:
        return target[key]
    target[key] = default
    return default


def by_index(operation: Any, owner: Any, key: Any, *rest: Any) -> Any:
    """An operation on an item of a sequence, or on a slice, by what an object says that its place is."""
    return operation(owner, _slice_of(key) if isinstance(key, slice) else operator.index(key), *rest)


def by_tensor_index(operation: Any, owner: Any, key: Any, *rest: Any) -> Any:
    """As `by_index`, for tensors and arrays: a place may be a tuple, of which only some parts are such objects."""
    where = tuple([_tensor_index(part) for part in key]) if isinstance(key, tuple) else _tensor_index(key)
    return operation(owner, where, *rest)


def slice_indices(key: Any, length: Any) -> Any:
    return _slice_of(key).indices(operator.index(length))


def _slice_of(key: Any) -> Any:
    return slice(*[part if part is None else operator.index(part) for part in (key.start, key.stop, key.step)])


def _tensor_index(part: Any) -> Any:
    if isinstance(part, slice):
        return _slice_of(part)
    if isinstance(part, int) or not isinstance(getattr(type(part), "__index__", None), types.FunctionType):
        return part
    try:
        return operator.index(part)
    except Exception:  # torch only asks whether this is an index
        kinds = "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices"
        error = IndexError(f"{kinds} (got {type(part).__name__})")
    raise error


def length_hint(value: Any, default: Any = 0) -> Any:
    """`operator.length_hint`."""
    for name in ("__len__", "__length_hint__"):
        if hasattr(type(value), name):
            return getattr(type(value), name)(value)
    return default


def on_indices(function: Any, args: Any) -> Any:
    return function(*[operator.index(arg) for arg in args])


def on_floats(function: Any, args: Any) -> Any:
    """A function of numbers, called with what gives numbers."""
    return function(*[arg if isinstance(arg, (int, float)) else float(arg) for arg in args])


def has_items(wanted: Any, owner: Any, items: Any) -> Any:
    """`set.issuperset`, or, where none is `wanted`, `set.isdisjoint`, which ask for no more items than they need."""
    has = set.__contains__ if isinstance(owner, set) else frozenset.__contains__
    for item in items:  # noqa: SIM110
        if has(owner, item) is not wanted:
            return False
    return True


def from_keys(cls: Any, iterable: Any, value: Any = None) -> Any:
    """`dict.fromkeys`."""
    result = cls()
    for key in iterable:
        result[key] = value
    return result


def make_dict(cls: Any, args: Any, kwargs: Any) -> Any:
    """`cls(*args, **kwargs)` of a class of dicts with no `__new__` of its own."""
    result = cls.__new__(cls)
    cls.__init__(result, *args, **kwargs)
    return result


def make_default_dict(factory: Any, /, *args: Any, **kwargs: Any) -> Any:
    result: Any = collections.defaultdict(factory)
    dict_update(result, args, kwargs)
    return result


# ---- numbers ---------------------------------------------------------------------------------------------------------


def via_special(name: Any, function: Any, args: Any, kind: Any) -> Any:
    """`function(*args)` by the special method `name` of its first argument, whose result has to be a `kind`."""
    value = args[0]
    result = getattr(type(value), name)(value, *args[1:])
    if kind is None:
        return result
    if name == "__index__" or function is int:
        kind = int
    if not isinstance(result, kind):
        raise TypeError(f"{type(value).__name__}.{name}() returned non-{kind.__name__} (type {type(result).__name__})")
    return function(result)


def hash_of(value: Any) -> Any:
    cls: Any = type(value)
    result = cls.__hash__(value)
    if not isinstance(result, int):
        raise TypeError("__hash__ method should return an integer")
    return hash(result)


def product(iterable: Any, start: Any = 1) -> Any:
    for item in iterable:
        start = start * item
    return start


# ---- functools, operator ---------------------------------------------------------------------------------------------


def lru_cache(maxsize: Any = 128, typed: Any = False) -> Any:
    """`functools.lru_cache` for a function made by the program."""
    if callable(maxsize):
        return lru_cache_wrapper(maxsize, 128, typed)
    if maxsize is not None and not isinstance(maxsize, int):
        raise TypeError("Expected first argument to be an integer, a callable, or None")

    def decorate(function: Any) -> Any:
        return lru_cache_wrapper(function, maxsize, typed)

    return decorate


def lru_cache_wrapper(function: Any, maxsize: Any, typed: Any) -> Any:
    if not callable(function):
        raise TypeError("the first argument must be callable")
    results: Any = {}
    counts = [0, 0]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        key: Any = (args, tuple(kwargs.items()))
        if typed:
            key = (*key, tuple([type(arg) for arg in args]), tuple([type(arg) for arg in kwargs.values()]))
        if key in results:
            counts[0] += 1
            value = results.pop(key)
        else:
            counts[1] += 1
            value = function(*args, **kwargs)
            if maxsize is not None and len(results) >= maxsize > 0:
                del results[next(iter(results))]
        if maxsize != 0:
            results[key] = value
        return value

    def cache_info() -> Any:
        return functools._CacheInfo(counts[0], counts[1], maxsize, len(results))

    def cache_clear() -> Any:
        results.clear()
        counts[:] = [0, 0]

    update_wrapper(wrapper, function)
    wrapper.cache_info = cache_info  # type: ignore[attr-defined]
    wrapper.cache_clear = cache_clear  # type: ignore[attr-defined]
    return wrapper


def cache(function: Any) -> Any:
    return lru_cache_wrapper(function, None, False)


def call_cached(function: Any, results: Any, key: Any, args: Any, kwargs: Any) -> Any:
    """A call of an `lru_cache` function from outside whose arguments are not constants; `results` are those of this
    run, by function and arguments as in `key`."""
    if key not in results:
        before = writes()
        results[key] = settled(before, function, args, kwargs, function.__wrapped__(*args, **kwargs))
    return results[key]


def writes() -> Any:
    """What has been written to the outside world by now. Answered by an intercept while capturing."""


def settled(before: Any, function: Any, args: Any, kwargs: Any, answer: Any) -> Any:
    """What stands for the answer of a cached function; refuses one with effects. Answered by an intercept while
    capturing."""


def update_wrapper(wrapper: Any, wrapped: Any, assigned: Any = None, updated: Any = ("__dict__",)) -> Any:
    """`functools.update_wrapper`."""
    for name in functools.WRAPPER_ASSIGNMENTS if assigned is None else assigned:
        if hasattr(wrapped, name):
            value = getattr(wrapped, name)
            setattr(wrapper, name, dict(value) if name == "__annotations__" else value)
    for name in updated:
        getattr(wrapper, name).update(getattr(wrapped, name, {}))
    wrapper.__wrapped__ = wrapped
    return wrapper


def get_attributes(owner: Any, paths: Any) -> Any:
    """A call of an `operator.attrgetter`."""
    values = []
    for path in paths:
        value = owner
        for name in path.split("."):
            value = getattr(value, name)
        values.append(value)
    return values[0] if len(values) == 1 else tuple(values)


def get_items(owner: Any, keys: Any) -> Any:
    """A call of an `operator.itemgetter`."""
    values = [owner[key] for key in keys]
    return values[0] if len(values) == 1 else tuple(values)


def call_method(owner: Any, name: Any, args: Any, kwargs: Any) -> Any:
    """A call of an `operator.methodcaller`."""
    return getattr(owner, name)(*args, **kwargs)


# ---- copy ------------------------------------------------------------------------------------------------------------


def copies_itself(value: Any) -> Any:
    """Whether a copy of `value` is `value` (immutable, or a function, class or module); refuses what nobody can copy.
    Answered by an intercept while capturing."""
    return isinstance(value, _ATOMIC)


_ATOMIC: Any = (type(None), int, float, complex, bool, str, bytes, type, range, type(copyreg), type(copyreg.pickle))


def copy_shallow(value: Any) -> Any:
    """`copy.copy`."""
    if type(value) in (tuple, frozenset) or copies_itself(value):
        return value
    hook = getattr(type(value), "__copy__", None)
    if hook is not None:
        return hook(value)
    return _copied(value, lambda part: part, lambda new: None)


def new_memo() -> Any:
    """What a deep copy keeps of those made so far. Answered by an intercept while capturing."""
    return {}


def memo_key(value: Any, memo: Any) -> Any:
    """The key of `value` there. In a memo of ours nobody sees it; in others it is `id(value)`, from outside."""
    return id(value)


def copy_deep(value: Any, memo: Any = None, _nil: Any = None) -> Any:
    """`copy.deepcopy`, whose own marker nobody gives it."""
    memo = new_memo() if memo is None else memo
    key = memo_key(value, memo)
    if key in memo:
        return memo[key]
    if copies_itself(value):
        return value
    hook = getattr(value, "__deepcopy__", None)
    if hook is not None:
        result = hook(memo)
    elif type(value) is tuple:
        parts = tuple([copy_deep(item, memo) for item in value])
        result = value if all([a is b for a, b in zip(parts, value)]) else parts  # noqa: C419
    else:
        result = _copied(value, lambda part: copy_deep(part, memo), lambda new: memo.__setitem__(key, new))
    if result is not value:
        memo[key] = result
        memo.setdefault(id(memo), []).append(value)
    return result


def copy_tensor_deep(value: Any, memo: Any) -> Any:
    """`Tensor.__deepcopy__`."""
    key = memo_key(value, memo)
    if key in memo:
        return memo[key]
    result = new_tensor(value, memo)
    gradient, attributes = beside_tensor(value)
    if gradient is not None:
        result.grad = copy_tensor_deep(gradient, memo)
    for name, attribute in attributes.items():
        setattr(result, name, copy_deep(attribute, memo))
    memo[key] = result
    return result


def copy_tensor_shallow(value: Any) -> Any:
    """`copy.copy` of a tensor."""
    result = new_tensor(value)
    for name, attribute in beside_tensor(value, True)[1].items():
        setattr(result, name, attribute)
    return result


def new_tensor(value: Any, memo: Any = None) -> Any:
    """A copy of a tensor: with a memo, one of its data as well. Answered by an intercept while capturing."""


def beside_tensor(value: Any, shallow: bool = False) -> Any:
    """What else is copied of a tensor: its gradient, or None, and a dict of its own attributes. Answered likewise."""


_REDUCED_CONTAINERS = (collections.OrderedDict, collections.defaultdict, collections.deque, set, frozenset)


def _copied(value: Any, part: Any, note: Any) -> Any:
    """A new object like `value`, with its items and state passed through `part`; `note` is told of it before that."""
    cls: Any = type(value)
    reduces = cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__
    if reduces and not issubclass(cls, _REDUCED_CONTAINERS):
        return _rebuilt(value, part, note)
    if issubclass(cls, (tuple, frozenset)):
        parts = [part(item) for item in value]
        new = cls.__new__(cls, *parts) if hasattr(cls, "_fields") else cls.__new__(cls, parts)
    elif issubclass(cls, (int, float, str, bytes)):
        new = cls.__new__(cls, value)
    else:
        new = cls.__new__(cls)
    note(new)
    if issubclass(cls, collections.deque):
        new.__init__([part(item) for item in value], value.maxlen)
    elif issubclass(cls, list):
        for item in value:
            new.append(part(item))
    elif issubclass(cls, set):
        for item in value:
            new.add(part(item))
    elif issubclass(cls, dict):
        if issubclass(cls, collections.defaultdict):
            new.default_factory = value.default_factory
        for key, item in value.items():
            new[part(key)] = part(item)
    _copy_state(value, new, part)
    return new


def iterator_parts(value: Any) -> Any:
    """What an iterator of the library is made of: a function, its arguments and a state; None for other objects.
    Answered by an intercept while capturing."""


def made_of_parts(function: Any, args: Any, state: Any) -> Any:
    """The iterator. Answered by an intercept while capturing."""


def _rebuilt(value: Any, part: Any, note: Any) -> Any:
    """As `_copied`, by the class's own `__reduce_ex__` or `__reduce__`."""
    parts = iterator_parts(value)
    if parts is not None:
        return made_of_parts(*[part(each) for each in parts])
    by_version = getattr(type(value), "__reduce_ex__") is not object.__reduce_ex__  # noqa: B009
    parts = value.__reduce_ex__(4) if by_version else value.__reduce__()
    if isinstance(parts, str):
        return value
    function, args, state, items, pairs = (*parts, None, None, None)[:5]
    new = function(*[part(arg) for arg in args])
    note(new)
    if state is not None:
        _give_state(new, part(state))
    for item in items or ():
        new.append(part(item))
    for key, item in pairs or ():
        new[part(key)] = part(item)
    return new


def _give_state(new: Any, state: Any) -> None:
    """What `copy` does with the state that `__reduce__` has told."""
    if hasattr(new, "__setstate__"):
        new.__setstate__(state)
        return
    in_slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, in_slots = state
    if state:
        new.__dict__.update(state)
    for name, item in (in_slots or {}).items():
        setattr(new, name, item)


def _copy_state(value: Any, new: Any, part: Any) -> None:
    cls = type(value)
    state: Any = {}
    if hasattr(cls, "__getstate__") and cls.__getstate__ is not getattr(object, "__getstate__", None):
        state = part(value.__getstate__())
    elif hasattr(value, "__dict__"):
        state = {key: part(item) for key, item in value.__dict__.items()}
    if hasattr(cls, "__setstate__"):
        if state:
            new.__setstate__(state)
        return
    for key, item in state.items():
        new.__dict__[key] = item
    for base in cls.__mro__:
        names = base.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                object.__setattr__(new, name, part(getattr(value, name)))
