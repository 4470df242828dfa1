"""Shape rules of embedding, gather, scatter and indexing with tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import zip_longest

import torch

from bolide.support.errors import BolideError
from bolide.symbolic import Size, contiguous_strides, is_one, is_zero, product
from bolide.tracing.meta import DataDependent, TensorMeta
from bolide.tracing.rules.common import (
    broadcast_shapes,
    broadcast_strides,
    differ,
    dtype_name,
    fresh,
    laid_out_like,
    like_strides,
    require,
    result_strides,
    row_major,
    shapes_differ,
    wrap_dim,
)
from bolide.tracing.rules.registry import rule, rule_of_symbols
from bolide.tracing.rules.views import view_strides

_SUM, _MAX = 0, 2
"""Modes of an embedding bag."""
_IN_ROWS = (torch.float32, torch.float16, torch.bfloat16)


def _require_places(x: TensorMeta, dim: int, index: Sequence[Size], error: type[Exception] = RuntimeError) -> None:
    """No index, in a tensor of this shape, is within a dimension of size 0."""
    if x.shape and is_zero(x.shape[dim]):
        require(product(index) == 0, "index is out of bounds for dimension with size 0", error)


@rule("embedding")
def _embedding(weight: TensorMeta, indices: TensorMeta, *_: object) -> TensorMeta:
    require(weight.ndim == 2, "'weight' must be 2-D")
    require(
        indices.dtype in (torch.int64, torch.int32),
        f"Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
        f"torch.{dtype_name(indices.dtype)}Tensor instead (while checking arguments for embedding)",
    )
    _require_places(weight, 0, indices.shape)
    return row_major(weight, (*indices.shape, *weight.shape[1:]))


@rule("embedding_dense_backward")
def _embedding_backward(grad: TensorMeta, indices: TensorMeta, rows: int, *_: object) -> TensorMeta:
    return row_major(grad, (rows, grad.shape[-1]))


@rule_of_symbols(torch.ops.aten._embedding_bag.default)
def _embedding_bag(
    weight: TensorMeta,
    indices: TensorMeta,
    offsets: TensorMeta,
    by_frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    factors: TensorMeta | None = None,
    ends: bool = False,
    padding: int = -1,
) -> tuple[TensorMeta, ...]:
    """CPU kernels leave out the bag of each index where they add up whole rows."""
    in_rows = weight.dtype in _IN_ROWS and is_one(weight.stride[1]) and padding < 0
    in_rows = in_rows and (factors is None or is_one(factors.stride[0]))
    bags, on_cpu = offsets.shape[0] - ends, weight.device.type == "cpu"
    numbers = functools.partial(fresh, dtype=torch.promote_types(indices.dtype, offsets.dtype), device=weight.device)
    largest: tuple[Size, ...] = (bags, weight.shape[1]) if mode == _MAX else (bags if on_cpu else 0,)
    bag_of = numbers((0,) if on_cpu and mode == _SUM and in_rows else indices.shape)
    sizes = numbers((bags,) if on_cpu else offsets.shape)
    return row_major(weight, (bags, weight.shape[1])), bag_of, sizes, numbers(largest)


@rule_of_symbols(torch.ops.aten._embedding_bag_forward_only.default)
def _embedding_bag_alone(
    weight: TensorMeta,
    indices: TensorMeta,
    offsets: TensorMeta,
    by_frequency: bool = False,
    mode: int = _SUM,
    *rest: object,
) -> tuple[TensorMeta, ...]:
    out, bag_of, sizes, largest = _embedding_bag(weight, indices, offsets, by_frequency, mode, *rest)  # type: ignore
    if weight.device.type == "cpu" and mode == _SUM:  # with the end of the last one
        sizes = largest = row_major(sizes, offsets.shape)
    return out, bag_of, sizes, largest


@rule("gather")
def _gather(x: TensorMeta, dim: int, index: TensorMeta, *, sparse_grad: bool = False) -> TensorMeta:
    dim = wrap_dim(dim, x.ndim)
    if not any(map(is_zero, index.shape)):
        if max(index.ndim, 1) != max(x.ndim, 1):
            raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
        for other in range(min(x.ndim, index.ndim)):
            if other != dim and index.shape[other] > x.shape[other]:
                raise RuntimeError(
                    f"Size does not match at dimension {other} expected index {list(index.shape)} to be no larger than "
                    f"self {list(x.shape)} apart from dimension {dim}"
                )
        _require_places(x, dim, index.shape)
    return row_major(x, index.shape)


@rule("nonzero_static")
def _nonzero_static(x: TensorMeta, *, size: Size, **_: object) -> TensorMeta:
    return row_major(x, (size, x.ndim), torch.int64)


@rule("index_select")
def _index_select(x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    require(index.ndim <= 1, "index_select(): Index is supposed to be a vector", IndexError)
    dim, count = wrap_dim(dim, x.ndim), index.shape[0] if index.shape else 1
    if not x.shape:
        require(count == 1, f"index_select(): Index to scalar can have only 1 value, got {count} value(s)")
        return row_major(x, ())
    _require_places(x, dim, (count,))
    return row_major(x, (*x.shape[:dim], count, *x.shape[dim + 1 :]))


@rule("scatter.src", "scatter.reduce", "scatter_add", "scatter_reduce.two")
def _scatter(x: TensorMeta, dim: int, index: TensorMeta, source: TensorMeta, *_: object, **__: object) -> TensorMeta:
    require(x.dtype is source.dtype, "scatter(): Expected self.dtype to be equal to src.dtype")
    if index.numel != 0:
        for other, what in ((x, "self"), (source, "src")):
            require(
                max(index.ndim, 1) == max(other.ndim, 1),
                f"Index tensor must have the same number of dimensions as {what} tensor",
            )
        dim = wrap_dim(dim, x.ndim)
        for axis in range(min(index.ndim, x.ndim)):
            require(
                index.shape[axis] <= (*source.shape, 1)[axis] and (axis == dim or index.shape[axis] <= x.shape[axis]),
                f"Expected index {list(index.shape)} to be no larger than self {list(x.shape)} apart from "
                f"dimension {dim} "
                f"and to be no larger size than src {list(source.shape)}",
            )
        _require_places(x, dim, index.shape)
    return row_major(x)


def _combined_at(name: str) -> None:
    """Register an operation that combines `source` with what stands in `x` at places along a dimension."""

    def infer(x: TensorMeta, dim: int, index: TensorMeta, source: TensorMeta, *_: object, **__: object) -> TensorMeta:
        require(
            index.ndim <= 1,
            f"{name}_(): Index is supposed to be a vector, but got dim: {index.ndim} with type: "
            f"{dtype_name(index.dtype)} and size: {list(index.shape)}",
            IndexError,
        )
        require(
            index.dtype in (torch.int32, torch.int64),
            f"{name}_(): Expected dtype int32/int64 for index but got: {dtype_name(index.dtype)}",
        )
        require(
            x.dtype is source.dtype,
            f"{name}_(): self ({dtype_name(x.dtype)}) and source ({dtype_name(source.dtype)}) must have the same "
            "scalar type",
        )
        dim = wrap_dim(dim, x.ndim)
        sizes = enumerate(zip(x.shape, source.shape))
        require(
            not source.shape
            or not x.shape
            or (x.ndim == source.ndim and all(a == b for i, (a, b) in sizes if i != dim)),
            "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = "
            f"{list(x.shape)} source.shape = {list(source.shape)}",
        )
        count, rows = index.numel, source.shape[dim] if source.shape else 1
        require(
            count == rows,
            f"{name}_(): Number of indices ({count}) should be equal to source.size(dim): ({rows}), for dim: {dim}",
        )
        return row_major(x)

    rule(name)(infer)


_combined_at("index_add")
_combined_at("index_reduce")


@rule("index_copy")
def _index_copy(x: TensorMeta, dim: int, index: TensorMeta, source: TensorMeta) -> TensorMeta:
    require(index.ndim <= 1, f"index_copy_(): Index should have dimension 1 or 0 (got {index.ndim})", IndexError)
    dim = wrap_dim(dim, x.ndim)
    count = index.numel
    require(
        source.shape or count == 1,
        f"index_copy_(): When source is scalar, index should have one element (got {count})",
        IndexError,
    )
    require(
        not source.shape or not x.shape or source.ndim == x.ndim,
        "index_copy_(): When source and destination are not scalars, their dimensionality must match. Source "
        f"dimensionality ({source.ndim}), destination dimensionality ({x.ndim})",
        IndexError,
    )
    require(
        index.dtype is torch.int64,
        f"index_copy_(): Expected a long tensor for index, but got {dtype_name(index.dtype)}",
    )
    require(
        x.dtype is source.dtype,
        f"index_copy_(): self and source expected to have the same dtype, but got (self) {dtype_name(x.dtype)} and "
        f"(source) {dtype_name(source.dtype)}",
    )
    rows = source.shape[dim] if source.shape else 1
    require(
        count == rows,
        f"index_copy_(): Number of indices ({count}) should be equal to source.size(dim) ({rows})",
        IndexError,
    )
    own, given = (list(meta.shape[:dim] + meta.shape[dim + 1 :]) for meta in (x, source))
    require(
        not shapes_differ(own, given),
        "index_copy_(): Source/destination tensor must have same slice shapes. Destination slice shape: "
        f"{' '.join(map(str, own))} at dimension {dim} and source slice shape: {' '.join(map(str, given))} at "
        f"dimension 0.",
    )
    _require_places(x, dim, index.shape)
    return row_major(x)


@rule("scatter.value", "scatter.value_reduce")
def _scatter_value(x: TensorMeta, dim: int, index: TensorMeta, *_: object, **__: object) -> TensorMeta:
    dim = wrap_dim(dim, x.ndim)
    if index.numel != 0:
        require(
            max(index.ndim, 1) == max(x.ndim, 1), "Index tensor must have the same number of dimensions as self tensor"
        )
        require(
            all(axis == dim or index.shape[axis] <= x.shape[axis] for axis in range(min(index.ndim, x.ndim))),
            f"Expected index {list(index.shape)} to be no larger than self {list(x.shape)} apart from dimension {dim}",
        )
        _require_places(x, dim, index.shape)
    return row_major(x)


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def _written(x: TensorMeta, dim: int, index: TensorMeta, *_: object) -> TensorMeta:
    _require_places(x, wrap_dim(dim, x.ndim), index.shape)
    return laid_out_like(x)  # clone(), then a write


@rule("index_put", "_unsafe_index_put")
def _index_put(
    x: TensorMeta, indices: list[TensorMeta | None], values: TensorMeta, accumulate: bool = False
) -> TensorMeta:
    masks = [index is None or index.dtype in _MASKS for index in indices]
    dim = 0
    for index, is_mask in zip(indices, masks):
        for place, size in enumerate(index.shape if index is not None and is_mask else ()):
            if dim + place < x.ndim:
                require(
                    not differ(size, x.shape[dim + place]),
                    f"The shape of the mask {list(index.shape)} at index {place} does not match the shape of the "  # type: ignore[union-attr]
                    f"indexed tensor {list(x.shape)} at index {dim + place}",
                    IndexError,
                )
        dim += index.ndim if index is not None and is_mask else 1
    require(dim <= x.ndim, f"too many indices for tensor of dimension {x.ndim} (got {dim})", IndexError)
    require(
        x.dtype is values.dtype or (all(masks) and not accumulate and values.numel == 1),  # which is a masked_fill
        f"Index put requires the source and destination dtypes match, got {dtype_name(x.dtype)} for the destination "
        f"and {dtype_name(values.dtype)} for the source.",
    )
    if not any(index is not None and index.dtype in _MASKS for index in indices):
        result = _indexed_shape(x, indices)[0]
        fits = values.ndim <= len(result) and all(
            is_one(own) or not differ(own, size) for own, size in zip(reversed(values.shape), reversed(result))
        )
        require(
            fits,
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(result)}",
        )
    return laid_out_like(x)


def _indexed_shape(x: TensorMeta, indices: list[TensorMeta | None]) -> tuple[tuple[Size, ...], int, int]:
    """The shape of what is indexed, and where in it the common shape of the indices begins and ends: adjacent ones put
    it where they stand, others in front (TensorAdvancedIndexing.cpp)."""
    slots = [dim for dim, index in enumerate(indices) if index is not None]
    if not slots:
        return x.shape, 0, 0
    common = _common_shape([index.shape for index in indices if index is not None])
    for slot in slots:
        _require_places(x, slot, common, IndexError)
    shape = [extent for dim, extent in enumerate(x.shape) if dim not in slots]
    position = slots[0] if slots == list(range(slots[0], slots[-1] + 1)) else 0
    return (*shape[:position], *common, *shape[position:]), position, position + len(common)


def _common_shape(shapes: list[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The shape of index tensors together; eager's error if there is none."""
    try:
        return broadcast_shapes(shapes)  # type: ignore[no-any-return]
    except BolideError:
        raise
    except RuntimeError:
        shown = ", ".join(str(list(shape)) for shape in shapes)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shown}"
        ) from None


_MASKS = (torch.bool, torch.uint8)


@rule("masked_scatter")
def _masked_scatter(x: TensorMeta, mask: TensorMeta, source: TensorMeta) -> TensorMeta:
    if x.dtype is not source.dtype:
        names = f"{dtype_name(x.dtype)} and {dtype_name(source.dtype)}"
        raise RuntimeError(f"masked_scatter: expected self and source to have same dtypes but got{names}")
    return row_major(x, broadcast_shapes([x.shape, mask.shape]))


@rule("index.Tensor")
def _index(x: TensorMeta, indices: list[TensorMeta | None]) -> TensorMeta:
    given = [index for index in indices if index is not None]
    if any(index.dtype in _MASKS for index in given):
        raise NotImplementedError("the shape of a selection by mask depends on its data")
    result, position, end = _indexed_shape(x, indices)
    # TensorIterator over the restrided tensor (0-strides at the indexed dimensions) and the broadcast indices
    stride = [step for step, index in zip_longest(x.stride, indices) if index is None]
    source = x._replace(shape=result, stride=(*stride[:position], *([0] * (end - position)), *stride[position:]))
    spread = [_spread(index, result, position, end) for index in given]
    return TensorMeta(result, result_strides(result, [source, *spread]), 0, x.dtype, x.device)


def _spread(index: TensorMeta, result: tuple[Size, ...], position: int, end: int) -> TensorMeta:
    """An index as an operand of the iteration: broadcast with the others, then reshaped so that it stands at its place
    among the dimensions of the result. Strides of extents of 1 come from that reshape, and count where the result has
    an extent of 1, too."""
    common = result[position:end]
    stride = broadcast_strides(index, common)
    shape = (*([1] * position), *common, *([1] * (len(result) - end)))
    if any(map(is_one, (*result[:position], *result[end:]))):
        placed = view_strides(common, tuple(stride), shape)
    else:
        placed = (*([0] * position), *stride, *([0] * (len(result) - end)))
    return TensorMeta(shape, contiguous_strides(shape) if placed is None else placed, 0, index.dtype, index.device)


@rule("_jagged_to_padded_dense_forward")
def _padded(values: TensorMeta, offsets: list[TensorMeta], max_lengths: list[Size], *_: object) -> TensorMeta:
    return row_major(values, (offsets[0].shape[0] - 1, *max_lengths, *values.shape[1:]))


@rule("_padded_dense_to_jagged_forward")
def _jagged(padded: TensorMeta, offsets: list[TensorMeta], total_L: Size | None = None) -> TensorMeta:
    if total_L is None:
        raise DataDependent("aten::_padded_dense_to_jagged_forward")
    return row_major(padded, (total_L, *padded.shape[1 + len(offsets) :]))


@rule("topk")
def _topk(
    x: TensorMeta, k: int, dim: int = -1, largest: bool = True, in_order: bool = True
) -> tuple[TensorMeta, TensorMeta]:
    dim = wrap_dim(dim, x.ndim)
    for fits in (k >= 0, k <= (x.shape[dim] if x.shape else 1)):
        require(fits, "selected index k out of range")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.shape else ()
    return row_major(x, shape), fresh(shape, torch.int64, x.device)


@rule("sort")
def _sort(x: TensorMeta, dim: int = -1, descending: bool = False) -> tuple[TensorMeta, TensorMeta]:
    stride = like_strides(x)
    return TensorMeta(x.shape, stride, 0, x.dtype, x.device), TensorMeta(x.shape, stride, 0, torch.int64, x.device)


@rule_of_symbols(torch.ops.aten.tril_indices.default)
def _tril_indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: object) -> TensorMeta:
    return _pairs(_below(row, col, offset), dtype)


@rule_of_symbols(torch.ops.aten.triu_indices.default)
def _triu_indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: object) -> TensorMeta:
    return _pairs(row * col - _below(row, col, offset - 1), dtype)


def _pairs(count: int, dtype: torch.dtype | None) -> TensorMeta:
    return fresh((2, count), dtype or torch.int64, torch.device("cpu"))


def _below(row: int, col: int, offset: int) -> int:
    """How many places of a matrix are on a diagonal or below: in rows that get longer by one, and in whole ones."""
    require(row >= 0, "row must be non-negative")
    require(col >= 0, "col must be non-negative")
    first = max(offset, 0)  # places in front of the first row's last one
    empty = min(max(-offset, 0), row)
    longer = max(min(row - empty, col - first), 0)  # rows
    return longer * first + longer * (longer + 1) // 2 + (row - empty - longer) * col
