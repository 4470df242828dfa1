"""In which order a GPU's threads read: across memory through shared memory, in tiles; and before they write."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_emulator import emulate
from kernel_tools import acc, f32, i64, load, op, param, store, var
from test_gpu_kernels import bf16, check, f16, f64, made, ptx

from bolide.inductor.codegen.cuda import gpu_module
from bolide.inductor.codegen.cuda.widths import width_of
from bolide.inductor.ir.loops import Axis, Init, Kernel, Loop, Node, Update
from bolide.inductor.ir.rewrites import in_shared_tiles, on_grid
from bolide.inductor.machine import HOPPER
from bolide.inductor.schedule.nest import Schedule, cut
from bolide.symbolic import Expr, as_expr


@pytest.fixture(autouse=True)
def _seed(seed: int) -> None:
    torch.manual_seed(seed)


def transposition(rows: Expr, columns: Expr, dtypes: tuple[torch.dtype, ...]) -> Kernel:
    """Two batches; a load along memory, and one across it of each dtype."""
    b, i, j = var("b", 2), var("i", columns), var("j", rows)
    size = 2 * rows * columns
    across = [load(f"x{n}", (b * rows + j) * columns + i, dtype) for n, dtype in enumerate(dtypes)]
    value = load("y", (b * columns + i) * rows + j, dtypes[0])
    stores = [store("out", (b * columns + i) * rows + j, op("max", value, across[0]))]
    stores += [store(f"out{n}", (b * columns + i) * rows + j, node) for n, node in enumerate(across[1:], 1)]
    axes = Axis("b", as_expr(2), "parallel"), Axis("i", columns, "parallel"), Axis("j", rows, "vector")
    schedule = cut(Schedule(axes, ()), stores, HOPPER)
    body, rooms = in_shared_tiles(axes, schedule.blocks, stores, schedule.team > HOPPER.lanes)
    assert len(rooms) == len(dtypes)
    outputs = ["out", *(f"out{n}" for n in range(1, len(dtypes)))]
    params = [param(name, size, dtype, "out") for name, dtype in zip(outputs, dtypes)]
    params += [param(name, size, dtype) for name, dtype in zip((f"x{n}" for n in range(len(dtypes))), dtypes)]
    sizes = tuple(sorted(rows.free_vars | columns.free_vars))
    more = {"sizes": sizes, "locals": tuple(rooms)}
    return made((*params, param("y", size, dtypes[0])), *on_grid(body), team=schedule.team, **more)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "dtypes", [(f32,), (i64, torch.bool), (f64, torch.int32), (torch.int8, bf16, f16), (torch.uint8, f32)], ids=str
)
def test_what_is_read_across_memory_goes_through_shared_memory(dtypes: tuple[torch.dtype, ...], known: bool) -> None:
    """Whole tiles, parts of some, and for sizes that change; whichever thread comes first."""
    some = [int(torch.randint(33, 140, ())) for _ in range(2)]
    for rows, columns in ((32 * (some[0] // 32), 64), (some[0], some[1])):
        n, m = (as_expr(rows), as_expr(columns)) if known else (Expr.var("n", 1), Expr.var("m", 1))
        kernel = transposition(n, m, dtypes)
        given = {p.name: torch.randint(0, 2, (2 * rows * columns,)).to(p.dtype) for p in kernel.params}
        results = check(kernel, given, None if known else {"n": rows, "m": columns})
        for dtype, name in zip(dtypes[1:], ("out1", "out2")):
            x = given[f"x{name[-1]}"].view(2, rows, columns)
            assert torch.equal(results[name], x.mT.reshape(-1)) and x.dtype == dtype
        text, shown = gpu_module([kernel], HOPPER)[0], ptx(kernel)
        assert text.count("call void @llvm.nvvm.bar.warp.sync") <= 2  # for addresses that are aligned, and others
        assert not re.search(r"\b(ld|st)\.[bv]", shown)  # LLVM knows what memory all are in


@pytest.mark.parametrize("dtype", [f32, torch.int16, torch.int8], ids=str)
def test_whole_tiles_are_moved_in_pieces_of_16_bytes(dtype: torch.dtype) -> None:
    rows, columns = (64 * int(torch.randint(1, 3, ())) for _ in range(2))
    kernel = transposition(as_expr(rows), as_expr(columns), (dtype,))
    check(kernel, {p.name: torch.randint(0, 2, (2 * rows * columns,)).to(p.dtype) for p in kernel.params})
    text = ptx(kernel)
    fast = text[text.rindex("ld.global.v4.b32") :]
    assert kernel.team == 256 and "st.global.v4.b32" in fast and not re.search(r"(ld|st)\.global\.[bv][^4]", fast)


def test_places_that_data_say_are_wider_and_masks_are_not() -> None:
    """A thread takes twice as many elements of rows that are looked up, and of others what 16 bytes hold."""
    axis, i = Axis("i", as_expr(64), "vector", "grid"), var("i", 64)
    mask = op("ge", Node.make("index", i64, (), i), Node.make("const", i64, (), 3), dtype=torch.bool)
    place = load("rows", var("r", 9), i64)
    found = load("x", Expr.var("$0", 0, 8) * 64 + i, f32, place)
    for value, width in ((load("x", i), 4), (load("x", i, f32, mask, masked=True), 4), (found, 8)):
        assert width_of(axis, (store("out", i, value),)) == width


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("team", [1, 32])
def test_loads_come_before_what_other_iterations_store(team: int, dtype: torch.dtype) -> None:
    """Of a loop that stores and adds up, whether the result lies in an operand or not."""
    rows, columns = int(torch.randint(1, 70, ())), 6 if team == 1 else int(torch.randint(30, 300, ()))
    i, j = var("i", rows), var("j", columns)
    x = op("cast", load("x", i * columns + j, dtype), dtype=f32) if dtype == bf16 else load("x", i * columns + j)
    more = op("add", op("mul", x, load("w", j if team == 1 else i)), x)
    stored = store("out", i * columns + j, op("cast", more, dtype=bf16) if dtype == bf16 else more)
    kind = "reduce" if team == 1 else "reduce_vector"
    extent, bound = (rows, None) if team == 1 else (columns, "team")
    name = "i" if team == 1 else "j"
    inside = Loop(Axis(name, as_expr(extent), kind, bound), (stored, Update("total", x)))  # type: ignore[arg-type]
    body = (Init("total", "sum", f32), inside, store("sums", j if team == 1 else i, acc("total")))
    outer = Axis("j" if team == 1 else "i", as_expr(columns if team == 1 else rows), "parallel", "grid")
    length = columns if team == 1 else rows
    size = rows * columns
    params = (param("out", size, dtype, "out"), param("sums", length, role="out"), param("x", size, dtype))
    kernel = made((*params, param("w", length)), Loop(outer, body), team=team)
    given = torch.randn(size).to(dtype)
    zeros = {"out": torch.zeros(size, dtype=dtype), "sums": torch.zeros(length)}
    buffers = {**zeros, "x": given, "w": torch.randn(length)}
    apart = check(kernel, buffers)
    for step in (1, -1):
        own = given.clone()
        together = {**buffers, "out": own, "x": own, "sums": torch.zeros(length)}
        emulate(kernel, together, None, step)
        assert torch.equal(own, apart["out"]) and torch.allclose(together["sums"], apart["sums"], atol=1e-4)
    if team == 1:
        blocks = re.split(r"^\$L\w+:$", ptx(kernel), flags=re.MULTILINE)
        most = max(block.partition("st.global")[0].count("ld.global") for block in blocks)
        assert most >= 4 or rows < 8
