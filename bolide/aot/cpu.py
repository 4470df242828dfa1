"""The CPUs that a library is for: what its code needs of them is checked when it is loaded."""

from __future__ import annotations

import platform
from typing import NamedTuple

from bolide.inductor.machine import Target, target_of


class Need(NamedTuple):
    """A feature of a CPU, by LLVM's name, and where `cpuid` tells of it: leaf, subleaf, register (eax, ebx, ecx, edx),
    bit. Leaf -1: what the system saves of the registers (``xgetbv``)."""

    name: str
    leaf: int
    subleaf: int
    register: int
    bit: int


_NEEDS = (
    *(Need("sse3", 1, 0, 2, 0), Need("ssse3", 1, 0, 2, 9), Need("sse4.1", 1, 0, 2, 19), Need("sse4.2", 1, 0, 2, 20)),
    *(Need("popcnt", 1, 0, 2, 23), Need("movbe", 1, 0, 2, 22), Need("fma", 1, 0, 2, 12), Need("f16c", 1, 0, 2, 29)),
    *(Need("avx", 1, 0, 2, 28), Need("avx2", 7, 0, 1, 5), Need("bmi", 7, 0, 1, 3), Need("bmi2", 7, 0, 1, 8)),
    *(Need("lzcnt", 0x80000001, 0, 2, 5), Need("avxvnni", 7, 1, 0, 4)),
    *(Need("avx512f", 7, 0, 1, 16), Need("avx512dq", 7, 0, 1, 17), Need("avx512cd", 7, 0, 1, 28)),
    *(Need("avx512bw", 7, 0, 1, 30), Need("avx512vl", 7, 0, 1, 31), Need("avx512vnni", 7, 0, 2, 11)),
)
"""What code is generated for, if the machine that it is made on has it: those that x86-64-v3 and v4 have, and products
of 8-bit and 16-bit numbers. Others are left out, so that a library runs on more machines."""

_SAVED = {"avx": 2, "avx512f": 7}
"""Which bit tells that the system saves the registers for a feature."""
_OSXSAVE = Need("xsave", 1, 0, 2, 27)
"""Without it there is no ``xgetbv``."""

_CPUID = """define hidden i64 @bolide_cpuid(i64 %leaf, i64 %subleaf, i64 %register) {
  %saved = icmp eq i64 %leaf, -1
  br i1 %saved, label %xgetbv, label %cpuid
xgetbv:
  %low = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %word = extractvalue { i32, i32 } %low, 0
  %mask = zext i32 %word to i64
  ret i64 %mask
cpuid:
  %a = trunc i64 %leaf to i32
  %c = trunc i64 %subleaf to i32
  %all = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
    "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 %a, i32 %c)
  %ax = extractvalue { i32, i32, i32, i32 } %all, 0
  %bx = extractvalue { i32, i32, i32, i32 } %all, 1
  %cx = extractvalue { i32, i32, i32, i32 } %all, 2
  %dx = extractvalue { i32, i32, i32, i32 } %all, 3
  %is0 = icmp eq i64 %register, 0
  %is1 = icmp eq i64 %register, 1
  %is2 = icmp eq i64 %register, 2
  %one = select i1 %is2, i32 %cx, i32 %dx
  %two = select i1 %is1, i32 %bx, i32 %one
  %three = select i1 %is0, i32 %ax, i32 %two
  %answer = zext i32 %three to i64
  ret i64 %answer
}"""
_NO_CPUID = """define hidden i64 @bolide_cpuid(i64 %leaf, i64 %subleaf, i64 %register) {
  ret i64 0
}"""


def library_target() -> tuple[Target, tuple[Need, ...]]:
    """What code is generated for: as much of this machine's CPU as can be checked on another; and what is to be
    checked."""
    import llvmlite.binding as llvm

    if not _is_x86():
        return target_of("", {}), ()
    known = llvm.get_host_cpu_features()
    needs = [need for need in _NEEDS if known.get(need.name)]
    checked = [_OSXSAVE] if any(need.name == "avx" for need in needs) else []
    for need in needs:
        checked.append(need)
        if need.name in _SAVED:
            checked.append(Need(f"{need.name} (saved by the system)", -1, 0, 0, _SAVED[need.name]))
    return target_of("x86-64", {need.name: True for need in needs}), tuple(checked)


def cpuid_text() -> str:
    """The function that asks the CPU, as LLVM text."""
    return _CPUID if _is_x86() else _NO_CPUID


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")
