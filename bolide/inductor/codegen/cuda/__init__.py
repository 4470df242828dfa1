"""Loop IR to code for NVIDIA GPUs."""

from bolide.inductor.codegen.cuda.kernels import Launch, gpu_module
from bolide.inductor.codegen.cuda.operations import supported
from bolide.inductor.codegen.cuda.ptx import ptx_of

__all__ = ["Launch", "gpu_module", "ptx_of", "supported"]
