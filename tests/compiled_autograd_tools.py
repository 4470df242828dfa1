"""Backward passes of a program in eager and captured, and what both leave behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.dynamo import compiled_autograd

Program = Callable[[Callable[..., None]], Sequence[Any]]


def captures() -> int:
    """How many backward passes were captured since the last reset."""
    return compiled_autograd.counters["compiled_autograd"]["captures"]


def outcome(program: Program, seed: int) -> tuple[list[Any], list[Any]]:
    """What a program gives, and what it has logged: it is given a function for that."""
    log: list[Any] = []
    torch.manual_seed(seed)
    results = program(lambda *entry: log.append(entry))
    return list(results), log


def assert_same(actual: Any, expected: Any, **tolerance: Any) -> None:
    """Equal tensors (bit by bit, without a tolerance) and values, in lists and tuples."""
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), (actual, expected)
        for one, other in zip(actual, expected):
            assert_same(one, other, **tolerance)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True, **(tolerance or {"rtol": 0, "atol": 0}))
        assert actual.requires_grad == expected.requires_grad
    else:
        assert actual == expected


def assert_as_eager(
    program: Program, compiler_fn: Callable[..., Any] = lambda gm: gm, times: int = 3, **tolerance: Any
) -> None:
    """Results and logs are eager's, several times, the first in a fresh state."""
    compiled_autograd.reset()
    for seed in range(times):
        expected = outcome(program, seed)
        with compiled_autograd.enable(compiler_fn):
            actual = outcome(program, seed)
        assert captures() > 0
        assert_same(actual, expected, **tolerance)
