"""Which library call runs a matrix product or a convolution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from bolide.inductor.ir.definitions import Definition, Extern, Layout, Program, View
from bolide.inductor.runtime import externs
from bolide.inductor.schedule.stages import axis_var
from bolide.symbolic import Expr, contiguous_strides

aten = torch.ops.aten
Buffers = dict[str, tuple[torch.dtype, tuple[Expr, ...], Layout | None]]

#: Products with fewer multiplications than this stay with ATen: oneDNN takes 10 µs more to start.
FEWEST_PRODUCTS = 1 << 20


#: A convolution over at most this many places (batch × height × width of the result) with at least this many weights
#: gets its weight gradient from a matrix product: oneDNN's own way reorders the weights at great cost.
MOST_PLACES = 128
FEWEST_WEIGHTS = 1 << 20


def choose_libraries(program: Program) -> Program:
    """The program with matrix products and convolutions given to the library call that is fastest.

    Measured on AMD EPYC (Zen 5), one thread. float32 products: MKL 100 GFLOP/s, oneDNN 220 to 240, from 2^20
    multiplications on, for every orientation of the operands; in bfloat16 ATen uses oneDNN by itself. Weight gradient
    of a 3×3 convolution of 512 to 512 channels at 4×4, batch 2: 10.3 ms, as a product 1.0 ms; at batch 8 9.1 and 4.6.
    """
    buffers = program.named()
    done: list[Definition] = []
    for definition in program.definitions:
        replaced: list[Definition] | None = None
        if isinstance(definition, Extern):
            if definition.op in (aten.mm.default, aten.addmm.default) and externs.prefers_onednn():
                replaced = _linear(definition, buffers, program.size_vars)
            elif definition.op is aten.convolution_backward.default:
                replaced = _weight_gradient(definition)
        done += replaced or [definition]
    return Program(program.inputs, done, program.results, program.size_vars)


def _weight_gradient(extern: Extern) -> list[Definition] | None:
    """A convolution's backward with the weight gradient on its own, or None where that does not pay."""
    grad, x, weight, bias, stride, padding, dilation, transposed, _, groups, wanted = extern.args
    shapes = (*grad.shape, *weight.shape)
    if not wanted[1] or transposed or groups != 1 or len(weight.shape) != 4 or not all(e.is_const for e in shapes):
        return None
    size = [extent.value for extent in weight.shape]
    places = grad.shape[0].value * grad.shape[2].value * grad.shape[3].value
    layout = Layout(contiguous_strides(weight.shape), Expr.const(0))
    plain = extern.dtypes[1] is torch.float32 and extern.layouts[1] == layout
    if not plain or places > MOST_PLACES or prod(size) < FEWEST_WEIGHTS:
        return None
    product = Extern(
        (extern.names[1],),
        torch.ops.bolide.conv_weight_gradient.default,
        (grad, x, size, list(stride), list(padding), list(dilation)),
        {},
        (torch.float32,),
        (weight.shape,),
        (layout,),
        origin=extern.origin,
    )
    parts: list[Definition] = [product]
    if wanted[2]:  # on its own too: asked for a bias gradient, oneDNN computes the weight gradient along with it
        bias_layout = Layout((Expr.const(1),), Expr.const(0))
        parts.append(
            Extern(
                (extern.names[2],),
                aten.sum.dim_IntList,
                (grad, [0, 2, 3]),
                {},
                (torch.float32,),
                (weight.shape[:1],),
                (bias_layout,),
                origin=extern.origin,
            )
        )
    if wanted[0]:
        args = (
            grad,
            x,
            weight,
            bias,
            stride,
            padding,
            dilation,
            transposed,
            extern.args[8],
            groups,
            [True, False, False],
        )
        parts.append(replace(extern, args=args, names=(extern.names[0], None, None)))
    return parts


def _linear(extern: Extern, buffers: Buffers, likely: Mapping[str, int]) -> list[Definition] | None:
    """a @ b (+ bias) as a linear layer with weight b.T, or None where that does not do."""
    bias: Any = None
    args: tuple[Any, ...]
    if extern.op is aten.addmm.default:
        bias, a, b = extern.args
        scaled = any(factor != 1 for factor in extern.kwargs.values())
        if scaled or not isinstance(bias, View):
            return None
        if bias.shape != b.shape[1:] and not (bias.shape == (a.shape[0], b.shape[1]) and _row_major(bias, buffers)):
            return None
    else:
        a, b = extern.args
    products = a.shape[0] * a.shape[1] * b.shape[1]
    if extern.dtypes[0] is not torch.float32 or products.evaluate(likely) < FEWEST_PRODUCTS:
        return None
    weight = _transposed(b, buffers)
    if not _dense(weight):  # oneDNN then falls back to a loop that is a thousand times slower
        return None
    if bias is not None and len(bias.shape) == 2:
        args = (a, bias, weight, None, "add")
        return [replace(extern, op=torch.ops.mkldnn._linear_pointwise.binary, args=args, kwargs={})]
    args = (a, weight, bias, "none", [], "")
    return [replace(extern, op=torch.ops.mkldnn._linear_pointwise.default, args=args, kwargs={})]


def _transposed(view: View, buffers: Buffers) -> View:
    if view.stride is not None:
        return replace(view, shape=view.shape[::-1], stride=view.stride[::-1], axes=view.axes[::-1])
    _, shape, layout = buffers[view.buffer]
    layout = layout or Layout(contiguous_strides(shape), Expr.const(0))
    axes = tuple([f"{view.buffer}_t{i}" for i in range(len(shape))])
    coords = tuple([axis_var(name, extent) for name, extent in zip(axes, shape)])
    return View(view.buffer, shape[::-1], layout.stride[::-1], layout.offset, axes[::-1], coords)


def _row_major(view: View, buffers: Buffers) -> bool:
    _, shape, layout = buffers[view.buffer]
    return view.stride is None and (layout is None or layout.stride == contiguous_strides(shape))


def _dense(view: View) -> bool:
    """Whether a matrix is stored without gaps, by rows or by columns."""
    rows, columns = view.shape
    one = Expr.const(1)
    return view.stride in ((columns, one), (one, rows))
