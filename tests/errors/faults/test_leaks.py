"""What stands for values of a program while it is captured is gone when that is over. All tests look for that
(`detect_leaks`, on in conftest.py); here, that leaks are found, and that classes of causes are none.
"""

from __future__ import annotations

import functools
import gc
import traceback
import weakref
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.entry.capture import _Attempt
from bolide.dynamo.world.world import World
from bolide.support import events, leaks
from bolide.support.errors import CompileError, Leak, Unsupported
from bolide.tracing import Trace, TracedTensor

kept: list[Any] = []


class Layer:
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().exp()


LAYERS = [Layer()]


@pytest.fixture(params=["inductor", "eager"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def earlier() -> None:
    """What is there before a test is left out, as what is there before the tests of a file is: it is much to search."""
    gc.collect(1)
    gc.freeze()


def living() -> int:
    found = 1
    for _ in range(3):  # cycles through autograd's graph go by parts
        if found:
            gc.collect()
            found = len(leaks.living())
    return found


def test_what_a_module_keeps_is_found(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    known = World.release
    gc.unfreeze()  # as the search does
    before = living()

    def release(self: World) -> None:
        kept.extend(self.trace.leaves)
        known(self)

    monkeypatch.setattr(World, "release", release)
    with pytest.raises(Leak, match=r"(?s)TracedTensor.*'kept' of .*module test_leaks"):
        bolide.compile(lambda x: x * 2, backend=backend)(torch.randn(3))
    kept.clear()
    assert living() <= before


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([{"a": TracedTensor}], r"item 'a' of item 0 of the result"),
        (ValueError("not TracedText"), "item 0 of args of the result"),
    ],
)
def test_what_the_program_is_given_is_looked_into(value: Any, what: str) -> None:
    with pytest.raises(Leak, match=what):
        leaks.refuse_in("f", value, "the result")


def test_causes_of_refusals_may_say_what_capture_met() -> None:
    refused = Unsupported("a reason")
    refused.__cause__ = TypeError("not TracedText")
    leaks.refuse_in("f", refused, "the exception")
    refused.__cause__, user = None, ValueError("the user's")
    user.__cause__ = TypeError("not TracedText")
    with pytest.raises(Leak, match="the cause of the exception"):
        leaks.refuse_in("f", user, "the exception")


def test_symbols_are_found_in_results() -> None:
    leaks.refuse_in("f", (1, [torch.ones(2).shape[0]]), "the result")
    with pytest.raises(Leak, match="SymInt is item 0 of item 1 of the result"):
        leaks.refuse_in("f", (1, [Trace().size(5, "s")]), "the result")


class Weighted:
    pass


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    bolide.dynamo.graph_break()
    return y.cos()


def raises(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    raise ValueError(y.shape[0])


def handles(x: torch.Tensor) -> torch.Tensor:
    try:
        return raises(x)
    except ValueError as error:
        return x + error.args[0]


def makes_a_class(x: torch.Tensor) -> torch.Tensor:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return y * len(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * len(x)

    return Own.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def gradients(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad((x * x).sum(), x)[0] + torch.tensor([1.0, 2.0, 3.0, 4.0])


def texts(x: torch.Tensor) -> str:
    return f"{x.sum()} of {x.shape[0]}"


def hooks(x: torch.Tensor) -> torch.Tensor:
    """Autograd's nodes, in C++, hold the hooks, these the trace, and that the nodes."""
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    z = y.exp()
    z.grad_fn.register_hook(lambda given, taken: None)  # type: ignore[union-attr]
    return z * x


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    """Behind what the program has written, and known to the graph."""
    LAYERS[0].calls = x.shape[0]
    return checkpoint(LAYERS[0].forward, x, use_reentrant=False)  # type: ignore[no-any-return]


def gradients_of_each_other(x: torch.Tensor) -> torch.Tensor:
    a, b = x.detach() + 1, x.detach() + 2
    a.grad, b.grad = b, a  # a cycle in C++
    return x.sum()


def own_generator(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return x * torch.rand(x.shape, generator=generator)


PROGRAMS = [breaks, raises, handles, makes_a_class, gradients, texts, hooks, checkpointed]
PROGRAMS += [gradients_of_each_other, own_generator]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_nothing_is_left(fn: Any, backend: str) -> None:
    """With new sizes, with gradients, when exceptions and events are kept."""
    errors, told = [], []
    before = living()
    compiled = bolide.compile(fn, backend=backend)
    for size in (2, 3, 5):
        x = torch.randn(size, 4, requires_grad=True)
        with events.subscribed(told.append):
            try:
                result = compiled(x)
            except ValueError as error:
                errors.append(error)
            else:
                if isinstance(result, torch.Tensor) and result.requires_grad:
                    result.sum().backward()
    assert living() == before
    assert len(errors) == 3 * (fn is raises)


def test_refusals_hold_nothing(backend: str) -> None:
    before = living()
    compiled = bolide.compile(breaks, backend=backend, fullgraph=True)
    with pytest.raises(bolide.Unsupported) as refused:
        compiled(torch.randn(3))
    assert living() <= before and "graph_break" in str(refused.value)


def test_faults_hold_nothing(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Nor do the functions whose frames they have passed through, which frames that are cleared still refer to."""
    interpret = _Attempt.run

    def run(self: _Attempt, *args: Any) -> Any:
        done = interpret(self, *args)

        def fails() -> Any:
            raise KeyError("injected", len(self.world.trace.leaves), id(done))

        return fails()

    monkeypatch.setattr(_Attempt, "run", run)
    before = living()
    x = torch.randn(3)
    with pytest.raises(CompileError, match="injected") as found:
        bolide.compile(breaks, backend=backend)(x)
    assert living() <= before
    told = traceback.format_exception(found.value)
    assert any("in fails" in line for line in told)


def test_classes_of_the_program_are_not_kept(backend: str) -> None:
    """Those that it makes in a call are gone with what was made of them."""
    made: list[Any] = []

    def fn(x: torch.Tensor, cls: type) -> torch.Tensor:
        return x * cls().scale  # type: ignore[no-any-return, attr-defined]

    for scale in (2, 3):
        cls = type("Made", (Weighted,), {"scale": scale})
        made.append(weakref.ref(cls))
        bolide.compile(functools.partial(fn, cls=cls), backend=backend)(torch.randn(3))
        del cls
    bolide.reset()
    gc.collect()
    assert [ref() for ref in made] == [None, None]


class Thing:
    """Something of the caller's."""


def branch_that_stays_a_break(x: torch.Tensor, thing: Thing) -> list[Any]:
    kept = [thing]
    if x.sum() > -100:
        kept.append(1)  # type: ignore[arg-type]
    return kept[1:]


def branch_behind_a_break(x: torch.Tensor, thing: Thing) -> list[Any]:
    kept = [thing]
    bolide.graph_break()
    if x.sum() > -100:
        kept.append(1)  # type: ignore[arg-type]
    return kept[1:]


def branch_in_a_branch(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    kept = [thing]
    if x.sum() > -100:
        if x.max() > -100:
            kept.append(thing)
        x = x + len(kept)
    return x


def branch_of_the_graph(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    kept = (thing, 2)
    if x.sum() > -100:
        x = x * 2
    return x + kept[1]


def break_in_a_handler(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    kept = [thing]
    try:
        raise ValueError(len(kept))
    except ValueError:
        bolide.graph_break()
    return x + len(kept)


def break_with_a_generator(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def numbers() -> Any:
        kept = [thing]
        yield len(kept)
        yield 2

    made = numbers()
    x = x + next(made)
    bolide.graph_break()
    return x + next(made)


def break_with_a_generator_in_a_handler(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def numbers() -> Any:
        kept = [thing]
        try:
            yield len(kept)
        except KeyError:
            yield 2

    made = numbers()
    x = x + next(made) + made.throw(KeyError(1))
    if x.sum() > -100:
        bolide.graph_break()
    return x + 1


def data_that_is_read(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    kept = [thing] * 3
    return x + len(kept[: int(x.argmax()) % 2])


def exception_of_the_program(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    def raises(thing: Thing) -> None:
        raise KeyError(x.shape[0])

    try:
        raises(thing)
    except KeyError as error:
        return x + error.args[0]
    return x


def exception_that_leaves(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    kept = [thing]
    raise KeyError(x.shape[0], len(kept))


def loop_with_breaks(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    for kept in (thing, thing):
        if x.sum() > -100:
            bolide.graph_break()
        x = x + (kept is thing)
    return x


CALLS = [
    branch_that_stays_a_break,
    branch_behind_a_break,
    branch_in_a_branch,
    branch_of_the_graph,
    break_in_a_handler,
    break_with_a_generator,
    break_with_a_generator_in_a_handler,
    data_that_is_read,
    exception_of_the_program,
    exception_that_leaves,
    loop_with_breaks,
]


@pytest.mark.parametrize("fn", CALLS, ids=lambda fn: fn.__name__)
def test_what_a_call_was_given_dies_with_it(fn: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector, as in eager: the end of an object can be seen. (Looking for leaks collects.)"""
    monkeypatch.setattr(config, "detect_leaks", False)
    compiled = bolide.compile(fn, backend=backend)
    gc.collect()
    gc.disable()
    try:
        for size in (2, 2, 3, 5):
            thing = Thing()
            seen = weakref.ref(thing)
            try:
                compiled(torch.randn(size, requires_grad=True), thing)
            except KeyError as error:
                assert fn is exception_that_leaves, error
            del thing
            assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_casts_of_a_capture_do_not_live_as_long_as_their_region(dynamic: bool | None, backend: str) -> None:
    """Autocast keeps casts of leaves until its region ends, which may be around a whole program."""
    compiled = bolide.compile(lambda x, w: (x @ w).sum(), backend=backend, dynamic=dynamic)
    w = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        for size in torch.randperm(6)[:3].tolist():
            compiled(torch.randn(size + 2, 4, requires_grad=True), w).backward()
            assert not living()
