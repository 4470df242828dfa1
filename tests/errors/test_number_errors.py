"""What eager refuses of an operation's numbers and types is refused with symbols, too, and with numbers that only later
calls give; what it takes is taken."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.dynamo.config import config
from bolide.tracing.rules import kernels

linear = torch._C._nn.linear


def square(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(5, 5).to(dtype)


def normed(x: Tensor, n: int, c: int, area: int, groups: int, weight: Any = None, bias: Any = None) -> Any:
    return torch.native_group_norm(x, weight, bias, n, c, area, groups, 1e-5)


def scaled(mode: str, rank: int) -> Any:
    return lambda s: F.interpolate(torch.ones(2, 3, *[4] * rank, dtype=torch.int64), (s,) * rank, mode=mode)


whole, double = torch.int64, torch.float64
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "index_fill": (lambda x, d: x.index_fill(d, torch.tensor([0]), 2.0), lambda: (square(), 41)),
    "scatter": (lambda x, d: x.scatter(d, torch.tensor([[0]]), 2.0), lambda: (square(), -41)),
    "var": (lambda x, d: x.var(d), lambda: (square(torch.complex64), 41)),
    "std_mean": (lambda x, d: torch.std_mean(x, (d,)), lambda: (square(torch.complex64), -41)),
    "amax": (lambda x, d: x.amax(d), lambda: (square(), (0, -2))),
    "huber": (lambda x, d: F.huber_loss(x, x, delta=d), lambda: (square(), 0)),
    "masked_fill": (lambda x, v: x.masked_fill(x > 0, v), lambda: (square(), 2j)),
    "roll": (lambda x, d: x.roll(1, d), lambda: (square(), 41)),
    "roll of nothing": (lambda x, d: x.roll(1, d), lambda: (torch.zeros(0, 3), 41)),
    "channels": (normed, lambda: (torch.randn(1, 3, 4), 1, 43, 4, 1)),
    "groups": (normed, lambda: (torch.randn(1, 3, 4), 1, 3, 4, 2)),
    "negative groups": (normed, lambda: (torch.randn(1, 3, 4), 1, 3, 4, -41)),
    "weight": (normed, lambda: (torch.randn(1, 3, 4), 1, 3, 4, 3, torch.ones(4))),
    "bias": (normed, lambda: (torch.randn(1, 3, 4), 1, 3, 4, 3, None, torch.ones(4))),
    "as many": (normed, lambda: (torch.randn(2, 3, 4), 1, 6, 4, 3)),
    "linear": (lambda x, o: linear(x, x, out=o), lambda: (square(), square(double))),
    "matmul": (lambda x, o: torch.matmul(x, x, out=o), lambda: (square(), square(double))),
    "lerp": (lambda x, w: torch.lerp(x, x, w), lambda: (square(whole), 0.4)),
    "lerp, out": (lambda x, w, o: torch.lerp(x, x, w, out=o), lambda: (square(), 0.4, square(double))),
    "addcmul": (lambda x, w, o: torch.addcmul(x, x, x, value=w, out=o), lambda: (square(), 0.4, square(double))),
    **{mode: (scaled(mode, rank), lambda: (3,)) for rank, mode in enumerate(("linear", "bilinear", "trilinear"), 1)},
    "nearest": (scaled("nearest", 2), lambda: (3,)),
    "bicubic": (scaled("bicubic", 2), lambda: (3,)),
    "no such dimension": (torch.gather, lambda: (square(), 40, torch.zeros(0, dtype=torch.int64))),
    "hardshrink": (F.hardshrink, lambda: (square(whole),)),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, x[:, 0] % 2), lambda: (square(whole),)),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), lambda: (square(), square(double))),
    "softshrink": (F.softshrink, lambda: (square(whole),)),
    "negative strides": (lambda x, a, b: torch.as_strided_copy(x, (2, 2), (a, b)), lambda: (square(), -3, -4)),
    "draws": (lambda x, high: torch.randint_like(x, high), lambda: (square(torch.bool), 10)),
}


def outcome(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    try:
        return function(*given)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_types(name: str, dynamic: bool | None) -> None:
    function, make = CASES[name]
    given = make()
    copies = tuple(value.clone() if isinstance(value, Tensor) else value for value in given)
    with warnings.catch_warnings(), config.patch(suppress_errors=False):
        warnings.filterwarnings("error", ".*BR0704")
        mine, theirs = outcome(bolide.compile(function, dynamic=dynamic), given), outcome(function, copies)
    torch.testing.assert_close(mine, theirs) if isinstance(theirs, Tensor) else None
    assert isinstance(theirs, Tensor) or isinstance(theirs[0], Tensor) or mine == theirs


@pytest.mark.parametrize("function", [linear, torch.matmul])
def test_types_of_results_are_asked_of_kernels_in_cpp(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while torch's Python dispatcher, which symbols need, has other kernels in place."""
    monkeypatch.setattr(kernels, "_asked", {})
    with pytest.raises(RuntimeError, match="to have dtype"):
        bolide.compile(lambda x, o: function(x, x, out=o), dynamic=True)(square(), square(double))


def test_channels_that_later_calls_do_not_divide() -> None:
    compiled = bolide.compile(lambda x: F.group_norm(x, 3), dynamic=True)
    for channels in (6, 9, 12):
        x = torch.randn(2, channels, 4)
        torch.testing.assert_close(compiled(x), F.group_norm(x, 3))
    with pytest.raises(RuntimeError, match="divisible"):
        compiled(torch.randn(2, 7, 4))


POOLS = {
    "max_pool1d": F.max_pool1d,
    "max_pool1d of torch": torch.max_pool1d,
    "max_pool1d, indices": lambda *given: F.max_pool1d(*given, return_indices=True),
    "max_pool2d": F.max_pool2d,
    "max_pool2d, indices": lambda *given: F.max_pool2d(*given, return_indices=True),
    "avg_pool1d": F.avg_pool1d,
    "avg_pool2d": F.avg_pool2d,
}


def numbers_of_pool(of: str) -> list[Any]:
    """Kernel, stride, padding and perhaps dilation: now and then none, too many, or such as no pool takes."""
    odd = (0, -1, 41, [], [2, 0], [-1, 2], [2, 9], [2, 2, 2], [0] * 4)
    usual: list[Any] = [2, [], random.choice((0, 1)), 1]
    drawn = [random.choice((number, [number], [number] * 2, *odd[:: random.randint(1, 3)])) for number in (2, 2, 1, 2)]
    given = [new if random.random() < 0.4 else old for old, new in zip(usual, drawn)]
    return given[:3] if of.startswith("avg") else given


@pytest.mark.parametrize("name", POOLS)
def test_numbers_that_pools_refuse(name: str) -> None:
    """All numbers of all options, where sizes are symbols, small and large: the program reads the same message."""
    function = POOLS[name]

    def program(x: Tensor, *numbers: Any) -> Any:
        try:
            return function(x, *numbers)
        except (RuntimeError, IndexError) as error:
            return type(error).__name__, str(error)

    for _ in range(24):
        bolide.reset()
        numbers = numbers_of_pool(name)
        sizes = random.sample((6, 9, 36, 69), 2 if "2d" in name else 1)
        x = torch.randn(*random.choice(((2, 3), (3,), ())), *sizes, requires_grad=random.random() < 0.3)
        mine, theirs = bolide.compile(program, dynamic=True)(x, *numbers), program(x, *numbers)
        if isinstance(theirs, tuple) and isinstance(theirs[0], str):
            vague = theirs[1] == "integer out of range"  # torch 2.11 says no more of averages
            assert mine == theirs or (vague and isinstance(mine[0], str)), (x.shape, numbers)
        else:
            torch.testing.assert_close(mine, theirs)


OF_DATA: dict[str, Callable[[Tensor, float], Tensor]] = {
    "batch_norm": lambda x, k: F.batch_norm(x, None, None, training=True, eps=k),
    "softshrink": lambda x, k: F.softshrink(x, k),
    "cosine_similarity": lambda x, k: torch.cosine_similarity(x, x * 2, 1, k).expand(3, -1).T,
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", OF_DATA)
def test_numbers_of_data_in_one_way_of_a_branch(name: str, inside: bool) -> None:
    """What eager asks of a number is asked where that way is taken, wherever the number is read."""

    def program(x: Tensor, number: Tensor) -> Tensor:
        read = None if inside else number.item()
        if x.sum() > 0:
            return OF_DATA[name](x, number.item() if read is None else read)
        return x * 2

    compiled = bolide.compile(program)
    for sign in (1, -1, 1):
        for number in (random.uniform(0.1, 0.9), random.uniform(0.1, 0.9), -0.2):
            given = torch.rand(4, 3) * sign, torch.tensor(number)
            mine, theirs = outcome(compiled, given), outcome(program, given)
            torch.testing.assert_close(mine, theirs) if isinstance(theirs, Tensor) else None
            assert isinstance(theirs, Tensor) or mine == theirs


FILLED: dict[str, Callable[[Tensor, float], Any]] = {
    "full": lambda x, v: torch.full(x.shape, v, dtype=x.dtype),
    "scalar_tensor": lambda x, v: torch.scalar_tensor(v, dtype=x.dtype),
    "scalar_tensor of the default type": lambda x, v: x * torch.scalar_tensor(v),
    "fill_diagonal_": lambda x, v: torch.stack([x, x]).fill_diagonal_(v),
    "arange": lambda x, v: torch.arange(0.0, 3.0, v, dtype=x.real.dtype),
    "add": lambda x, v: torch.add(x, x, alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "lerp": lambda x, v: torch.lerp(x, x, v),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "softplus": lambda x, v: F.softplus(x, v),
    "index_add": lambda x, v: x.index_add(0, torch.arange(x.numel()), x, alpha=v),
    "full_like": torch.full_like,
    "new_full": lambda x, v: x.new_full(x.shape, v),
    "fill_": lambda x, v: x.clone().fill_(v),
    "index_fill": lambda x, v: x.index_fill(0, torch.arange(x.numel()), v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "clamp": lambda x, v: x.clamp(-1, v),
    "clamp_min": lambda x, v: x.clamp_min(v),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "scatter": lambda x, v: x.scatter(0, torch.zeros(x.shape, dtype=torch.int64), v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "hardtanh": lambda x, v: F.hardtanh(x, -1.0, v),
    "threshold": lambda x, v: F.threshold(x, 0.1, v),
}


@pytest.mark.parametrize("place", ["constant", "argument", "data"])
@pytest.mark.parametrize("name", FILLED)
def test_numbers_that_a_type_of_floats_does_not_have(name: str, place: str) -> None:
    """Eager refuses them, but not all, nor for every count of elements; infinity is in each type."""
    for dtype in random.sample([torch.float16, torch.bfloat16, torch.float32, torch.complex64], 2):
        bolide.reset()
        large = random.choice([7e4, 1e39]) * random.choice([1, -1])

        def program(x: Tensor, v: Any, large: float = large) -> Any:
            v = large if place == "constant" else v.item() if place == "data" else v
            return FILLED[name](x, v)

        compiled = bolide.compile(program, dynamic=True if place == "argument" else None)
        for value in (0.5, *random.sample([large, 1.5, random.choice([1, -1]) * float("inf"), large], 3)):
            x = torch.ones(random.choice([0, 1, 2, 3])).to(dtype)
            v = torch.tensor(value, dtype=double) if place == "data" else value
            mine, theirs = outcome(compiled, (x, v)), outcome(program, (x, v))
            assert isinstance(theirs, Tensor) or mine == theirs, (dtype, value, len(x))
            torch.testing.assert_close(mine, theirs, equal_nan=True) if isinstance(theirs, Tensor) else None
