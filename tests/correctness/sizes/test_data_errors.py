"""Errors that depend on data, the user's own and those of operations: the graph checks what they ask, and eager raises.
Programs that only raise on data do not break."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bolide
from bolide.support import events

# ints of each call, rows of x: some make the programs raise
CALLS = ([1, 2, 0], [2, 0, 1], [1, 1, 1, 0], [3, 2, 1, 0, -1], [5, 2, 0], [0, 2, 1, 0], [9, -9, 2], [1, 1, 0, 1])


def counts(x: Tensor, i: Tensor) -> Any:
    rows = x[i > 0]
    if rows.shape[0] != (i >= 1).sum().item():
        raise ValueError(f"{rows.shape}")
    return rows * 2


def asserted(x: Tensor, i: Tensor) -> Any:
    rows, others = x[i > 0], x[(i > 0) & (i < 5)]
    assert rows.numel() == others.numel(), "some are too large"
    return rows * others


def check(i: Tensor, most: int) -> None:
    if (i > most).any() or (i < -most).any():
        raise IndexError("out of range")


def helper(x: Tensor, i: Tensor) -> Any:
    check(i, 4)
    return x[i.clamp(0, 2)]


def number(x: Tensor, i: Tensor) -> Any:
    most = i.max().item()
    if not (0 <= most <= 3):
        raise ValueError(most)
    return torch.cat([x[:most], x[most:] * 2])


def denied(x: Tensor, i: Tensor) -> Any:
    for _ in range(2):
        bad = i > 4
        if bad.any():
            place = torch.where(bad)[0][0]
            torch._assert(False, f"no place: {i[place].tolist()}")
    return x.cos()


def chosen(x: Tensor, i: Tensor) -> Any:
    place, other = int(i.float().mean().item()), int(torch.rand(()))
    return x * (2, 2)[place] + [0.5, 0.5, 0.5][int(i.min())] + (x,)[other]


def told(x: Tensor, i: Tensor) -> Any:
    with torch.no_grad():
        if i.max() > 3:
            text = "too large"
            for part in (i.min().item(), i.tolist()):
                text += f" {part}"
            raise KeyError(text) from None
    return x.sin()


def handled(x: Tensor, i: Tensor) -> Any:
    try:
        check(i, 3)
    except IndexError:
        return x * 7
    return x * 3


def masked_loss(x: Tensor, i: Tensor) -> Any:
    return F.cross_entropy(x[i > 0], (i[i >= 1] % 2).contiguous())


def uneven_loss(x: Tensor, i: Tensor) -> Any:
    return F.cross_entropy(x[i > 0], i[(i > 0) & (i < 5)].clamp(0, 1))


def uneven_sum(x: Tensor, i: Tensor) -> Any:
    return x[i > 0] + x[(i > 0) & (i < 5)].exp()


def uneven_product(x: Tensor, i: Tensor) -> Any:
    return x[i > 0].t() @ x[(i > 0) & (i < 5)]


PROGRAMS = (
    counts,
    asserted,
    helper,
    number,
    denied,
    chosen,
    told,
    handled,
    masked_loss,
    uneven_loss,
    uneven_sum,
    uneven_product,
)


def outcome(fn: Callable[..., Any], x: Tensor, i: Tensor) -> Any:
    """The result and its gradient, or the error's class and text."""
    leaf = x.clone().requires_grad_()
    try:
        result = fn(leaf, i)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]
    result.sum().backward()
    return result.detach(), leaf.grad


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_what_only_raises_does_not_break(program: Callable[..., Any], dynamic: bool | None, seed: int) -> None:
    bolide.reset()
    compiled = bolide.compile(program, dynamic=dynamic)
    met: list[events.Break] = []
    raised = 0
    with events.subscribed(lambda event: met.append(event) if isinstance(event, events.Break) else None):
        for values in CALLS:
            i = torch.tensor(values)
            x = torch.randn(len(values), 2)
            expected, found = outcome(program, x, i), outcome(compiled, x, i)
            if isinstance(expected[0], type):
                assert found == expected, (values, seed)
                raised += 1
                continue
            about = functools.partial("{}, seed {}: {}".format, values, seed)
            torch.testing.assert_close(found, expected, msg=about)
    assert raised or program in (counts, handled, masked_loss, uneven_sum)
    assert not met, met[0].reason


def root(x: Tensor) -> Any:
    return math.sqrt(x.sum())


def inverse(x: Tensor) -> Any:
    return x * (1 / x.sum().item())


def power(x: Tensor) -> Any:
    return x + x.sum().item() ** -0.5


def whole(x: Tensor) -> Any:
    return x * math.floor(x.sum())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [root, inverse, power, whole])
def test_numbers_that_are_data_raise_as_those_of_python(program: Callable[..., Any], backend: str) -> None:
    compiled = bolide.compile(program, backend=backend)
    for values in ([1.0, 3.0], [-4.0, 0.0], [0.0, 0.0, 0.0], [float("nan")], [2.25], [float("inf"), 1.0], [-1.0, 2.0]):
        outcomes = []
        for function in (program, compiled):
            try:
                outcomes.append(str(function(torch.tensor(values))))
            except (ArithmeticError, ValueError, TypeError) as error:
                outcomes.append(repr(error))
        assert outcomes[0] == outcomes[1], values


#: what makes tensors as large as a number of the call says
OF_A_SIZE: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "expand": lambda x, n: x.expand(n, 5).sum(0),
    "expand a number": lambda x, n: x.sum().expand(n).sum(),
    "broadcast_to": lambda x, n: x.broadcast_to((n, 5)).sum(0),
    "expand one": lambda x, n: x[:1].expand(2, n).sum(0),
    "repeat": lambda x, n: x.repeat(n, 1).sum(0),
    "tile": lambda x, n: x.tile(n, 1).sum(0),
    "pad": lambda x, n: F.pad(x, (n, 1)) + 1,
    "pad behind": lambda x, n: F.pad(x, (1, n)) + 1,
    "pad both": lambda x, n: F.pad(x, (n, n)) + 1,
    "pad matrix": lambda x, n: F.pad(x.view(5, 1), (2, 1, n, 0)) + 1,
    "pad by copies": lambda x, n: F.pad(x[None], (1, n), mode="replicate").sum(),
    "pad matrix by copies": lambda x, n: F.pad(x.view(1, 1, 5), (n, n, 0, n), mode="replicate").sum(),
    "pad by reflections": lambda x, n: F.pad(x[None], (n, 1), mode="reflect").sum(),
    "pad a matrix by reflections": lambda x, n: F.pad(x.expand(1, 5, 5), (n, n, n, 0), mode="reflect").sum(),
    "zeros": lambda x, n: torch.zeros(n, 5).sum(0) + x,
    "full": lambda x, n: torch.full((n,), 2.0) + 1,
    "new_zeros": lambda x, n: x.new_zeros(n + 3).sum() + x,
    "as_strided": lambda x, n: x.as_strided((n,), (1,)) * 2,
}


@pytest.mark.parametrize("is_data", [False, True])
@pytest.mark.parametrize("name", OF_A_SIZE)
def test_sizes_below_zero_are_refused(name: str, is_data: bool) -> None:
    program = OF_A_SIZE[name]

    def fn(x: Tensor, number: Any) -> Tensor:
        return program(x, number.item() if is_data else number)

    compiled = bolide.compile(fn)
    for number in (2, 4, 3, -1, -3, -5, -6, 0, 5):
        given, outcomes = torch.tensor(number) if is_data else number, []
        for function in (fn, compiled):
            try:
                outcomes.append(str(function(torch.arange(5.0), given)))
            except RuntimeError as error:
                outcomes.append(str(error).partition("\n")[0])
        assert outcomes[0] == outcomes[1], number


@pytest.mark.parametrize("pad", [(1, -6), (-3, -3), (2, 3), (0, -5)])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_borders_of_sizes_that_change(dims: int, mode: str, pad: Any) -> None:
    def program(x: Tensor) -> Tensor:
        return F.pad(x, pad * dims, mode=mode)

    for form in (torch.contiguous_format, torch.channels_last) if dims == 2 else (torch.contiguous_format,):
        compiled = bolide.compile(program)
        for size in (9, 10, 8, 7, 6, 5, 4, 3, 2):
            x = torch.rand(2, 3, *[size + i for i in range(dims)]).to(memory_format=form)
            outcomes = []
            for function in (program, compiled):
                try:
                    result = function(x)
                    outcomes.append((result.tolist(), result.shape, result.stride()))
                except RuntimeError as error:
                    outcomes.append(str(error).partition("\n")[0])
            assert outcomes[0] == outcomes[1], size


def halved(x: Tensor) -> Any:
    n = 0
    while n < 1 or x.sum() > 5:
        x, n = x / 2, n + 1
    raise ValueError(n)


def halved_until(x: Tensor) -> Any:
    while True:
        x = x / 2
        if x.sum() < 5:
            raise ValueError(float(x.sum()))


@pytest.mark.parametrize("program", [halved, halved_until])
def test_loops_that_end_only_by_raising_are_captured_to_an_end(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program)
    for scale in (0.01, 90.0, 0.02, 3000.0):
        x = torch.rand(200) * scale
        errors = []
        for function in (program, compiled):
            with pytest.raises(ValueError) as raised:
                function(x)
            errors.append(raised.value.args)
        assert errors[0] == pytest.approx(errors[1])


def numbered(pairs: Tensor) -> Any:
    n = int(pairs.max()) + 1
    if n * n > torch.iinfo(torch.int64).max:
        raise ValueError("too many numbers")
    return (pairs[0] * n + pairs[1]).unique()


def kept_apart(pairs: Tensor) -> Any:
    n, m = int(pairs[0].max()), int(pairs[1].max())
    if (1 << 62) - n * m < 0 or n - (1 << 60) > 0:
        raise ValueError("too far")
    return pairs.sum(0) * (n - m)


@pytest.mark.parametrize("program", [numbered, kept_apart])
def test_whether_a_product_of_data_is_too_large_is_asked_without_a_break(program: Callable[..., Any]) -> None:
    compiled = bolide.compile(program)
    met: list[events.Break] = []
    with events.subscribed(lambda event: met.append(event) if isinstance(event, events.Break) else None):
        for most in (9, 12, 70, 2**31 - 3, 2**33, 5, math.isqrt(2**63) - 1, math.isqrt(2**63), 2**61, 30):
            pairs = torch.randint(0, 5, (2, 7 + most % 4))
            pairs[:, 2] = most
            outcomes: list[Any] = []
            for function in (program, compiled):
                try:
                    outcomes.append(function(pairs))
                except ValueError as error:
                    outcomes.append(error.args)
            assert type(outcomes[0]) is type(outcomes[1])
            if isinstance(outcomes[0], Tensor):
                assert torch.equal(*outcomes), most
    assert not met, met[0].reason
