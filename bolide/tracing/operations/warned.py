"""Operations whose kernels warn: what is recorded is warned of while tracing."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from bolide.tracing.operations.handlers import functional, handler
from bolide.tracing.rules.common import wrap_dim

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace


@handler("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _statistics(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """Eager warns of too few elements, in the kernel."""
    given = dict(zip(("self", "dim"), args)) | kwargs
    shape, dims, correction = args[0].shape, given.get("dim"), kwargs.get("correction")
    counted = [shape[wrap_dim(dim, len(shape))] for dim in dims] if dims and shape else [*shape]
    if all(size.__class__ is int for size in counted):
        count = math.prod(counted)
        if 0 not in shape and count <= (1 if correction is None else correction):
            warnings.warn(
                f"{func._opname}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction "
                "factor (input numel divided by output numel).",
                stacklevel=1,
            )
    return functional(trace, func, args, kwargs)
