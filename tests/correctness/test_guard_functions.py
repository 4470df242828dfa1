"""Changes of functions, of the order of dicts and of identities are seen by the next call (both forms of the check)."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config

X = torch.randn(4)


def follows(f: Callable[[torch.Tensor], Any], changes: list[Callable[[], Any]]) -> None:
    """After each change the compiled function does what eager does, at once and when it has been called more often."""
    compiled = bolide.compile(f, backend="eager", fullgraph=True)
    for change in [lambda: None, *changes]:
        change()
        for _ in range(4):
            torch.testing.assert_close(compiled(X), f(X), rtol=0, atol=0)
    made = len(compiled._bolide.entries)
    for _ in range(3):
        compiled(X)
    assert len(compiled._bolide.entries) == made > 1


@pytest.fixture(autouse=True, params=[True, False], ids=["native", "readable"])
def form(request: pytest.FixtureRequest) -> Any:
    with config.patch(enable_cpp_guard_manager=request.param, cache_size_limit=20):
        yield


def test_defaults() -> None:
    def helper(x: Any, by: Any = 2, *, plus: Any = 3, table: Any = {"a": 1}) -> Any:  # noqa: B006
        return x * by + plus + table["a"]

    def f(x: torch.Tensor) -> Any:
        return helper(x)

    follows(
        f,
        [
            lambda: setattr(helper, "__defaults__", (7,)),
            lambda: helper.__kwdefaults__.update(plus=4),
            lambda: helper.__kwdefaults__["table"].update(a=5),
            lambda: helper.__kwdefaults__.update(table={"a": 6}),
            lambda: setattr(helper, "__kwdefaults__", {"plus": torch.ones(4), "table": {"a": 1}}),
            lambda: setattr(helper, "__defaults__", (torch.randn(4),)),
        ],
    )


def test_code() -> None:
    def helper(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x - 1

    before = helper.__code__
    follows(
        lambda x: helper(x) * 2,
        [lambda: setattr(helper, "__code__", other.__code__), lambda: setattr(helper, "__code__", before)],
    )


def test_the_code_of_a_method() -> None:
    class Model:
        def run(self, x: Any, by: Any = 2) -> Any:
            return x * by

    model = Model()
    follows(
        lambda x: model.run(x),
        [
            lambda: setattr(Model.run, "__defaults__", (3,)),
            lambda: setattr(Model.run, "__code__", (lambda self, x, by: x - by).__code__),
        ],
    )


def test_the_order_of_an_ordered_dict() -> None:
    table = collections.OrderedDict(a=1, b=2, c=3)

    def f(x: torch.Tensor) -> Any:
        for place, key in enumerate(table):
            x = x * (place + 2) + table[key]
        return x

    follows(f, [lambda: table.move_to_end("a"), lambda: table.move_to_end("c", last=False), lambda: table.popitem()])


def test_tensors_and_objects_that_become_the_same() -> None:
    one, two = torch.ones(4), torch.ones(4)
    held = types.SimpleNamespace(a=one, b=two, p=types.SimpleNamespace(), q=types.SimpleNamespace())

    def f(x: torch.Tensor) -> Any:
        return (x + held.a) * (2 if held.a is held.b else 3) - (1 if held.p is not held.q else 2)

    follows(
        f,
        [
            lambda: setattr(held, "b", one),
            lambda: setattr(held, "q", held.p),
            lambda: setattr(held, "b", two),
            lambda: setattr(held, "q", types.SimpleNamespace()),
        ],
    )
