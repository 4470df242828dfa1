"""Shape rules of reductions and scans, softmax, norms and losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from bolide.symbolic import times
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import (
    Ints,
    differ,
    dtype_name,
    fresh,
    in_suggested_format,
    is_contiguous,
    laid_out_like,
    require,
    result_type,
    row_major,
    shapes_differ,
    wrap_dim,
)
from bolide.tracing.rules.pointwise import converted, elementwise, floating
from bolide.tracing.rules.registry import rule

Dims = int | Sequence[int] | None
Grads = tuple[TensorMeta | None, ...]
_MOST_DIMS = 64  # a reduction's dimensions are bits of a word


def _dims(x: TensorMeta, dims: Dims) -> Ints:
    if dims is None:
        return range(x.ndim)
    require(x.ndim <= _MOST_DIMS, "only tensors with up to 64 dims are supported")
    if dims == []:
        return range(x.ndim)
    return [wrap_dim(dim, x.ndim) for dim in ([dims] if isinstance(dims, int) else dims)]


def reduced(x: TensorMeta, dims: Dims, keepdim: bool, dtype: torch.dtype) -> TensorMeta:
    """The result of reducing over `dims` (None or empty: all)."""
    gone = _dims(x, dims)
    if keepdim:
        return fresh(tuple(1 if dim in gone else size for dim, size in enumerate(x.shape)), dtype, x.device)
    return fresh(tuple(size for dim, size in enumerate(x.shape) if dim not in gone), dtype, x.device)


def _sum_dtype(x: TensorMeta, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        return dtype
    return x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64


@rule("sum", "sum.dim_IntList", "prod", "prod.dim_int", "nansum")
def _sum(x: TensorMeta, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    return reduced(x, dims, keepdim, _sum_dtype(x, dtype))


@rule("mean", "mean.dim")
def _mean(x: TensorMeta, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    which, wanted = ("Input", x.dtype) if dtype is None else ("Optional", dtype)
    require(
        wanted.is_floating_point or wanted.is_complex,
        f"mean(): could not infer output dtype. {which} dtype must be either a floating point or complex dtype. "
        f"Got: {dtype_name(wanted)}",
    )
    return reduced(x, dims, keepdim, wanted)


def _require_elements(x: TensorMeta, dims: Sequence[int], name: str, error: type[Exception] = IndexError) -> None:
    """What has no neutral element needs one element at least: along each of `dims`, or, without any, in all."""
    for dim in dims:
        place = wrap_dim(dim, x.ndim)
        if x.shape:
            require(x.shape[place] != 0, f"{name}(): Expected reduction dim {dim} to have non-zero size.", IndexError)
    for size in () if dims else x.shape:
        require(
            size != 0,
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with "
            "the 'dim' argument.",
            error,
        )


def _extremum(name: str, x: TensorMeta, dims: Sequence[int] = (), keepdim: bool = False) -> TensorMeta:
    _require_elements(x, dims, name, RuntimeError)
    return reduced(x, list(dims), keepdim, x.dtype)


for _name in ("amax", "amin"):
    rule(_name)(functools.partial(_extremum, _name))


@rule("max", "min")
def _max_all(x: TensorMeta) -> TensorMeta:
    _require_elements(x, (), "max", RuntimeError)
    return fresh((), x.dtype, x.device)


@rule("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def _any(x: TensorMeta, dims: Dims = None, keepdim: bool = False) -> TensorMeta:
    return reduced(x, dims, keepdim, torch.uint8 if x.dtype is torch.uint8 else torch.bool)


@rule("argmax", "argmin")
def _argmax(x: TensorMeta, dim: int | None = None, keepdim: bool = False) -> TensorMeta:
    _require_elements(x, () if dim is None else (dim,), "argmax")
    return reduced(x, dim, keepdim, torch.int64)


@rule("max.dim", "min.dim")
def _max_dim(x: TensorMeta, dim: int, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    _require_elements(x, (dim,), "max")
    return reduced(x, dim, keepdim, x.dtype), reduced(x, dim, keepdim, torch.int64)


@rule("logsumexp")
def _logsumexp(x: TensorMeta, dims: Dims, keepdim: bool = False) -> TensorMeta:
    return reduced(x, dims, keepdim, floating(x.dtype))


@rule("var.correction", "std.correction")
def _var(x: TensorMeta, dims: Dims = None, *, correction: object = None, keepdim: bool = False) -> TensorMeta:
    return reduced(x, dims, keepdim, x.dtype.to_real())


@rule("var_mean.correction", "std_mean.correction")
def _var_mean(
    x: TensorMeta, dims: Dims = None, *, correction: object = None, keepdim: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    return reduced(x, dims, keepdim, x.dtype.to_real()), reduced(x, dims, keepdim, x.dtype)


@rule("linalg_vector_norm")
def _vector_norm(
    x: TensorMeta, order: object = 2, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorMeta:
    require(
        x.dtype.is_floating_point or x.dtype.is_complex,
        f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {dtype_name(x.dtype)}",
    )
    if isinstance(order, (int, float)) and (order < 0 or order == math.inf):
        given = [dims] if isinstance(dims, int) else dims or range(x.ndim)
        for dim in given:
            what = f"the dimension {dim}because this dimension is empty and" if dims else "an empty tensor because"
            require(
                x.shape[wrap_dim(dim, x.ndim)] != 0 if x.shape else True,
                f"linalg.vector_norm cannot compute the {float(order)} norm on {what} the operation does not have an "
                "identity",
            )
    return reduced(x, dims, keepdim, (dtype or x.dtype).to_real())


@rule("cumsum", "cumprod")
def _cumsum(x: TensorMeta, dim: int, *, dtype: torch.dtype | None = None) -> TensorMeta:
    return row_major(x, dtype=_sum_dtype(x, dtype))


# ---- softmax and losses -------------------------------------------------------------------------------------------


@rule("_softmax", "_log_softmax")
def _softmax(x: TensorMeta, dim: int, half_to_float: bool) -> TensorMeta:
    wrap_dim(dim, x.ndim)
    return row_major(x, dtype=torch.float32 if half_to_float else x.dtype)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(grad: TensorMeta, output: TensorMeta, dim: int, dtype: torch.dtype) -> TensorMeta:
    wrap_dim(dim, grad.ndim)
    return row_major(grad, dtype=dtype)


@rule("nll_loss_forward")
def _nll_loss(
    x: TensorMeta, target: TensorMeta, weight: TensorMeta | None, reduction: int, ignore_index: int
) -> tuple[TensorMeta, TensorMeta]:
    shape = (x.shape[0],) if reduction == 0 and x.ndim == 2 else ()
    require(
        target.dtype in (torch.int64, torch.uint8),
        f"expected scalar type Long but found {dtype_name(target.dtype)}",
    )
    require(
        weight is None or weight.numel == x.shape[-1],
        f"weight tensor should be defined either for all {x.shape[-1]} classes or no classes but got weight tensor of "
        f"shape: {list(weight.shape) if weight is not None else None}",
    )
    if x.ndim == 2 and shapes_differ(target.shape, x.shape[:1]):
        raise ValueError(f"Expected input batch_size ({x.shape[0]}) to match target batch_size ({target.shape[0]}).")
    return fresh(shape, x.dtype, x.device), fresh((), x.dtype, x.device)


@rule("nll_loss2d_forward")
def _nll_loss2d(
    x: TensorMeta, target: TensorMeta, weight: TensorMeta | None, reduction: int, ignore_index: int
) -> tuple[TensorMeta, TensorMeta]:
    require(
        weight is None or weight.numel == x.shape[1],
        "weight tensor should be defined either for all or no classes",
    )
    shape = (x.shape[0], *x.shape[2:]) if reduction == 0 else ()
    return fresh(shape, x.dtype, x.device), fresh((), x.dtype, x.device)


@rule("nll_loss_backward", "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
@rule("multilabel_margin_loss_backward")
def _loss_backward(grad: TensorMeta, x: TensorMeta, *_: object) -> TensorMeta:
    return row_major(x)


@rule("nll_loss2d_backward")
def _nll_loss2d_backward(grad: TensorMeta, x: TensorMeta, *_: object) -> TensorMeta:
    made = laid_out_like(x)  # in which the kernel counts places as if it were row-major
    require(is_contiguous(made), "grad_input must be contiguous")
    return made


@rule("binary_cross_entropy")
def _binary_cross_entropy(
    x: TensorMeta, target: TensorMeta, weight: TensorMeta | None = None, reduction: int = 1
) -> TensorMeta:
    return laid_out_like(x) if reduction == 0 else fresh((), x.dtype, x.device)


@rule("binary_cross_entropy_backward")
def _binary_cross_entropy_backward(grad: TensorMeta, x: TensorMeta, *_: object) -> TensorMeta:
    return laid_out_like(x)


@rule("mse_loss", "smooth_l1_loss")
def _promoted_loss(x: TensorMeta, target: TensorMeta, reduction: int = 1, *_: object) -> TensorMeta:
    return _elementwise_loss(x, target, reduction, result_type([x, target]))


@rule("huber_loss")
def _huber_loss(x: TensorMeta, target: TensorMeta, reduction: int = 1, *_: object) -> TensorMeta:
    return _elementwise_loss(x, target, reduction, x.dtype)


def _elementwise_loss(x: TensorMeta, target: TensorMeta, reduction: int, dtype: torch.dtype) -> TensorMeta:
    operands = [converted(meta, dtype) for meta in (x, target)]
    return elementwise(operands, dtype) if reduction == 0 else fresh((), dtype, x.device)


# ---- normalisation ------------------------------------------------------------------------------------------------


def _statistics(x: TensorMeta, weight: TensorMeta | None) -> torch.dtype:
    """The dtype of saved statistics: that of the parameters, or float32 for half-precision inputs."""
    mixed = weight is not None and weight.dtype is not x.dtype
    return torch.float32 if mixed else x.dtype


def _accumulated(x: TensorMeta, weight: TensorMeta | None) -> torch.dtype:
    """As `_statistics`; kernels of GPUs keep what they have accumulated."""
    narrow = x.device.type == "cuda" and x.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if narrow else _statistics(x, weight)


@rule("native_layer_norm")
def _layer_norm(
    x: TensorMeta, shape: Ints, weight: TensorMeta | None, bias: TensorMeta | None, eps: float
) -> tuple[TensorMeta, ...]:
    axis = x.ndim - len(shape)
    require(
        shape,
        "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
        "normalized_shape = []",
    )
    if shapes_differ(shape, x.shape[axis:]):
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], but "
            f"got input of size{list(x.shape)}"
        )
    for parameter, what in ((weight, "weight"), (bias, "bias")):
        require(
            parameter is None or not shapes_differ(parameter.shape, shape),
            f"Expected {what} to be of same shape as normalized_shape, but got {what} of shape "
            f"{list(parameter.shape) if parameter is not None else None} and normalized_shape = {list(shape)}",
        )
    stats = row_major(x, (*x.shape[:axis], *([1] * len(shape))), _accumulated(x, weight))
    return row_major(x), stats, stats


@rule("native_layer_norm_backward")
def _layer_norm_backward(grad: TensorMeta, x: TensorMeta, shape: Ints, *rest: Any) -> Grads:
    _, _, weight, bias, mask = rest
    parameter = row_major(x if weight is None else weight, tuple(shape))
    return (
        row_major(x) if mask[0] else None,
        parameter if mask[1] and weight is not None else None,
        parameter if mask[2] and bias is not None else None,
    )


@rule("_fused_rms_norm_backward")
def _rms_norm_backward(
    grad: TensorMeta, x: TensorMeta, shape: Ints, rstd: TensorMeta, weight: TensorMeta | None, mask: Sequence[bool]
) -> Grads:
    parameter = row_major(weight, tuple(shape)) if weight is not None and mask[1] else None
    return row_major(x) if mask[0] else None, parameter


@rule("native_group_norm")
def _group_norm(
    x: TensorMeta, weight: TensorMeta | None, bias: TensorMeta | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[TensorMeta, ...]:
    require(group > 0, f"Expected num groups to be greater than 0, got {group}")
    require(
        c % group == 0,
        "Expected number of channels in input to be divisible by num_groups, but got input of shape "
        f"{list(x.shape)} and num_groups={group}",
    )
    for name, parameter in (("weight", weight), ("bias", bias)):
        require(
            parameter is None or (parameter.ndim == 1 and not differ(parameter.shape[0], c)),
            f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of shape "
            f"{list(parameter.shape) if parameter is not None else None} and input of shape {list(x.shape)}",
        )
    fits = not differ(x.numel, times(times(n, c), hxw))
    require(fits, "Expected X.numel() == N * C * HxW to be true, but got false.")
    stats = row_major(x, (n, group), _statistics(x, weight))
    return in_suggested_format(x), stats, stats


def _norm_gradients(x: TensorMeta, weight: TensorMeta | None, channels: int, mask: Sequence[bool]) -> Grads:
    parameter = row_major(x if weight is None else weight, (channels,))
    return in_suggested_format(x) if mask[0] else None, parameter if mask[1] else None, parameter if mask[2] else None


@rule("native_group_norm_backward")
def _group_norm_backward(grad: TensorMeta, x: TensorMeta, *rest: Any) -> Grads:
    _, _, weight, _, channels, _, _, mask = rest
    return _norm_gradients(x, weight, channels, mask)


@rule("native_batch_norm_backward")
def _batch_norm_backward(grad: TensorMeta, x: TensorMeta, weight: TensorMeta | None, *rest: Any) -> Grads:
    return _norm_gradients(x, weight, x.shape[1], rest[-1])


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm(x: TensorMeta, weight: TensorMeta | None, *_: object) -> tuple[TensorMeta, ...]:
    stats = row_major(x, (x.shape[1],), _accumulated(x, weight))
    return _batch_normed(x), stats, stats


def _batch_normed(x: TensorMeta) -> TensorMeta:
    """On a CPU, torch asks first whether the input is row-major, which one of one place in any format is, too."""
    return row_major(x) if x.device.type == "cpu" and is_contiguous(x) else in_suggested_format(x)


@rule("_native_batch_norm_legit_functional")
def _batch_norm_with_stats(x: TensorMeta, weight: TensorMeta | None, *rest: Any) -> tuple[TensorMeta, ...]:
    running = [stats._replace(requires_grad=False) for stats in rest[1:3]]  # behind the bias
    return *_batch_norm(x, weight), *running


@rule("_native_batch_norm_legit_no_training")
def _batch_norm_inference(x: TensorMeta, weight: TensorMeta | None, *_: object) -> tuple[TensorMeta, ...]:
    empty = row_major(x, (0,), _accumulated(x, weight))
    return _batch_normed(x), empty, empty
