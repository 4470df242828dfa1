"""The few functions of the CUDA driver (libcuda) that are needed, and of torch the one that tells its stream.

Source: NVIDIA, "CUDA Driver API" (cuModuleLoadDataEx, cuModuleGetFunction, cuLaunchKernel, cuCtxSetCurrent,
cuCtxGetCurrent).
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_ERROR_LOG_BUFFER, _ERROR_LOG_BYTES = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
_LOG_BYTES = 1 << 13


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
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG_BUFFER, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        context = entries(device).context
        text = ctypes.c_char_p(image + b"\0")
        _checked("cuCtxPushCurrent_v2", ctypes.c_void_p(context))  # a thread of autograd's may have none yet
        try:
            _checked("cuModuleLoadDataEx", ctypes.byref(self._handle), text, 2, options, values, log=log)
        finally:
            _checked("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        weakref.finalize(self, libcuda().cuModuleUnload, self._handle).atexit = False

    def functions(self, names: Sequence[str]) -> list[int]:
        """The handles of its kernels."""
        handles = []
        for name in names:
            handle = ctypes.c_void_p()
            _checked("cuModuleGetFunction", ctypes.byref(handle), self._handle, ctypes.c_char_p(name.encode()))
            handles.append(handle.value or 0)
        return handles


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
