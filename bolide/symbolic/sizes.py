"""Arithmetic on sizes and strides: ints and `torch.SymInt`s of ours, or, in definitions of kernels, `Expr`s."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeGuard

import torch

from bolide.symbolic.expr import ONE, ZERO, Expr, as_expr

Size = int | torch.SymInt


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for all values of the symbols in them. Adds no guard."""
    if a.__class__ is int or b.__class__ is int:
        return a is b or (a.__class__ is b.__class__ and bool(a == b))
    return a is b if a.__class__ is Expr else a.node.expr is b.node.expr


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether these are the same sizes (or strides) for all values of the symbols in them. Adds no guard."""
    return a is b or (len(a) == len(b) and all(map(same_size, a, b)))


def times(a: Any, b: Any) -> Any:
    """The product of two sizes, without the detours that a `SymInt`'s own operator makes (2 µs)."""
    if a.__class__ is int:
        if b.__class__ is int:
            return a * b
        a, b = b, a
    if a.__class__ is Expr:
        return a * b
    node = a.node.mul(b.node if b.__class__ is torch.SymInt else a.node.wrap_int(b))
    known = node.maybe_as_int()
    return torch.SymInt(node) if known is None else known  # type: ignore[no-untyped-call]


def product(sizes: Iterable[Any]) -> Any:
    """The product of sizes."""
    return reduce(times, sizes, 1)


def is_one(size: Any) -> bool:
    """Whether a size is 1; guarded where that is not known. One that is data is taken not to be."""
    return bool(size == 1) if size.__class__ is int else _is(size, 1)


def is_zero(size: Any) -> bool:
    """Whether a size is 0; as `is_one`."""
    return bool(size == 0) if size.__class__ is int else _is(size, 0)


def _is(size: Any, value: int) -> bool:
    node = size.node
    least = node.expr.bounds()[0]
    return (least is None or least <= value) and bool(node.env.surely(node.expr.eq(value)))


def is_data(size: Any) -> bool:
    """Whether the value of a size is data."""
    return size.__class__ is torch.SymInt and size.node.env.is_data(size.node.expr)


def is_undecided(condition: object) -> TypeGuard[torch.SymBool]:
    """Whether a truth value depends on data."""
    return isinstance(condition, torch.SymBool) and not condition.node.has_hint()


def hint_of(size: Any) -> int:
    """The value of a size in the run that is being traced. Adds no guard."""
    return int(size if size.__class__ is int else size.node.hint)


# ---- strides -------------------------------------------------------------------------------------------------------


def or_one(size: Any) -> Any:
    """A size, or 1 if it is 0, which is guarded where that is not known; of `Expr`s only a constant is taken for 0."""
    if size.__class__ is int:
        return size if size > 1 else 1
    if size.__class__ is Expr:
        return ONE if size is ZERO else size
    return 1 if is_zero(size) else size


def contiguous_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides, as torch computes them: a size of 0 counts as 1."""
    if not shape:
        return ()
    step: Any = ONE if shape[0].__class__ is Expr else 1
    strides = [step]
    for size in reversed(shape[1:]):
        step = times(step, or_one(size))
        strides.append(step)
    strides.reverse()
    return tuple(strides)


def is_packed(shape: Sequence[Any], stride: Sequence[Any], order: Iterable[int]) -> bool:
    """Whether strides are those of dense memory with the dimensions in this order, from the innermost, for all values
    of the symbols in them: no gaps and no overlaps. Strides at sizes of 1 do not matter. Adds no guard."""
    step: Any = ONE if shape and shape[0].__class__ is Expr else 1
    for dim in order:
        size = shape[dim]
        if size is ONE or (size.__class__ is int and size == 1):
            continue
        if not same_size(stride[dim], step):
            return False
        step = times(step, size)
    return True


def without_zeros(shape: Iterable[int | Expr], strides: Iterable[int | Expr]) -> tuple[Expr, ...]:
    """The strides of dense memory as torch computes them: for those of other dimensions a size of 0 counts as 1. Other
    strides stay what they are."""
    given = tuple(map(as_expr, strides))
    dense, torchs = [ONE], [ONE]
    for size in reversed([as_expr(size) for size in shape][1:]):
        dense.append(dense[-1] * size)
        torchs.append(torchs[-1] * (size if size.least() > 0 else Expr.max(size, 1)))
    return tuple(reversed(torchs)) if given == tuple(reversed(dense)) else given


def gaps(shape: Sequence[int], stride: Sequence[int]) -> dict[int, int | None]:
    """The dimensions whose strides are larger than what is inside of them, as of a slice of a larger tensor, each with
    the dimension next to it inside (None: there is none)."""
    order = _from_inside(shape, stride)
    pairs = zip((None, *order), order, strict=False)
    return {
        outer: inner
        for inner, outer in pairs
        if stride[outer] > (1 if inner is None else max(stride[inner] * (shape[inner] or 1), 1))
    }


def symbolic_strides(
    sizes: Sequence[Any], real: Sequence[int], hints: Sequence[int], given: Mapping[int, Any] | None = None
) -> tuple[Any, ...]:
    """The strides of an input with symbolic sizes: products of sizes where the real strides are such products.

    `hints` are the real sizes. A stride that is not explained by the sizes inside of it is that of `given`, by
    dimension, or stays a number (to be guarded). For the others' strides, a size of 0 counts as 1.
    """
    given = given or {}
    strides: list[Any] = [given.get(dim, step) for dim, step in enumerate(real)]
    sizes = [size or 1 if size.__class__ is int else size for size in sizes]
    hints = [n or 1 for n in hints]
    order = _from_inside(hints, real)
    for inner, outer in itertools.pairwise(order):
        if outer not in given and real[outer] == real[inner] * hints[inner]:
            strides[outer] = times(strides[inner], sizes[inner])
    for outer, size in enumerate(hints):
        inside = [dim for dim in order if real[outer] == real[dim] * hints[dim]] if size == 1 else []
        if inside and outer not in given:
            strides[outer] = times(strides[inside[-1]], sizes[inside[-1]])
    return tuple(strides)


def _from_inside(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The dimensions as they lie in memory, but for those of size 1, whose strides do not matter."""
    dims = (dim for dim, size in enumerate(shape) if size != 1)
    return sorted(dims, key=lambda dim: (stride[dim], shape[dim]))
