"""Sizes and data: operations whose result is as large as the data says, recorded with a symbol for that size; numbers
in tensors that are computed from sizes, recorded as expressions of those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from bolide.symbolic import Cond, Expr, Size, as_expr, contiguous_strides
from bolide.tracing.meta import DataDependent, TensorMeta
from bolide.tracing.numbers import data
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules.common import row_major
from bolide.tracing.rules.registry import told_by_fake
from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten
Node = torch.fx.Node
Sized = tuple[list[TensorMeta], list[Cond]]
#: the metas of the results, given the new size and the arguments by name, and what is known of that size
SizedRule = Callable[..., Sized]


def sized_by_data(trace: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation of `SIZED`, or one whose fake says which sizes are data, recorded."""
    nodes = tuple([trace.unwrap(arg) for arg in args])
    options = {key: trace.unwrap(value) for key, value in kwargs.items()}

    def make() -> list[torch.fx.Node]:
        given = [arg.meta if arg.__class__ is TracedTensor else arg for arg in args]
        metas, symbols, facts = _told(trace, func, given, kwargs)
        node = trace.graph.create_node("call_function", func, nodes, options)
        node.meta["val"], node.meta["where"] = metas[0] if len(metas) == 1 else tuple(metas), trace.where
        results = [node]
        if len(metas) > 1:
            results = [trace.element(node, place, meta) for place, meta in enumerate(metas)]
        for symbol in symbols:
            place = _place_of(symbol, metas)
            assert place is not None
            data.bind(trace, symbol, aten.sym_size.int, results[place[0]], place[1])
        for fact in facts:
            trace.shapes.facts.add(fact)
        return results

    results = [trace.wrap(result) for result in data.once(trace, (func, *nodes, *options.items()), make)]
    return results[0] if len(results) == 1 else tuple(results)


def _told(
    trace: Recorder, func: OpOverload, given: list[object], kwargs: dict[str, object]
) -> tuple[list[TensorMeta], list[torch.SymInt], list[Cond]]:
    """The metas of the results, the new sizes in them, and what is known of these."""

    def new_size() -> torch.SymInt:
        return data.new_symbol(trace, 0)

    told = SIZED.get(func._name)
    if told is not None:
        named = {argument.name: value for argument, value in zip(func._schema.arguments, given)} | kwargs
        symbol = new_size()
        metas, facts = told(symbol, **named)
        return metas, [symbol], facts
    answer, symbols = told_by_fake(func, given, kwargs, trace.shapes, new_size)
    results = [answer] if isinstance(answer, TensorMeta) or not isinstance(answer, tuple) else list(answer)
    metas = [result for result in results if isinstance(result, TensorMeta)]
    if len(metas) < len(results) or any(_place_of(symbol, metas) is None for symbol in symbols):
        raise DataDependent(str(func), trace.where, "data_shape")
    return metas, symbols, []


def _place_of(symbol: torch.SymInt, metas: list[TensorMeta]) -> tuple[int, int] | None:
    """A result, and a dimension of it, that a symbol is the size of."""
    places = ((which, dim) for which, meta in enumerate(metas) for dim in range(meta.ndim))
    return next((place for place in places if metas[place[0]].shape[place[1]] is symbol), None)


def _at_most(size: torch.SymInt, most: Size) -> list[Cond]:
    return [as_expr(size).le(as_expr(most))]


def _nonzero(size: torch.SymInt, self: TensorMeta) -> Sized:
    meta = TensorMeta((size, self.ndim), (1, size), 0, torch.int64, self.device)
    return [meta], _at_most(size, self.numel)


def _masked_select(size: torch.SymInt, self: TensorMeta, mask: TensorMeta) -> Sized:
    return [row_major(self, (size,))], []


def _unique2(
    size: torch.SymInt,
    self: TensorMeta,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Sized:
    metas = [
        row_major(self, (size,)),
        row_major(self, self.shape if return_inverse else (0,), torch.int64),
        row_major(self, (size,) if return_counts else (0,), torch.int64),
    ]
    return metas, _at_most(size, self.numel)


def _unique1(size: torch.SymInt, self: TensorMeta, sorted: bool = True, return_inverse: bool = False) -> Sized:
    metas, facts = _unique2(size, self, sorted, return_inverse)
    return metas[:2], facts


def _unique_consecutive(
    size: torch.SymInt,
    self: TensorMeta,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Sized:
    if dim is None or (dim == 0 and self.ndim == 1):  # only then are results left out that were not asked for
        return _unique2(size, self, True, return_inverse, return_counts)
    return _unique_dim(size, self, dim)


def _unique_dim(size: torch.SymInt, self: TensorMeta, dim: int, *_: object, **__: object) -> Sized:
    """The rows along `dim`: the result is contiguous with that dimension in front."""
    dim %= self.ndim
    rest = (*self.shape[:dim], *self.shape[dim + 1 :])
    first, *others = contiguous_strides((size, *rest))
    strides = (*others[:dim], first, *others[dim:])
    meta = TensorMeta((*rest[:dim], size, *rest[dim:]), strides, 0, self.dtype, self.device)
    rows = self.shape[dim]
    return [meta, row_major(self, (rows,), torch.int64), row_major(self, (size,), torch.int64)], _at_most(size, rows)


def _repeat_interleave(size: torch.SymInt, repeats: TensorMeta, output_size: Size | None = None) -> Sized:
    return [row_major(repeats, (size,))], [] if output_size is None else [as_expr(size).eq(as_expr(output_size))]


def _bincount(size: torch.SymInt, self: TensorMeta, weights: TensorMeta | None = None, minlength: Size = 0) -> Sized:
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return [row_major(self, (size,), dtype)], [as_expr(size).ge(as_expr(minlength))]


SIZED: dict[str, SizedRule] = {
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked_select,
    "aten::_unique": _unique1,
    "aten::_unique2": _unique2,
    "aten::unique_consecutive": _unique_consecutive,
    "aten::unique_dim": _unique_dim,
    "aten::unique_dim_consecutive": _unique_dim,
    "aten::repeat_interleave.Tensor": _repeat_interleave,
    "aten::bincount": _bincount,
}


# ---- numbers computed from sizes -------------------------------------------------------------------------------------

_Quotient = tuple[Expr, int]  # and what it is divided by
_EXACT = 1 << 20  # quotients of smaller numbers, plus a few integers, are rounded up and down in float32 as they are


def of_sizes(trace: Recorder, value: object) -> Expr | None:
    """The integer in a 0-dim tensor that is computed from sizes, integers and small inputs that may be read (as the
    stride of a layer that is kept in a buffer); None for others."""
    quotient = _quotient(trace, value) if _computed_of_sizes(value) else None
    return quotient[0] if quotient is not None and quotient[1] == 1 else None


def _computed_of_sizes(value: object) -> bool:
    """Whether a size is among what a value is computed from."""
    if not isinstance(value, Node):
        return False
    if isinstance(value.meta["val"], torch.SymInt):
        return True
    if value.target is not aten.full.default and value.target not in _OF_SIZES:
        return False
    return any(map(_computed_of_sizes, value.args[:2]))


def _quotient(trace: Recorder, value: object) -> _Quotient | None:
    if isinstance(value, (int, torch.SymInt)):
        return as_expr(value), 1
    if not isinstance(value, Node):
        return None
    meta = value.meta["val"]
    if isinstance(meta, torch.SymInt):
        return as_expr(meta), 1
    if not isinstance(meta, TensorMeta) or meta.shape or meta.dtype not in (torch.int64, torch.float32, torch.float64):
        return None
    if value.op == "placeholder":
        known = trace.read(trace.wrap(value)) if meta.dtype is torch.int64 else None
        return None if known is None else (Expr.const(int(known)), 1)
    if value.target is aten.full.default:
        return _quotient(trace, value.args[1])
    combine = _OF_SIZES.get(value.target)  # type: ignore[call-overload]
    if combine is None or value.kwargs.get("alpha", 1) != 1:
        return None
    operands = [_quotient(trace, arg) for arg in value.args[: 1 if combine in _UNARY else 2]]
    if None in operands:
        return None
    quotient: _Quotient | None = combine(trace, value, *operands)
    return quotient


def _sum(sign: int) -> Callable[..., _Quotient | None]:
    def combine(trace: Recorder, node: Node, a: _Quotient, b: _Quotient) -> _Quotient | None:
        return (a[0] * b[1] + b[0] * (a[1] * sign), a[1] * b[1]) if a[1] == 1 or b[1] == 1 else None

    return combine


def _product(trace: Recorder, node: Node, a: _Quotient, b: _Quotient) -> _Quotient | None:
    return (a[0] * b[0], 1) if a[1] == b[1] == 1 and not node.meta["val"].dtype.is_floating_point else None


def _divided(trace: Recorder, node: Node, a: _Quotient, b: _Quotient) -> _Quotient | None:
    """A true quotient, or one of integers by a positive number."""
    if a[1] != 1 or b[1] != 1 or not b[0].is_const or not 0 < b[0].value < _EXACT:
        return None
    if node.target is aten.div.Tensor:
        limits = a[0].lt(_EXACT), a[0].gt(-_EXACT)
        is_data = trace.shapes.is_data(a[0])
        return (a[0], b[0].value) if not is_data and all(map(trace.shapes.holds, limits)) else None
    mode = node.kwargs.get("rounding_mode", "floor")
    same = mode == "floor" or (mode == "trunc" and a[0].least() >= 0)
    return (a[0] // b[0], 1) if same and not node.meta["val"].dtype.is_floating_point else None


def _floor(trace: Recorder, node: Node, a: _Quotient) -> _Quotient:
    return a[0] // a[1], 1


def _ceil(trace: Recorder, node: Node, a: _Quotient) -> _Quotient:
    return a[0].ceildiv(a[1]), 1


def _converted(trace: Recorder, node: Node, a: _Quotient) -> _Quotient | None:
    return a if a[1] == 1 else None


_UNARY = (_floor, _ceil, _converted)
_OF_SIZES: dict[OpOverload, Callable[..., _Quotient | None]] = {
    aten.add.Tensor: _sum(1),
    aten.sub.Tensor: _sum(-1),
    aten.rsub.Scalar: lambda trace, node, a, b: _sum(-1)(trace, node, b, a),
    aten.mul.Tensor: _product,
    aten.div.Tensor: _divided,
    aten.div.Tensor_mode: _divided,
    aten.floor_divide.default: _divided,
    aten.floor.default: _floor,
    aten.ceil.default: _ceil,
    aten._to_copy.default: _converted,
}
