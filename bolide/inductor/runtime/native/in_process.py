"""A program in a process with Python: inputs and results are its objects, and steps can be made in it. In the subset of
Python that `support.native.translate` makes machine code of; `runner` runs the instructions.
"""

from __future__ import annotations

from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native.runner import execute
from bolide.support.native.translate import External, call, put, room, word

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
    "wrap": External("ptr", "_Z16THPVariable_WrapRKN2at10TensorBaseE", ("ptr",)),
}
"""The functions in C that it calls, beside those of `runner`."""


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


def release() -> int:
    """Gives up the interpreter lock."""
    return call("SaveThread")


def acquire(thread: int) -> int:
    """Takes the interpreter lock again."""
    return call("RestoreThread", thread)


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


def otherwise(step: int, slots: int, frame: int, thread: int) -> bool:
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
