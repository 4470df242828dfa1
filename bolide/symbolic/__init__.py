"""Symbolic integers: `Expr` for index arithmetic and sizes, `Cond` for conditions on them."""

from bolide.symbolic.expr import Cond, Expr, as_expr

__all__ = ["Cond", "Expr", "as_expr"]
