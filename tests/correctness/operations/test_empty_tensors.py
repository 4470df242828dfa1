"""Tensors without elements, known beforehand, by data, or as a part of changing size: places in them that are read or
written are eager's errors, what is computed of them is eager's result."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide

WIDTH = 5


def _written(t: Tensor, i: Tensor) -> Tensor:
    t = t.clone()
    t[i] = 1.0
    return t


def _wide(i: Tensor) -> Tensor:
    return i[:, None].expand(-1, WIDTH)


AT_PLACES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda t, i: t[i] * 2,
    "index_select": lambda t, i: t.index_select(0, i).sin(),
    "embedding": lambda t, i: F.embedding(i, t) + 1,
    "gather": lambda t, i: t.gather(0, _wide(i)),
    "written": _written,
    "index_put": lambda t, i: t.index_put((i,), torch.ones(()), accumulate=True),
    "scatter": lambda t, i: t.scatter(0, _wide(i), 2.0),
    "scatter_add": lambda t, i: t.scatter_add(0, _wide(i), torch.ones(len(i), WIDTH)),
    "scatter_reduce": lambda t, i: t.scatter_reduce(0, _wide(i), torch.ones(len(i), WIDTH), "amax"),
    "index_copy": lambda t, i: t.index_copy(0, i, torch.ones(len(i), WIDTH)),
    "index_fill": lambda t, i: t.index_fill(0, i, 3.0),
    "one place": lambda t, i: t[i[0]] - t[torch.tensor([0])],
}
SHOWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "by a mask": lambda x, m: x[m],
    "by a slice": lambda x, m: x[2:],
    "whole": lambda x, m: x,
}
OF_NONE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda t: t.mean(0),
    "amax": lambda t: t.amax(0),
    "norm": lambda t: t.norm(math.inf, 0) + t.norm(2),
    "argmin": lambda t: t.argmin(),
    "median": lambda t: t.median(0).values,
    "logsumexp": lambda t: t.logsumexp(0),
    "std": lambda t: t.var(0, correction=0),
    "softmax": lambda t: F.softmax(t, 0) + F.softmax(t, 1),
    "cumsum": lambda t: t.cumsum(0),
    "products": lambda t: t.t() @ t,
    "rows": lambda t: t @ t.t(),
    "first": lambda t: t[0],
    "last": lambda t: t[-1:],
    "cat": lambda t: torch.cat([t, t + 1, torch.ones(1, WIDTH)]),
    "layer_norm": lambda t: F.layer_norm(t, (WIDTH,)),
    "cross_entropy": lambda t: F.cross_entropy(t, torch.zeros(len(t), dtype=torch.int64)),
    "topk": lambda t: t.topk(1, 0).values,
    "distances": lambda t: torch.cdist(t, torch.zeros(3, WIDTH)).amin(1),
    "pad": lambda t: F.pad(t, (1, 1), value=2.0),
    "one_hot": lambda t: F.one_hot((t[:, 0] > 0).long(), 2),
    "repeat": lambda t: t.repeat_interleave(2, 0).roll(1, 0),
}


def outcome(function: Callable[..., Tensor], x: Tensor, *others: Any) -> tuple[Any, ...]:
    """The result and the gradient of x, or the error."""
    x = x.clone().requires_grad_(x.requires_grad)
    try:
        result = function(x, *others)
    except Exception as error:
        return type(error), str(error)
    gradient = torch.autograd.grad(result.cos().sum(), x)[0] if result.requires_grad else None
    return result.detach(), gradient


def check(compiled: Callable[..., Tensor], function: Callable[..., Tensor], x: Tensor, *others: Any) -> bool:
    ours, theirs = outcome(compiled, x, *others), outcome(function, x, *others)
    if isinstance(theirs[0], type):
        assert ours == theirs
        return False
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    return True


def masks() -> list[Tensor]:
    some = torch.zeros(6, dtype=torch.bool)
    some[random.sample(range(6), 3)] = True
    return [some, torch.ones(6, dtype=torch.bool), torch.zeros(6, dtype=torch.bool), some.roll(1)]


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("operation", AT_PLACES)
def test_nothing_is_at_any_place(operation: str, shown: str) -> None:
    def function(x: Tensor, m: Tensor, i: Tensor) -> Tensor:
        return AT_PLACES[operation](SHOWN[shown](x, m), i)

    fails = []
    for given in (False, True) if operation != "index_fill" else (False,):  # whose gradient eager fails in making
        compiled = bolide.compile(function)
        for size, mask in zip((6, 5, 2, 4), masks()):
            rows = {"by a mask": 6, "by a slice": size, "whole": size if size > 2 else 0}[shown]
            x = torch.randn(rows, WIDTH, requires_grad=given)
            fails.append(not check(compiled, function, x, mask, torch.tensor([0, 1])))
    assert any(fails) and not all(fails)


@pytest.mark.parametrize("operation", OF_NONE)
def test_what_is_computed_of_no_rows(operation: str) -> None:
    def function(x: Tensor, m: Tensor) -> Tensor:
        return OF_NONE[operation](x[m])

    for given in (False, True):
        compiled = bolide.compile(function)
        for mask in masks():
            check(compiled, function, torch.randn(6, WIDTH, requires_grad=given), mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("rows", [0, 3])
def test_types_are_refused_of_empty_tensors_too(dtype: torch.dtype, rows: int) -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return torch.lerp(a, b, 0.3)

    assert not check(
        bolide.compile(function), function, torch.ones(rows, WIDTH).to(dtype), torch.ones(1, WIDTH).double()
    )
