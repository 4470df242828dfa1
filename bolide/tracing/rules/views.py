"""Shape rules of views, and of what copies or scatters along a shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from bolide.symbolic import (
    Size,
    contiguous_strides,
    hint_of,
    is_one,
    is_undecided,
    is_zero,
    product,
    same_size,
    same_sizes,
    times,
)
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import (
    Ints,
    differ,
    format_strides,
    fresh,
    in_suggested_format,
    is_channels_last,
    is_less,
    laid_out_like,
    like_strides,
    may_be_negative,
    require,
    require_sizes,
    result_strides,
    result_type,
    row_major,
    shapes_differ,
    suggested_format,
    surely,
    wrap_dim,
)
from bolide.tracing.rules.registry import rule


def _strided(x: TensorMeta, shape: Ints, stride: Ints, offset: int | None = None) -> TensorMeta:
    return TensorMeta(tuple(shape), tuple(stride), x.offset if offset is None else offset, x.dtype, x.device)


def _is_rest(extent: Size) -> bool:
    """Whether this stands for the size that the others leave. What is data does not (see `_is_negative`)."""
    if not may_be_negative(extent):
        return False
    rest = extent == -1
    return not is_undecided(rest) and bool(rest)


def _is_negative(extent: Size) -> bool:
    """Whether this is no size; that one which is data is a size is checked when the program runs."""
    return may_be_negative(extent) and not surely(extent >= 0)


def _resolve(x: TensorMeta, size: Ints) -> tuple[Size, ...]:
    """The sizes with -1 filled in."""
    places = [place for place, extent in enumerate(size) if _is_rest(extent)]
    for at, extent in enumerate(size):
        if at not in places and _is_negative(extent):
            raise RuntimeError(f"invalid shape dimension {extent} at index {at} of shape {list(size)}")
    if not places:
        return tuple(size)
    require(len(places) == 1, "only one dimension can be inferred")
    before, after = size[: places[0]], size[places[0] + 1 :]
    given, left = [*before, *after], []
    require(
        surely(product(given) != 0),
        f"cannot reshape tensor of 0 elements into shape {list(size)} because the unspecified dimension size -1 "
        "can be any value and is ambiguous",
    )
    for extent in x.shape:  # quotients of sums are not simplified
        place = next((i for i, other in enumerate(given) if same_size(other, extent)), None)
        if place is None:
            left.append(extent)
        else:
            del given[place]
    count, known = product(left), product(given)
    require(surely(count % known == 0), f"shape '{list(size)}' is invalid for input of size {x.numel}")
    return (*before, count // known, *after)


def view_strides(
    shape: tuple[Size, ...],
    stride: tuple[Size, ...],
    size: tuple[Size, ...],
    same: Callable[[Size, Size], bool] = same_size,
    unequal: Callable[[Size, Size], bool] = differ,
) -> tuple[Size, ...] | None:
    """The strides of a view of another shape, or None if it would need a copy (at::detail::computeStride). `same` says
    whether two dimensions are next to each other in memory, `unequal` whether parts of both shapes are of different
    sizes."""
    if any(map(is_zero, shape)):
        return stride if same_sizes(size, shape) else contiguous_strides(size)
    result = [0] * len(size)
    position = len(size) - 1
    if not shape:
        return (1,) * len(size)
    base = stride[-1]
    block = 1
    viewed = 1
    for dim in range(len(shape) - 1, -1, -1):
        block = times(block, shape[dim])
        if dim == 0 or (not is_one(shape[dim - 1]) and not same(stride[dim - 1], times(block, base))):
            while position >= 0 and (not _reaches(viewed, block) or is_one(size[position])):
                result[position] = times(viewed, base)
                viewed = times(viewed, size[position])
                position -= 1
            if not same_size(viewed, block) and unequal(viewed, block):
                return None
            if dim > 0:
                base = stride[dim - 1]
                block = viewed = 1
    return tuple(result) if position == -1 else None


def _reaches(viewed: Size, block: Size) -> bool:
    """Whether the dimensions of a view cover a block of memory. Where data decides, they do once they are the same."""
    if is_less(viewed, block):
        return False
    return not is_undecided(viewed == block) or is_less(block, viewed)


def _same_now(a: Size, b: Size) -> bool:
    """Whether two numbers are equal; that they are in this run only is guarded."""
    return same_size(a, b) or (not is_undecided(equal := a == b) and bool(equal))


def _view_shape(x: TensorMeta, size: Ints) -> tuple[Size, ...]:
    """The sizes with -1 filled in, which are as many elements as `x` has."""
    shape, count = _resolve(x, size), x.numel
    wanted = product(shape)
    if not same_size(wanted, count) and differ(wanted, count):
        raise RuntimeError(f"shape '{list(size)}' is invalid for input of size {count}")
    return shape


def reshaped(x: TensorMeta, size: Ints) -> tuple[tuple[Size, ...], bool]:
    """The sizes that `Tensor.reshape` gives, and whether the result is a view: the program may write to it, so where
    that depends on numbers that are equal at this call, or are not, it is guarded. Where it depends on data it is a
    copy."""
    shape = _view_shape(x, size)
    dense = same_sizes(x.stride, contiguous_strides(x.shape))
    stride = None if dense else view_strides(x.shape, x.stride, shape, _same_now, lambda a, b: not _same_now(a, b))
    return shape, dense or stride is not None


@rule("detach", "alias")
def _same(x: TensorMeta) -> TensorMeta:
    return x._replace(requires_grad=False)


@rule("view")
def _view(x: TensorMeta, size: Ints) -> TensorMeta:
    shape = _view_shape(x, size)
    dense = same_sizes(x.stride, contiguous_strides(x.shape))
    stride = contiguous_strides(shape) if dense else view_strides(x.shape, x.stride, shape)
    if stride is None:
        stride = view_strides(x.shape, x.stride, shape, _same_now)
    if stride is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return _strided(x, shape, stride)


@rule("t")
def _t(x: TensorMeta) -> TensorMeta:
    require(x.ndim <= 2, f"t() expects a tensor with <= 2 dimensions, but self is {x.ndim}D")
    return _strided(x, x.shape[::-1], x.stride[::-1])


@rule("transpose.int")
def _transpose(x: TensorMeta, a: int, b: int) -> TensorMeta:
    a, b = wrap_dim(a, x.ndim), wrap_dim(b, x.ndim)
    if not x.shape:
        return _strided(x, (), ())
    shape, stride = list(x.shape), list(x.stride)
    shape[a], shape[b] = shape[b], shape[a]
    stride[a], stride[b] = stride[b], stride[a]
    return _strided(x, shape, stride)


@rule("permute")
def _permute(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    require(
        len(dims) == x.ndim,
        "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
        f"ordering of dimensions i.e. input.dim() = {x.ndim} is not equal to len(dims) = {len(dims)}",
    )
    require(len({wrap_dim(dim, x.ndim) for dim in dims}) == x.ndim, "permute(): duplicate dims are not allowed.")
    return _strided(x, [x.shape[dim] for dim in dims], [x.stride[dim] for dim in dims])


@rule("expand")
def expanded(x: TensorMeta, size: Ints, implicit: bool = False) -> TensorMeta:
    overflow = "numel: integer multiplication overflow"
    if not x.shape:
        require_sizes(size, overflow)
        return _strided(x, size, [0] * len(size))
    extra = len(size) - x.ndim
    require(
        extra >= 0,
        f"expand({list(x.shape)}, size={list(size)}): the number of sizes provided ({len(size)}) must be greater "
        f"or equal to the number of dimensions in the tensor ({x.ndim})",
    )
    shape, stride = list(size), list[Size]([0] * len(size))
    for position in range(len(size) - 1, -1, -1):
        own = x.shape[position - extra] if position >= extra else 1
        if _is_rest(size[position]):
            shape[position] = own
            require(
                position >= extra,
                f"The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension {position}",
            )
        if same_size(own, shape[position]) or (not is_one(own) and not differ(own, shape[position])):
            if position >= extra:
                stride[position] = x.stride[position - extra]
            else:
                stride[position] = shape[position + 1] * stride[position + 1] if position + 1 < len(size) else 1
        elif not is_one(own):
            raise RuntimeError(
                f"The expanded size of the tensor ({size[position]}) must match the existing size ({own}) at "
                f"non-singleton dimension {position}.  Target sizes: {list(size)}.  Tensor sizes: {list(x.shape)}"
            )
    require_sizes(shape, overflow)
    return _strided(x, shape, stride)


@rule("unsqueeze")
def _unsqueeze(x: TensorMeta, dim: int) -> TensorMeta:
    dim = wrap_dim(dim, x.ndim + 1)
    step = x.shape[dim] * x.stride[dim] if dim < x.ndim else 1
    return _strided(x, (*x.shape[:dim], 1, *x.shape[dim:]), (*x.stride[:dim], step, *x.stride[dim:]))


@rule("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(x: TensorMeta, dims: int | Sequence[int] | None = None) -> TensorMeta:
    chosen = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {wrap_dim(dim, x.ndim) for dim in chosen}
    kept = [dim for dim in range(x.ndim) if dim not in gone or surely(x.shape[dim] != 1)]
    return _strided(x, [x.shape[dim] for dim in kept], [x.stride[dim] for dim in kept])


def index_from_front(index: int, size: int) -> int:
    """The place that an index means, counted from the front; one that is out of range stays as it is."""
    return index + size if index < 0 and index >= -size else index


def bound_from_front(bound: int, size: int, least: int = 0) -> int:
    """The place in least..size that a bound of a slice means."""
    bound = bound + size if bound < 0 else bound
    above, below = bound > size, bound < least
    smaller, larger = cast(Any, torch.sym_min), cast(Any, torch.sym_max)
    bound = smaller(bound, size) if is_undecided(above) else size if above else bound
    return larger(bound, least) if is_undecided(below) else least if below else bound


@rule("select.int")
def _select(x: TensorMeta, dim: int, index: int) -> TensorMeta:
    require(x.ndim, "select() cannot be applied to a 0-dim tensor.", IndexError)
    dim = wrap_dim(dim, x.ndim)
    place = index_from_front(index, x.shape[dim])
    if not 0 <= place < x.shape[dim]:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {dim}")
    shape, stride = (*x.shape[:dim], *x.shape[dim + 1 :]), (*x.stride[:dim], *x.stride[dim + 1 :])
    return _strided(x, shape, stride, x.offset + place * x.stride[dim])


@rule("slice.Tensor")
def _slice(x: TensorMeta, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> TensorMeta:
    require(x.ndim, "slice() cannot be applied to a 0-dim tensor.", IndexError)
    dim = wrap_dim(dim, x.ndim)
    size = x.shape[dim]
    start = bound_from_front(0 if start is None else start, size)
    if end is None or (end.__class__ is int and end >= 1 << 62):
        end = size
    else:
        end = bound_from_front(end, size, start)
    extent = (end - start + step - 1) // step
    shape = (*x.shape[:dim], extent, *x.shape[dim + 1 :])
    stride = x.stride if step == 1 else (*x.stride[:dim], x.stride[dim] * step, *x.stride[dim + 1 :])
    return _strided(x, shape, stride, x.offset + start * x.stride[dim])


@rule("as_strided")
def _as_strided(x: TensorMeta, size: Ints, stride: Ints, offset: int | None = None) -> TensorMeta:
    if not all(surely(step >= 0) for step in stride):
        message = "as_strided: Negative strides are not supported at the moment, got strides: "
        raise RuntimeError(f"{message}{list(map(hint_of, stride))}")
    for extent in filter(may_be_negative, size):
        layout = f"sizes={list(map(hint_of, size))} and strides={list(map(hint_of, stride))}"
        require(extent >= 0, f"Storage size calculation overflowed with {layout}")
    return _strided(x, size, stride, offset)


@rule("diagonal")
def _diagonal(x: TensorMeta, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorMeta:
    a, b = wrap_dim(dim1, x.ndim), wrap_dim(dim2, x.ndim)
    require(a != b, f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = (x.shape[a], x.shape[b] - offset) if offset >= 0 else (x.shape[a] + offset, x.shape[b])
    extent = max(min(rows, columns), 0)
    start = x.offset
    if extent:
        start = start + (offset * x.stride[b] if offset >= 0 else -offset * x.stride[a])
    kept = [dim for dim in range(x.ndim) if dim not in (a, b)]
    shape, stride = [x.shape[dim] for dim in kept], [x.stride[dim] for dim in kept]
    return _strided(x, [*shape, extent], [*stride, x.stride[a] + x.stride[b]], start)


@rule("unfold")
def _unfold(x: TensorMeta, dim: int, size: int, step: int) -> TensorMeta:
    dim = wrap_dim(dim, max(x.ndim, 1))
    extent = x.shape[dim] if x.shape else 1
    require(size >= 0, f"size is {size} but must be >= 0")
    require(size <= extent, f"maximum size for tensor at dimension {dim} is {extent} but size is {size}")
    require(step > 0, f"step is {step} but must be > 0")
    if not x.shape:
        return _strided(x, (size,), (1,))
    shape, stride = [*x.shape, size], [*x.stride, x.stride[dim]]
    shape[dim] = (x.shape[dim] - size) // step + 1
    stride[dim] = x.stride[dim] * step
    return _strided(x, shape, stride)


# ---- copies along a shape -----------------------------------------------------------------------------------------


@rule("as_strided_scatter")
def _scatter(x: TensorMeta, *_: object, **__: object) -> TensorMeta:
    if any(stride.__class__ is int and stride == 0 and not is_one(size) for size, stride in zip(x.shape, x.stride)):
        return laid_out_like(x)
    return x._replace(requires_grad=False)


def _scatter_into(view: Callable[..., TensorMeta], x: TensorMeta, source: TensorMeta, *place: Any, **named: Any) -> Any:
    """`x` after `source` has been written to a view of it."""
    shape = view(x, *place, **named).shape
    if shapes_differ(source.shape, shape):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(source.shape)}, slice size = {list(shape)}"
        )
    return _scatter(x)


for _name, _view_of in (("select", _select), ("slice", _slice), ("diagonal", _diagonal)):
    rule(f"{_name}_scatter")(functools.partial(_scatter_into, _view_of))


@rule("cat")
def _cat(tensors: list[TensorMeta], dim: int = 0) -> TensorMeta:
    require(tensors, "torch.cat(): expected a non-empty list of Tensors", ValueError)
    require(all(meta.shape for meta in tensors), "zero-dimensional tensor (at position 0) cannot be concatenated")
    joined = [meta for meta in tensors if meta.ndim != 1 or not is_zero(meta.shape[0])]
    if not joined:  # of empty vectors, for which eager does not ask where they are to be joined
        return fresh((0,), result_type(tensors), tensors[0].device)
    first = joined[0]
    dim = wrap_dim(dim, first.ndim)
    total = 0
    for meta in joined:
        total = total + meta.shape[dim]
        if meta.ndim != first.ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {first.ndim} and {meta.ndim}")
        for other in range(first.ndim):
            if other != dim and differ(meta.shape[other], first.shape[other]):
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {first.shape[other]} but "
                    f"got size {meta.shape[other]} for tensor number {tensors.index(meta)} in the list."
                )
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    formats = {suggested_format(meta) for meta in tensors}
    chosen = formats.pop() if len(formats) == 1 else torch.contiguous_format
    return TensorMeta(shape, format_strides(shape, chosen), 0, result_type(tensors), first.device)


@rule("stack")
def _stack(tensors: list[TensorMeta], dim: int = 0) -> TensorMeta:
    require(tensors, "stack expects a non-empty TensorList")
    first = tensors[0]
    for meta in tensors:
        if shapes_differ(meta.shape, first.shape):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry 0 and "
                f"{list(meta.shape)} at entry {tensors.index(meta)}"
            )
    dim = wrap_dim(dim, first.ndim + 1)
    return fresh((*first.shape[:dim], len(tensors), *first.shape[dim:]), result_type(tensors), first.device)


@rule("constant_pad_nd")
def _constant_pad_nd(x: TensorMeta, pad: Ints, value: object = 0) -> TensorMeta:
    shape = list(x.shape)
    for position in range(len(pad) // 2):
        dim, before, after = x.ndim - 1 - position, pad[2 * position], pad[2 * position + 1]
        for added in (before, after, before + after):  # where eager takes some away, something is left
            if may_be_negative(added):
                require(shape[dim] + added >= 0, "narrow(): length must be non-negative.")
        shape[dim] = shape[dim] + before + after
    symbolic = any(extent.__class__ is torch.SymInt for extent in pad)
    usual = symbolic and same_sizes(x.stride, in_suggested_format(x).stride)  # the strides of a copy: no need to ask
    if not usual and all(map(_adds_nothing, pad)):  # a copy of the narrowed tensor
        stride = like_strides(_strided(x, shape, x.stride))
        return TensorMeta(tuple(shape), stride, 0, x.dtype, x.device)
    return in_suggested_format(x, tuple(shape))


def _adds_nothing(extent: Size) -> bool:
    nothing = extent <= 0
    return not is_undecided(nothing) and bool(nothing)


@rule("flip")
def _flip(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    for dim in dims:
        wrap_dim(dim, x.ndim)
    return laid_out_like(x)


@rule("roll")
def _roll(x: TensorMeta, shifts: Ints, dims: Sequence[int] = ()) -> TensorMeta:
    require(shifts, "`shifts` required")
    aligned = len(shifts) == len(dims) or (not dims and len(shifts) == 1)
    require(aligned, f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    result = row_major(x)
    if any(size.__class__ is int and size == 0 for size in x.shape):  # nothing is moved
        return result
    channels_last = dims and is_channels_last(x)
    for shift, dim in zip(shifts, dims):
        dim = wrap_dim(dim, x.ndim)
        if channels_last:  # the two parts are put together: in that order only if both seem to have it
            start = (x.shape[dim] - shift) % x.shape[dim]
            result = x = _cat([_slice(x, dim, start), _slice(x, dim, 0, start)], dim)
    return result


@rule("repeat")
def _repeat(x: TensorMeta, repeats: Ints) -> TensorMeta:
    extra = len(repeats) - x.ndim
    require(extra >= 0, "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    shape = tuple(count * (x.shape[i - extra] if i >= extra else 1) for i, count in enumerate(repeats))
    for extent in filter(may_be_negative, shape):
        require(extent >= 0, f"Trying to create tensor with negative dimension {extent}: {list(shape)}")
    return row_major(x, shape)


def _triangle(name: str, x: TensorMeta, diagonal: int = 0) -> TensorMeta:
    require(x.ndim >= 2, f"{name}: input tensor must have at least 2 dimensions")
    return row_major(x)


for _name in ("tril", "triu"):
    rule(_name)(functools.partial(_triangle, _name))


@rule("select_backward", "slice_backward", "unfold_backward", "diagonal_backward")
def _view_backward(grad: TensorMeta, sizes: Ints, *_: object) -> TensorMeta:
    return row_major(grad, sizes)


@rule("glu")
def _glu(x: TensorMeta, dim: int = -1) -> TensorMeta:
    require(x.ndim > 0, "glu does not support 0-dimensional tensors")
    dim = wrap_dim(dim, x.ndim)
    require(x.shape[dim] % 2 == 0, f"Halving dimension must be even, but dimension {dim} is size {x.shape[dim]}")
    shape = (*x.shape[:dim], x.shape[dim] // 2, *x.shape[dim + 1 :])
    return TensorMeta(shape, result_strides(shape, [x._replace(shape=shape)]), 0, x.dtype, x.device)


@rule("glu_backward")
def _glu_backward(grad: TensorMeta, x: TensorMeta, dim: int) -> TensorMeta:
    return row_major(x)
