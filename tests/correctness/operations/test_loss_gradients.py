"""Losses of rows in training: their log-softmax is not kept, and what is summed in one term is no loop."""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu"))
import gpu_emulated

import bolide
from bolide.inductor import CompiledGraph
from bolide.inductor.ir.loops import Update
from bolide.inductor.ir.walks import nodes_below, roots_in, statements
from bolide.support import events
from tests.plan_tools import plans


def graphs_of(function: Any, x: torch.Tensor, *more: Any) -> tuple[list[CompiledGraph], torch.Tensor, torch.Tensor]:
    """The graphs of a loss and its gradient, and both."""
    found: list[CompiledGraph] = []

    def note(event: object) -> None:
        if isinstance(event, events.Compiled) and isinstance(event.artifact, CompiledGraph):
            found.append(event.artifact)

    bolide.reset()
    with events.subscribed(note):
        loss = bolide.compile(function)(x, *more)
        (grad,) = torch.autograd.grad(loss.sum(), x)
    return found, loss, grad


def random_loss(rng: random.Random) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A cross-entropy of random shape, dtype and options, logits and targets, some of which are ignored."""
    classes, rows = rng.randint(1, 70), rng.randint(1, 9)
    more = rng.choice([(), (), (3,), (2, 3)])
    shape = rng.choice([(rows, classes, *more), (classes,)]) if not more else (rows, classes, *more)
    target = torch.randint(0, classes, shape[:1] + shape[2:] if len(shape) > 1 else ())
    options: dict[str, Any] = {"reduction": rng.choice(["mean", "sum", "none"])}
    if rng.random() < 0.5 and len(shape) > 1:
        options["ignore_index"] = rng.choice([-100, 0, classes - 1, -1])
        target = torch.where(torch.rand(target.shape) < 0.3, options["ignore_index"], target)
    if rng.random() < 0.3:
        options["label_smoothing"] = 0.1
    dtype = rng.choice([torch.float32, torch.float64, torch.bfloat16])
    if rng.random() < 0.3:
        options["weight"] = torch.rand(classes).to(dtype)
    logits = (torch.randn(shape) * rng.choice([1, 30])).to(dtype)
    return (lambda x, target: F.cross_entropy(x, target, **options)), logits.requires_grad_(), target


def test_gradients_are_eagers(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(6):
        loss, x, target = random_loss(rng)
        wanted = loss(x, target)
        (grad,) = torch.autograd.grad(wanted.sum(), x)
        _, mine, my_grad = graphs_of(loss, x, target)
        loose = {"rtol": 2e-2, "atol": 2e-2} if x.dtype is torch.bfloat16 else {}
        torch.testing.assert_close(mine, wanted, equal_nan=True, **loose)
        torch.testing.assert_close(my_grad, grad, equal_nan=True, **loose)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_little_is_kept_and_nothing_is_summed_in_the_backward(dtype: torch.dtype) -> None:
    x, target = torch.randn(20, 300).to(dtype).requires_grad_(), torch.randint(0, 300, (20,))
    (forward, backward), _, _ = graphs_of(F.cross_entropy, x, target)
    made = [p.numel.value for k in forward.plan.kernels for p in k.params if p.role != "in"]
    assert max(made) <= 20
    updates = [s for k in backward.plan.kernels for s in statements(k.body) if isinstance(s, Update)]
    assert len(backward.plan.kernels) == 1 and not updates


def test_sums_of_one_term_are_of_their_dtype(seed: int) -> None:
    """Whatever the dtypes of the terms and of the sum, and whoever reads it."""
    torch.manual_seed(seed)
    for dtype, total in product((torch.float32, torch.bfloat16, torch.float16, torch.int32), repeat=2):
        values, mask, others = torch.randn(6).mul(9).to(dtype), torch.rand(6) < 0.5, torch.randn(6).to(total)
        target = torch.randint(-1, 8, (6,))

        def chosen(values: torch.Tensor, target: torch.Tensor, mask: Any, others: Any, total: Any = total) -> Any:
            there = target[:, None] == torch.arange(7)
            return torch.where(mask, torch.where(there, values[:, None], 0).sum(1, dtype=total), others)

        given = (values, target, mask, others)
        torch.testing.assert_close(bolide.compile(chosen)(*given), chosen(*given), rtol=0, atol=0)


def test_a_log_softmax_that_is_given_back_is_as_in_eager() -> None:
    for shape, dim in (((4, 33), -1), ((33, 4), 0), ((2, 5, 3), 1), ((7,), 0), ((0, 3), 1)):
        x = torch.randn(shape, requires_grad=True)

        def both(x: torch.Tensor, dim: int = dim) -> torch.Tensor:
            rows = x.log_softmax(dim)
            return rows * rows.detach().exp()

        found, result, grad = graphs_of(both, x)
        assert found
        torch.testing.assert_close(result, both(x))
        torch.testing.assert_close(grad, torch.autograd.grad(both(x).sum(), x)[0])
    x = torch.full((2, 3), -torch.inf, requires_grad=True)
    torch.testing.assert_close(bolide.compile(F.log_softmax)(x, 1), F.log_softmax(x, 1), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_shares_on_a_gpu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of a difference to the row's own largest number only is e^x a quick one; results are as exact as eager's."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)
    x = (torch.randn(5, 90) * 20).to(dtype)
    other = torch.randn(5, 90).to(dtype)

    def own(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (x.float() - x.float().amax(1, True)).exp().sum(1)

    def strange(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (x.float() - other.float().amax(1, True)).clamp(max=80).exp().sum(1) + (
            other.float() - x.float().amax(1, True)
        ).exp().sum(1)

    for function, is_quick in ((own, True), (strange, False)):
        bolide.reset()
        with plans() as found:
            result = bolide.compile(function)(x, other)
        torch.testing.assert_close(result.double(), function(x, other).double(), rtol=2e-6, atol=0.0)
        values = [node.op for k in found[0].plan.kernels for node in nodes_below(roots_in(k.body))]
        assert ("exp_term" in values) is is_quick
    bolide.reset()
    loose = {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    for softmax in (lambda x: x.softmax(1), lambda x: x.log_softmax(1), lambda x: x.logsumexp(1)):
        torch.testing.assert_close(bolide.compile(softmax)(x), softmax(x), **loose)
    bolide.reset()
