"""What `bolide.compile` says to wrong arguments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bolide


def f(x):
    return x + 1


@pytest.mark.parametrize("wrong", [3, "f", [f], nn.Linear, torch.ones(2)])
def test_what_cannot_be_compiled(wrong: object) -> None:
    with pytest.raises(TypeError, match="expects a function, a method or an nn"):
        bolide.compile(wrong)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"backend": "inducter"}, ValueError, "did you mean 'inductor'"),
        ({"backend": 3}, TypeError, "name of a backend"),
        ({"mode": "max-autotun"}, ValueError, "did you mean 'max-autotune'"),
        ({"mode": "default", "options": {}}, ValueError, "exclude each other"),
        ({"options": {"no_such_thing": 1}}, ValueError, "unknown option 'no_such_thing'"),
        ({"options": [1]}, TypeError, "options must be a dict"),
        ({"fullgraph": 1}, TypeError, "fullgraph"),
        ({"dynamic": "yes"}, TypeError, "dynamic"),
    ],
)
def test_wrong_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        bolide.compile(f, **arguments)
    with pytest.raises(error, match=message):
        bolide.compile(**arguments)


def test_generator_functions_stay_as_they_are() -> None:
    def numbers():
        yield 1

    with pytest.warns(bolide.BolideWarning, match="generator") as seen:
        assert bolide.compile(numbers) is numbers
    assert __file__ == seen[0].filename
    with pytest.raises(bolide.Unsupported, match="generator"):
        bolide.compile(numbers, fullgraph=True)


def test_disable_gives_the_function_back() -> None:
    assert bolide.compile(f, disable=True) is f
    with bolide.dynamo.config.patch(disable=True):
        assert bolide.compile(f) is f
