"""Floats that are others in each call: two compiled versions serve all of them, without a break, with eager's results
and gradients."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bolide
from bolide.support import events

Program = Callable[[Tensor, Tensor, float], Any]
LABELS = torch.tensor([0, 3, -100, 1, 2, 0])


def batch_norm(x: Tensor, y: Tensor, a: float) -> Any:
    mean, var = torch.zeros(8, dtype=x.dtype), torch.ones(8, dtype=x.dtype)
    result = F.batch_norm(x, mean, var, y[0], y[1], True, a, a)
    return result, mean, var, F.batch_norm(x, mean, var, training=False, eps=a)


def written(x: Tensor, y: Tensor, a: float) -> Any:
    z = F.leaky_relu_(x * 2, a)
    return F.celu(z.detach() * 1, a, inplace=True) * a, F.hardtanh_(z * 1, -a, a)  # (eager rounds celu's derivative)


def attention(x: Tensor, y: Tensor, a: float) -> Any:
    x, y = x[None, None], y[None, None]
    mask = torch.ones(6, 6, dtype=torch.bool).tril(1)
    attend = F.scaled_dot_product_attention
    return attend(x, y, y, scale=a), attend(x, y, x, mask, scale=a), attend(x, x, y, is_causal=True, scale=a)


def losses(x: Tensor, y: Tensor, a: float) -> Any:
    signs = torch.where(x.detach() > 0, 1, -1)
    return (
        F.huber_loss(x, y, delta=a),
        F.smooth_l1_loss(x, y, beta=a, reduction="sum"),
        F.margin_ranking_loss(x, y, signs, margin=a),
        F.hinge_embedding_loss(x, signs, margin=a, reduction="none"),
        F.cosine_embedding_loss(x, y, signs[:, 0], margin=a),
        F.triplet_margin_loss(x, y, x * y, margin=a, eps=a * 1e-3, swap=True),
    )


def smoothed(x: Tensor, y: Tensor, a: float) -> Any:
    weight = torch.arange(1.0, 9).to(x.dtype)
    return (
        *(F.cross_entropy(x, LABELS, label_smoothing=a, reduction=how) for how in ("mean", "sum", "none")),
        *(F.cross_entropy(x, LABELS, weight, label_smoothing=a, reduction=how) for how in ("mean", "sum")),
        F.cross_entropy(x, y.softmax(1), label_smoothing=a),
    )


def shrunk(x: Tensor, y: Tensor, a: float) -> Any:
    return F.hardshrink(x, a), F.softshrink(x, a), F.hardtanh(x, -a, 2 * a), F.threshold(x, a, -a)


def products(x: Tensor, y: Tensor, a: float) -> Any:
    square, batch = x @ y.t(), x[None].expand(3, 6, 8)
    return (
        torch.addmm(square, x, y.t(), beta=a, alpha=1 - a),
        torch.addmm(square, x, y.t(), beta=a),
        torch.baddbmm(square[None], batch, y.t()[None].expand(3, 8, 6), alpha=a),
        torch.addbmm(square, batch, y.t()[None].expand(3, 8, 6), beta=a),
        torch.addmv(x[:, 0], x, y[0], beta=a, alpha=a),
        torch.addr(x, x[:, 0], y[0], beta=a, alpha=a),
    )


def not_read(x: Tensor, y: Tensor, a: float) -> Any:
    return torch.addmm(torch.full((6, 6), torch.nan, dtype=x.dtype), x, y.t(), beta=0, alpha=a)


def far(x: Tensor, y: Tensor, a: float) -> Any:
    """An infinite distance has a derivative."""
    x = x + torch.zeros_like(x).masked_fill(x.detach() > 1, torch.inf)
    return F.huber_loss(x, y, "none", a), F.smooth_l1_loss(x, y, reduction="none", beta=a)


def placed(x: Tensor, y: Tensor, a: float) -> Any:
    places = torch.tensor([4, 0])
    return (
        x.index_fill(0, places, a),
        x.scatter(1, places[None], a),
        x.index_add(0, places, y[:2], alpha=a),
        F.pad(x, (1, -2, 0, 3), value=a),
        F.pad(LABELS, (2, 1), value=100 * a),
    )


def distances(x: Tensor, y: Tensor, a: float) -> Any:
    return F.cosine_similarity(x, y, eps=10 * a), F.pairwise_distance(x, y, eps=a), torch.isclose(x, y, atol=a, rtol=a)


def edges(x: Tensor, y: Tensor, a: float) -> Any:
    wild = torch.where(x > 1, torch.inf, torch.where(x < -1, torch.nan, x))
    filled = torch.nan_to_num(wild, a, 2 * a, -a), torch.nan_to_num(wild, torch.inf * a)
    endless = (
        y.masked_fill(y.detach() > 1, torch.inf * a),
        torch.full_like(y, torch.inf * -a),
        y.clamp_min(a / -math.inf),
    )
    return *filled, *endless, torch.logit(y.sigmoid(), eps=a / 3), y.clamp_max(a)


def beside(x: Tensor, y: Tensor, a: float) -> Any:
    return torch.div(x, a, rounding_mode="trunc"), torch.copysign(x, -a), torch.xlogy(y, a), (x // a).detach()


def between(x: Tensor, y: Tensor, a: float) -> Any:
    return x.lerp(y, a), torch.lerp(x, end=y, weight=1 - a), torch.add(x, y, alpha=a), torch.sub(x, y, alpha=2 * a)


PROGRAMS: dict[str, Program] = {
    "layer_norm": lambda x, y, a: F.layer_norm(x, (8,), y[0], y[1], a),
    "rms_norm": lambda x, y, a: (F.rms_norm(x, (8,), y[0], a), F.rms_norm(x.detach().t(), (6,), eps=a)),
    "group_norm": lambda x, y, a: F.group_norm(x[:, :, None] * y[:, None], 2, y[0], y[1], a),
    "instance_norm": lambda x, y, a: F.instance_norm(x[:, :, None] * y[:, None], eps=a),
    "elu": lambda x, y, a: (F.elu(x, a), F.celu(x.detach(), a)),
    "leaky": lambda x, y, a: F.leaky_relu(x, a),
    "softplus": lambda x, y, a: F.softplus(x, beta=a + 1, threshold=2 * a),
    **{
        program.__name__: program
        for program in (
            *(batch_norm, written, attention, losses, smoothed, shrunk, products, not_read, placed, distances, edges),
            *(beside, between, far),
        )
    },
}
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float64: 1e-12}


def run(program: Program, x: Tensor, y: Tensor, a: float, grad: bool) -> list[Tensor]:
    """Results and gradients."""
    x, y = (each.clone().requires_grad_(grad) for each in (x, y))
    result = program(x, y, a)
    results = list(result) if isinstance(result, tuple) else [result]
    if not grad:
        return results
    parts = [part for part in results if part.requires_grad]
    total: Any = sum((part * torch.linspace(1, 2, part.numel()).view(part.shape)).sum().double() for part in parts)
    grads = torch.autograd.grad(total, (x, y), allow_unused=True)
    return [*results, *(each for each in grads if each is not None)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_versions_serve_all_values(name: str, grad: bool) -> None:
    for dtype, tolerance in TOLERANCES.items():
        compiled, told = bolide.compile(PROGRAMS[name]), []
        with events.subscribed(told.append):
            for _ in range(5):
                x, y, a = torch.randn(6, 8).to(dtype), torch.randn(6, 8).to(dtype), random.uniform(0.05, 0.95)
                want, got = run(PROGRAMS[name], x, y, a, grad), run(compiled, x, y, a, grad)
                for one, other in zip(want, got, strict=True):
                    assert one.dtype is other.dtype and one.stride() == other.stride()
                    torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance, equal_nan=True)
        count = Counter(type(event).__name__ for event in told)
        assert count["Installed"] == 2 and not count["Break"] + count["Fallback"], (name, dtype, count)


READ = "layer_norm rms_norm group_norm instance_norm batch_norm attention leaky softplus products placed beside between"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", READ.split())
def test_numbers_that_are_data(name: str, dtype: torch.dtype) -> None:
    """One version, without a break; nothing is asked of them for a derivative."""

    def program(x: Tensor, y: Tensor, a: float) -> Any:
        return PROGRAMS[name](x, y, y.detach().float().sigmoid().mean().item())

    compiled, told = bolide.compile(program), []
    with events.subscribed(told.append):
        for _ in range(2):
            x, y = torch.randn(6, 8).to(dtype), torch.randn(6, 8).to(dtype)
            want, got = run(program, x, y, 0.0, True), run(compiled, x, y, 0.0, True)
            for one, other in zip(want, got, strict=True):
                torch.testing.assert_close(other, one, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    count = Counter(type(event).__name__ for event in told)
    assert count["Installed"] == 1 and not count["Break"] + count["Fallback"], count


def test_a_factor_of_one_is_a_factor() -> None:
    def added(x: Tensor, a: float) -> Tensor:
        return torch.addmm(x, x, x, beta=a, alpha=a).add(x, alpha=a)

    compiled, told = bolide.compile(added), []
    with events.subscribed(told.append):
        for a in (random.uniform(2, 3), 1.5, 1.0, 0.0, 0.5):
            x = torch.randn(4, 4)
            first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
            torch.testing.assert_close(compiled(first, a), added(second, a))
            torch.testing.assert_close(
                *(
                    torch.autograd.grad(run(each, a).sum(), each)[0]
                    for run, each in ((compiled, first), (added, second))
                )
            )
    assert sum(isinstance(event, events.Installed) for event in told) == 2


DRAWS: dict[str, tuple[Program, Program]] = {  # and what their results are, on average
    "dropout": (lambda x, y, a: F.dropout(x, a), lambda x, y, a: x),
    "dropout1d": (lambda x, y, a: F.dropout1d(x[None], a)[0], lambda x, y, a: x),
    "normal_": (lambda x, y, a: torch.empty_like(x).normal_(a, 2 * a), lambda x, y, a: torch.full_like(x, a)),
    "normal": (lambda x, y, a: torch.normal(1.0, a, (400, 50)), lambda x, y, a: torch.ones(400, 50)),
    "uniform_": (lambda x, y, a: torch.empty_like(x).uniform_(-a, 3 * a), lambda x, y, a: torch.full_like(x, a)),
    "exponential_": (lambda x, y, a: x.clone().exponential_(1 / a), lambda x, y, a: torch.full_like(x, a)),
    "bernoulli_": (lambda x, y, a: torch.empty_like(x).bernoulli_(a), lambda x, y, a: torch.full_like(x, a)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_by_changing_numbers(name: str) -> None:
    """Their means are within six standard deviations."""
    (program, mean), told = DRAWS[name], []
    compiled = bolide.compile(program)
    with events.subscribed(told.append):
        for _ in range(4):
            x, a = torch.randn(400, 50), random.uniform(0.1, 0.9)
            off = compiled(x, x, a) - mean(x, x, a)
            rows = off.mean(1)  # what is dropped together is in one row
            assert abs(rows.mean()) < 6 * rows.std() / 20, (name, a)
            assert off.std() > 0.01
    count = Counter(type(event).__name__ for event in told)
    assert count["Installed"] == 2 and not count["Break"] + count["Fallback"], count


def test_dropout_of_attention_changes() -> None:
    def attend(x: Tensor, p: float, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(x, x, torch.ones_like(x), dropout_p=p, is_causal=causal)

    compiled = bolide.compile(attend)
    for causal in (False, True):
        for _ in range(3):
            result = compiled(torch.randn(50, 2, 20, 4), random.uniform(0.1, 0.5), causal)
            assert abs(result.mean() - 1) < 0.1 and result.std() > 0.01


def test_numbers_that_raise_do_so_after_others() -> None:
    programs: list[tuple[Program, float]] = [
        (lambda x, y, a: F.dropout(x, a), 1.5),
        (lambda x, y, a: F.huber_loss(x, y, delta=a), -1.0),
        (lambda x, y, a: torch.empty_like(x).normal_(0.0, a), -1.0),
        (lambda x, y, a: F.cross_entropy(x, LABELS, label_smoothing=a), 2.0),
        (lambda x, y, a: F.batch_norm(x, None, None, training=True, eps=a), 0.0),
        (lambda x, y, a: F.cosine_similarity(x, y, eps=a), -1.0),
        (lambda x, y, a: F.softshrink(x, a), -1.0),
    ]
    x = torch.randn(6, 8)
    for program, bad in programs:
        compiled = bolide.compile(program)
        for _ in range(3):
            compiled(x, x, random.uniform(0.1, 0.9))
        with pytest.raises(Exception) as eager:
            program(x, x, bad)
        with pytest.raises(type(eager.value)) as ours, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(x, x, bad)
        assert str(ours.value) == str(eager.value)


def test_numbers_beside_integers() -> None:
    """Bounds are cut to integers, and what they bound stays integers."""
    compiled = bolide.compile(lambda a: F.hardtanh(LABELS, -a, a))
    for _ in range(3):
        a = random.uniform(1, 3)
        torch.testing.assert_close(compiled(a), F.hardtanh(LABELS, -a, a))


def test_dropout_of_nothing_is_the_tensor_itself() -> None:
    def drop(x: Tensor, p: float) -> Tensor:
        return F.dropout(x, p)

    compiled, x = bolide.compile(drop), torch.randn(3, 4)
    for p in (0.5, 0.25, 0.0, 0.75):
        assert (compiled(x, p) is x) is (p == 0)


SCHEDULES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "warmup": lambda x, step: x * (0.1 * min(1.0, (step + 1) / 101)),
    "decay": lambda x, step: x * max(0.01, 1.0 - step / 103),
    "branch": lambda x, step: x * (step / 107) if step / 107 < 0.99 else x.sin(),
    "between": lambda x, step: x * min(max(step / 109, 1e-3), 1.0) + (1 if step / 113 >= 0.001 else 2),
    "square root": lambda x, step: x * min((step + 1) ** -0.5, (step + 1) * 103**-1.5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_by_steps(name: str) -> None:
    """A quotient that is rounded is compared as a number, its value is not needed."""
    schedule, told = SCHEDULES[name], []
    compiled = bolide.compile(schedule)
    with events.subscribed(told.append):
        for step in random.sample(range(2, 100), 5):
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x, step), schedule(x, step))
        count = Counter(type(event).__name__ for event in told)
        assert count["Installed"] == 2 and not count["Break"] + count["Fallback"], count
        for step in (110, 115, 5000):
            torch.testing.assert_close(compiled(x, step), schedule(x, step))


def test_arguments_by_their_names() -> None:
    """Those of torch's functions, in any order."""

    def program(x: Tensor, y: Tensor, a: float) -> Any:
        return (
            F.huber_loss(target=y, input=x, delta=a),
            F.smooth_l1_loss(beta=a, input=x, target=y, reduction="sum"),
            F.triplet_margin_loss(anchor=x, positive=y, negative=x * y, margin=a, swap=True),
            F.margin_ranking_loss(x, y, target=x.detach().sign(), margin=a, reduction="none"),
            F.layer_norm(input=x, normalized_shape=[8], eps=a),
            F.batch_norm(x, training=True, running_mean=None, running_var=None, eps=a),
            F.cross_entropy(target=LABELS, input=x, label_smoothing=a / 3),
        )

    compiled, told = bolide.compile(program), []
    with events.subscribed(told.append):
        for _ in range(4):
            x, y, a = torch.randn(6, 8), torch.randn(6, 8), random.uniform(0.1, 2)
            for one, other in zip(run(program, x, y, a, True), run(compiled, x, y, a, True), strict=True):
                torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    count = Counter(type(event).__name__ for event in told)
    assert count["Installed"] == 2 and not count["Break"] + count["Fallback"], count
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        bolide.compile(lambda x, a: F.huber_loss(x, x, delta=a, alpha=a))(torch.randn(3), 0.5)


DERIVED_TWICE: dict[str, Program] = {
    "layer_norm": lambda x, y, a: F.layer_norm(x, (8,), y[0], y[1], a),
    "rms_norm": lambda x, y, a: F.rms_norm(x, (8,), y[0], a),
    "batch_norm": lambda x, y, a: F.batch_norm(x, None, None, y[0], y[1], True, 0.1, a),
    "group_norm": lambda x, y, a: F.group_norm(x, 2, y[0], y[1], a),
    "softplus": lambda x, y, a: F.softplus(x * y, a),
    "shifted mean": lambda x, y, a: x * (y.square().mean(-1, keepdim=True) + a),
}


@pytest.mark.parametrize("name", DERIVED_TWICE)
def test_gradients_of_gradients(name: str) -> None:
    """A number's tensor is there when the backward is derived, though nobody else holds it."""
    program = DERIVED_TWICE[name]
    compiled = bolide.compile(program)
    for _ in range(4):
        given = [torch.randn(6, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        a, found = random.uniform(0.1, 2), []
        for run in (compiled, program):
            first = torch.autograd.grad(run(*given, a).sin().sum(), given, create_graph=True)
            found.append(torch.autograd.grad(sum(each.square().sum() for each in first), given))
        torch.testing.assert_close(*found)
