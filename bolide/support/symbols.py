"""The symbols that generated code shares with torch: its OpenMP pool, its vector mathematics, the C library."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

#: Stand-ins, as LLVM text, for what a build of torch may lack: then all work is done by the calling thread.
SERIAL = {
    "GOMP_parallel": """define internal void @GOMP_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) {
  call void %function(ptr %data)
  ret void
}""",
    "omp_get_thread_num": "define internal i32 @omp_get_thread_num() { ret i32 0 }",
    "omp_get_num_threads": "define internal i32 @omp_get_num_threads() { ret i32 1 }",
    "_ZN2at15get_num_threadsEv": "define internal i32 @_ZN2at15get_num_threadsEv() { ret i32 1 }",
}


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """libtorch_cpu (a lookup in it also searches what it was linked with: libgomp, libm, libc), libtorch_cuda and
    libtorch_python, then the process."""
    folder = Path(torch.__file__).parent / "lib"
    names = [f"lib{name}.{kind}" for name in ("torch_cpu", "torch_cuda", "torch_python") for kind in ("so", "dylib")]
    return (*(ctypes.CDLL(str(folder / name)) for name in names if (folder / name).exists()), ctypes.CDLL(None))


@functools.cache
def symbol_address(name: str) -> int | None:
    """The address of an exported function, or None."""
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None
