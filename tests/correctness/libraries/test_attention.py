"""Attention written by hand runs in the fused kernel, with eager's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import bolide
from bolide.inductor.plan import Call
from bolide.inductor.plan.steps import all_steps
from bolide.support import events
from bolide.tracing.libraries import POLICIES

INF = math.inf


@pytest.fixture(autouse=True)
def small_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small sizes are tested: they take the way of large ones."""
    monkeypatch.setitem(POLICIES, "cpu", replace(POLICIES["cpu"], least_scores=1, least_length=2))
    monkeypatch.setattr(bolide.dynamo.config, "suppress_errors", False)
    with torch.no_grad():
        yield


def fused(program: Callable[..., Any], *args: torch.Tensor, fuses: bool = True) -> None:
    """The program gives eager's results, and is fused or not."""
    graphs: list[Any] = []
    compiled = bolide.compile(program, dynamic=False)
    with events.subscribed(lambda event: graphs.append(event.artifact) if isinstance(event, events.Compiled) else None):
        ours, eager = compiled(*args), program(*args)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5, equal_nan=True, check_stride=True)
    calls = [str(step.operator) for step in all_steps(graphs[0].plan.steps) if isinstance(step, Call)]
    assert any("flash" in call for call in calls) is fuses, calls


def operands(*lead: int, queries: int = 6, keys: int = 9, width: int = 8) -> list[torch.Tensor]:
    return [torch.randn(*lead, length, width) for length in (queries, keys, keys)]


def test_plain_scaled_and_permuted() -> None:
    fused(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v, *operands(2, 3))
    fused(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), 3) @ v, *operands(2, 3))
    fused(lambda q, k, v: (q @ k.transpose(-1, -2) * 0.3).softmax(-1) @ v, *operands(4))
    fused(lambda q, k, v: torch.bmm(torch.softmax(torch.bmm(q * 0.3, k.transpose(1, 2)), 2), v) + 1, *operands(4))

    def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(2, 7, 4, 8).transpose(1, 2) for part in (x @ w).split(32, -1))
        return (torch.softmax(q @ k.transpose(-2, -1) * 8**-0.5, -1) @ v).transpose(1, 2).reshape(2, 7, 32)

    fused(heads, torch.randn(2, 7, 32), torch.randn(32, 96))


@pytest.mark.parametrize("shape", [(6, 9), (1, 6, 9), (2, 1, 6, 9), (2, 1, 1, 9), (1, 3, 6, 9), (9,), (2, 3, 6, 1)])
def test_masks(shape: tuple[int, ...]) -> None:
    q, k, v = operands(2, 3)
    added, forbidden = torch.randn(shape), torch.rand(shape) > 0.6
    fused(lambda q, k, v, m: torch.softmax(q @ k.transpose(-1, -2) / 3 + m, -1) @ v, q, k, v, added)
    fused(
        lambda q, k, v, m: torch.softmax(m + q @ k.transpose(-1, -2), -1) @ v,
        q,
        k,
        v,
        added.masked_fill(forbidden, -INF),
    )
    fused(lambda q, k, v, m: (q @ k.transpose(-1, -2)).masked_fill(m, -INF).softmax(-1) @ v, q, k, v, forbidden)
    fused(lambda q, k, v, m: (q @ k.transpose(-1, -2)).masked_fill(~m, -INF).softmax(-1) @ v, q, k, v, forbidden)


def test_causal_and_rows_without_keys() -> None:
    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(8)
        allowed = torch.tril(torch.ones(6, 9)).view(1, 1, 6, 9)
        return scores.masked_fill(allowed == 0, -INF).softmax(-1) @ v

    q, k, v = operands(2, 3)
    fused(causal, q, k, v)
    v[0, 0, 7] = math.nan
    fused(causal, q, k, v)
    q[0, 1, 2, 3] = INF
    fused(causal, q, k, v)
    mask = torch.zeros(6, 9, dtype=torch.bool)
    mask[3] = True
    fused(lambda q, k, v, m: (q @ k.transpose(-1, -2)).masked_fill(m, -INF).softmax(-1) @ v, *operands(2, 3), mask)


@pytest.mark.parametrize("value", [math.nan, INF, -INF, 3e38])
@pytest.mark.parametrize("place", [0, 1])
def test_scores_that_are_not_finite_behind_a_mask(place: int, value: float) -> None:
    """The kernel adds a mask; a program that puts -inf has numbers where what is masked is not one."""
    mask = torch.ones(12, 12, dtype=torch.bool).triu(1)
    given = operands(2, 3, queries=12, keys=12)
    given[place][1, 2, 5, 3] = value
    fused(lambda q, k, v, m: (q @ k.transpose(-1, -2) / 3).masked_fill(m, -INF).softmax(-1) @ v, *given, mask)
    fused(lambda q, k, v, m: torch.softmax(q @ k.transpose(-1, -2) + m, -1) @ v, *given, torch.randn(12, 12))
    compiled = bolide.compile(lambda q, m: (q @ q.mT).masked_fill(m, -INF).softmax(-1) @ q)
    for q in given[0], given[1]:
        eager = (q @ q.mT).masked_fill(mask, -INF).softmax(-1) @ q
        torch.testing.assert_close(compiled(q, mask), eager, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_three_dimensions_with_masks() -> None:
    for shape in ((6, 9), (4, 6, 9), (4, 1, 9)):
        q, k, v = operands(4)
        fused(lambda q, k, v, m: torch.softmax(q @ k.transpose(-1, -2) + m, -1) @ v, q, k, v, torch.randn(shape))


def test_what_is_not_fused() -> None:
    q, k, v = operands(2, 3)
    m = torch.randn(6, 9)

    def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    fused(kept, q, k, v, fuses=False)
    fused(lambda q, k, v, m: torch.softmax((q @ k.transpose(-1, -2) + m) / 3, -1) @ v, q, k, v, m, fuses=False)
    fused(lambda q, k, v, m: torch.softmax(q @ k.transpose(-1, -2) + m + m, -1) @ v, q, k, v, m, fuses=False)
    fused(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v, q, k, v, fuses=False)
    fused(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v, q, k, torch.randn(2, 3, 9, 5), fuses=False)
    fused(
        lambda q, k, v, m: (q @ k.transpose(-1, -2)).masked_fill(m > 0, -1e4).softmax(-1) @ v, q, k, v, m, fuses=False
    )
    fused(lambda q, k, v: (q @ k.transpose(-1, -2)).double().softmax(-1).float() @ v, q, k, v, fuses=False)


def test_training_is_not_fused() -> None:
    q, k, v = (t.requires_grad_() for t in operands(2, 3))
    with torch.enable_grad():
        program = lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v  # noqa: E731
        ours, eager = bolide.compile(program)(q, k, v), program(q, k, v)
        for a, b in zip(torch.autograd.grad(ours.sum(), (q, k, v)), torch.autograd.grad(eager.sum(), (q, k, v))):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
