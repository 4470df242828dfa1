"""Where CPython and torch keep what the native check reads, in bytes from the start of an object.

Nothing is taken on trust: every offset is found, or confirmed, by changing objects made for it and looking at their
memory. Where this build does not do what is expected, `layout` answers None, and the readable check is used.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.support.symbols import symbol_address

WORD = 8
TYPE = 8  # ob_type of every object
SIZE = 16  # ob_size of tuples and lists, ma_used of dicts
TUPLE_ITEMS = 24
LIST_ITEMS = 24  # the address of the items
DICT_VERSION = 24  # a number that no two states of any two dicts share
DICT_KEYS = 32  # the address of the table of keys
DICT_VALUES = 40  # the address of the values of a dict whose keys are shared with other instances, else null
CELL_CONTENTS = 16
METHOD_FUNCTION = 16
METHOD_SELF = 24
REFERENT = 16  # of a weak reference
DESCRIPTOR_MEMBER = 40  # of a descriptor of a slot: the address of its description (name, kind, offset)
OBJECT_MEMBER = 16  # that kind, when it is an object of Python's
MANAGED_DICT = -24  # the address of an instance's dict, unless its class says otherwise

# The table of a dict's keys.
WORDY_KEYS = sys.version_info < (3, 11)
KEYS_KIND = 8  # before 3.11 the size; then three bytes: log2 of the size, log2 of the bytes of the index, the kind
KEYS_KIND_MASK = (1 << 64) - 1 if WORDY_KEYS else 0xFFFFFF
KEYS_COUNT = 32 if WORDY_KEYS else 24
KEYS_INDEX = 40 if WORDY_KEYS else 32
GENERAL_KEYS = 0  # entries (hash, key, value), as all are before 3.11; others are (key, value)


class Mismatch(Exception):
    """This build keeps things elsewhere."""


@dataclass(frozen=True)
class Layout:
    """What had to be found; offsets are in bytes."""

    class_version: int  # of a class: 32 bits; no two states of any two classes share one
    bases: int
    qualified_name: int
    function_fields: dict[str, int] = field(hash=False)
    first_value: int  # of a dict's shared values
    instance_versions: bool  # whether dicts of instances that share their keys have versions, too
    impl: int  # of a Tensor object; the next ones are of its TensorImpl
    metadata: int
    storage: int
    storage_data: int  # of a StorageImpl: the address of the memory
    dims: int
    sizes: int
    strides: int
    storage_offset: int
    kind: int  # five bytes: dtype, device type, device index
    keys: int
    requires_grad: int  # of autograd's metadata of a tensor: a byte
    grad_fn: int  # likewise: a word
    flags: int  # of autograd's state of a thread
    flags_mask: int  # grad mode and inference mode
    plain_keys: int  # the bits of `keys` that do not depend on inference mode


KIND_MASK = 0xFFFFFFFFFF
INLINE_DIMS = 5


_memory = (ctypes.c_uint64 * (1 << 59)).from_address(0)


def word(address: int) -> int:
    """The 64-bit word at an address, which has to be a multiple of 8."""
    return _memory[address >> 3]


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _bytes(address: int, count: int) -> bytes:
    return bytes((ctypes.c_ubyte * count).from_address(address))


def _require(fact: bool, what: str) -> None:
    if not fact:
        raise Mismatch(what)


@functools.cache
def layout() -> Layout | None:
    """The layout of this build, or None when it is not what the native check can read."""
    try:
        _confirm_containers()
        _confirm_slots()
        _confirm_dicts()
        with torch.inference_mode(False), torch.enable_grad():
            return _layout()
    except Exception:  # mostly a Mismatch; whatever else goes wrong says the same
        return None


def _layout() -> Layout:
    metadata, requires_grad, grad_fn = _autograd_offsets()
    flags, flags_mask = _autograd_flags()
    layout = Layout(
        class_version=_class_version_offset(),
        bases=_find(_words(id(_Plain), object.__sizeof__(_Plain) // WORD), [id(_Plain.__mro__)], "tp_mro"),
        qualified_name=_qualified_name_offset(),
        function_fields=_function_fields(),
        first_value=_first_value_offset(),
        instance_versions=_instances_have_versions(),
        metadata=metadata,
        requires_grad=requires_grad,
        grad_fn=grad_fn,
        flags=flags,
        flags_mask=flags_mask,
        **_tensor_offsets(),
    )
    _confirm_tensors(layout)
    return layout


# ---- CPython ---------------------------------------------------------------------------------------------------------


class _Plain:
    """An ordinary class: its instances have a dict, and its attributes may change."""


def instance_dict_place(owner: object) -> int | None:
    """The address of the word that points to an instance's dict; None if it is not where it is expected."""
    namespace = object.__getattribute__(owner, "__dict__")
    offset = type(owner).__dictoffset__
    address = id(owner) + (offset if offset > 0 else MANAGED_DICT)
    return address if word(address) == id(namespace) else None


def slot_offset(slot: types.MemberDescriptorType) -> int | None:
    """Where an instance has the object of a slot; None for slots that are no objects."""
    member = word(id(slot) + DESCRIPTOR_MEMBER)
    kind = ctypes.c_int.from_address(member + WORD).value
    return word(member + 2 * WORD) if kind == OBJECT_MEMBER else None


class _Slotted:
    __slots__ = ("first", "second")
    first: object
    second: object


def _confirm_slots() -> None:
    example = _Slotted()
    example.first, example.second = object(), object()
    for slot, value in ((vars(_Slotted)["first"], example.first), (vars(_Slotted)["second"], example.second)):
        offset = slot_offset(slot)
        _require(offset is not None and word(id(example) + offset) == id(value), "slots")


def _confirm_containers() -> None:
    a, b = object(), object()
    _require(word(id(a) + TYPE) == id(object), "ob_type")
    _require(word(id((a, b)) + SIZE) == 2, "ob_size")
    pair, items = (a, b), [a, b, a]
    _require(_words(id(pair) + TUPLE_ITEMS, 2) == [id(a), id(b)], "tuple items")
    _require(word(id(items) + SIZE) == 3, "list size")
    _require(_words(word(id(items) + LIST_ITEMS), 3) == [id(a), id(b), id(a)], "list items")
    cell = types.CellType(a)
    _require(word(id(cell) + CELL_CONTENTS) == id(a), "cell")
    method = types.MethodType(_require, a)
    _require(word(id(method) + METHOD_SELF) == id(a), "__self__")
    referred = _Plain()
    reference = weakref.ref(referred)
    _require(word(id(reference) + REFERENT) == id(referred), "referent")
    del referred
    _require(word(id(reference) + REFERENT) == id(None), "dead referent")
    _require(word(id(method) + METHOD_FUNCTION) == id(_require), "__func__")


def _confirm_dicts() -> None:
    """The version has to change with every change, by whatever way it is made."""
    versions: list[int] = []
    table: dict[Any, Any] = {"x": 1}

    def seen(table: dict[Any, Any] = table) -> None:
        _require(word(id(table) + SIZE) == len(table), "ma_used")
        versions.append(word(id(table) + DICT_VERSION))

    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: table.update(x=2),
        lambda: table.setdefault("y", 3),
        lambda: table.pop("y"),
        lambda: table.update({i: i for i in range(50)}),
        lambda: table.popitem(),
        lambda: table.__delitem__("x"),
        lambda: table.__ior__({"z": 1}),
        lambda: table.clear(),
    ]
    for change in changes:
        change()
        seen()
    seen({"x": 1})
    seen({})
    _require(len(set(versions)) == len(versions), "ma_version_tag")
    key, value = "bolide key", object()
    for example in ({key: value}, {1: 2, key: value}, {str(i): i for i in range(300)} | {key: value}):
        at, entry = find_entry(example, key)
        _require(word(at) == id(key) and word(entry) == id(value), "dict entries")


def _instances_have_versions() -> bool:
    """Whether the version of an instance's dict changes with every assignment to an attribute. (Python 3.13 writes
    into the instance alone.)
    """
    versions: list[int] = []
    owner: Any = _Plain()
    owner.a = owner.b = None
    namespace = owner.__dict__
    _require(instance_dict_place(owner) is not None, "instance dict")

    def seen() -> None:
        versions.append(word(id(namespace) + DICT_VERSION))

    for value in [object() for _ in range(64)]:  # often enough for the interpreter to specialise the instruction
        owner.a = value
        seen()
    for change in (lambda: setattr(owner, "c", 1), lambda: delattr(owner, "c"), lambda: namespace.update(a=3)):
        change()
        seen()
    return len(set(versions)) == len(versions)


def keys_entries(table: dict[Any, Any]) -> tuple[int, int, int, int]:
    """Of a dict's keys: the address of the first entry's key, the bytes of an entry, how many entries there are, and
    from a key to its value (0 when the values are kept elsewhere).
    """
    keys = word(id(table) + DICT_KEYS)
    shape = word(keys + KEYS_KIND)
    if WORDY_KEYS:
        index_bytes, hashed = shape * _bytes_of_index(shape), True
    else:
        index_bytes, hashed = 1 << (shape >> 8 & 0xFF), shape >> 16 & 0xFF == GENERAL_KEYS
    first = keys + KEYS_INDEX + index_bytes + (WORD if hashed else 0)
    shared = word(id(table) + DICT_VALUES) != 0
    return first, (3 if hashed else 2) * WORD, word(keys + KEYS_COUNT), 0 if shared else WORD


def _bytes_of_index(size: int) -> int:
    """Of each place in the index of a table of that size, which holds a signed number."""
    return next(count for count in (1, 2, 4, 8) if size <= 1 << 8 * count)


def find_entry(table: dict[Any, Any], key: Any, first_value: int = 0) -> tuple[int, int]:
    """The addresses of the words that hold a key of a dict (the very object) and its value."""
    first, step, count, to_value = keys_entries(table)
    for index in range(count):
        at = first + index * step
        if word(at) == id(key):
            values = word(id(table) + DICT_VALUES)
            return at, at + to_value if to_value else values + first_value + index * WORD
    raise Mismatch("dict entries")


def _first_value_offset() -> int:
    """From `DICT_VALUES` to the first of the shared values."""
    owner = _Plain()
    markers = [object() for _ in range(3)]
    owner.a, owner.b, owner.c = markers  # type: ignore[attr-defined]
    values = word(id(owner.__dict__) + DICT_VALUES)
    if not values:
        return 0
    expected = [id(marker) for marker in markers]
    for offset in (0, WORD):
        if _words(values + offset, 3) == expected:
            return offset
    raise Mismatch("shared values")


def class_version(cls: type, offset: int) -> int:
    """The version of a class, 0 if it has none."""
    getattr(cls, "__bolide_looks_up__", None)  # a look-up gives a class its version
    return ctypes.c_uint32.from_address(id(cls) + offset).value


def _class_version_offset() -> int:
    """The one field that grows with every change of the class or of its base."""

    class Derived(_Plain):
        pass

    count = int(type.__basicsize__) // 4  # type: ignore[call-overload]

    def read() -> list[int]:
        getattr(Derived, "__bolide_looks_up__", None)
        return list((ctypes.c_uint32 * count).from_address(id(Derived)))

    snapshots = [read()]
    for round_ in range(6):
        setattr((Derived, _Plain)[round_ % 2], f"mark{round_ // 2}", round_)
        stale = list((ctypes.c_uint32 * count).from_address(id(Derived)))
        snapshots.append(read())
        snapshots[-1] = [now if old != before else 0 for now, old, before in zip(snapshots[-1], stale, snapshots[-2])]
    growing = [i for i in range(len(snapshots[0])) if all(0 < a[i] < b[i] for a, b in itertools.pairwise(snapshots))]
    _require(len(growing) == 1, "tp_version_tag")
    return growing[0] * 4


def _qualified_name_offset() -> int:
    """Where a class has its `__qualname__`, which changes without a new version of the class."""

    class Nested:
        pass

    words = _words(id(Nested), object.__sizeof__(Nested) // WORD)
    return _find(words, [id(Nested.__qualname__)], "ht_qualname")


def _function_fields() -> dict[str, int]:
    """Where a function has its code and its defaults."""

    def example(a: object = [], *, b: object = []) -> None: ...

    words = _words(id(example), types.FunctionType.__basicsize__ // WORD)
    return {
        name: _find(words, [id(getattr(example, name))], name)
        for name in ("__code__", "__defaults__", "__kwdefaults__")
    }


# ---- torch -----------------------------------------------------------------------------------------------------------


def _find(words: Sequence[int], wanted: Sequence[int], what: str) -> int:
    """The offset in bytes at which `wanted` stands in `words`, which has to be unique."""
    places = [i for i in range(len(words) - len(wanted) + 1) if list(words[i : i + len(wanted)]) == list(wanted)]
    _require(len(places) == 1, what)
    return places[0] * WORD


def _tensor_offsets() -> dict[str, int]:
    example = torch.empty_strided((3, 5, 7, 11, 13), (17, 19, 23, 29, 31), dtype=torch.float32)
    impl = _find(_words(id(example), torch.Tensor.__basicsize__ // WORD), [example._cdata], "TensorImpl")
    words = _words(example._cdata, _allocated(example._cdata, 192) // WORD)
    sizes = _find(words, [3, 5, 7, 11, 13], "sizes")
    strides = _find(words, [17, 19, 23, 29, 31], "strides")
    dims = sizes - WORD
    _require(words[dims // WORD] == 5 and strides == sizes + INLINE_DIMS * WORD, "dim")
    keys = _find(words, [torch._C._dispatch_keys(example).raw_repr()], "dispatch keys")
    storage = _find(words, [example.untyped_storage()._cdata], "storage")
    memory = example.untyped_storage()
    inside = _words(memory._cdata, _allocated(memory._cdata, 48) // WORD)
    _require(memory.data_ptr() in inside, "data")
    storage_data = inside.index(memory.data_ptr()) * WORD  # the owner of the memory, later, may be the same pointer
    shifted = torch.empty(10000).as_strided((3, 5), (7, 11), 1009)
    storage_offset = _find(_words(shifted._cdata, _allocated(shifted._cdata, 192) // WORD), [1009], "storage offset")
    many = torch.empty_strided((2, 3, 4, 5, 6, 7), (11, 12, 13, 14, 15, 16))
    outside = word(many._cdata + sizes)
    _require(word(many._cdata + dims) == 6, "dim of many")
    _require(_words(outside, 12) == [2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 16], "sizes of many")
    kind = _kind_offset(words)
    with torch.inference_mode():
        inference = torch.empty(3, dtype=torch.float32)
    plain_keys = ~(words[keys // WORD] ^ word(inference._cdata + keys)) & (1 << 64) - 1
    for view in (torch.empty(3, dtype=torch.complex64).conj(), torch._neg_view(torch.empty(3, dtype=torch.float32))):
        _require((word(view._cdata + keys) ^ words[keys // WORD]) & plain_keys != 0, "conj and neg")
    return {
        "impl": impl,
        "storage": storage,
        "storage_data": storage_data,
        "dims": dims,
        "sizes": sizes,
        "strides": strides,
        "storage_offset": storage_offset,
        "kind": kind,
        "keys": keys,
        "plain_keys": plain_keys,
    }


def _kind_offset(plain: Sequence[int]) -> int:
    """The word that is the same in tensors of one kind and differs, in the low bytes that are told apart here, exactly
    by dtype and device. (Words that hold addresses may differ by as little.)
    """

    def example(dtype: torch.dtype, device: str) -> torch.Tensor:
        return torch.empty_strided((3, 5, 7, 11, 13), (17, 19, 23, 29, 31), dtype=dtype, device=device)

    alike = [example(torch.float32, "cpu") for _ in range(3)]
    other_types = [example(dtype, "cpu") for dtype in (torch.int64, torch.bool, torch.bfloat16, torch.complex128)]
    other_device = example(torch.float32, "meta")
    places = []
    for place, here in enumerate(plain):
        same = all(word(tensor._cdata + place * WORD) & KIND_MASK == here & KIND_MASK for tensor in alike)
        by_type = [(word(tensor._cdata + place * WORD) ^ here) & KIND_MASK for tensor in other_types]
        by_device = (word(other_device._cdata + place * WORD) ^ here) & KIND_MASK
        if same and all(0 < bits < 1 << 16 for bits in by_type) and by_device and not by_device & ~(0xFF << 16):
            places.append(place)
    _require(len(places) == 1 and plain[places[0]] >> 24 & 0xFF == 0xFF, "dtype and device")
    return places[0] * WORD


def required(name: str) -> int:
    """The address of a function. Raises Mismatch where this build lacks it."""
    address = symbol_address(name)
    if address is None:
        raise Mismatch(name)
    return address


def autograd_state() -> int:
    """The address of this thread's state of autograd."""
    return int(ctypes.CFUNCTYPE(ctypes.c_void_p)(required("_ZN3c1013AutogradState13get_tls_stateEv"))())


def _autograd_flags() -> tuple[int, int]:
    """The byte that grad mode and inference mode change, and their bits."""
    states = {}
    for grad, inference in ((False, False), (True, False), (False, True), (True, True)):
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            states[grad, inference] = _bytes(autograd_state(), 32)
    different = [i for i in range(32) if len({state[i] for state in states.values()}) > 1]
    _require(len(different) == 1, "autograd flags")
    flags = {key: state[different[0]] for key, state in states.items()}
    _require(len(set(flags.values())) == 4, "grad and inference mode")
    mask = 0
    for value in flags.values():
        mask |= value ^ flags[False, False]
    return different[0], mask


def _allocated(address: int, most: int) -> int:
    """How many bytes from an address on are this allocation's, at most `most`."""
    measure = getattr(ctypes.CDLL(None), "malloc_usable_size", None)
    if measure is None:
        return min(most, 136)
    measure.restype, measure.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    return min(most, int(measure(address)))


def _autograd_offsets() -> tuple[int, int, int]:
    """Of TensorImpl the pointer to what autograd keeps; in that, the flag of leaves and the pointer of others."""
    plain = torch.empty(3, dtype=torch.float32)
    before = _words(plain._cdata, 8)
    plain.requires_grad_()
    after = _words(plain._cdata, 8)
    changed = [i for i in range(8) if before[i] == 0 and after[i] != 0]
    _require(len(changed) == 1, "autograd metadata")
    metadata = changed[0] * WORD
    address = after[changed[0]]
    size = _allocated(address, 240) // WORD * WORD
    on = _bytes(address, size)
    plain.requires_grad_(False)
    off = _bytes(address, size)
    plain.requires_grad_()
    on_again = _bytes(address, size)
    flags = [i for i in range(size) if (off[i], on[i], on_again[i]) == (0, 1, 1)]
    _require(len(flags) == 1, "requires_grad")
    result = plain * 2
    leaf, inner = _words(address, size // WORD), _words(word(result._cdata + metadata), size // WORD)
    accumulator = plain.expand_as(plain).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    _require(accumulator is not None, "grad_fn")
    again = (plain.detach().requires_grad_() * 3, plain * 4)
    others = [_words(word(other._cdata + metadata), size // WORD) for other in again]
    taken = plain * 5
    place = word(taken._cdata + metadata)
    derived = _words(place, size // WORD)
    taken.detach_()
    _require(word(taken._cdata + metadata) == place, "autograd metadata of a detached tensor")
    detached = _words(place, size // WORD)  # what no field has written, between them, stays as it is
    candidates = [
        i
        for i in range(1, size // WORD)
        if leaf[i] == 0 and inner[i] and all(o[i] for o in others) and len({inner[i], *(o[i] for o in others)}) == 3
        if derived[i] and not detached[i]
    ]
    _require(bool(candidates), "grad_fn")  # a shared pointer is two words, both null or neither
    return metadata, flags[0], candidates[0] * WORD


def _confirm_tensors(layout: Layout) -> None:
    """Tensors of many kinds are read as they are."""
    leaf = torch.ones(2, 3, requires_grad=True)
    twice = leaf * 2
    written, taken, before = torch.ones(2, 3), (leaf * 3).detach_(), torch.ones(2, 3, requires_grad=True)
    written.mul_(leaf)
    before.requires_grad_(False)
    with torch.inference_mode():
        inference = torch.ones(3)
    graded = torch.ones(3, requires_grad=True)
    (graded * 2).sum().backward()  # type: ignore[no-untyped-call]
    examples = [torch.ones(()), torch.ones(4, 0), leaf, twice, twice[0], twice.detach(), written, taken, before, graded]
    examples += [torch.nn.Parameter(twice.detach()), twice.t(), leaf.data, inference, torch.ones(1, 2, 1, 2, 1, 2, 1)]
    examples += [torch.ones(9, dtype=torch.int16)[4:]]
    for tensor in examples:
        _require(_as_read(tensor, layout) == _as_it_is(tensor), "tensors")


def _as_read(tensor: torch.Tensor, layout: Layout) -> tuple[Any, ...]:
    """What memory says of a tensor: number of dimensions, sizes, strides, whether it requires grad, whether it is a
    leaf, where its data is.
    """
    impl = word(id(tensor) + layout.impl)
    dims = word(impl + layout.dims)
    inline = dims <= INLINE_DIMS
    sizes = impl + layout.sizes if inline else word(impl + layout.sizes)
    strides = impl + layout.strides if inline else sizes + dims * WORD
    metadata = word(impl + layout.metadata)
    flagged = bool(metadata) and ctypes.c_ubyte.from_address(metadata + layout.requires_grad).value != 0
    derived = bool(metadata) and word(metadata + layout.grad_fn) != 0
    offset = tensor.element_size() * word(impl + layout.storage_offset)
    data = word(word(impl + layout.storage) + layout.storage_data) + (offset if tensor.numel() else 0)
    return dims, _words(sizes, dims), _words(strides, dims), flagged or derived, not derived, data


def _as_it_is(tensor: torch.Tensor) -> tuple[Any, ...]:
    sizes = tensor.dim(), list(tensor.shape), list(tensor.stride())
    return *sizes, tensor.requires_grad, tensor.is_leaf, tensor.data_ptr()
