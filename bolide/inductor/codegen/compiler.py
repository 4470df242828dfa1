"""From kernels to machine code in this process. Kernels of equal text are compiled once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bolide.inductor.codegen.emit import emit_kernel
from bolide.inductor.codegen.target import Target, host_target
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.runtime.engine import Library, load
from bolide.inductor.runtime.kernels import CompiledKernel

ENTRY = "kernel"
_known: dict[tuple[Target, str], tuple[int, Library]] = {}
_lock = threading.Lock()


def compile_kernels(kernels: Sequence[Kernel], target: Target | None = None) -> list[CompiledKernel]:
    """Machine code for `kernels`, in order. All that are new go through LLVM as one module; this may run in any
    thread.
    """
    target = target or host_target()
    texts = [module_text(kernel, target) for kernel in kernels]
    with _lock:
        missing = list(dict.fromkeys(text for text in texts if (target, text) not in _known))
        if missing:
            names = [f"k{number}" for number in range(len(missing))]
            library = load(_joined(missing, names), names, target.cpu, target.features)
            for name, text in zip(names, missing):
                _known[target, text] = (library.addresses[name], library)
        found = [_known[target, text] for text in texts]
    return [
        CompiledKernel(kernel, address, text, target.cpu, target.features, library)
        for kernel, text, (address, library) in zip(kernels, texts, found)
    ]


def reset() -> None:
    """Forget what was compiled. Machine code is released with the last `CompiledKernel` that uses it."""
    with _lock:
        _known.clear()


def module_text(kernel: Kernel, target: Target) -> str:
    """A complete LLVM module for one kernel, whose entry is @kernel: declarations, one a line, then functions."""
    declarations: dict[str, str] = {}
    functions = emit_kernel(kernel, ENTRY, target, declarations)
    return "\n".join((*declarations.values(), functions))


def _joined(texts: Sequence[str], names: Sequence[str]) -> str:
    """One module from many: every kernel gets its own name, and what several declare is declared once."""
    declared: dict[str, None] = {}
    functions = []
    for text, name in zip(texts, names):
        head, _, rest = ("\n" + text).partition("\ndefine ")
        declared.update(dict.fromkeys(line for line in head.split("\n") if line))
        functions.append("define " + rest.replace(f"@{ENTRY}", f"@{name}"))
    return "\n".join((*declared, *functions))
