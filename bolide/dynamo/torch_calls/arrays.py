"""Between tensors and NumPy arrays: `Tensor.numpy`, `torch.from_numpy`, `numpy.asarray` and their like."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from bolide.dynamo.bytecode.uniform import OPERATORS
from bolide.dynamo.config import config
from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_each, intercept_table
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.breaking import MADE_ARRAYS, refuse_array
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.items import AS_INDEX
from bolide.dynamo.machine.numbers import OF_NUMPY, derived
from bolide.dynamo.machine.stand_ins import STAND_INS, SYMBOLIC, StandIn, as_number, concrete, is_number
from bolide.dynamo.program.kinds import is_constant
from bolide.dynamo.torch_calls.sizes import leaves, of_numbers
from bolide.dynamo.world import arrays
from bolide.dynamo.world.array_results import arranged, expected
from bolide.dynamo.world.arrays import SCALARS, TracedArray, TracedScalar, layer
from bolide.support.errors import Unsupported, forgive
from bolide.tracing import TracedTensor
from bolide.tracing.numbers.scalars import TracedFloat
from bolide.tracing.operations.factories import refuse_overflow

STAND_INS[TracedArray] = StandIn(numpy.ndarray)
AS_INDEX[TracedArray] = operator.attrgetter("tensor")
for _kind, _class in SCALARS.items():
    _is_real = issubclass(_kind, (numpy.integer, numpy.floating))
    STAND_INS[_class] = StandIn(_kind, TracedScalar.item if _is_real else None)
    if issubclass(_kind, numpy.integer):
        AS_INDEX[_class] = TracedScalar.item


@answers(torch.Tensor.numpy, recorded=True)
def _numpy(vm: Machine, tensor: torch.Tensor, *, force: bool = False) -> object:
    if type(tensor) is not TracedTensor:
        return NATIVE
    if force:
        tensor = tensor.detach().cpu()
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if tensor.dtype is torch.bfloat16 or tensor.device.type != "cpu":
        raise TypeError(f"can't convert a {tensor.dtype} tensor on {tensor.device} to numpy")
    return TracedArray(layer().ndarray(tensor))


@answers(torch.from_numpy)
def _from_numpy(vm: Machine, array: object) -> object:
    if isinstance(array, TracedScalar):
        raise TypeError(f"expected np.ndarray (got {array.kind.__module__}.{array.kind.__name__})")
    return array.tensor if isinstance(array, TracedArray) else NATIVE


def _with_tensors(values: Any) -> Any:
    """Nested lists with tensors for the numbers of NumPy's in them, of which torch takes the types as well."""
    if type(values) in (list, tuple, torch.Size):
        return [_with_tensors(value) for value in values]
    return values.tensor if isinstance(values, TracedScalar) else values


@answers(torch.as_tensor, torch.asarray, recorded=True)
def _as_tensor(vm: Machine, data: object, /, **options: Any) -> object:
    return _tensor_of_data(vm, data, options, copy=False)


@answers(torch.tensor, recorded=True)
def _tensor(vm: Machine, data: object, *, requires_grad: bool = False, **options: Any) -> object:
    tensor = _tensor_of_data(vm, data, options, copy=True)
    return tensor.requires_grad_() if requires_grad and tensor is not NATIVE else tensor


def _tensor_of_data(vm: Machine, data: Any, options: Kwargs, copy: bool) -> Any:
    """A tensor of numbers of the graph, or in the memory of an array or, with `copy`, of what is in it."""
    tensor = of_numbers(vm, _with_tensors(data), options.get("dtype"), options.get("device"))
    if tensor is not None:
        return tensor
    return _converted(data, options, copy) if isinstance(data, (TracedArray, TracedFloat)) else NATIVE


@answers(torch.scalar_tensor, recorded=True)
def _scalar_tensor(vm: Machine, s: object, *, dtype: torch.dtype | None = None, **options: Any) -> object:
    """As `torch.tensor` of one number, but of the default type."""
    if type(s) not in SYMBOLIC:
        return NATIVE
    dtype = dtype or torch.get_default_dtype()
    refuse_overflow(vm.trace, torch.ops.aten.scalar_tensor.default, (s,), {**options, "dtype": dtype})
    return _tensor(vm, s, dtype=dtype, **options)


@answers(torch.Tensor.new_tensor, recorded=True)
def _new_tensor(vm: Machine, owner: torch.Tensor, data: object, **options: Any) -> object:
    return _tensor(vm, data, **{"dtype": owner.dtype, "device": owner.device, **options})


_NAMES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_CONSTRUCTORS: dict[type, torch.dtype] = {
    cls: cls.dtype for cls in (getattr(torch, f"{name}Tensor") for name in _NAMES)
}


@intercept_table({torch.Tensor: torch.float32, **_CONSTRUCTORS})
def _construct(cls: type, dtype: torch.dtype, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A tensor of numbers of the graph, or in the memory of an array, if that has the same type."""
    if len(args) == 1 and type(args[0]) in (list, tuple) and not kwargs:
        dtype = torch.get_default_dtype() if cls is torch.Tensor else dtype
        whole = all(type(leaf) in (int, torch.SymInt) for leaf in leaves(args[0]))
        tensor = of_numbers(vm, args[0], dtype, None) if whole or dtype.is_floating_point else None
        return NATIVE if tensor is None else tensor
    if len(args) != 1 or kwargs or not isinstance(args[0], TracedArray):
        return NATIVE
    if isinstance(args[0], TracedScalar):
        raise vm.unsupported("a number of NumPy's is given to a class of tensors", "numpy_value")
    vm.trace.where = vm.where()
    return _converted(args[0], {"dtype": dtype}, copy=False)


def _converted(value: TracedArray | TracedFloat, options: Kwargs, copy: bool) -> torch.Tensor:
    if type(value) is TracedFloat:
        options["dtype"] = options.get("dtype") or torch.get_default_dtype()
    tensor: torch.Tensor = value.tensor.clone() if copy else value.tensor
    return tensor.to(**options) if options else tensor


@intercept_each((numpy.asarray, numpy.asanyarray, numpy.ascontiguousarray, numpy.array))
def _as_array(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """These are asked for before any protocol of NumPy's."""
    value = args[0] if args else None
    vm.trace.where = vm.where()
    if type(value) is TracedTensor:
        value = _numpy(vm, value)
    if type(value) in (int, float, complex, list, tuple, torch.Size, *SYMBOLIC):
        if SYMBOLIC.keys().isdisjoint(map(type, leaves(value))):
            made = None if arrays.chosen_defaults() else _made(function, vm, args, kwargs)
            return arrays.call("", "array", args, kwargs) if made is None else made
        return _of_list(function, vm, args, kwargs)
    if not isinstance(value, TracedArray):
        return NATIVE
    options = dict(zip(("dtype", "order"), args[1:])) | kwargs
    dtype, copy = options.pop("dtype", None), options.pop("copy", function is numpy.array)
    name = function.__name__
    if options.pop("order", None) is not None or options or len(args) > 3:
        text = f"an option of numpy.{name} is not captured"
        raise vm.unsupported(text, "numpy_value", operation=f"numpy.{name}(...)")
    like = expected(function, [value, *args[1:]], kwargs, arrays.KIND)
    if like is None:
        raise arrays.refused(name)
    array = value.array.astype(arrays.into(numpy.dtype(dtype))) if dtype is not None else value.array
    tensor = array.tensor.clone() if copy and array.tensor is value.tensor else array.tensor
    return arranged(like, TracedArray(layer().ndarray(tensor)), arrays.KIND, {}, [value])


def _of_list(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """The array that `numpy.array` or its like makes of numbers of the graph."""
    like = expected(function, args, kwargs, arrays.KIND)
    if like is None or not isinstance(like.result, numpy.ndarray) or not config.trace_numpy:
        return NATIVE
    dtype = arrays.into(arrays.chosen_defaults().get(like.result.dtype, like.result.dtype)).torch_dtype
    tensor = of_numbers(vm, _with_tensors(args[0]), dtype, None)
    if tensor is None or tensor.dim() != like.result.ndim:
        return NATIVE
    return TracedArray(layer().ndarray(tensor))


_UFUNCS = {
    operator.add: "add",
    operator.sub: "subtract",
    operator.mul: "multiply",
    operator.truediv: "true_divide",
    operator.floordiv: "floor_divide",
    operator.mod: "remainder",
    operator.pow: "power",
    operator.matmul: "matmul",
    operator.and_: "bitwise_and",
    operator.or_: "bitwise_or",
    operator.xor: "bitwise_xor",
}
_UFUNCS |= {getattr(operator, f"i{function.__name__.strip('_')}"): name for function, name in _UFUNCS.items()}


def _with_tensor(vm: Machine, op: Any, left: Any, right: Any) -> Any:
    """An operator of a tensor and an array: eager, asked with ones, says whether that gives a tensor (`t * a`), or
    raises (`a * t`). A number of NumPy's is a number."""
    vm.trace.where = vm.where()
    if is_number(left) or is_number(right):
        return operations.binary(vm, op, as_number(left), as_number(right))
    like = expected(op, [left, right], {}, arrays.KIND)
    if op not in _UFUNCS or like is None or not isinstance(like.result, torch.Tensor):
        raise arrays.refused(_UFUNCS.get(op, op.__name__))
    return arrays.call("", _UFUNCS[op], (left, right), {})


def _with_number(vm: Machine, op: Callable[[object, object], object], left: object, right: object) -> object:
    """An operator of a number of the graph and an array or a number of NumPy's, which becomes one of the graph."""
    vm.trace.where = vm.where()
    if type(left) is numpy.ndarray and OPERATORS[op].in_place:
        refuse_array(vm, left, right)
        return op(left, concrete(vm, right))
    found = _unless_refused(lambda: op(_of_graph(left), _of_graph(right)))
    if found is NATIVE:
        found = op(*(concrete(vm, value) if type(value) in SYMBOLIC else value for value in (left, right)))
    return found


def _of_graph(value: object) -> object:
    if isinstance(value, numpy.generic):
        return SCALARS[type(value)](arrays.into(value), value.item() if type(value) in _KINDS else None)
    return TracedArray(arrays.into(value)) if type(value) is numpy.ndarray else value


operations.WITH_NUMBERS.update(dict.fromkeys((numpy.ndarray, *SCALARS), _with_number))
for _class in (numpy.ndarray, TracedArray, *SCALARS.values()):
    operations.WITH_TENSORS[_class] = _with_tensor


_KINDS: dict[object, tuple[type, ...]] = {
    numpy.int64: (torch.SymInt,),
    numpy.float64: (torch.SymInt, torch.SymFloat, TracedFloat),
}
"""By a class of NumPy's numbers, of which Python computes the same: what it can be made of."""


@intercept_each(SCALARS)
def _as_scalar(kind: type, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A number as one of NumPy's, or as one of another type."""
    if len(args) == 1 and not kwargs and type(args[0]) in _KINDS.get(kind, ()):
        number = args[0]
        return SCALARS[kind](None, operator.mul(1.0, number) if kind is numpy.float64 else number)
    if len(args) != 1 or kwargs or not isinstance(args[0], TracedScalar):
        return NATIVE
    vm.trace.where = vm.where()
    value = args[0]
    if value.number is not None and kind is value.kind:
        return value
    return arrays.scalar_of(value.array.astype(arrays.into(numpy.dtype(kind))).tensor)


@intercept_table({numpy.ceil: math.ceil, numpy.floor: math.floor, numpy.trunc: math.trunc})
def _whole(function: numpy.ufunc, whole: Callable[..., int], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """The whole number next to a symbol, of the type that NumPy has for it."""
    if len(args) != 1 or kwargs or type(args[0]) not in (torch.SymInt, torch.SymFloat):
        return NATIVE
    vm.trace.where = vm.where()
    kind = type(function(1.5 if type(args[0]) is torch.SymFloat else 1))
    number = whole(args[0])
    if not issubclass(kind, numpy.integer):
        number = torch.sym_float(number)  # type: ignore[no-untyped-call]
    return SCALARS[kind](None, number)


_OF_TWO: dict[object, Callable[..., object]] = {numpy.maximum: torch.sym_max, numpy.minimum: torch.sym_min}
_OF_ALL: dict[object, Callable[..., object]] = {
    numpy.prod: math.prod,
    numpy.sum: sum,
    numpy.max: functools.partial(functools.reduce, torch.sym_max),
    numpy.min: functools.partial(functools.reduce, torch.sym_min),
}
"""What expressions over sizes say of integers: of two, and of lists of them."""


@intercept_each(OF_NUMPY)
def _of_sizes(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """What NumPy computes of sizes and other numbers from outside: a number of NumPy's, computed anew in each call."""
    numbers = list(map(_plain, _positional(function, args, kwargs) if kwargs else args))
    given = leaves(numbers)
    if None in given or SYMBOLIC.keys().isdisjoint(map(type, given)):
        return NATIVE
    like = expected(function, numbers, {}, arrays.KIND)
    if like is None or type(like.result) not in _KINDS:
        return NATIVE
    kind = type(like.result)
    vm.trace.where = vm.where()
    number = _whole_number(function, numbers, given)
    if number is None:
        number = derived(vm, function, numbers, None)
    if number is not None:
        return SCALARS[kind](None, number) if type(number) in SYMBOLIC else kind(number)
    if numbers != given:
        return NATIVE
    return _unless_refused(lambda: arrays.call("", OF_NUMPY[function], _in_graph(numbers), {}))  # some are data


def _whole_number(function: object, numbers: Args, given: Args) -> object:
    """An integer as an expression over sizes; None if there is none. `given`: what is in the lists of `numbers`."""
    if not all(type(number) in (int, torch.SymInt) for number in given):
        return None
    if function in _OF_ALL and len(numbers) == 1:
        return _OF_ALL[function](given)
    if function in _OF_TWO and len(numbers) == 2 and numbers == given:
        return _OF_TWO[function](*given)
    if function is numpy.clip and len(numbers) == 3 and numbers == given:
        value, least, most = given
        return torch.sym_min(torch.sym_max(value, least), most)  # type: ignore[no-untyped-call]
    return None


def _unless_refused(record: Callable[[], object]) -> object:
    """What `record` gives; NATIVE where the layer has no exact counterpart."""
    try:
        return record()
    except Unsupported as error:
        if error.kind != "numpy_value":
            raise
        forgive(error)
        return NATIVE


def _positional(function: Callable[..., object], args: Args, kwargs: Kwargs) -> Args:
    """The arguments of a call without names, with None where that cannot be."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return [None]
    return [None] if bound.kwargs else list(bound.args)


def _in_graph(numbers: Args) -> Args:
    """Numbers of the graph as NumPy's."""
    kinds = {torch.SymInt: numpy.int64, torch.SymFloat: numpy.float64, TracedFloat: numpy.float64}
    return [SCALARS[kinds[type(one)]](None, one) if type(one) in kinds else one for one in numbers]


def _plain(value: object) -> object:
    """A number, or a list of numbers, as one of Python's; None for anything else."""
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if isinstance(value, TracedScalar):
        return value.number if value.kind in _KINDS else None
    if isinstance(value, (numpy.int64, numpy.float64)):
        return value.item()
    return value if type(value) in (int, float, torch.SymInt, torch.SymFloat, TracedFloat) else None


_COPIES = [vars(cls)[name] for cls in (numpy.ndarray, numpy.generic) for name in ("__copy__", "__deepcopy__")]


@intercept(*_COPIES)
def _copy(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    vm.trace.where = vm.where()
    return args[0].__copy__() if args and isinstance(args[0], TracedArray) else NATIVE


_MAKERS = ("zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "identity")
_LIKE = ("zeros_like", "ones_like", "empty_like", "full_like")


@intercept_table({getattr(numpy, name): name for name in (*_MAKERS, *_LIKE)})
def _make(function: Callable[..., object], name: str, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """NumPy makes the array itself, unless the configuration chooses other default types or the graph writes to it."""
    vm.trace.where = vm.where()
    given = leaves([*args, *kwargs.values()])
    if torch.SymInt in map(type, given) and all(_is_known(one) or type(one) is torch.SymInt for one in given):
        return _unless_refused(lambda: arrays.call("", name, args, kwargs))
    made = None if arrays.chosen_defaults() and name in _MAKERS else _made(function, vm, args, kwargs)
    return arrays.call("", name, args, kwargs) if made is None else made


def _made(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """What NumPy makes of constants; None where the graph writes to that."""
    if not all(map(_is_known, (*args, *kwargs.values()))):
        return NATIVE
    place = vm.frames[-1].code, vm.frames[-1].pc - 1
    if place in vm.world.symbols.history.learnt.arrays:
        return None
    made = function(*args, **kwargs)
    MADE_ARRAYS.of(vm)[id(made)] = made, place
    return made


def _is_known(value: object) -> bool:
    if type(value) in (list, tuple, torch.Size):
        return all(map(_is_known, value))  # type: ignore[call-overload]
    return is_constant(value) or isinstance(value, (type, numpy.dtype, numpy.ndarray))


# ---- NumPy functions of tensors --------------------------------------------------------------------------------------


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which takes and gives NumPy arrays, as a function of tensors. In compiled code it is differentiable and
    runs where its inputs are; outside it runs `fn` itself, and raises for tensors that require grad (RuntimeError)."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, array_of, (args, kwargs))
        return pytree.tree_map_only(numpy.ndarray, tensor_of, fn(*args, **kwargs))

    return wrapped


def array_of(tensor: torch.Tensor) -> Any:
    """The array in a tensor's memory; in captured code with its history."""
    return tensor.numpy()


def tensor_of(array: Any) -> torch.Tensor:
    """The tensor in an array's memory."""
    return torch.as_tensor(array)


answers(numpy.isscalar)(lambda vm, element: True if isinstance(element, TracedScalar) else NATIVE)
answers(tensor_of)(lambda vm, array: array.tensor if isinstance(array, TracedArray) else NATIVE)
answers(array_of)(lambda vm, x: TracedArray(layer().ndarray(x)) if type(x) is TracedTensor else NATIVE)
