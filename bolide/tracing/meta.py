"""What is known of a traced value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic import product, same_size, times

T = TypeVar("T")


class TensorMeta(NamedTuple):
    """Everything but the data of a tensor. Sizes, strides and offset count elements; they are ints, or `torch.SymInt`s
    over our own nodes."""

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


def found_in(value: Any, cls: type[T]) -> list[T]:
    """The instances of a class in nested containers."""
    found: list[T] = []
    _find((value,), cls, found)
    return found


def _find(values: Iterable[Any], cls: type[T], found: list[T]) -> None:
    for value in values:
        if isinstance(value, cls):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _find(value, cls, found)
        elif isinstance(value, dict):
            _find(value.values(), cls, found)


_NUMBER = frozenset({int})


def is_symbolic(meta: TensorMeta) -> bool:
    """Whether a size, a stride or the offset is not a number."""
    return not _NUMBER.issuperset(map(type, (*meta[0], *meta[1], meta[2])))


class DataDependent(Unsupported):
    """An operation whose result (a Python number, a shape) depends on the tensors' data, which do not exist while
    tracing."""

    def __init__(self, op: str, where: UserFrame | None = None, kind: str = "data_value") -> None:
        super().__init__(f"the result of {op} depends on the data of a tensor", where, kind=kind, operation=op)


def meta_of(real: torch.Tensor) -> TensorMeta:
    """The meta of a real tensor."""
    return TensorMeta(
        tuple(real.shape), real.stride(), real.storage_offset(), real.dtype, real.device, real.requires_grad
    )


def contiguous_strides(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Row-major strides, as torch computes them: a size of 0 counts as 1."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape[1:]):
        strides.append(step)
        step = times(step, or_one(size))
    strides.reverse()
    return (step, *strides) if shape else ()


def or_one(size: Any) -> Any:
    """A size, or 1 if it is 0, which is guarded where that is not known."""
    if size.__class__ is int:
        return size if size > 1 else 1
    return 1 if is_zero(size) else size


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether these are the same sizes (or strides) for all values of the symbols in them; adds no guard."""
    return a is b or (len(a) == len(b) and all(map(same_size, a, b)))


def is_one(size: Any) -> bool:
    """Whether a size is 1; guarded where that is not known. One that is data is taken not to be."""
    if size.__class__ is int:
        return bool(size == 1)
    node = size.node
    least = node.expr.bounds()[0]
    if least is not None and least > 1:
        return False
    return bool(node.env.surely(node.expr.eq(1)))


def is_zero(size: Any) -> bool:
    """Whether a size is 0; as `is_one`."""
    if size.__class__ is int:
        return bool(size == 0)
    node = size.node
    least = node.expr.bounds()[0]
    if least is not None and least > 0:
        return False
    return bool(node.env.surely(node.expr.eq(0)))


def is_data(size: Any) -> bool:
    """Whether the value of a size is data."""
    return size.__class__ is torch.SymInt and size.node.env.is_data(size.node.expr)


def is_undecided(condition: Any) -> bool:
    """Whether a truth value depends on data."""
    return condition.__class__ is torch.SymBool and not condition.node.has_hint()


def hint_of(size: Any) -> int:
    """The value of a size in the run that is being traced; asking adds no guard."""
    return int(size if size.__class__ is int else size.node.hint)


def number_dtype(number: Any, widest: bool = False) -> torch.dtype:
    """The dtype of the tensor that torch makes of a number; `widest`: whatever the default dtype is."""
    floating = torch.float64 if widest else torch.get_default_dtype()
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, complex):
        return floating.to_complex()
    return torch.int64 if isinstance(number, (int, torch.SymInt)) else floating
