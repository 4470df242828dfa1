"""What runs an Extern: the ATen operation itself, or a faster library call with the same result."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import torch


def function_of(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The function behind an overload, without the Python layers of the overload object."""
    return op._op


@functools.cache
def prefers_onednn() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than ATen's own choice, MKL: so on CPUs not made by Intel."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkl.is_available():
        return False
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "AuthenticAMD" in text
