"""LLVM IR text to PTX."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from bolide.inductor.machine import Target
from bolide.support.locks import compiling

if TYPE_CHECKING:
    from llvmlite.binding import TargetMachine

#: The intrinsics that LLVM can select for NVIDIA GPUs, where any other one ends the process, and CUDA's own function.
ALLOWED = re.compile(
    r"__assertfail|llvm\.(?:"
    r"nvvm\.(?:read\.ptx\.sreg\.(?:tid|ctaid)\.x|shfl\.sync\.(?:bfly|idx)\.i32|bar\.warp\.sync"
    r"|barrier\.cta\.sync\.aligned\.all|ex2\.approx\.ftz\.f32|rcp\.approx\.ftz\.f)"
    r"|(?:fma|fmuladd|fabs|sqrt|floor|ceil|trunc|roundeven|copysign)\.(?:v\d+)?f(?:32|64)|(?:(?:min|max)imum|exp2)\.(?:v\d+)?f32"
    r"|[su](?:min|max)\.(?:v\d+)?i(?:32|64)|vector\.reduce\.or\.v\d+i1)"
)
_DECLARED = re.compile(r"^declare [^@]*@([\w.$]+)\(", re.MULTILINE)


def ptx_of(text: str, target: Target) -> str:
    """The PTX of a module (`gpu_module`). ValueError for a module that calls functions that are not there: LLVM would
    end the process, or leave the call to a driver that refuses it."""
    unknown = [name for name in _DECLARED.findall(text) if ALLOWED.fullmatch(name) is None]
    if unknown:
        raise ValueError(f"code for a GPU calls {', '.join(unknown)}, which GPUs do not have")
    import llvmlite.binding as llvm

    with compiling:
        machine = _machine(target)
        module = llvm.parse_assembly(f'target datalayout = "{machine.target_data}"\n{text}')
        module.verify()
        return str(machine.emit_assembly(module))


@functools.cache
def _machine(target: Target) -> TargetMachine:
    """LLVM's target machine for a GPU."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    kind = llvm.Target.from_triple(target.triple)
    return kind.create_target_machine(cpu=target.cpu, features=target.features, opt=3)
