"""Gradients of pooling on a GPU that this machine plays: eager's, by a kernel."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.tracing import libraries

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


def test_places_are_saved_in_few_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else reads them: one kernel makes the maxima and their places, another one the gradient."""
    monkeypatch.setitem(libraries.POLICIES, "cpu", replace(libraries.POLICIES["cpu"], narrows_places=True))

    def bytes_of_places(x: Tensor, size: int, stride: int) -> float:
        report = bolide.explain(lambda x: F.max_pool2d(x, size, stride, size // 2))(x.requires_grad_())
        saved = [value.bytes for info in report.saved for value in info.values if value.bytes]
        assert str(report).count("  kernel k") == 2
        return sum(saved) / F.max_pool2d(x, size, stride, size // 2).numel()

    for dtype in (torch.float32, torch.bfloat16):
        rows, columns = random.randint(5, 20), random.randint(5, 20)
        x = torch.randint(-3, 4, (2, 3, rows, columns)).to(dtype)
        same(lambda x: F.max_pool2d(x, 3, 2, 1), x)
        assert bytes_of_places(x, 3, 2) == 2
    same(lambda x: F.max_pool2d(x, 2), large := torch.randn(1, 1, 190, 180))
    assert bytes_of_places(large, 2, 2) == 8
    same(lambda x: F.max_pool2d(x, 2, return_indices=True)[0], large.detach())
    pooled, places = bolide.compile(lambda x: F.max_pool2d(x, 2, return_indices=True))(large.detach().requires_grad_())
    assert places.dtype is torch.int64 and pooled.requires_grad


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
