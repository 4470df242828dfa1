"""Numbers that are data: integers that are read from tensors, and places that they mean, recorded with a new symbol in
the place of what is not known.

The node that tells a symbol's value at run time (`aten::_local_scalar_dense`, `aten::sym_size`, `bolide::wrap_index`,
`bolide::clip_index`) *binds* it: its ``meta["val"]`` is that symbol. `bolide::require` checks a condition on them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
import torch.fx
from torch._ops import OpOverload

from bolide.support.errors import Refuted
from bolide.symbolic import (
    LARGEST,
    MOST_ELEMENTS,
    Cond,
    Expr,
    Ratio,
    ShapeEnv,
    Size,
    SymNode,
    as_expr,
    is_data,
    parts_of,
    room_in,
    sizes_beside,
)
from bolide.tracing import graph
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.tensor import TracedTensor

T = TypeVar("T")
Symbol = torch.SymInt | torch.SymFloat | torch.SymBool
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


require = graph.operator("require(SymInt value, str relation) -> ()", _require)
require_true = graph.operator("require_true(Tensor condition) -> ()", _require_true)
wrap_index = graph.operator("wrap_index(SymInt index, SymInt size) -> SymInt", _wrap_index)
clip_index = graph.operator("clip_index(SymInt index, SymInt size) -> SymInt", _clip_index)


def binds(node: torch.fx.Node) -> bool:
    """Whether a node of a graph tells the value of a symbol that is data."""
    return isinstance(node.target, torch._ops.OpOverload) and isinstance(node.meta.get("val"), torch.SymInt)


def new_symbol(trace: Recorder, lo: int | None) -> torch.SymInt:
    """A symbol for data, at least `lo`. Upper bounds are facts: a kernel is checked with the bounds of symbols, and may
    not have been reached where a fact does not hold."""
    trace.functional_only = "numbers are data"
    trace.refutable = True
    trace.allow_symbols()
    hint = _LIKELY[len(trace.shapes.facts.names) % len(_LIKELY)]
    symbol: torch.SymInt = trace.shapes.data(hint, None, lo)
    return symbol


def bind(trace: Recorder, symbol: torch.SymInt, func: OpOverload, *args: Any) -> torch.SymInt:
    """Make a node for the value of a symbol."""
    node = trace.graph.create_node("call_function", func, args, {}, symbol.node.expr.text())
    node.meta["val"], node.meta["where"] = symbol, trace.where
    trace.bind_size(symbol, node)
    trace.bound |= symbol.node.expr.free_vars
    return symbol


def once(trace: Recorder, key: tuple[object, ...], make: Callable[[], T]) -> T:
    """The answer to a question about the same data is the same one."""
    answer: T | None = trace.answered.get(key)
    if answer is None:
        answer = trace.answered[key] = make()
    return answer


def number(trace: Recorder, tensor: TracedTensor) -> torch.SymInt | torch.SymBool:
    """The integer or truth value in a tensor of one element, as a symbol."""
    dtype, node, env = tensor.dtype, tensor.node, trace.shapes

    def make() -> torch.SymInt:
        least, most = (0, 1) if dtype is torch.bool else _bounds(node, dtype)
        symbol = new_symbol(trace, None if env.decide(as_expr(least).ge(0)) is not True else 0)
        env.numbers |= symbol.node.expr.free_vars
        env.facts.add(symbol.node.expr.ge(as_expr(least)))
        env.facts.add(symbol.node.expr.le(as_expr(most)))
        return bind(trace, symbol, aten._local_scalar_dense.default, node)

    symbol = once(trace, _asked(node), make)
    if dtype is not torch.bool:
        return symbol
    return torch.SymBool(SymNode(env, symbol.node.expr.ne(0), True))  # type: ignore[no-untyped-call]


def is_size(trace: Recorder, tensor: TracedTensor, size: Size) -> None:
    """Say that the integer in a tensor of one element is a size, whatever the data are."""
    trace.answered[_asked(tensor.node)] = size


def told(trace: Recorder, tensor: TracedTensor) -> Size | None:
    """The size that `is_size` has said is in a tensor."""
    size: Size | None = trace.answered.get(_asked(tensor.node))
    return size


def _asked(node: torch.fx.Node) -> tuple[object, ...]:
    """The question about the number in a tensor of one element."""
    return aten._local_scalar_dense.default, *_elements(node)


def _elements(node: torch.fx.Node) -> tuple[object, ...]:
    """What says which value it is: programs take the same element several times."""
    if node.target not in _ELEMENTS:
        return (node,)
    return node.target, repr(node.args[1:]), *_elements(node.args[0])  # type: ignore[arg-type]


#: What gives elements of its first argument.
_ELEMENTS = {
    *(aten.select.int, aten.slice.Tensor, aten.reshape.default, aten.view.default, aten._unsafe_view.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.unsqueeze.default, aten.expand.default, aten.permute.default),
    *(aten.alias.default, aten.clone.default, aten.detach.default),
}


def _bounds(node: torch.fx.Node, dtype: torch.dtype) -> tuple[Size, Size]:
    """The least and the largest integer that may be among a node's elements."""
    while node.target in _ELEMENTS and "within" not in node.meta:
        node = node.args[0]  # type: ignore[assignment]
    within: tuple[Size, Size] | None = node.meta.get("within")
    return within or (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def is_computed(trace: Recorder, value: Symbol) -> bool:
    """Whether a symbolic number is made of numbers that the graph computes."""
    expr = getattr(value.node, "expr", None)
    return isinstance(expr, (Expr, Cond, Ratio)) and trace.shapes.is_computed(expr)


def as_tensor(trace: Recorder, value: Symbol) -> torch.Tensor:
    """A symbolic number that is data as a 0-dim tensor: int64, float64 or bool."""
    expr = value.node.expr
    over = expr if isinstance(expr, Expr) else expr.over if isinstance(expr, Ratio) else expr.expr
    node = trace.call(aten.full.default, [], trace.size_node(over), dtype=torch.int64, device=torch.device("cpu"))
    if isinstance(expr, Cond):
        node = trace.call(_COMPARISONS[expr.op], node, 0)
    elif isinstance(expr, Ratio):
        node = trace.call(aten.div.Scalar, trace.call(aten._to_copy.default, node, dtype=torch.float64), expr.under)
    return trace.wrap(node)  # type: ignore[no-any-return]


_COMPARISONS = {"==": aten.eq.Scalar, "!=": aten.ne.Scalar, ">=": aten.ge.Scalar}


def wrapped(trace: Recorder, index: torch.SymInt, size: Size) -> torch.SymInt:
    """The place, in 0..size - 1, that an index means; counted from the end if it is negative."""
    return _index_symbol(trace, wrap_index, index, size, as_expr(size) - 1)


def clipped(trace: Recorder, index: torch.SymInt, size: Size) -> torch.SymInt:
    """The bound, in 0..size, that a bound of a slice means."""
    return _index_symbol(trace, clip_index, index, size, as_expr(size))


def _index_symbol(trace: Recorder, func: OpOverload, index: torch.SymInt, size: Size, most: Expr) -> torch.SymInt:
    nodes = trace.unwrap(index), trace.unwrap(size)

    def make() -> torch.SymInt:
        symbol = new_symbol(trace, 0)
        trace.shapes.facts.add(as_expr(symbol).le(most))
        return bind(trace, symbol, func, *nodes)

    return once(trace, (func, *nodes), make)


def may_count_from_end(trace: Recorder, index: Any) -> bool:
    """Whether an index is data that may be negative."""
    return is_data(index) and trace.shapes.decide(index.node.expr.ge(0)) is not True


def check(trace: Recorder, condition: Cond) -> None:
    """Record that the call is made again in eager (`Refuted`) unless a condition on symbols holds."""
    trace.functional_only = "sizes are checked"
    if condition.op == ">=" and not fits(trace, condition.expr) and _is_far_above(trace, condition.expr):
        return
    _check(trace, require, trace.size_node(condition.expr), condition.op)


def _is_far_above(trace: Recorder, expr: Expr) -> bool:
    """Whether a sum is not negative for its numbers are checked to be small: so where a program asks whether a product
    of them is an int64."""
    return expr.offset > 1 << 48 and fits(trace, expr - expr.offset, expr.offset)


def check_tensor(trace: Recorder, condition: TracedTensor) -> None:
    """Record that the call is made again in eager (`Refuted`) unless the condition, one element, is true. That happens
    before any input is written to."""
    check_node(trace, condition.node)
    trace.listener.checked(condition)


def check_node(trace: Recorder, condition: torch.fx.Node) -> None:
    """As `check_tensor`."""
    _check(trace, require_true, condition)


def _check(trace: Recorder, func: OpOverload, *args: Any) -> None:
    node = trace.graph.create_node("call_function", func, args, {}, "require")
    node.meta["val"], node.meta["where"] = None, trace.where
    trace.refutable = True


# ---- integers of any size ----------------------------------------------------------------------------------------


def fitting(trace: Recorder, expr: Expr) -> Expr:
    """What the graph computes for an integer of Python's: the graph has int64, Python as many digits as it takes. Where
    numbers are too large for that, Python computes the integer in each call; not even that helps if the result is no
    int64, or the numbers come from several places."""
    env = trace.shapes
    if fits(trace, expr):
        return expr
    derived = None if env.derive is None or env.is_data(expr) else env.derive(f"({expr.text()})", env.value(expr))
    if derived is None:
        if env.too_large is not None and not env.is_data(expr):
            env.too_large(expr)
        return Expr.const(env.specialise(expr, env.value(expr)))
    return as_expr(derived)


def fits(trace: Recorder, expr: Expr, most: int = LARGEST) -> bool:
    """Whether nothing is larger than `most` that is computed of an expression: its numbers are guarded to be so small,
    or checked where they are data. (Sizes are small enough.)"""
    env = trace.shapes
    if env.exact or env.closed:
        return True
    numbers = env.numbers & expr.free_vars
    room = room_in(expr, numbers, most)
    if env.is_data(expr):
        return room is not None and _see_to(trace, expr, numbers, room)
    if room is None or (numbers and (room < _ROOM or any(abs(env.hints[name]) > room for name in numbers))):
        return len(expr.free_vars) > 1 and _bounded(env, expr, most)
    env.rooms.update({name: min(room, env.rooms.get(name, room)) for name in numbers})
    return True


_ROOM = 1 << 24  # numbers that are larger are no exception


def _bounded(env: ShapeEnv, expr: Expr, most: int) -> bool:
    """As `fits`, where Python computes in each call how large what is computed is."""
    parts = list(parts_of(expr))
    if any(abs(env.value(part)) > most for part in parts):
        return False
    return all(env.holds(part.ge(-most)) and env.holds(part.le(most)) for part in parts)


def _see_to(trace: Recorder, expr: Expr, numbers: Collection[str], room: int) -> bool:
    """Check that the numbers in an expression are in -room..room, and guard those that are not data; whether these
    are."""
    env = trace.shapes
    conditions: list[tuple[Expr | None, Cond]] = []
    conditions += [(None, sizes.le(MOST_ELEMENTS)) for sizes in sizes_beside(expr, numbers)]
    for name in numbers:
        if trace.checked.get(name, LARGEST) > room:
            symbol = expr.variables()[name]
            if env.is_data(symbol) and not trace.has_size(symbol):
                return False  # it is one of a branch, outside of which nothing is known of it
            trace.checked[name] = room
            conditions += [(symbol, symbol.ge(-room)), (symbol, symbol.le(room))]
    for read, condition in conditions:
        if not env.is_data(condition):
            if not env.holds(condition):
                return False
        elif env.decide(condition) is not True:
            _check_at_once(trace, condition, read)
    return True


def _check_at_once(trace: Recorder, condition: Cond, symbol: Expr | None) -> None:
    """As `check`, where the graph tells the symbol's value: nothing has to be done in two parts for that."""
    binding = None if symbol is None else trace.size_node(symbol)
    if binding is None or binding.op == "placeholder":
        check(trace, condition)
        return
    with trace.graph.inserting_before(binding.next):
        _check(trace, require, trace.compute_size(condition.expr), condition.op)


# ---- indices ---------------------------------------------------------------------------------------------------------


def with_selected(tensor: torch.Tensor, key: object) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The view and the rest of the index that ``tensor[key]`` means, where symbolic integers are in the index."""
    rest: list[object] = []
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


def with_wide_mask(trace: Recorder, tensor: torch.Tensor, key: object) -> tuple[torch.Tensor, object]:
    """The tensor and the mask that ``tensor[mask]`` means for a mask of no dimension: C++ would ask for its truth."""
    if key.__class__ is not TracedTensor or key.dtype is not torch.bool or key.dim() or trace.captures_sizes is False:
        return tensor, key
    return tensor.unsqueeze(0), key.reshape(1)


def _dims_taken(item: object) -> int:
    """How many dimensions one part of an index is about."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return 1
