"""From kernels to machine code in this process. Kernels that differ in names only are compiled once; those that any
process has compiled are loaded (docs/caches.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from types import ModuleType

import torch

from bolide.inductor.codegen.statements import kernel_code
from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.ir.structure import Structure, structure_of
from bolide.inductor.ir.verify import verify
from bolide.inductor.machine import Machine, Target, host_machine, machine_for
from bolide.inductor.runtime.kernels import Code, CompiledKernel, Place
from bolide.support import artifacts
from bolide.support.artifacts import Key
from bolide.support.caches import on_reset
from bolide.support.engine import assembly, load, load_known, target_names, with_stand_ins
from bolide.support.locks import compiling

ENTRY = "kernel"


_known: dict[tuple[Machine, Structure], Code] = {}
_loaded: dict[tuple[Target, Place], Code] = {}


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine | None = None, sizes: Mapping[str, int] | None = None
) -> list[CompiledKernel]:
    """Machine code for `kernels`, in order. All that are new (equal ones count once) go through LLVM as one module.
    `sizes`: those of the call that they are made for, where those are known, for the check of accesses.
    `machine`: what runs them, but for those of another device; this one, if none is given. May be called from any
    thread. Raises InvalidKernel for one that breaks a rule of loop IR."""
    machine = machine or host_machine()
    devices = dict.fromkeys([kernel.device for kernel in kernels])
    made: dict[int, CompiledKernel] = {}
    for device in devices:
        places = [place for place, kernel in enumerate(kernels) if kernel.device == device]
        compile_for = _on_cpu if device == CPU else _gpu().compile_kernels
        made.update(zip(places, compile_for([kernels[place] for place in places], _own(machine, device), sizes)))
    return [made[place] for place in range(len(kernels))]


def _own(machine: Machine, device: torch.device) -> Machine:
    """The machine of a device, in a graph that is made for another one, perhaps."""
    return machine if machine.device == device.type else machine_for(device)


def _gpu() -> ModuleType:
    """What compiles for GPUs, which most processes never do."""
    from bolide.inductor.codegen.cuda import compiler

    return compiler


def _on_cpu(kernels: Sequence[Kernel], machine: Machine, sizes: Mapping[str, int] | None) -> list[CompiledKernel]:
    keys = [(machine, structure_of(kernel)) for kernel in kernels]
    with compiling:
        missing = {key: kernel for key, kernel in zip(keys, kernels) if key not in _known}
        if missing:
            for kernel in missing.values():
                verify(
                    kernel, sizes, machine.most_local_bytes
                )  # 40 µs; LLVM ends the process over text that it cannot make sense of
            parts = [_parts(kernel, machine) for kernel in missing.values()]
            _known.update(zip(missing, _codes(parts, machine.target)))
        codes = [_known[key] for key in keys]
    return [_compiled(kernel, machine, code) for kernel, code in zip(kernels, codes)]


def load_places(places: Sequence[Place], machine: Machine) -> list[Code] | None:
    """The machine code that is kept at these places; None unless all of it is there."""
    with compiling:
        found = _kept(dict.fromkeys([place for place in places if not place.image]), _own(machine, CPU).target)
        if on_gpu := dict.fromkeys([place for place in places if place.image]):
            found.update(_gpu().load_places(on_gpu))
    return [found[place] for place in places] if found.keys() >= {*places} else None


def loaded_kernels(kernels: Sequence[Kernel], machine: Machine, codes: Sequence[Code]) -> list[CompiledKernel]:
    """The kernels whose machine code was loaded."""
    made = []
    for kernel, code in zip(kernels, codes):
        own = _own(machine, kernel.device)
        made.append(_gpu().compiled(kernel, own, code) if code.place.image else _compiled(kernel, own, code))
    return made


def places_of(kernels: Sequence[Kernel], machine: Machine) -> list[Place]:
    """Where the machine code of kernels is that this process has compiled."""
    known = [_known if kernel.device == CPU else _gpu().known for kernel in kernels]
    keys = [(_own(machine, kernel.device), structure_of(kernel)) for kernel in kernels]
    return [codes[key].place for codes, key in zip(known, keys)]


def modules_loaded() -> set[str]:
    """The digests of the modules whose kernels this process has loaded."""
    return {place.module for _, place in _loaded}


def _compiled(kernel: Kernel, machine: Machine, code: Code) -> CompiledKernel:
    target = machine.target
    text = partial(module_text, kernel, machine)

    def machine_text() -> str:
        return assembly(text(), target.cpu, target.features)

    return CompiledKernel(kernel, code.address, text, machine_text, code.home)


def _codes(parts: Sequence[_Parts], target: Target) -> list[Code]:
    """The machine code of kernels, whose functions are all called `ENTRY`: kept or new."""
    keys = [_kernel_key(_module(*part), target) for part in parts]
    places = [None if payload is None else _place(payload) for payload in map(artifacts.find, keys)]
    kept = _kept(dict.fromkeys(filter(None, places)), target)
    codes = [kept.get(place) if place is not None else None for place in places]
    new = [number for number, code in enumerate(codes) if code is None]
    if not new:
        return [code for code in codes if code is not None]
    text, names = _joined([parts[number] for number in new])
    library = load(text, names, target.cpu, target.features)
    for number, name in zip(new, names):
        place = Place(library.text, name)
        codes[number] = _loaded[target, place] = Code(place, library.addresses[name], library)
        artifacts.keep(keys[number], f"{place.module} {place.symbol}".encode())
    return [code for code in codes if code is not None]


def _place(payload: bytes) -> Place:
    module, symbol = payload.decode().split()
    return Place(module, symbol)


def _kept(places: Iterable[Place], target: Target) -> dict[Place, Code]:
    """The machine code at those of the places where there is some."""
    found = {place: _loaded[target, place] for place in places if (target, place) in _loaded}
    for module, wanted in groupby(sorted({*places} - found.keys()), lambda place: place.module):
        group = [*wanted]
        library = load_known(module, [place.symbol for place in group], target.cpu, target.features)
        if library is not None:
            for place in group:
                found[place] = _loaded[target, place] = Code(place, library.addresses[place.symbol], library)
    return found


def _kernel_key(text: str, target: Target) -> Key:
    names = {"text": artifacts.digest_of(with_stand_ins(text)), **target_names(target.cpu, target.features)}
    return Key("kernels", names)


def module_of(
    kernels: Sequence[Kernel], machine: Machine, sizes: Mapping[str, int] | None = None
) -> tuple[str, list[str]]:
    """One LLVM module with the code of all `kernels`, which are for the CPU (of equal ones, one), and the name of each
    one's entry. Raises as `compile_kernels` does."""
    different, places = different_of(kernels, machine, sizes)
    text, names = _joined([_parts(kernel, machine) for kernel in different])
    return text, [names[place] for place in places]


def different_of(
    kernels: Sequence[Kernel], machine: Machine, sizes: Mapping[str, int] | None
) -> tuple[list[Kernel], list[int]]:
    """The kernels that differ in more than names, verified; and the place among these of each of `kernels`, or of its
    equal."""
    structures = [structure_of(kernel) for kernel in kernels]
    different: dict[Structure, Kernel] = {}
    for structure, kernel in zip(structures, kernels):
        different.setdefault(structure, kernel)
    for kernel in different.values():
        verify(kernel, sizes, machine.most_local_bytes)
    places = {structure: place for place, structure in enumerate(different)}
    return [*different.values()], [places[structure] for structure in structures]


_Parts = tuple[dict[str, str], str]
"""What a kernel declares, by symbol, and its functions."""


def _joined(parts: Sequence[_Parts]) -> tuple[str, list[str]]:
    """One module of several kernels, and the names of their entries."""
    names = [f"k{number}" for number in range(len(parts))]
    declared = {symbol: line for declarations, _ in parts for symbol, line in declarations.items()}
    functions = "\n".join(code.replace(f"@{ENTRY}", f"@{name}") for name, (_, code) in zip(names, parts))
    return _module(declared, functions), names


@on_reset
def reset() -> None:
    """Forget what was compiled. Machine code is released with the last `CompiledKernel` that uses it."""
    with compiling:
        _known.clear()
        _loaded.clear()


def module_text(kernel: Kernel, machine: Machine) -> str:
    """A complete LLVM module for one kernel, whose entry is @kernel."""
    return _module(*_parts(kernel, machine))


def _parts(kernel: Kernel, machine: Machine) -> _Parts:
    declarations: dict[str, str] = {}
    return declarations, kernel_code(kernel, ENTRY, machine, declarations)


def _module(declarations: dict[str, str], functions: str) -> str:
    return "\n".join((*declarations.values(), functions))
