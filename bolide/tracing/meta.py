"""What is known of a traced value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import torch

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic import product

T = TypeVar("T")


class TensorMeta(NamedTuple):
    """Everything but the data of a tensor. Sizes, strides and offset count elements; they may be our `SymInt`s."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> Any:
        """The number of elements."""
        return product(self.shape)

    def is_small(self, most: int) -> bool:
        """Whether the sizes are numbers, and there are no more elements than `most`."""
        return all(size.__class__ is int for size in self.shape) and bool(self.numel <= most)


def found_in(value: object, cls: type[T]) -> list[T]:
    """The instances of a class in nested containers."""
    instances: list[T] = []
    _find((value,), cls, instances)
    return instances


def _find(values: Iterable[object], cls: type[T], instances: list[T]) -> None:
    for value in values:
        if isinstance(value, cls):
            instances.append(value)
        elif isinstance(value, (tuple, list)):
            _find(value, cls, instances)
        elif isinstance(value, dict):
            _find(value.values(), cls, instances)


_NUMBER = frozenset({int})


def is_symbolic(meta: TensorMeta) -> bool:
    """Whether a size, a stride or the offset is not a number."""
    return not _NUMBER.issuperset(map(type, (*meta[0], *meta[1], meta[2])))


WITHOUT_DATA = "The tensor has a non-zero number of elements, but its data is not allocated yet"
"""What C++ says that looks at the data of a traced tensor."""


class DataDependent(Unsupported):
    """An operation whose result (a number, a shape) depends on data, which do not exist while tracing."""

    def __init__(self, op: str, where: UserFrame | None = None, kind: str = "data_value") -> None:
        super().__init__(f"the result of {op} depends on the data of a tensor", where, kind=kind, operation=op)


def meta_of(real: torch.Tensor) -> TensorMeta:
    """The meta of a real tensor."""
    return TensorMeta(
        tuple(real.shape), real.stride(), real.storage_offset(), real.dtype, real.device, real.requires_grad
    )


def number_dtype(number: object, widest: bool = False) -> torch.dtype:
    """The dtype of the tensor that torch makes of a number; `widest`: whatever the default dtype is."""
    floating = torch.float64 if widest else torch.get_default_dtype()
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, complex):
        return floating.to_complex()
    return torch.int64 if isinstance(number, (int, torch.SymInt)) else floating
