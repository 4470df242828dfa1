"""Calls of many forms: what is None and what is not, how many arguments there are and of which names, members of enums,
types. Each form has a version, and there may be more of them than `cache_size_limit`."""

from __future__ import annotations

import enum
import itertools
import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.dynamo.config import config
from bolide.support import events
from bolide.support.errors import BolideWarning

Kind = enum.Enum("Kind", [f"K{number}" for number in range(11)])
NAMES = "mask", "bias", "residual", "scale"
DTYPES = torch.float64, torch.float32, torch.int8, torch.bool


def combined(x: Tensor, mask: Any = None, bias: Any = None, residual: Any = None, scale: Any = None) -> Tensor:
    y = x.softmax(-1)
    if mask is not None:
        y = y * mask
    if bias is not None:
        y = y + bias
    if residual is not None:
        y = y + residual.tanh()
    return y if scale is None else y * scale


def of_names(x: Tensor, **given: Any) -> Tensor:
    return combined(x, **given) + len(given)


def of_attributes(x: Tensor, options: Any) -> Tensor:
    return combined(x, options.mask, options.bias, options.residual, options.scale)


def of_keys(x: Tensor, options: dict[str, Any]) -> Tensor:
    return combined(x, *(options.get(name) for name in NAMES))


def of_kind(x: Tensor, kind: Any, mask: Any) -> Tensor:
    y = x * 2 if kind in (Kind.K1, Kind.K4) else x.cos() if kind is Kind.K2 else x * kind.value
    return y if mask is None else y * mask


def of_count(*parts: Tensor) -> Tensor:
    total = parts[0].sin()
    for part in parts[1:]:
        total = total / 2 + part
    return total


def of_type(x: Tensor, factor: Any, mask: Any) -> Tensor:
    y = x * factor
    return y if mask is None else y + mask


def options(rng: random.Random, n: int) -> dict[str, Tensor]:
    return {name: torch.randn(n, 4) for name in NAMES if rng.random() < 0.5}


def factor(rng: random.Random) -> Any:
    return rng.choice([2, rng.random(), *(torch.ones((1,) * rank, dtype=dtype) for rank in (0, 1) for dtype in DTYPES)])


Call = tuple[tuple[Any, ...], dict[str, Any]]
PROGRAMS: dict[Callable[..., Tensor], Callable[[random.Random, int], Call]] = {
    combined: lambda rng, n: ((), options(rng, n)),
    of_names: lambda rng, n: ((), options(rng, n)),
    of_attributes: lambda rng, n: ((SimpleNamespace(**dict.fromkeys(NAMES) | options(rng, n)),), {}),
    of_keys: lambda rng, n: ((options(rng, n),), {}),
    of_kind: lambda rng, n: ((rng.choice(list(Kind)), rng.choice([None, torch.randn(n, 4)])), {}),
    of_count: lambda rng, n: (tuple(torch.randn(n, 4) for _ in range(rng.randrange(12))), {}),
    of_type: lambda rng, n: ((factor(rng), rng.choice([None, torch.randn(n, 4)])), {}),
}


def form(value: Any) -> Any:
    """What a version is made for, but for sizes and numbers."""
    if isinstance(value, Tensor):
        return value.dtype, value.dim(), value.numel() == 1
    if isinstance(value, (tuple, list)):
        return tuple(map(form, value))
    if isinstance(value, SimpleNamespace):
        return form(vars(value))
    if isinstance(value, dict):
        return tuple((key, form(item)) for key, item in value.items())
    return value if isinstance(value, enum.Enum) else type(value)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_form_has_a_version_and_none_is_left_to_eager(program: Callable[..., Tensor], seed: int) -> None:
    rng, told, forms = random.Random(seed), list[events.Event](), set()
    compiled = bolide.compile(program)
    with events.subscribed(told.append):
        for _ in range(30):
            n = rng.randrange(3, 9)
            args, kwargs = PROGRAMS[program](rng, n)
            forms.add(form((args, kwargs)))
            start, seen = torch.randn(n, 4, dtype=torch.float64), []
            for function in (program, compiled):
                x = start.clone().requires_grad_()
                y = function(x, *args, **kwargs)
                y.sin().sum().backward()
                seen.append((y, x.grad))
            torch.testing.assert_close(*seen, rtol=1e-5, atol=1e-5)  # float32 is among the parts
    assert len(forms) > config.cache_size_limit, "too few forms for this test"
    assert not [event for event in told if isinstance(event, (events.Fallback, events.Break))]
    assert sum(isinstance(event, events.Installed) for event in told) <= 2 * len(forms)


def test_there_is_a_limit_for_all_forms_together() -> None:
    """And one for versions of the same form, which differ in numbers."""
    found = []
    for values in (itertools.product([None, 1.0], repeat=4), ((text,) * 4 for text in "abcdefghijklmnop")):
        compiled = bolide.compile(lambda x, *given: [x * 2 for one in given if one is None or one != "a"])
        with config.patch(cache_size_limit=2), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", BolideWarning)
            for each in values:
                compiled(torch.ones(2), *each)
        found.append(len(compiled._bolide.entries))
        assert len([one for one in said if "cache_size_limit" in str(one.message)]) == (found[-1] == 2)
    assert found == [16, 2]


def of_new_names(x: Tensor, **given: Any) -> Tensor:
    return x * len(given) + sum(given.values())


def of_a_dict_that_grows(x: Tensor, given: dict[str, float]) -> Tensor:
    return x * sum(given.values())


@pytest.mark.parametrize("calls", ["names", "dict"])
def test_names_without_end_are_no_forms(calls: str) -> None:
    names = [f"k{number}" for number in range(20)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BolideWarning)
        compiled: Any = bolide.compile(of_new_names if calls == "names" else of_a_dict_that_grows)
        for place, name in enumerate(names):
            x, grown = torch.ones(3), dict.fromkeys(names[: place + 1], 1.5)
            found = compiled(x, **{name: 2.5}) if calls == "names" else compiled(x, grown)
            assert torch.equal(found, x + 2.5 if calls == "names" else x * sum(grown.values()))
    assert len(compiled._bolide.entries) == config.cache_size_limit
