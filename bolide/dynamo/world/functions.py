"""Functions of the outside world: what is relied on where they are called, compared, and asked for their signatures."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import is_library_class, is_library_namespace, own_namespace
from bolide.dynamo.world.classes import Classes
from bolide.dynamo.world.outside import Outside, attribute_source
from bolide.dynamo.world.parts import Reading
from bolide.support.errors import Unsupported

_ATTRIBUTES = ("__signature__", "__wrapped__")
_HOLDERS = (types.MethodType, staticmethod, classmethod)


class Functions:
    """What a capture relies on of functions. `own`: those made by the program, weakly, by id."""

    def __init__(self, world: Reading, classes: Classes) -> None:
        self.world, self.guards, self.classes = world, world.guards, classes
        self.own: dict[int, Any] = {}

    def rely_on_code(self, function: types.FunctionType) -> None:
        """Guard that an outside function of the user's keeps its code and the defaults of its parameters."""
        if not self.guards.first((function, "code")) or is_library_namespace(function.__globals__):
            return
        source = self.world.identities.source_of(function)
        self.guards.add(attribute_source(source, "__code__"), "is", function.__code__)
        self.guards.add(attribute_source(source, "__defaults__"), "is", function.__defaults__)
        at = attribute_source(source, "__kwdefaults__")
        if function.__kwdefaults__ is None:
            self.guards.add(at, "is", None)
        else:
            self._rely_on_items(at, function.__kwdefaults__)

    def rely_on_identity(self, function: types.FunctionType) -> None:
        """Guard that a function which was known by its code is this very one: the program asks for it."""
        mirror = self.world.identities.mirrors.get(id(function))
        if mirror is not None:
            self.guards.add(mirror[1], "is", function)

    def rely_on_signature(self, value: Any) -> None:
        """Guard what the signature and the annotations of a callable, which `inspect` looks at natively, are made of;
        also of those that it wraps."""
        while isinstance(value, (*_HOLDERS, functools.partial)):
            value = value.func if isinstance(value, functools.partial) else value.__func__
        is_object = type(value) in (types.FunctionType, Outside) or isinstance(value, type)
        if not is_object or not self.guards.first((id(value), "signature")):
            return
        if type(value) is types.FunctionType:
            self._rely_on_function(value)
        elif type(value) is Outside:
            self._rely_on_object(value)
        else:
            self._rely_on_class(value)

    def _rely_on_function(self, function: types.FunctionType) -> None:
        if id(function) in self.own or is_library_namespace(function.__globals__):
            self.rely_on_signature(vars(function).get("__wrapped__"))
            return
        source = self.world.identities.source_of(function)
        attributes = self.world.overlay(vars(function), source, attribute_source, function)
        if any(attributes.changes()):
            raise self._refused(function)
        self.rely_on_code(function)
        self._rely_on_items(attribute_source(source, "__annotations__"), function.__annotations__)
        for name in _ATTRIBUTES:
            self.rely_on_signature(attributes.get(name))

    def _rely_on_class(self, cls: type) -> None:
        if is_library_class(cls) or id(cls) in self.classes.own:
            return
        if cls in self.classes.written:
            raise self._refused(cls)
        for name in (*_ATTRIBUTES, "__new__", "__init__"):
            self.rely_on_signature(self.classes.lookup(cls, name))
        self.rely_on_signature(self.classes.lookup(type(cls), "__call__"))
        for base in cls.__mro__:
            if not is_library_class(base) and "__annotations__" in vars(base):
                place = attribute_source(Source("object", None, None, base), "__annotations__")
                self._rely_on_items(place, base.__annotations__)

    def _rely_on_object(self, value: Outside) -> None:
        self.rely_on_signature(self.classes.lookup(value.cls, "__call__"))
        for name in _ATTRIBUTES:
            if value.attrs is None or name not in own_namespace(value.real):
                value.rely_on_missing(name)
            else:
                self.rely_on_signature(value.attrs.get(name))

    def _rely_on_items(self, table: Source, items: Mapping[str, object]) -> None:
        """Guard a dict by its keys and the identity of what is under them."""
        self.guards.add(table, "dict_keys", list(items))
        for name, value in items.items():
            self.guards.add(Source("item", table, name), "is", value)

    def _refused(self, value: types.FunctionType | type) -> Unsupported:
        reason = f"the signature of {value.__qualname__}, whose attributes are written to, is asked for"
        return self.guards.refusal("native_call", reason)
