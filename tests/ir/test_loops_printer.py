"""The text of loop IR: small golden examples."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from kernel_tools import acc, const, f32, i64, load, loop, op, param, store, var

from bolide.inductor.ir.loops import Init, Kernel, Update
from bolide.inductor.ir.printer import kernel_text, node_text
from bolide.symbolic import Expr


def test_softmax() -> None:
    rows = Expr.var("s0", 1)
    r, c = var("r", rows), var("c", 8)
    x = load("x", r * 8 + c)
    shifted = op("exp", op("sub", x, acc("m")))
    kernel = Kernel(
        "softmax",
        (param("x", rows * 8), param("y", rows * 8, role="out")),
        (
            loop(
                "parallel",
                "r",
                rows,
                Init("m", "max", f32),
                loop("reduce_vector", "c", 8, Update("m", x)),
                Init("s", "sum", f32),
                loop("reduce_vector", "c", 8, Update("s", shifted)),
                loop("vector", "c", 8, store("y", r * 8 + c, op("div", shifted, acc("s")))),
            ),
        ),
        ("s0",),
        origins=("softmax",),
    )
    assert (
        kernel_text(kernel)
        == """\
kernel softmax(in x: f32[8*s0], out y: f32[8*s0]; s0)
  # softmax
  parallel r < s0:
    m: max f32
    reduce_vector c < 8:
      m max= x[c + 8*r]
    s: sum f32
    reduce_vector c < 8:
      s += exp((x[c + 8*r] - m))
    vector c < 8:
      t0 = exp((x[c + 8*r] - m))
      y[c + 8*r] = (t0 / s)"""
    )


def test_indirect_and_masked() -> None:
    row = load("index", var("i", 4), i64)
    index = Expr.var("$0", 0, 9) * 4 + var("j", 4)
    mask = op("lt", row, const(10, i64), dtype=torch.bool)
    assert node_text(load("table", index, f32, row, mask, masked=True)) == (
        "table[4*$0 + j; $0 = index[i] if (index[i] < 10)]"
    )
