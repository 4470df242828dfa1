"""Random programs of tensor operations against eager, in float64 so that rounding cannot hide a wrong element: inductor
alone, and whole programs with gradients and sizes that change."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from tests.fuzz.writers.choices import Choices
from tests.schedule_tools import assert_same, compiled

Tensors = list[torch.Tensor]

UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.sin,
    torch.tanh,
    torch.relu,
    torch.neg,
    lambda x: x * 0.5 + 1,
    lambda x: x.clamp(-1, 1),
    lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: x.to(torch.float32).to(torch.float64),
]
SHAPE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.transpose(0, -1),
    lambda x: x.permute(*range(1, x.dim()), 0),
    lambda x: x.transpose(0, -1).contiguous(),
    lambda x: x.reshape(-1),
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.unsqueeze(1),
    lambda x: x.flip(0),
    lambda x: x[..., 1:] if x.shape[-1] > 1 else x,
    lambda x: x[::2],
    lambda x: torch.cat([x, x * 2], -1),
    lambda x: torch.stack([x, x + 1], 0),
    lambda x: F.pad(x, (1, 0)),
    lambda x: x.expand(2, *x.shape),
]
REDUCE: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
    lambda x, d: x.sum(d, keepdim=True),
    lambda x, d: x.mean(d, keepdim=True),
    lambda x, d: x.amax(d, keepdim=True),
    lambda x, d: x.sum(d),
    lambda x, d: x.softmax(d),
    lambda x, d: x.var(d, keepdim=True, unbiased=False),
    lambda x, d: x - x.mean(d, keepdim=True),
    lambda x, d: x.argmax(d, keepdim=True).to(torch.float64),
    lambda x, d: F.layer_norm(x, x.shape[-1:]),
    lambda x, d: x.index_select(d, torch.arange(x.shape[d]).flip(0)),
]


def broadcastable(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a.shape), reversed(b.shape)))


def step(rng: Choices, pool: Tensors) -> torch.Tensor:
    x = rng.choice(pool)
    kind = rng.below(100)
    if kind < 30:
        return rng.choice(UNARY)(x)
    if kind < 60:
        partners = [y for y in pool if broadcastable(x, y)]
        y = rng.choice(partners)
        return rng.choice([torch.add, torch.mul, torch.sub, torch.maximum])(x, y)
    if kind < 80 and 0 < x.dim() < 5:
        return rng.choice(SHAPE)(x)
    if x.dim() > 0 and x.numel() < 5000:
        return rng.choice(REDUCE)(x, rng.below(x.dim()))
    return x + 1


def program(number: int, larger: int = 0) -> tuple[Callable[..., Any], Tensors]:
    rng = random.Random(number)
    shape = [rng.choice([1, 2, 3, 4, 6, 17]) for _ in range(rng.randint(1, 4))]
    shape = [size + larger if size > 2 else size for size in shape]
    generator = torch.Generator().manual_seed(number)
    shapes = [shape, shape, shape[-1:], [*shape[:-1], 1]]
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    length = rng.randint(3, 18)

    def fn(*tensors: torch.Tensor) -> Tensors:
        choices = Choices(number + 1)
        pool = list(tensors)
        for _ in range(length):
            made = step(choices, pool)
            if made.numel() < 20000:
                pool.append(made)
        results = [choices.choice(pool[len(tensors) :]) for _ in range(3)] if len(pool) > len(tensors) else []
        return [result * 1 for result in [*results, pool[-1]]]

    return fn, inputs


@pytest.mark.parametrize("part", range(4))
def test_random_programs(seed: int, part: int) -> None:
    for offset in range(8):
        number = (seed + offset) % 2**31
        print(f"program {number}")
        fn, inputs = program(number)
        expected = fn(*inputs)
        results = compiled(fn, inputs)(list(inputs))
        for mine, theirs in zip(results, expected, strict=True):
            assert_same(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", range(2))
def test_random_programs_with_gradients_and_other_sizes(seed: int, part: int) -> None:
    for number in range(seed, seed + 4):
        number %= 2**31
        print(f"program {number}")
        fn, _ = program(number)
        compiled_whole = bolide.compile(fn)
        for larger in (0, 1, 3):
            _, inputs = program(number, larger)
            mine, theirs = (outcome(function, inputs) for function in (compiled_whole, fn))
            for one, other in zip(mine, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def outcome(function: Callable[..., Any], inputs: Tensors) -> list[torch.Tensor | None]:
    """The results and the gradients of the inputs."""
    own = [tensor.clone().requires_grad_() for tensor in inputs]
    results = function(*own)
    wanted = [result for result in results if result.requires_grad]
    weighted = [(result * torch.arange(result.numel()).view(result.shape).cos()).sum() for result in wanted]
    grads = torch.autograd.grad(torch.stack(weighted).sum(), own, allow_unused=True) if wanted else ()
    return [*results, *grads]
