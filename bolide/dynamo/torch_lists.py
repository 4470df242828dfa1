"""`torch.tensor` of lists that hold values of the graph: tensors of one element, and numbers made of sizes or data."""

from __future__ import annotations

import functools
from typing import Any

import torch

from bolide.dynamo.interpreter import Machine
from bolide.dynamo.operations import SYMBOLIC
from bolide.tracing import TracedFloat, TracedTensor

_NUMBERS = (bool, int, float, complex, *SYMBOLIC)


def leaves(values: Any) -> list[Any]:
    """What is in nested lists and tuples."""
    if type(values) in (list, tuple):
        return [leaf for value in values for leaf in leaves(value)]
    return [values]


def of_numbers(vm: Machine, values: Any, dtype: torch.dtype | None, device: Any) -> torch.Tensor | None:
    """The tensor that `torch.tensor` makes of nested lists, without reading the tensors in them; None if nothing of the
    graph is in them, or something that is no number. Its dtype is the promotion of theirs."""
    found = leaves(values)
    if type(values) not in (list, tuple) or not any(_is_traced(vm, leaf) for leaf in found):
        return None
    if not all(isinstance(leaf, _NUMBERS) or (type(leaf) is TracedTensor and _is_scalar(leaf)) for leaf in found):
        return None
    vm.trace.where = vm.where()
    dtype = dtype or functools.reduce(torch.promote_types, map(_dtype, found))
    if not all(_converts(leaf, dtype) for leaf in found if isinstance(leaf, torch.Tensor)):
        return None
    try:
        with torch.no_grad():
            made: torch.Tensor = _stacked(vm, values, dtype)
    except RuntimeError:  # lists of different lengths: torch says what is wrong
        return None
    return made.to(device) if device is not None else made


def _is_traced(vm: Machine, leaf: Any) -> bool:
    return type(leaf) in (TracedTensor, TracedFloat) or (type(leaf) in SYMBOLIC and vm.trace.is_data(leaf))


def _is_scalar(tensor: TracedTensor) -> bool:
    return all(size.__class__ is int and size == 1 for size in tensor.shape)


def _converts(leaf: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether torch reads the number in a tensor as one of this dtype: an integer only from integers."""
    is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    plain = not (leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype is torch.bool)
    return (plain or not is_integer) and (dtype.is_complex or not leaf.is_complex())


def _dtype(leaf: Any) -> torch.dtype:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    kind = SYMBOLIC.get(type(leaf), type(leaf))
    if kind is float:
        return torch.get_default_dtype()
    return torch.bool if kind is bool else torch.int64 if kind is int else torch.complex64


def _stacked(vm: Machine, values: Any, dtype: torch.dtype) -> Any:
    if type(values) in (list, tuple):
        return torch.stack([_stacked(vm, value, dtype) for value in values])
    if isinstance(values, torch.Tensor):
        return values.detach().reshape(()).to(dtype)
    if type(values) is TracedFloat:
        return values.tensor.to(dtype)
    if type(values) in SYMBOLIC and vm.trace.is_data(values):
        return vm.trace.number_tensor(values).to(dtype)
    return torch.full((), values, dtype=dtype)
