"""Results with histories of their own are derived by passes of their own, as in eager: losses of several networks that
one compiled function computes. Default backend, sizes that change."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide

Losses = Sequence[Tensor]
Networks = Sequence[nn.Sequential]


def apart(networks: Networks, x: Tensor) -> Losses:
    return networks[0](x).square().mean(), networks[1](x).sin().sum()


def actor_and_critic(networks: Networks, x: Tensor) -> Losses:
    value, action = networks[0](x), networks[1](x)
    with torch.no_grad():
        target = networks[0](x + 1)
    return (value - target).square().mean(), (action * value.detach()).mean()


def three(networks: Networks, x: Tensor) -> Losses:
    return networks[0](x).sum(), networks[1](x).exp().sum(), (x * networks[0][0].bias.sum() * 2).sum()


def shared(networks: Networks, x: Tensor) -> Losses:
    hidden = networks[0](x)
    return hidden.square().mean(), networks[1](x * hidden).sum()


def shared_sums(networks: Networks, x: Tensor) -> Losses:
    weight = networks[0][0].weight + 1  # saves nothing
    return (weight * 2).sum(), (weight * 3).sum(), networks[1](x).sum()


def each(losses: Losses, networks: Networks) -> None:
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]


def from_the_last(losses: Losses, networks: Networks) -> None:
    each(losses[::-1], networks)


def at_once(losses: Losses, networks: Networks) -> None:
    each([sum(losses, torch.zeros(()))], networks)


def at_once_and_again(losses: Losses, networks: Networks) -> None:
    at_once(losses, networks)
    each(losses[:1], networks)


def twice(losses: Losses, networks: Networks) -> None:
    each([losses[0], losses[0]], networks)


def retained(losses: Losses, networks: Networks) -> None:
    losses[0].backward(retain_graph=True)  # type: ignore[no-untyped-call]
    each(losses, networks)


def steps_between(losses: Losses, networks: Networks) -> None:
    losses[0].backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(networks[0].parameters(), 0.1).step()
    each(losses[1:], networks)


def steps_before(losses: Losses, networks: Networks) -> None:
    losses[0].backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in networks[1].parameters():
            parameter.add_(1)  # which the other loss was computed with
    each(losses[1:], networks)


def at_random(losses: Losses, networks: Networks) -> None:
    """Passes of any results, which keep the graph or not."""
    draw = random.Random(len(losses) + int(1e6 * networks[0][0].bias[0].item()))  # the same for both
    for _ in range(4):
        chosen, kept = draw.sample(losses, draw.choice((1, 1, len(losses)))), draw.random() < 0.6
        torch.autograd.backward(chosen, retain_graph=kept)


def from_hooks(losses: Losses, networks: Networks) -> None:
    """Passes of the last result in the middle of one of the first, which keeps no graph."""

    def hook(gradient: Tensor) -> Tensor:
        for _ in range(3):
            (found,) = torch.autograd.grad(losses[-1], networks[1][0].weight, retain_graph=True)
            gradient = gradient + found.mean()
        return gradient

    leaf = torch.ones((), requires_grad=True)
    middle = (leaf * 2).exp()
    middle.register_hook(hook)
    (losses[0] * middle).backward()  # type: ignore[no-untyped-call]
    each(losses[1:], networks)


def between_results(losses: Losses, networks: Networks) -> None:
    """A pass that keeps no graph, others that keep it, and again one that does not."""
    losses[0].backward()  # type: ignore[no-untyped-call]
    for kept in (True, True, False):
        losses[-1].backward(retain_graph=kept)  # type: ignore[no-untyped-call]
    at_random(losses[-1:], networks)


PROGRAMS = (apart, actor_and_critic, three, shared, shared_sums)
PASSES = (each, from_the_last, at_once, at_once_and_again, twice, retained, steps_between, steps_before, at_random)
PASSES += (from_hooks, between_results)


def outcome(program: Callable[..., Any], passes: Callable[..., None], networks: Networks, x: Tensor) -> Any:
    """All gradients and parameters, or the beginning of the error."""
    try:
        passes(program(networks, x), networks)
    except RuntimeError as error:
        return str(error)[:60]
    parameters = [parameter for network in networks for parameter in network.parameters()]
    return [parameter.grad for parameter in parameters], [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("passes", PASSES, ids=lambda passes: passes.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_history_has_a_pass_of_its_own(program: Callable[..., Any], passes: Callable[..., None]) -> None:
    networks = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(2)]
    compiled = bolide.compile(program)
    for rows in (5, 4, 6):
        x = torch.randn(rows, 4)
        expected, actual = (outcome(call, passes, copy.deepcopy(networks), x) for call in (program, compiled))
        if isinstance(expected, str) or isinstance(actual, str):
            assert type(actual) is type(expected)  # where both go wrong, either may be told first
        else:
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
