"""What programs and models of users do when `aot_function` traces them."""

from __future__ import annotations

import pytest
import torch

import bolide
from bolide.functorch.aot_autograd import aot_function
from bolide.functorch.compilers import debug_nop, nop


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_a_tangent_that_does_not_come_is_zeros_in_its_layout() -> None:
    """What follows may be a view that is possible in that layout only."""

    def fn(x, w, wanted):
        y = (x @ w).transpose(1, 2) * 2
        return torch.nn.functional.mse_loss(y, wanted), y

    def step(call, leaves):
        return torch.autograd.grad(call(*leaves)[0], leaves)

    for call in (aot_function(fn, nop), aot_function(fn, debug_nop), bolide.compile(fn, backend="aot_eager")):
        for rows in (2, 3):
            leaves = leaf(rows, 4, 8), leaf(8, 8), leaf(rows, 8, 4)
            torch.testing.assert_close(step(call, leaves), step(fn, leaves))


def test_models_see_that_they_are_compiled() -> None:
    """Then they leave out what depends on data; afterwards they do not."""

    def fn(x):
        if not torch.compiler.is_compiling() and bool((x > 0).all()):
            raise ValueError("seen in eager")
        return x.exp()

    call = aot_function(fn, nop)
    for rows in (2, 3):
        x = torch.ones(rows)
        torch.testing.assert_close(call(x), x.exp())
        with pytest.raises(ValueError, match="seen in eager"):
            fn(x)
