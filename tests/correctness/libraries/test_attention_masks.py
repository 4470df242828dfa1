"""Masks of attention that are left out, as they hide nothing, or what is behind each query."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.support import events

Mask = Callable[[int, int], Tensor]


def masks_used(function: Callable[..., Tensor], *args: Any, dynamic: bool = False) -> tuple[list[str], Tensor]:
    """How each call of attention in a program's graph is masked, and the result."""
    found: list[str] = []

    def look(event: object) -> None:
        if isinstance(event, events.Graph):
            for node in event.graph.graph.nodes:
                if node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
                    causal = len(node.args) > 4 and node.args[4]
                    masked = node.kwargs.get("attn_mask") is not None
                    found.append("a mask" if masked else "causal" if causal else "none")

    with events.subscribed(look):
        result = bolide.compile(function, fullgraph=True, dynamic=dynamic)(*args)
    return found, result


def attended(mask: Mask) -> Callable[..., Tensor]:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[2], k.shape[2]))

    return function


def indices(queries: int, keys: int) -> tuple[Tensor, Tensor]:
    return torch.arange(queries)[:, None] + 0, torch.arange(keys)


def by_places(queries: int, keys: int) -> Tensor:
    rows, columns = indices(queries, keys)
    return ((rows >= 0) & (columns <= rows))[None, None]


def by_positions(queries: int, keys: int) -> Tensor:
    """As transformers does, which also looks where sequences that are packed begin."""
    places = torch.arange(queries).unsqueeze(0).expand(2, -1)
    sequence = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    batch, row, column = torch.arange(2)[:, None, None, None], torch.arange(queries)[:, None], torch.arange(keys)
    same = sequence[batch, row] == sequence[batch, column]
    return torch.ones((), dtype=torch.bool) & (places[batch, column] <= places[batch, row]) & same


KNOWN: dict[str, tuple[Mask, str]] = {
    "all": (lambda q, k: (torch.arange(q)[None, None, :, None] >= 0).expand(2, -1, q, k), "none"),
    "ones": (lambda q, k: torch.ones(q, k, dtype=torch.bool), "none"),
    "zeros": (lambda q, k: torch.zeros(1, 1, q, k), "none"),
    "zeros chosen": (lambda q, k: torch.where((torch.arange(k) >= 0).expand(q, k), torch.zeros(q, k), -9.0), "none"),
    "triangle": (lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(), "causal"),
    "places": (by_places, "causal"),
    "positions": (by_positions, "causal"),
    "strict": (lambda q, k: torch.arange(k) < torch.arange(q)[:, None] + 1, "causal"),
    "turned": (lambda q, k: (torch.arange(q)[:, None] >= torch.arange(k)).view(1, 1, q, k), "causal"),
    "behind": (lambda q, k: torch.arange(k) <= torch.arange(q)[:, None] + 1, "a mask"),
    "window": (lambda q, k: by_places(q, k) & (torch.arange(k) + 3 > torch.arange(q)[:, None]), "a mask"),
    "steps": (lambda q, k: torch.arange(k) * 2 <= torch.arange(q)[:, None], "a mask"),
    "other way": (lambda q, k: torch.arange(k) >= torch.arange(q)[:, None], "a mask"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_masks_of_places_hide(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    length = int(torch.randint(5, 20, ()))
    tensors = [torch.randn(2, 3, length, 8) for _ in range(3)]
    mask, kind = KNOWN[name]
    found, result = masks_used(attended(mask), *tensors)
    assert found == [kind]
    torch.testing.assert_close(result, attended(mask)(*tensors), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["all", "triangle", "places", "turned"])
def test_lengths_that_are_symbols(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = [torch.randn(2, 3, int(torch.randint(5, 20, ())), 8)] * 3
    mask, kind = KNOWN[name]
    found, result = masks_used(attended(mask), *tensors, dynamic=True)
    assert found == [kind]
    torch.testing.assert_close(result, attended(mask)(*tensors), atol=1e-5, rtol=1e-4)


def test_fewer_queries_than_keys_keep_their_mask(seed: int) -> None:
    torch.manual_seed(seed)
    q, (k, v) = torch.randn(2, 3, 5, 8), torch.randn(2, 2, 3, 9, 8)
    found, result = masks_used(attended(by_places), q, k, v)
    assert found == ["a mask"]
    torch.testing.assert_close(result, attended(by_places)(q, k, v), atol=1e-5, rtol=1e-4)


def drawn_places(draw: random.Random) -> tuple[Any, ...]:
    table = draw.choice([None, None, (0, 1), (1, 1), (20, -1), (0, 2)])
    return draw.choice(["rows", "columns", "batch"]), draw.choice([0, 0, 0, 1]), table, draw.choice([0, 0, 1])


def drawn_truth(draw: random.Random, depth: int) -> tuple[Any, ...]:
    if depth and draw.random() < 0.5:
        return (drawn_truth(draw, depth - 1), drawn_truth(draw, depth - 1))
    other = drawn_places(draw) if draw.random() < 0.7 else draw.choice([-3, 0, 1, 50])
    return draw.choice(["le", "lt", "ge", "gt", "eq"]), drawn_places(draw), other


def made_places(plan: tuple[Any, ...], queries: int, keys: int) -> Tensor:
    along, more, table, less = plan
    kinds = {"rows": torch.arange(queries)[:, None], "columns": torch.arange(keys)}
    places = kinds[along] if along in kinds else torch.arange(2)[:, None, None, None]
    if table is not None:
        start, step = table
        return torch.arange(start, start + 40 * step, step)[places + more] - less
    return places + more - less


def made_truth(plan: tuple[Any, ...], queries: int, keys: int) -> Tensor:
    if len(plan) == 2:
        return made_truth(plan[0], queries, keys) & made_truth(plan[1], queries, keys)
    other = made_places(plan[2], queries, keys) if isinstance(plan[2], tuple) else plan[2]
    return getattr(torch, plan[0])(made_places(plan[1], queries, keys), other)


@pytest.mark.parametrize("number", range(12))
def test_random_masks(number: int, seed: int) -> None:
    """Comparisons of places, some of them taken from tables, and what they give together: a mask that is left out
    hides nothing else."""
    torch.manual_seed(seed + number)
    plan = drawn_truth(random.Random(seed + number), 2)
    length = int(torch.randint(2, 8, ()))
    tensors = [torch.randn(2, 3, length, 8) for _ in range(3)]

    def mask(queries: int, keys: int) -> Tensor:
        return made_truth(plan, queries, keys).expand(2, 3, queries, keys)

    found, result = masks_used(attended(mask), *tensors)
    seen = mask(length, length)
    if found == ["none"]:
        assert seen.all()
    if found == ["causal"]:
        assert torch.equal(seen, torch.ones_like(seen).tril())
    torch.testing.assert_close(result, attended(mask)(*tensors), atol=1e-5, rtol=1e-4, equal_nan=True)


def test_gradients_without_a_mask(seed: int) -> None:
    torch.manual_seed(seed)
    tensors = [torch.randn(2, 3, 11, 8, requires_grad=True) for _ in range(3)]
    for mask in (by_places, by_positions, KNOWN["all"][0]):
        expected = torch.autograd.grad(attended(mask)(*tensors).square().sum(), tensors)
        result = bolide.compile(attended(mask), fullgraph=True)(*tensors)
        for mine, theirs in zip(torch.autograd.grad(result.square().sum(), tensors), expected):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
