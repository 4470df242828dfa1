"""When two constants are the same: the one answer for guards, for native checks, and for what was written."""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from bolide.dynamo.program.kinds import CONSTANT_TYPES, IDENTITY, own_namespace


def same_constant(value: Any, expected: Any) -> bool:
    """Whether a program that does not look at identity cannot tell two constants apart. What is equal need not be the
    same: -0.0 and 0.0, Decimal("1.0") and Decimal("1.00"), one moment in two time zones, sets in another order."""
    cls = type(value)
    if cls is not type(expected):
        return False
    parts = _PARTS.get(cls)
    if parts is not None:
        first, second = parts(value), parts(expected)
        return len(first) == len(second) and all(map(same_constant, first, second))
    if cls is float:
        equal = value == expected or (value != value and expected != expected)
        return equal and math.copysign(1.0, value) == math.copysign(1.0, expected)
    if cls in IDENTITY or isinstance(expected, (type, datetime.tzinfo)):
        return value is expected
    if cls in CONSTANT_TYPES:
        return bool(value == expected)
    if isinstance(expected, numpy.generic):
        return value.dtype == expected.dtype and _bits(value) == _bits(expected)
    base: Any = next((base for base in _DERIVED_FROM if isinstance(expected, base)), None)
    if base is None:
        return value is expected or bool(value == expected)
    plain = same_constant(base.__getnewargs__(value), base.__getnewargs__(expected))
    return plain and not own_namespace(value) and not own_namespace(expected)


_DERIVED_FROM = (float, int, str, bytes)


def _bits(number: numpy.generic) -> object:
    """What is in a number of NumPy's. (The widest floats have bytes that mean nothing.)"""
    return repr(number) if number.dtype.char in "gG" else number.tobytes()


def _itself(value: Any) -> Any:
    return value


def _bounds(value: Any) -> Sequence[Any]:
    return value.start, value.stop, value.step


def _moment(value: Any) -> Any:
    return value.__reduce_ex__(4)[1]  # the fold is in the bytes, the zone behind them


_PARTS: dict[type, Callable[[Any], Any]] = {
    tuple: _itself,
    list: _itself,
    torch.Size: _itself,
    set: list,
    frozenset: list,
    dict: lambda table: list(table.items()),
    slice: _bounds,
    range: _bounds,
    complex: lambda number: (number.real, number.imag),
    decimal.Decimal: lambda number: tuple(number.as_tuple()),
    fractions.Fraction: lambda number: (number.numerator, number.denominator),
    uuid.UUID: lambda name: (name.int, name.is_safe),
    numpy.finfo: lambda info: (info.dtype,),
    numpy.iinfo: lambda info: (info.dtype,),
    datetime.date: _moment,
    datetime.time: _moment,
    datetime.datetime: _moment,
    datetime.timezone: lambda zone: zone.__getinitargs__(),
}
"""What tells apart two instances of a class: compared one by one."""
