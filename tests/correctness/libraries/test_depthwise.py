"""Convolutions of each channel by itself, some by kernels of ours, give eager's results and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import bolide

Program = Callable[..., torch.Tensor]


def cases(count: int) -> list[tuple[tuple[int, ...], tuple[int, int], tuple[int, int], tuple[int, int], bool]]:
    """(shape of x, window, stride, padding, bias); of both kinds that are ours, and of others."""
    draw = random.Random(5)
    found = []
    for place in range(count):
        kernel = draw.choice([(3, 3), (1, 3), (2, 2), (5, 5), (7, 3), (5, 6)])
        plane = draw.choice([(32, 32), (40, 29)]) if place % 2 else draw.choice([(13, 9), (8, 17)])
        stride = (1, 1) if place % 3 else draw.choice([(2, 2), (1, 2)])
        padding = (draw.randrange(kernel[0]), draw.randrange(kernel[1]))
        found.append(((draw.choice([1, 2]), draw.choice([2, 5]), *plane), kernel, stride, padding, place % 2 == 0))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", cases(14), ids=str)
def test_results_and_gradients(case: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
    shape, kernel, stride, padding, has_bias = case

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.conv2d(x.sin(), weight, bias, stride, padding, groups=shape[1]).tanh()

    x = torch.randn(shape, dtype=dtype)
    weight, bias = torch.randn(shape[1], 1, *kernel, dtype=dtype), torch.randn(shape[1], dtype=dtype)
    check(program, [x, weight, bias if has_bias else None])
    check(program, [x.contiguous(memory_format=torch.channels_last), weight, bias if has_bias else None])


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
@pytest.mark.parametrize("kernel", [3, 5])
def test_some_gradients(kernel: int, wanted: tuple[bool, ...]) -> None:
    tensors = [torch.randn(2, 4, 32, 33), torch.randn(4, 1, kernel, kernel), torch.randn(4)]
    check(lambda x, weight, bias: F.conv2d(x, weight, bias, padding=1, groups=4), tensors, wanted)


@pytest.mark.parametrize("kernel", [3, 5])
def test_other_convolutions(kernel: int) -> None:
    """Dilated, transposed, with several filters for a channel, in groups; nothing to sum."""
    x, weight = torch.randn(2, 4, 32, 34), torch.randn(4, 1, kernel, kernel)
    check(lambda x, weight: F.conv2d(x, weight, dilation=2, groups=4), [x, weight])
    check(lambda x, weight: F.conv_transpose2d(x, weight, groups=4), [x, weight])
    check(lambda x, weight: F.conv2d(x, weight, groups=4), [x, torch.randn(8, 1, kernel, kernel)])
    check(lambda x, weight: F.conv2d(x, weight, groups=2), [x, torch.randn(4, 2, kernel, kernel)])
    check(lambda x, weight: F.conv2d(x, weight, groups=4), [x[:0], weight])


@pytest.mark.parametrize("kernel", [3, 5])
def test_sizes_that_change(kernel: int) -> None:
    program = bolide.compile(lambda x, weight: F.conv2d(x, weight, padding=1, groups=3))
    for shape in ((2, 3, 32, 33), (4, 3, 32, 33), (1, 3, 40, 50), (3, 3, 9, 8)):
        check(lambda x, weight: F.conv2d(x, weight, padding=1, groups=3), tensors_of(shape, kernel), compiled=program)


def tensors_of(shape: tuple[int, ...], kernel: int) -> list[torch.Tensor | None]:
    return [torch.randn(shape), torch.randn(shape[1], 1, kernel, kernel)]


def check(
    program: Program, tensors: list[torch.Tensor | None], wanted: tuple[bool, ...] = (), compiled: Program | None = None
) -> None:
    """Values, strides and gradients of a compiled program; `wanted`: of which operands (all)."""
    asked = wanted or (True,) * len(tensors)
    given = [t if t is None else t.clone().requires_grad_(ask) for t, ask in zip(tensors, asked)]
    leaves = [t for t in given if t is not None and t.requires_grad]
    results = []
    for run in (program, compiled or bolide.compile(program)):
        result = run(*given)
        generator = torch.Generator().manual_seed(3)
        tangent = torch.randn(result.shape, generator=generator).to(result.dtype)
        results.append([result, *torch.autograd.grad(result, leaves, tangent)])
    for eager, ours in zip(*results):
        steps = [[step for step, size in zip(t.stride(), t.shape) if size > 1] for t in (ours, eager)]
        assert steps[0] == steps[1] and ours.dtype == eager.dtype
        scale = float(eager.detach().abs().max()) if eager.numel() else 1.0
        bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}[eager.dtype]
        torch.testing.assert_close(ours, eager, rtol=bound, atol=bound * scale)
