"""Pooling over small windows: a chain over the window's elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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


Pair = tuple[int, int]


def _pair(value: int | Sequence[int]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class _Window(NamedTuple):
    """Which elements of a plane a result is made of."""

    kernel: Pair
    stride: Pair
    padding: Pair

    @staticmethod
    def of(
        x: TensorValue, kernel_size: int | Sequence[int], stride: int | Sequence[int], padding: int | Sequence[int]
    ) -> _Window | None:
        """None: this is ATen's."""
        kernel = _pair(kernel_size)
        small = all(isinstance(size, int) for size in kernel) and kernel[0] * kernel[1] <= _MOST
        step = _pair(stride) if stride else kernel
        return _Window(kernel, step, _pair(padding)) if small and sc.is_float(x.dtype) else None

    def corner(self, coords: Coords) -> list[Expr]:
        """The first row and column, which may be padding."""
        return [c * s - p for c, s, p in zip(coords[-2:], self.stride, self.padding)]

    def elements(self, x: TensorValue, coords: Coords) -> Iterator[tuple[Node, Node, Expr]]:
        """(whether it is inside, element or 0 in the computation type, position in the plane), in row-major order."""
        height, width = x.shape[-2:]
        top, left = self.corner(coords)
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                row, column = top + i, left + j
                inside = sc.logical_and(within(row, 0, height), within(column, 0, width))
                value = sc.cast(x.load_if(inside, (*coords[:-2], row, column)), sc.compute_dtype(x.dtype))
                yield inside, value, row * width + column


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    ctx: Lowering,
    x: TensorValue,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> object:
    """(maxima, their positions in the plane). A NaN wins, the last one if there are several."""
    window = _Window.of(x, kernel_size, stride, padding)
    if window is None or _pair(dilation) != (1, 1):
        return EXTERN

    def chain(coords: Coords) -> tuple[Node, Node]:
        best = sc.const(float("-inf"), sc.compute_dtype(x.dtype))
        row, column = (Expr.max(place, 0) for place in window.corner(coords))
        place = sc.index(row * x.shape[-1] + column)
        for inside, value, position in window.elements(x, coords):
            wins = sc.logical_and(inside, sc.logical_or(sc.gt(value, best), sc.isnan(value)))
            best = sc.where(wins, value, best)
            place = sc.where(wins, sc.index(position), place)
        return best, place

    shape = ctx.shape_of(ctx.metas[0])
    maxima = ctx.compute(shape, x.dtype, lambda coords: chain(coords)[0])
    return maxima, ctx.compute(shape, torch.int64, lambda coords: chain(coords)[1])


@lowering(aten.avg_pool2d.default)
def avg_pool2d(
    ctx: Lowering,
    x: TensorValue,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> object:
    window = _Window.of(x, kernel_size, stride, padding)
    plain = not ceil_mode and (_pair(padding) == (0, 0) or count_include_pad)  # the divisor is the same everywhere
    if window is None or not plain:
        return EXTERN
    shape, dtype = ctx.out
    divisor = divisor_override or window.kernel[0] * window.kernel[1]

    def body(coords: Coords) -> Node:
        total = sc.const(0.0, sc.compute_dtype(dtype))
        for _, value, _ in window.elements(x, coords):
            total = sc.add(total, value)
        return sc.div(total, divisor)

    return ctx.compute(shape, dtype, body)


@lowering(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(ctx: Lowering, x: TensorValue, output_size: object) -> object:
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
    return ctx.compute(shape, dtype, lambda coords: sc.div(total.load(coords), high * wide))


@lowering(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(ctx: Lowering, grad: TensorValue, x: TensorValue) -> object:
    shape, dtype = ctx.out
    factors = whole_factors(shape[-2:], grad.shape[-2:])
    if factors is None or not sc.is_float(dtype):
        return EXTERN
    compute = sc.compute_dtype(dtype)
    high, wide = factors

    def body(coords: Coords) -> Node:
        value = sc.cast(grad.load((*coords[:-2], coords[-2] // high, coords[-1] // wide)), compute)
        return sc.div(value, high * wide)

    return ctx.compute(shape, dtype, body)
