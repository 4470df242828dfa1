"""Tensors that are made in the memory of one that is given as `out=`: what is left there, and what follows from it, is
eager's, without a break, whatever the size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from tests.ordinary_tools import check_whole

aten = torch.ops.aten
Maker = Callable[[int, Tensor], Tensor]

VECTORS: dict[str, Maker] = {
    "zeros": lambda n, out: torch.zeros(n, out=out),
    "ones": lambda n, out: torch.ones((n,), out=out),
    "full": lambda n, out: torch.full((n,), 2.5, out=out),
    "arange": lambda n, out: torch.arange(n, out=out),
    "arange with a step": lambda n, out: torch.arange(1, 2 * n + 1, 2, out=out),
    "range": lambda n, out: torch.range(1, n, out=out),
    "linspace": lambda n, out: torch.linspace(0, 3, n, out=out),
    "logspace": lambda n, out: torch.logspace(0, 1, n, out=out),
    "empty and fill": lambda n, out: torch.empty(n, out=out).fill_(n),
    "zeros_like": lambda n, out: aten.zeros_like.out(torch.ones(n), out=out),
    "new_full": lambda n, out: aten.new_full.out(torch.ones(2), [n], 4.0, out=out),
}
DRAWS: dict[str, Maker] = {
    "rand": lambda n, out: torch.rand(n, out=out),
    "randn": lambda n, out: torch.randn(n, out=out),
    "randint": lambda n, out: torch.randint(2, 9, (n,), out=out),
    "randperm": lambda n, out: torch.randperm(n, out=out),
    "normal": lambda n, out: torch.normal(1.0, 2.0, (n,), out=out),
}


def _runs(make: Maker, target: Callable[[int], Tensor], **options: Any) -> None:
    def program(x: Tensor, out: Tensor) -> Any:
        made = make(x.shape[0], out)
        return x * made.to(x.dtype), made is out, out.sum()

    def run(compile: Callable[[Any], Any]) -> Any:
        compiled, seen = compile(program), []
        for n in (3, 5, 4, 7, 6):
            x, out = torch.randn(n, requires_grad=True), target(n)
            results = compiled(x, out)
            results[0].pow(2).sum().backward()
            seen.append((results, x.grad, out, out._base))
        return seen

    check_whole(run, **options)


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str, dtype: torch.dtype) -> None:
    _runs(VECTORS[name], lambda n: torch.full((n,), 9, dtype=dtype))


@pytest.mark.parametrize("name", ["ones", "arange", "linspace"])
def test_parts_of_memory(name: str) -> None:
    _runs(VECTORS[name], lambda n: torch.full((n, 3), 9.0)[:, 1])


@pytest.mark.parametrize("turned", [False, True])
def test_matrices(turned: bool) -> None:
    def target(n: int) -> Tensor:
        return torch.ones(n, 4).t() if turned else torch.ones(n, 4)

    def make(n: int, out: Tensor) -> Tensor:
        return torch.eye(*out.shape, out=out).sum(0 if turned else 1)

    _runs(make, target)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_eagers_where_the_backend_draws_as_eager(name: str) -> None:
    dtype = torch.int64 if name.startswith(("randint", "randperm")) else torch.float32
    _runs(DRAWS[name], lambda n: torch.zeros(n, dtype=dtype), backend="eager")


@pytest.mark.parametrize("name", DRAWS)
def test_draws_change(name: str) -> None:
    dtype = torch.int64 if name.startswith(("randint", "randperm")) else torch.float32
    out, compiled = torch.zeros(40, dtype=dtype), bolide.compile(DRAWS[name], fullgraph=True)
    seen = [compiled(40, out).clone() for _ in range(3)]
    assert not seen[0].equal(seen[1]) and not seen[1].equal(seen[2]) and out.equal(seen[2])
    if name == "randperm":
        assert all(each.sort().values.equal(torch.arange(40)) for each in seen)


REFUSED: dict[str, tuple[Maker, Callable[[], Tensor]]] = {
    "of a leaf": (lambda n, out: torch.ones(n, out=out), lambda: torch.zeros(3, requires_grad=True)),
    "into one place": (lambda n, out: torch.arange(n, out=out), lambda: torch.zeros(1).expand(3)),
    "zeros into one place": (lambda n, out: torch.zeros(n, out=out), lambda: torch.zeros(1).expand(3)),
    "of another type": (lambda n, out: torch.zeros(n, dtype=torch.int64, out=out), lambda: torch.zeros(3)),
    "a negative size": (lambda n, out: torch.linspace(0, 1, -n, out=out), lambda: torch.zeros(3)),
    "a leaf of points": (lambda n, out: torch.linspace(0, 1, n, out=out), lambda: torch.zeros(3, requires_grad=True)),
    "points in one place": (lambda n, out: torch.logspace(0, 1, n, out=out), lambda: torch.zeros(1).expand(3)),
    "a permutation of truths": (lambda n, out: torch.randperm(n, out=out), lambda: torch.zeros(3, dtype=torch.bool)),
    "complex numbers": (lambda n, out: torch.full((n,), 1j, out=out), lambda: torch.zeros(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_an_error(name: str) -> None:
    make, target = REFUSED[name]

    def outcome(run: Maker) -> Any:
        out = target()
        try:
            return run(3, out), out
        except Exception as error:
            return type(error), str(error)

    expected = outcome(make)
    for dynamic in (None, True):
        assert str(outcome(bolide.compile(make, dynamic=dynamic))) == str(expected)
