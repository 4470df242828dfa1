"""The error of every approximated function, swept over bit patterns of float32 against float64, and its special values
against eager."""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "ir"))
from kernel_tools import f32, load, loop, op, param, run, store, var

import bolide
from bolide.inductor.codegen.instructions import INSTRUCTIONS
from bolide.inductor.codegen.math32 import INLINE
from bolide.inductor.codegen.math_calls import MATH_CALLS
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.scalar_ops import DRAWS, SCALAR_OPS

SEED = int(os.environ["BOLIDE_TEST_SEED"])
#: Largest error in units in the last place of float32; 1 unless named.
BOUNDS = {
    "exp": 1.04,
    "expm1": 1.6,
    "exp2": 1.25,
    "tanh": 1.5,
    "sigmoid": 2.55,
    "erf": 1.1,
    "lgamma": 2,
    "erfc": 1.6,
    "acosh": 2.05,
    "asinh": 1.75,
    "atanh": 1.05,
    "log2": 1.05,
    "log10": 1.05,
    "cosh": 1.05,
    "sinh": 1.05,
}
#: Where eager's own formula is not accurate.
RANGES = {"sigmoid": (-88.7, math.inf), "lgamma": (2.5, 1e36)}
BINARY = {"pow", "atan2", "hypot", "fmod", "nextafter"}
SPECIAL = (
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1.0,
    -1.0,
    1e-45,
    -1e-45,
    1e-38,
    3.4e38,
    -3.4e38,
    88.72,
    89.5,
    -103.97,
    -104.0,
    -87.4,
    128.0,
    -149.5,
    -150.5,
)


def test_every_scalar_operation_has_code() -> None:
    assert INSTRUCTIONS.keys() | {"const", "index", "load", "acc", "cast", *DRAWS} == SCALAR_OPS.keys()


def apply(name: str, x: torch.Tensor) -> torch.Tensor:
    """The compiled function of every element of `x`."""
    n = x.numel()
    index = var("i", n)
    value = op(name, load("x", index, x.dtype))
    kernel = Kernel(
        name,
        (param("x", n, x.dtype), param("y", n, x.dtype, "out")),
        (loop("vector", "i", n, store("y", index, value)),),
    )
    y = torch.empty_like(x)
    run(kernel, {"x": x, "y": y})
    return y


def ulps(y: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|y - exact| in units in the last place of float32 at `exact` (float64); 0 where both are NaN or the same
    infinity."""
    rounded = exact.float()
    exponent = torch.frexp(exact.abs().clamp_min(2.0**-126)).exponent
    unit = torch.ldexp(torch.ones_like(exact), exponent.clamp_min(-125) - 24)
    error = (y.double() - exact).abs() / unit
    same = (y == rounded) | (y.isnan() & rounded.isnan())
    return torch.where(same, 0.0, torch.where(y.isfinite() & rounded.isfinite(), error, torch.inf))


def test_one_plus_erf() -> None:
    """The factor of GELU is within 0 and 2, and exact where GELU multiplies it by large numbers; with it GELU is as
    exact as eager's."""
    bits = torch.arange(SEED % 1021, 1 << 32, 1021) - (1 << 31)
    x = bits.to(torch.int32).view(f32)
    y, exact = apply("erf_plus_1", x), torch.erf(x.double()) + 1
    assert torch.equal(y.isnan(), x.isnan())
    error = (y.double() - exact).abs().nan_to_num(0)
    assert float(error.max()) <= 2.0**-21, f"seed {SEED}: {x[int(error.argmax())].item()!r} is off by {error.max()}"
    far = torch.tensor([3.92, 4.0, 5.0, 1e30, math.inf])
    assert torch.equal(apply("erf_plus_1", torch.cat([far, -far])), torch.tensor([2.0] * 5 + [0.0] * 5))
    assert float(y.nan_to_num(0).min()) >= 0 and float(y.nan_to_num(2).max()) <= 2
    near = 6 * torch.randn(1 << 16)
    gelu = torch.nn.functional.gelu(near.double())
    ours = near * 0.5 * apply("erf_plus_1", near * 0.7071067811865476)
    errors = [(some.double() - gelu).abs() for some in (ours, torch.nn.functional.gelu(near))]
    assert float(errors[0].max()) <= 1.1 * float(errors[1].max()), f"seed {SEED}"
    assert float(errors[0].mean()) <= float(errors[1].mean()), f"seed {SEED}"
    wide = torch.randn(1000, dtype=torch.float64)
    torch.testing.assert_close(apply("erf_plus_1", wide), torch.erf(wide) + 1)


@pytest.mark.parametrize("name", sorted((set(INLINE) | set(MATH_CALLS)) - BINARY))
def test_error_bound(name: str) -> None:
    step = 1021
    bits = torch.arange(SEED % step, 1 << 32, step) - (1 << 31)
    x = bits.to(torch.int32).view(f32)
    low, high = RANGES.get(name, (-math.inf, math.inf))
    x = x[(x >= low) & (x <= high) | x.isnan()]
    reference = getattr(torch, name)(x.double())
    error = ulps(apply(name, x), reference)
    worst = int(error.argmax())
    assert float(error[worst]) <= BOUNDS.get(name, 1.0), (
        f"seed {SEED}: {name}({x[worst].item()!r}) is off by {error[worst].item():.3f} ulp"
    )


@pytest.mark.parametrize("name", sorted((set(INLINE) | set(MATH_CALLS)) - BINARY))
@pytest.mark.parametrize("dtype", [f32, torch.float64], ids=str)
def test_special_values(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    torch.testing.assert_close(apply(name, x), getattr(torch, name)(x), equal_nan=True)
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)
    assert torch.equal(apply(name, zeros).signbit(), getattr(torch, name)(zeros).signbit())


def seconds(function: Callable[..., object], args: list[torch.Tensor]) -> float:
    """What a warm call takes at least."""
    function(*args)
    taken = []
    for _ in range(15):
        start = time.perf_counter()
        function(*args)
        taken.append(time.perf_counter() - start)
    return min(taken)


def in_time(function: Any, args: list[torch.Tensor]) -> bool:
    compiled = bolide.compile(function)
    return any(seconds(compiled, args) < 4 * seconds(function, args) + 2e-5 for _ in range(4))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a machine with other work threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_no_operation_takes_many_times_what_it_takes_in_eager(dtype: torch.dtype) -> None:
    """Such as one that the C library is asked for number by number, where eager has a function of vectors."""
    slow = []
    for name in random.sample([name for name in SCALAR_OPS if SCALAR_OPS[name].result != "own"], 12):
        known = SCALAR_OPS[name]
        assert known.evaluate
        args = [(torch.rand(1 << 15) * 50 + 1).to(dtype) for _ in range(known.operands)]
        try:
            known.evaluate(*args)
        except (RuntimeError, NotImplementedError):
            continue  # not of such numbers
        if not in_time(known.evaluate, args):
            slow.append(name)
    assert not slow, slow
