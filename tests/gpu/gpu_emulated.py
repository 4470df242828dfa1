"""A GPU played by this machine: tensors are the CPU's; schedules, kernels and their code are a GPU's, and their threads
take turns (`tests/ir/loops/gpu_emulator.py`)."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bolide.inductor import compiled_graph
from bolide.inductor.codegen.cuda import gpu_module, ptx_of
from bolide.inductor.compiled_graph import CompiledGraph
from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.ir.verify import verify
from bolide.inductor.machine import HOPPER, Machine
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.inductor.runtime.native import driver as native
from bolide.inductor.runtime.native import linking, shims
from bolide.inductor.schedule import loop_writer, pipeline
from bolide.tracing.rng import draw_seed

sys.path.insert(0, str(Path(__file__).parents[1] / "ir" / "loops"))
from gpu_emulator import launched

CUDA = torch.device("cuda", 0)
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))

answers: list[int] = []
"""What the next launches answer; then 0."""
failures: list[str] = []
"""The assertions that failed on the device, of which a GPU tells when the host next synchronises."""


def compiled(
    kernels: Sequence[Kernel], machine: Machine | None = None, sizes: Mapping[str, int] | None = None
) -> list[CompiledKernel]:
    """Kernels that run here, after a look whether LLVM makes code of them for a GPU."""
    return [_compiled(kernel, sizes) for kernel in kernels]


def _compiled(kernel: Kernel, sizes: Mapping[str, int] | None) -> CompiledKernel:
    verify(kernel, sizes, HOPPER.most_local_bytes)
    text, _ = gpu_module([kernel], HOPPER)
    ptx = ptx_of(text, HOPPER.target)

    def run(words: Any) -> int:
        try:
            launched(kernel, words[: kernel.words])
        except RuntimeError as error:
            failures.append(str(error))
        return answers.pop(0) if answers else 0

    entry = _ENTRY(run)
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    return CompiledKernel(kernel, address, lambda: text, lambda: ptx, entry)


def emulate(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on this process compiles for the GPU that it plays. `put`: changes what bolide does."""
    put(compiled_graph, "_machine_of", lambda gm: HOPPER)
    put(compiled_graph, "is_on", lambda: False)
    put(compiled_graph, "compile_kernels", compiled)
    put(pipeline, "machine_for", lambda device: HOPPER)
    put(loop_writer, "on_threads", loop_writer.on_grid)


def emulate_native(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """The same; and plans, in which all is said to be on a GPU, are run by the native driver from the first call on.
    torch's functions in C are the CPU's, and so are the steps in Python."""
    emulate(put)
    finished, build_step, shim_of = compiled_graph._finished, native.build_step, shims.shim_of

    def finished_natively(*made: Any) -> CompiledGraph:
        graph = finished(*made)
        plan = moved(graph.plan, CPU, CUDA)
        run = native.build(plan, graph.binding, [kernel.compiled for kernel in graph.kernels], graph.run)
        assert run is not None
        return CompiledGraph(graph.name, run, graph.seconds, graph._details)

    def step_here(block: Any, binding: Any, step: Any, *rest: Any) -> Callable[..., Any]:
        return build_step(moved(block, CUDA, CPU), binding, moved(step, CUDA, CPU), *rest)

    put(compiled_graph, "_finished", finished_natively)
    put(native, "build_step", step_here)
    put(shims, "device_numbers", lambda device: (0, -1))
    put(linking, "draw", lambda gpu: lambda: (draw_seed(),))
    put(shims, "shim_of", lambda operator, kind="cpu": shim_of(operator, "cpu"))


def moved(value: Any, source: torch.device, target: torch.device) -> Any:
    """A part of a plan in which another device stands for one; flags and words are where they were."""
    if value == source and isinstance(value, torch.device):
        return target
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple([moved(item, source, target) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {name: moved(item, source, target) for name, item in fields.items()}
        return dataclasses.replace(value, **{n: item for n, item in changed.items() if item is not fields[n]})
    return value
