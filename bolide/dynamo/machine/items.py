"""Items of values: ``x[i]``, ``x[i] = y``, ``del x[i]``; indices of tensors; and writes of differentiable values where
a mask is true (torch's derivative gathers with the mask, so it has a size that is data)."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy
import torch

from bolide.dynamo.machine.breaking import can_require, refuse_array
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.operations import (
    SEQUENCES,
    as_key,
    is_keyed_by_sizes,
    knows_symbols,
    native_iterable,
    with_key,
)
from bolide.dynamo.machine.stand_ins import PLAIN, STAND_INS, SYMBOLIC, as_number, class_of, is_number
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.world.outside import Outside
from bolide.symbolic import is_data
from bolide.tracing import TracedTensor
from bolide.tracing.numbers import data

_INDEXED = (*SEQUENCES, bytearray, range, collections.deque)


def _stacked(index: Any) -> Any:
    """A sequence of numbers, an index of a tensor, as a tensor if traced ones are among them."""
    if not any(type(item) is TracedTensor for item in index):
        return index
    return torch.stack([torch.as_tensor(item) for item in index])


def _numbered(bounds: slice) -> slice:
    """A slice with numbers, which may be symbols, for the tensors of one integer that its bounds are: C++ would ask for
    their values."""
    if all(type(bound) in _BOUNDS for bound in (bounds.start, bounds.stop)):
        return bounds
    return slice(_number_in(bounds.start), _number_in(bounds.stop), bounds.step)


def _number_in(bound: object) -> object:
    bound = as_number(bound)
    if type(bound) is not TracedTensor or bound.dtype not in _INTEGER_TYPES:
        return bound
    return bound.item() if all(type(size) is int and size == 1 for size in bound.shape) else bound


_ASSIGNED = (float, SupportsIndex)  # torch takes no other numbers as items, of NumPy's float32 say
_BOUNDS = frozenset({int, type(None), torch.SymInt})
_INTEGER_TYPES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


def _selecting(index: TracedTensor) -> object:
    """The number, which may be a symbol, in a tensor that selects one place: C++ would ask for its value. (One of bytes
    is a mask.)"""
    selects = not index.dim() and index.dtype in _INTEGER_TYPES and index.dtype is not torch.uint8
    return index.item() if selects else index


#: what is made of an index of a tensor, or of a part of it, by its class
AS_INDEX: dict[type, Callable[[Any], Any]] = {
    list: _stacked,
    tuple: _stacked,
    slice: _numbered,
    TracedTensor: _selecting,
}


def _tensor_index(key: object) -> object:
    """An index of a tensor, with tensors in place of arrays and of sequences of tensors, and numbers in place of
    tensors that are bounds of slices."""
    if type(key) is tuple:
        if AS_INDEX.keys().isdisjoint(map(type, key)):
            return key
        return tuple([AS_INDEX[type(part)](part) if type(part) in AS_INDEX else part for part in key])
    if type(key) is list:  # torch decides whether this is a sequence of indices or of numbers
        return key
    return AS_INDEX[type(key)](key) if type(key) in AS_INDEX else key


def _has_symbols(key: object) -> bool:
    """Whether there are symbolic integers in an index of a tensor."""
    return type(key) is torch.SymInt or (type(key) is tuple and any(type(part) is torch.SymInt for part in key))


def _lists_symbols(vm: Machine, key: object) -> bool:
    """Whether there are symbolic integers in lists in an index of a tensor: torch would ask for their values."""
    if not vm.trace.has_symbols or type(key) not in (list, tuple):
        return False
    return any(
        type(part) in (list, tuple)
        and torch.SymInt in map(type, part)
        and {int, torch.SymInt}.issuperset(map(type, part))
        for part in (key if type(key) is tuple else (key,))
    )


_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    slice: lambda key: (key.start, key.stop, key.step),
    tuple: iter,
}

_NEVER_CONVERTED = (PLAIN - {slice, tuple}) | {TracedTensor, *SYMBOLIC}


def is_converted(vm: Machine, key: object) -> bool:
    """Whether the program's own code makes integers of an index, or of parts of it."""
    cls = type(key)
    if cls in _NEVER_CONVERTED:
        return False
    if cls in _PARTS:
        return any(is_converted(vm, part) for part in _PARTS[cls](key))
    cls = class_of(key)  # what is an int is not asked
    return not issubclass(cls, int) and vm.world.classes.python_method(cls, "__index__") is not None


def by_index(vm: Machine, operation: object, owner: object, key: object, *rest: object) -> Call | None:
    """The Call that does an operation on an item after the program's code has made integers of its place, as tensors
    and sequences have it; else None."""
    if type(owner) is TracedTensor and _lists_symbols(vm, key):
        return Call.polyfill("by_lists", operation, owner, key, *rest)
    if type(key) in _NEVER_CONVERTED or not (is_converted(vm, key) or _names_objects(key)):
        return None
    seen = class_of(owner)
    if issubclass(seen, (torch.Tensor, numpy.ndarray)):
        if _is_sequence(vm, key):
            return None  # an index of several places, not asked for an integer
        return Call.polyfill("by_tensor_index", operation, owner, key, *rest)
    return Call.polyfill("by_index", operation, owner, key, *rest) if issubclass(seen, _INDEXED) else None


def _is_sequence(vm: Machine, key: object) -> bool:
    """Whether an index of a tensor, or a part of it, is an object of the program's that has items."""
    if type(key) is tuple:
        return any(_is_sequence(vm, part) for part in key)
    return (
        type(key) not in _NEVER_CONVERTED and vm.world.classes.python_method(class_of(key), "__getitem__") is not None
    )


def _names_objects(key: object) -> bool:
    """Whether a bound of a slice is an object from outside: native code would refuse what stands for it."""
    return type(key) is slice and any(type(part) is Outside for part in _PARTS[slice](key))


_item = operator.getitem  # what that raises is the program's exception (see `faults`)


def get_item(vm: Machine, owner: Any, key: Any) -> Any:
    """`owner[key]`."""
    cls = type(owner)
    if cls in PLAIN:
        if cls is dict:
            return with_key(vm, _item, owner, key)
        if type(key) in SYMBOLIC:
            vm.trace.where = vm.where()
            if type(key) is torch.SymInt and (item := _item_anywhere(vm, owner, key)) is not MISSING:
                return item
        if type(key) is Outside and vm.world.classes.lookup(key.cls, "__index__") is MISSING:
            return _item(owner, key.real)  # raises
        return by_index(vm, operator.getitem, owner, key) or _item(owner, key)
    if cls is TracedTensor:
        if vm.modes.functions.asks:
            return Call(torch.Tensor.__getitem__, [owner, key])
        if call := by_index(vm, operator.getitem, owner, key):
            return call
        vm.trace.where = vm.where()
        key = _tensor_index(key)
        if vm.trace.has_symbols and _has_symbols(key):
            owner, key = data.with_selected(owner, key)
            return _item(owner, key) if key else owner
        owner, key = data.with_wide_mask(vm.trace, owner, key)
        return _item(owner, key)
    seen = class_of(owner)
    method = vm.world.classes.python_method(seen, "__getitem__")
    if method is not None:
        return Call(method, [owner, key])
    if isinstance(owner, type) and (method := _class_item(vm, owner)) is not None:
        return Call(method, [owner, key])
    if cls is Outside:
        if owner.contents is not None:
            return get_item(vm, owner.contents, key)
        if owner.items is None and (plain := owner.plain()) is not MISSING:
            return get_item(vm, plain, key)
        if owner.items is None:
            raise vm.unsupported(f"an item of an outside {seen.__name__} object", "outside_object")
        key = as_key(vm, key)
        item = owner.items.get(key)
        if item is MISSING:
            missing = vm.world.classes.python_method(seen, "__missing__")
            if missing is not None:
                return Call(missing, [owner, key])
            if issubclass(seen, collections.defaultdict):
                return Call.polyfill("default_item", owner, key)
            raise KeyError(key)
        return item
    if issubclass(seen, collections.defaultdict) and key not in owner:
        return Call.polyfill("default_item", owner, key)
    if call := by_index(vm, operator.getitem, owner, key):
        return call
    return _item(owner, key if knows_symbols(owner) else as_key(vm, key))


def _item_anywhere(vm: Machine, owner: Any, key: torch.SymInt) -> Any:
    """The item at a place that is data, if all places have the same one, as in a choice among one: the graph looks at
    whether there is such a place. Else MISSING."""
    if type(owner) not in SEQUENCES or not owner or not is_data(key) or any(item is not owner[0] for item in owner):
        return MISSING
    if not can_require(vm) or vm.trace.shapes.require is None:
        return MISSING
    place, suppose = key.node.expr, vm.trace.shapes.suppose
    return owner[0] if suppose(place.ge(-len(owner))) and suppose(place.le(len(owner) - 1)) else MISSING


def _class_item(vm: Machine, owner: type) -> types.FunctionType | None:
    """A class's own `__class_getitem__`, if the program has it (that of `typing` is not looked into)."""
    method = vm.world.classes.lookup(owner, "__class_getitem__")
    function = method.__func__ if type(method) is classmethod else method
    return function if type(function) is types.FunctionType and function.__module__ != "typing" else None


def set_item(vm: Machine, owner: Any, key: Any, value: Any) -> Call | None:
    """`owner[key] = value`; None, or the Call that does it."""
    cls = type(owner)
    if cls in PLAIN or cls is TracedTensor:
        if cls is TracedTensor and vm.modes.functions.asks:
            return Call(torch.Tensor.__setitem__, [owner, key, value])
        if call := by_index(vm, operator.setitem, owner, key, value):
            return call
        vm.trace.where = vm.where()
        if cls is TracedTensor:
            key = _tensor_index(key)
            if vm.trace.has_symbols and _has_symbols(key):
                owner, key = data.with_selected(owner, key)
            parts = key if type(key) is tuple else (key,)
            if is_masked_write(parts, value):
                given = [owner, key, value]
                write_masked(vm, operator.setitem, given, parts, lambda target, at: operator.setitem(target, at, value))
                return None
            owner, key = data.with_wide_mask(vm.trace, owner, key)
            if is_number(value) and issubclass(STAND_INS[type(value)].seen, _ASSIGNED):
                value = as_number(value)
        if cls is list and is_lazy_slice(vm, key, value):
            return Call.polyfill("assign_slice", operator.setitem, owner, key, value)
        if cls is dict:
            with_key(vm, operator.setitem, owner, key, value)
        else:
            owner[key] = value
        return None
    seen = class_of(owner)
    method = vm.world.classes.python_method(seen, "__setitem__")
    if method is not None:
        return Call(method, [owner, key, value])
    if cls is not Outside and (call := by_index(vm, operator.setitem, owner, key, value)):
        return call
    if issubclass(seen, (list, bytearray)) and is_lazy_slice(vm, key, value):
        return Call.polyfill("assign_slice", operator.setitem, owner, key, value)
    if cls is Outside:
        if owner.contents is not None:
            return set_item(vm, owner.contents, key, value)
        if owner.items is None:
            raise vm.unsupported(f"an item of an outside {seen.__name__} object is assigned", "outside_object")
        owner.items.set(as_key(vm, key), value)
    else:
        refuse_array(vm, owner, key, value)
        owner[key] = value
    return None


def is_lazy_slice(vm: Machine, key: object, value: object) -> bool:
    """Whether a slice is assigned what only the program can iterate over."""
    return type(key) is slice and native_iterable(vm, value) is MISSING


def delete_item(vm: Machine, owner: Any, key: Any) -> Call | None:
    """`del owner[key]`; None, or the Call that does it."""
    seen = class_of(owner)
    method = vm.world.classes.python_method(seen, "__delitem__")
    if method is not None:
        return Call(method, [owner, key])
    if type(owner) is Outside:
        if owner.contents is not None:
            return delete_item(vm, owner.contents, key)
        if owner.items is None:
            raise vm.unsupported(f"an item of an outside {seen.__name__} object is deleted", "outside_object")
        if owner.items.get(key) is MISSING:
            raise KeyError(key)
        owner.items.set(key, MISSING)
        return None
    if call := by_index(vm, operator.delitem, owner, key):
        return call
    if type(owner) is dict and is_keyed_by_sizes(vm, owner, key):
        with_key(vm, operator.delitem, owner, key)
    else:
        del owner[key]
    return None


# ---- masked writes ---------------------------------------------------------------------------------------------------

_BASIC = (slice, int, types.NoneType, types.EllipsisType)


def _is_mask(part: object) -> bool:
    return type(part) is TracedTensor and part.dtype is torch.bool


def is_masked_write(parts: tuple[Any, ...], value: object) -> bool:
    """Whether such a value goes where a mask among the parts of an index says."""
    derives = type(value) is TracedTensor and value.requires_grad and torch.is_grad_enabled()
    return derives and any(map(_is_mask, parts))


def write_masked(
    vm: Machine, function: object, arguments: list[Any], parts: tuple[Any, ...], assign: Callable[..., Any]
) -> object:
    """A call of `function` with such a value. Its arguments: a tensor (in place of which a copy is written by functions
    that write nothing), an index of these parts, the value, and perhaps whether it is added. `assign` is given the
    tensor to write and an index without masks."""
    owner, _, value, *adds = arguments

    def compute() -> object:
        target = owner.clone() if function is torch.Tensor.index_put else owner
        if not _fill(target, parts, value, any(adds)):
            assign(target, _gathered(target, parts))
        return target

    recorder = vm.recorder
    return compute() if recorder is None else recorder.as_one(function, arguments, compute)


def _fill(owner: TracedTensor, parts: tuple[Any, ...], value: TracedTensor, adds: bool) -> bool:
    """Write, or add, one value wherever the only mask is true, without gathering; False where it is otherwise."""
    masks = [place for place, part in enumerate(parts) if _is_mask(part)]
    if len(masks) != 1 or value.dtype is not owner.dtype:
        return False
    before, mask, after = parts[: masks[0]], parts[masks[0]], parts[masks[0] + 1 :]
    if not all(isinstance(part, _BASIC) and type(part) is not bool for part in (*before, *after)):
        return False
    view = owner[(*before, *[slice(None)] * mask.dim(), *after)] if before or after else owner
    behind = _width(after)
    if not any(part is Ellipsis for part in before):
        behind = view.dim() - _width(before) - mask.dim()
    rest = view.shape[view.dim() - behind :]
    if behind < 0 or tuple(view.shape[view.dim() - behind - mask.dim() : view.dim() - behind]) != tuple(mask.shape):
        return False
    sizes = zip(reversed(value.shape), reversed(rest), strict=False)
    if value.dim() > len(rest) or not all(mine == other or mine == 1 for mine, other in sizes):
        return False
    spread = mask[(..., *[None] * behind)]
    view.copy_(torch.where(spread, view + value if adds else value, view))
    return True


def _width(parts: tuple[Any, ...]) -> int:
    """How many dimensions of the result the basic parts of an index are about."""
    return sum(part is None or isinstance(part, slice) for part in parts)


def _gathered(owner: TracedTensor, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index with the places where its masks are true, found once for the write and its derivative. Masks that do
    not fit are left for torch to refuse."""
    if any(part is Ellipsis or part is None for part in parts):
        return parts
    places: list[Any] = []
    dim = 0
    for part in parts:
        taken = part.dim() if _is_mask(part) else 1
        if _is_mask(part) and (not taken or tuple(owner.shape[dim : dim + taken]) != tuple(part.shape)):
            return parts
        places += part.nonzero().unbind(1) if _is_mask(part) else [part]
        dim += taken
    return tuple(places)
