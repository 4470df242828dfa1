"""Kernels that break a rule of loop IR are refused, with a message that shows where."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "ir"))
from kernel_tools import acc, const, f32, i64, load, loop, op, param, store, var

from bolide.inductor.ir.loops import Init, Kernel, Local, Node, Stmt, Update
from bolide.inductor.ir.verify import InvalidKernel, verify
from bolide.inductor.machine import host_machine
from bolide.symbolic import Expr

i = var("i", 8)
X = load("x", i)


def kernel(*body: Stmt, **more: object) -> Kernel:
    return Kernel("k", (param("x", 8), param("y", 8, role="out")), body, **more)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Kernel, str]] = {
    "unknown buffer": (kernel(loop("vector", "i", 8, store("z", i, X))), "there is no buffer z"),
    "store to an input": (kernel(loop("vector", "i", 8, store("x", i, X))), "x is an input"),
    "axis out of scope": (kernel(store("y", i, const(1.0))), "uses i, not in scope"),
    "out of bounds": (kernel(loop("vector", "i", 9, store("y", var("i", 9), const(1.0)))), "goes from 0 to 8"),
    "types differ": (kernel(loop("vector", "i", 8, store("y", i, op("add", X, const(1, i64))))), "different types"),
    "wrong result type": (kernel(loop("vector", "i", 8, store("y", i, op("lt", X, X)))), "gives torch.bool"),
    "stored type": (kernel(loop("vector", "i", 8, store("y", i, const(1, i64)))), "the value is torch.int64"),
    "narrow arithmetic": (
        kernel(store("y", 0, op("cast", op("neg", const(1.0, torch.bfloat16)), dtype=f32))),
        "cast to float32 first",
    ),
    "root of an integer": (kernel(store("y", 0, op("sqrt", const(1, i64)))), "floating-point type first"),
    "operand count": (kernel(store("y", 0, Node.make("add", f32, (const(1.0),)))), "takes 2 operands, not 1"),
    "unknown operation": (kernel(store("y", 0, op("frobnicate", const(1.0)))), "no scalar operation"),
    "no accumulator": (kernel(store("y", 0, acc("a"))), "no accumulator a"),
    "accumulator out of scope": (
        kernel(loop("serial", "i", 8, Init("a", "sum", f32)), store("y", 0, acc("a"))),
        "no accumulator a",
    ),
    "race": (
        kernel(Init("a", "sum", f32), loop("parallel", "i", 8, Update("a", X)), store("y", 0, acc("a"))),
        "side by side",
    ),
    "narrow accumulator": (
        kernel(Init("a", "sum", torch.bfloat16), Update("a", const(1.0, torch.bfloat16))),
        "use float32",
    ),
    "position": (kernel(Init("a", "argmax", f32), Update("a", const(1.0))), "needs a position"),
    "vector in vector": (
        kernel(loop("vector", "i", 8, loop("reduce_vector", "j", 2, store("y", i, X)))),
        "inside another vector loop",
    ),
    "parallel in serial": (
        kernel(loop("serial", "j", 2, loop("parallel", "i", 8, store("y", i, X)))),
        "stands inside a serial loop",
    ),
    "axis twice": (kernel(loop("serial", "i", 8, loop("serial", "i", 8, store("y", i, X)))), "already in scope"),
    "too much scratch": (kernel(locals=(Local("l", f32, Expr.const(1 << 20)),)), "larger than"),
    "mask": (
        kernel(loop("vector", "i", 8, store("y", i, load("x", i, f32, X, masked=True)))),
        "is not a bool",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    bad, message = REFUSED[name]
    with pytest.raises(InvalidKernel, match=message):
        verify(bad, most_local_bytes=host_machine().most_local_bytes)


def test_message_shows_the_place() -> None:
    with pytest.raises(InvalidKernel) as caught:
        verify(kernel(loop("vector", "i", 8, store("y", i, X), store("y", i + 1, X))))
    assert str(caught.value).split("\n")[1:] == [
        "  kernel k(in x: f32[8], out y: f32[8])",
        "    vector i < 8:",
        "      y[i] = x[i]",
        ">     y[i + 1] = x[i]",
    ]
