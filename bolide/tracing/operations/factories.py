"""Tensors that are made, copied and filled: all that is made is `full`, permuted if need be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._ops import OpOverload

from bolide.support.errors import Unsupported
from bolide.symbolic import Size, contiguous_strides, hint_of, same_sizes
from bolide.tracing.meta import TensorMeta, number_dtype
from bolide.tracing.numbers import data, scalars
from bolide.tracing.operations.registry import handler
from bolide.tracing.operations.writes import refuse_overlaps
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules.common import broadcast_shapes, format_strides, fresh, like_strides, may_be_negative, surely
from bolide.tracing.rules.registry import infer
from bolide.tracing.tensor import TracedTensor
from bolide.tracing.traits import traits_of

aten = torch.ops.aten
Node = torch.fx.Node


def dtype_and_device(options: dict[str, Any], like: TensorMeta | None = None) -> tuple[torch.dtype, torch.device]:
    """Those of what a factory function makes."""
    dtype = options.get("dtype") or (like.dtype if like is not None else torch.get_default_dtype())
    device = options.get("device") or (like.device if like is not None else torch.device("cpu"))
    return dtype, torch.device(device)


#: what puts numbers into a tensor: which arguments these are
_FILLING = {
    "scalar_tensor": (0,),
    **dict.fromkeys(("full", "full_like", "fill", "fill_", "clamp_min", "clamp_max"), (1,)),
    **dict.fromkeys(("clamp", "clamp_", "hardtanh", "hardtanh_", "threshold", "threshold_"), (1, 2)),
    **dict.fromkeys(("new_full", "masked_fill", "masked_fill_", "constant_pad_nd"), (2,)),
    **dict.fromkeys(("index_fill", "index_fill_", "scatter", "scatter_"), (3,)),
}
#: what computes with a number in the type of the kernel's variables, and those that do so in the tensor's own on a CPU
_COMPUTING = {
    **dict.fromkeys(("add", "add_", "sub", "sub_", "addcmul", "addcmul_", "addcdiv", "addcdiv_", "index_add"), ()),
    **dict.fromkeys(("leaky_relu", "leaky_relu_", "elu", "elu_", "softplus"), (1,)),
    **dict.fromkeys(("rsub", "lerp", "lerp_"), (2,)),
    "arange": (0, 1, 2),
}
_IN_OWN_TYPE = frozenset({"add", "add_", "sub", "sub_", "rsub", "index_add"})
_INFINITE = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128})
_WHOLE = frozenset({"scalar_tensor", "full", "full_like", "fill", "fill_", "new_full"})  # these fill all of it


def refuse_overflow(trace: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager does where a number is put into a tensor whose type does not have it."""
    name = getattr(func, "_opname", "")  # operators of higher order have none
    places = _FILLING.get(name)
    if places is None or func.namespace != "aten":
        if name in _COMPUTING and func.namespace == "aten":
            _refuse_factors(trace, name, args, kwargs)
        return
    for value in (*[args[place] for place in places if place < len(args)], *kwargs.values()):
        if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) or isinstance(value, bool):
            continue
        own = number_dtype(value)
        dtype: torch.dtype = torch.get_default_dtype() if name == "scalar_tensor" else getattr(args[0], "dtype", own)
        dtype = kwargs.get("dtype") or dtype
        if name.startswith("clamp") and own.is_floating_point and not (dtype.is_floating_point or dtype.is_complex):
            dtype = own
        if not has_number(trace, value, dtype) and not _is_taken(name, dtype, args, kwargs):
            with torch._C._DisableTorchDispatch():
                torch.full((2,), float(value) if own.is_floating_point else int(value), dtype=dtype)


def _refuse_factors(trace: Recorder, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Raise what eager does where a kernel's variables do not have a number that it computes with."""
    given = [args[place] for place in _COMPUTING[name] if place < len(args)] + [*kwargs.values()]
    numbers = [number for number in given if isinstance(number, (float, torch.SymFloat))]
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if not numbers or not (tensors or name == "arange"):
        return
    dtype = kwargs.get("dtype")
    if not isinstance(dtype, torch.dtype):
        dtype = torch.get_default_dtype()
    if tensors:
        dtype = torch.promote_types(tensors[0].dtype, tensors[-1].dtype)
    own = name in _IN_OWN_TYPE and tensors[0].device.type == "cpu"
    if dtype in (torch.float16, torch.bfloat16) and not own:
        dtype = torch.float32
    elif dtype is torch.float32 and name == "arange":
        return
    if dtype not in _INFINITE or dtype in (torch.float64, torch.complex128):
        return
    for number in numbers:
        if not has_number(trace, number, dtype):
            with torch._C._DisableTorchDispatch():
                torch.full((2,), float(number), dtype=dtype)  # raises


def _is_taken(name: str, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether eager takes a number that the type does not have: it puts infinity into one element of 16 bits on a CPU,
    and scatters to no places."""
    if name not in _WHOLE:
        return name.startswith("scatter") and args[2].numel() == 0
    device = str(kwargs.get("device") or getattr(args[0], "device", "cpu"))
    shape = () if name == "scalar_tensor" else args[1] if name == "new_full" else getattr(args[0], "shape", args[0])
    return dtype in (torch.float16, torch.bfloat16) and device.startswith("cpu") and math.prod(shape) == 1


def has_number(trace: Recorder, value: float | torch.SymInt | torch.SymFloat, dtype: torch.dtype) -> bool:
    """Whether a type has a number, which may be cut; that is guarded of one from outside, and checked of data. (What is
    not finite most types of floats have.)"""
    if dtype is torch.bool:
        return True
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    limits = torch.iinfo(dtype) if is_whole else torch.finfo(dtype)
    if type(value) is torch.SymInt:
        env, expr = trace.shapes, value.node.expr
        least, most = int(limits.min), int(limits.max)
        conditions = [expr.ge(least), expr.le(most)] if most < torch.iinfo(torch.int64).max else []
        if not env.is_data(expr):
            return all(map(env.holds, conditions))
        for condition in conditions:
            if env.decide(condition) is not True:
                data.check(trace, condition)
        return True
    number = scalars.of(value) if isinstance(value, torch.SymFloat) else value
    if isinstance(number, scalars.TracedFloat) and number.now is None:
        if is_whole or not _fits(number.tensor.node, limits.max):
            with torch._C._DisableAutocast():
                given = number.tensor
                within = (given >= limits.min) & (given <= limits.max)
                data.check_tensor(given._trace, within if is_whole else within | ~given.isfinite())
        return True
    within = bool(number >= limits.min) and bool(number <= limits.max)
    return within or (isinstance(number, scalars.TracedFloat) and dtype in _INFINITE and _is_endless(number))


def _is_endless(number: scalars.TracedFloat) -> bool:
    return bool(number.decide("({0} - {0} != 0)", lambda value: value - value != 0))


def _fits(node: Node, most: float) -> bool:
    """Whether a number is read from a tensor of a type that has nothing above `most`."""
    while node.target in (aten._to_copy.default, aten.reshape.default, aten.view.default, aten.clone.default):
        node = node.args[0]  # type: ignore[assignment]
        dtype = node.meta["val"].dtype
        if dtype.is_floating_point and torch.finfo(dtype).max <= most:
            return True
    return False


def refuse_negative(shape: Iterable[int | torch.SymInt], make: Callable[[list[int]], Tensor] = torch.empty) -> None:
    """Raise what eager does where tensors of a negative size are made; `make` is a function that does so."""
    if not all(surely(size >= 0) for size in shape if may_be_negative(size)):
        with torch._C._DisableTorchDispatch():
            make(list(map(hint_of, shape)))


def full(
    trace: Recorder,
    shape: tuple[Size, ...] | list[Size],
    value: Any,
    dtype: torch.dtype,
    device: torch.device,
    stride: tuple[Size, ...] | list[Size] | None = None,
) -> TracedTensor:
    """A new tensor of one value, row-major or with these strides."""
    shape = tuple(shape)
    refuse_negative(shape)
    if isinstance(value, complex) or (not dtype.is_floating_point and isinstance(value, (int, float))):
        torch.full((), value, dtype=dtype)  # raises where the type has no such number
    if isinstance(value, complex) and not dtype.is_complex:
        value = value != 0 if dtype is torch.bool else value.real
    wanted = fresh(shape, dtype, device, None if stride is None else tuple(stride))
    tensor: TracedTensor = trace.wrap(trace.filled(wanted, value))
    if stride is None or same_sizes(tensor.stride(), wanted.stride):
        return tensor
    sizes = list(zip(shape, wanted.stride))
    room = 0 if any(size == 0 for size in shape) else 1 + sum((size - 1) * step for size, step in sizes)
    block = trace.wrap(trace.filled(fresh((room,), dtype, device), value))
    return trace.dispatch(aten.as_strided.default, (block, shape, wanted.stride), {})  # type: ignore[no-any-return]


def _plain(trace: Recorder, value: Any) -> Any:
    return trace.unwrap(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


def _content(trace: Recorder, func: OpOverload, given: tuple[Any, ...]) -> Any:
    """The number that a factory function fills memory with; 0 where it does not say."""
    return _plain(trace, given[0]) if "full" in func._opname else int("ones" in func._opname)


@handler("zeros", "ones", "empty.memory_format", "empty_strided", "full")
def _factory(trace: Recorder, func: OpOverload, shape: list[Size], *given: Any, **options: Any) -> TracedTensor:
    dtype, device = dtype_and_device(options)
    if func is aten.zeros.default:
        refuse_negative(shape, torch.zeros)
    if func is aten.full.default and options.get("dtype") is None:
        dtype = number_dtype(given[0])
        dtype = torch.complex64 if dtype is torch.complex32 else dtype  # as eager's `full` alone has it
    stride = given[0] if func is aten.empty_strided.default else None
    if options.get("memory_format") not in (None, torch.contiguous_format):
        stride = format_strides(tuple(shape), options["memory_format"])
    return full(trace, shape, _content(trace, func, given), dtype, device, stride)


@handler("scalar_tensor")
def _scalar_tensor(trace: Recorder, func: OpOverload, value: object, **options: Any) -> TracedTensor:
    return full(trace, (), _plain(trace, value), *dtype_and_device(options))


@handler("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided")
def _new(
    trace: Recorder, func: OpOverload, tensor: Tensor, shape: list[Size], *given: Any, **options: Any
) -> TracedTensor:
    stride = given[0] if func is aten.new_empty_strided.default else None
    return full(trace, shape, _content(trace, func, given), *dtype_and_device(options, trace.own(tensor).meta), stride)


@handler("zeros_like", "ones_like", "empty_like", "full_like")
def _like(trace: Recorder, func: OpOverload, tensor: Tensor, *given: Any, **options: Any) -> TracedTensor:
    like = trace.own(tensor).meta
    stride = like_strides(like, options.get("memory_format"))
    return full(trace, like.shape, _content(trace, func, given), *dtype_and_device(options, like), stride)


# ---- constants, copies, new sizes ------------------------------------------------------------------------------------


@handler("lift_fresh", "lift")
def _lift_fresh(trace: Recorder, func: OpOverload, tensor: Tensor) -> TracedTensor:
    return tensor if tensor.__class__ is TracedTensor else trace.lift(tensor, private=True)


@handler("copy_", "fill_.Tensor")
def _copy_(trace: Recorder, func: OpOverload, target: Tensor, source: Any, *options: bool) -> Tensor:
    own = trace.own(target)
    if not _is_same_data(target, source):
        refuse_overlaps(trace.where, func, (target, source, *options), {}, (target,))
    is_whole = not (own.dtype.is_floating_point or own.dtype.is_complex)
    if func is aten.fill_.Tensor and is_whole and torch.is_grad_enabled() and source.requires_grad:
        reason = "integers are filled with a value that requires grad: eager gives them a history"
        raise Unsupported(reason, trace.where, "detach the value", kind="tensor_write")
    node = trace.unwrap(source)
    if not isinstance(source, Tensor):  # a number counts as a tensor of its widest type
        node = trace.filled(fresh((), number_dtype(source, widest=True), torch.device("cpu")), node)
    trace.write(own, _fitted(trace, node, own.node.meta["val"]))
    return target


def _is_same_data(target: Tensor, source: object) -> bool:
    """Whether a tensor is copied to itself, maybe by another view: eager does nothing then."""
    if not isinstance(source, TracedTensor) or not isinstance(target, TracedTensor) or source.group is not target.group:
        return False
    if source.dtype is not target.dtype or source.is_conj() != target.is_conj() or source.is_neg() != target.is_neg():
        return False
    one, other = source.meta, target.meta
    return same_sizes((*one.shape, *one.stride, one.offset), (*other.shape, *other.stride, other.offset))


def _fitted(trace: Recorder, node: Node, wanted: TensorMeta) -> Node:
    """`node` converted and broadcast, as copy_ does it: to a shape that may be too large for what is written."""
    meta = node.meta["val"]
    if meta.dtype is not wanted.dtype or meta.device != wanted.device:
        node = trace.call(aten._to_copy.default, node, dtype=wanted.dtype, device=wanted.device)
    if not same_sizes(meta.shape, wanted.shape):
        shape = broadcast_shapes([wanted.shape, meta.shape])
        node = trace.call(aten.expand.default, node, [trace.unwrap(size) for size in shape])
        node = trace.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    return node


@handler("fill_.Scalar", "zero_")
def _fill_(trace: Recorder, func: OpOverload, target: Tensor, value: object = 0) -> Tensor:
    own = trace.own(target)
    trace.write(own, trace.filled(own.node.meta["val"], _plain(trace, value)))
    return target


def refuse_of_input(trace: Recorder, func: OpOverload, tensor: Tensor) -> None:
    """Raises Unsupported where the shape of what is not made in the program is changed in place."""
    if tensor.__class__ is not TracedTensor or trace.is_input(tensor):
        reason = f"{func} changes the shape of an argument in place"
        raise Unsupported(reason, trace.where, "use the function without the underscore", kind="tensor_write")


@handler("resize_")
def _resize_(
    trace: Recorder,
    func: OpOverload,
    tensor: TracedTensor,
    size: list[Size],
    memory_format: torch.memory_format | None = None,
) -> TracedTensor:
    """Fewer elements look at the start of the storage; an empty tensor gets new memory. Other growth keeps what lies
    behind the tensor in memory, which nothing is known of."""
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        raise Unsupported("resize_ with a memory format", trace.where, kind="tensor_write")
    if tuple(size) == tuple(tensor.shape):
        return tensor
    refuse_of_input(trace, func, tensor)
    wanted, present = math.prod(size), tensor.numel()
    if wanted <= present:
        view = tensor, size, contiguous_strides(tuple(size))
        tensor.become(trace.dispatch(aten.as_strided.default, view, {}))
    elif present == 0:
        tensor.become(full(trace, size, 0, tensor.dtype, tensor.device))
    else:
        reason = "resize_ makes a tensor with elements larger"
        raise Unsupported(reason, trace.where, "make a new tensor", kind="tensor_write")
    return tensor


# ---- tangents that are zero ------------------------------------------------------------------------------------------

# ATen makes them in forward mode: a product with one is zero, with infinity too, and a sum is the other operand.

_PRODUCTS = frozenset((aten.mul.Tensor, aten.mul.Scalar, aten.dot.default, aten.vdot.default))
_QUOTIENTS = frozenset((aten.div.Tensor, aten.div.Scalar))
_SUMS = frozenset((aten.add.Tensor, aten.sub.Tensor))


@handler("_efficientzerotensor")
def _zero(trace: Recorder, func: OpOverload, shape: list[Size], **options: object) -> TracedTensor:
    return _noted(trace, full(trace, shape, 0, *dtype_and_device(options)))


def _noted(trace: Recorder, zero: TracedTensor) -> TracedTensor:
    trace.zeros.add(zero.node)
    return zero


def _is_zero(trace: Recorder, arg: object) -> bool:
    if not isinstance(arg, TracedTensor):
        return False
    node = arg.node
    while (
        node not in trace.zeros
        and node.args
        and isinstance(node.args[0], torch.fx.Node)
        and traits_of(node.target).view
    ):
        node = node.args[0]
    return node in trace.zeros


def of_zeros(trace: Recorder, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, float]) -> object:
    """What an operation with such a tangent answers; NotImplemented where it is as others."""
    if func not in _PRODUCTS and func not in _QUOTIENTS and func not in _SUMS:
        return NotImplemented
    one, other = (_is_zero(trace, arg) for arg in args[:2])
    if not (one or (other and func not in _QUOTIENTS)):
        return NotImplemented
    nodes = [trace.unwrap(arg) for arg in args]
    meta: TensorMeta = infer(func, nodes, kwargs, trace.shapes if trace.shapes.hints else None)
    if func not in _SUMS or (one and other):
        return _noted(trace, full(trace, meta.shape, 0, meta.dtype, meta.device))
    node = trace.call(aten._to_copy.default, nodes[one], dtype=meta.dtype)
    factor = kwargs.get("alpha", 1) if one else 1
    factor = -factor if one and func is aten.sub.Tensor else factor
    if factor != 1:
        node = trace.call(aten.mul.Tensor, node, factor)
    if not same_sizes(node.meta["val"].shape, meta.shape):
        node = trace.call(aten.expand.default, node, [trace.unwrap(size) for size in meta.shape])
        node = trace.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    return trace.wrap(node)
