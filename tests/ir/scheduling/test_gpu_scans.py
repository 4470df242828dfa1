"""Scans on a GPU: threads that share a row, long ones in runs."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bolide.inductor.codegen.cuda import gpu_module, ptx_of
from bolide.inductor.ir.definitions import Computed, Program
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.ir.interpret import interpret
from bolide.inductor.ir.loops import Axis, Init, Kernel, Loop, Node, ReduceOp, Store, Update
from bolide.inductor.ir.printer import program_text
from bolide.inductor.ir.verify import InvalidKernel, verify
from bolide.inductor.lowering import lower
from bolide.inductor.machine import HOPPER
from bolide.inductor.schedule.nest import Schedule, in_teams
from bolide.inductor.schedule.split import split_scans
from bolide.symbolic import Expr, as_expr
from tests.ir.kernel_tools import acc, load, param, store, var
from tests.schedule_tools import graph_of

sys.path.insert(0, str(Path(__file__).parents[1] / "loops"))
from gpu_emulator import emulate

WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float64: torch.float64,
    torch.int32: torch.int64,
}


def scan_of_rows(rows: int, columns: Expr, op: ReduceOp, dtype: torch.dtype, team: int) -> Kernel:
    """out[i, j] = the reduction of the elements up to x[i, j]; ends[i] = that of all, which is known behind."""
    i, j, wide = var("i", rows), var("j", columns), WIDE[dtype]
    x = load("x", i * columns + j, dtype)
    value = x if dtype is wide else Node.make("cast", wide, (x,))
    total = acc("a", wide)
    result = total if dtype is wide else Node.make("cast", dtype, (total,))
    scan = Loop(Axis("j", columns, "scan", "team"), (Update("a", value), store("out", i * columns + j, result)))
    body = Loop(Axis("i", as_expr(rows), "parallel", "grid"), (Init("a", op, wide), scan, store("ends", i, result)))
    size = columns * rows
    params = (param("out", size, dtype, "out"), param("ends", rows, dtype, "out"), param("x", size, dtype))
    return Kernel("k", params, (body,), tuple(sorted(columns.free_vars)), device=torch.device("cuda"), team=team)


@pytest.mark.parametrize("team", [32, 96, 256])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_a_team_scans_rows(dtype: torch.dtype, team: int) -> None:
    """Of any length, whichever thread comes first, wherever they lie in memory, and for sizes that change."""
    lengths = [1, random.randint(2, 90), 4 * team, random.randrange(512, 1500, 8), random.randint(1000, 1999)]
    for length in lengths:
        op: ReduceOp = random.choice(("sum", "prod"))
        given = {"out": torch.zeros(3 * length), "ends": torch.zeros(3), "x": torch.randint(0, 3, (3 * length,))}
        given = {name: tensor.to(dtype) for name, tensor in given.items()}
        if op == "prod" and dtype.is_floating_point:
            given["x"] = (1 + torch.randn(3 * length) / 64).to(dtype)
        for columns in (as_expr(length), Expr.var("n", 1)):
            kernel = scan_of_rows(3, columns, op, dtype, team)
            sizes = dict.fromkeys(kernel.sizes, length)
            verify(kernel, sizes)
            wanted = {name: tensor.clone() for name, tensor in given.items()}
            interpret(kernel, wanted, sizes)
            for step, start in ((1, 0), (-1, 1)):
                mine = {name: torch.cat([tensor[:start], tensor])[start:] for name, tensor in given.items()}
                emulate(kernel, mine, sizes, step)
                torch.testing.assert_close(mine, wanted)
            if columns.is_const:
                x = given["x"].view(3, length)
                exact = x.cumsum(1, dtype=WIDE[dtype]) if op == "sum" else x.cumprod(1, dtype=WIDE[dtype])
                torch.testing.assert_close(mine["out"].view(3, length), exact.to(dtype))
                ptx_of(gpu_module([kernel], HOPPER)[0], HOPPER.target)


def test_a_scan_that_a_team_shares_has_no_loops_inside() -> None:
    kernel = scan_of_rows(3, as_expr(64), "sum", torch.float64, 32)
    (outer,) = kernel.body
    assert isinstance(outer, Loop)
    init, scan, end = outer.body
    assert isinstance(scan, Loop) and isinstance(scan.body[1], Store)
    inner = Loop(Axis("k", as_expr(1), "serial"), scan.body[1:])
    scan = replace(scan, body=(*scan.body[:1], inner))
    with pytest.raises(InvalidKernel, match="more in it than updates and stores"):
        verify(replace(kernel, body=(replace(outer, body=(init, scan, end)),)))


SOME = replace(HOPPER, scan_threads=1 << 10, scan_row=32, scan_column=8, teams=(32,))


def lowered(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Program:
    return lower(graph_of(function, [x])[0])


def runs_of(program: Program) -> list[int | None]:
    return [d.run for d in program.definitions if isinstance(d, Computed) and d.scan and not d.name.endswith("_ends")]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_scans_in_runs_keep_their_meaning(rank: int) -> None:
    """Along memory and across it, whether or not runs are all of one length, with NaN and infinities."""
    found = []
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        dim = random.randrange(rank)
        shape = [random.randint(1, 5 if found else 2) for _ in range(rank)]  # few rows at first, which are split
        shape[dim] = random.choice((random.randint(100, 600), 256, 512))
        x = (torch.rand(shape) * 3).to(dtype)
        if dtype is torch.float32:
            x.view(-1)[random.randrange(x.numel())] = random.choice((float("nan"), float("inf"), -float("inf")))
        for function in (lambda x, dim=dim: (x * 2).cumsum(dim), lambda x, dim=dim: x.double().cumsum(dim)):
            before = lowered(function, x)
            after = split_scans(before, SOME)
            found += runs_of(after)
            assert ("in runs of" in program_text(after)) == any(runs_of(after))
            (mine,), (theirs,) = evaluate(after, [x]), evaluate(before, [x])
            torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert any(found), found


@pytest.mark.parametrize(
    ("shape", "dim", "run"),
    [
        ((1 << 15, 2048), 0, 256),  # few columns
        ((1 << 15, 2048), 1, None),  # rows enough
        ((1 << 26,), 0, 1 << 17),
        ((1 << 13,), 0, None),  # a team takes it faster than three launches
        ((100, 5), 0, None),
        ((64, 512, 1 << 13), 1, None),  # threads enough
        ((5003, 96), 0, 64),
    ],
    ids=str,
)
def test_long_scans_that_few_threads_would_share_run_in_parts(
    shape: tuple[int, ...], dim: int, run: int | None
) -> None:
    program = lowered(lambda x: x.cumsum(dim), torch.empty(shape))
    assert runs_of(split_scans(program, HOPPER)) == [run]


@pytest.mark.parametrize(
    ("rows", "columns", "team"), [(1 << 15, 2048, 32), (512, 1 << 14, 512), (1 << 12, 1 << 13, 128), (9, 7, 1)]
)
def test_teams_that_scan_are_as_small_as_they_can_be(rows: int, columns: int, team: int) -> None:
    """Each step of a scan costs all of them time; but a row of a few elements is one thread's."""
    row = Axis("j", as_expr(columns), "reduce_vector")
    schedule = Schedule((Axis("i", as_expr(rows), "parallel"),), (row,))
    assert in_teams(schedule, HOPPER, False, {}, True).team == team
