"""What `inspect.signature` and its kin, which run natively, look at: guarded for what is outside."""

from __future__ import annotations

import functools
import types
from typing import Any

from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import is_library_class, is_library_namespace, own_namespace
from bolide.dynamo.world.outside import Outside, attribute_source
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported

_ATTRIBUTES = ("__signature__", "__wrapped__")
_HOLDERS = (types.MethodType, staticmethod, classmethod)


def rely_on_signature(world: World, value: Any) -> None:
    """Guard what the signature and the annotations of a callable are made of, also of those that it wraps."""
    while isinstance(value, (*_HOLDERS, functools.partial)):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    is_object = type(value) in (types.FunctionType, Outside) or isinstance(value, type)
    if not is_object or (id(value), "signature") in world.once:
        return
    world.once.add((id(value), "signature"))
    if type(value) is types.FunctionType:
        _rely_on_function(world, value)
    elif type(value) is Outside:
        _rely_on_object(world, value)
    else:
        _rely_on_class(world, value)


def _rely_on_function(world: World, function: types.FunctionType) -> None:
    if id(function) in world.own_functions or is_library_namespace(function.__globals__):
        rely_on_signature(world, vars(function).get("__wrapped__"))
        return
    source = world.source_of(function)
    attributes = world.overlay(vars(function), source, attribute_source, function)
    if any(attributes.changes()):
        raise _refused(world, f"{function.__qualname__}, whose attributes are written to")
    world.rely_on_code(function)
    _rely_on_annotations(world, source, function.__annotations__)
    for name in _ATTRIBUTES:
        rely_on_signature(world, attributes.get(name))


def _rely_on_class(world: World, cls: type) -> None:
    if is_library_class(cls) or id(cls) in world.own_classes:
        return
    if cls in world.classes:
        raise _refused(world, f"{cls.__qualname__}, whose attributes are written to")
    for name in (*_ATTRIBUTES, "__new__", "__init__"):
        rely_on_signature(world, world.lookup(cls, name))
    rely_on_signature(world, world.lookup(type(cls), "__call__"))
    for base in cls.__mro__:
        if not is_library_class(base) and "__annotations__" in vars(base):
            _rely_on_annotations(world, Source("object", None, None, base), base.__annotations__)


def _rely_on_object(world: World, value: Outside) -> None:
    rely_on_signature(world, world.lookup(value.cls, "__call__"))
    for name in _ATTRIBUTES:
        if value.attrs is None or name not in own_namespace(value.real):
            world.rely_on_missing(value, name)
        else:
            rely_on_signature(world, value.attrs.get(name))


def _rely_on_annotations(world: World, owner: Source, annotations: dict[str, Any]) -> None:
    place = attribute_source(owner, "__annotations__")
    world.guard(place, "dict_keys", list(annotations))
    for name, value in annotations.items():
        world.guard(Source("item", place, name), "is", value)


def _refused(world: World, what: str) -> Unsupported:
    return Unsupported(f"the signature of {what}, is asked for", world.where(), None, "native_call")
