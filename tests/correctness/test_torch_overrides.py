"""`__torch_function__` and `__torch_dispatch__` in programs: objects, modes, subclasses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import bolide

BACKENDS = ["eager", "aot_eager", "inductor"]
LOG: list[str] = []


class Duck:
    """Not a tensor; holds one, and notes what is done with it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(f"{cls.__name__}.{func.__name__}{[t.__name__ for t in types]}")
        args = [arg.tensor if isinstance(arg, Duck) else arg for arg in args]
        return Duck(func(*args, **(kwargs or {})))


class Duckling(Duck):
    pass


class Stranger:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


OUTSIDE = Duck(torch.randn(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_objects_that_answer_for_torchs_functions(backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        duck, young = Duck(x), Duckling(x * 2)
        results = [
            x + duck,
            duck - x,
            x >= duck,
            duck == x,
            duck @ x,
            torch.sin(duck),
            F.relu(duck),
            torch.add(x, duck),
        ]
        results += [torch.add(duck, young), torch.mul(OUTSIDE, x), F.softmax(young, 0), x * OUTSIDE]
        x = x * 1
        x += young
        return [result.tensor for result in [*results, x]], type(x)

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(3)
        LOG.clear()
        want, want_type = fn(x)
        asked = LOG[:]
        LOG.clear()
        got, got_type = compiled(x)
        assert asked == LOG and got_type is want_type
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_nobody_answers() -> None:
    def fn(x: torch.Tensor) -> str:
        try:
            torch.add(x, Stranger())
        except TypeError as error:
            return type(error).__name__
        return ""

    assert bolide.compile(fn, fullgraph=True)(torch.randn(3)) == "TypeError"


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_programs_own_modes_run_for_real_at_each_call() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        with Counting():
            y = x.sin() + 1
        return y * 3

    compiled = bolide.compile(fn)
    for _ in range(3):
        x = torch.randn(3)
        LOG.clear()
        torch.testing.assert_close(compiled(x), fn(x))
        assert LOG[:2] == LOG[2:] == ["aten.sin.default", "aten.add.Tensor"]


class Named(nn.Parameter):
    """A parameter with more to it: operations are those of any tensor."""

    scale = 3.0
    label: str

    def __new__(cls, data: torch.Tensor, label: str = "none", requires_grad: bool = True) -> Any:
        made = super().__new__(cls, data, requires_grad)
        made.label, made.group = label, 7
        return made

    def scaled(self) -> torch.Tensor:
        return self * self.scale

    @property
    def total(self) -> torch.Tensor:
        return self.abs().sum()

    @classmethod
    def factor(cls) -> float:
        return cls.scale

    def __repr__(self) -> str:
        return f"Named({self.label})"


class Shifted(Named):
    def scaled(self) -> torch.Tensor:
        return super().scaled() + 1


def classes_of(model: Any, x: torch.Tensor) -> Any:
    w = model.weight
    checks = [isinstance(w, cls) for cls in (Named, Shifted, nn.Parameter, torch.Tensor, (int, Named))]
    names = type(w).__name__, w.__class__.__name__, type(w * 2).__name__
    return checks, names, hasattr(w, "label"), hasattr(w, "node"), hasattr(x, "group")


def methods_of(model: Any, x: torch.Tensor) -> Any:
    w = model.weight
    return model(x) + w.scaled() * w.total + w.factor() + w.group


def attributes_of(model: Any, x: torch.Tensor) -> Any:
    model.weight.label += "!"
    model.weight.fresh = x.shape[0]
    return model(x), model.weight, model.weight.label, model.weight.detach(), model.weight.data.t()


def written(model: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        model.weight.mul_(2)
    return model(x)


def _agree(found: Any, expected: Any) -> None:
    """Equal values, tensors within the tolerance."""
    pairs = list(zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True))
    for one, other in pairs:
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", [Named, Shifted])
@pytest.mark.parametrize("fn", [classes_of, methods_of, attributes_of, written])
def test_subclasses_that_change_no_operation(fn: Any, cls: Any, backend: str) -> None:
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    model = nn.Linear(3, 3)
    model.weight = cls(model.weight.detach().clone())
    twin = copy.deepcopy(model)
    twin.weight = cls(model.weight.detach().clone())
    for _ in range(2):
        x = torch.randn(3, 3)
        found, expected = compiled(model, x), fn(twin, x)
        _agree(found, expected)
        assert (type(model.weight), model.weight.__dict__) == (type(twin.weight), twin.weight.__dict__)
        if fn is methods_of:
            for out in (found, expected):
                out.sum().backward()
            torch.testing.assert_close(model.weight.grad, twin.weight.grad)
    model.weight = nn.Parameter(model.weight.detach().clone())
    if fn is classes_of:
        assert compiled(model, x) == fn(model, x)


class Counted(nn.Parameter):
    def sum(self) -> Any:  # type: ignore[override]
        return 3


def test_subclasses_with_operations_of_their_own_run_for_real() -> None:
    def fn(parameter: Any, x: torch.Tensor) -> Any:
        return x * 2 + parameter.sum()

    x = torch.randn(3)
    model = nn.Module()
    model.weight = Counted(torch.randn(3))
    compiled = bolide.compile(lambda model, x: fn(model.weight, x), backend="eager")
    torch.testing.assert_close(compiled(model, x), x * 2 + 3)


class Pair(torch.Tensor):
    """A tensor made of two, and what is done with it is done with both."""

    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.size(), dtype=a.dtype, device=a.device)

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return Pair(parts["a"], parts["b"])

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(str(func))
        firsts = [arg.a if isinstance(arg, Pair) else arg for arg in args]
        seconds = [arg.b if isinstance(arg, Pair) else arg for arg in args]
        return Pair(func(*firsts, **(kwargs or {})), func(*seconds, **(kwargs or {})))


@pytest.mark.filterwarnings("ignore::bolide.BolideWarning")
def test_subclasses_run_for_real() -> None:
    def inside(a: torch.Tensor) -> Any:
        pair = Pair(a * 2, a * 3).sin() + 1
        return pair.a * pair.b

    def given(pair: Any) -> Any:
        return (pair.sin() + 1).b

    for fn, make in ((inside, torch.randn), (given, lambda n: Pair(torch.randn(n), torch.randn(n)))):
        compiled = bolide.compile(fn)
        for _ in range(2):
            value = make(3)
            LOG.clear()
            result = compiled(value)
            assert type(result) is torch.Tensor
            torch.testing.assert_close(result, fn(value))
            assert LOG[:2] == LOG[2:] == ["aten.sin.default", "aten.add.Tensor"]
