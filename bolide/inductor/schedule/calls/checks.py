"""Calls that are steps of other kinds than a call: checks, and what tells or computes a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from bolide.inductor.ir.definitions import Extern, View
from bolide.inductor.lowering.indexing import check_index
from bolide.inductor.plan import Check, Item, Ref, Require, Size, Step, Word
from bolide.inductor.plan.steps import of_words
from bolide.inductor.schedule.stages import Buffer, is_one
from bolide.symbolic import Expr, as_expr
from bolide.tracing.fallible import done
from bolide.tracing.numbers.data import clip_index, require, require_true, wrap_index

aten = torch.ops.aten
_OUTSIDE = "index is out of bounds for its dimension"


def steps_of(extern: Extern, buffers: Mapping[str, Buffer], ref: Callable[[View], Ref]) -> list[Step] | None:
    """The steps in place of a call; None where it stays one. `ref` gives the tensor that a view is."""
    op = extern.op
    if op is done:  # what was to be computed has been
        return []
    if op is require:
        value, relation = extern.args
        message = "a condition on data that the program was compiled for does not hold"
        return [Require(_word(value), relation, "Refuted", message)]
    if op in (wrap_index, clip_index):
        index, size = map(_word, extern.args)
        return (
            _wrapped(_name(extern), index, size) if op is wrap_index else [Word(_name(extern), _clipped(index, size))]
        )
    view = extern.args[0] if extern.args else None
    if not isinstance(view, View) or op not in (
        check_index,
        require_true,
        aten.sym_size.int,
        aten._local_scalar_dense.default,
    ):
        return None
    if op is aten.sym_size.int:
        return [Size(_name(extern), ref(view).name, extern.args[1] % len(view.shape))]
    dtype = buffers[view.buffer].dtype
    if dtype.is_floating_point or dtype.is_complex or not all(map(is_one, view.shape)):
        return None
    if op is aten._local_scalar_dense.default:
        return [Item(_name(extern), ref(view).name)]
    if dtype is not torch.bool:
        return None
    if op is require_true:
        return [Check(ref(view).name, True, "Refuted", "a check of the program fails")]
    _, message, is_index = extern.args
    return [Check(ref(view).name, False, "IndexError" if is_index else "RuntimeError", message)]


def _name(extern: Extern) -> str:
    (name,) = extern.names
    assert name is not None
    return name


def _word(value: object) -> Expr:
    return of_words(as_expr(value))


def _wrapped(name: str, index: Expr, size: Expr) -> list[Step]:
    """The place in 0 … size - 1 that an index means, counted from the end if it is negative."""
    inside = Expr.const(0) if size.is_const and size.value <= 0 else index % size
    return [
        Require(index + size, ">=", "IndexError", _OUTSIDE),
        Require(size - index - 1, ">=", "IndexError", _OUTSIDE),
        Word(name, inside),
    ]


def _clipped(index: Expr, size: Expr) -> Expr:
    """The bound in 0 … size that a bound of a slice means, counted from the end if it is negative: min(max(index, 0),
    size), and max(index + size, 0) for a negative index."""
    negative = Expr.min(Expr.max(-index, 0), 1)
    return Expr.min(Expr.max(index, 0), size) + negative * Expr.max(index + size, 0)
