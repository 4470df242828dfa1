"""Loops split where a condition on their axis changes, or an address turns: the same results, no masks left."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor.ir.loops import Kernel, Loop, Node, Stmt, Store
from bolide.inductor.ir.rewrites import in_blocks, split_at
from bolide.inductor.ir.walks import loads_of, roots_in, statements
from bolide.inductor.machine import host_machine
from bolide.inductor.schedule.nest import Schedule, cut
from bolide.symbolic import Expr
from tests.ir.kernel_tools import both, const, i64, load, loop, op, param, store, var
from tests.schedule_tools import assert_same, check, compiled

SIZE = 400
MACHINE = host_machine()


def at_least(expr: Expr) -> Node:
    return Node.make("ge", torch.bool, (Node.make("index", i64, (), expr), const(0, i64)))


def split_at_bounds(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The nest, split where its schedule says."""
    axes = tuple([statement.axis for statement in statements(body) if isinstance(statement, Loop)])
    inside = [statement for statement in statements(body) if isinstance(statement, Store)]
    return split_at(body, dict(cut(Schedule(axes, ()), inside, MACHINE).splits))


def stores(body: tuple[Stmt, ...]) -> int:
    return sum(isinstance(statement, Store) for statement in statements(body))


def selecting(rows: int, columns: int, steps: list[tuple[int, int]]) -> tuple[Stmt, ...]:
    """A nest that reads another place of x for each condition step · j + offset >= 0 that holds."""
    i, j = var("i", rows), var("j", columns)
    value = load("x", i + j)
    for number, (step, offset) in enumerate(steps):
        condition = at_least(j * step + offset)
        there = load("x", i + j + number, torch.float32, condition, masked=True)
        value = op("where", condition, op("mul", there, const(number + 2.0)), value)
    inner = loop("vector", "j", columns, store("out", i * columns + j, value))
    return (loop("parallel", "i", rows, inner),)


def test_pieces_give_what_the_whole_does() -> None:
    random.seed(2)
    for _ in range(25):
        rows, columns = random.randint(1, 5), random.randint(1, 70)
        steps = [(random.choice([1, -1, 2, -3]), random.randint(-80, 80)) for _ in range(random.randint(0, 3))]
        body = selecting(rows, columns, steps)
        params = (param("out", rows * columns, role="out"), param("x", SIZE))
        given = {"out": torch.zeros(rows * columns), "x": torch.randn(SIZE)}
        found = [both(Kernel("k", params, some), given)[0] for some in (body, split_at_bounds(body))]
        for _, mine, expected in found:
            assert torch.equal(mine, expected), (rows, columns, steps)
        assert torch.equal(found[0][1], found[1][1])


def test_masks_go_and_few_pieces_stay_few() -> None:
    split = split_at_bounds(selecting(3, 64, [(1, -32)]))
    assert stores(split) == 2
    assert not any(node.arg.masked for node in loads_of(roots_in(split)))
    many = selecting(3, 200, [(1, -20 * k) for k in range(1, MACHINE.most_pieces + 1)])
    assert split_at_bounds(many) == many
    short = selecting(3, MACHINE.lanes - 1, [(1, -2)])
    assert split_at_bounds(short) == short


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_joined_and_padded_tensors(dtype: torch.dtype) -> None:
    random.seed(3)
    for _ in range(8):
        a, b, c, d = (random.randint(1, 40) for _ in range(4))
        x, y = (torch.randint(0, 2, shape).to(dtype) for shape in [(a, b, c), (a, b, d)])
        check(lambda x, y: torch.cat([x, y], 2), x, y)
        check(lambda x, y: torch.cat([x.transpose(0, 2), y.transpose(0, 2), x.transpose(0, 2)], 0), x, y)
        check(lambda x: F.pad(x, (1, 2, 0, 3)), x)
        check(lambda x: F.pad(x, (0, 20, 1, 0)), x)
        check(lambda x: torch.slice_scatter(x, x[:, :1] * 0, 1, 0, 1), x)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def test_rotated_halves_and_their_gradients() -> None:
    for half in (3, 16, 32, 50):
        x, angles = torch.randn(2, 3, 5, 2 * half), torch.randn(5, half)
        check(rotary, x, angles.cos(), angles.sin())
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        bolide.compile(rotary)(mine, angles.cos(), angles.sin()).square().sum().backward()
        rotary(theirs, angles.cos(), angles.sin()).square().sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_scatters_go_row_by_row() -> None:
    """A piece of each row after the other, in the order of the rows: repeated places add up, or the last one stays."""
    rows, columns, places = 40, 150, 7
    i, j = var("i", rows), var("j", columns)
    for mode in ("add", "set"):
        value = load("x", i * columns + j)
        there = Expr.var("$0", 0, places - 1) * columns + j
        update = store("out", there, value, load("index", i, i64), mode=mode)
        axes = (loop("vector", "j", columns).axis, loop("serial", "i", rows).axis)
        (blocks,) = cut(Schedule(axes, ()), [update], MACHINE).blocks
        assert blocks == ("j", 32)
        split = in_blocks(axes, dict([blocks]), [update])
        params = (param("out", places * columns, role="inout"), param("x", rows * columns), param("index", rows, i64))
        given = {
            "out": torch.zeros(places * columns),
            "x": torch.randint(0, 9, (rows * columns,)).float(),
            "index": torch.randint(0, places, (rows,)),
        }
        ((_, mine, expected),) = both(Kernel("k", params, split), given)
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("way", ["reflect", "replicate", "circular", "roll", "roll twice", "remainder"])
def test_addresses_that_turn(way: str) -> None:
    """Borders that repeat what they surround, and rows that are rolled: pieces of a row in which elements follow one
    another, so nothing is gathered."""
    rows, columns = random.randrange(3, 9), random.randrange(40, 150)
    image = torch.randn(2, 3, rows, columns)
    if random.random() < 0.3:
        image = image.contiguous(memory_format=torch.channels_last)
    borders = [random.randrange(0, 3) for _ in range(4)]
    down, right = random.randrange(-rows, 2 * rows), random.randrange(-columns, 2 * columns)
    programs = {
        "roll": lambda x: x.sin().roll(right, -1) * 2,
        "roll twice": lambda x: x.roll((down, right), (2, 3)) + x,
        "remainder": lambda x: x[..., torch.arange(columns + 7) % columns],
    }
    program = programs.get(way) or (lambda x: torch.nn.functional.pad(x.relu(), borders, mode=way) + 1)
    graph = compiled(program, (image,))
    assert_same(graph([image])[0], program(image))
    whole = way in ("reflect", "replicate", "roll") and image.is_contiguous()
    assert not whole or not any("masked.gather" in kernel.llvm_ir for kernel in graph.kernels)
    dynamic = bolide.compile(program, dynamic=True)
    for size in (columns, columns + 1, columns - 1) if way != "remainder" else (columns,):
        x = torch.randn(2, 3, rows, size)
        assert_same(dynamic(x), program(x))
