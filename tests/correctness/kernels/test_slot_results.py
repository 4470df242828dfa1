"""What CPython says of the answers of special methods: lengths that are none, iterators that are none, methods that are
None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide


class Index:
    def __index__(self) -> int:
        return 4


def answering(name: str, answer: Any) -> Any:
    """An object whose method answers that; Ellipsis: the method is None."""
    return type("K", (), {name: None if answer is ... else lambda self: answer})()


ANSWERS = [-1, 1.5, 2**70, "a", True, False, 0, 3, None, Index(), ...]
TRUTHS: dict[str, Callable[..., Any]] = {
    "if": lambda x, o: x + 1 if o else x,
    "not": lambda x, o: (x, not o),
    "len": lambda x, o: (x, len(o), type(len(o))),
    "bool": lambda x, o: (x, bool(o)),
    "and": lambda x, o: (x, (o and 5) == 5),
    "called": lambda x, o: (x, o.__len__()),
}
ITERATIONS: dict[str, Callable[..., Any]] = {
    "for": lambda x, o: [x + i for i in o],
    "list": lambda x, o: (x, list(o)),
    "iter": lambda x, o: (x, next(iter(o))),
    "arguments": lambda x, o: (x, (lambda *parts: parts)(*o)),
    "zip": lambda x, o: (x, list(zip(o, [1, 2]))),
    "sum": lambda x, o: (x, sum(o)),
    "yield from": lambda x, o: (x, list(delegating(o))),
}


def delegating(o: Any) -> Any:
    yield from o


def outcome(fn: Any, o: Any) -> Any:
    try:
        return str(fn(torch.ones(2), o))
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("method", ["__len__", "__bool__"])
@pytest.mark.parametrize("name", TRUTHS)
def test_truths_and_lengths(name: str, method: str) -> None:
    for answer in ANSWERS:
        compiled = bolide.compile(TRUTHS[name])
        for _ in range(2):
            expected = outcome(TRUTHS[name], answering(method, answer))
            assert outcome(compiled, answering(method, answer)) == expected, answer


@pytest.mark.parametrize("name", ITERATIONS)
def test_iterators(name: str) -> None:
    for answer in ([1], None, 5, (1, 2), range(2), torch.ones(2), ...):
        compiled = bolide.compile(ITERATIONS[name])
        for _ in range(2):
            expected = outcome(ITERATIONS[name], answering("__iter__", answer))
            assert outcome(compiled, answering("__iter__", answer)) == expected, answer


class Sized:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return self.tensor.shape[0]


@pytest.mark.parametrize("name", TRUTHS)
def test_lengths_that_are_sizes(name: str) -> None:
    compiled = bolide.compile(TRUTHS[name])
    for count in (3, 4, 5, 0):
        assert outcome(compiled, Sized(torch.ones(count))) == outcome(TRUTHS[name], Sized(torch.ones(count)))
