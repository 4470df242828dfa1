"""Composite operations whose C++ kernels ask for integers, for tensors with symbolic sizes.

torch's Python dispatcher has decompositions in their place; that of `matmul` imports sympy, which takes as long as
compiling a model. Here is ours, for traced tensors only: it chooses as ATen/native/LinearAlgebra.cpp does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey

from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_installed: list[Any] = []


def install() -> None:
    """Put our kernels before torch's (once per process)."""
    if not _installed:
        ours: dict[Any, Callable[..., Any]] = {aten.matmul.default: matmul, aten.max_pool1d.default: max_pool1d}
        for op, kernel in ours.items():
            _installed.append(op)
            op.py_kernels[_COMPOSITE] = _of_traced(kernel, op, op.py_kernels.get(_COMPOSITE))
            op._dispatch_cache.clear()


def _of_traced(ours: Callable[..., Any], op: Any, theirs: Callable[..., Any] | None) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if any(arg.__class__ is TracedTensor for arg in args):
            return ours(*args, **kwargs)
        if theirs is not None:
            return theirs(*args, **kwargs)
        return op._op_dk(_COMPOSITE, *args, **kwargs)

    return kernel


def max_pool1d(x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False) -> Any:
    """`torch.max_pool1d`: that of rows."""

    def rows(value: Any, fill: int) -> list[Any]:
        return [fill, value[0] if isinstance(value, (list, tuple)) else value] if value not in ([], ()) else []

    pooled = aten.max_pool2d_with_indices.default(
        x.unsqueeze(-2), rows(size, 1), rows(stride, 1), rows(padding, 0), rows(dilation, 1), ceil
    )
    return pooled[0].squeeze(-2)


def matmul(a: Any, b: Any) -> Any:
    """`torch.matmul` of tensors of any sizes; raises RuntimeError for those that do not fit."""
    if a.dim() == 0 or b.dim() == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {a.dim()}D and {b.dim()}D")
    if a.dim() == 1:
        return torch.dot(a, b) if b.dim() == 1 else matmul(a[None], b).squeeze(-2)
    if b.dim() == 1:
        return torch.mv(a, b) if a.dim() == 2 else _folded(a, b) if _folds(a, b) else matmul(a, b[:, None]).squeeze(-1)
    if a.dim() == 2 and b.dim() == 2:
        return torch.mm(a, b)
    if _folds(a, b):
        return _folded(a, b) if b.dim() == 2 else _folded(b.mT, a.t()).mT.contiguous()
    return _batched(a, b)


def _folds(a: Any, b: Any) -> bool:
    """Whether the batch of the larger operand becomes rows of a plain matrix product."""
    larger, smaller = (a, b) if a.dim() >= b.dim() else (b.mT, a)
    if larger.dim() < 3 or smaller.dim() > 2:
        return False
    if smaller.requires_grad:
        return True
    if a.dim() == 2:
        return False
    shape, stride = larger.shape, larger.stride()
    return all(stride[i] == stride[i + 1] * shape[i + 1] for i in range(larger.dim() - 2))


def _folded(a: Any, b: Any) -> Any:
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    if b.dim() == 1:
        return aten._unsafe_view(torch.mv(rows, b), a.shape[:-1])
    return aten._unsafe_view(torch.mm(rows, b), [*a.shape[:-1], b.shape[1]])


def _batched(a: Any, b: Any) -> Any:
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    count = math.prod(batch)
    left = a.expand(*batch, *a.shape[-2:]).reshape(count, *a.shape[-2:])
    right = b.expand(*batch, *b.shape[-2:]).reshape(count, *b.shape[-2:])
    return aten._unsafe_view(torch.bmm(left, right), [*batch, a.shape[-2], b.shape[-1]])


def _broadcast(a: Any, b: Any) -> list[Any]:
    """The common shape of two batches."""
    longer, shorter = (list(a), list(b)) if len(a) >= len(b) else (list(b), list(a))
    for i in range(1, len(shorter) + 1):
        if longer[-i] == 1:
            longer[-i] = shorter[-i]
        elif shorter[-i] != 1 and longer[-i] != shorter[-i]:
            raise RuntimeError(
                f"The size of tensor a ({longer[-i]}) must match the size of tensor b ({shorter[-i]}) at the batch "
                f"dimension {-i} of matmul"
            )
    return longer
