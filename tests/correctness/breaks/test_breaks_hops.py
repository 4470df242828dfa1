"""The way over a break that is gone the same way each time is one generated function; whatever comes otherwise is as in
eager."""

from __future__ import annotations

import array
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.dynamo.breaks.concrete import Concrete


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many instructions were interpreted for real."""
    steps: list[int] = []
    step = Concrete.step
    monkeypatch.setattr(Concrete, "step", lambda self: steps.append(1) or step(self))
    return steps


def item(x: Tensor, limit: float) -> Tensor:
    for _ in range(20):
        x = x + 1
        if x[0].item() > limit:
            break
    return x * 2


def inner(x: Tensor) -> Tensor:
    y = x * 2
    print("inner", end="\n")
    return y - x


def nested(x: Tensor, count: int) -> Tensor:
    with torch.no_grad():
        for i in range(count):
            if i != 7:
                x = inner(x) + 1
    return x


def ending(x: Tensor, count: int) -> int:
    x.sum()
    return count + sys.stdout.write("ending\n")


@pytest.mark.parametrize(
    ("program", "given"), [(item, [100.0, 100.0, 100.0]), (nested, [9, 9, 9]), (ending, [3, 3, 3])]
)
def test_a_known_way_is_not_interpreted(
    program: Callable[..., Any], given: list[Any], walked: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = bolide.compile(program, backend="eager")
    shown = []
    for argument in given:
        walked.clear()
        x = torch.zeros(3)
        actual = compiled(x, argument)
        said = capsys.readouterr().out
        assert torch.equal(torch.as_tensor(actual), torch.as_tensor(program(x, argument)))
        assert said == capsys.readouterr().out
        shown.append(len(walked))
    assert shown[0] > 0 and shown[-1] <= 2, shown


@pytest.mark.parametrize(("program", "given"), [(item, [50.0, 50.0, 9.0, 3.0, 50.0]), (nested, [9, 9, 2, 0, 12])])
def test_ways_that_come_otherwise(
    program: Callable[..., Any], given: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = bolide.compile(program, backend="eager")
    for argument in given:
        x = torch.zeros(3)
        actual, said = compiled(x, argument), capsys.readouterr().out
        assert torch.equal(actual, program(x, argument))
        assert said == capsys.readouterr().out


def divides(x: Tensor, numbers: list[int], log: list[Any]) -> Tensor:
    for n in numbers:
        x = x + 1
        try:
            x = x * operator.floordiv(6, x[0].item() - n)
        except ZeroDivisionError as error:
            log.append((str(error), error.__traceback__.tb_lineno if error.__traceback__ else None))
            x = x * 0
        finally:
            log.append(n)
    return x


def test_an_exception_of_the_operation_is_handled_by_the_program() -> None:
    compiled = bolide.compile(divides, backend="eager")
    for numbers in ([0, 0, 0, 0], [0, 0, 0, 0], [0, 7, 1, 0]):
        logs: list[list[Any]] = [[], []]
        results = [f(torch.zeros(2), numbers, log) for f, log in zip((divides, compiled), logs)]
        assert torch.equal(*results) and logs[0] == logs[1]
    assert any(type(entry) is tuple for entry in logs[0])


def finds(x: Tensor, table: Any, log: list[Any]) -> Tensor:
    for _ in range(3):
        x = x + 1
        try:
            x = x * table[int(x[0])]
        except (IndexError, KeyError) as error:
            log.append((type(error), str(error)))
            x = x * 0
    return x


@pytest.mark.parametrize("table", [{1: 2.0, 3: 0.5}, array.array("f", [1.0, 2.0, 3.0]), "text"])
def test_an_item_that_is_not_there_is_the_programs_exception(table: Any) -> None:
    """Also where bolide's own code, which was generated, looks it up."""
    compiled = bolide.compile(finds)
    for start in (0.0, 0.0, 0.0, 5.0, 0.0):
        logs: list[list[Any]] = [[], []]
        given = table if not isinstance(table, str) else [1.0, 2.0]
        results = [f(torch.full((2,), start), given, log) for f, log in zip((finds, compiled), logs)]
        assert torch.equal(*results) and logs[0] == logs[1]
    assert logs[0]


def found_in(x: Tensor, table: Any) -> Tensor:
    y = x.sin()
    try:
        found = table[int(x.sum().item() * 0 + 2)]
    except (IndexError, KeyError):
        found = 5
    return y * found


@pytest.mark.parametrize(
    "make", [lambda n: array.array("f", [1.5] * n), lambda n: types.MappingProxyType({n - 1: 2.0})]
)
def test_an_item_that_an_operation_looks_for_in_vain(make: Callable[[int], Any]) -> None:
    compiled = bolide.compile(found_in)
    for size in (3, 3, 3, 2, 3, 1):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, make(size)), found_in(x, make(size)))


def test_an_exception_leaves_with_the_users_traceback() -> None:
    def body(x: Tensor, texts: list[str]) -> Tensor:
        for text in texts:
            x = x + 1
            print(text, end=text)
        return x

    compiled = bolide.compile(body, backend="eager")
    for _ in range(3):
        compiled(torch.zeros(2), ["", "", ""])
    wrong: Any = ["", 3]
    with pytest.raises(TypeError, match="end must be None or a string") as caught:
        compiled(torch.zeros(2), wrong)
    assert caught.traceback[-1].lineno + 1 == body.__code__.co_firstlineno + 3


def test_another_function_may_be_called() -> None:
    def body(x: Tensor, work: Callable[..., Any]) -> Tensor:
        for _ in range(4):
            x = x + 1
            work("a", end="")
        return x

    seen: list[str] = []

    def shown(text: str, end: str) -> None:
        seen.append(text + end)

    compiled = bolide.compile(body, backend="eager")
    for work in (print, print, bolide.disable(shown), print):
        assert torch.equal(compiled(torch.zeros(2), work), torch.full((2,), 4.0))
    assert seen == ["a"] * 4


def test_values_die_where_the_program_lets_them_go(capsys: pytest.CaptureFixture[str]) -> None:
    class Held:
        pass

    def fresh() -> Iterator[Any]:
        for number in range(3):
            held = Held()
            weakref.finalize(held, print, "gone", number)
            yield held
            del held

    def body(x: Tensor, items: Iterator[Any]) -> Tensor:
        for held in items:
            x = x + 1
            print("has", type(held).__name__)
        return x

    compiled = bolide.compile(body, backend="eager")
    for _ in range(4):
        body(torch.zeros(2), fresh())
        expected = capsys.readouterr().out
        compiled(torch.zeros(2), fresh())
        assert capsys.readouterr().out == expected
