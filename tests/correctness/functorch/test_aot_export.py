"""`aot_export_module` and `aot_export_joint_simple`: the graph computes what the module, and its gradients, do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bolide.functorch import aot_module, default_partition, min_cut_rematerialization_partition, nop
from bolide.functorch.aot_autograd import GraphSignature, aot_export_joint_simple, aot_export_module
from bolide.support.errors import Unsupported
from tests.functorch_tools import assert_same

STEPS: tuple[Callable[[Any, torch.Tensor], torch.Tensor], ...] = (
    lambda m, x: m.linear(x),
    lambda m, x: m.norm(x),
    lambda m, x: torch.relu(x) * m.scale,
    lambda m, x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    lambda m, x: m.counted(x),
    lambda m, x: x.clone().mul_(m.scale).add_(1),
    lambda m, x: torch.cat([chunk * 2 for chunk in x.chunk(2, 1)], 1),
)


class Program(nn.Module):
    """A random program of layers that write to buffers, with one scalar result, a detached one and a number."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.randn(4))
        self.calls: torch.Tensor
        self.seen: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4))
        self.steps = [0, 1, *random.Random(seed).choices(range(len(STEPS)), k=4), 2]

    def counted(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.seen = self.seen + x.detach().mean(0)
        return x + self.calls

    def forward(self, x: torch.Tensor, rest: dict[str, torch.Tensor], times: int = 2) -> Any:
        for step in self.steps:
            x = STEPS[step](self, x)
        return x.detach() * times, (x * rest["weight"]).square().mean(), times


def arguments() -> tuple[Any, ...]:
    return torch.randn(6, 4), {"weight": torch.randn(4, requires_grad=True)}, 3


def own(mod: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(mod.named_parameters()), **dict(mod.named_buffers())}


def graph_inputs(mod: nn.Module, args: tuple[Any, ...]) -> list[Any]:
    return [*(tensor.detach().clone() for tensor in own(mod).values()), args[0], args[1]["weight"].detach(), args[2]]


def compared(mod: Program, graph: Any, signature: GraphSignature, joint: bool) -> None:
    args = arguments()
    names = [None if value is None else getattr(value, "name", None) for value in graph.graph.output_node().args[0]]
    given = dict(zip(names, graph(*graph_inputs(mod, args))))
    values = list(graph(*graph_inputs(mod, args)))
    for parameter in mod.parameters():
        parameter.grad = None
    numbers, loss, times = mod(*args)
    at = len(signature.buffers_to_mutate)
    assert_same(values[at], numbers)
    assert_same(values[at + 1].detach(), loss.detach())
    assert values[at + 2] == times and signature.user_outputs[2] is None
    tensors = own(mod)
    for name, buffer in signature.buffers_to_mutate.items():
        assert_same(given[name], tensors[buffer])
    if joint:
        assert signature.backward_signature is not None
        loss.backward()
        assert_same(given[signature.backward_signature.loss_output].detach(), loss.detach())
        gradients = signature.backward_signature.gradients_to_parameters
        assert {*gradients.values()} == {name for name, _ in mod.named_parameters()}
        for name, parameter in gradients.items():
            assert_same(given[name], tensors[parameter].grad, strides=False, rtol=1e-4, atol=1e-5)
        ((name, placeholder),) = signature.backward_signature.gradients_to_user_inputs.items()
        assert placeholder == signature.user_inputs[1]
        assert_same(given[name], args[1]["weight"].grad, strides=False, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("joint", (False, True))
@pytest.mark.parametrize("seed", range(6))
def test_a_modules_graph_computes_results_writes_and_gradients(seed: int, joint: bool) -> None:
    mod = Program(seed)
    before = {name: tensor.detach().clone() for name, tensor in own(mod).items()}
    index = 1 if joint else None
    args = arguments()
    graph, signature = aot_export_module(mod, args[:2], trace_joint=joint, output_loss_index=index, kwargs={"times": 3})
    for name, tensor in own(mod).items():
        assert torch.equal(tensor, before[name]), f"seed {seed}: tracing wrote to {name}"
    placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    known = [*signature.inputs_to_parameters, *signature.inputs_to_buffers, *signature.user_inputs]
    assert placeholders == known == [f"arg{at}_1" for at in range(len(placeholders))]
    assert not signature.parameters_to_mutate and not signature.user_inputs_to_mutate
    assert not signature.input_tokens and not signature.output_tokens
    assert {node.target for node in graph.graph.nodes}.isdisjoint({torch.ops.aten.copy_.default})
    compared(mod, graph, signature, joint)
    compared(mod, graph, signature, joint)


class Assigning(nn.Module):
    """Two buffers that change places, one of them with another value."""

    def __init__(self, value: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.one: torch.Tensor
        self.two: torch.Tensor
        self.register_buffer("one", torch.randn(3))
        self.register_buffer("two", torch.randn(3))
        self.value = value

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.one, self.two = self.two, self.value(self.one) + x
        return (self.one * x,)


def test_assigned_buffers_are_written() -> None:
    mod, eager, x = Assigning(torch.sin), Assigning(torch.sin), torch.randn(3)
    eager.load_state_dict(mod.state_dict())
    graph, signature = aot_export_module(mod, (x,), trace_joint=False)
    assert [*signature.buffers_to_mutate.values()] == ["one", "two"]
    compiled, one, two = aot_module(mod, nop), mod.one.clone(), mod.two.clone()
    for _ in range(3):
        x = torch.randn(3)
        one, two, out = graph(one, two, x)
        for wanted, value in zip((*eager(x), eager.one, eager.two), (out, one, two)):
            assert_same(value, wanted)
        for value, wanted in zip((*compiled(x), mod.one, mod.two), (out, one, two)):
            assert_same(value, wanted)


def test_assigned_buffers_of_other_forms_are_refused() -> None:
    for value in (lambda x: x.expand(2, 3), torch.Tensor.double):
        with pytest.raises(Unsupported, match="two"):
            aot_export_module(Assigning(value), (torch.randn(3),), trace_joint=False)


class Returning(nn.Module):
    """What it returns is made by a function of its two parameters and an argument."""

    def __init__(self, result: Callable[[nn.Parameter, nn.Parameter, torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.result = result

    def forward(self, x: torch.Tensor) -> Any:
        return self.result(self.a, self.b, x)


REFUSED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "to be a scalar": lambda a, b, x: (a * b * x,),
    "that was not the scalar loss": lambda a, b, x: ((a * b * x).sum(), a + 1),
    "did not receive a gradient: b": lambda a, b, x: ((a * x).sum(),),
    "does not require gradients": lambda a, b, x: (x.sum(),),
    "must be a tuple": lambda a, b, x: (a * b * x).sum(),
    "received a metadata mutation": lambda a, b, x: ((a * b).sum() + x.unsqueeze_(0).sum(),),
}


@pytest.mark.parametrize("message", REFUSED)
def test_modules_without_one_loss_are_refused(message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        aot_export_module(Returning(REFUSED[message]), (torch.randn(3),), trace_joint=True, output_loss_index=0)


def test_tied_parameters_and_a_missing_index_are_refused() -> None:
    mod = Returning(lambda a, b, x: ((a * b * x).sum(),))
    with pytest.raises(RuntimeError, match="output_loss_index"):
        aot_export_module(mod, (torch.randn(3),), trace_joint=True)
    mod.b = mod.a
    with pytest.raises(Unsupported, match="twice"):
        aot_export_module(mod, (torch.randn(3),), trace_joint=True, output_loss_index=0)


def test_arguments_and_parameters_may_be_written_without_gradients() -> None:
    def write(a: Any, b: Any, x: torch.Tensor) -> Any:
        x.mul_(b)
        a.add_(x)
        return x, x[1:], a * x

    mod, x = Returning(write), torch.randn(3)
    a, b = mod.a.detach().clone(), mod.b.detach().clone()
    graph, signature = aot_export_module(mod, (x.clone(),), trace_joint=False)
    values = graph(a, b, x)
    assert [*signature.parameters_to_mutate.values()] == ["a"]
    assert [*signature.user_inputs_to_mutate.values()] == ["arg2_1"]
    for value, wanted in zip(values, (a + x * b, x * b, x * b, (x * b)[1:], (a + x * b) * (x * b))):
        assert_same(value, wanted)


def test_sizes_may_be_symbols() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.sum(0) / x.shape[0], x.shape[0] * 2

    graph, _ = aot_export_module(Rows(), (torch.randn(5, 3),), trace_joint=False, dynamic_shapes=True)
    x = torch.randn(7, 3)
    mean, twice = graph(x)
    assert_same(mean, x.sum(0) / 7)
    assert twice == 14


def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a.sin() * b, a.cos().exp(), b.long()


@pytest.mark.parametrize("partition", (default_partition, min_cut_rematerialization_partition))
def test_a_joint_graph_of_a_function_is_split_by_partition_functions(partition: Any) -> None:
    a, b = torch.randn(5, requires_grad=True), torch.randn(5)
    joint = aot_export_joint_simple(function, (a, b), trace_joint=True)
    tangents = torch.randn(5), torch.randn(5)
    expected = function(a, b)
    (wanted,) = torch.autograd.grad(expected[:2], a, tangents)
    results, (gradient, none) = joint((a.detach(), b), tangents)
    forward, backward = partition(joint, (), num_fwd_outputs=3)
    (*split,) = forward(a.detach(), b)
    again, missing = backward(*split[3:], *tangents)
    assert none is missing is None
    for value in (gradient, again):
        assert_same(value, wanted)
    for value, one, two in zip(expected, results, split):
        assert_same(one, value.detach())
        assert_same(two, value.detach())


def test_without_gradients_a_graph_takes_and_returns_what_the_function_does() -> None:
    a, b = torch.randn(5, requires_grad=True), torch.randn(5)
    for args, joint in (((a, b), False), ((a.detach(), b), True)):
        graph = aot_export_joint_simple(function, args, trace_joint=joint)
        for ours, eager in zip(graph(a.detach(), b), function(a.detach(), b)):
            assert_same(ours, eager)


UNFIT: dict[str, tuple[Callable[..., Any], Any]] = {
    "input mutations": (lambda a: (a.add_(1) * 2,), torch.randn(3)),
    "outputs that alias inputs": (lambda a: (a.view(3),), torch.randn(3)),
    "outputs to be a single": (lambda a: a + 1, torch.randn(3)),
    "individual outputs not": (lambda a: ([a + 1],), torch.randn(3)),
    "individual inputs not": (lambda a: (a[0] + 1,), [torch.randn(3)]),
}


@pytest.mark.parametrize("message", UNFIT)
def test_functions_of_other_conventions_are_refused(message: str) -> None:
    fn, arg = UNFIT[message]
    with pytest.raises(RuntimeError, match=message):
        aot_export_joint_simple(fn, (arg,), trace_joint=False)
