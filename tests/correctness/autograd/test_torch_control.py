"""Control flow that depends on data inside one captured graph: only what eager would run is run, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop

import bolide
from bolide.support.errors import Unsupported

layer = nn.Linear(5, 5)


def check(fn: Callable[..., Any], choice: Callable[..., Any], backend: str) -> None:
    """`fn`, compiled once, against `choice`, which writes it with `if`, where the condition holds and where not."""
    compiled = bolide.compile(fn, fullgraph=True, backend=backend)
    for sign in (1, -1, 1):
        x = torch.rand(4, 5) * sign
        results = []
        for function in (choice, compiled):
            own = x.clone().requires_grad_()
            out = function(own)
            found = torch.autograd.grad(out.square().sum(), [own, *layer.parameters()], allow_unused=True)
            results.append([out.detach(), *[torch.zeros(()) if g is None else g for g in found]])
        for got, expected in zip(results[1], results[0]):
            torch.testing.assert_close(got, expected.expand_as(got))
    assert len(compiled._bolide.entries) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_branches_with_closures(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.cond(x.sum() > 0, lambda x: layer(y) * x, lambda x: y.sin(), (x,)) + x

    def choice(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return (layer(y) * x if x.sum() > 0 else y.sin()) + x

    check(fn, choice, backend)


def test_only_the_branch_that_is_chosen_runs() -> None:
    table = torch.randn(4, 3)

    def fn(index: torch.Tensor) -> torch.Tensor:
        return torch.cond(index.max() < 4, lambda i: table[i], lambda i: torch.zeros(i.shape[0], 3), (index,))

    compiled = bolide.compile(fn, fullgraph=True)
    assert torch.equal(compiled(torch.tensor([1, 3])), table[[1, 3]])
    assert torch.equal(compiled(torch.tensor([1, 9])), torch.zeros(2, 3))


def test_gradients_of_the_other_branch_do_not_leak() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.min() > 0, lambda x: x.sqrt(), lambda x: x * 0, (x,))

    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(bolide.compile(fn, fullgraph=True)(x).sum(), x)
    assert torch.equal(gradient, torch.zeros(2))


def test_nested_structures_and_branches() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> Any:
            inner = torch.cond(x.max() > 0.5, lambda x: x * 3, lambda x: x.exp(), (x,))
            return {"a": inner, "b": (x * 1,)}

        out = torch.cond(x.sum() > 0, positive, lambda x: {"a": x.cos(), "b": (x.sin(),)}, (x,))
        return out["a"] + out["b"][0]

    def choice(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return (x * 3 if x.max() > 0.5 else x.exp()) + x * 1
        return x.cos() + x.sin()

    check(fn, choice, "aot_eager")


@pytest.mark.parametrize(
    ("branch", "reason"),
    [
        (lambda x: x[0] * 2, "different results"),
        (lambda x: x.t().t(), "shares memory"),
        (lambda x: x.add_(1), "writes"),
        (lambda x: x + torch.randperm(20).view(4, 5), "random"),
    ],
)
def test_branches_that_cannot_be_operations(branch: Callable[..., Any], reason: str) -> None:
    compiled = bolide.compile(lambda x: torch.cond(x.sum() > 0, branch, lambda x: x * 1, (x,)), fullgraph=True)
    with pytest.raises(Unsupported, match=reason):
        compiled(torch.randn(4, 5))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_loop_on_data(backend: str) -> None:
    factor = torch.tensor(1.5)

    def fn(x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: x.norm() < 100, lambda i, x: (i + 1, x * factor), (torch.tensor(0), x))

    compiled = bolide.compile(fn, fullgraph=True, backend=backend)
    for scale in (1.0, 1e-3, 1e4):
        x = torch.randn(4) * scale
        with torch.no_grad():
            steps, result = compiled(x)
        expected, count = x, 0
        while expected.norm() < 100:
            expected, count = expected * factor, count + 1
        assert steps.item() == count
        torch.testing.assert_close(result, expected)
    assert len(compiled._bolide.entries) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_branches_under_sizes_that_change(backend: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        yes, no = lambda x: layer(y) * x * x.shape[0] + w.sum(), lambda x: y.sin().reshape(x.shape)
        return torch.cond(x.sum() > 0, yes, no, (x,)) + x

    def choice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return (layer(y) * x * x.shape[0] + w.sum() if x.sum() > 0 else y.sin()) + x

    compiled = bolide.compile(fn, fullgraph=True, backend=backend)
    for number, rows in enumerate((3, 5, 7, 4, 9, 2)):
        x = torch.rand(rows, 5) * (-1) ** (number // 2)
        results = []
        for function in (choice, compiled):
            given = x.clone().requires_grad_(), torch.ones(rows + 1, requires_grad=True)
            out = function(*given)
            found = torch.autograd.grad(out.square().sum(), [*given, *layer.parameters()], allow_unused=True)
            results.append([out.detach(), *[torch.zeros(()) if g is None else g for g in found]])
        for got, expected in zip(results[1], results[0]):
            torch.testing.assert_close(got, expected.expand_as(got), rtol=1e-4, atol=1e-4)
    assert len(compiled._bolide.entries) == 2


def test_a_loop_on_data_under_sizes_that_change() -> None:
    def fn(x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: x.norm() < 99, lambda i, x: (i + 1, x * 6 / x.shape[0]), (torch.tensor(0), x))

    compiled = bolide.compile(fn, fullgraph=True)
    for rows in (2, 3, 5, 4):
        x = torch.rand(rows) + 0.5
        with torch.no_grad():
            steps, result = compiled(x)
        expected, count = x, 0
        while expected.norm() < 99:
            expected, count = expected * 6 / rows, count + 1
        assert steps.item() == count
        torch.testing.assert_close(result, expected)
    assert len(compiled._bolide.entries) == 2


def test_the_result_of_a_branch_lies_in_memory_as_in_eager() -> None:
    compiled = bolide.compile(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.sin(), (x,)))
    for shape in ((3, 4), (5, 4), (6, 7)):
        x = torch.randn(shape).t()
        assert compiled(x).stride() == (x * 2).stride()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_no_derivative_goes_through_what_a_branch_detaches(sign: float) -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x * x.detach() ** 2

    def negative(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.exp()
        return x * scale

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, positive, negative, (x,))

    start = torch.rand(4) * sign
    gradients = []
    for function in (bolide.compile(fn, backend="aot_eager", fullgraph=True), positive if sign > 0 else negative):
        x = start.clone().requires_grad_()
        function(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
