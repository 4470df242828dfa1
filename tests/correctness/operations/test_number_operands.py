"""Numbers beside tensors of 16 bits, Python's and tensors without dimensions, are rounded where eager rounds them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import bolide

BESIDE: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "sub": lambda a, b: b - a,
    "mul": torch.mul,
    "div": torch.div,
    "reciprocal": lambda a, b: b / a,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "maximum": lambda a, b: torch.clamp(a, min=b),
    "less": torch.lt,
    "addcmul": lambda a, b: torch.addcmul(a, a, torch.as_tensor(b)),
    "where": lambda a, b: torch.where(a > 0, a, b),
}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_number_beside_16_bits_is_rounded_where_eager_rounds_it(name: str, dtype: torch.dtype) -> None:
    a, number = (torch.randn(1000) * 3).to(dtype), random.uniform(1.1, 2.0)
    compiled = bolide.compile(BESIDE[name])
    for b in (number, torch.tensor(number), torch.tensor(number, dtype=torch.float64)):
        want, got = BESIDE[name](a, b), compiled(a, b)
        assert want.dtype == got.dtype and torch.equal(want, got), (name, number, type(b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shrinking_is_bounded_by_the_rounded_number(dtype: torch.dtype) -> None:
    """Numbers next to the bound are 0 or not as in eager, also for a derivative; whether the bound changes or not."""
    for shrink in (functional.hardshrink, functional.softshrink):
        compiled = bolide.compile(lambda x, bound, shrink=shrink: shrink(x, bound))
        for _ in range(6):
            bound = random.uniform(0.1, 1.0)
            middle = torch.tensor(bound).to(dtype).view(torch.int16)
            near = (middle + torch.arange(-3, 4, dtype=torch.int16)).view(dtype)
            first, second = (torch.cat([near, -near]).requires_grad_() for _ in range(2))
            want, got = shrink(first, bound), compiled(second, bound)
            assert torch.equal(want, got)
            assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y, x in ((want, first), (got, second))))


def test_shrinking_has_a_bound_of_its_own() -> None:
    x = torch.randn(100)
    assert torch.equal(bolide.compile(functional.hardshrink)(x), functional.hardshrink(x))
