"""Between tensors and NumPy arrays: `Tensor.numpy`, `torch.from_numpy`, `numpy.asarray` and their like."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.operations import (
    AS_INDEX,
    AS_NUMBER,
    SEEN_AS,
    SYMBOLIC,
    WITH_TENSORS,
    as_number,
    binary,
    is_number,
)
from bolide.dynamo.torch_calls.sizes import of_numbers
from bolide.dynamo.world.array_results import arranged, expected
from bolide.dynamo.world.arrays import (
    KIND,
    SCALARS,
    TracedArray,
    TracedScalar,
    call,
    chosen_defaults,
    into,
    layer,
    refused,
    scalar_of,
)
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor
from bolide.tracing.numbers.scalars import TracedFloat

SEEN_AS[TracedArray] = numpy.ndarray
AS_INDEX[TracedArray] = operator.attrgetter("tensor")
for _kind, _class in SCALARS.items():
    SEEN_AS[_class] = _kind
    if issubclass(_kind, (numpy.integer, numpy.floating)):
        AS_NUMBER[_class] = TracedScalar.item
    if issubclass(_kind, numpy.integer):
        AS_INDEX[_class] = TracedScalar.item

Args = list[Any]
Kwargs = dict[str, Any]


@intercept(torch.Tensor.numpy)
def _numpy(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    tensor = args[0]
    if type(tensor) is not TracedTensor:
        return NATIVE
    vm.trace.where = vm.where()
    if kwargs.get("force", False):
        tensor = tensor.detach().cpu()
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if tensor.dtype is torch.bfloat16 or tensor.device.type != "cpu":
        raise TypeError(f"can't convert a {tensor.dtype} tensor on {tensor.device} to numpy")
    return TracedArray(layer().ndarray(tensor))


@intercept(torch.from_numpy)
def _from_numpy(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if not args or not isinstance(args[0], TracedArray):
        return NATIVE
    if isinstance(args[0], TracedScalar):
        raise TypeError(f"expected np.ndarray (got {args[0].kind.__module__}.{args[0].kind.__name__})")
    return args[0].tensor


def _with_tensors(values: Any) -> Any:
    """Nested lists with tensors for the numbers of NumPy's in them, of which torch takes the types as well."""
    if type(values) in (list, tuple):
        return [_with_tensors(value) for value in values]
    return values.tensor if isinstance(values, TracedScalar) else values


@intercept(torch.as_tensor, torch.asarray)
def _as_tensor(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A tensor in the memory of an array, or of numbers of the graph."""
    made = of_numbers(vm, _with_tensors(args[0]), kwargs.get("dtype"), kwargs.get("device")) if args else None
    if made is not None:
        return made
    if not args or not isinstance(args[0], (TracedArray, TracedFloat)):
        return NATIVE
    return _made(vm, args[0], dict(kwargs), copy=False)


@intercept(torch.tensor)
def _tensor(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A new tensor of an array, or of numbers of the graph."""
    made = of_numbers(vm, _with_tensors(args[0]), kwargs.get("dtype"), kwargs.get("device")) if args else None
    if made is not None:
        return made.requires_grad_() if kwargs.get("requires_grad") else made
    if not args or not isinstance(args[0], (TracedArray, TracedFloat)):
        return NATIVE
    options = dict(kwargs)
    wanted = options.pop("requires_grad", False)
    made = _made(vm, args[0], options, copy=True)
    return made.requires_grad_() if wanted else made


@intercept(torch.scalar_tensor)
def _scalar_tensor(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """As `torch.tensor` of one number, but of the default type."""
    if not args or type(args[0]) not in SYMBOLIC:
        return NATIVE
    return _tensor(vm, args, {**kwargs, "dtype": kwargs.get("dtype") or torch.get_default_dtype()})


@intercept(torch.Tensor.new_tensor)
def _new_tensor(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if len(args) < 2:
        return NATIVE
    return _tensor(vm, args[1:], {"dtype": args[0].dtype, "device": args[0].device, **kwargs})


_CONSTRUCTORS: dict[Any, torch.dtype] = {
    torch.Tensor: torch.float32,
    **{cls: cls.dtype for cls in (getattr(torch, f"{name}Tensor") for name in ("Float", "Double", "Half", "BFloat16"))},
    **{
        cls: cls.dtype for cls in (getattr(torch, f"{name}Tensor") for name in ("Long", "Int", "Short", "Char", "Byte"))
    },
    torch.BoolTensor: torch.bool,
}


def _constructor(dtype: torch.dtype) -> Callable[[Machine, Args, Kwargs], Any]:
    def make(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        """A tensor in the memory of an array, if that has the same type."""
        if len(args) != 1 or kwargs or not isinstance(args[0], TracedArray):
            return NATIVE
        if isinstance(args[0], TracedScalar):
            raise Unsupported("a number of NumPy's is given to a class of tensors", vm.where(), kind="numpy_value")
        return _made(vm, args[0], {"dtype": dtype}, copy=False)

    return make


for _class, _dtype in _CONSTRUCTORS.items():
    intercept(_class)(_constructor(_dtype))


def _made(vm: Machine, value: Any, options: Kwargs, copy: bool) -> Any:
    vm.trace.where = vm.where()
    if type(value) is TracedFloat:
        options["dtype"] = options.get("dtype") or torch.get_default_dtype()
    made = value.tensor.clone() if copy else value.tensor
    return made.to(**options) if options else made


def _converter(function: Callable[..., Any], copies: bool | None) -> Callable[[Machine, Args, Kwargs], Any]:
    def convert(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        """These are asked for before any protocol of NumPy's."""
        value = args[0] if args else None
        if type(value) is TracedTensor:
            value = _numpy(vm, [value], {})
        if type(value) in (int, float, complex, list, tuple) and chosen_defaults():
            vm.trace.where = vm.where()
            return call("", "array", args, kwargs)
        if not isinstance(value, TracedArray):
            return NATIVE
        vm.trace.where = vm.where()
        options = dict(zip(("dtype", "order"), args[1:])) | kwargs
        dtype, copy = options.pop("dtype", None), options.pop("copy", copies)
        name = function.__name__
        if options.pop("order", None) is not None or options or len(args) > 3:
            text = f"an option of numpy.{name} is not captured"
            raise Unsupported(text, vm.where(), operation=f"numpy.{name}(...)", kind="numpy_value")
        like = expected(function, [value, *args[1:]], kwargs, KIND)
        if like is None:
            raise refused(name)
        made = value.array.astype(_type_in_layer(dtype)) if dtype is not None else value.array
        tensor = made.tensor.clone() if copy and made.tensor is value.tensor else made.tensor
        return arranged(like, TracedArray(layer().ndarray(tensor)), KIND, {}, [value])

    return convert


def _type_in_layer(dtype: Any) -> Any:
    return into(numpy.dtype(dtype))


for _function in (numpy.asarray, numpy.asanyarray, numpy.ascontiguousarray, numpy.array):
    intercept(_function)(_converter(_function, True if _function is numpy.array else None))


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
        return binary(vm, op, as_number(left), as_number(right))
    like = expected(op, [left, right], {}, KIND)
    if op not in _UFUNCS or like is None or not isinstance(like.result, torch.Tensor):
        raise refused(_UFUNCS.get(op, op.__name__))
    return call("", _UFUNCS[op], (left, right), {})


for _class in (numpy.ndarray, TracedArray, *SCALARS.values()):
    WITH_TENSORS[_class] = _with_tensor


def _converted(kind: Any) -> Callable[[Machine, Args, Kwargs], Any]:
    def convert(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        """A number of NumPy's as one of another type."""
        if len(args) != 1 or kwargs or not isinstance(args[0], TracedScalar):
            return NATIVE
        vm.trace.where = vm.where()
        value = args[0]
        if value.number is not None and kind is value.kind:
            return value
        return scalar_of(value.array.astype(into(numpy.dtype(kind))).tensor)

    return convert


for _kind in SCALARS:
    intercept(_kind)(_converted(_kind))


@intercept(numpy.isscalar)
def _is_scalar(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return True if len(args) == 1 and isinstance(args[0], TracedScalar) else NATIVE


def _copier(method: Any) -> Callable[[Machine, Args, Kwargs], Any]:
    def copied(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        vm.trace.where = vm.where()
        return args[0].__copy__() if args and isinstance(args[0], TracedArray) else NATIVE

    return copied


for _owner in (numpy.ndarray, numpy.generic):
    for _name in ("__copy__", "__deepcopy__"):
        intercept(vars(_owner)[_name])(_copier(_name))


def _maker(name: str) -> Callable[[Machine, Args, Kwargs], Any]:
    def make(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        """NumPy makes the array itself unless the configuration chooses other default types."""
        if not chosen_defaults():
            return NATIVE
        vm.trace.where = vm.where()
        return call("", name, args, kwargs)

    return make


for _name in ("zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "identity"):
    intercept(getattr(numpy, _name))(_maker(_name))


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


@intercept(array_of)
def _array_of(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return TracedArray(layer().ndarray(args[0])) if type(args[0]) is TracedTensor else NATIVE


@intercept(tensor_of)
def _tensor_of(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return args[0].tensor if isinstance(args[0], TracedArray) else NATIVE
