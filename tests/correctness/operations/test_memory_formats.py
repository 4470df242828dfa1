"""Strides of results and gradients are eager's, in whatever memory format, type and size the operands are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opdb_tools import rearranged
from torch import Tensor
from torch.nn import functional as F

import bolide

TYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16)


def drawn(shape: list[int], dtype: torch.dtype) -> Tensor:
    """Row-major, or with its channels last."""
    x = torch.randn(shape, dtype=dtype)
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if random.random() < 0.5 else x


def convolution() -> tuple[Callable[..., Any], Callable[[], list[Tensor]]]:
    """One with random options and its gradients, and what draws a batch of any size with its weights."""
    dims, transposed, dtype = random.choice((1, 2, 3, 3, 3)), random.random() < 0.4, random.choice(TYPES)
    groups, kernel = random.choice((1, 1, 2)), random.choice((1, 1, 2, 3))
    inputs, outputs = (groups * random.randint(1, 3) for _ in range(2))
    pairs = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    one, biased = random.random() < 0.4, random.random() < 0.5
    spread = [random.randint(1, 2)] * dims, [kernel // 2] * dims, [random.choice((1, 1, 2))] * dims
    options = *spread, transposed, [0] * dims, groups

    def draw() -> list[Tensor]:
        sizes = [random.randint(5, 8) for _ in range(dims)]
        x = drawn([1 if one else random.randint(2, 18), inputs, *sizes], dtype)
        return [x, drawn([*pairs, *[kernel] * dims], dtype)]

    def run(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        bias = weight.flatten()[:1].expand(outputs) * 1 if biased else None
        result = torch.convolution(x, weight, bias, *options)
        mask = [True, True, biased]
        gradients = torch.ops.aten.convolution_backward(result, x, weight, [outputs], *options, mask)
        return result, *gradients[: sum(mask)]

    return run, draw


@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions(dynamic: bool) -> None:
    for _ in range(12):
        program, draw = convolution()
        compiled = bolide.compile(program, dynamic=dynamic)
        for _ in range(2):
            given = draw()
            for one, other in zip(program(*given), compiled(*given), strict=True):
                near = 2e-2 if one.dtype is torch.bfloat16 else 1e-4
                largest = 1 + float(one.abs().max())
                torch.testing.assert_close(other, one, rtol=near, atol=near * largest, check_stride=True)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "powers": lambda x, y: (x.pow(2), (x * y).abs(), x + 1),
    "pools": lambda x, y: F.lp_pool2d(x.abs() + 1, 2, 3, 2),
    "types": lambda x, y: (x.double() * y, (x > y).float(), x.clone()),
    "layers": lambda x, y: (F.interpolate(x.sigmoid(), scale_factor=2), F.avg_pool2d(y.exp(), 2)),
    "scalars": lambda x, y: (torch.where(x > 0, x, y), x.sigmoid() * 2, y.neg() - x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_elements_of_images(name: str) -> None:
    """Strides of dimensions with one element count as well: pooling asks for them."""
    program, rng = PROGRAMS[name], random.Random(random.random())
    for _ in range(6):
        shape = [random.choice((1, 1, 2)), random.choice((1, 3)), random.randint(6, 7), random.randint(6, 7)]
        for _ in range(4):
            given = torch.randn(shape), torch.randn(shape)
            if random.random() < 0.7:
                given = tuple(each.contiguous(memory_format=torch.channels_last) for each in given)
            given = rearranged(given, rng) if random.random() < 0.5 else given
            steps = [list(each.stride()) for each in given]
            for step in steps:
                step[0] = random.choice((step[0], 1, 2, 1000)) if shape[0] == 1 else step[0]
            given = tuple(each.as_strided(each.shape, step) for each, step in zip(given, steps))
            torch.testing.assert_close(bolide.compile(program)(*given), program(*given), check_stride=True)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_borders_of_large_images(mode: str) -> None:
    """The gradient of an image that is no leaf has a format of its own."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        inner = x * x
        padded = F.pad(inner, border, mode=mode)
        return padded, *torch.autograd.grad(padded.sin().sum(), inner)

    for dims in (1, 2, 3):
        compiled = bolide.compile(program)
        for _ in range(3):
            most = random.choice((0, 3, 3))
            border = [random.randint(0, most) for _ in range(2 * dims)]
            x = drawn([2, 32, *(random.randint(4, 24) for _ in range(dims))], torch.float32).requires_grad_()
            torch.testing.assert_close(compiled(x), program(x), check_stride=True)
