"""Elementwise functions of op_db on edge values, through inductor: NaN, infinities, signs of zeros and integers are
eager's exactly, other numbers within some units in the last place.

The sweep is run by hand: python tests/fuzz/test_edge_values.py
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import bolide
from tests.opdb_tools import OPERATIONS

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}
ULPS = {torch.float32: 4, torch.float64: 4, torch.bfloat16: 2, torch.float16: 2}
#: polynomials of a degree as large as the numbers: eager counts up to it
ENDLESS = ("polynomial", "zeta", "polygamma", "igamma")
UNARY = [op for op in OPERATIONS if type(op).__name__ == "UnaryUfuncInfo"]
BINARY = [op for op in OPERATIONS if type(op).__name__ == "BinaryUfuncInfo"]

#: what is not compared: draws; eager's vector loops give NaN where a quotient is infinite; its scalar loops other
#: signs of zeros than its vector loops; sums that cancel; results that are subnormal in the middle of a formula
KNOWN = {
    name: kinds
    for names, kinds in (
        ("nn.functional.rrelu", {"all"}),
        ("fmod remainder __rmod__", {"nan"}),
        ("fmin fmax minimum maximum clamp_min clamp_max max min nn.functional.softshrink", {"zero"}),
        ("cosh sinh", {"infinite"}),
        ("logaddexp logaddexp2 nn.functional.mish logit erf", {"far"}),
    )
    for name in names.split()
}
#: where eager divides the smallest integer by -1 and the process dies, or refuses a division by zero
DIVIDES = {"div", "floor_divide", "remainder", "fmod", "gcd", "lcm", "__rmod__", "__rdiv__"}

FLOATS = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 0.1, 1 / 3, 10.0, 100.7, 1e-3, 1e-8, 1e10, 3e5, 12345.678, 4194304.5]
FLOATS += [8388607.5, 16777217.0, 2147483648.0, 9.3e18, math.pi, math.pi / 2, math.e, 9.0, 18.0, 20.0, 35.0, 170.6]
FLOATS += [87.3, 88.0, 88.72, 88.73, 89.0, 89.4, 103.9, 104.0, 127.9, 128.0, 150.0, 0.9999999, 1.0000001, 1e22, 0.0]
FLOATS += [math.inf, math.nan]
DOUBLES = [709.0, 709.7, 709.8, 710.2, 710.5, 745.0, 746.0, 1e154, 1.4e154, 1e200, 1.797e308, 4503599627370497.5, 1e300]
SINGLES = [3.4028235e38, 1.8e19, 1e19, 2e-23, 1e30, 1.1754944e-38]
PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.0, 100.0, 1e-8, math.inf, -math.inf, math.nan]
INTEGERS = [0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, 65, 100]


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if dtype.is_complex:
        return torch.tensor([complex(a, b) for a, b in itertools.product(PARTS, PARTS)], dtype=dtype)
    if dtype.is_floating_point:
        values = FLOATS + (DOUBLES if dtype is torch.float64 else SINGLES)
        return torch.tensor([sign * value for value in values for sign in (1.0, -1.0)], dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    ends = [limits.max, limits.max - 1, limits.max // 2, limits.max // 2 + 1]
    ends += [limits.min, limits.min + 1, limits.min // 2] if limits.min else []
    values = INTEGERS + [-value for value in INTEGERS if limits.min] + ends
    return torch.tensor([value for value in values if limits.min <= value <= limits.max], dtype=dtype)


def arguments(op: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Three times over, so that whole vectors, and what is left behind them, meet all values."""
    values = edge_values(dtype)
    if op in UNARY:
        return (values.repeat(3),)
    values = values[:: 9 if dtype.is_complex else 1]
    left, right = values.repeat_interleave(len(values)), values.repeat(len(values))
    if op.name in DIVIDES and not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        fair = (left != 0) & (right != 0)
        fair &= (left > torch.iinfo(dtype).min) & (right > torch.iinfo(dtype).min) if dtype is not torch.uint8 else fair
        left, right = left[fair], right[fair]
    return left.repeat(3), right.repeat(3)


def differences(name: str, mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Where results differ by more than they may."""
    known = KNOWN.get(name, set())
    if theirs.dtype.is_complex:
        parts = [torch.view_as_real(value.resolve_conj()) for value in (mine, theirs)]
        return differences(name, *parts).any(-1)
    if not theirs.dtype.is_floating_point:
        return mine != theirs
    wrong = torch.zeros(theirs.shape, dtype=torch.bool)
    if "nan" not in known:
        wrong |= mine.isnan() != theirs.isnan()
    numbers = ~mine.isnan() & ~theirs.isnan()
    if "infinite" not in known:
        wrong |= numbers & (mine.isinf() | theirs.isinf()) & (mine != theirs)
    if "zero" not in known:
        wrong |= (mine == 0) & (theirs == 0) & (mine.signbit() != theirs.signbit())
    if "far" not in known:
        finite = mine.isfinite() & theirs.isfinite()
        least = torch.finfo(theirs.dtype).tiny
        tiny = (mine.abs() <= 8 * least) & (theirs.abs() <= 8 * least)
        wrong |= finite & ~tiny & ((places(mine) - places(theirs)).abs() > ULPS[theirs.dtype])
    return wrong


def places(values: torch.Tensor) -> torch.Tensor:
    """The numbers counted from 0, as many as the type has."""
    bits = values.contiguous().view(BITS[values.dtype]).to(torch.int64)
    sign = 1 << (8 * values.dtype.itemsize - 1)
    return torch.where(bits < 0, -(bits & (sign - 1)), bits)


def faults(op: Any, dtype: torch.dtype) -> Iterator[str]:
    sample = next(iter(op.sample_inputs("cpu", dtype)))
    options = {key: value for key, value in sample.kwargs.items() if not isinstance(value, torch.Tensor)}
    rest = sample.args if op in UNARY else ()
    given = arguments(op, dtype)

    def function(*tensors: torch.Tensor) -> Any:
        return op.op(*tensors, *rest, **options)

    try:
        expected = function(*given)
    except (RuntimeError, ZeroDivisionError, TypeError, IndexError):
        return  # eager refuses some of these values
    found = bolide.compile(function)(*given)
    pairs = zip(found, expected) if isinstance(expected, (tuple, list)) else [(found, expected)]
    for mine, theirs in pairs:
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        wrong = differences(op.name, mine, theirs).nonzero().flatten().tolist()
        if wrong:
            shown = [f"{[x[i].item() for x in given]}: {theirs[i].item()}, not {mine[i].item()}" for i in wrong[:3]]
            yield f"{op.name} {op.variant_test_name} {dtype}, {len(wrong)} differ: {'; '.join(shown)}"


def sweep() -> tuple[int, list[str]]:
    """All functions and types, in random order: how many were compared, and what was wrong."""
    cases = [(op, dtype) for op in [*UNARY, *BINARY] for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]
    cases = [case for case in cases if not any(word in case[0].name for word in ENDLESS)]
    cases = [case for case in cases if "all" not in KNOWN.get(case[0].name, ())]
    random.shuffle(cases)
    return len(cases), [fault for op, dtype in cases for fault in faults(op, dtype)]


@pytest.mark.parametrize("name", ["cosh", "sinh"])
def test_hyperbolic_functions_are_finite_where_the_result_fits(name: str) -> None:
    x = torch.cat([torch.linspace(80.0, 89.41, 1000), -torch.linspace(80.0, 89.41, 1000)])
    exact = getattr(torch, name)(x.double())
    torch.testing.assert_close(bolide.compile(getattr(torch, name))(x).double(), exact, rtol=3e-7, atol=0.0)


@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        torch.nn.functional.relu6,
        lambda x: x.clamp(min=0),
        lambda x: x.clamp(max=0.0),
        lambda x: x.clamp(-1, 0),
        lambda x: torch.nn.functional.hardtanh(x, 0.0, 6.0),
        lambda x: torch.clamp(x, torch.zeros(()), torch.ones(())),
    ],
)
def test_signs_of_zeros_are_kept(function: Any) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, math.nan, -2.0, 7.0])
    mine, theirs = bolide.compile(function)(x), function(x)
    torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(mine.signbit() & ~mine.isnan(), theirs.signbit() & ~theirs.isnan())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compared, found = sweep()
    print("\n".join([*found, f"{compared} functions and types, {len(found)} faults"]))
    sys.exit(bool(found))
