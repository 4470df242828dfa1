"""What programs say about sizes: torch's checks, and marks; and functions whose native code takes no symbols."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.autograd import forward_ad

from bolide.dynamo.config import config
from bolide.dynamo.guards import sizes
from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table
from bolide.dynamo.machine.breaking import can_require, require, supposed
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.native_calls import recorded_as
from bolide.dynamo.machine.stand_ins import SYMBOLIC
from bolide.symbolic import product
from bolide.tracing import TracedFloat, TracedTensor
from bolide.tracing.meta import number_dtype
from bolide.tracing.numbers import data


@intercept(torch._check, torch._check_index, torch._check_value, torch._check_type, torch._check_not_implemented)
@intercept(torch.ops.aten._assert_scalar.default, torch.ops.aten._assert_scalar)
def _check(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A condition that holds, guarded if it is about sizes, checked in the graph if it is about data. One that does
    not raises what torch raises; torch's own functions import sympy even to find that all is well."""
    condition = args[0] if args else kwargs.get("cond")
    if type(condition) is torch.SymBool:
        condition = supposed(vm, condition)
    return None if condition is True else NATIVE


@intercept(torch._assert_async, torch._assert, torch._check_tensor_all)
def _assert(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A tensor that has to be true (all of it, for the last one): looked at in the graph."""
    condition = args[0] if args else None
    if type(condition) is not TracedTensor or vm.trace.known(condition) is not None or not can_require(vm):
        return NATIVE
    if not config.do_not_emit_runtime_asserts:
        require(vm, condition.all())
    return None


@intercept(torch._check_is_size)
def _check_is_size(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    size, most = args[0] if args else kwargs.get("i"), kwargs.get("max")
    for condition in (size >= 0, most is None or size <= most):  # type: ignore[operator]
        if not (supposed(vm, condition) if type(condition) is torch.SymBool else condition):
            return NATIVE
    return None


@intercept(
    sizes.mark_dynamic, sizes.maybe_mark_dynamic, sizes.mark_static, sizes.mark_static_address, sizes.mark_unbacked
)
def _mark(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Marks are for what comes from outside; inside a program they say nothing."""


# ---- functions that make tensors of numbers --------------------------------------------------------------------------


_WINDOWS = ("hann", "hamming", "blackman", "bartlett", "kaiser")
_MAKERS = ("linspace", "logspace", "tril_indices", "triu_indices", *(f"{name}_window" for name in _WINDOWS))


@intercept_table({getattr(torch, name): getattr(torch.ops.aten, name) for name in _MAKERS})
def _of_sizes(function: object, overloads: object, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Calls with symbols are nodes with sizes in place of integers, and, where there is an overload for them, with
    tensors in place of floats. (The parser of torch's arguments would ask for their values.)"""
    given = [*args, *kwargs.values()]
    if not any(type(value) in SYMBOLIC for value in given) or kwargs.get("out") is not None:
        return NATIVE
    vm.trace.where = vm.where()
    overload = _overload(overloads, args, kwargs)
    if overload is None or kwargs.get("requires_grad"):
        return NATIVE
    op, operands = overload

    def make() -> object:
        tensors = [v.node.in_graph().tensor if isinstance(v, torch.SymFloat) else v for v in operands]
        options = {"dtype": kwargs.get("dtype"), "device": kwargs.get("device")}
        return vm.trace.wrap(vm.trace.call(op, *map(vm.trace.unwrap, tensors), **options))

    return recorded_as(vm, function, args, make, **kwargs)


def _overload(overloads: Any, args: Args, kwargs: Kwargs) -> tuple[Any, list[Any]] | None:
    """The overload that takes these numbers, and they in its order."""
    for name in overloads.overloads():
        op = getattr(overloads, name)
        wanted = [argument for argument in op._schema.arguments if not argument.kwarg_only]
        given = dict(zip([argument.name for argument in wanted], args)) | kwargs
        operands = [given.get(argument.name, argument.default_value) for argument in wanted]
        rest = given.keys() - {argument.name for argument in wanted} - _OPTIONS
        if len(args) > len(wanted) or rest or name.endswith("out") or None in map(_kind, operands):
            continue
        if all(str(argument.type) in _TAKES[_kind(value)] for argument, value in zip(wanted, operands)):
            return op, operands
    return None


_OPTIONS = {"out", "dtype", "layout", "device", "pin_memory", "requires_grad"}
_TAKES: dict[str | None, tuple[str, ...]] = {
    "tensor": ("Tensor",),
    "float": ("number", "float"),
    "int": ("number", "int", "float"),
    "bool": ("bool",),
}


def _kind(value: Any) -> str | None:
    """What a number is to an overload; floats of the graph are tensors to it."""
    if isinstance(value, (torch.Tensor, torch.SymFloat)):
        return "tensor"
    return "int" if type(value) is torch.SymInt else type(value).__name__ if type(value) in (bool, int, float) else None


@intercept(torch.arange)
def _arange(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A range of floats that is made of sizes, or changes."""
    names = ("end",) if len(args) == 1 and "end" not in kwargs else ("start", "end", "step")
    given: dict[str, Any] = dict(zip(names, args)) | kwargs
    start, end, step = given.pop("start", 0), given.pop("end", None), given.pop("step", 1)
    numbers = (start, end, step)
    kinds = [type(number) for number in numbers]
    made = torch.SymFloat in kinds or (torch.SymInt in kinds and float in kinds)
    if not made or given.keys() - {"dtype", "device"}:
        return NATIVE
    vm.trace.where = vm.where()
    count = math.ceil((end - start) / step) if step else 0
    if type(count) is not torch.SymInt or not count >= 0:
        return NATIVE  # which raises, or asks for the values
    dtype = kwargs.get("dtype") or torch.get_default_dtype()

    def make() -> Any:
        places: torch.Tensor = torch.arange(count, dtype=torch.float64)  # type: ignore[call-overload]
        return (places * step + start).to(dtype=dtype, device=kwargs.get("device"))

    return recorded_as(vm, torch.arange, args, make, **kwargs)


@answers(torch.fft.fftfreq, recorded=True)
def _fftfreq(
    vm: Machine,
    n: object,
    d: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> object:
    """The frequencies of a transform whose length is a symbol."""
    if type(n) is not torch.SymInt or not n > 0:
        return NATIVE

    def make() -> object:
        places = [(0, (n + 1) // 2), (-(n // 2), 0)]
        kind = dtype or torch.get_default_dtype()
        ranges = [torch.arange(start, end, dtype=kind, device=device) for start, end in places]
        return torch.cat(ranges) * (1.0 / (n * d))

    return recorded_as(vm, torch.fft.fftfreq, [n, d], make, dtype=dtype, device=device)


@answers(torch.block_diag, recorded=True)
def _block_diag(vm: Machine, *tensors: torch.Tensor) -> object:
    """Blocks along a diagonal, some of whose sizes are symbols."""
    if not all(type(tensor) is TracedTensor and tensor.dim() < 3 for tensor in tensors):
        return NATIVE
    if not any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape):
        return NATIVE

    def make() -> torch.Tensor:
        blocks = [tensor.reshape(1, -1) if tensor.dim() < 2 else tensor for tensor in tensors]
        dtype = functools.reduce(torch.promote_types, [block.dtype for block in blocks])
        width = sum([block.shape[1] for block in blocks])
        rows, before = [], 0
        for block in blocks:
            behind = width - before - block.shape[1]
            rows.append(torch.nn.functional.pad(block.to(dtype), (before, behind)))
            before += block.shape[1]
        return torch.cat(rows)

    return recorded_as(vm, torch.block_diag, [*tensors], make)


@answers(torch.Tensor.unfold)
def _unfold(vm: Machine, x: object, dimension: object, size: Any, step: Any) -> object:
    """Windows whose size or step is a symbol, as the view that they are."""
    if type(x) is not TracedTensor or torch.SymInt not in (type(size), type(step)) or type(dimension) is not int:
        return NATIVE
    dim = dimension
    vm.trace.where = vm.where()
    if not x.dim() or not -x.dim() <= dim < x.dim() or not (0 <= size <= x.shape[dim] and step > 0):
        return NATIVE  # which raises
    if forward_ad._current_level >= 0:
        return NATIVE
    derives = x.requires_grad and torch.is_grad_enabled()

    def view() -> Any:
        return (_Windows.apply if derives else _windows)(x, dim % x.dim(), size, step)  # type: ignore[no-untyped-call]

    return recorded_as(vm, torch.Tensor.unfold, [x, dim, size, step], view)


def _windows(x: torch.Tensor, dim: int, size: Any, step: Any) -> torch.Tensor:
    sizes, strides = [*x.shape, size], [*x.stride(), x.stride(dim)]
    sizes[dim], strides[dim] = (x.shape[dim] - size) // step + 1, x.stride(dim) * step
    return x.as_strided(sizes, strides)


class _Windows(torch.autograd.Function):
    """Windows over a dimension. ATen's derivative of the view asks much of sizes; here each element has the sum of what
    the windows have that it is in."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, size: Any, step: Any) -> torch.Tensor:
        ctx.of = x.shape, dim, size, step
        return _windows(x, dim, size, step)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,), (shape, dim, size, step) = gradients, ctx.of
        places = (torch.arange(gradient.shape[dim])[:, None] * step + torch.arange(size)).reshape(-1)
        parts = gradient.movedim(-1, dim + 1).flatten(dim, dim + 1)
        return gradient.new_zeros(shape).index_add(dim, places, parts), None, None, None


@answers(torch.adaptive_avg_pool1d)
def _adaptive_avg_pool1d(vm: Machine, input: object, output_size: object) -> object:
    """To a size that is a symbol: that of images of one row, which takes sizes."""
    x, size = input, output_size
    if isinstance(size, (list, tuple)) and len(size) == 1:
        (size,) = size
    if type(x) is not TracedTensor or type(size) is not torch.SymInt or x.dim() not in (2, 3):
        return NATIVE

    def pool() -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x.unsqueeze(-2), (1, size)).squeeze(-2)  # type: ignore[arg-type]

    return recorded_as(vm, torch.adaptive_avg_pool1d, [x, size], pool)


answers(torch.Size.numel)(lambda vm, size: product(size))

# ---- `torch.tensor` of lists that hold values of the graph: tensors of one element, numbers made of sizes or data ----

_SEQUENCES = (list, tuple, torch.Size)
_NUMBERS = (bool, int, float, complex, *SYMBOLIC)


def leaves(values: Any) -> list[Any]:
    """What is in nested lists and tuples."""
    if type(values) in _SEQUENCES:
        return [leaf for value in values for leaf in leaves(value)]
    return [values]


def of_numbers(vm: Machine, values: Any, dtype: torch.dtype | None, device: Any) -> torch.Tensor | None:
    """The tensor that `torch.tensor` makes of nested lists, without reading the tensors in them; None if nothing of the
    graph is in them, or something that is no number. Its dtype is the promotion of theirs."""
    numbers = leaves(values)
    in_graph = any(type(leaf) in (TracedTensor, *SYMBOLIC) for leaf in numbers)
    if type(values) not in (*_SEQUENCES, *SYMBOLIC) or not in_graph:
        return None
    for leaf in numbers:
        one = type(leaf) is TracedTensor and all(size.__class__ is int and size == 1 for size in leaf.shape)
        if not (one or isinstance(leaf, _NUMBERS)):
            return None
    vm.trace.where = vm.where()
    dtypes = (leaf.dtype if isinstance(leaf, torch.Tensor) else number_dtype(leaf) for leaf in numbers)
    dtype = dtype or functools.reduce(torch.promote_types, dtypes)
    if not all(_converts(leaf, dtype) for leaf in numbers if isinstance(leaf, torch.Tensor)):
        return None
    if not all(_fits(vm, leaf, dtype) for leaf in numbers if type(leaf) in SYMBOLIC):
        return None
    try:
        with torch.no_grad():
            tensor: torch.Tensor = _stacked(vm, values, dtype)
    except RuntimeError:  # lists of different lengths: torch says what is wrong
        return None
    return tensor.to(device) if device is not None else tensor


def _fits(vm: Machine, leaf: Any, dtype: torch.dtype) -> bool:
    """Whether a number made of sizes is one of this dtype; torch raises for others."""
    if type(leaf) is not torch.SymInt or dtype.is_complex or dtype is torch.bool or data.is_computed(vm.trace, leaf):
        return type(leaf) is not torch.SymFloat or dtype.is_floating_point
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.max >= torch.iinfo(torch.int64).max or bool((leaf >= int(limits.min)) & (leaf <= int(limits.max)))


def _converts(leaf: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether torch reads the number in a tensor as one of this dtype: an integer only from integers."""
    is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    plain = not (leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype is torch.bool)
    return (plain or not is_integer) and (dtype.is_complex or not leaf.is_complex())


def _stacked(vm: Machine, values: Any, dtype: torch.dtype) -> Any:
    if type(values) in _SEQUENCES:
        return torch.stack([_stacked(vm, value, dtype) for value in values])
    if isinstance(values, torch.Tensor):
        return values.detach().reshape(()).to(dtype)
    if type(values) is TracedFloat:
        return values.tensor.to(dtype)
    if type(values) in SYMBOLIC and data.is_computed(vm.trace, values):
        return data.as_tensor(vm.trace, values).to(dtype)
    return torch.full((), values, dtype=dtype)
