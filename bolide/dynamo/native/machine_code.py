"""The native check itself, in the subset of Python that `translate` makes machine code of.

`instructions` says what a program is. ``layout`` is that of this build of Python and torch; a word that is the address
of an object is named after the object.
"""

from __future__ import annotations

from typing import cast

from bolide.dynamo.native import instructions as ops
from bolide.dynamo.native import layout as places
from bolide.support.native.translate import External, at, byte, call, put, room, word

layout: places.Layout = cast(places.Layout, None)  # given when this is translated

EXTERNALS = {
    "PyLong_AsLongLong": External("i64", "PyLong_AsLongLong", ("ptr",)),
    "PyDict_Next": External("i32", "PyDict_Next", ("ptr", "ptr", "ptr", "ptr")),
    "PyDict_GetItem": External("ptr", "PyDict_GetItemWithError", ("ptr", "ptr")),
    "PyDict_Contains": External("i32", "PyDict_Contains", ("ptr", "ptr")),
    "PyObject_RichCompareBool": External("i32", "PyObject_RichCompareBool", ("ptr", "ptr", "i32")),
    "PyObject_Vectorcall": External("ptr", "PyObject_VectorcallDict", ("ptr", "ptr", "i64", "ptr")),
    "PyObject_GetAttr": External("ptr", "PyObject_GetAttr", ("ptr", "ptr")),
    "PyErr_Occurred": External("ptr", "PyErr_Occurred"),
    "PyErr_Clear": External("void", "PyErr_Clear"),
    "PyList_New": External("ptr", "PyList_New", ("i64",)),
    "PyList_Append": External("i32", "PyList_Append", ("ptr", "ptr")),
    "PyList_GetItem": External("ptr", "PyList_GetItem", ("ptr", "i64")),
    "Py_IncRef": External("void", "Py_IncRef", ("ptr",)),
    "Py_DecRef": External("void", "Py_DecRef", ("ptr",)),
    "memcmp": External("i32", "memcmp", ("ptr", "ptr", "i64")),
    "keys_excluded": External("i8", "_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE", ("i64",)),
    "keys_included": External("i8", "_ZN3c104impl31tls_is_dispatch_keyset_includedENS_14DispatchKeySetE", ("i64",)),
    "autograd_state": External("ptr", "_ZN3c1013AutogradState13get_tls_stateEv"),
    "dispatch_modes": External("i64", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"),
    "function_modes": External("i64", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    "default_dtype": External("i16", "_ZN3c1017get_default_dtypeEv"),
    "context": External("ptr", "_ZN2at13globalContextEv"),
    "deterministic": External("i8", "_ZNK2at7Context23deterministicAlgorithmsEv", ("ptr",)),
    "only_warns": External("i8", "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv", ("ptr",)),
    "requires_grad": External("i8", "_ZNK3c1010TensorImpl13requires_gradEv", ("ptr",)),
    "tracing_state": External("ptr", "_ZN5torch3jit6tracer15getTracingStateEv"),
}
"""The functions in C that the native check calls."""


def check(self: int, args: int, count: int) -> int:
    """What is called: `self` is the address of a control block, as an int of Python's."""
    control = call("PyLong_AsLongLong", self)
    if count == word(control, 2):
        i = 0
        while i < word(control, 3):
            result = attempt(control, word(control, 4 + i), args, count)
            if result != 0:
                return result
            i += 1
    if call("PyErr_Occurred") != 0:
        return 0
    return call("PyObject_Vectorcall", word(control), args, count, 0)


def attempt(control: int, program: int, args: int, names: int) -> int:
    """What one program answers: null where the readable check has to be asked."""
    temporaries = room(1)  # a list of what was read, or null
    put(temporaries, 0, 0)
    result = execute(control, program, args, names, temporaries)
    if word(temporaries) != 0:
        call("Py_DecRef", word(temporaries))
    return result


def execute(control: int, program: int, args: int, names: int, temporaries: int) -> int:
    """Run a program: as `attempt`."""
    slots = room(word(program, 1))
    i = 0
    while i < names:
        put(slots, i, word(args, i))
        i += 1
    now = program + 5 * places.WORD
    while True:
        x = word(now, 1)
        fits = False
        size = 3
        match word(now):
            case ops.DONE:
                break
            case ops.WORDS:
                fits = words_match(now + 2 * places.WORD, x)
                size = 2 * x + 2
            case ops.BITS:
                fits = bits_match(now + 2 * places.WORD, x)
                size = 3 * x + 2
            case ops.TENSORS:
                fits = tensors_fit(now + 2 * places.WORD, x)
                size = 2 * x + 2
            case ops.IS:
                fits = word(slots, x) == word(now, 2)
            case ops.TENSOR:
                fits = tensor_fits(word(slots, x), word(now, 2))
            case ops.EQUALS:
                fits = equals(word(slots, x), word(now, 2))
            case ops.FIELD:
                fits = at(word(slots, x), word(now, 2)) == word(now, 3)
                size = 4
            case ops.TUPLE:
                fits = unpack(slots, now, False)
                size = 4
            case ops.LIST:
                fits = unpack(slots, now, True)
                size = 4
            case ops.DICT:
                fits = unpack_dict(slots, now)
                size = word(now, 3) + 4
            case ops.ITEM:
                item = call("PyDict_GetItem", word(slots, word(now, 2)), word(now, 3))
                put(slots, x, item)
                fits = item != 0
                size = 4
            case ops.ATTRIBUTE_IS:
                fits = attribute_is(x, word(now, 2), word(now, 3))
                size = 4
            case ops.ATTRIBUTE:
                fits = read_attribute(slots, now, temporaries)
                size = 4
            case ops.APART:
                fits = are_apart(slots, now)
                size = 2 * word(now, 2) + 3
            case ops.ABSENT:
                fits = call("PyDict_Contains", x, word(now, 2)) == 0
            case ops.DATA:
                fits = data_is(slots, now)
                size = 6
            case ops.STATE:
                fits = state_is(now)
                size = 6
            case _:
                return 0
        if not fits:
            return refused(control, word(now))
        now += size * places.WORD
    rest = word(program, 2)
    if rest != 0:
        rest = call("PyObject_Vectorcall", rest, args, names, 0)
        if rest == 0 or rest == word(control, 1):
            return rest
    result = collect(program, slots, rest)
    if rest != 0:
        call("Py_DecRef", rest)
    put(program, 0, word(program) + 1)
    return result


def refused(control: int, instruction: int) -> int:
    """The answer of a program in which an instruction has failed: None where it is about the passed values."""
    if instruction >= ops.FIRST_OF_MEMORY:
        return 0
    call("Py_IncRef", word(control, 1))
    return word(control, 1)


def collect(program: int, slots: int, rest: int) -> int:
    """The list of results."""
    count = word(program, 3)
    results = call("PyList_New", count)
    if results == 0:
        return 0
    items = at(results, places.LIST_ITEMS)
    result = word(program, 4)
    i = 0
    while i < count:
        slot = word(result)
        value = word(result, 1)
        if slot >= 0:
            value = word(slots, slot)
        elif slot == -2:
            value = call("PyList_GetItem", rest, value)
        call("Py_IncRef", value)
        put(items, i, value)
        result += 2 * places.WORD
        i += 1
    return results


# ---- memory and Python's objects; `now` is the address of an instruction ---------------------------------------------


def words_match(notes: int, count: int) -> bool:
    """Whether memory is as noted: (address, expected) `count` times."""
    end = notes + count * 2 * places.WORD
    while notes < end:
        if word(word(notes)) != word(notes, 1):
            return False
        notes += 2 * places.WORD
    return True


def bits_match(notes: int, count: int) -> bool:
    """As `words_match`, of (address, expected, mask)."""
    end = notes + count * 3 * places.WORD
    while notes < end:
        if word(word(notes)) & word(notes, 2) != word(notes, 1):
            return False
        notes += 3 * places.WORD
    return True


def equals(value: int, wanted: int) -> bool:
    """The same object, or one of the same built-in type that is equal."""
    if value == wanted:
        return True
    if at(value, places.TYPE) != at(wanted, places.TYPE):
        return False
    return call("PyObject_RichCompareBool", value, wanted, 2) == 1


def unpack(slots: int, now: int, is_list: bool) -> bool:
    """TUPLE and LIST."""
    source = word(slots, word(now, 2))
    count = word(now, 3)
    if at(source, places.SIZE) != count:
        return False
    items = at(source, places.LIST_ITEMS) if is_list else source + places.TUPLE_ITEMS
    filled = slots + word(now, 1) * places.WORD
    i = 0
    while i < count:
        put(filled, i, word(items, i))
        i += 1
    return True


def unpack_dict(slots: int, now: int) -> bool:
    """DICT."""
    position = room(1)
    key = room(1)
    put(position, 0, 0)
    table = word(slots, word(now, 2))
    count = word(now, 3)
    if at(table, places.SIZE) != count:
        return False
    filled = slots + word(now, 1) * places.WORD
    i = 0
    while i < count:
        if call("PyDict_Next", table, position, key, filled + i * places.WORD) == 0:
            return False
        if not equals(word(key), word(now, 4 + i)):
            return False
        i += 1
    return True


def attribute_is(owner: int, name: int, wanted: int) -> bool:
    """ATTRIBUTE_IS."""
    value = call("PyObject_GetAttr", owner, name)
    if value == 0:
        return forget()
    call("Py_DecRef", value)
    return value == wanted


def read_attribute(slots: int, now: int, temporaries: int) -> bool:
    """ATTRIBUTE: the list of temporaries keeps what was read alive."""
    value = call("PyObject_GetAttr", word(now, 2), word(now, 3))
    if value == 0:
        return forget()
    if word(temporaries) == 0:
        put(temporaries, 0, call("PyList_New", 0))
    refused = -1
    if word(temporaries) != 0:
        refused = call("PyList_Append", word(temporaries), value)
    call("Py_DecRef", value)
    if refused != 0:
        return forget()
    put(slots, word(now, 1), value)
    return True


def forget() -> bool:
    """No error is left behind."""
    call("PyErr_Clear")
    return False


# ---- torch -----------------------------------------------------------------------------------------------------------


def tensor_fits(tensor: int, facts: int) -> bool:
    """Whether a tensor is what it has to be."""
    if at(tensor, places.TYPE) != word(facts):
        return False
    impl = at(tensor, layout.impl)
    if at(impl, layout.dims) != word(facts, 1):
        return False
    flags = word(facts, 2)
    fact = facts + 5 * places.WORD
    end = fact + word(facts, 3) * 3 * places.WORD
    while fact < end:
        if at(impl, word(fact)) & word(fact, 1) != word(fact, 2):
            return False
        fact += 3 * places.WORD
    sizes = at(impl, layout.sizes) if flags & ops.FAR_SIZES != 0 else impl + layout.sizes
    end = fact + word(facts, 4) * 2 * places.WORD
    while fact < end:
        if at(sizes, word(fact)) != word(fact, 1):
            return False
        fact += 2 * places.WORD
    metadata = at(impl, layout.metadata)
    is_marked = False
    is_result = False
    if metadata != 0:
        is_marked = byte(metadata, layout.requires_grad) != 0
        is_result = at(metadata, layout.grad_fn) != 0
        if not (is_marked | is_result):  # a view that was made without gradients is as its base
            is_marked = call("requires_grad", impl) & 1 != 0
    if (is_marked | is_result) != (flags & ops.REQUIRES_GRAD != 0):
        return False
    if is_result:
        return flags & ops.LEAF == 0
    return flags & ops.NOT_LEAF == 0


def tensors_fit(pairs: int, count: int) -> bool:
    """TENSORS."""
    end = pairs + count * 2 * places.WORD
    while pairs < end:
        if not tensor_fits(word(pairs), word(pairs, 1)):
            return False
        pairs += 2 * places.WORD
    return True


def impl_of(slots: int, pair: int) -> int:
    """The TensorImpl of what a pair of a slot and an object names."""
    slot = word(pair)
    tensor = word(pair + places.WORD if slot < 0 else slots + slot * places.WORD)
    return at(tensor, layout.impl)


def memory_of(impl: int) -> int:
    """The address of the memory of its storage."""
    return at(at(impl, layout.storage), layout.storage_data)


def data_is(slots: int, now: int) -> bool:
    """DATA."""
    impl = impl_of(slots, now + places.WORD)
    data = memory_of(impl)
    if data == 0:
        return False
    first = data + at(impl, layout.storage_offset) * word(now, 3)
    return call("memcmp", first, word(now, 4), word(now, 5)) == 0


def are_apart(slots: int, now: int) -> bool:
    """APART: addresses are put in a hash table."""
    size = word(now, 1)
    table = room(size)
    i = 0
    while i < size:
        put(table, i, 0)
        i += 1
    pair = now + 3 * places.WORD
    end = pair + word(now, 2) * 2 * places.WORD
    while pair < end:
        data = memory_of(impl_of(slots, pair))
        if data != 0:
            place = data * -7046029254386353131 >> 32 & size - 1
            while word(table, place) != 0:
                if word(table, place) == data:
                    return False
                place = place + 1 & size - 1
            put(table, place, data)
        pair += 2 * places.WORD
    return True


def state_is(now: int) -> bool:
    """STATE."""
    if call("dispatch_modes") | call("function_modes") | word(call("tracing_state")) != 0:
        return False
    if call("keys_excluded", word(now, 1)) & 1 == 0 or call("keys_included", word(now, 2)) & 1 != 0:
        return False
    if byte(call("autograd_state"), layout.flags) & layout.flags_mask != word(now, 3):
        return False
    if call("default_dtype") != word(now, 4):
        return False
    context = call("context")
    only_warns = call("only_warns", context) & 1
    return call("deterministic", context) & 1 | only_warns << 1 == word(now, 5)
