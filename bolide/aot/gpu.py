"""The kernels of a GPU in a library: the device's machine code as data, and for each kernel a host function with its
table, whose addresses the dynamic linker fills in, and the rest `on_gpu` when a container is made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bolide.inductor.codegen.compiler import different_of
from bolide.inductor.codegen.cuda.host import host_text
from bolide.inductor.codegen.cuda.kernels import Launch, gpu_module
from bolide.inductor.codegen.cuda.ptx import ptx_of
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.machine import Machine, Target
from bolide.inductor.runtime.cuda.driver_api import image_of
from bolide.inductor.runtime.cuda.host import ENTRY, FUNCTIONS, TABLE
from bolide.support.native.translate import bytes_text

_KNOWN = (
    *("cuLaunchKernel", "cuCtxSetCurrent", "aoti_torch_get_current_cuda_stream"),
    *("", "bolide_error", "cuCtxGetCurrent"),
)
"""What the first words of a kernel's table are (`runtime.cuda.host`); the fourth is the context."""

IMAGE, LOCK, CONTEXT = "bolide_image", "bolide_lock", "bolide_context"


@dataclass(frozen=True)
class Region:
    """A function of the device, and where its handle belongs: in a table, at a place."""

    name: str
    table: str
    place: int


@dataclass(frozen=True)
class GpuCode:
    """The modules of host functions, what these are called, by kernel, the data, and the device's functions."""

    modules: tuple[str, ...]
    names: tuple[str, ...]
    data: str
    regions: tuple[Region, ...]


def code_of(
    kernels: Sequence[Kernel], machine: Machine, device: torch.device, host: Target, sizes: Mapping[str, int]
) -> GpuCode:
    """The code of a GPU's kernels. `host`: the CPU that launches them."""
    different, places = different_of(kernels, machine, sizes)
    text, launches = gpu_module(different, machine)
    index = device.index or 0
    image = image_of(ptx_of(text, machine.target).encode(), index)
    modules, regions = [], []
    for number, (kernel, own) in enumerate(zip(different, launches)):
        modules.append(_host(host_text(kernel, own, index, host), number, own))
        regions += [Region(launch.symbol, f"gpu_table{number}", FUNCTIONS + at) for at, launch in enumerate(own)]
    tables = [f"@gpu_table{number} = external hidden global i64" for number in range(len(different))]
    data = "\n".join(
        (
            *tables,
            f"@{IMAGE} = internal constant {bytes_text(image + bytes(1))}, align 64",
            f"@{LOCK} = internal global [8 x i64] zeroinitializer, align 8",
            f"@{CONTEXT} = internal global i64 0, align 8",
            "@bolide_error = hidden global i64 0, align 8",
        )
    )
    return GpuCode(tuple(modules), tuple([f"gpu_kernel{place}" for place in places]), data, tuple(regions))


def _host(text: str, number: int, launches: Sequence[Launch]) -> str:
    """The module of a host function under a name of its own, with addresses in its table."""
    words = [f"i64 ptrtoint (ptr @{name} to i64)" if name else "i64 0" for name in _KNOWN]
    words += ["i64 0"] * len(launches)
    named = re.sub(rf"@{ENTRY}\b", f"@gpu_kernel{number}", re.sub(rf"@{TABLE}\b", f"@gpu_table{number}", text))
    hidden = named.replace("= global", "= hidden global", 1).replace("define i64", "define hidden i64", 1)
    table = hidden.replace("zeroinitializer", f"[{', '.join(words)}]", 1)
    functions = [f"declare i32 @{name}()" for name in _KNOWN if name and name != "bolide_error"]
    return "\n".join((*functions, "@bolide_error = external hidden global i64", table))
