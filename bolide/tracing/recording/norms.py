"""The second derivative of a batch norm, for symbolic sizes: ATen's own is a formula in C++ that asks for the values of
sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, _functorch
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from bolide.symbolic import product

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
        key = DispatchKey.AutogradCUDA if x.device.type == "cuda" else DispatchKey.AutogradCPU
        return _backward._op_dk(key, grad, x, weight, *rest)
    allowed = _functorch.get_single_level_autograd_function_allowed()
    _functorch.set_single_level_autograd_function_allowed(True)
    try:
        return _BatchNormBackward.apply(grad, x, weight, *rest)  # type: ignore[attr-defined]
    finally:
        _functorch.set_single_level_autograd_function_allowed(allowed)
