"""Floats that are data and are compared: the truths decide branches, are kept, counted, shown and put into
containers, as Python's bools are."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.support import events


def early_stopping(x: Tensor, state: Any) -> Any:
    loss = x.square().mean()
    if loss.item() < state.best:
        state.best, state.waited = loss.item(), 0
    else:
        state.waited += 1
        if state.waited >= 2:
            state.stops = True
    return loss


def improved(x: Tensor, state: Any) -> Any:
    value = x.square().mean().item()
    better = value < state.best
    state.best = min(value, state.best)
    state.history.append(better)
    return x * (2 if better else 1)


def schedule(x: Tensor, state: Any) -> Any:
    largest = x.abs().max().item()
    if largest > 1.5:
        state.rate *= 0.5
    elif largest < 0.5:
        state.rate *= 1.1
    return x * state.rate


def as_a_bool(x: Tensor, state: Any) -> Any:
    mean, spread = x.mean().item(), x.std().item()
    above = mean > 0
    told = [above is True, isinstance(above, bool), type(above) is bool, not above, above + 1, above & (spread > 0)]
    told += [{True: 1, False: 2}[above], str(above), f"{above}", any(value > 1 for value in (mean, spread))]
    return x, 0.0 < mean < 1.0, [value for value in (mean, spread) if value > 0.1], told


def asserted(x: Tensor, state: Any) -> Any:
    largest = x.max().item()
    assert largest < 2.5, "too large"
    return x / largest


def halved(x: Tensor, state: Any) -> Any:
    trips = 0
    while x.norm().item() > 1.0 and trips < 5:
        x, trips = x * 0.5, trips + 1
    return x, trips


def one_of_two(x: Tensor, state: Any) -> Any:
    y = x.cos() if x.mean().item() > 0 else x.sin()
    return y * 2, x.sum().item() > 0


def used_as(what: str) -> Callable[[Tensor, Any], Any]:
    """A program that does one thing with a truth of an integer that is data, with one of a float, and with one of a
    size."""
    body = f"(lambda b: {what})((x > 0).sum().item() > 2), (lambda b: {what})(x.mean().item() > 0)"
    names: dict[str, Any] = {"torch": torch}
    exec(f"def program(x, state): return x + 1, {body}, (lambda b: {what})(x.shape[0] > 4)", names)
    return names["program"]


USES = """
b is True; b is not False; b is None; b == True; [True, False].index(b); b in (True,); b in {False}; b & True
b ^ True; isinstance(b, int); type(b) is bool; b.__class__; sum([b, b]); b + 1; max(b, False)
sorted([b, False, True]); f'{b}'; repr(b); not b; -b; b / 2; b ** 2; b << 1; float(b); int(b); complex(b)
round(b); divmod(b, 2); bin(b); '%d' % b; hash(b); 'ab' * b; [10, 20][b]; {b: 1}; {b}; str([b]); dict(k=b)
all([b]); any([b]); b and 3; b or 4; 1 if b is True else 2; [b] == [True]; list(range(b)); frozenset([b]); x * b
torch.tensor(b); torch.full((2,), b); torch.where(x > 0, b, False); x.masked_fill(x > 0, b)
"""


PROGRAMS = (early_stopping, improved, schedule, as_a_bool, asserted, halved, one_of_two)


def fresh() -> Any:
    return SimpleNamespace(best=float("inf"), waited=0, stops=False, history=[], rate=0.1)


def answer(function: Callable[..., Any], x: Tensor, state: Any) -> Any:
    leaf = x.clone().requires_grad_()
    try:
        result = function(leaf, state)
    except AssertionError as error:
        return str(error)
    first = result[0] if type(result) is tuple else result
    return result, torch.autograd.grad(first.sum(), leaf)


def agree(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(theirs, (tuple, list)):
        for left, right in zip(mine, theirs, strict=True):
            agree(left, right)
    elif isinstance(theirs, (Tensor, float)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    else:
        assert mine == theirs


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_truths_of_floats_that_are_data(program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled, states = bolide.compile(program, dynamic=dynamic), (fresh(), fresh())
    for call in range(9):
        x = torch.randn(3 + call % 3) * (0.3 + call % 4)
        agree(answer(compiled, x, states[0]), answer(program, x, states[1]))
        agree(list(vars(states[0]).values()), list(vars(states[1]).values()))


def test_a_branch_on_one_does_not_break() -> None:
    compiled = bolide.compile(one_of_two, fullgraph=True)
    for size in (3, 5, 7, 4):
        x = torch.randn(size)
        agree(answer(compiled, x, None), answer(one_of_two, x, None))


@pytest.mark.parametrize("what", [use.strip() for line in USES.strip().splitlines() for use in line.split(";")])
def test_what_is_done_with_a_truth(what: str) -> None:
    program = used_as(what)
    compiled = bolide.compile(program)
    for size in (5, 3, 6, 7):
        x = torch.randn(size)
        agree(compiled(x, None), program(x, None))


BESIDE: dict[str, Callable[[Any, Any], Any]] = {
    "number - tensor": lambda number, t: number - t,
    "tensor - number": lambda number, t: t - number,
    "number ** tensor": lambda number, t: number**t,
    "tensor ** number": lambda number, t: t**number,
    "remainder": lambda number, t: (torch.remainder(number, t), torch.remainder(t, number)),
    "rsub": lambda number, t: torch.rsub(t, number),
    "products": lambda number, t: (number * t, number / t, t / number, number + t),
    "order": lambda number, t: (number < t, t <= number, number == t),
    "foreach": lambda number, t: (torch._foreach_pow(number, [t])[0], torch._foreach_pow([t], number)[0]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("name", BESIDE)
def test_a_float_beside_a_tensor_of_no_dimension_does_not_widen_it(name: str, shape: Any, dtype: torch.dtype) -> None:
    def program(x: Any, t: Any) -> Any:
        try:
            return BESIDE[name](x.item(), t)
        except (RuntimeError, NotImplementedError):
            return None

    compiled = bolide.compile(program)
    for number in (0.75, 0.5, 2.25):
        x, t = torch.tensor(number), torch.full(shape, 3, dtype=dtype)
        torch.testing.assert_close(compiled(x, t), program(x, t))


@pytest.mark.parametrize("shape", [(), (2,)])
def test_powers_of_lists_whose_base_is_a_tensor(shape: Any) -> None:
    compiled = bolide.compile(torch._foreach_pow)
    for base in (0.8, 0.5):
        given = torch.tensor(base), [torch.full(shape, 3.4), torch.full(shape, 3)]
        torch.testing.assert_close(list(compiled(*given)), list(torch._foreach_pow(*given)))


def test_shapes_that_are_data_are_compared() -> None:
    """A check of whole shapes, some of whose sizes are data, is a check of the graph: one version, no break."""

    def joined(x: Tensor, rows: Tensor, columns: Tensor, other: Tensor) -> Tensor:
        taken = x[rows]
        assert taken.shape == (taken.shape[0], x.shape[1]) and taken.shape != x.shape[:1], taken.shape
        taken = taken[:, columns]
        if taken.shape != other.shape or list(taken.shape) != list(other.size()):
            raise ValueError(f"{tuple(taken.shape)} is not {tuple(other.shape)}")
        return taken * other

    told: list[events.Event] = []
    compiled = bolide.compile(joined, dynamic=True)
    with events.subscribed(told.append):
        for size, wrong in ((4, 0), (7, 0), (5, 0), (6, 1)):
            rows, columns = (torch.randperm(size) < random.randint(2, size - 1) for _ in range(2))
            other = torch.randn(int(rows.sum()), int(columns.sum()) + wrong)
            x = torch.randn(size, size)
            if wrong:
                with pytest.raises(ValueError, match="is not"):
                    compiled(x, rows, columns, other)
            else:
                torch.testing.assert_close(compiled(x, rows, columns, other), joined(x, rows, columns, other))
    assert not [event for event in told if isinstance(event, events.Break)]


QUOTIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "number_by_data": lambda a, b: 3.7 / b,
    "data_by_number": lambda a, b: a / 7.3,
    "data_by_data": lambda a, b: a / b,
    "of_an_integer": lambda a, b: 3.7 / float(int(b) + 40) + a / int(b + 40),
    "rest": lambda a, b: (a % b, 3.7 % b),
    "whole": lambda a, b: (a // b, 3.7 // b),
    "by_zero": lambda a, b: a / (a - a),
    "by_no_data": lambda a, b: a / 0,
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_of_floats_that_are_data_have_every_bit_of_pythons(name: str) -> None:
    """Numbers of all sizes, infinities and zeros among them."""

    def program(x: Tensor, *numbers: Tensor) -> Any:
        try:
            found = QUOTIENTS[name](numbers[0].item(), numbers[1].item())
        except ArithmeticError as error:
            return x, str(error)
        return x, *[x * each for each in (found if type(found) is tuple else (found,))]

    compiled, x = bolide.compile(program), torch.ones(2, dtype=torch.float64)
    values = [random.gauss(0, 30) for _ in range(20)] + [random.gauss(0, 1) * 1e200, 0.0, -0.0, float("inf"), -1e-310]
    for first, second in zip(values, random.sample(values, len(values)), strict=True):
        numbers = [torch.tensor(value, dtype=torch.float64) for value in (first, second)]
        wanted, found = [
            [each if type(each) is str else each.tolist() for each in call(x, *numbers)] for call in (program, compiled)
        ]
        assert str(found) == str(wanted), (first, second)
