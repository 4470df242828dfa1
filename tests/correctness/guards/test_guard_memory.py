"""What was compiled is given back when the function is dropped."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop

import bolide
from bolide.dynamo.config import config
from bolide.support import leaks
from bolide.tracing import graph as graphs

X = torch.randn(4, 4)


def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(
        x.sum() > 0, lambda y: y.sin(), lambda y: torch.cond(y[0, 0] > 0, torch.cos, torch.exp, (y,)), (x,)
    )


def repeated(x: torch.Tensor) -> torch.Tensor:
    return while_loop(lambda i, y: y.norm() < 100, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [chosen, repeated])
@torch.no_grad()
def test_graphs_inside_a_graph_live_as_long_as_it(program: Any, backend: str) -> None:
    gc.collect()
    before = len(graphs._tables)
    compiled = bolide.compile(lambda x: program(x) * 2, backend=backend, fullgraph=True)
    for x in (X, -X, X + 1):
        torch.testing.assert_close(compiled(x), program(x) * 2)
        gc.collect()
    # the plans of inductor hold what runs, and no graphs
    assert (len(graphs._tables) == before) if backend == "inductor" else (len(graphs._tables) > before)
    del compiled
    gc.collect()
    assert len(graphs._tables) == before


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_backward_may_come_after_the_function_is_gone(backend: str) -> None:
    weight = X.clone().requires_grad_()
    compiled = bolide.compile(lambda x: chosen(x * weight).sum(), backend=backend, fullgraph=True)
    results = [compiled(x) for x in (X, -X)]
    del compiled
    bolide.reset()
    gc.collect()
    found = [torch.autograd.grad(result, weight)[0] for result in results]
    for x, gradient in zip((X, -X), found):
        torch.testing.assert_close(gradient, torch.autograd.grad(chosen(x * weight).sum(), weight)[0])


def breaking(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.detach().max() > 0.5:
        n = 2
        y = y * w.mean()
    else:
        n = 3  # another number: the branch is a break
    if y.min() < 0:
        y = y @ w
    return y * n


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_nothing_of_a_capture_is_kept_in_cycles_through_autograd(backend: str) -> None:
    """Autograd's nodes hold the ways of branches. These held the interpreter, and it the results of such nodes."""
    before = {id(value) for value in leaks.living()}
    compiled = bolide.compile(breaking, backend=backend)
    for size in (3, 5):
        for sign in (1.0, -1.0):
            x, w = (sign * torch.rand(size, 4)).requires_grad_(), torch.rand(4, 4, requires_grad=True)
            compiled(x, w).sum().backward()
    del compiled
    bolide.reset()
    gc.collect()
    gc.collect()
    assert [type(value) for value in leaks.living() if id(value) not in before] == []


def test_a_module_and_its_parameters_die_with_their_last_user() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    compiled = bolide.compile(module, fullgraph=True)
    for _ in range(4):
        compiled(X).sum().backward()
    watched = [weakref.ref(x) for x in (module, *module.parameters())]
    del module, compiled
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)


def test_arguments_and_globals_are_not_kept_by_what_was_compiled() -> None:
    compiled = bolide.compile(lambda x, table: x + table["bias"] * len(table), backend="eager")
    bias, x = torch.randn(4), torch.randn(4)
    for _ in range(4):
        compiled(x, {"bias": bias})
    watched = [weakref.ref(bias), weakref.ref(x)]
    del bias, x
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
    assert len(compiled._bolide.entries) == 1


def test_streams_are_not_referred_to_weakly() -> None:
    """A stream on a GPU leaves weak references to it behind, in memory that is free."""

    class Stream(torch.Stream):
        """As torch.cuda's, a class of Python's."""

    @bolide.compile(backend="eager")
    def program(x: torch.Tensor, stream: torch.Stream) -> torch.Tensor:
        y = x * 2
        stream.query()
        return y + 1

    for stream in [Stream(device="cpu")] * 20 + [Stream(device="cpu") for _ in range(20)]:
        torch.testing.assert_close(program(X, stream), X * 2 + 1)
        assert not weakref.getweakrefs(stream)


def test_reset_drops_graphs_and_constants() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.tensor([1.0, 2.0, 3.0, 4.0])
        bolide.graph_break()
        return y.sin() * x

    compiled = bolide.compile(f)
    compiled(X)
    watched = [weakref.ref(versions.entries[0].function) for versions in (compiled._bolide, *points(compiled))]
    bolide.reset()
    gc.collect()
    assert len(watched) == 2 and [ref() for ref in watched] == [None, None]
    torch.testing.assert_close(compiled(X), f(X))


def points(compiled: Any) -> list[Any]:
    return [point for point in compiled._bolide.points.values() if point.entries]


def stopping(x: torch.Tensor, kind: str) -> torch.Tensor:
    for _ in range(3):
        x = x * 2
        print(kind)
        if kind == "item" and x[0, 0].item() > 1e9:
            break
        if kind == "raised":
            try:
                raise ValueError(os.getcwd())
            except ValueError:
                x = x + 1
    return sum(made(x, kind)) if kind == "generator" else x


def made(x: torch.Tensor, kind: str) -> Iterator[torch.Tensor]:
    for n in range(2):
        print(kind)
        yield x * n


@pytest.mark.parametrize("kind", ["printed", "item", "raised", "generator"])
def test_calls_with_breaks_leave_no_garbage_for_the_collector(kind: str) -> None:
    """Looking through all that lives takes as long as many hundreds of small calls."""
    compiled = bolide.compile(stopping)
    with contextlib.redirect_stdout(io.StringIO()), config.patch(eager_if_faster=False):
        for _ in range(12):
            compiled(X, kind)
        gc.collect()
        for _ in range(12):
            compiled(X, kind)
        assert gc.collect() == 0


def test_numbers_of_objects_are_kept_as_long_as_what_is_noted_of_them() -> None:
    """The `id` of an object is a number that is made when it is asked for; its memory is soon gone."""

    def program(x: torch.Tensor, held: set[object]) -> tuple[torch.Tensor, int]:
        return x + 1, id(held)

    for _ in range(20):
        compiled = bolide.compile(program)
        for call in range(40):
            held: set[object] = {str(call % 7), "a"}
            assert compiled(torch.ones(2), held)[1] == id(held)
