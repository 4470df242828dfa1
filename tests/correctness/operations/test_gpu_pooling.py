"""Gradients of pooling on a GPU that this machine plays: eager's, by a kernel."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))
import gpu_emulated


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)


def same(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = bolide.compile(function)(ours), function(theirs)
    torch.testing.assert_close(y, expected, equal_nan=True)
    g = torch.randn_like(y)
    y.backward(g)
    expected.backward(g)
    exact = {"rtol": 5e-2, "atol": 5e-2} if x.dtype is torch.bfloat16 else {}  # eager rounds at each addition
    torch.testing.assert_close(ours.grad, theirs.grad, **exact)  # type: ignore[arg-type]
    assert ours.grad is not None and theirs.grad is not None and ours.grad.stride() == theirs.grad.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 3, 1), (2, 1, 1), (2, 3, 0), ((3, 2), (2, 1), (1, 0))])
def test_gradients_of_pooling(window: tuple[object, object, object], dtype: torch.dtype) -> None:
    """Whatever the planes' sizes and order are; elements in several windows, in one, or in none; equal ones and NaN."""
    kernel, stride, padding = window
    for memory_format in (torch.contiguous_format, torch.channels_last):
        shape = 2, 3, random.randint(4, 9), random.randint(4, 9)
        x = torch.randint(-3, 4, shape).to(dtype).contiguous(memory_format=memory_format)
        same(lambda x: F.max_pool2d(x, kernel, stride, padding), x)
        same(lambda x: F.avg_pool2d(x, kernel, stride, padding), x)
        x[0, 0, 1, 1] = float("nan")
        same(lambda x: F.max_pool2d(x, kernel, stride, padding), x)


def calls_of(function: Callable[[Tensor], Tensor], x: Tensor) -> str:
    bolide.reset()
    return str(bolide.explain(lambda x: function(x).sum())(x.requires_grad_()))


def test_who_computes_the_gradient_of_a_maximum() -> None:
    """A kernel; but eager refuses it, with `use_deterministic_algorithms`."""
    x = torch.randn(2, 3, 8, 8)
    call = "aten.max_pool2d_with_indices_backward.default ×1"
    assert call not in calls_of(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    torch.use_deterministic_algorithms(True)
    try:
        assert call in calls_of(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    finally:
        torch.use_deterministic_algorithms(False)
