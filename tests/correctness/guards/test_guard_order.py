"""Which compiled version is tried first, and what that costs."""

from __future__ import annotations

from typing import Any

import torch

import bolide
from bolide.dynamo.entry.versions import Versions
from tests.thread_tools import together

SIZES = range(2, 8)


def many_versions() -> tuple[Any, Versions, list[torch.Tensor]]:
    """A function with a version for each size, which each add another number to tell them apart."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + x.shape[0]

    compiled = bolide.compile(f, backend="eager", dynamic=False)
    inputs = [torch.randn(size) for size in SIZES]
    for x in inputs:
        compiled(x)
    versions = compiled._bolide
    assert len(versions.entries) == len(inputs)
    return compiled, versions, inputs


def numbers(versions: Versions) -> list[int]:
    return [entry.number for entry in versions.order]


def test_the_version_used_last_is_tried_first() -> None:
    compiled, versions, inputs = many_versions()
    assert numbers(versions) == [5, 4, 3, 2, 1, 0]
    for chosen, order in (
        (2, [2, 5, 4, 3, 1, 0]),
        (0, [0, 2, 5, 4, 3, 1]),
        (0, [0, 2, 5, 4, 3, 1]),
        (5, [5, 0, 2, 4, 3, 1]),
    ):
        x = inputs[chosen]
        assert torch.equal(compiled(x), x + x.shape[0])
        assert numbers(versions) == order
    assert [entry.number for entry in versions.entries] == list(range(len(inputs))), "in the order of compiling"


def test_a_version_that_is_used_again_and_again_is_the_only_one_asked() -> None:
    compiled, versions, inputs = many_versions()
    compiled(inputs[0])
    asked: list[int] = []

    def told(entry: Any) -> None:
        form = entry.check.form
        entry.check.installed(lambda *values: (asked.append(entry.number), form(*values))[1])

    for entry in versions.entries:
        told(entry)
    for _ in range(3):
        compiled(inputs[0])
    assert asked == [0, 0, 0]


def test_the_order_is_kept_for_segments_after_a_break_and_forgotten_by_reset() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        bolide.graph_break()
        return y + y.shape[0]

    compiled = bolide.compile(f, backend="eager", dynamic=False)
    inputs = [torch.randn(size) for size in SIZES]
    for x in [*inputs, inputs[1]]:
        assert torch.equal(compiled(x), x * 2 + x.shape[0])
    (point,) = [point for point in compiled._bolide.points.values() if point.entries]
    assert numbers(point) == numbers(compiled._bolide) == [1, 5, 4, 3, 2, 0]
    bolide.reset()
    assert compiled._bolide.order == point.order == ()
    assert torch.equal(compiled(inputs[1]), inputs[1] * 2 + inputs[1].shape[0])


def test_all_parameters_reach_an_entry_that_is_not_the_first() -> None:
    def f(a: Any, /, b: Any = 2, *rest: Any, c: Any, d: Any = 5, **named: Any) -> Any:
        return a * b + sum(rest) * c - d + named.get("e", 0), rest, named

    compiled = bolide.compile(f, backend="eager", dynamic=False)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((torch.randn(2),), {"c": 3}),
        ((torch.randn(3), 4, torch.randn(3), 6.0), {"c": 3, "e": 1, "a": 2}),
        ((torch.randn(4), 4), {"c": torch.randn(4), "d": 7}),
    ]
    for args, kwargs in calls * 3:
        value, rest, named = compiled(*args, **kwargs)
        expected, rest_expected, named_expected = f(*args, **kwargs)
        assert torch.equal(value, expected) and rest == rest_expected and named == named_expected
    assert len(compiled._bolide.entries) == 3


def test_threads_that_use_different_versions_lose_none() -> None:
    compiled, versions, inputs = many_versions()

    def use(number: int) -> None:
        x = inputs[number]
        for _ in range(300):
            assert torch.equal(compiled(x), x + x.shape[0])

    together(use, len(inputs))
    assert len(versions.entries) == len(inputs) and sorted(numbers(versions)) == list(range(len(inputs)))
