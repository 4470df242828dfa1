"""What programs say about sizes: torch's checks, and marks; and functions whose native code takes no symbols."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import string
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bolide.dynamo.config import config
from bolide.dynamo.guards import sizes
from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_table
from bolide.dynamo.machine.breaking import can_require, require, supposed
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill
from bolide.dynamo.machine.native_calls import recorded_as
from bolide.dynamo.machine.stand_ins import SYMBOLIC
from bolide.support.errors import BolideError
from bolide.symbolic import Size, hint_of, is_undecided, product
from bolide.tracing import TracedFloat, TracedTensor
from bolide.tracing.meta import number_dtype
from bolide.tracing.numbers import data, forms
from bolide.tracing.operations.factories import has_number


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
    given, out = [*args, *kwargs.values()], kwargs.get("out")
    if not any(type(value) in SYMBOLIC for value in given):
        return NATIVE
    vm.trace.where = vm.where()
    overload = _overload(overloads, args, kwargs)
    if overload is None or kwargs.get("requires_grad"):
        return NATIVE
    op, operands = overload
    options = {"dtype": kwargs.get("dtype"), "device": kwargs.get("device")}
    if out is not None:
        fits = type(out) is TracedTensor and not out.requires_grad and out.shape == tuple(operands[2:3])
        if not fits or any(options.values()):
            return NATIVE
        options = {"dtype": out.dtype, "device": out.device}

    def make() -> object:
        tensors = [v.node.in_graph().tensor if isinstance(v, torch.SymFloat) else v for v in operands]
        made = vm.trace.wrap(vm.trace.call(op, *map(vm.trace.unwrap, tensors), **options))
        return made if out is None else out.copy_(made)

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


@intercept_table(forms.COMPUTED)
def _of_floats(function: object, formula: forms.Formula, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Calls with floats of the graph are computed by formulas. (The parser of torch's arguments would ask for their
    values.) Draws of which only the graph knows whether they are wanted become a branch."""
    given = (*args, *kwargs.values())
    truth = next(filter(is_undecided, given), None) if function in forms.DRAWING else None
    if truth is not None:  # whether a module is trained
        return Call(polyfill("choose"), [function, truth, *[_with(args, kwargs, truth, it) for it in (True, False)]])
    if not any(type(value) is TracedFloat for value in given):
        return NATIVE
    draws, safe = function in forms.DRAWING, function in forms.SAFE
    if draws and vm.trace.draws_as_eager:
        return NATIVE
    if not (draws or safe) and any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return NATIVE
    vm.trace.where = vm.where()

    try:
        positional, named = _by_name(function, args, kwargs)
    except TypeError:
        return NATIVE  # which raises

    def compute() -> object:
        try:
            return formula(*positional, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            return NotImplemented  # arguments that do not fit

    result = compute() if vm.recorder is None else vm.recorder.as_one(function, args, compute, **kwargs)
    return NATIVE if result is NotImplemented else result


def _with(args: Args, kwargs: Kwargs, truth: object, known: bool) -> tuple[Args, Kwargs]:
    """Arguments with a known truth in the place of another one."""
    words = {name: known if value is truth else value for name, value in kwargs.items()}
    return [known if value is truth else value for value in args], words


def _by_name(function: object, args: Args, kwargs: Kwargs) -> tuple[Sequence[object], Mapping[str, object]]:
    """The arguments in the order of a function of Python's, with its defaults; those of others as they are given."""
    if type(function) is not types.FunctionType:
        return args, kwargs
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    return given.args, given.kwargs


@intercept(torch.arange)
def _arange(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A range of floats that is made of sizes, or changes."""
    names = ("end",) if len(args) == 1 and "end" not in kwargs else ("start", "end", "step")
    given: dict[str, Any] = dict(zip(names, args)) | kwargs
    start, end, step = given.pop("start", 0), given.pop("end", None), given.pop("step", 1)
    numbers = (start, end, step)
    kinds = [type(number) for number in numbers]
    made = not {torch.SymFloat, TracedFloat}.isdisjoint(kinds) or (torch.SymInt in kinds and float in kinds)
    if not made or given.keys() - {"dtype", "device"}:
        return NATIVE
    vm.trace.where = vm.where()
    span = end - start
    count = math.ceil(span / step) if step and span * step >= 0 else None
    if type(count) is not torch.SymInt:
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
    if type(n) is not torch.SymInt:
        return NATIVE
    places = [(0, (n + 1) // 2), (-(n // 2), 0)]
    return _frequencies(vm, torch.fft.fftfreq, n, d, places, dtype, device)


@answers(torch.fft.rfftfreq, recorded=True)
def _rfftfreq(
    vm: Machine,
    n: object,
    d: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> object:
    if type(n) is not torch.SymInt:
        return NATIVE
    return _frequencies(vm, torch.fft.rfftfreq, n, d, [(0, n // 2 + 1)], dtype, device)


def _frequencies(
    vm: Machine,
    function: Callable[..., torch.Tensor],
    n: torch.SymInt,
    d: float,
    places: list[tuple[Size, Size]],
    dtype: torch.dtype | None,
    device: torch.device | None,
) -> object:
    """The frequencies of a transform whose length is a symbol; `places`: their numbers, as ranges."""
    if not n > 0:
        return NATIVE

    def make() -> object:
        kind = dtype or torch.get_default_dtype()
        ranges = [torch.arange(*place, dtype=kind, device=device) for place in places]  # type: ignore[arg-type]
        return torch.cat(ranges) * (1.0 / (n * d))

    return recorded_as(vm, function, [n, d], make, dtype=dtype, device=device)


@answers(torch.cov)
def _cov(
    vm: Machine,
    input: object,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> object:
    """With weights, which the native code looks at: the graph checks them."""
    x, weights = input, [w for w in (fweights, aweights) if w is not None]
    if type(x) is not TracedTensor or not weights or not can_require(vm) or x.dim() not in (1, 2):
        return NATIVE
    for w in weights:
        if type(w) is not TracedTensor or w.dim() != 1 or w.shape[0] != x.shape[-1] or not w.shape[0] > 0:
            return NATIVE
    if fweights is not None and (fweights.dtype is torch.bool or fweights.is_floating_point()):
        return NATIVE
    if aweights is not None and not aweights.is_floating_point():
        return NATIVE
    w = weights[0] if len(weights) == 1 else weights[0] * weights[1]
    total = w.sum()
    free = total - correction
    if aweights is not None and correction:
        free = total - correction * (w * aweights).sum() / total
    require(vm, torch.stack([free > 0, *[each.min() >= 0 for each in weights]]).all())

    def compute() -> torch.Tensor:
        rows = x if x.dim() == 2 else x.reshape(1, -1)
        rows = rows - ((rows * w).sum(1) / total).unsqueeze(1)
        return torch.true_divide(rows @ (rows * w).t().conj(), free).squeeze()

    return recorded_as(vm, torch.cov, [x], compute, correction=correction, fweights=fweights, aweights=aweights)


@answers(torch.hsplit, torch.Tensor.hsplit)
def _hsplit(vm: Machine, input: object, sections: object) -> object:
    return _split(vm, torch.hsplit, input, sections, -1 if isinstance(input, TracedTensor) and input.dim() == 1 else 1)


@answers(torch.vsplit, torch.Tensor.vsplit)
def _vsplit(vm: Machine, input: object, sections: object) -> object:
    return _split(vm, torch.vsplit, input, sections, 0)


@answers(torch.dsplit, torch.Tensor.dsplit)
def _dsplit(vm: Machine, input: object, sections: object) -> object:
    return _split(vm, torch.dsplit, input, sections, 2)


def _split(vm: Machine, function: object, x: object, places: object, dim: int) -> object:
    """Between places some of which are symbols."""
    given = isinstance(places, (list, tuple)) and any(type(place) is torch.SymInt for place in places)
    if type(x) is not TracedTensor or not given or not x.dim() > dim or not x.dim():
        return NATIVE
    return recorded_as(vm, function, [x, places], lambda: torch.tensor_split(x, tuple(places), dim=dim))  # type: ignore


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


@answers(torch.einsum)
def _einsum(vm: Machine, *args: Any) -> object:
    """Of more than two operands, some of whose sizes are symbols, where torch asks the package `opt_einsum` in which
    order to contract them: it is told the sizes of this run, on which nothing but the order depends."""
    package = torch.backends.opt_einsum
    equation, operands = _contraction([*args])
    if len(operands) < 3 or not equation or any(type(x) is not TracedTensor for x in operands):
        return NATIVE
    sizes = [size for x in operands for size in x.shape if type(size) is torch.SymInt]
    if not sizes or not package.is_available() or not package.enabled:  # type: ignore[no-untyped-call]
        return NATIVE
    path = None  # from left to right, where sizes are data
    if all(size.node.has_hint() for size in sizes):
        shapes = [tuple(map(hint_of, x.shape)) for x in operands]
        find = package.get_opt_einsum().contract_path
        path = [*itertools.chain(*find(equation, *shapes, shapes=True, optimize=package.strategy)[0])]
    contract = functools.partial(torch._VF.einsum, equation, operands, path=path)  # type: ignore[attr-defined]
    return recorded_as(vm, torch.einsum, [*args], contract)


def _contraction(args: Args) -> tuple[str, list[Any]]:
    """The equation of a call of `torch.einsum`, and its operands; an empty text for arguments that are none."""
    if not args or isinstance(args[0], str):
        equation, *operands = args or ("",)
        of_list = len(operands) == 1 and isinstance(operands[0], (list, tuple))
        return equation, [*operands[0]] if of_list else operands
    parts = (args[1::2], args[-1:]) if len(args) % 2 else (args[1::2],)  # lists of numbers in the place of letters
    try:
        equation = "->".join(",".join("".join(map(_LETTERS.__getitem__, term)) for term in part) for part in parts)
    except (KeyError, TypeError):
        return "", []
    return equation, [*args[: len(args) // 2 * 2 : 2]]


_LETTERS: dict[object, str] = {...: "...", **dict(enumerate(string.ascii_uppercase + string.ascii_lowercase))}

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
    except BolideError:
        raise
    except RuntimeError:  # lists of different lengths: torch says what is wrong
        return None
    return tensor.to(device) if device is not None else tensor


def _fits(vm: Machine, leaf: Any, dtype: torch.dtype) -> bool:
    """Whether a number made of sizes is one of this dtype; torch raises for others."""
    is_float = dtype.is_floating_point or dtype.is_complex
    if type(leaf) is TracedFloat and not is_float and not has_number(vm.trace, leaf, dtype):
        with torch._C._DisableTorchDispatch():
            torch.tensor(float(leaf), dtype=dtype)  # raises
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
