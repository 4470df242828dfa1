"""`requires_grad` of arguments and parameters, changed inside compiled functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])


def from_here_on(x: torch.Tensor) -> Any:
    y = x * 2  # has no history
    x.requires_grad_()
    return (x**2 * y).sum(), y, x


def differentiated(x: torch.Tensor) -> Any:
    x.requires_grad = True
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return g.sum() * 2, x.is_leaf


def accumulated(x: torch.Tensor) -> Any:
    x.requires_grad_(True)
    (x**3).sum().backward()
    return x.grad * 1, (x * 2).sum()  # type: ignore[operator]


def written_before(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        x.mul_(3).add_(y)
    x.requires_grad_()
    return (x**2 * y).sum(), y, x.view(-1).detach(), x


def without_grad_mode(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.requires_grad_()
        y = x * 2
    return (x * 3).sum(), y


def of_views(x: torch.Tensor) -> Any:
    early = x.view(-1)
    x.requires_grad_()
    return (x.view(-1) * 2).sum(), early * 2, early.requires_grad


@BACKENDS
@pytest.mark.parametrize("fn", [from_here_on, differentiated, accumulated, written_before, without_grad_mode, of_views])
def test_an_argument(fn: Callable[..., Any], backend: str) -> None:
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(5)
        ours, theirs = x.clone(), x.clone()
        for _ in range(2):  # in the second call it requires grad from the start
            found, expected = compiled(ours), fn(theirs)
            torch.testing.assert_close(found, expected)
            for one, other in zip(found, expected, strict=True):
                assert getattr(one, "requires_grad", None) == getattr(other, "requires_grad", None)
            found[0].sum().backward() if found[0].requires_grad else None
            expected[0].sum().backward() if expected[0].requires_grad else None
            assert ours.requires_grad and theirs.requires_grad
            torch.testing.assert_close(ours.grad, theirs.grad)


@BACKENDS
@pytest.mark.parametrize("part", ["0", ""])
def test_parameters_are_frozen(part: str, backend: str) -> None:
    def fn(model: Any, x: torch.Tensor) -> Any:
        for parameter in model.get_submodule(part).parameters():
            parameter.requires_grad_(False)
        return model(x)

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    for _ in range(2):
        x = torch.randn(2, 3)
        for function, own in ((compiled, model), (fn, twin)):
            out = function(own, x)
            out.sum().backward() if out.requires_grad else None
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert ours.requires_grad == theirs.requires_grad
            torch.testing.assert_close(ours.grad, theirs.grad)


def adversaries(first: nn.Module, second: nn.Module, x: torch.Tensor) -> Any:
    """A generator's turn, for which the other is frozen, and then that one's."""
    for parameter in second.parameters():
        parameter.requires_grad_(False)
    fake = first(x)
    second(fake).mean().backward()
    for parameter in second.parameters():
        parameter.requires_grad = True
    (second(fake.detach()).square().mean() - second(x).mean()).backward()
    return fake.detach()


def thawed_in_between(first: nn.Module, second: nn.Module, x: torch.Tensor) -> Any:
    """What is computed while frozen has no history, what is computed later has one."""
    for parameter in first.parameters():
        parameter.requires_grad_(False)
    before = first(x)
    for parameter in first.parameters():
        parameter.requires_grad_(True)
    after = first(x + 1) * before
    second.requires_grad_(False).requires_grad_(True).requires_grad_(False)
    return before, after, second(x) + after


@BACKENDS
@pytest.mark.parametrize("fn", [adversaries, thawed_in_between])
def test_parameters_are_frozen_for_a_while(fn: Callable[..., Any], backend: str) -> None:
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)) for _ in range(2)]
    twins = copy.deepcopy(models)
    for rows in (2, 2, 3, 4):
        x = torch.randn(rows, 3)
        found, expected = compiled(*models, x), fn(*twins, x)
        for results in (found, expected):
            kept = [result for result in (results if type(results) is tuple else [results]) if result.requires_grad]
            torch.autograd.backward(kept, [torch.ones_like(result) for result in kept], retain_graph=False)
        torch.testing.assert_close(found, expected)
        for model, twin in zip(models, twins, strict=True):
            for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                assert ours.requires_grad == theirs.requires_grad
                torch.testing.assert_close(ours.grad, theirs.grad)
                for parameter in (ours, theirs):
                    parameter.requires_grad_(True)


def late(x: torch.Tensor) -> Any:
    y = x * 2
    x.requires_grad_(False)
    return y, x * 3


def again(x: torch.Tensor) -> Any:
    x.requires_grad_(False)
    x.requires_grad_(True)
    y = x * 2
    x.requires_grad_(False)
    return y, x * 3


def written(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    x.requires_grad_(False)
    return (x * 3,)


def written_and_thawed(x: torch.Tensor) -> Any:
    x.requires_grad_(False)
    y = x * 2
    x.mul_(2)
    x.requires_grad_(True)
    z = x * 4
    x.requires_grad_(False)
    return y, z, x.view(-1), x


def differentiated_before(x: torch.Tensor) -> Any:
    y = (x * 2).sin()
    z = (x * 3).sum()
    y.sum().backward()
    x.requires_grad_(False)
    return x.grad, (y.detach() * x).sum(), z


@pytest.mark.parametrize("fn", [late, again, written, written_and_thawed, differentiated_before])
def test_what_is_frozen_late(fn: Callable[..., Any]) -> None:
    """What has a history keeps it, the real one is frozen in the end."""
    compiled = bolide.compile(fn, fullgraph=True)
    for size in (3, 3, 4, 5):
        x = torch.randn(size)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = compiled(ours), fn(theirs)
        torch.testing.assert_close(found, expected)
        for one, other in zip(found, expected, strict=True):
            assert (one.requires_grad, one.is_leaf, one is ours) == (
                other.requires_grad,
                other.is_leaf,
                other is theirs,
            )
        assert not ours.requires_grad and not theirs.requires_grad
        for x, outs in ((ours, found), (theirs, expected)):
            tracked = [out.square().sum() for out in outs if out.requires_grad]
            x.requires_grad_()  # what came before is differentiated by it once more
            torch.autograd.backward(tracked) if tracked else None
        torch.testing.assert_close(ours.grad, theirs.grad)


class Adversaries:
    """Two networks and their optimizers, trained in turns as image translation and Wasserstein networks are."""

    def __init__(self, generator: nn.Module, critic: nn.Module, decay: bool) -> None:
        self.generator, self.critic = generator, critic
        kind: Any = torch.optim.Adam if decay else torch.optim.SGD
        self.optimizers = [kind(model.parameters(), lr=0.01) for model in (generator, critic)]
        self.fake = torch.zeros(0)

    def freeze(self, frozen: bool) -> None:
        for parameter in self.critic.parameters():
            parameter.requires_grad = not frozen

    def step(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        self.fake, losses = self.generator(x), []
        self.freeze(False)
        for _ in range(2):
            loss = self.critic(self.fake.detach()).mean() - self.critic(y).mean()
            self.optimizers[1].zero_grad()
            loss.backward()
            losses.append(loss)
            self.optimizers[1].step()
            with torch.no_grad():
                for parameter in self.critic.parameters():
                    parameter.clamp_(-0.3, 0.3)
        self.freeze(True)
        loss = (self.fake - y).abs().mean() - self.critic(self.fake).mean()
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()
        return [*losses, loss]


@pytest.mark.parametrize("decay", [False, True])
def test_networks_that_are_trained_in_turns(decay: bool) -> None:
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, out)) for out in (3, 1)]
    ours, theirs = (Adversaries(*copy.deepcopy(models), decay) for _ in range(2))
    compiled = bolide.compile(ours.step, fullgraph=True)
    for rows in (4, 4, 5, 3):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x, y), theirs.step(x, y), rtol=1e-4, atol=1e-5)
        for mine, other in ((ours.generator, theirs.generator), (ours.critic, theirs.critic)):
            for one, two in zip(mine.parameters(), other.parameters(), strict=True):
                assert one.requires_grad == two.requires_grad
                torch.testing.assert_close((one, one.grad), (two, two.grad), rtol=1e-4, atol=1e-5)


def frozen_and_looked_at(x: torch.Tensor) -> Any:
    before = x.requires_grad
    x.requires_grad_(False)
    if (x > 100).any():
        return before, x * 3
    return before, x * 2


def unfrozen_and_looked_at(x: torch.Tensor) -> Any:
    before, y = x.requires_grad, x * 2
    x.requires_grad_()
    if int((x > 100).sum()) > 1:
        raise ValueError("too large")
    return y, before, x * 3


def unfrozen_and_cut(x: torch.Tensor) -> Any:
    before, y = x.requires_grad, x * 2
    x.requires_grad_()
    return y, before, x[: int((x > 100).sum())].sum()


@BACKENDS
@pytest.mark.parametrize("fn", [frozen_and_looked_at, unfrozen_and_looked_at, unfrozen_and_cut])
def test_a_call_that_is_made_again_in_eager_finds_the_flag_as_it_was(fn: Callable[..., Any], backend: str) -> None:
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for size, large in [(3, 1), (4, 1), (4, 0), (5, 3), (3, 1)]:
        x = torch.randn(size) + 1000 * (torch.arange(size) < large)
        for flag in (fn is frozen_and_looked_at, True):
            ours, theirs = x.clone().requires_grad_(flag), x.clone().requires_grad_(flag)
            found, expected = outcome(compiled, ours), outcome(fn, theirs)
            assert ours.requires_grad == theirs.requires_grad
            assert [getattr(out, "requires_grad", out) for out in found] == [
                getattr(out, "requires_grad", out) for out in expected
            ]
            torch.testing.assert_close(found, expected)
            for out in (found[-1], expected[-1]):
                if out.requires_grad:
                    out.sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad)


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> tuple[Any, ...]:
    try:
        return fn(x)
    except ValueError as error:
        return error.args == ("too large",), torch.tensor(0.0)
