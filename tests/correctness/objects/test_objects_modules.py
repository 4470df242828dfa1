"""nn.Module's features inside compiled programs: hooks, containers, parametrisations, buffers, modules that change."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def check(module: nn.Module, training: bool = True, calls: int = 2, fullgraph: bool = True) -> nn.Module:
    """Results, gradients and the state afterwards are eager's over some calls; gives the module that was compiled."""
    theirs, ours = copy.deepcopy(module).train(training), copy.deepcopy(module).train(training)
    compiled: Any = bolide.compile(ours, backend="eager", fullgraph=fullgraph)
    for call in range(calls):
        results = []
        for part in (theirs, compiled):
            torch.manual_seed(call)
            results.append(part(X.clone()))
            if results[-1].requires_grad:
                results[-1].square().sum().backward()
        assert torch.allclose(*results), call
    assert not fullgraph or compiled._bolide_call._bolide.entries, "ran in eager"
    expected, found = theirs.state_dict(), ours.state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert torch.allclose(found[name], value), name
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters()):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or torch.allclose(a.grad, b.grad), name  # type: ignore[arg-type]
    return ours


def triple(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 3


# ---- hooks -----------------------------------------------------------------------------------------------------------


def test_forward_hooks() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    module[0].register_forward_hook(triple)
    module[0].register_forward_pre_hook(lambda part, args: (args[0] + 1,))
    module[1].register_forward_hook(triple, always_call=True)
    module.register_forward_hook(lambda part, args, kwargs, result: result + 1, with_kwargs=True)
    module.register_forward_pre_hook(lambda part, args, kwargs: (args, kwargs), with_kwargs=True)
    check(module)


def test_backward_hooks() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    module[2].register_full_backward_hook(lambda part, inputs, outputs: (inputs[0] * 2,))
    module[0].register_full_backward_pre_hook(lambda part, outputs: (outputs[0] * 3,))
    check(module)


def test_global_hooks() -> None:
    handle = nn.modules.module.register_module_forward_hook(triple)
    try:
        check(nn.Linear(8, 8))
    finally:
        handle.remove()


def test_a_hook_keeps_what_it_sees() -> None:
    seen: list[Tensor] = []
    module = nn.Linear(8, 8)
    module.register_forward_hook(lambda part, args, result: seen.append(result.detach()))
    bolide.compile(module, backend="eager", fullgraph=True)(X)
    assert len(seen) == 1 and torch.allclose(seen[0], X @ module.weight.T + module.bias)


class HookInside(nn.Module):
    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.inner, self.keep, self.handle = nn.Linear(8, 8), keep, None

    def forward(self, x: Tensor) -> Tensor:
        if not self.inner._forward_hooks:
            self.handle = self.inner.register_forward_hook(triple)
        y: Tensor = self.inner(x)
        if not self.keep and self.handle is not None:
            self.handle.remove()
        return y + self.inner(x)


@pytest.mark.parametrize("keep", [False, True])
def test_hooks_come_and_go_inside(keep: bool) -> None:
    module: Any = check(HookInside(keep))
    assert len(module.inner._forward_hooks) == keep
    module.handle.remove()
    assert not module.inner._forward_hooks


# ---- state that changes ----------------------------------------------------------------------------------------------


class Counting(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        if self.training:
            self.register_buffer("mean", x.mean(0))
        return self.inner(x) * self.count if self.nothing is None else x


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        if len(self.layers) < 2:
            self.layers.append(nn.Tanh())
        for layer in self.layers:
            x = layer(x) - 1
        return x


class MadeLater(nn.Module):
    inner: Any

    def __init__(self) -> None:
        super().__init__()
        self.inner = None

    def forward(self, x: Tensor) -> Tensor:
        if self.inner is None:
            self.inner = nn.Linear(8, 3)
            self.scale = nn.Parameter(torch.ones(3))
            self.shift = nn.Buffer(torch.ones(3), persistent=False)  # type: ignore[attr-defined, unused-ignore]
        result: Tensor = self.inner(x) * self.scale + self.shift
        return result


def test_buffers_are_replaced_and_registered() -> None:
    check(Counting())


def test_modules_are_added() -> None:
    assert len(check(Growing(), calls=3).layers) == 2  # type: ignore[arg-type]


def test_parameters_are_made_without_gradients() -> None:
    module: Any = MadeLater()
    compiled = bolide.compile(module, backend="eager", fullgraph=True)
    with torch.no_grad():
        first = compiled(X)
    assert type(module.inner.weight) is nn.Parameter and module.inner.weight.is_leaf and module.scale.requires_grad
    assert module._non_persistent_buffers_set == {"shift"}
    again = compiled(X)
    again.sum().backward()
    assert torch.allclose(again, first) and module.inner.weight.grad is not None


def test_lazy_modules_are_materialised_by_their_first_call() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.LazyLinear(5), nn.ReLU())
    compiled: Any = bolide.compile(module, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(X), module(X)) and type(module[0]) is nn.Linear
    assert torch.allclose(compiled(X), module(X)) and len(compiled._bolide_call._bolide.entries) == 1


def test_an_instances_own_methods_are_seen() -> None:
    class Model(nn.Module):
        def act(self, x: Tensor) -> Tensor:
            return x + 1

        def forward(self, x: Tensor) -> Tensor:
            return self.act(x)

    module: Any = Model()
    compiled = bolide.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 1)
    module.act = types.MethodType(lambda self, x: x * 2, module)
    assert torch.equal(compiled(X), X * 2)


def test_training_and_evaluation_take_turns() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(1.0))
    compiled = bolide.compile(module, backend="eager", fullgraph=True)
    assert compiled(X).eq(0).all()
    compiled.eval()
    assert torch.allclose(compiled(X), module[1](module[0](X))) and not module.training
    compiled.train()
    assert compiled(X).eq(0).all()


# ---- ways to reach parts ---------------------------------------------------------------------------------------------


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(8)) for _ in range(3)])
        self.names = nn.ParameterDict({"x": nn.Parameter(torch.randn(8))})
        self.chain = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.plain = {"k": [nn.Linear(8, 8)]}

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[1:3]:
            x = layer(x)
        x = self.layers[-1](x)
        for name, part in self.table.items():
            x = part(x) * len(name)
        for row in self.rows:
            x = x * row
        x = x + self.rows[0] + sum(self.rows[i] for i in range(len(self.rows)))
        if "x" in self.names and "y" not in self.table:
            x = x * self.names["x"]
        x = self.chain[:1](x) + self.chain(x)
        total = sum(parameter.sum() * len(name) for name, parameter in self.named_parameters())
        for part in self.modules():
            if isinstance(part, nn.Linear):
                x = x + part.bias
        for name, _ in self.named_children():
            x = x * len(name)
        result: Tensor = self.plain["k"][0](x) * total + sum(b.sum() for b in self.buffers())
        return result


class Forwarding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x) * self.in_features + self.weight.sum()
        return result


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    module[2].weight = module[0].weight
    return module


def parametrised() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    nn.utils.parametrize.register_parametrization(module[0], "weight", Symmetric())
    return module


@pytest.mark.parametrize("make", [Containers, Forwarding, tied, parametrised])
def test_parts_are_reached(make: Any) -> None:
    torch.manual_seed(0)
    check(make())


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_norm(norm: Any) -> None:
    torch.manual_seed(0)
    check(nn.Sequential(norm(nn.Linear(8, 8))))


def test_a_module_is_called_with_other_parameters() -> None:
    module = nn.Linear(8, 8)

    def program(weight: Tensor, bias: Tensor, x: Tensor) -> Any:
        return torch.func.functional_call(module, {"weight": weight, "bias": bias}, (x,))

    weight, bias = torch.randn(8, 8), torch.randn(8)
    found = bolide.compile(program, backend="eager", fullgraph=True)(weight, bias, X)
    assert torch.allclose(found, X @ weight.T + bias)


def test_compiled_modules_inside_others() -> None:
    inner = bolide.compile(nn.Linear(8, 8), backend="eager", fullgraph=True)
    outer = nn.Sequential(inner, nn.ReLU())
    assert torch.allclose(bolide.compile(outer, backend="eager", fullgraph=True)(X), outer(X))
