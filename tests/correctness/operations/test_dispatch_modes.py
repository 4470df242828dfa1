"""Dispatch modes of the program's see the operations of a compiled function as in eager, wherever they are active:
around it, inside of it, or only while its backward runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import bolide

aten = torch.ops.aten


class Swapping(TorchDispatchMode):
    """Computes sines for cosines and the other way round, and lists what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        other = {aten.sin.default: aten.cos.default, aten.cos.default: aten.sin.default}.get(func, func)
        return other(*args, **(kwargs or {}))


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin() ** 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 * x.sin() * x.cos()


def inside(x: Tensor) -> Tensor:
    with Swapping() as mode:
        y = x.sin() * len(mode.seen)
    return y.sin() + x.sin()


def hooked(x: Tensor) -> Tensor:
    y = x.sin()
    if y.requires_grad:
        y.register_hook(torch.sin)
    return y * x


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "operations": lambda x: (x.sin() * x).relu() + x.cos().sum(0),
    "a layer": lambda x: nn.functional.linear(x.sin(), x).softmax(-1),
    "inside": inside,
    "a function": lambda x: Squared.apply(x).sin(),
    "a hook": hooked,
    "a checkpoint": lambda x: checkpoint(lambda x: x.sin() * x.cos(), x, use_reentrant=False),
    "a branch": lambda x: x.sin() if x.sum() > 0 else x.cos() * 2,
    "dropout": lambda x: nn.functional.dropout(x.sin(), 0.0),
}


DERIVED_OTHERWISE = ("a function", "a hook", "a checkpoint")
"""Where a mode that is active in the backward only sees other operations: gradients of the program's own, and what
eager computes again then."""


def outcome(program: Callable[[Tensor], Tensor], x: Tensor, modes: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """The result and the gradient, with a mode active while the one or the other is computed."""
    leaf = x.clone().requires_grad_()
    y = watched(modes[0], lambda: program(leaf))
    return y.detach(), watched(modes[1], lambda: torch.autograd.grad(y, leaf, y.detach().exp()))[0]


def watched(by_mode: bool, compute: Callable[[], Any]) -> Any:
    if not by_mode:
        return compute()
    with Swapping() as mode:
        result = compute()
    assert mode.seen
    return result


@pytest.mark.parametrize("modes", [(True, True), (True, False), (False, True)], ids=["both", "forward", "backward"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::bolide.BolideWarning")
def test_a_mode_changes_what_it_changes_in_eager(name: str, modes: tuple[bool, bool]) -> None:
    program = PROGRAMS[name]
    compiled = bolide.compile(program)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        for active in ((False, False), modes, (False, False)):
            if name in DERIVED_OTHERWISE and active == (False, True):
                continue
            torch.testing.assert_close(outcome(compiled, x, active), outcome(program, x, active))


def test_a_mode_around_is_told_once() -> None:
    compiled = bolide.compile(PROGRAMS["operations"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            with Swapping() as ours:
                compiled(torch.ones(3, 4))
    with Swapping() as theirs:
        PROGRAMS["operations"](torch.ones(3, 4))
    assert ours.seen == theirs.seen
    assert len(told) == 1 and "runs in eager: a torch dispatch mode is active" in str(told[0].message)
