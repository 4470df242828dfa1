"""Functions of the program's with `functools.lru_cache`: eager calls them once for the same arguments, and answers the
same objects in every call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.support import events


class Key:
    """Arguments that are no constants, so that the function inside is interpreted."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.kept: Any = None


class Recipe:
    def __init__(self, number: int) -> None:
        self.number, self.parts, self.names = number, [number, number + 1], {"a": number}
        self.uses = 0


@functools.lru_cache(16)
def recipe(key: Key, number: int) -> Recipe:
    return Recipe(key.number + number)


@functools.lru_cache(16)
def table(key: Key, shape: Any, names: Any = ()) -> Any:
    return [size * key.number for size in shape], {"k": key.number}, None, {key.number}


@functools.lru_cache
def buffer(key: Key) -> torch.Tensor:
    return torch.zeros(3) + key.number


@functools.lru_cache
def parsed(pattern: str) -> Any:
    return pattern.split("->"), {name: i for i, name in enumerate(pattern)}


def reads(x: torch.Tensor, key: Key) -> Any:
    found, (sizes, names, nothing, _) = recipe(key, 2), table(key, x.shape, (x.shape[0], "n"))
    assert nothing is None and recipe(key, 2) is found
    return x * found.number + sum(found.parts) + sizes[0] + names["k"] + found.names["a"]


def reads_after_writes(x: torch.Tensor, key: Key) -> Any:
    key.kept = len(parsed("a b -> b a")[0])
    return x * key.kept + parsed("a -> a")[1]["a"]


def writes(x: torch.Tensor, key: Key) -> Any:
    found = recipe(key, 3)
    found.uses += 1
    return x * found.uses


def grows(x: torch.Tensor, key: Key) -> Any:
    found = table(key, (1, 2))
    found[0].append(1)
    return x * found[0][-1], found[0]


def grows_by_size(x: torch.Tensor, key: Key) -> Any:
    found = table(key, x.shape)
    found[0].append(found[0][0] + 1)
    return x * found[0][-1], found[0]


def leaves(x: torch.Tensor, key: Key) -> Any:
    found = recipe(key, 4).parts
    before, key.kept = key.kept, found
    return x * found[0], before is found


def leaves_by_size(x: torch.Tensor, key: Key) -> Any:
    found = table(key, x.shape)[1]
    before, key.kept = key.kept, found
    return x * found["k"], before is found


def made_of_what_was_written(x: torch.Tensor, key: Key) -> Any:
    key.number += 1
    found = recipe(key, x.shape[0])
    return x * found.number, found.parts


def writes_to_a_tensor(x: torch.Tensor, key: Key) -> Any:
    buffer(key).add_(1)
    return buffer(key) + x.sum()


def breaks(x: torch.Tensor, key: Key) -> Any:
    found = recipe(key, 6)
    y = x * found.number
    bolide.graph_break()
    found.uses += 1
    return y * found.uses


WHOLE = [reads, reads_after_writes, writes, leaves, writes_to_a_tensor]
BROKEN = [grows_by_size, leaves_by_size, made_of_what_was_written]


def series(function: Callable[..., Any]) -> list[Any]:
    for cached in (recipe, table, buffer, parsed):
        cached.cache_clear()
    key, found = Key(3), []
    for size in (2, 3, 5, 3, 7):
        x = torch.linspace(-1, 1, size).requires_grad_()
        result = function(x, key)
        values, is_same = result if isinstance(result, tuple) else (result, None)
        values.sum().backward()
        found.append((values.detach(), is_same if not isinstance(is_same, list) else list(is_same), x.grad))
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [*WHOLE, *BROKEN, grows, breaks], ids=lambda f: f.__name__)
def test_answers_of_cached_functions_are_the_same_objects(function: Callable[..., Any], dynamic: bool | None) -> None:
    expected = series(function)
    met: list[Any] = []
    compiled = bolide.compile(function, dynamic=dynamic)
    with events.subscribed(lambda event: met.append(event) if isinstance(event, events.Break) else None):
        found = series(compiled)
    assert str(found) == str(expected)
    if function in WHOLE:
        assert not met
    if function in BROKEN:
        assert any("whose results are cached" in event.reason for event in met)
    if function in (reads, reads_after_writes, leaves):
        assert len(compiled._bolide.entries) <= 2


def test_a_cached_function_of_a_library_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, torch.get_device_module().__name__

    compiled = bolide.compile(program)
    assert compiled(torch.ones(1))[1] == program(torch.ones(1))[1]
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: torch.cuda)
    assert compiled(torch.ones(1))[1] == program(torch.ones(1))[1] == "torch.cuda"
    monkeypatch.undo()
    assert compiled(torch.ones(1))[1] == program(torch.ones(1))[1]
