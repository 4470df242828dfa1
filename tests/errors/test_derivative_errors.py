"""What eager refuses of data when gradients are taken."""

from __future__ import annotations

import itertools
import random
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


_ONE, _PAIR = torch.ones(()), torch.ones(2)
_grad, _backward = torch.autograd.grad, torch.autograd.backward
ODD: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "no inputs": lambda x, y, z: y.backward(inputs=[]),  # type: ignore[no-untyped-call]
    "an old name": lambda x, y, z: _backward(y, grad_variables=[_ONE * 5]),
    "an old name beside the new one": lambda x, y, z: _backward(y, _ONE, grad_variables=[_ONE]),
    "all inputs": lambda x, y, z: _grad(y, x, only_inputs=False),
    "zeros for what may not be unused": lambda x, y, z: _grad(y, x, allow_unused=False, materialize_grads=True),
    "too few gradients": lambda x, y, z: _grad([y, z], x, [_ONE]),
    "too few gradients, backward": lambda x, y, z: _backward([y, z], [_ONE]),
    "too many gradients": lambda x, y, z: _grad(y, x, [_ONE, _ONE]),
    "a gradient of another shape": lambda x, y, z: _grad(y, x, _PAIR),
    "a gradient of another shape, backward": lambda x, y, z: _backward(y, _PAIR[:1]),
}


@pytest.mark.parametrize("name", ODD)
def test_gradients_asked_for_oddly(name: str) -> None:
    """What is asked of the engine inside of the program, with arguments that eager refuses or warns of."""

    def program(x: Tensor) -> object:
        return ODD[name](x, (x * 2).sum(), x.exp().sum())

    def outcome(run: Callable[[Tensor], object]) -> tuple[object, ...]:
        x = torch.linspace(0, 1, 3).requires_grad_()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                answer = run(x)
            except (RuntimeError, ValueError) as error:
                answer = type(error), str(error)
        return str(answer), str(x.grad), [str(warning.message) for warning in said]

    assert outcome(bolide.compile(program)) == outcome(program)


def _spread(*shape: int) -> Tensor:
    """A tensor whose dimensions are in random order in memory, perhaps with gaps."""
    strides, step = [0] * len(shape), 1
    for dim in random.sample(range(len(shape)), len(shape)):
        strides[dim] = step * random.randint(1, 2)
        step = strides[dim] * shape[dim]
    return torch.empty_strided(shape, strides).copy_(torch.rand(shape)).requires_grad_()


def _of_classes(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, how: loss(x, (x.detach().sum(1) * 4).long() % x.shape[1], reduction=how)


def _of_other(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, how: loss(x, x.detach().flip(1), reduction=how)


LOSSES = {
    **dict.fromkeys(("nll_loss", "cross_entropy"), _of_classes),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"), _of_other),
    **dict.fromkeys(("kl_div", "soft_margin_loss", "binary_cross_entropy_with_logits"), _of_other),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:.*BR0503", "ignore:reduction")
def test_layouts_that_derivatives_refuse(name: str) -> None:
    """The forward is eager's, and so are the gradient and its strides, or what the backward raises."""
    fn = LOSSES[name](getattr(torch.nn.functional, name))

    def outcome(run: Callable[..., Tensor], x: Tensor, how: str) -> tuple[Tensor, Any]:
        result, x.grad = run(x, how), None
        try:
            result.sum().backward()
        except RuntimeError as error:
            return result, str(error)
        return result, x.grad

    for size, how in itertools.product((3, 4, 5), ("none", "mean", "sum")):
        bolide.reset()
        for x in (_spread(2, 4, size, 3), _spread(2, 4), _spread(2, 4, size)):
            found, wanted = outcome(bolide.compile(fn), x, how), outcome(fn, x, how)
            torch.testing.assert_close(found[0], wanted[0])
            assert isinstance(found[1], str) == isinstance(wanted[1], str), (found, wanted)
            if isinstance(wanted[1], str):
                assert found[1] == wanted[1]
            else:
                torch.testing.assert_close(found[1], wanted[1])
                assert found[1].stride() == wanted[1].stride()


IN_PLACE: dict[str, Callable[[Tensor, float], Tensor]] = {
    "leaky_relu": torch.nn.functional.leaky_relu_,
    "elu": torch.nn.functional.elu_,
    "celu": torch.nn.functional.celu_,
}


@pytest.mark.parametrize("place", ["constant", "argument", "data"])
@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.filterwarnings("ignore:.*BR0503")
def test_slopes_of_which_a_result_does_not_tell_its_input(name: str, place: str) -> None:
    """The forward takes them, the backward does not: whether they are known, change, or are data."""
    constant = random.choice([-0.3, 0.3])

    def program(x: Tensor, slope: Any) -> Tensor:
        slope = constant if place == "constant" else slope.item() if place == "data" else slope
        return IN_PLACE[name](x * 2, slope)

    def outcome(run: Callable[..., Tensor], x: Tensor, slope: Any) -> tuple[Tensor, Any]:
        result, x.grad = run(x, slope), None
        try:
            result.sum().backward()
        except RuntimeError as error:
            return result, str(error)
        return result, x.grad

    compiled = bolide.compile(program, dynamic=True if place == "argument" else None)
    for value in random.sample([-0.7, -0.2, 0.2, 0.7, float("nan")], 4):
        x = torch.randn(random.randint(2, 9), requires_grad=True)
        slope = torch.tensor(value) if place == "data" else value
        found, wanted = outcome(compiled, x, slope), outcome(program, x, slope)
        torch.testing.assert_close(found[0], wanted[0], equal_nan=True, rtol=1e-4, atol=1e-5)
        assert isinstance(found[1], str) == isinstance(wanted[1], str), (value, found, wanted)
        if isinstance(wanted[1], str):
            assert found[1] == wanted[1]
        else:
            torch.testing.assert_close(found[1], wanted[1], equal_nan=True, rtol=1e-4, atol=1e-5)
