"""Kernels that read across memory: their tiles give eager's results for all extents, and touch no other memory."""

from __future__ import annotations

import random
import re

import pytest
import torch
from torch import Tensor

import bolide
from bolide.inductor.codegen.compiler import module_text
from bolide.inductor.ir.loops import Axis, Kernel, Loop
from bolide.inductor.ir.rewrites import in_blocks
from bolide.inductor.ir.walks import statements
from bolide.inductor.machine import host_machine
from bolide.inductor.schedule.nest import Schedule, cut
from tests.ir.kernel_tools import both, load, loop, op, param, store, var
from tests.schedule_tools import check

MACHINE = host_machine()
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)


def axes_of(kernel: Kernel) -> list[Axis]:
    return [statement.axis for statement in statements(kernel.body) if isinstance(statement, Loop)]


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 2, shape).bool() if dtype == torch.bool else torch.randint(0, 100, shape).to(dtype)


def transposition(rows: int, columns: int) -> Kernel:
    i, j = var("i", columns), var("j", rows)
    value = op("add", load("x", j * columns + i), load("y", i * rows + j))
    axes = (loop("parallel", "i", columns).axis, loop("vector", "j", rows).axis)
    stores = [store("out", i * rows + j, value)]
    blocks = cut(Schedule(axes, ()), stores, MACHINE).blocks
    body = in_blocks(axes, dict(blocks), stores)
    size = rows * columns
    return Kernel("turn", (param("out", size, role="out"), param("x", size), param("y", size)), body)


def test_tiles_touch_their_own_memory_only() -> None:
    for rows, columns in [(16, 16), (17, 31), (64, 48), (65, 16), (130, 33), (31, 100)]:
        kernel = transposition(rows, columns)
        assert any(axis.kind == "tile" for axis in axes_of(kernel))
        given = {"out": torch.zeros(rows * columns), "x": torch.randn(rows * columns), "y": torch.randn(rows * columns)}
        for name, mine, expected in both(kernel, given):
            assert torch.equal(mine, expected), name


def test_each_step_of_a_transposition_is_a_block() -> None:
    lanes = MACHINE.target.vector_bits // 32
    for kernel in (transposition(64, 64), transposition(65, 33)):
        blocks = re.split(r"^\w+:$", module_text(kernel, MACHINE), flags=re.MULTILINE)
        assert max(block.count("shufflevector") for block in blocks) == lanes


def test_small_kernels_and_those_along_memory_stay_as_they_are() -> None:
    assert all(axis.kind != "tile" for axis in axes_of(transposition(MACHINE.tile - 1, 100)))
    axes = (loop("parallel", "i", 64).axis, loop("vector", "j", 64).axis)
    schedule = Schedule(axes, ())
    assert cut(schedule, [store("out", var("j", 64), load("x", var("j", 64)))], MACHINE) is schedule


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transpositions_are_eagers(dtype: torch.dtype) -> None:
    random.seed(1)
    for _ in range(6):
        rows, columns, depth = random.randint(1, 140), random.randint(1, 140), random.randint(1, 4)
        x, y = filled((depth, rows, columns), dtype), filled((depth, columns, rows), dtype)
        check(lambda x: x.transpose(1, 2).contiguous(), x)
        check(lambda x: x.permute(2, 1, 0).contiguous(), x)
        if dtype != torch.bool:
            check(lambda x, y: (x.transpose(1, 2) + y, x.transpose(1, 2) * 2), x, y)
            check(lambda x, y: (x.transpose(1, 2) + x[:, :1, :1], y + 1), x, y)


def test_images_to_channels_last_and_back() -> None:
    x = torch.randn(3, 20, 9, 7)
    check(lambda x: x.contiguous(memory_format=torch.channels_last), x)
    check(lambda x: x.contiguous(), x.contiguous(memory_format=torch.channels_last))


def test_tiles_of_symbolic_sizes() -> None:
    program = bolide.compile(lambda x, y: (x.t() + y).relu(), dynamic=True, fullgraph=True)
    for rows, columns in [(40, 50), (16, 16), (129, 3), (2, 300), (63, 65), (5, 5)]:
        x, y = torch.randn(rows, columns), torch.randn(columns, rows)
        assert torch.equal(program(x, y), (x.t() + y).relu())
