"""Compiled modules share everything with the module they were made from."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from bolide.dynamo.entry.module import CompiledModule, wrap

calls: list[nn.Module] = []


def count(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    calls.append(module)
    return module(*args, **kwargs)


def rebuild(module: nn.Module) -> nn.Module:
    return wrap(module, count, rebuild)


class Net(nn.Module):
    subclasses: list[type] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        Net.subclasses.append(cls)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.scale

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(x) + self(x)


@pytest.fixture
def pair() -> tuple[nn.Module, nn.Module]:
    calls.clear()
    module = Net()
    return module, rebuild(module)


def test_everything_is_shared(pair: Any) -> None:
    module, compiled = pair
    assert isinstance(compiled, Net) and isinstance(compiled, CompiledModule) and Net.subclasses == []
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters()))
    compiled.eval()
    assert not module.training
    compiled.scale = 3.0
    assert module.scale == 3.0
    module.extra = nn.Linear(1, 1)
    assert "extra.weight" in compiled.state_dict()
    del compiled.extra
    assert not hasattr(module, "extra")
    compiled.to(torch.float64)
    assert module.linear.weight.dtype is torch.float64
    compiled.linear = nn.Linear(3, 2)
    assert module.linear is compiled.linear
    assert repr(compiled) == repr(module) and type(compiled).__name__ == "Net"


def test_calls_and_methods_that_call_self_are_compiled(pair: Any) -> None:
    module, compiled = pair
    x = torch.randn(4, 3)
    compiled(x)
    compiled.twice(x)
    assert calls == [module] * 3
    seen = []
    handle = compiled.register_forward_hook(lambda *_: seen.append(1))
    module(x)
    handle.remove()
    module(x)
    assert seen == [1]


def test_copies_and_pickles_are_compiled_and_independent(pair: Any) -> None:
    module, compiled = pair
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert isinstance(other, CompiledModule) and other.linear.weight is not module.linear.weight
        torch.testing.assert_close(dict(other.state_dict()), dict(module.state_dict()))
        other(torch.randn(4, 3))
    assert len(calls) == 2
    assert copy.copy(compiled).linear is module.linear


def test_training_through_the_wrapper_trains_the_module(pair: Any) -> None:
    module, compiled = pair
    before = module.linear.weight.detach().clone()
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    compiled(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, module.linear.weight)


def test_in_a_parent_and_as_a_parent(pair: Any) -> None:
    _, compiled = pair
    parent = nn.Sequential(compiled, nn.ReLU())
    assert "0.linear.weight" in parent.state_dict()
    parent(torch.randn(4, 3))
    assert len(calls) == 1
    assert [name for name, _ in compiled.named_children()] == ["linear", "norm"]


def test_what_is_made_of_a_compiled_module_is_plain() -> None:
    chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    compiled = wrap(chain, count, rebuild)
    x = torch.randn(4, 3)
    assert compiled.__class__ is nn.Sequential and type(compiled[:2]) is nn.Sequential
    torch.testing.assert_close(compiled[:2](x), chain[:2](x))
    assert type(type(compiled)(nn.ReLU())) is nn.Sequential


def test_a_changed_class_is_the_modules() -> None:
    class Doubled(nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return w * 2

    linear = nn.Linear(3, 2)
    compiled: Any = wrap(linear, count, rebuild)
    before = linear.weight.detach().clone()
    nn.utils.parametrize.register_parametrization(compiled, "weight", Doubled())
    assert torch.equal(compiled.weight, before * 2) and torch.equal(linear.weight, before * 2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(x), x @ (before * 2).T + linear.bias)
