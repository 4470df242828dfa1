"""The few functions of the CUDA driver (libcuda) that are needed, and of torch the one that tells its stream.

Source: NVIDIA, "CUDA Driver API" (cuModuleLoadDataEx, cuModuleGetFunction, cuLaunchKernel, cuCtxSetCurrent,
cuCtxGetCurrent, cuDriverGetVersion, cuLinkCreate, cuLinkAddData, cuLinkComplete, cuLinkDestroy,
cuStreamBeginCapture, cuDeviceGetAttribute).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_ERROR_LOG_BUFFER, _ERROR_LOG_BYTES = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
_LOG_BYTES = 1 << 13
_INPUT_PTX = 1  # CU_JIT_INPUT_PTX
_MEMORY_CLOCK, _BUS_WIDTH = 36, 37  # CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE in kHz, …_GLOBAL_MEMORY_BUS_WIDTH in bits
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


@functools.cache
def libcuda() -> ctypes.CDLL:
    """The driver's library. OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _libtorch_cuda() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))


def address_of(function: object) -> int:
    """Where a foreign function is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The addresses of what a launch calls, and the context of the device: ``cuLaunchKernel``, ``cuCtxSetCurrent``,
    ``cuCtxGetCurrent``, and torch's ``aoti_torch_get_current_cuda_stream(int device, void **stream)``. `error`: the
    last code of a launch that failed."""

    launch: int
    set_current: int
    get_current: int
    stream: int
    context: int
    error: ctypes.c_int32

    def raise_error(self) -> None:
        """RuntimeError if a launch has failed since this was asked last."""
        if code := self.error.value:
            self.error.value = 0
            raise RuntimeError(f"a kernel could not be launched: {error_text(code)}")


@functools.cache
def entries(device: int) -> Entries:
    """Those for a device by its number. torch's own context is used, which is the device's primary one."""
    torch.zeros((), device=torch.device("cuda", device))  # makes it
    context = ctypes.c_void_p()
    with torch.cuda.device(device):
        _checked("cuCtxGetCurrent", ctypes.byref(context))
    driver = libcuda()
    launch = address_of(driver.cuLaunchKernel)
    set_current, get_current = address_of(driver.cuCtxSetCurrent), address_of(driver.cuCtxGetCurrent)
    stream = address_of(_libtorch_cuda().aoti_torch_get_current_cuda_stream)
    return Entries(launch, set_current, get_current, stream, context.value or 0, ctypes.c_int32())


class Module:
    """PTX or a cubin that the driver has loaded on a device; unloaded with this object, but not as the process ends:
    kernels may still run, and all goes with the context."""

    def __init__(self, image: bytes, device: int) -> None:
        """RuntimeError with the driver's own words if it refuses the image."""
        self.device = device
        self._handle = ctypes.c_void_p()
        log, options = _log()
        with _current(device):
            text = ctypes.c_char_p(image + b"\0")
            _checked("cuModuleLoadDataEx", ctypes.byref(self._handle), text, *options, log=log)
        weakref.finalize(self, libcuda().cuModuleUnload, self._handle).atexit = False

    def functions(self, names: Sequence[str]) -> list[int]:
        """The handles of its kernels."""
        handles = []
        for name in names:
            handle = ctypes.c_void_p()
            _checked("cuModuleGetFunction", ctypes.byref(handle), self._handle, ctypes.c_char_p(name.encode()))
            handles.append(handle.value or 0)
        return handles


@functools.cache
def memory_bandwidth(device: int) -> float:
    """What a device's memory can move, in bytes a second: its bus has so many bits and moves twice in a cycle."""
    clock, bits = ctypes.c_int(), ctypes.c_int()
    _checked("cuDeviceGetAttribute", ctypes.byref(clock), _MEMORY_CLOCK, device)
    _checked("cuDeviceGetAttribute", ctypes.byref(bits), _BUS_WIDTH, device)
    return 2.0 * clock.value * 1e3 * bits.value / 8


def driver_version() -> str:
    """The version of CUDA that the driver has, such as 12080; empty where there is no driver."""
    version = ctypes.c_int()
    try:
        _checked("cuDriverGetVersion", ctypes.byref(version))
    except OSError:
        return ""
    return str(version.value)


def image_of(ptx: bytes, device: int) -> bytes:
    """What a device loads fastest: the machine code that the driver makes of PTX (a cubin), or the PTX itself where it
    makes none; then loading tells why."""
    state, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    _, options = _log()
    with _current(device):
        try:
            _checked("cuLinkCreate_v2", *options, ctypes.byref(state))
        except (RuntimeError, AttributeError):
            return ptx
        try:
            length, name = ctypes.c_size_t(len(ptx) + 1), ctypes.c_char_p(b"bolide")
            _checked("cuLinkAddData_v2", state, _INPUT_PTX, ctypes.c_char_p(ptx + b"\0"), length, name, 0, None, None)
            _checked("cuLinkComplete", state, ctypes.byref(image), ctypes.byref(size))
            return ctypes.string_at(image, size.value)
        except RuntimeError:
            return ptx
        finally:
            _checked("cuLinkDestroy", state)


_Options = tuple[int, "ctypes.Array[ctypes.c_int]", "ctypes.Array[ctypes.c_void_p]"]


def _log() -> tuple[ctypes.Array[ctypes.c_char], _Options]:
    """A buffer for what the driver says of code, and the options (how many, which, values) that name it."""
    log = ctypes.create_string_buffer(_LOG_BYTES)
    options = (ctypes.c_int * 2)(_ERROR_LOG_BUFFER, _ERROR_LOG_BYTES)
    return log, (2, options, (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES))


@contextlib.contextmanager
def _current(device: int) -> Iterator[None]:
    """A device's context is current: a thread of autograd's may have none yet."""
    _checked("cuCtxPushCurrent_v2", ctypes.c_void_p(entries(device).context))
    try:
        yield
    finally:
        _checked("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def begin_capture(stream: int) -> None:
    """Captures what this thread does on a stream of its current device."""
    _checked("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), _THREAD_LOCAL)


def error_text(code: int) -> str:
    """What the driver says of an error."""
    name, words = ctypes.c_char_p(), ctypes.c_char_p()
    libcuda().cuGetErrorName(code, ctypes.byref(name))
    libcuda().cuGetErrorString(code, ctypes.byref(words))
    return f"{(name.value or b'?').decode()} ({code}): {(words.value or b'?').decode()}"


def _checked(name: str, *args: object, log: ctypes.Array[ctypes.c_char] | None = None) -> None:
    code = getattr(libcuda(), name)(*args)
    if code:
        said = "" if log is None or not log.value else f"\n{log.value.decode(errors='replace')}"
        raise RuntimeError(f"{name}: {error_text(code)}{said}")
