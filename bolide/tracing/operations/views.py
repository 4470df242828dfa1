"""Views with a treatment of their own.

- `detach`, `alias`, `as_strided`, what splits a tensor
- `select` and `slice`, what writes there, and their gradients. An index or a bound may count from the end. In graphs
  one that is a symbol counts from the front and lies within its dimension: whether it is negative, or too large, is
  asked here, once, and is a guard from then on (or, of data, is found when the program runs). So whoever reads a graph
  takes such a symbol for the place that it is.
- conjugated and negated views. Eager computes neither: it marks the view, and the dispatcher resolves the mark in front
  of operations that do not know it. A traced view carries the mark as well; its node is the value, computed. The chain
  of views keeps the marking operation, which is what a view that leaves the program is made with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from bolide.support.errors import Unsupported
from bolide.symbolic import Size, as_expr, hint_of, is_undecided
from bolide.tracing.meta import TensorMeta
from bolide.tracing.numbers import data
from bolide.tracing.operations.kinds import functional, record_view, view_of
from bolide.tracing.operations.registry import handler
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules.common import is_contiguous, is_dense, require, surely, wrap_dim
from bolide.tracing.rules.views import bound_from_front, index_from_front
from bolide.tracing.tensor import PHYSICAL, TracedTensor, ViewStep, carry_marks

aten = torch.ops.aten


@handler("detach", "alias")
def _same(trace: Recorder, func: OpOverload, tensor: Tensor) -> TracedTensor:
    own = trace.own(tensor)
    same = TracedTensor.make(trace, own.meta, own.value, own.group, own.chain)
    same.passed = own.passed
    carry_marks(own, same)
    same.counts, same.cut = own.counts, own.cut
    if func is aten.detach.default:
        same.separate()
    return same


@handler("_reshape_alias")
def _reshape_alias(
    trace: Recorder, func: OpOverload, tensor: Tensor, size: list[Size], stride: list[Size]
) -> TracedTensor:
    return view_of(trace, tensor, aten.view.default, trace.unwrap(size))


@handler("_unsafe_view")
def _unsafe_view(trace: Recorder, func: OpOverload, tensor: Tensor, size: list[Size]) -> Any:
    return trace.wrap(trace.call(aten.view.default, trace.unwrap(tensor), trace.unwrap(size)))


# ---- as_strided: looks past its operand, and is a view of the whole storage ------------------------------------------


@handler("as_strided")
def _as_strided(
    trace: Recorder,
    func: OpOverload,
    tensor: Tensor,
    size: list[Size],
    stride: list[Size],
    storage_offset: Size | None = None,
) -> TracedTensor:
    own, offset = trace.own(tensor), storage_offset
    if offset is not None or own.chain:  # else it counts from where the base is, wherever that is
        trace.rely_on_offset(own.group)
        offset = own.meta.offset if offset is None else offset
    whole = trace.first_value(own.group).meta["val"]
    _refuse_part_of_storage(trace, whole)
    if own.dtype is not whole.dtype or any(step in PHYSICAL for step, _, _ in own.chain):
        raise Unsupported("as_strided of what a view makes other numbers of", trace.where, kind="tensor_write")
    if own.group.source is None and 0 not in size:  # what lies around an input is its own affair
        reached = sum((extent - 1) * along for extent, along in zip(size, stride)) + (offset or 0)
        if not surely(reached < whole.numel):  # the message needs the values of sizes
            if not whole.ndim:  # means of losses lie where the losses were
                raise Unsupported("as_strided of more than the one element there is", trace.where, kind="tensor_write")
            raise RuntimeError(
                f"setStorage: sizes {size}, strides {stride}, storage offset {offset or 0}, and itemsize "
                f"{whole.dtype.itemsize} are out of bounds for storage of size {whole.numel * whole.dtype.itemsize}"
            )
    step: ViewStep = (func, (trace.unwrap(size), trace.unwrap(stride), trace.unwrap(offset)), {})
    node = trace.call(func, own.group.base, *step[1])
    view = TracedTensor.make(trace, node.meta["val"], node, own.group, (step,))
    view.passed = own.passed + own.chain
    carry_marks(own, view)
    view.counts, view.cut = own.counts, own.cut
    return view


def _refuse_part_of_storage(trace: Recorder, meta: TensorMeta) -> None:
    """Nothing is known of the storage around a tensor."""
    if meta.offset or not is_dense(meta.shape, meta.stride):
        raise Unsupported("as_strided of a tensor that does not fill its storage", trace.where, kind="tensor_write")


@handler("as_strided_copy")
def _as_strided_copy(trace: Recorder, func: OpOverload, tensor: Tensor, *args: Any) -> Any:
    view = _as_strided(trace, aten.as_strided.default, tensor, *args)
    return trace.wrap(trace.call(aten.clone.default, view.node, memory_format=torch.contiguous_format))


@handler("as_strided_scatter")
def _as_strided_scatter(trace: Recorder, func: OpOverload, tensor: Tensor, *args: Any) -> Any:
    own = trace.own(tensor)
    trace.rely_on_offset(own.group)
    _refuse_part_of_storage(trace, own.meta)
    if own.requires_grad and not is_contiguous(own.meta):
        raise Unsupported("as_strided_scatter with gradients of what is not contiguous", trace.where, kind="operator")
    return functional(trace, func, own, *args)


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _pieces(trace: Recorder, func: OpOverload, tensor: Any, sizes: list[Size], dim: int) -> list[TracedTensor]:
    """Views. What `unsafe_split` makes is in the tensor's memory, too, but with a history of its own: where the tensor
    is no input, and has one, these pieces are values."""
    unseen = not any(value.alias_info is not None for value in func._schema.returns)
    if unseen and tensor.requires_grad and torch.is_grad_enabled() and tensor.group.source is None:
        return [trace.wrap(trace.unwrap(piece)) for piece in _pieces(trace, aten.split.Tensor, tensor, sizes, dim)]
    pieces: list[TracedTensor] = []
    start: Size = 0
    for size in sizes:
        pieces.append(view_of(trace, tensor, aten.slice.Tensor, dim, trace.unwrap(start), trace.unwrap(start + size)))
        start = start + size
    return pieces


def _dimension(func: OpOverload, tensor: Tensor, dim: int) -> int:
    """The dimension, counted from the front, that a tensor is divided along."""
    rank = tensor.dim()
    if not rank and func is aten.unbind.int and dim in (0, -1):
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    if not rank and func is not aten.unbind.int:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    return wrap_dim(dim, rank)


@handler("split.Tensor", "unsafe_split.Tensor")
def _split(trace: Recorder, func: OpOverload, tensor: Tensor, size: Size, dim: int = 0) -> list[TracedTensor]:
    dim = _dimension(func, tensor, dim)
    extent: Size = tensor.shape[dim]
    count = max(1, -(-hint_of(extent) // hint_of(size))) if hint_of(size) else 1
    if size < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={size}")
    if extent.__class__ is torch.SymInt and count > 1:
        trace.shapes.rely_on(as_expr(extent).ceildiv(as_expr(size)), count)
    whole = (count - 1) * size  # as many pieces as now, the last one not empty
    if not ((count == 1 or extent > whole) and extent <= whole + size):
        raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {extent}")
    return _pieces(trace, func, tensor, [size] * (count - 1) + [extent - whole], dim)


@handler("split_with_sizes", "unsafe_split_with_sizes")
def _split_with_sizes(
    trace: Recorder, func: OpOverload, tensor: Tensor, sizes: list[Size], dim: int = 0
) -> list[TracedTensor]:
    dim = _dimension(func, tensor, dim)
    whole = sum(sizes) == tensor.shape[dim]
    for size in sizes:
        message = "split_with_sizes expects split_sizes have only non-negative entries"
        if is_undecided(size >= 0):
            require(size >= 0, message)
        elif size < 0:
            raise RuntimeError(f"{message}, but got split_sizes={list(sizes)}")
    if is_undecided(whole):
        require(whole, "split_with_sizes expects split_sizes to sum exactly to the input tensor's size")
    elif not whole:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {tensor.shape[dim]} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={list(sizes)}"
        )
    _note_prefixes(trace, sizes, tensor.shape[dim])
    return _pieces(trace, func, tensor, list(sizes), dim)


def _note_prefixes(trace: Recorder, sizes: list[Size], whole: Size) -> None:
    """Parts that are at least 0 and add up to the whole: so no sum of the first ones is larger. Where sizes are data
    this is no bound of theirs, and the question would come up at each part."""
    start = as_expr(0)
    for size in sizes:
        start = start + as_expr(size)
        if trace.shapes.is_data(start):
            trace.shapes.facts.add(as_expr(whole).ge(start))


@handler("unbind.int")
def _unbind(trace: Recorder, func: OpOverload, tensor: Tensor, dim: int = 0) -> list[TracedTensor]:
    dim = _dimension(func, tensor, dim)
    return [view_of(trace, tensor, aten.select.int, dim, index) for index in range(int(tensor.shape[dim]))]


# ---- places along one dimension --------------------------------------------------------------------------------------


@handler(
    *("select.int", "select_copy.int", "select_scatter", "select_backward"),
    *("slice.Tensor", "slice_copy.Tensor", "slice_scatter", "slice_backward"),
)
def _placed(trace: Recorder, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = _from_front(trace, func, args, kwargs)
    kind = record_view if func in (aten.select.int, aten.slice.Tensor) else functional
    return kind(trace, func, *args, **kwargs)


def _from_front(
    trace: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with symbolic indices and bounds counted from the front."""
    if not trace.has_symbols:
        return args, kwargs
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    places = {name: given[name] for name in ("index", "start", "end") if given.get(name).__class__ is torch.SymInt}
    sizes = given["input_sizes"] if "input_sizes" in given else given["self"].shape
    dim = given.get("dim", 0)
    if not places or not -len(sizes) <= dim < len(sizes):
        return args, kwargs
    size = sizes[dim]
    for name, place in places.items():
        if data.may_count_from_end(trace, place):
            given[name] = (data.wrapped if name == "index" else data.clipped)(trace, place, size)
        else:
            given[name] = (index_from_front if name == "index" else bound_from_front)(place, size)
    return tuple(given[name] for name in names[: len(args)]), {name: given[name] for name in kwargs}


# ---- conjugated and negated views ------------------------------------------------------------------------------------


@handler("_conj", "_neg_view")
def _marked(trace: Recorder, func: OpOverload, tensor: Any) -> TracedTensor:
    if not isinstance(tensor, Tensor):  # a number that became a tensor in C++
        value = tensor.conjugate() if func is aten._conj.default else -tensor
        dtype = torch.get_default_dtype()
        dtype = dtype.to_complex() if isinstance(value, complex) else dtype
        return trace.dispatch(aten.scalar_tensor.default, (value,), {"dtype": dtype})  # type: ignore[no-any-return]
    own = trace.own(tensor)
    node = trace.call(PHYSICAL[func], own.node)
    view = TracedTensor.make(trace, own.meta, node, own.group, (*own.chain, (func, (), {})))
    carry_marks(own, view)
    view.passed = own.passed
    if func is aten._conj.default:
        torch._C._set_conj(view, not own.is_conj())
    else:
        torch._C._set_neg(view, not own.is_neg())
    return view


@handler("view_as_real")
def _view_as_real(trace: Recorder, func: OpOverload, tensor: Tensor) -> TracedTensor:
    if tensor.is_conj():
        raise RuntimeError(
            "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate tensor so you can "
            "view it as real, use self.resolve_conj(); however, be warned that the resulting tensor will NOT alias "
            "the original."
        )
    return record_view(trace, func, tensor)
