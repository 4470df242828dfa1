"""What is known of a value by its class or by where it comes from: constants, opaque handles, libraries."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import gc
import inspect
import math
import os
import re
import sys
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import numpy
import torch
from torch.utils import _pytree as pytree

from bolide.dynamo.policy import is_python_class
from bolide.support.caches import by_class

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>", "__slots__": ()})()

_LIBRARY_ROOT = os.path.dirname(os.__file__) + os.sep
_OWN_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARIES = (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, _OWN_ROOT + os.sep)

#: Constants that are told apart by their identity, ...
IDENTITY: frozenset[type] = frozenset(
    [type(None), bool, type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format, re.Pattern]
    + [types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType]
    + [types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType]
    + [types.FunctionType, types.ModuleType, types.GenericAlias, types.UnionType, functools._lru_cache_wrapper]
    + [datetime.timezone]
)
#: ... and those of which equal ones are the same, as far as `same_constant` says.
_EQUAL = frozenset(
    [int, float, complex, str, bytes, range, slice, torch.device, torch.Size, torch.finfo, torch.iinfo, uuid.UUID]
    + [numpy.finfo, numpy.iinfo, datetime.date, datetime.datetime, datetime.time, datetime.timedelta]
    + [decimal.Decimal, fractions.Fraction]
    + [type(numpy.dtype(code)) for code in numpy.typecodes["All"] if code != "V"]  # V: fields, titles
)
CONSTANT_TYPES = IDENTITY | _EQUAL
BOUND_BUILTINS = frozenset({types.BuiltinFunctionType, types.MethodWrapperType})


class Watch(weakref.ref[object]):
    """A weak reference of bolide's own, which tells the program nothing."""

    __slots__ = ()


def can_be_watched(cls: type) -> bool:
    """Whether objects of a class take weak references, and end them as they die. PyTorch's streams on a GPU do not end
    them: one that outlives its stream writes to memory that is something else's by then."""
    return cls.__weakrefoffset__ != 0 and not issubclass(cls, torch.Stream)


WEAK_CONTAINERS = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
C_METHODS = frozenset({types.MethodDescriptorType, types.WrapperDescriptorType})


FUNCTION_APPLY = vars(torch.autograd.Function)["apply"]
"""A class method, in Python or in C. It runs code of the program: to captured code it is a method as one in Python."""


def is_function_apply(method: types.BuiltinMethodType) -> bool:
    """Whether a method written in C is `apply` of an `autograd.Function`."""
    owner = method.__self__
    is_of_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
    return is_of_function and method == FUNCTION_APPLY.__get__(None, owner)


def is_bound(function: Any) -> bool:
    """Whether a function written in C is a method of some object (rather than of a class or a module), or as one."""
    of_object = not isinstance(function.__self__, (type(None), type, types.ModuleType))
    return of_object or is_function_apply(function)


def descriptor_of(function: Any) -> Any:
    """The descriptor that a method written in C is bound from: not the one that its name finds where a class of the
    user's overrides it (`super().append`). None where there is none."""
    owner = function.__self__
    for base in type(owner).__mro__:
        descriptor: Any = vars(base).get(function.__name__)
        if type(descriptor) in C_METHODS and descriptor.__get__(owner) == function:
            return descriptor
    return None


@functools.cache
def is_library_file(filename: str) -> bool:
    """Whether a source file belongs to torch, to the standard library or to bolide. What else is installed is as the
    user's own: people install what they work on."""
    if filename.startswith(("<frozen", *_LIBRARIES)):
        return True
    return filename.startswith(_LIBRARY_ROOT) and not is_installed(filename)


def is_own_file(filename: str) -> bool:
    """Whether a source file is bolide's."""
    return filename.startswith(_OWN_ROOT + os.sep)


def is_installed(filename: str) -> bool:
    """Whether a source file belongs to an installed package."""
    return "site-packages" in filename or "dist-packages" in filename


def is_library_namespace(namespace: dict[str, object]) -> bool:
    """Whether module globals belong to a library, whose constants and classes are trusted not to change."""
    filename = namespace.get("__file__")
    if filename is None:
        return namespace.get("__name__") in sys.builtin_module_names
    return is_library_file(filename)


def is_own_namespace(namespace: dict[str, object]) -> bool:
    """Whether module globals are bolide's."""
    return str(namespace.get("__name__")).partition(".")[0] == "bolide"


@by_class
def is_library_class(cls: type) -> bool:
    module = sys.modules.get(getattr(cls, "__module__", ""))
    return module is not None and (cls.__module__ == "builtins" or is_library_namespace(module.__dict__))


_CODE = frozenset(
    {types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper, staticmethod, classmethod, property}
)


def is_code(value: object) -> bool:
    """Whether a value of a module or class is a function, a method or a class."""
    return type(value) in _CODE or isinstance(value, type)


#: What a function consists of that may be replaced.
FUNCTION_PARTS = frozenset(
    ["__code__", "__defaults__", "__kwdefaults__", "__annotations__", "__name__", "__qualname__"]
    + ["__module__", "__doc__"]
)
SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)


def is_derived_constant(value: object, cls: type) -> bool:
    """Whether an instance of a subclass of int, float, str or bytes is nothing but that."""
    if not issubclass(cls, (int, float, str, bytes)) or own_namespace(value):
        return False
    return type(cls.__eq__) is not types.FunctionType


def ordered_keys(table: dict[object, object]) -> list[object]:
    """The keys of a dict in their order, past any methods of its class. (An OrderedDict keeps an order of its own.)"""
    if isinstance(table, collections.OrderedDict):
        return [*collections.OrderedDict.__iter__(table)]
    return [*dict.keys(table)]


PLAIN: object = type("Plain", (), {"__slots__": (), "__repr__": lambda self: "a plain value"})()


def lacks_attribute(owner: object, name: str) -> bool:
    """Whether `object.__getattribute__` does not find an attribute."""
    try:
        object.__getattribute__(owner, name)
    except AttributeError:
        return True
    return False


def class_attribute(cls: type, name: str, after: type | None = None) -> Any:
    """What a class and its bases (those behind `after` in its resolution order) hold under `name`, unbound; MISSING."""
    for base in cls.__mro__ if after is None else cls.__mro__[cls.__mro__.index(after) + 1 :]:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def attribute_hook(method: object, name: str) -> object:
    """What a class has under the name of a special method for attributes, unless that is Python's own protocol;
    MISSING. It may be written in C (``__setattr__ = dict.__setitem__``)."""
    return MISSING if type(method) is types.WrapperDescriptorType and method.__name__ == name else method


def own_protocol(cls: type, name: str) -> Callable[..., Any]:
    """Python's own special method for attributes of a class's instances, past any of the class: `object`'s, or that of
    `threading.local`, whose instances have a namespace in each thread."""
    method: Callable[..., Any] = getattr(threading.local if issubclass(cls, threading.local) else object, name)
    return method


def is_read_by_code(cls: type) -> bool:
    """Whether attributes of instances are read by a method of the class's own."""
    return attribute_hook(class_attribute(cls, "__getattribute__"), "__getattribute__") is not MISSING


def is_data_descriptor(kind: type) -> bool:
    """Whether objects of a class, found in another class, decide what writing an attribute does. (Attributes of objects
    in C, such as `Tensor.data`, are what they stand for.)"""
    return kind is not types.GetSetDescriptorType and (hasattr(kind, "__set__") or hasattr(kind, "__delete__"))


def is_property(descriptor: object, hook: str = "__get__") -> TypeGuard[property]:
    """Whether a descriptor does as a property does what `hook` says: also one of a subclass that leaves it as it is."""
    return isinstance(descriptor, property) and getattr(type(descriptor), hook) is getattr(property, hook)


def steering(cls: type, name: str, after: type | None = None) -> Any:
    """As `class_attribute`, but PLAIN for a value that only counts where it is read, and is guarded there."""
    value = class_attribute(cls, name, after)
    if value is MISSING or value is None or (name.startswith("__") and name.endswith("__")):
        return value
    kind = type(value)
    return value if any(hasattr(kind, hook) for hook in ("__get__", "__set__", "__delete__")) else PLAIN


def name_in_c(cls: type) -> str:
    """The name of a class as CPython's own messages have it: that of a class in C with its module."""
    plain = cls.__module__ == "builtins" or is_python_class(cls)
    return cls.__name__ if plain else f"{cls.__module__}.{cls.__name__}"


def name_in_texts(cls: Any) -> tuple[object, object]:
    """What the text of a class is made of: its module and its qualified name."""
    return cls.__module__, cls.__qualname__


def viewed(view: object) -> Any:
    """The mapping that a view of a dict, or a read-only one of a mapping, looks at."""
    return gc.get_referents(view)[0]


def contents_of(cell: types.CellType) -> Any:
    """What is in a closure cell; MISSING if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


VIEWS: dict[type, Callable[[Any], object]] = {
    type(getattr(table, name)()): getattr(type(table), name)
    for table in ({}, collections.OrderedDict())  # type: ignore[var-annotated]
    for name in ("keys", "values", "items")
}
"""The method that makes a view of a dict, by the view's class."""


def is_class_namespace(table: object) -> bool:
    """Whether a mapping is what a class has for its `__dict__`."""
    return type(table) is dict and "__module__" in table and "__doc__" in table


NO_NAMESPACE: dict[str, Any] = {}


def has_plain_namespace(cls: type) -> bool:
    """Whether the `__dict__` of a class's instances is what `object` finds: there is one, not made when it is asked
    for, nor one for each thread."""
    if cls is functools.partial or issubclass(cls, threading.local):
        return False
    return type(class_attribute(cls, "__dict__")) in SLOT_TYPES


def own_namespace(owner: Any) -> dict[str, Any]:
    """An instance's `__dict__`, past any `__getattribute__` of its class; `NO_NAMESPACE` when it has none. A dict may
    be its own (``self.__dict__ = self``). A partial gets one when it is first asked for, and is then no longer merged
    with a partial of it: so that is not asked."""
    if type(owner) is functools.partial:
        state: Any = owner.__reduce__()
        return state[2][3] or NO_NAMESPACE
    try:
        namespace = own_protocol(type(owner), "__getattribute__")(owner, "__dict__")
    except AttributeError:
        namespace = None
    return namespace if type(namespace) is dict or namespace is owner else NO_NAMESPACE


#: What modules keep their members in: plain dicts, whose type is not guarded.
MODULE_DICTS = frozenset({"_modules", "_parameters", "_buffers"})
MODULE_HOOKS = frozenset(
    ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"]
    + ["_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"]
)
#: Attributes that every torch.nn.Module has and that are dicts by its construction.
MODULE_INTERNALS = MODULE_DICTS | MODULE_HOOKS


def maker(cls: type) -> types.BuiltinFunctionType:
    """The `__new__` of a class that is not written in Python."""
    makers: Iterable[Any] = (vars(base).get("__new__") for base in cls.__mro__)
    return next(make for make in makers if type(make) is types.BuiltinFunctionType)


def tuple_of(cls: type, items: Iterable[object]) -> Any:
    """A tuple of class `cls`, made past any `__new__` in Python; a structseq (`os.times_result`) has one in C."""
    return maker(cls)(cls, items)


def plain_kind(value: object) -> Any:
    """Of an int, float, str or bytes, or an instance of a subclass, which of these it is; else None."""
    return next((kind for kind in (int, float, str, bytes) if isinstance(value, kind)), None)


def is_constant(value: Any) -> bool:
    """Whether a value is immutable all the way down and can be compared by `==`."""
    cls = type(value)
    if cls is tuple or cls is frozenset:
        return all(is_constant(item) for item in value)
    return cls in CONSTANT_TYPES and not (cls in BOUND_BUILTINS and is_bound(value))


@by_class
def _opaque_class(cls: type) -> bool:
    """Classes of the standard library, of torch and of NumPy whose instances are immutable or mere handles: compared by
    identity.
    """
    if type(cls).__name__ == "pybind11_type":
        return hasattr(cls, "__members__")  # an enumeration
    return cls.__module__ in _OPAQUE_MODULES or cls.__name__ in _OPAQUE_CLASSES or cls in _HANDLES


LOCK_TYPES: tuple[Any, ...] = (type(threading.Lock()), type(threading.RLock()))
_HANDLES = (*LOCK_TYPES, inspect.Signature, inspect.Parameter, type(pytree.tree_structure(0)))
_OPAQUE_MODULES = frozenset({"typing", "contextvars", "_contextvars", "operator", "logging"})
_OPAQUE_CLASSES = frozenset(
    {"OpOverload", "OpOverloadPacket", "_OpNamespace", "_Ops", "property", "classmethod", "staticmethod"}
    | {"ufunc", "_ArrayFunctionDispatcher", "ReferenceType", "KeyedRef", "WeakMethod"}
    | {"_FIELD_BASE", "_MISSING_TYPE", "_HAS_DEFAULT_FACTORY_CLASS", "_KW_ONLY_TYPE"}  # markers of dataclasses
)


#: Classes of weak proxies, which say of themselves that they are of their referent's class.
PROXIES: frozenset[type] = frozenset({weakref.ProxyType, weakref.CallableProxyType})


def is_opaque(value: object) -> bool:
    cls: Any = type(value)
    return _opaque_class(cls)


# ---- when two constants are the same ---------------------------------------------------------------------------------


def same_constant(value: Any, expected: Any) -> bool:
    """Whether a program that does not look at identity cannot tell two constants apart. What is equal need not be the
    same: -0.0 and 0.0, Decimal("1.0") and Decimal("1.00"), one moment in two time zones, sets in another order."""
    cls = type(value)
    if cls is not type(expected):
        return False
    parts = _PARTS.get(cls)
    if parts is not None:
        first, second = parts(value), parts(expected)
        return len(first) == len(second) and all(map(same_constant, first, second))
    if cls is float:
        equal = value == expected or (value != value and expected != expected)
        return equal and math.copysign(1.0, value) == math.copysign(1.0, expected)
    if cls in IDENTITY or isinstance(expected, (type, datetime.tzinfo, torch.Tensor)):
        return value is expected
    if cls in CONSTANT_TYPES:
        return bool(value == expected)
    if isinstance(expected, numpy.generic):
        return value.dtype == expected.dtype and _bits(value) == _bits(expected)
    base = plain_kind(expected)
    if base is None:
        return value is expected or bool(value == expected)
    plain = same_constant(base.__getnewargs__(value), base.__getnewargs__(expected))
    return plain and not own_namespace(value) and not own_namespace(expected)


def _bits(number: numpy.generic) -> object:
    """What is in a number of NumPy's. (The widest floats have bytes that mean nothing.)"""
    return repr(number) if number.dtype.char in "gG" else number.tobytes()


def _itself(value: object) -> object:
    return value


def _bounds(value: slice | range) -> Sequence[object]:
    return value.start, value.stop, value.step


def _moment(value: object) -> object:
    return value.__reduce_ex__(4)[1]  # the fold is in the bytes, the zone behind them


_PARTS: dict[type, Callable[[Any], Any]] = {
    tuple: _itself,
    list: _itself,
    torch.Size: _itself,
    set: list,
    frozenset: list,
    dict: lambda table: list(table.items()),
    slice: _bounds,
    range: _bounds,
    complex: lambda number: (number.real, number.imag),
    decimal.Decimal: lambda number: tuple(number.as_tuple()),
    fractions.Fraction: lambda number: (number.numerator, number.denominator),
    uuid.UUID: lambda name: (name.int, name.is_safe),
    numpy.finfo: lambda info: (info.dtype,),
    numpy.iinfo: lambda info: (info.dtype,),
    datetime.date: _moment,
    datetime.time: _moment,
    datetime.datetime: _moment,
    datetime.timezone: lambda zone: zone.__getinitargs__(),
}
"""What tells apart two instances of a class: compared one by one."""
