"""What runs an Extern: the ATen operation itself, or a faster library call with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bolide.inductor.plan import Call, TensorResult
from bolide.inductor.plan.schemas import operator_of
from bolide.symbolic import Expr
from bolide.tracing import libraries
from bolide.tracing.graph import operator

_aten = torch.ops.aten
WRITING = {getattr(_aten, name).default: getattr(_aten, name).out for name in ("mm", "addmm", "bmm", "baddbmm")}
"""Operations that can write their result to memory that they are given, and the form that does."""
JOINING = {_aten.scatter_reduce.two: _aten.scatter_reduce.two_out}
"""Operations that join elements to a copy of their first operand, and the form that joins them to that operand."""
SEED = (_aten.randint.low, (Expr.const(-(1 << 63)), Expr.const((1 << 63) - 1), ()))
"""The call that draws a seed, and what it is given."""


def seed_of(step: Call) -> TensorResult | None:
    """What a call gives that draws a seed; None of another one."""
    op, arguments = SEED
    if step.operator != operator_of(op) or step.arguments[: len(arguments)] != arguments:
        return None
    (result,) = step.results
    return result if isinstance(result, TensorResult) and result.type.dtype == torch.int64 else None


def function_of(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The function behind an overload, without the Python layers of the overload object."""
    return op._op


def conv_weight_gradient(
    grad: torch.Tensor, x: torch.Tensor, size: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> torch.Tensor:
    """The weight gradient, of shape `size`, of a 2-d convolution without groups, as one matrix product.

    `grad` (N, O, H', W') is the gradient of the result, `x` (N, I, H, W) the input: grad as (O, N·H'·W') times the
    unfolded input as (N·H'·W', I·kh·kw)."""
    outputs, columns = size[0], size[1] * size[2] * size[3]
    unfolded = torch.ops.aten.im2col.default(x, size[2:], dilation, padding, stride)
    right = unfolded.permute(1, 0, 2).reshape(columns, -1)
    left = grad.transpose(0, 1).reshape(outputs, -1)
    if libraries.fastest(left.dtype, outputs, left.shape[1], columns) == "onednn":
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(left, right, None, "none", [], "")
        return product.view(size)
    return torch.mm(left, right.t()).view(size)


weight_gradient = operator(
    "conv_weight_gradient(Tensor grad, Tensor x, int[] size, int[] stride, int[] padding, int[] dilation) -> Tensor",
    conv_weight_gradient,
)


# ---- products of groups of rows, each with a matrix of its own -------------------------------------------------------


def _groups(ends: torch.Tensor) -> Iterator[tuple[int, slice]]:
    """The groups that have rows, by number; each begins where the one before ends."""
    start = 0
    for group, end in enumerate(ends.tolist()):
        if start != end:
            yield group, slice(start, end)
        start = end


def _multiply(a: torch.Tensor, b: torch.Tensor, into: torch.Tensor) -> None:
    """a @ b, by the library that is fastest."""
    rows, columns = b.shape
    packed = b.stride() in ((columns, 1), (1, rows))
    by_columns = a.stride(1) != 1
    if packed and libraries.fastest(a.dtype, a.shape[0], rows, columns, by_columns=by_columns) == "onednn":
        into.copy_(torch.ops.mkldnn._linear_pointwise.default(a, b.t(), None, "none", [], ""))
    else:
        torch.mm(a, b, out=into)


def grouped_product(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of `a` (S, K) times the matrix of their group in `b` (G, K, N); a group's rows end at `ends`, what is in
    none is 0."""
    product = a.new_zeros(a.shape[0], b.shape[2])
    for group, rows in _groups(ends):
        _multiply(a[rows], b[group], product[rows])
    return product


def grouped_gradients(
    a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `grouped_product`."""
    to_a, to_b = torch.zeros_like(a), torch.zeros_like(b)
    for group, rows in _groups(ends):
        _multiply(grad[rows], b[group].t(), to_a[rows])
        _multiply(a[rows].t(), grad[rows], to_b[group])
    return to_a, to_b


GROUPED = {
    "transformers::grouped_mm_fallback": operator(
        "grouped_product(Tensor a, Tensor b, Tensor ends) -> Tensor", grouped_product
    ),
    "transformers::grouped_mm_fallback_backward": operator(
        "grouped_gradients(Tensor a, Tensor b, Tensor ends, Tensor grad) -> (Tensor, Tensor)", grouped_gradients
    ),
}
"""Operators of other makers that multiply groups of rows by ATen, and what computes the same, for float types that
oneDNN takes: experts of a mixture have few rows each, which oneDNN multiplies in half of MKL's time."""
