"""What compiling costs grows as the program does: calls of bolide's own functions are counted, for a program and for
one four times as long."""

from __future__ import annotations

import cProfile
import functools
import pstats
import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import bolide
from bolide.dynamo import config

Program = tuple[Callable[..., object], torch.Tensor]


def lengths(count: int) -> Program:
    """Sizes that are read from a tensor."""

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.zeros(int(x[i].item())) + i for i in range(count)]

    return f, torch.randint(20, 100, (count,))


def pieces(count: int) -> Program:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[i : i + 1] * i for i in range(count)])

    return f, torch.randn(count, 8)


def writes(count: int) -> Program:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        for i in range(count):
            y[i] = y[i - 1] * 2
        return y

    return f, torch.randn(count, 8)


def branches(count: int) -> Program:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(count):
            x = x + 1 if x.sum() > i else x * 2
        return x

    return f, torch.randn(8)


def layers(count: int) -> Program:
    """Of a model that is trained."""
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(count)]

    def f(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x + F.gelu(F.layer_norm(x, (8,)) @ weight)
        return x.sum()

    return f, torch.randn(4, 8, requires_grad=True)


class Scaled(torch.nn.Module):
    """A layer that notes what it has seen, and whose factor is computed by a function."""

    def __init__(self, number: int, factor: Callable[[int], float]) -> None:
        super().__init__()
        self.number, self.seen, self.factor = number, 0, factor
        self.inside = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.shape[0] + self.number
        return x + self.inside(x) * self.factor(self.number)


def factor(number: int) -> float:
    return 1 / (number + 2)


def scaled(count: int, of: Callable[[int], float] = factor) -> Program:
    """Layers with effects."""
    model = torch.nn.Sequential(*[Scaled(number, of) for number in range(count)])
    return lambda x: model(x).sum(), torch.randn(4, 8)


def calls_of(program: Program, backend: str = "inductor") -> int:
    """How often functions of bolide's are called to compile a program and its gradients."""
    bolide.reset()
    f, x = program
    profile = cProfile.Profile(builtins=False)
    with profile, config.patch(capture_scalar_outputs=True):
        result = bolide.compile(f, backend=backend)(x)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.backward()
    counts = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    checks = ("/plan/verify.py", "/support/leaks.py")
    return sum(row[1] for (file, *_), row in counts if "/bolide/" in file and not file.endswith(checks))


@pytest.mark.parametrize(
    "family", [lengths, pieces, writes, branches, layers, scaled], ids=lambda family: family.__name__
)
def test_cost_grows_as_the_program(family: Callable[[int], Program]) -> None:
    count = random.randrange(10, 14)
    calls_of(family(2))  # what is done once
    one, four = (calls_of(family(times * count)) for times in (1, 4))
    assert four < 6 * one


def test_whether_cached_functions_have_effects_is_found_at_little_cost() -> None:
    """However much has been read of the outside, and written to it, by then."""
    count, cached = random.randrange(20, 25), functools.lru_cache(None)(factor)
    calls_of(scaled(2, cached), "eager")
    one, four = (calls_of(scaled(times * count, cached), "eager") for times in (1, 4))
    assert four < 7 * one
