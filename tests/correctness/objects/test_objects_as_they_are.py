"""Objects that stand for themselves are of the outside world, too: members of enumerations, identities. And guards
look at objects without running code of the program's."""

from __future__ import annotations

import enum
import functools
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.native.check import FIRST_RECORDING
from bolide.support.errors import BolideWarning

pytestmark = pytest.mark.filterwarnings(f"error::{BolideWarning.__module__}.{BolideWarning.__name__}")


def colours() -> Any:
    class Colour(enum.Enum):
        RED = [1, 2]
        BLUE = 2

        def __init__(self, *parts: Any) -> None:
            self.log: list[int] = []
            self.weight, self.table = 1.5, {}

        @property
        def twice(self) -> float:
            return self.weight * 2

        def note(self) -> None:
            self.log.append(len(self.log))
            self.weight += 1

    return Colour


USES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "attribute": lambda x, member: x * member.weight,
    "property": lambda x, member: x * member.twice,
    "length of a list": lambda x, member: x + len(member.log),
    "list grows": lambda x, member: (member.log.append(3), x + sum(member.log))[1],
    "method that writes": lambda x, member: (member.note(), x * member.weight)[1],
    "dict is written": lambda x, member: (member.table.update(a=len(member.log)), x + member.table["a"])[1],
    "value is a list": lambda x, member: x + (len(member.value) if isinstance(member.value, list) else member.value),
    "setattr": lambda x, member: (setattr(member, "weight", member.weight + 1), x * member.weight)[1],
    "new attribute": lambda x, member: (setattr(member, "fresh", getattr(member, "fresh", 0) + 1), x + member.fresh)[1],
    "vars": lambda x, member: (vars(member).update(fresh=7), x + member.fresh)[1],
    "hasattr": lambda x, member: x + hasattr(member, "fresh"),
    "a key": lambda x, member: {member: x * member.weight}[member],
}
CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda member: None,
    lambda member: member.log.append(1),
    lambda member: setattr(member, "weight", member.weight + 0.5),
    lambda member: setattr(member, "fresh", 1),
    lambda member: vars(member).pop("fresh", None),
    lambda member: member.table.clear(),
    lambda member: member.value.append(3) if isinstance(member.value, list) else None,
)


@pytest.mark.parametrize("name", USES)
def test_members_of_enumerations_are_read_and_written(name: str, seed: int) -> None:
    """Capture changes nothing; what is changed outside is seen; gradients flow and sizes change."""
    use, changes = USES[name], random.Random(seed).choices(CHANGES, k=8)

    def life(call: Callable[..., Any]) -> Any:
        torch.manual_seed(seed)
        found: list[Any] = []
        kind = colours()
        for step, change in enumerate(changes):
            member = [*kind][step % 2]
            for _ in range(FIRST_RECORDING):
                x = torch.randn(2 + step % 3, requires_grad=True)
                result = call(x, member)
                result.sum().backward()
                found += [result.tolist(), x.grad.tolist()]
            change(member)
            found.append([{key: str(item) for key, item in vars(m).items() if key[0] != "_"} for m in kind])
        return found

    with config.patch(cache_size_limit=64):
        assert life(use) == life(bolide.compile(use))


def test_identities_are_those_of_the_objects() -> None:
    held = types.SimpleNamespace(tensor=torch.ones(2), items=[1], table={}, inner=types.SimpleNamespace())
    known = {id(part): place for place, part in enumerate(vars(held).values(), 1)}

    def f(x: torch.Tensor) -> torch.Tensor:
        parts = (held.tensor, held.items, held.table, held.inner)
        return x * sum([known.get(id(part), 0) * 10**place for place, part in enumerate(parts)])

    compiled = bolide.compile(f)
    for _ in range(2):
        for _ in range(FIRST_RECORDING + 1):
            x = torch.randn(3)
            assert torch.equal(compiled(x), f(x))
        held.tensor, held.items = torch.ones(2), [1]
    known[id(held.tensor)] = 9
    assert torch.equal(compiled(x), f(x))


def test_two_passed_tensors_are_told_apart_by_identity() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1 if id(x) == id(y) else x - 1

    compiled = bolide.compile(f)
    for size in (2, 2, 3, 4):
        x, y = torch.randn(size), torch.randn(size)
        assert torch.equal(compiled(x, x), x + 1)
        assert torch.equal(compiled(x, y), x - 1)


class Noisy:
    """Says what of its code is run."""

    def __init__(self, said: list[str]) -> None:
        self.said, self.scale, self.other = said, 2, 1

    @functools.cached_property
    def slow(self) -> int:
        self.said.append("cached property")
        return 4

    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        self.said.append(f"__getattr__ {name}")
        return 9


class NoisySlots:
    __slots__ = ("said", "scale")

    def __init__(self, said: list[str]) -> None:
        self.said, self.scale = said, 2

    def __getattr__(self, name: str) -> int:
        object.__getattribute__(self, "said").append(f"__getattr__ {name}")
        return 9


class Quiet:
    """Without a `__getattr__`."""

    __getattr__: Any
    slow = vars(Noisy)["slow"]

    def __init__(self, said: list[str]) -> None:
        self.said, self.scale, self.other = said, 2, 1


LIVES: tuple[Callable[[Any], Any], ...] = (
    lambda thing: setattr(thing, "scale", 3),
    lambda thing: delattr(thing, "scale"),
    lambda thing: setattr(thing, "slow", 7),
    lambda thing: vars(thing).pop("slow", 0),
    lambda thing: setattr(type(thing), "other", property(lambda self: self.said.append("property") or 5)),
    lambda thing: delattr(type(thing), "other"),
)


@pytest.mark.parametrize("base", [Noisy, NoisySlots, Quiet])
def test_guards_run_no_code_of_the_program(base: Any, seed: int) -> None:
    """What the program says comes in eager's order, in its body, whatever was changed before the call."""
    changes = random.Random(seed).choices(LIVES, k=12)

    def life(compile: Callable[..., Any]) -> Any:
        said: list[str] = []
        kind = type("Thing", (base,), {} if base is not NoisySlots else {"__slots__": ()})
        thing: Any = kind(said)

        def f(x: torch.Tensor, given: Any) -> torch.Tensor:
            said.append("body")
            for name in ("scale", "slow", "other"):
                x = x + getattr(thing, name, 0)
            return x + getattr(given, "scale", 0)

        call, found = compile(f), []
        for change in (lambda thing: None, *changes):
            try:
                change(thing)
            except (AttributeError, TypeError):
                said.append("no such change")
            for _ in range(FIRST_RECORDING + 1):
                said.append("call")
                found.append(call(torch.zeros(2), thing).tolist())
        return found, said

    with config.patch(cache_size_limit=64):
        assert life(lambda f: f) == life(bolide.compile)


class Doubling:
    """A descriptor in Python."""

    def __get__(self, owner: Any, cls: Any) -> Any:
        return (owner or cls).count * 2


class WithClassMethods:
    count = 3

    @classmethod
    def method(cls, more: int) -> int:
        return cls.count + more

    property_of_class: Any = classmethod(property(lambda cls: cls.count))
    static: Any = classmethod(staticmethod(lambda more: more + 1))  # type: ignore[arg-type]
    own: Any = classmethod(Doubling())  # type: ignore[arg-type]
    twice: Any = classmethod(classmethod(lambda cls, more: cls.count * more))  # type: ignore[arg-type]


class Below(WithClassMethods):
    count = 5


OBJECT = Below()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="class methods no longer ask what they wrap")
def test_descriptors_in_class_methods() -> None:
    def fn(x: torch.Tensor) -> Any:
        found = [owner.property_of_class + owner.own for owner in (WithClassMethods, Below, OBJECT, Below())]
        called = [owner.static(1) + owner.twice(4) + owner.method(2) for owner in (WithClassMethods, Below, OBJECT)]
        above = super(Below, OBJECT)
        return x + sum(found), called, above.property_of_class, above.own, above.twice(2)

    compiled = bolide.compile(fn, fullgraph=True)
    for count in (5, 7, 11):
        Below.count = count
        x = torch.randn(2)
        assert str(compiled(x)) == str(fn(x))
