"""Compiled optimizer steps and whole training steps: eager's parameters and optimizer state, and few versions."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim

import bolide
from bolide.support.errors import BolideWarning
from tests.plan_tools import plans

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD fused": (optim.SGD, {"momentum": 0.9, "fused": True}),
    "Adam": (optim.Adam, {"amsgrad": True}),
    "Adam maximize": (optim.Adam, {"maximize": True, "weight_decay": 0.1}),
    "Adam tensor lr": (optim.Adam, {"lr": torch.tensor(0.01)}),
    "Adam fused": (optim.Adam, {"fused": True, "amsgrad": True, "maximize": True}),
    "AdamW fused": (optim.AdamW, {"fused": True}),
    "Adagrad fused": (optim.Adagrad, {"fused": True}),
    "Adafactor": (optim.Adafactor, {"weight_decay": 0.1}),
    "RAdam decoupled": (optim.RAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "ASGD soon": (optim.ASGD, {"t0": 2}),
    "AdamW": (optim.AdamW, {}),
    "Adagrad": (optim.Adagrad, {"lr_decay": 0.1}),
    "RMSprop": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "Adadelta": (optim.Adadelta, {}),
    "Adamax": (optim.Adamax, {}),
    "NAdam": (optim.NAdam, {}),
    "RAdam": (optim.RAdam, {}),
    "ASGD": (optim.ASGD, {}),
    "Rprop": (optim.Rprop, {}),
    **{
        f"{name} foreach": (getattr(optim, name), {"foreach": True})
        for name in [
            "SGD",
            "Adam",
            "AdamW",
            "Adagrad",
            "RMSprop",
            "Adadelta",
            "Adamax",
            "NAdam",
            "RAdam",
            "ASGD",
            "Rprop",
            "Adafactor",
        ]
    },
}
COUNTED = (optim.RAdam, optim.ASGD)  # the step count decides what they do


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def versions(step: Any) -> int:
    return len(step.__func__._bolide.entries)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step(name: str, backend: str) -> None:
    kind, options = OPTIMIZERS[name]
    model = network()
    twin = copy.deepcopy(model)
    optimizers = [kind(list(m.parameters()), **{"lr": 0.01, **copy.deepcopy(options)}) for m in (model, twin)]
    step = bolide.compile(optimizers[1].step, fullgraph=True, backend=backend)
    for _ in range(8):
        x = torch.randn(6, 4)
        for own, optimizer, take in zip((model, twin), optimizers, (optimizers[0].step, step)):
            optimizer.zero_grad()
            own(x).square().mean().backward()
            take()
    exact = {"rtol": 0, "atol": 0} if backend == "eager" else {}
    torch.testing.assert_close(list(twin.parameters()), list(model.parameters()), **exact)
    torch.testing.assert_close(optimizers[1].state_dict(), optimizers[0].state_dict(), **exact)
    assert versions(step) <= (4 if kind in COUNTED else 2)  # the first step makes the state


def test_parameter_groups_and_missing_gradients() -> None:
    model = network()
    twin = copy.deepcopy(model)

    def make(m: nn.Module) -> optim.Optimizer:
        first, *rest = m.parameters()
        return optim.AdamW([{"params": [first], "lr": 0.2}, {"params": rest, "weight_decay": 0.0}], lr=0.1)

    optimizers = [make(model), make(twin)]
    step = bolide.compile(optimizers[1].step, fullgraph=True, backend="aot_eager")
    for round_ in range(4):
        x = torch.randn(6, 4)
        for own, optimizer, take in zip((model, twin), optimizers, (optimizers[0].step, step)):
            optimizer.zero_grad()
            own(x).square().sum().backward()
            if round_ == 2:
                own[0].bias.grad = None  # type: ignore[union-attr, index]
            take()
    torch.testing.assert_close(list(twin.parameters()), list(model.parameters()))


def train(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_whole_training_step(backend: str) -> None:
    model = network()
    twin = copy.deepcopy(model)
    optimizers = [optim.Adam(m.parameters(), lr=0.01) for m in (model, twin)]
    compiled = bolide.compile(train, fullgraph=True, backend=backend)
    for _ in range(4):
        x, y = torch.randn(6, 4), torch.randn(6, 3)
        expected = train(model, optimizers[0], x, y)
        got = compiled(twin, optimizers[1], x, y)
        torch.testing.assert_close(got.detach(), expected.detach())
        assert got.requires_grad
        for loss in (expected, got):
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()
    torch.testing.assert_close(list(twin.parameters()), list(model.parameters()), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        [p.grad for p in twin.parameters()], [p.grad for p in model.parameters()], atol=1e-5, rtol=1e-5
    )
    assert len(compiled._bolide.entries) <= 3


def test_gradients_accumulate_in_the_same_tensor() -> None:
    model = network()
    twin = copy.deepcopy(model)

    def step(m: nn.Module, x: torch.Tensor) -> None:
        m(x).square().sum().backward()

    compiled = bolide.compile(step, fullgraph=True, backend="aot_eager")
    x = torch.randn(6, 4)
    kept = None
    for _ in range(3):
        step(model, x)
        compiled(twin, x)
        kept = twin[0].weight.grad if kept is None else kept  # type: ignore[index, union-attr]
        assert twin[0].weight.grad is kept  # type: ignore[index, union-attr]
    torch.testing.assert_close([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])


def test_backward_into_a_graph_outside_and_past_hooks_is_not_captured() -> None:
    weight = torch.randn(3, requires_grad=True)
    compiled = bolide.compile(lambda h: (h * h).sum().backward(), backend="aot_eager", fullgraph=True)
    with pytest.raises(bolide.support.errors.Unsupported, match="goes on outside"):
        compiled(weight.exp())
    seen: list[torch.Tensor] = []
    weight.register_hook(seen.append)
    with pytest.raises(bolide.support.errors.Unsupported, match="hooks"):
        compiled(weight)
    assert weight.grad is None and not seen


def test_backward_falls_back_whole() -> None:
    weight = torch.randn(3, requires_grad=True)

    def step(h: torch.Tensor) -> torch.Tensor:
        loss = (h * h).sum()
        loss.backward()
        return loss * 2

    with warnings.catch_warnings():  # a break, or eager: never half of it
        warnings.simplefilter("ignore", BolideWarning)
        bolide.compile(step, backend="aot_eager")(weight * 2)
    torch.testing.assert_close(weight.grad, 8 * weight.detach())


def test_gradients_of_leaves_made_inside() -> None:
    def fn(x: torch.Tensor) -> Any:
        inside = (x * 2).detach().requires_grad_()
        (inside.sin() * x).sum().backward()
        return inside.grad

    x = torch.randn(4, requires_grad=True)
    expected = fn(x)
    outer, x.grad = x.grad, None
    torch.testing.assert_close(bolide.compile(fn, fullgraph=True, backend="aot_eager")(x), expected)
    torch.testing.assert_close(x.grad, outer)


@pytest.mark.parametrize("create", [False, True])
def test_autograd_grad(create: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        loss = (x @ w).tanh().sum()
        (gradient,) = torch.autograd.grad(loss, w, create_graph=create)
        return (x @ (w - 0.1 * gradient)).square().sum()

    results = []
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    for function in (fn, bolide.compile(fn, fullgraph=True, backend="aot_eager")):
        own = [t.clone().requires_grad_() for t in (x, w)]
        out = function(*own)
        results.append([out.detach(), *torch.autograd.grad(out, own)])
    torch.testing.assert_close(results[1], results[0])


def test_unused_gradients_are_errors_as_in_eager() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        try:
            return torch.autograd.grad(x.sum(), [x, w])
        except RuntimeError:
            return torch.autograd.grad(x.sum(), [x, w], allow_unused=True)

    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    found = bolide.compile(fn, fullgraph=True, backend="aot_eager")(x, w)
    assert torch.equal(found[0], torch.ones(3)) and found[1] is None


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adam foreach", "RMSprop", "Adagrad"])
def test_schedules_do_not_recompile_and_round_as_eager(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    model = network()
    twin = copy.deepcopy(model)
    optimizers = [kind(list(m.parameters()), **{"lr": 0.01, **options}) for m in (model, twin)]
    schedules = [optim.lr_scheduler.CosineAnnealingLR(optimizer, 20) for optimizer in optimizers]
    step = bolide.compile(optimizers[1].step, fullgraph=True, backend="eager")
    for _ in range(12):
        x = torch.randn(6, 4)
        for own, optimizer, schedule, take in zip((model, twin), optimizers, schedules, (optimizers[0].step, step)):
            optimizer.zero_grad()
            own(x).square().mean().backward()
            take()
            schedule.step()
    assert all(map(torch.equal, twin.parameters(), model.parameters()))
    assert len(step._bolide.entries) <= 3


def scaled(x: torch.Tensor, y: torch.Tensor, k: float) -> list[torch.Tensor]:
    operations = [torch.add, torch.sub, torch.rsub]
    return [op(x, y, alpha=k) for op in operations] + [op(x, y, y, value=k) for op in (torch.addcmul, torch.addcdiv)]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operations_scaled_by_a_float_that_changes(dtype: torch.dtype, backend: str) -> None:
    compiled = bolide.compile(scaled, fullgraph=True, backend=backend)
    for k in (0.3, -1.7, 0.1, 2.0):
        x, y = torch.randn(70, dtype=dtype), torch.rand(70, dtype=dtype) + 0.1
        tolerance = 0.0 if dtype is not torch.bfloat16 else 1e-2
        torch.testing.assert_close(compiled(x, y, k), scaled(x, y, k), rtol=tolerance, atol=tolerance)
    assert len(compiled._bolide.entries) <= 2


def test_a_float_that_changes_does_not_scale_integers() -> None:
    compiled = bolide.compile(lambda x, k: x.add(x, alpha=k), backend="eager")
    for k in (0.3, 0.7, 1.5):
        with pytest.raises(RuntimeError, match="For integral input tensors"):
            compiled(torch.arange(3), k)


def test_after_torch_compile_has_marked_torchs_functions() -> None:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    w = torch.randn(3, requires_grad=True)
    w.grad = torch.randn(3)
    optimizer = torch.optim.Adam([w], lr=0.1)
    step = bolide.compile(optimizer.step, fullgraph=True)
    before = w.detach().clone()
    step()
    torch.testing.assert_close(w.detach(), before - 0.1 * w.grad.sign(), rtol=1e-4, atol=1e-4)


def test_counts_that_only_conditions_speak_of_are_no_inputs() -> None:
    """Adam divides by a function of the count of steps. Python's question whether that is 0 is one of the guards, the
    quotient is computed from the count itself."""
    networks = network(), network()
    networks[1].load_state_dict(networks[0].state_dict())
    optimizers = [optim.AdamW(each.parameters(), foreach=True) for each in networks]
    for each in networks:
        for number, parameter in enumerate(each.parameters()):
            parameter.grad = torch.full_like(parameter, number + 1.0)
    steps: list[Any] = [optimizer.step for optimizer in optimizers]
    steps[0]()
    steps[1]()
    compiled: Any = bolide.compile(lambda: steps[0]() and None)
    with plans() as graphs:
        for _ in range(4):
            compiled()
            steps[1]()
    torch.testing.assert_close(networks[0].state_dict(), networks[1].state_dict())
    (graph,), each_has = graphs, ("parameter", "gradient", "mean", "square", "count")
    assert len(graph.plan.inputs) == len(each_has) * len(list(networks[0].parameters()))
    (apart,) = [guard for guard in compiled._bolide.entries[0].guards if guard.kind == "not_aliased"]
    assert len(apart.expected) == len(graph.plan.inputs)
    for optimizer, step in zip(optimizers, (compiled, steps[1])):
        optimizer.state[optimizer.param_groups[0]["params"][1]]["step"].fill_(-1)
        with pytest.raises(ZeroDivisionError):
            step()
