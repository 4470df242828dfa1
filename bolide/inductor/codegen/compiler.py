"""From kernels to machine code in this process. Kernels that differ in names only are compiled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bolide.inductor.codegen.statements import kernel_code
from bolide.inductor.codegen.structure import Structure, structure_of
from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.ir.verify import verify
from bolide.inductor.machine import Machine, host_machine
from bolide.inductor.runtime.kernels import CompiledKernel
from bolide.support.caches import on_reset
from bolide.support.engine import Library, load
from bolide.support.locks import compiling

ENTRY = "kernel"


@dataclass(frozen=True, slots=True)
class _Code:
    """A kernel's machine code in this process."""

    text: str
    address: int
    library: Library


_known: dict[tuple[Machine, Structure], _Code] = {}


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine | None = None, sizes: Mapping[str, int] | None = None
) -> list[CompiledKernel]:
    """Machine code for `kernels`, in order. All that are new (equal ones count once) go through LLVM as one module.
    `sizes`: those of the call that they are made for, where those are known, for the check of accesses.
    `machine`: what runs them; this one, if none is given. May be called from any thread. Raises InvalidKernel for one
    that breaks a rule of loop IR, NotImplementedError for one that is not for the CPU."""
    for kernel in kernels:
        if kernel.device != CPU:
            raise NotImplementedError(f"kernel {kernel.name} is for {kernel.device}: kernels are made for the CPU only")
    machine = machine or host_machine()
    target = machine.target
    keys = [(machine, structure_of(kernel)) for kernel in kernels]
    with compiling:
        missing = {key: kernel for key, kernel in zip(keys, kernels) if key not in _known}
        if missing:
            for kernel in missing.values():
                verify(kernel, sizes)  # 40 µs; LLVM ends the process over text that it cannot make sense of
            parts = [_parts(kernel, machine) for kernel in missing.values()]
            names = [f"k{number}" for number in range(len(parts))]
            declared = {symbol: line for declarations, _ in parts for symbol, line in declarations.items()}
            functions = "\n".join(code.replace(f"@{ENTRY}", f"@{name}") for (_, code), name in zip(parts, names))
            library = load(_module(declared, functions), names, target.cpu, target.features)
            for key, part, name in zip(missing, parts, names):
                _known[key] = _Code(_module(*part), library.addresses[name], library)
        codes = [_known[key] for key in keys]
    return [
        CompiledKernel(kernel, code.address, code.text, target.cpu, target.features, code.library)
        for kernel, code in zip(kernels, codes)
    ]


@on_reset
def reset() -> None:
    """Forget what was compiled. Machine code is released with the last `CompiledKernel` that uses it."""
    with compiling:
        _known.clear()


def module_text(kernel: Kernel, machine: Machine) -> str:
    """A complete LLVM module for one kernel, whose entry is @kernel."""
    return _module(*_parts(kernel, machine))


def _parts(kernel: Kernel, machine: Machine) -> tuple[dict[str, str], str]:
    """What a kernel declares, by symbol, and its functions."""
    declarations: dict[str, str] = {}
    return declarations, kernel_code(kernel, ENTRY, machine, declarations)


def _module(declarations: dict[str, str], functions: str) -> str:
    return "\n".join((*declarations.values(), functions))
