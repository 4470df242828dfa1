"""Gradients of embeddings with ``sparse=True`` are sparse, as in eager, by `aot_function` and in compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.functorch.aot_autograd import aot_function
from bolide.support.errors import BolideWarning, Unsupported

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def rows(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return F.embedding(indices, weight, sparse=True)


def bags(weight: torch.Tensor, indices: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.embedding_bag(indices.view(2, -1), weight, sparse=True, **options)


PROGRAMS: dict[str, Program] = {
    "embedding": lambda w, v, i: rows(w, i).sin() @ v.t(),
    "bags": lambda w, v, i: bags(w, i, mode="mean").sin(),
    "weighted bags": lambda w, v, i: bags(w, i, mode="sum", per_sample_weights=i.view(2, -1).double()).sin(),
    "gather": lambda w, v, i: w.gather(0, i[:, None].expand(-1, 4), sparse_grad=True).sin(),
    "read twice": lambda w, v, i: rows(w, i).sin() + rows(w, i.flip(0)).cos(),
    "read otherwise, too": lambda w, v, i: (rows(w, i).sin() + rows(w, i)) @ w.t() + w.sum(),
    "two parameters": lambda w, v, i: (rows(w, i).sin(), rows(v, i).cos()),
    "one sum": lambda w, v, i: rows(w + v, i).sin(),
    "renormed": lambda w, v, i: F.embedding(i, w, sparse=True, max_norm=0.5).sin(),
}
COMPILERS: dict[str, Callable[[Program], Program]] = {
    "aot": lambda fn: aot_function(fn, lambda graph, examples: graph),
    "aot dynamic": lambda fn: aot_function(fn, lambda graph, examples: graph, dynamic=True),
    "compile": bolide.compile,
}


def trained(fn: Program, size: int, seed: int) -> list[torch.Tensor | None]:
    """Results, and gradients after one and two backward passes."""
    torch.manual_seed(seed)
    w, v = (torch.randn(10, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    results = fn(w, v, torch.randint(0, 10, (size,)))
    results = results if isinstance(results, tuple) else (results,)
    found: list[torch.Tensor | None] = [*results]
    for turn in (1, 2):
        sum((turn + result).sin().sum() for result in results).backward(retain_graph=True)
        found += [None if t.grad is None else t.grad.clone() for t in (w, v)]
    return found


@pytest.mark.filterwarnings("error::bolide.support.errors.BolideWarning")
@pytest.mark.parametrize("how", COMPILERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_as_sparse_as_eagers(name: str, how: str, seed: int) -> None:
    fn = PROGRAMS[name]
    compiled = COMPILERS[how](fn)
    for size in (4, 6, 8):
        for one, other in zip(trained(compiled, size, seed), trained(fn, size, seed), strict=True):
            if other is None or one is None:
                assert one is other
                continue
            assert one.layout is other.layout
            if other.is_sparse:
                assert one.is_coalesced() == other.is_coalesced() and one._nnz() == other._nnz()
            torch.testing.assert_close(one.to_dense(), other.to_dense())


def test_what_derives_a_sparse_gradient_otherwise_is_refused_with_its_line() -> None:
    def scaled(w, v, i):
        return rows(w * 2, i)

    w, v = torch.randn(10, 4, requires_grad=True), torch.randn(2)
    message = r"aten.mul.Tensor of a sparse gradient[\s\S]*test_sparse_gradients.py[\s\S]*leave out sparse=True"
    with pytest.raises(Unsupported, match=message):
        aot_function(scaled, lambda graph, examples: graph)(w, v, torch.tensor([1, 2]))
    with pytest.warns(BolideWarning, match=message):
        bolide.compile(scaled)(w, v, torch.tensor([1, 2])).sum().backward()
    assert w.grad is not None and w.grad.is_sparse


def test_gradients_of_sparse_gradients(seed: int) -> None:
    def fn(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return rows(w, i).sin()

    w, i = torch.randn(10, 4, requires_grad=True), torch.tensor([1, 2, 2])
    found = []
    for call in (fn, bolide.compile(fn)):
        (grad,) = torch.autograd.grad(call(w, i).sum(), w, create_graph=True)
        assert grad.is_sparse
        found.append(torch.autograd.grad(grad.to_dense().square().sum(), w)[0].to_dense())
    torch.testing.assert_close(*found)
