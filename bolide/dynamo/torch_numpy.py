"""Between tensors and NumPy arrays: `Tensor.numpy`, `torch.from_numpy`, `numpy.asarray` and their like."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.operations import AS_INDEX, SEEN_AS
from bolide.dynamo.torch_lists import of_numbers
from bolide.dynamo.values.arrays import TracedArray, call, chosen_defaults, layer
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor
from bolide.tracing.scalars import TracedFloat

SEEN_AS[TracedArray] = numpy.ndarray
AS_INDEX[TracedArray] = operator.attrgetter("tensor")

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
    return args[0].tensor if args and type(args[0]) is TracedArray else NATIVE


@intercept(torch.as_tensor, torch.asarray)
def _as_tensor(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A tensor in the memory of an array, or of numbers of the graph."""
    made = of_numbers(vm, args[0], kwargs.get("dtype"), kwargs.get("device")) if args else None
    if made is not None:
        return made
    if not args or type(args[0]) not in (TracedArray, TracedFloat):
        return NATIVE
    return _made(vm, args[0], dict(kwargs), copy=False)


@intercept(torch.tensor, torch.scalar_tensor)
def _tensor(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """A new tensor of an array, or of numbers of the graph."""
    made = of_numbers(vm, args[0], kwargs.get("dtype"), kwargs.get("device")) if args else None
    if made is not None:
        return made.requires_grad_() if kwargs.get("requires_grad") else made
    if not args or type(args[0]) not in (TracedArray, TracedFloat):
        return NATIVE
    options = dict(kwargs)
    wanted = options.pop("requires_grad", False)
    made = _made(vm, args[0], options, copy=True)
    return made.requires_grad_() if wanted else made


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
        if len(args) != 1 or kwargs or type(args[0]) is not TracedArray:
            return NATIVE
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


@intercept(numpy.asarray, numpy.asanyarray, numpy.ascontiguousarray, numpy.array)
def _asarray(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """These are asked for before any protocol of NumPy's."""
    value = args[0] if args else None
    if type(value) is TracedTensor:
        value = _numpy(vm, [value], {})
    if type(value) in (int, float, complex, list, tuple) and chosen_defaults():
        vm.trace.where = vm.where()
        return call("", "array", args, kwargs)
    if type(value) is not TracedArray:
        return NATIVE
    vm.trace.where = vm.where()
    options = dict(kwargs)
    dtype = args[1] if len(args) > 1 else options.pop("dtype", None)
    copy = options.pop("copy", True)
    if options:
        raise Unsupported(
            "an option of numpy.array is not captured", vm.where(), operation="numpy.array(...)", kind="numpy_value"
        )
    return value if dtype is None and copy is None else value.astype(dtype or value.dtype)


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
    return args[0].tensor if type(args[0]) is TracedArray else NATIVE
