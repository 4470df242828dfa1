"""Facts of the outside world that programs ask for in passing are guarded: the next call sees what has changed."""

from __future__ import annotations

import collections
import importlib
import sys
import types
from typing import Any

import pytest
import torch

import bolide

X = torch.zeros(1)
Deque = collections.deque


class OfOurs(Deque[Any]):
    pass


class Misleading(Deque[Any]):
    maxlen = 77  # type: ignore[assignment]


HELD: dict[str, Any] = {}


@pytest.mark.parametrize("kind", [Deque, OfOurs, Misleading])
@pytest.mark.parametrize("where", ["argument", "global", "in containers"])
def test_the_limit_of_a_deque(kind: Any, where: str) -> None:
    def f(x: torch.Tensor, given: Any) -> Any:
        items = HELD["items"] if where == "global" else given if where == "argument" else given[0]["a"]
        items.append(9)
        return x + len(items), items.maxlen, list(items), items[0]

    compiled = bolide.compile(f, fullgraph=True)
    for limit in (None, 2, 3, None, 1):
        results = []
        for run in (compiled, f):
            items = HELD["items"] = kind([1, 2], limit)
            results.append((run(X, [{"a": items}] if where == "in containers" else items), list(items)))
            assert Deque.maxlen.__get__(items) == limit  # type: ignore[attr-defined]
        assert results[0] == results[1]


# ---- imports ---------------------------------------------------------------------------------------------------------


def _module(name: str, value: Any) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module)["value"] = value
    return module


def plainly() -> Any:
    import asked_pack

    return asked_pack.value


def by_another_name() -> Any:
    import asked_pack.part as known

    return known.value


def a_part() -> Any:
    import asked_pack.part

    return asked_pack.part.value


def a_name() -> Any:
    from asked_pack import value

    return value


def a_part_by_its_name() -> Any:
    from asked_pack import part

    return part.value


def a_name_of_a_part() -> Any:
    from asked_pack.part import value

    return value


def by_a_function() -> Any:
    return importlib.import_module("asked_pack.part").value


def by_a_function_from_a_package() -> Any:
    return importlib.import_module(".part", package="asked_pack").value


def by_the_builtin() -> Any:
    return __import__("asked_pack").value


exec("def relatively():\n    from . import part\n    return part.value", relative := {"__package__": "asked_pack"})
IMPORTS = [plainly, by_another_name, a_part, a_name, a_part_by_its_name, a_name_of_a_part, by_a_function]
IMPORTS += [by_a_function_from_a_package, by_the_builtin, relative["relatively"]]


@pytest.mark.parametrize("load", IMPORTS)
@pytest.mark.parametrize("catches", [False, True])
def test_which_module_is_imported(load: Any, catches: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x + load()
        except ImportError as error:
            if catches:
                return x, type(error), str(error)
            raise

    def outcome(run: Any) -> Any:
        try:
            return run(X)
        except (ImportError, AttributeError) as error:
            return type(error), str(error)

    def whole(value: Any, attribute: bool = True) -> None:
        package, part = _module("asked_pack", value), _module("asked_pack.part", value + 10)
        package.__path__ = []
        if attribute:
            vars(package)["part"] = part

    def gone() -> None:
        sys.modules.pop("asked_pack", None)
        sys.modules.pop("asked_pack.part", None)

    compiled = bolide.compile(f, fullgraph=catches)
    try:
        for change in (
            lambda: whole(1),
            lambda: whole(2),
            gone,
            lambda: whole(3),
            lambda: whole(4, attribute=False),
            lambda: sys.modules.pop("asked_pack.part"),
            lambda: sys.modules.update(asked_pack=None),  # type: ignore[arg-type]
            lambda: whole(5),
        ):
            change()
            for _ in range(2):
                assert outcome(compiled) == outcome(f)
    finally:
        gone()


def test_imports_of_libraries_are_not_asked_again() -> None:
    def f(x: torch.Tensor) -> Any:
        import math
        import os.path

        from torch import nn

        return nn.functional.relu(x) + math.pi + len(os.path.sep)

    compiled = bolide.compile(f, fullgraph=True)
    assert compiled(X) == f(X)
    sources = [guard.source for guard in compiled._bolide.entries[0].guards]
    assert not any(source is not None and source.obj is sys.modules for source in sources)
