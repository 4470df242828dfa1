"""Gathers and scatters: embedding, index, gather, index_put, scatter and their relatives.

An index read from a tensor is checked once (`bolide::check_index`, which raises IndexError as eager does), and is
clamped where it is used, so that a kernel
never reads or writes out of bounds even before the check has been made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.inductor.ir.definitions import Extern
from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering, broadcast
from bolide.inductor.lowering.reductions import reduction
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.values import ZERO, Coords, TensorValue, numel
from bolide.symbolic import Expr, as_expr
from bolide.tracing.fallible import done

aten = torch.ops.aten

_library = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("check_index(Tensor bad, str message, bool index_error) -> ()")  # type: ignore[no-untyped-call]


def _check_index(bad: torch.Tensor, message: str, index_error: bool) -> None:
    """Raises eager's class of error, IndexError or RuntimeError, if `bad`, a 0-dim bool tensor, is true."""
    if bad.item():
        raise IndexError(message) if index_error else RuntimeError(message)


_library.impl("check_index", _check_index, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

_BOUNDS = "index is out of bounds for its dimension"

IndexReader = Callable[[Coords], Node]


@lowering(done)
def nothing(ctx: Lowering, value: TensorValue) -> Any:
    """What kernels would compute need not be: their checks are operations of their own."""
    called = any(isinstance(made, Extern) and value.buffer in made.names for made in ctx.definitions)
    return EXTERN if called else None


def operand_var(place: int, size: Expr) -> Expr:
    """The value of operand `place` of an indirect load from a dimension of `size`."""
    return Expr.var(f"${place}", 0, size - 1)


def checked_index(
    ctx: Lowering,
    index: TensorValue,
    size: Expr,
    wraps: bool = True,
    ignore: int | None = None,
    what: str = "index out of range in self",
    index_error: bool = True,
) -> IndexReader:
    """A reader of `index` as places 0 … size - 1. `wraps`: negative ones count from the end. `ignore`: this value is
    allowed and reads place 0. `what`, `index_error`: message and class (else RuntimeError) of eager's error."""
    length, zero = sc.index(size), sc.const(0, torch.int64)
    last = sc.index(Expr.max(size - 1, 0))

    def raw(coords: Coords) -> Node:
        return sc.cast(index.load(broadcast(index.shape, coords)), torch.int64)

    def wrapped(value: Node) -> Node:
        return sc.where(sc.compare("lt", value, zero), sc.add(value, length), value) if wraps else value

    def bad(coords: Coords) -> Node:
        value = raw(coords)
        low = sc.index(-size) if wraps else zero
        outside = sc.logical_or(sc.compare("lt", value, low), sc.compare("ge", value, length))
        if ignore is not None:
            outside = sc.logical_and(outside, sc.compare("ne", value, sc.const(ignore, torch.int64)))
        return outside

    key = (index.buffer, index.maps, index.shape, size, wraps, ignore)
    if key not in ctx.checked and not any(extent is ZERO for extent in index.shape) and not _decided(ctx, index, bad):
        ctx.checked.add(key)
        flag = reduction(ctx, index, tuple(range(len(index.shape))), "any", bad, torch.bool, hint="check")
        ctx.effect(torch.ops.bolide.check_index.default, flag, what, index_error)

    def read(coords: Coords) -> Node:
        return sc.minimum(sc.maximum(wrapped(raw(coords)), zero), last)

    return read


def _decided(ctx: Lowering, index: TensorValue, bad: IndexReader) -> bool:
    """Whether bounds alone tell that no index is bad."""
    outside = bad(ctx.axes(index.shape)[1])
    return outside.op == "const" and not outside.arg


# ---- embedding -----------------------------------------------------------------------------------------------------


@lowering(aten.embedding.default)
def embedding(ctx: Lowering, weight: TensorValue, indices: TensorValue, *_: Any) -> TensorValue:
    shape, dtype = ctx.out
    rank = len(indices.shape)
    place = checked_index(ctx, indices, weight.shape[0], wraps=False)
    row = operand_var(0, weight.shape[0])
    return ctx.compute(
        shape, dtype, lambda coords: weight.load_indirect((row, *coords[rank:]), (place(coords[:rank]),))
    )


@lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Lowering, grad: TensorValue, indices: TensorValue, num_weights: Any, padding_idx: Any, by_freq: bool
) -> Any:
    if by_freq:
        return EXTERN
    shape, dtype = ctx.out
    compute = sc.compute_dtype(dtype)
    rank = len(indices.shape)
    place = checked_index(ctx, indices, shape[0], wraps=False)
    zeros = ctx.compute(shape, compute, lambda coords: sc.const(0, compute), hint="zeros")
    row = operand_var(0, shape[0])

    def value(axes: Coords) -> Node:
        g = sc.cast(grad.load(axes), compute)
        if isinstance(padding_idx, int) and padding_idx < 0:
            return g
        index = sc.cast(indices.load(axes[:rank]), torch.int64)
        skipped = sc.compare("eq", index, sc.index(as_expr(padding_idx)))
        return sc.where(skipped, sc.const(0, compute), g)

    total = ctx.scatter(zeros, grad.shape, lambda axes: ((row, *axes[rank:]), (place(axes[:rank]),)), value, "add")
    if dtype is compute:
        return total
    return ctx.compute(shape, dtype, lambda coords: sc.cast(total.load(coords), dtype))


# ---- index, index_put ------------------------------------------------------------------------------------------------


class _Indexed:
    """The pattern of x[indices]: which dimensions are indexed, by which tensors, and where the broadcast index
    dimensions stand in the result."""

    def __init__(self, ctx: Lowering, x: TensorValue, indices: Sequence[TensorValue | None], what: str) -> None:
        self.rank = len(x.shape)
        self.dims = [d for d, index in enumerate(indices) if index is not None]
        tensors = [index for index in indices if index is not None]
        self.index_rank = max(len(index.shape) for index in tensors)
        self.shape = _broadcast_all([index.shape for index in tensors], self.index_rank)
        contiguous = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        self.start = self.dims[0] if contiguous else 0  # separated index tensors put their dimensions first
        self.readers = [checked_index(ctx, index, x.shape[d], what=what) for d, index in zip(self.dims, tensors)]
        self.vars = [operand_var(k, x.shape[d]) for k, d in enumerate(self.dims)]
        kept = [x.shape[d] for d in range(self.rank) if d not in self.dims]
        self.result_shape = (*kept[: self.start], *self.shape, *kept[self.start :])

    def places(self, coords: Coords) -> tuple[Coords, tuple[Node, ...]]:
        """The coordinates in x of element `coords` of the result, and the operands they use."""
        inner = coords[self.start : self.start + self.index_rank]
        others = iter((*coords[: self.start], *coords[self.start + self.index_rank :]))
        by_dim = dict(zip(self.dims, self.vars))
        source = tuple(by_dim[d] if d in by_dim else next(others) for d in range(self.rank))
        return source, tuple(reader(inner) for reader in self.readers)


def _broadcast_all(shapes: Sequence[Coords], rank: int) -> Coords:
    one = Expr.const(1)
    result = [one] * rank
    for shape in shapes:
        for k, size in enumerate(shape):
            if size is not one:
                result[rank - len(shape) + k] = size
    return tuple(result)


def _plain(indices: Sequence[Any]) -> bool:
    """Whether these are integer index tensors (masks have data-dependent results)."""
    given = [index for index in indices if index is not None]
    return bool(given) and all(index.dtype in (torch.int64, torch.int32) for index in given)


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(ctx: Lowering, x: TensorValue, indices: Sequence[TensorValue | None]) -> Any:
    if not _plain(indices) or any(size is ZERO for size in x.shape):
        return EXTERN
    pattern = _Indexed(ctx, x, indices, _BOUNDS)
    return ctx.compute(*ctx.out, lambda coords: x.load_indirect(*pattern.places(coords)))


@lowering(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    ctx: Lowering, x: TensorValue, indices: Sequence[TensorValue | None], values: TensorValue, accumulate: bool = False
) -> Any:
    if not _plain(indices) or any(size is ZERO for size in x.shape):
        if len(indices) == 1 and indices[0] is not None and indices[0].dtype is torch.bool and not values.shape:
            return _masked_put(ctx, x, indices[0], values, accumulate)
        return EXTERN
    if accumulate and sc.compute_dtype(x.dtype) is not x.dtype:
        return EXTERN
    pattern = _Indexed(ctx, x, indices, _BOUNDS)
    return ctx.scatter(
        x,
        pattern.result_shape,
        pattern.places,
        lambda axes: ctx.operand(values, axes, x.dtype),
        "add" if accumulate else "set",
    )


def _masked_put(ctx: Lowering, x: TensorValue, mask: TensorValue, value: TensorValue, accumulate: bool) -> Any:
    """x[mask] = value, for a mask over the leading dimensions and a 0-dim value: a selection."""
    if accumulate:
        return EXTERN

    def body(coords: Coords) -> Node:
        chosen = mask.load(coords[: len(mask.shape)])
        return sc.where(chosen, ctx.operand(value, (), x.dtype), x.load(coords))

    return ctx.compute(x.shape, x.dtype, body)


# ---- along one dimension --------------------------------------------------------------------------------------------


@lowering(aten.index_select.default)
def index_select(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue) -> Any:
    if not x.shape or any(size is ZERO for size in x.shape):
        return EXTERN
    dim %= len(x.shape)
    place = checked_index(ctx, index, x.shape[dim], wraps=False)
    row = operand_var(0, x.shape[dim])

    def body(coords: Coords) -> Node:
        operand = place((coords[dim],) if index.shape else ())
        return x.load_indirect((*coords[:dim], row, *coords[dim + 1 :]), (operand,))

    return ctx.compute(*ctx.out, body)


@lowering(aten.gather.default)
def gather(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, *, sparse_grad: bool = False) -> Any:
    if not x.shape or len(index.shape) != len(x.shape) or numel(x.shape) is ZERO:  # an empty index has any rank
        return EXTERN
    dim %= len(x.shape)
    place = checked_index(ctx, index, x.shape[dim], wraps=False, what=_BOUNDS, index_error=False)
    row = operand_var(0, x.shape[dim])
    return ctx.compute(
        *ctx.out, lambda coords: x.load_indirect((*coords[:dim], row, *coords[dim + 1 :]), (place(coords),))
    )


def _scattered(
    ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, value: Callable[[Coords], Node], mode: str
) -> Any:
    """x with value(i) at index(i) of `dim`, for i over the shape of `index`."""
    rounds = mode == "add" and sc.compute_dtype(x.dtype) is not x.dtype
    if not x.shape or len(index.shape) != len(x.shape) or numel(x.shape) is ZERO or rounds:
        return EXTERN
    dim %= len(x.shape)
    place = checked_index(ctx, index, x.shape[dim], wraps=False, what=_BOUNDS, index_error=False)
    row = operand_var(0, x.shape[dim])
    return ctx.scatter(x, index.shape, lambda axes: ((*axes[:dim], row, *axes[dim + 1 :]), (place(axes),)), value, mode)


@lowering(aten.scatter.src)
def scatter_src(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, src: TensorValue) -> Any:
    return _scattered(ctx, x, dim, index, src.load, "set")


@lowering(aten.scatter.value)
def scatter_value(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, value: Any) -> Any:
    return _scattered(ctx, x, dim, index, lambda axes: ctx.operand(value, axes, x.dtype), "set")


@lowering(aten.scatter_add.default)
def scatter_add(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, src: TensorValue) -> Any:
    return _scattered(ctx, x, dim, index, src.load, "add")


def _rows_written(
    ctx: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    value: Callable[[Coords], Node],
    mode: str,
    wraps: bool = False,
) -> Any:
    """x with value(i) at slice index(i[dim]) of `dim`; `index` is one-dimensional or a single place."""
    rounds = mode == "add" and sc.compute_dtype(x.dtype) is not x.dtype
    if not x.shape or numel(x.shape) is ZERO or rounds:
        return EXTERN
    dim %= len(x.shape)
    place = checked_index(ctx, index, x.shape[dim], wraps=wraps)
    row = operand_var(0, x.shape[dim])
    length = index.shape[0] if index.shape else Expr.const(1)
    extents = (*x.shape[:dim], length, *x.shape[dim + 1 :])

    def places(axes: Coords) -> tuple[Coords, tuple[Node, ...]]:
        return (*axes[:dim], row, *axes[dim + 1 :]), (place((axes[dim],) if index.shape else ()),)

    return ctx.scatter(x, extents, places, value, mode)


@lowering(aten.index_add.default)
def index_add(
    ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, source: TensorValue, *, alpha: Any = 1
) -> Any:
    if len(source.shape) != len(x.shape) or x.dtype is torch.bool:
        return EXTERN
    scale = sc.const(alpha, x.dtype) if not isinstance(alpha, Expr) else sc.index(alpha, x.dtype)
    return _rows_written(ctx, x, dim, index, lambda axes: sc.mul(source.load(axes), scale), "add")


@lowering(aten.index_copy.default)
def index_copy(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, source: TensorValue) -> Any:
    if len(source.shape) != len(x.shape):
        return EXTERN
    return _rows_written(ctx, x, dim, index, source.load, "set")


@lowering(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(ctx: Lowering, x: TensorValue, dim: int, index: TensorValue, value: Any) -> Any:
    if not x.shape:
        return EXTERN
    return _rows_written(ctx, x, dim, index, lambda axes: ctx.operand(value, axes, x.dtype), "set", wraps=True)
