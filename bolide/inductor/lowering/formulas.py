"""What lowerings of elementwise operations are made of: a formula of scalars, and operands that broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.context import Lowering
from bolide.inductor.lowering.registry import lowering
from bolide.inductor.lowering.values import Coords, Operand, Reader, TensorValue
from bolide.symbolic import Expr

Body = TypeVar("Body", bound=Callable[..., Node])


def elementwise(
    ctx: Lowering, body: Callable[..., Node], *operands: Operand, compute: torch.dtype | None = None
) -> TensorValue:
    """out[i] = body(operands at i, each in dtype `compute`), where operands broadcast. `compute`: the computation
    type of the result's dtype unless given."""
    shape, dtype = ctx.out
    return ctx.compute(shape, dtype, ctx.each(compute or sc.compute_dtype(dtype), body, *operands))


def formula(*overloads: object, takes_sizes: bool = False) -> Callable[[Body], Body]:
    """Decorates a function of scalars that is the lowering of elementwise `overloads`. Tensors and sizes among their
    arguments come as scalars in the computation type of the result's dtype (tensors rounded to that dtype, if it is a
    narrow float), everything else as it is."""

    def register(body: Body) -> Body:
        @lowering(*overloads, takes_sizes=takes_sizes)
        def lower(ctx: Lowering, *args: object, **kwargs: object) -> TensorValue:
            shape, dtype = ctx.out
            compute = sc.compute_dtype(dtype)
            narrow = dtype is not compute and sc.is_float(dtype)

            def element(coords: Coords) -> Node:
                def scalar(arg: object) -> object:
                    if isinstance(arg, TensorValue) and narrow:
                        return rounded_reader(ctx, arg, dtype)(coords)
                    return ctx.operand(arg, coords, compute) if isinstance(arg, (TensorValue, Expr)) else arg

                return body(*map(scalar, args), **{name: scalar(arg) for name, arg in kwargs.items()})

            return ctx.compute(shape, dtype, element)

        return body

    return register


def combined(ctx: Lowering, body: Callable[..., Node], *readers: Reader) -> TensorValue:
    """out[i] = body(what the readers give at i)."""
    return ctx.compute(*ctx.out, lambda coords: body(*[read(coords) for read in readers]))


def rounded_reader(ctx: Lowering, x: Operand, common: torch.dtype) -> Reader:
    """`x` as eager's kernels read an operand of common dtype `common`: converted to it, then to the computation
    type. Numbers are rounded as well (a bf16 `add` of 1.00123 adds 1)."""
    compute = sc.compute_dtype(common)
    return lambda coords: sc.cast(ctx.operand(x, coords, common), compute)


def arithmetic(ctx: Lowering, body: Callable[..., Node], *operands: Operand) -> TensorValue:
    """Like `elementwise`, every operand rounded to the result's dtype first."""
    return combined(ctx, body, *[rounded_reader(ctx, x, ctx.meta.dtype) for x in operands])


def arithmetic_formula(*overloads: object, takes_sizes: bool = False) -> Callable[[Body], Body]:
    """Like `formula`, but all arguments come as scalars, rounded to the result's dtype."""

    def register(body: Body) -> Body:
        @lowering(*overloads, takes_sizes=takes_sizes)
        def lower(ctx: Lowering, *operands: Operand) -> TensorValue:
            return arithmetic(ctx, body, *operands)

        return body

    return register


def promoted(*operands: Operand) -> torch.dtype:
    """torch's promoted dtype of tensors, 0-dim tensors and Python numbers."""
    ranked: list[torch.dtype | None] = [None, None, None]  # tensors, 0-dim tensors, numbers
    for x in operands:
        if isinstance(x, TensorValue):
            rank, dtype = (0 if x.shape else 1), x.dtype
        else:
            rank, dtype = 2, _dtype_of_number(x)
        known = ranked[rank]
        ranked[rank] = dtype if known is None else torch.promote_types(known, dtype)
    return max((dtype for dtype in ranked if dtype is not None), key=_category)  # the first of the highest category


def _dtype_of_number(x: Operand) -> torch.dtype:
    if isinstance(x, bool):
        return torch.bool
    return torch.get_default_dtype() if isinstance(x, float) else torch.int64


def _category(dtype: torch.dtype) -> int:
    return 0 if dtype is torch.bool else 2 if sc.is_float(dtype) else 1


def truth(ctx: Lowering, x: Operand) -> Reader:
    """Whether elements are not zero."""
    dtype = promoted(x)

    def read(coords: Coords) -> Node:
        value = ctx.operand(x, coords, sc.compute_dtype(dtype))
        return value if dtype is torch.bool else sc.ne(value, 0)

    return read
