"""Operations that refuse some data: an index out of range, a matrix without an inverse, a division by zero."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
import torch.fx
from torch._ops import OpOverload

from bolide.tracing.graph import operator
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rng import DRAWS

_DATA = {"index", "indices", "targets", "offsets", "repeats", "lengths", "input_lengths", "target_lengths"}
_DATA |= {"sorter", "info", "pivots", "prob"}
"""Arguments, of tensors, that are checked."""
_NAMES = {"bincount", "binomial", "poisson", "bernoulli", "normal", "random", "take", "put", "pow"}
_NAMES |= {"masked_scatter", "geqrf", "lstsq", "histogram", "max_unpool2d"}
_NAMES |= {"binary_cross_entropy", "max_unpool3d"}
_PREFIXES = ("scatter", "index", "embedding", "nll_loss", "multi", "cholesky")
_DIVISIONS = {"div", "divide", "floor_divide", "remainder", "fmod"}
_OWN = {"aten", "prim", "prims"}


def _done(value: torch.Tensor) -> None:
    """A value that nothing needs was computed."""


done = operator("done(Tensor value) -> ()", _done)
"""Follows an operation that may raise and whose result nothing needs: eager does it, so the graph does."""


def may_raise(node: torch.fx.Node) -> bool:
    """Whether an operation of a graph raises for some data, sizes and types being as they are."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    meta = node.meta.get("val")
    return call_may_raise(target, [meta.dtype] if isinstance(meta, TensorMeta) else [])


def call_may_raise(func: OpOverload, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether an operation with results of these types raises for some data."""
    answer = _may_raise(func)
    return any(not (d.is_floating_point or d.is_complex) for d in dtypes) if answer is None else answer


def _base_name(func: OpOverload) -> str:
    return str(func._schema.name).partition("::")[2].rstrip("_")


@functools.cache
def _may_raise(func: OpOverload) -> bool | None:
    """None: if it computes integers."""
    return None if _base_name(func) in _DIVISIONS else checks_data(func)


@functools.cache
def checks_data(func: OpOverload) -> bool:
    """Whether an operation refuses some data, division by zero apart."""
    schema, name = func._schema, _base_name(func)
    if func.namespace == "bolide":
        return func not in DRAWS and func is not done
    if func.namespace not in _OWN:
        return True
    if name in _NAMES or "linalg" in name or name.startswith(_PREFIXES):
        return True
    tensors = (arg.name for arg in schema.arguments if "Tensor" in str(arg.type))
    return not schema.returns or not _DATA.isdisjoint(tensors)
