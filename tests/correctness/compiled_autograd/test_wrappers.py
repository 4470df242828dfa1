"""Backward passes over wrapper subclasses of Tensor: forwards in eager and compiled, gradients of wrappers and plain
leaves."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

import bolide
from tests.compiled_autograd_tools import assert_as_eager

STEPS: list[Callable[[Any, Any, torch.Tensor], Any]] = [
    lambda t, x, bias: F.linear(t, x, bias),
    lambda t, x, bias: t * x.sin(),
    lambda t, x, bias: (t + bias).tanh(),
    lambda t, x, bias: t @ x.t() + t,
    lambda t, x, bias: t.t().exp() - x,
]


def _copies(value: Any) -> list[torch.Tensor]:
    """Of what a tensor is made of."""
    if value is None:
        return []
    return [*_copies(value.a), *_copies(value.b)] if isinstance(value, TwoTensor) else [value.detach().clone()]


@pytest.mark.parametrize("captured", ["as it is", "compiled"])
@pytest.mark.parametrize("forward", ["eager", "compiled", "compiled with its loss"])
def test_wrappers(forward: str, captured: str) -> None:
    chosen, nested = random.choices(STEPS, k=3), random.random() < 0.3

    def made(t: Any, x: Any, bias: torch.Tensor) -> Any:
        for step in chosen:
            t = step(t, x, bias)
        return t

    def loss(t: Any, x: Any, bias: torch.Tensor) -> Any:
        return made(t, x, bias).square().mean()

    function = made if forward == "compiled" else loss
    run: Any = function if forward == "eager" else bolide.compile(function)

    def program(log: Any) -> list[torch.Tensor]:
        plain, bias = torch.randn(4, 4).double(), torch.randn(4).double().requires_grad_()
        first = TwoTensor(plain, plain + 1) if nested else plain
        t, x = TwoTensor(first, first * 2).requires_grad_(), (TwoTensor(first, first.sin()) * 0.5).requires_grad_()
        bias.register_hook(lambda grad: log(*_copies(grad)))
        for _ in range(2):
            result = run(t, x, bias)
            (result.square().mean() if forward == "compiled" else result).backward()
        return [*_copies(t.grad), *_copies(bias.grad)]

    compiler = bolide.compile if captured == "compiled" else lambda gm: gm
    assert_as_eager(program, functools.partial(compiler), rtol=1e-8, atol=1e-8)
