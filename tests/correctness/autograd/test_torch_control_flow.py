"""torch.cond, while_loop, scan, associative_scan and map: results, gradients, and what breaks."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import associative_scan, map, scan, while_loop

import bolide


def breaks_of(fn, *args):
    return len(bolide.explain(fn)(*args).breaks)


def test_a_condition_on_sizes_is_decided_while_compiling():
    def program(x):
        return torch.cond(x.shape[0] > 3, lambda v: v.sin(), lambda v: v.cos(), (x,))

    compiled = bolide.compile(program, fullgraph=True)
    for size in (2, 4):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), x.sin() if size > 3 else x.cos())


def test_a_condition_on_data_runs_one_branch_with_its_gradient():
    def program(x, w):
        y = torch.cond(x.sum() > 0, lambda v: v.sin() * w, lambda v: v.sqrt() * w, (x,))
        return (y * 2).sum()

    compiled = bolide.compile(program)
    for sign in (1.0, -1.0, 1.0):
        x = (torch.rand(5) * sign).requires_grad_()
        w = torch.randn(5, requires_grad=True)
        taken = x.sin() * w if sign > 0 else x.sqrt() * w
        wanted = torch.autograd.grad((taken * 2).sum(), (x, w))
        got = torch.autograd.grad(compiled(x, w), (x, w))
        for mine, theirs in zip(got, wanted):
            torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert breaks_of(program, torch.randn(5), torch.randn(5)) == 0


def test_a_loop_runs_as_often_as_its_data_say():
    def program(x, limit):
        count, value = while_loop(lambda i, v: i < limit, lambda i, v: (i + 1, v * 1.5), (torch.tensor(0), x))
        return value + count

    compiled = bolide.compile(program)
    for limit in (0, 1, 5, 9):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, torch.tensor(limit)), x * 1.5**limit + limit)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_are_unrolled_with_their_derivatives(reverse):
    def program(x, w):
        carry, made = scan(lambda c, v: (torch.tanh(c * w + v), c * v), torch.zeros(3), x, reverse=reverse)
        return carry.sum() + (made * torch.arange(12.0).view(4, 3)).sum()

    def written_out(x, w):
        carry, made = torch.zeros(3), []
        for v in x.flip(0) if reverse else x:
            made.append(carry * v)
            carry = torch.tanh(carry * w + v)
        made = made[::-1] if reverse else made
        return carry.sum() + (torch.stack(made) * torch.arange(12.0).view(4, 3)).sum()

    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    got = torch.autograd.grad(bolide.compile(program, fullgraph=True)(x, w), (x, w))
    for mine, theirs in zip(got, torch.autograd.grad(written_out(x, w), (x, w))):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scans_combine_along_any_dimension(reverse):
    program = bolide.compile(lambda x: associative_scan(lambda a, b: a + b, x, 1, reverse=reverse), fullgraph=True)
    x = torch.randn(3, 5)
    torch.testing.assert_close(program(x), x.flip(1).cumsum(1).flip(1) if reverse else x.cumsum(1))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 16, 21])
@pytest.mark.parametrize("reverse", [False, True])
def test_generic_associative_scans_round_as_torchs(length, reverse):
    def combine(left, right):
        return {"a": left["a"] * right["a"], "b": right["a"] * left["b"] + right["b"]}

    def program(a, b):
        return associative_scan(combine, {"a": a, "b": b}, 1, reverse=reverse, combine_mode="generic")

    operands = [torch.randn(3, length, 2, requires_grad=True) for _ in range(2)]
    found, wanted = bolide.compile(program, fullgraph=True, backend="eager")(*operands), program(*operands)
    for mine, theirs in ((found[key], wanted[key]) for key in "ab"):
        assert torch.equal(mine, theirs)
    gradients = [torch.autograd.grad(result["b"].square().sum(), operands) for result in (found, wanted) if length > 1]
    for mine, theirs in zip(*gradients):
        torch.testing.assert_close(mine, theirs)


def test_map_gives_trees_of_stacked_results():
    program = bolide.compile(
        lambda xs, s: map(lambda v, t: {"a": v["x"].sin() + t, "b": v["y"] * 1}, xs, s), fullgraph=True
    )
    xs, s = {"x": torch.randn(4, 2), "y": torch.randn(4)}, torch.randn(2)
    got = program(xs, s)
    torch.testing.assert_close(got["a"], xs["x"].sin() + s)
    torch.testing.assert_close(got["b"], xs["y"])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1, 2])
def test_scans_over_other_dimensions(dim, reverse):
    def program(x):
        carry = torch.zeros_like(x.select(dim, 0))
        return scan(lambda c, v: (c + v, (c * v, v.sum())), carry, x, dim=dim, reverse=reverse)

    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(bolide.compile(program, fullgraph=True)(x), program(x))
