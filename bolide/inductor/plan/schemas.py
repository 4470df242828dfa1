"""Calls by their schema: the arguments of an operator in order, each of the type that the schema says."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from bolide.inductor.plan.steps import Foreign, Operator, Ref, Value
from bolide.support.caches import on_reset
from bolide.symbolic import Expr
from bolide.tracing.graph import Handle

Keep = Callable[[object], Foreign]
"""Keeps an object beside the plan."""

_PLAIN = (Ref, Foreign, Expr, torch.dtype, torch.device, torch.layout, torch.memory_format)
_NUMBERED: dict[str, tuple[torch.dtype | torch.layout | torch.memory_format, ...]] = {
    "ScalarType": (
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64),
        *(torch.complex32, torch.complex64, torch.complex128, torch.bool),
    ),
    "Layout": (torch.strided,),
    "MemoryFormat": (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d),
}
"""What schemas write defaults of these types as numbers for (the order of c10's enumerations)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of an argument or a result: ``base`` is int, float, bool, number, str, Tensor, Device, …, or "list" of
    `item`; `count`: how many, where a single one stands for so many."""

    base: str
    optional: bool = False
    item: Kind | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a schema. `default` is None unless `has_default`."""

    name: str
    kind: Kind
    keyword: bool
    has_default: bool
    default: Value


@dataclass(frozen=True, slots=True)
class Signature:
    """A schema as the plan reads it."""

    parameters: tuple[Parameter, ...]
    returns: tuple[Kind, ...]


ANY = Kind("Any", optional=True)


class BadArgument(TypeError):
    """An argument that is not of the type that its operator's schema says."""


def operator_of(op: torch._ops.OpOverload) -> Operator:
    """The name of an overload."""
    return Operator(op._schema.name, op._schema.overload_name)


def overload_of(operator: Operator) -> torch._ops.OpOverload:
    """The overload of that name. LookupError if there is none."""
    namespace, _, name = operator.name.partition("::")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), name), operator.overload or "default")
    except AttributeError:
        raise LookupError(f"there is no operator {operator}") from None
    assert isinstance(found, torch._ops.OpOverload)
    return found


@functools.lru_cache(4096)
def signature_of(op: torch._ops.OpOverload) -> Signature:
    """The signature of an overload."""
    parameters = []
    for argument in op._schema.arguments:
        kind = _kind(str(getattr(argument, "real_type", argument.type)), getattr(argument, "N", None))
        has_default = argument.has_default_value()
        default = typed(kind, argument.default_value, refuse) if has_default else None
        parameters.append(Parameter(argument.name, kind, argument.kwarg_only, has_default, default))
    return Signature(tuple(parameters), tuple([_kind(str(result.type), None) for result in op._schema.returns]))


on_reset(signature_of.cache_clear)


@functools.lru_cache(256)
def _kind(text: str, count: int | None) -> Kind:
    """The kind that torch writes as `text`: ``Optional[List[int]]``."""
    outer = re.fullmatch(r"(Optional|List)\[(.*)\]", text)
    if outer is None:
        return Kind(text)
    inner = _kind(outer[2], count)
    if outer[1] == "List":
        return Kind("list", item=inner, count=count)
    return Kind(inner.base, True, inner.item, inner.count)


def arguments_of(
    op: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object], keep: Keep
) -> tuple[Value, ...]:
    """All arguments of a call in the order of its schema. What is no data is kept beside the plan.

    Raises BadArgument for what the schema does not allow."""
    parameters = signature_of(op).parameters
    if len(args) > len(parameters):
        raise BadArgument(f"{op} takes {len(parameters)} arguments, not {len(args)}")
    values: list[Value] = []
    for place, parameter in enumerate(parameters):
        if place < len(args):
            values.append(typed(parameter.kind, args[place], keep))
        elif parameter.name in kwargs:
            values.append(typed(parameter.kind, kwargs[parameter.name], keep))
        elif parameter.has_default:
            values.append(parameter.default)
        else:
            raise BadArgument(f"{op} is not given {parameter.name}")
    return tuple(values)


def shown_arguments(op: torch._ops.OpOverload, values: Sequence[Value]) -> tuple[list[Value], dict[str, Value]]:
    """The arguments that have to be said, by position and by name: not those that are their defaults."""
    positional: list[Value] = []
    named: dict[str, Value] = {}
    left_out = False
    for parameter, value in zip(signature_of(op).parameters, values, strict=True):
        if parameter.has_default and repr(value) == repr(parameter.default):  # tells 0.0 from -0.0, too
            left_out = True
        elif left_out or parameter.keyword:
            named[parameter.name] = value
        else:
            positional.append(value)
    return positional, named


def typed(kind: Kind, value: object, keep: Keep) -> Value:
    """A value as an argument of this kind."""
    if value is None:
        return None
    if kind.item is not None:
        if isinstance(value, (list, tuple)):
            return tuple([typed(kind.item, item, keep) for item in value])
        return (typed(kind.item, value, keep),) * (kind.count or 1)
    if type(value) is Handle:
        return keep(value)
    if isinstance(value, (list, tuple)):
        return tuple([typed(kind, item, keep) for item in value])
    if isinstance(value, (bool, int, float, complex, Expr)):
        return _number(kind.base, value)
    if isinstance(value, str):
        return torch.device(value) if kind.base == "Device" else value
    return value if isinstance(value, _PLAIN) else keep(value)


def _number(base: str, value: complex | Expr) -> Value:
    if base in _NUMBERED and isinstance(value, int):
        return _NUMBERED[base][value]
    if isinstance(value, Expr):
        return float(value.value) if base == "float" and value.is_const else value
    if base == "bool" or (isinstance(value, bool) and base in ("number", "Any", "Tensor")):
        return bool(value)
    if isinstance(value, int):  # a bool, too
        return float(value) if base == "float" else Expr.const(int(value))
    return float(value) if isinstance(value, float) else complex(value)


def refuse(value: object) -> Foreign:
    """Keeps nothing."""
    raise BadArgument(f"{value!r} cannot be an argument")


def fault_of(kind: Kind, value: Value) -> str | None:
    """What is wrong with a value of this kind, if something is."""
    if value is None:
        return None if kind.optional or kind.base == "Tensor" else "None is given"  # a tensor may be undefined
    if isinstance(value, Foreign):
        return None
    if kind.item is not None:
        if not isinstance(value, tuple):
            return f"{value} is no list"
        return next((fault for item in value if (fault := fault_of(kind.item, item)) is not None), None)
    allowed = _ALLOWED.get(kind.base)
    if allowed is None or isinstance(value, allowed):
        return None
    return f"{value!r} is no {kind.base}"


_ALLOWED: dict[str, tuple[type, ...]] = {
    "Tensor": (Ref, Expr, bool, float, complex),  # a number stands for a tensor that no type is promoted to
    "int": (Expr,),
    "SymInt": (Expr,),
    "float": (float, Expr),
    "bool": (bool,),
    "number": (Expr, bool, float, complex),
    "str": (str,),
    "Device": (torch.device,),
    "ScalarType": (torch.dtype,),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
}
