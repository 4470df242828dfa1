"""The outside world of one capture: what was read of it (guards), what stands for it, what has been written to it."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy
import torch

from bolide.dynamo.guards.sizes import SizeHistory, Symbols, as_exprs
from bolide.dynamo.guards.texts import TENSOR_TYPES, tensor_guard
from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.captured import Guard, Recipe, Relation, Source
from bolide.dynamo.program.kinds import (
    BOUND_BUILTINS,
    CONSTANT_TYPES,
    IDENTITY,
    MISSING,
    MODULE_INTERNALS,
    PROXIES,
    class_attribute,
    descriptor_of,
    is_bound,
    is_class_namespace,
    is_code,
    is_constant,
    is_derived_constant,
    is_library_namespace,
    is_opaque,
    is_own_namespace,
    lacks_attribute,
    own_namespace,
    tuple_of,
    viewed,
)
from bolide.dynamo.program.sources import symbols_in
from bolide.dynamo.program.sources import text as path_of
from bolide.dynamo.world.classes import Classes
from bolide.dynamo.world.frames import Generator, dropped_generator, refuse_drop
from bolide.dynamo.world.iterators import OF_ITERATORS, Stream, is_readable
from bolide.dynamo.world.outside import (
    CONTAINERS,
    Deferred,
    Grown,
    Outside,
    Overlay,
    Snapshot,
    Write,
    attribute_source,
    global_source,
    is_finalised,
    items_of,
    limit_of,
    method_of_c,
)
from bolide.support.errors import Unsupported
from bolide.tracing import Trace, TracedTensor, UserFrame
from bolide.tracing.tensor import AliasGroup

Wrapper = Callable[["World", Any, Source], Any]
WRAPPERS: dict[type, Wrapper] = {}  # how to wrap instances of a class; None where it has nothing to say


_UNORDERED = (set, frozenset)
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Alias(NamedTuple):
    """Two storages, apart in the graph, that may be one in eager, depending on data: by the instruction `place`, a
    branch or what copies."""

    first: AliasGroup
    second: AliasGroup
    place: Any


def _no_machine(function: Any, args: list[Any]) -> Any:
    raise AssertionError("nothing of the program can be run here")


class World(Classes):
    """Everything one capture knows of the world outside of it."""

    def __init__(self, trace: Trace, symbols: Symbols | None = None) -> None:
        super().__init__()
        self.trace = trace
        trace.assume = self._assume
        self.symbols = symbols or Symbols(SizeHistory("", False), trace)
        self.inputs: list[Source] = []
        self.floats: dict[str, Source] = {}  # those that are numbers of the graph, by their names in conditions
        self.input_tensors: list[torch.Tensor] = []
        self.derived: dict[Source, Any] = {}  # numbers that are computed of sizes at each call (see `derived`)
        self.overlays: list[Overlay] = []
        self.snapshots: dict[int, Snapshot] = {}  # by id of the copy
        self.seen: dict[int, tuple[Any, Any, Source]] = {}  # id(real) -> (real, wrapped, source)
        self.globals: dict[int, Overlay] = {}
        self.own_namespaces: dict[int, dict[str, Any]] = {}  # dicts of the program that code is run among, by id
        self.trusted: dict[int, bool] = {}
        self.cells: dict[int, tuple[types.CellType, Any, Any]] = {}  # id(cell) -> (cell, original, value)
        self.outside_cells: dict[int, types.CellType] = {}  # all others the program has made
        self.streams: list[Stream] = []
        self.lists_grown: dict[int, Grown] = {}  # by id of the list
        self.appends: Callable[[], bool] = lambda: False  # whether what is read now is only asked for its `append`
        self.returned = False  # whether what is read now is the result of the present call
        self.exceptions: list[tuple[BaseException, dict[str, Any]]] = []  # those of outside, and their state at first
        self.class_codes: dict[int, tuple[bool, dict[Any, bool]]] = {}  # by id: see `Overlay.asks` and `computes`
        self.generators: dict[int, Any] = {}  # those that live across a break (`reified.Mirrored`), by id
        self.resumed = False  # whether the program goes on where a segment has ended
        self.watched: list[list[Any]] = []  # lists of the outside world with generators in them
        self.lose: Callable[[Unsupported], None] = lambda error: (
            None
        )  # tells what is not supported, where nothing raises
        self.needs: Callable[[str, float], None] = lambda name, value: None  # is told of floats; may raise
        self.answers: Callable[[Any], bool | None] = lambda value: None  # see `input_data.answer`
        self.varies: Callable[..., None] = lambda source, value: None  # is told of numbers of items; may raise
        self.storages: dict[int, list[AliasGroup]] = {}  # the inputs by address
        self.overlay_of: dict[int, Overlay] = {}  # by id of the real dict
        self.namespaces: dict[int, Any] = {}  # id of a `__dict__` that the program has asked for -> whose it is
        self.mirrors: dict[int, tuple[Any, Source]] = {}  # id(value) -> value, the outside object it stands for
        self.ended: Callable[[], bool] = lambda: False  # whether the outermost frame of the program has returned
        self.evaluate: Callable[[Any, list[Any]], Any] = _no_machine
        self.own_functions: dict[int, Any] = {}
        self.relied: dict[int, types.FunctionType] = {}  # functions whose code has been guarded, by id
        self.registered: dict[int, Any] = {}  # hooks that the program has put on inputs, by id of their handles
        self.drawn_from: dict[int, tuple[Any, Recipe]] = {}  # by id of a stand-in: where the graph finds the generator
        self.draws: list[Recipe] = []  # calls of random generators that are made before the graph runs
        self.flags: list[tuple[Source, bool]] = []  # inputs whose `requires_grad` the program changes, and to what
        self.places: dict[int, int] = {}  # id of a traced input -> its index
        self.masked: dict[int, tuple[TracedTensor, type]] = {}  # tensors of the program's own classes, by id: and masks
        self.forks = 0  # how many branches are under way whose ways may have to be undone
        self.ways = 0  # how many ways have been gone for the outermost of them
        self.journal: list[Write] = []  # writes to overlays and cells meanwhile
        self.aliases: list[Alias] = []  # made by branches
        self.inside = 0  # how many parts of the trace are being recorded inside of it
        self.masked_inputs: dict[int, tuple[torch.Tensor, Source]] = {}  # by id, those of them that are inputs

    # -- guards and sources

    def overlay(
        self, real: dict[Any, Any], source: Source, child: Callable[[Source, Any], Source], owner: Any = None
    ) -> Overlay:
        found = self.overlay_of.get(id(real))  # an object and its `__dict__` may come from different places
        if found is None:
            found = self.overlay_of[id(real)] = Overlay(self, real, source, child, owner)
            self.overlays.append(found)
        return found

    def rely_on_code(self, function: types.FunctionType) -> None:
        """Guard that an outside function of the user's keeps its code and the defaults of its parameters."""
        if id(function) in self.relied:
            return
        self.relied[id(function)] = function
        if is_library_namespace(function.__globals__):
            return
        source = self.source_of(function)
        self.guard(attribute_source(source, "__code__"), "is", function.__code__)
        self.guard(attribute_source(source, "__defaults__"), "is", function.__defaults__)
        defaults, at = function.__kwdefaults__, attribute_source(source, "__kwdefaults__")
        if defaults is None:
            self.guard(at, "is", None)
            return
        self.guard(at, "dict_keys", list(defaults))
        for name, value in defaults.items():
            self.guard(Source("item", at, name), "is", value)

    def rely_on_difference(self, first: Any, second: Any) -> None:
        """Guard that two tensors or objects, if both are from outside, are not one and the same."""
        self._guard_distinct([first, second])

    def rely_on_hashes(self) -> None:
        """Guard that outside tensors and objects which hash by their identity, and were asked for their hashes, are
        not one and the same: they are items of sets or keys of dicts, or were looked for among such. Functions that
        are known by their code may be so anywhere."""
        of_class: dict[Any, dict[int, Any]] = {}
        for value, _ in self.mirrors.values():
            if type(value) is types.FunctionType:
                of_class.setdefault(value.__code__, {})[id(value)] = value
        for value in (*self.trace.inputs, *[held for _, held, _ in self.seen.values()]):
            if id(value) in self.trace.hashed:
                of_class.setdefault(value.cls if type(value) is Outside else type(value), {})[id(value)] = value
        for values in of_class.values():
            self._guard_distinct(list(values.values()))

    def _guard_distinct(self, values: list[Any]) -> None:
        sources = [source for value in values if (source := self.outside_source(value)) is not None]
        if len(sources) > 1 and any(source.kind != "object" for source in sources):
            self.guard(None, "distinct", tuple(sources))

    def rely_on_identity(self, function: types.FunctionType) -> None:
        """Guard that a function which was known by its code is this very one: the program asks for it."""
        mirror = self.mirrors.get(id(function))
        if mirror is not None:
            self.guard(mirror[1], "is", function)

    def outside_source(self, value: Any) -> Source | None:
        """Where an outside object, a library's marker, or the tensor that an input is was found; None for others."""
        if isinstance(value, TracedTensor):
            place = self.input_place(value)
            return None if place is None else self.given(place)[1]
        if type(value) is object:
            return self.place_of(value)
        if type(value) is types.FunctionType:
            return self.source_of(value)
        found = self.real_of(value)
        return None if found is None else found[1]

    def real_of(self, value: Any) -> tuple[Any, Source] | None:
        """The outside object, tensor or container that a value stands for, and where it was found; None for others."""
        if isinstance(value, TracedTensor):
            place = self.input_place(value)
            return None if place is None else self.given(place)
        if type(value) is Outside:
            return value.real, value.source
        snapshot = self.snapshots.get(id(value))
        return None if snapshot is None else (snapshot.real, snapshot.source)

    def rely_on_missing(self, owner: Outside, name: str) -> None:
        """Guard that an outside object has no attribute `name` (unless the program itself has deleted it)."""
        written = owner.attrs is not None and name in owner.attrs.original and owner.attrs.original[name] is not MISSING
        if (id(owner), name) not in self.once and not written:
            self.once.add((id(owner), name))
            self.rely_on_class(owner.cls, name)
            if owner.attrs is None:
                self.guard_no_attribute(owner, name)
            else:
                owner.attrs.rely_on_absence(name)

    def guard_no_attribute(self, owner: Outside, name: str) -> None:
        """Guard that an outside object without a `__dict__` has no attribute `name`; its `__getattr__` is not asked."""
        if class_attribute(owner.cls, "__getattr__") is not MISSING:
            self.guard(Source("apply", owner.source, (name,), lacks_attribute), "equals", True)
        else:
            self.guard(owner.source, "has_attr", (name, False))

    def input_place(self, tensor: Any) -> int | None:
        """The index of the input that a traced tensor is, or None."""
        inputs = self.trace.inputs
        while len(self.places) < len(inputs):
            self.places[id(inputs[len(self.places)])] = len(self.places)
        return self.places.get(id(tensor))

    def given(self, place: int) -> tuple[torch.Tensor, Source]:
        """The real tensor that an input is, and where it is found."""
        masked = self.masked_inputs.get(id(self.trace.inputs[place]))
        return masked or (self.input_tensors[place], self.inputs[place])

    def aliased(self, group: AliasGroup) -> list[AliasGroup]:
        """The storage, and all that may be one with it in eager."""
        found: list[AliasGroup] = []
        waiting = [group]
        while waiting:
            at = waiting.pop()
            if not any(at is known for known in found):
                found.append(at)
                waiting += [each.second for each in self.aliases if each.first is at]
                waiting += [each.first for each in self.aliases if each.second is at]
        return found

    def refuse_aliases(self, tensors: Iterable[TracedTensor]) -> None:
        """Raises Unsupported where the program can see, at its end or in what it asks of `tensors`, whether two of them
        share their memory, or one does with an input, and a branch decides about that: it is a break then."""
        groups = {id(tensor.group): tensor.group for tensor in tensors} if self.aliases else {}
        for group in groups.values():
            for other in self.aliased(group):
                if other is not group and (id(other) in groups or other.source is not None or other.frozen):
                    raise self.apart(group)

    def apart(self, group: AliasGroup) -> Unsupported:
        """From now on what has made the aliases of a storage (a branch, a copy) is a break."""
        own = [id(each) for each in self.aliased(group)]
        self.symbols.history.learnt.apart.update(a.place for a in self.aliases if id(a.first) in own)
        reason = "whether two tensors share their memory depends on data"
        return Unsupported(reason, self.where(), "clone the tensor that a branch leaves as it is", kind="control_flow")

    def unmask(self) -> None:
        """Make tensors of the program's own classes like others: nothing more is asked of the program."""
        for tensor, _ in self.masked.values():
            tensor.__class__ = TracedTensor

    @contextlib.contextmanager
    def remasked(self) -> Iterator[None]:
        """While code of the program runs after that."""
        for tensor, mask in self.masked.values():
            tensor.__class__ = mask
        try:
            yield
        finally:
            self.unmask()

    def real_key(self, key: Any) -> Any:
        """The key of an outside dict that a value stands for: an outside object or input is itself (guarded)."""
        if type(key) is Outside:
            self.refuse_stale_key(key)
            known = (key.real, key.source)
        elif isinstance(key, TracedTensor) and (place := self.input_place(key)) is not None:
            known = self.given(place)
        else:
            return key
        real, source = known
        if (id(real), "key") not in self.once:
            self.once.add((id(real), "key"))
            self.guard(source, "is", real)
        return real

    def refuse_stale_key(self, key: Outside) -> None:
        """Raises Unsupported for a key that does not hash as the real object does, which is yet to be written to."""
        if key.is_stale_key():
            reason = "a key of a dict, whose class has a __hash__, is written to in the same segment"
            raise Unsupported(reason, self.where(), "write to it before it is a key", kind="escape")

    def shown_key(self, key: Any) -> Any:
        """The value that stands for a key of an outside dict whose keys are guarded."""
        if type(key) is str or isinstance(key, (type, enum.Enum)) or is_constant(key):
            return key
        return self.wrap(key, Source("object", None, None, key))

    # -- wrapping

    def wrap(self, real: Any, source: Source) -> Any:
        """The value that stands for `real`, found at `source`; what the program will rely on is guarded.

        Raises Unsupported for tensors that cannot be traced."""
        cls = type(real)
        if cls is int:
            return self._wrap_int(real, source)
        if cls is float:
            return self._alone(self._wrap_float, real, source)
        if cls in CONSTANT_TYPES and not (cls is types.FunctionType and _is_made_anew(real, source)):
            if cls in BOUND_BUILTINS and is_bound(real):
                return self._wrap_bound(real, source)
            if cls is slice or cls in IDENTITY:
                self.guard(source, "is", real)
            else:
                if cls is range:
                    self.varies(source, len(real))
                self.guard(source, "equals", real)
            return real
        if cls is types.GeneratorType:
            return WRAPPERS[cls](self, real, source)
        known = self.seen.get(id(real))
        if known is not None:
            if known[2] is not source and source.kind != "object":
                if isinstance(real, type):
                    self.guard(source, "is", real)
                elif cls is not tuple:
                    self.guard(source, "same", known[2])
                    return known[1]
            if cls is not tuple:
                return known[1]
        value = self._alone(self._wrap_new, real, cls, source)
        self.seen.setdefault(id(real), (real, value, source))
        if cls is list and self.generators and any(type(item) is Generator for item in value):
            self.watched.append(value)
        return value

    def _alone(self, wrap: Callable[..., Any], *args: Any) -> Any:
        """What comes from outside belongs to the trace itself, also while a part of it is recorded."""
        if not self.inside:
            return wrap(*args)
        with self.trace.alone():
            return wrap(*args)

    def later(self, real: Any, source: Source) -> Any:
        """The value of a variable that is looked at when it is read; generators, also in a list, are from the start,
        for the program can see when they are dropped.
        """
        cls = type(real)
        now = cls is types.GeneratorType or (cls is list and any(type(item) is types.GeneratorType for item in real))
        return self.wrap(real, source) if now else Deferred(real, source)

    def refuse_drop(self, value: Any) -> None:
        """A variable no longer holds an outside object. Raises Unsupported for one from before a break of which the
        program can see that it goes: perhaps the variable held the last reference.
        """
        if self.resumed and value.source.kind == "local" and is_finalised(value):
            reason = "an object that was made before a break, and whose end can be seen, is dropped"
            raise Unsupported(reason, self.where(), kind="outside_object")

    def refuse_deaths(self) -> None:
        """The program asks what is referred to weakly. Raises Unsupported where it has written over a reference to an
        object of the outside world, perhaps the last one: that has happened for real then."""
        before = [overlay.original.get(key, MISSING) for overlay in self.overlays for key, _ in overlay.changes()]
        before += [original for _, original, value in self.cells.values() if value is not original]
        for snapshot in self.snapshots.values():
            if snapshot.changed():
                now = set(map(id, snapshot.copy))
                before += [item for item in snapshot.before if id(item) not in now]
        if not all(
            value is MISSING or type(value) in CONSTANT_TYPES or isinstance(value, _SYMBOLS) for value in before
        ):
            reason = "what is referred to weakly is asked for where an object may have died"
            raise Unsupported(reason, self.where(), kind="outside_object")

    def look_for_drops(self) -> None:
        """Tell if one of the lists that hold generators is referred to by nothing of the program any more."""
        for items in self.watched:
            if sys.getrefcount(items) == _UNUSED_LIST:
                for item in items:
                    if type(item) is Generator and item.cleans_up():
                        self.lose(dropped_generator(self.where()))

    def _wrap_bound(self, real: Any, source: Source) -> Any:
        """A method, written in C, of an outside object: that of the value which stands for the object. That of a list
        which only appends does not read the list."""
        self.guard(source, "type", type(real))
        self.guard(attribute_source(source, "__name__"), "equals", real.__name__)
        found, place = real.__self__, attribute_source(source, "__self__")
        appends = type(found) is list and real.__name__ == "append" and id(found) not in self.seen
        owner = self.building(found, place) if appends else self.wrap(found, place)
        method = descriptor_of(real)
        if type(owner) in (Stream, Generator):
            if real.__name__ in OF_ITERATORS:
                return types.MethodType(OF_ITERATORS[real.__name__], owner)
            reason = f"{real.__name__} of a {type(found).__name__} from outside"
            raise Unsupported(reason, self.where(), "draw from it only", "iterator")
        if type(owner) is not Outside:
            pending = type(owner) is not type(found) and isinstance(found, (int, float, str))  # not asked for so far
            known = not pending or method is None or method.__objclass__ is object
            return getattr(owner, real.__name__) if known else types.MethodType(method, owner)
        self.guard(Source("apply", source, (), descriptor_of), "is", method)
        if method is not None:
            return method_of_c(method, owner)
        if not hasattr(owner.cls, real.__name__):  # pybind11's functions are bound to its record of them
            reason = f"{real.__name__}, a function of a C++ extension, is read"
            raise Unsupported(reason, self.where(), kind="outside_object")
        return types.MethodType(getattr(owner.cls, real.__name__), owner)

    def _wrap_new(self, real: Any, cls: type, source: Source) -> Any:
        if cls in PROXIES:
            self.guard(source, "type", cls)
            return Outside(self, real, source)
        if isinstance(real, torch.Tensor):
            return self._wrap_tensor(real, source)
        if isinstance(real, (type, enum.Enum)) or is_opaque(real):
            self.guard(source, "is", real)
            return real
        if cls is tuple:
            return self._wrap_tuple(real, source)
        if cls in CONTAINERS:
            return self._wrap_container(real, cls, source)
        if cls is types.FunctionType:
            return self._wrap_function(real, source)
        if cls is types.CellType:
            return self.mirror_cell(real, source)
        if cls is types.MethodType:
            owner = self.wrap(real.__self__, Source("attr", source, "__self__"))
            function = self.wrap(real.__func__, Source("attr", source, "__func__"))
            return types.MethodType(function, owner)
        if isinstance(real, tuple):  # namedtuples and structseqs
            if not is_python_class(cls) and is_constant(tuple(real)):
                self.guard(source, "is", real)
                return real
            return self._wrap_derived_tuple(real, cls, source)
        if cls is functools.partial:
            self.guard(source, "type", cls)
            function = self.wrap(real.func, Source("attr", source, "func"))
            args = self.wrap(real.args, Source("attr", source, "args"))
            keywords = self.wrap(real.keywords, Source("attr", source, "keywords"))
            made = functools.partial(function, *args, **keywords.dict_items.materialise())
            return self._with_attributes(made, real, source)
        if isinstance(real, numpy.generic) or is_derived_constant(real, cls):
            if cls in WRAPPERS and (made := WRAPPERS[cls](self, real, source)) is not None:
                return made
            self.guard(source, "equals", real)
            return self.mirror(real, source)
        if cls is types.MappingProxyType:
            return self._wrap_mapping_proxy(real, source)
        if issubclass(cls, Iterator) and is_readable(real):
            self.guard(source, "type", cls)
            stream = Stream(self, real, source)
            self.streams.append(stream)
            return self.mirror(stream, source)
        if cls.__module__ == "numpy" and cls not in WRAPPERS:
            raise Unsupported(
                f"a NumPy value ({cls.__name__}) is read",
                self.where(),
                "pass tensors or Python numbers",
                kind="numpy_value",
            )
        if not (source.key in MODULE_INTERNALS and source.kind == "attr" and isinstance(real, dict)):
            self.guard(source, "type", cls)
        wrapper = WRAPPERS.get(BaseException if isinstance(real, BaseException) else cls)
        if wrapper is not None:
            made = wrapper(self, real, source)
            if made is not None:
                return made
        return self._wrap_object(real, cls, source)

    def _with_attributes(self, made: Any, real: Any, source: Source) -> Any:
        """`made`, which stands for an outside partial or tuple, with the attributes that this has been given."""
        for name, value in own_namespace(real).items():
            object.__getattribute__(made, "__dict__")[name] = self.wrap(value, attribute_source(source, name))
        return self.mirror(made, source)

    def _wrap_function(self, real: types.FunctionType, source: Source) -> Any:
        """A function that the user's program makes anew for each call: known by its code, and by its cells."""
        self.guard(source, "type", types.FunctionType)
        self.guard(attribute_source(source, "__code__"), "is", real.__code__)
        self.guard(attribute_source(source, "__globals__"), "is", real.__globals__)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(real, name) is None:
                self.guard(attribute_source(source, name), "is", None)
        cells = attribute_source(source, "__closure__")
        for index, cell in enumerate(real.__closure__ or ()):
            self.mirror_cell(cell, Source("item", cells, index))
        return self.mirror(real, source)

    def mirror_cell(self, cell: types.CellType, source: Source) -> types.CellType:
        """An outside cell that another call may find another one in the place of."""
        known = self.mirrors.get(id(cell))
        self.note_cells([cell])
        if known is None:
            self.mirror(cell, source)
        else:
            self.guard(source, "same", known[1])
        return cell

    def source_of(self, function: types.FunctionType) -> Source:
        """Where an outside function is found."""
        mirror = self.mirrors.get(id(function))
        return Source("object", None, None, function) if mirror is None else mirror[1]

    def _wrap_mapping_proxy(self, real: types.MappingProxyType[Any, Any], source: Source) -> Any:
        """A view of a dict that the program cannot write through: one of what the dict is in the program."""
        self.guard(source, "type", types.MappingProxyType)
        table = viewed(real)
        if is_class_namespace(table):
            return self.mirror(self.show_class(table, source, self.wrap), source)
        if type(table) not in (dict, collections.OrderedDict):
            reason = f"a read-only view of an outside {type(table).__name__} is read"
            raise Unsupported(reason, self.where(), kind="outside_object")
        shown = self.wrap(table, Source("apply", source, (), viewed))
        return self.mirror(types.MappingProxyType(shown.dict_items.materialise()), source)

    def _wrap_tensor(self, real: torch.Tensor, source: Source) -> Any:
        if isinstance(real, TracedTensor):
            return real
        if type(real) not in TENSOR_TYPES and (made := WRAPPERS[torch.Tensor](self, real, source)) is not None:
            return made
        traced = self.add_input(real, source, real)
        if type(real) not in TENSOR_TYPES:
            traced.face = type(real)
        return traced

    def add_input(self, real: torch.Tensor, source: Source, like: torch.Tensor) -> TracedTensor:
        """A new input of the graph; in the program it is a leaf, or not, as `like` is."""
        where = self.where()
        if torch._C._functorch.is_functorch_wrapped_tensor(real):  # it has no memory that could be looked at
            raise Unsupported(
                "a tensor that a function of torch.func has wrapped is read", where, kind="outside_object"
            )
        name = source_name(source)
        with torch._C.DisableTorchFunction():  # some twenty questions, none of them the program's
            expected = tensor_guard(real, where)  # refuses some, which are no inputs then
            self.inputs.append(source)
            self.input_tensors.append(like)
            sizes = self.symbols.of_tensor(source, real, name)
            strides = self.symbols.strides_of(source, real, name)
            traced = self.trace.input(like, name, sizes, strides)
            self._note_storage(real, traced, where)
        if sizes or strides:
            shape, stride = map(as_exprs, (traced.shape, traced.stride()))
            expected = replace(expected, shape=shape, stride=stride, symbols=self.symbols.read_by((*shape, *stride)))
        self.guards.append(Guard(source, "tensor", expected, where))
        return traced

    def _note_storage(self, real: torch.Tensor, traced: TracedTensor, where: UserFrame | None) -> None:
        """Inputs that share memory may be read, not written: the trace does not know of each other."""
        if not real.numel():
            return
        groups = self.storages.setdefault(real.untyped_storage().data_ptr(), [])
        groups.append(traced.group)
        if len(groups) > 1:
            if any(group.version for group in groups):
                raise Unsupported(
                    "a tensor is read whose memory was written through another", where, kind="tensor_write"
                )
            for group in groups:
                group.shared = True

    def _wrap_int(self, real: int, source: Source) -> Any:
        value = self.symbols.of_int(source, real, source_name(source))
        if isinstance(value, int):
            self.guard(source, "equals", value)
        else:
            self.guard(source, "integer", value.node.expr.bounds())
        return value

    def _wrap_float(self, real: float, source: Source) -> Any:
        """A float that changes from call to call is a number of the graph, given to it as a tensor."""
        if not self.symbols.changes_float(source, real):
            self.guard(source, "equals", real)
            return real
        return self.float_of(source, real)

    def float_of(self, source: Source, real: float) -> Any:
        """The float at `source` as a number of the graph."""
        self.guard(source, "type", float)
        name = f"f{len(self.floats)}"
        self.floats[name] = source
        pin = functools.partial(self._pin_float, source, real)
        return self.mirror(self.trace.scalar(self.input_made(source, float_tensor, real), real, (pin,), name), source)

    def input_made(self, source: Source, make: Callable[[Any], torch.Tensor], real: Any) -> TracedTensor:
        """The tensor that `make` makes of the value at `source`, of which nothing is guarded, as an input."""
        with torch._C._DisableTorchDispatch():  # a real tensor, not one that is recorded
            tensor = make(real)
        self.inputs.append(Source("apply", source, (), make))
        self.input_tensors.append(tensor)
        return self.trace.input(tensor, source_name(source))

    def number_in(self, place: int) -> tuple[str, float]:
        """The number in an input of one element, for conditions: its name and its value in this call."""
        source = Source("apply", self.inputs[place], (), torch.Tensor.item)
        name = next((name for name, known in self.floats.items() if known == source), None)
        if name is None:
            self.floats[name := f"f{len(self.floats)}"] = source
        with torch._C._DisableTorchDispatch():
            return name, self.input_tensors[place].item()

    def _assume(self, condition: str, where: UserFrame | None) -> None:
        """Guard a condition over floats from outside and sizes."""
        known = self.floats | {symbol.name: symbol.source for symbol in self.symbols.found}
        named = tuple((name, known[name]) for name in symbols_in(condition))
        self.guards.append(Guard(None, "relation", Relation(condition, named), where or self.where()))

    def _pin_float(self, source: Source, real: float) -> None:
        self.needs(path_of(source), real)
        self.symbols.pin(source, real, self.where())
        self.guard(source, "equals", real)

    def _wrap_tuple(self, real: tuple[Any, ...], source: Source) -> Any:
        if is_constant(real) and self.symbols.is_settled(source, real):
            self.guard(source, "equals", real)
            return real
        self.guard(source, "type", tuple)
        self.guard_count(source, len(real))
        return self.mirror(tuple([self.wrap(item, Source("item", source, i)) for i, item in enumerate(real)]), source)

    def _wrap_derived_tuple(self, real: tuple[Any, ...], cls: type, source: Source) -> Any:
        """A namedtuple, a structseq or another instance of a subclass of tuple, made anew of its parts."""
        self.guard(source, "type", cls)
        own = [class_attribute(cls, name) for name in ("__len__", "__getitem__", "__bool__")]
        items = source if own == [tuple.__len__, tuple.__getitem__, MISSING] else _items_source(source)
        if is_python_class(cls):  # the others have a length of their class
            self.guard_count(items, tuple.__len__(real))
        parts = [self.wrap(item, Source("item", items, i)) for i, item in enumerate(tuple.__iter__(real))]
        return self._with_attributes(tuple_of(cls, parts), real, source)

    def _wrap_container(self, real: Any, cls: Any, source: Source) -> Any:
        """A copy of a list, set, deque or bytearray; of a frozenset one that stands for it."""
        if cls in _UNORDERED:
            constant = all(is_constant(item) or isinstance(item, type) for item in real)
        else:
            constant = cls is list and is_constant(tuple(real)) and self.symbols.is_settled(source, real)
        if constant or cls is bytearray:
            self._guard_items(source, real, cls)
            copy: Any = cls(real)
        else:
            self.guard(source, "type", cls)
            if cls in _UNORDERED:
                copy = self._copy(real, cls, _items_source(source))
            else:
                self._guard_limit(real, source)
                copy = collections.deque(maxlen=real.maxlen) if cls is collections.deque else []
                grown = self.lists_grown.get(id(real))
                self.seen[id(real)] = (real, copy if grown is None else grown.items, source)  # it may contain itself
                copy += self._copy(real, list, source)
        if cls is frozenset:
            return self.mirror(copy, source)
        return self._snapshot(real, source, copy)

    def _guard_items(self, source: Source, real: Any, cls: type) -> None:
        """Guard what is in a container of constants, and its order."""
        if cls in _UNORDERED and real and cls is not frozenset:  # a copy of it may have another order
            self.guard(source, "type", cls)
            self.guard(_items_source(source), "equals", items_of(real))
        else:
            self.guard(source, "equals", cls(real))

    def guard_count(self, items: Source, count: int) -> None:
        """Guard how many items there are."""
        self.varies(items, count)
        self.guard(items, "length", count)

    def _guard_limit(self, real: Any, source: Source) -> None:
        """Guard how many items a deque, if it is one, may have."""
        if isinstance(real, collections.deque):
            self.guard(Source("apply", source, (), limit_of), "equals", limit_of(real))

    def _copy(self, real: Any, base: Any, items: Source) -> Any:
        """A copy of a container by its kind, each item wrapped: the one at index i of what `items` gives."""
        listed = items_of(real)
        self.guard_count(items, len(listed))
        found = [self.wrap(item, Source("item", items, i)) for i, item in enumerate(listed)]
        if base is list:
            return found
        if base is collections.deque:
            return base(found, limit_of(real))
        if all(map(operator.is_, found, listed)):
            return base(real)  # a set's own copy keeps its order
        # otherwise the order depends on what was put in first
        for first in range(min(len(found), 8)):
            for made in (base(found[first:] + found[:first]), base(found[first::-1] + found[:first:-1])):
                if all(map(operator.is_, made, found)):
                    return made
        raise Unsupported(
            "the order of a set of objects cannot be kept", self.where(), "use a list or a dict", kind="outside_object"
        )

    def _snapshot(self, real: Any, source: Source, copy: Any) -> Any:
        snapshot = Snapshot(real, source, copy)
        grown = self.lists_grown.get(id(real))
        if grown is not None:
            grown.whole = True
            grown.items[:0] = copy
            snapshot.copy = copy = grown.items
        self.snapshots[id(copy)] = snapshot
        return copy

    def _wrap_object(self, real: Any, cls: type, source: Source) -> Outside:
        """An instance; those of subclasses of list, set and deque with a copy of what is in them."""
        made = Outside(self, real, source)
        base = next((base for base in CONTAINERS if issubclass(cls, base)), None)
        if base is not None:
            self._guard_limit(real, source)
            made.contents = self._copy(real, base, _items_source(source))
            self.snapshots[id(made.contents)] = Snapshot(real, source, made.contents)
        return made

    def is_written(self, real: Any) -> bool:
        """Whether the program has written to an outside list, set, deque or dict."""
        grown, overlay, seen = self.lists_grown.get(id(real)), self.overlay_of.get(id(real)), self.seen.get(id(real))
        if grown is not None and not grown.whole:
            return bool(grown.items)
        found = None if seen is None else seen[1]
        snapshot = self.snapshots.get(id(found.contents if type(found) is Outside else found))
        return (snapshot is not None and snapshot.changed()) or (overlay is not None and any(overlay.changes()))

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """What is read inside is the result of the present call, and only that."""
        self.returned = True
        try:
            yield
        finally:
            self.returned = False

    def grown(self, real: Any, source: Source) -> Any:
        """A list in place of `real`, whose items the program appends; None when it is not read just for that."""
        if type(real) is not list or id(real) in self.seen or not self.appends():
            return None
        return self.building(real, source)

    def building(self, real: list[Any], source: Source) -> list[Any]:
        """A list in place of `real`, to which the program only appends until it is read or has been `built`."""
        known = self.lists_grown.get(id(real))
        if known is None:
            known = self.lists_grown[id(real)] = Grown(real, source)
            self.guard(source, "type", list)
            self.mirror(known.items, source)
        elif known.source != source:
            self.guard(source, "same", known.source)
        return known.items

    def built(self, items: Any) -> None:
        """The list that `items` stands for is read from now on (as when a comprehension has come to its end)."""
        for grown in tuple(self.lists_grown.values()):
            if grown.items is items and not grown.whole:
                self.wrap(grown.real, grown.source)

    # -- globals and cells

    def is_own_namespace(self, namespace: dict[str, Any]) -> bool:
        """Whether these globals are a dict that the program has made."""
        return id(namespace) in self.own_namespaces

    def globals_of(self, namespace: dict[str, Any]) -> Overlay:
        """The globals of a module."""
        overlay = self.globals.get(id(namespace))
        if overlay is None:
            source = Source("object", None, None, namespace)
            overlay = self.globals[id(namespace)] = self.overlay(namespace, source, global_source)
            self.trusted[id(namespace)] = is_library_namespace(namespace)
        return overlay

    def load_global(self, namespace: dict[str, Any], name: str) -> Any:
        """The global `name` of a module, or MISSING. Of libraries only functions and classes are guarded: they are
        replaced on purpose, by those who want to know of or to change what is called."""
        if self.own_namespaces and self.is_own_namespace(namespace):
            return namespace.get(name, MISSING)
        overlay = self.globals_of(namespace)
        if name in overlay.known:
            return overlay.known[name]
        if name not in namespace:
            if not self.trusted[id(namespace)]:
                overlay.rely_on_absence(name)
            return MISSING
        real = namespace[name]
        grown = self.grown(real, Source("global", None, (id(namespace), name), namespace))
        if grown is not None:
            return grown
        source = Source("global", None, (id(namespace), name), namespace)
        if self.trusted[id(namespace)] and not (namespace is sys.__dict__ and name in _REDIRECTED):
            value = self.trust(real, source)
            if is_code(real) and not is_own_namespace(namespace):
                self.guard(source, "is", real)
        else:
            value = self.wrap(real, source)
        overlay.known[name] = overlay.original[name] = value
        return value

    def store_global(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        if self.is_own_namespace(namespace):
            if value is MISSING:
                del namespace[name]
            else:
                namespace[name] = value
            return
        self.load_global(namespace, name)
        self.globals[id(namespace)].set(name, value)

    def trust(self, real: Any, source: Source) -> Any:
        """As `wrap`, without guards on `real` itself: it belongs to a library."""
        if is_opaque(real) or (type(real) in BOUND_BUILTINS and is_bound(real)):
            return self.mirror(real, source)
        if type(real) in CONSTANT_TYPES or isinstance(real, (type, enum.Enum, str)):
            return real
        if is_constant(real):
            return real
        known = self.seen.get(id(real))
        if type(real) is object:  # a library's marker, of which its native code knows as well
            known = self.seen.setdefault(id(real), (real, real, source))
            if known[2] is not source and known[2].kind != "object":
                self.guard(known[2], "is", real)
        if known is not None:
            return known[1]
        return self.wrap(real, Source("object", None, None, real))

    def load_cell(self, cell: types.CellType, name: str) -> Any:
        """The contents of a closure cell, or MISSING when it is empty."""
        if id(cell) not in self.outside_cells:
            try:
                return cell.cell_contents
            except ValueError:
                return MISSING
        known = self.cells.get(id(cell))
        if known is None:
            mirror = self.mirrors.get(id(cell))
            source = Source("closure", None, name, cell)
            if mirror is not None:
                source = attribute_source(mirror[1], "cell_contents")
            try:
                grown = self.grown(cell.cell_contents, source)
                if grown is not None:
                    return grown
                value = self.wrap(cell.cell_contents, source)
            except ValueError:
                value = MISSING
            known = self.cells[id(cell)] = (cell, value, value)
        return known[2]

    def store_cell(self, cell: types.CellType, name: str, value: Any) -> None:
        if id(cell) not in self.outside_cells:
            if value is MISSING:
                del cell.cell_contents
            else:
                cell.cell_contents = value
            return
        before = self.load_cell(cell, name)
        refuse_drop(before, self.where)
        original = self.cells[id(cell)][1]

        def put(wanted: Any) -> None:
            self.cells[id(cell)] = (cell, original, wanted)

        if self.forks:
            now = functools.partial(self.load_cell, cell, name)
            self.journal.append(Write((id(cell), None), before, now, put, functools.partial(put, before)))
        put(value)

    def store_class_attribute(self, cls: type, name: str, value: Any) -> None:
        """Assign (or with MISSING delete) an attribute of a class."""
        if id(cls) in self.own_classes:
            if value is MISSING:
                type.__delattr__(cls, name)
            else:
                type.__setattr__(cls, name, value)
            self.mro_cache.clear()
            return
        if id(viewed(vars(cls))) in self.shown_classes:
            reason = f"an attribute of class {cls.__name__} is assigned, whose __dict__ has been read"
            raise Unsupported(reason, self.where(), None, "attribute_write")
        overlay = self.classes.get(cls)
        if overlay is None:
            source = Source("object", None, None, cls)
            overlay = self.classes[cls] = self.overlay(dict(vars(cls)), source, attribute_source, cls)
        if value is MISSING and overlay.get(name) is MISSING:
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        overlay.set(name, value)
        self.mro_cache.clear()

    def mirror(self, value: Any, source: Source) -> Any:
        """Note that `value` stands for the outside object at `source`; it is given back."""
        self.mirrors[id(value)] = (value, source)
        return value

    def place_of(self, value: Any) -> Source | None:
        """Where an object that stands for itself (an opaque one) was found; None for one that the program has made."""
        known = self.seen.get(id(value)) or self.mirrors.get(id(value))
        return None if known is None else known[-1]

    def is_outside(self, value: Any) -> bool:
        """Whether an object that stands for itself was found outside."""
        return self.place_of(value) is not None

    def release(self) -> None:
        """Let go of everything real: the capture is over, and the program's objects live no longer because of it."""
        for mirrored in self.generators.values():
            mirrored.forget()
        for stream in self.streams:
            stream.items.close()  # it refers to its stream
        self.trace.assume = None
        self.trace.release()
        self.__dict__.clear()

    def new_cell(self) -> types.CellType:
        return types.CellType()

    def note_cells(self, cells: Iterable[types.CellType]) -> None:
        """These cells are of the outside world."""
        for cell in cells:
            self.outside_cells[id(cell)] = cell


_UNUSED_LIST = 5  # to a list that is watched: it is also among `seen` and `snapshots`
_REDIRECTED = frozenset({"stdin", "stdout", "stderr"})  # of module sys


def _items_source(source: Source) -> Source:
    """The items of a container that cannot be indexed, or that has its own ways of being read."""
    return Source("apply", source, (), items_of)


def _is_made_anew(function: types.FunctionType, source: Source) -> bool:
    """Whether a function was probably made for this call only: a nested one that comes from the call's values."""
    if source.kind == "attr" and source.key not in ("cell_contents", "__func__"):
        return False
    return source.kind not in ("global", "object", "closure") and "<locals>" in function.__qualname__


def float_tensor(value: float) -> torch.Tensor:
    """What a float of the graph is: 0-dim and float64."""
    return torch.scalar_tensor(value, dtype=torch.float64)


def source_name(source: Source) -> str:
    """A name for a graph input: the path of its source as an identifier."""
    parts: list[str] = []
    at: Source | None = source
    while at is not None:
        key = at.key[1] if at.kind == "global" else at.key
        if at.kind not in ("object", "type") and key not in ("_parameters", "_buffers", "_modules"):
            parts.append(type(key).__name__ if isinstance(key, (torch.Tensor, torch.nn.Module)) else str(key))
        at = at.base
    name = re.sub(r"\W", "_", "_".join(reversed(parts)))
    return name if name not in ("", "self") else f"{name}input"  # the graph's own function has a `self`
