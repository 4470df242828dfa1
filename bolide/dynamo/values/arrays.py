"""NumPy arrays in captured code: an array holds a traced tensor, and NumPy's functions on it are torch's NumPy layer
(`torch._numpy`), whose operations are recorded like any other.

NumPy hands over by its own protocols (`__array_ufunc__`, `__array_function__`), so its functions are called as they
are. What the layer does not have raises `Unsupported`: that operation then runs on the real arrays.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from bolide.dynamo import policy
from bolide.dynamo.config import config
from bolide.dynamo.guards import tensor_guard
from bolide.dynamo.program import Recipe, Source
from bolide.dynamo.values.array_results import arranged, expected
from bolide.dynamo.values.rebuild import RECIPES, Rebuilder
from bolide.dynamo.values.world import WRAPPERS, World
from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting

ATTRIBUTES = frozenset({"T", "real", "imag", "shape", "ndim", "size", "itemsize"})


@fleeting
class TracedArray(NDArrayOperatorsMixin):
    """Stands for a `numpy.ndarray`; `array` is torch's NumPy-like view of the traced tensor."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def tensor(self) -> torch.Tensor:
        tensor: torch.Tensor = self.array.tensor
        return tensor

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise refused(f"{ufunc.__name__}.{method}")
        out = kwargs.get("out")
        if isinstance(out, tuple) and len(out) == 1:
            kwargs["out"] = out[0]
        return call("", ufunc.__name__, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        space = function.__module__.partition("numpy")[2].strip(".")
        return call(space if space in ("linalg", "fft") else "", function.__name__, args, kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise refused("asarray")

    def __getattr__(self, name: str) -> Any:
        if name in ATTRIBUTES:
            return out_of(getattr(self.array, name), ())
        if name in policy.ARRAY_METHODS:
            return Method(self, name)
        if hasattr(numpy.ndarray, name):
            raise refused(f"ndarray.{name}")
        raise AttributeError(f"'numpy.ndarray' object has no attribute '{name}'")

    @property
    def dtype(self) -> numpy.dtype[Any]:
        found: numpy.dtype[Any] = numpy.dtype(self.array.dtype.name)
        return found

    @property
    def nbytes(self) -> Any:
        return self.array.size * self.array.itemsize  # the layer says that of the whole storage

    def __getitem__(self, index: Any) -> Any:
        return out_of(self.array[into(index)], (self,))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[into(index)] = into(value)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __index__(self) -> int:
        return self.tensor.__index__()

    def __repr__(self) -> str:
        raise refused("array_repr")

    def __format__(self, specification: str) -> str:
        raise refused("array_str")


@fleeting
class Method:
    """A bound method of an array."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: TracedArray, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with_defaults()
        method = getattr(self.owner.array, self.name)
        own = getattr(numpy.ndarray, self.name, None)
        like = expected(own, (self.owner, *args), kwargs, _tensor_of)
        return _answer(f"ndarray.{self.name}", method, args, kwargs, like, (self.owner, *args, *kwargs.values()))


def _tensor_of(value: Any) -> torch.Tensor | None:
    return value.tensor if isinstance(value, TracedArray) else None


def _answer(name: str, function: Any, args: Any, kwargs: Any, like: Any, given: Any) -> Any:
    """What the layer's `function` returns, if NumPy's result would be `like` that (None: not known)."""
    try:
        found = out_of(function(*into(args), **into(kwargs)), given)
        return found if like is None else arranged(like, found, _tensor_of, chosen_defaults())
    except NotImplementedError as error:
        raise refused(name) from error
    except (TypeError, ValueError, RuntimeError, IndexError) as error:  # NumPy raises its own, if it does
        raise refused(name) from error


def refused(name: str) -> Unsupported:
    """The refusal of a function that cannot be captured."""
    return Unsupported(
        f"numpy.{name} has no exact counterpart in torch", None, operation=f"numpy.{name}(...)", kind="numpy_value"
    )


def layer(space: str = "") -> Any:
    """torch's NumPy layer, or a submodule of it. Imported when first needed: most programs do without."""
    import torch._numpy

    return getattr(torch._numpy, space) if space else torch._numpy


def with_defaults() -> None:
    """Sets the types that NumPy functions give to Python numbers and integer arrays."""
    from torch._numpy import _dtypes_impl

    wanted: Any = _dtypes_impl.DefaultDTypes(
        float_dtype=getattr(torch, config.numpy_default_float),
        complex_dtype=getattr(torch, config.numpy_default_complex),
        int_dtype=getattr(torch, config.numpy_default_int),
    )
    if _dtypes_impl._default_dtypes != wanted:
        _dtypes_impl._default_dtypes = wanted


def chosen_defaults() -> dict[Any, Any]:
    """The types that the configuration puts in place of NumPy's own defaults, by these."""
    names = {
        "float64": config.numpy_default_float,
        "complex128": config.numpy_default_complex,
        "int64": config.numpy_default_int,
    }
    return {numpy.dtype(own): numpy.dtype(name) for own, name in names.items() if own != name}


def call(space: str, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """NumPy's function of this name, as torch has it. Raises Unsupported if it has not."""
    if not config.trace_numpy:
        raise Unsupported("NumPy functions are not captured (trace_numpy is off)", None, kind="numpy_value")
    function = getattr(layer(space), name, None)
    if function is None:
        raise refused(f"{space}.{name}" if space else name)
    with_defaults()
    own = getattr(getattr(numpy, space) if space else numpy, name, None)
    like = expected(own, args, kwargs, _tensor_of)
    given = (*args, *kwargs.values())
    if isinstance(own, numpy.ufunc):
        args = _promoted(args, like)
    return _answer(name, function, args, kwargs, like, given)


def _promoted(args: Any, like: Any) -> Any:
    """The operands of a ufunc, integers converted first where its result is to be `like` floats."""
    kind = getattr(like, "dtype", None)
    arrays = [arg for arg in args if isinstance(arg, TracedArray)]
    if kind is None or kind.kind not in "fc" or any(array.dtype.kind not in "biu" for array in arrays):
        return args
    wanted = into(chosen_defaults().get(kind, kind))
    return [TracedArray(arg.array.astype(wanted)) if isinstance(arg, TracedArray) else arg for arg in args]


def into(value: Any) -> Any:
    """What the layer is given for a value: its own arrays, types by name."""
    if isinstance(value, TracedArray):
        return value.array
    if isinstance(value, numpy.ndarray):
        return layer().ndarray(torch.from_numpy(value.copy()))
    if isinstance(value, numpy.generic):
        return layer().ndarray(torch.from_numpy(numpy.array(value)))
    if isinstance(value, numpy.dtype) or (isinstance(value, type) and issubclass(value, numpy.generic)):
        return getattr(layer(), numpy.dtype(value).name)
    if type(value) in (tuple, list):
        return type(value)([into(item) for item in value])
    if type(value) is dict:
        return {key: into(item) for key, item in value.items()}
    return value


def out_of(value: Any, given: Any) -> Any:
    """What the program gets for a result of the layer; the very array that it gave as ``out``."""
    if isinstance(value, (tuple, list)):
        return (list if type(value) is list else tuple)([out_of(item, given) for item in value])
    if isinstance(value, layer("_dtypes").DType):
        return numpy.dtype(value.name)
    if not isinstance(value, layer().ndarray):
        return value
    for array in given:
        if isinstance(array, TracedArray) and array.array is value:
            return array
    return TracedArray(value)


# ---- from and to the outside world -----------------------------------------------------------------------------------


def as_tensor(array: numpy.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor in the memory of an array. Raises TypeError or ValueError for what torch has no tensors for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # read-only memory: a program that writes to it fails in NumPy's own way
        return torch.from_numpy(array)


def to_array(tensor: torch.Tensor) -> Any:
    """The array in the memory of a result; a scalar where there are no dimensions, as NumPy's reductions give."""
    array = tensor.detach().resolve_conj().resolve_neg().numpy()
    return array[()] if array.ndim == 0 else array


def _wrap(world: World, real: numpy.ndarray[Any, Any], source: Source) -> Any:
    if not config.trace_numpy:
        raise Unsupported(
            "a NumPy array is read (trace_numpy is off)", world.where(), "pass a tensor", kind="numpy_value"
        )
    if not real.flags.writeable:
        raise Unsupported(
            "a read-only NumPy array is read", world.where(), "pass a tensor or a copy", kind="numpy_value"
        )
    try:
        with torch._C._DisableTorchDispatch():
            tensor = as_tensor(real)
    except (TypeError, ValueError) as error:
        raise Unsupported(
            f"a NumPy array is read that cannot be a tensor: {error}", world.where(), kind="numpy_value"
        ) from error
    tensor_guard(tensor, world.where())
    world.guard(Source("attr", Source("attr", source, "flags"), "writeable"), "is", True)
    traced = world.wrap(tensor, Source("apply", source, (), as_tensor))
    return world.mirror(TracedArray(layer().ndarray(traced)), source)


def _recipe(rebuilder: Rebuilder, value: TracedArray) -> Recipe:
    return Recipe("call", to_array, (rebuilder.recipe(value.tensor),))


def _recipe_of_method(rebuilder: Rebuilder, value: Method) -> Recipe:
    return Recipe("call", getattr, (rebuilder.recipe(value.owner), *rebuilder.constants(value.name)))


def _recipe_of_real(rebuilder: Rebuilder, value: numpy.ndarray[Any, Any]) -> Recipe:
    """An array that the program has made of constants."""
    return Recipe("call", numpy.copy, (Recipe("constant", value.copy()),))


def _recipe_of_type(rebuilder: Rebuilder, value: numpy.dtype[Any]) -> Recipe:
    return Recipe("constant", value)


WRAPPERS[numpy.ndarray] = _wrap
RECIPES[TracedArray] = _recipe
RECIPES[Method] = _recipe_of_method
RECIPES[numpy.ndarray] = _recipe_of_real
for _code in numpy.typecodes["All"]:
    RECIPES[type(numpy.dtype(_code))] = _recipe_of_type
