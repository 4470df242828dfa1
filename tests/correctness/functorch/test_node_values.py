"""What nodes of graphs given to compilers say of themselves: PyTorch's tensors without data."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

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
