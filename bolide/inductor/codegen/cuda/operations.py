"""Which scalar operations a GPU computes."""

from __future__ import annotations

import torch

from bolide.inductor.codegen.functions import inline_function
from bolide.inductor.codegen.instructions import REGISTER
from bolide.inductor.codegen.math_calls import ELEMENTARY
from bolide.inductor.ir.scalar_ops import SCALAR_OPS


def supported(op: str, dtype: torch.dtype) -> bool:
    """Whether a GPU computes an operation on operands of this dtype."""
    if op not in SCALAR_OPS or dtype not in REGISTER:
        return False
    if op not in ELEMENTARY or not dtype.is_floating_point:  # the rest of integers is an instruction
        return True
    return inline_function(op, REGISTER[dtype]) is not None
