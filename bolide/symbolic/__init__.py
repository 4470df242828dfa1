"""Symbolic integers: `Expr` for index arithmetic and sizes, `Cond` for conditions on them, `ShapeEnv` for sizes of a
trace."""

from bolide.symbolic.expr import Cond, Expr, as_expr
from bolide.symbolic.facts import is_at_least_0
from bolide.symbolic.sizes import Ratio, ShapeEnv, SymNode, product, same_size, symbolic_strides, times, without_zeros

__all__ = [
    "Cond",
    "Expr",
    "Ratio",
    "ShapeEnv",
    "SymNode",
    "as_expr",
    "is_at_least_0",
    "product",
    "same_size",
    "symbolic_strides",
    "times",
    "without_zeros",
]
