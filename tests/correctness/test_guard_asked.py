"""Facts of the outside world that programs ask for in passing are guarded: the next call sees what has changed."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import bolide

X = torch.zeros(1)
Deque = collections.deque


class OfOurs(Deque[Any]):
    pass


class Misleading(Deque[Any]):
    maxlen = 77  # type: ignore[assignment]


HELD: dict[str, Any] = {}


@pytest.mark.parametrize("kind", [Deque, OfOurs, Misleading])
@pytest.mark.parametrize("where", ["argument", "global", "in containers"])
def test_the_limit_of_a_deque(kind: Any, where: str) -> None:
    def f(x: torch.Tensor, given: Any) -> Any:
        items = HELD["items"] if where == "global" else given if where == "argument" else given[0]["a"]
        items.append(9)
        return x + len(items), items.maxlen, list(items), items[0]

    compiled = bolide.compile(f, fullgraph=True)
    for limit in (None, 2, 3, None, 1):
        results = []
        for run in (compiled, f):
            items = HELD["items"] = kind([1, 2], limit)
            results.append((run(X, [{"a": items}] if where == "in containers" else items), list(items)))
            assert Deque.maxlen.__get__(items) == limit  # type: ignore[attr-defined]
        assert results[0] == results[1]
