"""What `bolide.compile` takes, and functions around compiled functions."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide
from bolide.dynamo.state import own_mark
from bolide.support import events


def test_descriptors_and_classes(seed: int) -> None:
    installed: list[events.Installed] = []

    class Scale:
        factor = 3

        @bolide.compile(fullgraph=True)
        @classmethod
        def outside(cls, x: Tensor) -> Tensor:
            return x * cls.factor

        @bolide.compile
        @staticmethod
        def static(x: Tensor) -> Tensor:
            return x + 1

        @property
        @bolide.compile
        def value(self) -> Tensor:
            return torch.ones(2) * self.factor

    @bolide.compile(fullgraph=True)
    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    @bolide.compile
    class Callable:
        def __call__(self, x: Tensor) -> Tensor:
            return x * 5

    x = torch.randn(3)
    with events.subscribed(lambda e: installed.append(e) if isinstance(e, events.Installed) else None):
        assert torch.equal(Scale.outside(x), x * 3)
        assert torch.equal(Scale.static(x), x + 1) and torch.equal(Scale().static(x), x + 1)
        assert torch.equal(Scale().value, torch.full((2,), 3.0))
        assert torch.equal(Module()(x), x * 2) and isinstance(Module(), nn.Module)
        assert torch.equal(Callable()(x), x * 5)
    assert len(installed) == 5
    with pytest.raises(TypeError, match="with a method __call__"):
        bolide.compile(int)


def test_a_wrapper_around_a_compiled_function_is_not_taken_for_it() -> None:
    def inside(x: Tensor) -> Tensor:
        return x + 1

    x = torch.randn(3)
    for mark in (bolide.compile, bolide.disable, functools.partial(torch.compile, backend="eager")):
        marked: Any = mark(inside)

        @functools.wraps(marked)
        def around(x: Tensor, marked: Any = marked) -> Any:
            return marked(x) * 2

        expected = (x + 1) * 2
        assert torch.equal(bolide.compile(around)(x), expected)
        assert torch.equal(bolide.compile(lambda x: around(x))(x), expected)
        assert torch.equal(bolide.disable(around)(x), expected)


def test_explain_takes_bound_methods_of_compiled_functions() -> None:
    class Counter:
        @bolide.compile
        def add(self, x: Tensor) -> Tensor:
            return x + 1

    assert bolide.explain(Counter().add)(torch.randn(3)).captures == 1


def test_torch_compile_leaves_compiled_functions_alone() -> None:
    module = nn.Linear(3, 3)
    inner, compiled = bolide.compile(lambda x: x.sin() + 1), bolide.compile(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.randn(2, 3)
        for fn in (inner, compiled, lambda x: inner(x) * 2, lambda x: compiled(inner(x))):
            expected = fn(x)
            theirs = torch.compile(fn, backend="eager")
            torch.testing.assert_close(theirs(x), expected)
            torch.testing.assert_close(theirs(x), expected)


def test_a_property_is_compiled_as_its_getter() -> None:
    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

        @bolide.compile
        @property
        def double(self) -> Tensor:
            """Twice the value."""
            return self.value * 2

        @double.setter
        def double(self, value: Tensor) -> None:
            self.value = value / 2

    box = Box(torch.ones(3))
    assert torch.equal(box.double, torch.full((3,), 2.0))
    box.double = torch.full((3,), 8.0)
    assert torch.equal(box.double, torch.full((3,), 8.0)) and Box.double.__doc__ == "Twice the value."
    assert len(own_mark(Box.double.fget, "_bolide").entries) == 1


def test_compiled_functions_in_the_control_flow_of_eager() -> None:
    """torch captures what it is given there: it finds the user's functions."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

        @bolide.compile
        def other(self, x: Tensor, factor: float = 2.0) -> Tensor:
            return x * self.weight * factor

    def broken(x: Tensor) -> Tensor:
        bolide.graph_break()
        return x.cos()

    module = Scaled()
    wave, cut, whole = bolide.compile(lambda x: x.sin()), bolide.compile(broken), bolide.compile(module)

    @functools.wraps(wave)
    def around(x: Tensor) -> Tensor:
        return wave(x) + 1

    def check(true: Callable[..., Any], false: Callable[..., Any], plain: list[Callable[..., Any]]) -> None:
        for pred, expected in zip((True, False), plain, strict=True):
            x = torch.randn(3, requires_grad=True)
            found = torch.cond(torch.tensor(pred), true, false, (x,))
            torch.testing.assert_close(found, expected(x))
            torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, expected(x))))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            check(wave, cut, [torch.sin, torch.cos])
            check(whole, module.other, [module, lambda x: x * module.weight * 2])
            check(around, wave, [lambda x: x.sin() + 1, torch.sin])
            wave(torch.ones(3)), cut(torch.ones(3)), whole(torch.ones(3)), module.other(torch.ones(3))


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch's own while_loop looks into the entry and fails there")
def test_a_compiled_function_in_the_while_loop_of_eager() -> None:
    body = bolide.compile(lambda i, x: (i + 1, x * 2))
    count = torch._higher_order_ops.while_loop(lambda i, x: i < 3, body, (0, torch.ones(2)))
    assert count[1].tolist() == [8, 8]
