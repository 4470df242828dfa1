"""Compiled kernels against torch: types, shapes around the vector width, reductions, threads, launches."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "ir"))
from kernel_tools import acc, both, const, f32, i64, load, loop, op, param, run, store, var

import bolide
from bolide.inductor.codegen import compile_kernels
from bolide.inductor.codegen.analysis import ARITHMETIC
from bolide.inductor.codegen.compiler import module_text
from bolide.inductor.ir.loops import Init, Kernel, Local, Node, Stmt, Update
from bolide.inductor.ir.rewrites import on_threads
from bolide.inductor.ir.scalar_ops import SCALAR_OPS
from bolide.inductor.machine import Target, host_machine
from bolide.inductor.runtime.kernels import sequence
from bolide.symbolic import Expr
from bolide.tracing import rng

SEED = int(os.environ["BOLIDE_TEST_SEED"])
FLOATS = (f32, torch.float64, torch.bfloat16, torch.float16)
TYPES = (*FLOATS, torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, i64)


@pytest.fixture(autouse=True)
def _seed() -> None:
    print(f"seed {SEED}")
    torch.manual_seed(SEED)


def copy_kernel(n: int, source: torch.dtype, target: torch.dtype) -> Kernel:
    i = var("i", n)
    value = load("x", i, source)
    value = value if source == target else op("cast", value, dtype=target)
    return Kernel(
        "cast", (param("x", n, source), param("y", n, target, "out")), (loop("vector", "i", n, store("y", i, value)),)
    )


@pytest.mark.parametrize("target", TYPES, ids=str)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_cast(source: torch.dtype, target: torch.dtype) -> None:
    x = (torch.randn(101) * 50).to(source) if source != torch.bool else torch.randn(101) > 0
    if source.is_floating_point and target == torch.uint8:
        x = x.abs()
    if source.is_floating_point and target.is_floating_point:
        x[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 65519.0]).to(source)
    y = torch.zeros(101, dtype=target)
    run(copy_kernel(101, source, target), {"x": x, "y": y})
    torch.testing.assert_close(y, x.to(target), rtol=0, atol=0, equal_nan=True)


def test_rounding_to_bfloat16_is_exhaustive_in_the_low_half() -> None:
    low = torch.arange(1 << 16, dtype=torch.int32)
    for high in (0x3F80, 0x7F7F, 0x0000, 0x8000, 0x3F81):
        x = (
            ((high << 16) + low).to(torch.int32).view(f32)
            if high < 0x8000
            else (low + (high - 0x10000 << 16)).view(f32)
        )
        y = torch.zeros(1 << 16, dtype=torch.bfloat16)
        run(copy_kernel(1 << 16, f32, torch.bfloat16), {"x": x, "y": y})
        assert torch.equal(y.view(torch.int16), x.to(torch.bfloat16).view(torch.int16))
        z = torch.zeros(1 << 16)
        run(rounding_kernel(1 << 16), {"x": x, "y": y.zero_(), "z": z})
        assert torch.equal(z.view(torch.int32), x.to(torch.bfloat16).float().view(torch.int32))
        assert torch.equal(y.view(torch.int16), x.to(torch.bfloat16).view(torch.int16))
    specials = torch.tensor([float("nan"), float("-nan"), float("inf"), float("-inf")] * 9)
    bits = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, 0x7F80FFFF] * 9, dtype=torch.int32)  # other NaNs
    for x in (specials, bits.view(f32)):
        y, z = torch.zeros(36, dtype=torch.bfloat16), torch.zeros(36)
        run(rounding_kernel(36), {"x": x, "y": y, "z": z})
        for found in (y.float(), z):
            torch.testing.assert_close(found, x, rtol=0, atol=0, equal_nan=True)


def rounding_kernel(n: int) -> Kernel:
    """z: x rounded to bfloat16 and back; y: what lies between."""
    i = var("i", n)
    narrow = op("cast", load("x", i, f32), dtype=torch.bfloat16)
    stores = (store("z", i, op("cast", narrow, dtype=f32)), store("y", i, narrow))
    params = (param("x", n, f32), param("y", n, torch.bfloat16, "out"), param("z", n, f32, "out"))
    return Kernel("rounding", params, (loop("vector", "i", n, *stores),))


@pytest.mark.parametrize("dots", [True, False])
def test_what_is_computed_of_bfloat16s_is_rounded_as_torch_does(dots: bool) -> None:
    """Every operation whose NaN rounding takes for granted, or that it leaves out, on every bfloat16."""
    n, machine = 1 << 16, host_machine()
    machine = replace(machine, target=replace(machine.target, dots=machine.target.dots and dots))
    short = torch.arange(n).to(torch.int16).view(torch.bfloat16)
    buffers = {"x": short, "y": short[torch.randperm(n)], "z": short[torch.randperm(n)]}
    i, names = var("i", n), sorted(ARITHMETIC)
    given = [op("cast", load(name, i, torch.bfloat16), dtype=f32) for name in buffers]
    stores = []
    for row, name in enumerate(names):
        condition = (op("lt", *given[:2], dtype=torch.bool),) if name == "where" else ()
        value = op(name, *condition, *given[len(condition) : SCALAR_OPS[name].operands])
        rounded = op("cast", value, dtype=torch.bfloat16)
        negative = op("cast", op("neg", op("cast", rounded, dtype=f32)), dtype=torch.bfloat16)
        stores += [store(b, i + row * n, v) for b, v in (("v", value), ("r", rounded), ("m", negative))]
    outs = {"v": f32, "r": torch.bfloat16, "m": torch.bfloat16}
    wanted = None
    for written in (["v", "r", "m"], ["r", "m"]):  # the second takes pairs of bfloat16s
        params = [param(name, n, torch.bfloat16) for name in buffers]
        params += [param(name, n * len(names), outs[name], "out") for name in written]
        body = [statement for statement in stores if statement.access.buffer in written]
        (compiled,) = compile_kernels([Kernel("k", tuple(params), (loop("vector", "i", n, *body),))], machine)
        results = {name: torch.zeros(len(names), n, dtype=outs[name]) for name in written}
        compiled.launch(*(tensor.data_ptr() for tensor in (*buffers.values(), *results.values())))
        wanted = results["v"].to(torch.bfloat16) if wanted is None else wanted
        for found, right in ((results["r"], wanted), (-results["m"], wanted)):
            same = (found.view(torch.int16) == right.view(torch.int16)) | (found.isnan() & right.isnan())
            assert same.all(), [name for name, row in zip(names, same) if not row.all()]


@pytest.mark.parametrize("name", ["floordiv", "truncdiv", "mod", "fmod"])
@pytest.mark.parametrize("dtype", [f32, torch.float64, torch.int8, torch.uint8, torch.int32, i64], ids=str)
def test_division(name: str, dtype: torch.dtype) -> None:
    n = 300
    a, b = (torch.randint(0 if dtype == torch.uint8 else -20, 20, (n,)).to(dtype) for _ in range(2))
    if dtype.is_floating_point:
        a, b = a * 0.7, b * 0.3
        b[:9] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, 3.0, -3.0, 0.0])
    else:
        b[b == 0] = 3
        a[0], b[0] = torch.iinfo(dtype).min, 1
    i = var("i", n)
    value = op(name, load("a", i, dtype), load("b", i, dtype))
    kernel = Kernel(
        "k",
        (param("a", n, dtype), param("b", n, dtype), param("y", n, dtype, "out")),
        (loop("vector", "i", n, store("y", i, value)),),
    )
    y = torch.zeros(n, dtype=dtype)
    run(kernel, {"a": a, "b": b, "y": y})
    expected = {
        "floordiv": lambda: torch.div(a, b, rounding_mode="floor"),
        "truncdiv": lambda: torch.div(a, b, rounding_mode="trunc"),
        "mod": lambda: torch.remainder(a, b),
        "fmod": lambda: torch.fmod(a, b),
    }[name]()
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, i64], ids=str)
def test_integer_division_never_traps(dtype: torch.dtype) -> None:
    low = torch.iinfo(dtype).min
    a = torch.tensor([low, low, 5, 0, -1] * 7, dtype=dtype)
    b = torch.tensor([-1, 0, 0, 0, 0] * 7, dtype=dtype)
    i = var("i", 35)
    body = [
        store("y", i, op(name, load("a", i, dtype), load("b", i, dtype)))
        for name in ("floordiv", "mod", "truncdiv", "fmod")
    ]
    kernel = Kernel(
        "k",
        (param("a", 35, dtype), param("b", 35, dtype), param("y", 35, dtype, "out")),
        (loop("vector", "i", 35, *body),),
    )
    run(kernel, {"a": a, "b": b, "y": torch.zeros(35, dtype=dtype)})


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 63, 64, 65, 100, 1000])
@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "argmin", "argmax", "any", "all"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_row_reduction(n: int, name: str, symbolic: bool) -> None:
    if n == 0 and name in ("min", "max", "argmin", "argmax"):
        pytest.skip("eager raises")
    rows = 3
    dtype = torch.bool if name in ("any", "all") else f32
    x = torch.randint(-3, 4, (rows, n)).to(dtype) if name != "prod" else 1 + torch.randn(rows, n) / 30
    if name.endswith(("min", "max")) and n > 16:
        x[1, [3, 9, 16]] = float("nan")
        x[2] = -float("inf") if name.endswith("max") else float("inf")
    cols = Expr.var("s0", 0) if symbolic else Expr.const(n)
    r, c = var("r", rows), var("c", cols)
    position = Node.make("index", i64, (), c) if name.startswith("arg") else None
    result = i64 if position is not None else dtype
    body = (
        Init("a", name, dtype),  # type: ignore[arg-type]
        loop("reduce_vector", "c", cols, Update("a", load("x", r * cols + c, dtype), position)),
        store("y", r, acc("a", result)),
    )
    kernel = Kernel(
        "k",
        (param("x", cols * rows, dtype), param("y", rows, result, "out")),
        (loop("parallel", "r", rows, *body),),
        ("s0",) if symbolic else (),
    )
    y = torch.zeros(rows, dtype=result)
    run(kernel, {"x": x, "y": y}, {"s0": n})
    expected = getattr(torch, {"min": "amin", "max": "amax"}.get(name, name))(x, 1)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("n", [255, 256, 340, 767])
@pytest.mark.parametrize("name", ["sum", "argmax", "argmin"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_column_reduction(n: int, name: str, symbolic: bool) -> None:
    """Strips of many lanes, and what is left of the columns."""
    rows = 70
    x = torch.randint(-3, 4, (rows, n)).float()
    if name != "sum":
        x[:, 3] = -float("inf") if name == "argmax" else float("inf")
        x[[60, 50, 69], torch.tensor([0, n // 2, n - 1])] = float("nan")
    cols = Expr.var("s0", 0) if symbolic else Expr.const(n)
    r, c = var("r", rows), var("c", cols)
    position = None if name == "sum" else Node.make("index", i64, (), r)
    result = f32 if position is None else i64
    update = Update("a", load("x", r * cols + c), position)
    body = (Init("a", name, f32), loop("reduce", "r", rows, update), store("y", c, acc("a", result)))  # type: ignore[arg-type]
    params = (param("x", cols * rows), param("y", cols, result, "out"))
    kernel = Kernel("k", params, (loop("vector", "c", cols, *body),), ("s0",) if symbolic else ())
    given = {"x": x.flatten(), "y": torch.zeros(n, dtype=result)}
    ((_, mine, _),) = both(kernel, given, {"s0": n} if symbolic else None)
    assert torch.equal(mine, getattr(torch, name)(x, 0))
    bits = host_machine().target.vector_bits
    strip = bits // 32 * bits // (32 if name == "sum" else 64)
    if strip <= n:
        assert f"<{strip} x float>" in module_text(kernel, host_machine())


@pytest.mark.parametrize("shape", [(1, 3_000_000), (20000, 50)])
def test_sums_are_no_worse_than_eager(shape: tuple[int, int]) -> None:
    rows, cols = shape
    x = torch.rand(shape) + 0.01
    r, c = var("r", rows), var("c", cols)
    value = load("x", r * cols + c)
    row_sum = loop(
        "parallel",
        "r",
        rows,
        Init("a", "sum", f32),
        loop("reduce_vector", "c", cols, Update("a", value)),
        store("y", r, acc("a")),
    )
    column_sum = loop(
        "vector",
        "c",
        cols,
        Init("a", "sum", f32),
        loop("reduce", "r", rows, Update("a", value)),
        store("z", c, acc("a")),
    )
    kernel = Kernel(
        "k",
        (param("x", rows * cols), param("y", rows, role="out"), param("z", cols, role="out")),
        (row_sum, column_sum),
    )
    y, z = torch.zeros(rows), torch.zeros(cols)
    run(kernel, {"x": x, "y": y, "z": z})
    for mine, eager, exact in ((y, x.sum(1), x.double().sum(1)), (z, x.sum(0), x.double().sum(0))):
        error = ((mine - exact).abs() / exact).max()
        assert error <= max(2 * ((eager - exact).abs() / exact).max(), torch.tensor(3e-7))


def test_gather_scatter_and_masks() -> None:
    n, rows, width = 37, 11, 20
    index = torch.randint(0, rows, (n,))
    table = torch.randn(rows, width)
    i, c = var("i", n), var("c", width)
    chosen = Expr.var("$0", 0, rows - 1)
    row = load("index", i, i64)
    mask = op("ge", Node.make("index", i64, (), c), const(5, i64), dtype=torch.bool)
    value = load("table", chosen * width + c, f32, row, mask, masked=True)
    body = (
        loop("parallel", "i", n, loop("vector", "c", width, store("y", i * width + c, value))),
        loop(
            "vector",
            "c",
            width,
            loop("serial", "i", n, store("z", chosen * width + c, load("y", i * width + c), row, mode="add")),
        ),
        loop("vector", "i", n, store("w", chosen, const(1.0), row, mode="atomic_add")),
    )
    params = (
        param("index", n, i64),
        param("table", rows * width),
        param("y", n * width, role="inout"),
        param("z", rows * width, role="inout"),
        param("w", rows, role="inout"),
    )
    buffers = {
        "index": index,
        "table": table.reshape(-1),
        "y": torch.zeros(n * width),
        "z": torch.zeros(rows * width),
        "w": torch.zeros(rows),
    }
    for name, mine, expected in both(Kernel("k", params, body), buffers):
        torch.testing.assert_close(mine, expected, msg=name)
    y = table[index].clone()
    y[:, :5] = 0
    run(Kernel("k", params, body), buffers)
    torch.testing.assert_close(buffers["y"].reshape(n, width), y)
    torch.testing.assert_close(buffers["z"].reshape(rows, width), torch.zeros(rows, width).index_add(0, index, y))
    torch.testing.assert_close(buffers["w"], torch.bincount(index, minlength=rows).float())


@pytest.mark.parametrize("dtype", [f32, torch.float64, torch.bfloat16, torch.bool, i64], ids=str)
@pytest.mark.parametrize("stride", [-3, -1, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("n", [5, 16, 37])
def test_strides(stride: int, dtype: torch.dtype, n: int) -> None:
    i = var("i", n)
    room = abs(stride) * (n - 1) + 1
    place = i * stride if stride > 0 else (i - (n - 1)) * stride
    mask = op("ne", Node.make("index", i64, (), i), const(2, i64), dtype=torch.bool)
    body = (
        loop("vector", "i", n, store("y", i, load("x", place, dtype))),
        loop("vector", "i", n, store("z", place, load("x", i, dtype), mask, masked=True)),
    )
    params = (param("x", room, dtype), param("y", n, dtype, "out"), param("z", room, dtype, "inout"))
    x = torch.randn(room).to(dtype) if dtype != torch.bool else torch.randn(room) > 0
    for name, mine, expected in both(Kernel("k", params, body), {"x": x, "y": x[:n].clone(), "z": x.clone()}):
        assert torch.equal(mine, expected), name


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("scale", [1, 1 << 40])
def test_comparisons_of_places(name: str, scale: int) -> None:
    rows, cols = 5, 37
    r, c = var("r", rows), var("c", cols)
    left, right = Node.make("index", i64, (), c * scale - 3), Node.make("index", i64, (), (r * 7 + 2 * c % 5) * scale)
    body = [
        store("y", r * cols + c, op(name, left, right, dtype=torch.bool)),
        store("z", r * cols + c, op(name, const(11 * scale, i64), left, dtype=torch.bool)),
    ]
    params = (param("y", rows * cols, torch.bool, "out"), param("z", rows * cols, torch.bool, "out"))
    kernel = Kernel("k", params, (loop("parallel", "r", rows, loop("vector", "c", cols, *body)),))
    empty = torch.zeros(rows * cols, dtype=torch.bool)
    for buffer, mine, expected in both(kernel, {"y": empty, "z": empty}):
        assert torch.equal(mine, expected), buffer


@pytest.mark.parametrize("cols", [5, 32, 50, 64])
def test_short_loops_are_written_out(cols: int) -> None:
    """Rows of few vectors are moved without a loop along them, longer ones in one."""

    def kernel(n: int) -> Kernel:
        r, c = var("r", 9), var("c", n)
        body = loop("vector", "c", n, store("y", r * n + c, load("x", r * n + c)))
        params = (param("x", 9 * n), param("y", 9 * n, role="out"))
        return Kernel("k", params, on_threads((loop("parallel", "r", 9, body),)))

    x, y = torch.randn(9 * cols), torch.zeros(9 * cols)
    run(kernel(cols), {"x": x, "y": y})
    assert torch.equal(x, y)
    short, long = (compile_kernels([kernel(n)])[0].llvm_ir for n in (cols, 8192))
    assert short.count("loop") == 0 and long.count("loop") > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("n", [7, 33, 64, 65, 200, 1000])
def test_narrow_elements_are_moved_in_whole_registers(dtype: torch.dtype, n: int) -> None:
    """Rows of a table, taken by an index, and elements backwards and with gaps."""
    rows = 4
    r, c = var("r", rows), var("c", n)
    taken = load("x", n * var("$0", 9) + c, dtype, load("at", r, i64))
    values = {"y": taken, "z": load("x", n - 1 - c + r, dtype), "w": load("x", 2 * c + r, dtype)}
    stores = [store(name, r * n + c, value) for name, value in values.items()]
    outs = tuple([param(name, rows * n, dtype, "out") for name in values])
    params = (param("x", 9 * n, dtype), param("at", rows, i64), *outs)
    kernel = Kernel("k", params, (loop("parallel", "r", rows, loop("vector", "c", n, *stores)),))
    x = torch.randint(0, 2, (9 * n,)).to(dtype) if dtype is torch.bool else (30 * torch.randn(9 * n)).to(dtype)
    given = {"x": x, "at": torch.tensor([3, 0, 8, 3]), **{name: torch.zeros(rows * n, dtype=dtype) for name in values}}
    for buffer, mine, expected in both(kernel, given):
        assert torch.equal(mine, expected), buffer
    lanes = host_machine().lanes * 4 // dtype.itemsize
    text = compile_kernels([kernel])[0].llvm_ir.replace("half", "i16")
    assert n < lanes or f"load <{lanes} x i{8 * dtype.itemsize}>" in text


@pytest.mark.parametrize("kind", ["elements", "rows", "columns"])
@pytest.mark.parametrize("n", [7, 31, 32, 33, 96, 255, 640])
@pytest.mark.parametrize("symbolic", [False, True])
def test_runs_of_bfloat16s_are_taken_in_pairs(kind: str, n: int, symbolic: bool) -> None:
    rows, short = 5, torch.bfloat16
    cols = Expr.var("s0", 0) if symbolic else Expr.const(n)
    r, c = var("r", rows), var("c", cols)

    def given(buffer: str, index: Expr | int) -> Node:
        return op("cast", load(buffer, index, short), dtype=f32)

    # runs from any place on, one that all rows share, one number for all, and numbers of float32 that are the same
    product = op("mul", given("x", r * cols + c + 1), given("w", c))
    value = op("add", op("cast", op("cast", product, dtype=short), dtype=f32), op("mul", given("s", r), load("f", r)))
    params = [param("x", rows * cols + 1, short), param("w", cols, short), param("s", rows, short), param("f", rows)]
    total = op("cast", acc("a"), dtype=short)
    if kind == "elements":
        stored = store("y", r * cols + c, op("cast", value, dtype=short))
        body: tuple[Stmt, ...] = (loop("parallel", "r", rows, loop("vector", "c", cols, stored)),)
        params.append(param("y", rows * cols, short, "out"))
    elif kind == "rows":
        sums = Init("a", "sum", f32), loop("reduce_vector", "c", cols, Update("a", value)), store("y", r, total)
        body = (loop("parallel", "r", rows, *sums),)
        params.append(param("y", rows, short, "out"))
    else:
        sums = Init("a", "max", f32), loop("reduce", "r", rows, Update("a", value)), store("y", c, total)
        body = (loop("vector", "c", cols, *sums),)
        params.append(param("y", cols, short, "out"))
    kernel = Kernel("k", tuple(params), body, ("s0",) if symbolic else ())
    buffers = {p.name: torch.randn(p.numel.evaluate({"s0": n})).to(p.dtype) for p in params}
    ((_, mine, expected),) = both(kernel, buffers, {"s0": n} if symbolic else None)
    near = 1e-2 if kind == "rows" else 0  # the order of a sum
    torch.testing.assert_close(mine, expected, rtol=near, atol=near)
    lanes = host_machine().lanes
    assert f"load <{lanes} x i32>" in module_text(kernel, host_machine()) or (n < 2 * lanes and not symbolic)


def test_transpose_and_scratch() -> None:
    rows, cols = 30, 45
    r, c = var("r", rows), var("c", cols)
    body = loop(
        "parallel",
        "c",
        cols,
        loop("vector", "r", rows, store("line", r, op("mul", load("x", r * cols + c), const(2.0)))),
        loop("vector", "r", rows, store("y", c * rows + r, op("add", load("line", r), load("line", Expr.const(0))))),
    )
    kernel = Kernel(
        "k",
        (param("x", rows * cols), param("y", rows * cols, role="out")),
        (body,),
        locals=(Local("line", f32, Expr.const(rows)),),
    )
    x, y = torch.randn(rows, cols), torch.zeros(cols, rows)
    run(kernel, {"x": x, "y": y})
    torch.testing.assert_close(y, 2 * x.t() + 2 * x[:1].t())


@pytest.mark.parametrize("name", ["philox", "philox_normal"])
def test_random_numbers_are_those_of_eager(name: str) -> None:
    n, counter = 1000, 7
    seed = torch.randint(-(2**63), 2**63 - 1, (1,))
    i = var("i", n)
    value = Node.make(name, f32, (load("seed", 0, i64),), (counter, i))
    y = torch.zeros(n)
    run(
        Kernel(
            "k", (param("seed", 1, i64), param("y", n, role="out")), (loop("vector", "i", n, store("y", i, value)),)
        ),
        {"seed": seed, "y": y},
    )
    expected = torch.from_numpy((rng.uniform if name == "philox" else rng.normal)(int(seed), counter, n))
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6 if name != "philox" else 0)


def test_threads_share_the_work() -> None:
    n = 1 << 20
    i, r, q, c = var("i", n), var("r", 1000), var("q", 8), var("c", 131)
    params = (param("x", n), param("y", n, role="out"))
    flat = loop("vector", "i", n, store("y", i, op("exp", load("x", i))))
    place = (r * 8 + q) * 131 + c
    row = loop("vector", "c", 131, store("y", place, op("exp", load("x", place))))
    big = Kernel("k", params, on_threads((flat,)))
    rows = Kernel("k", params, on_threads((loop("parallel", "r", 1000, loop("parallel", "q", 8, row)),)))
    before = torch.get_num_threads()
    x = torch.randn(n)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for kernel, count in ((big, n), (rows, 1000 * 8 * 131)):
                y = torch.zeros(n)
                run(kernel, {"x": x, "y": y})
                torch.testing.assert_close(y[:count], x[:count].exp())
                assert not y[count:].any()
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed in /proc")
def test_the_team_of_threads_stays() -> None:
    """A kernel that is worth two threads does not end the others, which the next product would have to start anew."""
    n = 1 << 13
    i = var("i", n)
    body = loop("vector", "i", n, store("y", i, op("sin", op("exp", op("sin", op("exp", load("x", i)))))))
    kernel = Kernel("k", (param("x", n), param("y", n, role="out")), on_threads((body,)))
    before = torch.get_num_threads()
    x, matrix = torch.randn(n), torch.randn(512, 512)
    try:
        torch.set_num_threads(7)
        torch.mm(matrix, matrix)
        matrix.exp()
        team = set(os.listdir("/proc/self/task"))
        for _ in range(3):
            y = torch.zeros(n)
            run(kernel, {"x": x, "y": y})
            torch.testing.assert_close(y, x.exp().sin().exp().sin())
            matrix.exp()
            assert team <= set(os.listdir("/proc/self/task"))
    finally:
        torch.set_num_threads(before)


def test_sequence_checks_its_arguments() -> None:
    (compiled,) = compile_kernels([copy_kernel(40, f32, f32)])
    x, y, z = torch.randn(40), torch.zeros(40), torch.zeros(40)
    launch = sequence([(compiled, (0, 1)), (compiled, (1, 2))])
    launch(x.data_ptr(), y.data_ptr(), z.data_ptr())
    assert torch.equal(x, y) and torch.equal(x, z)
    for wrong in ((), (1, 2), (1, 2, 3, 4), (1, 2, "3"), (1, 2, 1 << 70)):
        with pytest.raises((TypeError, OverflowError)):
            launch(*wrong)
    with pytest.raises(ValueError, match="takes 2 addresses"):
        sequence([(compiled, (0,))])
    with pytest.raises(TypeError, match="takes 2 addresses"):
        compiled.launch(x.data_ptr())


def test_equal_kernels_are_compiled_once() -> None:
    def kernel(a: str, b: str, axis: str) -> Kernel:
        i = var(axis, 50)
        return Kernel(
            a + b,
            (param(a, 50), param(b, 50, role="out")),
            (loop("vector", axis, 50, store(b, i, op("neg", load(a, i)))),),
        )

    first, second, other = compile_kernels([kernel("x", "y", "i"), kernel("p", "q", "j"), copy_kernel(50, f32, f32)])
    assert first.address == second.address != other.address
    assert compile_kernels([kernel("u", "v", "w")])[0].address == first.address
    assert "zmm" in first.assembly or "ymm" in first.assembly or "xmm" in first.assembly or first.assembly


@pytest.mark.parametrize("level", ["avx2", "generic"])
def test_other_levels_compile(level: str) -> None:
    """What this host's level leaves unused is at least accepted by LLVM, and right where the host can run it."""
    machine = host_machine()
    row = {"avx2": (256, 8, 4), "generic": (128, 0, 0)}[level]
    host = machine.target
    other = replace(machine, target=Target(level, host.cpu, host.features, *row, False))
    n = 77
    i = var("i", n)
    value = op("tanh", op("sin", op("exp", load("x", i))))
    kernel = Kernel("k", (param("x", n), param("y", n, role="out")), (loop("vector", "i", n, store("y", i, value)),))
    (compiled,) = compile_kernels([kernel], other)
    assert "x86.avx512" not in module_text(kernel, other)
    x, y = torch.randn(n), torch.zeros(n)
    compiled.launch(x.data_ptr(), y.data_ptr())
    torch.testing.assert_close(y, x.exp().sin().tanh())


@pytest.mark.parametrize("dtype", [f32, torch.float64])
def test_constants_of_loops_are_in_registers(dtype: torch.dtype) -> None:
    """Before the loop, where LLVM's fast level would load each in each iteration (exp took 1.7 times as long)."""
    n = 1024
    value = load("x", var("i", n), dtype)
    for name in ("exp", "tanh", "log"):
        value = op(name, op("mul", value, const(0.3, dtype))) if dtype is f32 else op("mul", value, const(0.3, dtype))
    parameters = (param("x", n, dtype), param("y", n, dtype, "out"))
    kernel = Kernel("k", parameters, (loop("vector", "i", n, store("y", var("i", n), value)),))
    before, _, looped = module_text(kernel, host_machine()).partition("\nloop")
    kind = "float" if dtype is f32 else "double"
    constants = re.findall(rf"freeze <\d+ x {kind}> splat \({kind} (\w+)\)", before)
    assert len(constants) == len(set(constants)) >= (20 if dtype is f32 else 1)
    assert re.findall(rf"splat \({kind} (?!0x0+\))", looped) == []
    x, y = torch.randn(n, dtype=dtype).abs(), torch.zeros(n, dtype=dtype)
    run(kernel, {"x": x, "y": y})
    expected = x
    for function in (torch.exp, torch.tanh, torch.log):
        expected = function(expected * 0.3) if dtype is f32 else expected * 0.3
    torch.testing.assert_close(y, expected)


def test_after_fork() -> None:
    """Kernels compiled before a fork run in the child, and the child can compile more."""
    program = f"""
import os, sys, torch
sys.path.insert(0, {str(Path(__file__).parents[2] / "ir")!r})
from kernel_tools import *
torch.set_num_threads(1)
def kernel(c):
    i = var("i", 100)
    body = loop("vector", "i", 100, store("y", i, op("add", load("x", i), const(c))))
    return Kernel("k", (param("x", 100), param("y", 100, role="out")), (body,))
x, y = torch.randn(100), torch.zeros(100)
run(kernel(1.0), {{"x": x, "y": y}})
child = os.fork()
if child == 0:
    run(kernel(1.0), {{"x": x, "y": y}}); run(kernel(2.0), {{"x": x, "y": y}})
    os._exit(0 if torch.equal(y, x + 2) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_that_a_condition_chooses(dtype: torch.dtype) -> None:
    """What is computed of a condition and constants is one of two numbers: eager's."""
    x, y = torch.randn(2, 1001).to(dtype)
    scale = float(torch.rand(())) + 0.1

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keep = x > y
        share = keep.to(x.dtype) / scale
        outside = torch.where(keep, math.inf, -scale)
        return (
            share * x,
            share - 0.3,
            x + (1 - share) * 3,
            -share,
            outside.to(x.dtype),
            (keep.float() / 3).to(x.dtype) - y,
        )

    for got, wanted in zip(bolide.compile(program)(x, y), program(x, y)):
        assert torch.equal(got, wanted), f"seed {SEED}"
        assert torch.equal(got.signbit(), wanted.signbit()), f"seed {SEED}"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, i64], ids=str)
def test_the_smaller_one_as_unsigned_numbers(dtype: torch.dtype) -> None:
    """Which makes a place of any index: of a negative one, too."""
    info, n = torch.iinfo(dtype), 203
    x, y = (torch.randint(info.min, info.max, (n,), dtype=dtype) for _ in range(2))
    x[:4] = torch.tensor([info.min, info.max, 0, -1 if info.min else 255], dtype=dtype)
    wide = 2**64 if dtype == i64 else 2 * (info.max - info.min + 1)
    wanted = [a if a % wide < b % wide else b for a, b in zip(x.tolist(), y.tolist())]
    i, out = var("i", n), torch.zeros(n, dtype=dtype)
    value = op("umin", load("x", i, dtype), load("y", i, dtype))
    params = (param("x", n, dtype), param("y", n, dtype), param("out", n, dtype, "out"))
    for kind in ("vector", "serial"):
        run(Kernel("k", params, (loop(kind, "i", n, store("out", i, value)),)), {"x": x, "y": y, "out": out})
        assert out.tolist() == wanted
    known = SCALAR_OPS["umin"].evaluate
    assert known is not None and known(x, y).tolist() == wanted


INDEXED = {
    "gather": lambda x, i: x.gather(1, i),
    "take": lambda x, i: x.flatten()[i],
    "rows": lambda x, i: torch.nn.functional.embedding(i, x),
    "scatter_add": lambda x, i: x.scatter_add(0, i, torch.ones_like(i, dtype=x.dtype)),
    "index_add": lambda x, i: x.index_add(0, i[:, 0], x[: len(i)] * 2),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(x[: len(i)], i[:, 0], ignore_index=-2),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_that_are_out_of_bounds_raise_as_in_eager(name: str) -> None:
    function = INDEXED[name]
    compiled = bolide.compile(function)
    for rows in (3, 17, 40):
        x = torch.randn(rows, 7, requires_grad=True)
        good = torch.randint(0, min(rows, 7), (min(rows, 16), 7))
        y, g = function(x, good), compiled(x, good)
        torch.testing.assert_close(g, y)
        grads = [torch.autograd.grad(out, x, torch.ones_like(out))[0] for out in (y, g)]
        torch.testing.assert_close(*grads)
        for bad in (-(2**62), -1000, 7 * rows, 1 << 40, 2**63 - 1):
            index = good.clone()
            index[0, 0] = bad
            with pytest.raises((IndexError, RuntimeError)) as wanted:
                function(x, index)
            with pytest.raises(type(wanted.value)):
                compiled(x, index)


@pytest.mark.parametrize("dtype", [f32, torch.float64, torch.bfloat16], ids=str)
def test_what_is_looked_up_and_only_stored_is_loaded_one_by_one(dtype: torch.dtype) -> None:
    """Where it is computed with, vectors of it are made."""
    x, index = torch.randn(20, 100, dtype=dtype), torch.randint(0, 100, (20, 64))
    for function, gathers in ((lambda x, i: x.gather(1, i), False), (lambda x, i: (x.gather(1, i) * 2).exp(), True)):
        (graph,) = bolide.explain(function)(x, index).graphs
        assert any("masked.gather" in kernel.llvm_ir for kernel in graph.kernels) == gathers
        torch.testing.assert_close(bolide.compile(function)(x, index), function(x, index))
