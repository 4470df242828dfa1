"""NumPy in ordinary programs: what its functions and operators give of numbers from data, of sizes and of arrays of
changing sizes is what NumPy gives, of the same type and kind."""

from __future__ import annotations

import datetime
import decimal
import fractions
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bolide
from bolide.support import events

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "mean of a list": lambda x: np.mean(x.tolist()),
    "array of a list": lambda x: np.array(x.tolist()),
    "largest of a list": lambda x: np.max(x.tolist()),
    "array of integers": lambda x: np.array([int(x.sum() * 3), 2]),
    "deviation of numbers": lambda x: np.std([x.sum().item(), x.mean().item()]),
    "joined lists": lambda x: np.concatenate([x.tolist(), [1.0]]),
    "array times a number": lambda x: np.ones(2) * x.sum().item(),
    "scalar times a number": lambda x: np.float32(2) * x.sum().item(),
    "fit": lambda x: np.polyfit([0.0, 1.0, 2.0], [x.sum().item(), 1.0, 2.0], 1),
    "logarithm": lambda x: np.log(x.abs().sum().item() + 1),
    "array times a size": lambda x: np.ones(2) * x.shape[0],
    "size times a scalar": lambda x: x.shape[0] * np.float32(2),
    "array of a size": lambda x: np.array([x.shape[0], 1]),
    "product of a shape": lambda x: np.prod(x.shape),
    "comparison with a size": lambda x: (np.arange(3) == x.shape[0], np.int64(3) < x.shape[0]),
    "item at a size": lambda x: np.arange(20)[x.shape[0]],
    "rows up to a size": lambda x: np.arange(20)[: x.shape[0]],
    "range of a size": lambda x: x * torch.from_numpy(np.arange(x.shape[0])),
    "reshaped to a product": lambda x: x.reshape(int(np.prod(x.shape)), 1),
    "fraction of a size": lambda x: fractions.Fraction(1, 2) * x.shape[0],
    "decimal times a size": lambda x: decimal.Decimal("1.5") * x.shape[0],
    "times of a size": lambda x: (datetime.timedelta(seconds=1) * x.shape[0], x.shape[0] * datetime.timedelta(1)),
    "type": lambda x: (x.numpy().dtype, np.dtype("int32"), x.numpy().astype(np.float64).dtype),
    "percentile": lambda x: np.percentile(x.numpy(), 50),
    "percentiles": lambda x: np.percentile(x.numpy(), [25, 50]),
    "median": lambda x: (np.median(x.numpy()), np.median(x.numpy().reshape(-1, 1), axis=0)),
    "grid": lambda x: np.meshgrid(x.numpy(), np.arange(2)),
    "spectrum": lambda x: np.fft.fft(x.numpy()),
    "histogram": lambda x: np.histogram(x.numpy(), bins=3),
    "statistics": lambda x: (x.numpy().std(ddof=1), np.cov(x.numpy(), x.numpy()), np.linalg.norm(x.numpy())),
    "places": lambda x: (np.where(x.numpy() > 0), np.argsort(-x.numpy()), np.unique(x.numpy() > 0)),
}


def _kind(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value), [_kind(item) for item in value]
    return (type(value), value.dtype, value.shape) if isinstance(value, (np.ndarray, torch.Tensor)) else type(value)


def _same(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            _same(one, other)
    elif isinstance(expected, (np.dtype, datetime.timedelta, fractions.Fraction, decimal.Decimal)):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_numpys(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = bolide.compile(program, dynamic=dynamic)
    for rows in (3, 6, 4, 5):
        x = torch.randn(rows)
        found, expected = compiled(x), program(x)
        assert _kind(found) == _kind(expected)
        _same(found, expected)


def test_types_as_arguments() -> None:
    @bolide.compile
    def cast(x: Any, kind: Any) -> Any:
        return x.numpy().astype(kind), np.zeros(2, kind), kind

    kinds = (np.dtype("float64"), np.dtype("int32"), np.float32, "int16", np.bool_, np.dtype("bool"))
    for rows, kind in enumerate(kinds):
        x = torch.randn(rows + 2) * 5
        found, zeros, given = cast(x, kind)
        assert found.dtype == zeros.dtype == kind and given is kind
        np.testing.assert_array_equal(found, x.numpy().astype(kind))


KINDS = ("float32", "int32", "float64", "bool", "float16", "uint8", "int64", "complex64")
CHOICES = (2.0, 0.1, 3, 0, True, 1j, np.float32(0.3), np.int64(7), np.float64(0.7))


def chosen(a: Any, x: Any, y: Any) -> Any:
    return np.where(a > 0, x, y), np.where(np.asarray([True, False]), x, 1.5)[0]


def selected(a: Any, x: Any, y: Any) -> Any:
    return np.select([a > 1, a > 0], [x, y], 0.5), np.select([a == 0], [x])


def limited(a: Any, x: Any, y: Any) -> Any:
    return np.clip(a, 0, 1), np.maximum(a, 0.5), np.minimum(2, a), np.full_like(a, 3), np.where(a.T, 0.5, 1)


@pytest.mark.parametrize("program", [chosen, selected, limited])
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_choices_have_the_type_that_numpy_gives_them(kind: str, program: Callable[..., Any]) -> None:
    for _ in range(3):
        numbers = random.sample(CHOICES, 2)
        kinds = [random.choice(KINDS) if random.random() < 0.4 else None for _ in numbers]
        compiled: Any = bolide.compile(program, fullgraph=True)
        for rows in (4, 2, 3):
            array = (np.random.randn(rows, 2) * 3).astype(kind)
            x, y = ((np.random.randn(2) * 2).astype(k) if k else n for k, n in zip(kinds, numbers))
            if type(x) is float:
                x *= rows  # another one in each call
            found, expected = compiled(array, x, y), program(array, x, y)
            assert _kind(found) == _kind(expected), (x, y)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def rows(a: Any) -> Any:
    out = np.zeros((a.shape[0], 3), dtype=np.float32)
    for place in range(3):
        out[:, place] = a.sum(-1) * place
    return out, out.sum()


def sums(a: Any) -> Any:
    total, other = np.zeros(5), np.ones((2, 5), dtype=np.float32)
    kept = total
    for row in a:
        total += row
    like = np.zeros_like(other)
    like[0] = a[1]
    like *= 2
    return kept, kept is total, other, like


def views(a: Any) -> Any:
    out = np.full((3, 5), -1, dtype=np.int64)
    row = out[1]
    row[:2] = a[0, :2] > 0
    out[0][2] = (a > 0).sum()
    return torch.from_numpy(out), row


def outputs(a: Any) -> Any:
    out, copied, filled = np.empty(5, dtype=np.float32), np.empty((2, 5), dtype=np.float32), np.zeros((2, 5))
    np.add(a[0], a[1], out=out)
    np.multiply(out, 2, out)
    np.copyto(copied, a[:2])
    a[:2].clip(-1, 1, out=filled)
    return out, copied, filled, a.sum(0, out=np.zeros(5, dtype=np.float32))


def listed(a: Any) -> Any:
    numbers, places = np.array([1.0, 2.0, 3.0]), np.arange(3)
    numbers[1], places[2] = a.max(), a[0].argmax()
    return numbers, places, [float(number) for number in numbers]


@pytest.mark.parametrize("function", [rows, sums, views, outputs, listed], ids=lambda function: function.__name__)
def test_what_is_written_to_arrays_that_the_program_makes(function: Callable[[Any], Any]) -> None:
    told: list[events.Event] = []
    compiled = bolide.compile(function)
    with events.subscribed(told.append):
        for size in (4, 3, 6, 2):
            a = np.random.randn(size, 5).astype(np.float32)
            given = a.copy()
            found, expected = compiled(given), function(a)
            assert _kind(found) == _kind(expected)
            _same(found, expected)
            _same(given, a)
    assert [event.reason for event in told if isinstance(event, (events.Break, events.Fallback))] == []
