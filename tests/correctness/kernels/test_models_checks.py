"""Branches on data whose other way only raises are checks: they are captured, and eager raises when one fails.

PYTEST_DONT_REWRITE: the assertions of the programs here are the program's own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide


class Bad(Exception):
    pass


class Checking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.limit = 5

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if labels is not None and labels.max() >= self.limit:
            raise ValueError(f"labels must be < {self.limit}, got {labels.max()}")
        assert labels.min().item() >= 0
        assert labels.size(0) == 3 and int(labels.sum()) <= 3 * self.limit, "too many"
        if not torch.isfinite(x).all():
            raise Bad("not finite", x.shape)
        if torch.isnan(x).any().item() or x.max() > 100.5:
            raise Bad(2)
        if (x.min() < -100).item() or float(x.mean()) == 50.0:
            raise Bad
        return self.linear(x)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a call raises, and at which line of the program."""
    try:
        function(*args)
    except Exception as error:
        return type(error), str(error), traceback.extract_tb(error.__traceback__)[-1].lineno
    return None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("training", [False, True])
def test_checks_are_captured_and_raise_as_in_eager(backend: str, training: bool) -> None:
    module = Checking().train(training)
    compiled = bolide.compile(module, backend=backend, fullgraph=True)
    x, labels = torch.rand(3, 3), torch.tensor([1, 2, 3])
    torch.testing.assert_close(compiled(x, labels), module(x, labels))
    failing = [(x, labels + 7), (x, labels - 2), (x * float("inf"), labels), (x * 1e4, labels), (x - 200, labels)]
    for args in failing:
        wanted = outcome(module, *args)
        assert wanted is not None
        assert outcome(compiled, *args) == wanted
    torch.testing.assert_close(compiled(x, labels), module(x, labels))


def test_a_failed_check_is_handled_by_the_programs_own_handler() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            assert (x > 0).all()
        except AssertionError:
            return x * 2
        return x + 1

    compiled = bolide.compile(program, fullgraph=True)
    x = torch.rand(4) + 1
    for value in (x, -x, x):
        assert torch.equal(compiled(value), program(value))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_failed_check_leaves_no_effect_of_the_graph_behind(backend: str) -> None:
    def program(x: Tensor, state: Tensor, seen: list[Any]) -> Tensor:
        state += x
        seen.append(1)
        if (state > 10).any():
            raise Bad
        state.mul_(2)
        return state + 1

    compiled = bolide.compile(program, backend=backend, fullgraph=True)
    states, lists = [torch.zeros(3) for _ in range(2)], [[], []]  # type: ignore[var-annotated]
    for step in range(6):
        x = torch.rand(3) + step
        found, wanted = (outcome(f, x, s, seen) for f, s, seen in zip((compiled, program), states, lists))
        assert found == wanted
        assert torch.equal(*states)
        assert lists[0] == lists[1]
    assert wanted is not None


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: torch.randperm(5)[:3] * x])
def test_a_failed_check_draws_random_numbers_once(backend: str, draw: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor) -> Tensor:
        y = draw(x)
        if (x > 1).any():
            raise Bad
        return x + y

    compiled = bolide.compile(program, backend=backend, fullgraph=True)
    compiled(torch.rand(3))
    torch.manual_seed(torch.initial_seed())
    assert outcome(compiled, torch.rand(3) + 1) is not None
    found = torch.rand(3)
    torch.manual_seed(torch.initial_seed())
    assert outcome(program, torch.rand(3) + 1) is not None
    assert torch.equal(torch.rand(3), found)


def test_a_check_after_a_break_goes_on_from_there() -> None:
    calls = []

    def program(x: Tensor) -> Tensor:
        y = x.sin()
        bolide.graph_break()
        calls.append(1)
        if (y > 0.5).any():
            raise Bad("too large")
        return y + 1

    compiled = bolide.compile(program)
    x = torch.zeros(3) + 0.1
    torch.testing.assert_close(compiled(x), program(x))
    assert outcome(compiled, x + 1) == outcome(program, x + 1)
    assert len(calls) == 4


def test_numbers_compare_as_pythons_do() -> None:
    def whole(x: Tensor, limit: float) -> Tensor:
        assert x.max().item() <= limit
        return x + 1

    def single(x: Tensor) -> Tensor:
        assert x.max().item() <= 0.1
        return x + 1

    large = torch.tensor([2**24 + 1])
    for program, *args in ((whole, large, float(2**24)), (whole, large, 2**24), (single, torch.tensor([0.1]))):
        wanted = outcome(program, *args)
        assert wanted is not None  # float32 would see no difference
        assert outcome(bolide.compile(program), *args) == wanted


def test_other_branches_on_data_still_break() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + 1
            if (x > 100).any():
                raise Bad
        return x * 2

    with pytest.raises(bolide.Unsupported, match="depends on the data"):
        bolide.compile(program, fullgraph=True)(torch.rand(3))
