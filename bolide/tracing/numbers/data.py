"""Numbers and sizes that are data: operations that read an integer from a tensor, or whose result is as large as the
data says, recorded with a new symbol in the place of what is not known.

The node that tells a symbol's value at run time (`aten::_local_scalar_dense`, `aten::sym_size`, `bolide::wrap_index`,
`bolide::clip_index`) *binds* it: its ``meta["val"]`` is that symbol. `bolide::require` checks a condition on them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bolide.support.errors import Refuted
from bolide.symbolic import Cond, Expr, SymNode, as_expr, contiguous_strides
from bolide.tracing.meta import TensorMeta
from bolide.tracing.tensor import TracedTensor

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

aten = torch.ops.aten
_LIKELY = (61, 67, 71, 73, 79, 83, 89, 97)  # what symbols count as where it only matters for speed: no two alike
_RELATIONS: dict[str, Callable[[int, int], bool]] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}


def _require(value: int, relation: str) -> None:
    if not _RELATIONS[relation](value, 0):
        raise Refuted("a condition on data that the program was compiled for does not hold")


def _require_true(condition: torch.Tensor) -> None:
    if not condition:
        raise Refuted("a check of the program fails")


def _wrap_index(index: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension with size {size}")
    return index + size if index < 0 else index


def _clip_index(index: int, size: int) -> int:
    return min(max(index + size if index < 0 else index, 0), size)


_library: Any = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema, _kernel in (
    ("require(SymInt value, str relation) -> ()", _require),
    ("require_true(Tensor condition) -> ()", _require_true),
    ("wrap_index(SymInt index, SymInt size) -> SymInt", _wrap_index),
    ("clip_index(SymInt index, SymInt size) -> SymInt", _clip_index),
):
    _library.define(_schema)
    _library.impl(_schema.split("(")[0], _kernel, "CompositeExplicitAutograd")

#: the operations, as they stand in graphs
require = torch.ops.bolide.require.default
require_true = torch.ops.bolide.require_true.default
wrap_index = torch.ops.bolide.wrap_index.default
clip_index = torch.ops.bolide.clip_index.default


def binds(node: torch.fx.Node) -> bool:
    """Whether a node of a graph tells the value of a symbol that is data."""
    return isinstance(node.target, torch._ops.OpOverload) and isinstance(node.meta.get("val"), torch.SymInt)


def _new_symbol(trace: Trace, lo: int | None) -> torch.SymInt:
    """Upper bounds are facts: a kernel is checked with the bounds of symbols, and may not have been reached where a
    fact does not hold."""
    trace.functional_only = "numbers are data"
    trace.refutable = True
    trace.allow_symbols()
    hint = _LIKELY[len(trace.shapes.facts.names) % len(_LIKELY)]
    symbol: torch.SymInt = trace.shapes.data(hint, None, lo)
    return symbol


def _bind(trace: Trace, symbol: torch.SymInt, func: Any, *args: Any) -> torch.SymInt:
    """A node for the value of a symbol."""
    node = trace.graph.create_node("call_function", func, args, {}, symbol.node.expr.text())
    node.meta["val"], node.meta["where"] = symbol, trace.where
    trace.bind_size(symbol, node)
    return symbol


def _once(trace: Trace, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """The answer to a question about the same data is the same one."""
    found = trace.answered.get(key)
    if found is None:
        found = trace.answered[key] = make()
    return found


def number(trace: Trace, tensor: TracedTensor) -> Any:
    """The integer or truth value in a tensor of one element, as a symbol."""
    dtype, node, env = tensor.dtype, tensor.node, trace.shapes
    least, most = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)

    def make() -> torch.SymInt:
        symbol = _new_symbol(trace, None if least else 0)
        env.facts.add(symbol.node.expr.ge(least))
        env.facts.add(symbol.node.expr.le(most))
        return _bind(trace, symbol, aten._local_scalar_dense.default, node)

    symbol = _once(trace, (aten._local_scalar_dense.default, node), make)
    if dtype is not torch.bool:
        return symbol
    return torch.SymBool(SymNode(env, symbol.node.expr.ne(0), True))  # type: ignore[no-untyped-call]


def of_sizes(trace: Trace, value: Any) -> Expr | None:
    """The integer in a 0-dim tensor that is computed from sizes, integers and small inputs that may be read (as the
    stride of a layer that is kept in a buffer); None for others."""
    found = _quotient(trace, value) if _computed_of_sizes(value) else None
    return found[0] if found is not None and found[1] == 1 else None


def _computed_of_sizes(value: Any) -> bool:
    """Whether a size is among what a value is computed from."""
    if value.__class__ is not torch.fx.Node:
        return False
    if isinstance(value.meta["val"], torch.SymInt):
        return True
    if value.target is not aten.full.default and value.target not in _OF_SIZES:
        return False
    return any(map(_computed_of_sizes, value.args[:2]))


_Quotient = tuple[Expr, int]  # and what it is divided by
_EXACT = 1 << 20  # quotients of smaller numbers, plus a few integers, are rounded up and down in float32 as they are


def _quotient(trace: Trace, value: Any) -> _Quotient | None:
    if isinstance(value, (int, torch.SymInt)):
        return as_expr(value), 1
    if value.__class__ is not torch.fx.Node:
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
    combine = _OF_SIZES.get(value.target)
    if combine is None or value.kwargs.get("alpha", 1) != 1:
        return None
    operands = [_quotient(trace, arg) for arg in value.args[: 1 if combine in _UNARY else 2]]
    if None in operands:
        return None
    found: _Quotient | None = combine(trace, value, *operands)
    return found


def _sum(sign: int) -> Callable[..., _Quotient | None]:
    def combine(trace: Trace, node: torch.fx.Node, a: _Quotient, b: _Quotient) -> _Quotient | None:
        return (a[0] * b[1] + b[0] * (a[1] * sign), a[1] * b[1]) if a[1] == 1 or b[1] == 1 else None

    return combine


def _product(trace: Trace, node: torch.fx.Node, a: _Quotient, b: _Quotient) -> _Quotient | None:
    return (a[0] * b[0], 1) if a[1] == b[1] == 1 and not node.meta["val"].dtype.is_floating_point else None


def _divided(trace: Trace, node: torch.fx.Node, a: _Quotient, b: _Quotient) -> _Quotient | None:
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


def _floor(trace: Trace, node: torch.fx.Node, a: _Quotient) -> _Quotient:
    return a[0] // a[1], 1


def _ceil(trace: Trace, node: torch.fx.Node, a: _Quotient) -> _Quotient:
    return a[0].ceildiv(a[1]), 1


def _converted(trace: Trace, node: torch.fx.Node, a: _Quotient) -> _Quotient | None:
    return a if a[1] == 1 else None


_UNARY = (_floor, _ceil, _converted)
_OF_SIZES: dict[Any, Callable[..., _Quotient | None]] = {
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


def wrapped(trace: Trace, index: Any, size: Any) -> Any:
    """The place, in 0..size - 1, that an index means; counted from the end if it is negative."""
    return _index_symbol(trace, wrap_index, index, size, as_expr(size) - 1)


def clipped(trace: Trace, index: Any, size: Any) -> Any:
    """The bound, in 0..size, that a bound of a slice means."""
    return _index_symbol(trace, clip_index, index, size, as_expr(size))


def _index_symbol(trace: Trace, func: Any, index: Any, size: Any, most: Expr) -> Any:
    nodes = trace.unwrap(index), trace.unwrap(size)

    def make() -> torch.SymInt:
        symbol = _new_symbol(trace, 0)
        trace.shapes.facts.add(as_expr(symbol).le(most))
        return _bind(trace, symbol, func, *nodes)

    return _once(trace, (func, *nodes), make)


def may_count_from_end(trace: Trace, index: Any) -> bool:
    """Whether an index is data that may be negative."""
    return (
        type(index) is torch.SymInt
        and trace.shapes.is_data(index.node.expr)
        and trace.shapes.decide(index.node.expr.ge(0)) is not True
    )


def with_selected(tensor: Any, key: Any) -> tuple[Any, tuple[Any, ...]]:
    """The view and the rest of the index that ``tensor[key]`` means, where symbolic integers are in the index: C++
    would ask for their values."""
    rest: list[Any] = []
    items = key if type(key) is tuple else (key,)
    dim = 0
    for place, item in enumerate(items):
        if type(item) is torch.SymInt:
            tensor = tensor.select(dim, item)
            continue
        if item is None:  # in the order of C++: the stride of the new dimension is made of what is behind it then
            tensor, item = tensor.unsqueeze(dim), slice(None)
        rest.append(item)
        if item is Ellipsis:
            dim = tensor.dim() - sum(map(_dims_taken, items[place + 1 :]))
        else:
            dim += _dims_taken(item)
    return tensor, tuple(rest)


def with_wide_mask(trace: Trace, tensor: Any, key: Any) -> tuple[Any, Any]:
    """The tensor and the mask of one dimension that ``tensor[mask]`` means for one of none, whose truth C++ would ask
    for."""
    if key.__class__ is not TracedTensor or key.dtype is not torch.bool or key.dim():
        return tensor, key
    if trace.captures_sizes is False:
        return tensor, key
    return tensor.unsqueeze(0), key.reshape(1)


def _dims_taken(item: Any) -> int:
    """How many dimensions one part of an index is about."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return item.dim() if is_mask else 1


def check(trace: Trace, condition: Cond) -> None:
    """Record that the call is made again in eager (`Refuted`) unless a condition on symbols holds."""
    trace.functional_only = "sizes are checked"
    _check(trace, require, trace.size_node(condition.expr), condition.op)


def check_tensor(trace: Trace, condition: TracedTensor) -> None:
    """Record that the call is made again in eager (`Refuted`) unless the condition, one element, is true. That happens
    before any input is written to."""
    check_node(trace, condition.node)
    if trace.checked is not None:
        trace.checked(condition)


def check_node(trace: Trace, condition: torch.fx.Node) -> None:
    """As `check_tensor`."""
    _check(trace, require_true, condition)


def _check(trace: Trace, func: Any, *args: Any) -> None:
    node = trace.graph.create_node("call_function", func, args, {}, "require")
    node.meta["val"], node.meta["where"] = None, trace.where
    trace.refutable = True


# ---- operations with a result of unknown size ------------------------------------------------------------------------


def sized_by_data(trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation of `SIZED`, recorded."""
    nodes = tuple([trace.unwrap(arg) for arg in args])
    options = {key: trace.unwrap(value) for key, value in kwargs.items()}

    def make() -> list[torch.fx.Node]:
        given = [arg.meta if arg.__class__ is TracedTensor else arg for arg in args]
        named = {argument.name: value for argument, value in zip(func._schema.arguments, given)} | kwargs
        symbol = _new_symbol(trace, 0)
        metas, facts = SIZED[func.name()](symbol, **named)
        node = trace.graph.create_node("call_function", func, nodes, options)
        node.meta["val"], node.meta["where"] = metas[0] if len(metas) == 1 else tuple(metas), trace.where
        results = [node]
        if len(metas) > 1:
            results = [trace.element(node, place, meta) for place, meta in enumerate(metas)]
        place = next(dim for dim, extent in enumerate(metas[0].shape) if extent is symbol)
        _bind(trace, symbol, aten.sym_size.int, results[0], place)
        for fact in facts:
            trace.shapes.facts.add(fact)
        return results

    made = [trace.wrap(result) for result in _once(trace, (func, *nodes, *options.items()), make)]
    return made[0] if len(made) == 1 else tuple(made)


#: the metas of the results, given the new size and the arguments by name, and what is known of that size
SizedRule = Callable[..., "tuple[list[TensorMeta], list[Cond]]"]


def _fresh(like: TensorMeta, shape: tuple[Any, ...], dtype: torch.dtype | None = None) -> TensorMeta:
    return TensorMeta(shape, contiguous_strides(shape), 0, dtype or like.dtype, like.device)


def _at_most(size: torch.SymInt, most: Any) -> list[Cond]:
    return [as_expr(size).le(as_expr(most))]


def _nonzero(size: torch.SymInt, self: TensorMeta) -> Any:
    found = TensorMeta((size, self.ndim), (1, size), 0, torch.int64, self.device)
    return [found], _at_most(size, self.numel)


def _masked_select(size: torch.SymInt, self: TensorMeta, mask: TensorMeta) -> Any:
    return [_fresh(self, (size,))], []


def _unique(size: torch.SymInt, self: TensorMeta, inverse: bool, counts: bool) -> Any:
    metas = [
        _fresh(self, (size,)),
        _fresh(self, self.shape if inverse else (0,), torch.int64),
        _fresh(self, (size,) if counts else (0,), torch.int64),
    ]
    return metas, _at_most(size, self.numel)


def _unique1(size: torch.SymInt, self: TensorMeta, sorted: bool = True, return_inverse: bool = False) -> Any:
    metas, facts = _unique(size, self, return_inverse, False)
    return metas[:2], facts


def _unique2(
    size: torch.SymInt,
    self: TensorMeta,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    return _unique(size, self, return_inverse, return_counts)


def _unique_consecutive(
    size: torch.SymInt,
    self: TensorMeta,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    if dim is None or (dim == 0 and self.ndim == 1):  # only then are results left out that were not asked for
        return _unique(size, self, return_inverse, return_counts)
    return _unique_dim(size, self, dim)


def _unique_dim(size: torch.SymInt, self: TensorMeta, dim: int, *_: Any, **__: Any) -> Any:
    """The rows along `dim`: the result is contiguous with that dimension in front."""
    dim %= self.ndim
    rest = (*self.shape[:dim], *self.shape[dim + 1 :])
    first, *others = contiguous_strides((size, *rest))
    found = TensorMeta(
        (*rest[:dim], size, *rest[dim:]), (*others[:dim], first, *others[dim:]), 0, self.dtype, self.device
    )
    rows = self.shape[dim]
    return [found, _fresh(self, (rows,), torch.int64), _fresh(self, (size,), torch.int64)], _at_most(size, rows)


def _repeat_interleave(size: torch.SymInt, repeats: TensorMeta, output_size: Any = None) -> Any:
    return [_fresh(repeats, (size,))], [] if output_size is None else [as_expr(size).eq(as_expr(output_size))]


def _bincount(size: torch.SymInt, self: TensorMeta, weights: TensorMeta | None = None, minlength: Any = 0) -> Any:
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return [_fresh(self, (size,), dtype)], [as_expr(size).ge(as_expr(minlength))]


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
