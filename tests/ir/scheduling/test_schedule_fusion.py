"""What shares a kernel, and that every pass keeps the meaning of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor import config
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.structure import structure_of
from bolide.inductor.lowering import lower
from bolide.inductor.machine import host_machine
from bolide.inductor.plan import Launch
from bolide.inductor.schedule.inline import inline
from bolide.inductor.schedule.pipeline import program_passes
from bolide.inductor.schedule.unify import Unifier
from bolide.symbolic import Expr
from tests.schedule_tools import check, compiled, graph_of

R = torch.randn
LOOSE = {"rtol": 1e-4, "atol": 1e-5}


def layer_norm_residual(x, r, w, b):
    y = x + r
    return y, F.layer_norm(y, (40,), w, b)


def bias_gelu(x, b):
    return F.gelu(x + b)


def bias_gelu_tanh(x, b):
    return F.gelu(x + b, approximate="tanh")


def masked_softmax(x, mask):
    return torch.softmax((x * 0.125).masked_fill(mask, -1e9), -1)


def rms_rotary(x, w, cos, sin):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    a, b = y.chunk(2, -1)
    return y * cos + torch.cat([-b, a], -1) * sin


def batch_statistics(x, w, b):
    mean = x.mean((0, 2, 3), keepdim=True)
    var = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return torch.relu((x - mean) * torch.rsqrt(var + 1e-5) * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1))


def softmax_over_channels(x):
    return torch.softmax(x, 1)


def chain_with_shared_parts(x):
    y = torch.tanh(x) * 2
    z = torch.sigmoid(y) + x
    return y.exp(), z * y, z.permute(1, 0).contiguous()


def through_reshape(x):
    return (x + 1).reshape(6, 4, 5).sin() * x.view(6, 4, 5)


def two_row_reductions(x):
    return x.sum(-1), (x * x).amax(-1)


def two_column_reductions(x):
    return x.sum(0), (x * x).sum(0)


def numbers_of_a_vector(x):
    return [x[i] * 2 + 1 for i in range(20)]


def sum_of_numbers(x):
    total = x[0]
    for i in range(1, x.shape[0]):
        total = total * 0.5 + x[i]
    return total, x[0] * 3


ONE_KERNEL: list[tuple[Callable[..., Any], list[Any]]] = [
    (layer_norm_residual, [R(4, 6, 40), R(4, 6, 40), R(40), R(40)]),
    (bias_gelu, [R(4, 6, 40), R(40)]),
    (bias_gelu_tanh, [R(4, 6, 40), R(40)]),
    (masked_softmax, [R(2, 3, 7, 20), R(7, 20) > 1]),
    (rms_rotary, [R(2, 3, 8, 16), R(16), R(8, 16), R(8, 16)]),
    (batch_statistics, [R(3, 5, 4, 4), R(5), R(5)]),
    (softmax_over_channels, [R(3, 6, 9)]),
    (through_reshape, [R(24, 5)]),
    (two_row_reductions, [R(24, 33)]),
    (two_column_reductions, [R(24, 33)]),
    (numbers_of_a_vector, [R(20)]),
    (sum_of_numbers, [R(60)]),
]


@pytest.mark.parametrize("case", ONE_KERNEL, ids=lambda case: case[0].__name__)
def test_one_kernel(case: Any) -> None:
    fn, inputs = case
    graph = check(fn, *inputs, **LOOSE)
    assert len(graph.plan.kernels) == 1, graph.plan.text()


def test_numbers_are_inlined_without_making_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work grows as the program does, though each number is made of all those before it."""
    make = Node.make
    made: list[int] = []
    for count in (32, 64):
        program = lower(graph_of(sum_of_numbers, [R(count)])[0])
        calls: list[str] = []
        monkeypatch.setattr(Node, "make", lambda op, *args, calls=calls: calls.append(op) or make(op, *args))
        inline(program, host_machine())
        monkeypatch.setattr(Node, "make", make)
        made.append(len(calls))
    assert made[1] < 2.5 * made[0], made


def test_cross_entropy_is_a_row_kernel_and_the_mean() -> None:
    graph = check(F.cross_entropy, R(10, 33), torch.randint(0, 33, (10,)), **LOOSE)
    assert len(graph.plan.kernels) <= 2, graph.plan.text()


def test_reductions_over_different_axes_are_kept_apart_with_a_reason() -> None:
    graph = check(lambda x: (x.sum(0), x.sum(1)), R(24, 33), **LOOSE)
    assert len(graph.plan.kernels) == 2
    assert [refusal.reason for refusal in graph.refusals] == ["they reduce over different axes"]


def test_sums_of_products_are_accumulated() -> None:
    graph = check(lambda a, b, c: a @ b + (b @ c + a @ c), R(6, 6), R(6, 6), R(6, 6), **LOOSE)
    assert len(graph.plan.kernels) == 0, graph.plan.text()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("which", [(slice(2),), (slice(None), slice(2)), (slice(1),), (slice(None), slice(1, 3)), (0,)])
def test_sums_of_pieces_of_products_and_of_matrices(which: Any, first: bool) -> None:
    """What is added to a part of a product, and a part of a matrix that is added to a product."""
    program = (lambda x, a, b: (a @ b)[which] + x) if first else (lambda x, a, b: x[which] + a[which] @ b)
    x = R(6, 6)[which].contiguous() if first else R(6, 6)
    check(
        program if first or len(which) == 1 else lambda x, a, b: x[which] + a @ b[which], x, R(6, 6), R(6, 6), **LOOSE
    )


def test_without_fusion_every_definition_has_its_kernel() -> None:
    inputs = [R(4, 6, 40), R(4, 6, 40), R(40), R(40)]
    with config.patch(fusion=False):
        graph = compiled(layer_norm_residual, inputs)
    assert len(graph.plan.kernels) > 4
    for mine, theirs in zip(graph(list(inputs)), layer_norm_residual(*inputs)):
        torch.testing.assert_close(mine, theirs, **LOOSE)


def test_a_kernel_names_all_it_does() -> None:
    graph = compiled(bias_gelu, [R(4, 40), R(40)])
    assert {"add", "gelu"} <= set(graph.kernels[0].origins)
    assert graph.kernels[0].bytes_read == 4 * (160 + 40) and graph.kernels[0].bytes_written == 4 * 160


def layers(x, w, v):
    for _ in range(3):
        x = torch.relu((x @ w).softmax(-1) @ v + x).cumsum(0)
    return x, torch.sin(x * 2), torch.sin(w * 2), torch.sin(w * 3)


def test_equal_groups_share_a_kernel() -> None:
    graph = check(layers, R(6, 8), R(8, 8), R(8, 8), rtol=1e-4, atol=1e-4)
    described = [structure_of(kernel) for kernel in graph.plan.kernels]
    assert len(set(described)) == len(described)  # another number, and another layout, is another kernel
    launches = [step.kernel for step in graph.plan.steps if isinstance(step, Launch)]
    assert set(launches) == set(range(len(described))) and len(launches) >= len(described) + 4
    assert {"softmax", "softmax_1", "softmax_2"} <= {o for kernel in graph.kernels for o in kernel.origins}


@pytest.mark.parametrize("count", [2, 5])
def test_equal_groups_write_each_to_its_own_input(count: int) -> None:
    def step(*tensors):
        for p, g, m in zip(*(tensors[k * count : (k + 1) * count] for k in range(3))):
            m.mul_(0.9).add_(g)
            p.sub_(m * 0.1)
        tensors[0].copy_(tensors[0].flip(0))  # not as the others: it is read at other places than it is written at

    given = [[R(6, 8) for _ in range(3 * count)] for _ in range(2)]
    mine, expected = [[[t.clone() for t in tensors] for tensors in given] for _ in range(2)]
    fast = bolide.compile(step, fullgraph=True)
    for a, b in zip(mine, expected):
        fast(*a)
        step(*b)
        for one, other in zip(a, b):
            torch.testing.assert_close(one, other)


# Sums over many numbers are of numbers around 1: those around 0 cancel, and leave rounding.
MORE: list[tuple[Callable[..., Any], list[Any]]] = [
    (chain_with_shared_parts, [R(6, 9)]),
    (lambda x, i, v: x.index_add(0, i, v) * 2, [R(6, 8), torch.tensor([1, 1, 3]), R(3, 8)]),
    (lambda i, w: F.embedding(i, w) * 2, [torch.randint(0, 9, (3, 4)), R(9, 5)]),
    (lambda x, w: torch.relu(x @ w) @ w.t(), [R(3, 5), R(5, 7)]),
    (lambda x: x.sum() + x.mean(), [R(60, 8)]),
    (lambda x: (x[:, 1:] - x[:, :-1]).abs().sum(1), [R(6, 9)]),
    (lambda x: F.pad(x, (1, 2)) * 3, [R(4, 5)]),
    (lambda x: x.argmax(-1), [R(6, 9)]),
    (lambda x: x + 1, [torch.empty(0, 4)]),
    (lambda x: x * 2 + 1, [R(())]),
    (lambda x: x.sum(1), [torch.empty(4, 0)]),
    (lambda x: (x.sum(), x.amax(), (x * 2).sum()), [R(64, 512) + 1]),
    (lambda x: (x.sum(0), x.mean(0)), [R(65536, 3) + 1]),
    (lambda x: (x.sum((0, 2)), x.any()), [R(128, 5, 300) + 1]),
    (lambda x: x - x.mean(), [R(64, 1024)]),
    (lambda a, b, c: a @ b + (b @ c + a @ c), [R(6, 6), R(6, 6), R(6, 6)]),
    (lambda a, b: (a @ b + a).relu(), [R(6, 6), R(6, 6)]),
]


@pytest.mark.parametrize("case", ONE_KERNEL + MORE, ids=lambda case: case[0].__name__)
def test_every_pass_keeps_the_meaning(case: Any) -> None:
    fn, inputs = case
    gm, _ = graph_of(fn, inputs)
    program = lower(gm)
    expected = evaluate(program, inputs)
    for run in program_passes(host_machine(), fusion=True).values():
        program = run(program)
        for mine, theirs in zip(evaluate(program, inputs), expected):
            torch.testing.assert_close(mine, theirs, equal_nan=True, **LOOSE)


@pytest.mark.parametrize("case", MORE, ids=lambda case: str(MORE.index(case)))
def test_more_results(case: Any) -> None:
    check(case[0], *case[1], **LOOSE)


# ---- axes ---------------------------------------------------------------------------------------------------------


def axes(**extents: int) -> Any:
    return tuple((name, Expr.const(extent)) for name, extent in extents.items())


def variable(name: str, extent: int) -> Expr:
    return Expr.var(name, 0, extent - 1)


def test_unifier_splits_axes_where_radices_differ() -> None:
    left, right = axes(r=6, c=20), axes(b=2, t=3, h=4, d=5)
    unifier = Unifier(left, right)
    b, t, h, d = (variable(name, extent.value) for name, extent in right)
    assert unifier.equate([variable("r", 6), variable("c", 20)], [3 * b + t, 5 * h + d])
    assert [extent.value for _, extent in unifier.leaves(left)] == [2, 3, 4, 5]
    assert [unifier.name(a) for a, _ in unifier.leaves(right)] == [a for a, _ in unifier.leaves(left)]


def test_unifier_refuses_what_is_no_renaming() -> None:
    left = axes(i=6)
    assert not Unifier(left, axes(j=6)).equate([variable("i", 6)], [variable("j", 6) + 1])
    assert not Unifier(left, axes(j=3)).equate([variable("i", 6)], [2 * variable("j", 3)])
    assert not Unifier(axes(i=6, k=6), axes(j=6)).equate([variable("i", 6), variable("k", 6)], [variable("j", 6)] * 2)
