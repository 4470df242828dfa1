"""Built-in functions and methods that are given too few or too many arguments raise what CPython raises."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide

FUNCTIONS: list[Callable[..., Any]] = [
    *(getattr, setattr, delattr, hasattr, iter, next, type, len, abs, pow, divmod, isinstance, issubclass, callable),
    *(dict.pop, dict.keys, dict.items, dict.clear, dict.copy, dict.update, collections.OrderedDict.pop, list.append),
    *(operator.add, torch.Tensor.stride, torch.Tensor.item, str.join, any, all, ord, chr, reversed, enumerate),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_wrong_counts(function: Callable[..., Any]) -> None:
    def program(x: Tensor, *given: Any) -> tuple[Tensor, tuple[str, str] | None]:
        try:
            function(*given)
        except TypeError as error:
            return x + 1, (type(error).__name__, str(error))
        return x + 1, None

    for given in ((), (None,) * 6):
        expected, actual = program(torch.ones(2), *given), bolide.compile(program)(torch.ones(2), *given)
        assert expected[1] == actual[1], (given, expected, actual)
