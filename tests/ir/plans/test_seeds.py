"""Seeds of random numbers are words that the native driver draws from torch's generator, as torch's own call would."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import bolide
from bolide.inductor.config import config
from bolide.inductor.runtime.native import shims

Drawing = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """Native drivers from the second call on."""
    bolide.reset()
    with config.patch(native_after=2):
        yield
    bolide.reset()


def twice(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.4) + torch.randn_like(x)


def seeded_inside(x: torch.Tensor) -> torch.Tensor:
    first = torch.rand_like(x)
    torch.manual_seed(int(x.shape[0]))
    return first + x * torch.rand_like(x)


def recomputed(x: torch.Tensor) -> torch.Tensor:
    def part(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5) * x

    return checkpoint(part, x, use_reentrant=False)


def ranges(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randint(-(1 << 63), (1 << 63) - 1, ()).sign() + torch.randint(3, 9, (4,)).sum()


def test_the_generator_is_found() -> None:
    assert shims.generator() is not None


@pytest.mark.parametrize("program", [twice, seeded_inside, recomputed, ranges], ids=lambda f: f.__name__)
def test_numbers_and_states_are_those_of_the_readable_driver(program: Drawing) -> None:
    seed = random.randrange(1 << 40)
    compiled = bolide.compile(program)
    told = []
    for _call in range(7):  # the first by the readable driver
        x = torch.linspace(0.5, 3.5, 12, requires_grad=True)
        torch.manual_seed(seed)
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        told.append((y.detach(), gradient, torch.get_rng_state()))
    for other in told[1:]:
        assert all(map(torch.equal, told[0], other))


def test_seeds_follow_from_the_state_of_the_generator() -> None:
    compiled = bolide.compile(twice)
    x = torch.rand(64)
    for _ in range(4):
        compiled(x)
    torch.manual_seed(random.randrange(1 << 40))
    before = torch.get_rng_state()
    with torch.random.fork_rng(devices=[]):
        first, second = compiled(x), compiled(x)
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    assert torch.equal(compiled(x), first) and torch.equal(compiled(x), second)
    moved = torch.get_rng_state()
    torch.set_rng_state(before)
    for _ in range(2):
        torch.randint(-(1 << 63), (1 << 63) - 1, ())  # each call draws as one of these does
    assert torch.equal(torch.get_rng_state(), moved)


def test_threads_draw_each_number_once() -> None:
    """With another thread drawing by torch beside them, as many numbers are drawn as calls are made."""
    compiled = bolide.compile(lambda x: x + torch.rand(8))
    x = torch.zeros(8)
    for _ in range(4):
        compiled(x)
    torch.manual_seed(random.randrange(1 << 40))
    start, drawn = torch.get_rng_state(), []

    def draw() -> None:
        drawn.extend([compiled(x) for _ in range(300)])

    def beside() -> None:
        for _ in range(300):
            torch.randint(-(1 << 63), (1 << 63) - 1, ())

    threads = [threading.Thread(target=target) for target in (draw, draw, beside)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = torch.get_rng_state()
    torch.set_rng_state(start)
    torch.empty(900, dtype=torch.int64).random_(-(1 << 63), (1 << 63) - 1)
    assert torch.equal(ended, torch.get_rng_state())
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 600


def test_natively_no_call_of_torchs_draws_the_seed() -> None:
    compiled = bolide.compile(F.dropout)
    x, called = torch.rand(8), []
    for _ in range(4):
        with torch.autograd.profiler.profile() as profiled:
            compiled(x)
        called.append(any("randint" in event.name for event in profiled.function_events))
    assert called == [True, False, False, False]
