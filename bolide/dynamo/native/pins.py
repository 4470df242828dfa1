"""Recording what memory has to hold for guards to hold.

A `Recorder` walks the sources of guards over the values of one call that fits them. For each step from a value to the
next it notes words of memory which, as long as they stay, make the step lead to the same object: an object's class, the
place of its `__dict__`, the version of a dict, an item of a list. Then it checks the guard itself on the object found,
and notes the words that this depends on (a length, a tensor's sizes). So if all words still hold, all those guards do;
nothing has to be kept alive for that: an address is only looked at after words of living objects have shown that it is
still what it was.

Guards and sources that cannot be followed in this way (properties, `__getattr__`, symbolic sizes, …) are *loose*: they
stay Python expressions. So do the values that were seen to change while the guards still held (`Habits`).
"""

from __future__ import annotations

import collections
import itertools
import math
import types
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from bolide.dynamo.guards import texts as guard_module
from bolide.dynamo.native import instructions as ops
from bolide.dynamo.native import layout as places
from bolide.dynamo.native import native
from bolide.dynamo.native.layout import KIND_MASK, Layout, word
from bolide.dynamo.native.notes import ALL, Habits, Loose, Notes, is_immutable, require
from bolide.dynamo.program.captured import GlobalState, Guard, Source, TensorGuard
from bolide.dynamo.program.kinds import (
    MISSING,
    Watch,
    can_be_watched,
    class_attribute,
    name_in_texts,
    same_constant,
    steering,
)
from bolide.dynamo.state import state

MOST_APART = 4096  # tensors in one guard
PLAIN_EQUALITY = frozenset([int, str, bytes, float])
_MODULE_GETATTR = torch.nn.Module.__getattr__
_OBJECT_READING = vars(object)["__getattribute__"]
_MODULE_MEMBERS = ("_parameters", "_buffers", "_modules")


@dataclass
class Record:
    """What a recording found. The last three, which were relied on, tell at the next one what has changed."""

    program: native.Program
    roots: dict[Source, int]  # the passed values that have to be the same objects
    watched: list[Watch]  # references to those that can be watched
    dicts: dict[Source, tuple[int, int]]  # (id, version)
    values: dict[Source, int]  # ids
    classes: dict[type, int]  # versions

    def is_gone(self) -> bool:
        """Whether one of the roots is no more (or cannot be watched: then the next recording replaces this one)."""
        return len(self.watched) < len(self.roots) or any(root() is None for root in self.watched)


def _own_reading(cls: type) -> bool:
    """Whether a class has its own way of reading attributes."""
    return class_attribute(cls, "__getattribute__") is not _OBJECT_READING


class Recorder(Notes):
    """One recording. `names`: the names of the values; `values`: theirs in this call."""

    def __init__(self, layout: Layout, names: Sequence[str], values: Sequence[object], habits: Habits) -> None:
        super().__init__(layout, habits)
        self.slots = {Source("local", None, name): i for i, name in enumerate(names)}
        self.slot_values: list[Any] = list(values)
        self.unpacked: set[Source] = set()
        self.checked: set[Source] = set()  # tensors
        self.late: set[int] = set()  # slots that the tail fills
        self.head: list[int] = []  # instructions over slots
        self.tensors: list[int] = []
        self.tables: list[array[int]] = []
        self.facts: dict[object, int] = {}
        self.pinned: dict[Source, Any] = {}
        self.roots: dict[Source, int] = {}

    # ---- sources -----------------------------------------------------------------------------------------------------

    def value(self, source: Source) -> Any:
        """The object at a source, which stays the same one. Raises Loose."""
        value = self.pinned.get(source, MISSING)
        if value is MISSING:
            try:
                value = self._follow(source)
            except Loose:
                value = Loose
            self.pinned[source] = value
        if value is Loose:
            raise Loose
        return value

    def _follow(self, source: Source) -> Any:
        require(source not in self.habits.values)
        if source in self.slots:
            require(self.slots[source] not in self.late)
            value = self.slot_values[self.slots[source]]
            self.head += (ops.IS, self.slots[source], id(value))
            self.roots[source] = id(value)
            if is_immutable(value):
                self.own(value)
            return value
        if source.kind == "object":
            self.own(source.obj)
            return source.obj
        if source.kind == "global":
            return self.global_item(source.obj, source.key[1], source)
        if source.kind == "closure":
            self.own(source.obj)
            return self._cell_contents(source.obj, source)
        if source.base is None:
            raise Loose
        if source.kind == "item" and source.base.kind == "attr" and source.base.key == "__dict__":
            return self._own_of_class(source.base.base, source.key)
        base = self.value(source.base)
        match source.kind:
            case "type":
                self.note_class(base)
                return type(base)
            case "namespace":
                return self.namespace(base)
            case "member":
                return self.note_item(self.namespace(base), source.key, source.base, source)
            case "attr":
                return self._attribute(base, source)
            case "dict_value" | "item" if isinstance(base, dict):
                require(source.kind == "dict_value" or type(base) is dict)
                return self.note_item(base, source.key, source.base, source)
            case "item":
                return self._item(base, source)
            case "apply":
                return self._apply(source.obj, base, *source.key)
        raise Loose

    def _apply(self, function: Any, base: Any, *args: Any) -> Any:
        """What a function answers about an object, for those that come down to memory."""
        if function is id:
            number = id(base)
            self.own(number)  # made for this answer: nobody else keeps what is noted of it
            return number
        if function is object.__getattribute__:
            self.note_class(base)
            self.note_lookup(type(base), *args)
            return self._slot_value(base, class_attribute(type(base), *args))
        if function is issubclass:
            return self._is_subclass(base, *args)
        if function is weakref.ref.__call__ and isinstance(base, weakref.ref):
            return self._referent(base)
        raise Loose

    def _is_subclass(self, cls: type, wanted: Any) -> bool:
        for other in wanted if type(wanted) is tuple else (wanted,):
            require(class_attribute(type(other), "__subclasscheck__") is vars(type)["__subclasscheck__"])
        self.note_bases(cls)
        return issubclass(cls, wanted)

    def _referent(self, reference: weakref.ref[object]) -> Any:
        """What a weak reference refers to; None from its death on."""
        self.note_class(reference)
        value = reference()
        self.note(id(reference) + places.REFERENT, id(value))
        return value

    def _item(self, base: Any, source: Source) -> Any:
        require(type(base) in (list, tuple) and type(source.key) is int and 0 <= source.key < len(base))
        self.note_class(base)
        self.note(id(base) + places.SIZE, len(base))
        first = id(base) + places.TUPLE_ITEMS
        if type(base) is list:
            first = word(id(base) + places.LIST_ITEMS)
            self.note(id(base) + places.LIST_ITEMS, first)
        address = first + source.key * places.WORD
        self.note(address, word(address))
        value = base[source.key]
        self.note(address, id(value))
        self.items[source] = id(value)
        return value

    def _attribute(self, base: Any, source: Source) -> Any:
        """`getattr(base, source.key)`, for the ways of finding it that have no code of their own."""
        name, cls = source.key, type(base)
        assert source.base is not None
        if cls is types.ModuleType:
            return self.note_item(self.namespace(base), name, source.base, source)
        if isinstance(base, type):
            return self._class_attribute(base, name)
        if cls is types.FunctionType and name in self.layout.function_fields:
            return self._function_field(base, name)
        if cls is types.FunctionType and name in ("__globals__", "__closure__"):  # they stay as long as it lives
            self.note_class(base)
            return getattr(base, name)
        if cls is types.CellType and name == "cell_contents":
            self.note_class(base)
            return self._cell_contents(base, source)
        if cls is types.MethodType and name in ("__self__", "__func__"):
            value = getattr(base, name)
            self.note_class(base)
            offset = places.METHOD_SELF if name == "__self__" else places.METHOD_FUNCTION
            self.note(id(base) + offset, id(value))
            return value
        require(not _own_reading(cls))
        if name == "__dict__":
            return self.namespace(base)
        self.note_class(base)
        self.note_lookup(cls, "__getattribute__", name)
        shared = class_attribute(cls, name)
        kind = type(shared)
        if kind is types.MemberDescriptorType:
            return self._slot_value(base, shared)
        require(shared is MISSING or not (hasattr(kind, "__set__") or hasattr(kind, "__delete__")))
        namespace = self.namespace(base)
        if dict.__contains__(namespace, name):
            return self.note_item(namespace, name, source.base, source)
        require(shared is not MISSING and not hasattr(kind, "__get__"))
        self.note_absent(namespace, name, source.base)
        return shared

    def _own_of_class(self, source: Source | None, name: Any) -> Any:
        """What is under a name in the namespace of a class itself."""
        cls = self.value(source) if source is not None else None
        if not isinstance(cls, type) or name not in vars(cls):
            raise Loose
        self.note_lookup(cls, name)
        return vars(cls)[name]

    def _cell_contents(self, cell: types.CellType, source: Source) -> Any:
        address = id(cell) + places.CELL_CONTENTS
        expected = word(address)
        require(expected != 0)
        self.note(address, expected)
        self.items[source] = expected
        value = cell.cell_contents
        require(id(value) == expected)
        return value

    def _function_field(self, function: types.FunctionType, name: str) -> Any:
        """The code or the defaults of a function: null when there are none."""
        self.note_class(function)
        address = id(function) + self.layout.function_fields[name]
        expected, value = word(address), getattr(function, name)
        self.note(address, expected)
        require(expected == (0 if value is None else id(value)))
        return value

    def _slot_value(self, base: object, slot: types.MemberDescriptorType) -> Any:
        """The value of a slot of a Python class."""
        if type(slot) is not types.MemberDescriptorType:
            raise Loose
        offset = places.slot_offset(slot)
        if offset is None:
            raise Loose
        address = id(base) + offset
        expected = word(address)
        self.note(address, expected)
        value = slot.__get__(base) if expected else MISSING
        require(id(value) == expected)
        return value

    def _class_attribute(self, cls: type, name: str) -> Any:
        if name == "__mro__":
            self.note_bases(cls)
            return cls.__mro__
        meta = type(cls)
        if meta is not type:
            self.note_class(cls)
            self.note_lookup(meta, "__getattribute__", name)
            require(meta.__getattribute__ is type.__getattribute__ and class_attribute(meta, name) is MISSING)
        self.note_lookup(cls, name)
        value = class_attribute(cls, name)
        if type(value) is staticmethod:
            return value.__func__
        require(value is not MISSING and (type(value) is types.FunctionType or not hasattr(type(value), "__get__")))
        return value

    # ---- values that are passed -------------------------------------------------------------------------------------

    def unpack(self, guards: Iterable[Guard], containers: Iterable[str]) -> None:
        """Make slots of the items of passed tuples, lists and dicts, so that these may be other objects in each call.
        `containers`: names that hold a tuple or a dict by the call itself.
        """
        listed = list(guards)
        kinds: dict[Source, object] = {Source("local", None, name): None for name in containers}
        pairs = [(g.source, g.expected) for g in listed if g.kind == "type" and g.expected in (tuple, list, dict)]
        kinds.update((source, kind) for source, kind in pairs if source is not None)
        typed: set[Source] = set()
        for guard in listed:
            source = guard.source
            if source is None or not self._typed_slot(source if source in kinds else source.base, kinds, typed):
                continue
            if source in kinds and guard.kind in ("length", "dict_keys"):
                self._unpack_all(source, guard.kind)
            elif source.base in kinds and source.kind == "dict_value" and is_immutable(source.key):
                self._look_up(source)

    def _look_up(self, source: Source) -> None:
        """A slot for one value of a dict that is a slot."""
        assert source.base is not None
        table = self.slot_values[self.slots[source.base]]
        if source not in self.slots and isinstance(table, dict) and dict.__contains__(table, source.key):
            slot = self._new_slot(source, dict.__getitem__(table, source.key))
            self.head += (ops.ITEM, slot, self.slots[source.base], self.own(source.key))

    def _typed_slot(self, source: Source | None, kinds: dict[Source, object], typed: set[Source]) -> bool:
        """Whether a source is a slot that holds a container; its class is checked before it is looked into."""
        if source not in kinds or source not in self.slots:
            return False
        assert source is not None
        if kinds[source] is not None and source not in typed:
            self.head += (ops.FIELD, self.slots[source], places.TYPE, id(kinds[source]))
        typed.add(source)
        return True

    def _new_slot(self, source: Source, value: object) -> int:
        self.slots.setdefault(source, len(self.slot_values))
        self.slot_values.append(value)
        return len(self.slot_values) - 1

    def _unpack_all(self, source: Source, fact: str) -> None:
        """Slots for all items of a tuple or list of known length or of a dict of known keys."""
        value, slot, start = self.slot_values[self.slots[source]], self.slots[source], len(self.slot_values)
        if fact == "length" and type(value) in (tuple, list):
            self.head += (ops.TUPLE if type(value) is tuple else ops.LIST, start, slot, len(value))
            for i, item in enumerate(value):
                self._new_slot(Source("item", source, i), item)
            self.unpacked.add(source)
        elif fact == "dict_keys" and type(value) is dict and all(type(k) is str for k in value):
            self.head += (ops.DICT, start, slot, len(value), *map(self.own, value))
            for key, item in value.items():
                self._new_slot(Source("dict_value", source, key), item)
            self.unpacked.add(source)

    def _check_passed(self, guard: Guard) -> bool:
        """Check a guard on a slot by the slot's value; False if it has to be the same object instead."""
        assert guard.source is not None
        slot = self.slots[guard.source]
        value, expected = self.slot_values[slot], guard.expected
        kind = type(value)
        code = self.tail if slot in self.late else self.head
        if guard.kind == "tensor":
            code += (ops.TENSOR, slot, self._tensor_facts(value, expected))
            self._check_sizes(guard.source, expected)
            return True
        if guard.kind == "equals":
            require(same_constant(value, expected))
            if value is None or value is True or value is False or kind in (torch.dtype, torch.layout):
                code += (ops.IS, slot, self.own(value))
            elif kind in PLAIN_EQUALITY and not (kind is float and (value == 0.0 or math.isnan(value))):
                code += (ops.EQUALS, slot, self.own(value))
            else:
                raise Loose
            return True
        if guard.kind == "is" and value is expected:
            code += (ops.IS, slot, self.own(expected))
            return True
        if guard.kind == "type" and kind is expected:
            code += (ops.FIELD, slot, places.TYPE, self.own(kind))
            return True
        if guard.kind in ("length", "dict_keys") and kind in (tuple, list, dict):
            if guard.source in self.unpacked:
                return True
            if guard.kind == "length" or not value:
                code += (ops.FIELD, slot, places.SIZE, len(value))
                return True
        return False

    # ---- guards ------------------------------------------------------------------------------------------------------

    def check(self, guard: Guard) -> None:
        """Note what makes a guard hold. Raises Loose, also when it does not hold."""
        if guard.kind == "global_state":
            self._check_state(guard.expected)
            return
        if guard.kind == "not_aliased":
            self._check_apart(guard.expected)
            return
        if guard.kind == "distinct":
            require(guard_module.distinct([self.value(source) for source in guard.expected]))
            return
        source, expected = guard.source, guard.expected
        if source is None:
            raise Loose
        if source.kind == "apply" and source.obj is guard_module.numbers:
            self._check_data(source.base, expected)
            return
        if source.kind == "apply" and source.obj is name_in_texts and source.base is not None:
            self._check_name(source.base.obj, expected)
            return
        if source.kind == "attr" and source.key == "grad" and source not in self.slots:
            self._read_gradient(source)
        if source in self.slots and self._check_passed(guard):
            return
        if guard.kind == "same":
            require(self.value(source) is self.value(expected))
            return
        value = self.value(source)
        match guard.kind:
            case "type" if type(value) is expected:
                self.note_class(value)
            case "is" if value is expected:
                self.own(expected)
            case "equals":
                self._check_constant(value, expected)
            case "length":
                self._check_length(value, expected)
            case "has_key" if isinstance(value, dict):
                if source.kind == "object":
                    self._follow_globals(value)
                if expected[1]:
                    home = self._namespace_source(source)
                    self.note_item(value, expected[0], home, Source("dict_value", source, expected[0]))
                else:
                    self.note_absent(value, expected[0], self._namespace_source(source))
            case "dict_keys" if isinstance(value, dict):
                if isinstance(value, collections.OrderedDict) and len(value) > 1:
                    raise Loose  # its order is kept elsewhere
                self.note_all_keys(value, self._namespace_source(source))
                require(same_constant(list(dict.keys(value)), expected))
            case "has_attr" if not expected[1]:
                self._check_no_attribute(value, expected[0], source)
            case "class_attr" if isinstance(value, type):
                require(expected.after is None or value not in self.habits.classes)
                self.note_lookup(value, expected.name)
                require(steering(value, expected.name, expected.after) is expected.value)
                self.own(expected.value)
            case "tensor" if isinstance(value, torch.Tensor):
                self.tensors += (id(value), self._tensor_facts(value, expected))
                self._check_sizes(source, expected)
            case _:
                raise Loose

    def _check_apart(self, sources: Sequence[Source]) -> None:
        """No two of these tensors, each of which has a guard of its own, share memory."""
        require(self.checked.issuperset(sources) and len(sources) <= MOST_APART)
        operands: list[int] = []
        tensors = []
        for source in sources:
            slot, tensor = self._checked_tensor(source)
            tensors.append(tensor)
            operands += (slot, id(tensor))
        require(guard_module.disjoint(tensors))
        self.tail += (ops.APART, 1 << (2 * len(sources)).bit_length(), len(sources), *operands)

    def _checked_tensor(self, source: Source) -> tuple[int, torch.Tensor]:
        """The slot, or -1, of a tensor that has a guard of its own, and the tensor."""
        slot = self.slots.get(source, -1)
        return slot, self.slot_values[slot] if slot >= 0 else self.value(source)

    def _check_data(self, source: Source | None, expected: str) -> None:
        """What is in a tensor that has a guard of its own."""
        if source not in self.checked:
            raise Loose
        assert source is not None
        slot, tensor = self._checked_tensor(source)
        kept = tensor.clone()
        require(tensor.is_contiguous() and guard_module.numbers(kept) == expected)
        self.own(kept)
        width = tensor.element_size()
        self.tail += (ops.DATA, slot, id(tensor), width, kept.data_ptr(), width * tensor.numel())

    def _check_name(self, cls: type, expected: object) -> None:
        """The module and the qualified name of a class."""
        require(name_in_texts(cls) == expected)
        self.note(id(cls) + self.layout.qualified_name, self.own(cls.__qualname__))
        self.note_lookup(cls, "__module__")

    def _read_gradient(self, source: Source) -> None:
        """A slot for the gradient of a tensor: it is a new tensor after each backward."""
        assert source.base is not None
        owner = self.value(source.base)
        require(type(owner) in guard_module.TENSOR_TYPES)
        self.note_class(owner)
        slot = self._new_slot(source, owner.grad)
        self.late.add(slot)
        self.tail += (ops.ATTRIBUTE, slot, id(owner), self.own("grad"))

    @staticmethod
    def _namespace_source(source: Source) -> Source:
        """The source under which a dict is known: a `__dict__` goes by its owner."""
        named = source.kind == "namespace" or (source.kind == "attr" and source.key == "__dict__")
        return source.base if named and source.base is not None else source

    def _check_constant(self, value: object, expected: object) -> None:
        require(same_constant(value, expected))
        if is_immutable(value):
            self.own(value)
            return
        if type(value) is not list or not all(map(is_immutable, value)):
            raise Loose
        self.note_class(value)
        self.note(id(value) + places.SIZE, len(value))
        items = word(id(value) + places.LIST_ITEMS)
        self.note(id(value) + places.LIST_ITEMS, items)
        for index, item in enumerate(value):
            self.note(items + index * places.WORD, self.own(item))

    def _check_length(self, value: Any, expected: int) -> None:
        for kind in (dict, list, tuple):
            if isinstance(value, kind) and type(value).__len__ is kind.__len__ and len(value) == expected:
                self.note(id(value) + places.SIZE, expected)
                return
        raise Loose

    def _check_no_attribute(self, value: Any, name: str, source: Source) -> None:
        cls = type(value)
        require(not _own_reading(cls))
        self.note_class(value)
        self.note_lookup(cls, "__getattribute__", "__getattr__", name)
        require(class_attribute(cls, name) is MISSING)
        hook = class_attribute(cls, "__getattr__")
        require(hook is MISSING or hook is _MODULE_GETATTR)
        self.note_absent(self.namespace(value), name, source)
        if hook is _MODULE_GETATTR:
            for holder in _MODULE_MEMBERS:
                at = Source("member", source, holder)
                self.note_absent(self.value(at), name, at)

    def _check_sizes(self, source: Source, expected: TensorGuard) -> None:
        """What is at a source is a tensor, by its facts; those of symbolic sizes are loose."""
        self.checked.add(source)
        require(all(isinstance(size, int) for size in (*expected.shape, *expected.stride)))

    def _tensor_facts(self, tensor: torch.Tensor, expected: TensorGuard) -> int:
        """The address of what makes a tensor fit, but for symbolic sizes."""
        require(guard_module.tensor_fits(tensor, expected))
        known = self.facts.get(expected)
        if known is not None:
            return known
        layout, dims = self.layout, len(expected.shape)
        far = dims > places.INLINE_DIMS
        flags = ops.FAR_SIZES if far else 0
        if expected.requires_grad:
            flags |= ops.REQUIRES_GRAD
            if expected.cls is not torch.nn.Parameter:
                flags |= ops.LEAF if expected.leaf else ops.NOT_LEAF
        impl = tensor._cdata
        fixed = [(layout.kind, KIND_MASK), (layout.keys, layout.plain_keys)]
        to_strides = dims * places.WORD if far else layout.strides - layout.sizes
        offsets = [start + i * places.WORD for start in (0, to_strides) for i in range(dims)]
        sizes = zip(offsets, (*expected.shape, *expected.stride), strict=True)
        numbers = [(offset, size) for offset, size in sizes if isinstance(size, int)]
        table = native.words(
            [self.own(expected.cls), dims, flags, len(fixed), len(numbers)]
            + [part for offset, mask in fixed for part in (offset, mask, word(impl + offset) & mask)]
            + [part for pair in numbers for part in pair]
        )
        self.tables.append(table)
        self.facts[expected] = native.address(table)
        return self.facts[expected]

    def _check_state(self, expected: GlobalState) -> None:
        """`busy() is None` and `global_state() == expected`."""
        if expected.autocast or guard_module.global_state() != expected or guard_module.busy() is not None:
            raise Loose
        if torch._C._len_torch_function_stack():  # of a default device; the instruction wants none
            raise Loose
        casts = torch._C._dispatch_tls_local_exclude_set().raw_repr()
        self.head += (ops.STATE, casts, *native.thread_state(self.layout))
        self.head += (ops.ATTRIBUTE_IS, self.own(state), self.own("disabled"), self.own(0))
        self._note_global(forward_ad, "_current_level")
        of_thread = getattr(fx._symbolic_trace, "_is_fx_tracing_tls", None)
        if of_thread is None:
            self._note_global(fx._symbolic_trace, "_is_fx_tracing_flag")
        else:
            of_thread.flag = False  # as without it, but fit for being read
            self.head += (ops.ATTRIBUTE_IS, self.own(of_thread), self.own("flag"), self.own(False))

    def _note_global(self, module: types.ModuleType, name: str) -> None:
        home = Source("object", None, None, module.__dict__)
        self.note_item(module.__dict__, name, home, Source("attr", None, name))

    # ---- result ------------------------------------------------------------------------------------------------------

    def result(self, source: Source) -> tuple[int, int]:
        """Where the value at `source` comes from when everything holds. Raises Loose."""
        if source in self.slots:
            return self.slots[source], 0
        return -1, id(self.value(source))

    def instructions(self) -> list[int]:
        """All of them: slots, then words in the order in which they were noted, then tensors."""
        out = list(self.head)
        for plain, group in itertools.groupby(self.words, lambda note: note[1] == ALL):
            notes = list(group)
            out += (ops.WORDS if plain else ops.BITS, len(notes))
            for address, mask, expected in notes:
                out += (address, expected) if plain else (address, expected, mask)
        if self.tensors:
            out += (ops.TENSORS, len(self.tensors) // 2, *self.tensors)
        return [*out, *self.tail]


Rest = Callable[[Sequence[Guard], Sequence[Source]], native.Form]


def record(
    layout: Layout,
    names: Sequence[str],
    containers: Sequence[str],
    values: Sequence[object],
    guards: Sequence[Guard],
    wanted: Sequence[Source],
    habits: Habits,
    make_rest: Rest,
) -> Record:
    """Record guards that hold for a call in which the names have `values`. `make_rest(guards, wanted)` makes the
    function that checks the loose guards and reads the loose values.
    """
    recorder = Recorder(layout, names, values, habits)
    recorder.unpack(guards, containers)
    loose: list[Guard] = []
    for guard in guards:
        try:
            recorder.check(guard)
        except Loose:
            loose.append(guard)
    results: list[tuple[int, int]] = []
    left: list[Source] = []
    for source in wanted:
        try:
            results.append(recorder.result(source))
        except Loose:
            results.append((-2, len(left)))
            left.append(source)
    rest = make_rest(loose, left) if loose or left else None
    program = native.make_program(
        len(recorder.slot_values),
        recorder.instructions(),
        results,
        rest,
        recorder.tables,
        list(recorder.owned.values()),
    )
    roots = [recorder.slot_values[recorder.slots[source]] for source in recorder.roots]
    watched = [Watch(root) for root in roots if can_be_watched(type(root))]
    return Record(program, recorder.roots, watched, recorder.dicts, recorder.items, recorder.classes)


def changed(before: Record, now: Record) -> Iterator[tuple[str, Any]]:
    """What a new recording of the same roots found changed: ("dicts" or "values", source), ("classes", class)."""
    for cls, number in now.classes.items():
        if before.classes.get(cls, number) != number:
            yield "classes", cls
    for source, (table, version) in now.dicts.items():
        if before.dicts.get(source, (table, version)) != (table, version):
            yield "dicts", source
    for source, item in now.values.items():
        if before.values.get(source, item) != item:
            yield "values", source
