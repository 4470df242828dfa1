"""Numbers beside tensors of 16 bits, Python's and tensors without dimensions, are rounded where eager rounds them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

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
