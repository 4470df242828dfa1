"""A GPU played by this machine: tensors are the CPU's; schedules, kernels and their code are a GPU's, and their threads
take turns (`tests/ir/loops/gpu_emulator.py`)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bolide.inductor import compiled_graph
from bolide.inductor.codegen.cuda import gpu_module, ptx_of
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.verify import verify
from bolide.inductor.machine import HOPPER, Machine
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.inductor.schedule import loop_writer, pipeline

sys.path.insert(0, str(Path(__file__).parents[1] / "ir" / "loops"))
from gpu_emulator import launched

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64))


def compiled(
    kernels: Sequence[Kernel], machine: Machine | None = None, sizes: Mapping[str, int] | None = None
) -> list[CompiledKernel]:
    """Kernels that run here, after a look whether LLVM makes code of them for a GPU."""
    return [_compiled(kernel, sizes) for kernel in kernels]


def _compiled(kernel: Kernel, sizes: Mapping[str, int] | None) -> CompiledKernel:
    verify(kernel, sizes, HOPPER.most_local_bytes)
    text, _ = gpu_module([kernel], HOPPER)
    ptx = ptx_of(text, HOPPER.target)
    count = len(kernel.params) + len(kernel.sizes)
    entry = _ENTRY(lambda words: launched(kernel, words[:count]))
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    return CompiledKernel(kernel, address, lambda: text, lambda: ptx, entry)


def emulate() -> None:
    """From now on this process compiles for the GPU that it plays."""
    compiled_graph._machine_of = lambda gm: HOPPER
    compiled_graph.compile_kernels = compiled
    pipeline.machine_for = lambda device: HOPPER
    loop_writer.on_threads = loop_writer.on_grid
