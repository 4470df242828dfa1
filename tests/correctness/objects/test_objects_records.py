"""Numbers that are only kept in dicts and records make one version, with a symbol, whatever they are; deep copies of
arguments too. `super()` and exceptions that lead to themselves are as in eager."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import bolide
from tests.object_tools import describe


@dataclasses.dataclass
class Stats:
    step: int = 0
    total: float = 0.0
    history: list[int] = dataclasses.field(default_factory=list)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    step: int = 0
    rate: float = 0.1


class Record(NamedTuple):
    step: int
    loss: float
    name: str = "a"


class Config:
    def __init__(self, n: int) -> None:
        self.hidden, self.rate, self.layers, self.sub = n, n / 9, [n, n], {"k": n}


def _stats(n: int) -> Stats:
    return Stats(n, n / 7, [n, n + 1], {"k": n})


RECORDS: dict[str, tuple[Callable[[int], Any], Callable[..., Any]]] = {
    "dict": (lambda n: {"step": n, "rate": n / 7}, lambda x, d: {**d, "step": d["step"] + 1, "x": x * d["rate"]}),
    "dict written": (lambda n: {"step": n}, lambda x, d: (d.update(step=d["step"] + 1), x + 1)),
    "record": (lambda n: Record(n, n / 7), lambda x, r: (Record(r.step + 1, r.loss), r, x)),
    "record replaced": (lambda n: Record(n, n / 7), lambda x, r: (r._replace(step=r.step + 1), r._asdict(), x)),
    "record made": (lambda n: (n, n / 7), lambda x, r: (Record._make([*r, "b"]), x)),
    "frozen": (lambda n: Frozen(n, n / 7), lambda x, f: (dataclasses.replace(f, step=f.step + 1), x * f.rate)),
    "as a dict": (_stats, lambda x, s: (dataclasses.asdict(s), x)),
    "as a tuple": (lambda n: Frozen(n, n / 7), lambda x, f: (dataclasses.astuple(f), x)),
    "written": (_stats, lambda x, s: (setattr(s, "step", s.step + 1), s.history.append(s.step), x + 1)),
    "popped": (lambda n: n, lambda x, n: ({"a": 1}.pop("b", n), {}.setdefault("a", n), {"a": 1}.get("c", n), x)),
    "copied": (lambda n: Config(n), lambda x, c: (copy.copy(c), dict(vars(c)), x)),
    "copied deeply": (lambda n: Config(n), lambda x, c: (copy.deepcopy(c), x)),
    "stats copied deeply": (_stats, lambda x, s: (copy.deepcopy(s), x)),
    "record copied deeply": (lambda n: Record(n, n / 7), lambda x, r: (copy.deepcopy(r), x)),
    "tuple copied deeply": (lambda n: (n, [n], {"k": (n, n)}), lambda x, t: (copy.deepcopy(t), x)),
    "shared parts": (lambda n: [(part := [n, torch.ones(2)]), part], lambda x, t: (copy.deepcopy(t), x)),
    "with tensors": (
        lambda n: collections.OrderedDict(a=n, b=torch.zeros(2), c={"d": torch.ones(3)}),
        lambda x, d: (copy.deepcopy(d), x),
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_numbers_that_are_kept_are_symbols(name: str) -> None:
    make, program = RECORDS[name]
    compiled: Any = bolide.compile(program)
    for n in (3, 5, 4, 7, 6):
        x = torch.randn(n, 4)
        ours, theirs = make(n), make(n)
        found, expected = compiled(x, ours), program(x, theirs)
        assert describe((_plain(found), _plain(ours))) == describe((_plain(expected), _plain(theirs)))
    assert len(compiled._bolide.entries) <= 2


def _plain(value: Any) -> Any:
    """With texts for floats and tensors, up to rounding."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, torch.Tensor):
        return [f"{item:.4f}" for item in value.flatten().tolist()]
    if isinstance(value, dict):
        return type(value)((key, _plain(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_plain, value)]
    return [type(value).__name__, _plain(vars(value))] if hasattr(value, "__dict__") else value


def test_a_module_that_is_copied_deeply_in_the_call() -> None:
    def program(x: torch.Tensor, module: torch.nn.Module) -> Any:
        return copy.deepcopy(module)(x)

    compiled: Any = bolide.compile(program)
    for n in (3, 5, 4):
        x, module = torch.randn(n, 4), torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        torch.testing.assert_close(compiled(x, module), program(x, module))
    assert len(compiled._bolide.entries) <= 2


def test_a_memo_of_the_programs_own_knows_the_objects_of_each_call() -> None:
    def program(x: torch.Tensor, part: list[int], memo: dict[int, Any]) -> Any:
        return copy.deepcopy(part, memo) is memo[id(part)], x + 1

    compiled = bolide.compile(program)
    parts = [[n] for n in range(4)]
    for part in parts:
        memo: dict[int, Any] = {}
        assert compiled(torch.ones(2), part, memo)[0] and id(part) in memo


class Base:
    @staticmethod
    def make(value: Any) -> Any:
        return value + 1

    @classmethod
    def double(cls, value: Any) -> Any:
        return value * 2


class Derived(Base):
    @staticmethod
    def make(value: Any) -> Any:
        return super().make(value)  # type: ignore[misc]

    @staticmethod
    def nothing() -> Any:
        return super().make(1)  # type: ignore[misc]

    @classmethod
    def double(cls, value: Any) -> Any:
        return super().double(value) + 1

    def inner(self, value: Any) -> Any:
        def call() -> Any:
            return super().double(value)  # type: ignore[misc]

        return call()


SUPER: dict[str, Callable[[Any], Any]] = {
    "static": lambda x: Derived.make(x),
    "static with a class": lambda x: Derived.make(Derived),
    "without arguments": lambda x: Derived.nothing(),
    "inner function": lambda x: Derived().inner(x),
    "another object": lambda x: super(Derived, x).double(x),
    "class": lambda x: Derived.double(x),
}


@pytest.mark.parametrize("name", SUPER)
def test_super_refuses_what_eager_refuses(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return SUPER[name](x), x
        except (TypeError, RuntimeError) as error:
            return type(error).__name__, str(error).replace("TracedTensor", "Tensor"), x + 1

    compiled: Any = bolide.compile(program, fullgraph=True)
    for n in (3, 5):
        x = torch.randn(n)
        found, expected = compiled(x), program(x)
        assert describe(found[:-1]) == describe(expected[:-1])
        torch.testing.assert_close(found[-1], expected[-1])


def _cycle(count: int) -> list[ValueError]:
    errors = [ValueError(str(n)) for n in range(count)]
    for n, error in enumerate(errors):
        error.__context__ = errors[(n + 1) % count]
    return errors


@pytest.mark.parametrize("count", [1, 2, 4])
def test_exceptions_that_lead_to_themselves(count: int) -> None:
    def program(x: torch.Tensor) -> Any:
        errors = _cycle(count)
        try:
            try:
                raise errors[0]
            except ValueError:
                raise KeyError("k")  # noqa: B904
        except KeyError as error:
            first = error.__context__ is errors[0]
        try:
            raise errors[-1] from errors[-1]
        except ValueError as error:
            return x + 1, first, error.__cause__ is error, error.args

    compiled: Any = bolide.compile(program, fullgraph=True)
    x = torch.randn(3)
    found, expected = compiled(x), program(x)
    assert found[1:] == expected[1:]
    torch.testing.assert_close(found[0], expected[0])
    with pytest.raises(ValueError, match="0") as caught:
        bolide.compile(_raises)(x, count)
    at: Any = caught.value
    for _ in range(count):
        at = at.__context__
    assert at is caught.value


def _raises(x: torch.Tensor, count: int) -> None:
    x += 1
    raise _cycle(count)[0]
