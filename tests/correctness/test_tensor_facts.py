"""What a program asks of a tensor besides its value: where it lies in its storage, what it is a view of, its history,
its own attributes. One compiled function meets tensors that differ in nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config

PLACES = [slice(0, 4), slice(3, 7), slice(2, 6), slice(0, 4), slice(16, 20)]


def written(t: Any) -> Any:
    t.as_strided((2,), (2,)).mul_(3)
    return t + 1


def written_at(t: Any) -> Any:
    t.as_strided((2,), (1,), 0).mul_(5)
    return t + 1


def written_past_its_end(t: Any) -> Any:
    t.as_strided((6,), (1,)).mul_(3)
    return t + 1


def branch(t: Any) -> Any:
    if t.sum() > 50:
        return t * 2
    return t * t[1:].storage_offset()


OFFSETS: dict[str, Callable[[Any], Any]] = {
    "decides": lambda t: t * 2 if t.storage_offset() == 0 else t * 3,
    "of a view": lambda t: t + t[1:].storage_offset(),
    "of a result": lambda t: (t + 1).storage_offset() + t,
    "in a transform": lambda t: torch.vmap(lambda v: v + v.storage_offset())(t.view(2, 2)),
    "strided at a place": lambda t: t.as_strided((2,), (1,), 0) * 1,
    "a view strided at a place": lambda t: t[1:].as_strided((2,), (1,), 1) * 1,
    "strided where it is": lambda t: t.as_strided((3, 2), (1, 1)) * 2,
    "strided past its end": lambda t: t.as_strided((6,), (1,)) + 1,
    "a view that leaves": lambda t: t.as_strided((2,), (1,)),
    "a view at a place leaves": lambda t: t.as_strided((2,), (1,), 0),
    "copied": lambda t: torch.as_strided_copy(t, (2,), (1,), 0),
    "scattered": lambda t: torch.as_strided_scatter(t, torch.ones(2), (2,), (1,), 0),
    "in a branch": lambda t: torch.cond(t.sum() > 50, lambda: t.as_strided((2,), (1,), 0) * 2, lambda: t[:2] * 3),
    "complex": lambda t: torch.view_as_complex(t.view(2, 2)).abs(),
    "as another type": lambda t: t.view(torch.float64) * 2,
    **{f.__name__: f for f in (written, written_at, written_past_its_end, branch)},
}


def outcomes(function: Callable[..., Any], make: Callable[[], list[Any]]) -> list[Any]:
    found: list[Any] = []
    for tensor in make():
        try:
            found.append(function(tensor))
        except (RuntimeError, AttributeError) as error:
            found.append(type(error))
    return found


@pytest.mark.parametrize("name", OFFSETS)
def test_where_an_argument_lies_in_its_storage(name: str) -> None:
    whole, other = torch.arange(20.0), torch.arange(20.0)
    expected = outcomes(OFFSETS[name], lambda: [whole[place] for place in PLACES])
    found = outcomes(bolide.compile(OFFSETS[name]), lambda: [other[place] for place in PLACES])
    for mine, theirs in zip([*found, other], [*expected, whole]):
        assert mine is theirs or torch.equal(mine, theirs)


def test_only_programs_that_ask_for_the_place_have_a_version_for_each() -> None:
    rows = torch.arange(20.0).view(5, 4)
    with config.patch(error_on_recompile=True):
        compiled = bolide.compile(lambda t: t.as_strided((3, 2), (1, 1)))
        for row in rows:
            assert torch.equal(compiled(row), row.unfold(0, 2, 1))
