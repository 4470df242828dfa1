"""NumPy arrays in captured code: an array holds a traced tensor, and NumPy's functions on it are torch's NumPy layer
(`torch._numpy`), whose operations are recorded like any other.

NumPy hands over by its own protocols (`__array_ufunc__`, `__array_function__`), so its functions are called as they
are. What the layer does not have raises `Unsupported`: that operation then runs on the real arrays.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from bolide.dynamo import policy
from bolide.dynamo.config import config
from bolide.dynamo.guards.texts import tensor_guard
from bolide.dynamo.program.captured import Recipe, Source, call_of
from bolide.dynamo.world.array_results import Kind, Likeness, arranged, expected
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.dynamo.world.world import WRAPPERS, World
from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting
from bolide.symbolic import is_data
from bolide.tracing import TracedFloat, TracedTensor

ATTRIBUTES = frozenset({"T", "real", "imag", "shape", "ndim", "size", "itemsize"})


@fleeting
class TracedArray(NDArrayOperatorsMixin):
    """Stands for a `numpy.ndarray`; `array` is torch's NumPy-like view of the traced tensor. `writeable`: as NumPy's
    flag of that name."""

    __slots__ = ("array", "writeable")

    def __init__(self, array: Any, writeable: bool = True) -> None:
        self.array, self.writeable = array, writeable

    @property
    def tensor(self) -> torch.Tensor:
        tensor: torch.Tensor = self.array.tensor
        return tensor

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> object:
        if method != "__call__":
            raise refused(f"{ufunc.__name__}.{method}")
        out = kwargs.get("out")
        if isinstance(out, tuple) and len(out) == 1:
            kwargs["out"] = out[0]
        if isinstance(kwargs.get("out"), TracedArray) and not kwargs["out"].writeable:
            raise ValueError("output array is read-only")
        return call("", ufunc.__name__, inputs, kwargs)

    def __imatmul__(self, other: Any) -> Any:
        dims = other.tensor.dim() if isinstance(other, TracedArray) else numpy.ndim(other)
        if dims == 1:
            like: Any = numpy.ones((1,) * self.tensor.dim())
            like @= numpy.ones(1)  # raises: no axis of it is left
        return super().__imatmul__(other)

    def __array_function__(self, function: Any, types: object, args: Any, kwargs: Any) -> object:
        space = function.__module__.partition("numpy")[2].strip(".")
        return call(space if space in ("linalg", "fft") else "", function.__name__, args, kwargs)

    def __array__(self, *args: object, **kwargs: object) -> object:
        raise refused("asarray")

    def __getattr__(self, name: str) -> Any:
        cls = _class_of(self)
        if hasattr(cls, name):
            if name in ATTRIBUTES:
                value = out_of(getattr(self.array, name), ())
                is_scalar = isinstance(self, TracedScalar) and isinstance(value, TracedArray)
                return scalar_of(value.tensor) if is_scalar else value
            if name in policy.ARRAY_METHODS:
                return ArrayMethod(self, name)
            raise refused(f"ndarray.{name}")
        raise AttributeError(f"'{cls.__module__}.{cls.__name__}' object has no attribute '{name}'")

    @property
    def dtype(self) -> numpy.dtype[Any]:
        dtype: numpy.dtype[Any] = numpy.dtype(self.array.dtype.name)
        return dtype

    @property
    def nbytes(self) -> object:
        return self.array.size * self.array.itemsize  # the layer says that of the whole storage

    def item(self, *index: Any) -> Any:
        """An item, the only one if there is no index, as a number of Python's."""
        item = self[index[0] if len(index) == 1 and type(index[0]) is tuple else index] if index else self
        if type(item) is TracedArray:
            item = scalar_of(item.tensor.reshape(()))
        return item.item()

    def __getitem__(self, index: Any) -> Any:
        dims, index = _turned(self, index)
        array = layer().ndarray(self.tensor.flip(dims)) if dims else self.array
        try:
            item = out_of(array[into(index)], (self,))
        except IndexError as error:
            raise refused("ndarray.__getitem__") from error
        if isinstance(item, TracedArray) and item is not self:
            if not item.tensor.dim() and not _keeps_array(index):
                return scalar_of(item.tensor.clone())
            mine, its = self.tensor.group, item.tensor.group  # type: ignore[attr-defined]
            if dims:  # torch has no negative strides: whoever sees that this is no view is told
                self.tensor._trace.listener.copied(mine, its)  # type: ignore[attr-defined]
            item.writeable = self.writeable or not (dims or its is mine)
        return item

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.writeable:
            raise ValueError("assignment destination is read-only")
        dims, index = _turned(self, index)
        array = layer().ndarray(self.tensor.flip(dims)) if dims else self.array
        try:
            array[into(index)] = into(value)
        except Unsupported:
            raise
        except (IndexError, RuntimeError) as error:
            raise refused("ndarray.__setitem__") from error
        if dims:
            self.tensor.copy_(array.tensor.flip(dims))

    def __copy__(self) -> object:
        return TracedArray(layer().ndarray(self.tensor.clone()))

    def __deepcopy__(self, memo: object) -> object:
        return self.__copy__()

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[object]:
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
class TracedScalar(TracedArray):
    """Stands for an instance of `numpy.generic`: one of the subclasses in `SCALARS`. `number`: the symbol, or float of
    the graph, that it was made of, None if it is an array's item or result."""

    __slots__ = ("cached", "number")
    kind: type[Any]

    def __init__(self, array: Any, number: Any = None) -> None:
        self.cached, self.number, self.writeable = array, number, True

    @property
    def array(self) -> Any:  # type: ignore[override]
        if self.cached is None:
            dtype = into(self.kind).torch_dtype
            known = type(self.number) is TracedFloat
            tensor = self.number.tensor.to(dtype) if known else torch.full((), self.number, dtype=dtype)
            self.cached = layer().ndarray(tensor)
        return self.cached

    def __copy__(self) -> object:
        return self

    def item(self) -> Any:
        """As a number of Python's."""
        return self.tensor.item() if self.number is None else self.number

    def concrete(self) -> Any:
        """The number of NumPy's that it is in this call, on which the program depends from here on."""
        return self.kind(type(self.kind(0).item())(self.item()))

    def __bool__(self) -> bool:
        return bool(self.tensor if self.number is None else self.number)

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if not issubclass(self.kind, numpy.integer):
            raise TypeError(f"'{self.kind.__module__}.{self.kind.__name__}' object cannot be interpreted as an integer")
        return int(self.item())

    def __hash__(self) -> int:
        return hash(self.concrete())

    def __round__(self, digits: int | None = None) -> object:
        return round(self.concrete(), digits)

    def __str__(self) -> str:
        return super().__str__() if self.number is None else str(self.concrete())

    def __repr__(self) -> str:
        return super().__repr__() if self.number is None else repr(self.concrete())

    def __format__(self, specification: str) -> str:
        return super().__format__("") if self.number is None else format(self.concrete(), specification)


for _name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(TracedScalar, f"__i{_name}__", getattr(TracedScalar, f"__{_name}__"))  # a number does not change


SCALARS: dict[type, type[TracedScalar]] = {
    kind: type(f"Traced_{kind.__name__}", (TracedScalar,), {"__slots__": (), "kind": kind})
    for kind in (
        *(numpy.bool_, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8),
        *(numpy.float16, numpy.float32, numpy.float64, numpy.complex64, numpy.complex128),
    )
}
"""By the class of a number of NumPy's: what stands for it."""


def scalar_of(tensor: torch.Tensor) -> TracedScalar:
    """The number in a tensor without dimensions."""
    array = layer().ndarray(tensor)
    return SCALARS[numpy.dtype(array.dtype.name).type](array)


def _is_backward(part: object) -> bool:
    return isinstance(part, slice) and part.step is not None and part.step < 0


def _turned(array: TracedArray, index: object) -> tuple[list[int], object]:
    """The dimensions that an index goes through backward, and the index of the array turned round in these that gives
    the same: what lies at `place` is at `~place` there. (The layer does this only for whole dimensions, and without
    looking at what stands in front.)"""
    parts = index if type(index) is tuple else (index,)
    if not any(map(_is_backward, parts)):
        return [], index
    lengths = list(map(_dimensions, parts))
    missing = array.tensor.dim() - sum(lengths)
    dims, turned, dim = [], [], 0
    for part, length in zip(parts, lengths):
        if _is_backward(part):
            dims.append(dim)
            start, stop = (None if end is None else -1 - end for end in (part.start, part.stop))
            part = slice(start, stop, -part.step)
        turned.append(part)
        dim += missing if part is Ellipsis else length
    if missing < 0:
        raise refused("ndarray.__getitem__")  # too many indices
    return dims, tuple(turned)


def _dimensions(part: object) -> int:
    """How many dimensions of an array a part of an index is about; of an ellipsis it is not known."""
    if part is None or part is Ellipsis or type(part) is bool:
        return 0
    if isinstance(part, (TracedArray, numpy.ndarray)):
        return part.ndim if part.dtype == numpy.bool_ else 1
    if isinstance(part, (slice, int, numpy.integer, torch.SymInt)):
        return 1
    raise refused("ndarray.__getitem__")


def _keeps_array(index: object) -> bool:
    """Whether an item of an array is an array even if it has no dimensions."""
    return index is Ellipsis or (type(index) is tuple and any(part is Ellipsis for part in index))


@fleeting
class ArrayMethod:
    """A bound method of an array."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: TracedArray, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with_defaults()
        method = getattr(self.owner.array, self.name)
        own = getattr(_class_of(self.owner), self.name, None)
        _refuse_written(self.name, own, (self.owner, *args), kwargs)
        like = expected(own, (self.owner, *args), kwargs, KIND)
        if self.name == "astype":  # what `like` is says whether it copies
            kwargs.pop("copy", None)
        return _answer(f"ndarray.{self.name}", method, args, kwargs, like, (self.owner, *args, *kwargs.values()))


def _class_of(array: TracedArray) -> type:
    return array.kind if isinstance(array, TracedScalar) else numpy.ndarray


def _tensor_of(value: object) -> Any:
    return value.tensor if isinstance(value, TracedArray) else None


def _array_like(tensor: TracedTensor, like: Any) -> Any:
    if isinstance(like, numpy.generic):
        return scalar_of(tensor)
    return TracedArray(layer().ndarray(tensor), like.flags.writeable)


KIND = Kind(_tensor_of, lambda value: isinstance(value, TracedScalar), _array_like)


def _answer(name: str, function: Any, args: Any, kwargs: Any, like: Any, given: Any) -> object:
    """What the layer's `function` returns, if NumPy's result would be `like` that (None: not known)."""
    if like is None and any(type(value) is TracedTensor for value in given):
        raise refused(name)  # what NumPy makes of tensors depends on its version
    try:
        result = out_of(function(*into(args), **into(kwargs)), given)
        return arranged(like, result, KIND, chosen_defaults(), given)
    except Unsupported:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError) as error:  # NumPy raises its own, if it does
        raise refused(name) from error


_COMPARISONS: dict[Any, Callable[..., Any]] = {
    numpy.equal: operator.eq,
    numpy.not_equal: operator.ne,
    numpy.less: operator.lt,
    numpy.less_equal: operator.le,
    numpy.greater: operator.gt,
    numpy.greater_equal: operator.ge,
}
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    numpy.add: operator.add,
    numpy.subtract: operator.sub,
    numpy.multiply: operator.mul,
    numpy.negative: operator.neg,
    numpy.absolute: operator.abs,
}
_DIVISIONS: dict[Any, Callable[..., Any]] = {
    numpy.floor_divide: operator.floordiv,
    numpy.remainder: operator.mod,
    numpy.true_divide: operator.truediv,
}
_AS_PYTHON = frozenset({numpy.int64, numpy.float64})  # Python computes the same of them, but for overflows


def _of_numbers(ufunc: object, args: Any, kwargs: object, like: Likeness | None) -> Any:
    """What a ufunc gives of numbers from outside as a number again, where Python computes the same; else None."""
    kinds = {arg.kind for arg in args if isinstance(arg, TracedScalar)}
    if kwargs or like is None or not kinds:
        return None
    numbers = [_number(arg, kinds) for arg in args]
    function = _COMPARISONS.get(ufunc)
    if function is None and kinds <= _AS_PYTHON and type(like.result) in _AS_PYTHON:
        function = _ARITHMETIC.get(ufunc)
        if function is None and _is_positive(numbers[-1]) and not any(map(is_data, numbers)):
            function = _DIVISIONS.get(ufunc)
        elif function is operator.mul and all(map(is_data, numbers)):  # no expression says that
            return None
    if function is None or any(number is None for number in numbers):
        return None
    result = function(*numbers)
    result = getattr(getattr(result, "node", None), "owner", result)
    kind = type(like.result)
    return SCALARS[kind](None, result) if type(result) in (torch.SymInt, torch.SymFloat, TracedFloat) else kind(result)


def _as_array(value: object) -> object:
    """A size as an array without dimensions: the layer would need to know it."""
    if type(value) is not torch.SymInt:
        return value
    return TracedArray(layer().ndarray(torch.full((), value)))  # type: ignore[call-overload]


def _is_positive(number: object) -> bool:
    """Whether a number is a positive integer: by zero, Python raises."""
    return type(number) in (int, torch.SymInt) and not is_data(number) and bool(number > 0)  # type: ignore[operator]


def _number(value: Any, kinds: set[Any]) -> Any:
    """An operand as a number of Python's, if it is one and NumPy does not round it to one of the `kinds`."""
    if isinstance(value, TracedScalar):
        return value.number
    cls = type(value)
    if cls is int or cls is torch.SymInt or (cls in (float, TracedFloat) and kinds <= _AS_PYTHON):
        return value
    if cls is float and len(kinds) == 1:
        (kind,) = kinds
        return float(kind(value)) if issubclass(kind, numpy.floating) else value
    return value.item() if cls in _AS_PYTHON else None


def refused(name: str) -> Unsupported:
    """The refusal of a function that cannot be captured."""
    return Unsupported(
        f"numpy.{name} has no exact counterpart in torch", None, operation=f"numpy.{name}(...)", kind="numpy_value"
    )


class Written(Unsupported):
    """A function of NumPy's, of arrays of the graph, writes to another `array`."""

    def __init__(self, name: str, array: object) -> None:
        super().__init__(f"numpy.{name} writes to an array of constants", None, kind="numpy_value")
        self.operation, self.array = f"numpy.{name}(...)", array


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


def chosen_defaults() -> dict[object, object]:
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
    function = (None if space else _MORE.get(name)) or getattr(layer(space), name, None)
    if function is None and (space or name not in _TYPED):
        raise refused(f"{space}.{name}" if space else name)
    with_defaults()
    own = getattr(getattr(numpy, space) if space else numpy, name, None)
    given = (*args, *kwargs.values())
    _refuse_written(name, own, args, kwargs)
    if isinstance(own, numpy.ufunc) and any(type(value) is TracedTensor and value.requires_grad for value in given):
        raise refused(name)  # NumPy does not take them
    like = expected(own, args, kwargs, KIND)
    if isinstance(own, numpy.ufunc):
        if (known := _of_numbers(own, args, kwargs, like)) is not None:
            return known
        args = _promoted([_as_array(arg) for arg in args], like)
    if not space and name in _TYPED:
        function = _of_type(name, like) or function
    if function is None:
        raise refused(name)
    return _answer(name, function, args, kwargs, like, given)


_WRITERS = frozenset({"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"})


def _refuse_written(
    name: str, own: Callable[..., object] | None, args: Sequence[object], kwargs: dict[str, object]
) -> None:
    """Raises Unsupported where a function of NumPy's writes to a real array: the layer would write to a copy."""
    written = kwargs.get("out")
    if name in _WRITERS:
        written = (*args[:1], *kwargs.values())
    elif written is None and own is not None and not isinstance(own, numpy.ufunc) and len(args) > 1:
        with contextlib.suppress(TypeError, ValueError):
            written = inspect.signature(own).bind_partial(*args).arguments.get("out")
    for value in written if type(written) is tuple else (written,):
        if type(value) is numpy.ndarray:
            raise Written(name, value)


def _converted(value: object) -> torch.Tensor:
    """What the layer has for a value, as a tensor."""
    tensor: torch.Tensor = layer().asarray(value).tensor
    return tensor


def _isin(
    element: object,
    test_elements: object,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> object:
    """`numpy.isin`."""
    tensors = [_converted(element), _converted(test_elements)]
    common = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    whole = not common.is_floating_point
    if common.is_complex or kind == "table" or (whole and any(t.dtype is torch.uint64 for t in tensors)):
        raise TypeError
    if not whole and len({tensor.dtype for tensor in tensors}) > 1:  # integers and float32 are float64 to NumPy
        common = torch.float64
    common = torch.uint8 if common is torch.bool else torch.float32 if common.itemsize == 2 and not whole else common
    operands = [tensor.to(common) for tensor in tensors]
    return layer().ndarray(torch.isin(*operands, assume_unique=assume_unique, invert=invert))


def _interp(
    x: object, xp: object, fp: object, left: object = None, right: object = None, period: object = None
) -> object:
    """`numpy.interp` without a period: NumPy's formula, also where differences are not finite."""
    given = [_converted(value) for value in (x, xp, fp)]
    if period is not None or given[2].is_complex():
        raise TypeError
    places, knots, values = (tensor.to(torch.float64).contiguous() for tensor in given)
    if knots.dim() != 1 or knots.shape != values.shape or knots.shape[0] == 0:
        raise ValueError
    at = places.reshape(-1)
    low = torch.searchsorted(knots[1:-1], at, right=True)
    high = low + int(knots.shape[0] > 1)
    x0, x1, y0, y1 = knots[low], knots[high], values[low], values[high]
    slope = (y1 - y0) / torch.where(x0 == x1, 1.0, x1 - x0)
    y = slope * (at - x0) + y0
    y = torch.where(y.isnan(), slope * (at - x1) + y1, y)
    y = torch.where((y.isnan() & (y0 == y1)) | (at == x0), y0, y)
    ends = [values[end] if value is None else _converted(value).to(y) for value, end in ((left, 0), (right, -1))]
    y = torch.where(at < knots[0], ends[0], torch.where(at == knots[-1], values[-1], y))
    y = torch.where(at > knots[-1], ends[1], torch.where(at.isnan(), at, y))
    return layer().ndarray(y.reshape(places.shape))


def _linspace(
    start: object,
    stop: object,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: object = None,
    axis: int = 0,
) -> object:
    """`numpy.linspace` between numbers, by NumPy's formula; `num` may be a symbol."""
    first, last = (_converted(into(_as_array(end))).to(torch.float64) for end in (start, stop))
    if retstep or axis or first.dim() or last.dim():
        raise TypeError
    steps = num - 1 if endpoint else num
    places: torch.Tensor = torch.arange(num, dtype=torch.float64)  # type: ignore[call-overload]
    y = first + places * ((last - first) / steps if steps > 0 else last - first)
    if endpoint and num > 1:
        y[-1] = last
    array = layer().ndarray(y)
    return array if dtype is None else array.astype(dtype)


_MORE: dict[str, Callable[..., object]] = {"isin": _isin, "interp": _interp, "linspace": _linspace}
"""Functions of NumPy's that the layer lacks, or has for numbers alone that are known, of its arrays."""


def _of_type(name: str, like: Likeness | None) -> Callable[..., object] | None:
    """A formula of ours whose result has the type of NumPy's, where that is an array of NumPy's own types."""
    result = None if like is None else like.result
    if chosen_defaults() or not isinstance(result, numpy.ndarray):
        return None
    return functools.partial(_TYPED[name], into(result.dtype).torch_dtype)


def _chosen(dtype: torch.dtype, condition: object, x: object, y: object) -> object:
    """`numpy.where` with values to choose from. The layer rounds Python's floats to types that NumPy does not."""
    choices = [(v.tensor if type(v) is TracedFloat else _converted(v)).to(dtype) for v in (x, y)]
    return layer().ndarray(torch.where(_converted(condition).to(torch.bool), *choices))


def _select(
    dtype: torch.dtype, condlist: Sequence[object], choicelist: Sequence[object], default: object = 0
) -> object:
    """`numpy.select`: the first choice whose condition holds."""
    for condition, choice in reversed(list(zip(condlist, choicelist))):
        default = _chosen(dtype, condition, choice, default)
    return default


_TYPED: dict[str, Callable[..., object]] = {"where": _chosen, "select": _select}
"""Functions of NumPy's of which NumPy tells the type of the result, their first argument here."""


def _promoted(args: Any, like: object) -> object:
    """The operands of a ufunc, integers converted first where its result is to be `like` floats."""
    kind = getattr(getattr(like, "result", None), "dtype", None)
    if not isinstance(kind, numpy.dtype):
        return args
    arrays = [arg for arg in args if isinstance(arg, TracedArray)]
    if kind.kind not in "fc" or any(array.dtype.kind not in "biu" for array in arrays):
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
        name = numpy.dtype(value).name
        return getattr(layer(), "bool_" if name == "bool" else name)
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


def to_array(tensor: torch.Tensor, writeable: bool = True) -> numpy.ndarray[Any, Any]:
    """The array in the memory of a result."""
    array = tensor.detach().resolve_conj().resolve_neg().numpy()
    if not writeable:
        array.flags.writeable = False
    return array


def to_scalar(tensor: torch.Tensor) -> object:
    """The number of NumPy's in a result."""
    return to_array(tensor)[()]


def _wrap(world: World, real: numpy.ndarray[Any, Any], source: Source) -> Any:
    if not config.trace_numpy:
        raise world.guards.refusal("numpy_value", "a NumPy array is read (trace_numpy is off)", "pass a tensor")
    if not real.flags.writeable:
        raise world.guards.refusal("numpy_value", "a read-only NumPy array is read", "pass a tensor or a copy")
    try:
        with torch._C._DisableTorchDispatch():
            tensor = as_tensor(real)
    except (TypeError, ValueError) as error:
        raise world.guards.refusal("numpy_value", f"a NumPy array is read that cannot be a tensor: {error}") from error
    tensor_guard(tensor, world.guards.where())
    world.guards.add(Source("attr", Source("attr", source, "flags"), "writeable"), "is", True)
    traced = world.wrap(tensor, Source("apply", source, (), as_tensor))
    return world.identities.mirror(TracedArray(layer().ndarray(traced)), source)


def _wrap_number(world: World, real: Any, source: Source, kind: Any) -> object:
    """A number that is a symbol, or a float of the graph, where one of Python's would be; else itself."""
    if not config.trace_numpy:
        return None
    world.guards.add(source, "type", type(real))
    number = world.wrap(kind(real), Source("apply", source, (), kind))
    return world.identities.mirror(real if type(number) is kind else SCALARS[type(real)](None, number), source)


def _recipe(rebuilder: Rebuilder, value: TracedArray) -> Recipe:
    return call_of(to_array, rebuilder.recipe(value.tensor), *rebuilder.constants(*[] if value.writeable else [False]))


def _recipe_of_scalar(rebuilder: Rebuilder, value: TracedScalar) -> Recipe:
    if value.number is not None:
        return call_of(value.kind, rebuilder.recipe(value.number))
    return call_of(to_scalar, rebuilder.recipe(value.tensor))


def _recipe_of_own_method(rebuilder: Rebuilder, value: types.MethodType) -> Recipe | None:
    """A method in Python that stands for one in C of an array; None for those of the program."""
    owner = value.__self__
    return rebuilder.attribute(owner, value.__func__.__name__) if isinstance(owner, TracedArray) else None


WRAPPERS[numpy.ndarray] = _wrap
RECIPES[TracedArray] = _recipe
for _kind, _class in SCALARS.items():
    RECIPES[_class] = _recipe_of_scalar
    if issubclass(_kind, (numpy.integer, numpy.floating)):
        _plain = float if issubclass(_kind, numpy.floating) else int
        WRAPPERS[_kind] = functools.partial(_wrap_number, kind=_plain)
RECIPES[ArrayMethod] = lambda rebuilder, value: rebuilder.attribute(value.owner, value.name)
RECIPES[types.MethodType] = _recipe_of_own_method
RECIPES[numpy.ndarray] = lambda rebuilder, value: call_of(numpy.copy, Recipe("constant", value.copy()))
for _code in numpy.typecodes["All"]:
    RECIPES[type(numpy.dtype(_code))] = lambda rebuilder, value: Recipe("constant", value)
