"""Writing through views: for each view operation, the new value of its operand from the old one and the new value of
the view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bolide.support.errors import Unsupported
from bolide.support.registers import register
from bolide.tracing.rules.registry import qualified

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

aten = torch.ops.aten
Node = torch.fx.Node

#: view operation -> f(trace, operand, new value of the view, *arguments of the view) -> new value of the operand
INVERSES: dict[str, Callable[..., Node]] = {}


_inverse = register(INVERSES, qualified)


@_inverse(
    "view",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze",
)
def _reshape(trace: Trace, operand: Node, value: Node, *_: Any) -> Node:
    shape = [trace.unwrap(size) for size in operand.meta["val"].shape]
    return trace.call(aten.view.default, value, shape)  # type: ignore[no-any-return]


@_inverse("permute")
def _permute(trace: Trace, operand: Node, value: Node, dims: list[int]) -> Node:
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim % len(dims)] = position
    return trace.call(aten.permute.default, value, inverse)  # type: ignore[no-any-return]


@_inverse("transpose.int")
def _transpose(trace: Trace, operand: Node, value: Node, *dims: int) -> Node:
    return trace.call(aten.transpose.int, value, *dims)  # type: ignore[no-any-return]


@_inverse("t")
def _t(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.t.default, value)  # type: ignore[no-any-return]


@_inverse("expand")
def _expand(trace: Trace, operand: Node, value: Node, *_: Any, **__: Any) -> Node:
    if operand.meta["val"].shape != value.meta["val"].shape:
        raise Unsupported("an expanded tensor is written in place", trace.where, "clone it first", kind="tensor_write")
    return value


def _scatter(name: str) -> Callable[..., Node]:
    def inverse(trace: Trace, operand: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
        op = getattr(aten, name).default
        return trace.call(op, operand, value, *args, **kwargs)  # type: ignore[no-any-return]

    return inverse


for _view in ("select.int", "slice.Tensor", "diagonal"):
    _inverse(_view)(_scatter(_view.split(".")[0] + "_scatter"))


@_inverse("as_strided")
def _as_strided(trace: Trace, operand: Node, value: Node, size: Any, stride: Any, offset: Any) -> Node:
    sizes, steps, start = ([_number(item) for item in each] for each in (size, stride, [offset or 0]))
    reached = sum((extent - 1) * step for extent, step in zip(sizes, steps)) + start[0]
    if 0 not in sizes and reached >= operand.meta["val"].numel:
        reason = "an argument is written past its own elements"
        raise Unsupported(reason, trace.where, "pass the tensor that it is a view of", kind="tensor_write")
    return trace.call(aten.as_strided_scatter.default, operand, value, size, stride, offset)  # type: ignore[no-any-return]


def _number(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, Node) else arg


@_inverse("view.dtype")
def _view_dtype(trace: Trace, operand: Node, value: Node, _: torch.dtype) -> Node:
    return trace.call(aten.view.dtype, value, operand.meta["val"].dtype)  # type: ignore[no-any-return]


@_inverse("view_as_real")
def _view_as_real(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.view_as_complex.default, value)  # type: ignore[no-any-return]


@_inverse("_conj")
def _conjugate(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.conj_physical.default, value)  # type: ignore[no-any-return]


@_inverse("_neg_view")
def _negative(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.neg.default, value)  # type: ignore[no-any-return]


@_inverse("view_as_complex")
def _view_as_complex(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.view_as_real.default, value)  # type: ignore[no-any-return]
