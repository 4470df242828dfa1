"""Loop IR to machine code, by way of LLVM."""

from bolide.inductor.codegen.compiler import compile_kernels

__all__ = ["compile_kernels"]
