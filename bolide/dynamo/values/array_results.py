"""What NumPy itself would answer. Torch's NumPy layer gives other types than NumPy now and then (medians, Fourier
transforms, sums of small integers): NumPy's own function, called on ones of the same shapes and types, tells."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from bolide.tracing import TracedFloat
from bolide.tracing.meta import hint_of

_LARGEST = 1 << 16  # elements; larger arrays are of one size here, where sizes do not decide about types


class _Unknown(Exception):
    """There is nothing that NumPy could be asked with."""


def expected(function: Callable[..., Any] | None, args: Any, kwargs: Any, array_of: Callable[[Any], Any]) -> Any:
    """A result like that of NumPy's `function`; None if it cannot be told. `array_of` gives the traced tensor of an
    array, None for other values."""
    if function is None:
        return None
    try:
        likeness = _like((args, kwargs), array_of)
        with warnings.catch_warnings(), numpy.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return function(*likeness[0], **likeness[1])
    except Exception:  # NumPy may raise for ones
        return None


def _like(value: Any, array_of: Callable[[Any], Any]) -> Any:
    tensor = array_of(value)
    if tensor is not None:
        shape = tuple(map(_of_this_call, tensor.shape))
        if math.prod(shape) > _LARGEST:
            raise _Unknown
        with torch._C._DisableTorchDispatch():
            kind = torch.zeros((), dtype=tensor.dtype).numpy().dtype
        return numpy.ones(shape, kind)
    if isinstance(value, numpy.ndarray):
        return value.copy()
    if type(value) is torch.SymInt:
        return _of_this_call(value)
    if type(value) is TracedFloat:
        return 1.0
    if isinstance(value, (torch.Tensor, torch.SymFloat, torch.SymBool)):
        raise _Unknown
    if type(value) in (tuple, list):
        return type(value)([_like(item, array_of) for item in value])
    if type(value) is dict:
        return {key: _like(item, array_of) for key, item in value.items()}
    return value


def _of_this_call(size: Any) -> int:
    """A size, or a number made of sizes, as it is now: types do not depend on it."""
    if type(size) is int:
        return size
    if not size.node.has_hint():
        raise _Unknown
    return hint_of(size)


def arranged(like: Any, found: Any, array_of: Callable[[Any], Any], instead: Mapping[Any, Any]) -> Any:
    """The result `found` in NumPy's containers, as in `like`. Raises TypeError where it is not what NumPy gives, or
    would give with other default types: those `instead` of its own.
    """
    if isinstance(like, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(like):
            raise TypeError
        items = [arranged(one, item, array_of, instead) for one, item in zip(like, found)]
        cls: Any = type(like)
        return cls(items) if cls in (tuple, list) else cls(*items)
    tensor = array_of(found)
    if isinstance(like, (numpy.ndarray, numpy.generic)):
        if tensor is None or tensor.dim() != like.ndim:
            raise TypeError
        if numpy.dtype(found.array.dtype.name) not in (like.dtype, instead.get(like.dtype, like.dtype)):
            raise TypeError
    elif tensor is not None or (isinstance(like, (type, numpy.dtype)) and type(like) is not type(found)):
        raise TypeError
    return found
