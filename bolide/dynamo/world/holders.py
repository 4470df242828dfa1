"""What holds values in the outside world: globals and cells of functions, containers and tuples."""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import itertools
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from bolide.dynamo.guards.sizes import Symbols
from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import (
    MISSING,
    VIEWS,
    class_attribute,
    contents_of,
    is_class_namespace,
    is_code,
    is_constant,
    is_library_namespace,
    is_own_namespace,
    own_namespace,
    tuple_of,
    viewed,
)
from bolide.dynamo.world.classes import Classes
from bolide.dynamo.world.frames import refuse_drop
from bolide.dynamo.world.journal import Journal
from bolide.dynamo.world.outside import (
    AskedSet,
    Cell,
    Grown,
    Outside,
    Overlay,
    Snapshot,
    attribute_source,
    global_source,
    items_of,
    limit_of,
)
from bolide.dynamo.world.parts import Reading, Seen, Write
from bolide.support.errors import Unsupported

Made = TypeVar("Made")

_REDIRECTED = frozenset({"stdin", "stdout", "stderr"})  # of module sys
_PRIVATE = re.compile(r"torch\._(?!_)")  # but for torch.__future__
_WRITTEN = frozenset({types.FunctionType, functools._lru_cache_wrapper, staticmethod, classmethod})
_STORE_GLOBAL, _STORE_ATTR = dis.opmap["STORE_GLOBAL"], dis.opmap["STORE_ATTR"]
_UNORDERED = (set, frozenset)


def is_state(namespace: dict[str, Any], name: str) -> bool:
    """Whether a global of a library is no constant: one of its functions assigns it (`parametrize.cached`, a setter of
    a flag). What torch's private modules keep is for their own work, part of which capturing does for real: the levels
    of its transforms, say, are others while one is captured than they are before and after."""
    if namespace is sys.__dict__:
        return name in _REDIRECTED
    module = str(namespace.get("__name__"))
    return not is_own_namespace(namespace) and not _PRIVATE.match(module) and name in _assigned(module)


@functools.cache
def _assigned(module: str) -> frozenset[str]:
    """The globals that functions and methods of a module assign."""
    own = list(vars(sys.modules[module]).values()) if module in sys.modules else []
    classes = [value for value in own if issubclass(type(value), type) and value.__module__ == module]
    found: set[str] = set()
    for value in itertools.chain(own, *(list(vars(cls).values()) for cls in classes)):
        for function in _functions_of(value):
            if function.__module__ == module:
                found.update(_named(function.__code__, _STORE_GLOBAL))
    return frozenset(found)


@functools.cache
def is_state_of_class(cls: type, name: str) -> bool:
    """Whether an attribute of a library's class is no constant: a static or class method assigns one of this name
    (`Distribution.set_default_validate_args`)."""
    holders = [vars(base) for base in cls.__mro__ if name in vars(base)]
    methods = [value for held in holders for value in held.values() if type(value) in (staticmethod, classmethod)]
    codes = [function.__code__ for method in methods for function in _functions_of(method)]
    return any(name in _named(code, _STORE_ATTR) for code in codes)


def _functions_of(value: object) -> Iterator[types.FunctionType]:
    """The functions written in Python that a member of a module or class consists of."""
    for part in (value.fget, value.fset) if isinstance(value, property) else (value,):
        while type(part) in _WRITTEN:
            if type(part) is types.FunctionType:
                yield part
            part = getattr(part, "__wrapped__", None)


def _named(code: types.CodeType, opcode: int) -> Iterator[str]:
    """The names that instructions of one kind have, in a function and in those it makes."""
    if opcode in code.co_code[::2]:
        yield from (step.argval for step in dis.get_instructions(code) if step.opcode == opcode)
    for inner in code.co_consts:
        if type(inner) is types.CodeType:
            yield from _named(inner, opcode)


_BOUNDS = ("start", "stop", "step")


class Namespaces:
    """Globals of modules, and closure cells."""

    def __init__(self, world: Reading, journal: Journal) -> None:
        self.world, self.journal = world, journal
        self.globals: dict[int, Overlay] = {}  # by id of a module's dict
        self.trusted: dict[int, bool] = {}  # likewise: whether it is a library's
        self.own: dict[int, dict[str, Any]] = {}  # dicts of the program that code is run among, by id
        self.outside_cells: dict[int, types.CellType] = {}  # all others the program has made

    def is_own(self, namespace: dict[str, object]) -> bool:
        """Whether these globals are a dict that the program has made."""
        return id(namespace) in self.own

    def globals_of(self, namespace: dict[str, Any]) -> Overlay:
        """The globals of a module."""
        overlay = self.globals.get(id(namespace))
        if overlay is None:
            source = Source("object", None, None, namespace)
            overlay = self.globals[id(namespace)] = self.world.overlay(namespace, source, global_source)
            self.trusted[id(namespace)] = is_library_namespace(namespace)
        return overlay

    def load_global(self, namespace: dict[str, Any], name: str) -> Any:
        """The global `name` of a module, or MISSING. Of libraries only functions and classes are guarded: they are
        replaced on purpose, by those who want to know of or to change what is called; and what they assign."""
        if self.own and self.is_own(namespace):
            return namespace.get(name, MISSING)
        overlay = self.globals_of(namespace)
        if name in overlay.known:
            return overlay.known[name]
        trusted = self.trusted[id(namespace)]
        if name not in namespace:
            if not trusted:
                overlay.rely_on_absence(name)
            return MISSING
        real, source = namespace[name], Source("global", None, (id(namespace), name), namespace)
        grown = self.world.containers.grown(real, source)
        if grown is not None:
            return grown
        code = is_code(real)
        if trusted and (code or not is_state(namespace, name)):
            value = self.world.trust(real, source)
            if code and not is_own_namespace(namespace):
                self.world.guards.add(source, "is", real)
        else:
            value = self.world.wrap(real, source)
        overlay.known[name] = overlay.original[name] = value
        return value

    def store_global(self, namespace: dict[str, object], name: str, value: object) -> None:
        """Assign (or with MISSING delete) a global."""
        if not self.is_own(namespace):
            self.load_global(namespace, name)
            self.globals[id(namespace)].set(name, value)
        elif value is MISSING:
            del namespace[name]
        else:
            namespace[name] = value

    def load_cell(self, cell: types.CellType, name: str) -> Any:
        """The contents of a closure cell, or MISSING when it is empty."""
        if id(cell) not in self.outside_cells:
            return contents_of(cell)
        known = self.journal.cells.get(id(cell))
        if known is None:
            value = contents_of(cell)
            if value is not MISSING:
                mirror = self.world.identities.mirrors.get(id(cell))
                source = Source("closure", None, name, cell)
                if mirror is not None:
                    source = attribute_source(mirror[1], "cell_contents")
                grown = self.world.containers.grown(value, source)
                if grown is not None:
                    return grown
                value = self.world.wrap(value, source)
            known = self.journal.cells[id(cell)] = Cell(cell, value)
        return known.now

    def store_cell(self, cell: types.CellType, name: str, value: object) -> None:
        """Fill (or with MISSING empty) a closure cell."""
        if id(cell) not in self.outside_cells:
            if value is MISSING:
                del cell.cell_contents
            else:
                cell.cell_contents = value
            return
        before = self.load_cell(cell, name)
        refuse_drop(before, self.world.guards.where)
        put = functools.partial(setattr, self.journal.cells[id(cell)], "now")
        if self.journal.forks:
            now = functools.partial(self.load_cell, cell, name)
            self.journal.writes.append(Write((id(cell), None), before, now, put, functools.partial(put, before)))
        put(value)

    def new_cell(self) -> types.CellType:
        """An empty cell of the program."""
        return types.CellType()

    def note_cells(self, cells: Iterable[types.CellType]) -> None:
        """These cells are of the outside world."""
        for cell in cells:
            self.outside_cells[id(cell)] = cell

    def mirror_cell(self, cell: types.CellType, source: Source) -> types.CellType:
        """An outside cell that another call may find another one in the place of."""
        known = self.world.identities.mirrors.get(id(cell))
        self.note_cells([cell])
        if known is None:
            self.world.identities.mirror(cell, source)
        else:
            self.world.guards.add(source, "same", known[1])
        return cell


class Containers:
    """Lists, sets, deques and tuples: what stands for them is a copy, with its items wrapped."""

    def __init__(self, world: Reading, journal: Journal, symbols: Symbols, classes: Classes) -> None:
        self.world, self.guards, self.journal = world, world.guards, journal
        self.symbols, self.classes = symbols, classes
        self.returned = False  # whether what is read now is the result of the present call

    def wrap(self, real: Any, cls: type, source: Source) -> Any:
        """A copy of a list, set, deque or bytearray; of a frozenset one that stands for it. A set of constants that
        changes from call to call, or whose order no copy has, is asked instead."""
        copy: Any = None
        if cls in _UNORDERED:
            constant = all(is_constant(item) or isinstance(item, type) for item in real)
            if constant:
                copy = _in_order(cls, list(real), real)
                if self.symbols.changes_as_whole(source, tuple(real)) or copy is None:
                    return self._asked(real, cls, source, copy)
        else:
            constant = cls is list and is_constant(tuple(real)) and self.symbols.is_settled(source, real)
        if constant or cls is bytearray:
            self._guard_items(source, real, cls)
            copy = cls(real) if copy is None else copy
        else:
            self.guards.add(source, "type", cls)
            if cls in _UNORDERED:
                copy = self._copy(real, cls, _items_source(source))
            else:
                self._guard_limit(real, source)
                copy = collections.deque(maxlen=real.maxlen) if cls is collections.deque else []
                grown = self.journal.grown.get(id(real))
                proxy = copy if grown is None else grown.items
                self.world.identities.seen[id(real)] = Seen(real, proxy, source)  # it may contain itself
                copy += self._copy(real, list, source)
        if cls is frozenset:
            return self.world.identities.mirror(copy, source)
        snapshot = Snapshot(real, source, copy)
        grown = self.journal.grown.get(id(real))
        if grown is not None:
            grown.whole = True
            grown.items[:0] = copy
            snapshot.copy = grown.items
        return self.journal.keep(snapshot)

    def _asked(self, real: AbstractSet[object], cls: type, source: Source, copy: object) -> Outside:
        """A set in place of one of constants; `copy`: one in the same order, None if there is none."""
        self.guards.add(source, "type", cls)

        def whole() -> object:
            if copy is None:
                raise self._no_order()
            self.world.program.fix_count(source, tuple(real), "the value")
            self._guard_items(source, real, cls)
            if cls is frozenset:
                return self.world.identities.mirror(copy, source)
            return self.journal.keep(Snapshot(real, source, copy))

        outside = Outside(self.world, real, source)
        outside.asked = AskedSet(self.world, real, source, whole)
        return outside

    def wrap_contents(self, real: object, base: type, source: Source) -> object:
        """A copy of what is in an instance of a subclass of list, set or deque (`base`)."""
        self._guard_limit(real, source)
        return self.journal.keep(Snapshot(real, source, self._copy(real, base, _items_source(source))))

    def wrap_tuple(self, real: tuple[object, ...], source: Source) -> tuple[object, ...]:
        """A tuple or size of wrapped items; one of constants is itself."""
        if is_constant(real) and self.symbols.is_settled(source, real):
            self.guards.add(source, "equals", real)
            return real
        if source.kind == "object" and all(isinstance(item, type) for item in real):
            return self.world.identities.mirror(real, source)  # type: ignore[no-any-return]
        self.guards.add(source, "type", type(real))
        self._guard_count(source, len(real))
        items = type(real)([self.world.wrap(item, Source("item", source, i)) for i, item in enumerate(real)])
        self.world.identities.mirror(items, source)
        return items

    def wrap_slice(self, real: slice, source: Source) -> slice:
        """A slice of wrapped bounds."""
        self.guards.add(source, "type", slice)
        bounds = [self.world.wrap(getattr(real, name), Source("attr", source, name)) for name in _BOUNDS]
        stand_in = slice(*bounds)
        self.world.identities.mirror(stand_in, source)
        return stand_in

    def wrap_derived_tuple(self, real: tuple[object, ...], cls: type, source: Source) -> object:
        """A namedtuple, a structseq or another instance of a subclass of tuple, made anew of its parts."""
        self.guards.add(source, "type", cls)
        own = [class_attribute(cls, name) for name in ("__len__", "__getitem__", "__bool__")]
        items = source if own == [tuple.__len__, tuple.__getitem__, MISSING] else _items_source(source)
        if is_python_class(cls):  # the others have a length of their class
            self._guard_count(items, tuple.__len__(real))
        parts = [self.world.wrap(item, Source("item", items, i)) for i, item in enumerate(tuple.__iter__(real))]
        return self._with_attributes(tuple_of(cls, parts), real, source)

    def wrap_partial(self, real: functools.partial[object], source: Source) -> functools.partial[object]:
        """A partial of wrapped parts."""
        self.guards.add(source, "type", functools.partial)
        function, args, keywords = (
            self.world.wrap(getattr(real, name), Source("attr", source, name)) for name in ("func", "args", "keywords")
        )
        partial = functools.partial(function, *args, **keywords.dict_items.materialise())
        return self._with_attributes(partial, real, source)

    def _with_attributes(self, stand_in: Made, real: object, source: Source) -> Made:
        """`stand_in`, which stands for an outside partial or tuple, with the attributes that this has been given."""
        for name, value in own_namespace(real).items():
            object.__getattribute__(stand_in, "__dict__")[name] = self.world.wrap(value, attribute_source(source, name))
        self.world.identities.mirror(stand_in, source)
        return stand_in

    def wrap_view(self, real: object, source: Source) -> Any:
        """A view of a dict, or a read-only one of a mapping: one of what the dict is in the program."""
        table = viewed(real)
        self.guards.add(source, "type", type(real))
        if type(real) is types.MappingProxyType:
            if is_class_namespace(table):
                return self.world.identities.mirror(self.classes.show(table, source, self.world.wrap), source)
            if type(table) not in (dict, collections.OrderedDict):
                reason = f"a read-only view of an outside {type(table).__name__} is read"
                raise self.guards.refusal("outside_object", reason)
        elif "__module__" in table:  # the namespace of a class, perhaps, which is written to in other ways
            raise self.guards.refusal("outside_object", "a view of a namespace is read")
        shown = self.world.wrap(table, Source("apply", source, (), viewed))
        view = VIEWS.get(type(real), types.MappingProxyType)
        return self.world.identities.mirror(view(shown.dict_items.materialise()), source)

    def _guard_items(self, source: Source, real: object, cls: type) -> None:
        """Guard what is in a container of constants, and its order."""
        if cls in _UNORDERED and real and cls is not frozenset:  # a copy of it may have another order
            self.guards.add(source, "type", cls)
            self.guards.add(_items_source(source), "equals", items_of(real))
        else:
            self.guards.add(source, "equals", cls(real))

    def _guard_count(self, items: Source, count: int) -> None:
        """Guard how many items there are."""
        self.world.program.fix_count(items, count)
        self.guards.add(items, "length", count)

    def _guard_limit(self, real: object, source: Source) -> None:
        """Guard how many items a deque, if it is one, may have."""
        if isinstance(real, collections.deque):
            self.guards.add(Source("apply", source, (), limit_of), "equals", limit_of(real))

    def _copy(self, real: Any, base: Any, items: Source) -> Any:
        """A copy of a container by its kind, each item wrapped: the one at index i of what `items` gives."""
        listed = items_of(real)
        self._guard_count(items, len(listed))
        wrapped = [self.world.wrap(item, Source("item", items, i)) for i, item in enumerate(listed)]
        if base is list:
            return wrapped
        if base is collections.deque:
            return base(wrapped, limit_of(real))
        copy = _in_order(base, wrapped, real)
        if copy is None:
            raise self._no_order()
        return copy

    def _no_order(self) -> Unsupported:
        return self.guards.refusal("outside_object", "the order of a set cannot be kept", "use a list or a dict")

    # -- lists that are only appended to

    def grown(self, real: object, source: Source) -> list[object] | None:
        """A list in place of `real`, whose items the program appends; None when it is not read just for that, for one
        of these, or for its length."""
        if type(real) is not list or id(real) in self.world.identities.seen:
            return None
        known, program = self.journal.grown.get(id(real)), self.world.program
        if (
            program.appends()
            or program.measures()
            or (known is not None and 0 < program.reads_back() <= len(known.items))
        ):
            return self.building(real, source)
        return None

    def building(self, real: list[object], source: Source) -> list[object]:
        """A list in place of `real`, to which the program only appends until it is read or has been `built`."""
        known = self.journal.grown.get(id(real))
        if known is None:
            known = self.journal.grown[id(real)] = Grown(real, source)
            self.guards.add(source, "type", list)
            self.world.identities.mirror(known.items, source)
        elif known.source != source:
            self.guards.add(source, "same", known.source)
        return known.items

    def length_of(self, items: list[object]) -> object:
        """How many items the list has that `items` stands for, if it is one that is only appended to; else None."""
        for grown in self.journal.grown.values():
            if grown.items is items and not grown.whole:
                return self.world.wrap(len(grown.real), Source("apply", grown.source, (), len)) + len(items)
        return None

    def built(self, items: list[object]) -> None:
        """The list that `items` stands for is read from now on (as when a comprehension has come to its end)."""
        for grown in tuple(self.journal.grown.values()):
            if grown.items is items and not grown.whole:
                self.world.wrap(grown.real, grown.source)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """What is read inside is the result of the present call, and only that."""
        self.returned = True
        try:
            yield
        finally:
            self.returned = False


class _Filler:
    """An object that takes a place in the table of a set, where `value` is its hash."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


def _in_order(
    base: Callable[[Iterable[object]], Iterable[object]], items: list[object], real: Iterable[object]
) -> Iterable[object] | None:
    """A set with these items in this order, None if none is found. It depends on what is put in first, on the size of
    the table and on what has been taken out. `real`: the set that they, or what they stand for, are from."""
    if all(map(operator.is_, copy := base(real), items)):
        return copy
    turns = [items[first:] + items[:first] for first in range(min(len(items), 8))]
    turns += [turn[::-1] for turn in turns]
    for count in range(3):
        for displaced in itertools.combinations(items[:8], count):
            for turn in turns:
                made = _refilled(turn, displaced, real.__sizeof__())
                copy = made if base is set else base(made)
                if all(map(operator.is_, copy, items)):
                    return copy
    return None


def _refilled(items: list[object], displaced: Iterable[object], size: int) -> set[object]:
    """A set of `size` bytes or more to which these items were added in turn, while what is gone had the places of the
    `displaced` of them."""
    taken: list[object] = [_Filler(hash(item)) for item in displaced]
    made = {*taken, *items}
    while made.__sizeof__() < size:
        taken.append(_Filler(len(taken)))
        made.add(taken[-1])
    made.difference_update(taken)
    return made


def _items_source(source: Source) -> Source:
    """The items of a container that cannot be indexed, or that has its own ways of being read."""
    return Source("apply", source, (), items_of)
