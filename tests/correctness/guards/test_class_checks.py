"""`isinstance`, `issubclass` and the making of instances ask what CPython asks, in its order, and raise its texts."""

from __future__ import annotations

import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config

X = torch.zeros(1)


@typing.runtime_checkable
class HasValue(typing.Protocol):
    value: int


class Thing:
    def __init__(self, value: int = 1) -> None:
        self.value = value


class SaysYes(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return True


class Three(type):
    def __instancecheck__(cls, value: Any) -> Any:
        return [value] if value == 3 else []


class Refuses(type):
    def __subclasscheck__(cls, other: Any) -> bool:
        raise KeyError(other)


class IsThree(metaclass=Three):
    pass


class Closed(metaclass=Refuses):
    pass


class Asked:
    """An object that answers as a class does."""

    def __instancecheck__(self, value: Any) -> bool:
        return bool(value == 3)

    def __subclasscheck__(self, value: Any) -> int:
        return 5


class Two(typing.NamedTuple):
    first: type
    second: type


class Base:
    def __init__(self, tag: str = "default") -> None:
        self.tag = tag


class Anything(Base, metaclass=SaysYes):
    def __new__(cls) -> Any:
        return Base("made")


class Posing(Base):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return Posed


class Posed(Base):
    def __new__(cls) -> Any:
        return Posing("made")


class Made(Base):
    def __new__(cls) -> Any:
        return super().__new__(Below)


class Below(Made):
    pass


ASKED = Asked()
CLASSES: dict[str, Any] = {
    "list": [],
    "dict": {"a": int},
    "number": 3,
    "none": None,
    "string": "int",
    "generic": list[int],
    "union": int | str,
    "union with a generic": str | list[int],
    "union with a hook": str | IsThree,
    "first of a tuple": (int, []),
    "last of a tuple": (str, {}),
    "in a tuple of a tuple": (str, (float, []), int),
    "a tuple of a tuple": (str, (float, int)),
    "an empty tuple": (),
    "hook before what is none": (str, IsThree, []),
    "hook": IsThree,
    "hook for classes": (str, Closed),
    "an object with hooks": ASKED,
    "an object with hooks in a tuple": (str, (ASKED, str)),
    "an object without": Thing(),
    "a tuple with names": Two(str, Thing),
    "typing": typing.Sized,
    "typing, union": typing.Union[int, Thing],  # noqa: UP007
    "typing, generic": typing.List[int],  # noqa: UP006
    "protocol": HasValue,
}


def answers(classes: Any, thing: Any, x: torch.Tensor) -> Any:
    found: list[Any] = [x + 1]
    for value in (3, "", None, [], thing, x, Thing, int):
        for check in (isinstance, issubclass):
            try:
                found.append(check(value, classes))
            except (TypeError, KeyError) as error:
                found.append((type(error), str(error)))
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_answers_and_texts(name: str) -> None:
    compiled = bolide.compile(lambda *args: answers(*args))
    with warnings.catch_warnings(), config.patch(cache_size_limit=100):
        warnings.simplefilter("error")  # no fault of our own
        for thing in (Thing(), Thing(3), torch.nn.Identity()):
            assert compiled(CLASSES[name], thing, X) == answers(CLASSES[name], thing, X)


@pytest.mark.parametrize(
    "name", ["hook", "an object with hooks in a tuple", "in a tuple of a tuple", "protocol", "typing"]
)
def test_is_captured_whole(name: str) -> None:
    def f(x: torch.Tensor, value: Any) -> Any:
        try:
            return x + isinstance(value, CLASSES[name])
        except TypeError as error:
            return x, str(error)

    compiled = bolide.compile(f, fullgraph=True)
    for value in (3, "a", 4, 3, (1,)):
        assert compiled(X, value) == f(X, value)


def test_what_an_object_has_decides_about_a_protocol() -> None:
    def f(x: torch.Tensor, thing: Any) -> Any:
        return x + isinstance(thing, HasValue)

    compiled = bolide.compile(f, fullgraph=True)
    thing, without = Thing(), Thing()
    del without.value
    for value in (thing, without, thing, Base()):
        assert compiled(X, value) == f(X, value)


MAKERS: dict[str, Callable[[], Any]] = {
    "a metaclass that says yes": lambda: Anything().tag,
    "an object that says that it is of the class": lambda: Posed().tag,
    "an instance of a class below": lambda: Made().tag,
    "its class": lambda: (Posed().__class__, type(Posed()), isinstance(Posed(), Posed)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_new_that_makes_something_else(name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, MAKERS[name]()

    assert bolide.compile(f, fullgraph=True)(X) == f(X)


def test_bases_that_change_decide_about_the_initialisation() -> None:
    class Root:
        pass

    class Made(Root):
        def __new__(cls) -> Any:
            return object.__new__(Other)

    class Other(Root):
        def __init__(self) -> None:
            self.initialised = True

    def f(x: torch.Tensor) -> Any:
        return x + hasattr(Made(), "initialised")

    compiled = bolide.compile(f, fullgraph=True)
    for bases in ((Root,), (Made,), (Root,), (Made,)):
        Other.__bases__ = bases
        assert compiled(X) == f(X)
