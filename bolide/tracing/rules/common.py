"""What shape rules share: broadcasting, type promotion and the strides of results, as ATen's TensorIterator has
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from bolide.symbolic import (
    Size,
    contiguous_strides,
    hint_of,
    is_one,
    is_packed,
    is_undecided,
    is_zero,
    or_one,
    same_size,
    same_sizes,
    times,
)
from bolide.tracing.meta import TensorMeta, number_dtype

Ints = Sequence[Size]
Number = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def surely(condition: object) -> bool:
    """Whether a condition holds; of sizes that are data that is checked when the program runs (see `suppose`)."""
    if is_undecided(condition):
        return bool(condition.node.env.suppose(condition.node.expr))
    return bool(condition)


def require(condition: object, message: str, error: type[Exception] = RuntimeError) -> None:
    """Raise the error that eager raises, unless the condition holds; one on data is checked when the program runs."""
    if not surely(condition):
        raise error(message)


def may_be_negative(extent: Size) -> bool:
    """Whether a number is negative, as far as its bounds tell."""
    least = extent.node.expr.bounds()[0] if isinstance(extent, torch.SymInt) else extent
    return least is None or bool(least < 0)


def require_sizes(shape: Ints, message: str) -> None:
    """Raise the error that eager raises where a size is negative."""
    for extent in shape:
        if may_be_negative(extent):
            require(extent >= 0, message)


def differ(a: Size, b: Size) -> bool:
    """Whether two sizes are different. That sizes which are data are equal is checked when the program runs."""
    equal = a == b
    if is_undecided(equal):
        return not equal.node.env.suppose(equal.node.expr)
    return not equal


def is_less(a: Size, b: Size) -> bool:
    """``a < b``; of sizes that are data as it is likely: for layouts, and for what is checked afterwards."""
    less = a < b
    return bool(less.node.hint if is_undecided(less) else less)


def shapes_differ(a: Ints, b: Ints) -> bool:
    """Whether two shapes are different (see `differ`)."""
    return len(a) != len(b) or any(map(differ, a, b))


def broadcast_shapes(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The common shape; RuntimeError, worded as torch does, when there is none."""
    first = shapes[0]
    if all(same_sizes(shape, first) for shape in shapes):
        return first
    ndim = max(len(shape) for shape in shapes)
    result: list[Size] = [1] * ndim
    for shape in shapes:
        for place in range(ndim - 1, ndim - len(shape) - 1, -1):
            known, size = result[place], shape[place - ndim]
            if known is size or is_one(size):
                continue
            if is_one(known):
                result[place] = size
            elif differ(known, size):
                raise RuntimeError(
                    f"The size of tensor a ({known}) must match the size of tensor b ({size}) at non-singleton "
                    f"dimension {place}"
                )
    return tuple(result)


def result_strides(shape: tuple[Size, ...], operands: Iterable[TensorMeta]) -> tuple[Size, ...]:
    """The strides TensorIterator gives a result of this shape: those of the operands' common order of dimensions."""
    metas = list(operands)
    if all(same_sizes(meta.stride, contiguous_strides(meta.shape)) for meta in metas):
        return contiguous_strides(shape)
    if all(same_sizes(meta.shape, shape) for meta in metas):
        if all(is_contiguous(meta) for meta in metas):
            return contiguous_strides(shape)
        if len(shape) == 4 and all(is_packed(meta.shape, meta.stride, (1, 3, 2, 0)) for meta in metas):
            return format_strides(shape, torch.channels_last)
        common = metas[0].stride
        if all(same_sizes(meta.stride, common) for meta in metas) and is_dense(shape, common):
            return common
    order = _iteration_order(shape, [broadcast_strides(meta, shape) for meta in metas])
    ndim = len(shape)
    if order == list(range(ndim - 1, -1, -1)):
        return contiguous_strides(shape)
    stride: list[int] = [0] * ndim
    step = 1
    for dim in order:
        stride[dim] = step
        step = times(step, shape[dim])
    return tuple(stride)


def broadcast_strides(meta: TensorMeta, shape: tuple[Size, ...]) -> list[Size]:
    extra: list[Size] = [0] * (len(shape) - len(meta.shape))
    return extra + [
        0 if is_one(own) and not is_one(wanted) else stride
        for own, wanted, stride in zip(meta.shape, shape[len(extra) :], meta.stride)
    ]


def _iteration_order(shape: tuple[Size, ...], strides: list[list[Size]]) -> list[int]:
    """Dimensions from the fastest to the slowest (TensorIteratorBase::reorder_dimensions, without defined outputs)."""
    ndim = len(shape)
    order = list(range(ndim - 1, -1, -1))

    def swap(inner: int, outer: int) -> int:
        for stride in strides:
            a, b = stride[inner], stride[outer]
            if is_zero(a) or is_zero(b):
                continue
            if not same_size(a, b):
                if is_less(a, b):
                    return -1
                if is_less(b, a):
                    return 1
            if not same_size(shape[inner], shape[outer]) and is_less(shape[outer], shape[inner]):
                return 1
        return 0

    for i in range(1, ndim):
        current = i
        for candidate in range(i - 1, -1, -1):
            comparison = swap(order[candidate], order[current])
            if comparison > 0:
                order[candidate], order[current] = order[current], order[candidate]
                current = candidate
            elif comparison < 0:
                break
    return order


def is_contiguous(meta: TensorMeta) -> bool:
    """`Tensor.is_contiguous()`: strides of dimensions of size 1 do not matter, and an empty tensor is contiguous."""
    if same_sizes(meta.stride, contiguous_strides(meta.shape)):
        return True
    return is_packed(meta.shape, meta.stride, range(meta.ndim - 1, -1, -1)) or any(map(is_zero, meta.shape))


def is_dense(shape: Ints, stride: Ints) -> bool:
    """Whether the elements fill one block of memory without gaps and overlaps; an empty tensor does."""
    if any(map(is_zero, shape)):
        return True
    order = sorted(range(len(shape)), key=lambda dim: (hint_of(stride[dim]), hint_of(shape[dim])))
    return is_packed(shape, stride, order)


def repeats(meta: TensorMeta) -> bool:
    """Whether elements of a tensor are one in memory, as far as ATen looks: it is expanded."""
    expanded = any(hint_of(step) == 0 and hint_of(size) > 1 for size, step in zip(meta.shape, meta.stride))
    return expanded and not is_dense(meta.shape, meta.stride)


def overlaps(meta: TensorMeta) -> bool:
    """Whether elements of a tensor are one in memory: it is expanded, or its windows lie across each other."""
    steps = sorted((hint_of(step), hint_of(size)) for step, size in zip(meta.stride, meta.shape))
    reached = 0
    for step, size in steps:
        if size > 1 and step <= reached:
            return all(size for _, size in steps)
        reached += max(size - 1, 0) * step
    return False


def crosses(target: TensorMeta, operand: TensorMeta) -> bool:
    """Whether two views share some elements, or all in another order, as far as ATen looks: at dense ones."""
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


def like_strides(meta: TensorMeta, memory_format: torch.memory_format | None = None) -> tuple[Size, ...]:
    """The strides of `empty_like(meta, memory_format=...)`."""
    if memory_format is None or memory_format is torch.preserve_format:
        if same_sizes(meta.stride, contiguous_strides(meta.shape)):
            return meta.stride
        return meta.stride if is_dense(meta.shape, meta.stride) else result_strides(meta.shape, [meta])
    return format_strides(meta.shape, memory_format)


def format_strides(shape: tuple[Size, ...], memory_format: torch.memory_format | None) -> tuple[Size, ...]:
    """The strides of a fresh tensor in this memory format."""
    if memory_format is torch.channels_last or memory_format is torch.channels_last_3d:
        stride: list[int] = [0] * len(shape)
        step = 1
        for dim in (1, *range(len(shape) - 1, 1, -1), 0):
            stride[dim] = step
            step = times(step, or_one(shape[dim]))
        return tuple(stride)
    return contiguous_strides(shape)


def is_channels_last(meta: TensorMeta) -> bool:
    """Whether torch suggests channels_last for this tensor (TensorImpl::compute_strides_like_channels_last)."""
    if meta.ndim not in (4, 5) or same_sizes(meta.stride, contiguous_strides(meta.shape)):
        return False
    if any(is_undecided(extent >= 2) for extent in meta.shape):
        last = torch.channels_last if meta.ndim == 4 else torch.channels_last_3d
        return same_sizes(meta.stride, format_strides(meta.shape, last))
    least = 0
    if meta.stride[1] == 0:
        return False
    for dim in (1, *range(meta.ndim - 1, 1, -1), 0):
        size, stride = meta.shape[dim], meta.stride[dim]
        if size == 0 or stride < least:
            return False
        if dim == 0 and least == meta.stride[1]:
            return False  # N111 is as good as contiguous
        least = stride * size if size > 1 else stride
    return True


def suggested_format(meta: TensorMeta) -> torch.memory_format:
    """`at::Tensor::suggest_memory_format`."""
    if is_channels_last(meta):
        return torch.channels_last if meta.ndim == 4 else torch.channels_last_3d
    return torch.contiguous_format


def fresh(shape: Ints, dtype: torch.dtype, device: torch.device, stride: tuple[Size, ...] | None = None) -> TensorMeta:
    """The meta of a new tensor, row-major unless strides are given."""
    shape = tuple(shape)
    return TensorMeta(shape, contiguous_strides(shape) if stride is None else stride, 0, dtype, device)


def row_major(x: TensorMeta, shape: Ints | None = None, dtype: torch.dtype | None = None) -> TensorMeta:
    """The meta of a new row-major tensor of this type and shape, by default those of `x`."""
    return fresh(x.shape if shape is None else shape, dtype or x.dtype, x.device)


def in_suggested_format(x: TensorMeta, shape: tuple[Size, ...] | None = None) -> TensorMeta:
    """The meta of a new tensor, of this shape or that of `x`, in the memory format that `x` suggests."""
    shape = x.shape if shape is None else shape
    return fresh(shape, x.dtype, x.device, format_strides(shape, suggested_format(x)))


def laid_out_like(x: TensorMeta, memory_format: torch.memory_format | None = None) -> TensorMeta:
    """The meta of `empty_like(x, memory_format=...)`."""
    return fresh(x.shape, x.dtype, x.device, like_strides(x, memory_format))


def wrap_dim(dim: int, ndim: int) -> int:
    """The dimension counted from the front; IndexError, worded as torch does, when it is out of range."""
    limit = max(ndim, 1)
    if not -limit <= dim < limit:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got {dim})")
    return dim % limit


# ---- types --------------------------------------------------------------------------------------------------------


_NAMES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long"}
_NAMES |= {"int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}
_NAMES |= {"complex64": "ComplexFloat", "complex128": "ComplexDouble"}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in torch's messages."""
    name = str(dtype).removeprefix("torch.")
    return _NAMES.get(name, name)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """Promotion between priority classes (c10's combine_categories): the lower one counts only by its kind."""
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher.is_floating_point:
        return higher.to_complex()
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def result_type(operands: Iterable[object]) -> torch.dtype:
    """The common dtype of tensors with dimensions, 0-dim tensors and Python numbers, in this order of priority."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for operand in operands:
        if operand.__class__ is TensorMeta:
            dtype = operand.dtype
            if operand.shape:
                if dims is not dtype:
                    dims = dtype if dims is None else torch.promote_types(dims, dtype)
            else:
                zeros = dtype if zeros is None else torch.promote_types(zeros, dtype)
        elif isinstance(operand, Number):
            dtype = number_dtype(operand)
            numbers = dtype if numbers is None else torch.promote_types(numbers, dtype)
    common = _combine(dims, _combine(zeros, numbers))
    assert common is not None
    return common


def result_device(tensors: Sequence[TensorMeta]) -> torch.device:
    """The device of the result: a 0-dim CPU tensor may join tensors of another device."""
    for meta in tensors:
        if meta.shape or meta.device.type != "cpu":
            return meta.device
    return tensors[0].device
