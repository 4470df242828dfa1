"""What an object of the program is, beside its name: a text that differs where code that was captured would."""

from __future__ import annotations

import enum
import functools
import hashlib
import marshal
import re
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from bolide.dynamo.program.kinds import LOCK_TYPES, MISSING, contents_of, is_constant, is_opaque

Value = Any
"""An object of a program, or data of JSON."""

_DESCRIPTORS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)
_NATIVE = ("cython_function_or_method", "_ArrayFunctionDispatcher")
"""Classes of functions of libraries in C; each release of Cython has its own."""
NAMED = (types.FunctionType, functools._lru_cache_wrapper, *_DESCRIPTORS)
"""Of these, and of classes, the name is where they were made."""
_PROPERTIES = {property, types.DynamicClassAttribute, getattr(enum, "property", property)}
_MARKS = ("_bolide", "_torchdynamo", "_dynamo")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MOST_NESTED = 8


class CannotSave(Exception):
    """Something that lives in this process only: what it is."""


def digest_of(code: types.CodeType) -> str:
    """A digest of code and of all that is nested in it, with its file and lines; the same in every process."""
    try:
        return hashlib.sha256(marshal.dumps(code, 2)).hexdigest()[:32]  # version 2 knows no references
    except ValueError as error:
        raise CannotSave(f"the code of {code.co_name} has constants that are objects of this process") from error


def content_of(value: object, depth: int = 0) -> str:
    """What tells an object from another one that may come to stand under its name. Raises CannotSave where that cannot
    be told."""
    if depth > _MOST_NESTED:
        raise CannotSave("functions hold each other in too many layers")
    cls = type(value)
    if cls is types.FunctionType:
        return _of_function(value, depth)  # type: ignore[arg-type]
    if cls is types.CodeType:
        return digest_of(value)  # type: ignore[arg-type]
    if cls in (staticmethod, classmethod):
        return f"{cls.__name__} {content_of(value.__func__, depth + 1)}"  # type: ignore[attr-defined]
    if cls in _PROPERTIES:
        return f"{cls.__name__} {_of_all((value.fget, value.fset, value.fdel), depth)}"  # type: ignore[attr-defined]
    if cls is functools.cached_property:
        return f"kept {content_of(value.func, depth + 1)}"  # type: ignore[attr-defined]
    if cls is functools._lru_cache_wrapper:
        return f"cached {content_of(getattr(value, '__wrapped__', None), depth + 1)}"
    if isinstance(value, type):
        return _of_class(value)
    if cls in _DESCRIPTORS:
        return f"{cls.__name__} {getattr(value, '__qualname__', '')}"
    if is_native(value):
        return f"{cls.__name__} {value.__module__} {value.__qualname__}"  # type: ignore[attr-defined]
    if cls is tuple:
        return f"({_of_all(value, depth)})"  # type: ignore[arg-type]
    if isinstance(value, enum.Enum):
        return f"{_name(cls)} {value._name_} {content_of(value._value_, depth + 1)}"
    if is_constant(value):
        return f"{_name(cls)} {_of_constant(value)}"
    return _of_object(value, cls)


def is_native(value: object) -> bool:
    """Whether a value is a function of a library in C that CPython's own kinds do not tell."""
    return type(value).__name__ in _NATIVE and type(value).__module__.startswith(("_cython_", "numpy"))


def _of_all(values: Iterable[object], depth: int) -> str:
    return ", ".join([content_of(value, depth + 1) for value in values])


def _of_function(function: types.FunctionType, depth: int) -> str:
    """Its code, whose globals it reads, what its closure holds as far as that is code or constant, and marks of ours
    and of TorchDynamo's."""
    parts = [digest_of(function.__code__)]
    reads = module_of(function.__globals__)
    if reads != function.__module__:
        parts.append(f"on {reads}")
    for cell in function.__closure__ or ():
        held = contents_of(cell)
        if held is MISSING or held is function:
            parts.append("")
        elif type(held) is types.FunctionType or is_constant(held) or type(held) in _DESCRIPTORS:
            parts.append(content_of(held, depth + 1))
        else:
            parts.append(_name(type(held)))
    marks = [name for name in sorted(vars(function)) if name.startswith(_MARKS) and not name.endswith("_id")]
    parts += [f"{name} {content_of(vars(function)[name], depth + 1)}" for name in marks]
    return " ".join(parts)


def module_of(namespace: Mapping[str, object]) -> str:
    """The name of the module that has this namespace, "" for one that no module has."""
    name = namespace.get("__name__")
    return str(name) if any(vars(module) is namespace for module in modules_called(name)) else ""


def modules_called(name: object) -> list[types.ModuleType]:
    """What `sys.modules` has under a name, and the module behind it where something else stands for that
    (`torch.backends.cudnn`)."""
    found = sys.modules.get(name) if type(name) is str else None
    if type(found) is types.ModuleType or not isinstance(found, types.ModuleType):
        return [found] if type(found) is types.ModuleType else []
    behind = (part for part in vars(found).values() if type(part) is types.ModuleType and part.__name__ == name)
    return [found, *behind]


def _of_class(cls: type) -> str:
    """Its bases and its metaclass: what it has under a name is guarded where it is read."""
    return f"class {' '.join(map(_name, cls.__mro__))} of {_name(type(cls))} {cls.__flags__ & _FLAGS}"


_FLAGS = ~((1 << 19) | (1 << 12) | (1 << 13) | (1 << 17))  # caches of CPython's, not what the class is


def _of_constant(value: object) -> str:
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_of_constant, value)))}}}"
    if isinstance(value, (types.FunctionType, type)):
        return content_of(value)
    return _without_addresses(repr(value), value)


def _of_object(value: object, cls: type) -> str:
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(value)
    if cls is object or cls in (*LOCK_TYPES, weakref.ReferenceType) or not is_opaque(value):
        return f"a {_name(cls)}"  # what is read of it is guarded
    return _without_addresses(repr(value), value)


def _without_addresses(text: str, value: object) -> str:
    if _ADDRESS.search(text):
        raise CannotSave(f"{text[:80]} cannot be compared with another process's")
    return text


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
