"""From kernels to machine code in this process. Kernels that differ in names only are compiled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bolide.inductor.codegen.statements import kernel_code
from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.ir.structure import Structure, structure_of
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
    _refuse_others(kernels)
    machine = machine or host_machine()
    target = machine.target
    keys = [(machine, structure_of(kernel)) for kernel in kernels]
    with compiling:
        missing = {key: kernel for key, kernel in zip(keys, kernels) if key not in _known}
        if missing:
            text, parts = _joined([*missing.values()], machine, sizes)
            names = [*parts]
            library = load(text, names, target.cpu, target.features)
            for key, (name, part) in zip(missing, parts.items()):
                _known[key] = _Code(_module(*part), library.addresses[name], library)
        codes = [_known[key] for key in keys]
    return [
        CompiledKernel(kernel, code.address, code.text, target.cpu, target.features, code.library)
        for kernel, code in zip(kernels, codes)
    ]


def module_of(
    kernels: Sequence[Kernel], machine: Machine, sizes: Mapping[str, int] | None = None
) -> tuple[str, list[str]]:
    """One LLVM module with the code of all `kernels` (of equal ones, one), and the name of each one's entry. Raises as
    `compile_kernels` does."""
    _refuse_others(kernels)
    structures = [structure_of(kernel) for kernel in kernels]
    different: dict[Structure, Kernel] = {}
    for structure, kernel in zip(structures, kernels):
        different.setdefault(structure, kernel)
    text, parts = _joined([*different.values()], machine, sizes)
    names = dict(zip(different, parts))
    return text, [names[structure] for structure in structures]


_Parts = tuple[dict[str, str], str]
"""What a kernel declares, by symbol, and its functions."""


def _refuse_others(kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:
        if kernel.device != CPU:
            raise NotImplementedError(f"kernel {kernel.name} is for {kernel.device}: kernels are made for the CPU only")


def _joined(
    kernels: Sequence[Kernel], machine: Machine, sizes: Mapping[str, int] | None
) -> tuple[str, dict[str, _Parts]]:
    """One module, and the parts of each kernel in it by the name of its entry."""
    for kernel in kernels:
        verify(kernel, sizes)  # 40 µs; LLVM ends the process over text that it cannot make sense of
    parts = {f"k{number}": _parts(kernel, machine) for number, kernel in enumerate(kernels)}
    declared = {symbol: line for declarations, _ in parts.values() for symbol, line in declarations.items()}
    functions = "\n".join(code.replace(f"@{ENTRY}", f"@{name}") for name, (_, code) in parts.items())
    return _module(declared, functions), parts


@on_reset
def reset() -> None:
    """Forget what was compiled. Machine code is released with the last `CompiledKernel` that uses it."""
    with compiling:
        _known.clear()


def module_text(kernel: Kernel, machine: Machine) -> str:
    """A complete LLVM module for one kernel, whose entry is @kernel."""
    return _module(*_parts(kernel, machine))


def _parts(kernel: Kernel, machine: Machine) -> _Parts:
    declarations: dict[str, str] = {}
    return declarations, kernel_code(kernel, ENTRY, machine, declarations)


def _module(declarations: dict[str, str], functions: str) -> str:
    return "\n".join((*declarations.values(), functions))
