"""What is written to inputs, results and values in between, after the forward or by code of the program's own in the
backward, and what that is told."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide

BACKENDS = pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
Put = Callable[[Any, Tensor, Tensor, Tensor], None]
PUTS: dict[str, Put] = {
    "an input": lambda ctx, x, y, kept: setattr(ctx, "late", kept),
    "a view of an input": lambda ctx, x, y, kept: setattr(ctx, "late", kept.view(-1)),
    "a result": lambda ctx, x, y, kept: setattr(ctx, "late", y),
    "a value in between": lambda ctx, x, y, kept: setattr(ctx, "late", x.cos()),
    "saved": lambda ctx, x, y, kept: ctx.save_for_backward(kept),
}


def _function(put: Put, reads: bool) -> Any:
    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, kept: Tensor) -> Any:
            y = x * 2
            put(ctx, x, y, kept)
            ctx.mark_non_differentiable(y)
            return x.sin(), y

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Any) -> Any:
            late = ctx.saved_tensors[0] if ctx.saved_tensors else ctx.late
            if not reads or g.sum() > -1000:
                late.add_(g.view(late.shape))
            return g * 2 + late.view(g.shape).detach(), None

    return Writing


def _runs(fn: Callable[..., Any], times: int) -> list[Tensor]:
    found = []
    for size in (3, 4, 5):
        torch.manual_seed(size)
        x, kept = torch.rand(size, 2, requires_grad=True), torch.zeros(size, 2)
        results = fn(x, kept)
        loss = (results[0] * torch.rand(size, 2)).sum()
        for _ in range(times):
            found += [*torch.autograd.grad(loss, x, retain_graph=True), kept.clone(), results[1].clone()]
    return found


@BACKENDS
@pytest.mark.parametrize("reads", [False, True], ids=["recorded", "called"])
@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_what_the_backward_of_a_function_writes(put: Put, reads: bool, backend: str) -> None:
    function = _function(put, reads)

    def fn(x: Tensor, kept: Tensor) -> Any:
        out, y = function.apply(x * 1.5, kept)
        return out.cos(), y

    times = 1 if put is PUTS["saved"] else 2
    for mine, theirs in zip(_runs(bolide.compile(fn, backend=backend), times), _runs(fn, times), strict=True):
        torch.testing.assert_close(mine, theirs)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def _of_module(model: Counting) -> Callable[..., Any]:
    model.register_full_backward_hook(lambda module, inside, outside: _add(model.seen, outside[0]))
    return lambda x: model(x).sin()


def _of_tensor(model: Counting) -> Callable[..., Any]:
    def fn(x: Tensor) -> Tensor:
        y = model(x)
        y.register_hook(lambda g: _add(model.seen, g))
        return y.sin()

    return fn


def _add(buffer: Any, gradient: Tensor) -> None:
    buffer.add_(gradient.sum(0))


@BACKENDS
@pytest.mark.parametrize("make", [_of_module, _of_tensor])
def test_buffers_that_hooks_write_to(make: Callable[..., Any], backend: str) -> None:
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        model = Counting()
        fn = make(model)
        fn = bolide.compile(fn, backend=backend) if compiled else fn
        for size in (2, 3, 4):
            fn(torch.rand(size, 3, requires_grad=True)).sum().backward()
        found.append([model.seen, *[parameter.grad for parameter in model.parameters()]])
    torch.testing.assert_close(*found)


def _keeps(x: Tensor, log: list[Any]) -> Any:
    y = x * 2
    z = y.sin() + x
    y.retain_grad()
    return z, y


def _logs(x: Tensor, log: list[Any]) -> Any:
    y = x * 2
    z = y.sin() + x
    y.register_hook(lambda g: log.append(g.clone()))
    return z, y


def _scales(x: Tensor, log: list[Any]) -> Any:
    y = (x * 2).exp()
    parts = [y.sin(), y * x, y.cos()]

    def scale(g: Tensor) -> Tensor:
        log.append(g.sum())
        return g * 3

    y.register_hook(scale)
    return parts[0] + parts[1] * parts[2], y


@BACKENDS
@pytest.mark.parametrize("fn", [_keeps, _logs, _scales])
def test_gradients_asked_of_a_tensor_that_was_used_already(fn: Callable[..., Any], backend: str) -> None:
    compiled = bolide.compile(fn, backend=backend)
    for size in (3, 4, 5):
        values, found = torch.rand(size, dtype=torch.float64), []  # large terms cancel
        for each in (compiled, fn):
            log: list[Any] = []
            x = values.clone().requires_grad_()
            z, y = each(x, log)
            z.sum().backward()
            found.append([x.grad, *log, *([y.grad] if y.retains_grad else [])])
        assert len(found[0]) == 2
        torch.testing.assert_close(*found)


STEPS: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.relu,
    torch.sigmoid,
    torch.exp,
    torch.sin,
    nn.functional.elu,
    nn.functional.gelu,
    lambda x: x.softmax(-1),
    lambda x: (x * x + 1).sqrt(),
    lambda x: x * 2,
    lambda x: 1 / (x.abs() + 1),
    lambda x: x.amax(-1, keepdim=True) - x,
    lambda x: nn.functional.layer_norm(x, (4,)),
    lambda x: torch.where(x > 0, x, x / 2),
    lambda x: x.tanh() @ x.t().tanh() @ x,
]
WRITES: list[Callable[[Tensor], object]] = [
    lambda x: x.add_(1),
    lambda x: x.detach().mul_(0.5),
    lambda x: x[x > 0.3].mul_(2),
    lambda x: x.masked_fill_(x > 0.3, 0.5),
    lambda x: x[0].zero_(),
]


def _writing(chance: random.Random, breaks: bool) -> Callable[[Tensor], Tensor]:
    """A program of steps that use a value made before, and of writes that no history knows, some behind a break."""
    plan: list[tuple[str, int, Any]] = [("step", 0, chance.choice(STEPS))]
    for _ in range(chance.randint(2, 7)):
        kind = chance.choice(["step", "step", "write", "break"])
        made = sum(each[0] == "step" for each in plan)
        choice = chance.choice(STEPS if kind == "step" else WRITES)
        plan.append((kind, chance.choice([made, chance.randint(0, made)]), choice))
    plan.append(("break", 0, None))
    plan.append(("write", chance.randint(0, sum(each[0] == "step" for each in plan)), chance.choice(WRITES)))

    def fn(x: Tensor) -> Tensor:
        values = [x * 1.5]
        for kind, at, what in plan:
            if kind == "step":
                values.append(what(values[at]))
            elif kind == "write":
                with torch.no_grad():
                    what(values[at])
            elif breaks:
                print(end="")
        return torch.stack([value.mean() for value in values[1:]]).sum()

    return fn


@pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "breaks"])
def test_writes_after_the_forward_are_refused_only_where_eager_refuses_them(seed: int, breaks: bool) -> None:
    computed = 0
    for number in range(30):
        fn = _writing(random.Random(f"{seed} {number}"), breaks)
        given = torch.randn(3, 4, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        x, y = given.clone().requires_grad_(), given.clone().requires_grad_()
        loss = fn(x)
        try:
            loss.backward()
        except RuntimeError:  # what is saved is written: a cut may save another value, so this may be computed
            continue
        computed += 1
        bolide.reset()
        found = bolide.compile(fn)(y)
        found.backward()
        torch.testing.assert_close((found, y.grad), (loss, x.grad))
    assert computed


def _passes(chance: random.Random) -> tuple[Callable[..., tuple[Tensor, ...]], Callable[[Any], list[Any]]]:
    """A program of several losses of which some have values in common, each of weights of its own and shared ones; and
    a training step that derives them one after the other, while what is no longer needed is written to."""
    count = chance.randint(2, 3)
    steps = [[chance.choice(STEPS) for _ in range(chance.randint(0, 2))] for _ in range(count + 1)]
    trunks = [chance.random() < 0.7 for _ in range(count)]
    order = chance.sample(range(count), count)
    writes = [chance.choice([None, "own", "trunk", "result"]) for _ in order]
    asks = [chance.choice(["backward", "own"]) for _ in order]

    def fn(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        trunk = x @ weights[0]
        for step in steps[0]:
            trunk = step(trunk)
        losses = []
        for at, weight in enumerate(weights[1:], 1):
            value = (trunk if trunks[at - 1] else x.cos()) @ weight
            for step in steps[at]:
                value = step(value)
            losses.append((value @ weight).square().mean())
        return tuple(losses)

    def step(compiled: Any) -> list[Any]:
        chance = torch.Generator().manual_seed(7)
        seen: list[Any] = []
        for rows in (3, 5):
            x, *weights = (
                torch.randn(size, 4, generator=chance, dtype=torch.float64) for size in (rows, *[4] * (count + 1))
            )
            for weight in weights:
                weight.requires_grad_()
            losses = compiled(x, *weights)
            for at, write, ask in zip(order, writes, asks):
                keep = at != order[-1]
                if ask == "own":
                    seen += torch.autograd.grad(losses[at], weights[at + 1], retain_graph=keep)
                else:
                    losses[at].backward(retain_graph=keep)
                with torch.no_grad():
                    places = {"own": weights[at + 1], "trunk": weights[0], "result": losses[at]}
                    places[write].mul_(0.5) if write else None
            seen += [*losses, *[weight.grad for weight in weights]]
        return seen

    return fn, step


def test_losses_are_derived_one_after_the_other_while_weights_are_written_to(seed: int) -> None:
    """The optimizer of a critic makes its step before the loss of the actor is derived."""
    chance, computed = random.Random(seed), 0
    while computed < 4:
        fn, step = _passes(chance)
        try:
            expected = step(fn)
        except RuntimeError:  # a cut may save another value, so this may be computed
            continue
        computed += 1
        bolide.reset()
        torch.testing.assert_close(step(bolide.compile(fn)), expected)
