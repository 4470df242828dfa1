"""What a GPU reads across memory goes through shared memory, in tiles."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from kernel_tools import f32, i64, load, op, param, store, var
from test_gpu_kernels import bf16, check, f16, f64, made, ptx

from bolide.inductor.codegen.cuda import gpu_module
from bolide.inductor.ir.loops import Axis, Kernel
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
    body, rooms = in_shared_tiles(axes, schedule.blocks, stores)
    assert len(rooms) == len(dtypes) and schedule.team == 32
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
