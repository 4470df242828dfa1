"""Operators of other makers are trusted with nothing: what they give is what their fake implementation says, or an
error names them; what they keep, or give twice, is never written to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.support.errors import WrongResult

numbers = itertools.count()


def operator(
    compute: Callable[..., Any],
    fake: Callable[..., Any] = torch.empty_like,
    schema: str = "(Tensor x) -> Tensor",
    derivative: Callable[..., Any] | None = None,
) -> Any:
    """A new operator."""
    name = f"foreign_memory::op{next(numbers)}"
    torch.library.define(name, schema)
    torch.library.impl(name, "CPU", compute)
    torch.library.register_fake(name, fake)
    if derivative is not None:
        torch.library.register_autograd(name, derivative)
    return getattr(torch.ops.foreign_memory, name.partition("::")[2])


#: what an operator gives where its fake implementation says that it is like the argument
LIES = {
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:1].expand(x.shape),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "a row": lambda x: x[:1].clone(),
    "more": lambda x: torch.cat([x, x]),
    "flat": lambda x: x.flatten(),
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "complex": lambda x: x + 0j,
    "nothing there": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lie", LIES)
def test_a_result_that_is_not_as_its_fake_says_is_an_error_that_names_the_operator(lie: str, dynamic: bool) -> None:
    op = operator(lambda x: LIES[lie](x))
    compiled = bolide.compile(lambda x, y: (op(x) + y).exp(), dynamic=dynamic)
    for rows in (7, 7, 9):
        with pytest.raises(WrongResult, match=str(op.default)):
            compiled(torch.randn(rows, 4), torch.randn(rows, 4))


@pytest.mark.parametrize("lie", LIES)
def test_the_same_in_the_backward(lie: str) -> None:
    inner = operator(lambda x: LIES[lie](x))
    op = operator(torch.sin, derivative=lambda ctx, grad: inner(grad) * 2)
    x = torch.randn(7, 4, requires_grad=True)
    loss = bolide.compile(lambda x: op(x * 2).exp())(x).sum()
    with pytest.raises(WrongResult, match=str(inner.default)):
        loss.backward()


@pytest.mark.parametrize("lie", ["transposed", "a row", "float64"])
def test_the_same_of_one_of_several_results_and_of_what_is_written(lie: str) -> None:
    two = operator(
        lambda x: (x.sin(), LIES[lie](x)),
        lambda x: (torch.empty_like(x), torch.empty_like(x)),
        "(Tensor x) -> (Tensor, Tensor)",
    )
    with pytest.raises(WrongResult, match=str(two.default)):
        bolide.compile(lambda x: two(x)[1] + 1)(torch.randn(7, 4))
    writing = operator(
        lambda x, out: LIES[lie](out.copy_(x)),
        lambda x, out: torch.empty_like(x),
        "(Tensor x, Tensor(a!) out) -> Tensor",
    )
    with pytest.raises(WrongResult, match=str(writing.default)):
        bolide.compile(lambda x: writing(x, torch.empty_like(x)) + 1)(torch.randn(7, 4))


def test_a_later_lie_is_found() -> None:
    honest = [True]
    op = operator(lambda x: x.sin() if honest[0] else x[:1].sin())
    compiled = bolide.compile(lambda x: op(x) * 2)
    x = torch.randn(7, 4)
    torch.testing.assert_close(compiled(x), x.sin() * 2)
    honest[0] = False
    with pytest.raises(WrongResult):
        compiled(x)


def test_marks_of_results_are_resolved() -> None:
    negative = operator(lambda x: torch.complex(x, x).conj().imag, lambda x: torch.empty(x.shape + (2,))[..., 0])
    compiled = bolide.compile(lambda x: (negative(x) + 1) * 2)
    x = torch.randn(7, 4)
    torch.testing.assert_close(compiled(x), (negative(x) + 1) * 2)


def test_sizes_of_one_have_any_stride() -> None:
    op = operator(lambda x: x.sin().as_strided(x.shape, (17, 1)))
    compiled = bolide.compile(lambda x: op(x) * 2)
    x = torch.randn(1, 4)
    torch.testing.assert_close(compiled(x), x.sin() * 2)


def test_what_an_operator_keeps_is_not_written_to() -> None:
    kept: list[torch.Tensor] = []
    op = operator(lambda x: kept.append(x) or x.sin())  # type: ignore[func-returns-value]

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return op(y) + torch.relu(y + 3)

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    torch.testing.assert_close(bolide.compile(f)(x, w), f(x, w))
    torch.testing.assert_close(kept[-1], x @ w)
    torch.testing.assert_close(kept[-2], x @ w)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_that_is_the_argument_is_read_as_it_was(dynamic: bool) -> None:
    op = operator(lambda x: x)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        kept = op(y)
        z = torch.relu(y + 3).exp()
        return (z @ w) + kept

    compiled = bolide.compile(f, dynamic=dynamic)
    for n in (8, 11):
        x, w = torch.randn(n, n), torch.randn(n, n) / n
        torch.testing.assert_close(compiled(x, w), f(x, w), rtol=1e-4, atol=1e-4)


def test_a_result_that_lies_in_a_cache_is_not_written_to() -> None:
    cache = torch.randn(16, 4)
    op = operator(lambda x: cache[: x.shape[0]])
    compiled = bolide.compile(lambda x: torch.relu(op(x) * 2 + 1) @ x.t())
    for _ in range(3):
        before, x = cache.clone(), torch.randn(8, 4)
        torch.testing.assert_close(compiled(x), torch.relu(cache[:8] * 2 + 1) @ x.t())
        assert torch.equal(cache, before)


def test_memory_that_a_reinterpreted_view_looks_at_is_not_reused() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ w
        bits = y.view(torch.int32)
        z = torch.relu(y + 3) @ w
        return z, bits >> 3

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    for mine, theirs in zip(bolide.compile(f)(x, w), f(x, w)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


#: hooks of saved tensors: what they pack, and what they unpack
HOOKS = {
    "row-major": (lambda t: t, lambda t: t.contiguous()),
    "column-major": (lambda t: t, lambda t: t.mT.contiguous().mT if t.dim() > 1 else t),
    "with gaps": (lambda t: t, lambda t: torch.stack([t, t], -1)[..., 1]),
    "float64": (lambda t: t.double(), lambda t: t),
    "sparse": (lambda t: t.to_sparse(), lambda t: t.to_dense()),
    "numpy": (lambda t: t.detach().numpy(), lambda array: torch.from_numpy(array.copy())),
}


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_saved_tensors_come_back_from_hooks_in_any_layout(hooks: str, dynamic: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.t().exp() @ w).sin().t().softmax(0)

    def gradients(g: Callable[..., Any], n: int) -> list[torch.Tensor]:
        torch.manual_seed(n)
        given = [torch.randn(n, 7, requires_grad=True), torch.randn(n, 5, requires_grad=True)]
        with torch.autograd.graph.saved_tensors_hooks(*HOOKS[hooks]):
            result = g(*given)
        return list(torch.autograd.grad(result.square().sum(), given))

    compiled = bolide.compile(f, dynamic=dynamic)
    for n in (4, 6):
        torch.manual_seed(n)
        given = [torch.randn(n, 7, requires_grad=True), torch.randn(n, 5, requires_grad=True)]
        expected = torch.autograd.grad(f(*given).square().sum(), given)
        torch.testing.assert_close(gradients(compiled, n), list(expected), rtol=1e-4, atol=1e-5)


def test_a_hook_that_unpacks_another_shape_is_an_error() -> None:
    x = torch.randn(6, 7, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:1]):
        result = bolide.compile(lambda x: x.exp().sin())(x)
    with pytest.raises(WrongResult, match="hook of saved tensors"):
        result.sum().backward()
