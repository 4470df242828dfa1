"""Tensors of the user's classes: kinds of `__torch_function__`, and what Python asks of operands of a subclass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bolide


class Named(nn.Parameter):
    """A parameter that changes no operation."""

    label = "none"


class OfInstances(torch.Tensor):
    """Its sums are twice themselves; torch warns of a method that is none of the class."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.add else result


class OfNobody(torch.Tensor):
    @staticmethod
    def __torch_function__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * len(types) if func is torch.Tensor.add else result


@pytest.mark.filterwarnings("ignore:Defining your `__torch_function__` as a plain method")
@pytest.mark.parametrize("cls", [OfInstances, OfNobody])
def test_methods_that_are_none_of_the_class(cls: Any) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + 1, (y.as_subclass(cls) + x).as_subclass(torch.Tensor).sin(), type(x + y)

    compiled = bolide.compile(fn, fullgraph=True)
    for rows in (3, 3, 4, 5):
        x, y = torch.randn(rows, 2), torch.randn(rows, 2, requires_grad=True)
        want, got = fn(x.as_subclass(cls), y), compiled(x.as_subclass(cls), y)
        assert got[2] is want[2] and type(got[0]) is type(want[0])
        gradients = [torch.autograd.grad(results[1].sum(), y)[0] for results in (got, want)]
        torch.testing.assert_close([got[1], gradients[0]], [want[1], gradients[1]])


@pytest.mark.parametrize("like", [nn.Parameter, Named])
def test_comparisons_ask_the_subclass_first(like: Any) -> None:
    """Which shows in the layout of what they give."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return x > weight, weight < x, x <= weight, x == weight, x != weight, x + weight, x.t() >= weight.t()

    compiled = bolide.compile(fn, fullgraph=True)
    for rows in (3, 3, 4, 5):
        for x, weight in (
            (torch.randn(rows, 2), like(torch.randn(2, rows).t())),
            (torch.randn(2, rows).t(), like(torch.randn(rows, 2))),
        ):
            for a, b in zip(compiled(x, weight), fn(x, weight), strict=True):
                torch.testing.assert_close(a, b)
                assert a.stride() == b.stride()
