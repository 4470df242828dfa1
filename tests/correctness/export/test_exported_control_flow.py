"""Graphs that leave bolide have control flow as torch's operators over modules: exported ones, and those that backends
are given."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops import map, scan, while_loop
from torch.export import Dim
from torch.utils import _pytree as pytree

import bolide


class Chosen(nn.Module):
    """A condition in a branch of another one, results in containers, a parameter, a buffer, a number from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: Tensor, n: int = 2) -> object:
        return self.chosen(torch.cond, x, n)

    def chosen(self, cond: Any, x: Tensor, n: int = 2) -> object:
        def true_fn(x: Tensor, k: Tensor) -> object:
            y = cond(x.max() > 2, lambda x: x + self.shift, lambda x: x - 1, (x,))
            return {"y": self.layer(y) * n, "rest": [x.sin(), k.sum(), k + x.shape[0]]}

        def false_fn(x: Tensor, k: Tensor) -> object:
            return {"y": x.cos(), "rest": [x * 1, k.mean(), k * n]}

        return cond(x.sum() > 0, true_fn, false_fn, (x, x + 1))


def eagerly(pred: Tensor, true_fn: Any, false_fn: Any, operands: tuple[Tensor, ...]) -> object:
    """`torch.cond` without a compiler, which eager's has."""
    return (true_fn if pred else false_fn)(*operands)


def inputs() -> list[Tensor]:
    """The way and the inner way taken; the way only; the other way."""
    return [3 + torch.rand(5, 4), torch.rand(3, 4), -torch.rand(6, 4)]


def operators_of(module: fx.GraphModule) -> list[str]:
    """The operators in a graph and in the graphs that it calls."""
    graphs = [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]
    return [str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"]


def gradients(function: Any, x: Tensor) -> tuple[list[Tensor], Tensor]:
    leaf = x.clone().requires_grad_()
    outputs = pytree.tree_leaves(function(leaf))
    torch.stack([(value * value).sum() for value in outputs]).sum().backward()
    assert leaf.grad is not None
    return [value.detach() for value in outputs], leaf.grad


@pytest.mark.parametrize("aten", [False, True], ids=["calls", "aten"])
def test_exported_conditions_are_torchs_operator(aten: bool) -> None:
    model = Chosen()
    expected = functools.partial(model.chosen, eagerly)
    module = bolide.dynamo.export(model, aten_graph=aten)(inputs()[1]).graph_module
    names = operators_of(module)
    assert names.count("cond") == 2 and not any("bolide" in name for name in names)
    assert {name for name, _ in module.named_children()} == {"true_graph_0", "false_graph_0"}
    compiled = bolide.compile(module, fullgraph=True)
    for x in inputs():
        torch.testing.assert_close(module(x), expected(x))
        torch.testing.assert_close(gradients(compiled, x), gradients(expected, x))
    if aten:  # the graphs are the same, and torch takes its time
        torch.testing.assert_close(gradients(module, x), gradients(expected, x))


class Sized(nn.Module):
    """Conditions on sizes, one in a branch of another one, parameters and a size in a branch, one as a result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, bool]:
        return self.chosen(torch.cond, x)

    def chosen(self, cond: Any, x: Tensor) -> tuple[Tensor, bool]:
        rows = x.shape[0]
        larger = rows > 4

        def long(x: Tensor) -> Tensor:
            return cond(rows % 2 == 0, lambda x: self.layer(x) * rows, torch.exp, (x,))

        return cond(larger, long, lambda x: x.sin() + rows, (x,)), larger


@pytest.mark.parametrize("size", [Dim("n"), Dim.DYNAMIC, Dim.AUTO], ids=["name", "dynamic", "auto"])
def test_conditions_on_sizes_are_exported_whole(size: Any, tmp_path: Path) -> None:
    model, shapes = Sized(), ({0: size},)
    graphs = [
        bolide.dynamo.export(model, aten_graph=aten, dynamic_shapes=shapes)(torch.randn(5, 4)).graph_module
        for aten in (False, True)
    ]
    bolide.aot_compile(model, (torch.randn(5, 4),), dynamic_shapes=shapes, path=tmp_path / "model.pt2")
    library, compiled = bolide.load(tmp_path / "model.pt2"), bolide.compile(graphs[1])
    for rows in (7, 6, 3):
        x = torch.randn(rows, 4)
        wanted = model.chosen(eagerly, x)
        for exported in (*graphs, library, compiled):
            torch.testing.assert_close(exported(x), wanted)
        torch.testing.assert_close(
            gradients(lambda x: compiled(x)[0], x), gradients(lambda x: model.chosen(eagerly, x)[0], x)
        )


def test_exported_loops_are_torchs_operator() -> None:
    def doubled(x: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        def goes_on(i: Tensor, x: Tensor) -> Tensor:
            return (x.sum() < limit) & (i < 40)

        return while_loop(goes_on, lambda i, x: (i + 1, x * 2 + x.shape[0]), (limit.long() * 0, x))

    with torch.no_grad():
        x, limit = torch.rand(3, 4), torch.tensor(500.0)
        module = bolide.dynamo.export(doubled, aten_graph=True)(x, limit).graph_module
        assert operators_of(module).count("while_loop") == 1
        for given in (x, torch.rand(6, 4), torch.full((2, 4), 900.0)):
            i, expected = 0, given
            while expected.sum() < limit:
                i, expected = i + 1, expected * 2 + given.shape[0]
            for run in (module, bolide.compile(module, fullgraph=True)):
                torch.testing.assert_close(run(given, limit), (torch.tensor(i), expected))


@pytest.mark.parametrize("reverse", [False, True])
def test_exported_scans_and_maps_are_torchs_operators(reverse: bool) -> None:
    layer = nn.Linear(4, 4)

    def f(h: Tensor, x: Tensor) -> object:
        carry, rows = scan(lambda h, x: (torch.tanh(layer(x) + h), h * x.shape[0]), h, x, reverse=reverse)
        return carry, map(lambda row, x: row.sin() * x, rows, x[0])

    h, x = torch.randn(3, 4), torch.randn(5, 3, 4)
    module = bolide.dynamo.export(f)(h, x).graph_module
    assert {"scan", "map_impl"} <= set(operators_of(module)) and "bolide" not in str(operators_of(module))
    for given in (x, torch.randn(9, 3, 4)):
        carry, rows = h, []
        for row in given.flip(0) if reverse else given:
            rows.append((carry * 3).sin() * given[0])
            carry = torch.tanh(layer(row) + carry)
        expected = carry, torch.stack(rows[::-1] if reverse else rows)
        torch.testing.assert_close(module(h, given), expected)
        torch.testing.assert_close(bolide.compile(module, fullgraph=True)(h, given), expected)


def test_checks_in_a_branch_are_torchs_assertions() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        def true_fn(x: Tensor, i: Tensor) -> Tensor:
            torch._assert_async(i.sum() < 3, "too far")
            return x * i

        return torch.cond(x.sum() > 0, true_fn, lambda x, i: x - i, (x, i))

    x, i = torch.rand(3), torch.ones(3)
    module = bolide.dynamo.export(f, aten_graph=True)(x, i / 2).graph_module
    torch.testing.assert_close(module(-x, i), -x - i)
    torch.testing.assert_close(module(x, i / 2), x * i / 2)
    with pytest.raises(RuntimeError, match=r"too far|does not hold"):
        module(x, i)


def test_backends_are_given_torchs_operators() -> None:
    seen: list[str] = []

    def backend(module: fx.GraphModule, examples: list[Tensor]) -> Any:
        seen.extend(operators_of(module))
        return module.forward

    model = Chosen()
    expected = functools.partial(model.chosen, eagerly)
    compiled = bolide.compile(model, backend=backend, fullgraph=True)
    for x in inputs():
        torch.testing.assert_close(gradients(compiled, x), gradients(expected, x))
    assert seen.count("cond") >= 4 and not any("bolide" in name for name in seen)  # forward and backward
