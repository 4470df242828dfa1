"""Lowering: functional ATen graphs to definitions (`ir.definitions`).

One module per family of ops; each registers its lowerings."""

from bolide.inductor.lowering import (  # noqa: F401
    activations,
    factories,
    indexing,
    norms,
    pointwise,
    pooling,
    reductions,
    shapes,
    softmax_losses,
    views,
)
from bolide.inductor.lowering.context import lower
from bolide.inductor.lowering.registry import LOWERINGS

__all__ = ["LOWERINGS", "lower"]
