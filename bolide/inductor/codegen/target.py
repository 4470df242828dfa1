"""What code generation must know of a machine: one table row per instruction-set level."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU. `vector_bits`: width of its registers. `sleef_f32`, `sleef_f64`: lanes of the Sleef functions that suit
    it (0: call the C library lane by lane). `scales`: has an instruction for x · 2^n."""

    name: str
    cpu: str
    features: str
    vector_bits: int
    sleef_f32: int
    sleef_f64: int
    scales: bool

    @property
    def attributes(self) -> str:
        """Function attributes: keeps LLVM from splitting vectors of the full width on CPUs whose tuning prefers
        narrower ones."""
        bits = self.vector_bits
        return f'nounwind "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}"'


#: (feature the host must have, name, register bits, Sleef lanes for float32 and float64, scales); the first that fits
#: is taken.
LEVELS = (
    ("avx512f", "avx512", 512, 16, 8, True),
    ("avx2", "avx2", 256, 8, 4, False),
    ("", "generic", 128, 0, 0, False),
)


@functools.cache
def host_target() -> Target:
    """The machine this process runs on."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    _, name, bits, f32, f64, scales = next(level for level in LEVELS if not level[0] or features.get(level[0]))
    return Target(name, llvm.get_host_cpu_name(), features.flatten(), bits, f32, f64, scales)
