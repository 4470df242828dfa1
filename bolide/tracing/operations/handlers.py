"""How each kind of operation is recorded. A handler is ``f(trace, func, args, kwargs) -> result`` on traced tensors.

Most operations need no handler of their own: `classify` finds the kind from the schema (composite, view, in-place,
functional).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported
from bolide.support.registers import register
from bolide.symbolic import SymNode, as_expr, contiguous_strides, hint_of, is_undecided, same_sizes
from bolide.tracing.called.derivatives import formula_of
from bolide.tracing.meta import DataDependent, TensorMeta, number_dtype
from bolide.tracing.numbers import data
from bolide.tracing.operations import writing_ops
from bolide.tracing.operations.refusals import refuse_negative, refuse_overlaps, refuse_types
from bolide.tracing.rules.common import (
    broadcast_shapes,
    format_strides,
    is_contiguous,
    is_dense,
    like_strides,
    require,
    wrap_dim,
)
from bolide.tracing.rules.registry import infer, infer_from, qualified
from bolide.tracing.tensor import TracedTensor, ViewStep, carry_marks

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

aten = torch.ops.aten
Handler = Callable[["Trace", Any, "tuple[Any, ...]", "dict[str, Any]"], Any]

_NAMED: dict[str, Handler] = {}  # by the name of the overload
HANDLERS: dict[Any, Handler] = {}  # by overload: filled as operations are met


handler = register(_NAMED, qualified)
"""Registers a handler for overloads (``add.Tensor``; the default overload is the name alone)."""


def classify(func: Any) -> Handler:
    """The handler for an operation: its own, or that of its kind."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _higher_order
    own = _NAMED.get(func.name())
    if own is not None:
        return own
    if schema.name.startswith("profiler::"):
        return _unrecorded
    if schema.name.startswith("c10d::"):
        return _collective
    if schema.name.startswith("aten::_foreach_"):
        return _foreach
    tags = func.tags
    data_tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # in some versions not on all
    if func.name() in data.SIZED or any(tag in tags for tag in data_tags):
        return _data_dependent
    if torch.Tag.inplace_view in tags:
        return _metadata_change
    if _has_kernel(func, "CompositeImplicitAutograd") and not _has_kernel(func, "CPU"):
        return _composite
    kind = functional
    if schema.is_mutable:
        kind = _mutation
    elif any(value.alias_info is not None for value in schema.returns):
        kind = record_view
    if _is_seen_through(func):
        return functools.partial(_without_history, kind)
    return kind if func.namespace in _OWN_NAMESPACES else functools.partial(_unless_for_real, kind)


def _unless_for_real(kind: Handler, trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    formula = formula_of(func)
    trace.formulas.add(formula)
    reason = trace.for_real.get(formula)
    if reason is not None:
        raise Unsupported(reason, trace.where, "give its derivative a form that reads no data", "operator", str(func))
    return kind(trace, func, args, kwargs)


def _is_seen_through(func: Any) -> bool:
    """Whether an operator of other makers is written in Python and has no kernel for autograd: in eager, what it does
    is part of the history."""
    if func.namespace in _OWN_NAMESPACES or any(_has_kernel(func, key) for key in ("Autograd", "AutogradCPU")):
        return False
    name = func.name().replace("::", "/")
    return any(f"{name}/{key}" in torch.library._impls for key in ("CPU", "CompositeExplicitAutograd"))


def _without_history(kind: Handler, trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [arg for arg in pytree.tree_leaves((args, kwargs)) if isinstance(arg, TracedTensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        reason = "an operator without an autograd kernel is differentiated through what it does"
        remedy = "give it a derivative (torch.library.register_autograd)"
        raise Unsupported(reason, trace.where, remedy, "operator", str(func))
    return kind(trace, func, args, kwargs)


def has_own_derivative(func: Any) -> bool:
    """Whether this is an operator of other makers, called by the `autograd.Function` that is its derivative: grad mode
    is off in there, as is forward mode, which `torch.no_grad` leaves on."""
    if torch._C._is_fwd_grad_enabled() or torch.is_inference_mode_enabled():
        return False
    return getattr(func, "namespace", "aten") not in _OWN_NAMESPACES


def is_recorded_as_is(func: Any) -> bool:
    """Whether an operation becomes a node of its own, whatever its arguments are."""
    kind: Any = HANDLERS.get(func) or classify(func)
    if isinstance(kind, functools.partial) and kind.func is _unless_for_real:
        (kind,) = kind.args
    return kind in (functional, record_view, _mutation) and not _has_kernel(func, "CompositeImplicitAutograd")


def refuse_unless_compliant(trace: Trace, func: Any) -> None:
    """Raises Unsupported for an operator of other makers that does not say that it keeps the compiler's rules."""
    if (
        not isinstance(func, torch._ops.OpOverload)
        or func.namespace in _OWN_NAMESPACES
        or torch.Tag.pt2_compliant_tag in func.tags
    ):
        return
    reason = "an operator without the tag pt2_compliant_tag is called"
    raise Unsupported(reason, trace.where, kind="compliance", operation=str(func))


_OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler", "bolide"})


def _has_kernel(func: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


# ---- the kinds ----------------------------------------------------------------------------------------------------


_NUMBERS = frozenset({bool, int, float, complex, torch.SymInt})


def functional(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """The handler of operations that neither write nor are views."""
    args = _with_tensor_first(trace, func, args)
    unwrap = trace.unwrap
    nodes = [unwrap(arg) for arg in args]
    return trace.wrap(trace.call(func, *nodes, **{key: unwrap(arg) for key, arg in kwargs.items()}))


def _with_tensor_first(trace: Trace, func: Any, args: Any) -> Any:
    """Arguments with a tensor in place of a number that is given for the first one."""
    if args and args[0].__class__ in _NUMBERS and str(func._schema.arguments[0].type) == "Tensor":
        return trace.dispatch(aten.scalar_tensor.default, args[:1], {"dtype": number_dtype(args[0])}), *args[1:]
    return args


def _composite(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    with trace.recording():
        return func.decompose(*args, **kwargs)


def record_view(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """The handler of operations that are views."""
    tensor, *rest = args
    return view_of(trace, tensor, func, *map(trace.unwrap, rest), **{k: trace.unwrap(v) for k, v in kwargs.items()})


def view_of(trace: Trace, tensor: Any, func: Any, *args: Any, **kwargs: Any) -> TracedTensor:
    """The view `func(tensor, *args)`; the arguments are as they stand in the graph."""
    if tensor.__class__ is not TracedTensor:
        tensor = trace.lift(tensor)
    node = trace.call(func, tensor.node, *args, **kwargs)
    if node.__class__ is not torch.fx.Node:
        raise Unsupported(f"{func} makes several views", trace.where, kind="operator")
    meta = node.meta["val"]
    marked = tensor.is_neg() or tensor.is_conj()
    if marked or tensor.group.version:  # the value of a written or computed view has strides of its own
        meta = infer_from(func, tensor.meta, args, kwargs, trace.shapes)
    view = TracedTensor.make(trace, meta, node, tensor.group, (*tensor.chain, (func, args, kwargs)))
    if marked:
        carry_marks(tensor, view)
    if not tensor.counts:
        view.counts = False
    if tensor.cut:
        view.cut = True
    return view


def _mutation(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    form = _functional_form(func)
    if form is None:
        return writing_ops.call_on_copies(trace, func, args, kwargs)
    functional, written, dropped = form
    targets = [args[slot] if isinstance(slot, int) else kwargs[slot] for slot in written]
    if not all(isinstance(target, torch.Tensor) for target in targets):
        return writing_ops.call_on_copies(trace, func, args, kwargs)
    args = _with_tensor_first(trace, func, args) if dropped else args
    unwrap = trace.unwrap
    nodes = [unwrap(arg) for arg in args]
    options = {key: unwrap(arg) for key, arg in kwargs.items() if key not in dropped}
    results = trace.call(functional, *nodes, **options)
    results = results if isinstance(results, list) else [results]
    if dropped:
        refuse_types(trace.where, func, args, kwargs, dropped, results)
    if all(target.shape == result.meta["val"].shape for target, result in zip(targets, results)):
        refuse_overlaps(trace.where, func, args, kwargs, targets)
    for place, (target, result) in enumerate(zip(targets, results)):
        if dropped and target.shape != result.meta["val"].shape:
            _refuse_known_out(trace, target)
            _fit_out(trace, target, result.meta["val"], functools.partial(_told, trace, func, nodes, kwargs, place))
        trace.write(target if target.__class__ is TracedTensor else trace.lift(target), result)
    return targets[0] if len(targets) == 1 else tuple(targets)


def _refuse_known_out(trace: Trace, target: Any) -> None:
    known = target.__class__ is TracedTensor and not trace.is_input(target)
    if not known or target.numel():
        raise Unsupported(
            "an out= argument of another shape than the result",
            trace.where,
            "give it the right shape",
            kind="tensor_write",
        )


def _fit_out(trace: Trace, target: Any, result: TensorMeta, told: Callable[[], TensorMeta]) -> None:
    """An `out=` argument without elements is resized. Some operations lay it out as their result, which is asked
    (`told`) where that is not row-major."""
    stride = None if same_sizes(result.stride, contiguous_strides(result.shape)) else told().stride
    become(target, _full(trace, result.shape, 0, target.dtype, target.device, stride))


def _told(trace: Trace, func: Any, nodes: list[Any], kwargs: dict[str, Any], place: int) -> TensorMeta:
    """What eager makes of the `place`th `out=` argument."""
    options = {key: trace.unwrap(arg) for key, arg in kwargs.items()}
    made = infer(func, nodes, options, trace.shapes if trace.shapes.hints else None)
    meta: TensorMeta = made if isinstance(made, TensorMeta) else made[place]
    return meta


def _foreach(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """An operation on lists of tensors, as the operation on each of them."""
    name, _, overload = func.name().removeprefix("aten::_foreach_").partition(".")
    name = _OF_FOREACH.get(name, name)
    packet = getattr(aten, name, None)
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    if packet is None or overload.endswith("out"):
        raise Unsupported(f"{func} is not captured", trace.where, "use the operation on each tensor", kind="operator")
    results = []
    for position in range(count):
        own = [arg[position] if _is_per_tensor(arg, count) else arg for arg in args]
        options = {key: arg[position] if _is_per_tensor(arg, count) else arg for key, arg in kwargs.items()}
        if name.rstrip("_") in ("addcmul", "addcdiv") and len(own) > 3:
            options["value"] = own.pop()
        with trace.recording():
            results.append(packet(*own, **options))
    if not name.endswith("_"):
        return results
    torch._C._increment_version([tensor for tensor in args[0] if not tensor.is_inference()])  # torch counts real ones
    return None


_OF_FOREACH = {
    "norm": "linalg_vector_norm",
    "maximum": "clamp_min",
    "maximum_": "clamp_min_",
    "minimum": "clamp_max",
    "minimum_": "clamp_max_",
}


def _is_per_tensor(arg: Any, count: int) -> bool:
    return isinstance(arg, (list, tuple)) and len(arg) == count


_Form = tuple[Any, "list[int | str]", "set[str]"]
_forms: dict[Any, _Form | None] = {}


def _functional_form(func: Any) -> _Form | None:
    """(the overload that computes the same without writing, the arguments written in the order of its results, the
    keyword arguments it lacks); None if there is none."""
    if func not in _forms:
        _forms[func] = _find_functional_form(func)
    return _forms[func]


def _find_functional_form(func: Any) -> _Form | None:
    schema = func._schema
    written = [arg for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    out = {arg.name for arg in written if arg.kwarg_only}
    wanted = [(arg.name, str(arg.type)) for arg in schema.arguments if arg.name not in out]
    namespace, name = schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name if out else name.removesuffix("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, overload)
        arguments = [(arg.name, str(arg.type)) for arg in candidate._schema.arguments]
        if not candidate._schema.is_mutable and arguments == wanted:
            slots: list[int | str] = [arg.name if arg.kwarg_only else schema.arguments.index(arg) for arg in written]
            return candidate, slots, out
    return None


def _spoken(func: Any) -> str:
    """The name of an operation as users know it: ``unique`` of ``aten._unique2.default``."""
    return str(func._schema.name).partition("::")[2].strip("_").rstrip("0123456789")


def _data_dependent(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    known = [trace.known(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    if any(value is None and arg is not None for value, arg in zip(known, args)):
        as_symbol = trace.captures_sizes or kwargs.get("output_size") is not None
        if not as_symbol:
            known = [trace.read(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            as_symbol = trace.captures_sizes is None and any(value is None for value in known)
        if func.name() in data.SIZED and as_symbol:
            return data.sized_by_data(trace, func, args, kwargs)
    if any(value is None and arg is not None for value, arg in zip(known, args)):
        sized = any(isinstance(result.type, torch.TensorType) for result in func._schema.returns)
        raise DataDependent(_spoken(func), trace.where, "data_shape" if sized else "data_value")
    result = func(*known, **kwargs)
    return pytree.tree_map(
        lambda leaf: trace.lift(leaf, private=True) if isinstance(leaf, torch.Tensor) else leaf, result
    )


def _metadata_change(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """`t_`, `unsqueeze_`, …: the tensor becomes the view that the function without the underscore makes."""
    _refuse_of_input(trace, func, args[0])
    form = _functional_form(func)
    if form is None:
        raise Unsupported(
            f"{func} changes a tensor's metadata in place", trace.where, None, "tensor_method", operation=str(func)
        )
    become(args[0], trace.dispatch(form[0], args, kwargs))
    return args[0]


def _refuse_of_input(trace: Trace, func: Any, tensor: Any) -> None:
    if tensor.__class__ is not TracedTensor or trace.is_input(tensor):
        raise Unsupported(
            f"{func} changes the shape of an argument in place",
            trace.where,
            "use the function without the underscore",
            kind="tensor_write",
        )


def become(tensor: TracedTensor, other: TracedTensor) -> None:
    """Make one traced tensor the same as another: its sizes, its storage and its value."""
    torch.Tensor.data.__set__(tensor, other)  # type: ignore[attr-defined]
    tensor.group, tensor.chain = other.group, other.chain
    tensor._node, tensor._seen = other._node, other._seen


@handler("resize_")
def _resize_(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """Fewer elements look at the start of the storage; an empty tensor gets new memory. Other growth keeps what lies
    behind the tensor in memory, which nothing is known of."""
    tensor, size = args[0], args[1]
    _refuse_of_input(trace, func, tensor)
    wanted, present = math.prod(size), tensor.numel()
    if kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        raise Unsupported("resize_ with a memory format", trace.where, kind="tensor_write")
    if tuple(size) == tuple(tensor.shape):
        return tensor
    if wanted <= present:
        become(tensor, trace.dispatch(aten.as_strided.default, (tensor, size, contiguous_strides(tuple(size))), {}))
    elif present == 0:
        become(tensor, _full(trace, size, 0, tensor.dtype, tensor.device))
    else:
        raise Unsupported(
            "resize_ makes a tensor with elements larger", trace.where, "make a new tensor", kind="tensor_write"
        )
    return tensor


def _collective(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    raise Unsupported(
        "a collective writes its argument and answers a handle",
        trace.where,
        "use torch.distributed._functional_collectives",
        kind="operator",
        operation=str(func),
    )


@handler("_c10d_functional::_wrap_tensor_autograd")
def _wait(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """Eager waits when the tensor is first used; a graph does so at once."""
    return trace.wrap(trace.call(torch.ops._c10d_functional.wait_tensor.default, trace.unwrap(args[0])))


def _unrecorded(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """Marks for the profiler mean nothing in a graph."""
    return func(*args, **kwargs)


def _higher_order(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    raise Unsupported(f"the higher-order operator {func} is not captured", trace.where, kind="operator")


# ---- views with a treatment of their own --------------------------------------------------------------------------


@handler("detach", "alias")
def _same(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0] if args[0].__class__ is TracedTensor else trace.lift(args[0])
    same = TracedTensor.make(trace, tensor.meta, tensor.value, tensor.group, tensor.chain)
    carry_marks(tensor, same)
    same.counts, same.cut = tensor.counts, tensor.cut
    if func is aten.detach.default:
        same.separate()
    return same


@handler("as_strided")
def _as_strided(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """The one view that looks past its operand: it is a view of the whole storage."""
    tensor = args[0] if args[0].__class__ is TracedTensor else trace.lift(args[0])
    given: list[Any] = [*args[1:], *kwargs.values(), None]
    size, stride, offset = given[:3]
    if offset is not None or tensor.chain:  # else it counts from where the base is, wherever that is
        trace.rely_on_offset(tensor.group)
        offset = tensor.meta.offset if offset is None else offset
    _refuse_part_of_storage(trace, tensor.group.base.meta["val"])
    step: ViewStep = (func, (trace.unwrap(size), trace.unwrap(stride), trace.unwrap(offset)), {})
    node = trace.call(func, tensor.group.base, *step[1])
    view = TracedTensor.make(trace, node.meta["val"], node, tensor.group, (step,))
    view.counts, view.cut = tensor.counts, tensor.cut
    return view


def _refuse_part_of_storage(trace: Trace, meta: TensorMeta) -> None:
    """Nothing is known of the storage around a tensor."""
    if meta.offset or not is_dense(meta.shape, meta.stride):
        raise Unsupported("as_strided of a tensor that does not fill its storage", trace.where, kind="tensor_write")


@handler("as_strided_copy")
def _as_strided_copy(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    view = _as_strided(trace, aten.as_strided.default, args, kwargs)
    return trace.wrap(trace.call(aten.clone.default, view.node, memory_format=torch.contiguous_format))


@handler("as_strided_scatter")
def _as_strided_scatter(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0] if args[0].__class__ is TracedTensor else trace.lift(args[0])
    trace.rely_on_offset(tensor.group)
    _refuse_part_of_storage(trace, tensor.meta)
    if tensor.requires_grad and not is_contiguous(tensor.meta):
        raise Unsupported("as_strided_scatter with gradients of what is not contiguous", trace.where, kind="operator")
    node, options = trace.unwrap(tensor), {name: trace.unwrap(value) for name, value in kwargs.items()}
    return trace.wrap(trace.call(func, node, *map(trace.unwrap, args[1:]), **options))


@handler("_reshape_alias")
def _reshape_alias(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    return view_of(trace, args[0], aten.view.default, trace.unwrap(args[1]))


@handler("_unsafe_view")
def _unsafe_view(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    return trace.wrap(trace.call(aten.view.default, trace.unwrap(args[0]), trace.unwrap(args[1])))


def _pieces(trace: Trace, func: Any, tensor: Any, sizes: list[Any], dim: int) -> list[TracedTensor]:
    """Views. What `unsafe_split` makes is in the tensor's memory, too, but with a history of its own: where the tensor
    is no input, and has one, these pieces are values."""
    unseen = not any(value.alias_info is not None for value in func._schema.returns)
    if unseen and tensor.requires_grad and torch.is_grad_enabled() and tensor.group.source is None:
        return [trace.wrap(trace.unwrap(piece)) for piece in _pieces(trace, aten.split.Tensor, tensor, sizes, dim)]
    pieces, start = [], 0
    for size in sizes:
        pieces.append(view_of(trace, tensor, aten.slice.Tensor, dim, trace.unwrap(start), trace.unwrap(start + size)))
        start = start + size
    return pieces


def _dimension(func: Any, args: Any, kwargs: Any, place: int) -> int:
    """The dimension, counted from the front, that a tensor is divided along."""
    dim, rank = args[place] if len(args) > place else kwargs.get("dim", 0), args[0].dim()
    if not rank and func is aten.unbind.int and dim in (0, -1):
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    if not rank and func is not aten.unbind.int:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    return wrap_dim(dim, rank)


@handler("split.Tensor", "unsafe_split.Tensor")
def _split(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, size = args[0], args[1]
    dim = _dimension(func, args, kwargs, 2)
    extent = tensor.shape[dim]
    count = max(1, -(-hint_of(extent) // hint_of(size))) if hint_of(size) else 1
    if size < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={size}")
    if extent.__class__ is torch.SymInt and count > 1:
        trace.shapes.rely_on(as_expr(extent).ceildiv(as_expr(size)), count)
    whole = (count - 1) * size  # as many pieces as now, the last one not empty
    if not ((count == 1 or extent > whole) and extent <= whole + size):
        raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {extent}")
    sizes = [size] * (count - 1) + [extent - (count - 1) * size]
    return _pieces(trace, func, tensor, sizes, dim)


@handler("split_with_sizes", "unsafe_split_with_sizes")
def _split_with_sizes(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, sizes = args[0], args[1]
    dim = _dimension(func, args, kwargs, 2)
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


def _note_prefixes(trace: Trace, sizes: list[Any], whole: Any) -> None:
    """Parts that are at least 0 and add up to the whole: so no sum of the first ones is larger. Where sizes are data
    this is no bound of theirs, and the question would come up at each part."""
    start = as_expr(0)
    for size in sizes:
        start = start + as_expr(size)
        if trace.shapes.is_data(start):
            trace.shapes.facts.add(as_expr(whole).ge(start))


@handler("unbind.int")
def _unbind(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    dim = _dimension(func, args, kwargs, 1)
    return [view_of(trace, tensor, aten.select.int, dim, index) for index in range(int(tensor.shape[dim]))]


# ---- constants and copies -----------------------------------------------------------------------------------------


@handler("lift_fresh", "lift")
def _lift_fresh(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    return tensor if tensor.__class__ is TracedTensor else trace.lift(tensor, private=True)


@handler("copy_")
def _copy_(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    target = args[0] if args[0].__class__ is TracedTensor else trace.lift(args[0])
    refuse_overlaps(trace.where, func, args, {}, args[:1])
    source = trace.unwrap(args[1])
    if not isinstance(args[1], torch.Tensor):  # a number counts as a tensor of its widest type
        source = trace.filled(TensorMeta((), (), 0, number_dtype(args[1], widest=True), torch.device("cpu")), source)
    trace.write(target, _as(trace, source, target.node.meta["val"]))
    return args[0]


def _as(trace: Trace, node: torch.fx.Node, wanted: TensorMeta) -> torch.fx.Node:
    """`node` converted and broadcast, as copy_ does it."""
    meta = node.meta["val"]
    if meta.dtype is not wanted.dtype or meta.device != wanted.device:
        node = trace.call(aten._to_copy.default, node, dtype=wanted.dtype, device=wanted.device)
    if not same_sizes(meta.shape, wanted.shape):
        extra = meta.ndim - wanted.ndim
        if extra > 0 and all(size == 1 for size in meta.shape[:extra]):
            node = trace.call(aten.view.default, node, [trace.unwrap(size) for size in meta.shape[extra:]])
        node = trace.call(aten.expand.default, node, [trace.unwrap(size) for size in wanted.shape])
        node = trace.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    return node


@handler("fill_.Scalar", "zero_")
def _fill_(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    target = args[0] if args[0].__class__ is TracedTensor else trace.lift(args[0])
    trace.write(target, trace.filled(target.node.meta["val"], _plain(trace, args[1]) if len(args) > 1 else 0))
    return args[0]


@handler("fill_.Tensor")
def _fill_tensor_(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    return _copy_(trace, func, args, kwargs)


# ---- factories: one vocabulary ------------------------------------------------------------------------------------


def dtype_and_device(kwargs: dict[str, Any], like: TensorMeta | None = None) -> tuple[torch.dtype, torch.device]:
    """Those of what a factory function makes."""
    dtype = kwargs.get("dtype") or (like.dtype if like is not None else torch.get_default_dtype())
    device = kwargs.get("device") or (like.device if like is not None else torch.device("cpu"))
    return dtype, torch.device(device)


def _full(trace: Trace, shape: Any, value: Any, dtype: torch.dtype, device: torch.device, stride: Any = None) -> Any:
    shape = tuple(shape)
    refuse_negative(shape)
    if isinstance(value, complex) or (not dtype.is_floating_point and isinstance(value, (int, float))):
        torch.full((), value, dtype=dtype)  # raises where the type has no such number
    if isinstance(value, complex) and not dtype.is_complex:
        value = value != 0 if dtype is torch.bool else value.real
    wanted = TensorMeta(shape, tuple(stride) if stride is not None else contiguous_strides(shape), 0, dtype, device)
    made = trace.wrap(trace.filled(wanted, value))
    if stride is None or same_sizes(made.stride(), wanted.stride):
        return made
    sizes = list(zip(shape, wanted.stride))
    room = 0 if any(size == 0 for size in shape) else 1 + sum((size - 1) * step for size, step in sizes)
    block = trace.wrap(trace.filled(TensorMeta((room,), (1,), 0, dtype, device), value))
    return trace.dispatch(aten.as_strided.default, (block, shape, wanted.stride), {})


_CONSTANT = {"zeros": 0, "empty": 0, "ones": 1, "empty_strided": 0, "_efficientzerotensor": 0}


@handler("zeros", "ones", "empty.memory_format", "empty_strided", "full", "_efficientzerotensor")
def _factory(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name.removeprefix("aten::")
    value = args[1] if name == "full" else _CONSTANT[name]
    dtype, device = dtype_and_device(kwargs)
    if name == "zeros":
        refuse_negative(args[0], torch.zeros)
    if name == "full" and kwargs.get("dtype") is None:
        dtype = number_dtype(value)
        dtype = torch.complex64 if dtype is torch.complex32 else dtype  # as eager's `full` alone has it
    stride = args[1] if name == "empty_strided" else None
    if kwargs.get("memory_format") not in (None, torch.contiguous_format):
        stride = format_strides(tuple(args[0]), kwargs["memory_format"])
    return _full(trace, args[0], _plain(trace, value), dtype, device, stride)


def _plain(trace: Trace, value: Any) -> Any:
    return trace.unwrap(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


@handler("scalar_tensor")
def _scalar_tensor(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    return _full(trace, (), _plain(trace, args[0]), *dtype_and_device(kwargs))


@handler(
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_full",
    "new_empty_strided",
)
def _new(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name.removeprefix("aten::new_")
    value = args[2] if name == "full" else _CONSTANT[name]
    stride = args[2] if name == "empty_strided" else None
    like = args[0].meta if args[0].__class__ is TracedTensor else trace.lift(args[0]).meta
    return _full(trace, args[1], _plain(trace, value), *dtype_and_device(kwargs, like), stride)


@handler("zeros_like", "ones_like", "empty_like", "full_like")
def _like(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name.removeprefix("aten::").removesuffix("_like")
    value = args[1] if name == "full" else _CONSTANT[name]
    like = args[0].meta if args[0].__class__ is TracedTensor else trace.lift(args[0]).meta
    stride = like_strides(like, kwargs.get("memory_format"))
    return _full(trace, like.shape, _plain(trace, value), *dtype_and_device(kwargs, like), stride)


# ---- questions with an answer, or without -------------------------------------------------------------------------


@handler("_local_scalar_dense")
def _item(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """Only a constant made in the program itself has a value that no later call can change; another float is computed
    in the graph (where a number is wanted and a tensor given: the program's own `Tensor.item` is answered before)."""
    tensor = args[0]
    known = trace.known(tensor)
    if known is not None:
        return known.item()
    tensor = tensor if tensor.__class__ is TracedTensor else trace.lift(tensor)
    if tensor.dtype.is_floating_point:
        return trace.scalar(tensor)
    size = data.of_sizes(trace, tensor.node) if trace.has_symbols and not tensor.dim() else None
    if size is not None:
        node = SymNode(trace.shapes, size, size.evaluate(trace.shapes.hints))
        return torch.SymInt(node)  # type: ignore[no-untyped-call]
    if not tensor.dtype.is_complex and trace.is_symbol(tensor, trace.captures_numbers):
        return data.number(trace, tensor)
    known = trace.read(tensor)
    if known is None:
        raise DataDependent("Tensor.item", trace.where)
    return known.item()


@handler("_assert_async", "_assert_async.msg")
def _assert_async(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    known = trace.known(args[0])
    if known is not None:
        return func(known, *args[1:])
    data.check_tensor(trace, args[0] if args[0].__class__ is TracedTensor else trace.lift(args[0]))
    return None


@handler("equal")
def _equal(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].shape != args[1].shape:
        return False
    left, right = (trace.read(arg) for arg in args)
    if left is None or right is None:
        raise DataDependent("torch.equal", trace.where)
    return torch.equal(left, right)


@handler("size")
def _size(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """What C++ code asks that takes no symbols: the sizes are fixed."""
    return [int(size) for size in args[0].shape]


@handler("is_same_size")
def _is_same_size(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    return tuple(args[0].shape) == tuple(args[1].shape)


@handler("_fused_sdp_choice")
def _fused_sdp_choice(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    def stand_in(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        shape, stride = map(hint_of, arg.shape), map(hint_of, arg.stride())
        real = torch.empty_strided(tuple(shape), tuple(stride), dtype=arg.dtype, device=arg.device)
        return real.requires_grad_(arg.requires_grad)

    return func(*map(stand_in, args), **{key: stand_in(arg) for key, arg in kwargs.items()})


@handler("masked_select")
def _masked_select(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """A mask that is known says which elements."""
    tensor, mask = args
    known = trace.known(mask) if trace.captures_sizes else trace.read(mask)
    if known is None:
        return _data_dependent(trace, func, args, kwargs)
    shape = broadcast_shapes([tensor.shape, known.shape]) or (1,)
    whole = trace.call(aten.expand.default, trace.unwrap(tensor), list(shape))
    places = [trace.unwrap(trace.lift(place, private=True)) for place in known.expand(shape).nonzero().unbind(1)]
    return trace.wrap(trace.call(aten.index.Tensor, whole, places))


# ---- operations that write without saying so ----------------------------------------------------------------------


@handler("native_batch_norm", "_native_batch_norm_legit")
def _native_batch_norm(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """Running statistics are written although the schema does not say it."""
    values: list[Any] = [*args, *kwargs.values()]
    x, weight, bias, mean, variance, training, momentum, eps = values
    nodes = [trace.unwrap(arg) for arg in (x, weight, bias)]
    if not training:
        stats = [trace.unwrap(mean), trace.unwrap(variance)]
        return trace.wrap(trace.call(aten._native_batch_norm_legit_no_training.default, *nodes, *stats, momentum, eps))
    if mean is None:
        return trace.wrap(trace.call(aten._native_batch_norm_legit.no_stats, *nodes, True, momentum, eps))
    stats = [trace.unwrap(mean), trace.unwrap(variance)]
    op = aten._native_batch_norm_legit_functional.default
    *results, new_mean, new_variance = trace.call(op, *nodes, *stats, True, momentum, eps)
    for target, value in ((mean, new_mean), (variance, new_variance)):
        trace.write(target if target.__class__ is TracedTensor else trace.lift(target), value)
    return trace.wrap(results)


_OF_BYTES = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."


@handler("index.Tensor", "_unsafe_index.Tensor")
def _index(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    """Integer indices give a known shape; masks do not, unless they are known themselves."""
    indices = []
    for index in args[1]:
        if index is not None and index.dtype is torch.uint8:
            warnings.warn(_OF_BYTES, stacklevel=1)
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            if trace.is_symbol(index, trace.captures_sizes):
                indices += data.sized_by_data(trace, aten.nonzero.default, (index,), {}).unbind(1)
                continue
            known = trace.read(index)
            if known is None:
                raise DataDependent("indexing with a mask", trace.where, "data_shape")
            indices += [trace.lift(place, private=True) for place in known.nonzero().unbind(1)]
        else:
            indices.append(index)
    return trace.wrap(trace.call(aten.index.Tensor, trace.unwrap(args[0]), trace.unwrap(indices)))
