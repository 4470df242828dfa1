"""Numbers that are data, and floats that change from call to call, need neither breaks nor versions."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ordinary_tools import check_whole, picture

STATISTICS: dict[str, Callable[[Tensor], Any]] = {
    "standardised": lambda x: (x - x.mean()) / x.std(),
    "var": lambda x: (x.var(), x.var(unbiased=False), x.std(correction=0)),
    "std_mean": lambda x: torch.std_mean(x, unbiased=False),
    "extremes": lambda x: (x.max(), x.min(), x.norm(), x.logsumexp(0), x.softmax(0)),
    "rows": lambda x: (x.view(-1, 1).var(0), x.outer(x).mean(1), x.cumsum(0)[-1]),
}


def differentiated(function: Callable[..., Any], x: Tensor, *rest: Any) -> object:
    leaf = x.clone().requires_grad_()
    results = function(leaf, *rest)
    parts = [
        part
        for part in (results if isinstance(results, tuple) else (results,))
        if isinstance(part, Tensor) and part.requires_grad
    ]
    if parts:
        sum((part * torch.linspace(1, 2, part.numel()).view(part.shape)).sum() for part in parts).backward()
    return picture(results), leaf.grad


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_what_a_mask_selects(name: str) -> None:
    """With gradients, and where so few elements are selected that the statistic is no number."""

    def program(compile: Any) -> object:
        compiled = compile(lambda x, mask: STATISTICS[name](x[mask]))
        masks = [torch.randn(n, 4) > 0.2 for n in (5, 9, 7, 6)]
        masks.append(torch.eye(3, 4).bool() & (torch.arange(4) == 1))
        return [differentiated(compiled, torch.randn(mask.shape), mask) for mask in masks]

    check_whole(program)


FILLED: dict[str, Callable[[Tensor, float], Any]] = {
    "full_like": lambda x, t: torch.cat([x, torch.full_like(x[:, :1], t)], 1),
    "full_like_of_integers": lambda x, t: torch.full_like(x.long(), t) + torch.full_like(x.T, -t, dtype=torch.double).T,
    "lerp": lambda x, t: (torch.lerp(x, x.sin(), t), x.clone().lerp_(x * 2, t)),
    "by_keyword": lambda x, t: (
        torch.lerp(x, end=x.sin(), weight=t) + torch.pow(x.square() + 1, exponent=t),
        torch.pow(input=x.square() + 1, exponent=len(x) / 2) + torch.lerp(x * 2, x, weight=len(x) / 7),
    ),
    "euler": lambda x, t: x + (t - 0.5) / 4 * torch.cat([x[:, :1], torch.full_like(x[:, 1:], (t - 0.5) / 4)], 1),
}


@pytest.mark.parametrize("name", FILLED)
def test_floats_that_change(name: str) -> None:
    def program(compile: Any) -> object:
        compiled = compile(FILLED[name])
        return [differentiated(compiled, torch.randn(n, 4), random.uniform(-2, 3)) for n in (3, 6, 5, 9)]

    check_whole(program)


def test_questions_about_the_type_of_a_number_do_not_need_its_value() -> None:
    """As decorators that check types ask them."""

    def asking(x: Tensor, n: int) -> tuple[Any, ...]:
        kinds = inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.ismodule, inspect.isbuiltin
        asked = [[kind(value) for kind in kinds] for value in (n, x, Tensor, len, asking, x.sum, inspect)]
        return x * n, asked

    def program(compile: Any) -> object:
        compiled = compile(asking)
        return [differentiated(compiled, torch.randn(n, 4), n + 2) for n in (3, 6, 5, 9)]

    check_whole(program)
