"""How the program sees mutable objects of the outside world: overlays of dicts and instances, copies of lists. Writes
stay in them until the graph has run."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import operator
import types
import weakref
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import (
    CONSTANT_TYPES,
    MISSING,
    NO_NAMESPACE,
    SLOT_TYPES,
    Watch,
    class_attribute,
    is_data_descriptor,
    is_read_by_code,
    lacks_attribute,
    ordered_keys,
    own_namespace,
    plain_kind,
    same_constant,
)
from bolide.dynamo.world.frames import Generator, refuse_drop
from bolide.dynamo.world.parts import Reading, Write
from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting, is_fleeting

Changes = list[tuple[object, Any]]
"""The writes, in order, that make a dict what it is now: (key, value), or MISSING to delete."""


@fleeting
class Overlay:
    """A dict of the outside world as the program sees it: values are wrapped when first read, writes stay here.

    `complete` is the whole dict once the program has looked at all of it (iteration, len after a write, …); before
    that, `known` holds the keys that were read or written. `original`: what a key was, to tell what has changed.
    `place`: its place among all overlays. `changed`: what `changes` has found, up to the next write; `whole`: the keys
    and values of a dict that was unchanged when it was completed.
    """

    __slots__ = (
        *("asks", "changed", "child", "complete", "computes", "itself", "known", "measured", "moved", "original"),
        *("owner", "place", "real", "source", "whole", "world", "written"),
    )

    def __init__(
        self,
        world: Reading,
        real: dict[Any, Any],
        source: Source,
        child: Callable[[Source, Any], Source],
        owner: object,
        place: int,
    ) -> None:
        self.owner, self.place = owner, place
        self.world, self.real, self.source, self.child = world, real, source, child
        self.itself = source
        self.computes: dict[object, bool] | None = None  # of an instance: whether its class computes a name
        self.asks = False
        if child is attribute_source and not isinstance(owner, type):
            known = world.classes.codes.get(id(type(owner)))
            if known is None:
                known = world.classes.codes[id(type(owner))] = _asks_code(type(owner)), {}
            self.asks, self.computes = known
        if child is attribute_source:
            self.itself = attribute_source(source, "__dict__")
            if isinstance(owner, type):  # whose `__dict__` is no dict
                self.itself = Source("apply", self.itself, (), dict)
            elif is_read_by_code(type(owner)):
                self.child, self.itself = member_source, Source("namespace", source, None)
        self.known: dict[Any, Any] = {}
        self.original: dict[object, object] = {}
        self.complete: dict[object, object] | None = None
        self.changed: Changes | None = None
        self.whole: list[object] | None = None
        self.measured = self.written = False
        self.moved: frozenset[object] = frozenset()  # keys that were deleted and set again

    def _source_of(self, key: object) -> Source:
        """Where a value is found: a guard runs no code of the program's if it has gone."""
        if not isinstance(key, str) and self.itself is not self.source:  # a key of the `__dict__` that is no name
            return dict_value_source(self.itself, key)
        computed = self.asks
        if not computed and self.computes is not None and self.child is attribute_source:
            if key not in self.computes:
                self.computes[key] = _is_computed(type(self.owner), key)
            computed = self.computes[key]
        return member_source(self.source, key) if computed else self.child(self.source, key)

    def _place(self, key: object) -> object:
        """How `key` is looked up: in the real dict, or, where the program says what it equals, among all the keys."""
        if type(key) is str:
            return key
        if self.complete is None and _hashes_itself(key):
            self.materialise()
        return key if self.complete is not None else self.world.real_key(key)

    def _read(self, key: object) -> Any:
        """What the real dict has under a key, wrapped."""
        return self.world.wrap(dict.__getitem__(self.real, key), self._source_of(key))

    def get(self, key: object) -> Any:
        """The value under `key`, or MISSING. Guards what was read, absence included."""
        key = self._place(key)
        if self.complete is not None:
            return self.complete.get(key, MISSING)
        value = self.known.get(key, MISSING)
        if value is MISSING and key not in self.known:
            if dict.__contains__(self.real, key):
                real, source = dict.__getitem__(self.real, key), self._source_of(key)
                grown = self.world.containers.grown(real, source)
                if grown is not None:
                    return grown
                value = self.world.wrap(real, source)
            else:
                self._guard_absence(key)
            self.known[key] = self.original[key] = value
        return value

    def peek(self, key: object) -> Any:
        """As `get`, but absence is not guarded (used where presence elsewhere implies it)."""
        key = self._place(key)
        if self.complete is not None:
            return self.complete.get(key, MISSING)
        if key in self.known:
            return self.known[key]
        return self.get(key) if dict.__contains__(self.real, key) else MISSING

    def set(self, key: object, value: object) -> None:
        """Write; MISSING deletes."""
        key = self._place(key)
        if self.complete is not None:
            if value is MISSING:
                self.complete.pop(key, None)
            else:
                self.complete[key] = value
            return
        if key not in self.original:
            self.original[key] = self._before(key, value)
        elif type(before := self.original[key]) is Deferred and (value is MISSING or _stays(before.real, value)):
            self.original[key] = self._read(key)  # only what is there can be taken out, or put back
        in_slots = self.owner is None and self.child in (attribute_source, slot_source)
        if value is MISSING and self.original[key] is MISSING and not in_slots:  # deleting what is there is an effect
            self._guard_absence(key)
        refuse_drop(self.known.get(key, self.original[key]), self.world.guards.where)
        self.written, self.changed = True, None
        self.world.journal.touched.add(self.place)
        if self.world.journal.forks:
            self._note(key)
        if value is not MISSING and self.known.get(key, self.original[key]) is MISSING:
            self.known.pop(key, None)  # a key that is new, or new again, comes last
            if self.original[key] is not MISSING:
                self.moved |= {key}
        self.known[key] = value

    def _before(self, key: object, value: object) -> object:
        """What a key was that is written first. What an attribute or item was does not matter, so it is not looked at,
        unless it stays as it is, or the program can see that it goes."""
        if not dict.__contains__(self.real, key):
            return MISSING
        real = dict.__getitem__(self.real, key)
        plain = self.child in (attribute_source, member_source, dict_value_source) and self.owner is not None
        if (
            not plain
            or isinstance(self.owner, type)
            or value is MISSING
            or self.world.journal.forks
            or is_finalised(real)
        ):
            return self._read(key)
        return self._read(key) if _stays(real, value) else Deferred(real, self._source_of(key))

    def _note(self, key: object) -> None:
        """Put into the journal what a key is now."""
        before, moved = self.known.get(key, self.original[key]), self.moved

        def undo() -> None:
            self.known[key], self.moved, self.changed = before, moved, None

        now, put = functools.partial(self.get, key), functools.partial(self.set, key)
        self.world.journal.writes.append(Write((id(self), key), before, now, put, undo))

    def _guard_absence(self, key: object) -> None:
        """Guard that `key` is not there; the number of an object that the program makes never is."""
        if not is_fleeting(type(key)):
            self.world.guards.add(self.itself, "has_key", (key, False))

    def rely_on_absence(self, key: object) -> None:
        """Guard that `key` is not there, once."""
        if key not in self.known and self.complete is None:
            self._guard_absence(key)
            self.known[key] = self.original[key] = MISSING

    def length(self) -> int:
        """How many items there are."""
        if self.complete is None and not (self.written and self.changes()):
            if not self.measured:
                self.measured = True
                self.world.guards.add(self.itself, "length", dict.__len__(self.real))
            return dict.__len__(self.real)
        return len(self.materialise())

    def materialise(self) -> dict[Any, Any]:
        """The whole dict as a real one (of a plain dict type) that the program may use and change natively."""
        if self.complete is None:
            self.world.guards.add(self.itself, "dict_keys", ordered_keys(self.real))
            for key in ordered_keys(self.real):
                if key not in self.original:
                    self.original[key] = self._read(key)
            whole = _empty_like(self.real)
            for key in ordered_keys(self.real):
                value = self.known.get(key, self.original[key])
                if value is not MISSING and key not in self.moved:
                    dict.__setitem__(whole, self.world.shown_key(key), value)
            for key, value in self.known.items():
                if value is not MISSING and (key in self.moved or not dict.__contains__(self.real, key)):
                    whole[self.world.shown_key(key)] = value
            if isinstance(self.real, collections.OrderedDict):
                whole = collections.OrderedDict(whole)
            self.whole = None if self.written else [*whole, *whole.values()]
            self.complete = whole
            self.world.journal.touched.add(self.place)
        return self.complete

    def changes(self) -> Changes:
        """The writes, in order, that make the dict what it is now: (key, value), or MISSING to delete. A key that
        changed its place is deleted first."""
        if self.complete is None:
            if self.changed is None:
                self.changed = self._changes() if self.written else []
            return self.changed
        now = itertools.chain(self.complete, self.complete.values())
        if (
            self.whole is not None
            and 2 * len(self.complete) == len(self.whole)
            and all(map(operator.is_, now, self.whole))
        ):
            return []
        return self._changes()

    def _changes(self) -> Changes:
        final, moved, out = self.known, self.moved, []
        if self.complete is not None:
            final = {self.world.real_key(key): value for key, value in self.complete.items()}
            moved = self._displaced(final)
            out = [(key, MISSING) for key, value in self.original.items() if value is not MISSING and key not in final]
        out += [(key, MISSING) for key in moved if final.get(key, MISSING) is not MISSING]
        for key, value in final.items():
            before = self.original.get(key, MISSING)
            same = value is before or (type(before) in CONSTANT_TYPES and same_constant(value, before))
            if key in moved or not same:
                out.append((key, value))
        return out

    def _displaced(self, final: dict[object, object]) -> frozenset[object]:
        """The keys of the real dict that are no longer where writing the new ones behind it would leave them."""
        kept = [key for key in ordered_keys(self.real) if key in final]
        place = next((i for i, (old, new) in enumerate(zip(kept, final)) if old is not new and old != new), len(kept))
        return frozenset(kept[place:])


def _in_slot(owner: object, name: str) -> object:
    """What an instance has in a slot, whatever its class does where there is nothing; else MISSING."""
    try:
        return object.__getattribute__(owner, name)
    except AttributeError:
        return MISSING


def _asks_code(cls: type) -> bool:
    """Whether what an instance does not have is asked of a method."""
    return class_attribute(cls, "__getattr__") not in (MISSING, torch.nn.Module.__getattr__)


def _is_computed(cls: type, name: Any) -> bool:
    """Whether an instance gets what a descriptor of its class computes, always or where it has no such attribute of its
    own."""
    kind = type(class_attribute(cls, name))
    return is_data_descriptor(kind) or (hasattr(kind, "__get__") and not hasattr(kind, "__set__"))


def _hashes_itself(key: object) -> bool:
    """Whether hashing a key runs code of its class."""
    cls = key.cls if type(key) is Outside else type(key)
    return type(cls.__hash__) is types.FunctionType and not isinstance(key, (enum.Enum, torch.Tensor))


def _empty_like(real: dict[Any, Any]) -> dict[Any, Any]:
    if isinstance(real, collections.defaultdict):
        return collections.defaultdict(real.default_factory)
    if isinstance(real, collections.Counter):
        return collections.Counter()
    return {}


@fleeting
class Outside:
    """A mutable object of the outside world. One per real object and capture, so identity is the real object's
    identity. `contents` is the copy of what is in it, for instances of subclasses of list, set and deque."""

    __slots__ = ("__weakref__", "asked", "attrs", "cls", "copy", "items", "real", "slot_values", "source", "world")

    def __init__(self, world: Reading, real: Any, source: Source) -> None:
        self.real, self.source = real, source
        self.cls: Any = type(real)
        namespace = own_namespace(real)
        self.items: Overlay | None = None
        if issubclass(self.cls, dict):
            self.items = world.overlay(real, source, dict_value_source, real)
        self.attrs: Overlay | None = None
        if namespace is not NO_NAMESPACE:
            self.attrs = world.overlay(namespace, source, attribute_source, real)
        self.asked: AskedSet | None = None
        self.copy: Any = None
        self.slot_values: Overlay | None = None
        self.world = world

    @classmethod
    def namespace_of(cls, owner: Outside) -> Outside:
        """The `__dict__` of an outside object as a dict that shares its overlay."""
        overlay = owner.attrs
        assert overlay is not None
        return cls.over(owner.world, owner.real.__dict__, overlay, attribute_source(owner.source, "__dict__"))

    @classmethod
    def over(cls, world: Reading, real: dict[str, object], items: Overlay, source: Source) -> Outside:
        """A dict of names, read and written through an overlay that others use as well."""
        view = cls.__new__(cls)
        view.real, view.cls, view.attrs, view.items, view.source = real, dict, None, items, source
        view.asked, view.copy, view.slot_values, view.world = None, None, None, world
        return view

    @property
    def contents(self) -> Any:
        """The copy of what is in it; of a set that changes it is made, and guarded, when all of it is asked for."""
        if self.copy is None and self.asked is not None:
            self.copy = self.asked.whole()
        return self.copy

    def questions(self) -> AskedSet | None:
        """For a set that changes and of which not all is known."""
        return self.asked if self.copy is None else None

    def plain(self) -> Any:
        """What an instance of a subclass of int, float, str or bytes is as one of these (guarded), MISSING for others:
        for native code that asks no more of it."""
        kind = plain_kind(self.real)
        if kind is None:
            return MISSING
        source = Source("apply", self.source, (), kind.__getnewargs__)
        self.world.guards.add(source, "equals", kind.__getnewargs__(self.real))
        return kind.__getnewargs__(self.real)[0]

    def rely_on_missing(self, name: str) -> None:
        """Guard that the object has no attribute `name` (unless the program itself has deleted it)."""
        written = self.attrs is not None and self.attrs.original.get(name, MISSING) is not MISSING
        if written or not self.world.guards.first((id(self), name)):
            return
        self.world.classes.rely_on(self.cls, name)
        if self.attrs is None:
            self.guard_no_attribute(name)
        else:
            self.attrs.rely_on_absence(name)

    def guard_no_attribute(self, name: str) -> None:
        """Guard that the object, which has no `__dict__`, has no attribute `name`; its `__getattr__` is not asked."""
        if class_attribute(self.cls, "__getattr__") is not MISSING:
            self.world.guards.add(Source("apply", self.source, (name,), lacks_attribute), "equals", True)
        else:
            self.world.guards.add(self.source, "has_attr", (name, False))

    def is_stale_key(self) -> bool:
        """Whether the real object does not hash as the program's does: it has been written to."""
        written = any(part is not None and part.changes() for part in (self.attrs, self.slot_values))
        return written and _hashes_itself(self)

    def container(self) -> Any:
        """What native code may use and change in place of a dict, list, set or deque; None for other objects."""
        return self.contents if self.items is None else self.items.materialise()

    def __hash__(self) -> int:
        """As the object's class defines it, so that native containers find it as they would the object."""
        method = self.world.classes.lookup(self.cls, "__hash__")
        if type(method) is types.FunctionType:
            return int(self.world.program.evaluate(method, [self]))
        if method is None:
            return hash(self.real)  # raises
        if method is object.__hash__:
            self.world.trace.hashed.add(id(self))
            return id(self.real) >> 4
        plain = self.plain()
        return int(self._refuse()) if plain is MISSING else hash(plain)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return bool(self.world.program.evaluate(operator.eq, [self, other]))

    def slots(self, world: Reading) -> Overlay:
        """The values of `__slots__` and of C-level attributes, as an overlay of a copy of them."""
        if self.slot_values is None:
            names = dict.fromkeys(name for base in self.cls.__mro__ for name in base.__dict__)
            slots = [name for name in names if type(class_attribute(self.cls, name)) in SLOT_TYPES]
            slots = [name for name in slots if name not in ("__dict__", "__weakref__")]
            values = {name: value for name in slots if (value := _in_slot(self.real, name)) is not MISSING}
            own = _asks_code(self.cls) or is_read_by_code(self.cls)
            self.slot_values = world.overlay(values, self.source, slot_source if own else attribute_source)
        return self.slot_values

    @property
    def namespace(self) -> Overlay:
        """The overlay of an instance that has a `__dict__`."""
        assert self.attrs is not None
        return self.attrs

    @property
    def dict_items(self) -> Overlay:
        """The overlay of a dict's items."""
        assert self.items is not None
        return self.items

    # Native code that gets hold of an outside object (inside a container, say) must not mistake it for an ordinary one.

    def _refuse(self, *args: Any) -> Any:
        reason = f"native code looks into an outside {self.cls.__name__} object"
        raise Unsupported(reason, None, "pass its parts instead", "native_call")

    __getattr__ = __bool__ = __str__ = __repr__ = __format__ = __lt__ = __le__ = __gt__ = __ge__ = __iter__ = (
        __len__
    ) = _refuse
    __next__ = __getitem__ = __contains__ = __call__ = __add__ = __radd__ = __enter__ = __reduce_ex__ = _refuse


@fleeting
class AskedSet:
    """A set of constants from outside that is another one from call to call. What the program asks of it is guarded:
    all of it only if it asks for that. `whole` gives a copy, guarded."""

    __slots__ = ("real", "source", "whole", "world")

    def __init__(self, world: Reading, real: AbstractSet[object], source: Source, whole: Callable[[], object]) -> None:
        self.world, self.real, self.source, self.whole = world, real, source, whole

    def has(self, item: object) -> bool:
        """Whether a constant is in it."""
        answer = item in self.real
        self.world.guards.add(Source("apply", self.source, (item,), is_member), "equals", answer)
        return answer

    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        self.world.guards.add(Source("apply", self.source, (), bool), "equals", bool(self.real))
        return not self.real

    def length(self) -> object:
        """How many items are in it: a symbol if that changes."""
        return self.world.wrap(len(self.real), Source("apply", self.source, (), count_of))

    def listed(self) -> list[object]:
        """Its items, in order; numbers that change are symbols."""
        source, items = Source("apply", self.source, (), items_of), items_of(self.real)
        self.world.program.fix_count(source, len(items))
        self.world.guards.add(source, "length", len(items))
        return [self.world.wrap(item, Source("item", source, place)) for place, item in enumerate(items)]


def is_member(real: AbstractSet[object], item: object) -> bool:
    """Whether a constant is in a set."""
    return item in real


def count_of(real: AbstractSet[object]) -> int:
    """How many items a set has."""
    return len(real)


@fleeting
class Deferred:
    """A local variable of a continued frame that has not been read: it stays where it is, without a guard. Or what was
    written over unread."""

    __slots__ = ("real", "source")

    def __init__(self, real: object, source: Source) -> None:
        self.real, self.source = real, source


class Torn:
    """A local variable that the ways of a branch, the instruction `place`, leave in states between which no graph can
    choose. It is not read; if it is, the branch is a break."""

    __slots__ = ("place",)

    def __init__(self, place: tuple[Code, int]) -> None:
        self.place = place


_FINALISED = frozenset({Generator, types.GeneratorType})  # to drop them earlier than CPython does could be seen
_REFERRED_TO = (type, torch.Tensor)  # libraries refer to them weakly
_HOLDERS = frozenset({list, tuple, set, frozenset, collections.deque})


def _stays(real: object, value: object) -> bool:
    """Whether what is written is what was there."""
    same = real is (value.real if type(value) is Outside else value)
    return same or (type(real) in CONSTANT_TYPES and same_constant(value, real))


def is_finalised(value: Any) -> bool:
    """Whether the program can see when a value goes, or what is in a container: its code is run, or weak references
    know."""
    if type(value) in (Deferred, Outside):
        value = value.real
    cls = type(value)
    if cls is dict:
        value = value.values()
    elif cls not in _HOLDERS:
        return _is_seen_to_go(value)
    return any(map(_is_seen_to_go, value))


def _is_seen_to_go(value: object) -> bool:
    cls = type(value)
    if cls in CONSTANT_TYPES or issubclass(cls, _REFERRED_TO):
        return False
    if cls in _FINALISED or hasattr(cls, "__del__"):
        return True
    return any(not _is_note(reference) for reference in weakref.getweakrefs(value))


def _is_note(reference: weakref.ref[object]) -> bool:
    """Whether a weak reference is bolide's own, or PyTorch's (whose compiler notes all modules that are made)."""
    if not issubclass(type(reference), weakref.ref):
        return False  # a proxy, which would answer for the object
    told = reference.__callback__
    namespace = told.__globals__ if isinstance(told, types.FunctionType) else {}
    return type(reference) is Watch or str(namespace.get("__name__")).startswith("torch.")


CONTAINERS: tuple[type, ...] = (list, set, frozenset, collections.deque, bytearray)


def items_of(real: object) -> list[object]:
    """What is in a list, set, deque, bytearray or tuple, whatever a subclass has for an `__iter__`."""
    base: Any = next(base for base in (*CONTAINERS, tuple) if isinstance(real, base))
    return list(base.__iter__(real))


def items_in_order(real: Any) -> list[object]:
    """What is in a set or a frozenset of constants, in an order that is the same in every process."""
    return sorted(items_of(real), key=repr)


def limit_of(real: collections.deque[object]) -> int | None:
    """How many items a deque may have, whatever a subclass has under that name."""
    limit: int | None = vars(collections.deque)["maxlen"].__get__(real)
    return limit


@fleeting
class Snapshot:
    """An outside list, set, deque or bytearray: the program works on `copy`; `before` tells at the end what changed."""

    __slots__ = ("before", "copy", "real", "source")

    def __init__(self, real: object, source: Source, copy: Any) -> None:
        self.real, self.source, self.copy = real, source, copy
        self.before = list(copy)

    def changed(self) -> bool:
        """Whether the program has changed the copy."""
        if isinstance(self.copy, set):
            return any(self.differences())
        return len(self.before) != len(self.copy) or not all(map(operator.is_, self.before, self.copy))

    def gone(self) -> list[object]:
        """What is no longer in it."""
        now = set(map(id, self.copy))
        return [item for item in self.before if id(item) not in now]

    def differences(self) -> tuple[list[object], list[object]]:
        """What has gone from a set, and what is new in it."""
        before = set(map(id, self.before))
        return self.gone(), [item for item in self.copy if id(item) not in before]


@fleeting
class Grown:
    """An outside list of which the program has only asked for `append`: what it has appended. Neither its items nor
    their number are guarded, so a list that grows at every call makes no new version."""

    __slots__ = ("items", "real", "source", "whole")

    def __init__(self, real: list[Any], source: Source) -> None:
        self.real, self.source = real, source
        self.items: list[object] = []
        self.whole = False  # the list has been read since: `items` stands for all of it


@fleeting
class Cell:
    """A closure cell of the outside world: what was found in it, and what is in it now; MISSING if it is empty."""

    __slots__ = ("before", "cell", "now")

    def __init__(self, cell: types.CellType, value: object) -> None:
        self.cell, self.before, self.now = cell, value, value


def attribute_source(base: Source, name: object) -> Source:
    return Source("attr", base, name)


def member_source(base: Source, name: object) -> Source:
    """An attribute of an instance whose class has its own way of reading them, which must not be run again."""
    return Source("member", base, name)


def slot_source(base: Source, name: object) -> Source:
    """The same for what is in a slot."""
    return Source("apply", base, (name,), object.__getattribute__)


def dict_value_source(base: Source, key: object) -> Source:
    return Source("dict_value", base, key)


def global_source(base: Source, name: object) -> Source:
    return Source("global", None, (id(base.obj), name), base.obj)


_OF_THE_OBJECT = frozenset({"__getattribute__", "__iadd__", "__imul__", "__iand__", "__ior__", "__isub__", "__ixor__"})


def method_of_c(method: Any, owner: Any) -> object:
    """A method written in C, bound; a container's works on the copy of its contents, unless it reads attributes or
    answers the container."""
    of_container = getattr(method, "__objclass__", None) in CONTAINERS and method.__name__ not in _OF_THE_OBJECT
    if type(owner) is Outside and owner.contents is not None and of_container:
        return method.__get__(owner.contents)
    return types.MethodType(method, owner)
