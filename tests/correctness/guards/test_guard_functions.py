"""Changes of functions, of the order of dicts and of identities are seen by the next call (both forms of the check)."""

from __future__ import annotations

import builtins
import collections
import contextlib
import gc
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide
from bolide.dynamo.config import config

X = torch.randn(4)


def follows(f: Callable[[torch.Tensor], Any], changes: list[Callable[[], Any]]) -> None:
    """After each change the compiled function does what eager does, at once and when it has been called more often."""
    compiled = bolide.compile(f, backend="eager", fullgraph=True)
    for change in [lambda: None, *changes]:
        change()
        for _ in range(4):
            torch.testing.assert_close(compiled(X), f(X), rtol=0, atol=0)
    made = len(compiled._bolide.entries)
    for _ in range(3):
        compiled(X)
    assert len(compiled._bolide.entries) == made > 1


@pytest.fixture(autouse=True, params=[True, False], ids=["native", "readable"])
def form(request: pytest.FixtureRequest) -> Any:
    with config.patch(enable_cpp_guard_manager=request.param, cache_size_limit=20):
        yield


def test_defaults() -> None:
    def helper(x: Any, by: Any = 2, *, plus: Any = 3, table: Any = {"a": 1}) -> Any:  # noqa: B006
        return x * by + plus + table["a"]

    def f(x: torch.Tensor) -> Any:
        return helper(x)

    follows(
        f,
        [
            lambda: setattr(helper, "__defaults__", (7,)),
            lambda: helper.__kwdefaults__.update(plus=4),
            lambda: helper.__kwdefaults__["table"].update(a=5),
            lambda: helper.__kwdefaults__.update(table={"a": 6}),
            lambda: setattr(helper, "__kwdefaults__", {"plus": torch.ones(4), "table": {"a": 1}}),
            lambda: setattr(helper, "__defaults__", (torch.randn(4),)),
        ],
    )


def test_code() -> None:
    def helper(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x - 1

    before = helper.__code__
    follows(
        lambda x: helper(x) * 2,
        [lambda: setattr(helper, "__code__", other.__code__), lambda: setattr(helper, "__code__", before)],
    )


def test_the_code_of_a_method() -> None:
    class Model:
        def run(self, x: Any, by: Any = 2) -> Any:
            return x * by

    model = Model()
    follows(
        lambda x: model.run(x),
        [
            lambda: setattr(Model.run, "__defaults__", (3,)),
            lambda: setattr(Model.run, "__code__", (lambda self, x, by: x - by).__code__),
        ],
    )


def test_the_order_of_an_ordered_dict() -> None:
    table = collections.OrderedDict(a=1, b=2, c=3)

    def f(x: torch.Tensor) -> Any:
        for place, key in enumerate(table):
            x = x * (place + 2) + table[key]
        return x

    follows(f, [lambda: table.move_to_end("a"), lambda: table.move_to_end("c", last=False), lambda: table.popitem()])


def test_tensors_and_objects_that_become_the_same() -> None:
    one, two = torch.ones(4), torch.ones(4)
    held = types.SimpleNamespace(a=one, b=two, p=types.SimpleNamespace(), q=types.SimpleNamespace())

    def f(x: torch.Tensor) -> Any:
        return (x + held.a) * (2 if held.a is held.b else 3) - (1 if held.p is not held.q else 2)

    follows(
        f,
        [
            lambda: setattr(held, "b", one),
            lambda: setattr(held, "q", held.p),
            lambda: setattr(held, "b", two),
            lambda: setattr(held, "q", types.SimpleNamespace()),
        ],
    )


class Base:
    scale = 2.0

    def method(self, x: Any) -> Any:
        return x + 1

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 2

    @property
    def computed(self) -> Any:
        return 3

    def __call__(self, x: Any) -> Any:
        return x - 1

    def __add__(self, other: Any) -> Any:
        return other * 5

    def __getattr__(self, name: str) -> Any:
        return 7


def reading(self: Any, name: str) -> Any:
    return 4 if name == "zzz" else object.__getattribute__(self, name)


CHANGES: dict[str, tuple[str, Any]] = {
    "method": ("method", lambda self, x: x + 2),
    "static": ("method", staticmethod(lambda x: x + 6)),
    "classmethod": ("of_class", classmethod(lambda cls, x: x * 4)),
    "property": ("computed", property(lambda self: 9)),
    "value": ("scale", 2.5),
    "call": ("__call__", lambda self, x: x - 9),
    "operator": ("__add__", lambda self, other: other * 6),
    "getattr": ("__getattr__", lambda self, name: 8),
    "getattribute": ("__getattribute__", reading),
    "truth": ("__bool__", lambda self: False),
    "length": ("__len__", lambda self: 0),
    "shadow": ("zzz", 11),
    "super": ("inherited", lambda self, x: x * 12),
}


@pytest.mark.parametrize("on", ["base", "derived"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_class_of_the_user_has(change: str, on: str) -> None:
    body = {key: held for key, held in vars(Base).items() if key not in ("__dict__", "__weakref__")}
    base: Any = type("Copy", (), {**body, "inherited": lambda self, x: x})

    class Derived(base):  # type: ignore[misc]
        def inherited(self, x: Any) -> Any:
            return super().inherited(x) + 1

    thing = Derived()

    def f(x: torch.Tensor) -> Any:
        y = thing(thing.of_class(thing.method(x)) * thing.computed + (thing + x) * thing.zzz * thing.scale)
        return thing.inherited(y) + (1 if thing else 2)

    name, value = CHANGES[change]
    follows(f, [lambda: setattr(base if on == "base" and change != "super" else Derived, name, value)])


def test_what_is_not_read_of_a_class_makes_no_new_version() -> None:
    class Thing:
        def used(self, x: Any) -> Any:
            return x + 1

    thing = Thing()
    compiled = bolide.compile(lambda x: thing.used(x), backend="eager", fullgraph=True)
    for i in range(50):
        setattr(Thing, f"other{i % 3}", i)
        Thing.count = i  # type: ignore[attr-defined]
        compiled(X)
    assert len(compiled._bolide.entries) == 1


def test_bases() -> None:
    class One:
        def run(self, x: Any) -> Any:
            return x + 1

    class Two:
        def run(self, x: Any) -> Any:
            return x + 2

    class Thing(One):
        pass

    thing = Thing()
    follows(lambda x: thing.run(x), [lambda: setattr(Thing, "__bases__", (Two,))])


def test_a_class_of_which_the_program_makes_instances() -> None:
    class Point:
        def __init__(self, x: Any) -> None:
            self.x = x

        def twice(self) -> Any:
            return self.x * 2

    def initialise(self: Any, x: Any) -> None:
        self.x = x - 3

    follows(
        lambda x: Point(x).twice(),
        [lambda: setattr(Point, "__init__", initialise), lambda: setattr(Point, "twice", lambda self: self.x * 7)],
    )


def test_forward_on_the_class_of_a_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x)

    net = Net()
    compiled = bolide.compile(net, backend="eager", fullgraph=True)
    before = nn.Linear.forward
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, nn.Linear, "forward", before)
        for change in (
            lambda: None,
            lambda: setattr(Net, "forward", lambda self, x: self.layer(x) * 2),
            lambda: setattr(nn.Linear, "forward", lambda self, x: x @ self.weight),
            lambda: setattr(nn.Linear, "forward", before),
        ):
            change()
            for _ in range(3):
                torch.testing.assert_close(compiled(X), net(X), rtol=0, atol=0)


def test_a_global_that_comes_before_a_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> Any:
        return x * abs(-3)

    follows(
        f,
        [
            lambda: monkeypatch.setitem(f.__globals__, "abs", lambda x: 77),
            lambda: monkeypatch.setitem(f.__globals__, "abs", builtins.abs),
            lambda: monkeypatch.delitem(f.__globals__, "abs"),
        ],
    )


def test_the_death_of_a_referent() -> None:
    class Thing:
        scale = 3.0

    held = [Thing()]
    reference = weakref.ref(held[0])

    def f(x: torch.Tensor) -> Any:
        found = reference()
        return x if found is None else x * found.scale

    follows(f, [lambda: setattr(held[0], "scale", 4.0), held.clear, gc.collect])


def test_defaults_of_the_compiled_function_itself() -> None:
    def f(x: Any, by: Any = 2, *rest: Any, plus: Any = 3) -> Any:
        return x * by + plus + len(rest)

    compiled = bolide.compile(f, backend="eager", fullgraph=True)
    calls: list[Callable[[Any], Any]] = [
        lambda g: g(X),
        lambda g: g(X, 2),
        lambda g: g(X, 4, 5, plus=6),
        lambda g: g(X, plus=3),
        lambda g: g(by=1, x=X),
    ]
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: setattr(f, "__defaults__", (5,)),
        lambda: f.__kwdefaults__.update(plus=9),
        lambda: setattr(f, "__kwdefaults__", {"plus": 8}),
        lambda: setattr(f, "__code__", (lambda x, by, *rest, plus: x - by - plus - len(rest)).__code__),
        lambda: setattr(f, "__defaults__", (torch.ones(4), 6)),
    ]
    for change in changes:
        change()
        for call in calls:
            torch.testing.assert_close(compiled(X, by=1), f(X, by=1), rtol=0, atol=0)
            torch.testing.assert_close(call(compiled), call(f), rtol=0, atol=0)
        assert str(inspect.signature(compiled)) == str(inspect.signature(f))
    f.__defaults__ = f.__kwdefaults__ = None
    for call in (lambda: compiled(X), lambda: compiled(X, 2)):
        with pytest.raises(TypeError, match="missing 1 required"):
            call()


def test_code_with_other_parameters_is_refused() -> None:
    def f(a: Any, b: Any) -> Any:
        return a - b

    compiled = bolide.compile(f, backend="eager", fullgraph=True)
    compiled(X, 1)
    f.__code__ = (lambda b, a: a - b).__code__
    with pytest.raises(TypeError, match="other parameters"):
        compiled(X, b=1)


def test_whether_nondeterminism_only_warns() -> None:
    def f(x: torch.Tensor) -> Any:
        return x * (2 if torch.is_deterministic_algorithms_warn_only_enabled() else 3)

    with contextlib.ExitStack() as stack:
        stack.callback(torch.use_deterministic_algorithms, False)
        follows(
            f,
            [
                lambda: torch.use_deterministic_algorithms(True, warn_only=True),
                lambda: torch.use_deterministic_algorithms(True),
                lambda: torch.use_deterministic_algorithms(False, warn_only=True),
            ],
        )


def test_a_class_that_changes_all_the_time() -> None:
    """The native check follows what the program reads of it, and goes on seeing changes of that."""

    class Root:
        plain = 2

        def twice(self, x: Any) -> Any:
            return x * self.plain

    class Thing(Root):
        calls = 0

        def run(self, x: Any) -> Any:
            return self.twice(x) * (2 if hasattr(self, "absent") else 3)

    thing = Thing()

    def f(x: torch.Tensor) -> Any:
        return thing.run(x) + isinstance(thing, Root)

    compiled = bolide.compile(f, backend="eager", fullgraph=True)

    def calls() -> None:
        for _ in range(60):
            Thing.calls += 1
            Root.other = object()  # type: ignore[attr-defined]
            torch.testing.assert_close(compiled(X), f(X), rtol=0, atol=0)

    calls()
    (entry,) = compiled._bolide.entries
    assert (entry.check.form is entry.check.readable) is not config.enable_cpp_guard_manager
    for change in (
        lambda: setattr(Root, "twice", lambda self, x: x * 5),
        lambda: setattr(Thing, "twice", lambda self, x: x * 6),
        lambda: delattr(Thing, "twice"),
        lambda: setattr(Root, "__getattribute__", lambda self, name: object.__getattribute__(self, name)),
        lambda: setattr(Root, "plain", 9),
        lambda: setattr(thing, "twice", lambda x: x),
    ):
        change()
        calls()


class Solver:
    """Holds a function, which its owner may make anew for each call."""

    def __init__(self, step: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.step = step

    def solve(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.step(x + self.step(x))


@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "breaks"])
def test_functions_made_for_each_call_that_objects_hold(breaks: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """They are known by their code from the second one on; what they close over, and other code, is seen."""
    held = Solver(torch.sin)
    layer = nn.Linear(4, 4)

    def program(x: torch.Tensor, factor: float) -> torch.Tensor:
        solver = held if factor else Solver(lambda y: layer(y))
        if breaks:
            print()
        return solver.solve(x)

    def steps(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda y: layer(y) * factor

    compiled = bolide.compile(program, fullgraph=not breaks)
    for call in range(12):
        x = torch.randn(2 + call % 3, 4)
        held.step = torch.cos if call == 7 else steps(2.0 if call < 6 else float(call))
        torch.testing.assert_close(compiled(x, 1.0), program(x, 1.0))
        torch.testing.assert_close(compiled(x, 0.0), program(x, 0.0))
    assert len(compiled._bolide.entries) <= 7
    capsys.readouterr()


def test_defaults_of_functions_made_for_each_call() -> None:
    """They are values like any: those that change are symbols, and arguments that equal them are others."""
    offset = torch.randn(4)

    def made(call: int, other: torch.Tensor | None) -> list[Callable[..., torch.Tensor]]:
        def with_names(y: torch.Tensor, a: int = call, *, b: float = call / 2, c: Any = other) -> torch.Tensor:
            return y * a + b if c is None else y * a + b * c

        return [lambda y, k=k * call: y * k for k in range(3)] + [with_names]

    def program(x: torch.Tensor, functions: list[Callable[..., torch.Tensor]]) -> list[torch.Tensor]:
        named = functions[-1]
        return [*[f(x) for f in functions], named(x, 3), named(x, b=1.5), named(x, c=x)]

    compiled = bolide.compile(program, fullgraph=True)
    for call in range(9):
        x, given = torch.randn(2 + call % 3, 4), made(call, offset + call if call % 2 else None)
        for got, want in zip(compiled(x, given), program(x, given), strict=True):
            torch.testing.assert_close(got, want)
    assert len(compiled._bolide.entries) <= 5


def test_a_function_that_is_found_at_two_places() -> None:
    """Where it is known by its code at one, others of the same code may be there later."""
    held = Solver(torch.sin)

    def program(x: torch.Tensor, other: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return x * len({other, held.step}) + held.step(x)

    def made() -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda y: y * 2

    compiled = bolide.compile(program, fullgraph=True)
    for call in range(12):
        held.step, other = made(), made()
        for given in (held.step, other) if call % 2 else (other, held.step):
            torch.testing.assert_close(compiled(X, given), program(X, given))
