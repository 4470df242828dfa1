"""Symbolic integers: `Expr` for index arithmetic and sizes, `Cond` for conditions on them, `ShapeEnv` for the sizes of
a trace."""

from bolide.symbolic.assumptions import LARGEST, MOST_ELEMENTS, Ratio, is_at_least_0, parts_of, room_in, sizes_beside
from bolide.symbolic.expr import Cond, Expr, as_expr
from bolide.symbolic.nodes import KeyNode, ShapeEnv, SymNode
from bolide.symbolic.sizes import (
    Size,
    contiguous_strides,
    gaps,
    hint_of,
    is_data,
    is_one,
    is_packed,
    is_undecided,
    is_zero,
    or_one,
    product,
    same_size,
    same_sizes,
    symbolic_strides,
    times,
    without_zeros,
)

__all__ = [
    "LARGEST",
    "MOST_ELEMENTS",
    "Cond",
    "Expr",
    "KeyNode",
    "Ratio",
    "ShapeEnv",
    "Size",
    "SymNode",
    "as_expr",
    "contiguous_strides",
    "gaps",
    "hint_of",
    "is_at_least_0",
    "is_data",
    "is_one",
    "is_packed",
    "is_undecided",
    "is_zero",
    "or_one",
    "parts_of",
    "product",
    "room_in",
    "same_size",
    "same_sizes",
    "sizes_beside",
    "symbolic_strides",
    "times",
    "without_zeros",
]
