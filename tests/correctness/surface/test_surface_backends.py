"""Backends: the registry, graphs of torch's functions for backends of other makers, and the built-in ones."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import itertools
import math
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions
from torch.utils.checkpoint import checkpoint

import bolide
from bolide.compiling import compile_fx
from bolide.dynamo.backends import list_backends, lookup_backend, register_backend, registry
from bolide.tracing import calls


class Recording:
    """A backend that keeps what it was given and runs it as it is."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.examples: list[list[Any]] = []
        self.options: list[dict[str, Any]] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any], **options: Any) -> Callable[..., Any]:
        self.graphs.append(gm)
        self.examples.append(example_inputs)
        self.options.append(options)
        return gm


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 2))


def step(module: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    module.zero_grad()
    y = module(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in module.parameters()), *(b.clone() for b in module.buffers())]


# ---- graphs of torch's functions


@pytest.mark.parametrize("train", [True, False])
def test_eager_is_bitwise_eager_with_dropout_and_gradients(train: bool, seed: int) -> None:
    plain, compiled = model().train(train), model().train(train)
    compiled.load_state_dict(plain.state_dict())
    fast = bolide.compile(compiled, backend="eager", fullgraph=True)
    for repeat in range(3):
        x = torch.randn(5, 4)
        for a, b in zip(step(plain, x, seed + repeat), step(fast, x, seed + repeat), strict=True):
            assert torch.equal(a, b)


def test_draws_that_nothing_needs_are_made_without_inputs_and_beside_floats_that_change(seed: int) -> None:
    def alone() -> int:
        torch.rand(3)
        return 4

    def kept(x: Tensor, number: float) -> Any:
        dropped = torch.rand(3)
        bolide.graph_break()
        del dropped
        return torch.rand(3) + x, number

    def outcome(first: Callable[..., Any], second: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(seed)
        found = [(first(), *second(torch.ones(3), number)) for number in (0.5, 1.5, 2.5, 3.5)]
        return [[part.tolist() if isinstance(part, Tensor) else part for part in each] for each in found]

    compiled = [bolide.compile(fn, backend="eager") for fn in (alone, kept)]
    assert outcome(*compiled) == outcome(alone, kept)


def test_draws_beside_floats_that_change_or_are_made_of_sizes_are_eagers(seed: int) -> None:
    def f(x: Tensor, number: float) -> tuple[Any, ...]:
        dropped = F.dropout(x, 0.3) * math.exp(number) / math.sqrt(x.shape[0]) + x.shape[0] / 2
        return dropped, torch.rand_like(x).clamp(max=number) ** (number / 3), number * 2, -number

    def outcome(fn: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(seed)
        found: list[Any] = []
        for size in range(3, 7):
            x = torch.randn(size, requires_grad=True)
            results = fn(x, size / 7)
            results[0].sum().backward()
            found += [r.tolist() if isinstance(r, Tensor) else r for r in (*results, x.grad, torch.rand(1))]
        return found

    assert outcome(bolide.compile(f, backend="eager", fullgraph=True)) == outcome(f)
    backend = Recording()
    compiled = bolide.compile(f, backend=backend, fullgraph=True)  # which need not know Python floats
    for size in range(3, 6):
        compiled(torch.randn(size), size / 7)
    assert "item" not in backend.graphs[-1].code and "aten" in backend.graphs[-1].code


def hooked(x: Tensor) -> Tensor:
    y = F.dropout(x, 0.4) * 2
    y.register_hook(lambda grad: grad * 3)
    return y * torch.rand(5) + torch.randn_like(x) + torch.randint(3, 10, (5,))


def checkpointed(x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.3) * x

    return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)


def mapped(x: Tensor) -> Tensor:
    noise = torch.empty(5, 4).t().uniform_(-1, 1) + torch.empty(4, 5).normal_(2, 0.5)
    return torch.vmap(lambda row: row * F.dropout(x[0], 0.3), randomness="same")(x) * noise


def branching(x: Tensor) -> Tensor:
    x = torch.nn.functional.alpha_dropout(x, 0.2, training=True)
    return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a.sin(), (x,))


def stepping(x: Tensor) -> Tensor:
    inner = x.detach().requires_grad_()
    F.dropout(inner * inner, 0.2).sum().backward()
    return inner.grad * x * torch.bernoulli(x.detach().sigmoid()) + x.detach().bernoulli(0.3)


@pytest.mark.parametrize(
    ("fn", "dynamic"),
    [(mapped, None), *itertools.product([hooked, checkpointed, branching, stepping], [None, True])],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_eagers_numbers_are_drawn_where_the_graphs_are_functional(
    fn: Callable[[Tensor], Tensor], dtype: torch.dtype, dynamic: bool | None, seed: int
) -> None:
    def outcome(fn: Callable[[Tensor], Tensor]) -> list[list[Any]]:
        torch.manual_seed(seed)
        found: list[list[Any]] = []
        for _ in range(2):
            x = torch.randn(4, 5, dtype=dtype, requires_grad=True)
            y = fn(x)
            y.sum().backward()
            found += [y.tolist(), x.grad.tolist(), torch.rand(2).tolist()]
        return found

    assert outcome(bolide.compile(fn, backend="eager", fullgraph=True, dynamic=dynamic)) == outcome(fn)


def test_derivatives_of_derivatives_know_what_was_drawn(seed: int) -> None:
    def f(x: Tensor) -> Tensor:
        return checkpoint(lambda x: F.dropout(x.sin(), 0.3) * x, x, use_reentrant=False)

    def outcome(fn: Callable[[Tensor], Tensor]) -> list[Any]:
        torch.manual_seed(seed)
        x = torch.randn(6, requires_grad=True)
        (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0].tolist()

    assert outcome(bolide.compile(f, backend="eager", fullgraph=True)) == pytest.approx(outcome(f))


def test_a_callable_gets_a_graph_that_can_be_run_printed_and_differentiated() -> None:
    backend = Recording()

    def f(x: Tensor, w: Tensor) -> dict[str, Any]:
        y = F.linear(x, w)
        with torch.no_grad():
            z = y.relu() * 2
        y.add_(1)
        return {"y": y, "z": z, "shape": y.shape[0], "first": [y[0], x]}

    x, w = torch.randn(3, 4), torch.randn(2, 4, requires_grad=True)
    result = bolide.compile(f, backend=backend, fullgraph=True, options={"level": 3})(x, w)
    expected = f(x, w)
    assert torch.equal(result["y"], expected["y"]) and torch.equal(result["z"], expected["z"])
    assert result["shape"] == 3 and result["first"][1] is x and not result["z"].requires_grad
    (gm,), (examples,), (options,) = backend.graphs, backend.examples, backend.options
    assert options == {"options": {"level": 3}}
    assert [id(e) for e in examples] == [id(x), id(w)]
    assert "linear" in gm.code and "_set_grad_enabled" in gm.code and "add_" in gm.code
    again = gm(x, w)
    again[0].sum().backward()
    assert w.grad is not None and torch.equal(w.grad, x.sum(0).expand(2, 4))
    where = [n.stack_trace for n in gm.graph.nodes if n.op.startswith("call_") and n.stack_trace]
    assert where and all(__file__ in line for line in where)
    assert "code: y = F.linear(x, w)" in gm.print_readable(print_output=False)
    shown = {n.name: n.meta["example_value"] for n in gm.graph.nodes if "example_value" in n.meta}
    assert shown["l_x_"].shape == (3, 4) and shown["linear"].shape == (3, 2) and shown["linear"].stride() == (2, 1)
    assert shown["linear"].dtype is torch.float32 and shown["l_w_"].requires_grad and "TensorMeta" not in repr(shown)
    assert (shown["l_x_"] + 1).shape == (3, 4)
    with pytest.raises(RuntimeError, match="_local_scalar_dense"):  # they hold no data
        shown["l_x_"].sum().item()
    copy.deepcopy(gm).graph.lint()


class Scaled(nn.Module):
    """A module with parts of torch's and of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * scale + self.offset


class Outer(nn.Module):
    """Around another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.inner(x, scale=scale).relu()


def test_graphs_say_where_their_nodes_come_from_as_torchdynamos_do() -> None:
    backend = Recording()
    bolide.compile(Outer(), backend=backend, fullgraph=True)(torch.randn(2, 4), scale=torch.ones(4))
    (gm,) = backend.graphs
    inputs = [node.target for node in gm.graph.find_nodes(op="placeholder")]
    layer = "L_self_modules_inner_modules_layers_modules_{}_parameters_{}_".format
    members = [layer(number, name) for number in (0, 1) for name in ("weight", "bias")]
    assert set(inputs) == {"L_x_", "L_scale_", *members, "L_self_modules_inner_buffers_offset_"}
    nodes = {node.name: node for node in gm.graph.nodes}
    assert list(nodes)[:1] == ["l_x_"] and nodes["add"].target is operator.add and nodes["mul"].target is operator.mul
    stack = list(nodes["linear"].meta["nn_module_stack"].values())
    assert stack == [("L['self']", Outer), ("L['self'].inner", Scaled), ("L['self'].inner.layers.0", nn.Linear)]
    assert list(nodes["relu"].meta["nn_module_stack"].values()) == [("L['self']", Outer)]
    assert nodes["linear"].meta["source_fn_stack"] == [("linear", nn.Linear)]
    assert nodes["add"].meta["source_fn_stack"] == [("add", operator.add)]
    trace = nodes["linear"].meta["stack_trace"]
    assert trace.index("self.inner(x, scale=scale)") < trace.index("x = layer(x)")
    partitions = get_source_partitions(gm.graph, [nn.Linear, nn.LayerNorm])
    assert {cls: len(found) for cls, found in partitions.items()} == {nn.Linear: 1, nn.LayerNorm: 1}
    assert "f32[2, 4]" in gm.print_readable(print_output=False)
    ShapeProp(gm).propagate(*backend.examples[0])
    assert nodes["linear"].meta["tensor_meta"].shape == (2, 4)


def test_inputs_of_functions_are_named_by_their_paths() -> None:
    backend = Recording()
    held = {"a.b": (torch.ones(2),), "a/b": torch.ones(2)}

    def f(held: dict[str, Any], x: Tensor) -> Tensor:
        return x + held["a.b"][0] * held["a/b"] + x.shape[0]

    bolide.compile(f, backend=backend, fullgraph=True, dynamic=True)(held, torch.ones(2))
    (gm,) = backend.graphs
    names = [node.target for node in gm.graph.find_nodes(op="placeholder")]
    assert len(set(names)) == len(names) and {"L_x_", "L_held_a_b_0_", "L_held_a_b_"} < set(names)
    assert torch.equal(gm(*backend.examples[0])[0], f(held, torch.ones(2)))


def test_mode_is_handed_on_and_default_is_not() -> None:
    backend = Recording()
    x = torch.randn(2)
    bolide.compile(lambda x: x + 1, backend=backend, mode="max-autotune")(x)
    bolide.compile(lambda x: x + 1, backend=backend, mode="default")(x)
    assert backend.options == [{"mode": "max-autotune"}, {}]


def test_operations_that_nothing_needs_are_dropped_unless_told_otherwise() -> None:
    def f(x: Tensor) -> Tensor:
        x.sin()
        torch.rand(3)  # a draw is an effect
        return x + 1

    for eliminate in (True, False):
        backend = Recording()
        with bolide.dynamo.config.patch(dead_code_elimination=eliminate):
            bolide.compile(f, backend=backend, fullgraph=True)(torch.randn(3))
        assert ("sin" in backend.graphs[0].code) is not eliminate
        assert "rand" in backend.graphs[0].code


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def test_where_a_graph_of_functions_would_be_wrong_functional_graphs_are_given() -> None:
    def held(x: Tensor) -> Tensor:
        y, scale = x * 2, x.detach() * 0 + 3
        y.register_hook(lambda grad: grad * scale)
        return y + 1

    def inside(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + 1 + grad - 6

    def removed(x: Tensor) -> Tensor:
        y = x * 6
        y.register_hook(lambda grad: grad * 3).remove()
        return y + 1 - x.detach() * 4

    for f in (held, inside, removed):
        backend = Recording()
        x = torch.randn(3, requires_grad=True)
        y = bolide.compile(f, backend=backend, fullgraph=True)(x)
        y.sum().backward()
        torch.testing.assert_close(y, x * 2 + 1)
        assert torch.equal(x.grad, torch.full((3,), 6.0))
        assert len(backend.graphs) == 2  # forward and backward
        assert all("aten" in gm.code for gm in backend.graphs)


def outside_hook(grad: Tensor) -> Tensor:
    SEEN.append(grad.tolist())
    return grad * 3


SEEN: list[Any] = []


def test_hooks_on_values_are_put_on_by_the_graph() -> None:
    def own(x: Tensor, scale: int) -> Tensor:
        y = F.dropout(x, 0.5) * 2
        y.register_hook(lambda grad: grad * scale)
        with torch.no_grad():
            z = y * 2
        return y * z + 1

    def outside(x: Tensor, scale: int) -> Tensor:
        y = x.sin()
        y.register_hook(outside_hook)
        return y * scale

    for f in (own, outside):
        backend = Recording()
        outcomes: list[Any] = []
        for call in (bolide.compile(f, backend=backend, fullgraph=True), f):
            SEEN.clear()
            torch.manual_seed(3)
            told = []
            for _ in range(2):
                x = torch.randn(3, requires_grad=True)
                y = call(x, 3)
                (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
                (second,) = torch.autograd.grad(first.sum(), x)
                told += [y.tolist(), first.tolist(), second.tolist()]
            outcomes.append((told, list(SEEN)))
        assert outcomes[0] == outcomes[1]
        (gm,) = backend.graphs
        assert "register_hook" in gm.code and "aten" not in gm.code


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_taken_inside_are_one_call(dynamic: bool | None) -> None:
    backend = Recording()

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        energy = Tripled.apply(x @ w).sin().sum()
        force, unused = torch.autograd.grad(energy, (w, x), create_graph=True, allow_unused=True)
        return force.square().sum() + energy, unused.detach() if unused is not None else x

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled = bolide.compile(f, backend=backend, fullgraph=True, dynamic=dynamic)
    for found, wanted in zip(compiled(x, w), f(x, w), strict=True):
        assert torch.equal(found, wanted)
    (gm,) = backend.graphs
    assert "aten" not in gm.code and "differentiate" in gm.code and "sin" in gm.code
    (found,) = torch.autograd.grad(compiled(x, w)[0], w)
    assert torch.equal(found, torch.autograd.grad(f(x, w)[0], w)[0])


def test_functions_with_a_backward_of_their_own_are_one_call() -> None:
    backend = Recording()
    x = torch.randn(3, requires_grad=True)
    y = bolide.compile(lambda x: Tripled.apply(x) + 1, backend=backend, fullgraph=True)(x)
    y.sum().backward()
    assert torch.equal(y, x * 2 + 1) and torch.equal(x.grad, torch.full((3,), 3.0))
    (gm,) = backend.graphs
    assert "Tripled_apply" in gm.code and "mul" not in gm.code
    seen: list[int] = []

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(1)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 3

    compiled = bolide.compile(lambda x: Counting.apply(x), backend="eager", fullgraph=True)
    compiled(x)
    compiled(x)
    assert seen == [1, 1]  # its effect happens once a call, not twice


def test_modes_are_put_back_when_a_graph_raises() -> None:
    def failing(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            torch._C._set_grad_enabled(False)
            raise ZeroDivisionError

        return run

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return y + x

    with pytest.raises(ZeroDivisionError):
        bolide.compile(f, backend=failing)(torch.randn(3))
    assert torch.is_grad_enabled()


def test_a_backend_that_returns_nothing_callable_is_named() -> None:
    def wrong(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        return 3

    with pytest.raises(bolide.CompileError, match=r"the backend .*wrong failed.*it returned int"):
        bolide.compile(lambda x: x + 1, backend=wrong)(torch.randn(3))


def test_a_backend_that_raises_is_named() -> None:
    def failing(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        raise ZeroDivisionError("no kernels today")

    x = torch.randn(3)
    told = pytest.warns(bolide.BolideWarning, match=r"the backend .*failing failed to compile.*ZeroDivisionError")
    with bolide.dynamo.config.patch(suppress_errors=True), told:
        assert torch.equal(bolide.compile(lambda x: x + 1, backend=failing)(x), x + 1)
    with bolide.dynamo.config.patch(suppress_errors=False), pytest.raises(bolide.CompileError, match="no kernels"):
        bolide.compile(lambda x: x + 1, backend=functools.partial(failing))(x)


@pytest.mark.parametrize("dynamic", [None, True])
def test_backends_of_torch_take_the_graphs(dynamic: bool | None, seed: int) -> None:
    from torch._dynamo.backends.registry import lookup_backend as torch_backend

    plain, compiled = model(), model()
    compiled.load_state_dict(plain.state_dict())
    fast = bolide.compile(compiled, backend=torch_backend("aot_eager"), fullgraph=True, dynamic=dynamic)
    x = torch.randn(5, 4)
    for a, b in zip(step(plain, x, seed), step(fast, x, seed), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [None, True])
def test_backends_that_take_sizes_for_constants_are_asked_for_each(dynamic: bool | None) -> None:
    from torch._dynamo.backends.registry import lookup_backend as torch_backend

    asked: list[list[Any]] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        asked.append(example_inputs)
        return torch_backend("aot_eager")(gm, example_inputs)

    def f(x: Tensor, w: Tensor) -> Tensor:
        pairs = x.reshape(x.shape[0] // 2, 2, -1).sum(1)
        return pairs @ w + x.shape[0] * 2 + torch.arange(x.shape[0] // 2)[:, None]

    compiled = bolide.compile(f, backend=backend, dynamic=dynamic, fullgraph=True)
    with bolide.dynamo.config.patch(cache_size_limit=3):
        for size in (4, 6, 8, 10, 12, 6, 8):
            x, w = torch.randn(size, 3), torch.randn(3, 3, requires_grad=True)
            found, wanted = compiled(x, w), f(x, w)
            torch.testing.assert_close(found, wanted)
            gradients = (torch.autograd.grad(y.square().sum(), w)[0] for y in (found, wanted))
            torch.testing.assert_close(*gradients)
    assert len(asked) == (4 if dynamic is None else 3)  # then the graph runs as it is


@pytest.mark.parametrize("backend", list_backends(None))
def test_built_in_backends(backend: str) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(torch.softmax(x @ w, -1), (6,)).sum(0)

    x, w = torch.randn(3, 4), torch.randn(4, 6, requires_grad=True)
    compiled = bolide.compile(f, backend=backend)
    torch.testing.assert_close(compiled(x, w), f(x, w))
    (expected,) = torch.autograd.grad(f(x, w)[0], w)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, w)[0], w)[0], expected)


def test_cudagraphs_says_what_is_missing() -> None:
    told = bolide.explain(lambda x: x + 1, backend="cudagraphs", fullgraph=True)(torch.randn(2))
    assert [(note.kind, note.reason) for note in told.notes] == [
        ("not recorded", "it is on cpu, which records no graphs")
    ]


# ---- the registry


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_tags", dict(registry._tags))
    yield
    registry._offered.cache_clear()


def test_the_default_backend(fresh_registry: None) -> None:
    backend = Recording()
    assert bolide.get_default_backend() == "inductor"
    with pytest.raises(ValueError, match=r"unknown backend 'inductr'.*inductor"):
        bolide.set_default_backend("inductr")
    try:
        bolide.set_default_backend(backend)
        assert bolide.get_default_backend() is backend
        bolide.compile(lambda x: x + 1)(torch.ones(2))
        bolide.dynamo.optimize()(lambda x: x + 1)(torch.ones(2))
        bolide.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert len(backend.graphs) == 2
    finally:
        bolide.set_default_backend(None)
    bolide.compile(lambda x: x + 1)(torch.ones(2))
    assert bolide.get_default_backend() == "inductor" and len(backend.graphs) == 2


def test_registration_by_decorator_and_tags(fresh_registry: None) -> None:
    @register_backend
    def plain(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        return gm

    @register_backend(name="secret", tags=["experimental"])
    def other(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        return gm

    assert "plain" in list_backends() and "secret" not in list_backends()
    assert "secret" in list_backends(exclude_tags=("debug",)) and "eager" not in list_backends(("debug",))
    assert list_backends(None) == sorted(list_backends(None)) and lookup_backend("secret") is other
    x = torch.randn(2)
    assert torch.equal(bolide.compile(lambda x: x + 1, backend="plain")(x), x + 1)
    with pytest.raises(ValueError, match="registered already"):
        register_backend(other, name="plain")
    with pytest.raises(TypeError, match="a backend is a function"):
        register_backend(3, name="number")  # type: ignore[call-overload]


def offered(name: str, value: str, group: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, group)


def test_entry_points_of_other_packages(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "bolide_backends": [offered("theirs", "bolide.compiling:eager", "bolide_backends")],
        "torch_dynamo_backends": [
            offered("theirs", "no.such:module", "torch_dynamo_backends"),
            offered("broken", "no.such:module", "torch_dynamo_backends"),
            offered("bolide", "bolide.compiling:compile_fx", "torch_dynamo_backends"),
        ],
    }
    monkeypatch.setattr(registry, "entry_points", lambda group: points[group])
    registry._offered.cache_clear()
    assert {"theirs", "broken"} <= set(list_backends()) and "bolide" not in list_backends()
    x = torch.randn(2)
    assert torch.equal(bolide.compile(lambda x: x + 1, backend="theirs")(x), x + 1)
    with pytest.raises(bolide.BolideError, match=r"backend 'broken'.*cannot be loaded: ModuleNotFoundError"):
        bolide.compile(lambda x: x + 1, backend="broken")


# ---- options that concern backends


def test_verify_correctness() -> None:
    def wrong(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *args: tuple(out + 1 for out in gm(*args))

    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return F.dropout(x, 0.5) * 3

    with bolide.dynamo.config.patch(verify_correctness=True):
        with pytest.raises(bolide.CompileError, match="result 0 differs by up to 1"):
            bolide.compile(f, backend=wrong)(torch.randn(4))
        for backend in ("inductor", "eager", "aot_eager"):
            x = torch.randn(4)
            expected = x * 2
            bolide.compile(f, backend=backend)(x)
            assert torch.equal(x, expected)  # the comparison runs on copies


def test_minimum_call_count() -> None:
    x = torch.randn(3)
    with bolide.dynamo.config.patch(minimum_call_count=3):
        assert not [k for g in bolide.explain(lambda x: x.sin() + 1)(x).graphs for k in g.kernels]
        assert [k for g in bolide.explain(lambda x: x.sin().cos() + 1)(x).graphs for k in g.kernels]
        backend = Recording()
        assert torch.equal(bolide.compile(lambda x: x.sin() + 1, backend=backend)(x), x.sin() + 1)
        assert not backend.graphs
        bolide.compile(lambda x: x.sin().cos() + 1, backend=backend)(x)
        assert len(backend.graphs) == 1


# ---- bolide as a backend of torch.compile


def test_compile_fx_compiles_a_graph_module() -> None:
    gm = fx.symbolic_trace(model().eval())
    x = torch.randn(3, 4)
    fast = compile_fx(gm, [x])
    torch.testing.assert_close(fast(x), gm(x))
    assert type(fast(x).grad_fn).__name__ == "CompiledFunctionBackward"


def test_torch_compile_with_bolide() -> None:
    module = model().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = torch.compile(module, backend=compile_fx)
        for size in (3, 5, 7):
            x = torch.randn(size, 4)
            y = fast(x)
            torch.testing.assert_close(y, module(x))
        y.sum().backward()
    assert module[0].weight.grad is not None


def written(x: Tensor, w: Tensor, *, scale: int = 2) -> dict[str, Any]:
    x.add_(1)
    return {"y": Tripled.apply(x @ w) * scale, "rows": x.shape[0], "turned": x.t()}


def scaled(x: Tensor, w: Tensor) -> dict[str, Any]:
    return {"y": x @ w * w.detach().sum().item()}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [written, scaled])
def test_torch_compile_with_bolide_on_functions(fn: Callable[..., Any], dynamic: bool | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = torch.compile(fn, backend=compile_fx, dynamic=dynamic)
        for size in (3, 5):
            x, w = (torch.randn(rows, 4, dtype=torch.float64) for rows in (size, 4))
            w.requires_grad_()
            other, copied = x.clone(), w.detach().clone().requires_grad_()
            found, wanted = fast(x, w), fn(other, copied)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(x, other)
            found["y"].square().sum().backward()
            wanted["y"].square().sum().backward()
            torch.testing.assert_close(w.grad, copied.grad)


def test_the_entry_point_names_the_function() -> None:
    points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="bolide")
    if not points:
        pytest.skip("the installed metadata is older than the entry point")
    (point,) = points
    assert point.load() is compile_fx


def test_what_only_reads_of_tensors_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    record = calls.CallRecorder._record

    def noting(self: calls.CallRecorder, func: Any, *args: Any) -> Any:
        recorded.append(func.__name__)
        return record(self, func, *args)

    monkeypatch.setattr(calls.CallRecorder, "_record", noting)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    bolide.compile(model, backend="eager")(torch.randn(3, 4))
    assert recorded == ["linear", "relu"]
