"""A function that is compiled again and again for what is between its breaks runs in eager where that is faster."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry import dispatch
from bolide.dynamo.entry.limits import Trial
from bolide.support import events

pytestmark = pytest.mark.filterwarnings("ignore::bolide.support.errors.BolideWarning")  # points have their limits, too


def joined(edges: Tensor, count: int) -> tuple[Tensor, int]:
    """Sets that are joined: Python numbers that are data decide about everything."""
    parents = list(range(count))

    def find(a: int) -> int:
        while parents[a] != a:
            parents[a] = parents[parents[a]]
            a = parents[a]
        return a

    for a, b in edges.tolist():
        parents[find(a)] = find(b)
    roots = torch.tensor([find(i) for i in range(count)])
    return roots, len(set(roots.tolist()))


def edges() -> tuple[Tensor, int]:
    count = int(torch.randint(4, 9, ()))
    return torch.randint(0, count, (int(torch.randint(3, 9, ())), 2)), count


@pytest.fixture
def told() -> Iterator[list[Any]]:
    bolide.reset()  # versions of one code are counted together
    seen: list[Any] = []
    with events.subscribed(seen.append):
        yield seen


def versions(told: list[Any]) -> int:
    return sum(isinstance(event, events.Installed) for event in told)


def crowded(compiled: Callable[..., object], program: Callable[..., object]) -> Any:
    """The dispatcher of a compiled function when its trial has begun; its results are those of eager."""
    dispatcher = compiled._bolide  # type: ignore[attr-defined]
    for _ in range(60):
        if dispatcher.trial is not None:
            return dispatcher
        args = edges()
        torch.testing.assert_close(compiled(*args), program(*args))
    raise AssertionError("it was not compiled often enough")


def test_what_is_slower_than_eager_runs_in_eager(told: list[Any]) -> None:
    compiled = bolide.compile(joined)
    dispatcher = crowded(compiled, joined)
    for _ in range(60):
        args = edges()
        torch.testing.assert_close(compiled(*args), joined(*args))
    assert dispatcher.retired and not dispatcher.points
    *_, fallback = [event for event in told if isinstance(event, events.Fallback)]
    assert fallback.kind == "limit" and "it has" in fallback.reason
    made = versions(told)
    for _ in range(10):
        compiled(*edges())
    assert versions(told) == made
    bolide.reset()
    compiled(*edges())
    assert versions(told) > made, "after a reset it is compiled again"


@pytest.mark.parametrize("kept", ["equal", "option", "training", "draws"])
def test_what_is_not_slower_stays_compiled(kept: str, told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a backward pass follows, which is not measured, or random numbers are drawn, which are others."""
    scale = torch.ones((), requires_grad=kept == "training")

    def program(edges: Tensor, count: int) -> tuple[Tensor, int]:
        roots, sets = joined(edges, count)
        return roots * scale + (kept == "draws" and torch.rand(()) > 2), sets

    compiled = bolide.compile(program)
    if kept == "option":
        with config.patch(eager_if_faster=False), pytest.raises(AssertionError):
            crowded(compiled, program)
        return
    clock = itertools.count()
    monkeypatch.setattr(dispatch, "moment", lambda: next(clock))
    if kept != "equal":
        monkeypatch.setattr(Trial, "verdict", "it is slower")
    monkeypatch.setattr(Trial, "is_endless", False)
    dispatcher = crowded(compiled, program)
    while dispatcher.trial is not None:
        compiled(*edges())
    assert not dispatcher.retired and dispatcher.points


def test_a_call_goes_on_where_its_function_is_given_up_meanwhile(told: list[Any]) -> None:
    """Nothing is run twice, and nothing more is compiled."""
    log: list[int] = []
    made: list[int] = []

    def end() -> None:
        dispatcher._end(dispatcher.trial, "the test says so")
        made.append(versions(told))

    stop: Callable[[], None] = torch.compiler.disable(end)  # type: ignore[no-untyped-call]

    def program(edges: Tensor, count: int, end: bool) -> int:
        for a, b in edges.tolist():
            log.append(a)
            if end:
                stop()
                end = False
            log.append(b)
        return joined(edges, count)[1]

    compiled: Any = bolide.compile(program)
    dispatcher = compiled._bolide
    while dispatcher.trial is None:
        compiled(*edges(), False)
    dispatcher.trial.eagerly = lambda: False
    args = edges()
    log.clear()
    assert compiled(*args, True) == joined(*args)[1]
    assert log == args[0].flatten().tolist()
    assert dispatcher.retired and [versions(told)] == made


def test_the_programs_random_numbers_are_its_own() -> None:
    state = random.getstate()
    trial = Trial()
    assert not any(trial.eagerly() for _ in range(40)), "what draws torch's is to be known first"
    trial.note(False, 1e-6, 0)
    trial.note(False, 1e-6, 0)
    ways = [trial.eagerly() for _ in range(40)]
    assert random.getstate() == state
    assert 10 < sum(ways) < 30


@pytest.mark.parametrize("slow", ["eager", "resume"])
def test_a_loop_with_a_break_in_it_is_measured(slow: str, told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def program(rows: list[Tensor], words: list[str]) -> str:
        text = ""
        for row in rows:
            text += words[int(row.argmax())]
        return text

    compiled = bolide.compile(program)
    dispatcher, spent = compiled._bolide, itertools.count()  # type: ignore[attr-defined]
    call = getattr(dispatcher, slow)
    monkeypatch.setattr(dispatch, "moment", lambda: next(spent) * 1e-9)
    monkeypatch.setattr(dispatcher, slow, lambda *args: (call(*args), [next(spent) for _ in range(4)])[0])
    words = [chr(97 + place) for place in range(6)]
    for _ in range(80):
        rows = [torch.randn(6) for _ in range(5)]
        assert compiled(rows, words) == program(rows, words)
    assert dispatcher.trial is None and dispatcher.retired == (slow == "resume")
    assert versions(told) <= 4


def broken_once(x: Tensor) -> Tensor:
    y = x.abs()
    print(end="")
    return y.sum() + x.shape[0]


def raising(x: Tensor) -> Tensor:
    y = broken_once(x)
    if x.shape[0] > 3:
        raise ValueError(x.shape[0])
    return y


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return program(*args)
    except ValueError as error:
        return error.args


@pytest.mark.parametrize("program", [broken_once, raising])
def test_a_break_in_calls_that_are_made_often_is_measured(
    program: Callable[..., Any], told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = bolide.compile(program)
    dispatcher, spent = compiled._bolide, itertools.count()  # type: ignore[attr-defined]
    resume = dispatcher.resume
    monkeypatch.setattr(dispatch, "moment", lambda: next(spent) * 1e-9)
    monkeypatch.setattr(dispatcher, "resume", lambda *args: ([next(spent) for _ in range(4)], resume(*args))[1])
    for _ in range(120):
        x = torch.randn(int(torch.randint(2, 4, ())))
        torch.testing.assert_close(compiled(x), program(x))
        if dispatcher.trial is not None:
            break
    for _ in range(120):
        x = torch.randn(int(torch.randint(4, 9, ())))
        torch.testing.assert_close(outcome(compiled, x), outcome(program, x))
    assert dispatcher.retired and dispatcher.trial is None


def test_long_calls_are_not_tried(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks cost nothing beside them, and eager may need more memory."""
    compiled = bolide.compile(broken_once)
    dispatcher, spent = compiled._bolide, itertools.count()  # type: ignore[attr-defined]
    monkeypatch.setattr(dispatch, "moment", lambda: next(spent) * 1e-3)
    monkeypatch.setattr(dispatcher, "eager", None)
    for _ in range(100):
        x = torch.randn(int(torch.randint(3, 9, ())))
        torch.testing.assert_close(compiled(x), broken_once(x))
    assert dispatcher.looked and dispatcher.trial is None and not dispatcher.retired and dispatcher.points


def test_what_runs_in_eager_is_compiled_again_when_calls_become_longer(told: list[Any]) -> None:
    compiled = bolide.compile(broken_once)
    dispatcher = compiled._bolide  # type: ignore[attr-defined]
    x = torch.randn(5)
    compiled(x)
    dispatcher._try(1)
    trial = dispatcher.trial
    for eagerly in (True, False):
        for _ in range(16):
            trial.note(eagerly, 1e-6 if eagerly else 2e-6, 0)
    compiled(x)
    assert dispatcher.retired
    made = versions(told)
    for _ in range(10):
        torch.testing.assert_close(compiled(x), broken_once(x))
    assert dispatcher.retired and versions(told) == made
    dispatcher.most = 0.0
    for _ in range(10):
        x = torch.randn(int(torch.randint(3, 9, ())))
        torch.testing.assert_close(compiled(x), broken_once(x))
    assert not dispatcher.retired and dispatcher.points and versions(told) > made
