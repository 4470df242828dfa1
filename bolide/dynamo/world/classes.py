"""What a capture relies on of classes and functions, each guarded once; and what the program has written to classes."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bolide.dynamo.program.captured import ClassAttribute, Source
from bolide.dynamo.program.kinds import (
    MISSING,
    class_attribute,
    is_library_class,
    is_library_namespace,
    own_namespace,
    steering,
    viewed,
)
from bolide.dynamo.world.outside import Outside, Overlay, attribute_source
from bolide.dynamo.world.parts import Reading
from bolide.support.errors import Unsupported

_METHODS = (types.FunctionType, staticmethod, classmethod, property)


def names_in_class(cls: object) -> tuple[str, ...]:
    """The names that a class has, and those of its bases."""
    return tuple(sorted(type.__dir__(cls)))


class Classes:
    """What a capture knows of classes."""

    def __init__(self, world: Reading) -> None:
        self.world, self.guards = world, world.guards
        self.own: dict[int, type] = {}  # classes made by the program, by id
        self.written: dict[type, Overlay] = {}  # classes whose attributes the program has assigned
        self.shown: dict[int, Mapping[str, object]] = {}  # by id: what classes have whose `__dict__` has been read
        self.cache: dict[tuple[type, str, type | None], object] = {}  # of `lookup`
        self.codes: dict[int, tuple[bool, dict[object, bool]]] = {}  # by id of a class: `Overlay.asks` and `computes`

    def lookup(self, cls: type, name: str, after: type | None = None) -> Any:
        """The class attribute `name` by method resolution order (of the classes behind `after`), unbound, or MISSING.
        Guarded.
        """
        key = (cls, name, after)
        value = self.cache.get(key, self)
        if value is self:
            self.rely_on(cls, name, after)
            value = self._look_up(cls, name, after) if self.written else class_attribute(cls, name, after)
            self.cache[key] = value
        return value

    def python_method(self, cls: type, name: str) -> types.FunctionType | None:
        """The method `name` of a class if it is written in Python. Guarded."""
        method = self.lookup(cls, name)
        return method if type(method) is types.FunctionType else None

    def _look_up(self, cls: type, name: str, after: type | None) -> object:
        """`class_attribute`, with what the program has written."""
        for base in cls.__mro__ if after is None else cls.__mro__[cls.__mro__.index(after) + 1 :]:
            written = self.written.get(base)
            if written is not None and name in written.known:
                if written.known[name] is not MISSING:
                    return written.known[name]
            elif name in base.__dict__:
                return base.__dict__[name]
        return MISSING

    def rely_on(self, cls: type, name: str, after: type | None = None) -> None:
        """Guard what a class has under a name; of a library's, whose classes are trusted, a method in Python: it may be
        replaced on purpose."""
        if not self.guards.first((cls, name, after)):
            return
        trusted = is_library_class(cls) and cls is not torch.Tensor
        if trusted and not isinstance(class_attribute(cls, name, after), _METHODS):
            return
        if id(cls) in self.own:
            for base in cls.__bases__ if name not in cls.__dict__ else ():
                self.rely_on(base, name)
            return
        attribute = ClassAttribute(name, after, steering(cls, name, after))
        self.guards.add(Source("object", None, None, cls), "class_attr", attribute)

    def rely_on_answer(self, cls: type, question: Callable[[object], object]) -> None:
        """Guard what a question about a class that is not a library's, which changes nothing, answers."""
        if not self.guards.first((cls, question)):
            return
        if id(cls) in self.own:
            for base in cls.__bases__:
                self.rely_on_answer(base, question)
        elif not is_library_class(cls):
            self.guards.add(Source("apply", Source("object", None, None, cls), (), question), "equals", question(cls))

    def rely_on_bases(self, cls: Any, wanted: Any) -> None:
        """Guard whether a class of the user's is a subclass of another class, or of one of several."""
        if cls is wanted or not isinstance(cls, type) or id(cls) in self.own or is_library_class(cls):
            return
        if (isinstance(wanted, type) and id(wanted) in self.own) or not self.guards.first((cls, wanted, "bases")):
            return
        parts = wanted.__args__ if type(wanted) is types.UnionType else wanted if isinstance(wanted, tuple) else ()
        if any(_checks_subclasses(type(part)) for part in parts):
            for part in parts:
                self.rely_on_bases(cls, part)
        elif _checks_subclasses(type(wanted)):
            source = Source("apply", Source("object", None, None, wanted), (cls,), type.__subclasscheck__)
            self.guards.add(source, "equals", type.__subclasscheck__(wanted, cls))
        else:
            source = Source("apply", Source("object", None, None, cls), (wanted,), issubclass)
            self.guards.add(source, "equals", issubclass(cls, wanted))

    def show(self, table: Mapping[str, object], source: Source, wrap: Callable[[Any, Source], object]) -> object:
        """The `__dict__` of a class as it is now: it is not written to while the program has that."""
        if any(viewed(vars(cls)) is table for cls in self.written):
            raise self.guards.refusal("outside_object", "the __dict__ of a class that is written to")
        self.shown[id(table)] = table
        self.guards.add(Source("apply", source, (), list), "equals", list(table))
        return types.MappingProxyType({name: wrap(item, Source("item", source, name)) for name, item in table.items()})

    def store(self, cls: type, name: str, value: object) -> None:
        """Assign (or with MISSING delete) an attribute of a class."""
        if id(cls) in self.own:
            if value is MISSING:
                type.__delattr__(cls, name)
            else:
                type.__setattr__(cls, name, value)
            self.cache.clear()
            return
        if id(viewed(vars(cls))) in self.shown:
            reason = f"an attribute of class {cls.__name__} is assigned, whose __dict__ has been read"
            raise self.guards.refusal("attribute_write", reason)
        overlay = self.written.get(cls)
        if overlay is None:
            source = Source("object", None, None, cls)
            overlay = self.written[cls] = self.world.overlay(dict(vars(cls)), source, attribute_source, cls)
        if value is MISSING and overlay.get(name) is MISSING:
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        overlay.set(name, value)
        self.cache.clear()


def _checks_subclasses(kind: type) -> bool:
    """Whether a class of classes has a check of its own in Python, that is no library's."""
    method = class_attribute(kind, "__subclasscheck__")
    return type(method) is types.FunctionType and not is_library_namespace(method.__globals__)


_ATTRIBUTES = ("__signature__", "__wrapped__")
_HOLDERS = (types.MethodType, staticmethod, classmethod)


class Functions:
    """What a capture relies on of functions. `own`: those made by the program, weakly, by id."""

    def __init__(self, world: Reading, classes: Classes) -> None:
        self.world, self.guards, self.classes = world, world.guards, classes
        self.own: dict[int, Any] = {}

    def rely_on_code(self, function: types.FunctionType) -> None:
        """Guard that an outside function of the user's keeps its code and the defaults of its parameters; of one that
        is known by its code, how many there are: those that are read are guarded by themselves."""
        if not self.guards.first((function, "code")) or is_library_namespace(function.__globals__):
            return
        source = self.world.identities.source_of(function)
        self.guards.add(attribute_source(source, "__code__"), "is", function.__code__)
        if not self.is_known_by_code(function):
            self._rely_on_defaults(function, source)
            return
        if function.__defaults__:
            self.guards.add(attribute_source(source, "__defaults__"), "length", len(function.__defaults__))
        if function.__kwdefaults__:
            at = attribute_source(source, "__kwdefaults__")
            self.guards.add(at, "dict_keys", list(function.__kwdefaults__))

    def is_known_by_code(self, function: types.FunctionType) -> bool:
        """Whether an outside function is made anew for each call (`World.wrap`)."""
        return id(function) in self.world.identities.mirrors

    def _rely_on_defaults(self, function: types.FunctionType, source: Source) -> None:
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
        self._rely_on_defaults(function, source)
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
