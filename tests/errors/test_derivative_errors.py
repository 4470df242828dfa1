"""What eager refuses of data when gradients are taken."""

from __future__ import annotations

import warnings
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


def _on_tensor(answer: Callable[..., Any]) -> Program:
    def f(a: Tensor) -> Tensor:
        y = a * 2
        y.register_hook(answer)
        return y * 3

    return f


def _on_node(answer: Callable[..., Any], method: str = "register_hook") -> Program:
    def f(a: Tensor) -> Tensor:
        y = a * 2
        getattr(y.grad_fn, method)(answer)
        return y * 3

    return f


def _on_module(answer: Callable[..., Any]) -> Program:
    module = torch.nn.Sigmoid()
    module.register_full_backward_hook(lambda _, inner, outer: answer(*outer))
    return lambda a: module(a) * 3


def _of_function(answer: Callable[..., Any]) -> Program:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return answer(g)

    return lambda a: Doubled.apply(a) * 3  # type: ignore[no-untyped-call,no-any-return]


def _of_saved(answer: Callable[..., Any]) -> Program:
    def f(a: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, answer):
            return a * a

    return f


ANSWERS: dict[str, Program] = {
    "a hook gives a text": _on_tensor(lambda g: "text"),
    "a hook gives a number": _on_tensor(lambda g: 3),
    "a hook gives another size": _on_tensor(lambda g: g.sum()),
    "a hook gives another type": _on_tensor(lambda g: g.double()),
    "a hook of a node gives a text": _on_node(lambda inner, outer: "text"),
    "a hook of a node gives too few": _on_node(lambda inner, outer: ()),
    "a first hook of a node gives a text": _on_node(lambda outer: "text", "register_prehook"),
    "a first hook of a node gives a text among others": _on_node(lambda outer: ("text",), "register_prehook"),
    "a hook of a module gives a text": _on_module(lambda g: ("text",)),
    "a hook of a module gives too many": _on_module(lambda g: (g, g)),
    "backward gives a text": _of_function(lambda g: "text"),
    "backward gives too many": _of_function(lambda g: (g, g)),
    "what was saved becomes a text": _of_saved(lambda saved: "text"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_are_no_gradients(name: str) -> None:
    """Eager's error comes out, when the backward runs; that the program is not compiled is said, and is no fault."""
    fn = ANSWERS[name]
    compiled = bolide.compile(fn)

    def outcome(run: Program, size: int) -> Any:
        try:
            return run(torch.ones(size, requires_grad=True)).sum().backward()
        except (RuntimeError, TypeError) as error:
            return type(error), str(error)

    for size in (2, 2, 3):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = outcome(compiled, size)
        assert found == outcome(fn, size) and found is not None
        assert all("BR0503" in str(each.message) for each in said), said
