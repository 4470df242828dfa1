"""From kernels for a GPU to what launches them in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from bolide.inductor.codegen.cuda.host import host_text
from bolide.inductor.codegen.cuda.kernels import gpu_module
from bolide.inductor.codegen.cuda.ptx import ptx_of
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.structure import Structure, structure_of
from bolide.inductor.ir.verify import verify
from bolide.inductor.machine import Machine, host_target
from bolide.inductor.runtime.cuda.driver_api import Module, entries
from bolide.inductor.runtime.cuda.host import Host, host_of
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.support.caches import on_reset
from bolide.support.locks import compiling

_known: dict[tuple[Machine, Structure], Host] = {}


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine, sizes: Mapping[str, int] | None = None
) -> list[CompiledKernel]:
    """Kernels of one GPU, in order; all that are new are loaded there as one module. See `compiler.compile_kernels`;
    RuntimeError if the driver refuses the code."""
    keys = [(machine, structure_of(kernel)) for kernel in kernels]
    with compiling:
        missing = {key: kernel for key, kernel in zip(keys, kernels) if key not in _known}
        for kernel in missing.values():
            verify(kernel, sizes, machine.most_local_bytes)
        if missing:
            _known.update(zip(missing, _hosts([*missing.values()], machine)))
        hosts = [_known[key] for key in keys]
    return [_compiled(kernel, machine, host) for kernel, host in zip(kernels, hosts)]


def _hosts(kernels: Sequence[Kernel], machine: Machine) -> list[Host]:
    """The host functions of kernels."""
    text, launches = gpu_module(kernels, machine)
    device = kernels[0].device.index or 0
    module = Module(ptx_of(text, machine.target).encode(), device)
    made = []
    for kernel, own in zip(kernels, launches):
        handles = module.functions([launch.symbol for launch in own])
        made.append(host_of(host_text(kernel, own, device, host_target()), handles, module, entries(device)))
    return made


def _compiled(kernel: Kernel, machine: Machine, host: Host) -> CompiledKernel:
    text = partial(_text, kernel, machine)

    def ptx() -> str:
        return ptx_of(text(), machine.target)

    return CompiledKernel(kernel, host.address, text, ptx, host, entries(kernel.device.index or 0).raise_error)


def _text(kernel: Kernel, machine: Machine) -> str:
    """The module of one kernel."""
    return gpu_module([kernel], machine)[0]


on_reset(_known.clear)
