"""Captured backward passes, compiled by bolide; and of functions that bolide has compiled."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo import compiled_autograd
from bolide.functorch import aot_function, aot_module_simplified, make_boxed_func, nop
from bolide.support import events
from tests.compiled_autograd_tools import assert_as_eager, captures

Log = Any


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Linear(4, 2)
    ).double()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x**3 * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        return 3 * x * x * ctx.factor * grad, None


def training(log: Log) -> list[Any]:
    layers = model()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    for size in (4, 8, 3, 16):
        optimizer.zero_grad()
        layers(torch.randn(size, 3, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in layers.parameters()]


def hooked(log: Log) -> list[Any]:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    a = Cube.apply(x.sin(), 0.5)
    a.register_hook(lambda grad: grad * 2)
    a.register_hook(lambda grad: log("a", grad))
    x.register_post_accumulate_grad_hook(lambda leaf: log("x", leaf.grad.clone()))
    Cube.apply(a.exp(), 2.0).sum().backward()
    return [x.grad]


def retained(log: Log) -> list[Any]:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    a = x.sin()
    a.retain_grad()
    a.exp().sum().backward()
    return [x.grad, a.grad]


def conjugated(log: Log) -> list[Any]:
    z = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    (z * z.conj() * z.sin()).real.sum().backward()
    return [z.grad]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", [training, hooked, retained, conjugated], ids=lambda program: program.__name__)
def test_compiled_backward_passes_are_those_of_eager(program: Any, backend: str) -> None:
    bolide.reset()
    assert_as_eager(program, functools.partial(bolide.compile, backend=backend), rtol=1e-9, atol=1e-9)


def test_a_backward_pass_is_one_graph_for_all_sizes() -> None:
    compiled_autograd.reset()
    layers = model()
    seen: list[Any] = []
    compiler = functools.partial(bolide.compile, fullgraph=True)
    with events.subscribed(seen.append):
        for size in (4, 8, 16, 3, 5):
            x = torch.randn(size, 3, dtype=torch.float64)
            expected = torch.autograd.grad(layers(x).square().sum(), [*layers.parameters()])
            layers.zero_grad()
            with compiled_autograd.enable(compiler):
                layers(x).square().sum().backward()
            for parameter, gradient in zip(layers.parameters(), expected):
                torch.testing.assert_close(parameter.grad, gradient)
    assert captures() == 1
    assert sum(isinstance(event, events.Captured) for event in seen) == 2  # fixed sizes, then symbols


@pytest.mark.parametrize("compiler", [lambda gm: gm, bolide.compile], ids=["as_it_is", "compiled"])
def test_functions_that_are_compiled_themselves(compiler: Any) -> None:
    """Their joint graphs, for which the engine runs while they are compiled, are not captured."""
    compiled_autograd.reset()

    def program(log: Log) -> list[Any]:
        layers, head = model(), torch.nn.Linear(2, 2).double()
        fast = bolide.compile(layers)
        for size in (4, 8, 16):
            x = torch.randn(size, 3, dtype=torch.float64, requires_grad=True)
            middle = fast(x)
            middle.register_hook(lambda grad: log(grad.sum()))
            head(middle).square().mean().backward()
            log(x.grad)
        return [p.grad for p in (*layers.parameters(), *head.parameters())]

    assert_as_eager(program, compiler, times=1, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", None])
def test_the_option_takes_the_backend_of_the_compiled_function(backend: str | None) -> None:
    """Passes that go through no compiled function have the default one."""
    compiled_autograd.reset()
    seen: list[Any] = []
    layers = model()
    with bolide.dynamo.config.patch(compiled_autograd=True):
        loss = (bolide.compile(layers, backend=backend) if backend else layers)(torch.randn(4, 3).double())
        with events.subscribed(seen.append):
            loss.square().sum().exp().tanh().backward()
    assert captures() == 1
    artifacts = [event.artifact for event in seen if isinstance(event, events.Compiled)]
    assert artifacts
    generated = [isinstance(artifact, bolide.inductor.CompiledGraph) for artifact in artifacts]
    assert generated == [backend != "aot_eager"] * len(artifacts)


def test_formulas_that_need_numbers_are_called_where_sizes_are_symbolic() -> None:
    """Of the least-squares solution, in C++."""
    compiled_autograd.reset()
    for rows in (4, 6, 5):
        x = torch.randn(2, rows, 3, dtype=torch.float64, requires_grad=True)
        b = torch.randn(2, rows, 2, dtype=torch.float64, requires_grad=True)
        loss = torch.linalg.lstsq(x, b).solution.sin().sum()
        expected = torch.autograd.grad(loss, [x, b], retain_graph=True)
        with compiled_autograd.enable(functools.partial(bolide.compile, dynamic=True)):
            loss.backward()
        torch.testing.assert_close([x.grad, b.grad], [*expected])


def test_the_option_captures_inside_and_after_compiled_functions() -> None:
    layers, reference = model(), model()
    reference.load_state_dict(layers.state_dict())

    @bolide.compile
    def step(x: torch.Tensor, goes_on: bool) -> torch.Tensor:
        loss = layers(x).square().mean()
        if goes_on:
            bolide.graph_break()
            loss.backward()
        return loss

    compiled_autograd.reset()
    assert not compiled_autograd.compiled_autograd_enabled
    with bolide.dynamo.config.patch(compiled_autograd=True):
        assert compiled_autograd.compiled_autograd_enabled
        for inside in (True, False):
            before = captures()
            layers.zero_grad()
            reference.zero_grad()
            x = torch.randn(4, 3, dtype=torch.float64)
            loss = step(x, inside)
            if not inside:
                loss.backward()
            with compiled_autograd.disable():
                reference(x).square().mean().backward()
            assert captures() > before
            for parameter, other in zip(layers.parameters(), reference.parameters()):
                torch.testing.assert_close(parameter.grad, other.grad)
    assert not compiled_autograd.compiled_autograd_enabled
    before = captures()
    reference(x).sum().backward()
    assert captures() == before


def plain(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return gm.forward


def interpreted(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return lambda *args: torch.fx.Interpreter(gm).run(*args)


def differentiated(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return aot_module_simplified(gm, inputs, fw_compiler=lambda graph, _: make_boxed_func(graph.forward))


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("backend", [plain, interpreted, differentiated], ids=lambda backend: backend.__name__)
def test_backends_of_users_compile_backward_passes(backend: Any, dynamic: bool | None) -> None:
    graphs: list[Any] = []

    def counted(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(gm)
        return backend(gm, inputs)

    compiler = functools.partial(bolide.compile, backend=counted, dynamic=dynamic)
    for program in (training, hooked):
        assert_as_eager(program, compiler, times=2, rtol=1e-9, atol=1e-9)
    assert graphs


def test_what_is_no_compiler_of_a_pass_is_refused() -> None:
    loss = torch.randn(3, requires_grad=True).sum()
    with pytest.raises(TypeError, match="not 'inductor'"), compiled_autograd.enable("inductor"):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="remedy: with a backend"), compiled_autograd.enable(plain):  # type: ignore[arg-type]
        loss.backward()
    refused = pytest.raises(bolide.Unsupported, match="gradient of an argument is read or set")
    with refused, compiled_autograd.enable(lambda gm: aot_function(gm, nop)):  # it would lose the gradients of leaves
        loss.backward()
