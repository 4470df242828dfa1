"""Operations that are given floats of the graph: recorded with tensors in the numbers' places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from bolide.symbolic import Ratio, Size
from bolide.tracing.numbers.scalars import ScalarNode, of
from bolide.tracing.recording.recorder import Recorder


def with_tensors(trace: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation on traced floats answers, recorded with tensors in their place; else NotImplemented."""
    if not any(map(_has_scalar, args)) and not any(map(_has_scalar, kwargs.values())):
        return NotImplemented
    name = func._name.removeprefix("aten::").partition(".")[0]
    if name.startswith("_foreach_"):
        return NotImplemented  # taken apart first
    form = None if "out" in kwargs else _FORMS.get(name.rstrip("_"))
    with trace.recording():
        if form is None:
            return func(*map(_known, args), **{key: _known(value) for key, value in kwargs.items()})
        stands_for = _alone if _is_given_numbers(func, args) else _tensor
        result = form(*map(stands_for, args), **{key: stands_for(value) for key, value in kwargs.items()})
        return args[0].copy_(result) if name.endswith("_") else result


#: functions whose derivatives compare numbers, or compute with them, which C++ cannot do with symbolic ones
_DERIVED_WITH_NUMBERS = frozenset(("pow", "pow_", "ipow", "__rpow__", "lerp", "lerp_"))


def for_derivatives(
    function: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function that C++ is going to derive: integers of a power are numbers, of which the program
    depends, and floats are tensors."""
    name = getattr(function, "__name__", "")
    if name not in _DERIVED_WITH_NUMBERS:
        return args, kwargs
    operands = (getattr(function, "__self__", None), *args, *kwargs.values())
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    derived = any(tensor.requires_grad for tensor in tensors)
    if not derived or (tensors[0].dtype.itemsize < 4 and name.startswith("lerp")):
        return args, kwargs  # (the derivative of a `lerp` would round the weight)
    dtype = torch.result_type(tensors[0], 1.0)
    return tuple([_derivable(arg, dtype) for arg in args]), {key: _derivable(arg, dtype) for key, arg in kwargs.items()}


def _derivable(arg: object, dtype: torch.dtype) -> object:
    if isinstance(arg, torch.SymInt):
        return int(arg)
    return of(arg).tensor.to(dtype) if isinstance(arg, torch.SymFloat) else arg


def _has_scalar(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_has_scalar, value))
    return isinstance(value, torch.SymFloat) and (type(value.node) is ScalarNode or type(value.node.expr) is Ratio)


def _tensor(value: Any) -> Any:
    return of(value).tensor if _has_scalar(value) else value


def _is_given_numbers(func: OpOverload, args: tuple[object, ...]) -> bool:
    """Whether all that a function of tensors is given are numbers."""
    return str(func._schema.arguments[0].type) == "Tensor" and not any(isinstance(arg, torch.Tensor) for arg in args)


def _alone(value: Any) -> Any:
    """A number that is given for a tensor, where there are only numbers, has the default type."""
    return of(value).tensor.to(torch.get_default_dtype()) if _has_scalar(value) else value


def _known(value: Any) -> Any:
    return float(of(value)) if _has_scalar(value) else value


def _like(scalar: Any, x: torch.Tensor) -> Any:
    """A scalar's tensor in the type that the number would have next to `x`: numbers never widen it."""
    if not isinstance(scalar, torch.Tensor) or scalar.dim() or not isinstance(x, torch.Tensor):
        return scalar
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return scalar.to(x.dtype) if x.dtype.itemsize >= 4 or not x.dim() else scalar
    return scalar.to(torch.get_default_dtype())


def _is_number_beside(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the number among two operands is the first; it is in float64."""
    return not x.dim() and bool(y.dim() or (x.dtype is torch.float64 and y.dtype is not torch.float64))


def _binary(op: Callable[..., torch.Tensor], sign: int = 1) -> Callable[..., torch.Tensor]:
    def form(x: Any, y: Any, *rest: Any, alpha: Any = None, **options: Any) -> torch.Tensor:
        if isinstance(alpha, torch.Tensor):
            if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
                kind = torch.result_type(x, y)
                if not (kind.is_floating_point or kind.is_complex):
                    return op(x, y, alpha=0.5)  # which raises
                return _computed(lambda x, y: torch.addcmul(x, y, (sign * alpha).to(kind).to(x.dtype)), kind, x, y)
            y = y * _like(alpha, y)
        elif alpha is not None:
            y = y * alpha
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            x, y = (_like(x, y), y) if _is_number_beside(x, y) else (x, _like(y, x))
        return op(x, y, *rest, **options)

    return form


def _addc(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def form(x: Any, a: Any, b: Any, value: Any = 1) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return op(x, a, b, value=value)
        if x.dtype is a.dtype is b.dtype:
            return _computed(lambda x, a, b: op(x, a * value.to(x.dtype), b), x.dtype, x, a, b)
        return op(x, a * _like(value, a), b)

    return form


def _computed(op: Callable[..., torch.Tensor], kind: torch.dtype, *operands: torch.Tensor) -> torch.Tensor:
    """An operation in the type in which eager's kernels compute results of type `kind`, rounded once. With them,
    ``x + alpha * y`` is one fused operation, as in `addcmul`, and ``alpha * a`` is the first product of three."""
    work = torch.float32 if kind.is_floating_point and kind.itemsize < 4 else kind
    return op(*(operand.to(work) for operand in operands)).to(kind)


def _lerp(x: Any, end: Any, weight: Any) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return torch.lerp(x, end, 0.5)  # says what eager does of these
    return torch.lerp(x, end, _like(weight, x))


def _full(size: Sequence[Size], value: Any, **options: Any) -> torch.Tensor:
    dtype = options.get("dtype") or torch.get_default_dtype()
    return value.to(dtype).expand(size).clone(memory_format=torch.contiguous_format)  # type: ignore[no-any-return]


def _new_full(x: torch.Tensor, size: Any, value: Any, **options: Any) -> torch.Tensor:
    value = torch.as_tensor(value, dtype=options.get("dtype") or x.dtype, device=options.get("device") or x.device)
    return value.expand(size).clone(memory_format=torch.contiguous_format)  # type: ignore[no-any-return]


def _full_like(x: torch.Tensor, value: torch.Tensor, **options: object) -> torch.Tensor:
    return torch.empty_like(x, **options).fill_(value)  # type: ignore[arg-type]


def _clamp(x: Any, low: Any = None, high: Any = None, **bounds: Any) -> torch.Tensor:
    low, high = bounds.get("min", low), bounds.get("max", high)
    for bound, op in ((low, torch.maximum), (high, torch.minimum)):
        if bound is not None:
            x = op(x, _like(bound, x) if isinstance(bound, torch.Tensor) else torch.full((), bound, dtype=x.dtype))
    return x  # type: ignore[no-any-return]


_FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "add": _binary(torch.add),
    "sub": _binary(torch.sub, -1),
    "rsub": lambda x, y, alpha=None: _binary(torch.sub, -1)(y, x, alpha=alpha),
    "mul": _binary(torch.mul),
    "div": _binary(torch.div),
    "pow": _binary(torch.pow),
    "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum),
    "addcmul": _addc(torch.addcmul),
    "addcdiv": _addc(torch.addcdiv),
    **{name: _binary(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod")},
    "lerp": _lerp,
    "full": _full,
    "new_full": _new_full,
    "full_like": _full_like,
    "masked_fill": lambda x, mask, value: x.masked_fill(mask, _like(value, x).to(x.dtype)),
    "scalar_tensor": lambda value, **options: _full((), value, **options),
    "fill": lambda x, value: _like(value, x).to(x.dtype).expand_as(x),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "where": lambda mask, x, y: torch.where(mask, _like(x, y), _like(y, x)),
}
