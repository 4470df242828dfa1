"""What runs an Extern: the ATen operation itself, or a faster library call with the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def function_of(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The function behind an overload, without the Python layers of the overload object."""
    return op._op
