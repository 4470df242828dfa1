"""Bounds of indices with symbolic strides and extents: windows of tensors are proved to stay within them, whatever the
sizes; what leaves the memory is refused."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from kernel_tools import loop, param, store

import bolide
from bolide.inductor.ir.loops import Axis, Kernel, Node
from bolide.inductor.ir.ranges import is_within
from bolide.inductor.ir.verify import InvalidKernel, verify
from bolide.symbolic import Expr


def window(rng: random.Random) -> tuple[list[Expr], list[Expr], list[Axis], list[int]]:
    """A tensor's sizes (symbols less a number, or numbers), and for each the first place, the step and the number of
    places of a window that fits for all sizes: (sizes, coordinates, axes, room)."""
    sizes, coords, axes, room = [], [], [], []
    for dim in range(rng.randint(1, 4)):
        size = Expr.const(rng.randint(2, 6)) if rng.random() < 0.3 else Expr.var(f"s{dim}", 2)
        if not size.is_const and rng.random() < 0.4:
            size = size + rng.randint(0, 3) if rng.random() < 0.5 else size * rng.randint(2, 3)
        left, right = rng.randint(0, 3), rng.randint(0, 3)
        extent = size - left - right
        if extent.is_const and extent.value < 1:
            left, right, extent = 0, 0, size
        backwards = rng.random() < 0.3
        axis = Axis(f"i{dim}", extent, "serial")
        i = Expr.var(axis.name, 0, extent - 1)
        sizes.append(size)
        coords.append(extent - 1 - i + left if backwards else i + left)
        axes.append(axis)
        room.append(right)
    return sizes, coords, axes, room


def flat(sizes: list[Expr], coords: list[Expr]) -> tuple[Expr, Expr]:
    """The index of the element at coordinates, and the number of elements."""
    index = Expr.const(0)
    for size, coord in zip(sizes, coords):
        index = index * size + coord
    numel = Expr.const(1)
    for size in sizes:
        numel = numel * size
    return index, numel


def places(index: Expr, axes: list[Axis], values: dict[str, int]) -> list[int]:
    """The index in all iterations."""
    ranges = [range(axis.extent.evaluate(values)) for axis in axes]
    names = [axis.name for axis in axes]
    return [index.evaluate({**values, **dict(zip(names, point))}) for point in itertools.product(*ranges)]


def test_windows_are_proved_and_what_leaves_them_is_refused():
    rng, proved, refused = random.Random(random.randrange(2**31)), 0, 0
    for _ in range(300):
        sizes, coords, axes, room = window(rng)
        index, numel = flat(sizes, coords)
        order = rng.sample(axes, len(axes))
        names = sorted(set().union(*(size.free_vars for size in sizes)))
        assert is_within(index, numel, order) is True, (index, numel, order)
        proved += 1
        values = {name: rng.randint(8, 12) for name in names}
        found = places(index, order, values)
        assert not found or (min(found) >= 0 and max(found) < numel.evaluate(values))
        moved = [coords[0] + room[0] + 1, *coords[1:]]
        outside, _ = flat(sizes, moved)  # the window's last row lies behind the tensor
        assert is_within(outside, numel, order) is False, (outside, numel, order)
        before, _ = flat(sizes, [coord - size for coord, size in zip(coords, sizes)])
        assert is_within(before, numel, order) is False, (before, numel, order)
        refused += 2
    assert proved and refused


def test_whatever_is_said_is_true_of_indices_at_random():
    """Of sums of products of axes and sizes: proved ones never leave the memory, refused ones do."""
    rng, said = random.Random(random.randrange(2**31)), {True: 0, False: 0, None: 0}
    for _ in range(400):
        s, t = Expr.var("s", 2), Expr.var("t", 2)
        terms = [Expr.const(1), s, t, s - 1, t - 2, s * t, s - t]
        extents = [rng.choice([Expr.const(3), s, t, s - 1, t - 2, s + 1]) for _ in range(rng.randint(1, 3))]
        axes = [Axis(f"i{n}", extent, "serial") for n, extent in enumerate(extents)]
        index = Expr.const(rng.randint(0, 2))
        for axis in axes:
            index = index + Expr.var(axis.name, 0, axis.extent - 1) * rng.choice(terms)
        numel = rng.choice([s * t, s * t * 3, s + t, s * s * t + 1, Expr.const(12)])
        verdict = is_within(index, numel, axes)
        said[verdict] += 1
        for values in ({"s": a, "t": b} for a in (2, 3, 6) for b in (2, 3, 5)):
            found = places(index, axes, values)
            if found and verdict is True:
                assert min(found) >= 0 and max(found) < numel.evaluate(values), (index, numel, axes, values)
        if verdict is False:
            values = {"s": 11, "t": 17}
            found = places(index, axes, values)
            assert min(found) < 0 or max(found) >= numel.evaluate(values), (index, numel, axes)
    assert said[True] > 20 and said[False] > 20, said


@pytest.mark.parametrize("step", [-1, 1])
def test_a_kernel_that_leaves_symbolic_memory_is_refused(step):
    s = Expr.var("s", 2)
    i = Expr.var("i", 0, s - 1)
    body = loop("serial", "i", s, store("y", i + step, Node.make("const", torch.float32, (), 1.0)))
    bad = Kernel("k", (param("y", s, role="out"),), (body,), sizes=("s",))
    with pytest.raises(InvalidKernel, match=r"index i [+-] 1 goes from"):
        verify(bad)


def test_sizes_that_divide_by_nothing_are_not_tried():
    s, t = Expr.var("s", 2), Expr.var("t", 1)
    i = Expr.var("i", 0, s - 1)
    groups = t // 4  # 0 where t is less than 4
    assert is_within(i // groups, s // groups + 1, [Axis("i", s, "serial")]) in (True, None)
    assert is_within(i % groups + t * 0 - 1, t, [Axis("i", s, "serial")]) is not True


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[..., 1:] - x[..., :-1],
        lambda x: torch.relu(x[..., 2:-2]).flatten(),
        lambda x: F.avg_pool1d(x, 3, 1) + F.max_pool1d(x, 3, 1),
        lambda x: F.avg_pool2d(x, (2, 3), 1),
        lambda x: x.unfold(-1, 3, 1).sum(-1),
        lambda x: x[:, 1:].diff(dim=-1).flip(-1).cumsum(-1) * 2,
    ],
    ids=["difference", "crop", "pools", "pool2d", "unfold", "diff"],
)
def test_windows_over_changing_sizes(function):
    compiled = bolide.compile(function)
    for rows, length in ((4, 7), (5, 9), (3, 12), (6, 8)):
        x, y = (torch.randn(2, rows, length, requires_grad=True) for _ in "xy")
        y.data.copy_(x.data)
        mine, theirs = compiled(x), function(y)
        torch.testing.assert_close(mine, theirs)
        mine.sin().sum().backward()
        theirs.sin().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_what_the_program_assumes_of_its_sizes_is_not_refused() -> None:
    """Rows of four of n numbers are n numbers only where n is a multiple of four, as the guards of a program say."""
    n = Expr.var("n", 2)
    i = Expr.var("i", 0, n - 1)
    axes = [Axis("i", n, "serial")]
    assert is_within(i, n // 4 * 4, axes, {"n": 8}) is None
    assert is_within(i + 1, n // 4 * 4, axes, {"n": 8}) is False
    assert is_within(i, n // 4 * 4, axes, {}) is None
    before = Expr.var("k", None)
    assert is_within(i + before, n + 1, [Axis("i", Expr.const(1), "serial")]) is None
