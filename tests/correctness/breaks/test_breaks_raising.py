"""Programs that raise an exception in many calls, which the caller handles: batches that do not fit, early stops."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bolide
from bolide.support import events


class Stop(Exception):
    def __init__(self, step: int, **more: Any) -> None:
        super().__init__(f"stopped at {step}")
        self.step, self.more = step, more


@contextlib.contextmanager
def noted(log: list[Any]) -> Iterator[None]:
    log.append("in")
    try:
        yield
    except ValueError as error:
        log.append(str(error))
        raise
    finally:
        log.append("out")


def check(x: torch.Tensor, step: int) -> torch.Tensor:
    if step % 2:
        raise ValueError(f"bad batch {step}, {x.shape[0]} rows")
    return x.abs()


def at_once(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    log.append(step)
    y = x * 3 + 1
    if step % 2:
        raise Stop(step, rows=x.shape[0])
    return y


def in_a_call(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    return check(x * 2, step) + 1


def behind_a_break(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    y = x - 3
    bolide.graph_break()
    return check(y, step)


def within(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    with noted(log):
        return check(x, step)


def at_last(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    try:
        return check(x, step)
    except ValueError as error:
        raise Stop(step) from error
    finally:
        log.append(x.shape)


def in_a_loop(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    for number in range(4):
        x = x * 1.5
        log.append(number)
        if number == step % 5:
            raise StopIteration(number)
    return x


def of_the_library(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    log.append(float(x.sum()))
    return x + {0: 1.0, 2: 2.0, 4: 3.0}[step], [1, 2][step % 3]


def written(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    x.mul_(2)
    log.append(x.sum().item())
    assert step % 2 == 0, (step, "odd")
    return x.neg()


def of_a_generator(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    return [y.sum() for y in (check(x, step) for _ in range(2))]


def of_the_users(x: torch.Tensor, step: int, log: list[Any]) -> Any:
    y = x.abs() + 1
    if step % 2:
        raise RuntimeError(f"bad batch {step}, {y.shape[0]} rows")
    return y


PROGRAMS = [
    of_the_users,
    at_once,
    in_a_call,
    behind_a_break,
    within,
    at_last,
    in_a_loop,
    of_the_library,
    written,
    of_a_generator,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_exceptions_that_callers_handle(program: Callable[..., Any]) -> None:
    told: list[object] = []
    compiled = bolide.compile(program)
    data = [torch.randint(-8, 8, (3 + number % 3,)).float() for number in range(40)]  # nothing is rounded
    late = 0
    for number, x in enumerate(data):
        with events.subscribed(told.append):
            got = outcome(compiled, x.clone(), number % 5)
        assert got == outcome(program, x.clone(), number % 5), number
        late += number >= 25 and any(isinstance(event, (events.Captured, events.Fallback)) for event in told)
        told.clear()
    assert late == 0, "calls go on to be captured"


def outcome(function: Callable[..., Any], x: torch.Tensor, step: int) -> Any:
    """What a call gives or raises, with its causes and the user's lines, and what it has written."""
    log: list[Any] = []
    try:
        result: Any = str(function(x, step, log))
    except Exception as error:
        result = told(error)
    return result, str(log), str(x)


def told(error: BaseException | None) -> Any:
    if error is None:
        return None
    lines = [
        (each.name, each.lineno) for each in traceback.extract_tb(error.__traceback__) if each.filename == __file__
    ]
    state = {key: str(value) for key, value in vars(error).items()}
    return repr(error), state, told(error.__cause__), told(error.__context__), lines[1:]


def test_captures_that_an_exception_ends_behind_a_break_are_counted() -> None:
    """A RuntimeError of torch's ends no segment. What comes after the break is captured in vain each time, until its
    point is given up."""

    def program(x: torch.Tensor, step: int, log: list[Any]) -> torch.Tensor:
        y = x - 3
        bolide.graph_break()
        return y * 2 if step % 4 == 0 else y.view(9 + step)

    compiled = bolide.compile(program)
    misses: list[int] = []
    for number in range(40):
        x = torch.randint(-8, 8, (3 + number % 3,)).float()
        assert outcome(compiled, x.clone(), number) == outcome(program, x.clone(), number), number
        misses.append(compiled._bolide.misses)  # type: ignore[attr-defined]
    assert misses[20] == misses[-1]


def test_what_only_capture_meets_ends_no_segment() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if bolide.is_compiling():
            raise ValueError("only while compiling")
        return x.sin()

    compiled, x = bolide.compile(program), torch.randn(3)
    with pytest.warns(bolide.BolideWarning, match="only while compiling"):
        for _ in range(4):
            assert torch.equal(compiled(x), x.sin())


def test_what_the_user_raises_costs_as_many_captures_of_whatever_class_it_is() -> None:
    misses = []
    for cls in (ValueError, RuntimeError):

        def program(x: torch.Tensor, step: int, log: list[Any], cls: type[Exception] = cls) -> torch.Tensor:
            y = x.abs() + 1
            if step % 2:
                raise cls(f"bad batch {step}, {y.shape[0]} rows")
            return y

        compiled = bolide.compile(program)
        for number in range(12):
            x = torch.ones(3 + number % 3)
            assert outcome(compiled, x, number) == outcome(program, x, number)
        misses.append(compiled._bolide.misses)  # type: ignore[attr-defined]
    assert misses[0] == misses[1]
