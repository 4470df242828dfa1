"""Loops over sizes: unrolled for the first two lengths; then their bodies are segments, compiled once for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from tests.correctness.test_sizes_layers import installed

LENGTHS = (3, 5, 7, 9, 4, 12, 2, 15, 6, 8, 20, 11)


def numbers(x: Any, n: int) -> Any:
    for i in range(n):
        x = torch.sin(x) + i
    return x


def rows(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for row in x.repeat(2, 1)[:n]:
        h = torch.tanh(h + row)
    return h


def steps(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
    return h + x.sum()


def stops_early(x: Any, n: int) -> Any:
    for i in range(n):
        if i == 3:
            x = x * 2
            continue
        x = x + i
        if i > 8:
            break
    else:
        x = x - 1
    return x


def nested(x: Any, n: int) -> Any:
    for i in range(n):
        for j in range(3):
            x = torch.cos(x + i * j)
    return x


def inside(x: Any, n: int) -> Any:
    def walk(y: Any, count: int) -> Any:
        for k in range(1, count):
            y = y / k + 1
        return y

    try:
        return walk(x, n) * 2
    finally:
        x.grad = None


def paired(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for a, b in zip(x, x * 2):
        h = torch.tanh(h + a) - b
    return h


def numbered(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for i, (a, b) in enumerate(zip(x.sin(), x)):
        h = h * 0.5 + a * i - b
    return h


def unbound(x: Any, n: int) -> Any:
    h = x.new_zeros(x.shape[1])
    for i, part in enumerate(x.unbind(0)):
        h = h * 0.5 + part * i
    for part in torch.unbind(x * 2):
        h = h + part.cos()
    return h


def backwards(x: Any, n: int) -> Any:
    for i in reversed(range(n)):
        x = torch.sin(x) + i
    return x


PROGRAMS = (numbers, rows, steps, stops_early, nested, inside, paired, numbered, unbound, backwards)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("training", [False, True])
def test_later_lengths_never_compile(program: Callable[..., Any], training: bool) -> None:
    compiled: Any = bolide.compile(program, backend="aot_eager")
    total = []
    for n in LENGTHS:
        x = torch.randn(n, 4, requires_grad=training)
        y = x.detach().clone().requires_grad_(training)
        want = program(x, n)
        got, new = installed(lambda y=y, n=n: compiled(y, n))
        total.append(new)
        torch.testing.assert_close(got, want)
        if training:
            (slope,) = torch.autograd.grad(want.sum(), x)
            torch.testing.assert_close(torch.autograd.grad(got.sum(), y)[0], slope)
    assert total[:2] == [1, 1] and not any(total[6:]), total


def test_without_breaks_each_length_is_unrolled() -> None:
    compiled: Any = bolide.compile(numbers, fullgraph=True, backend="eager")
    for n in LENGTHS[:5]:
        x = torch.randn(4)
        got, new = installed(lambda x=x, n=n: compiled(x, n))
        assert new == 1
        torch.testing.assert_close(got, numbers(x, n))


def test_effects_of_a_body_happen_once_for_each_item() -> None:
    seen: list[int] = []

    def program(x: Any, n: int) -> Any:
        for i in range(n):
            seen.append(i)
            x = x + i
        return x

    compiled: Any = bolide.compile(program, backend="eager")
    for n in LENGTHS:
        seen.clear()
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, n), x + n * (n - 1) / 2)
        assert seen == list(range(n))
