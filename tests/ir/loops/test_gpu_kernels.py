"""Code for GPUs: LLVM and PTX that can be made, and threads, run here one after the other, against the oracle."""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_emulator import emulate
from kernel_tools import acc, const, f32, i64, load, op, param, store, var

from bolide.inductor.codegen.cuda import gpu_module, ptx_of, supported
from bolide.inductor.ir.interpret import interpret
from bolide.inductor.ir.loops import (
    ATOMIC,
    Axis,
    AxisKind,
    Bound,
    Flag,
    Init,
    Kernel,
    Local,
    Loop,
    Node,
    Param,
    Stmt,
    Update,
)
from bolide.inductor.ir.scalar_ops import SCALAR_OPS
from bolide.inductor.ir.verify import InvalidKernel, verify
from bolide.inductor.machine import HOPPER
from bolide.symbolic import Expr, as_expr

SEED = int(os.environ["BOLIDE_TEST_SEED"])
f64, bf16, f16 = torch.float64, torch.bfloat16, torch.float16
TEAMS = (1, 32, 96)


@pytest.fixture(autouse=True)
def _seed() -> None:
    print(f"seed {SEED}")
    torch.manual_seed(SEED)


def over(kind: AxisKind, name: str, extent: Expr | int, bound: Bound | None, *body: Stmt) -> Loop:
    return Loop(Axis(name, as_expr(extent), kind, bound), body)


def grid(name: str, extent: Expr | int, *body: Stmt, kind: AxisKind = "parallel") -> Loop:
    return over(kind, name, extent, "grid", *body)


def shared(name: str, extent: Expr | int, *body: Stmt) -> Loop:
    """A loop of a team: a reduction if anything in it is updated."""
    updates = any(isinstance(statement, Update) for statement in body)
    return over("reduce_vector" if updates else "vector", name, extent, "team", *body)


def made(params: tuple[Param, ...], *body: Stmt, team: int = 1, **more: object) -> Kernel:
    return Kernel("k", params, body, device=torch.device("cuda"), team=team, **more)  # type: ignore[arg-type]


def check(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None
) -> dict[str, torch.Tensor]:
    """What the threads make: what the oracle makes, whoever comes first, and wherever in memory it lies. And PTX of it
    can be made."""
    verify(kernel, sizes)
    wanted = {name: tensor.clone() for name, tensor in buffers.items()}
    interpret(kernel, wanted, sizes)
    results: dict[str, torch.Tensor] = {}
    for step in (1, -1):
        results = {name: tensor.clone() for name, tensor in buffers.items()}
        if step < 0:
            results = {name: torch.cat([tensor[:1], tensor])[1:] for name, tensor in buffers.items()}
        emulate(kernel, results, sizes, step)
        for param_ in kernel.params:
            torch.testing.assert_close(results[param_.name], wanted[param_.name], equal_nan=True)
    ptx(kernel)
    return results


def ptx(kernel: Kernel) -> str:
    text, _ = gpu_module([kernel], HOPPER)
    return ptx_of(text, HOPPER.target)


def test_pointwise_with_broadcasting() -> None:
    i, j = var("i", 37), var("j", 53)
    value = op("mul", op("add", load("x", i * 53 + j), load("bias", j)), load("scale", i))
    params = (param("y", 37 * 53, role="out"), param("x", 37 * 53), param("bias", 53), param("scale", 37))
    kernel = made(params, grid("i", 37, grid("j", 53, store("y", i * 53 + j, value), kind="vector")))
    x, bias, scale = torch.randn(37, 53), torch.randn(53), torch.randn(37)
    y = check(kernel, {"y": torch.zeros(37 * 53), "x": x.flatten(), "bias": bias, "scale": scale})["y"]
    torch.testing.assert_close(y.view(37, 53), (x + bias) * scale[:, None])


def test_sizes_that_change() -> None:
    n, m = Expr.var("n", 1), Expr.var("m", 1)
    i, j = var("i", n), var("j", m)
    params = (param("y", n * m, role="out"), param("x", n * m), param("z", m))
    value = op("sub", load("z", j), load("x", i * m + j))
    body = grid("i", n, grid("j", m, store("y", i + j * n, value), kind="vector"))
    kernel = made(params, body, sizes=("n", "m"))
    for sizes in ({"n": 5, "m": 77}, {"n": 300, "m": 3}, {"n": 1, "m": 1}):
        x = torch.randn(sizes["n"], sizes["m"])
        z = torch.randn(sizes["m"])
        y = check(kernel, {"y": torch.zeros(x.numel()), "x": x.flatten(), "z": z}, sizes)["y"]
        assert torch.equal(y, (z - x).T.flatten())


def softmax(rows: int, columns: int, team: int, kept: bool) -> Kernel:
    """With the exponentials computed twice, or kept in scratch memory."""
    i, j = var("i", rows), var("j", columns)
    x = load("x", i * columns + j)
    power = op("exp", op("sub", x, acc("most")))
    again = load("row", j) if kept else power
    body = (
        Init("most", "max", f32),
        shared("j", columns, Update("most", x)),
        Init("total", "sum", f32),
        shared("j", columns, *([store("row", j, power)] if kept else []), Update("total", power)),
        shared("j", columns, store("y", i * columns + j, op("div", again, acc("total")))),
    )
    local = (Local("row", f32, as_expr(columns)),) if kept else ()
    params = (param("y", rows * columns, role="out"), param("x", rows * columns))
    return made(params, grid("i", rows, *body), team=team, locals=local)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("columns", [5, 200, 256])
@pytest.mark.parametrize("team", TEAMS)
def test_softmax(team: int, columns: int, kept: bool) -> None:
    x = torch.randn(5, columns)
    y = check(softmax(5, columns, team, kept), {"y": torch.zeros(x.numel()), "x": x.flatten()})["y"]
    torch.testing.assert_close(y.view_as(x), x.softmax(1))


@pytest.mark.parametrize("team", TEAMS)
def test_layer_norm_of_bfloat16(team: int) -> None:
    i, j, columns = var("i", 5), var("j", 130), 130
    x = op("cast", load("x", i * columns + j, bf16), dtype=f32)
    mean = op("mul", acc("total"), const(1 / columns))
    away = op("sub", x, mean)
    scale = op("rsqrt", op("add", op("mul", acc("squares"), const(1 / columns)), const(1e-5)))
    body = (
        Init("total", "sum", f32),
        shared("j", columns, Update("total", x)),
        Init("squares", "sum", f32),
        shared("j", columns, Update("squares", op("product", away, away))),
        store("mean", i, mean),
        shared("j", columns, store("y", i * columns + j, op("cast", op("mul", away, scale), dtype=bf16))),
    )
    params = (param("y", 5 * columns, bf16, "out"), param("mean", 5, role="out"), param("x", 5 * columns, bf16))
    kernel = made(params, grid("i", 5, *body), team=team)
    given = torch.randn(5, columns).bfloat16()
    zeros = {"y": torch.zeros(5 * columns, dtype=bf16), "mean": torch.zeros(5)}
    results = check(kernel, {**zeros, "x": given.flatten()})
    wanted = torch.nn.functional.layer_norm(given.float(), (columns,)).bfloat16()
    torch.testing.assert_close(results["y"].view_as(wanted), wanted)


def total_and_most(rows: int, summed: Node, compared: Node, *before: Stmt) -> tuple[Stmt, ...]:
    """The sum of one value over all rows, and the maximum of another."""
    updates = Update("total", summed), Update("most", compared)
    return Init("total", "sum", f32), Init("most", "max", f32), over("reduce", "i", rows, None, *before, *updates)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 31, 32, 33, 100])
def test_column_sums(rows: int) -> None:
    """A thread takes several rows at a time, and what is left one by one."""
    i, j = var("i", rows), var("j", 45)
    x = load("x", i * 45 + j)
    body = (*total_and_most(rows, x, x), store("y", j, acc("total")), store("z", j, acc("most")))
    params = (param("y", 45, role="out"), param("z", 45, role="out"), param("x", rows * 45))
    x = torch.randn(rows, 45)
    results = check(made(params, grid("j", 45, *body)), {"y": torch.zeros(45), "z": torch.zeros(45), "x": x.flatten()})
    torch.testing.assert_close(results["y"], x.sum(0))
    assert torch.equal(results["z"], x.amax(0))


@pytest.mark.parametrize("team", TEAMS)
def test_sum_of_all_in_two_regions(team: int) -> None:
    """Parts, and a team that joins them."""
    i, j, p = var("i", 7), var("j", 111), var("p", 7)
    params = (param("y", 1, role="out"), param("parts", 7, role="out"), param("x", 777))
    parts = (
        Init("part", "sum", f32),
        shared("j", 111, Update("part", load("x", i * 111 + j))),
        store("parts", i, acc("part")),
    )
    total = (Init("total", "sum", f32), shared("p", 7, Update("total", load("parts", p))), store("y", 0, acc("total")))
    kernel = made(params, grid("i", 7, *parts), *total, team=team)
    _, (launches,) = gpu_module([kernel], HOPPER)
    assert [launch.teams.value for launch in launches] == [7, 1]
    x = torch.randn(777)
    y = check(kernel, {"y": torch.zeros(1), "parts": torch.zeros(7), "x": x})["y"]
    torch.testing.assert_close(y[0], x.sum())


def test_only_regions_that_have_something_to_share_have_teams() -> None:
    i, j, n = var("i", 20), var("j", 64), var("n", 500)
    filled = grid("n", 500, store("filled", n, const(1.0)), kind="vector")
    sums = (Init("s", "sum", f32), shared("j", 64, Update("s", load("x", i * 64 + j))), store("sums", i, acc("s")))
    params = (param("filled", 500, role="out"), param("sums", 20, role="out"), param("x", 1280))
    kernel = made(params, filled, grid("i", 20, *sums), team=32)
    _, (launches,) = gpu_module([kernel], HOPPER)
    assert [(launch.team, launch.teams.value) for launch in launches] == [(1, 125), (32, 20)]
    check(kernel, {"filled": torch.zeros(500), "sums": torch.zeros(20), "x": torch.randn(1280)})


@pytest.mark.parametrize("which", ["argmax", "argmin"])
@pytest.mark.parametrize("team", TEAMS)
def test_position_of_the_best(team: int, which: str) -> None:
    i, j = var("i", 6), var("j", 100)
    body = (
        Init("best", which, f32),  # type: ignore[arg-type]
        shared("j", 100, Update("best", load("x", i * 100 + j), Node.make("index", i64, (), j))),
        store("y", i, acc("best", i64)),
    )
    kernel = made((param("y", 6, i64, "out"), param("x", 600)), grid("i", 6, *body), team=team)
    x = torch.randint(-3, 4, (6, 100)).float()
    x[1, 40] = x[1, 70] = float("nan")
    x[2] = float("inf")
    x[3] = -float("inf")
    y = check(kernel, {"y": torch.zeros(6, dtype=i64), "x": x.flatten()})["y"]
    assert torch.equal(y, getattr(x, which)(1))


@pytest.mark.parametrize("dtype", [f64, f16, torch.int8, torch.int32, i64, torch.bool], ids=str)
def test_reductions_of_all_types(dtype: torch.dtype) -> None:
    i, j = var("i", 3), var("j", 150)
    x = load("x", i * 150 + j, dtype)
    value = op("cast", x, dtype=f32) if dtype == f16 else x
    kind = value.dtype
    ops = ["any", "all"] if dtype == torch.bool else ["sum", "max", "min"] + ["prod"] * (kind == i64)
    params = tuple([param(name, 3, kind, "out") for name in ops])
    body = (
        *[Init(name, name, kind) for name in ops],  # type: ignore[arg-type]
        shared("j", 150, *[Update(name, value) for name in ops]),
        *[store(name, i, acc(name, kind)) for name in ops],
    )
    given = torch.randn(450) * 5 if dtype.is_floating_point else torch.randint(-3, 4, (450,)) * 2 + 1
    given = given > -5 if dtype == torch.bool else given.to(dtype)
    for team in (32, 96):
        zeros = {name: torch.zeros(3, dtype=kind) for name in ops}
        check(made((*params, param("x", 450, dtype)), grid("i", 3, *body), team=team), {**zeros, "x": given})


TYPES = (f32, f64, bf16, f16, torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, i64)


@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts(source: torch.dtype) -> None:
    i = var("i", 101)
    targets = [target for target in TYPES if target != source]
    names = [f"y{number}" for number in range(len(targets))]
    stores = [store(name, i, op("cast", load("x", i, source), dtype=t)) for name, t in zip(names, targets)]
    params = (*[param(name, 101, t, "out") for name, t in zip(names, targets)], param("x", 101, source))
    x = (torch.randn(101) * 50).abs().to(source) if source != torch.bool else torch.randn(101) > 0
    if source in (f32, f64):
        x[:4] = torch.tensor([1e-3, 0.0, 65504.0, 1.00390625])
    zeros = {name: torch.zeros(101, dtype=t) for name, t in zip(names, targets)}
    results = check(made(params, grid("i", 101, *stores)), {**zeros, "x": x})
    for name, target in zip(names, targets):
        if target.is_floating_point:  # numbers too large for an integer are anything
            assert torch.equal(results[name], x.to(target)), target


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16, torch.int32, i64], ids=str)
def test_gather_and_atomic_additions(dtype: torch.dtype) -> None:
    i, j = var("i", 40), var("j", 9)
    place = load("index", i, i64)
    row = Expr.var("$0", 0, 11) * 9 + j
    values = (load("table", row, dtype, place), load("x", i * 9 + j, dtype))
    params = (
        param("picked", 360, dtype, "out"),
        param("sums", 108, dtype, "inout"),
        param("index", 40, i64),
        param("table", 108, dtype),
        param("x", 360, dtype),
    )
    stores = (store("picked", i * 9 + j, values[0]), store("sums", row, values[1], place, mode="atomic_add"))
    kernel = made(params, grid("i", 40, grid("j", 9, *stores, kind="vector")))
    index, table = torch.randint(0, 12, (40,)), torch.randint(-4, 5, (12, 9)).to(dtype)
    x = torch.randint(-2, 3, (40, 9)).to(dtype)
    buffers = {"picked": torch.zeros(360, dtype=dtype), "sums": table.flatten(), "index": index}
    results = check(kernel, {**buffers, "table": table.flatten(), "x": x.flatten()})
    assert torch.equal(results["picked"].view(40, 9), table[index])
    assert torch.equal(results["sums"].view(12, 9), table.clone().index_add_(0, index, x))


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("dtype", [torch.int32, i64], ids=str)
def test_extremes_are_found_atomically(mode: str, dtype: torch.dtype) -> None:
    i = var("i", 300)
    place, value = load("index", i, i64), load("x", i, dtype)
    params = (param("found", 7, dtype, "inout"), param("index", 300, i64), param("x", 300, dtype))
    kernel = made(params, grid("i", 300, store("found", Expr.var("$0", 0, 6), value, place, mode=ATOMIC[mode])))
    index, x, before = torch.randint(0, 7, (300,)), torch.randint(-(2**31), 2**31, (300,)), torch.randint(-9, 9, (7,))
    buffers = {"found": before.to(dtype), "index": index, "x": x.to(dtype)}
    wanted = buffers["found"].clone().scatter_reduce_(0, index, buffers["x"], f"a{mode}")
    assert torch.equal(check(kernel, buffers)["found"], wanted)


def test_a_sum_of_bools_is_their_union() -> None:
    """256 times True is not 0, and no byte is another one than 1."""
    i = var("i", 300)
    row = Expr.var("$0", 0, 2)
    place, value = load("index", i, i64), load("x", i, torch.bool)
    params = (param("any", 3, torch.bool, "inout"), param("index", 300, i64), param("x", 300, torch.bool))
    kernel = made(params, grid("i", 300, store("any", row, value, place, mode="atomic_add")))
    index, x = torch.zeros(300, dtype=i64), torch.arange(300) < 256
    index[256:] = 1
    found = check(kernel, {"any": torch.tensor([False, False, True]), "index": index, "x": x})["any"]
    assert found.view(torch.uint8).tolist() == [1, 0, 1]


@pytest.mark.parametrize("team", TEAMS)
def test_masks_pieces_and_padding(team: int) -> None:
    """Loads and stores under masks; two loops of a team that write one buffer."""
    i, j, k = var("i", 4), var("j", 50), var("k", 7)
    inside = op("ge", Node.make("index", i64, (), 39 - j), const(0, i64), dtype=torch.bool)
    even = op("eq", op("mod", Node.make("index", i64, (), j), const(2, i64)), const(0, i64), dtype=torch.bool)
    body = (
        shared("j", 50, store("y", i * 57 + j, load("x", i * 40 + j, f32, inside, masked=True))),
        shared("k", 7, store("y", i * 57 + 50 + k, const(2.0))),
        shared("j", 50, store("z", i * 50 + j, load("y", i * 57 + 56 - j), even, masked=True)),
    )
    params = (param("z", 200, role="inout"), param("y", 228, role="inout"), param("x", 160))
    x = torch.randn(4, 40)
    kernel = made(params, grid("i", 4, *body), team=team)
    y = check(kernel, {"z": torch.randn(200), "y": torch.zeros(228), "x": x.flatten()})["y"]
    wanted = torch.cat([torch.nn.functional.pad(x, (0, 10)), torch.full((4, 7), 2.0)], 1)
    assert torch.equal(y.view(4, 57), wanted)


def test_integer_division_and_flags() -> None:
    i = var("i", 200)
    a, d = load("a", i, torch.int32), load("d", i, torch.int32)
    ops = ["floordiv", "truncdiv", "mod", "fmod"]
    params = tuple([param(name, 200, torch.int32, "out") for name in ops])
    flag = store("seen", 0, op("lt", a, d, dtype=torch.bool), mode="any")
    body = grid("i", 200, *[store(name, i, op(name, a, d)) for name in ops], flag)
    given = (param("seen", 1, torch.bool, "inout"), param("a", 200, torch.int32), param("d", 200, torch.int32))
    zeros = {name: torch.zeros(200, dtype=torch.int32) for name in ops}
    numbers = torch.randint(-1000, 1000, (200,), dtype=torch.int32)
    divisors = torch.randint(1, 30, (200,), dtype=torch.int32) * (
        1 - 2 * torch.randint(0, 2, (200,), dtype=torch.int32)
    )
    seen = torch.zeros(1, dtype=torch.bool)
    results = check(made((*params, *given), body), {**zeros, "seen": seen, "a": numbers, "d": divisors})
    assert torch.equal(results["floordiv"], numbers // divisors) and bool(results["seen"])


@pytest.mark.parametrize("where", [0, 77, 199, None])
def test_flags_that_are_asserted(where: int | None) -> None:
    i = var("i", 200)
    value = load("a", i, torch.int32)
    body = grid(
        "i",
        200,
        store("out", i, value),
        store("bad", 0, op("lt", value, const(0, torch.int32), dtype=torch.bool), mode="any"),
    )
    params = (param("out", 200, torch.int32, "out"), param("a", 200, torch.int32))
    kernel = replace(made(params, body), flags=(Flag("bad", 'less than 0, says "it"'),))
    numbers = torch.randint(0, 1000, (200,), dtype=torch.int32)
    if where is not None:
        numbers[where] = -3
    for run in (interpret, emulate):
        failed = nullcontext() if where is None else pytest.raises(RuntimeError, match='less than 0, says "it"')
        with failed:
            run(kernel, {"out": torch.zeros(200, dtype=torch.int32), "a": numbers})
    assert "__assertfail" in ptx(kernel)


@pytest.mark.parametrize("mode", ["set", "add"])
def test_flags_are_no_memory(mode: str) -> None:
    i = var("i", 8)
    truth = op("lt", load("a", i, f32), const(0.0, f32), dtype=torch.bool)
    stored = store("bad", 0, truth, mode=mode)
    read = store("out", i, op("or", truth, load("bad", 0, torch.bool), dtype=torch.bool))
    params = (param("out", 8, torch.bool, "out"), param("a", 8))
    for statement in (stored, read):
        kernel = replace(made(params, grid("i", 8, store("out", i, truth))), flags=(Flag("bad", "bad"),))
        with pytest.raises(InvalidKernel, match="bad is a flag"):
            verify(replace(kernel, body=(grid("i", 8, statement),)))


@pytest.mark.parametrize("team", TEAMS)
def test_a_team_waits_for_what_another_thread_does(team: int) -> None:
    """Scratch memory that is turned around in every iteration of a loop, and sums across two loops."""
    i, s, j, n = var("i", 3), var("s", 4), var("j", 70), 70
    body = (
        Init("total", "sum", f32),
        over(
            "serial",
            "s",
            4,
            None,
            shared("j", n, store("row", j, load("x", (i * 4 + s) * n + j))),
            shared("j", n, store("y", (i * 4 + s) * n + j, load("row", n - 1 - j))),
            shared("j", n, Update("total", load("row", j))),
            store("row", 0, op("add", load("row", n - 1), const(1.0))),
            shared("j", n, store("z", (i * 4 + s) * n + j, load("row", 0))),
        ),
        store("sums", i, acc("total")),
    )
    outputs = (param("y", 12 * n, role="out"), param("z", 12 * n, role="out"), param("sums", 3, role="out"))
    params = (*outputs, param("x", 12 * n))
    kernel = made(params, grid("i", 3, *body), team=team, locals=(Local("row", f32, as_expr(n)),))
    x = torch.randn(12, n)
    zeros = {"y": torch.zeros(12 * n), "z": torch.zeros(12 * n), "sums": torch.zeros(3)}
    results = check(kernel, {**zeros, "x": x.flatten()})
    assert torch.equal(results["y"].view_as(x), x.flip(1))
    torch.testing.assert_close(results["sums"], x.view(3, -1).sum(1))


@pytest.mark.parametrize("team", [32, 96])
def test_a_result_in_the_memory_of_an_operand(team: int) -> None:
    """All of a row is read before any of it is stored, by other threads."""
    i, j, n = var("i", 3), var("j", 150), 150
    body = (
        Init("total", "sum", f32),
        shared("j", n, Update("total", load("x", i * n + n - 1 - j))),
        over("serial", "k", 2, None, shared("j", n, store("y", i * n + j, acc("total")))),
    )
    kernel = made((param("y", 3 * n, role="out"), param("x", 3 * n)), grid("i", 3, *body), team=team)
    x = torch.randn(3, n)
    memory = x.flatten().clone()
    emulate(kernel, {"y": memory, "x": memory}, step=-1)
    torch.testing.assert_close(memory.view(3, n), x.sum(1, keepdim=True).expand(3, n))


@pytest.mark.parametrize("dtype", [f32, bf16, i64], ids=str)
def test_neighbours_that_read_by_quotients_and_rests(dtype: torch.dtype) -> None:
    """Where a thread takes several: of divisors that divide their number or do not, wherever the first one is."""
    n = 96
    for divisor in (2, 3, 4, 8, 11, 37):
        shift, other = (int(torch.randint(-20, 20, ())) for _ in range(2))
        i, j = var("i", 3), var("j", n)
        quotient, rest = (j + 24 + shift) // divisor, (j + i * 8 + 24 + other) % divisor
        within = Expr.min(Expr.max(quotient - 3, 0), n // divisor)  # a window's neighbour, or the nearest one
        places = {"y": i * 64 + quotient, "z": rest, "w": i * 64 + within}
        stores = [store(name, i * n + j, load("x", at, dtype)) for name, at in places.items()]
        params = (*[param(name, 3 * n, dtype, "out") for name in places], param("x", 256, dtype))
        kernel = made(params, grid("i", 3, grid("j", n, *stores, kind="vector")))
        outs = {name: torch.zeros(3 * n, dtype=dtype) for name in places}
        check(kernel, {**outs, "x": torch.randint(-9, 9, (256,)).to(dtype)})


def test_elements_that_lanes_share_are_loaded_in_pieces() -> None:
    i, j = var("i", 3), var("j", 64)
    body = store("y", i * 64 + j, load("x", i * 32 + j // 2, bf16))
    params = (param("y", 192, bf16, "out"), param("x", 96, bf16))
    text, _ = gpu_module([made(params, grid("i", 3, grid("j", 64, body, kind="vector")))], HOPPER)
    assert text.count("load <4 x i16>") == 1  # eight lanes read four elements


OF_BITS = "and or xor not shl shr umin"
OF_INTEGERS = f"{OF_BITS} neg abs sign add sub mul floordiv truncdiv mod fmod min max eq ne lt le gt ge where"


@pytest.mark.parametrize("dtype", [f32, f64, torch.int32, i64], ids=str)
def test_what_is_supported_has_code(dtype: torch.dtype) -> None:
    i = var("i", 8)
    params, stores = [param("condition", 8, torch.bool)], list[Stmt]()
    of_floats = {name for name, op_ in SCALAR_OPS.items() if op_.evaluate is not None} - {
        "bits",
        "of_bits",
        *OF_BITS.split(),
    }
    for name in sorted(of_floats if dtype.is_floating_point else OF_INTEGERS.split()):
        if supported(name, dtype):
            operands = [load(f"{name}{n}", i, dtype) for n in range(SCALAR_OPS[name].operands)]
            if name == "where":
                operands[0] = load("condition", i, torch.bool)
            result = torch.bool if SCALAR_OPS[name].result == "bool" else dtype
            params += [param(name_.arg.buffer, 8, dtype) for name_ in operands if name_.dtype == dtype]
            params.append(param(name, 8, result, "out"))
            stores.append(store(name, i, Node.make(name, result, tuple(operands))))
    kernel = made(tuple(params), grid("i", 8, *stores, kind="vector"))
    verify(kernel)
    assert ".entry" in ptx(kernel)


def test_ptx_says_what_a_gpu_is_to_do() -> None:
    text = ptx(softmax(4, 512, 128, False))
    for wanted in ("shfl.sync.bfly.b32", "bar.sync", "st.shared.b32", "max.NaN.f32", ".maxntid 128", "ld.global.b32"):
        assert wanted in text, wanted
    assert "ld.b32" not in text and "st.b32" not in text  # addresses of any kind of memory
    text = ptx(softmax(4, 512, 32, True))
    assert "bar.warp.sync" in text and "bar.sync" not in text


def test_what_gpus_do_not_have_is_refused() -> None:
    i = var("i", 8)
    params = (param("y", 8, f64, "out"), param("x", 8, f64))
    with pytest.raises(NotImplementedError, match="lgamma"):
        ptx(made(params, grid("i", 8, store("y", i, op("lgamma", load("x", i, f64))))))


def test_a_block_has_so_much_shared_memory() -> None:
    """48 KiB, or the driver refuses the code: for rows of all teams of a block, and for partial results."""
    for columns, teams in ((3072, 4), (3073, 1), (12288, 1)):
        _, ((launch,),) = gpu_module([softmax(4, columns, 32, True)], HOPPER)
        assert launch.teams_per_block == teams
    with pytest.raises(ValueError, match=r"needs \d+ bytes of shared memory"):
        gpu_module([softmax(4, 12288, 64, True)], HOPPER)


def test_what_a_team_may_not_do() -> None:
    j = var("j", 64)
    params = (param("y", 64, role="out"), param("x", 64))
    x = load("x", j)
    with pytest.raises(InvalidKernel, match="a part of it"):
        verify(made(params, Init("s", "sum", f32), shared("j", 64, Update("s", op("add", x, acc("s")))), team=32))
    with pytest.raises(InvalidKernel, match="side by side"):
        verify(made(params, shared("j", 64, store("y", j * 0, x)), team=32))
    with pytest.raises(InvalidKernel, match="a team of 48"):
        verify(made(params, shared("j", 64, store("y", j, x)), team=48))
    with pytest.raises(InvalidKernel, match="bound to a team"):
        verify(made(params, over("serial", "j", 64, "team", store("y", j, x)), team=32))


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("rows", [3, 200, 256, 1000])
def test_a_team_adds_up_across_memory(team: int, rows: int) -> None:
    i, j = var("i", rows), var("j", 3)
    body = (
        Init("total", "sum", f32),
        shared("i", rows, Update("total", load("x", i * 3 + j))),
        store("y", j, acc("total")),
    )
    kernel = made((param("y", 3, role="out"), param("x", rows * 3)), grid("j", 3, *body), team=team)
    x = torch.randn(rows, 3)
    torch.testing.assert_close(check(kernel, {"y": torch.zeros(3), "x": x.flatten()})["y"], x.sum(0))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("team", TEAMS)
def test_long_sums_are_rounded_little(team: int, known: bool) -> None:
    """Of equal numbers, all roundings of a plain sum are to the same side."""
    length = 120_000 + int(torch.randint(1000, ()))
    n: Expr = as_expr(length) if known else Expr.var("n", 1)
    x = load("x", var("j", n))
    body = (Init("total", "sum", f32), shared("j", n, Update("total", x)), store("y", var("i", 1), acc("total")))
    params = param("y", 1, role="out"), param("x", n)
    kernel = made(params, grid("i", 1, *body), team=team, sizes=() if known else ("n",))
    number = torch.rand(()) + 0.1
    buffers = {"y": torch.zeros(1), "x": number.expand(length).contiguous()}
    emulate(kernel, buffers, None if known else {"n": length}, 1)
    torch.testing.assert_close(buffers["y"][0].double(), number.double() * length, rtol=4e-6, atol=0)


def to_bfloat16(exact: Fraction) -> torch.Tensor:
    """An exact result rounded once, to the nearest bfloat16, ties to even."""
    if not exact:
        return torch.zeros((), dtype=bf16)
    size, exponent = abs(exact), -133
    while size >= Fraction(2) ** (exponent + 8):
        exponent += 1
    digits = round(size / Fraction(2) ** exponent)  # Python rounds ties to even, too
    magnitude = math.inf if digits * Fraction(2) ** exponent >= 2**128 else math.ldexp(digits, exponent)
    return torch.tensor(math.copysign(magnitude, exact), dtype=f64).to(f32).to(bf16)


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_arithmetic_of_bfloat16(name: str) -> None:
    """It is done two at a time in bfloat16, with eager's results to the bit: what is rounded to float32 before has been
    rounded once. All bit patterns, and pairs that nearly cancel or lie near ties."""
    count = 4096
    bits = torch.randint(-(1 << 15), 1 << 15, (2, count), dtype=torch.int16)
    x, y = bits.view(bf16)
    near = torch.randint(-24, 24, (count // 2,))
    y[: count // 2] = torch.ldexp(
        y[: count // 2].float().frexp()[0], x[: count // 2].float().frexp()[1] + near
    ).bfloat16()
    i = var("i", count)
    body = op("cast", op(name, *(op("cast", load(given, i, bf16), dtype=f32) for given in "xy")), dtype=bf16)
    kernel = made(
        (*(param(n, count, bf16, "out" if n == "z" else "in") for n in "zxy"),),
        grid("i", count, store("z", i, body), kind="vector"),
    )
    text, _ = gpu_module([kernel], HOPPER)
    assert f"{name}.rn.bf16x2" in ptx_of(text, HOPPER.target)
    result = check(kernel, {"z": torch.zeros(count, dtype=bf16), "x": x, "y": y})["z"]
    eager = getattr(torch, name)(x, y)
    is_number = ~eager.isnan()
    assert torch.equal(result.isnan(), eager.isnan())
    assert torch.equal(result[is_number].view(torch.int16), eager[is_number].view(torch.int16))
    finite = x.isfinite() & y.isfinite()
    for left, right, got in zip(*(t[finite][:1000].double().tolist() for t in (x, y)), result[finite][:1000]):
        exact = getattr(operator, name)(Fraction(left), Fraction(right))
        assert to_bfloat16(exact).item() == got.item(), f"seed {SEED}: {name}({left!r}, {right!r})"


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("dtype", [bf16, f32])
def test_rows_in_two_parts(team: int, dtype: torch.dtype) -> None:
    """Conditions that hold for all elements of a thread's, or not, and such that do not: what is read and written under
    them, and chosen by them."""
    rows, columns = 3, 256
    cut = int(torch.randint(0, 65, ())) * 4 + int(torch.randint(0, 2, ())) * int(torch.randint(0, 4, ()))
    i, j = var("i", rows), var("j", columns)
    place, bound = Node.make("index", i64, (), j), const(cut, i64)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        for left, right in ((place, bound), (bound, place)):
            on = op(name, left, right, dtype=torch.bool)
            off = op("not", on)
            x = load("x", i * columns + j, dtype, on, masked=True)
            y = load("x", i * columns + columns - 1 - j, dtype, off, masked=True)
            body = (
                store("z", i * columns + j, op("where", on, x, y)),
                store("w", i * columns + j, x, off, masked=True),
            )
            params = (*(param(n, rows * columns, dtype, "out") for n in "zw"), param("x", rows * columns, dtype))
            loops = grid(
                "i", rows, shared("j", columns, *body) if team > 1 else grid("j", columns, *body, kind="vector")
            )
            given = {n: torch.zeros(rows * columns, dtype=dtype) for n in "zw"}
            check(made(params, loops, team=team), {**given, "x": torch.randn(rows * columns).to(dtype)})


@pytest.mark.parametrize("team", TEAMS)
def test_random_numbers(team: int) -> None:
    """Four neighbours share a block, also those that are not the thread's, or lie apart."""
    rows, columns, away = 3, 260, int(torch.randint(1000, ()))
    i, j = var("i", rows), var("j", columns)
    places = (i * columns + j, i * columns + j + away, columns * 4 - j, 2 * j + i, i * 3 + j)
    draws = [Node.make("philox", f32, (load("seed", 0, i64),), (1 << 35, place)) for place in places]
    draws.append(Node.make("philox_normal", f32, (load("seed", 0, i64),), (5, j)))
    body = [store(f"y{n}", i * columns + j, draw) for n, draw in enumerate(draws)]
    outs = [param(f"y{n}", rows * columns, role="out") for n in range(len(draws))]
    loops = shared("j", columns, *body) if team > 1 else grid("j", columns, *body, kind="vector")
    kernel = made((*outs, param("seed", 1, i64)), grid("i", rows, loops), team=team)
    given = {out.name: torch.zeros(rows * columns) for out in outs}
    check(kernel, {**given, "seed": torch.randint(-(2**63), 2**63 - 1, (1,))})


@pytest.mark.parametrize("columns", [2, 45, 46, 1])
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_columns_of_bfloat16(rows: int, columns: int) -> None:
    """A thread takes two columns side by side, of which it stores what it adds up."""
    i, j = var("i", rows), var("j", columns)
    x = op("cast", load("x", i * columns + j, bf16), dtype=f32)
    twice = op("cast", op("mul", x, const(2.0)), dtype=bf16)
    body = (
        *total_and_most(rows, op("cast", twice, dtype=f32), x, store("z", i * columns + j, twice)),
        store("y", j, acc("total")),
        store("w", j, op("cast", acc("most"), dtype=bf16)),
    )
    outs = param("y", columns, role="out"), param("w", columns, bf16, "out"), param("z", rows * columns, bf16, "out")
    given = {"y": torch.zeros(columns), "w": torch.zeros(columns).to(bf16), "z": torch.zeros(rows * columns).to(bf16)}
    kernel = made((*outs, param("x", rows * columns, bf16)), grid("j", columns, *body, kind="vector"))
    assert "ld.global.b32" in ptx(kernel) or columns % 2
    check(kernel, {**given, "x": torch.randn(rows * columns).to(bf16)})


@pytest.mark.parametrize("team", (1, 32))
@pytest.mark.parametrize("dtype", [f32, bf16, torch.bool])
@pytest.mark.parametrize("step", [1, 2, 3, -1])
def test_runs_out_of_pieces(step: int, dtype: torch.dtype, team: int) -> None:
    """Runs that start anywhere, or of every so manyth element, under masks or not: they are taken out of pieces of 128
    bits that are loaded as a whole, none of which reaches over the end of the buffer."""
    columns, rows, away = 64, 3, int(torch.randint(16, ()))
    width = abs(step) * columns + 32
    i, j = var("i", rows), var("j", columns)
    first = int(torch.randint(-8, 8, ()))
    start = as_expr(16 + first) + (width - 33 if step < 0 else 0)
    place = i * width + j * step + start
    low, high = (Node.make("index", i64, (), expr) for expr in (j - away, j - columns + away))
    inside = op("and", op("ge", low, const(0, i64), dtype=torch.bool), op("lt", high, const(0, i64), dtype=torch.bool))
    on = load("on", i * columns + j, torch.bool)
    loads = [load("x", place, dtype)]
    loads += [load("x", place + more, dtype, mask, masked=True) for mask in (inside, on) for more in (-1, 1)]
    body = [store(f"y{n}", i * columns + j, node) for n, node in enumerate(loads)]
    loops = shared("j", columns, *body) if team > 1 else grid("j", columns, *body, kind="vector")
    outs = [param(f"y{n}", rows * columns, dtype, "out") for n in range(len(loads))]
    for numel in (rows * width, rows * width + 1):
        params = (*outs, param("x", numel, dtype), param("on", rows * columns, torch.bool))
        x, given = (torch.randn(numel) * 2).to(dtype), torch.rand(rows * columns) < 0.5
        buffers = {out.name: torch.zeros(rows * columns, dtype=dtype) for out in outs}
        check(made(params, grid("i", rows, loops), team=team), {**buffers, "x": x, "on": given})


@pytest.mark.parametrize("team", [1, 32])
def test_loads_come_before_stores(team: int) -> None:
    """But not those of what a store before them writes."""
    rows, columns = 4, 128
    i, j = var("i", rows), var("j", columns)
    at = i * columns + j
    body = (
        store("p", at, op("mul", load("p", at), load("g", at))),
        store("m", at, op("add", load("m", at), load("p", at))),
        store("v", at, op("sub", load("g", at), load("w", at))),
    )
    loops = shared("j", columns, *body) if team > 1 else grid("j", columns, *body, kind="vector")
    params = (*(param(name, rows * columns, role="inout") for name in "pmv"), *(param(n, rows * columns) for n in "gw"))
    kernel = made(params, grid("i", rows, loops), team=team)
    check(kernel, {name: torch.randn(rows * columns) for name in "pmvgw"})
    wide = [line for line in ptx(kernel).splitlines() if "global.v4" in line]
    kinds = ["ld" in line for line in wide]
    assert kinds[:4] == [True] * 4, wide
    assert not kinds[4], wide


@pytest.mark.parametrize("rows", [5, 8, 20])
def test_columns_that_are_stored_and_added_up(rows: int) -> None:
    """Loads of several iterations come before what these store; not those of what is stored."""
    i, j, columns = var("i", rows), var("j", 48), 48
    at = i * columns + j
    twice = op("mul", load("x", at), load("scale", j))
    adding = Update("total", op("mul", load("x", at), load("z", at)))
    body = (
        Init("total", "sum", f32),
        over("reduce", "i", rows, None, store("z", at, twice), adding),
        store("y", j, acc("total")),
    )
    outs = param("y", columns, role="out"), param("z", rows * columns, role="inout")
    kernel = made((*outs, param("x", rows * columns), param("scale", columns)), grid("j", columns, *body))
    sizes = {"y": columns, "z": rows * columns, "x": rows * columns, "scale": columns}
    check(kernel, {name: torch.randn(size) for name, size in sizes.items()})


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("columns", [64, 30])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_rows_that_are_added_atomically(dtype: torch.dtype, columns: int, is_masked: bool) -> None:
    """Neighbours in 16 bytes are one instruction, where they start at a multiple of these."""
    rows = 40
    i, j = var("i", rows), var("j", columns)
    index = load("index", i, i64)
    on = (op("ge", index, const(2, i64), dtype=torch.bool),) if is_masked else ()
    x = load("x", i * columns + j, bf16)
    value = op("cast", x, dtype=f32) if dtype is f32 else x
    row = columns * Expr.var("$0", 0, 4) + j
    adding = store("sums", row, value, index, *on, masked=is_masked, mode="atomic_add")
    sums = param("sums", 5 * columns, dtype, "inout")
    params = sums, param("x", rows * columns, bf16), param("index", rows, i64)
    kernel = made(params, grid("i", rows, grid("j", columns, adding, kind="vector")))
    assert (("add.v4.f32" if dtype is f32 else "noftz.v4.bf16x2") in ptx(kernel)) == (columns == 64)
    whole = torch.randint(-3, 4, (rows * columns,)).to(bf16)  # whose sums are bfloat16s
    zeros = torch.zeros(5 * columns, dtype=dtype)
    check(kernel, {"sums": zeros, "x": whole, "index": torch.randint(0, 5, (rows,))})


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_rows_that_are_gathered_and_added_atomically(dtype: torch.dtype) -> None:
    """A thread takes 32 bytes at a time, and adds 16 with an instruction."""
    rows, columns = 40, 64
    i, j = var("i", rows), var("j", columns)
    at = columns * Expr.var("$0", 0, 4) + j
    value = load("x", at, dtype, load("source", i, i64))
    adding = store("sums", at, value, load("target", i, i64), mode="atomic_add")
    sums, x = param("sums", 5 * columns, dtype, "inout"), param("x", 5 * columns, dtype)
    kernel = made(
        (sums, x, param("source", rows, i64), param("target", rows, i64)),
        grid("i", rows, grid("j", columns, adding, kind="vector")),
    )
    assert ptx(kernel).count("add.v4.f32" if dtype is f32 else "noftz.v4.bf16x2") == 2
    buffers = {"sums": torch.zeros(5 * columns), "x": torch.randint(-3, 4, (5 * columns,))}
    places = {name: torch.randint(0, 5, (rows,)) for name in ("source", "target")}
    check(kernel, {name: tensor.to(dtype) for name, tensor in buffers.items()} | places)


def test_turns_load_before_they_store() -> None:
    """A thread's turns in a row, which store what they make of what they load."""
    i, j = var("i", 3), var("j", 512)
    x = load("x", i * 512 + j)
    body = (
        Init("total", "sum", f32),
        shared("j", 512, Update("total", load("w", j))),
        shared("j", 512, store("y", i * 512 + j, op("mul", x, acc("total")))),
    )
    params = param("y", 3 * 512, role="out"), param("x", 3 * 512), param("w", 512)
    kernel = made(params, grid("i", 3, *body), team=32)
    check(kernel, {"y": torch.zeros(3 * 512), "x": torch.randn(3 * 512), "w": torch.randn(512)})
    kinds = ["ld" if "ld.global.v4" in line else "st" for line in ptx(kernel).splitlines() if "global.v4" in line]
    assert kinds == ["ld"] * 8 + ["st"] * 4
