"""The native driver itself, in the subset of Python that `support.native.translate` makes machine code of.

`instructions` says what a program is. `slots` and `frame` are addresses; `objects` is that of the inputs, as objects of
Python's, which are held until they are freed.
"""

from __future__ import annotations

from bolide.inductor.runtime.native import instructions as ops
from bolide.support.native.translate import External, call, invoke, launch, put, quotient, room, word

EXTERNALS = {
    "PyLong_AsLongLong": External("i64", "PyLong_AsLongLong", ("ptr",)),
    "PyLong_FromLongLong": External("ptr", "PyLong_FromLongLong", ("i64",)),
    "PyList_Size": External("i64", "PyList_Size", ("ptr",)),
    "PyList_GetItem": External("ptr", "PyList_GetItem", ("ptr", "i64")),
    "PyList_SetSlice": External("i32", "PyList_SetSlice", ("ptr", "i64", "i64", "ptr")),
    "PyTuple_New": External("ptr", "PyTuple_New", ("i64",)),
    "PyTuple_GetItem": External("ptr", "PyTuple_GetItem", ("ptr", "i64")),
    "PyTuple_SetItem": External("i32", "PyTuple_SetItem", ("ptr", "i64", "ptr")),
    "PyObject_Vectorcall": External("ptr", "PyObject_VectorcallDict", ("ptr", "ptr", "i64", "ptr")),
    "PyErr_Occurred": External("ptr", "PyErr_Occurred"),
    "PyErr_Clear": External("void", "PyErr_Clear"),
    "PyErr_CheckSignals": External("i32", "PyErr_CheckSignals"),
    "Py_IncRef": External("void", "Py_IncRef", ("ptr",)),
    "Py_DecRef": External("void", "Py_DecRef", ("ptr",)),
    "SaveThread": External("ptr", "PyEval_SaveThread"),
    "RestoreThread": External("void", "PyEval_RestoreThread", ("ptr",)),
    "clock_gettime": External("i32", "clock_gettime", ("i32", "ptr")),
    "memcpy": External("ptr", "memcpy", ("ptr", "ptr", "i64")),
    "memcmp": External("i32", "memcmp", ("ptr", "ptr", "i64")),
    "wrap": External("ptr", "_Z16THPVariable_WrapRKN2at10TensorBaseE", ("ptr",)),
    "delete": External("i32", "aoti_torch_delete_tensor_object", ("ptr",)),
    "share": External("i32", "aoti_torch_new_tensor_handle", ("ptr", "ptr")),
    "data": External("i32", "aoti_torch_get_data_ptr", ("ptr", "ptr")),
    "dtype": External("i32", "aoti_torch_get_dtype", ("ptr", "ptr")),
    "dims": External("i32", "aoti_torch_get_dim", ("ptr", "ptr")),
    "sizes": External("i32", "aoti_torch_get_sizes", ("ptr", "ptr")),
    "strides": External("i32", "aoti_torch_get_strides", ("ptr", "ptr")),
}
"""The functions in C that the native driver calls."""


def run(self: int, args: int, count: int) -> int:
    """What is called, with the list of inputs: `self` is the address of a control block, as an int of Python's."""
    control = call("PyLong_AsLongLong", self)
    inputs = word(control, ops.INPUTS)
    given = word(args)
    if call("PyList_Size", given) != inputs:
        call("PyErr_Clear")
        return call("PyObject_Vectorcall", word(control, ops.FALLBACK), args, count, 0)
    objects = room(inputs + 1)
    slots = room(word(control, ops.SLOTS) + 1)
    frame = room(word(control, ops.FRAME) + 1)
    call("memcpy", slots, word(control, ops.SLOT_TABLE), 8 * word(control, ops.SLOTS))
    call("memcpy", frame, word(control, ops.FRAME_TABLE), 8 * word(control, ops.FRAME))
    if not take(control, given, objects, slots, frame):
        return call("PyObject_Vectorcall", word(control, ops.FALLBACK), args, count, 0)
    call("PyList_SetSlice", given, 0, inputs, 0)
    result = 0
    if execute(control, objects, slots, frame):
        result = results(control, slots, frame)
    i = 0
    while i < inputs:
        if word(objects, i) != 0:
            call("Py_DecRef", word(objects, i))
        i += 1
    i = word(control, ops.BORROWED)
    while i < word(control, ops.SLOTS):
        if word(slots, i) != 0:
            call("delete", word(slots, i))
        i += 1
    put(control, ops.RUNS, word(control, ops.RUNS) + 1)
    return result


def take(control: int, given: int, objects: int, slots: int, frame: int) -> bool:
    """Holds the inputs, and notes their handles and values; not if one is something else than expected."""
    table = word(control, ops.INPUT_TABLE)
    inputs = word(control, ops.INPUTS)
    i = 0
    while i < inputs:
        item = call("PyList_GetItem", given, i)
        if word(table) == ops.HANDLE:
            kind = word(item, 1)
            if kind != word(control, ops.CLASSES) and kind != word(control, ops.CLASSES + 1):
                break
            put(slots, word(table, 1), item + word(control, ops.TENSOR))
        else:
            value = call("PyLong_AsLongLong", item)
            if value == -1 and call("PyErr_Occurred") != 0:
                call("PyErr_Clear")
                break
            put(frame, word(table, 1), value)
        call("Py_IncRef", item)
        put(objects, i, item)
        table += 16
        i += 1
    if i == inputs:
        return True
    while i != 0:
        i += -1
        call("Py_DecRef", word(objects, i))
    return False


def execute(control: int, objects: int, slots: int, frame: int) -> bool:
    """Runs the instructions; false if one raises an error. The interpreter lock is held before and after."""
    code = word(control, ops.CODE)
    values = room(word(control, ops.LONGEST) + 1)
    thread = 0
    moment = room(1)
    put(moment, 0, 0)
    now = code
    while True:
        x = word(now, 1)
        step = 0
        size = 4
        match word(now):
            case ops.DONE:
                break
            case ops.LAUNCH:
                gather(now + 24, word(now, 2), values, slots, frame)
                launch(x, values)
                size = 2 * word(now, 2) + 3
            case ops.CALL:
                gather(now + 32, word(now, 3), values, slots, frame)
                if invoke(x, values) != 0:
                    step = word(now, 2)
                size = 2 * word(now, 3) + 4
            case ops.CHECK:
                gather(now + 40, 2, values, slots, frame)
                if not is_as_expected(word(slots, x), word(now, 3), word(now, 4), values):
                    step = word(now, 2)
                size = 9
            case ops.FREE:
                free(now + 16, x, slots)
                size = x + 2
            case ops.FREE_INPUTS:
                free_inputs(now + 16, x, objects)
                size = x + 2
            case ops.PYTHON:
                step = x
                size = 2
            case ops.RELEASE:
                thread = call("SaveThread")
                size = 1
            case ops.ACQUIRE:
                call("RestoreThread", thread)
                thread = 0
                size = 1
            case ops.SHARE:
                call("share", word(slots, word(now, 2)), slots + 8 * x)
                size = 3
            case ops.HANDLES:
                handles(now + 24, word(now, 2), slots, frame + 8 * x)
                size = word(now, 2) + 3
            case ops.EXPECT:
                if item(word(slots, x), 1, 0) != word(now, 3):
                    step = word(now, 2)
            case ops.HOLDS:
                if not holds(word(now, 3), word(frame, x)):
                    step = word(now, 2)
            case ops.ITEM:
                put(frame, x, item(word(slots, word(now, 2)), word(now, 3), word(now, 4)))
                size = 5
            case ops.SIZE:
                put(frame, x, extent(word(slots, word(now, 2)), word(now, 3)))
            case ops.UNLESS:
                size = 3 if item(word(slots, x), 1, 0) != 0 else word(now, 2)
            case ops.JUMP:
                size = x
            case ops.SIGNALS:
                if interrupted(thread, moment):
                    return False
                size = 1
            case _:
                put(frame, x, number(word(now), word(frame, word(now, 2)), word(frame, word(now, 3))))
        now += 8 * size
        if step != 0:
            if not python(code + 8 * step, slots, frame, thread):
                return False
            now = code + 8 * word(code + 8 * step, 1)
    if thread != 0:
        call("RestoreThread", thread)
    return True


def gather(operands: int, count: int, values: int, slots: int, frame: int) -> int:
    """The values of operands."""
    i = 0
    while i < count:
        x = word(operands, 1)
        match word(operands):
            case ops.LITERAL:
                put(values, i, x)
            case ops.WORD:
                put(values, i, word(frame, x))
            case ops.PLACE:
                put(values, i, frame + 8 * x)
            case ops.HANDLE:
                put(values, i, word(slots, x))
            case ops.SLOT:
                put(values, i, slots + 8 * x)
            case _:
                call("data", word(slots, x), values + 8 * i)
        operands += 16
        i += 1
    return 0


def is_as_expected(handle: int, dtype: int, dims: int, places: int) -> bool:
    """Whether a tensor has that dtype and number of dimensions, and the sizes and strides at the two places."""
    facts = room(1)
    if handle == 0:
        return False
    put(facts, 0, 0)
    call("dtype", handle, facts)
    if word(facts) != dtype:
        return False
    call("dims", handle, facts)
    if word(facts) != dims:
        return False
    call("sizes", handle, facts)
    if call("memcmp", word(facts), word(places), 8 * dims) != 0:
        return False
    call("strides", handle, facts)
    return call("memcmp", word(facts), word(places, 1), 8 * dims) == 0


def item(handle: int, width: int, sign: int) -> int:
    """The first element of a tensor: an integer of `width` bytes."""
    facts = room(2)
    call("data", handle, facts)
    put(facts, 1, 0)
    call("memcpy", facts + 8, word(facts), width)
    value = word(facts, 1)
    if sign != 0 and value >= sign:
        value = value - sign - sign
    return value


def extent(handle: int, dim: int) -> int:
    """The size of a dimension of a tensor."""
    facts = room(1)
    call("sizes", handle, facts)
    return word(word(facts), dim)


def interrupted(thread: int, moment: int) -> bool:
    """Whether the handler of a signal raises, in which case the interpreter lock is held afterwards. They are looked
    for some 15 times a second; `moment`: where it is noted when that was last."""
    now = room(2)
    call("clock_gettime", 6, now)  # CLOCK_MONOTONIC_COARSE, which is read in some nanoseconds
    before = word(moment)
    tick = 16 * word(now) + (word(now, 1) >> 26)
    put(moment, 0, tick)
    if before == 0 or before == tick:
        return False
    call("RestoreThread", thread)
    if call("PyErr_CheckSignals") != 0:
        return True
    call("SaveThread")
    return False


def holds(relation: int, value: int) -> bool:
    """Whether a value is in a relation to 0."""
    match relation:
        case ops.EQUAL:
            return value == 0
        case ops.UNEQUAL:
            return value != 0
        case _:
            return value >= 0


def free(places: int, count: int, slots: int) -> int:
    """Gives up handles."""
    i = 0
    while i < count:
        slot = word(places, i)
        if word(slots, slot) != 0:
            call("delete", word(slots, slot))
            put(slots, slot, 0)
        i += 1
    return 0


def free_inputs(places: int, count: int, objects: int) -> int:
    """Gives up inputs."""
    i = 0
    while i < count:
        place = word(places, i)
        item = word(objects, place)
        put(objects, place, 0)
        call("Py_DecRef", item)
        i += 1
    return 0


def handles(places: int, count: int, slots: int, array: int) -> int:
    """Writes an array of handles."""
    i = 0
    while i < count:
        put(array, i, word(slots, word(places, i)))
        i += 1
    return 0


def number(kind: int, left: int, right: int) -> int:
    """What an instruction of arithmetic gives."""
    match kind:
        case ops.ADD:
            return left + right
        case ops.MULTIPLY:
            return left * right
        case ops.DIVIDE:
            return floor(left, right)
        case ops.REMAINDER:
            return left - floor(left, right) * right
        case ops.LEAST:
            return left if left < right else right
        case _:
            return right if left < right else left


def floor(left: int, right: int) -> int:
    """The quotient, rounded down; 0 where the divisor is 0."""
    if right == 0:
        return 0
    whole = quotient(left, right)
    rest = left - whole * right
    if rest != 0 and (rest < 0) != (right < 0):
        return whole - 1
    return whole


# ---- steps in Python -------------------------------------------------------------------------------------------------


def python(step: int, slots: int, frame: int, thread: int) -> bool:
    """Makes a step in Python; not if it raises, in which case the interpreter lock is held afterwards. Before, it is
    if `thread` is 0."""
    if thread != 0:
        call("RestoreThread", thread)
    count = word(step, 2)
    args = room(count + 1)
    now = step + 24
    i = 0
    while i < count:
        if word(now) == ops.HANDLE:
            put(args, i, call("wrap", word(slots, word(now, 1))))
        else:
            put(args, i, call("PyLong_FromLongLong", word(frame, word(now, 1))))
        if word(args, i) == 0:
            break
        now += 16
        i += 1
    answer = 0
    if i == count:
        answer = call("PyObject_Vectorcall", word(step), args, count, 0)
    while i != 0:
        i += -1
        call("Py_DecRef", word(args, i))
    if answer == 0:
        return False
    count = word(now)
    now += 8
    while i < count:
        item = call("PyTuple_GetItem", answer, i)
        if word(now) == ops.HANDLE:
            replace(slots + 8 * word(now, 1), item + word(step, -1))
        else:
            put(frame, word(now, 1), call("PyLong_AsLongLong", item))
        now += 16
        i += 1
    call("Py_DecRef", answer)
    if thread != 0:
        call("SaveThread")
    return True


def replace(slot: int, handle: int) -> int:
    """Puts a new handle of a tensor into a slot."""
    if word(slot) != 0:
        call("delete", word(slot))
    put(slot, 0, 0)
    return call("share", handle, slot)


def results(control: int, slots: int, frame: int) -> int:
    """The tuple of results; null if an error is raised."""
    count = word(control, ops.RESULTS)
    answer = call("PyTuple_New", count)
    if answer == 0:
        return 0
    table = word(control, ops.RESULT_TABLE)
    i = 0
    while i < count:
        x = word(table, 1)
        item = x
        match word(table):
            case ops.HANDLE:
                item = call("wrap", word(slots, x))
            case ops.WORD:
                item = call("PyLong_FromLongLong", word(frame, x))
            case _:
                call("Py_IncRef", x)
        if item == 0:
            call("Py_DecRef", answer)
            return 0
        call("PyTuple_SetItem", answer, i, item)
        table += 16
        i += 1
    return answer
