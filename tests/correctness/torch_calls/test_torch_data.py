"""`Tensor.data`: read, written through and assigned, as training code does with parameters."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bolide
from tests.model_tools import installed

BACKENDS = ["eager", "aot_eager", "inductor"]


def moving_average(target: Any, model: Any, x: torch.Tensor) -> Any:
    for kept, new in zip(target.parameters(), model.parameters()):
        kept.data = 0.9 * kept.data + 0.1 * new.data
    return target(x)


def moving_average_in_place(target: Any, model: Any, x: torch.Tensor) -> Any:
    for kept, new in zip(target.parameters(), model.parameters()):
        kept.data.mul_(0.9).add_(new.data, alpha=0.1)
        new.data.clamp_(-0.2, 0.2)
    return target(x)


def descent(target: Any, model: Any, x: torch.Tensor) -> Any:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data = parameter.data - 0.1 * parameter.grad
            parameter.grad = None
    return model(x)


def descent_in_place(target: Any, model: Any, x: torch.Tensor) -> Any:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data -= 0.1 * parameter.grad.data
            parameter.grad.data.zero_()
    return model(x)


def normalised(target: Any, model: Any, x: torch.Tensor) -> Any:
    before = model(x)
    model.weight.data = F.normalize(model.weight.data, dim=1)
    return before.detach() + model(x)


def shared(target: Any, model: Any, x: torch.Tensor) -> Any:
    target.weight.data = model.weight.data
    return target(x), model.weight.detach()


def exchanged(target: Any, model: Any, x: torch.Tensor) -> Any:
    target.weight.data, model.weight.data = model.weight.data, target.weight.data
    return target(x) + model(x)


def assigned_twice(target: Any, model: Any, x: torch.Tensor) -> Any:
    first = model.weight.data[0]
    model.weight.data = x @ x.t() @ model.weight.data
    model.weight.data.add_(first)
    model.weight.data = model.weight.data.clone()
    return model(x), first


def of_a_result(target: Any, model: Any, x: torch.Tensor) -> Any:
    made = x * 2
    view = made[0]
    made.data = x + 1
    made[1].mul_(3)
    return made, view, made.data


PROGRAMS = [
    moving_average,
    moving_average_in_place,
    descent,
    descent_in_place,
    normalised,
    shared,
    exchanged,
    assigned_twice,
    of_a_result,
]


def _state(value: Any) -> list[Any]:
    """What there is to see of modules and tensors."""
    if isinstance(value, nn.Module):
        members = list(value.parameters())
        return [_state(members), [member._version for member in members]]
    if isinstance(value, (tuple, list)):
        return [_state(item) for item in value]
    gradient = value.grad if value.is_leaf else None
    facts = value.requires_grad, value.is_leaf, value.stride(), gradient is None
    return [type(value), facts, value.detach().clone(), [] if gradient is None else gradient.clone()]


def _agree(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, list):
        for one, other in zip(found, expected, strict=True):
            _agree(one, other)
    elif isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_data_of_parameters(fn: Any, backend: str) -> None:
    """Results, parameters and gradients are eager's, and so is who shares memory; autograd counts no write."""
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    theirs = copy.deepcopy([nn.Linear(3, 3), nn.Linear(3, 3)])
    ours = copy.deepcopy(theirs)
    for _ in range(2):
        x = torch.randn(3, 3)
        outs = []
        for function, models in ((compiled, ours), (fn, theirs)):
            out = function(*models, x.clone())
            first = out[0] if isinstance(out, tuple) else out
            if first.requires_grad:
                first.pow(2).sum().backward()
            outs.append(out)
        _agree(_state([outs[0], *ours]), _state([outs[1], *theirs]))
        for out, models in zip(outs, (ours, theirs)):
            with torch.no_grad():
                for tensor in (*(out if isinstance(out, tuple) else (out,)), models[1].weight):
                    tensor.data.mul_(1.5)
        _agree(_state([outs[0], *ours]), _state([outs[1], *theirs]))
        if fn is shared:
            ours, theirs = copy.deepcopy([*ours]), copy.deepcopy([*theirs])


def test_sizes_that_change() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.data = y * 2
        return x + y

    compiled: Any = bolide.compile(fn, backend="eager", fullgraph=True)
    for size in (3, 4, 5):
        x, y = torch.randn(size, requires_grad=True), torch.randn(size)
        out = compiled(x, y)
        assert torch.equal(out, y * 2 + y) and torch.equal(x.data, y * 2)
        out.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.ones(size))
    assert len(compiled._bolide.entries) == 2


def another_type(x: torch.Tensor) -> Any:
    x.data = x.data.double()
    return x * 2


def another_shape(x: torch.Tensor) -> Any:
    x.data = x.data[:1]
    return x * 2


def with_history(x: torch.Tensor) -> Any:
    y = (x * 2).requires_grad_()
    y = y * y
    y.data = torch.ones(3)
    return y * 2


def written_with_history(x: torch.Tensor) -> Any:
    weight = torch.ones(3, requires_grad=True)
    x.data = torch.ones(3)
    x.mul_(weight)
    return x.detach()


def set_storage(x: torch.Tensor) -> Any:
    y = torch.empty(0)
    y.set_(x * 2)
    return y + 1


@pytest.mark.parametrize(
    "fn, why",
    [
        (another_type, "another shape, type or layout"),
        (another_shape, "another shape, type or layout"),
        (with_history, "of a tensor with a history is assigned"),
        (written_with_history, "an input whose data was assigned is written to"),
        (set_storage, "set_ is used"),
    ],
)
@pytest.mark.filterwarnings("ignore::bolide.BolideWarning")
def test_what_runs_for_real(fn: Any, why: str) -> None:
    with pytest.raises(bolide.Unsupported, match=why):
        bolide.compile(fn, fullgraph=True)(torch.randn(3))
    compiled = bolide.compile(fn, backend="eager")
    for _ in range(2):
        x = torch.randn(3)
        twin = x.clone()
        _agree(_state([compiled(x), x]), _state([fn(twin), twin]))


class Sharp(torch.optim.Optimizer):
    """Climbs first, keeps what parameters were, and descends from there: sharpness-aware minimisation."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in parameters if p.grad is not None]))
        for p in parameters:
            self.state[p]["old"] = p.data.clone()
            assert p.grad is not None
            p.add_(p.grad * 0.05 / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


def test_what_parameters_were_is_kept_and_put_back() -> None:
    theirs: Any = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    ours = copy.deepcopy(theirs)

    def stepping(model: Any, optimizer: Sharp) -> Any:
        def step(x: torch.Tensor) -> Any:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.climb()
            model(x).square().mean().backward()
            optimizer.descend()
            return loss.detach()

        return step

    eager = stepping(theirs, Sharp(theirs.parameters()))
    optimizer = Sharp(ours.parameters())
    compiled = bolide.compile(stepping(ours, optimizer), fullgraph=True)
    versions = []
    for rows in (4, 4, 3, 4, 5):
        x = torch.randn(rows, 4)
        got, new = installed(lambda x=x: compiled(x))
        versions.append(new)
        torch.testing.assert_close((got, list(ours.parameters())), (eager(x), list(theirs.parameters())))
        for p in ours.parameters():
            assert p.data_ptr() == optimizer.state[p]["old"].data_ptr()
    assert versions == [1, 1, 1, 0, 0]  # the first has no state yet


def _random_statements(count: int) -> list[tuple[str, int, int]]:
    kinds = ("read", "assign", "assign", "in place", "of new")
    return [(random.choice(kinds), *random.sample(range(8), 2)) for _ in range(count)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kept_grad", [False, True])
def test_data_assigned_in_any_order(backend: str, kept_grad: bool) -> None:
    """Tensors become inputs in front of others whose data is assigned, and behind: each assignment reaches its own."""
    statements = _random_statements(random.randrange(6, 20))
    print(statements)

    def make() -> tuple[Any, list[nn.Parameter]]:
        torch.manual_seed(3)
        first, second = (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(2))
        second.requires_grad_(kept_grad)
        places = [(net, at, name) for net in (second, first) for name in ("weight", "bias") for at in range(3)][:8]

        def program(x: torch.Tensor) -> Any:
            def at(place: int) -> Any:
                net, layer, name = places[place]
                return getattr(net[layer], name)

            seen = [first(x)] if statements[0][0] == "read" else []
            with torch.no_grad():
                for kind, i, j in statements:
                    if kind == "read":
                        seen.append(at(i).sum())
                    elif kind == "assign" and at(i).shape == at(j).shape:
                        at(i).data = at(i).data * 0.9 + at(j).data * 0.1
                    elif kind == "in place":
                        at(i).data.mul_(0.5)
                    else:
                        at(i).data = torch.full_like(at(i), 0.25) + x.mean()
            return seen, second(x)

        return program, [*first.parameters(), *second.parameters()]

    (eager, theirs), (program, ours) = make(), make()
    compiled = bolide.compile(program, backend=backend)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(ours, theirs)
        for mine, other in zip(ours, theirs):
            step = torch.randn_like(mine)
            mine.data.add_(step)
            other.data.add_(step)
