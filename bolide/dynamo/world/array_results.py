"""What NumPy itself would answer. Torch's NumPy layer gives other types than NumPy now and then (medians, Fourier
transforms, sums of small integers), copies where NumPy gives views, and the other way round: NumPy's own function,
called on ones of the same shapes, strides and types, tells."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from bolide.symbolic import hint_of
from bolide.tracing import TracedFloat, TracedTensor

_LARGEST = 1 << 22  # elements; of larger arrays nothing is known
_LARGEST_PRODUCT = 1 << 16  # likewise for what takes more than one look at each element
_PRODUCTS = frozenset(
    {"matmul", "dot", "inner", "outer", "vdot", "einsum", "tensordot", "kron"}
    | {"convolve", "correlate", "cov", "corrcoef"}
)


class _Unknown(Exception):
    """There is nothing that NumPy could be asked with."""


@dataclass(frozen=True)
class Likeness:
    """What NumPy gives for ones in place of the arrays of a program, and these ones with the arrays they stand for."""

    result: Any
    pairs: list[tuple[object, object]]


@dataclass(frozen=True)
class Kind:
    """How arrays of the program are looked into and made. `tensor` gives the traced tensor of one, None for other
    values; `is_number`: whether it is no array but one of NumPy's numbers; `make` makes one of a tensor and of what
    it is to be like."""

    tensor: Callable[[object], TracedTensor | None]
    is_number: Callable[[object], bool]
    make: Callable[[TracedTensor, object], object]


def expected(function: Callable[..., Any] | None, args: Any, kwargs: Any, kind: Kind) -> Likeness | None:
    """A result like that of NumPy's `function`; None if it cannot be told."""
    if function is None:
        return None
    name = getattr(function, "__name__", "")
    heavy = name in _PRODUCTS or "linalg" in str(getattr(function, "__module__", ""))
    likeness = _Arguments(kind, _LARGEST_PRODUCT if heavy else _LARGEST)
    try:
        words = likeness.of((args, kwargs))
        with warnings.catch_warnings(), numpy.errstate(all="ignore"), torch._C._DisableTorchDispatch():
            warnings.simplefilter("ignore")
            return Likeness(function(*words[0], **words[1]), likeness.pairs)
    except Exception:  # NumPy may raise for ones
        return None


class _Arguments:
    """Makes arguments like those of the program: each array once."""

    def __init__(self, kind: Kind, largest: int) -> None:
        self.kind, self.largest = kind, largest
        self.pairs: list[tuple[object, object]] = []

    def of(self, value: Any) -> Any:
        tensor = self.kind.tensor(value)
        if tensor is not None or isinstance(value, TracedTensor):
            known = next((like for like, own in self.pairs if own is value), None)
            if known is None:
                known = _ones(value if tensor is None else tensor, self.largest)
                if tensor is not None:
                    with torch._C._DisableTorchDispatch():
                        known = known.detach().numpy()
                    known = known[()] if self.kind.is_number(value) else known
                self.pairs.append((known, value))
            return known
        if isinstance(value, numpy.ndarray):
            return value.copy()
        if type(value) is torch.SymInt:
            return _of_this_call(value)
        if type(value) in (torch.SymFloat, TracedFloat):
            return 1.0
        if type(value) is torch.SymBool:
            raise _Unknown
        if type(value) in (tuple, list, torch.Size):
            return type(value)([self.of(item) for item in value])
        if type(value) is dict:
            return {key: self.of(item) for key, item in value.items()}
        return value


def _ones(tensor: TracedTensor, largest: int) -> torch.Tensor:
    """A real tensor of ones, laid out as a traced one."""
    shape, stride = (tuple(map(_of_this_call, each)) for each in (tensor.shape, tensor.stride()))
    if math.prod(shape) > largest:
        raise _Unknown
    length = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if 0 not in shape else 0
    with torch._C._DisableTorchDispatch():
        ones = torch.ones(length, dtype=tensor.dtype).as_strided(shape, stride)
        return ones.requires_grad_() if tensor.requires_grad else ones


def _of_this_call(size: Any) -> int:
    """A size, or a number made of sizes, as it is now: types do not depend on it."""
    if type(size) is int:
        return size
    if not size.node.has_hint():
        raise _Unknown
    return hint_of(size)


def arranged(like: Likeness | None, result: object, kind: Kind, instead: Mapping[object, object], given: Any) -> Any:
    """A result as NumPy's: in its containers, its kind of array or number, its memory and strides. Raises
    TypeError where it is not what NumPy gives, or would give with other default types: those `instead` of its own."""
    if like is not None:
        return _arranged(like.result, result, like.pairs, kind, instead)
    inputs = [tensor.group for value in given if (tensor := kind.tensor(value)) is not None]
    for item in result if isinstance(result, (tuple, list)) else (result,):
        tensor = kind.tensor(item)
        if tensor is not None and any(tensor.group is group for group in inputs):
            raise TypeError  # whether it is a view in NumPy is not known
    return result


def _arranged(
    like: Any, result: Any, pairs: list[tuple[object, object]], kind: Kind, instead: Mapping[object, object]
) -> object:
    if isinstance(like, (tuple, list)):
        if not isinstance(result, (tuple, list)) or len(result) != len(like):
            raise TypeError
        items = [_arranged(one, item, pairs, kind, instead) for one, item in zip(like, result)]
        cls: Any = type(like)
        return cls(items) if cls in (tuple, list) else cls(*items)
    tensor = kind.tensor(result)
    if isinstance(like, torch.Tensor):
        return _as_tensor(like, tensor)
    if not isinstance(like, (numpy.ndarray, numpy.generic)):
        if tensor is not None or (isinstance(like, (type, numpy.dtype)) and type(like) is not type(result)):
            raise TypeError
        return result
    same = next((own for given, own in pairs if given is like and kind.tensor(own) is not None), None)
    if same is not None:
        return same
    if tensor is None or tensor.dim() != like.ndim:
        raise TypeError
    if result.dtype not in (like.dtype, instead.get(like.dtype, like.dtype)):
        raise TypeError
    return kind.make(_in_memory(like, tensor, pairs, kind), like)


def _as_tensor(like: torch.Tensor, tensor: TracedTensor | None) -> object:
    """The tensor that NumPy hands to `Tensor.__array_wrap__`, which knows no truths."""
    if tensor is None or tensor.dim() != like.dim():
        raise TypeError
    converted = tensor.to(like.dtype) if tensor.dtype is torch.bool else tensor
    if converted.dtype is not like.dtype:
        raise TypeError
    return converted


def _in_memory(like: object, tensor: TracedTensor, pairs: list[tuple[object, object]], kind: Kind) -> Any:
    """A result that shares its memory with those arguments that NumPy's does, in its strides."""
    owners = [(given, kind.tensor(own)) for given, own in pairs if isinstance(given, numpy.ndarray)]
    inputs = [own.group for _, own in owners if own is not None]
    is_view = any(tensor.group is group for group in inputs)
    if isinstance(like, numpy.ndarray):
        strides = tuple(step // like.itemsize for step in like.strides)
        owner = next((own for given, own in owners if numpy.may_share_memory(like, given)), None)
        if owner is not None:
            if not is_view:  # torch has no negative strides: whoever sees the difference is told
                owner._trace.listener.copied(owner.group, tensor.group)
            elif _steps(tensor.shape, tensor.stride()) != _steps(like.shape, strides):
                raise TypeError
            return tensor
        if 0 not in like.shape and _steps(tensor.shape, tensor.stride()) != _steps(like.shape, strides):
            return _with_order(tensor, strides)
    return tensor.clone() if is_view else tensor


def _steps(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The strides that count."""
    return [_of_this_call(step) for size, step in zip(shape, strides) if _of_this_call(size) != 1]


def _with_order(tensor: TracedTensor, strides: tuple[int, ...]) -> object:
    """A copy whose dimensions lie in memory in the order of `strides`."""
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
