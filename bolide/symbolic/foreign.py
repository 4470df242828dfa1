"""Symbolic sizes as PyTorch's tools read them: `SymInt`s of PyTorch's, over expressions of sympy. Loaded late: sympy
is slow to import."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._guards import Source
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Max, Min, PythonMod

from bolide.symbolic.assumptions import Assumptions
from bolide.symbolic.expr import Atom, Expr

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {"//": FloorDiv, "%": PythonMod, "min": Min, "max": Max}


class _Named(Source):
    """Where a symbol comes from, for PyTorch: its name."""

    name = ""

    @staticmethod
    def of(name: str) -> _Named:
        source = _Named()
        object.__setattr__(source, "name", name)
        return source


class Symbols:
    """PyTorch's symbols for those of one trace."""

    def __init__(self, assumptions: Assumptions) -> None:
        self.hints, self.data = assumptions.hints, assumptions.facts.names
        self.shapes = ShapeEnv()
        self.known: dict[str, sympy.Symbol] = {}

    def size(self, expr: Expr) -> Any:
        """PyTorch's integer for an expression."""
        hint = None if self.data & expr.free_vars else expr.evaluate(self.hints)
        return self.shapes.create_symintnode(self._expression(expr), hint=hint)

    def _expression(self, expr: Expr) -> sympy.Expr:
        terms = [sympy.Mul(factor, *map(self._atom, mono)) for mono, factor in expr.terms]
        return sympy.Add(expr.offset, *terms)

    def _atom(self, atom: Atom) -> sympy.Expr:
        if atom.kind == "var":
            return self._symbol(atom)
        return _OPERATIONS[atom.kind](*map(self._expression, atom.args))

    def _symbol(self, atom: Atom) -> sympy.Symbol:
        name, (least, _) = atom.key, atom.as_expr().bounds()
        if name not in self.known:
            if name in self.data:
                self.known[name] = self.shapes.create_unbacked_symint().node.expr
            else:
                positive = True if least is not None and least > 0 else None
                self.known[name] = self.shapes.create_symbol(
                    self.hints[name], _Named.of(name), DimDynamic.DYNAMIC, positive=positive
                )
        return self.known[name]


_known: weakref.WeakKeyDictionary[Assumptions, Symbols] = weakref.WeakKeyDictionary()


def foreign(size: Any) -> Any:
    """A size of ours as one of PyTorch's; what is no symbol stays what it is."""
    if not isinstance(size, torch.SymInt) or not isinstance(size.node.expr, Expr):
        return size
    assumptions: Assumptions = size.node.env
    if assumptions not in _known:
        _known[assumptions] = Symbols(assumptions)
    return _known[assumptions].size(size.node.expr)
