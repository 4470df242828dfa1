"""Random generators of the user's in compiled functions: eager's numbers, and eager's state afterwards, with every
backend."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])


def fresh(g: torch.Generator, x: torch.Tensor) -> Any:
    noise = torch.randn(x.shape, generator=g), torch.rand(3, generator=g), torch.randint(0, 9, (4,), generator=g)
    return *noise, torch.randperm(5, generator=g), torch.normal(0.5, 2.0, (3,), generator=g), x * noise[0]


def from_tensors(g: torch.Generator, x: torch.Tensor) -> Any:
    p = x.detach().sigmoid()
    drawn = torch.bernoulli(p, generator=g), torch.multinomial(p, 2, generator=g), torch.poisson(p, generator=g)
    return *drawn, torch.normal(p, 1.0, generator=g), x * drawn[0]


def in_place(g: torch.Generator, x: torch.Tensor) -> Any:
    y = x * 2
    made = torch.empty(4).uniform_(generator=g), x.detach().clone().normal_(0.5, 2, generator=g)
    return *made, y.detach().bernoulli_(0.3, generator=g), y[:2].detach().exponential_(generator=g), y + made[1]


def initialised(g: torch.Generator, x: torch.Tensor) -> Any:
    weight = nn.init.xavier_uniform_(torch.empty(5, 5), generator=g)
    return x @ nn.init.kaiming_normal_(weight, generator=g)


def twice(g: torch.Generator, x: torch.Tensor) -> Any:
    """Results that look equal are not, and each is drawn once although the gradient needs both."""
    a, b = torch.rand(5, generator=g), torch.rand(5, generator=g)
    return (x * a).exp() * b, a


def unused(g: torch.Generator, x: torch.Tensor) -> Any:
    """What is drawn moves the generator on, whatever becomes of it."""
    torch.rand(3, generator=g)
    torch.empty(2).uniform_(generator=g)
    return x + 1


@BACKENDS
@pytest.mark.parametrize("fn", [fresh, from_tensors, in_place, initialised, twice, unused])
def test_numbers_and_states(fn: Callable[..., Any], backend: str) -> None:
    compiled: Any = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(3):  # another generator each time
        ours = torch.Generator().manual_seed(int(torch.randint(2**40, ())))
        theirs = ours.clone_state()
        x = torch.randn(5)
        before, found = torch.get_rng_state(), []
        for function, generator in ((compiled, ours), (fn, theirs)):
            leaf = x.clone().requires_grad_()
            out = function(generator, leaf)
            last = out if isinstance(out, torch.Tensor) else next(part for part in out if part.requires_grad)
            found.append((out, *torch.autograd.grad(last.sum(), leaf)))
        torch.testing.assert_close(*found)
        assert torch.equal(ours.get_state(), theirs.get_state())
        assert torch.equal(torch.get_rng_state(), before)
    assert len(compiled._bolide.entries) == 1


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor, other: torch.Generator | None = None) -> torch.Tensor:
        x = x + torch.randn(x.shape, generator=self.generator)
        return x * torch.rand(x.shape, generator=other)


def test_attributes_and_the_default_one() -> None:
    model = Noisy()
    twin = Noisy()
    compiled = bolide.compile(model, backend="eager", fullgraph=True)
    for other in (None, torch.default_generator, model.generator):
        x = torch.randn(3)
        found = []
        for function, own in ((compiled, model), (twin, twin)):
            torch.manual_seed(3)
            found.append(function(x, own.generator if other is model.generator else other))
        torch.testing.assert_close(*found)
        assert torch.equal(model.generator.get_state(), twin.generator.get_state())


def made(x: torch.Tensor) -> Any:
    generator = torch.Generator()
    generator.manual_seed(3)
    return x + torch.rand(3, generator=generator)


def seeded(x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(4)
    state = generator.get_state()
    a = torch.rand(3, generator=generator)
    generator.set_state(state)
    return x + a, torch.rand(3, generator=generator)


def of_torch(x: torch.Tensor) -> Any:
    torch.manual_seed(4)
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    with torch.random.fork_rng(devices=[]):
        b = torch.rand(3)
    return x + a, b, torch.rand(3), torch.initial_seed()


@torch.random.fork_rng(devices=[])
def forked(x: torch.Tensor) -> Any:
    return x + torch.rand(3)


def of_a_decorator(x: torch.Tensor) -> Any:
    torch.manual_seed(4)
    return forked(x), torch.rand(3)


@pytest.mark.parametrize("fn", [made, seeded, of_torch, of_a_decorator])
def test_states_are_asked_and_set_for_real(fn: Callable[..., Any]) -> None:
    compiled = bolide.compile(fn, backend="eager")
    for _ in range(2):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), fn(x))
    with pytest.raises(bolide.Unsupported):
        bolide.compile(fn, backend="eager", fullgraph=True)(x)


def test_a_refuted_call_draws_once() -> None:
    """The graph has drawn when its check fails; eager draws the same numbers."""

    def fn(g: torch.Generator, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rand(3, generator=g)
        if (y > 100).any():
            raise ValueError("too large")
        return y

    g = torch.Generator().manual_seed(3)
    compiled = bolide.compile(fn, backend="eager", fullgraph=True)
    compiled(g, torch.ones(3))
    expected = copy.deepcopy(g.get_state())
    torch.rand(3, generator=(twin := g.clone_state()))
    with pytest.raises(ValueError, match="too large"):
        compiled(g, torch.full((3,), 1e9))
    assert torch.equal(g.get_state(), twin.get_state()) and not torch.equal(g.get_state(), expected)


def test_threads_draw_from_their_own() -> None:
    def fn(g: torch.Generator, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=g)

    compiled = bolide.compile(fn, backend="aot_eager", fullgraph=True)
    x = torch.zeros(3)
    compiled(torch.Generator(), x)
    wrong: list[int] = []

    def work(seed: int) -> None:
        g, twin = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        for _ in range(50):
            if not torch.equal(compiled(g, x), torch.rand(3, generator=twin)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
