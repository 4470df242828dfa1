"""Shape rules of matrix products, convolutions, pooling, attention and recurrent layers."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from bolide.symbolic import Size, contiguous_strides, hint_of, is_one, is_zero, product
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
    wrap_dim,
)
from bolide.tracing.rules.registry import rule, rule_of_symbols
from bolide.tracing.rules.views import expanded

aten = torch.ops.aten


def _check_product(a: TensorMeta, b: TensorMeta) -> None:
    require(a.ndim == 2, "self must be a matrix")
    require(b.ndim == 2, "mat2 must be a matrix")
    if differ(a.shape[-1], b.shape[-2]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})"
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
    options = stride, padding, dilation, transposed, output_padding, groups
    return fresh(shape, x.dtype, x.device, _convolved_strides(shape, x, weight, options))


def _too_large(x: TensorMeta, weight: TensorMeta, padding: Ints, dilation: Ints) -> str:
    """What eager says where a kernel does not fit into the padded input."""
    places = " x ".join([str(size + 2 * pad) for size, pad in zip(x.shape[2:], padding)])
    kernel = " x ".join([str(dilate * (size - 1) + 1) for size, dilate in zip(weight.shape[2:], dilation)])
    reason = "Kernel size can't be greater than actual input size"
    return f"Calculated padded input size per channel: ({places}). Kernel size: ({kernel}). {reason}"


def _convolved_strides(
    shape: tuple[Size, ...], x: TensorMeta, weight: TensorMeta, options: tuple[object, ...]
) -> tuple[Size, ...]:
    """The strides of a result of a convolution or of its backward. One over a line is made row-major, and is then over
    an image of one row, as its weight is."""
    if x.ndim == 3:
        image = _as_image(weight)
        if not is_channels_last(image):
            return format_strides(shape, torch.contiguous_format)
        batch, channel, _, place = format_strides((*shape[:2], 1, shape[2]), torch.channels_last)
        return batch, channel, place
    last = x.ndim in (4, 5) and (is_channels_last(x) or is_channels_last(weight))
    if x.ndim == 5 and last and x.device.type == "cpu" and _is_loop(x, weight, options):
        last = False
    chosen = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return format_strides(shape, chosen if last else torch.contiguous_format)


def _is_loop(x: TensorMeta, weight: TensorMeta, options: tuple[object, ...]) -> bool:
    """Whether volumes are convolved by kernels of ATen's own, which make row-major tensors of all. That may depend on
    sizes."""
    batch, least_work, large_batch = x.shape[0], 20480, 16
    if is_one(batch):
        surely(product(x.shape[:4]) > least_work)
    elif torch.get_num_threads() == 1:
        surely(batch >= large_batch)
    numbers = [[*map(hint_of, each)] if isinstance(each, (list, tuple)) else each for each in options]
    with torch._C._DisableTorchDispatch():
        like = [torch.empty((), dtype=meta.dtype).expand([*map(hint_of, meta.shape)]) for meta in (x, weight)]
        return "Slow" in str(torch._C._select_conv_backend(*like, None, *numbers))  # type: ignore[arg-type]


def _as_image(line: TensorMeta) -> TensorMeta:
    step = line.shape[2] * line.stride[2]
    return line._replace(shape=(*line.shape[:2], 1, line.shape[2]), stride=(*line.stride[:2], step, line.stride[2]))


@rule("convolution_backward")
def _convolution_backward(
    grad: TensorMeta, x: TensorMeta, weight: TensorMeta, *rest: Any
) -> tuple[TensorMeta | None, ...]:
    def like(meta: TensorMeta) -> TensorMeta:
        return fresh(meta.shape, meta.dtype, meta.device, _convolved_strides(meta.shape, x, weight, rest[1:-1]))

    mask = rest[-1]
    bias = row_major(grad, grad.shape[1:2]) if mask[2] else None
    return like(x) if mask[0] else None, like(weight) if mask[1] else None, bias


@rule_of_symbols(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(x: TensorMeta, *_: object) -> TensorMeta:
    return row_major(x)  # torch's meta kernel, where there is one, has the strides of x


@rule_of_symbols(aten._pdist_forward.default)
def _pdist(x: TensorMeta, p: float = 2) -> TensorMeta:
    return row_major(x, (x.shape[0] * (x.shape[0] - 1) // 2,))


@rule("_pdist_backward")
def _pdist_backward(grad: TensorMeta, x: TensorMeta, *_: object) -> TensorMeta:
    return row_major(x)


# ---- decompositions: meta kernels have the strides of a GPU's ----


def _columns(x: TensorMeta, shape: tuple[Size, ...], dtype: torch.dtype | None = None) -> TensorMeta:
    """A new batch of matrices by columns."""
    *batch, rows, columns = shape
    *steps, last, one = contiguous_strides((*batch, columns, rows))
    return fresh(shape, dtype or x.dtype, x.device, (*steps, one, last))


@rule_of_symbols(aten._linalg_svd.default)
def _svd(x: TensorMeta, full: bool = False, compute_uv: bool = True, **_: object) -> tuple[TensorMeta, ...]:
    require(x.ndim >= 2, "linalg.svd: The input tensor A must have at least 2 dimensions.")
    *batch, rows, columns = x.shape
    count = min(rows, columns)
    values = row_major(x, (*batch, count), x.dtype.to_real())
    if not compute_uv:
        return row_major(x, (0,)), values, row_major(x, (0,))
    right = (*batch, columns if full else count, columns)
    left = _columns(x, (*batch, rows, rows if full else count))
    return left, values, _columns(x, right) if x.device.type == "cpu" else row_major(x, right)


@rule_of_symbols(aten.linalg_eig.default)
def _eig(x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    require(x.ndim >= 2 and not differ(x.shape[-1], x.shape[-2]), "linalg.eig: A must be batches of square matrices")
    dtype = x.dtype.to_complex()
    vectors = _columns(x, x.shape, dtype) if x.device.type == "cpu" else row_major(x, dtype=dtype)
    return row_major(x, x.shape[:-1], dtype), vectors


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


@rule_of_symbols(aten.channel_shuffle.default)
def _channel_shuffle(x: TensorMeta, groups: int) -> TensorMeta:
    require(x.ndim >= 3 and x.shape[1] % groups == 0, "channel_shuffle expects channels divisible by groups")
    return in_suggested_format(x, tuple(x.shape))


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


def _padded_backward(grad: TensorMeta, x: TensorMeta, pad: Ints, dims: int, reflects: bool) -> TensorMeta:
    wanted = _padded(x, pad, dims, reflects).shape
    require(not shapes_differ(grad.shape, wanted), f"grad_output has sizes {list(grad.shape)}, not {list(wanted)}")
    return in_suggested_format(x) if x.device.type == "cpu" else row_major(x)


for _kind, _dims in itertools.product(("reflection", "replication"), (1, 2, 3)):
    _options: dict[str, Any] = {"dims": _dims, "reflects": _kind == "reflection"}
    rule_of_symbols(getattr(aten, f"{_kind}_pad{_dims}d").default)(functools.partial(_padded, **_options))
    rule(f"{_kind}_pad{_dims}d_backward")(functools.partial(_padded_backward, **_options))


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


_MARKS = ("k", "d", "dilation")
_OPTIONS = (
    ("kernel_size must either be", 1),
    ("stride must either be omitted,", 0),
    ("padding must either be", 1),
    ("dilation must be either", 1),
)
"""What a pool's options have to be, and how many numbers at least."""


def _pool_options(name: str, *options: Ints) -> list[list[Size]]:
    """Kernel, stride, padding and perhaps dilation, each for both dimensions."""
    for numbers, (text, least) in zip(options, _OPTIONS):
        require(least <= len(numbers) <= 2, f"{name}: {text} a single int, or a tuple of two ints")
    kernel, stride, *others = options
    return [_per_dimension(numbers, 2) for numbers in (kernel, stride or kernel, *others)]


def _half(size: Size) -> Size:
    """Rounded towards zero."""
    return size // 2 if size >= 0 else -(-size // 2)


def _pool_shape(x: TensorMeta, options: list[list[Size]], ceil_mode: bool) -> TensorMeta:
    for extent, step, pad, spread in zip(*options):
        require(step != 0, "stride should not be zero")
        require(pad >= 0, f"pad must be non-negative, but got pad: {pad}")
        require(
            pad <= _half((extent - 1) * spread + 1),
            f"pad should be at most half of effective kernel size, but got pad={pad}, kernel_size={extent} and "
            f"dilation={spread}",
        )
    for (high, wide), what, mark in zip((options[i] for i in (0, 1, 3)), ("kernel size", "stride", "dilation"), _MARKS):
        require(
            high > 0 and wide > 0,
            f"{what} should be greater than zero, but got {mark}H: {high} {mark}W: {wide}",
        )
    require(
        x.ndim in (3, 4) and all(size != 0 for size in x.shape[-3:]),
        f"Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input, but got:{list(x.shape)}",
    )
    (kernel_high, kernel_wide), _, (high, wide), _ = options
    require(
        high <= kernel_high // 2 and wide <= kernel_wide // 2,
        "pad should be smaller than or equal to half of kernel size, but got "
        f"padW = {wide}, padH = {high}, kW = {kernel_wide}, kH = {kernel_high}",
    )
    sizes = tuple(
        _pooled(size, extent, step, pad, spread, ceil_mode)
        for size, extent, step, pad, spread in zip(x.shape[-2:], *options)
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
    options = _pool_options("max_pool2d", kernel, stride, padding, dilation)
    require(x.ndim in (3, 4), "non-empty 3D or 4D (batch mode) tensor expected for input")
    result = _pool_shape(x, options, ceil_mode)
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
    options = _pool_options("avg_pool2d", kernel, stride, padding)
    require(divisor_override != 0, "divisor must be not zero")
    wrap_dim(-3, x.ndim)
    return _pool_shape(x, [*options, [1, 1]], ceil_mode)


_ROWS = (
    ("kernel_size must be an int, list of ints or", 1),
    ("stride must be None, an int, list of ints, or", 0),
    ("padding must be an int, list of ints, or", 1),
    ("dilation must be an int, list of ints or", 1),
)


def row_options(x: TensorMeta, options: list[list[Size]], ceil_mode: bool) -> tuple[Size, ...]:
    """Kernel, stride, padding and dilation of `torch.max_pool1d`, which has words of its own for what it refuses."""
    require(
        x.ndim in (2, 3) and all(size != 0 for size in x.shape[-2:]),
        f"max_pool1d: Expected 2D or 3D (batch mode) tensor with optional 0 dim batch size for input, but got:"
        f"{list(x.shape)}",
    )
    for numbers, (text, least) in zip(options, _ROWS):
        require(least <= len(numbers) <= 1, f"max_pool1d() {text} tuple of ints of size 1 but got size {len(numbers)}")
    (kernel,), (stride,), (padding,), (dilation,) = options[0], options[1] or options[0], *options[2:]
    for what, number in (("kernel_size", kernel), ("stride", stride)):
        require(number > 0, f"max_pool1d() {what} must be greater than zero, but got {number}")
    require(padding >= 0, f"max_pool1d() padding must be non-negative, but got {padding}")
    require(
        padding <= kernel // 2,
        f"max_pool1d() padding should be at most half of kernel size, but got padding={padding} and "
        f"kernel_size={kernel}",
    )
    require(dilation > 0, f"max_pool1d() dilation must be greater than zero, but got {dilation}")
    size = _pooled(x.shape[-1], kernel, stride, padding, dilation, ceil_mode)
    require(size > 0, f"max_pool1d() Invalid computed output size: {size}")
    return kernel, stride, padding, dilation


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
