"""Pooling over small windows: a chain over the window's elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.shapes import whole_factors, within
from bolide.inductor.lowering.values import Coords, TensorValue
from bolide.symbolic import Expr

aten = torch.ops.aten

_MOST = 25  # larger windows are ATen's


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, last = value[0], value[-1]
    return first, last


def _window(
    x: TensorValue, coords: Coords, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Iterator[tuple[Node, Node, Expr]]:
    """(whether it is inside, element or 0, position in the plane) for the window's elements in row-major order."""
    height, width = x.shape[-2:]
    top, left = (c * s - p for c, s, p in zip(coords[-2:], stride, padding))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            row, column = top + i, left + j
            inside = sc.logical_and(within(row, 0, height), within(column, 0, width))
            yield inside, x.load_if(inside, (*coords[:-2], row, column)), row * width + column


def _small(kernel: Sequence[int]) -> bool:
    return all(isinstance(size, int) for size in kernel) and kernel[0] * kernel[1] <= _MOST


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    ctx: Lowering,
    x: TensorValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """(maxima, their positions in the plane). A NaN wins, the last one if there are several."""
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = _pair(stride) if stride else kernel
    if not _small(kernel) or _pair(dilation) != (1, 1) or not sc.is_float(x.dtype):
        return EXTERN
    compute = sc.compute_dtype(x.dtype)

    def chain(coords: Coords) -> tuple[Node, Node]:
        best = sc.const(float("-inf"), compute)
        corner = [Expr.max(c * s - p, 0) for c, s, p in zip(coords[-2:], step, pad)]
        place = sc.index(corner[0] * x.shape[-1] + corner[1])
        for inside, loaded, position in _window(x, coords, kernel, step, pad):
            value = sc.cast(loaded, compute)
            wins = sc.logical_or(sc.compare("gt", value, best), Node.make("isnan", torch.bool, (value,)))
            wins = sc.logical_and(inside, wins)
            best = sc.where(wins, value, best)
            place = sc.where(wins, sc.index(position), place)
        return best, place

    shape = ctx.shape_of(ctx.meta[0])
    maxima = ctx.compute(shape, x.dtype, lambda coords: chain(coords)[0])
    return maxima, ctx.compute(shape, torch.int64, lambda coords: chain(coords)[1])


@lowering(aten.avg_pool2d.default)
def avg_pool2d(
    ctx: Lowering,
    x: TensorValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = _pair(stride) if stride else kernel
    plain = not ceil_mode and (pad == (0, 0) or count_include_pad)  # every window is divided by the same number
    if not _small(kernel) or not plain or not sc.is_float(x.dtype):
        return EXTERN
    shape, dtype = ctx.out
    compute = sc.compute_dtype(dtype)
    divisor = sc.const(divisor_override or kernel[0] * kernel[1], compute)

    def body(coords: Coords) -> Node:
        total = sc.const(0.0, compute)
        for _, loaded, _ in _window(x, coords, kernel, step, pad):
            total = sc.add(total, sc.cast(loaded, compute))
        return sc.div(total, divisor)

    return ctx.compute(shape, dtype, body)


@lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(ctx: Lowering, x: TensorValue, output_size: Any) -> Any:
    """Where windows are equal and disjoint."""
    shape, dtype = ctx.out
    factors = whole_factors(x.shape[-2:], shape[-2:])
    if factors is None or not sc.is_float(dtype):
        return EXTERN
    compute = sc.compute_dtype(dtype)
    high, wide = factors

    def body(kept: Coords, window: Coords) -> Node:
        row, column = kept[-2] * high + window[0], kept[-1] * wide + window[1]
        return sc.cast(x.load((*kept[:-2], row, column)), compute)

    total = ctx.reduce(shape, compute, (Expr.const(high), Expr.const(wide)), "sum", body)
    divisor = sc.const(high * wide, compute)
    return ctx.compute(shape, dtype, lambda coords: sc.div(total.load(coords), divisor))


@lowering(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(ctx: Lowering, grad: TensorValue, x: TensorValue) -> Any:
    shape, dtype = ctx.out
    factors = whole_factors(shape[-2:], grad.shape[-2:])
    if factors is None or not sc.is_float(dtype):
        return EXTERN
    compute = sc.compute_dtype(dtype)
    high, wide = factors

    def body(coords: Coords) -> Node:
        value = sc.cast(grad.load((*coords[:-2], coords[-2] // high, coords[-1] // wide)), compute)
        return sc.div(value, sc.const(high * wide, compute))

    return ctx.compute(shape, dtype, body)
