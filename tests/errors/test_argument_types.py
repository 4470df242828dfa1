"""Indices of every type: what eager refuses is refused, with its message, and the rest is computed as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bolide

pytestmark = pytest.mark.filterwarnings("ignore")

INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "getitem": lambda x, i: x[i],
    "embedding": lambda x, i: F.embedding(i, x),
    "take": lambda x, i: x.take(i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_copy": lambda x, i: x.index_copy(0, i, x),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(5.0)),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "nll_loss": lambda x, i: F.nll_loss(x, i),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i),
    "bincount": lambda x, i: torch.bincount(i),
    "repeat_interleave": lambda x, i: torch.repeat_interleave(x, i, 0),
    "masked_fill": lambda x, i: x.masked_fill(i[:, None], 0.0),
}
TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float32, torch.float64]


def outcome(function: Callable[..., Any], tensors: list[Tensor]) -> Any:
    """The result, or the error's type and message."""
    try:
        return function(*[tensor.clone() for tensor in tensors])
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_every_type(name: str, dynamic: bool) -> None:
    compiled = bolide.compile(INDEXED[name], dynamic=dynamic)
    for dtype in TYPES:
        for rows in (3, 5):
            tensors = [torch.rand(rows, 4), torch.randint(0, 2, (rows,)).to(dtype)]
            want, got = outcome(INDEXED[name], tensors), outcome(compiled, tensors)
            if isinstance(want, tuple):
                assert got == want, dtype
            else:
                torch.testing.assert_close(got, want)


SOURCES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_add": lambda x, i, source: x.index_add(0, i, source),
    "index_copy": lambda x, i, source: x.index_copy(0, i, source),
    "index_copy_": lambda x, i, source: x.clone().index_copy_(0, i, source),
    "index_reduce": lambda x, i, source: x.index_reduce(0, i, source, "amax"),
    "index_put": lambda x, i, source: x.index_put((i,), source),
    "scatter": lambda x, i, source: x.scatter(0, i, source),
    "scatter_add": lambda x, i, source: x.scatter_add(0, i, source),
    "put_": lambda x, i, source: x.clone().put_(i, source),
}


@pytest.mark.parametrize("name", SOURCES)
def test_one_place_of_every_shape_and_sources_of_every_type(name: str) -> None:
    for index in (torch.tensor(1), torch.tensor([1]), torch.tensor([2, 0]), torch.tensor(1, dtype=torch.int32)):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for shape in ((), (1,)):
                tensors = [torch.rand(4), index, torch.ones(shape, dtype=dtype)]
                compiled = bolide.compile(SOURCES[name], dynamic=False)
                want, got = outcome(SOURCES[name], tensors), outcome(compiled, tensors)
                if isinstance(want, tuple):
                    assert got == want, (index, dtype, shape)
                else:
                    torch.testing.assert_close(got, want)
