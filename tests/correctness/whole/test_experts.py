"""Mixtures of experts, and what their loops do: branches on data write to tensors from outside of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bolide

SEED = int(os.environ.get("BOLIDE_TEST_SEED", "0"))


class Experts(nn.Module):
    """Each token goes through the experts that the gate has chosen. `style`: how the loop is written."""

    def __init__(self, style: str, size: int = 8, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(size, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 12), nn.GELU(), nn.Linear(12, size)) for _ in range(count)
        )
        self.shared = nn.Linear(size, size)
        self.style = style

    def forward(self, given: Tensor) -> Tensor:
        x = given.view(-1, given.shape[-1])
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            rows, column = torch.where(chosen == place)
            if self.style == "added":
                if rows.numel() > 0:
                    out[rows] += weight[rows, column, None] * expert(x[rows])
            elif self.style == "continue":
                if len(rows) == 0:
                    continue
                out.index_add_(0, rows, weight[rows, column, None] * expert(x[rows]))
            elif (chosen == place).any():
                out[rows] = out[rows] + weight[rows, column].unsqueeze(-1) * expert(x[rows])
        return (out + self.shared(x)).view(given.shape)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("style", ["added", "continue", "any"])
def test_a_loop_over_experts(style: str, dynamic: bool | None) -> None:
    chance = random.Random(SEED)
    torch.manual_seed(chance.randint(0, 1 << 30))
    model = Experts(style)
    compiled = bolide.compile(model, dynamic=dynamic)
    for training in (False, True):
        for _ in range(6):
            x = torch.randn(chance.randint(1, 2), chance.randint(1, 7), 8)
            with torch.set_grad_enabled(training):
                torch.testing.assert_close(compiled(x), model(x))
    with torch.no_grad():
        assert not bolide.explain(model)(torch.randn(2, 5, 8)).breaks


def made(x: Tensor) -> Any:
    out = torch.zeros_like(x)
    if x.sum() > 0:
        out.add_(x)
    return out * 2


def given(x: Tensor) -> Any:
    if x.sum() > 0:
        x.mul_(2)
    else:
        x[0] = 1
    y = x + 1
    if y.max() > 1:
        x += y
        if y.min() > -1:
            x -= 3
    return x, y


def viewed(x: Tensor) -> Any:
    row = x[0]
    if x.sum() > 0:
        x.mul_(2)
    return row + 1, x


def viewed_inside(x: Tensor) -> Any:
    """The way sees what it writes through another tensor."""
    row = x[0]
    if x.sum() > 0:
        x.mul_(2)
        row = row + 1
    return row, x


def parts(x: Tensor) -> Any:
    y = x.sin()
    if x.sum() > 0:
        y[0].mul_(2)
        row = y[1]
        y.add_(1)
    else:
        row = y[2]
        y.mul_(3)
    y.sub_(1)
    return y, row


def one_or_another(x: Tensor) -> Any:
    """What is written in the second branch may be what the first one has left."""
    y, z = x.sin(), x.cos()
    left: Any = y if x.sum() > 0 else z
    if x.max() > 0.5:
        y.add_(1)
        last = left * 2
        left = None
    else:
        last = y * 1
        left = None
    return last


def detached(x: Tensor) -> Any:
    y = x.sin()
    if x.sum() > 0:
        y.data.add_(1)
    else:
        y.detach().mul_(2)
    return y


def same_object(x: Tensor) -> Any:
    y = kept = x.sin()
    if x.sum() > 0:
        y = y.add_(1)
    y.mul_(2)
    return y is kept, y, kept


def reshaped(x: Tensor) -> Any:
    y = x.sin()
    if x.sum() > 0:
        y.unsqueeze_(0)
        total = y.sum(1)
    else:
        total = y.sum(0)[None]
    return total, y.shape


def results_in_place(x: Tensor) -> Any:
    y = torch.empty_like(x)
    if x.sum() > 0:
        torch.sin(x, out=y)
    else:
        torch.cos(x, out=y)
    return y


INFERENCE, NO_GRAD = (torch.inference_mode,), (torch.inference_mode, torch.no_grad)
PROGRAMS: dict[Callable[..., Any], tuple[Callable[..., Any], ...]] = {
    **dict.fromkeys((made, same_object, results_in_place), NO_GRAD),
    **dict.fromkeys((given, viewed), INFERENCE),  # autograd may have saved an argument before
    **dict.fromkeys((viewed_inside, parts, one_or_another, detached, reshaped), ()),
}
"""Where they are captured whole."""


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_what_branches_write_to(fn: Callable[..., Any], dynamic: bool | None) -> None:
    torch.manual_seed(SEED)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        bolide.reset()
        compiled = bolide.compile(fn, dynamic=dynamic)
        for place in range(6):
            x = torch.randn(3 + place % 4, 4) + (0.4 if place % 2 else -0.4)
            with mode():
                mine, theirs = x.clone(), x.clone()
                found, wanted = (torch.utils._pytree.tree_leaves(f(v)) for f, v in ((compiled, mine), (fn, theirs)))
            assert [each is mine for each in found] == [each is theirs for each in wanted]
            for one, other in zip([*found, mine], [*wanted, theirs], strict=True):
                assert torch.allclose(one, other, atol=1e-6) if isinstance(one, Tensor) else one == other
        with mode():
            whole = not bolide.explain(fn)(torch.randn(4, 4)).breaks
        assert mode is torch.enable_grad or whole is (mode in PROGRAMS[fn])


def test_a_write_to_what_requires_grad_is_a_break() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x.sin()
        if x.sum() > 0:
            y.mul_(x)
        else:
            with torch.no_grad():
                y.mul_(2)
        return y * 3

    compiled = bolide.compile(fn)
    for sign in (1, -1, 1):
        x = (torch.rand(3) * sign).requires_grad_()
        results = compiled(x), fn(x)
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*[torch.autograd.grad(result.sum(), x) for result in results])


def test_a_way_that_writes_nothing_leaves_what_autograd_has_saved() -> None:
    def given(x: Tensor, s: Tensor) -> Tensor:
        if x.sum() > 0:
            s.mul_(2)
        return s * 3

    def made(x: Tensor, s: Tensor) -> Tensor:
        t = s.sin()
        y = x * t
        if x.sum() > 0:
            t.mul_(2)
        return y + t

    for fn in (given, made):
        compiled = bolide.compile(fn)
        for sign in (1, -1, -1, 1, -1):
            x, s = (torch.rand(3) * sign).requires_grad_(), torch.rand(3)
            gradients = []
            for f in (compiled, fn):
                own = s.clone()
                try:
                    (gradient,) = torch.autograd.grad((x * own + f(x, own)).sum(), x)
                except RuntimeError:
                    gradient = None
                gradients.append(gradient)
            assert (gradients[1] is None) == (sign > 0)
            if sign < 0:
                torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_autograd_has_saved_before_the_branch(mode: Callable[..., Any]) -> None:
    """Before the call, or in the program: where the way is not taken that writes to it, there is a gradient."""

    def given(x: Tensor, s: Tensor) -> Any:
        with mode():
            if x.sum() > 0:
                s.mul_(2)
        return x.sin()

    def made(x: Tensor, s: Tensor) -> Any:
        t = s.sin()
        y = x * t
        with mode():
            if x.sum() > 0:
                t.mul_(2)
        return y

    def leaves(x: Tensor, s: Tensor) -> Any:
        t = s.sin()
        with torch.enable_grad():
            w = torch.ones_like(s).requires_grad_()
            y = w * t
        with mode():
            if x.sum() > 0:
                t.mul_(2)
        return x * torch.autograd.grad(y.sum(), w)[0]

    for fn in (given, made, leaves):
        compiled = bolide.compile(fn)
        for sign in (-1, 1, -1, -1, 1):
            x, s = (torch.rand(3) * sign).requires_grad_(), torch.rand(3)
            gradients = []
            for f in (compiled, fn):
                own = s.clone()
                y = x * own
                try:
                    (gradient,) = torch.autograd.grad((y + f(x, own)).sum(), x)
                except RuntimeError:
                    gradient = None
                gradients.append(gradient)
            assert (gradients[1] is None) == (sign > 0)
            if sign < 0:
                torch.testing.assert_close(*gradients)


def test_a_history_does_not_see_what_is_written_after_its_branch() -> None:
    """Nor does it save what it does not need."""

    def outer(x: Tensor, s: Tensor) -> Any:
        t = s.sin()
        y = (x * 2 if t.sum() > 0 else x * 3) if x.sum() > -10 else x
        t.neg_()
        return y, t

    def unused(x: Tensor, s: Tensor) -> Any:
        y = x * 2
        if x.sum() > -10:
            with torch.no_grad():
                y = y.sin() + s
        return y

    for fn in (outer, unused):
        compiled = bolide.compile(fn)
        for sign in (-1, 1, -1):
            x, s = torch.rand(3, requires_grad=True), torch.rand(3) * sign
            gradients = []
            for f in (compiled, fn):
                own = s.clone()
                results = f(x, own)
                own.add_(1)
                y = results[0] if fn is outer else results + x
                gradients.append(torch.autograd.grad(y.sum(), x)[0])
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_groups_of_rows(dtype: torch.dtype) -> None:
    """The operators with which transformers multiplies: groups without rows, rows without a group, sizes where either
    library is faster, and operands in any layout."""
    moe = pytest.importorskip("transformers.integrations.moe")
    chance = random.Random(SEED)
    torch.manual_seed(chance.randint(0, 1 << 30))

    def experts(x: Tensor, first: Tensor, second: Tensor, ends: Tensor) -> Tensor:
        multiply = torch.ops.transformers.grouped_mm_fallback
        return multiply(torch.relu(multiply(x.t(), first, ends)), second.transpose(1, 2), ends).sin()

    assert moe is not None
    compiled = bolide.compile(experts)
    for _ in range(4):
        groups, rows, inner = chance.randint(1, 5), chance.randint(1, 150), chance.choice((3, 64, 256))
        ends = torch.tensor(sorted(chance.choices(range(rows + 1), k=groups)), dtype=torch.int32)
        shapes = (inner, rows), (groups, inner, 2 * inner), (groups, 24, 2 * inner)
        given = [(torch.randn(shape) / 4).to(dtype) for shape in shapes]
        results = []
        for function in (experts, compiled):
            leaves = [tensor.clone().requires_grad_() for tensor in given]
            y = function(*leaves, ends)
            results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
        for ours, theirs in zip(results[1], results[0]):
            exact = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
            torch.testing.assert_close(ours, theirs, rtol=exact, atol=exact, msg=lambda m: f"seed {SEED}: {m}")
            assert ours.stride() == theirs.stride()
