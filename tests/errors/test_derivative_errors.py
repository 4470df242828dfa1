"""What eager refuses of data when gradients are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide

Program = Callable[[Tensor], Tensor]


def _turning(a: Tensor) -> Tensor:
    return torch.linalg.eig(a)[1].real.sum()


def _turning_hermitian(a: Tensor) -> Tensor:
    return torch.linalg.eigh(a + a.mH)[1].imag.sum()


def _lengths(a: Tensor) -> Tensor:
    values, vectors = torch.linalg.eig(a)
    return vectors.abs().sum() + values.abs().square().sum()


def _lengths_hermitian(a: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(a + a.mH)
    return vectors.abs().sum() + values.square().sum()


def _outcome(fn: Program, a: Tensor, twice: bool) -> Any:
    try:
        (gradient,) = torch.autograd.grad(fn(a), a, create_graph=twice)
        return torch.autograd.grad(gradient.abs().square().sum(), a)[0] if twice else gradient
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("fn", [_turning, _turning_hermitian, _lengths, _lengths_hermitian])
def test_phases_of_eigenvectors(fn: Program, backend: str, twice: bool) -> None:
    compiled = bolide.compile(fn, backend=backend)
    for size in (3, 4, 5):
        a = torch.randn(2, size, size, dtype=torch.complex128, requires_grad=True)
        found, wanted = _outcome(compiled, a, twice), _outcome(fn, a, twice)
        assert isinstance(wanted, str) == ("turning" in fn.__name__)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted)
