"""How a compiled program runs, as data: what the run-time wrappers around its graphs have to know. The same data makes
the runner in the process that has compiled the program and in one that has found it on disk (docs/saved.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.fx as fx

from bolide.functorch.graphs import Runner
from bolide.functorch.runtime.second import Tape
from bolide.functorch.runtime.underived import Fault, with_history
from bolide.functorch.runtime.wrappers import (
    Backward,
    Crossing,
    assembling,
    counting_writes,
    differentiable,
    without_autocast,
    without_grad,
    writing_unseen,
)
from bolide.functorch.signature import InputWrite, Output


@dataclass(frozen=True, slots=True)
class Training:
    """What a program needs to be differentiated; the parameters of `differentiable` are explained there. `twice`:
    whether gradients of its gradients can be made of its `Derivative`'s tape."""

    crossing: Crossing
    apart: tuple[int, ...]
    anchored: bool
    twice: bool


@dataclass(frozen=True, slots=True)
class Program:
    """The wrappers of a program's graphs, from the inside out.

    `unseen`: inputs of the (forward) graph that are written through `Tensor.data`; `without_grad`, `without_autocast`:
    modes that are off while it runs; `with_grad`: gradients are on around it all, which they are not behind it;
    `faults`: results without a derivative; the rest are the parameters of `assembling`, and `counted` of
    `counting_writes`."""

    unseen: tuple[int, ...] = ()
    without_grad: bool = False
    without_autocast: bool = False
    with_grad: bool = False
    training: Training | None = None
    faults: Mapping[int, Fault] = field(default_factory=dict)
    counted: tuple[InputWrite, ...] = ()
    outputs: tuple[Output, ...] = ()
    writes: tuple[InputWrite, ...] = ()
    symbols: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)

    def runner(
        self,
        forward: Runner,
        backward: Backward | None,
        constants: dict[str, torch.Tensor],
        whole: Callable[[fx.GraphModule], Callable[..., object]] | None,
    ) -> Runner:
        """What runs the program by its compiled graph. `backward`: of one that is differentiated; `whole`: see
        `compile_trace`."""
        run = writing_unseen(forward, self.unseen) if self.unseen else forward
        run = without_grad(run) if self.without_grad else run
        run = without_autocast(run) if self.without_autocast else run
        if self.training is not None:
            assert backward is not None
            training = self.training
            run = differentiable(run, backward, training.crossing, training.apart, training.anchored, whole)
        run = with_history(run, self.faults) if self.faults else run
        run = counting_writes(run, self.counted) if self.counted else run
        run = assembling(run, self.outputs, self.writes, constants, self.symbols, self.numbers)
        return torch.enable_grad()(run) if self.with_grad else run


class Derivative(NamedTuple):
    """The backward of a program as graphs. `saved`: how many values the backward graph takes before tangents;
    `static`: those of them that are the same in every call; `tape`: the forward as recorded, if it can be derived
    again; `data`: whether sizes in it are data."""

    graph: fx.Graph
    saved: int
    static: frozenset[int]
    tape: Tape | None
    data: bool


class Compiled(NamedTuple):
    """What `compile_trace` has made: the program, its graph's runner, its constants, and of one that is differentiated
    the backward."""

    program: Program
    forward: Runner
    constants: dict[str, torch.Tensor]
    derivative: Derivative | None
    backward: Backward | None
