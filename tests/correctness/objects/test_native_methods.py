"""Methods in C of Python's own types, called on instances of subclasses and on numbers of NumPy's: they ask for the
class, and answer plain copies. Default backend, values that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import bolide


class Text(str):
    pass


class Bytes(bytes):
    pass


class Row(tuple):
    pass


class Group(frozenset):
    pass


ANSWERS: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "strip": (str.strip, lambda n: Text("ab" * n)),
    "strip, bound": (lambda s: s.strip(), lambda n: Text("ab" * n)),
    "zfill": (lambda s: (str.zfill(s, 1), s.ljust(1), s.replace("z", "y")), lambda n: Text("ab" * n)),
    "bytes": (lambda b: (bytes.strip(b), b.replace(b"z", b""), b.ljust(1)), lambda n: Bytes(b"ab" * n)),
    "tuple": (lambda t: (tuple(t), t[:], t * 1), lambda n: Row(range(n))),
    "frozenset": (lambda f: (frozenset(f), frozenset.union(f)), lambda n: Group(range(n))),
    "a plain one": (lambda f: (frozenset(f), f.copy()), lambda n: frozenset(range(n))),
}


def shape(value: Any, given: Any) -> Any:
    """A value, its class, and whether it is what was given."""
    parts = value if type(value) is tuple and value and type(value[0]) is not int else (value,)
    return [(part, type(part), part is given) for part in parts]


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
def test_instances_of_subclasses_are_not_answered_themselves(name: str, tagged: bool) -> None:
    method, make = ANSWERS[name]

    def program(x: torch.Tensor, given: Any) -> Any:
        return method(given), x * len(given)

    compiled = bolide.compile(program)
    for n in (2, 3, 5):
        x, given = torch.randn(n, 3, requires_grad=True), make(n)
        if tagged and hasattr(given, "__dict__"):
            given.tag = torch.randn(2)
        (found, scaled), (expected, result) = compiled(x, given), program(x, given)
        assert shape(found, given) == shape(expected, given)
        torch.testing.assert_close(scaled, result)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (scaled, result)))


@pytest.mark.parametrize("kind", [numpy.float64, numpy.float32, numpy.int64])
@pytest.mark.parametrize("method", ["__add__", "__rmul__", "__rsub__", "__truediv__", "__mod__", "__lt__", "__eq__"])
def test_methods_of_floats_tell_numbers_of_numpy_apart(method: str, kind: Any) -> None:
    def program(x: torch.Tensor, number: float, other: Any) -> Any:
        answer = getattr(float, method)(number, other)
        return answer, x if answer is NotImplemented else x * answer

    compiled = bolide.compile(program)
    for step in (1, 2, 3):
        x, number, other = torch.randn(step + 1, requires_grad=True), 1.5 * step, kind(3 * step)
        (found, scaled), (expected, result) = compiled(x, number, other), program(x, number, other)
        assert type(found) is type(expected) and found == expected
        torch.testing.assert_close(scaled, result)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (scaled, result)))
