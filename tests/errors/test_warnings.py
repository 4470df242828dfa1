"""Warnings of torch's own come out of compiled programs: once, at the user's line, by the user's filters."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide

BYTES = torch.ones(3, dtype=torch.uint8)
WARNING: dict[str, Callable[[Any], Any]] = {
    "std": lambda x: x[:1].std(),
    "var_mean": lambda x: torch.var_mean(x[None], 0),
    "mask of bytes": lambda x: x[BYTES],
    "implicit dimension": lambda x: F.softmax(x),
    "broadcast targets": lambda x: F.mse_loss(x, x[:1]),
    "dropout2d": lambda x: F.dropout2d(x[None, :, None], 0.5),
    "gradient of no leaf": lambda x: (x.requires_grad_() * 2).grad,
    "tensor of a tensor": lambda x: torch.tensor(x),
    "size_average": lambda x: F.mse_loss(x, x * 2, size_average=True),
    "batchmean": lambda x: F.kl_div(x, x.abs()),
    "grid_sample": lambda x: F.grid_sample(torch.ones(1, 1, 2, 2) * x[0], torch.zeros(1, 2, 2, 2)),
}


def shown(function: Callable[..., Any], *args: Any, action: Any = "always") -> list[tuple[Any, ...]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        function(*args)
    texts = [str(warning.message).partition(" (Triggered internally")[0] for warning in seen]
    return [(warning.category, text, warning.filename, warning.lineno) for warning, text in zip(seen, texts)]


@pytest.mark.parametrize("name", WARNING)
@pytest.mark.parametrize("dynamic", [None, True])
def test_warnings_are_shown_once(name: str, dynamic: bool | None) -> None:
    expected = shown(WARNING[name], torch.randn(3))
    assert len(expected) == 1
    compiled = bolide.compile(WARNING[name], dynamic=dynamic)
    assert shown(compiled, torch.randn(3)) == expected
    assert shown(compiled, torch.randn(3)) in ([], expected)


def test_warnings_come_once_whatever_is_interpreted_again() -> None:
    def program(x: Any) -> Any:
        y = x[BYTES]
        bolide.graph_break()
        return y + x[:1].std().nan_to_num()

    assert shown(bolide.compile(program), torch.randn(3)) == shown(program, torch.randn(3))


def test_each_line_warns() -> None:
    def first(x: Any) -> Any:
        return x[BYTES]

    def second(x: Any) -> Any:
        return x[BYTES] + 1

    lines = [shown(bolide.compile(f), torch.randn(3), action="default")[0][3] for f in (first, second)]
    assert lines == [f.__code__.co_firstlineno + 1 for f in (first, second)]


def test_filters_are_the_users() -> None:
    function = bolide.compile(WARNING["mask of bytes"])
    assert shown(function, torch.randn(3), action="ignore") == []
    bolide.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="uint8"):
            function(torch.randn(3))


def test_filters_of_modules_are_asked_of_the_users_line() -> None:
    def program(x: Any) -> Any:
        return x[BYTES] + x[:1].std().nan_to_num()

    def outcome(function: Callable[..., Any], first: str, module: str, then: str) -> Any:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(then)
            warnings.filterwarnings(first, module=module)
            try:
                function(torch.randn(3))
            except UserWarning as error:
                return str(error).partition(" (Triggered")[0].strip()
        return [str(warning.message).partition(" (Triggered")[0].strip() for warning in seen]

    for first, then in [("error", "ignore"), ("ignore", "error"), ("ignore", "always"), ("always", "ignore")]:
        for module in (__name__, "bolide", "elsewhere"):
            wanted = outcome(program, first, module, then)
            assert outcome(bolide.compile(program), first, module, then) == wanted, (first, module)
            bolide.reset()
    assert not [each for each in warnings.filters if "bolide" in str(each[3])]


def test_warnings_of_the_programs_own_filters() -> None:
    def quiet(x: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x[BYTES]

    assert shown(bolide.compile(quiet), torch.randn(3)) == []


def test_a_warning_asks_no_module_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are loaded by that, or cannot be."""

    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(name)

    lazy = Lazy("lazy")
    del lazy.__spec__, lazy.__loader__, lazy.__package__
    monkeypatch.setitem(sys.modules, "lazy_for_this_test", lazy)
    x = torch.randn(4, 5)
    compiled: Any = bolide.compile(lambda x: F.softmax(x).sin(), fullgraph=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.testing.assert_close(compiled(x), F.softmax(x).sin())
    assert {str(warning.message)[:8] for warning in seen} == {"Implicit"}


def test_a_backward_inside_asks_for_no_gradients_that_warn() -> None:
    """Data from before a break that was written to, and has a history since, is no leaf any more."""
    weight = torch.randn(3, requires_grad=True)

    def step(x: Any) -> Any:
        out = torch.zeros_like(x)
        bolide.graph_break()
        out[1:] += weight * x[1:]
        out.square().sum().backward()
        return out.detach()

    compiled = bolide.compile(step)
    for rows in (3, 4, 5):
        x, found = torch.randn(rows, 3), []
        for function in (step, compiled):
            weight.grad = None
            assert shown(function, x) == []
            found.append((function(x), weight.grad))
        torch.testing.assert_close(*found)
