"""Guards of what a class, a function or a module has: each question is asked before and after what it asks of has
changed."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide

module: Any = types.ModuleType("module")


def function() -> None:
    pass


class Other:
    pass


class Case:
    """A class, a subclass of it, and an instance of that, made anew for each test."""

    def __init__(self) -> None:
        class First:
            kept = 1

        class Second(First):
            pass

        self.first, self.second, self.instance = First, Second, Second()


def public(names: Any) -> list[str]:
    return [name for name in names if not name.startswith("_")]


#: name: the question of (first, second, instance), what is changed
QUESTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "subclasses": (lambda a, b, o: [cls.__name__ for cls in a.__subclasses__()], "subclass"),
    "subclasses of type": (lambda a, b, o: len(type.__subclasses__(a)), "subclass"),
    "in vars": (lambda a, b, o: "later" in vars(a), "attribute"),
    "in the namespace": (lambda a, b, o: "later" in a.__dict__, "attribute"),
    "items": (lambda a, b, o: public(key for key, _ in a.__dict__.items()), "attribute"),
    "get": (lambda a, b, o: a.__dict__.get("later", 5), "attribute"),
    "length": (lambda a, b, o: len(vars(a)), "attribute"),
    "iteration": (lambda a, b, o: any(key == "later" for key in vars(a)), "attribute"),
    "dir of a class": (lambda a, b, o: public(dir(b)), "attribute"),
    "dir of an instance": (lambda a, b, o: public(dir(o)), "attribute"),
    "dir of a new instance": (lambda a, b, o: public(dir(b())), "attribute"),
    "members": (lambda a, b, o: public(name for name, _ in inspect.getmembers(b)), "attribute"),
    "static": (lambda a, b, o: inspect.getattr_static(b, "later", 3), "attribute"),
    "bases": (lambda a, b, o: [cls.__name__ for cls in b.__bases__], "bases"),
    "order": (lambda a, b, o: [cls.__name__ for cls in b.__mro__], "bases"),
    "text of a class": (lambda a, b, o: (repr(a), f"{a}"), "name"),
    "name of a class": (lambda a, b, o: (a.__name__, a.__qualname__), "name"),
    "dir of a module": (lambda a, b, o: public(dir(module)), "module"),
    "vars of a module": (lambda a, b, o: public(vars(module)), "module"),
    "dir of a function": (lambda a, b, o: public(dir(function)), "function"),
    "vars of a function": (lambda a, b, o: list(vars(function)), "function"),
    "facts of a function": (
        lambda a, b, o: (function.__name__, function.__doc__, function.__module__, function.__defaults__),
        "function",
    ),
    "annotations of a function": (lambda a, b, o: dict(function.__annotations__), "function"),
}


def change(case: Case, what: str) -> Any:
    """Answers what has to live on."""
    first: Any = case.first
    if what == "subclass":
        return type("Third", (first,), {})
    if what == "attribute":
        first.later = 2
    elif what == "bases":
        case.second.__bases__ = (Other, first)
    elif what == "name":
        first.__qualname__, first.__name__ = "Elsewhere.Renamed", "Renamed"
    elif what == "module":
        module.later = 1
    else:
        function.later, function.__name__, function.__doc__ = 1, "other", "text"  # type: ignore[attr-defined]
        function.__module__, function.__defaults__, function.__annotations__ = "m", (1,), {"a": int}
    return None


@pytest.fixture(autouse=True)
def _restored() -> Any:
    namespace, facts = dict(vars(module)), (function.__name__, function.__doc__, function.__module__)
    yield
    vars(module).clear()
    vars(module).update(namespace)
    vars(function).clear()
    function.__name__, function.__doc__, function.__module__ = facts
    function.__defaults__, function.__annotations__ = None, {"return": "None"}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_comes_later_is_seen(name: str) -> None:
    question, what = QUESTIONS[name]
    case = Case()
    given = case.first, case.second, case.instance

    def program(x: torch.Tensor) -> Any:
        return x + 1, question(*given)

    compiled = bolide.compile(program)
    x = torch.ones(2)
    before = compiled(x)[1]
    assert before == question(*given) == compiled(x)[1]
    kept = change(case, what)
    after = question(*given)
    assert compiled(x)[1] == after != before
    del kept


def test_nothing_is_compiled_again_without_a_change() -> None:
    case = Case()
    first, second, instance = case.first, case.second, case.instance

    def program(x: torch.Tensor) -> Any:
        return x + 1, len(vars(first)), dir(second), dir(instance), first.__subclasses__(), repr(first)

    compiled = bolide.compile(program, fullgraph=True)
    for size in (2, 2, 2):
        compiled(torch.ones(size))
    assert len(compiled._bolide.entries) == 1
