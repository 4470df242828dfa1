"""Windows over a dimension, images resampled at places, and signals put together, for sizes that are symbols: what
native code takes integers for is composed of what takes sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table
from bolide.dynamo.machine.breaking import can_require, require
from bolide.dynamo.machine.calls import NATIVE, SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.native_calls import recorded_as
from bolide.symbolic import Size
from bolide.tracing import TracedTensor
from bolide.tracing.rules.common import suggested_format


@answers(torch.Tensor.unfold)
def _unfold(vm: Machine, x: object, dimension: object, size: Any, step: Any) -> object:
    """Windows whose size or step is a symbol, as the view that they are."""
    if type(x) is not TracedTensor or torch.SymInt not in (type(size), type(step)) or type(dimension) is not int:
        return NATIVE
    dim = dimension
    vm.trace.where = vm.where()
    if not x.dim() or not -x.dim() <= dim < x.dim() or not (0 <= size <= x.shape[dim] and step > 0):
        return NATIVE  # which raises
    if forward_ad._current_level >= 0:
        return NATIVE
    return recorded_as(vm, torch.Tensor.unfold, [x, dim, size, step], lambda: _view(x, dim % x.dim(), size, step))


def _view(x: torch.Tensor, dim: int, size: Size, step: Size) -> torch.Tensor:
    derives = x.requires_grad and torch.is_grad_enabled()
    return (_Windows.apply if derives else _windows)(x, dim, size, step)  # type: ignore[no-untyped-call]


def _windows(x: torch.Tensor, dim: int, size: Size, step: Size) -> torch.Tensor:
    sizes: list[Size] = [*x.shape, size]
    strides: list[Size] = [*x.stride(), x.stride(dim)]
    sizes[dim], strides[dim] = (x.shape[dim] - size) // step + 1, x.stride(dim) * step
    return x.as_strided(sizes, strides)


class _Windows(torch.autograd.Function):
    """Windows over a dimension. ATen's derivative of the view asks much of sizes; here each element has the sum of what
    the windows have that it is in."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, size: Size, step: Size) -> torch.Tensor:
        ctx.of = x.shape, dim, size, step
        result: TracedTensor = _windows(x, dim, size, step)  # type: ignore[assignment]
        result.value.meta.pop("cut", None)  # its derivative is that of the view
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,), (shape, dim, size, step) = gradients, ctx.of
        places = (torch.arange(gradient.shape[dim])[:, None] * step + torch.arange(size)).reshape(-1)
        parts = gradient.movedim(-1, dim + 1).flatten(dim, dim + 1)
        return gradient.new_zeros(shape).index_add(dim, places, parts), None, None, None


@answers(torch.adaptive_avg_pool1d)
def _adaptive_avg_pool1d(vm: Machine, input: object, output_size: object) -> object:
    """To a size that is a symbol: that of images of one row, which takes sizes."""
    x, size = input, output_size
    if isinstance(size, (list, tuple)) and len(size) == 1:
        (size,) = size
    if type(x) is not TracedTensor or type(size) is not torch.SymInt or x.dim() not in (2, 3):
        return NATIVE

    def pool() -> torch.Tensor:
        return F.adaptive_avg_pool2d(x.unsqueeze(-2), (1, size)).squeeze(-2)  # type: ignore[arg-type]

    return recorded_as(vm, torch.adaptive_avg_pool1d, [x, size], pool)


@intercept(F.interpolate)
def _interpolate(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """By areas the size that is computed is given to `adaptive_avg_pool1d`, which is answered above."""
    x = args[0] if args else kwargs.get("input")
    mode = args[3] if len(args) > 3 else kwargs.get("mode")
    if mode != "area" or type(x) is not TracedTensor or x.dim() != 3 or not vm.trace.has_symbols:
        return NATIVE
    vm.enter(F.interpolate, args, kwargs)  # type: ignore[arg-type]
    return SWITCHED


# ---- pooling with kernels that are symbols: of the whole image, most often -------------------------------------------


_AVERAGES = {F.avg_pool1d: 1, F.avg_pool2d: 2, F.avg_pool3d: 3}
_MAXIMA = {F.max_pool2d: 2, torch.max_pool2d: 2, F.max_pool3d: 3, torch.max_pool3d: 3}


@intercept_table(_AVERAGES)
def _avg_pool(function: object, dims: int, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    names = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = dict(zip(names, args)) | kwargs
    given.pop("count_include_pad", None)
    if given.pop("divisor_override", None) is not None:
        return NATIVE
    return _pooled(vm, function, dims, args, kwargs, given)


@intercept_table(_MAXIMA)
def _max_pool(function: object, dims: int, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = dict(zip(names, args)) | kwargs
    if given.pop("dilation", 1) != 1:
        return NATIVE
    return _pooled(vm, function, dims, args, kwargs, given)


@intercept(F.max_pool1d, torch.max_pool1d)
def _max_pool1d(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Where no gradient is wanted eager has a kernel whose result is row-major; traced tensors take the other way."""
    pooled = _max_pool(F.max_pool1d, 1, vm, args, kwargs)
    x = args[0] if args else kwargs.get("input")
    if pooled is not NATIVE or type(x) is not TracedTensor:
        return pooled
    if x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled()):
        return NATIVE
    if kwargs.get("return_indices") or len(args) > 6 or None in args[1:]:
        return NATIVE
    vm.trace.where = vm.where()
    options = {key: value for key, value in kwargs.items() if key != "return_indices" and value is not None}
    return torch.max_pool1d(*args, **options).contiguous()


def _pooled(vm: Machine, function: object, dims: int, args: Args, kwargs: Kwargs, given: Kwargs) -> object:
    x, kernel, stride = (given.pop(name, None) for name in ("input", "kernel_size", "stride"))
    stride = kernel if stride is None or stride in ([], ()) else stride
    sizes, steps = ([*each] if isinstance(each, (list, tuple)) else [each] * dims for each in (kernel, stride))
    symbols = any(type(size) is torch.SymInt for size in (*sizes, *steps))
    if type(x) is not TracedTensor or not symbols or any(each not in (0, None) for each in given.values()):
        return NATIVE
    if function in _AVERAGES and not x.is_floating_point():
        return NATIVE  # the mean is rounded
    if len(sizes) != dims or len(steps) != dims or x.dim() not in (dims + 1, dims + 2) or 0 in x.shape[-dims - 1 :]:
        return NATIVE
    if not all(0 < size <= whole for size, whole in zip(sizes, x.shape[-dims:])) or not all(s > 0 for s in steps):
        return NATIVE  # which raises

    def pool() -> torch.Tensor:
        places: torch.Tensor = x
        if all(size == whole for size, whole in zip(sizes, x.shape[-dims:])):
            shape = *x.shape[:-dims], *[1] * dims
        else:
            for dim, size, step in zip(range(x.dim() - dims, x.dim()), sizes, steps):
                places = _view(places, dim, size, step)
            shape = places.shape[:-dims]
        places = places.flatten(-dims)
        result: torch.Tensor = places.mean(-1) if function in _AVERAGES else places.max(-1).values
        return result.reshape(shape).contiguous(memory_format=suggested_format(x.meta))

    return recorded_as(vm, function, args, pool, **kwargs)


# ---- images and signals ----------------------------------------------------------------------------------------------


@answers(F.affine_grid, torch.affine_grid_generator)
def _affine_grid(vm: Machine, theta: object, size: Sequence[Size], align_corners: bool | None = None) -> object:
    """Places of an image of which sizes are symbols, or whose product is one that autocast computes."""
    if type(theta) is not TracedTensor:
        return NATIVE
    if not any(type(each) is torch.SymInt for each in size) and not torch.is_autocast_enabled(theta.device.type):
        return NATIVE
    if not isinstance(align_corners, bool) or not theta.is_floating_point() or len(size) not in (4, 5):
        return NATIVE
    count, _, *space = size
    if theta.dim() != 3 or tuple(theta.shape) != (count, len(space), len(space) + 1) or not min(space) > 1:
        return NATIVE
    x = theta

    def axis(steps: Size) -> torch.Tensor:
        places: torch.Tensor = torch.arange(steps, dtype=x.dtype, device=x.device)  # type: ignore[arg-type]
        places = places * (2 / (steps - 1)) - 1
        return places if align_corners else places * ((steps - 1) / steps)

    def compute() -> torch.Tensor:
        axes = torch.meshgrid(*map(axis, space), indexing="ij")
        base = torch.stack([*reversed(axes), torch.ones_like(axes[0])], -1).flatten(0, -2)
        return base.expand(count, -1, -1).bmm(x.transpose(1, 2)).view(count, *space, len(space))

    return recorded_as(vm, F.affine_grid, [x, size, align_corners], compute)


@answers(torch.istft)
def _istft(
    vm: Machine,
    input: object,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> object:
    """Frames are transformed, weighted and added; that windows cover all of the signal is checked by the graph."""
    x, hop, width = input, hop_length or n_fft // 4, win_length or n_fft
    numbers = all(type(each) is int for each in (n_fft, hop, width))
    if type(x) is not TracedTensor or not x.is_complex() or x.dim() not in (2, 3) or return_complex or not numbers:
        return NATIVE
    one_sided = n_fft // 2 + 1 if onesided or (onesided is None and x.shape[-2] != n_fft) else n_fft
    if not x.numel() > 0 or x.shape[-2] != one_sided or not 0 < hop <= width <= n_fft or not can_require(vm):
        return NATIVE
    if window is not None and (window.dim() != 1 or window.shape[0] != width or window.is_complex()):
        return NATIVE
    frames = x.shape[-1]
    whole = n_fft + hop * (frames - 1)
    begin = n_fft // 2 if center else 0
    end = begin + length if length is not None else whole - begin
    if not begin < end <= whole:
        return NATIVE  # which raises, or fills up with zeros and says so
    vm.trace.where = vm.where()
    real = torch.empty((), dtype=x.dtype).real.dtype
    weights = torch.ones(width, dtype=real, device=x.device) if window is None else window
    before = (n_fft - width) // 2
    weights = F.pad(weights, (before, n_fft - width - before)) if width != n_fft else weights

    def added(parts: torch.Tensor) -> torch.Tensor:
        signal: torch.Tensor = torch.ops.aten.unfold_backward(parts, [parts.shape[0], whole], 1, n_fft, hop)
        return signal.narrow(1, begin, end - begin)

    cover = added(weights.square().expand(1, frames, n_fft))
    require(vm, cover.abs().min() >= 1e-11)

    def compute() -> torch.Tensor:
        spectra = (x if x.dim() == 3 else x.unsqueeze(0)).transpose(1, 2)[..., : n_fft // 2 + 1]
        parts = torch.fft.irfft(spectra, n_fft, norm="ortho" if normalized else "backward") * weights
        signal = added(parts) / cover
        return signal if x.dim() == 3 else signal.squeeze(0)

    options = {"window": window, "center": center, "normalized": normalized, "onesided": onesided, "length": length}
    return recorded_as(vm, torch.istft, [x, n_fft, hop_length, win_length], compute, **options)
