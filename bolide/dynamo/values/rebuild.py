"""From values back to recipes: how a result, and what was written to the outside world, is rebuilt after the graph has
run."""

from __future__ import annotations

import collections
import enum
import functools
import types
from typing import Any

import numpy
import torch

from bolide.dynamo.frames import Generator
from bolide.dynamo.program import Effect, Recipe
from bolide.dynamo.values.outside import CONSTANT_TYPES, MISSING, Outside, Overlay, World, is_opaque, own_namespace
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor


def make_instance(cls: Any, attributes: dict[str, Any], items: Any) -> Any:
    """A new instance of `cls` with the given state; no method of the class is run. `items` are those of a dict, list,
    set or tuple subclass."""
    if issubclass(cls, tuple):
        made = tuple.__new__(cls, items)
    else:
        made = cls.__new__(cls)
    if issubclass(cls, collections.OrderedDict):
        for key, value in items.items():
            collections.OrderedDict.__setitem__(made, key, value)
    elif issubclass(cls, dict):
        dict.update(made, items)
    elif issubclass(cls, list):
        list.extend(made, items)
    elif issubclass(cls, set):
        set.update(made, items)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def make_exception(cls: type, args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    made = cls.__new__(cls, *args)
    made.__dict__.update(attributes)
    return made


def make_function(
    code: types.CodeType, namespace: dict[str, Any], name: str, defaults: Any, closure: Any, attributes: dict[str, Any]
) -> types.FunctionType:
    made = types.FunctionType(code, namespace, name, defaults, closure)
    made.__kwdefaults__ = attributes.pop("__kwdefaults__")
    made.__qualname__ = attributes.pop("__qualname__")
    made.__dict__.update(attributes)
    return made


class Rebuilder:
    """Makes recipes. The same value always gives the same Recipe object, so identity among results is kept."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outputs: list[TracedTensor] = []
        self.memo: dict[int, tuple[Any, Recipe]] = {}
        self.active: set[int] = set()
        self.input_of = {id(t): world.inputs[i] for i, t in enumerate(world.trace.inputs)}

    def recipe(self, value: Any) -> Recipe:
        """How `value` is made after the graph has run. Raises Unsupported for what cannot be."""
        cls = type(value)
        if cls in CONSTANT_TYPES and (cls is not types.FunctionType or value.__closure__ is None):
            return Recipe("constant", value)
        known = self.memo.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self.active:
            raise Unsupported(f"a new {cls.__name__} that contains itself leaves the function", self.world.where())
        self.active.add(id(value))
        made = self._make(value, cls)
        self.active.discard(id(value))
        self.memo[id(value)] = (value, made)
        return made

    def constants(self, *values: Any) -> tuple[Recipe, ...]:
        return tuple(Recipe("constant", value) for value in values)

    def _make(self, value: Any, cls: type) -> Recipe:
        snapshot = self.world.snapshots.get(id(value))
        if snapshot is not None:
            return Recipe("source", snapshot.source)
        if cls is Outside:
            return Recipe("source", value.source)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if cls is list:
            return Recipe("list", None, tuple(self.recipe(item) for item in value))
        if cls is tuple:
            return Recipe("tuple", None, tuple(self.recipe(item) for item in value))
        if cls is set:
            return Recipe("set", None, tuple(self.recipe(item) for item in value))
        if cls is dict:
            return self._dict(value)
        if isinstance(value, (type, enum.Enum, numpy.generic)) or is_opaque(value):
            return Recipe("constant", value)
        return self._object(value, cls)

    def _tensor(self, value: torch.Tensor) -> Recipe:
        if not isinstance(value, TracedTensor):
            return Recipe("constant", value)
        source = self.input_of.get(id(value))
        if source is not None:
            return Recipe("source", source)
        self.outputs.append(value)
        return Recipe("output", len(self.outputs) - 1)

    def _dict(self, value: dict[Any, Any]) -> Recipe:
        parts: list[Recipe] = []
        for key, item in value.items():
            parts += (self.recipe(key), self.recipe(item))
        return Recipe("dict", None, tuple(parts))

    def _object(self, value: Any, cls: type) -> Recipe:
        if cls is types.FunctionType:
            return self._function(value)
        if cls is Generator:
            raise Unsupported("a generator leaves the function", self.world.where(), "return a list")
        if cls is types.MethodType:
            return Recipe("call", types.MethodType, (self.recipe(value.__func__), self.recipe(value.__self__)))
        if cls is functools.partial:
            args = tuple(self.recipe(item) for item in (value.func, *value.args))
            return Recipe(
                "call", functools.partial, args, tuple((k, self.recipe(v)) for k, v in value.keywords.items())
            )
        if cls is types.CellType:
            try:
                return Recipe("call", types.CellType, (self.recipe(value.cell_contents),))
            except ValueError:
                return Recipe("call", types.CellType)
        if cls is collections.deque:
            return Recipe("call", collections.deque, (self.recipe(list(value)), *self.constants(value.maxlen)))
        if cls is collections.OrderedDict:
            return Recipe("call", collections.OrderedDict, (self._dict(value),))
        if cls is collections.defaultdict:
            return Recipe("call", collections.defaultdict, (self.recipe(value.default_factory), self._dict(value)))
        if isinstance(value, BaseException):
            args = (Recipe("constant", cls), self.recipe(value.args), self._dict(value.__dict__))
            return Recipe("call", make_exception, args)
        if isinstance(value, frozenset):
            return Recipe("call", frozenset, (self.recipe(list(value)),))
        return self._instance(value, cls)

    def _function(self, value: types.FunctionType) -> Recipe:
        if id(value) not in self.world.own_functions:
            return Recipe("constant", value)
        attributes = {"__kwdefaults__": value.__kwdefaults__, "__qualname__": value.__qualname__, **value.__dict__}
        closure = None if value.__closure__ is None else self.recipe(value.__closure__)
        args = (
            *self.constants(value.__code__, value.__globals__, value.__name__),
            self.recipe(value.__defaults__),
            closure or Recipe("constant", None),
            self._dict(attributes),
        )
        return Recipe("call", make_function, args)

    def _instance(self, value: Any, cls: type) -> Recipe:
        module = cls.__module__
        if not cls.__flags__ & (1 << 9):  # not a heap type: an iterator, a view, a C object
            raise Unsupported(
                f"a new {module}.{cls.__name__} leaves the function", self.world.where(), "return a list, tuple or dict"
            )
        items: Recipe = Recipe("constant", None)
        if isinstance(value, dict):
            items = self._dict(dict(dict.items(value)))
        elif isinstance(value, tuple):
            items = Recipe("list", None, tuple(self.recipe(item) for item in tuple.__iter__(value)))
        elif isinstance(value, (list, set)):
            items = Recipe("list", None, tuple(self.recipe(item) for item in list(value)))
        attributes = dict(own_namespace(value))
        for base in cls.__mro__:
            for name, found in base.__dict__.items():
                if type(found) is types.MemberDescriptorType and hasattr(value, name):
                    attributes[name] = getattr(value, name)
        return Recipe("call", make_instance, (Recipe("constant", cls), self._dict(attributes), items))

    # -- effects

    def effects(self) -> list[Effect]:
        """Every write to the outside world, in the order in which its objects were first read."""
        out: list[Effect] = []
        for overlay in self.world.overlays:
            for key, value in overlay.changes():
                out.append(self._write(overlay, key, value))
        for snapshot in self.world.snapshots.values():
            if snapshot.changed():
                kind: Any = "set_assign" if isinstance(snapshot.copy, set) else "list_assign"
                if isinstance(snapshot.copy, collections.deque):
                    raise Unsupported("a deque of the outside world is changed", self.world.where())
                fresh = tuple(self.recipe(item) for item in snapshot.copy)
                out.append(Effect(kind, Recipe("source", snapshot.source), None, Recipe("list", None, fresh)))
        for cell, before, value in self.world.cells.values():
            if value is not before:
                out.append(Effect("cell", Recipe("constant", cell), None, self.recipe(value)))
        return out

    def _write(self, overlay: Overlay, key: Any, value: Any) -> Effect:
        target = Recipe("source", overlay.source)
        kind = overlay.child.__name__
        if kind == "attribute_source" and not isinstance(overlay.owner, type) and _own_setattr(type(overlay.owner)):
            target, kind = Recipe("source", overlay.itself), "dict"  # what was written is the namespace
        if kind == "attribute_source":
            if value is MISSING:
                return Effect("delattr", target, key)
            return Effect("setattr", target, key, self.recipe(value))
        if kind == "global_source":
            target = Recipe("constant", overlay.real)
            if value is not MISSING:
                return Effect("global", target, key, self.recipe(value))
        if value is MISSING:
            return Effect("delitem", target, self.recipe(key))
        return Effect("setitem", target, self.recipe(key), self.recipe(value))


def _own_setattr(cls: Any) -> bool:
    """Whether assigning an attribute runs code of the class."""
    return cls.__setattr__ not in (object.__setattr__, torch.nn.Module.__setattr__)
