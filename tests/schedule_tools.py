"""Functions of tensors compiled by inductor alone, for tests of scheduling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bolide.functorch import GraphInfo, compile_trace
from bolide.inductor import CompiledGraph, compile_graph
from bolide.inductor.ir.definitions import Program
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.schedule.products import Way
from bolide.tracing import Trace

Function = Callable[..., Any]


class Rescheduled:
    """Changes schedules by a function, and leaves calls as they are."""

    def __init__(self, change: Callable[[Schedule, Callable[[Schedule], Kernel]], Schedule]) -> None:
        self.schedule = change

    def library(self, ways: Sequence[Way], program_of: Callable[[Way], Program]) -> Way:
        return ways[0]


def graph_of(fn: Function, inputs: Sequence[torch.Tensor]) -> tuple[torch.fx.GraphModule, GraphInfo]:
    """The graph that inductor is given for an inference call of `fn`."""
    found: list[Any] = []

    def keep(gm: torch.fx.GraphModule, info: GraphInfo) -> Any:
        found.append((gm, info))
        return lambda values: ()

    trace = Trace()
    traced = [trace.input(tensor, f"x{index}") for index, tensor in enumerate(inputs)]
    with trace.recording():
        out = fn(*traced)
    outs = [out] if isinstance(out, torch.Tensor) else list(out)
    compile_trace(trace, outs, forward_compiler=keep, backward_compiler=keep)
    return found[0]


def compiled(fn: Function, inputs: Sequence[torch.Tensor]) -> CompiledGraph:
    """`fn` compiled for inputs like these."""
    return compile_graph(*graph_of(fn, inputs))


def check(fn: Function, *inputs: torch.Tensor, **tolerance: float) -> CompiledGraph:
    """Compiled results are eager's, strides included."""
    graph = compiled(fn, inputs)
    expected = fn(*[tensor.clone() for tensor in inputs])
    results = graph([tensor.clone() for tensor in inputs])
    wanted = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    assert len(results) == len(wanted)
    for mine, theirs in zip(results, wanted):
        assert_same(mine, theirs, **tolerance)
    return graph


def assert_same(mine: torch.Tensor, theirs: torch.Tensor, **tolerance: float) -> None:
    """Equal values, dtype and shape, and strides along axes that have more than one element."""
    torch.testing.assert_close(mine, theirs, equal_nan=True, **tolerance)
    if theirs.numel():
        sized = [dim for dim, size in enumerate(theirs.shape) if size > 1]
        assert [mine.stride(dim) for dim in sized] == [theirs.stride(dim) for dim in sized]
