"""What programs ask of functions themselves is guarded: signatures, annotations, names (both forms of the check)."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config

X = torch.zeros(1)


@pytest.fixture(autouse=True, params=[True, False], ids=["native", "readable"])
def form(request: pytest.FixtureRequest) -> Any:
    with config.patch(enable_cpp_guard_manager=request.param, cache_size_limit=40):
        yield


class Subject:
    """A function, and what leads to it, new for each test."""

    def __init__(self) -> None:
        def function(a: int, b: Any = 3, *, k: Any = 4) -> None:
            """As it was."""

        def wrapping(*args: Any) -> None:
            pass

        class Class:
            field: int

            def __init__(self, a: int = 0) -> None:
                pass

            def __call__(self, z: int = 1) -> None:
                pass

            def method(self, q: int = 5) -> None:
                pass

        class Module(torch.nn.Module):
            def forward(self, x: Any, mask: Any = None) -> Any:
                return x

        self.function, self.cls, self.made, self.module = function, Class, Class(), Module()
        self.wrapping = functools.wraps(function)(wrapping)
        self.unseen = torch.no_grad()(function)
        self.partial = functools.partial(function, 1)


CHANGES: list[Callable[[Subject], Any]] = [
    lambda s: setattr(s.function, "__defaults__", (7,)),
    lambda s: setattr(s.function, "__kwdefaults__", {"k": 9}),
    lambda s: setattr(s.function, "__annotations__", {"a": float}),
    lambda s: s.function.__annotations__.update(b=str),
    lambda s: setattr(s.function, "__signature__", inspect.Signature()),
    lambda s: delattr(s.function, "__signature__"),
    lambda s: setattr(s.function, "__wrapped__", lambda only: None),
    lambda s: delattr(s.function, "__wrapped__"),
    lambda s: setattr(s.wrapping, "__wrapped__", s.made.method),
    lambda s: delattr(s.wrapping, "__wrapped__"),
    lambda s: setattr(s.cls.__init__, "__defaults__", (5,)),
    lambda s: setattr(s.cls, "__init__", lambda self, other=2: None),
    lambda s: setattr(s.cls, "__new__", lambda cls, third=2: None),
    lambda s: setattr(s.cls, "__signature__", inspect.Signature()),
    lambda s: s.cls.__annotations__.update(other=str),
    lambda s: setattr(s.cls, "__call__", lambda self, zz=2: None),
    lambda s: setattr(s.cls.__call__, "__defaults__", (8,)),
    lambda s: setattr(s.made, "__signature__", inspect.Signature()),
    lambda s: setattr(s.cls.method, "__defaults__", (11,)),
    lambda s: setattr(type(s.module).forward, "__defaults__", (12,)),
    lambda s: setattr(s.function, "__name__", "renamed"),
    lambda s: setattr(s.function, "__qualname__", "renamed.too"),
    lambda s: setattr(s.function, "__module__", "elsewhere"),
    lambda s: setattr(s.function, "__doc__", None),
    lambda s: setattr(s.function, "__code__", (lambda a, c: (yield)).__code__),
]
QUESTIONS: dict[str, Callable[[Subject], Any]] = {
    "signature": lambda s: str(inspect.signature(s.function)),
    "parameters": lambda s: [(p.name, p.default) for p in inspect.signature(s.function).parameters.values()],
    "whether it has a parameter": lambda s: "mask" in inspect.signature(s.module.forward).parameters,
    "signature of a method": lambda s: str(inspect.signature(s.made.method)),
    "signature of a module's method": lambda s: str(inspect.signature(s.module.forward)),
    "signature of a class": lambda s: str(inspect.signature(s.cls)),
    "signature of an object": lambda s: str(inspect.signature(s.made)),
    "signature of a partial": lambda s: str(inspect.signature(s.partial)),
    "signature of what wraps": lambda s: str(inspect.signature(s.wrapping)),
    "signature of what torch wraps": lambda s: str(inspect.signature(s.unseen)),
    "signature, not followed": lambda s: str(inspect.signature(s.wrapping, follow_wrapped=False)),
    "from a callable": lambda s: str(inspect.Signature.from_callable(s.function)),
    "full specification": lambda s: tuple(inspect.getfullargspec(s.function)),
    "annotations": lambda s: inspect.get_annotations(s.function),
    "annotations of a class": lambda s: inspect.get_annotations(s.cls),
    "annotations read": lambda s: dict(s.function.__annotations__),
    "what is wrapped": lambda s: inspect.unwrap(s.wrapping) is s.function,
    "whether it is a generator's": lambda s: inspect.isgeneratorfunction(s.function),
    "name": lambda s: (s.function.__name__, s.function.__qualname__, s.function.__module__),
    "text": lambda s: s.function.__doc__,
    "name of a method": lambda s: s.made.method.__name__,
    "name of what is wrapped inside": lambda s: functools.wraps(s.function)(lambda: None).__name__,
    "defaults": lambda s: (s.function.__defaults__, s.function.__kwdefaults__),
    "types": lambda s: typing.get_type_hints(s.function, {"Any": Any, "int": int}),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_follow_changes(name: str) -> None:
    subject = Subject()

    def f(x: torch.Tensor) -> Any:
        try:
            return x + 1, QUESTIONS[name](subject)
        except ValueError as error:
            return x, str(error)

    compiled = bolide.compile(f)
    for change in [lambda s: None, *CHANGES]:
        change(subject)
        for _ in range(2):
            assert compiled(X) == f(X)


@pytest.mark.parametrize("name", ["signature", "whether it has a parameter", "name", "signature of what wraps"])
def test_what_was_asked_and_stays_makes_no_new_version(name: str) -> None:
    subject = Subject()

    def f(x: torch.Tensor) -> Any:
        return x + 1, QUESTIONS[name](subject)

    compiled = bolide.compile(f, fullgraph=True)
    for _ in range(4):
        assert compiled(X) == f(X)
    subject.function.counted = 1  # type: ignore[attr-defined]
    subject.cls.other = 2  # type: ignore[attr-defined]
    assert compiled(X) == f(X)
    assert len(compiled._bolide.entries) == 1


def test_a_signature_whose_parts_the_program_has_written() -> None:
    subject = Subject()

    def f(x: torch.Tensor) -> Any:
        subject.function.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        return x + 1, str(inspect.signature(subject.function))

    compiled = bolide.compile(f)
    for _ in range(2):
        assert compiled(X) == f(X)
