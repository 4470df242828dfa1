"""Graphs of one op, made from real calls, for tests of lowering."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from bolide.inductor.ir.definitions import Extern, Program
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.ir.program_check import check_program
from bolide.inductor.lowering import lower
from bolide.tracing.meta import meta_of


def _metas(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return meta_of(value)
    return tuple(_metas(item) for item in value) if type(value) in (tuple, list) else value


def has_kernel(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this torch computes such a sample at all (2.11 has no `trace` of 16-bit numbers)."""
    try:
        op(*args, **kwargs)
    except NotImplementedError:
        return False
    return True


def graph_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.GraphModule, list[torch.Tensor], Any]:
    """The graph that calls `op`, its tensor inputs, and what eager gives."""
    graph, tensors = fx.Graph(), []

    def convert(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        node = graph.placeholder(f"in{len(tensors)}")
        node.meta["val"] = meta_of(arg)
        tensors.append(arg)
        return node

    node_args, node_kwargs = pytree.tree_map(convert, (args, kwargs))
    expected = op(*args, **kwargs)
    node = graph.call_function(op, tuple(node_args), node_kwargs)
    node.meta["val"] = _metas(expected)
    results: list[Any] = [node]
    if isinstance(expected, (tuple, list)):
        results = []
        for place, item in enumerate(expected):
            part = graph.call_function(__import__("operator").getitem, (node, place))
            part.meta["val"] = _metas(item)
            results.append(part if isinstance(item, torch.Tensor) else None)
    graph.output(tuple(results))
    return fx.GraphModule(torch.nn.Module(), graph), tensors, expected


def run_op(op: Any, *args: Any, **kwargs: Any) -> tuple[Program, list[Any], list[Any]]:
    """(program, its results, eager's results) of one op."""
    gm, tensors, expected = graph_of(op, args, kwargs)
    program = lower(gm)
    check_program(program)
    results = evaluate(program, tensors)
    return program, results, list(expected) if isinstance(expected, (tuple, list)) else [expected]


def is_extern(program: Program) -> bool:
    """Whether anything but the op's own checks runs as an ATen call."""
    return any(isinstance(definition, Extern) and definition.names for definition in program.definitions)


def assert_same(results: list[Any], expected: list[Any], **tolerances: Any) -> None:
    """Values, dtypes, shapes and strides agree."""
    assert len(results) == len(expected)
    for mine, theirs in zip(results, expected):
        if not isinstance(theirs, torch.Tensor):
            continue
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, (
            mine.dtype,
            mine.shape,
            theirs.dtype,
            theirs.shape,
        )
        torch.testing.assert_close(mine, theirs, equal_nan=True, **tolerances)
        if theirs.numel():
            sized = [d for d, size in enumerate(theirs.shape) if size > 1]
            assert [mine.stride(d) for d in sized] == [theirs.stride(d) for d in sized], (
                mine.stride(),
                theirs.stride(),
            )
