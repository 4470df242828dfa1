"""Complex numbers beside real tensors: their values are compared, and taken where they are real."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide

PROGRAMS: dict[str, Callable[[torch.Tensor, complex], Any]] = {
    "eq": torch.eq,
    "ne": lambda x, c: (x != c, c == x),
    "out": lambda x, c: torch.eq(x, c, out=torch.empty(3, dtype=torch.bool)),
    "a number": lambda x, c: torch.eq(torch.tensor(2), c, out=torch.tensor(True)),
    "in place": lambda x, c: (x + 1).eq_(c),
    "full": torch.full_like,
    "fill": lambda x, c: x.clone().fill_(c),
    "masked": lambda x, c: (x + 1).masked_fill(x == 0, c),
    "lerp": lambda x, c: torch.lerp(x, x + 1, c),
    "clamp": torch.clamp,
    "both bounds": lambda x, c: torch.clamp(x, 1, c) + 1,
    "no elements": lambda x, c: x[:0].clone().fill_(c),
    "where": lambda x, c: torch.where(x != 0, x, c),
    "arithmetic": lambda x, c: (x + c, x * c, c - x, x / c),
}


def outcome(fn: Any, *args: Any) -> Any:
    try:
        return str(fn(*args))
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_complex_numbers_beside_tensors(name: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    compiled = bolide.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", bolide.BolideWarning)
        warnings.filterwarnings("ignore", "Casting complex")
        for number in (2 + 0j, 3j, 2 + 0j):
            for values in ([0, 2, 3], [1, 2, 0]):
                x = torch.tensor(values).to(dtype)
                assert outcome(compiled, x, number) == outcome(program, x, number), number
