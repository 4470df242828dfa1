"""What runs a program's instructions, in the subset of Python that `support.native.translate` makes machine code of.

`instructions` says what a program is. `slots` and `frame` are addresses; `objects` is that of the inputs where these
are objects of Python's. What depends on where a program runs is declared here, and defined in `in_process` for a
process with Python and in `aot.container` for a library without it.
"""

from __future__ import annotations

from bolide.inductor.runtime.native import instructions as ops
from bolide.support.native.translate import External, call, invoke, launch, put, quotient, room, word

EXTERNALS = {
    "memcpy": External("ptr", "memcpy", ("ptr", "ptr", "i64")),
    "memcmp": External("i32", "memcmp", ("ptr", "ptr", "i64")),
    "delete": External("i32", "aoti_torch_delete_tensor_object", ("ptr",)),
    "share": External("i32", "aoti_torch_new_tensor_handle", ("ptr", "ptr")),
    "data": External("i32", "aoti_torch_get_data_ptr", ("ptr", "ptr")),
    "offset": External("i32", "aoti_torch_get_storage_offset", ("ptr", "ptr")),
    "dtype": External("i32", "aoti_torch_get_dtype", ("ptr", "ptr")),
    "dims": External("i32", "aoti_torch_get_dim", ("ptr", "ptr")),
    "sizes": External("i32", "aoti_torch_get_sizes", ("ptr", "ptr")),
    "strides": External("i32", "aoti_torch_get_strides", ("ptr", "ptr")),
    "is_conj": External("i8", "_ZN2at6native7is_conjERKNS_6TensorE", ("ptr",)),
    "is_neg": External("i8", "_ZN2at6native6is_negERKNS_6TensorE", ("ptr",)),
    "dispatch": External("i32", "aoti_torch_call_dispatcher", ("ptr", "ptr", "ptr")),
    "text": External("i32", "torch_new_string_handle", ("ptr", "i64", "ptr")),
    "list": External("i32", "torch_new_list_reserve_size", ("i64", "ptr")),
    "push": External("i32", "torch_list_push_back", ("ptr", "i64")),
    "count": External("i32", "torch_list_size", ("ptr", "ptr")),
    "item": External("i32", "torch_list_get_item", ("ptr", "i64", "ptr")),
    "drop": External("i32", "torch_delete_list", ("ptr",)),
    "new": External("ptr", "_Znwm", ("i64",)),
}
"""The functions in C that it calls."""


# ---- what depends on where it runs -----------------------------------------------------------------------------------


def otherwise(step: int, slots: int, frame: int, thread: int) -> bool:
    """What is done where a function in C answers an error, or something is not as expected; false if it raises."""
    raise NotImplementedError


def free_inputs(places: int, count: int, objects: int) -> int:
    """Gives up inputs."""
    raise NotImplementedError


def interrupted(thread: int, moment: int) -> bool:
    """Whether the handler of a signal raises; `moment`: where it is noted when handlers were last looked for."""
    raise NotImplementedError


def release() -> int:
    """Gives up the interpreter lock."""
    raise NotImplementedError


def acquire(thread: int) -> int:
    """Takes the interpreter lock again."""
    raise NotImplementedError


# ---- the instructions ------------------------------------------------------------------------------------------------


def execute(control: int, objects: int, slots: int, frame: int) -> bool:
    """Runs the instructions; false if one raises an error. An interpreter lock is held before and after."""
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
            case ops.DISPATCH:
                gather(now + 48, word(now, 3), values, slots, frame)
                if not dispatched(now, values, slots, frame):
                    step = word(now, 2)
                size = 5 * word(now, 3) + 2 * word(now, 5) + 6
            case ops.CHECK:
                gather(now + 40, 2, values, slots, frame)
                if not is_as_expected(word(slots, x), word(now, 3), word(now, 4), values):
                    step = word(now, 2)
                size = 9
            case ops.FREE:
                free_slots(now + 16, x, slots)
                size = x + 2
            case ops.FREE_INPUTS:
                free_inputs(now + 16, x, objects)
                size = x + 2
            case ops.PYTHON:
                step = x
                size = 2
            case ops.RELEASE:
                thread = release()
                size = 1
            case ops.ACQUIRE:
                acquire(thread)
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
            case ops.UNLESS:
                size = 3 if word(frame, x) != 0 else word(now, 2)
            case ops.JUMP:
                size = x
            case ops.SIGNALS:
                if interrupted(thread, moment):
                    return False
                size = 1
            case _:
                size = fill(now, slots, frame)
        now += 8 * size
        if step != 0:
            if not otherwise(code + 8 * step, slots, frame, thread):
                return False
            now = code + 8 * word(code + 8 * step, 1)
    if thread != 0:
        acquire(thread)
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
    """Whether a tensor has that dtype and number of dimensions, and the sizes and strides at the two places, if any;
    and holds its elements as they are."""
    facts = room(2)
    if handle == 0:
        return False
    put(facts, 0, 0)
    call("dtype", handle, facts)
    if word(facts) != dtype:
        return False
    call("dims", handle, facts)
    if word(facts) != dims or call("is_conj", handle) != 0 or call("is_neg", handle) != 0:
        return False
    if word(places) == 0:
        return True
    call("sizes", handle, facts)
    if call("memcmp", word(facts), word(places), 8 * dims) != 0:
        return False
    call("strides", handle, facts + 8)
    return are_same_places(word(facts), word(facts, 1), word(places, 1), dims)


def are_same_places(sizes: int, strides: int, others: int, dims: int) -> bool:
    """Whether two strides lead to the same elements."""
    same = True
    i = 0
    while i < dims:
        if word(sizes, i) == 0:
            return True
        if word(sizes, i) != 1 and word(strides, i) != word(others, i):
            same = False
        i += 1
    return same


# ---- calls by name ---------------------------------------------------------------------------------------------------


def dispatched(now: int, values: int, slots: int, frame: int) -> bool:
    """Calls an operator through torch's dispatcher; false if that answers an error. It takes the arguments on a stack
    of words, on which it leaves the results; handles, boxes and lists there are the callee's, then the caller's."""
    count = word(now, 3)
    results = word(now, 5)
    stack = room(count + results + 1)
    forms = now + 48 + 16 * count
    i = 0
    while i < count:
        build(forms, word(values, i), stack + 8 * i)
        forms += 24
        i += 1
    if call("dispatch", word(now, 1), word(now, 4), stack) != 0:
        return False
    i = 0
    while i < results:
        slot = slots + 8 * word(forms)
        if word(forms, 1) == -2:
            put(frame, word(forms), word(stack, i))
        elif word(forms, 1) < 0:
            put(slot, 0, word(stack, i))
        elif not unpack(word(stack, i), word(forms, 1), slot):
            return False
        forms += 16
        i += 1
    return True


def build(form: int, value: int, place: int) -> int:
    """Puts an argument onto the stack."""
    kind = word(form)
    count = word(form, 1)
    if kind >= ops.FORM_LIST:
        call("list", count, place)
        one = room(1)
        i = 0
        while i < count:
            element(kind - ops.FORM_LIST, word(value, i), one)
            call("push", word(place), word(one))
            i += 1
    elif kind == ops.FORM_TEXT:
        call("text", value, count, place)
    else:
        element(kind, value, place)
    if word(form, 2) != 0:
        box(place)
    return 0


def element(kind: int, value: int, place: int) -> int:
    """Puts a word or a tensor there."""
    put(place, 0, value)
    if kind != ops.FORM_WORD and value != 0:
        call("share", value, place)
        if kind == ops.FORM_OPTIONAL_TENSOR:
            box(place)
    return 0


def box(place: int) -> int:
    """What is given of an optional is the address of its value."""
    made = call("new", 8)
    put(made, 0, word(place))
    put(place, 0, made)
    return 0


def unpack(values: int, count: int, slot: int) -> bool:
    """The tensors of a list become those of neighbouring slots; not if there are more or fewer of them."""
    size = room(1)
    call("count", values, size)
    if word(size) != count:
        return False
    i = 0
    while i < count:
        call("item", values, i, slot + 8 * i)
        i += 1
    call("drop", values)
    return True


# ---- what tensors tell -----------------------------------------------------------------------------------------------


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


def holds(relation: int, value: int) -> bool:
    """Whether a value is in a relation to 0."""
    match relation:
        case ops.EQUAL:
            return value == 0
        case ops.UNEQUAL:
            return value != 0
        case _:
            return value >= 0


def free_slots(places: int, count: int, slots: int) -> int:
    """Gives up handles."""
    i = 0
    while i < count:
        slot = word(places, i)
        if word(slots, slot) != 0:
            call("delete", word(slots, slot))
            put(slots, slot, 0)
        i += 1
    return 0


def handles(places: int, count: int, slots: int, array: int) -> int:
    """Writes an array of handles."""
    i = 0
    while i < count:
        put(array, i, word(slots, word(places, i)))
        i += 1
    return 0


def fill(now: int, slots: int, frame: int) -> int:
    """Gives a frame word its value; the length of the instruction."""
    x = word(now, 1)
    size = 4
    match word(now):
        case ops.ITEM:
            put(frame, x, item(word(slots, word(now, 2)), word(now, 3), word(now, 4)))
            size = 5
        case ops.SIZE:
            put(frame, x, extent(word(slots, word(now, 2)), word(now, 3)))
        case ops.OFFSET:
            call("offset", word(slots, word(now, 2)), frame + 8 * x)
            size = 3
        case _:
            put(frame, x, number(word(now), word(frame, word(now, 2)), word(frame, word(now, 3))))
    return size


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
