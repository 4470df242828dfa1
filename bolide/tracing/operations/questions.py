"""Operations that ask for data: their answers, or their sizes, depend on it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from bolide.symbolic import hint_of
from bolide.tracing.meta import DataDependent
from bolide.tracing.numbers import data
from bolide.tracing.numbers.sizes import SIZED, of_sizes, sized_by_data
from bolide.tracing.operations.registry import handler
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules.common import broadcast_shapes
from bolide.tracing.tensor import TracedTensor

aten = torch.ops.aten


def data_dependent(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    """The handler of operations whose results depend on data."""
    known = [trace.known(arg) if isinstance(arg, Tensor) else arg for arg in args]
    if _lacks(known, args):
        as_symbol = trace.captures_sizes or kwargs.get("output_size") is not None
        if not as_symbol:
            known = [trace.read(arg) if isinstance(arg, Tensor) else arg for arg in args]
            as_symbol = trace.captures_sizes is None and any(value is None for value in known)
        if func._name in SIZED and as_symbol:
            return sized_by_data(trace, func, args, kwargs)
    if _lacks(known, args):
        sized = any(isinstance(result.type, torch.TensorType) for result in func._schema.returns)
        spoken = func._schema.name.partition("::")[2].strip("_").rstrip("0123456789")  # unique of aten._unique2.default
        raise DataDependent(spoken, trace.where, "data_shape" if sized else "data_value")
    result = func(*known, **kwargs)
    return pytree.tree_map(lambda leaf: trace.lift(leaf, private=True) if isinstance(leaf, Tensor) else leaf, result)


def _lacks(known: list[object], args: tuple[object, ...]) -> bool:
    return any(value is None and arg is not None for value, arg in zip(known, args))


@handler("_local_scalar_dense", "item")
def _item(trace: Recorder, func: OpOverload, tensor: Tensor) -> Any:
    """Only a constant made in the program itself has a value that no later call can change; another float is computed
    in the graph (where a number is wanted and a tensor given: the program's own `Tensor.item` is answered before)."""
    known = trace.known(tensor)
    if known is not None:
        return known.item()
    own = trace.own(tensor)
    if own.dtype.is_floating_point:
        return trace.scalar(own)
    told = data.told(trace, own)
    if told is not None:
        return told
    size = of_sizes(trace, own.node) if trace.has_symbols and not own.dim() else None
    if size is not None:
        return trace.shapes.sym_int(size)
    if not own.dtype.is_complex and trace.is_symbol(own, trace.captures_numbers):
        return data.number(trace, own)
    known = trace.read(own)
    if known is None:
        raise DataDependent("Tensor.item", trace.where)
    return known.item()


@handler("_assert_async", "_assert_async.msg")
def _assert_async(trace: Recorder, func: OpOverload, condition: Tensor, *message: str) -> None:
    known = trace.known(condition)
    if known is not None:
        func(known, *message)
    else:
        data.check_tensor(trace, trace.own(condition))


@handler("equal")
def _equal(trace: Recorder, func: OpOverload, left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    known, other = trace.read(left), trace.read(right)
    if known is None or other is None:
        raise DataDependent("torch.equal", trace.where)
    return torch.equal(known, other)


@handler("size")
def _size(trace: Recorder, func: OpOverload, tensor: Tensor) -> list[int]:
    """What C++ code asks that takes no symbols: the sizes are fixed."""
    return [int(size) for size in tensor.shape]


@handler("is_same_size")
def _is_same_size(trace: Recorder, func: OpOverload, left: Tensor, right: Tensor) -> bool:
    return tuple(left.shape) == tuple(right.shape)


@handler("_fused_sdp_choice")
def _fused_sdp_choice(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    def stand_in(arg: Any) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        shape, stride = map(hint_of, arg.shape), map(hint_of, arg.stride())
        empty = torch.empty_strided(tuple(shape), tuple(stride), dtype=arg.dtype, device=arg.device)
        return empty.requires_grad_(arg.requires_grad)

    return func(*map(stand_in, args), **{key: stand_in(arg) for key, arg in kwargs.items()})


@handler("masked_select")
def _masked_select(trace: Recorder, func: OpOverload, tensor: Tensor, mask: Tensor) -> Any:
    """A mask that is known says which elements."""
    known = trace.known(mask) if trace.captures_sizes else trace.read(mask)
    if known is None:
        return data_dependent(trace, func, tensor, mask)
    shape = broadcast_shapes([tensor.shape, known.shape]) or (1,)
    whole = trace.call(aten.expand.default, trace.unwrap(tensor), list(shape))
    places = [trace.lift(place, private=True).node for place in known.expand(shape).nonzero().unbind(1)]
    return trace.wrap(trace.call(aten.index.Tensor, whole, places))


_OF_BYTES = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."


@handler("index.Tensor", "_unsafe_index.Tensor")
def _index(trace: Recorder, func: OpOverload, tensor: Tensor, indices: list[Tensor | None]) -> TracedTensor:
    """Integer indices give a known shape; masks do not, unless they are known themselves."""
    places: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype is torch.uint8:
            warnings.warn(_OF_BYTES, stacklevel=1)
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
        elif trace.is_symbol(index, trace.captures_sizes):
            places += sized_by_data(trace, aten.nonzero.default, (index,), {}).unbind(1)
        else:
            known = trace.read(index)
            if known is None:
                raise DataDependent("indexing with a mask", trace.where, "data_shape")
            places += [trace.lift(place, private=True) for place in known.nonzero().unbind(1)]
    node = trace.call(aten.index.Tensor, trace.unwrap(tensor), trace.unwrap(places))
    return trace.wrap(node)  # type: ignore[no-any-return]
