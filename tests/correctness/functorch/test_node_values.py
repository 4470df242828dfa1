"""What nodes of graphs given to compilers say of themselves: PyTorch's tensors without data."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

import bolide
from bolide.functorch.aot_autograd import aot_function


def test_views_without_elements_have_values() -> None:
    """Also those of which strides and offset say nothing that memory must hold."""
    shapes: list[Any] = []

    def compiler(graph: Any, examples: object) -> Any:
        shapes.extend(tuple(node.meta["val"].shape) for node in graph.graph.find_nodes(op="placeholder"))
        shapes.extend(tuple(node.meta["val"].shape) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    x, fn = torch.randn(4), lambda x: x.as_strided((0,), (10,), 3) + 1
    result = aot_function(fn, compiler)(x)
    assert torch.equal(result, fn(x))
    assert shapes[0] == (4,) and set(shapes[1:]) == {(0,)}


def test_modes_die_with_the_graphs() -> None:
    """A mode keeps its symbols, so who looks modes up by symbols may not keep the modes."""
    modes: list[Any] = []

    def compiler(graph: Any, examples: object) -> Any:
        value = next(node.meta["val"] for node in graph.graph.nodes if isinstance(node.meta["val"], torch.Tensor))
        assert value.fake_mode.shape_env is not None
        modes.append(weakref.ref(value.fake_mode))
        return graph

    x, fn = torch.randn(5), torch.sin
    call = aot_function(fn, compiler, dynamic=True)
    assert torch.equal(call(x), fn(x))
    assert [mode() is not None for mode in modes] == [True]
    del call
    gc.collect()
    assert modes[0]() is None


def test_integers_below_zero_are_symbols() -> None:
    """What is no size may have any sign."""
    values: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: object) -> Any:
        values.extend(node.meta.get("example_value") for node in graph.graph.nodes)
        return graph.forward

    x, program = torch.randn(4), lambda x, k: x * k + k
    compiled = bolide.compile(program, backend=backend, dynamic=True)
    for k in (-3, 5, -8):
        assert torch.equal(compiled(x, k), program(x, k))
    assert any(isinstance(value, torch.SymInt) for value in values)
