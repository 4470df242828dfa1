"""Sizes that are computed and happen to be 0 or 1 at a call: what is broadcast is decided by guards, and no kernel
reads what is not there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_sizes_views import agree

T = torch.Tensor


def rows(x: T) -> T:
    """As many rows of four as there are."""
    return x.view(-1, 4)


def blocks(x: T) -> T:
    return x.view(-1, 2, 2)


def assigned(x: T, y: T) -> T:
    x[:] = y
    return x


def put(x: T, y: T) -> T:
    places = torch.arange(x.shape[0] // 4), torch.arange(y.shape[0] // 4)
    return x.new_zeros(9, 9).index_put(places, rows(y)[:, 0])


PROGRAMS: dict[str, Callable[[T, T], Any]] = {
    "product": lambda x, y: rows(x) * rows(y),
    "halves": lambda x, y: x[: x.shape[0] // 8] + y[: y.shape[0] // 4],
    "all but some": lambda x, y: x[x.shape[0] - 1 :] - y[7:],
    "expand": lambda x, y: rows(x).expand(y.shape[0] // 4, 4) * 2,
    "expand_as": lambda x, y: rows(x).expand_as(rows(y)).sin(),
    "where": lambda x, y: torch.where(rows(x) > 0, rows(x), rows(y)),
    "broadcast_tensors": lambda x, y: torch.broadcast_tensors(rows(x), rows(y)),
    "matmul": lambda x, y: blocks(x) @ blocks(y),
    "matmul of more": lambda x, y: blocks(x)[:, None] @ blocks(y),
    "einsum": lambda x, y: torch.einsum("bij,bjk->bik", blocks(x), blocks(y)),
    "addmm": lambda x, y: torch.addmm(rows(x), rows(y), y[:4, None].expand(4, 4)),
    "baddbmm": lambda x, y: torch.baddbmm(blocks(x), blocks(y), blocks(y)),
    "cat": lambda x, y: torch.cat([rows(x)[x.shape[0] // 8 :], rows(y)[: y.shape[0] // 8]]),
    "index": lambda x, y: rows(x)[torch.arange(x.shape[0] // 4), torch.arange(y.shape[0] // 4) % 4],
    "index_put": put,
    "index_add": lambda x, y: rows(x).index_add(0, torch.arange(x.shape[0] // 4), rows(y)),
    "index_copy": lambda x, y: rows(x).index_copy(0, torch.arange(x.shape[0] // 4), rows(y)),
    "in place": lambda x, y: (rows(x) * 1).mul_(rows(y)),
    "assigned": lambda x, y: assigned(rows(x) * 1, rows(y)),
    "lerp": lambda x, y: torch.lerp(rows(x), rows(y), 0.3),
    "addcmul": lambda x, y: torch.addcmul(rows(x), rows(y), rows(x)),
    "clamp": lambda x, y: rows(x).clamp(min=rows(y)),
    "outer": lambda x, y: rows(x)[:, None] * rows(y)[None],
    "loss": lambda x, y: F.binary_cross_entropy_with_logits(rows(x), rows(x).sigmoid(), pos_weight=rows(y)[:1]),
    "attention": lambda x, y: F.scaled_dot_product_attention(rows(x)[None], rows(y)[None], rows(y)[None]),
    "conv1d": lambda x, y: F.conv1d(x[None, None], y[: y.shape[0] // 4 * 2].view(-1, 1, 2)),
    "conv1d by channel": lambda x, y: F.conv1d(x[None, :, None] * y[0], x.view(-1, 1, 1), groups=x.shape[0]),
    "squeeze": lambda x, y: rows(x).squeeze() * rows(y),
    "repeat": lambda x, y: rows(x).repeat(y.shape[0] // 4, 1) * rows(y)[:1],
    "gather": lambda x, y: rows(x).gather(0, torch.zeros(y.shape[0] // 4, 4, dtype=torch.int64)),
    "sums": lambda x, y: torch.stack([rows(x).sum(0), rows(y).sum(0)]) * y[: y.shape[0] // 4, None],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_computed_sizes_that_may_be_one(name: str) -> None:
    """Two inputs of 4, 8 and 12 numbers in any order, with `dynamic=True` and without, with gradients and without."""
    dynamic, grad = random.choice([(True, True), (True, False), (None, True)])
    pairs = random.sample(list(itertools.product((4, 8, 12), repeat=2)), 5)
    calls = [[torch.randn(n, dtype=torch.float64, requires_grad=grad) for n in pair] for pair in pairs]
    agree(PROGRAMS[name], calls, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [True, None])
def test_nothing_is_broadcast_to_what_is_empty(dynamic: bool | None) -> None:
    sizes = (4, 0, 8, 1, 12)
    calls = [[torch.randn(n, 4, dtype=torch.float64, requires_grad=True), k] for n, k in zip(sizes, (2, 1, 8, 0, 3))]
    agree(lambda x, k: x[:k] * x[: x.shape[0] // 2], calls, dynamic=dynamic)
    agree(lambda x, k: torch.cat([x[:k], x[k:], x[: x.shape[0] // 4]]) * 2, calls, dynamic=dynamic)
    agree(lambda x, k: x[k:].sum(0) @ x.new_ones(4, 4) + x[:k].cos().sum(0), calls, dynamic=dynamic)
    agree(lambda x, k: torch.outer(x[:5, 0], x.flatten()[: k // 2]) * 2, calls, dynamic=dynamic)
    agree(lambda x, k: torch.outer(x[:5, 0], x.flatten()[: x.shape[0] // 5 * k : 2]) * 2, calls, dynamic=dynamic)
