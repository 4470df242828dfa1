"""Small windows: pooling, as a chain over the window's elements, and convolutions of each channel by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

import torch
import torch.fx

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import EXTERN, lowering
from bolide.inductor.lowering.shapes import holds, whole_factors, within
from bolide.inductor.lowering.values import Coords, Reader, TensorValue, same_layout
from bolide.inductor.lowering.views import reshape
from bolide.inductor.machine import Machine
from bolide.symbolic import Expr, contiguous_strides
from bolide.tracing import TensorMeta

aten = torch.ops.aten

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
        ctx: Lowering,
        x: TensorValue,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int],
    ) -> _Window | None:
        """None: this is ATen's."""
        kernel = _pair(kernel_size)
        small = all(isinstance(size, int) for size in kernel) and kernel[0] * kernel[1] <= ctx.machine.most_window
        step = _pair(stride) if stride else kernel
        return _Window(kernel, step, _pair(padding)) if small and sc.is_float(x.dtype) else None

    def overlaps_little(self, machine: Machine) -> bool:
        """Whether few windows are known to meet in an element, and elements to be of few phases."""
        if not all(isinstance(number, int) for number in (*self.stride, *self.padding)):
            return False
        if min(*self.kernel, *self.stride) < 1:  # eager refuses them
            return False
        met = prod(-(-k // s) for k, s in zip(self.kernel, self.stride))
        return met <= machine.most_windows and prod(self.stride) <= machine.most_phases

    def around(self, dim: int, phase: int) -> list[int]:
        """The windows, less i, that the element at stride · i + phase is in, ascending (eager adds in that order)."""
        kernel, step, padding = self.kernel[dim], self.stride[dim], self.padding[dim]
        first, offset = divmod(phase + padding, step)
        return [first - j for j in reversed(range(-(-kernel // step))) if offset + step * j < kernel]

    def over(self, dim: int, place: Expr, count: Expr) -> list[tuple[Expr, Node]]:
        """The windows, of `count`, that an element may be in, ascending, the nearest ones in their place where there
        are none; and whether it is in them."""
        kernel, step = self.kernel[dim], self.stride[dim]
        last, offset = (place + self.padding[dim]) // step, (place + self.padding[dim]) % step
        found = []
        for back in reversed(range(-(-kernel // step))):
            met = sc.logical_and(within(last - back, 0, count), holds(offset.lt(kernel - back * step)))
            found.append((Expr.min(Expr.max(last - back, 0), count - 1), met))
        return found

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
    window = _Window.of(ctx, x, kernel_size, stride, padding)
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

    def largest(coords: Coords) -> Node:
        """An instruction for each element; of zeros any may be the one."""
        nothing = sc.const(float("-inf"), sc.compute_dtype(x.dtype))
        there = [sc.where(inside, value, nothing) for inside, value, _ in window.elements(x, coords)]
        return functools.reduce(partial(sc.binary, "max"), there, nothing)

    shape = ctx.shape_of(ctx.metas[0])
    narrow = sc.compute_dtype(x.dtype) is not x.dtype  # of whose many elements arithmetic takes longer than memory
    if ctx.machine.device == "cuda" and narrow and all(user.args[1] == 0 for user in ctx.node.users):
        return ctx.compute(shape, x.dtype, largest), None
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
    window = _Window.of(ctx, x, kernel_size, stride, padding)
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


# ---- gradients -----------------------------------------------------------------------------------------------------


def _spread(
    ctx: Lowering, x: TensorValue, window: _Window, windows: Coords, term: Callable[[Coords, Coords, Node], Node]
) -> object:
    """A tensor like `x` whose elements are the sums over the windows that they are in of term(window, element, whether
    it is in it). A GPU looks at each element's by themselves.

    Row s·i + p (s: the stride) is in the windows i + (p + padding) // s - j with j = 0, 1 …, the same ones for every i:
    so rows and columns are computed phase by phase, each along whole rows of windows. Row-major planes only."""
    shape, dtype = ctx.out
    rows, columns = shape[-2:]

    def element(place: Coords) -> Node:
        total = sc.const(0.0, sc.compute_dtype(dtype))
        near = [window.over(dim, place[dim - 2], windows[dim - 2]) for dim in (0, 1)]
        for (row, down), (column, right) in product(*near):
            total = sc.add(total, term((*place[:-2], row, column), place, sc.logical_and(down, right)))
        return total

    if ctx.machine.device == "cuda":
        return ctx.compute(shape, dtype, element)
    step = window.stride
    contiguous = same_layout(shape, ctx.sizes(ctx.meta.stride), contiguous_strides(shape))
    if not (contiguous and all(size.is_const and size.value % s == 0 for size, s in zip((rows, columns), step))):
        return EXTERN
    high, wide = rows // step[0], columns // step[1]

    def phase(kept: Coords, row: int, column: int) -> Node:
        *outer, i, j = kept
        place = (*outer, i * step[0] + row, j * step[1] + column)
        total = sc.const(0.0, sc.compute_dtype(dtype))
        for down, right in product(window.around(0, row), window.around(1, column)):
            total = sc.add(total, term((*outer, i + down, j + right), place, sc.const(True, torch.bool)))
        return total

    def body(coords: Coords) -> Node:
        *outer, i, row, j, column = coords
        value = sc.const(0.0, sc.compute_dtype(dtype))
        for r, c in product(reversed(range(step[0])), reversed(range(step[1]))):
            here = sc.logical_and(within(row, 0, r + 1), within(column, 0, c + 1))
            value = sc.where(here, phase((*outer, i, j), r, c), value)
        return value

    phases = ctx.compute((*shape[:-2], high, Expr.const(step[0]), wide, Expr.const(step[1])), dtype, body)
    return reshape(phases, shape)


@lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
    indices: TensorValue,
) -> object:
    """Of 16-bit floats, of which ATen's scatter takes one and a half times as long; it is faster with float32 on a CPU.
    On a GPU it adds in any order, and is refused where that matters."""
    window = _Window.of(ctx, x, kernel_size, stride, padding)
    if window is None or not window.overlaps_little(ctx.machine) or _pair(dilation) != (1, 1):
        return EXTERN
    on_gpu = ctx.machine.device == "cuda"
    if torch.are_deterministic_algorithms_enabled() if on_gpu else sc.compute_dtype(x.dtype) is x.dtype:
        return EXTERN

    plane = x.shape[-2] * x.shape[-1]
    narrow = torch.int32 if plane.is_const and plane.value < 1 << 31 else torch.int64

    def term(at: Coords, place: Coords, met: Node) -> Node:
        inside = _inside(at, grad.shape)
        position = sc.cast(sc.index(place[-2] * x.shape[-1] + place[-1]), narrow)
        chosen = sc.eq(sc.cast(indices.load_if(inside, at), narrow), position)
        chosen = sc.logical_and(sc.logical_and(inside, met), chosen)
        return sc.where(chosen, sc.cast(grad.load_if(inside, at), sc.compute_dtype(x.dtype)), 0.0)

    return _spread(ctx, x, window, grad.shape, term)


@lowering(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> object:
    window = _Window.of(ctx, x, kernel_size, stride, padding)
    plain = not ceil_mode and (_pair(padding) == (0, 0) or count_include_pad)
    if window is None or not window.overlaps_little(ctx.machine) or not plain:
        return EXTERN
    divisor = divisor_override or window.kernel[0] * window.kernel[1]

    def term(at: Coords, place: Coords, met: Node) -> Node:
        value = sc.div(sc.cast(grad.load_if(_inside(at, grad.shape), at), sc.compute_dtype(x.dtype)), divisor)
        return sc.where(met, value, 0.0)

    return _spread(ctx, x, window, grad.shape, term)


def _inside(window: Coords, windows: Coords) -> Node:
    """Whether there is such a window."""
    return sc.all_of(within(at, 0, size) for at, size in zip(window[-2:], windows[-2:]))


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


# ---- convolutions of each channel by itself -------------------------------------------------------------------------


def _by_channel(
    x: TensorValue, weight: TensorValue, stride: Sequence[int], padding: Sequence[int], plain: bool
) -> _Window | None:
    """The windows of a convolution of each channel by itself with static sizes; None for any other."""
    sizes = (*x.shape, *weight.shape)
    if not plain or len(sizes) != 8 or x.dtype is not weight.dtype or not all(size.is_const for size in sizes):
        return None
    channels, one, *kernel = (size.value for size in weight.shape)
    if one != 1 or x.shape[1].value != channels or x.is_empty:
        return None
    return _Window((kernel[0], kernel[1]), _pair(stride), _pair(padding))


def _is_small(ctx: Lowering, window: _Window, x: TensorValue) -> bool:
    """Whether sums over the windows of a plane are ours."""
    source = ctx.node.args[0]
    assert isinstance(source, torch.fx.Node)
    meta: TensorMeta = source.meta["val"]
    plain = x.dtype is torch.float32 and window.stride == (1, 1) and meta.stride == contiguous_strides(meta.shape)
    small = prod(window.kernel) <= ctx.machine.most_small_window
    return plain and small and prod(meta.shape[2:]) >= ctx.machine.least_plane


def _weighted(ctx: Lowering, x: TensorValue, weight: TensorValue, window: _Window, turned: bool) -> Reader:
    """The sums over windows of `x`, element by element times the channel's weights (`turned`: from their last to their
    first)."""

    def body(coords: Coords) -> Node:
        total: Node | None = None
        for place, (_, value, _) in enumerate(window.elements(x, coords)):
            row, column = divmod(window.kernel[0] * window.kernel[1] - 1 - place if turned else place, window.kernel[1])
            factor = weight.load((coords[1], Expr.const(0), Expr.const(row), Expr.const(column)))
            term = sc.mul(value, factor)
            total = term if total is None else sc.add(total, term)
        assert total is not None
        return total

    return body


def _several(groups: int | Expr) -> bool:
    """Whether a convolution is known to have groups."""
    return isinstance(groups, int) and groups > 1


@lowering(aten.convolution.default)
def convolution(
    ctx: Lowering,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int | Expr,
) -> object:
    window = _by_channel(x, weight, stride, padding, not transposed and _several(groups) and set(dilation) == {1})
    if window is None or not _is_small(ctx, window, x):
        return EXTERN
    sums = _weighted(ctx, x, weight, window, turned=False)
    if bias is None:
        return ctx.compute(*ctx.out, sums)
    return ctx.compute(*ctx.out, lambda coords: sc.add(sums(coords), bias.load((coords[1],))))


@lowering(aten.convolution_backward.default)
def convolution_backward(
    ctx: Lowering,
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue,
    _: object,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int | Expr,
    wanted: Sequence[bool],
) -> object:
    """The gradients of input, weight and bias, those that are `wanted`; what is not ours is left to ATen."""
    window = _by_channel(x, weight, stride, padding, not transposed and _several(groups) and set(dilation) == {1})
    if window is None or grad.is_empty:
        return EXTERN
    small = wanted[0] and _is_small(ctx, window, x)
    large = wanted[1] and prod(window.kernel) >= ctx.machine.least_large_window
    if not (small or large):
        return EXTERN
    left = (wanted[0] and not small, wanted[1] and not large, wanted[2] and not large)
    results: list[object] = [None, None, None]
    if any(left):
        calls = ctx.extern(left)
        assert isinstance(calls, tuple)
        results = list(calls)
    if small:
        padding = tuple(size - 1 - before for size, before in zip(window.kernel, window.padding))
        back = _Window(window.kernel, (1, 1), (padding[0], padding[1]))
        results[0] = ctx.compute(x.shape, x.dtype, _weighted(ctx, grad, weight, back, turned=True))
    if large:
        results[1] = _weight_gradient(ctx, grad, x, weight, window)
        if wanted[2]:
            results[2] = _bias_gradient(ctx, grad)
    return tuple(results)


def _weight_gradient(
    ctx: Lowering, grad: TensorValue, x: TensorValue, weight: TensorValue, window: _Window
) -> TensorValue:
    batch, _, rows, columns = grad.shape
    height, width = x.shape[-2:]
    compute = sc.compute_dtype(x.dtype)

    def product(coords: Coords, inner: Coords) -> Node:
        item, *place = inner
        row, column = (
            p * step + c - before for p, c, step, before in zip(place, coords[2:], window.stride, window.padding)
        )
        inside = sc.logical_and(within(row, 0, height), within(column, 0, width))
        value = x.load_if(inside, (item, coords[0], row, column))
        return sc.mul(sc.cast(value, compute), sc.cast(grad.load((item, coords[0], *place)), compute))

    return ctx.reduce(weight.shape, weight.dtype, (batch, rows, columns), "sum", product)


def _bias_gradient(ctx: Lowering, grad: TensorValue) -> TensorValue:
    batch, channels, rows, columns = grad.shape
    compute = sc.compute_dtype(grad.dtype)

    def element(coords: Coords, inner: Coords) -> Node:
        return sc.cast(grad.load((inner[0], coords[0], *inner[1:])), compute)

    return ctx.reduce((channels,), grad.dtype, (batch, rows, columns), "sum", element)
