"""Tracing: tensors without data whose operations are recorded, already functional, in one graph."""

from bolide.support.errors import UserFrame
from bolide.tracing.isolation import keep_dynamo_out, without_wrapper
from bolide.tracing.meta import DataDependent, TensorMeta
from bolide.tracing.numbers.scalars import TracedFloat
from bolide.tracing.tensor import (
    STANDS_FOR,
    AliasGroup,
    TracedTensor,
    computes_itself,
    is_mask,
    is_stand_in,
    masked_among,
    unmasked,
)
from bolide.tracing.trace import Trace

__all__ = [
    "STANDS_FOR",
    "AliasGroup",
    "DataDependent",
    "TensorMeta",
    "Trace",
    "TracedFloat",
    "TracedTensor",
    "UserFrame",
    "computes_itself",
    "is_mask",
    "is_stand_in",
    "keep_dynamo_out",
    "masked_among",
    "unmasked",
    "without_wrapper",
]
