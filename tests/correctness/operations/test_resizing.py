"""Bilinear resizing: results, strides and gradients of eager, whatever the factor, and in few kernels where it is 2 or
4, gradients where it is a power of two; also on a GPU that this machine plays."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))
import gpu_emulated

SEED = int(os.environ["BOLIDE_TEST_SEED"])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    bolide.reset()
    torch.manual_seed(SEED)


def compared(function: object, x: Tensor, gradients: bool = True) -> None:
    """`function` of `x`, compiled and in eager: values, strides, gradients; sums may be made in another order."""
    assert callable(function)
    compiled = bolide.compile(function)
    exact = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}[x.dtype]
    ours, theirs = x.clone().requires_grad_(gradients), x.clone().requires_grad_(gradients)
    y, expected = compiled(ours), function(theirs)
    assert y.stride() == expected.stride(), f"seed {SEED}"
    torch.testing.assert_close(y, expected, rtol=exact, atol=exact, equal_nan=True, msg=lambda m: f"seed {SEED}: {m}")
    if gradients:
        g = torch.randn_like(y)
        y.backward(g)
        expected.backward(g)
        assert ours.grad is not None and theirs.grad is not None and ours.grad.stride() == theirs.grad.stride()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=exact, atol=exact, msg=lambda m: f"seed {SEED}: {m}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("factors", [(2.0, 2.0), (4.0, 2.0), (2.0, 4.0), (4.0, 4.0), (3.0, 2.0), (1.5, 2.0)], ids=str)
def test_by_factors(dtype: torch.dtype, factors: tuple[float, float]) -> None:
    for shape in ((2, 3, 5, 7), (1, 2, 1, 40), (1, 2, 40, 1), (1, 1, 2, 2), (0, 2, 3, 3), (1, 2, 17, 33)):
        compared(lambda x: F.interpolate(x, scale_factor=factors, mode="bilinear"), torch.randn(shape, dtype=dtype))


def test_ways_to_ask() -> None:
    x = torch.randn(2, 3, 6, 20)
    compared(lambda x: F.interpolate(x, size=(12, 40), mode="bilinear"), x)
    compared(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True), x)
    compared(lambda x: F.interpolate(x, scale_factor=2.2, mode="bilinear"), x)
    compared(lambda x: F.interpolate(x, size=(12, 40), mode="bilinear", antialias=True), x)
    compared(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x.contiguous(memory_format=torch.channels_last)
    )
    compared(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x.transpose(2, 3))
    compared(lambda x: F.interpolate(x.relu(), scale_factor=2, mode="bilinear").sigmoid() * 2, x)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("factors", [(1, 1), (1, 8), (2, 16), (4, 4), (8, 8), (16, 3), (32, 2)], ids=str)
def test_gradients_in_any_order(factors: tuple[int, int], memory_format: torch.memory_format) -> None:
    """That of a map that is a part of another one, as in decoders that put maps of several sizes together."""
    height, width, channels = (random.randint(1, 4) for _ in range(3))
    x = torch.randn(2, channels, height, width, dtype=torch.float64).contiguous(memory_format=memory_format)
    others = torch.randn(2, 3, height * factors[0], width * factors[1], dtype=torch.float64)
    mixing = torch.randn(5, channels + 3, 1, 1, dtype=torch.float64)

    def put_together(x: Tensor) -> Tensor:
        large = F.interpolate(x, size=others.shape[2:], mode="bilinear")
        whole = torch.cat([large, others], 1).contiguous(memory_format=memory_format)
        return (mixing * whole[:, None]).sum(2).sin() + F.conv2d(whole, mixing)

    compared(put_together, x)
    compared(lambda x: F.interpolate(x, size=others.shape[2:], mode="bilinear"), x)


def test_sizes_change() -> None:
    compiled = bolide.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    for height, width in ((4, 5), (6, 5), (7, 9), (1, 3)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(compiled(x), F.interpolate(x, scale_factor=2, mode="bilinear"))


def test_what_is_not_finite_spreads_as_in_eager() -> None:
    """The first element of a line is added to the second one times 0."""
    for row in range(4):
        for column in range(4):
            x = torch.randn(1, 1, 4, 4)
            x[0, 0, row, column] = float("inf") if row % 2 else float("nan")
            compared(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x, gradients=False)


def test_it_is_a_kernel() -> None:
    function = bolide.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    x = torch.randn(1, 2, 16, 16, requires_grad=True)
    function(x).sum().backward()
    text = str(bolide.explain(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))(x))
    assert "ATen calls" not in text and text.count("kernel k") == 2, text
    for factor in (1, 2, 8, 16):  # gradients also where the values are ATen's
        x = torch.randn(1, 2, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()

        def step(x: Tensor, size: int = 4 * factor) -> None:
            F.interpolate(x, size=(size, size), mode="bilinear").sin().sum().backward()

        text = str(bolide.explain(step)(x))
        assert "upsample_bilinear2d_backward" in text and "call aten.upsample_bilinear2d_backward" not in text, text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factors", [(2.0, 2.0), (4.0, 2.0), (2.0, 4.0), (4.0, 4.0)], ids=str)
def test_on_a_gpu(factors: tuple[float, float], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a kernel, also of planes of one row or column, in channels_last, and of numbers that no weight of 0 hides."""
    gpu_emulated.emulate(monkeypatch.setattr)

    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=factors, mode="bilinear")

    shapes = [(2, 3, random.randint(2, 6), random.randint(2, 9)), (1, 2, 1, 5), (1, 2, 4, 1)]
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for shape in shapes:
            x = torch.randn(shape).to(dtype).contiguous(memory_format=memory_format)
            compared(resized, x)
            x[0, 0, -1, -1], x[0, 1, 0, 0] = float("inf"), float("nan")
            compared(resized, x, gradients=False)
    explained = str(bolide.explain(lambda x: resized(x.relu()))(x))
    assert "k0" in explained and "call aten" not in explained
