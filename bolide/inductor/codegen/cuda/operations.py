"""Which scalar operations a GPU computes."""

from __future__ import annotations

import torch

from bolide.inductor.codegen import math32
from bolide.inductor.codegen.instructions import REGISTER
from bolide.inductor.codegen.math_calls import MATH_CALLS
from bolide.inductor.ir.scalar_ops import SCALAR_OPS

#: Of floats, they take a remainder, which is a function of the C library.
_WITH_REST = frozenset(("floordiv", "mod", "fmod"))
_CALLS = frozenset(MATH_CALLS) | {"sigmoid", "erf_plus_1"}


def supported(op: str, dtype: torch.dtype) -> bool:
    """Whether a GPU computes an operation on operands of this dtype: those that take no function of a library."""
    if op not in SCALAR_OPS or dtype not in REGISTER or op == "philox_normal":
        return False
    if op in _WITH_REST:
        return not dtype.is_floating_point
    if op not in _CALLS:
        return True
    return dtype == torch.float32 and (op in math32.WITHOUT_CALLS or op == "erf_plus_1")
