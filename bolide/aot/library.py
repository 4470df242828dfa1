"""From contents to a shared library: the machine code of kernels, the program as constant data, the code that every
library has, and at the end of the file the data of the constants.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import inspect
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from bolide.aot import container, layout, on_cpu, on_gpu
from bolide.aot.contents import Constant, Contents
from bolide.aot.cpu import Need, cpuid_text
from bolide.aot.gpu import CONTEXT, IMAGE, LOCK, GpuCode, code_of
from bolide.aot.link import link
from bolide.aot.writing import Label, LibraryWriter, words_text, written
from bolide.inductor.codegen.compiler import module_of
from bolide.inductor.ir.loops import CPU
from bolide.inductor.machine import Machine, machine_for
from bolide.inductor.plan import TensorInput
from bolide.inductor.runtime.native import instructions, runner, shims
from bolide.support.engine import emit
from bolide.support.native.translate import bytes_text, translate

_ALIGNED = 64
"""The data of a constant begin at a multiple of so many bytes."""
_CUDA = 1
"""torch's number for GPUs."""
_TORCH, _CUDAS = ("libtorch_cpu.so",), ("libtorch_cuda.so", "libcuda.so.1")
_PAGE = 1 << 16
"""The data begin at a multiple of the largest page of memory that is in use."""

FACTS = "bolide_facts"
"""The name of the text of `Contents.facts`."""

_OWN = r"""@message = internal thread_local global [2048 x i8] zeroinitializer
declare ptr @llvm.threadlocal.address.p0(ptr)
define hidden ptr @bolide_message() {
  %address = call ptr @llvm.threadlocal.address.p0(ptr @message)
  ret ptr %address
}
define hidden ptr @bolide_control() {
  ret ptr @control
}
declare extern_weak ptr @torch_exception_get_what_without_backtrace()
@untold = private constant [18 x i8] c"torch has refused\00"
define hidden ptr @bolide_torch_error() {
  %none = icmp eq ptr @torch_exception_get_what_without_backtrace, null
  br i1 %none, label %without, label %with
without:
  ret ptr @untold
with:
  %told = call ptr @torch_exception_get_what_without_backtrace()
  ret ptr %told
}"""
"""What the code of every library asks for: its program, the message of the thread, and what torch has said last, if
this version of torch tells."""


def make_library(
    contents: Contents, machine: Machine, needs: Sequence[Need], sizes: dict[str, int], path: Path
) -> None:
    """Writes a library for a machine, which has the CPU features `needs`. `sizes`: those of the example.

    Raises Unsupported for a step that needs Python, BolideError where there is no linker."""
    cpu_kernels = [kernel for kernel in contents.plan.kernels if kernel.device == CPU]
    gpu_kernels = [kernel for kernel in contents.plan.kernels if kernel.device != CPU]
    kernels, cpu_names = module_of(cpu_kernels, machine, sizes)
    device, target = contents.device, machine.target
    gpu = code_of(gpu_kernels, machine_for(device), device, target, sizes) if device != CPU else None
    rest = {CPU: iter(cpu_names), device: iter(gpu.names if gpu else cpu_names)}
    names = [next(rest[kernel.device]) for kernel in contents.plan.kernels]
    writer, control = written(contents, [Label(name) for name in names])
    places, size = _places(contents.constants)
    mark = _mark(contents.constants)
    control[layout.CONSTANTS] = len(contents.constants)
    control[layout.CONSTANT_TABLE] = writer.table(_records(writer, contents.constants, places))
    control[layout.BLOB_SIZE], control[layout.BLOB_MARK] = size, mark
    control[layout.NEEDS] = len(needs)
    control[layout.NEED_TABLE] = writer.table(
        [word for need in needs for word in (need.leaf, need.subleaf, need.register, need.bit, writer.text(need.name))]
    )
    if gpu is not None:
        _tell_of_gpu(writer, control, gpu, device)
    devices = [-1 if given is None and gpu is not None else _type(given) for given in contents.given]
    control[layout.DEVICE_TABLE] = writer.table(devices)
    declared = [f"declare void @{name}(ptr)" for name in dict.fromkeys(names)]
    thunks = shims.thunks_text([*writer.called])
    table = f"@control = internal constant {words_text(control)}"
    facts = f"@{FACTS} = constant {bytes_text(contents.facts().encode() + bytes(1))}"
    data = gpu.data if gpu is not None else ""
    program = "\n".join((*declared, thunks, data, *writer.definitions, table, facts, _OWN, cpuid_text()))
    objects = [emit(_own_code(gpu is not None), "", "").image, emit(program, "", "").image]
    objects += [emit(text, target.cpu, target.features).image for text in (gpu.modules if gpu is not None else ())]
    if cpu_names:
        objects.append(emit(kernels, target.cpu, target.features).image)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "library.so"
        needed = [*_TORCH, *(_CUDAS if gpu is not None else ())]
        link(objects, emit("", "", "").image, [FACTS, *container.EXPORTS], needed, made)
        if contents.constants:
            _append(made, contents.constants, places, size, mark)
        made.replace(path)


def _tell_of_gpu(writer: LibraryWriter, control: list[int], gpu: GpuCode, device: torch.device) -> None:
    """Writes down what `on_gpu` has to know."""
    control[layout.DEVICE], control[layout.DEVICE_INDEX] = _CUDA, device.index or 0
    control[layout.GPU_LOCK], control[layout.GPU_CONTEXT] = Label(LOCK), Label(CONTEXT)
    control[layout.GPU_IMAGE], control[layout.GPU_REGIONS] = Label(IMAGE), len(gpu.regions)
    control[layout.GPU_REGION_TABLE] = writer.table(
        [word for each in gpu.regions for word in (writer.text(each.name), Label(each.table), each.place)]
    )


@functools.cache
def _own_code(with_gpu: bool) -> str:
    """The code that every library has, or each `with_gpu`, as LLVM text."""
    sources = [inspect.getsource(module) for module in (runner, container, on_gpu if with_gpu else on_cpu)]
    externals = {**runner.EXTERNALS, **container.EXTERNALS, **(on_gpu.EXTERNALS if with_gpu else {})}
    text = translate(sources, (), externals, {"ops": instructions, "layout": layout})
    aliases = [f"@{name} = alias i64 (), ptr @{function.__name__}" for name, function in container.EXPORTS.items()]
    return "\n".join((text, *aliases))


def _type(given: TensorInput | None) -> int:
    """The type of an input's device."""
    return _CUDA if given is not None and given.type.device != CPU else 0


# ---- constants -------------------------------------------------------------------------------------------------------


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes from a tensor's first element to its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


def _memory(tensor: torch.Tensor) -> memoryview:
    """These bytes."""
    return memoryview((ctypes.c_char * _bytes(tensor)).from_address(tensor.data_ptr())).cast("B")


def _places(constants: Sequence[Constant]) -> tuple[list[int], int]:
    """Where the data of each constant begin, and the size of all: in front of them is a mark."""
    places, end = [], _ALIGNED
    for constant in constants:
        places.append(end)
        end += -(-_bytes(constant.tensor) // _ALIGNED) * _ALIGNED
    return places, -(-end // _PAGE) * _PAGE if constants else 0


def _mark(constants: Sequence[Constant]) -> int:
    """A word that tells these constants from others."""
    digest = hashlib.sha256()
    for constant in constants:
        digest.update(constant.name.encode())
        digest.update(_memory(constant.tensor)[: 1 << 16])
    return int.from_bytes(digest.digest()[:8], "little", signed=True)


def _records(writer: LibraryWriter, constants: Sequence[Constant], places: Sequence[int]) -> list[int]:
    """What the library knows of its constants, see `layout`."""
    words: list[int] = []
    for constant, place in zip(constants, places):
        tensor = constant.tensor
        words += (writer.text(constant.name), constant.kind, shims.code_of(tensor.dtype), tensor.dim())
        words += (writer.table(tensor.shape), writer.table(tensor.stride()), place, _bytes(tensor))
        words.append(_CUDA if constant.device != CPU else 0)
    return words


def _append(path: Path, constants: Sequence[Constant], places: Sequence[int], size: int, mark: int) -> None:
    with path.open("ab") as file:
        start = -(-file.tell() // _PAGE) * _PAGE
        file.truncate(start + size)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(mark.to_bytes(8, "little", signed=True))
        for constant, place in zip(constants, places):
            file.seek(start + place)
            file.write(_memory(constant.tensor))
