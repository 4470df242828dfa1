"""What a bug report needs to know of the machine."""

from __future__ import annotations

import importlib.metadata
import platform

import torch


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # it runs from its sources
        return "not installed as a package"


def info() -> dict[str, str]:
    """Names and values: versions, processor, threads, libraries found."""
    import llvmlite.binding as llvm

    features = [name for name, there in llvm.get_host_cpu_features().items() if there]
    return {
        "bolide": _version("bolide"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "llvmlite": _version("llvmlite"),
        "LLVM": ".".join(map(str, llvm.llvm_version_info)),
        "system": platform.platform(),
        "processor": llvm.get_host_cpu_name(),
        "vector extensions": ", ".join(f for f in sorted(features) if f.startswith(("avx", "amx", "sve", "neon"))),
        "torch's vector level": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "oneDNN": "yes" if torch._C._has_mkldnn else "no",
        "MKL": "yes" if torch._C.has_mkl else "no",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
