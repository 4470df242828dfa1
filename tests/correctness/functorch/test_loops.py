"""`while_loop` with gradients: loops as long as data say stay in the graph, and are as those of Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import while_loop
from torch.utils.checkpoint import checkpoint

import bolide
from bolide.dynamo import compiled_autograd
from bolide.functorch import aot_function, nop
from bolide.support import events

Tensors = list[torch.Tensor]


def in_python(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any) -> Any:
    """What `while_loop` stands for."""
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def halved(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return loop(lambda h: h.square().sum() > 0.1, lambda h: ((h @ w).tanh() * 0.3,), (x,))[0]


def closure(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return loop(
        lambda i, h: h.sum() < 40, lambda i, h: (i + 1, h + y.square() * w[0] ** 2 + 0.3), (w.new_zeros(()), x)
    )[1]


def two_values(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b.abs() + 0.2, b.cos() * a.mean()

    a, b = loop(lambda a, b: a.sum() < 30, step, (x, x @ w))
    return a * b


def newton(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wanted = (x @ w).square() + 1

    def goes_on(i: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (i < 50) & ((z * z - wanted).abs().max() > 1e-5)

    return loop(goes_on, lambda i, z: (i + 1, z - (z * z - wanted) / (2 * z)), (torch.tensor(0), wanted.detach() * 1))[
        1
    ]


def no_step(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return loop(lambda h: h.sum() < -1e9, lambda h: ((h @ w).tanh(),), (x,))[0] * w.sum()


def nested(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def step(h: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return halved(loop, h, w) + x * 0.1, i + 1

    return loop(lambda h, i: (i < 2) | (h.sum() > 100), step, (x, torch.tensor(0)))[0]


def in_a_branch(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return halved(loop, x, w) * 2 if x.sum() > 0 else w.sum() * x


def checkpointed(loop: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: halved(loop, x.sin(), w), x, use_reentrant=False)  # type: ignore[no-any-return]


PROGRAMS = [halved, closure, two_values, newton, no_step, nested, in_a_branch, checkpointed]


def leaves(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4, requires_grad=True), (torch.randn(4, 4) * 0.7).requires_grad_()


def gradients(program: Any, x: torch.Tensor, w: torch.Tensor) -> Tensors:
    result = program(x, w)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), [x, w])]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_of_loops(program: Any) -> None:
    plain = functools.partial(program, in_python)
    fast = bolide.compile(functools.partial(program, while_loop), fullgraph=True)
    for rows in (4, 6, 3, 5):
        x, w = leaves(rows)
        torch.testing.assert_close(gradients(fast, x, w), gradients(plain, x, w), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_loops_of_all_lengths_are_one_version(backend: str) -> None:
    fast = bolide.compile(functools.partial(two_values, while_loop), fullgraph=True, backend=backend)
    seen: list[Any] = []
    with events.subscribed(lambda event: seen.append(event) if isinstance(event, events.Captured) else None):
        for size in (1.0, 3.0, 0.1):
            x, w = leaves(4)
            x.data *= size
            expected = gradients(functools.partial(two_values, in_python), x, w)
            torch.testing.assert_close(gradients(fast, x, w), expected, rtol=1e-3, atol=1e-4)
    assert len(seen) == 1


def test_only_an_operand_has_a_gradient() -> None:
    fast = bolide.compile(functools.partial(closure, while_loop), fullgraph=True)
    x, w = leaves(5)
    x = x.detach()
    expected, actual = closure(in_python, x, w), fast(x, w)
    wanted = torch.autograd.grad(expected.sum(), w)
    torch.testing.assert_close([actual, *torch.autograd.grad(actual.sum(), w)], [expected, *wanted])


def test_loops_in_captured_backward_passes() -> None:
    compiled_autograd.reset()
    fast = bolide.compile(functools.partial(nested, while_loop))
    for rows in (4, 6, 3):
        x, w = leaves(rows)
        nested(in_python, x, w).square().sum().backward()
        expected = [x.grad, w.grad]
        x.grad = w.grad = None
        with compiled_autograd.enable(functools.partial(bolide.compile, fullgraph=True)):
            fast(x, w).square().sum().backward()
        torch.testing.assert_close([x.grad, w.grad], expected, rtol=1e-3, atol=1e-4)


def test_gradients_of_gradients_of_loops() -> None:
    fast = bolide.compile(functools.partial(two_values, while_loop))
    x, w = leaves(4)
    found = []
    for program in (functools.partial(two_values, in_python), fast):
        (gradient,) = torch.autograd.grad(program(x, w).sum(), x, create_graph=True)
        found.append([gradient.detach(), *torch.autograd.grad(gradient.square().sum(), [x, w])])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("program", [halved, closure, two_values, nested], ids=lambda program: program.__name__)
def test_loops_in_programs_that_are_called(program: Any, dynamic: bool) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graphs.append(graph)
        return nop(graph, examples)

    fast = aot_function(functools.partial(program, while_loop), kept, dynamic=dynamic)
    for rows in (4, 6, 4):
        x, w = leaves(rows)
        expected = gradients(functools.partial(program, in_python), x, w)
        torch.testing.assert_close(gradients(fast, x, w), expected, rtol=1e-3, atol=1e-4)
    assert any("bolide.repeat" in graph.code for graph in graphs)
