"""Long loops over slices are an operation whose step is compiled once: `scan` and `map`, gradients, new lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as torchs_map
from torch._higher_order_ops import scan, while_loop
from torch.utils import _pytree as pytree

import bolide
from bolide.dynamo.polyfills.torch_functions import MOVES_RESULTS
from bolide.support import events

layer = nn.Linear(4, 4, dtype=torch.float64)  # so that rounding is far from what gradients of gradients are


def over(step: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """`scan` as the loop that it stands for."""
    leaves, spec = pytree.tree_flatten(xs)
    slices = list(zip(*[leaf.unbind(dim) for leaf in leaves]))
    rows, carry = [], init
    for items in reversed(slices) if reverse else slices:
        carry, row = step(carry, pytree.tree_unflatten(items, spec))
        rows.append(row)
    parts = [pytree.tree_leaves(row) for row in (reversed(rows) if reverse else rows)]
    stacked = [torch.stack(column, dim if MOVES_RESULTS else 0) for column in zip(*parts)]
    return carry, pytree.tree_unflatten(stacked, pytree.tree_structure(rows[0]))


def mapped(function: Callable[..., Any], xs: Any, *args: Any) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    rows = [function(pytree.tree_unflatten(items, spec), *args) for items in zip(*leaves)]
    return pytree.tree_map(lambda *column: torch.stack(column), *rows)


def recurrent(loop: Any, h: Tensor, x: Tensor, w: Tensor) -> Any:
    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.tanh(layer(x) + h * w)
        return new, new * h + x.shape[0]

    return loop(step, h, x)


def nested_containers(loop: Any, h: Tensor, x: Tensor, w: Tensor) -> Any:
    def step(carry: Any, items: Any) -> Any:
        count, state = carry["count"], carry["state"]
        new = {"count": count + 1, "state": state.sin() + items[0] * w}
        return new, [items[1][0].sum(), {"state": state * 2, "count": count * 1}]

    return loop(step, {"count": torch.zeros((), dtype=torch.int64), "state": h}, (x, [x * 2]))


def backwards(loop: Any, h: Tensor, x: Tensor, w: Tensor) -> Any:
    return loop(lambda c, x: (c * w + x, c - x), h, x, reverse=True)


def along_another_dimension(loop: Any, h: Tensor, x: Tensor, w: Tensor) -> Any:
    return loop(lambda c, x: (c * w + x, c * x), h, x.transpose(0, 1), dim=1)


def scan_in_a_scan(loop: Any, h: Tensor, x: Tensor, w: Tensor) -> Any:
    def step(carry: Tensor, x: Tensor) -> Any:
        rows = torch.cat([x] * 6)  # 18
        inner, given = loop(lambda c, row: (c * 0.5 + row * w, c.sin()), carry[0], rows)
        return carry * 0.9 + inner, given.sum(0) + carry

    return loop(step, h, x)


def chosen_in_each_step(loop: Any, h: Tensor, x: Tensor, w: Tensor) -> Any:
    def step(carry: Tensor, x: Tensor) -> Any:
        if loop is over:
            new = carry * w if x.sum() > 0 else carry + x
        else:
            new = torch.cond(x.sum() > 0, lambda c, x: c * w, lambda c, x: c + x, (carry, x))
        return new, new * 2

    return loop(step, h, x)


def read_from_outside(loop: Any, h: Tensor, x: Tensor, w: Tensor) -> Any:
    """What is carried, and what is gone over, is read by the step as a whole, too."""
    return loop(lambda c, row: (c * 0.9 + row + h, c * x.mean(0)), h, x)


PROGRAMS = [
    recurrent,
    nested_containers,
    backwards,
    along_another_dimension,
    scan_in_a_scan,
    chosen_in_each_step,
    read_from_outside,
]


def outcome(run: Callable[..., Any], inputs: tuple[Tensor, ...], order: int) -> list[Any]:
    """Results, and the gradients of the inputs and of the layer; of order 2 those of the gradients' squares."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    results = pytree.tree_leaves(run(*leaves))
    loss = torch.stack([value.square().sum() for value in results if value.is_floating_point()]).sum()
    wanted = [*leaves, *layer.parameters()]
    zeros = [torch.zeros_like(value) for value in wanted]
    found: Any = torch.autograd.grad(loss, wanted, create_graph=order > 1, allow_unused=True)
    if order > 1:
        loss = torch.stack([value.square().sum() for value in found if value is not None]).sum()
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [*[result.detach() for result in results], *[at if g is None else g for at, g in zip(zeros, found)]]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_long_scans_are_a_loop_of_any_length(program: Any, order: int) -> None:
    compiled = bolide.compile(lambda *given: program(scan, *given), fullgraph=True)
    for length in (20, 25, 7):
        inputs = (torch.randn(3, 4), torch.randn(length, 3, 4), torch.rand(4))
        inputs = tuple([value.double() for value in inputs])
        expected = outcome(lambda *given: program(over, *given), inputs, order)
        torch.testing.assert_close(outcome(compiled, inputs, order), expected)
    assert len(compiled._bolide.entries) == 2  # the second has lengths


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_maps_are_loops(backend: str) -> None:
    def program(map: Any, x: Tensor, w: Tensor) -> Any:
        return map(lambda items, w: {"a": items[0] * w, "b": layer(items[1]).relu()}, (x, x.sin()), w)

    compiled = bolide.compile(lambda x, w: program(torchs_map, x, w), fullgraph=True, backend=backend)
    for length in (40, 30, 50):
        inputs = torch.randn(length, 3, 4).double(), torch.rand(4).double()
        torch.testing.assert_close(outcome(compiled, inputs, 1), outcome(lambda x, w: program(mapped, x, w), inputs, 1))
    assert len(compiled._bolide.entries) == 2


def test_steps_that_draw_draw_each_for_itself() -> None:
    compiled = bolide.compile(lambda h, x: scan(lambda c, x: (c + x, torch.rand(8) + x * 0), h, x), fullgraph=True)
    with torch.no_grad():
        rows = compiled(torch.zeros(8), torch.zeros(20, 8))[1]
    assert len({tuple(row.tolist()) for row in rows}) == 20 and rows.min() >= 0 and rows.max() < 1


def test_while_loops_draw_in_each_step() -> None:
    def body(i: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.cat([rows[1:], torch.rand(1, 8)])

    compiled = bolide.compile(lambda n: while_loop(lambda i, rows: i < n, body, (n * 0, torch.zeros(3, 8))))
    with torch.no_grad():
        rows = compiled(torch.tensor(5))[1]
    assert len({tuple(row.tolist()) for row in rows}) == 3


def test_a_step_is_compiled_once() -> None:
    """Kernels and operations are those of one step, whatever the length."""
    graphs: list[Any] = []
    with events.subscribed(lambda event: graphs.append(event) if isinstance(event, events.Graph) else None):
        compiled = bolide.compile(lambda h, x: scan(lambda c, x: (c * 0.9 + x.sin(), c * x), h, x))
        with torch.no_grad():
            compiled(torch.randn(4), torch.randn(500, 4))
    (event,) = graphs
    called = [str(node.target) for node in event.graph.graph.nodes if node.op == "call_function"]
    assert called.count("bolide.scan.default") == 1 and len(called) < 10


@pytest.mark.parametrize(("most", "loops"), [(0, 1), (3, 1), (8, 0), (None, 0)])
def test_as_many_steps_are_unrolled_as_the_option_says(most: int | None, loops: int) -> None:
    graphs: list[Any] = []
    x = torch.randn(6, 4)
    with (
        bolide.dynamo.config.patch(unrolled_steps=most),
        events.subscribed(lambda event: graphs.append(event) if isinstance(event, events.Graph) else None),
    ):
        total, rows = bolide.compile(lambda x: scan(lambda c, x: (c + x, c * x), x[0] * 0, x), fullgraph=True)(x)
    assert [str(node.target) for node in graphs[0].graph.graph.nodes].count("bolide.scan.default") == loops
    torch.testing.assert_close((total, rows), over(lambda c, x: (c + x, c * x), x[0] * 0, x))
