"""Writing through views: for each view operation, the new value of its operand from the old one and the new value of
the view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from bolide.support.errors import Unsupported
from bolide.support.registers import register
from bolide.symbolic import Size, hint_of
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.registry import qualified
from bolide.tracing.tensor import Recording

aten = torch.ops.aten
Node = torch.fx.Node
Sizes = list[Node | int]

#: view operation -> f(trace, operand, new value of the view, *arguments of the view) -> new value of the operand
INVERSES: dict[str, Callable[..., Node]] = {}


_inverse = register(INVERSES, qualified)


@_inverse("view", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze")
def _reshape(trace: Recording, operand: Node, value: Node, *_: object) -> Node:
    shape = [trace.unwrap(size) for size in operand.meta["val"].shape]
    return trace.call(aten.view.default, value, shape)  # type: ignore[no-any-return]


@_inverse("permute")
def _permute(trace: Recording, operand: Node, value: Node, dims: list[int]) -> Node:
    inverse = invert([dim % len(dims) for dim in dims])
    return trace.call(aten.permute.default, value, inverse)  # type: ignore[no-any-return]


def memory_order(shape: Sequence[Size], stride: Sequence[Size]) -> list[int]:
    """The dimensions from the outermost to the innermost in memory."""
    return sorted(range(len(shape)), key=lambda dim: (-hint_of(stride[dim]), -hint_of(shape[dim]), dim))


def invert(order: list[int]) -> list[int]:
    """The inverse permutation."""
    return sorted(range(len(order)), key=order.__getitem__)


@_inverse("expand")
def _expand(trace: Recording, operand: Node, value: Node, *_: object, **__: object) -> Node:
    if operand.meta["val"].shape != value.meta["val"].shape:
        raise Unsupported("an expanded tensor is written in place", trace.where, "clone it first", kind="tensor_write")
    return value


@_inverse("as_strided")
def _as_strided(
    trace: Recording, operand: Node, value: Node, size: Sizes, stride: Sizes, offset: Node | int | None
) -> Node:
    sizes, steps, start = ([_number(item) for item in each] for each in (size, stride, [offset or 0]))
    reached = sum((extent - 1) * step for extent, step in zip(sizes, steps)) + start[0]
    if 0 not in sizes and reached >= operand.meta["val"].numel:
        reason = "an argument is written past its own elements"
        raise Unsupported(reason, trace.where, "pass the tensor that it is a view of", kind="tensor_write")
    meta: TensorMeta = operand.meta["val"]  # dense; ATen scatters into rows only
    order = memory_order(meta.shape, meta.stride)
    in_rows = order == list(range(len(order)))
    rows = operand if in_rows else trace.call(aten.permute.default, operand, order)
    scattered: Node = trace.call(aten.as_strided_scatter.default, rows, value, size, stride, offset)
    return scattered if in_rows else trace.call(aten.permute.default, scattered, invert(order))


@_inverse("unfold")
def _unfold(trace: Recording, operand: Node, value: Node, dim: int, size: int, step: int) -> Node:
    """Windows do not overlap: `write` refuses those that do. By place, not by stride: the operand may be a view too."""
    meta, windows = operand.meta["val"], value.meta["val"]
    if not meta.shape:
        return _reshape(trace, operand, value)
    dim %= len(meta.shape)
    order = [*range(dim + 1), len(meta.shape), *range(dim + 1, len(meta.shape))]
    together = trace.call(aten.permute.default, value, order)
    covered = [trace.unwrap(n) for n in (*meta.shape[:dim], windows.shape[dim] * size, *meta.shape[dim + 1 :])]
    flat = trace.call(aten.reshape.default, together, covered)
    starts = trace.call(aten.arange.default, trace.unwrap(windows.shape[dim]), device=meta.device)
    starts = trace.call(aten.unsqueeze.default, trace.call(aten.mul.Tensor, starts, step), 1)
    places = trace.call(aten.add.Tensor, starts, trace.call(aten.arange.default, size, device=meta.device))
    places = trace.call(aten.reshape.default, places, [covered[dim]])
    return trace.call(aten.index_copy.default, operand, dim, places, flat)  # type: ignore[no-any-return]


def _number(arg: Node | int) -> Any:
    return arg.meta["val"] if isinstance(arg, Node) else arg


@_inverse("view.dtype")
def _view_dtype(trace: Recording, operand: Node, value: Node, _: torch.dtype) -> Node:
    return trace.call(aten.view.dtype, value, operand.meta["val"].dtype)  # type: ignore[no-any-return]


def _by(op: OpOverload, scatters: bool) -> Callable[..., Node]:
    """An inverse that is an operation on the new value (scattered into the operand), with the view's arguments."""

    def inverse(trace: Recording, operand: Node, value: Node, *args: object, **kwargs: object) -> Node:
        return trace.call(op, *([operand] if scatters else []), value, *args, **kwargs)  # type: ignore[no-any-return]

    return inverse


for _view, _op in {
    "select.int": aten.select_scatter.default,
    "slice.Tensor": aten.slice_scatter.default,
    "diagonal": aten.diagonal_scatter.default,
    "transpose.int": aten.transpose.int,
    "t": aten.t.default,
    "view_as_real": aten.view_as_complex.default,
    "view_as_complex": aten.view_as_real.default,
    "_conj": aten.conj_physical.default,
    "_neg_view": aten.neg.default,
}.items():
    _inverse(_view)(_by(_op, scatters="scatter" in _op._opname))
