"""The guards of one capture, and what they say of classes: what an attribute of a class is, and what a class derives
from, each guarded once."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.program.captured import ClassAttribute, Guard, GuardKind, Source
from bolide.dynamo.program.kinds import (
    MISSING,
    class_attribute,
    is_library_class,
    is_library_namespace,
    steering,
    viewed,
)
from bolide.dynamo.world.outside import Overlay
from bolide.support.errors import Unsupported
from bolide.tracing import UserFrame

_METHODS = (types.FunctionType, staticmethod, classmethod, property)


def names_in_class(cls: Any) -> tuple[str, ...]:
    """The names that a class has, and those of its bases."""
    return tuple(sorted(type.__dir__(cls)))


class Classes:
    """What a `World` knows of classes."""

    def __init__(self) -> None:
        self.guards: list[Guard] = []
        self.once: set[Any] = set()  # what has been guarded already
        self.where: Callable[[], UserFrame | None] = lambda: None
        self.own_classes: dict[int, type] = {}  # classes made by the program, by id
        self.classes: dict[type, Overlay] = {}  # classes whose attributes the program has assigned
        self.shown_classes: dict[int, dict[str, Any]] = {}  # by id: what classes have whose `__dict__` has been read
        self.mro_cache: dict[tuple[type, str, type | None], Any] = {}

    def guard(self, source: Source | None, kind: GuardKind, expected: Any) -> None:
        if source is None or source.kind != "object" or kind not in ("type", "is"):
            self.guards.append(Guard(source, kind, expected, self.where()))

    def lookup(self, cls: type, name: str, after: type | None = None) -> Any:
        """The class attribute `name` by method resolution order (of the classes behind `after`), unbound, or MISSING.
        Guarded.
        """
        key = (cls, name, after)
        found = self.mro_cache.get(key, self)
        if found is self:
            self.rely_on_class(cls, name, after)
            found = self._look_up(cls, name, after) if self.classes else class_attribute(cls, name, after)
            self.mro_cache[key] = found
        return found

    def _look_up(self, cls: type, name: str, after: type | None) -> Any:
        """`class_attribute`, with what the program has written."""
        for base in cls.__mro__ if after is None else cls.__mro__[cls.__mro__.index(after) + 1 :]:
            written = self.classes.get(base)
            if written is not None and name in written.known:
                if written.known[name] is not MISSING:
                    return written.known[name]
            elif name in base.__dict__:
                return base.__dict__[name]
        return MISSING

    def rely_on_class(self, cls: type, name: str, after: type | None = None) -> None:
        """Guard what a class has under a name; of a library's, whose classes are trusted, a method in Python: it may be
        replaced on purpose."""
        key = (cls, name, after)
        if key in self.once:
            return
        self.once.add(key)
        trusted = is_library_class(cls) and cls is not torch.Tensor
        if trusted and type(class_attribute(cls, name, after)) not in _METHODS:
            return
        if id(cls) in self.own_classes:
            for base in cls.__bases__ if name not in cls.__dict__ else ():
                self.rely_on_class(base, name)
            return
        found = ClassAttribute(name, after, steering(cls, name, after))
        self.guards.append(Guard(Source("object", None, None, cls), "class_attr", found, self.where()))

    def rely_on_answer(self, cls: type, question: Callable[[Any], Any]) -> None:
        """Guard what a question about a class that is not a library's, which changes nothing, answers."""
        key = (cls, question)
        if key in self.once:
            return
        self.once.add(key)
        if id(cls) in self.own_classes:
            for base in cls.__bases__:
                self.rely_on_answer(base, question)
        elif not is_library_class(cls):
            self.guard(Source("apply", Source("object", None, None, cls), (), question), "equals", question(cls))

    def rely_on_bases(self, cls: Any, wanted: Any) -> None:
        """Guard whether a class of the user's is a subclass of another class, or of one of several."""
        key = (cls, wanted, "bases")
        if cls is wanted or not isinstance(cls, type) or id(cls) in self.own_classes or is_library_class(cls):
            return
        if key in self.once or (isinstance(wanted, type) and id(wanted) in self.own_classes):
            return
        self.once.add(key)
        parts = wanted.__args__ if type(wanted) is types.UnionType else wanted if isinstance(wanted, tuple) else ()
        if any(asks_program(type(part), "__subclasscheck__") for part in parts):
            for part in parts:
                self.rely_on_bases(cls, part)
        elif asks_program(type(wanted), "__subclasscheck__"):
            source = Source("apply", Source("object", None, None, wanted), (cls,), type.__subclasscheck__)
            self.guard(source, "equals", type.__subclasscheck__(wanted, cls))
        else:
            source = Source("apply", Source("object", None, None, cls), (wanted,), issubclass)
            self.guard(source, "equals", issubclass(cls, wanted))

    def show_class(self, table: dict[str, Any], source: Source, wrap: Callable[[Any, Source], Any]) -> Any:
        """The `__dict__` of a class as it is now: it is not written to while the program has that."""
        if any(viewed(vars(cls)) is table for cls in self.classes):
            raise Unsupported("the __dict__ of a class that is written to", self.where(), None, "outside_object")
        self.shown_classes[id(table)] = table
        self.guard(Source("apply", source, (), list), "equals", list(table))
        return types.MappingProxyType({name: wrap(item, Source("item", source, name)) for name, item in table.items()})


def asks_program(kind: type, name: str) -> bool:
    """Whether a class has a method in Python under a name that is no library's."""
    found = class_attribute(kind, name)
    return type(found) is types.FunctionType and not is_library_namespace(found.__globals__)
