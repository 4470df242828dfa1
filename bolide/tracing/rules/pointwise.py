"""Shape rules of elementwise operations: broadcast shape, promoted dtype, TensorIterator's strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import (
    broadcast_shapes,
    dtype_name,
    fresh,
    laid_out_like,
    like_strides,
    require,
    result_device,
    result_strides,
    result_type,
    row_major,
)
from bolide.tracing.rules.registry import rule


def elementwise(tensors: list[TensorMeta], dtype: torch.dtype) -> TensorMeta:
    """The result of an elementwise operation on these tensors."""
    first = tensors[0]
    if len(tensors) == 1:
        return TensorMeta(first.shape, result_strides(first.shape, tensors), 0, dtype, first.device)
    shape = broadcast_shapes([meta.shape for meta in tensors])
    return TensorMeta(shape, result_strides(shape, tensors), 0, dtype, result_device(tensors))


_NUMBER = TensorMeta((), (), 0, torch.float64, torch.device("cpu"))


def _beside_number(x: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    """A number is an operand without dimensions, and strides of dimensions with one element are others then."""
    return TensorMeta(x.shape, result_strides(x.shape, (x, _NUMBER)), 0, dtype, x.device)


def floating(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which integers are computed by operations such as exp and mean."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def _unchanged(dtype: torch.dtype) -> torch.dtype:
    return dtype


def _boolean(dtype: torch.dtype) -> torch.dtype:
    return torch.bool


def converted(meta: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    """An operand as the CPU's kernels see it: one of another type is converted first, into a dense tensor."""
    if meta.dtype is dtype or meta.device.type != "cpu":
        return meta
    return meta._replace(stride=like_strides(meta))


def _register(ops: str, arity: int, promoted: Callable[[torch.dtype], torch.dtype]) -> None:
    """Register operations of which the first `arity` arguments are operands; the others are parameters."""

    def infer(*args: Any, **_: object) -> TensorMeta:
        operands = args[:arity]
        tensors = [meta for meta in operands if meta.__class__ is TensorMeta]
        if arity == 1:
            return elementwise(tensors, promoted(tensors[0].dtype))
        common = result_type(operands)
        computed = common if promoted is _boolean else promoted(common)
        metas = [converted(meta, computed) for meta in tensors]
        return (
            elementwise(metas, promoted(common)) if len(metas) == arity else _beside_number(metas[0], promoted(common))
        )

    rule(*ops.split())(infer)


_UNARY = """neg relu sign sgn ceil floor trunc round round.decimals bitwise_not positive silu gelu mish hardswish
    hardsigmoid hardtanh elu leaky_relu softplus threshold frac nan_to_num square"""
_UNARY_FLOAT = """exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh erf erfc erfinv sigmoid reciprocal lgamma digamma logit sinc special_erfcx special_ndtri special_log_ndtr
    special_entr special_i0e special_i1 special_i1e i0"""
_UNARY_BOOL = "logical_not isnan isinf isposinf isneginf signbit"
_BINARY = """add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar maximum minimum fmax fmin
    remainder.Tensor remainder.Scalar remainder.Scalar_Tensor fmod.Tensor fmod.Scalar floor_divide floor_divide.Scalar
    pow.Tensor_Tensor hypot nextafter logaddexp logaddexp2 bitwise_and.Tensor
    bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar
    bitwise_left_shift.Tensor bitwise_right_shift.Tensor __lshift__.Scalar __rshift__.Scalar
    clamp_min.Tensor clamp_max.Tensor gcd lcm heaviside"""
_BINARY_FLOAT = "div.Tensor div.Scalar atan2 copysign.Tensor xlogy.Tensor xlogy.Scalar_Other special_xlog1py"
_BINARY_BOOL = " ".join(f"{op}.Tensor {op}.Scalar" for op in ("eq", "ne", "lt", "le", "gt", "ge"))
_LOGICAL = "logical_and logical_or logical_xor"
_BACKWARD = """gelu_backward silu_backward mish_backward sigmoid_backward tanh_backward hardtanh_backward
    hardswish_backward hardsigmoid_backward softplus_backward logit_backward"""

_register(_UNARY, 1, _unchanged)
_register(_UNARY_FLOAT, 1, floating)
_register(_UNARY_BOOL, 1, _boolean)
_register(f"{_BINARY} {_BACKWARD} lerp.Scalar", 2, _unchanged)
_register(_BINARY_FLOAT, 2, floating)
_register(_BINARY_BOOL + " " + _LOGICAL, 2, _boolean)
_register("lerp.Tensor addcmul addcdiv", 3, _unchanged)


@rule("abs")
def _abs(x: TensorMeta) -> TensorMeta:
    return elementwise([x], x.dtype.to_real())


@rule("elu_backward")
def _elu_backward(
    grad: TensorMeta, alpha: float, scale: float, input_scale: float, is_result: bool, x: TensorMeta
) -> TensorMeta:
    return elementwise([grad, x], grad.dtype)


@rule("threshold_backward", "leaky_relu_backward")
def _backward_of_input(grad: TensorMeta, x: TensorMeta, *_: object) -> TensorMeta:
    """The input comes first, where operands disagree on an order of dimensions."""
    return elementwise([x, grad], result_type((grad, x)))


@rule("pow.Tensor_Scalar", "clamp_min", "clamp_max")
def _beside_a_parameter(x: TensorMeta, number: object) -> TensorMeta:
    return elementwise([x], result_type((x, number)))


@rule("pow.Scalar")
def _power_of_number(base: object, exponent: TensorMeta) -> TensorMeta:
    return fresh(exponent.shape, result_type((base, exponent)), exponent.device)


@rule("native_dropout_backward")
def _native_dropout_backward(grad: TensorMeta, mask: TensorMeta, scale: float) -> TensorMeta:
    return elementwise([grad, mask], result_type((grad, scale)))


@rule("log_sigmoid_forward")
def _log_sigmoid_forward(x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    result = row_major(x)
    return result, result


@rule("log_sigmoid_backward")
def _log_sigmoid_backward(grad: TensorMeta, x: TensorMeta, buffer: TensorMeta) -> TensorMeta:
    return laid_out_like(grad)


@rule("_prelu_kernel")
def _prelu(x: TensorMeta, weight: TensorMeta) -> TensorMeta:
    return laid_out_like(x)


@rule("_prelu_kernel_backward")
def _prelu_backward(grad: TensorMeta, x: TensorMeta, weight: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    result = elementwise([x, weight, grad], x.dtype)
    return result, result


@rule("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(a: TensorMeta, b: object, *, rounding_mode: str | None) -> TensorMeta:
    common = result_type((a, b))
    dtype = floating(common) if rounding_mode is None else common
    return elementwise([a, b], dtype) if isinstance(b, TensorMeta) else _beside_number(a, dtype)


@rule("clamp", "clamp.Tensor")
def _clamp(x: TensorMeta, low: object = None, high: object = None, **bounds: object) -> TensorMeta:
    operands = (x, bounds.get("min", low), bounds.get("max", high))
    require(operands[1:] != (None, None), "torch.clamp: At least one of 'min' or 'max' must not be None")
    tensors = [meta for meta in operands if meta.__class__ is TensorMeta]
    keeps_type = len(tensors) == 1 and x.dtype.is_floating_point  # also beside complex numbers
    return elementwise(tensors, x.dtype if keeps_type else result_type(operands))


@rule("where.self")
def _where(condition: TensorMeta, a: TensorMeta, b: TensorMeta) -> TensorMeta:
    require(
        condition.dtype in (torch.bool, torch.uint8),
        f"where expected condition to be a boolean tensor, but got a tensor with dtype {dtype_name(condition.dtype)}",
    )
    result = elementwise([condition, a, b], a.dtype if a.dtype is b.dtype else result_type((a, b)))
    return result._replace(device=result_device([a, b, condition]))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: TensorMeta, mask: TensorMeta, value: object) -> TensorMeta:
    require(
        mask.dtype is torch.bool,
        "masked_fill_ only supports boolean masks, but got mask with dtype " + dtype_name(mask.dtype),
    )
    require(
        value.__class__ is not TensorMeta or not value.shape,
        "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
        f"{value.ndim if value.__class__ is TensorMeta else 0} dimension(s).",
    )
    return row_major(x, broadcast_shapes([x.shape, mask.shape]))


@rule("clone")
def _clone(x: TensorMeta, *, memory_format: torch.memory_format | None = None) -> TensorMeta:
    return laid_out_like(x, memory_format)


@rule("_to_copy")
def _to_copy(
    x: TensorMeta,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **_: object,
) -> TensorMeta:
    stride = like_strides(x, memory_format)
    return TensorMeta(x.shape, stride, 0, dtype or x.dtype, torch.device(device) if device is not None else x.device)
