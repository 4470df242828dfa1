"""From kernels for a GPU to what launches them in this process. What the driver makes of PTX is kept, with its version
in the key."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from bolide.inductor.codegen.cuda.host import host_text
from bolide.inductor.codegen.cuda.kernels import gpu_module
from bolide.inductor.codegen.cuda.ptx import ptx_of
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.structure import Structure, structure_of
from bolide.inductor.ir.verify import verify
from bolide.inductor.machine import Machine, Target, host_target
from bolide.inductor.runtime.cuda.driver_api import Module, driver_version, entries, image_of
from bolide.inductor.runtime.cuda.host import ENTRY, TABLE, Host, bound
from bolide.inductor.runtime.kernels import Code, CompiledKernel, Place
from bolide.support import artifacts
from bolide.support.artifacts import Key
from bolide.support.caches import on_reset
from bolide.support.engine import Library, load, load_known, target_names
from bolide.support.locks import compiling

known: dict[tuple[Machine, Structure], Code] = {}
"""What this process has compiled."""
_loaded: dict[Place, Code] = {}
_modules: dict[tuple[str, int], Module] = {}


def compile_kernels(
    kernels: Sequence[Kernel], machine: Machine, sizes: Mapping[str, int] | None = None
) -> list[CompiledKernel]:
    """Kernels of one GPU, in order; new ones are loaded there, each as a module. See `compiler.compile_kernels`;
    RuntimeError if the driver refuses the code."""
    keys = [(machine, structure_of(kernel)) for kernel in kernels]
    with compiling:
        missing = {key: kernel for key, kernel in zip(keys, kernels) if key not in known}
        for kernel in missing.values():
            verify(kernel, sizes, machine.most_local_bytes)
        if missing:
            known.update(zip(missing, _codes([*missing.values()], machine)))
        codes = [known[key] for key in keys]
    return [compiled(kernel, machine, code) for kernel, code in zip(kernels, codes)]


def compiled(kernel: Kernel, machine: Machine, code: Code) -> CompiledKernel:
    """A kernel with its code."""
    text = partial(_text, kernel, machine)

    def ptx() -> str:
        return ptx_of(text(), machine.target)

    return CompiledKernel(kernel, code.address, text, ptx, code.home, code.raise_error)


def load_places(places: Iterable[Place]) -> dict[Place, Code]:
    """The code at those of the places where there is some; its device is there."""
    target = host_target()
    for place in places:
        image = None if place in _loaded else artifacts.find_place(("images", place.image))
        library = image and load_known(place.module, (ENTRY, TABLE), target.cpu, target.features)
        if image and library:
            with contextlib.suppress(RuntimeError):  # the driver's: it was made for another GPU
                _loaded[place] = _code(place, library, _module(place.image, image.payload, place.device))
    return {place: _loaded[place] for place in places if place in _loaded}


def _codes(kernels: Sequence[Kernel], machine: Machine) -> list[Code]:
    """The code of kernels that are new here. While the driver makes machine code of some, in threads of its own, LLVM
    writes the next ones'."""
    device, target = kernels[0].device.index or 0, host_target()
    entries(device)
    parts: list[tuple[Key, Library, str, bytes | Future[bytes]]] = []
    with ThreadPoolExecutor(min(len(kernels), os.cpu_count() or 1), "bolide driver") as threads:
        for kernel in kernels:
            text, (launches,) = gpu_module([kernel], machine)
            key = _image_key(text, machine.target)
            image: bytes | Future[bytes] | None = artifacts.find(key)
            if image is None:
                image = threads.submit(image_of, ptx_of(text, machine.target).encode(), device)
            library = load(host_text(kernel, launches, device, target), (ENTRY, TABLE), target.cpu, target.features)
            parts.append((key, library, " ".join([launch.symbol for launch in launches]), image))
    codes = []
    for key, library, regions, image in parts:
        if isinstance(image, Future):
            image = image.result()
            artifacts.keep(key, image)
        place = Place(library.text, ENTRY, key.digest, regions, device)
        codes.append(_code(place, library, _module(key.digest, image, device)))
    return codes


def _image_key(text: str, target: Target) -> Key:
    names = {**target_names(target.cpu, target.features), "target": target.triple, "driver": driver_version()}
    return Key("images", {"text": artifacts.digest_of(text), **names})


def _module(digest: str, image: bytes, device: int) -> Module:
    """The device's code, loaded once."""
    if (digest, device) not in _modules:
        _modules[digest, device] = Module(image, device)
    return _modules[digest, device]


def _code(place: Place, library: Library, module: Module) -> Code:
    own = entries(place.device)
    host: Host = bound(library, module.functions(place.regions.split()), module, own)
    return Code(place, host.address, host, own.raise_error)


def _text(kernel: Kernel, machine: Machine) -> str:
    """The module of one kernel."""
    return gpu_module([kernel], machine)[0]


@on_reset
def reset() -> None:
    """Forget what was compiled. Code is released with the last `CompiledKernel` that uses it."""
    with compiling:
        known.clear()
        _loaded.clear()
        _modules.clear()
