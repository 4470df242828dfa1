"""Writes to memory that is shared, which most of ATen's kernels refuse: elements of the target that are one in memory,
and operands of which some elements are elements of the target. Which kernels do is asked of each, on small tensors that
overlap alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from bolide.symbolic import hint_of
from bolide.tracing import modes
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import is_dense

TARGET, INSIDE, APART, PARTLY = "target", "inside", "apart", "partly"
"""How a tensor lies in memory: written to; that, with elements that are one; beside the target; across it."""

_asked: dict[Any, Exception | None] = {}


def inside(meta: TensorMeta) -> bool:
    """Whether elements of a tensor are one in memory, as far as ATen looks: it is expanded."""
    expanded = any(hint_of(step) == 0 and hint_of(size) > 1 for size, step in zip(meta.shape, meta.stride))
    return expanded and not is_dense(meta.shape, meta.stride)


def within(meta: TensorMeta) -> bool:
    """Whether elements of a tensor are one in memory: it is expanded, or its windows lie across each other."""
    steps = sorted((hint_of(step), hint_of(size)) for step, size in zip(meta.stride, meta.shape))
    reached = 0
    for step, size in steps:
        if size > 1 and step <= reached:
            return all(size for _, size in steps)
        reached += max(size - 1, 0) * step
    return False


def partly(target: TensorMeta, operand: TensorMeta) -> bool:
    """Whether two views of one memory share some of their elements, or all in another order, as far as ATen looks: at
    dense ones."""
    if not (is_dense(target.shape, target.stride) and is_dense(operand.shape, operand.stride)):
        return False
    (low, high), (start, end) = _bytes(target), _bytes(operand)
    if (low, high) == (start, end):
        return [*map(hint_of, target.stride)] != [*map(hint_of, operand.stride)]
    return low < end and start < high


def _bytes(meta: TensorMeta) -> tuple[int, int]:
    start, count = hint_of(meta.offset), 1
    for size in meta.shape:
        count *= hint_of(size)
    return start * meta.dtype.itemsize, (start + count) * meta.dtype.itemsize


def refusal(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Exception | None:
    """What the kernel of an operation raises for tensors that are laid out so, or None. Arguments: (meta, how it lies)
    in place of tensors."""
    key = (func, *map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
    if key not in _asked:
        _asked[key] = _ask(func, args, kwargs)
    return _asked[key]


def _kind(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)) and not _is_tensor(arg):
        return tuple(map(_kind, arg))
    return (arg[0].ndim, arg[0].dtype, arg[1]) if _is_tensor(arg) else type(arg)


def _is_tensor(arg: Any) -> bool:
    return type(arg) is tuple and len(arg) == 2 and isinstance(arg[0], TensorMeta)


def _ask(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Exception | None:
    most = max(arg[0].ndim for arg in _tensors((*args, *kwargs.values())))
    if most > _MOST_DIMS:
        return None
    memory: dict[torch.dtype, torch.Tensor] = {}

    def small(arg: Any) -> Any:
        if not _is_tensor(arg):
            return list(map(small, arg)) if isinstance(arg, (list, tuple)) else arg
        meta, place = arg
        if place == INSIDE:
            return torch.zeros([1] * meta.ndim, dtype=meta.dtype).expand([2] * meta.ndim)
        if place == APART:
            return torch.zeros([2] * meta.ndim, dtype=meta.dtype)
        if meta.dtype not in memory:
            memory[meta.dtype] = torch.zeros(2**most + 1, dtype=meta.dtype)
        start = place == TARGET
        return memory[meta.dtype][start : start + 2**meta.ndim].view([2] * meta.ndim)

    try:
        with modes.random_kept() if modes.may_draw(func) else contextlib.nullcontext():
            func(*map(small, args), **{name: small(arg) for name, arg in kwargs.items()})
    except Exception as error:
        return error.with_traceback(None) if "unsupported operation" in str(error) else None
    return None


_MOST_DIMS = 16


def _tensors(args: Iterable[Any]) -> Iterator[tuple[TensorMeta, str]]:
    for arg in args:
        if _is_tensor(arg):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(arg)
