"""Loop IR to machine code, by way of LLVM."""

from bolide.inductor.codegen.compiler import compile_kernels
from bolide.inductor.codegen.target import Target, host_target

__all__ = ["Target", "compile_kernels", "host_target"]
