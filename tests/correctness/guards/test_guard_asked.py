"""Facts of the outside world that programs ask for in passing are guarded: the next call sees what has changed."""

from __future__ import annotations

import collections
import contextlib
import importlib
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

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


# ---- what torch reads of the program's classes -----------------------------------------------------------------------


def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def _function(**attributes: Any) -> Any:
    class Tripled(torch.autograd.Function):
        forward = staticmethod(tripled)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 3

    for name, value in attributes.items():
        setattr(Tripled, name, value)
    return Tripled


def _by_rows(info: Any, dims: Any, x: Any) -> Any:
    return x * 5, dims[0]


VMAP = staticmethod(_by_rows)
FLAGS: dict[str, list[Any]] = {
    "set to False": [{"generate_vmap_rule": True}, {"generate_vmap_rule": False}, {"generate_vmap_rule": True}],
    "deleted": [{"generate_vmap_rule": True}, {"generate_vmap_rule": None}, {"generate_vmap_rule": True}],
    "set beside a rule": [{"vmap": VMAP}, {"generate_vmap_rule": True}, {"generate_vmap_rule": None}],
    "a rule comes": [{"generate_vmap_rule": True}, {"generate_vmap_rule": False, "vmap": VMAP}, {"vmap": None}],
}


@pytest.mark.parametrize("name", FLAGS)
def test_how_a_function_is_vectorised(name: str) -> None:
    first, *changes = FLAGS[name]
    function = _function(**first)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(function.apply)(x)

    def outcome(run: Any) -> Any:
        try:
            return run(torch.ones(2, 3)).tolist()
        except RuntimeError as error:
            return str(error)

    compiled = bolide.compile(f)
    for change in ({}, *changes):
        for key, value in change.items():
            if value is None:
                delattr(function, key)
            else:
                setattr(function, key, value)
        for _ in range(2):
            assert outcome(compiled) == outcome(f)


def test_methods_that_a_function_gets() -> None:
    function = _function()

    def by_vjp() -> None:
        function.vjp = staticmethod(lambda ctx, g: g * 9)
        del function.backward

    def by_backward() -> None:
        function.backward = staticmethod(lambda ctx, g: g * 5)
        del function.vjp

    def f(x: torch.Tensor) -> torch.Tensor:
        return function.apply(x).sum()

    compiled = bolide.compile(f)
    for change in (
        lambda: None,
        lambda: setattr(function, "backward", staticmethod(lambda ctx, g: g * 7)),
        by_vjp,
        by_backward,
        lambda: setattr(function, "forward", staticmethod(lambda given: given * 4)),
    ):
        change()
        found = []
        for run in (compiled, f):
            x = torch.ones(3, requires_grad=True)
            out = run(x)
            out.backward()
            found.append((out.item(), x.grad))
        assert str(found[0]) == str(found[1])


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return Wrapped(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Wrapped(func(*[arg.inner if isinstance(arg, Wrapped) else arg for arg in args], **(kwargs or {})))


def _times(by: int) -> Any:
    return classmethod(lambda cls, func, types, args=(), kwargs=None: Wrapped(args[0].inner * by))


def _of_additions(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return Wrapped(args[0].inner * 9) if func is torch.add else func(*args, **(kwargs or {}))


METHODS: dict[str, Any] = {
    "__torch_dispatch__": _times(7),
    "__torch_function__": classmethod(_of_additions),
    "__tensor_unflatten__": staticmethod(lambda parts, context, size, stride: Wrapped(parts["inner"] * 2)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("inside", [False, True], ids=["given", "made inside"])
def test_methods_of_a_wrapper_that_torch_calls(name: str, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        made = Wrapped(x * 2) if inside else x
        return torch.add(made, 1)

    def outcome(run: Any) -> Any:
        given: Any = torch.ones(2)
        if not inside:
            given = Wrapped(given)
            given.other = torch.zeros(2)
        return run(given).inner.tolist()

    compiled = bolide.compile(f)
    before = outcome(compiled)
    assert before == outcome(f)
    with monkeypatch.context() as patch:
        patch.setattr(Wrapped, name, METHODS[name])
        if name.startswith("__torch"):
            assert outcome(compiled) == outcome(f) != before
        else:
            outcome(compiled)  # how it is put together is the compiler's question
    assert outcome(compiled) == before


class Doubling(torch.Tensor):
    """Twice as much comes of `sin`, where torch asks."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.sin else result


def _told(x: torch.Tensor) -> Any:
    return x + 1, torch._C._is_torch_function_enabled(), torch._C._is_torch_function_all_disabled()


def _made_inside(x: torch.Tensor) -> Any:
    return x.as_subclass(Doubling).sin() + 1


def _switched_inside(x: torch.Tensor) -> Any:
    y: Any = x.as_subclass(Doubling)
    with torch._C.DisableTorchFunctionSubclass():
        first = y.sin() + 1, _told(x)
    return first, y.sin() + 1, _told(x)


@pytest.mark.parametrize("fn", [_told, _made_inside, _switched_inside])
def test_whom_torch_asks_is_guarded(fn: Callable[[torch.Tensor], Any]) -> None:
    """Classes of tensors are asked, or they are not, or nobody is: in any order, and again without a new version."""
    compiled: Any = bolide.compile(fn, fullgraph=True)
    states = [contextlib.nullcontext, torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction]
    random.shuffle(states)
    for state in states * 2:
        x = torch.randn(3)
        with state():
            expected, actual = fn(x), compiled(x)
        for one, other in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
            assert type(one) is type(other)
            with torch._C.DisableTorchFunction():
                assert torch.allclose(one, other) if isinstance(one, torch.Tensor) else one is other
    assert len(compiled._bolide.entries) == 3
