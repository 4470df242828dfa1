"""Branches on data that no graph can make: the guards ask a question about an input, and each answer has a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.support import events

BATCHES = (2, 3, 5, 2, 7, 4)


def padding(ids: Tensor) -> Tensor | None:
    mask = ids.eq(1)
    return mask if mask.any() else None


def masked(x: Tensor, ids: Tensor) -> Any:
    mask = padding(ids)
    y = x * 2
    if mask is not None:
        y = y.masked_fill(mask[..., None], 0.0)
    return y.sin(), mask


def selected(x: Tensor, ids: Tensor) -> Any:
    chosen = (ids.float() * 2).to(torch.int64) > 10
    some = chosen.flatten().any().item()
    for _ in range(2):
        if some:
            places = chosen.nonzero(as_tuple=True)
            x = torch.cat([x, x.index_put(places, x[places] * 3)], -1)
        x = x.sin()
    return (x, places) if some else x


def longer(x: Tensor, ids: Tensor) -> Any:
    parts = [x]
    if ids.max().item() > 5:
        parts.append(x * 2)
    return torch.cat(parts, -1).cos()


def written(x: Tensor, ids: Tensor) -> Any:
    ids = ids.clone()
    ids[:, :2] = 0
    parts = (x, x * 2) if (ids == 1).sum() != 0 else (x.exp(),)
    return sum(parts) + len(parts)


def told(x: Tensor, ids: Tensor, seen: list[str]) -> Any:
    if (ids > 5).any():
        seen.append("large")
    return x.tanh()


def call(fn: Callable[..., Any], x: Tensor, ids: Tensor) -> Any:
    leaf = x.clone().requires_grad_()
    result = fn(leaf, ids)
    first = result[0] if isinstance(result, tuple) else result
    first.square().sum().backward()
    return result, leaf.grad


def inputs(batch: int, special: bool) -> tuple[Tensor, Tensor]:
    ids = torch.randint(2, 5, (batch, 40))
    if special:
        ids[batch // 2, 3], ids[1, 4] = 1, 7
    return torch.randn(batch, 40, 4), ids


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"fullgraph": True}], ids=str)
@pytest.mark.parametrize("program", [masked, selected, longer, written], ids=lambda p: p.__name__)
def test_each_answer_has_a_version(program: Callable[..., Any], options: dict[str, Any]) -> None:
    bolide.reset()
    compiled = bolide.compile(program, **options)
    met: list[Any] = []
    with events.subscribed(met.append):
        for batch in BATCHES:
            for special in (True, False):
                x, ids = inputs(batch, special)
                torch.testing.assert_close(call(compiled, x, ids), call(program, x, ids))
    assert not any(isinstance(event, events.Break) for event in met)
    assert sum(isinstance(event, events.Installed) for event in met) <= 4


def test_effects_are_those_of_the_answer() -> None:
    compiled = bolide.compile(told)
    for special in (True, False, False, True, True):
        x, ids = inputs(3, special)
        mine: list[str] = []
        theirs: list[str] = []
        torch.testing.assert_close(compiled(x, ids, mine), told(x, ids, theirs))
        assert mine == theirs


def test_many_questions_are_breaks_in_the_end() -> None:
    def program(x: Tensor, ids: Tensor) -> Any:
        parts = [x]
        for number in range(5):
            if (ids == number).any():
                parts.append(x * number)
        return torch.cat(parts)

    compiled = bolide.compile(program, backend="aot_eager")
    met: list[Any] = []
    with events.subscribed(met.append):
        for _ in range(24):
            x, ids = torch.randn(3, 30), torch.randint(0, 90, (3, 30))
            torch.testing.assert_close(compiled(x, ids), program(x, ids))
    assert any(isinstance(event, events.Break) for event in met)
    assert not any(isinstance(event, events.Fallback) for event in met)
