"""Checks, words and seeds in the native driver: without a step in Python, unless something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor.config import config
from bolide.inductor.runtime.native import assemble as assembling
from bolide.inductor.runtime.native.linking import Program

R = torch.randn
Made = list[tuple[Program, set[str]]]


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Native drivers from the second call on, and the names of the steps that are made in Python while all is well."""
    found: Made = []
    names: set[str] = set()
    real, in_python = assembling.assemble, assembling.Writer.python

    def noting(*args: Any) -> Program:
        names.clear()
        found.append((real(*args), set(names)))
        return found[-1][0]

    def python(self: Any, step: Any) -> None:
        made_by = step.function._make.args[2]
        names.add(str(getattr(made_by, "operator", type(made_by).__name__)))
        in_python(self, step)

    monkeypatch.setattr(assembling, "assemble", noting)
    monkeypatch.setattr(assembling.Writer, "python", python)
    bolide.reset()
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with config.patch(native_after=2), bolide.dynamo.config.patch(**settings):
        yield found
    bolide.reset()


def indexed(x, i):
    return F.embedding(i, x).sum(0) + x[i].mean(0)


def written(x, i):
    x[i] = x[i] * 2
    return x.sum()


def told(x, i):
    k = i[0].item()
    return x[:k].sum(), x[k] * 2, x[x > 0].sum()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_items_of_every_type(dtype: torch.dtype, made: Made) -> None:
    def program(x, i):
        return x[i[1].item()] * 2 + x.sum()

    compiled = bolide.compile(program)
    x = R(200)
    for index in (3, 127, 5, 0 if dtype is torch.uint8 else -1, 199 if dtype in (torch.uint8, torch.int64) else 7) * 2:
        i = torch.tensor([1, index], dtype=dtype)
        torch.testing.assert_close(compiled(x, i), program(x, i))
    assert sum(program.runs for program, _ in made) >= 6


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [indexed, written, told], ids=lambda program: program.__name__)
def test_results_and_errors_are_eagers(program, dynamic: bool, made: Made) -> None:
    compiled = bolide.compile(program, dynamic=dynamic)
    for _ in range(4):
        x, i = R(6, 3), torch.randint(1, 6, (2,))
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine, i), program(theirs, i))
        torch.testing.assert_close(mine, theirs)
    assert sum(native.runs for native, _ in made) > 0
    assert not any(names for _, names in made), made
    for bad in ([6, 0], [0, -7]) if program is not told else ([6, 0], [-7, 1]):
        x, i = R(6, 3), torch.tensor(bad)
        mine, theirs = x.clone(), x.clone()
        with pytest.raises((IndexError, RuntimeError)) as expected:
            program(theirs, i)
        with pytest.raises(expected.type) as error:
            compiled(mine, i)
        assert str(error.value) == str(expected.value)
        torch.testing.assert_close(mine, theirs)


def test_conditions_on_data_that_do_not_hold() -> None:
    def program(x, n):
        k = n.item()
        torch._check(k >= 2)
        torch._check(k < 5)
        return x[:k].sum() * k

    compiled = bolide.compile(program)
    x = R(8)
    for k in (2, 3, 4, 2):
        torch.testing.assert_close(compiled(x, torch.tensor(k)), program(x, torch.tensor(k)))
    for k in (1, 5):
        with pytest.raises(RuntimeError):
            program(x, torch.tensor(k))
        with pytest.raises(RuntimeError):
            compiled(x, torch.tensor(k))


def test_seeds_are_drawn_as_the_readable_driver_draws_them(made: Made) -> None:
    def program(x):
        return F.dropout(x, 0.5) * torch.rand_like(x)

    x = torch.ones(100)
    results = []
    compiled = bolide.compile(program)
    for _ in range(4):
        torch.manual_seed(7)
        results.append((compiled(x), torch.get_rng_state()))
    ((native, names),) = made
    assert native.runs >= 2 and not names
    for result, state in results[1:]:
        assert torch.equal(result, results[0][0]) and torch.equal(state, results[0][1])
