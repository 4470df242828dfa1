"""The code of every library: the C interface of AOTInductor's, in the subset of Python that
`support.native.translate` makes machine code of. `inductor.runtime.native.runner` runs the program.

A container (`layout`) holds two sets of handles of constants, of which one is active. Runs read it, any number at once;
what changes it waits for them. Functions answer 0, or 1 and leave a message, which is the thread's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bolide.aot import layout
from bolide.aot.on_cpu import enter, leave, ready
from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native.runner import execute, gather
from bolide.support.native.translate import External, call, put, room, text, word

EXTERNALS = {
    "control": External("ptr", "bolide_control"),
    "message": External("ptr", "bolide_message"),
    "cpuid": External("i64", "bolide_cpuid", ("i64", "i64", "i64")),
    "format": External("i32", "snprintf", ("ptr", "i64", "ptr", "...")),
    "strncmp": External("i32", "strncmp", ("ptr", "ptr", "i64")),
    "strlen": External("i64", "strlen", ("ptr",)),
    "calloc": External("ptr", "calloc", ("i64", "i64")),
    "release_memory": External("void", "free", ("ptr",)),
    "dladdr": External("i32", "dladdr", ("ptr", "ptr")),
    "open": External("i32", "open", ("ptr", "i32")),
    "close": External("i32", "close", ("i32",)),
    "lseek": External("i64", "lseek", ("i32", "i64", "i32")),
    "mmap": External("ptr", "mmap", ("ptr", "i64", "i32", "i32", "i32", "i64")),
    "munmap": External("i32", "munmap", ("ptr", "i64")),
    "lock_to_read": External("i32", "pthread_rwlock_rdlock", ("ptr",)),
    "lock_to_write": External("i32", "pthread_rwlock_wrlock", ("ptr",)),
    "unlock": External("i32", "pthread_rwlock_unlock", ("ptr",)),
    "hash": External("i64", "_ZSt11_Hash_bytesPKvmm", ("ptr", "i64", "i64")),  # libstdc++'s of strings
    "torch_error": External("ptr", "bolide_torch_error"),
    "device": External("i32", "aoti_torch_get_device_type", ("ptr", "ptr")),
    "device_index": External("i32", "aoti_torch_get_device_index", ("ptr", "ptr")),
    "element": External("i64", "aoti_torch_dtype_element_size", ("i32",)),
    "layout": External("i32", "aoti_torch_get_layout", ("ptr", "ptr")),
    "grad_mode": External("i32", "aoti_torch_grad_mode_is_enabled"),
    "set_grad_mode": External("void", "aoti_torch_grad_mode_set_enabled", ("i32",)),
    "around": External(
        "i32", "aoti_torch_create_tensor_from_blob", ("ptr", "i64", "ptr", "ptr", "i64", "i32", "i32", "i32", "ptr")
    ),
    "empty": External("i32", "aoti_torch_empty_strided", ("i64", "ptr", "ptr", "i32", "i32", "i32", "ptr")),
    "copy": External("i32", "aoti_torch_copy_", ("ptr", "ptr", "i32")),
    "of_integer": External("i32", "aoti_torch_scalar_to_tensor_int64", ("i64", "ptr")),
    "of_float": External("i32", "aoti_torch_scalar_to_tensor_float64", ("double", "ptr")),
    "of_bool": External("i32", "aoti_torch_scalar_to_tensor_bool", ("i32", "ptr")),
    "undefined": External("i32", "aoti_torch_new_uninitialized_tensor", ("ptr",)),
}
"""The functions in C that it calls, beside those of `runner`."""

# ---- the program -----------------------------------------------------------------------------------------------------


def run(self: int, inputs: int, count: int, outputs: int, results: int, stream: int, _executor: int) -> int:
    """Runs the program. The handles of the inputs are given away; those of the outputs are the caller's."""
    control = call("control")
    if not is_possible(control, inputs, count, results):
        free_all(inputs, count)
        return 1
    constants = word(control, layout.CONSTANTS)
    slots = room(word(control, ops.SLOTS) + 1)
    frame = room(word(control, ops.FRAME) + 1)
    call("memcpy", slots, word(control, ops.SLOT_TABLE), 8 * word(control, ops.SLOTS))
    call("memcpy", frame, word(control, ops.FRAME_TABLE), 8 * word(control, ops.FRAME))
    call("memcpy", slots + 8 * constants, inputs, 8 * count)
    take_all(inputs, count)
    if constants != 0:
        call("lock_to_read", self)
        call("memcpy", slots, word(self, layout.SETS + word(self, layout.ACTIVE)), 8 * constants)
    grad = call("grad_mode") & 255
    if grad != 0:
        call("set_grad_mode", 0)
    answer = 1
    guard = room(1)
    if not enter(control, stream, guard):
        refuse(text("the stream cannot be used: %s"), call("torch_error"), 0)
    elif execute(control, 0, slots, frame) and give(control, slots, frame, outputs):
        answer = 0
    leave(guard)
    free_all(slots + 8 * constants, word(control, ops.SLOTS) - constants)
    if grad != 0:
        call("set_grad_mode", 1)
    if constants != 0:
        call("unlock", self)
    return answer


def is_possible(control: int, inputs: int, count: int, results: int) -> bool:
    """Whether the numbers of inputs and outputs are right, and all inputs are plain tensors on their devices."""
    facts = room(1)
    if count != word(control, ops.INPUTS):
        return refuse(text("%lld tensors are expected, but there are %lld"), word(control, ops.INPUTS), count)
    if results != word(control, ops.RESULTS):
        return refuse(text("%lld tensors are given, not %lld"), word(control, ops.RESULTS), results)
    i = 0
    while i < count:
        if not is_here(control, word(inputs, i), word(word(control, layout.DEVICE_TABLE), i)):
            return refuse(text("%s is not on the %s"), name_of(control, i), device_name(control, i))
        put(facts, 0, 0)
        call("layout", word(inputs, i), facts)
        if word(facts) != 0:
            return refuse(text("%s is no dense tensor"), name_of(control, i), 0)
        i += 1
    i = 0
    while i < word(control, layout.WRITES):
        if not is_apart(control, inputs, word(word(control, layout.WRITE_TABLE), i)):
            return False
        i += 1
    return True


def name_of(control: int, place: int) -> int:
    """What messages call an input."""
    return word(word(control, layout.INPUT_NAMES), place)


def device_name(control: int, place: int) -> int:
    """What messages call the device of an input."""
    return text("CPU") if word(word(control, layout.DEVICE_TABLE), place) == 0 else text("GPU of this library")


def is_here(control: int, tensor: int, kind: int) -> bool:
    """Whether a tensor is on the CPU (0), on the GPU of this library, or, of one that is not read (-1), anywhere."""
    facts = room(2)
    if kind < 0:
        return True
    put(facts, 0, 0)
    put(facts, 1, 0)
    call("device", tensor, facts)
    if word(facts) != kind:
        return False
    if kind == 0:
        return True
    call("device_index", tensor, facts + 8)
    return word(facts, 1) == word(control, layout.DEVICE_INDEX)


def is_apart(control: int, inputs: int, written: int) -> bool:
    """Whether an input shares its storage with no other one."""
    place = storage(word(inputs, written))
    i = 0
    while i < word(control, ops.INPUTS):
        if i != written and place != 0 and storage(word(inputs, i)) == place:
            names = word(control, layout.INPUT_NAMES)
            return refuse(text("%s is written, and shares memory with %s"), word(names, written), word(names, i))
        i += 1
    return True


def storage(tensor: int) -> int:
    """Where the memory of a tensor begins; 0 where it has none."""
    facts = room(3)
    put(facts, 2, 0)
    call("data", tensor, facts)
    call("offset", tensor, facts + 8)
    call("dtype", tensor, facts + 16)
    return word(facts) - word(facts, 1) * call("element", word(facts, 2)) if word(facts) != 0 else 0


def give(control: int, slots: int, frame: int, outputs: int) -> bool:
    """Makes the outputs."""
    table = word(control, ops.RESULT_TABLE)
    i = 0
    wrong = 0
    while i < word(control, ops.RESULTS):
        x = word(table, 1)
        put(outputs, i, 0)
        match word(table):
            case ops.HANDLE:
                wrong = call("share", word(slots, x), outputs + 8 * i)
            case ops.WORD:
                wrong = call("of_integer", word(frame, x), outputs + 8 * i)
            case layout.INTEGER:
                wrong = call("of_integer", x, outputs + 8 * i)
            case layout.FLOAT:
                wrong = call("of_float", x, outputs + 8 * i)
            case layout.BOOL:
                wrong = call("of_bool", x, outputs + 8 * i)
            case _:
                wrong = call("undefined", outputs + 8 * i)
        if wrong != 0:
            return refuse(text("output %lld cannot be made: %s"), i, call("torch_error"))
        table += 16
        i += 1
    return True


def free_all(handles: int, count: int) -> int:
    """Gives up the handles in an array."""
    i = 0
    while i < count:
        if word(handles, i) != 0:
            call("delete", word(handles, i))
            put(handles, i, 0)
        i += 1
    return 0


def take_all(handles: int, count: int) -> int:
    """Leaves no handle in an array: the loaders of some versions of PyTorch give up those that are left."""
    i = 0
    while i < count:
        put(handles, i, 0)
        i += 1
    return 0


def refuse(said: int, one: int, other: int) -> bool:
    """Leaves a message with two values; false."""
    call("format", call("message"), 2048, said, one, other)
    return False


def otherwise(step: int, slots: int, frame: int, thread: int) -> bool:
    """Tells what is wrong."""
    said = word(step, 2)
    match word(step):
        case layout.MESSAGE:
            return refuse(said, 0, 0)
        case layout.REFUSED:
            return refuse(text("%s: %s"), said, call("torch_error"))
        case layout.VALUE:
            return refuse(said, word(frame, word(step, 3)), 0)
        case _:
            return is_accepted(step, slots, frame)


def is_accepted(step: int, slots: int, frame: int) -> bool:
    """Whether a tensor is as expected all the same, as strides of what has no neighbours do not matter; or else tells
    what is wrong with it."""
    name = word(step, 2)
    handle = word(slots, word(step, 3))
    facts = room(2)
    values = room(2)
    put(facts, 0, 0)
    call("dtype", handle, facts)
    if word(facts) != word(step, 4):
        names = word(call("control"), layout.DTYPES)
        said = text("%s has dtype %s, not %s")
        call("format", call("message"), 2048, said, name, word(names, word(facts)), word(names, word(step, 4)))
        return False
    call("dims", handle, facts)
    dims = word(step, 5)
    if word(facts) != dims:
        call("format", call("message"), 2048, text("%s has %lld dimensions, not %lld"), name, word(facts), dims)
        return False
    gather(step + 48, 2, values, slots, frame)
    if word(values) == 0:
        return True
    call("sizes", handle, facts)
    call("strides", handle, facts + 8)
    elements = 1
    i = 0
    while i < dims:
        size = word(word(facts), i)
        if size != word(word(values), i):
            said = text("%s: its size in dimension %lld is %lld, not %lld")
            call("format", call("message"), 2048, said, name, i, size, word(word(values), i))
            return False
        elements = elements * size
        i += 1
    i = 0
    while i < dims:
        stride = word(word(facts, 1), i)
        if stride != word(word(values, 1), i) and word(word(facts), i) != 1 and elements != 0:
            said = text("%s: its stride in dimension %lld is %lld, not %lld; give it the layout of the example")
            call("format", call("message"), 2048, said, name, i, stride, word(word(values, 1), i))
            return False
        i += 1
    return True


def free_inputs(places: int, count: int, objects: int) -> int:
    """Inputs are freed as other tensors are."""
    return 0


def release() -> int:
    """There is no interpreter lock."""
    return 0


def acquire(thread: int) -> int:
    """There is no interpreter lock."""
    return 0


def interrupted(thread: int, moment: int) -> bool:
    """No signal is looked for."""
    return False


# ---- containers ------------------------------------------------------------------------------------------------------


def create_for_cpu(result: int, models: int, cpu: int, folder: int) -> int:
    """A new container."""
    return create(result, models, text("cpu"), folder)


def create(result: int, models: int, device: int, folder: int) -> int:
    """A new container, for any number of runs at once."""
    put(result, 0, 0)
    control = call("control")
    if lacks(control):
        return 1
    if not is_device(control, device):
        return 1
    if not ready(control):
        return 1
    self = call("calloc", layout.CONTAINER_WORDS, 8)
    count = word(control, layout.CONSTANTS)
    put(self, layout.SETS, call("calloc", count + 1, 8))
    put(self, layout.SETS + 1, call("calloc", count + 1, 8))
    if count != 0 and not load(control, self):
        delete(self)
        return 1
    put(result, 0, self)
    return 0


def is_device(control: int, device: int) -> bool:
    """Whether a container may be made for this device, by its name."""
    index = word(control, layout.DEVICE_INDEX)
    if word(control, layout.DEVICE) == 0:
        if call("strncmp", device, text("cpu"), 3) == 0:
            return True
        return refuse(text("this library is for the CPU, not for %s"), device, 0)
    if call("strncmp", device, text("cuda"), 5) == 0:
        return True
    named = room(4)
    call("format", named, 32, text("cuda:%lld"), index)
    if call("strncmp", device, named, 32) == 0:
        return True
    return refuse(text("this library is for cuda:%lld, not for %s"), index, device)


def lacks(control: int) -> bool:
    """Whether this CPU lacks a feature."""
    need = word(control, layout.NEED_TABLE)
    i = 0
    while i < word(control, layout.NEEDS):
        register = call("cpuid", word(need, layout.LEAF), word(need, layout.SUBLEAF), word(need, layout.REGISTER))
        if (register >> word(need, layout.BIT)) & 1 == 0:
            refuse(text("this library is made for CPUs with %s, which this one lacks"), word(need, layout.FEATURE), 0)
            return True
        need += 8 * layout.NEED_WORDS
        i += 1
    return False


def load(control: int, self: int) -> bool:
    """Maps the data of the constants, which stand at the end of the library's file."""
    info = room(4)
    call("dladdr", control, info)
    file = call("open", word(info), 524288)  # O_CLOEXEC
    if file < 0:
        return refuse(text("the constants in %s cannot be read"), word(info), 0)
    size = word(control, layout.BLOB_SIZE)
    end = call("lseek", file, 0, 2)
    data = call("mmap", 0, size, 3, 2, file, end - size)  # to read and write, private
    call("close", file)
    if data == -1:
        return refuse(text("the constants at the end of %s are missing"), word(info), 0)
    put(self, layout.DATA, data)
    if word(data) != word(control, layout.BLOB_MARK):
        return refuse(text("the constants at the end of %s are another library's"), word(info), 0)
    record = word(control, layout.CONSTANT_TABLE)
    i = 0
    while i < word(control, layout.CONSTANTS):
        place = word(self, layout.SETS) + 8 * i
        wrong = around(record, data + word(record, layout.AT), place)
        if wrong == 0 and word(record, layout.CONSTANT_DEVICE) != 0:
            wrong = replace(record, word(place), place)
        if wrong != 0:
            return refuse(text("constant %s: %s"), word(record), call("torch_error"))
        record += 8 * layout.RECORD_WORDS
        i += 1
    return True


def around(record: int, data: int, place: int) -> int:
    """The tensor of a constant in memory."""
    dims = word(record, layout.DIMS)
    sizes = word(record, layout.SIZES)
    return call("around", data, dims, sizes, word(record, layout.STRIDES), 0, word(record, layout.DTYPE), 0, 0, place)


def delete(self: int) -> int:
    """Gives up a container."""
    control = call("control")
    count = word(control, layout.CONSTANTS)
    free_all(word(self, layout.SETS), count)
    free_all(word(self, layout.SETS + 1), count)
    if word(self, layout.DATA) != 0:
        call("munmap", word(self, layout.DATA), word(control, layout.BLOB_SIZE))
    call("release_memory", word(self, layout.SETS))
    call("release_memory", word(self, layout.SETS + 1))
    call("release_memory", self)
    return 0


# ---- constants -------------------------------------------------------------------------------------------------------


def update(self: int, given: int, inactive: int, whole: int) -> int:
    """Copies tensors to constants, of which `given` (a ``std::unordered_map``) has those that change."""
    return change(self, word(given, 2), 0, inactive, whole, 0)


def update_managed(self: int, given: int, inactive: int, whole: int) -> int:
    """The same, but the tensors themselves are used from then on."""
    return change(self, word(given, 2), 0, inactive, whole, 1)


def update_inactive(self: int, given: int) -> int:
    """Copies tensors to constants that are not in use."""
    return change(self, word(given, 2), 0, 1, 1, 0)


def update_pairs(self: int, pairs: int, count: int, inactive: int, whole: int) -> int:
    """As `update`, given names and handles in turn."""
    return change(self, pairs, count, inactive, whole, 0)


def update_managed_pairs(self: int, pairs: int, count: int, inactive: int, whole: int) -> int:
    """As `update_managed`, given names and handles in turn."""
    return change(self, pairs, count, inactive, whole, 1)


def update_inactive_pairs(self: int, pairs: int, count: int) -> int:
    """As `update_inactive`, given names and handles in turn."""
    return change(self, pairs, count, 1, 1, 0)


def update_from_blob(self: int, data: int) -> int:
    """Copies data, laid out as those in the library's file, to the constants that are in use."""
    control = call("control")
    call("lock_to_write", self)
    record = word(control, layout.CONSTANT_TABLE)
    used = word(self, layout.SETS + word(self, layout.ACTIVE))
    place = room(1)
    i = 0
    wrong = 0
    while i < word(control, layout.CONSTANTS) and wrong == 0:
        wrong = around(record, data + word(record, layout.AT), place)
        if wrong == 0:
            wrong = replace(record, word(place), used + 8 * i)
            call("delete", word(place))
        if wrong != 0:
            refuse(text("constant %s: %s"), word(record), call("torch_error"))
        record += 8 * layout.RECORD_WORDS
        i += 1
    call("unlock", self)
    return wrong


def change(self: int, given: int, count: int, inactive: int, whole: int, managed: int) -> int:
    """Changes constants. `count`: of pairs; 0 where there is a list of a map's nodes."""
    control = call("control")
    call("lock_to_write", self)
    answer = 1
    chosen = word(self, layout.ACTIVE)
    if inactive & 255 != 0:
        chosen = 1 - chosen
    if is_fitting(control, given, count, whole & 255, managed):
        answer = take(control, self, given, count, chosen, managed)
    call("unlock", self)
    return answer


def is_fitting(control: int, given: int, count: int, whole: int, managed: int) -> bool:
    """Whether tensors are what the constants of these names may be, and none is missing if all must be there."""
    record = word(control, layout.CONSTANT_TABLE)
    step = room(layout.STEP_WORDS)
    slot = room(1)
    i = 0
    while i < word(control, layout.CONSTANTS):
        name = word(record)
        tensor = find(given, count, name)
        if tensor == 0 and whole != 0 and word(record, layout.KIND) == layout.PARAMETER:
            return refuse(text("constant %s is missing"), name, 0)
        if tensor != 0:
            put(slot, 0, tensor)
            put(step, 2, name)
            put(step, 3, 0)
            put(step, 4, word(record, layout.DTYPE))
            put(step, 5, word(record, layout.DIMS))
            put(step, 6, ops.LITERAL)
            put(step, 7, word(record, layout.SIZES))
            put(step, 8, ops.LITERAL)
            put(step, 9, word(record, layout.STRIDES))
            if managed == 0:
                call("strides", tensor, step + 72)
            if not is_accepted(step, slot, 0):
                return False
        record += 8 * layout.RECORD_WORDS
        i += 1
    return True


def take(control: int, self: int, given: int, count: int, chosen: int, managed: int) -> int:
    """Changes a set of constants. What an inactive set lacks it takes from the active one, but no parameters."""
    record = word(control, layout.CONSTANT_TABLE)
    other = word(self, layout.SETS + 1 - chosen)
    place = word(self, layout.SETS + chosen)
    i = 0
    while i < word(control, layout.CONSTANTS):
        tensor = find(given, count, word(record))
        if tensor == 0 and word(place) == 0 and word(record, layout.KIND) != layout.PARAMETER:
            tensor = word(other, i)
        wrong = 0
        if tensor != 0:
            if managed != 0:
                free_all(place, 1)
                wrong = call("share", tensor, place)
            else:
                wrong = replace(record, tensor, place)
        if wrong != 0:
            refuse(text("constant %s: %s"), word(record), call("torch_error"))
            return 1
        place += 8
        record += 8 * layout.RECORD_WORDS
        i += 1
    return 0


def replace(record: int, tensor: int, place: int) -> int:
    """Puts a copy of a tensor, laid out as the constant, into a place for a handle."""
    made = room(1)
    dims = word(record, layout.DIMS)
    strides = word(record, layout.STRIDES)
    device = word(record, layout.CONSTANT_DEVICE)
    index = 0
    if device != 0:
        index = word(call("control"), layout.DEVICE_INDEX)
    if call("empty", dims, word(record, layout.SIZES), strides, word(record, layout.DTYPE), device, index, made) != 0:
        return 1
    grad = call("grad_mode") & 255
    call("set_grad_mode", 0)
    wrong = call("copy", word(made), tensor, 0)
    call("set_grad_mode", grad)
    if wrong != 0:
        call("delete", word(made))
        return 1
    free_all(place, 1)
    put(place, 0, word(made))
    return 0


def find(given: int, count: int, name: int) -> int:
    """The handle of a name; 0 if it is not there. Nodes of libstdc++'s map: the next one, the address of the key, its
    length, two words, the value."""
    length = call("strlen", name)
    if count == 0:
        while given != 0:
            if word(given, 2) == length and call("strncmp", word(given, 1), name, length) == 0:
                return word(given, 5)
            given = word(given)
        return 0
    while count != 0:
        if call("strncmp", word(given), name, length + 1) == 0:
            return word(given, 1)
        given += 16
        count += -1
    return 0


def extract(self: int, given: int, inactive: int) -> int:
    """Puts the constants into an empty map: nodes that are chained, in its only bucket."""
    control = call("control")
    record = word(control, layout.CONSTANT_TABLE)
    chosen = word(self, layout.ACTIVE)
    if inactive & 255 != 0:
        chosen = 1 - chosen
    handles = word(self, layout.SETS + chosen)
    last = given + 16
    i = 0
    while i < word(control, layout.CONSTANTS):
        name = word(record)
        if word(handles, i) != 0:
            length = call("strlen", name)
            node = call("new", 56)
            key = call("new", length + 1)
            call("memcpy", key, name, length + 1)
            put(node, 0, 0)
            put(node, 1, key)
            put(node, 2, length)
            put(node, 3, length)
            put(node, 5, word(handles, i))
            put(node, 6, call("hash", key, length, 3339675911))
            put(last, 0, node)
            put(word(given), 0, given + 16)
            put(given, 3, word(given, 3) + 1)
            last = node
        record += 8 * layout.RECORD_WORDS
        i += 1
    return 0


def fold(self: int, inactive: int, _stream: int, _executor: int) -> int:
    """Nothing is made of constants alone before a run."""
    return 0


def swap(self: int) -> int:
    """Uses the other set of constants from now on."""
    control = call("control")
    call("lock_to_write", self)
    other = word(self, layout.SETS + 1 - word(self, layout.ACTIVE))
    i = 0
    answer = 0
    while i < word(control, layout.CONSTANTS) and answer == 0:
        if word(other, i) == 0:
            name = word(word(control, layout.CONSTANT_TABLE), i * layout.RECORD_WORDS)
            refuse(text("constant %s has no value in the set that is not in use"), name, 0)
            answer = 1
        i += 1
    if answer == 0:
        put(self, layout.ACTIVE, 1 - word(self, layout.ACTIVE))
    call("unlock", self)
    return answer


def free_inactive(self: int) -> int:
    """Gives up the constants that are not in use."""
    call("lock_to_write", self)
    free_all(word(self, layout.SETS + 1 - word(self, layout.ACTIVE)), word(call("control"), layout.CONSTANTS))
    call("unlock", self)
    return 0


# ---- what is asked ---------------------------------------------------------------------------------------------------


def last_error(result: int) -> int:
    """What the last function that failed in this thread has said."""
    put(result, 0, call("message"))
    return 0


def call_spec(self: int, arguments: int, results: int) -> int:
    """How arguments and results are made of tensors."""
    put(arguments, 0, word(call("control"), layout.IN_SPEC))
    put(results, 0, word(call("control"), layout.OUT_SPEC))
    return 0


def number_of_inputs(self: int, result: int) -> int:
    """How many there are."""
    put(result, 0, word(call("control"), ops.INPUTS))
    return 0


def name_of_input(self: int, index: int, result: int) -> int:
    """The name of one."""
    put(result, 0, word(word(call("control"), layout.INPUT_NAMES), index))
    return 0


def number_of_outputs(self: int, result: int) -> int:
    """How many there are."""
    put(result, 0, word(call("control"), ops.RESULTS))
    return 0


def name_of_output(self: int, index: int, result: int) -> int:
    """The name of one."""
    put(result, 0, word(word(call("control"), layout.OUTPUT_NAMES), index))
    return 0


def number_of_constants(self: int, result: int) -> int:
    """How many there are."""
    put(result, 0, word(call("control"), layout.CONSTANTS))
    return 0


def fact(index: int, place: int) -> int:
    """A word of the record of a constant."""
    return word(word(call("control"), layout.CONSTANT_TABLE), index * layout.RECORD_WORDS + place)


def name_of_constant(self: int, index: int, result: int) -> int:
    """The name of one, which is the one that it has in the model."""
    put(result, 0, fact(index, layout.NAME))
    return 0


def dtype_of_constant(self: int, index: int, result: int) -> int:
    """Its dtype, by torch's number, of 32 bits."""
    put_short(result, fact(index, layout.DTYPE))
    return 0


def kind_of_constant(self: int, index: int, result: int) -> int:
    """Its kind, of 32 bits."""
    put_short(result, fact(index, layout.KIND))
    return 0


def put_short(place: int, value: int) -> int:
    """Writes the lower 32 bits of a word."""
    short = room(1)
    put(short, 0, value)
    return call("memcpy", place, short, 4)


def bytes_of_constant(self: int, index: int, result: int) -> int:
    """How many bytes it has."""
    put(result, 0, fact(index, layout.BYTES))
    return 0


def is_folded(self: int, index: int, result: int) -> int:
    """None is, so one byte is 0."""
    call("memcpy", result, text(""), 1)
    return 0


def bytes_of_constants(self: int, result: int) -> int:
    """How many bytes all have."""
    put(result, 0, word(call("control"), layout.BLOB_SIZE))
    return 0


EXPORTS: Mapping[str, Callable[..., int]] = {
    "AOTInductorModelContainerCreate": create_for_cpu,
    "AOTInductorModelContainerCreateWithDevice": create,
    "AOTInductorModelContainerDelete": delete,
    "AOTInductorModelContainerRun": run,
    "AOTInductorModelContainerRunSingleThreaded": run,
    "AOTInductorModelContainerGetNumInputs": number_of_inputs,
    "AOTInductorModelContainerGetInputName": name_of_input,
    "AOTInductorModelContainerGetNumOutputs": number_of_outputs,
    "AOTInductorModelContainerGetOutputName": name_of_output,
    "AOTInductorModelContainerGetNumConstants": number_of_constants,
    "AOTInductorModelContainerGetConstantName": name_of_constant,
    "AOTInductorModelContainerGetConstantOriginalFQN": name_of_constant,
    "AOTInductorModelContainerGetConstantDtype": dtype_of_constant,
    "AOTInductorModelContainerGetConstantType": kind_of_constant,
    "AOTInductorModelContainerGetConstantDataSize": bytes_of_constant,
    "AOTInductorModelContainerGetConstantFromFolded": is_folded,
    "AOTInductorModelContainerGetConstantsBlobSize": bytes_of_constants,
    "AOTInductorModelContainerExtractConstantsMap": extract,
    "AOTInductorModelContainerUpdateConstantBuffer": update,
    "AOTInductorModelContainerUpdateConstantBufferFromCpu": update,
    "AOTInductorModelContainerUpdateUserManagedConstantBuffer": update_managed,
    "AOTInductorModelContainerUpdateInactiveConstantBuffer": update_inactive,
    "AOTInductorModelContainerUpdateConstantBufferPairs": update_pairs,
    "AOTInductorModelContainerUpdateConstantBufferFromCpuPairs": update_pairs,
    "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs": update_managed_pairs,
    "AOTInductorModelContainerUpdateInactiveConstantBufferPairs": update_inactive_pairs,
    "AOTInductorModelUpdateConstantsFromBlob": update_from_blob,
    "AOTInductorModelContainerRunConstantFolding": fold,
    "AOTInductorModelContainerSwapConstantBuffer": swap,
    "AOTInductorModelContainerFreeInactiveConstantBuffer": free_inactive,
    "AOTInductorModelContainerGetCallSpec": call_spec,
    "AOTInductorGetLastError": last_error,
}
"""The functions of the interface, and those here that do what they are for."""
