"""Hooks of all kinds are called when eager calls them, with eager's values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.compiled_autograd_tools import assert_as_eager

Log = Any


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def tensor_hooks(log: Log) -> list[Any]:
    x, y = leaf(3), leaf(3)
    a = x.sin() * y
    b = a.exp()
    a.register_hook(lambda grad: log("a", grad))
    a.register_hook(lambda grad: grad * 2)
    a.register_hook(lambda grad: log("a again", grad))
    b.register_hook(lambda grad: log("b", grad))
    x.register_hook(lambda grad: grad + 1)
    (a + b).sum().backward()
    return [x.grad, y.grad]


def node_hooks(log: Log) -> list[Any]:
    x, y = leaf(3), leaf(3)
    a = x * y
    b = a.tanh()
    node = a.grad_fn
    assert node is not None
    node.register_prehook(lambda grads: log("pre", *grads))
    node.register_prehook(lambda grads: (grads[0] * 3,))
    node.register_hook(lambda results, grads: log("post", *results, *grads))
    node.register_hook(lambda results, grads: (results[0] + 1, results[1]))
    b.sum().backward()
    return [x.grad, y.grad]


def after_accumulation(log: Log) -> list[Any]:
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    for name, parameter in layers.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: log(name, p.grad.clone()))
    layers(torch.randn(5, 3)).sum().backward()
    return [p.grad for p in layers.parameters()]


def optimizer_in_backward(log: Log) -> list[Any]:
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def step(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad
        parameter.grad = None

    for parameter in layers.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        layers(torch.randn(5, 3)).square().sum().backward()
    assert all(p.grad is None for p in layers.parameters())
    return [p.detach() for p in layers.parameters()]


def saved_tensor_hooks(log: Log) -> list[Any]:
    def pack(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        return "packed", tensor.detach() * 2

    def unpack(packed: tuple[str, torch.Tensor]) -> torch.Tensor:
        log("unpack", packed[1])
        return packed[1] / 2

    x, y = leaf(3), leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        a = (x * y).exp()
    a.register_hook(lambda grad: log("a", grad))
    a.cos().sum().backward()
    return [x.grad, y.grad]


def retained(log: Log) -> list[Any]:
    x = leaf(3)
    a = x.sin()
    a.register_hook(lambda grad: grad * 2)
    a.retain_grad()
    b = a.exp()
    b.retain_grad()
    b.sum().backward()
    return [x.grad, a.grad, b.grad]


def interleaved(log: Log) -> list[Any]:
    """Two branches, whose nodes were made in turn: the engine goes back and forth between them."""
    x, y = leaf(3), leaf(3)
    for step in range(3):
        x_, y_ = (x, y) if step == 0 else (a, b)  # noqa: F821
        a, b = x_.sin(), y_.cos()
        a.register_hook(lambda grad, step=step: log("a", step, grad))
        b.register_hook(lambda grad, step=step: log("b", step, grad))
    (a * b + a + b).sum().backward()
    return [x.grad, y.grad]


def many_sums(log: Log) -> list[Any]:
    """A value that is used often: in float32 the order of additions is seen."""
    x = leaf(64)
    a = x * 1.7
    parts = [a * (10.0**power) for power in range(-4, 5)]
    parts = [part.sin() if index % 2 else part for index, part in enumerate(parts)]
    sum(parts).sum().backward()
    return [x.grad]


def callbacks(log: Log) -> list[Any]:
    x = leaf(3)
    engine = torch.autograd.Variable._execution_engine

    def hook(grad: torch.Tensor) -> None:
        log("hook", grad)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: late("first"))
        torch.autograd.Variable._execution_engine.queue_callback(lambda: late("second"))

    def late(name: str) -> None:
        log(name, x.grad)
        if name == "first":
            torch.autograd.Variable._execution_engine.queue_callback(lambda: late("third"))

    (x * 2).register_hook(hook)
    a = x * 3
    a.register_hook(hook)
    a.sum().backward()
    assert torch.autograd.Variable._execution_engine is engine
    return [x.grad]


def backward_in_a_hook(log: Log) -> list[Any]:
    x, y = leaf(3), leaf(3)
    a = x * 3

    def hook(grad: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            (y * grad.detach()).sum().backward()
        log("inner", y.grad)
        return grad + y.grad

    a.register_hook(hook)
    a.sum().backward()
    return [x.grad, y.grad]


def removed(log: Log) -> list[Any]:
    """A hook that takes itself away."""
    x = leaf(3)

    def hook(grad: torch.Tensor) -> None:
        log("hook", grad)
        handle.remove()

    handle = x.register_hook(hook)
    for _ in range(3):
        (x * 3).sum().backward()
    return [x.grad]


PROGRAMS = [
    *(tensor_hooks, node_hooks, after_accumulation, optimizer_in_backward, saved_tensor_hooks, retained, interleaved),
    *(many_sums, callbacks, backward_in_a_hook, removed),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_hooks_are_called_as_in_eager(program: Any) -> None:
    assert_as_eager(program)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (3, TypeError, "hook"),
        (torch.zeros(2), RuntimeError, "changed the size of value"),
        (torch.zeros(3, dtype=torch.float64), RuntimeError, "changed the type of value"),
    ],
)
def test_results_of_hooks_are_checked(result: Any, error: type[Exception], message: str) -> None:
    def program(log: Log) -> list[Any]:
        x = leaf(3)
        a = x * 2
        a.register_hook(lambda grad: result)
        with pytest.raises(error, match=message):
            a.sum().backward()
        return [x.grad]

    assert_as_eager(program)
