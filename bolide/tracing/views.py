"""Writing through views: for each view operation, the new value of its operand from the old one and the new value of
the view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bolide.support.errors import Unsupported

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

aten = torch.ops.aten
Node = torch.fx.Node

#: view operation -> f(trace, operand, new value of the view, *arguments of the view operation) -> new value of the
# operand
INVERSES: dict[Any, Callable[..., Node]] = {}


def _inverse(*ops: Any) -> Callable[[Callable[..., Node]], Callable[..., Node]]:
    def register(function: Callable[..., Node]) -> Callable[..., Node]:
        INVERSES.update(dict.fromkeys(ops, function))
        return function

    return register


@_inverse(
    aten.view.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)
def _reshape(trace: Trace, operand: Node, value: Node, *_: Any) -> Node:
    shape = [trace.unwrap(size) for size in operand.meta["val"].shape]
    return trace.call(aten.view.default, value, shape)  # type: ignore[no-any-return]


@_inverse(aten.permute.default)
def _permute(trace: Trace, operand: Node, value: Node, dims: list[int]) -> Node:
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim % len(dims)] = position
    return trace.call(aten.permute.default, value, inverse)  # type: ignore[no-any-return]


@_inverse(aten.transpose.int)
def _transpose(trace: Trace, operand: Node, value: Node, *dims: int) -> Node:
    return trace.call(aten.transpose.int, value, *dims)  # type: ignore[no-any-return]


@_inverse(aten.t.default)
def _t(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.t.default, value)  # type: ignore[no-any-return]


@_inverse(aten.expand.default)
def _expand(trace: Trace, operand: Node, value: Node, *_: Any, **__: Any) -> Node:
    if operand.meta["val"].shape != value.meta["val"].shape:
        raise Unsupported("an expanded tensor is written in place", trace.where, "clone it first")
    return value


def _scatter(scatter: Any) -> Callable[..., Node]:
    def inverse(trace: Trace, operand: Node, value: Node, *args: Any, **kwargs: Any) -> Node:
        return trace.call(scatter, operand, value, *args, **kwargs)  # type: ignore[no-any-return]

    return inverse


for _view, _op in (
    (aten.select.int, aten.select_scatter.default),
    (aten.slice.Tensor, aten.slice_scatter.default),
    (aten.diagonal.default, aten.diagonal_scatter.default),
    (aten.as_strided.default, aten.as_strided_scatter.default),
):
    INVERSES[_view] = _scatter(_op)


@_inverse(aten.view.dtype)
def _view_dtype(trace: Trace, operand: Node, value: Node, _: torch.dtype) -> Node:
    return trace.call(aten.view.dtype, value, operand.meta["val"].dtype)  # type: ignore[no-any-return]


@_inverse(aten.view_as_real.default)
def _view_as_real(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.view_as_complex.default, value)  # type: ignore[no-any-return]


@_inverse(aten.view_as_complex.default)
def _view_as_complex(trace: Trace, operand: Node, value: Node) -> Node:
    return trace.call(aten.view_as_real.default, value)  # type: ignore[no-any-return]
