"""Integers that change from call to call, in Python's own arithmetic."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch

import bolide


def test_results_of_many_changing_integers() -> None:
    def program(x: Any, values: list[int]) -> Any:
        return x + 1, sum(p * (q - 1) for p, q in itertools.pairwise(values))

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    x = torch.rand(2)
    for _ in range(4):
        values = [random.randint(-50, 50) for _ in range(13)]
        assert compiled(x, values)[1] == program(x, values)[1]


def test_a_division_by_zero_raises_where_the_result_is_known_otherwise() -> None:
    def program(x: Any, n: int) -> Any:
        try:
            return x, 0 % (n % 5), 0 // (n % 5)
        except ZeroDivisionError as error:
            return x + 1, str(error), 0

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    x = torch.rand(2)
    for n in (3, 4, 5, 6, 10):
        expected, actual = program(x, n), compiled(x, n)
        assert actual[1:] == expected[1:] and torch.equal(actual[0], expected[0])
