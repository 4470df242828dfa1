"""Backward passes of functions that bolide has compiled are parts of the captured graph: one graph for the model."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops import scan

import bolide
from bolide.dynamo import compiled_autograd
from bolide.support import events

Tensors = list[torch.Tensor]


def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x @ w, w.shape[1:]).relu()


def two_results(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x @ w).sin(), x.exp().sum()


def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).t().tanh()


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x[None], w[:1, :, None].expand(1, -1, 3).transpose(0, 1), groups=1).sigmoid()[0]


def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(x @ w, 0.4) * 2


def read_in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 0
    y.mul_(w.sum())
    return y @ w


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q = (x @ w)[None, None]
    return F.scaled_dot_product_attention(q, q, q)[0, 0]


def complex_values(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.complex(x, x.cos()) ** 2 * 1j)[..., 0] @ w


def indexed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([0, 0, 1])].cumsum(0) @ w[:, w.shape[1] // 2 :]


def branching(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    return y.sin() * w.sum() if y.sum() > 0 else y.exp()


def nested_branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    if y.sum() > 0:
        return y * 2 if y[0, 0] > 0 else y.sin()
    return y.cos()


def step(carry: torch.Tensor, row: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (carry + row @ w).sin(), carry * 2


def scanned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return scan(lambda carry, row: step(carry, row, w), x[0].clone(), x.repeat(10, 1))[1]


def unrolled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    carry, results = x[0], []
    for row in x.repeat(10, 1):
        carry, result = step(carry, row, w)
        results.append(result)
    return torch.stack(results)


def recurrent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    cell = [w.repeat(3, 1), w.repeat(3, 1) * 0.3]
    return torch.gru(x[:, None], torch.zeros(1, 1, 6), cell, False, 1, 0.0, True, False, False)[0]


class Noisy(torch.autograd.Function):
    """Its gradient has noise."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return F.dropout(grad, 0.5) + torch.randn_like(grad)


def noisy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Noisy.apply((x @ w).sin()) * torch.rand_like(x)


FORWARDS = [normalised, two_results, transposed, dropped, read_in_place, attention, complex_values, indexed, noisy]
FORWARDS += [branching, nested_branches, scanned, recurrent]
RANDOM = [dropped, noisy]  # compiled programs draw other numbers than eager


def gradients(forward: Any, rows: int, retain: bool = False) -> Tensors:
    torch.manual_seed(rows)
    x = torch.randn(rows, 6, requires_grad=True)
    w = torch.randn(6, 6, requires_grad=True)
    result = forward(x.sin(), w * 2)
    loss = (result[0] if isinstance(result, tuple) else result).square().sum()
    loss.backward(retain_graph=retain)
    if retain:
        loss.backward()
    assert x.grad is not None and w.grad is not None
    return [x.grad, w.grad]


def captured(run: Any, compiler: Any = bolide.compile) -> tuple[Any, list[Any]]:
    """What `run` gives while backward passes are captured, and the breaks and captures of compiled programs."""
    seen: list[Any] = []
    with events.subscribed(seen.append), compiled_autograd.enable(compiler):
        result = run()
    return result, [event for event in seen if isinstance(event, (events.Break, events.Skipped, events.Captured))]


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_the_pass_is_one_graph(forward: Any) -> None:
    compiled_autograd.reset()
    fast = bolide.compile(forward, dynamic=True)
    graphs = 0
    for rows in (4, 7, 5, 3):
        plain = fast if forward in RANDOM else unrolled if forward is scanned else forward  # torch compiles its scan
        expected = gradients(plain, rows)
        actual, said = captured(functools.partial(gradients, fast, rows))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        for one, other in zip(actual, expected):
            assert one.stride() == other.stride()
        assert not [event for event in said if not isinstance(event, events.Captured)]
        graphs += len([event for event in said if "GraphModule" in event.name])
    assert graphs <= 2  # fixed sizes, then symbols
    if forward is noisy:  # its second gradient is another one
        return
    actual, _ = captured(lambda: gradients(fast, 4, retain=True))
    torch.testing.assert_close(actual, [2 * gradient for gradient in gradients(fast, 4)], rtol=1e-4, atol=1e-4)


def test_segments_of_a_model_are_one_region() -> None:
    """Two compiled functions with something between them, and hooks: kernels go across what was compiled apart."""
    compiled_autograd.reset()
    first, second = bolide.compile(normalised), bolide.compile(transposed)
    hooked: Tensors = []

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        middle = first(x, w)
        middle.register_hook(lambda grad: hooked.append(grad) or grad * 2)  # type: ignore[func-returns-value]
        return second(middle.cos(), w)

    def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        middle = normalised(x, w)
        middle.register_hook(lambda grad: hooked.append(grad) or grad * 2)  # type: ignore[func-returns-value]
        return transposed(middle.cos(), w)

    expected = gradients(eager, 5)
    actual, said = captured(lambda: gradients(model, 5))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hooked[1], hooked[0], rtol=1e-4, atol=1e-4)
    assert not [event for event in said if isinstance(event, events.Break)]
    (graph,) = [event for event in said if "GraphModule" in event.name]
    text = str(graph.program.trace.graph)
    assert "native_layer_norm_backward" in text and "tanh" in text and "sin" in text


class Telling(torch.autograd.Function):
    """Its backward tells what it is given, adds to a buffer and divides by a number that is data."""

    told: list[Any] = []
    total = torch.zeros(6)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Telling.told.append(tuple(grad.shape))
        Telling.total += grad.sum(0)
        return grad / max(grad.norm().item(), 1e-2)


def telling(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Telling.apply((x @ w).sin()).tanh()


def test_effects_of_a_backward_are_seen_once() -> None:
    compiled_autograd.reset()
    fast = bolide.compile(telling)
    for rows in (4, 7, 5):
        outcomes = []
        for function in (telling, fast):
            Telling.told.clear()
            Telling.total.zero_()
            found, _ = captured(functools.partial(gradients, function, rows), bolide.compile)
            outcomes.append([*found, Telling.total.clone(), [*Telling.told]])
        Telling.told.clear()
        Telling.total.zero_()
        expected = [*gradients(telling, rows), Telling.total, [*Telling.told]]
        for outcome in outcomes:
            torch.testing.assert_close(outcome, expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_inlined_is_called() -> None:
    """Saved tensors that went through hooks, autocast."""
    compiled_autograd.reset()
    fast = bolide.compile(normalised)

    def packed() -> Tensors:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            return gradients(fast, 4)

    def cast() -> Tensors:
        with torch.autocast("cpu", enabled=False):
            return gradients(fast, 4)

    expected = gradients(normalised, 4)
    for program in (packed, cast):
        actual, _ = captured(program)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fast", [False, True], ids=["as_it_is", "compiled"])
def test_gradients_of_gradients_are_right(fast: bool) -> None:
    """With `create_graph`, of a compiled function and of eager's operations, in a captured pass."""
    compiled_autograd.reset()
    function = bolide.compile(normalised)

    def penalty(forward: Any) -> Tensors:
        torch.manual_seed(3)
        x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
        (gradient,) = torch.autograd.grad(forward(x, w).exp().sum(), x, create_graph=True)
        (gradient.square().sum() + x.sin().sum()).backward()
        assert x.grad is not None and w.grad is not None
        return [gradient.detach(), x.grad, w.grad]

    expected = penalty(normalised)
    for forward in (normalised, function):
        actual, _ = captured(functools.partial(penalty, forward), bolide.compile if fast else lambda gm: gm)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_a_result_that_gets_no_gradient_may_retain_it() -> None:
    forward = bolide.compile(lambda x: (first := x.sin(), first * 2))
    x = torch.randn(3, requires_grad=True)
    with compiled_autograd.enable(bolide.compile):
        first, second = forward(x)
        first.retain_grad()
        second.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
