"""Calls of ATen ops that graphs of models hold, with fresh random tensors: (overload, args, kwargs)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

aten = torch.ops.aten
Sample = tuple[Any, tuple[Any, ...], dict[str, Any]]
Random = Callable[..., torch.Tensor]


def call(op: Any, *args: Any, **kwargs: Any) -> Sample:
    return op, args, kwargs


def activations(r: Random) -> Iterator[Sample]:
    x, g = r(4, 6) * 3, r(4, 6)
    for approximate in ("none", "tanh"):
        yield call(aten.gelu.default, x, approximate=approximate)
        yield call(aten.gelu_backward.default, g, x, approximate=approximate)
    names = (
        "silu mish hardsigmoid hardswish softplus elu leaky_relu hardtanh log_sigmoid_forward softshrink hardshrink glu"
    )
    for name in names.split():
        yield call(getattr(aten, name).default, x)
    for name in ("silu", "mish", "hardsigmoid", "hardswish"):
        yield call(getattr(aten, f"{name}_backward").default, g, x)
    yield call(aten.softplus.default, x, 1.5, 2)
    yield call(aten.softplus_backward.default, g, x, 1.5, 2)
    yield call(aten.elu_backward.default, g, 1.3, 1.1, 0.9, False, x)
    yield call(aten.elu_backward.default, g, 1.3, 1.1, 0.9, True, aten.elu(x, 1.3, 1.1, 0.9))
    yield call(aten.leaky_relu_backward.default, g, x, 0.1, False)
    yield call(aten.hardtanh_backward.default, g, x, -1, 1.5)
    yield call(aten.threshold.default, x, 0.5, 2.0)
    yield call(aten.threshold_backward.default, g, x, 0)
    yield call(aten.tanh_backward.default, g, x.tanh())
    yield call(aten.sigmoid_backward.default, g, x.sigmoid())
    yield call(aten.log_sigmoid_backward.default, g, x, aten.log_sigmoid_forward(x)[1])
    yield call(aten._prelu_kernel.default, x, r(6))
    yield call(aten._prelu_kernel_backward.default, g, x, r(4, 6))
    yield call(aten.softshrink_backward.default, g, x, 0.5)
    yield call(aten.hardshrink_backward.default, g, x, 0.5)
    yield call(aten.native_dropout_backward.default, g, x > 0, 2.0)


def shapes(r: Random) -> Iterator[Sample]:
    x, g = r(4, 6), r(4, 6)
    yield call(aten.cat.default, [x, g, r(4, 2)], 1)
    yield call(aten.cat.default, [x, r(0), g.t().contiguous().t()], 0)
    yield call(aten.stack.default, [x, g], 1)
    yield call(aten.constant_pad_nd.default, x, [1, 2, -1, 3], 1.5)
    yield call(aten.slice_scatter.default, x, r(4, 2), 1, 1, 5, 2)
    yield call(aten.slice_scatter.default, x, r(2, 6), 0, -2)
    yield call(aten.slice_backward.default, g, [4, 20], 1, 3, 15, 2)
    yield call(aten.select_backward.default, g, [4, 3, 6], 1, -1)
    yield call(aten.select_scatter.default, x, r(4), 1, -2)
    yield call(aten.diagonal_scatter.default, x, r(4), 1)
    yield call(aten.diagonal_backward.default, r(3), [4, 6], -1, 0, 1)
    yield call(aten.repeat.default, x, [2, 3, 1])
    yield call(aten.roll.default, x, [1, -7], [0, 1])
    image = r(2, 3, 6, 8)
    yield call(aten.upsample_nearest2d.default, image, [12, 16], 2.0, 2.0)
    yield call(aten.upsample_nearest2d_backward.default, r(2, 3, 12, 16), [12, 16], [2, 3, 6, 8], 2.0, 2.0)


def softmaxes(r: Random) -> Iterator[Sample]:
    x, g = r(4, 6) * 3, r(4, 6)
    for dim in (0, 1, -1):
        yield call(aten._softmax.default, x, dim, False)
        yield call(aten._log_softmax.default, x, dim, False)
        yield call(aten._softmax_backward_data.default, g, torch.softmax(x, dim), dim, x.dtype)
        yield call(aten._log_softmax_backward_data.default, g, torch.log_softmax(x, dim), dim, x.dtype)
    masked = x.clone()
    masked[1], masked[2, :2] = float("-inf"), float("-inf")
    yield call(aten._softmax.default, masked, -1, False)
    yield call(aten._safe_softmax.default, masked, -1)


def losses(r: Random) -> Iterator[Sample]:
    x, y, g = r(4, 6), r(4, 6), r(4, 6)
    for reduction in (0, 1, 2):
        grad = r(()) if reduction else g
        yield call(aten.mse_loss.default, x, y, reduction)
        yield call(aten.mse_loss_backward.default, grad, x, y, reduction)
        for name in ("smooth_l1_loss", "huber_loss"):
            yield call(getattr(aten, name).default, x, y, reduction, 0.7)
            yield call(getattr(aten, f"{name}_backward").default, grad, x, y, reduction, 0.7)
        yield call(aten.binary_cross_entropy_with_logits.default, x, y.sigmoid(), r(4, 6), r(6), reduction)
        for weight in (None, r(6).abs()):
            yield from likelihoods(r, reduction, weight)


def likelihoods(r: Random, reduction: int, weight: torch.Tensor | None) -> Iterator[Sample]:
    target2d = torch.randint(0, 6, (2, 3, 4))
    target2d[0, 1] = -100
    cases = (
        ("nll_loss", (4, 6), torch.tensor([1, 5, -100, 0])),
        ("nll_loss", (4, 6), torch.randint(0, 6, (4,))),
        ("nll_loss2d", (2, 6, 3, 4), target2d),
    )
    for name, shape, target in cases:
        logs = torch.log_softmax(r(*shape), 1)
        forward, backward = getattr(aten, f"{name}_forward"), getattr(aten, f"{name}_backward")
        yield call(forward.default, logs, target, weight, reduction, -100)
        total = forward(logs, target, weight, reduction, -100)[1]
        grad = r(()) if reduction else r(*target.shape)
        yield call(backward.default, grad, logs, target, weight, reduction, -100, total)


def indexing(r: Random) -> Iterator[Sample]:
    x, i = r(4, 6), torch.randint(0, 4, (3, 5))
    yield call(aten.embedding.default, x, i)
    yield call(aten.embedding_dense_backward.default, r(3, 5, 6), i, 4, -1, False)
    yield call(aten.embedding_dense_backward.default, r(3, 5, 6), i, 4, 2, False)
    yield call(aten.index.Tensor, x, [i])
    yield call(aten.index.Tensor, x, [None, i])
    yield call(aten.index.Tensor, r(4, 5, 6, 3), [i, None, i - 2])
    yield call(aten.index.Tensor, r(4, 5, 6, 3), [None, i - 4, i])
    yield call(aten.index_put.default, x, [torch.randperm(4)[:3]], r(3, 6))
    yield call(aten.index_put.default, x, [torch.tensor([0, 1, 3]), torch.tensor([1, -1, 0])], r(3))
    yield call(aten.index_put.default, x, [x > 0], r(()))
    yield call(aten.index_select.default, x, 1, torch.tensor([3, 0, 5, 5]))
    yield call(aten.gather.default, x, 1, torch.randint(0, 6, (3, 4)))
    places = torch.stack([torch.randperm(6)[:4] for _ in range(3)])
    yield call(aten.scatter.src, x, 1, places, r(3, 4))
    yield call(aten.scatter.value, x, 0, torch.randint(0, 4, (3, 4)), 1.5)
    yield call(aten.index_copy.default, x, 0, torch.tensor([1, 3]), r(2, 6))
    yield call(aten.index_fill.int_Scalar, x, 1, torch.tensor([1, 3]), 2.5)
    if x.dtype not in (torch.bfloat16, torch.float16):  # eager rounds between additions: ATen's own kernel
        yield call(aten.index_put.default, x, [i], r(6), True)
        yield call(aten.scatter_add.default, x, 1, torch.randint(0, 6, (3, 4)), r(3, 4))
        yield call(aten.index_add.default, x, 0, torch.tensor([1, 1, 3]), r(3, 6), alpha=0.5)


def norms(r: Random) -> Iterator[Sample]:
    for shape, normalized in (((4, 6), [6]), ((2, 3, 8), [3, 8])):
        x, g, weight, bias = r(*shape), r(*shape), r(*normalized), r(*normalized)
        for w, b in ((weight, bias), (None, None)):
            yield call(aten.native_layer_norm.default, x, normalized, w, b, 1e-5)
            _, mean, rstd = aten.native_layer_norm(x, normalized, w, b, 1e-5)
            mask = [True, w is not None, b is not None]
            yield call(aten.native_layer_norm_backward.default, g, x, normalized, mean, rstd, w, b, mask)
    yield call(aten._fused_rms_norm.default, r(2, 3, 8), [8], r(8), 1e-5)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x, g = (r(2, 6, 3, 4).contiguous(memory_format=memory_format) for _ in range(2))
        for w, b in ((r(6), r(6)), (None, None)):
            mask = [True, w is not None, b is not None]
            yield call(aten.native_group_norm.default, x, w, b, 2, 6, 12, 3, 1e-5)
            _, mean, rstd = aten.native_group_norm(x, w, b, 2, 6, 12, 3, 1e-5)
            yield call(aten.native_group_norm_backward.default, g, x, mean, rstd, w, 2, 6, 12, 3, mask)
            yield from batch_norms(r, x, g, w, b)


def batch_norms(r: Random, x: torch.Tensor, g: torch.Tensor, w: Any, b: Any) -> Iterator[Sample]:
    mean, var, functional = r(6), r(6).abs(), aten._native_batch_norm_legit_functional.default
    for training in (True, False):
        yield call(functional, x, w, b, mean, var, training, 0.1, 1e-5)
        _, save_mean, save_invstd, _, _ = functional(x, w, b, mean, var, True, 0.1, 1e-5)
        mask = [True, w is not None, w is not None]
        args = (g, x, w, mean, var, save_mean, save_invstd, training, 1e-5, mask)
        yield call(aten.native_batch_norm_backward.default, *args)
    yield call(aten._native_batch_norm_legit_no_training.default, x, w, b, mean, var, 0.1, 1e-5)
    yield call(aten._native_batch_norm_legit.no_stats, x, w, b, True, 0.1, 1e-5)


def pools(r: Random) -> Iterator[Sample]:
    for shape in ((2, 3, 6, 9), (3, 7, 8)):
        x = r(*shape)
        nan = x.clone()
        nan[..., 2, 3], nan[..., 3, 4], nan[..., :2, :2] = float("nan"), float("nan"), float("-inf")
        for image in (x, nan):
            yield call(aten.max_pool2d_with_indices.default, image, [2, 2])
            yield call(aten.max_pool2d_with_indices.default, image, [3, 3], [2, 2], [1, 1])
            yield call(aten.max_pool2d_with_indices.default, image, [3, 2], [2, 3], [1, 0], [1, 1], True)
        yield call(aten.avg_pool2d.default, x, [2, 2])
        yield call(aten.avg_pool2d.default, x, [3, 3], [2, 2], [1, 1])
    x = r(2, 3, 6, 9).contiguous(memory_format=torch.channels_last)
    yield call(aten.max_pool2d_with_indices.default, x, [3, 3], [2, 2], [1, 1])
    yield from pool_gradients(r)
    for size, scales in (([12, 18], (None, None)), ([24, 18], (4.0, 2.0))):
        yield call(aten.upsample_bilinear2d.default, r(2, 3, 6, 9), size, False, *scales)
        yield call(aten.upsample_bilinear2d_backward.default, r(2, 3, *size), size, [2, 3, 6, 9], False, *scales)


def pool_gradients(r: Random) -> Iterator[Sample]:
    x = r(2, 3, 12, 18)
    windows = [
        ([2, 2], [2, 2], [0, 0], False),
        ([3, 3], [2, 2], [1, 1], False),
        ([3, 2], [2, 1], [1, 0], True),
        ([2, 2], [1, 3], [0, 1], False),
        ([2, 2], [1, 1], [1, 1], False),
        ([3, 4], [2, 2], [1, 2], False),
    ]
    for kernel, stride, padding, ceil in windows:
        for image in (x, x[0], x.round()) if x.dtype is torch.bfloat16 else ():
            out, at = aten.max_pool2d_with_indices(image, kernel, stride, padding, [1, 1], ceil)
            args = (torch.randn_like(out), image, kernel, stride, padding, [1, 1], ceil, at)
            yield call(aten.max_pool2d_with_indices_backward.default, *args)
        if not ceil:
            out = aten.avg_pool2d(x, kernel, stride, padding)
            for divisor in (None, 5):
                rest = (kernel, stride, padding, False, True, divisor)
                yield call(aten.avg_pool2d_backward.default, torch.randn_like(out), x, *rest)


def special(r: Random) -> Iterator[Sample]:
    x, y, p = r(4, 6), r(4, 6), r(4, 6).sigmoid()
    yield call(aten.logaddexp.default, x, y)
    yield call(aten.xlogy.Tensor, torch.where(x > 0, x, torch.zeros_like(x)), y.abs())
    yield call(aten.special_xlog1py.default, x, y.abs())
    yield call(aten.special_entr.default, x)
    yield call(aten.logit.default, p)
    yield call(aten.logit.default, p, 0.3)
    yield call(aten.sinc.default, x)
    yield call(aten.heaviside.default, x.round(), y)
    yield call(aten.celu.default, x, 1.3)
    yield call(aten.glu_backward.default, r(4, 3), x, 1)
    yield call(aten.linalg_cross.default, r(5, 3, 2), r(5, 3, 2), dim=1)
    yield call(aten.count_nonzero.dim_IntList, x.round(), [1])
    yield call(aten.nansum.default, torch.where(x > 0, x, torch.full_like(x, float("nan"))), [1])
    yield call(aten.aminmax.default, x, dim=1, keepdim=True)
    yield call(aten.trace.default, x)
    yield call(aten.cumsum.default, x, 1)
    yield call(aten.cumsum.default, x, 0, dtype=torch.float32)
    if x.dtype is torch.float32:
        yield call(aten.cumprod.default, x, -1)
    for reduction in (0, 1, 2):
        grad = r(()) if reduction else y
        if x.dtype is not torch.bfloat16:
            yield call(aten.binary_cross_entropy_backward.default, grad, p, y.sigmoid(), None, reduction)
    image = r(2, 8, 4, 6)
    yield call(aten.replication_pad2d.default, image, [1, 2, 0, 3])
    yield call(aten.reflection_pad2d.default, image, [1, 2, 3, 0])
    yield call(aten.reflection_pad1d.default, x, [5, 1])
    yield call(aten.pixel_shuffle.default, image, 2)
    yield call(aten.pixel_unshuffle.default, image, 2)
    yield call(aten._adaptive_avg_pool2d.default, image, [2, 3])
    yield call(aten._adaptive_avg_pool2d.default, image, [1, 1])
    yield call(aten._adaptive_avg_pool2d_backward.default, r(2, 8, 2, 3), image)
    if x.dtype is not torch.bfloat16:
        v, g = r(5, 3, 2), r(5, 1, 1)
        yield call(aten._weight_norm_interface.default, v, g, 0)
        norms = aten._weight_norm_interface(v, g, 0)[1]
        yield call(aten._weight_norm_interface_backward.default, r(5, 3, 2), v, g, norms, 0)


FAMILIES = (activations, shapes, softmaxes, losses, indexing, norms, pools, special)
