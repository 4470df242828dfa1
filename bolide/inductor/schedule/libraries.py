"""Which library runs a matrix product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from bolide.inductor.ir.definitions import Definition, Extern, Layout, Program, View
from bolide.inductor.runtime import externs
from bolide.inductor.schedule.stages import axis_var, contiguous_strides
from bolide.symbolic import Expr

aten = torch.ops.aten
Buffers = dict[str, tuple[torch.dtype, tuple[Expr, ...], Layout | None]]

#: Products with fewer multiplications than this stay with ATen: oneDNN takes 10 µs more to start.
FEWEST_PRODUCTS = 1 << 20


def choose_libraries(program: Program) -> Program:
    """The program with float32 matrix products given to oneDNN where that is faster.

    Measured on AMD EPYC (Zen 5), one thread: MKL 100 GFLOP/s, oneDNN 220 to 240, from 2^20 multiplications on, for
    every orientation of the operands; in bfloat16 ATen uses oneDNN by itself.
    """
    if not externs.prefers_onednn():
        return program
    buffers = program.named()
    done: list[Definition] = []
    for definition in program.definitions:
        if isinstance(definition, Extern) and definition.op in (aten.mm.default, aten.addmm.default):
            definition = _linear(definition, buffers) or definition
        done.append(definition)
    return Program(program.inputs, done, program.results, program.size_vars)


def _linear(extern: Extern, buffers: Buffers) -> Extern | None:
    """a @ b (+ bias) as a linear layer with weight b.T, or None where that does not do."""
    bias: Any = None
    if extern.op is aten.addmm.default:
        bias, a, b = extern.args
        scaled = any(factor != 1 for factor in extern.kwargs.values())
        if scaled or not isinstance(bias, View) or bias.shape != b.shape[1:]:
            return None
    else:
        a, b = extern.args
    products = a.shape[0] * a.shape[1] * b.shape[1]
    large = products.is_const and products.value >= FEWEST_PRODUCTS
    if extern.dtypes[0] is not torch.float32 or not large:
        return None
    args = (a, _transposed(b, buffers), bias, "none", [], "")
    return replace(extern, op=torch.ops.mkldnn._linear_pointwise.default, args=args, kwargs={})


def _transposed(view: View, buffers: Buffers) -> View:
    if view.stride is not None:
        return replace(view, shape=view.shape[::-1], stride=view.stride[::-1], axes=view.axes[::-1])
    _, shape, layout = buffers[view.buffer]
    layout = layout or Layout(contiguous_strides(shape), Expr.const(0))
    axes = tuple([f"{view.buffer}_t{i}" for i in range(len(shape))])
    coords = tuple([axis_var(name, extent) for name, extent in zip(axes, shape)])
    return View(view.buffer, shape[::-1], layout.stride[::-1], layout.offset, axes[::-1], coords)
