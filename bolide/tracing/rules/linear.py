"""Shape rules of matrix products, convolutions, pooling, attention and recurrent layers."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from bolide.symbolic import Size, is_zero
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import (
    Ints,
    differ,
    format_strides,
    fresh,
    in_suggested_format,
    is_channels_last,
    laid_out_like,
    require,
    row_major,
    shapes_differ,
    surely,
)
from bolide.tracing.rules.registry import rule, rule_of_symbols
from bolide.tracing.rules.views import expanded

aten = torch.ops.aten


def _check_product(a: TensorMeta, b: TensorMeta, what: str = "mat1 and mat2") -> None:
    require(a.ndim == 2, "self must be a matrix")
    require(b.ndim == 2, "mat2 must be a matrix")
    if differ(a.shape[-1], b.shape[-2]):
        raise RuntimeError(
            f"{what} shapes cannot be multiplied ({a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})"
        )
    _check_dtypes(a, b)


def _check_dtypes(a: TensorMeta, b: TensorMeta) -> None:
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {_name(a.dtype)} != {_name(b.dtype)}")


_NAMES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}
_NAMES |= {torch.int64: "long long", torch.int32: "int", torch.bool: "bool"}


def _name(dtype: torch.dtype) -> str:
    """The C++ name of a dtype, as it stands in torch's messages."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


@rule("mm")
def _mm(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    _check_product(a, b)
    return row_major(a, (a.shape[0], b.shape[1]))


@rule("addmm")
def _addmm(bias: TensorMeta, a: TensorMeta, b: TensorMeta, *, beta: object = 1, alpha: object = 1) -> TensorMeta:
    _check_product(a, b)
    shape = (a.shape[0], b.shape[1])
    expanded(bias, list(shape))
    return row_major(a, shape)


@rule("bmm")
def _bmm(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    require(a.ndim == 3, "batch1 must be a 3D tensor")
    require(b.ndim == 3, "batch2 must be a 3D tensor")
    if differ(a.shape[0], b.shape[0]) or differ(a.shape[2], b.shape[1]):
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{a.shape[0]}, {a.shape[2]}] but got: "
            f"[{b.shape[0]}, {b.shape[1]}]."
        )
    result = row_major(b, (a.shape[0], a.shape[1], b.shape[2]))
    if not any(map(is_zero, (*result.shape, a.shape[2]))):
        _check_dtypes(a, b)
    return result


@rule("baddbmm")
def _baddbmm(bias: TensorMeta, a: TensorMeta, b: TensorMeta, *, beta: object = 1, alpha: object = 1) -> TensorMeta:
    product: TensorMeta = _bmm(a, b)
    expanded(bias, list(product.shape))
    return product


@rule("mv")
def _mv(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    if differ(a.shape[1], b.shape[0]):
        raise RuntimeError(
            f"size mismatch, got input ({a.shape[0]}), mat ({a.shape[0]}x{a.shape[1]}), vec ({b.shape[0]})"
        )
    _check_dtypes(a, b)
    return row_major(a, (a.shape[0],))


@rule("dot")
def _dot(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    if shapes_differ(a.shape, b.shape):
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor {list(a.shape)} and src {list(b.shape)} "
            f"to have the same number of elements, but got {a.numel} and {b.numel} elements respectively"
        )
    _check_dtypes(a, b)
    return row_major(a, ())


# ---- convolution --------------------------------------------------------------------------------------------------


def _per_dimension(values: Ints, count: int) -> list[Size]:
    return list(values) * count if len(values) == 1 else list(values)


@rule("convolution")
def _convolution(
    x: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> TensorMeta:
    spatial = x.ndim - 2
    require(all(extent > 0 for extent in dilation), "dilation should be greater than zero")
    require(all(extent > 0 for extent in stride), "non-positive stride is not supported")
    require(all(extent >= 0 for extent in padding), "negative padding is not supported")
    require(x.ndim == weight.ndim, f"expected {weight.ndim}D input to convolution, but got {x.ndim}D")
    require(
        x.dtype is weight.dtype,
        f"Input type ({_name(x.dtype)}) and bias type ({_name(weight.dtype)}) should be the same",
    )
    channels = weight.shape[1] * groups if not transposed else weight.shape[0]
    if differ(x.shape[1], channels):
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{channels} channels, but got {x.shape[1]} channels instead"
        )
    step, pad, dilate = (_per_dimension(values, spatial) for values in (stride, padding, dilation))
    extra = _per_dimension(output_padding, spatial)
    sizes = []
    for dim in range(spatial):
        size, kernel = x.shape[dim + 2], weight.shape[dim + 2]
        reach = dilate[dim] * (kernel - 1)
        if transposed:
            sizes.append((size - 1) * step[dim] - 2 * pad[dim] + reach + extra[dim] + 1)
        else:
            room = 2 * pad[dim] - reach  # added to the size at once: each sum of symbols takes a while
            if not surely(size > -room):
                raise RuntimeError(_too_large(x, weight, pad, dilate))
            whole = step[dim].__class__ is int and step[dim] == 1
            if whole:
                sizes.append(size if room.__class__ is int and room == 0 else size + room)
            else:
                sizes.append((size + (room - 1)) // step[dim] + 1)
    shape = (x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *sizes)
    return fresh(shape, x.dtype, x.device, _convolved_strides(shape, x, weight))


def _too_large(x: TensorMeta, weight: TensorMeta, padding: Ints, dilation: Ints) -> str:
    """What eager says where a kernel does not fit into the padded input."""
    places = " x ".join([str(size + 2 * pad) for size, pad in zip(x.shape[2:], padding)])
    kernel = " x ".join([str(dilate * (size - 1) + 1) for size, dilate in zip(weight.shape[2:], dilation)])
    reason = "Kernel size can't be greater than actual input size"
    return f"Calculated padded input size per channel: ({places}). Kernel size: ({kernel}). {reason}"


def _convolved_strides(shape: tuple[Any, ...], x: TensorMeta, weight: TensorMeta) -> tuple[Any, ...]:
    """The strides of a result of a convolution or of its backward. One over a line is made row-major, and is then over
    an image of one row, as its weight is."""
    if x.ndim == 3:
        image = _as_image(weight)
        if not is_channels_last(image):
            return format_strides(shape, torch.contiguous_format)
        batch, channel, _, place = format_strides((*shape[:2], 1, shape[2]), torch.channels_last)
        return batch, channel, place
    last = x.ndim in (4, 5) and (is_channels_last(x) or is_channels_last(weight))
    chosen = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return format_strides(shape, chosen if last else torch.contiguous_format)


def _as_image(line: TensorMeta) -> TensorMeta:
    step = line.shape[2] * line.stride[2]
    return line._replace(shape=(*line.shape[:2], 1, line.shape[2]), stride=(*line.stride[:2], step, line.stride[2]))


@rule("convolution_backward")
def _convolution_backward(
    grad: TensorMeta, x: TensorMeta, weight: TensorMeta, *rest: Any
) -> tuple[TensorMeta | None, ...]:
    def like(meta: TensorMeta) -> TensorMeta:
        return fresh(meta.shape, meta.dtype, meta.device, _convolved_strides(meta.shape, x, weight))

    mask = rest[-1]
    bias = row_major(grad, grad.shape[1:2]) if mask[2] else None
    return like(x) if mask[0] else None, like(weight) if mask[1] else None, bias


@rule_of_symbols(aten._pdist_forward.default)
def _pdist(x: TensorMeta, p: float = 2) -> TensorMeta:
    return row_major(x, (x.shape[0] * (x.shape[0] - 1) // 2,))


@rule_of_symbols(aten._pdist_backward.default)
def _pdist_backward(grad: TensorMeta, x: TensorMeta, *_: object) -> TensorMeta:
    return row_major(x)


# ---- rearrangements of images -------------------------------------------------------------------------------------


@rule_of_symbols(aten.pixel_shuffle.default)
def _pixel_shuffle(x: TensorMeta, factor: int) -> TensorMeta:
    require(x.ndim >= 3 and factor > 0, "pixel_shuffle expects an image and a positive upscale_factor")
    *batch, channels, height, width = x.shape
    message = "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor"
    require(channels % (factor * factor) == 0, message)
    return in_suggested_format(x, (*batch, channels // (factor * factor), height * factor, width * factor))


@rule_of_symbols(aten.pixel_unshuffle.default)
def _pixel_unshuffle(x: TensorMeta, factor: int) -> TensorMeta:
    require(x.ndim >= 3 and factor > 0, "pixel_unshuffle expects an image and a positive downscale_factor")
    *batch, channels, height, width = x.shape
    require(height % factor == 0, "pixel_unshuffle expects height to be divisible by downscale_factor")
    require(width % factor == 0, "pixel_unshuffle expects width to be divisible by downscale_factor")
    return in_suggested_format(x, (*batch, channels * (factor * factor), height // factor, width // factor))


def _padded(x: TensorMeta, pad: Ints, dims: int, reflects: bool) -> TensorMeta:
    """An image with borders of itself, of which negative ones take away. Where a size becomes 0 torch is asked."""
    require(len(pad) == 2 * dims and x.ndim in (dims + 1, dims + 2), f"padding size is expected to be {2 * dims}")
    shape = list(x.shape)
    for extent in shape[-dims - 1 :]:
        require(extent >= 1, "Expected a tensor with possibly 0 batch size and other non-zero dimensions for input")
    for place in range(dims):
        before, after = pad[2 * place : 2 * place + 2]
        size = shape[-1 - place]
        if reflects:
            for added in (before, after):
                require(added < size, "Padding size should be less than the corresponding input dimension")
        shape[-1 - place] = size + before + after
        require(shape[-1 - place] >= 1, "input is too small")
    return in_suggested_format(x, tuple(shape))


for _kind, _dims in itertools.product(("reflection", "replication"), (1, 2, 3)):
    rule_of_symbols(getattr(aten, f"{_kind}_pad{_dims}d").default)(
        functools.partial(_padded, dims=_dims, reflects=_kind == "reflection")
    )


@rule_of_symbols(aten.im2col.default)
def _im2col(x: TensorMeta, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> TensorMeta:
    *batch, channels, height, width = x.shape
    blocks = _blocks((height, width), kernel, dilation, padding, stride)
    kernel = _per_dimension(kernel, 2)
    return row_major(x, (*batch, channels * (kernel[0] * kernel[1]), blocks))


@rule_of_symbols(aten.col2im.default)
def _col2im(x: TensorMeta, size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> TensorMeta:
    *batch, columns, blocks = x.shape
    kernel = _per_dimension(kernel, 2)
    require(columns % (kernel[0] * kernel[1]) == 0, "the size of dimension 1 is not divisible by the kernel's")
    if differ(_blocks(size, kernel, dilation, padding, stride), blocks):
        raise RuntimeError("the size of dimension 2 is not the number of sliding blocks")
    return row_major(x, (*batch, columns // (kernel[0] * kernel[1]), *size))


def _blocks(size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Size:
    """How many places a window has in an image."""
    blocks: Size = 1
    options = [_per_dimension(option, 2) for option in (kernel, dilation, padding, stride)]
    for extent, window, spread, pad, step in zip(size, *options):
        require(window > 0 and spread > 0 and pad >= 0 and step > 0, "sizes of sliding blocks should be positive")
        count = _pooled(extent, window, step, pad, spread, False)
        require(extent > 0 and count > 0, "the array of sliding blocks has a size that is not positive")
        blocks = blocks * count
    return blocks


# ---- pooling ------------------------------------------------------------------------------------------------------


def _pooled(size: Size, kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool) -> Size:
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out = out - 1
    return out


def _pool_shape(
    x: TensorMeta, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> TensorMeta:
    require(
        x.ndim in (3, 4) and all(size != 0 for size in x.shape[-3:]),
        f"Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input, but got:{list(x.shape)}",
    )
    kernel, stride = _per_dimension(kernel, 2), _per_dimension(list(stride) or kernel, 2)
    padding, dilation = _per_dimension(padding, 2), _per_dimension(dilation, 2)
    for pad, extent, spread in zip(padding, kernel, dilation):
        require(pad >= 0, f"pad must be non-negative, but got pad: {pad}")
        require(
            pad <= ((extent - 1) * spread + 1) // 2,
            f"pad should be at most half of effective kernel size, but got pad={pad}, kernel_size={extent} and "
            f"dilation={spread}",
        )
    require(all(extent > 0 for extent in stride), "stride should not be zero")
    sizes = tuple(
        _pooled(x.shape[dim - 2], kernel[dim], stride[dim], padding[dim], dilation[dim], ceil_mode) for dim in (0, 1)
    )
    require(
        all(extent > 0 for extent in sizes),
        f"Given input size: ({'x'.join(map(str, x.shape[-3:]))}). Calculated output size: "
        f"({'x'.join(map(str, (*x.shape[-3:-2], *sizes)))}). Output size is too small",
    )
    return in_suggested_format(x, (*x.shape[:-2], *sizes))


@rule("max_pool2d_with_indices")
def _max_pool2d(
    x: TensorMeta, kernel: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,), ceil_mode: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    result = _pool_shape(x, kernel, stride, padding, dilation, ceil_mode)
    return result, result._replace(dtype=torch.int64)


@rule("avg_pool2d")
def _avg_pool2d(
    x: TensorMeta,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorMeta:
    result = _pool_shape(x, kernel, stride, padding, [1], ceil_mode)
    require(divisor_override != 0, "divisor must be not zero")
    return result


@rule("max_pool2d_with_indices_backward", "avg_pool2d_backward")
def _pool2d_backward(grad: TensorMeta, x: TensorMeta, *_: object) -> TensorMeta:
    return in_suggested_format(x)


@rule("_adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: TensorMeta, size: Ints) -> TensorMeta:
    return in_suggested_format(x, (*x.shape[:-2], *size))


# ---- attention ----------------------------------------------------------------------------------------------------


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _flash_attention_cpu(q: TensorMeta, *_: object, **__: object) -> tuple[TensorMeta, TensorMeta]:
    batch, heads, length, _ = q.shape
    statistics = torch.float64 if q.dtype is torch.float64 else torch.float32
    return laid_out_like(q), fresh((batch, heads, length), statistics, q.device, (length * heads, 1, heads))


_ROWS_OF_STATISTICS = 32  # CUTLASS's kernels write so many at a time


@rule("_scaled_dot_product_efficient_attention")
def _efficient_attention(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, bias: TensorMeta | None, statistics: bool, *_: object, **__: object
) -> tuple[TensorMeta, ...]:
    batch, heads, length, _ = q.shape
    width = v.shape[-1]
    stride = (length * heads * width, width, heads * width, 1)
    rows = -(-length // _ROWS_OF_STATISTICS) * _ROWS_OF_STATISTICS if statistics else 0
    word = fresh((), torch.int64, torch.device("cpu"))
    out = fresh((batch, heads, length, width), q.dtype, q.device, stride)
    return out, fresh((batch, heads, rows), torch.float32, q.device), word, word


@rule("_scaled_dot_product_cudnn_attention")
def _cudnn_attention(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, bias: TensorMeta | None, statistics: bool, *_: object, **__: object
) -> tuple[object, ...]:
    batch, heads, length, _ = q.shape
    sums = fresh((batch, heads, length, 1), torch.float32, q.device) if statistics else None
    word = fresh((), torch.int64, q.device)
    out = laid_out_like(q._replace(shape=(*q.shape[:-1], v.shape[-1])))
    return out, sums, None, None, length, k.shape[2], word, word, None


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_attention_cpu_backward(
    grad: TensorMeta, q: TensorMeta, k: TensorMeta, v: TensorMeta, *_: object, **__: object
) -> tuple[TensorMeta, ...]:
    def like(x: TensorMeta) -> TensorMeta:
        _, heads, length, width = x.shape
        return fresh(x.shape, x.dtype, x.device, (length * heads * width, width, heads * width, 1))

    return like(q), like(k), like(v)
