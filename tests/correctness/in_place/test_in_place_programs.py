"""Random programs that write to their arguments against eager, in float64: results, arguments, what lies between the
elements of arguments in memory, and gradients. Sizes are fixed or symbols, and change between calls."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from tests.fuzz.writers.in_place_programs import copies, program


def everything(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor lies in."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def function(number: int, gradients: bool) -> tuple[Callable[..., Any], list[list[torch.Tensor]]]:
    """A program and its arguments."""
    text, given = program(number, gradients=gradients)
    print(f"program {number}\n{text}")
    name = f"<in place {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(text, name, "exec"), namespace)
    return namespace["f"], given


def agree(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


def gradient(results: list[torch.Tensor], source: torch.Tensor) -> torch.Tensor | str:
    """That of a weighted sum of the results, or what is wrong: a result needs what was overwritten, say."""
    total = torch.zeros((), dtype=torch.float64)
    for place, result in enumerate(results):
        total = total + (result * torch.linspace(place + 1, 2, result.numel()).view(result.shape)).sum()
    try:
        return torch.autograd.grad(total, source)[0]
    except RuntimeError as error:
        return str(error)[:40]


@pytest.mark.parametrize("part", range(4))
def test_random_programs(seed: int, part: int) -> None:
    for number in range(seed, seed + 6):
        fn, given = function(number % 2**31, gradients=False)
        with torch.no_grad(), bolide.inductor.config.patch(native_after=2):
            compiled = bolide.compile(fn, dynamic=(None, True, False)[number % 3])
            for which in (0, 0, 0, 1, 1, 0):
                mine, theirs = copies(given[which]), copies(given[which])
                agree(compiled(*mine), fn(*theirs))
                for a, b in zip(mine, theirs):
                    agree(everything(a), everything(b))


@pytest.mark.filterwarnings("ignore:(?s).*the program has no backward")  # eager says so when it is asked for one
@pytest.mark.parametrize("part", range(4))
def test_random_programs_and_their_gradients(seed: int, part: int) -> None:
    """What is written depends on an argument that asks for a gradient: so do the written arguments afterwards."""
    for number in range(seed, seed + 4):
        fn, given = function(number % 2**31, gradients=True)
        with bolide.inductor.config.patch(native_after=2):
            compiled = bolide.compile(fn, dynamic=(None, True, False)[number % 3])
            for which in (0, 0, 1, 1, 0):
                mine, theirs = copies(given[which]), copies(given[which])
                results = [compiled(*mine), fn(*theirs)]
                agree(*results)
                for a, b in zip(mine, theirs):
                    agree(everything(a.detach()), everything(b.detach()))
                    assert a.requires_grad == b.requires_grad
                assert [a.requires_grad for a in results[0]] == [b.requires_grad for b in results[1]]
                expected = gradient([*results[1], *theirs[:-1]], theirs[-1])
                if not isinstance(expected, str):
                    agree(gradient([*results[0], *mine[:-1]], mine[-1]), expected)
