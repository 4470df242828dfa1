"""Backward passes of compiled functions on batches of tangents, and inside torch's transforms."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, functional, grad
from torch.func import functionalize, jacfwd, jacrev, jvp, vjp, vmap

import bolide
from bolide.support import events


def _square(x):
    return x**2


def _views(x):
    return (x.view(1, -1).expand(3, -1).t().reshape(-1) * 2).view(2, 3).t().exp()


def _index(x):
    return x[torch.tensor([0, 1, 1])] * x.cumsum(0).sum()


def _branch(x):
    return x.sin() if x.sum() > 0 else x.cos() * x


def _linear(x):
    return x * 3 + x.flip(0)


def _loops(x):
    count = int(x.abs().sum().item())
    return x.exp() * count + x[: count % 2].sum()


PROGRAMS = [_square, _views, _index, _branch, _linear, _loops]


def _batched(f, x, y, weights):
    once = grad(y, x, weights, is_grads_batched=True, retain_graph=True)
    return once, grad(y, x, weights, is_grads_batched=True)


def _batched_twice(f, x, y, weights):
    (first,) = grad(y, x, weights, is_grads_batched=True, create_graph=True)
    if not first.requires_grad:
        return first
    ones = torch.eye(first.numel()).view(-1, *first.shape)
    return first, grad(first, x, ones, is_grads_batched=True)


def _released(f, x, y, weights):
    grad(y, x, weights, is_grads_batched=True)
    return grad(y, x, weights, is_grads_batched=True)


def _vmap(f, x, y, weights):
    def once(weight):
        return grad(y, x, weight, retain_graph=True)[0]

    twice = torch.stack([weights, weights * 2], -1)
    plain = vmap(lambda scale: scale * grad(y.sum(), x, retain_graph=True)[0])(torch.arange(3.0))
    return (
        vmap(once)(weights),
        vmap(once)(weights[:0]),
        vmap(vmap(once, -1, -1))(twice),
        vmap(vmap(once), -1, 1)(twice),
        plain,
    )


def _functional(f, x, y, weights):
    x = x.detach()
    return functional.jacobian(f, x, vectorize=True), functional.hessian(
        lambda x: f(x).square().sum(), x, vectorize=True
    )


def _vjp(f, x, y, weights):
    ones = torch.ones_like(y).detach()
    found, pull = vjp(lambda w: grad(y, x, w, retain_graph=True)[0], ones)  # nothing is recorded without create_graph
    again, pull_again = vjp(lambda w: grad(y, x, w, create_graph=True)[0].sin(), ones)
    return found, pull(found), again, pull_again(again)


def _jacobians(f, x, y, weights):
    ones = torch.ones_like(y).detach()
    forward = jacfwd(lambda w: grad(y, x, w, retain_graph=True)[0])(ones)
    return forward, jacrev(lambda w: grad(y, x, w, create_graph=True)[0])(ones)


def _both(f, x, y, weights):
    ones = torch.ones_like(y).detach()
    return vmap(lambda w: jvp(lambda v: grad(y, x, v, retain_graph=True)[0], (ones,), (w,)))(weights)


def _dual(f, x, y, weights):
    with forward_ad.dual_level():
        found = grad(y, x, forward_ad.make_dual(torch.ones_like(y).detach(), y.detach()))[0]
        return tuple(forward_ad.unpack_dual(found)), grad(f(x), x, torch.ones_like(y))


def _functionalize(f, x, y, weights):
    return functionalize(lambda w: grad(y, x, w)[0])(torch.ones_like(y).detach())


USES = [
    *(_batched, _batched_twice, _released, _vmap, _functional, _vjp, _jacobians, _both, _dual),
    _functionalize,
]


def _use(use, f):
    found = []
    for values in ([1.0, 2.0], [-3.0, 0.5], [0.1, 0.2]):
        x = torch.tensor(values, requires_grad=True)
        y = f(x)
        try:
            made = use(f, x, y, torch.eye(y.numel()).view(-1, *y.shape))
        except RuntimeError as error:
            made = torch.tensor(list(str(error).encode()[:40]))
        found.append(made)
    return found


@pytest.mark.filterwarnings("ignore:.*is active")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("use", USES)
def test_backward_passes_inside_transforms(use, program):
    expected, found = _use(use, program), _use(use, bolide.compile(program))
    torch.testing.assert_close(found, expected)
    leaves = torch.utils._pytree.tree_leaves
    for mine, theirs in zip(leaves(found), leaves(expected)):
        assert getattr(mine, "requires_grad", None) == getattr(theirs, "requires_grad", None)


def test_a_batch_is_computed_by_compiled_code():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 2)).double()
    compiled = bolide.compile(model)
    kinds = []
    events.subscribers.append(seen := lambda event: kinds.append(getattr(event, "kind", None)))
    try:
        for rows in (2, 3, 4):
            x = torch.randn(rows, 2, 4, 4, dtype=torch.float64)
            ours, theirs = (functional.jacobian(fn, x, vectorize=True) for fn in (compiled, model))
            torch.testing.assert_close(ours, theirs)
    finally:
        events.subscribers.remove(seen)
    assert "backward" in kinds


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, tangent):
        return tangent.clamp(max=0.5)


def test_derivatives_of_the_programs_own_take_batches_too():
    def f(x):
        return _Clipped.apply(x * 2)

    compiled = bolide.compile(f)
    for values in ([1.0, 2.0], [3.0, 4.0]):
        x = torch.tensor(values, requires_grad=True)
        ours, theirs = (grad(fn(x), x, torch.eye(2), is_grads_batched=True) for fn in (compiled, f))
        torch.testing.assert_close(ours, theirs)
    tangents = (torch.ones(2),), (torch.ones(2),)
    found = [jvp(functools.partial(lambda y, w: grad(y, x, w)[0], fn(x)), *tangents) for fn in (compiled, f)]
    torch.testing.assert_close(*found)


def test_saved_tensors_are_unpacked_once_for_a_batch():
    unpacked = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(1) or t):
        x = torch.ones(3, requires_grad=True)
        y = bolide.compile(lambda x: x.sin() * x)(x)
    grad(y, x, torch.eye(3), is_grads_batched=True)
    assert len(unpacked) == 1


@pytest.mark.parametrize("make", [lambda: torch.nn.LayerNorm(6), lambda: torch.nn.GroupNorm(2, 6)])
def test_breaks_inside_of_a_dual_level(make: Callable[[], torch.nn.Module]) -> None:
    """The break is in front of the level, which is left."""
    module = make()

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = x * 2
        with forward_ad.dual_level():
            result = module(forward_ad.make_dual(scaled, x.sin()) * 2)
            open(os.devnull).close()
            primal, tangent = forward_ad.unpack_dual(result)
            return primal, tangent

    compiled = bolide.compile(program)
    for size in random.sample(range(3, 40), 5):
        x = torch.randn(size, 6)
        torch.testing.assert_close(compiled(x), program(x))
        assert forward_ad._current_level < 0
