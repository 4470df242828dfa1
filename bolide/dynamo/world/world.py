"""The outside world of one capture: what was read of it (guards), what stands for it, what has been written to it."""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from bolide.dynamo.guards.sizes import Symbols
from bolide.dynamo.guards.texts import TENSOR_TYPES
from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.captured import Recipe, Source
from bolide.dynamo.program.kinds import (
    BOUND_BUILTINS,
    CONSTANT_TYPES,
    FUNCTION_APPLY,
    IDENTITY,
    MISSING,
    MODULE_INTERNALS,
    PROXIES,
    VIEWS,
    descriptor_of,
    is_bound,
    is_constant,
    is_derived_constant,
    is_function_apply,
    is_opaque,
)
from bolide.dynamo.world.classes import Classes, Functions
from bolide.dynamo.world.frames import Generator, dropped_generator
from bolide.dynamo.world.holders import Containers, Namespaces
from bolide.dynamo.world.inputs import Aliases, Inputs, Numbers
from bolide.dynamo.world.iterators import OF_ITERATORS, Stream, is_readable
from bolide.dynamo.world.journal import Journal
from bolide.dynamo.world.outside import (
    CONTAINERS,
    Deferred,
    Outside,
    Overlay,
    Torn,
    attribute_source,
    is_finalised,
    method_of_c,
)
from bolide.dynamo.world.parts import Guards, Identities, RunningProgram, Seen
from bolide.support.errors import Unsupported
from bolide.tracing import Trace, TracedTensor, UserFrame

Wrapper = Callable[["World", Any, Source], Any]
WRAPPERS: dict[type, Wrapper] = {}  # how to wrap instances of a class; None where it has nothing to say

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_VIEWS = (*VIEWS, types.MappingProxyType)


def _is_constant(value: object) -> bool:
    """Whether a value of a library is a constant; a tuple of nothing but classes is one, too."""
    return is_constant(value) or (type(value) is tuple and all(isinstance(item, type) for item in value))


class World:
    """Everything one capture knows of the world outside of it, in parts. `program`: the one that is interpreted."""

    program: RunningProgram

    def __init__(self, trace: Trace, symbols: Symbols) -> None:
        self.trace = trace
        self.symbols = symbols
        self.guards = Guards()
        self.identities = Identities()
        self.journal = Journal()
        self.classes = Classes(self)
        self.functions = Functions(self, self.classes)
        self.inputs = Inputs(trace, self.symbols, self.guards)
        self.numbers = Numbers(self, self.inputs)
        self.aliases = Aliases(self.guards, self.symbols)
        self.namespaces: Namespaces = Namespaces(self, self.journal)
        self.containers: Containers = Containers(self, self.journal, self.symbols, self.classes)
        self.lifetimes = Lifetimes(self)
        self._parts: tuple[object, ...] = (self.guards, self.identities, self.journal, self.classes, self.functions)
        self._parts += (self.inputs, self.numbers, self.aliases, self.namespaces, self.containers, self.lifetimes)
        self.drawn_from: dict[int, Recipe] = {}  # by id of a stand-in: where the generator is found
        self.draws: list[Recipe] = []  # calls of random generators that are made before the graph runs
        self.inside = 0  # how many parts of the trace are being recorded inside of it
        trace.assume = self.numbers.assume

    def serve(self, program: RunningProgram) -> None:
        """From now on `program` is the one that reads and writes this world."""
        self.program, self.guards.where = program, program.where
        self.functions.own = program.own_functions

    def end(self, place: UserFrame | None) -> None:
        """The program has ended: what is said from now on is said of this line."""
        self.guards.where = lambda: place

    def release(self) -> None:
        """Let go of everything real: the capture is over, and the program's objects live no longer because of it."""
        for mirrored in self.lifetimes.generators.values():
            mirrored.forget()
        for stream in self.journal.streams:
            stream.close()  # it refers to this world
        self.trace.assume = None
        self.trace.release()
        for part in self._parts:
            vars(part).clear()
        vars(self).clear()

    # -- what stands for what

    def overlay(
        self, real: dict[Any, Any], source: Source, child: Callable[[Source, Any], Source], owner: object = None
    ) -> Overlay:
        """What a dict of the outside is for the program: one overlay for each dict."""
        overlay = self.journal.overlay_of.get(id(real))  # an object and its `__dict__` may come from different places
        if overlay is None:
            overlay = self.journal.overlay_of[id(real)] = Overlay(
                self, real, source, child, owner, len(self.journal.overlays)
            )
            self.journal.overlays.append(overlay)
        return overlay

    def torn(self, variable: Torn) -> Unsupported:
        """The program needs a variable that a branch has left in two states: that is a break from now on."""
        reason = "a variable is read that the ways of a branch leave differently"
        self.symbols.history.learnt.apart[variable.place] = reason
        return self.guards.refusal("control_flow", reason)

    def real_of(self, value: object) -> tuple[object, Source] | None:
        """The outside object, tensor or container that a value stands for, and where it was found; None for others."""
        if isinstance(value, TracedTensor):
            place = self.inputs.place(value)
            return None if place is None else self.inputs.given(place)
        if type(value) is Outside:
            return value.real, value.source
        snapshot = self.journal.snapshots.get(id(value))
        return None if snapshot is None else (snapshot.real, snapshot.source)

    def real_key(self, key: object) -> object:
        """The key of an outside dict that a value stands for: an outside object or input is itself (guarded)."""
        if type(key) is Outside:
            self.refuse_stale_key(key)
        elif not isinstance(key, TracedTensor):
            return key
        known = self.real_of(key)
        if known is None:
            return key
        real, source = known
        if self.guards.first((id(real), "key")):
            self.guards.add(source, "is", real)
        return real

    def refuse_stale_key(self, key: Outside) -> None:
        """Raises Unsupported for a key that does not hash as the real object does, which is yet to be written to."""
        if key.is_stale_key():
            reason = "a key of a dict, whose class has a __hash__, is written to in the same segment"
            raise self.guards.refusal("escape", reason, "write to it before it is a key")

    def shown_key(self, key: object) -> object:
        """The value that stands for a key of an outside dict whose keys are guarded."""
        if type(key) is str or isinstance(key, (type, enum.Enum)) or is_constant(key):
            return key
        return self.wrap(key, Source("object", None, None, key))

    def rely_on_difference(self, first: object, second: object) -> None:
        """Guard that two tensors or objects, if both are from outside, are not one and the same."""
        self._guard_distinct([first, second])

    def rely_on_hashes(self) -> None:
        """Guard that outside tensors and objects which hash by their identity, and were asked for their hashes, are
        not one and the same: they are items of sets or keys of dicts, or were looked for among such. Functions that
        are known by their code may be so anywhere."""
        of_class: dict[object, dict[int, object]] = {}
        for value, _ in self.identities.mirrors.values():
            if type(value) is types.FunctionType:
                of_class.setdefault(value.__code__, {})[id(value)] = value
        for function in self.identities.fixed.values():
            of_class.setdefault(function.__code__, {})[id(function)] = function
        for value in (*self.trace.inputs, *[known.value for known in self.identities.seen.values()]):
            if id(value) in self.trace.hashed:
                of_class.setdefault(value.cls if type(value) is Outside else type(value), {})[id(value)] = value
        for values in of_class.values():
            self._guard_distinct(list(values.values()))

    def _guard_distinct(self, values: list[object]) -> None:
        sources = [source for value in values if (source := self._outside_source(value)) is not None]
        if len(sources) > 1 and any(source.kind != "object" for source in sources):
            self.guards.add(None, "distinct", tuple(sources))

    def _outside_source(self, value: object) -> Source | None:
        """Where an outside object, a library's marker, or the tensor that an input is was found; None for others."""
        if type(value) is object:
            return self.identities.place_of(value)
        if type(value) is types.FunctionType:
            return self.identities.source_of(value)
        known = self.real_of(value)
        return None if known is None else known[1]

    # -- wrapping

    def wrap(self, real: Any, source: Source) -> Any:
        """The value that stands for `real`, found at `source`; what the program will rely on is guarded.

        Raises Unsupported for tensors that cannot be traced."""
        cls = type(real)
        if cls is int:
            return self.numbers.wrap_int(real, source)
        if cls is float:
            return self._alone(self.numbers.wrap_float, real, source)
        if cls is bool:
            return self._alone(self.numbers.wrap_flag, real, source)
        whole = cls in CONSTANT_TYPES and cls not in _BY_PARTS
        if cls is str and (text := WRAPPERS[str](self, real, source)) is not None:
            return text
        if whole and not (cls is types.FunctionType and self._is_made_anew(real, source)):
            if cls in BOUND_BUILTINS and is_bound(real):
                return self._wrap_bound(real, source)
            if cls in IDENTITY:
                self.guards.add(source, "is", real)
                if cls is types.FunctionType and "<locals>" in real.__qualname__:
                    self.identities.fixed[id(real)] = real
                    self.functions.rely_on_identity(real)
            else:
                if cls is range:
                    self.program.fix_count(source, len(real))
                self.guards.add(source, "equals", real)
            return real
        if cls is types.GeneratorType:
            return WRAPPERS[cls](self, real, source)
        seen = self.identities.seen
        known = seen.get(id(real))
        if known is not None:
            if known.source is not source and source.kind != "object":
                if isinstance(real, type):
                    self.guards.add(source, "is", real)
                elif cls not in _BY_PARTS:
                    apart = self._alone(self.inputs.twin, real, source, known.source) if cls is torch.Tensor else None
                    if apart is not None:
                        return apart
                    self.guards.add(source, "same", known.source)
                    return known.value
            if cls not in _BY_PARTS:
                return known.value
        value = self._alone(self._wrap_new, real, cls, source)
        seen.setdefault(id(real), Seen(real, value, source))
        if cls is list:
            self.lifetimes.watch(value)
        return value

    def trust(self, real: object, source: Source) -> object:
        """As `wrap`, without guards on `real` itself: it belongs to a library."""
        cls = type(real)
        if is_opaque(real) or (cls in BOUND_BUILTINS and is_bound(real)):
            return self.identities.mirror(real, source)
        if cls in CONSTANT_TYPES or isinstance(real, (type, enum.Enum, str)) or _is_constant(real):
            self.guards.reliance.constants.append((source, real))
            return real
        known = self.identities.seen.get(id(real))
        if cls is object:  # a library's marker, of which its native code knows as well
            known = self.identities.seen.setdefault(id(real), Seen(real, real, source))
            if known.source is not source and known.source.kind != "object":
                self.guards.add(known.source, "is", real)
        self.guards.reliance.found.setdefault(id(real), (source, real))
        return self.wrap(real, Source("object", None, None, real)) if known is None else known.value

    def _alone(self, wrap: Callable[..., Any], *args: Any) -> Any:
        """What comes from outside belongs to the trace itself, also while a part of it is recorded."""
        if not self.inside:
            return wrap(*args)
        with self.trace.alone():
            return wrap(*args)

    def _wrap_new(self, real: object, cls: type, source: Source) -> Any:
        own = _BY_CLASS.get(cls)
        if own is not None:
            return own(self, real, source)
        if isinstance(real, torch.Tensor):
            return self._wrap_tensor(real, source)
        if isinstance(real, (type, enum.Enum)) or is_opaque(real):
            self.guards.add(source, "is", real)
            return real
        if isinstance(real, tuple):  # namedtuples and structseqs
            if is_python_class(cls) or not is_constant(tuple(real)):
                return self.containers.wrap_derived_tuple(real, cls, source)
            self.guards.add(source, "is", real)
            return real
        if isinstance(real, numpy.generic) or is_derived_constant(real, cls):
            if cls in WRAPPERS and (value := WRAPPERS[cls](self, real, source)) is not None:
                return value
            self.guards.add(source, "equals", real)
            return self.identities.mirror(real, source)
        if issubclass(cls, Iterator) and is_readable(real):
            self.guards.add(source, "type", cls)
            stream = Stream(self, real, source)
            self.journal.streams.append(stream)
            return self.identities.mirror(stream, source)
        if cls.__module__ == "numpy" and cls not in WRAPPERS:
            reason = f"a NumPy value ({cls.__name__}) is read"
            raise self.guards.refusal("numpy_value", reason, "pass tensors or Python numbers")
        if not (source.key in MODULE_INTERNALS and source.kind == "attr" and isinstance(real, dict)):
            self.guards.add(source, "type", cls)
        wrapper = WRAPPERS.get(BaseException if isinstance(real, BaseException) else cls)
        if wrapper is not None and (value := wrapper(self, real, source)) is not None:
            return value
        return self._wrap_object(real, cls, source)

    def _wrap_object(self, real: object, cls: type, source: Source) -> Outside:
        """An instance; those of subclasses of list, set and deque with a copy of what is in them."""
        outside = Outside(self, real, source)
        base = next((base for base in CONTAINERS if issubclass(cls, base)), None)
        if base is not None:
            outside.copy = self.containers.wrap_contents(real, base, source)
        return outside

    def _wrap_proxy(self, real: object, source: Source) -> Outside:
        self.guards.add(source, "type", type(real))
        return Outside(self, real, source)

    def _wrap_tensor(self, real: torch.Tensor, source: Source) -> object:
        if isinstance(real, TracedTensor):
            return real
        plain = type(real) in TENSOR_TYPES
        if not plain and (value := WRAPPERS[torch.Tensor](self, real, source)) is not None:
            return value
        traced = self.inputs.add(real, source, real)
        if not plain:
            traced.face = type(real)
        return traced

    def _is_made_anew(self, function: types.FunctionType, source: Source) -> bool:
        """Whether a function was probably made for this call only: a nested one that comes from the call's values, or
        is found where another one of the same code was found before."""
        nested = "<locals>" in function.__qualname__ and id(function) not in self.identities.fixed
        return nested and (_is_of_call(source) or self.symbols.history.is_made_anew(function, source))

    def _wrap_function(self, real: types.FunctionType, source: Source) -> types.FunctionType:
        """A function that the user's program makes anew for each call: known by its code, and by its cells."""
        self.guards.add(source, "type", types.FunctionType)
        self.guards.add(attribute_source(source, "__code__"), "is", real.__code__)
        self.guards.add(attribute_source(source, "__globals__"), "is", real.__globals__)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(real, name) is None:
                self.guards.add(attribute_source(source, name), "is", None)
        cells = attribute_source(source, "__closure__")
        for index, cell in enumerate(real.__closure__ or ()):
            self.namespaces.mirror_cell(cell, Source("item", cells, index))
        self.identities.mirror(real, source)
        return real

    def _wrap_method(self, real: types.MethodType, source: Source) -> types.MethodType:
        owner = self.wrap(real.__self__, Source("attr", source, "__self__"))
        return types.MethodType(self.wrap(real.__func__, Source("attr", source, "__func__")), owner)

    def _wrap_bound(self, real: Any, source: Source) -> object:
        """A method, written in C, of an outside object: that of the value which stands for the object. That of a list
        which only appends does not read the list."""
        self.guards.add(source, "type", type(real))
        self.guards.add(attribute_source(source, "__name__"), "equals", real.__name__)
        bound_to, place = real.__self__, attribute_source(source, "__self__")
        appends = type(bound_to) is list and real.__name__ == "append" and id(bound_to) not in self.identities.seen
        owner = self.containers.building(bound_to, place) if appends else self.wrap(bound_to, place)
        if is_function_apply(real):
            return types.MethodType(FUNCTION_APPLY, owner)
        method = descriptor_of(real)
        if type(owner) in (Stream, Generator):
            if real.__name__ in OF_ITERATORS:
                return types.MethodType(OF_ITERATORS[real.__name__], owner)
            reason = f"{real.__name__} of a {type(bound_to).__name__} from outside"
            raise self.guards.refusal("iterator", reason, "draw from it only")
        if type(owner) is not Outside:
            pending = type(owner) is not type(bound_to) and isinstance(bound_to, (int, float, str))  # not asked for yet
            known = not pending or method is None or method.__objclass__ is object
            return getattr(owner, real.__name__) if known else types.MethodType(method, owner)
        self.guards.add(Source("apply", source, (), descriptor_of), "is", method)
        if method is not None:
            return method_of_c(method, owner)
        if not hasattr(owner.cls, real.__name__):  # pybind11's functions are bound to its record of them
            reason = f"{real.__name__}, a function of a C++ extension, is read"
            raise self.guards.refusal("outside_object", reason)
        return types.MethodType(getattr(owner.cls, real.__name__), owner)


_BY_PARTS = frozenset({tuple, torch.Size, slice})
"""What is known by its parts, which may be numbers that change, and not by its identity."""
_BY_CLASS: dict[type, Wrapper] = {
    **dict.fromkeys(PROXIES, World._wrap_proxy),
    **dict.fromkeys(CONTAINERS, lambda world, real, source: world.containers.wrap(real, type(real), source)),
    **dict.fromkeys(_VIEWS, lambda world, real, source: world.containers.wrap_view(real, source)),
    tuple: lambda world, real, source: world.containers.wrap_tuple(real, source),
    torch.Size: lambda world, real, source: world.containers.wrap_tuple(real, source),
    slice: lambda world, real, source: world.containers.wrap_slice(real, source),
    functools.partial: lambda world, real, source: world.containers.wrap_partial(real, source),
    types.FunctionType: World._wrap_function,
    types.MethodType: World._wrap_method,
    types.CellType: lambda world, real, source: world.namespaces.mirror_cell(real, source),
}
"""How to wrap what has its own guards for its class."""


class Lifetimes:
    """What the program can see die: generators that live across a break, what is referred to weakly."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.resumed = False  # whether the program goes on where a segment has ended
        self.generators: dict[int, Any] = {}  # those that live across a break (`reified.Mirrored`), by id
        self.watched: list[list[object]] = []  # lists of the outside world with generators in them

    def later(self, real: Any, source: Source) -> Any:
        """The value of a variable that is looked at when it is read; generators, also in a list, are from the start,
        for the program can see when they are dropped.
        """
        cls = type(real)
        now = cls is types.GeneratorType or (cls is list and any(type(item) is types.GeneratorType for item in real))
        return self.world.wrap(real, source) if now else Deferred(real, source)

    def watch(self, items: list[object]) -> None:
        """A list has been read."""
        if self.generators and any(type(item) is Generator for item in items):
            self.watched.append(items)

    def look_for_drops(self) -> None:
        """Tell if one of the lists that hold generators is referred to by nothing of the program any more."""
        for items in self.watched:
            if sys.getrefcount(items) == _UNUSED_LIST:
                for item in items:
                    if type(item) is Generator and item.cleans_up():
                        self.world.program.lose(dropped_generator(self.world.guards.where()))

    def refuse_drop(self, value: Deferred) -> None:
        """A variable no longer holds an outside object. Raises Unsupported for one from before a break of which the
        program can see that it goes: perhaps the variable held the last reference.
        """
        if self.resumed and value.source.kind == "local" and is_finalised(value):
            reason = "an object that was made before a break, and whose end can be seen, is dropped"
            raise self.world.guards.refusal("outside_object", reason)

    def refuse_deaths(self, asked: object = None) -> None:
        """The program asks what is referred to weakly: for `asked`, or for anything. Raises Unsupported where it has
        written over a reference to an object of the outside world, perhaps the last one: that has happened for real
        then. A tensor that goes takes nothing along that was found elsewhere, and is still held there."""
        held = self._held(asked)
        for change in self.world.journal.changes():
            for value in change.gone():
                if not (_is_never_missed(value) or (held and _is_beside(value, held))):
                    reason = "what is referred to weakly is asked for where an object may have died"
                    raise self.world.guards.refusal("outside_object", reason)

    def _held(self, asked: object) -> list[Seen]:
        """What lies on the path of references on which an outside object was found: none if it has not been found, or
        if one of them is weak."""
        known = self.world.identities.seen.get(id(asked))
        if known is None or known.real is not asked:
            return []
        path = set(known.source.steps())
        if any(step.kind in ("apply", "drawn") for step in path):
            return []
        return [seen for seen in self.world.identities.seen.values() if seen.source in path]


def _is_never_missed(value: object) -> bool:
    return value is MISSING or type(value) in CONSTANT_TYPES or isinstance(value, _SYMBOLS)


def _is_beside(value: object, held: list[Seen]) -> bool:
    """Whether a value is a tensor, or a tuple of tensors, and none that is held there."""
    if type(value) is tuple:
        return all(_is_never_missed(item) or _is_beside(item, held) for item in value)
    return isinstance(value, torch.Tensor) and not any(value is seen.real or value is seen.value for seen in held)


_UNUSED_LIST = 5  # references to a list that is watched: it is also among `seen` and `snapshots`


def _is_of_call(source: Source) -> bool:
    """Whether what is found there probably comes with the call's values."""
    if source.kind == "attr":
        return source.key in ("cell_contents", "__func__")
    return source.kind not in ("global", "object", "closure")
