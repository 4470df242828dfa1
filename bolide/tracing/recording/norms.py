"""Norms in forward mode, and the second derivative of a batch norm, for symbolic sizes: ATen's own are formulas in C++
that ask for the values of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _VF, Tensor
from torch._C import DispatchKey, _functorch
from torch._C._functorch import TransformType
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from bolide.symbolic import Size, product, same_sizes

aten = torch.ops.aten
_backward = aten.native_batch_norm_backward.default


class _BatchNormBackward(_SingleLevelFunction):
    """The gradients of a batch norm. As in eager the statistics are constants to all further derivatives, which the
    formula of the next one makes up for, and only for that."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor | None, *rest: object) -> object:
        mean, variance, saved_mean, saved_scale, train, eps, _ = rest
        ctx.statistics = (saved_mean, saved_scale, None) if train else (mean, variance, eps)
        ctx.save_for_backward(grad, x, weight)
        ctx.set_materialize_grads(False)
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():  # a derivative goes through what is recorded
            return tuple(_backward(grad, x, weight, *rest))

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> object:
        return *_again(*ctx.saved_tensors, *ctx.statistics, *tangents), *[None] * 7


def _again(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    eps: float | None,
    to_x: Tensor | None,
    to_weight: Tensor | None,
    to_bias: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """What becomes of tangents of the gradients: gradients of `grad`, `x` and `weight`. `eps`: the statistics do not
    depend on `x`, and in place of `scale` is the variance.

    With `a` in place of the tangent and `b` in place of `grad` the gradient of `x` is ``weight * scale * P(b)``, where
    ``P(b) = b - mean(b) - normal * mean(b * normal)`` is a projection, and its own adjoint.
    """
    dims = [0, *range(2, x.dim())]
    line = [1, -1, *[1] * (x.dim() - 2)]
    count = product([x.shape[dim] for dim in dims])
    scale = scale.view(line) if eps is None else (scale.view(line) + eps).rsqrt()
    normal = (x - mean.view(line)) * scale
    gamma = 1 if weight is None else weight.view(line)

    def average(value: Tensor) -> Tensor:
        return value.sum(dims, keepdim=True).div(count)

    def projected(value: Tensor) -> Tensor:
        return value if eps is not None else value - average(value) - normal * average(value * normal)

    of_grad, of_normal, of_x, of_weight = [], [], [], None
    if to_x is not None:
        inner = projected(grad)
        of_weight = None if weight is None else (to_x * scale * inner).sum(dims)
        of_grad.append(gamma * scale * projected(to_x))
        if eps is None:
            of_normal.append(-gamma * scale * (average(grad * normal) * to_x + average(to_x * normal) * grad))
            of_x.append(-gamma * scale**2 * normal * average(to_x * inner))
    if to_weight is not None:
        of_grad.append(to_weight.view(line) * normal)
        of_normal.append(to_weight.view(line) * grad)
    if to_bias is not None:
        of_grad.append(to_bias.view(line).expand_as(grad))
    of_x += [scale * projected(each) for each in of_normal]
    return _added(of_grad), _added(of_x), of_weight


def _added(terms: list[Tensor]) -> Tensor | None:
    return sum(terms[1:], terms[0]) if terms else None


def batch_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, *rest: object) -> object:
    """The kernel for autograd of `native_batch_norm_backward`, at one level of transforms."""
    derived = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (grad, x, weight))
    if not derived or forward_ad._current_level >= 0:
        return _backward._op_dk(DispatchKey.Autograd, grad, x, weight, *rest)
    allowed = _functorch.get_single_level_autograd_function_allowed()
    _functorch.set_single_level_autograd_function_allowed(True)
    try:
        return _BatchNormBackward.apply(grad, x, weight, *rest)  # type: ignore[attr-defined]
    finally:
        _functorch.set_single_level_autograd_function_allowed(allowed)


# ---- forward mode ----------------------------------------------------------------------------------------------------


def _in_forward_mode(op: OpOverload, norm: Callable[..., Tensor], exact: bool = False) -> Callable[..., object]:
    """The kernel for autograd of a norm, at one level of transforms. Where it has a tangent, its result is that of
    `norm`, made of operations whose derivatives ask nothing. Statistics have no derivatives, in eager neither."""

    def kernel(x: Tensor, *args: object) -> object:
        if forward_ad._current_level < 0 or not _is_composed(x, args, exact):
            return op._op_dk(DispatchKey.Autograd, x, *args)
        with torch._C._AutoDispatchBelowAutograd():
            plain, *statistics = op(x, *args)
        wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        out = norm(x.to(wide), *args).to(plain.dtype)
        if not same_sizes(out.stride(), plain.stride()):
            out = torch.empty_like(plain).copy_(out)
        return out, *statistics

    return kernel


def _is_composed(x: Tensor, args: tuple[object, ...], exact: bool) -> bool:
    """Whether this level has a tangent, or is a gradient with one. Where the tangent has derivatives, eager's formula
    takes the statistics for constants, unless it is `exact`: that is left to it."""
    levels = [each.key() for each in _functorch.get_interpreter_stack() or ()]
    if not levels:
        tensors = [arg for arg in (x, *args) if isinstance(arg, Tensor)]
        has_tangent = any(_VF._unpack_dual(tensor, level=0)[1] is not None for tensor in tensors)
        return has_tangent and (exact or not x.requires_grad)
    if levels[-1] == TransformType.Grad:
        return TransformType.Jvp in levels
    derived = TransformType.Jvp in levels[:-1] or TransformType.Grad in levels
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    return exact or not (derived or x.requires_grad)


def _normal(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centered = x - x.mean(dims, keepdim=True)
    return centered * _inverse(centered.square().mean(dims, keepdim=True), eps)


def _inverse(variance: Tensor, eps: float) -> Tensor:
    return aten.add.Scalar(variance, eps).rsqrt()  # type: ignore[no-any-return]


def _layer_norm(x: Tensor, shape: list[Size], weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    normal = _normal(x, list(range(-len(shape), 0)), eps)
    scaled = normal if weight is None else normal * weight
    return scaled if bias is None else scaled + bias


def _of_channels(x: Tensor, value: Tensor) -> Tensor:
    return value.view(1, -1, *[1] * (x.dim() - 2))


def _weighed(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = normal if weight is None else normal * _of_channels(normal, weight)
    return scaled if bias is None else scaled + _of_channels(normal, bias)


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    count: Size,
    channels: Size,
    length: Size,
    groups: int,
    eps: float,
) -> Tensor:
    rows = x.reshape(count, groups, channels // groups * length)
    return _weighed(_normal(rows, [2], eps).view(x.shape), weight, bias)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    train: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    if train:
        return _weighed(_normal(x, [0, *range(2, x.dim())], eps), weight, bias)
    assert mean is not None and variance is not None
    normal = (x - _of_channels(x, mean)) * _inverse(_of_channels(x, variance), eps)
    return _weighed(normal, weight, bias)


def kernels() -> dict[OpOverload, Callable[..., object]]:
    """Our kernels for autograd."""
    norms: dict[OpOverload, Callable[..., object]] = {
        aten.native_layer_norm.default: _in_forward_mode(aten.native_layer_norm.default, _layer_norm),
        aten.native_group_norm.default: _in_forward_mode(aten.native_group_norm.default, _group_norm, exact=True),
        aten.native_batch_norm.default: _in_forward_mode(aten.native_batch_norm.default, _batch_norm),
    }
    return {_backward: batch_norm_backward, **norms}
