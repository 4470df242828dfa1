"""How each kind of operation is recorded.

Most operations need no handler of their own: `classify` finds the kind from the schema (composite, view, in-place,
functional).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch
import torch.fx
from torch import Tensor
from torch._higher_order_ops.out_dtype import out_dtype_dense
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported, forgive
from bolide.symbolic import Size, contiguous_strides, product, same_sizes
from bolide.tracing.graph import operator
from bolide.tracing.meta import DataDependent, TensorMeta, number_dtype
from bolide.tracing.numbers.sizes import SIZED, sized_by_data
from bolide.tracing.operations.factories import full, refuse_of_input
from bolide.tracing.operations.questions import data_dependent
from bolide.tracing.operations.registry import HANDLERS, NAMED, Handler, handler
from bolide.tracing.operations.writes import call_on_copies, refuse_overlaps, refuse_types
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rules.common import fresh, wrap_dim
from bolide.tracing.rules.registry import infer, infer_from, rule
from bolide.tracing.tensor import TracedTensor, carry_marks

aten = torch.ops.aten
_OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler", "bolide"})
_MEAN, _MAX = 1, 2  # modes of an embedding bag
_DATA_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # in some versions not on all


def classify(func: OpOverload) -> Handler:
    """The handler for an operation: its own, or that of its kind."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _higher_order
    own = NAMED.get(func._name)
    if own is not None:
        return own
    for prefix, kind in _BY_PREFIX.items():
        if schema.name.startswith(prefix):
            return kind
    if func._name in SIZED or any(tag in func.tags for tag in _DATA_TAGS):
        return data_dependent
    if torch.Tag.inplace_view in func.tags:
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


def _has_kernel(func: OpOverload, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func._name, key))


def is_recorded_as_is(func: OpOverload) -> bool:
    """Whether an operation becomes a node of its own, whatever its arguments are."""
    kind: Any = HANDLERS.get(func) or classify(func)
    if isinstance(kind, functools.partial) and kind.func is _unless_for_real:
        (kind,) = kind.args
    return kind in (functional, record_view, _mutation) and not _has_kernel(func, "CompositeImplicitAutograd")


# ---- operators of other makers ---------------------------------------------------------------------------------------

GENERATED = "GeneratedBackwardFor_"


def formula_of(func: OpOverload) -> str:
    """The name of the history's node of an operator of other makers whose derivative is written in Python."""
    return f"{GENERATED}{func._namespace}_{func._opname}_{func._overloadname}Backward"


def _unless_for_real(kind: Handler, trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    formula = formula_of(func)
    trace.derivation.formulas.add(formula)
    reason = trace.derivation.for_real.get(formula)
    if reason is not None:
        raise Unsupported(reason, trace.where, "give its derivative a form that reads no data", "operator", str(func))
    return kind(trace, func, *args, **kwargs)


def _is_seen_through(func: OpOverload) -> bool:
    """Whether an operator of other makers is written in Python and has no kernel for autograd: in eager, what it does
    is part of the history."""
    if func.namespace in _OWN_NAMESPACES or any(_has_kernel(func, key) for key in ("Autograd", "AutogradCPU")):
        return False
    name = func._name.replace("::", "/")
    return any(f"{name}/{key}" in torch.library._impls for key in ("CPU", "CompositeExplicitAutograd"))


def _without_history(kind: Handler, trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    tensors = [arg for arg in pytree.tree_leaves((args, kwargs)) if isinstance(arg, TracedTensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        reason = "an operator without an autograd kernel is differentiated through what it does"
        remedy = "give it a derivative (torch.library.register_autograd)"
        raise Unsupported(reason, trace.where, remedy, "operator", str(func))
    return kind(trace, func, *args, **kwargs)


def has_own_derivative(func: OpOverload) -> bool:
    """Whether this is an operator of other makers, called by the `autograd.Function` that is its derivative: grad mode
    is off in there, as is forward mode, which `torch.no_grad` leaves on."""
    if torch._C._is_fwd_grad_enabled() or torch.is_inference_mode_enabled():
        return False
    return getattr(func, "namespace", "aten") not in _OWN_NAMESPACES


def refuse_unless_compliant(trace: Recorder, func: OpOverload) -> None:
    """Raises Unsupported for an operator of other makers that does not say that it keeps the compiler's rules."""
    of_others = isinstance(func, OpOverload) and func.namespace not in _OWN_NAMESPACES
    if of_others and torch.Tag.pt2_compliant_tag not in func.tags:
        reason = "an operator without the tag pt2_compliant_tag is called"
        raise Unsupported(reason, trace.where, kind="compliance", operation=str(func))


# ---- functional operations and views ---------------------------------------------------------------------------------

_NUMBERS = frozenset({bool, int, float, complex, torch.SymInt})


def functional(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    """The handler of operations that neither write nor are views."""
    unwrap = trace.unwrap
    args = _with_tensor_first(trace, func, args)
    nodes = [unwrap(arg) for arg in args]
    try:
        return trace.wrap(trace.call(func, *nodes, **{key: unwrap(arg) for key, arg in kwargs.items()}))
    except DataDependent as error:  # as its fake says
        if trace.captures_sizes is False:
            raise
        forgive(error)
    return sized_by_data(trace, func, args, kwargs)


def _with_tensor_first(trace: Recorder, func: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with a tensor in place of a number that is given for the first one."""
    if args and args[0].__class__ in _NUMBERS and str(func._schema.arguments[0].type) == "Tensor":
        return trace.dispatch(aten.scalar_tensor.default, args[:1], {"dtype": number_dtype(args[0])}), *args[1:]
    return args


def record_view(trace: Recorder, func: OpOverload, tensor: Any, /, *args: Any, **kwargs: Any) -> TracedTensor:
    """The handler of operations that are views."""
    return view_of(trace, tensor, func, *map(trace.unwrap, args), **{k: trace.unwrap(v) for k, v in kwargs.items()})


def view_of(trace: Recorder, tensor: Any, func: OpOverload, /, *args: Any, **kwargs: Any) -> TracedTensor:
    """The view `func(tensor, *args)`; the arguments are as they stand in the graph."""
    if tensor.__class__ is not TracedTensor:
        tensor = trace.lift(tensor)
    value = tensor.node
    if func is aten.view_as_complex.default and tensor.group.version:  # pairs lie together in memory, not in the value
        value = trace.call(aten.clone.default, value, memory_format=torch.contiguous_format)
    node = trace.call(func, value, *args, **kwargs)
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
    if tensor.passed:
        view.passed = tensor.passed
    return view


# ---- operations that write -------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """What computes the same as an operation without writing: the arguments written, by place or name, in the order of
    its results, and the keyword arguments that it lacks. `makes`: it makes a tensor, of the type that it is told."""

    functional: OpOverload
    written: list[int | str]
    dropped: set[str]
    makes: bool


_MADE_SO = frozenset({"dtype", "layout", "device", "pin_memory"})


@functools.cache
def _functional_form(func: OpOverload) -> _Form | None:
    schema = func._schema
    written = [arg for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    out = {arg.name for arg in written if arg.kwarg_only}
    wanted = [(arg.name, str(arg.type)) for arg in schema.arguments if arg.name not in out]
    namespace, name = schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name if out else name.removesuffix("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, overload)
        arguments = [(arg.name, str(arg.type)) for arg in candidate._schema.arguments]
        names = {name for name, _ in arguments}
        makes = len(out) == 1 and names >= _MADE_SO and _MADE_SO.isdisjoint([name for name, _ in wanted])
        arguments = [arg for arg in arguments if not makes or arg[0] not in _MADE_SO]
        if not candidate._schema.is_mutable and arguments == wanted:
            slots = [arg.name if arg.kwarg_only else schema.arguments.index(arg) for arg in written]
            return _Form(candidate, slots, out, makes)
    return None


def _mutation(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    form = _functional_form(func)
    if form is None:
        return call_on_copies(trace, func, args, kwargs)
    targets = [args[slot] if isinstance(slot, int) else kwargs[slot] for slot in form.written]
    if not all(isinstance(target, Tensor) for target in targets):
        return call_on_copies(trace, func, args, kwargs)
    dropped = form.dropped
    args = _with_tensor_first(trace, func, args) if dropped else args
    unwrap = trace.unwrap
    nodes = [unwrap(arg) for arg in args]
    options = {key: unwrap(arg) for key, arg in kwargs.items() if key not in dropped}
    if not dropped:
        refuse_overlaps(trace.where, func, args, kwargs, targets)
    if form.makes:
        kind = {"dtype": targets[0].dtype, "device": targets[0].device}
        given = {key: arg for key, arg in kwargs.items() if key not in dropped}
        results = trace.unwrap(trace.dispatch(form.functional, args, given | kind))
    else:
        results = trace.call(form.functional, *nodes, **options)
    results = results if isinstance(results, list) else [results]
    if dropped:
        refuse_types(trace.where, func, args, kwargs, dropped, results)
        if all(target.shape == result.meta["val"].shape for target, result in zip(targets, results)):
            refuse_overlaps(trace.where, func, args, kwargs, targets)
    for place, (target, result) in enumerate(zip(targets, results)):
        if dropped and target.shape != result.meta["val"].shape:
            _resize_out(trace, func, nodes, kwargs, place, target, result.meta["val"])
        trace.write(trace.own(target), result)
    return targets[0] if len(targets) == 1 else tuple(targets)


def _resize_out(
    trace: Recorder,
    func: OpOverload,
    nodes: list[Any],
    kwargs: dict[str, Any],
    place: int,
    target: Tensor,
    wanted: TensorMeta,
) -> None:
    """An `out=` argument without elements is resized. Some operations lay it out as their result, which is asked where
    that is not row-major."""
    is_made = isinstance(target, TracedTensor) and target.group.source is None and not trace.is_input(target)
    if not is_made or target.numel():
        reason = "an out= argument of another shape than the result"
        raise Unsupported(reason, trace.where, "give it the right shape", kind="tensor_write")
    stride = None
    if not same_sizes(wanted.stride, contiguous_strides(wanted.shape)):
        options = {key: trace.unwrap(arg) for key, arg in kwargs.items()}
        metas = infer(func, nodes, options, trace.shapes if trace.shapes.hints else None)
        stride = (metas if isinstance(metas, TensorMeta) else metas[place]).stride
    trace.own(target).become(full(trace, wanted.shape, 0, target.dtype, target.device, stride))


def _metadata_change(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> TracedTensor:
    """`t_`, `unsqueeze_`, …: the tensor becomes the view that the function without the underscore makes."""
    tensor: TracedTensor = args[0]
    if not trace.reshapes_inputs:
        refuse_of_input(trace, func, tensor)
    form = _functional_form(func)
    if form is None:
        reason = f"{func} changes a tensor's metadata in place"
        raise Unsupported(reason, trace.where, None, "tensor_method", operation=str(func))
    members = [member for known in tensor.group.members if (member := known()) is not None]
    views = [member for member in members if member is not tensor and member._is_view()]
    if tensor.requires_grad and any(view.requires_grad for view in views):
        reason = "a tensor is given another shape in place of which there are views: autograd takes them anew, from it"
        raise Unsupported(reason, trace.where, "use the function without the underscore", "tensor_write", str(func))
    tensor.group.stale |= bool(views) and any(leaf.requires_grad for leaf in trace.leaves)
    tensor.become(trace.dispatch(form.functional, args, kwargs))
    return tensor


@handler("set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor_storage_offset")
def _set(trace: Recorder, func: OpOverload, /, *args: object, **kwargs: object) -> NoReturn:
    reason = "a tensor is given another storage"
    raise Unsupported(reason, trace.where, "use copy_(), or set_() with a tensor", "tensor_method", operation=str(func))


@handler("set_.source_Tensor")
def _set_to(trace: Recorder, func: OpOverload, /, tensor: TracedTensor, source: Tensor) -> TracedTensor:
    """The tensor becomes the other one; an input does when the graph has run."""
    if not trace.reshapes_inputs or tensor.dtype is not source.dtype:
        _set(trace, func)
    source = trace.own(source)
    if trace.is_input(tensor):
        trace.renew(tensor, source)
    tensor.become(source)
    return tensor


@handler("native_batch_norm", "_native_batch_norm_legit")
def _native_batch_norm(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    """Running statistics are written although the schema does not say it."""
    x, weight, bias, mean, variance, training, momentum, eps = *args, *kwargs.values()
    nodes = [trace.unwrap(arg) for arg in (x, weight, bias)]
    if training and mean is None:
        return trace.wrap(trace.call(aten._native_batch_norm_legit.no_stats, *nodes, True, momentum, eps))
    nodes += [trace.unwrap(mean), trace.unwrap(variance)]
    if not training:
        return trace.wrap(trace.call(aten._native_batch_norm_legit_no_training.default, *nodes, momentum, eps))
    op = aten._native_batch_norm_legit_functional.default
    *results, new_mean, new_variance = trace.call(op, *nodes, True, momentum, eps)
    trace.write(trace.own(mean), new_mean)
    trace.write(trace.own(variance), new_variance)
    return trace.wrap(results)


@handler("cudnn_batch_norm")
def _cudnn_batch_norm(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    """What eager calls on a GPU. It is recorded as the native operator, which fuses with what is around it; the last
    result is for cuDNN's own backward alone."""
    results = _native_batch_norm(trace, func, *args, **kwargs)
    kind = {"dtype": torch.uint8, "device": results[0].device}
    return *results, trace.dispatch(aten.empty.memory_format, ([0],), kind)


@handler("cudnn_batch_norm_backward")
def _cudnn_batch_norm_backward(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    x, grad, weight, *statistics, eps = [*args, *kwargs.values()][:8]
    given = (grad, x, weight, *statistics, True, eps, [True, True, True])
    return trace.dispatch(aten.native_batch_norm_backward.default, given, {})


@handler("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _variance(trace: Recorder, func: OpOverload, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Eager warns of too few elements, in the kernel."""
    dims, correction = args[0] if args else None, kwargs.get("correction")
    counted = [x.shape[wrap_dim(dim, x.dim())] for dim in dims] if dims and x.dim() else [*x.shape]
    most = 1 if correction is None else correction
    few = all(size.__class__ is int for size in counted) and math.prod(counted) <= most
    if few and 0 not in x.shape:
        warnings.warn(
            f"{func._opname}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction "
            "factor (input numel divided by output numel).",
            stacklevel=1,
        )
    return functional(trace, func, x, *args, **kwargs)


# ---- sparse gradients, as those of embeddings with ``sparse=True`` ---------------------------------------------------
#
# They are made while the backward is recorded, and for the trace they are dense: `functorch.joint` sees to it that they
# are only added up, or results. What else is done with them depends on how they are laid out.


def _sum(one: Tensor, other: Tensor) -> Tensor:
    return other + one if one.is_sparse else one + other  # torch adds sparse tensors to dense ones only


sum_of_sparse = operator("sum_of_sparse(Tensor one, Tensor other) -> Tensor", _sum)
"""The sum of two gradients of one shape, at least one of which is sparse."""

made_sparse: OpOverload = aten._sparse_coo_tensor_with_dims_and_tensors.default
SPARSE = frozenset({made_sparse, sum_of_sparse})
"""Operations whose results may be sparse."""


@rule("_sparse_coo_tensor_with_dims_and_tensors")
def _made_sparse(sparse: int, dense: int, size: Sequence[Size], *parts: TensorMeta, **_: object) -> TensorMeta:
    return fresh(tuple(size), parts[1].dtype, parts[1].device)


@rule("bolide::sum_of_sparse")
def _summed(one: TensorMeta, other: TensorMeta) -> TensorMeta:
    return fresh(one.shape, one.dtype, one.device)


@handler("_sparse_coo_tensor_with_dims_and_tensors")
def _make_sparse(trace: Recorder, func: OpOverload, *args: object, **options: object) -> TracedTensor:
    if not trace.derivation.running:
        raise Unsupported("a sparse_coo tensor is made", trace.where, kind="layout")
    return functional(trace, func, *args, **options)  # type: ignore[no-any-return]


@handler("_embedding_bag_backward")
def _of_bags(
    trace: Recorder, func: OpOverload, grad: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, *rest: Any
) -> object:
    """A gradient of sums and means is that of the embedding of all indices: kernels make it; ATen's would sort them. A
    sparse one is asked of ATen's kernel. The bag of each index is made if the forward has not."""
    sizes, _, rows, by_frequency, mode, sparse, weights, padding = (*rest, -1)[:8]
    if not sparse and (mode == _MAX or by_frequency or grad.device.type != "cpu"):
        return functional(trace, func, grad, indices, offsets, bags, *rest)
    with trace.recording():
        if not product(bags.shape) and product(indices.shape):
            starts = offsets.new_zeros(indices.shape[0] + 1).index_add(0, offsets, torch.ones_like(offsets))
            bags = starts.cumsum(0)[:-1] - 1
        if sparse:
            given = grad, indices, offsets, bags, sizes, rows, by_frequency, mode, weights
            return aten._embedding_bag_sparse_backward.default(*given, padding)
        each = aten._unsafe_index.Tensor(grad / sizes[:, None] if mode == _MEAN else grad, [bags])
        each = each if weights is None else each * weights[:, None]
        return aten.embedding_dense_backward.default(each, indices, rows, padding, False)


# ---- operations made of others, and others ---------------------------------------------------------------------------


def _composite(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    with trace.recording():
        return func.decompose(*args, **kwargs)


def _foreach(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    """An operation on lists of tensors, as the operation on each of them."""
    name, _, overload = func._name.removeprefix("aten::_foreach_").partition(".")
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


def _is_per_tensor(arg: object, count: int) -> bool:
    return isinstance(arg, (list, tuple)) and len(arg) == count


def _collective(trace: Recorder, func: OpOverload, /, *args: object, **kwargs: object) -> NoReturn:
    reason = "a collective writes its argument and answers a handle"
    remedy = "use torch.distributed._functional_collectives"
    raise Unsupported(reason, trace.where, remedy, kind="operator", operation=str(func))


@handler("_c10d_functional::_wrap_tensor_autograd")
def _wait(trace: Recorder, func: OpOverload, tensor: Tensor) -> TracedTensor:
    """Eager waits when the tensor is first used; a graph does so at once."""
    node = trace.call(torch.ops._c10d_functional.wait_tensor.default, trace.unwrap(tensor))
    return trace.wrap(node)  # type: ignore[no-any-return]


def _unrecorded(trace: Recorder, func: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
    """Marks for the profiler mean nothing in a graph."""
    return func(*args, **kwargs)


def _higher_order(trace: Recorder, func: object, /, *args: Any, **kwargs: Any) -> Any:
    if func is torch.ops.higher_order.out_dtype:
        return out_dtype_dense(*args, **kwargs)
    raise Unsupported(f"the higher-order operator {func} is not captured", trace.where, kind="operator")


_BY_PREFIX: dict[str, Handler] = {"profiler::": _unrecorded, "c10d::": _collective, "aten::_foreach_": _foreach}
