"""Constants that are equal but not the same: guards tell them apart, wherever they are read, and so does what is
written."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import itertools
import random
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.native.check import FIRST_RECORDING
from bolide.dynamo.program.kinds import same_constant


class Name(str):
    pass


class Count(int):
    pass


class Rate(float):
    pass


Point = collections.namedtuple("Point", "x")
HOUR = datetime.timedelta(hours=1)
ZONE, FAR = datetime.timezone(HOUR), datetime.timezone(2 * HOUR)
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=ZONE)
NAN = float("nan")

GROUPS: dict[str, list[Any]] = {
    "numbers": [1, 1.0, True, 1 + 0j, Count(1), Rate(1.0), decimal.Decimal(1), fractions.Fraction(1), numpy.int8(1)],
    "zeros": [0.0, -0.0, 0, False, Rate(0.0), Rate(-0.0), numpy.float64(0.0), numpy.float64(-0.0)],
    "complex zeros": [complex(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0)],
    "not a number": [NAN, -NAN, numpy.float64(NAN), decimal.Decimal("nan"), decimal.Decimal("-nan")],
    "decimals": [decimal.Decimal(text) for text in ("1.0", "1.00", "1", "1E+0", "10E-1")],
    "decimal zeros": [decimal.Decimal(text) for text in ("0", "-0", "0.0", "0E+1")],
    "float32": [numpy.float32(0.0), numpy.float32(-0.0), numpy.float16(0.0), numpy.float16(-0.0)],
    "widths": [kind(1) for kind in (numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8, numpy.float32)],
    "widest": [numpy.longdouble(0.0), numpy.longdouble(-0.0)],
    "dates of numpy": [numpy.datetime64("2024", "Y"), numpy.datetime64("2024-01", "M")],
    "moments": [NOON, NOON.astimezone(FAR), NOON.astimezone(datetime.timezone(HOUR, "A"))],
    "times": [NOON.timetz(), NOON.astimezone(FAR).timetz()],
    "folds": [datetime.datetime(2024, 1, 1, fold=fold) for fold in (0, 1)],
    "zones": [datetime.timezone(HOUR), datetime.timezone(HOUR, "A"), datetime.timezone(HOUR, "B")],
    "ranges": [range(0, 3, 2), range(0, 4, 2)],
    "empty ranges": [range(0), range(1, 1), range(5, 2)],
    "names": ["a", Name("a")],
    "bytes": [b"a", bytearray(b"a")],
    "tuples": [(1,), (1.0,), (True,), [1], Point(1), torch.Size([1])],
    "nested": [((0.0,), 1), ((-0.0,), 1), ((0.0,), 1.0), ((0,), 1)],
    "slices": [slice(0, 1), slice(0, True), slice(0.0, 1), slice(-0.0, 1)],
    "frozensets": [frozenset({1}), frozenset({1.0}), frozenset({True})],
    "order of frozensets": [frozenset([8, 0]), frozenset([0, 8])],
    "sets": [{1}, {1.0}, {True}],
    "order of sets": [{*order} for order in ((8, 0), (0, 8))],
    "dicts": [{1: 2}, {1.0: 2}, {True: 2}, {1: 2.0}],
    "order of dicts": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "values of dicts": [{"a": 0.0}, {"a": -0.0}],
    "lists": [[0.0, 1], [-0.0, 1], [0, 1], [0.0, True]],
    "unions": [int | str, str | int],
    "uuids": [uuid.UUID(int=1), uuid.UUID(int=1, is_safe=uuid.SafeUUID.safe)],
    "sizes": [torch.Size([1, 2]), (1, 2), [1, 2]],
}


def shown(value: Any) -> str:
    """All that a program sees of a constant."""
    if isinstance(value, datetime.datetime):
        return f"{value!r} {value.fold} {value.tzname()}"
    if isinstance(value, numpy.generic):
        return f"{value.dtype} {value} {numpy.signbit(value) if value.dtype.kind == 'f' else 0}"
    if isinstance(value, uuid.UUID):
        return f"{value} {value.is_safe}"
    if isinstance(value, float):
        return f"{type(value).__name__} {value!r} {torch.copysign(torch.ones(()), torch.tensor(float(value)))}"
    return f"{type(value).__name__} {value!r}"


@pytest.mark.parametrize("name", GROUPS)
def test_what_a_program_tells_apart_is_not_the_same(name: str) -> None:
    for first, second in itertools.product(GROUPS[name], repeat=2):
        apart = shown(first) != shown(second)
        assert same_constant(first, second) is not apart, (first, second)


def as_it_is(value: Any) -> Any:
    return value


PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    # what holds a value, and how it is read: (make, read)
    "argument": (as_it_is, lambda x, held: held),
    "attribute": (lambda v: types.SimpleNamespace(value=v), lambda x, held: held.value),
    "item of a list": (lambda v: [1, v], lambda x, held: held[1]),
    "item of a tuple": (lambda v: (v, torch.ones(1)), lambda x, held: held[0]),
    "value of a dict": (lambda v: {"a": v}, lambda x, held: held["a"]),
    "attribute of a module": (lambda v: with_value(v), lambda x, held: held.value),
}


def with_value(value: Any) -> nn.Module:
    made = nn.Identity()
    made.value = value
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GROUPS)
def test_guards_tell_them_apart(name: str, seed: int) -> None:
    """In each place, again and again: the native check comes after some calls that fit."""
    rng = random.Random(f"{seed} {name}")
    place = rng.choice([*PLACES])
    print(f"seed {seed}, place {place}")
    make, read = PLACES[place]
    holders = [make(value) for value in GROUPS[name]]

    def f(x: torch.Tensor, held: Any) -> Any:
        return x * 2, read(x, held)

    with config.patch(cache_size_limit=64):
        compiled = bolide.compile(f)
        for _ in range(2):
            for held in rng.sample(holders, len(holders)):
                for _ in range(FIRST_RECORDING + 1):
                    x = torch.randn(rng.randrange(2, 5))
                    expected, found = f(x, held), compiled(x, held)
                    assert torch.equal(expected[0], found[0])
                    assert type(expected[1]) is type(found[1])
                    assert repr(expected[1]) == repr(found[1])
                    if not isinstance(expected[1], (list, dict, set, bytearray)):
                        assert same_constant(expected[1], found[1])


WRITTEN = [name for name, group in GROUPS.items() if not isinstance(group[0], (bytes, list, dict, set))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRITTEN)
def test_what_replaces_an_equal_one_is_written(name: str, seed: int) -> None:
    rng = random.Random(f"{seed} {name}")
    old, new = rng.sample(GROUPS[name], 2)
    print(f"seed {seed}: {new!r} over {old!r}")
    holder, table, listed = with_value(old), {"value": old}, [old]

    def f(x: torch.Tensor) -> torch.Tensor:
        global written
        holder.value = table["value"] = listed[0] = written = new
        return x + 1

    globals()["written"] = old
    bolide.compile(f)(torch.randn(3))
    for found in (holder.value, table["value"], listed[0], globals()["written"]):
        assert type(found) is type(new)
        assert shown(found) == shown(new)


def test_a_text_that_is_given_an_attribute() -> None:
    name = Name("a")
    compiled = bolide.compile(lambda x, text: x + len(text) + hasattr(text, "mark"))
    for _ in range(2 * FIRST_RECORDING):
        assert compiled(torch.zeros(1), name).item() == 1
    name.mark = 1  # type: ignore[attr-defined]
    assert compiled(torch.zeros(1), name).item() == 2
