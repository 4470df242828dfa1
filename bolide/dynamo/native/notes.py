"""Notes of what memory has to hold: words by address, in the order in which they have to be read.

`Notes` knows how objects, classes and dicts keep what is looked up in them; `pins.Recorder` follows the sources of
guards with it.
"""

from __future__ import annotations

import gc
import threading
import types
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.dynamo.native import instructions as ops
from bolide.dynamo.native import layout as places
from bolide.dynamo.native.layout import Layout, Mismatch, word
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import is_installed, is_library_namespace

ALL = (1 << 64) - 1
IMMUTABLE = frozenset(
    [int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), torch.dtype, torch.device]
    + [torch.layout, torch.memory_format, torch.Size, range, types.CodeType, types.BuiltinFunctionType]
)
_HEAP_TYPE = 1 << 9


class Loose(Exception):
    """This value or guard does not come down to words of memory."""


def require(fact: bool) -> None:
    """Raises Loose where something is not so."""
    if not fact:
        raise Loose


@dataclass
class Habits:
    """What was seen to change from call to call while the guards held: `dicts` whose other items change, `values` that
    are other objects each time, `classes` of which other attributes change.
    """

    dicts: set[Source] = field(default_factory=set)
    values: set[Source] = field(default_factory=set)
    classes: set[type] = field(default_factory=set)


def is_immutable(value: Any) -> bool:
    cls = type(value)
    if cls is tuple or cls is frozenset:
        return all(map(is_immutable, value))
    return cls in IMMUTABLE


class Notes:
    """What has been noted so far."""

    def __init__(self, layout: Layout, habits: Habits) -> None:
        self.layout = layout
        self.habits = habits
        self.tail: list[int] = []  # instructions over what is read from objects that words have led to
        self.words: list[tuple[int, int, int]] = []
        self.noted: dict[tuple[int, int], int] = {}
        self.owned: dict[int, object] = {}
        self.dict_homes: dict[int, dict[str, object]] = {}
        self.classes: dict[type, int] = {}
        self.dicts: dict[Source, tuple[int, int]] = {}
        self.items: dict[Source, int] = {}

    # ---- notes -------------------------------------------------------------------------------------------------------

    def own(self, value: object) -> int:
        """Keep a value alive, because its address stands for it. Only for what cannot keep a model alive."""
        self.owned[id(value)] = value
        return id(value)

    def note(self, address: int, expected: int, mask: int = ALL) -> None:
        """The word at `address` has to stay `expected`; it is read here, before what it leads to."""
        if word(address) & mask != expected:
            raise Loose
        before = self.noted.get((address, mask))
        if before is None:
            self.noted[address, mask] = expected
            self.words.append((address, mask, expected))
        elif before != expected:
            raise Loose

    def note_class(self, value: object) -> None:
        """`type(value)` has to stay. (A function's cannot be another.)"""
        if type(value) is types.FunctionType and id(value) in self.owned:
            return
        self.note(id(value) + places.TYPE, self.own(type(value)))

    def note_lookup(self, cls: type, *names: str) -> None:
        """What is looked up in `cls` or its bases under these names may not change."""
        if not cls.__flags__ & _HEAP_TYPE:
            return
        if cls in self.habits.classes:
            for name in names:
                self._note_class_item(cls, name)
            return
        if cls in self.classes:
            return
        version = places.class_version(cls, self.layout.class_version)
        address = id(cls) + self.layout.class_version
        aligned, shift = address & ~7, (address & 7) * 8
        require(version != 0)
        self.own(cls)
        self.note(aligned, version << shift, 0xFFFFFFFF << shift)
        self.classes[cls] = version

    def note_bases(self, cls: type) -> None:
        """The classes in which attributes of `cls` are looked up stay the same."""
        self.own(cls)
        self.note(id(cls) + self.layout.bases, self.own(cls.__mro__))

    def _note_class_item(self, cls: type, name: str) -> None:
        """As `note_lookup`, for a class that changes all the time: one name in the dicts of the classes."""
        self.note_bases(cls)
        for base in cls.__mro__:
            if not base.__flags__ & _HEAP_TYPE:
                if name in vars(base):
                    return
                continue
            (table,) = gc.get_referents(vars(base))
            home = Source("object", None, None, table)
            self.habits.dicts.add(home)
            if name in table:
                self.note_item(table, name, home, Source("dict_value", home, name))
                return
            self.note_absent(table, name, home)

    # ---- dicts -------------------------------------------------------------------------------------------------------

    def namespace(self, owner: object) -> dict[str, Any]:
        """The `__dict__` of an instance or module, which stays the same object."""
        known = self.dict_homes.get(id(owner))
        if known is not None:
            return known
        if issubclass(type(owner), threading.local):  # a dict for each thread
            raise Loose
        try:
            namespace: dict[str, object] = object.__getattribute__(owner, "__dict__")
        except AttributeError:  # of a class with nothing but slots
            raise Loose from None
        if type(namespace) is not dict:
            raise Loose
        self.note_class(owner)
        place = places.instance_dict_place(owner)
        if place is None:
            raise Loose
        self.note(place, id(namespace))
        self.dict_homes[id(owner)] = namespace
        return namespace

    def busy(self, table: dict[Any, Any], source: Source) -> bool:
        """Whether a dict's items have to be followed one by one."""
        if source in self.habits.dicts:
            return True
        return not self.layout.instance_versions and word(id(table) + places.DICT_VALUES) != 0

    def note_dict(self, table: dict[Any, Any], source: Source) -> None:
        """Nothing in a dict may change."""
        if self.dicts.get(source, (0, 0))[0] == id(table):
            return
        version = word(id(table) + places.DICT_VERSION)
        self.note(id(table) + places.DICT_VERSION, version)
        self.dicts[source] = (id(table), version)

    def note_keys(self, table: dict[Any, Any]) -> None:
        """The table of keys of a dict has to stay where it is."""
        keys = word(id(table) + places.DICT_KEYS)
        self.note(id(table) + places.DICT_KEYS, keys)
        self.note(keys + places.KEYS_KIND, word(keys + places.KEYS_KIND) & places.KEYS_KIND_MASK, places.KEYS_KIND_MASK)
        self.note(id(table) + places.DICT_VALUES, word(id(table) + places.DICT_VALUES))

    def note_item(self, table: dict[Any, Any], key: Any, source: Source, of_value: Source) -> Any:
        """The value under a key, which stays; raises Loose when there is none."""
        if not self.busy(table, source):
            self.note_dict(table, source)
            require(dict.__contains__(table, key))
            return dict.__getitem__(table, key)
        actual = next((k for k in dict.keys(table) if type(k) is str and k == key), None)
        if actual is None or of_value in self.habits.values:
            raise Loose
        self.note_keys(table)
        try:
            at, entry = places.find_entry(table, actual, self.layout.first_value)
        except Mismatch:
            raise Loose from None
        self.note(at, self.own(actual))
        value = dict.__getitem__(table, key)
        self.note(entry, id(value))
        self.items[of_value] = id(value)
        return value

    def global_item(self, table: dict[str, Any], name: str, source: Source) -> Any:
        """The value of a global, whatever becomes of the other ones."""
        return self.note_item(table, name, self._follow_globals(table), source)

    def _follow_globals(self, table: dict[str, object]) -> Source:
        """Where the globals of a module are known: those of the user's modules change all the time, so each is followed
        for itself; installed ones keep theirs."""
        home = Source("object", None, None, table)
        if not (is_library_namespace(table) or is_installed(str(table.get("__file__")))):
            self.habits.dicts.add(home)
        self.own(table)
        return home

    def note_absent(self, table: dict[Any, Any], key: Any, source: Source) -> None:
        """A key is not in a dict, and does not get in."""
        require(not dict.__contains__(table, key))
        if not self.busy(table, source):
            self.note_dict(table, source)
        elif type(key) is str:
            self.tail += (ops.ABSENT, id(table), self.own(key))
        else:
            raise Loose

    def note_all_keys(self, table: dict[Any, Any], source: Source) -> None:
        """The keys of a dict stay what they are."""
        if not self.busy(table, source):
            self.note_dict(table, source)
            return
        self.note_keys(table)
        first, step, count, to_value = places.keys_entries(table)
        keys = word(id(table) + places.DICT_KEYS)
        values = word(id(table) + places.DICT_VALUES)
        self.note(keys + places.KEYS_COUNT, count)
        present = {id(k): k for k in dict.keys(table)}
        require(all(type(k) is str for k in present.values()))
        self.note(id(table) + places.SIZE, len(table))
        for index in range(count):
            at = first + index * step
            entry = at + to_value if to_value else values + self.layout.first_value + index * places.WORD
            name = word(at)
            if name in present:
                self.note(at, self.own(present[name]))
            else:  # nothing, or a key of other instances of the class
                self.note(at, name)
                self.note(entry, 0)
