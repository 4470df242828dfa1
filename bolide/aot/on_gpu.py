"""What a library for a GPU does besides, in the subset of Python that `support.native.translate` makes machine code of:
it loads the machine code of its kernels when a container is made, and runs them on the stream that it is handed.

Source: NVIDIA, "CUDA Driver API" (cuInit, cuDevicePrimaryCtxRetain, cuCtxGetCurrent, cuCtxSetCurrent,
cuModuleLoadDataEx, cuModuleGetFunction, cuGetErrorName)."""

from __future__ import annotations

from bolide.aot import layout
from bolide.support.native.translate import External, call, put, room, text, word

EXTERNALS = {
    "lock_to_load": External("i32", "pthread_mutex_lock", ("ptr",)),
    "loaded": External("i32", "pthread_mutex_unlock", ("ptr",)),
    "init": External("i32", "cuInit", ("i32",)),
    "device_of": External("i32", "cuDeviceGet", ("ptr", "i32")),
    "context_of": External("i32", "cuDevicePrimaryCtxRetain", ("ptr", "i32")),
    "get_context": External("i32", "cuCtxGetCurrent", ("ptr",)),
    "set_context": External("i32", "cuCtxSetCurrent", ("ptr",)),
    "load_module": External("i32", "cuModuleLoadDataEx", ("ptr", "ptr", "i32", "ptr", "ptr")),
    "get_function": External("i32", "cuModuleGetFunction", ("ptr", "ptr", "ptr")),
    "name_of_error": External("i32", "cuGetErrorName", ("i32", "ptr")),
    "current_stream": External("i32", "aoti_torch_get_current_cuda_stream", ("i32", "ptr")),
    "enter_stream": External("i32", "aoti_torch_create_cuda_stream_guard", ("ptr", "i32", "ptr")),
    "leave_stream": External("i32", "aoti_torch_delete_cuda_stream_guard", ("ptr",)),
}
"""The functions in C that it calls: the driver's, and torch's for streams."""


def ready(control: int) -> bool:
    """Loads the machine code, unless that is done."""
    lock = word(control, layout.GPU_LOCK)
    call("lock_to_load", lock)
    answer = True
    if word(word(control, layout.GPU_CONTEXT)) == 0:
        answer = load_code(control)
    call("loaded", lock)
    return answer


def load_code(control: int) -> bool:
    """Loads it in the device's primary context, which is torch's."""
    found = room(3)
    put(found, 0, 0)
    code = call("init", 0)
    if code == 0:
        code = call("device_of", found, word(control, layout.DEVICE_INDEX))
    if code == 0:
        code = call("context_of", found + 8, word(found) & 4294967295)
    if code != 0:
        return failed(code)
    context = word(found, 1)
    call("get_context", found + 16)
    call("set_context", context)
    code = bind(control, context)
    call("set_context", word(found, 2))
    if code != 0:
        return failed(code)
    put(word(control, layout.GPU_CONTEXT), 0, context)
    return True


def bind(control: int, context: int) -> int:
    """Puts the handles of all kernels, and the context, into the tables of their host functions; answers the driver's
    error."""
    found = room(2)
    code = call("load_module", found, word(control, layout.GPU_IMAGE), 0, 0, 0)
    if code != 0:
        return code
    row = word(control, layout.GPU_REGION_TABLE)
    i = 0
    while i < word(control, layout.GPU_REGIONS) and code == 0:
        code = call("get_function", found + 8, word(found), word(row, layout.REGION_NAME))
        if code == 0:
            put(word(row, layout.REGION_TABLE), word(row, layout.REGION_PLACE), word(found, 1))
            put(word(row, layout.REGION_TABLE), layout.TABLE_CONTEXT, context)
        row += 8 * layout.REGION_WORDS
        i += 1
    return code


def failed(code: int) -> bool:
    """Tells what the driver has refused; false."""
    found = room(1)
    if call("name_of_error", code, found) != 0:
        put(found, 0, text("an unknown error"))
    said = text("the machine code of this library cannot be loaded on the GPU: %s (%lld)")
    call("format", call("message"), 2048, said, word(found), code)
    return False


def enter(control: int, stream: int, place: int) -> bool:
    """Makes the stream current that a run is handed, if it is not; `place`: for what ends that."""
    found = room(1)
    put(found, 0, 0)
    put(place, 0, 0)
    device = word(control, layout.DEVICE_INDEX)
    call("current_stream", device, found)
    if word(found) == stream:
        return True
    return call("enter_stream", stream, device, place) == 0


def leave(place: int) -> int:
    """Makes the stream current that was before."""
    if word(place) != 0:
        call("leave_stream", word(place))
    return 0
