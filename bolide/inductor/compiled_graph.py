"""The entry of inductor: an ATen graph in, a callable that runs its Plan out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

import torch
import torch.fx

from bolide.inductor.codegen import compile_kernels
from bolide.inductor.config import config
from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.lowering import lower
from bolide.inductor.lowering.context import device_of, input_name
from bolide.inductor.machine import Machine, machine_for
from bolide.inductor.plan import Plan
from bolide.inductor.runtime import driver
from bolide.inductor.runtime.kernels import CompiledKernel, binder, failure
from bolide.inductor.schedule import schedule_program
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.schedule.pipeline import Scheduled, Tuner, timed
from bolide.inductor.schedule.stages import Refusal
from bolide.support import events
from bolide.support.artifacts import is_on
from bolide.support.locks import compiling
from bolide.symbolic import Expr, as_expr
from bolide.tracing.called.branches import Steps, Unwinding, branch, repeat, scan, unwind
from bolide.tracing.graph import enter, lookup

if TYPE_CHECKING:
    from bolide.inductor.saved import Found

_numbers = itertools.count()


class GraphInfo(Protocol):
    """What the differentiating stage says about a graph besides the graph itself."""

    @property
    def kind(self) -> Literal["inference", "forward", "backward"]: ...

    @property
    def static_inputs(self) -> frozenset[int]: ...

    @property
    def visible_outputs(self) -> frozenset[int]: ...


@dataclass(slots=True)
class KernelReport:
    """One kernel as explain shows it. Bytes are None where sizes are symbolic."""

    name: str
    origins: tuple[str, ...]
    ir: Kernel
    schedule: Schedule
    compiled: CompiledKernel
    bytes_read: int | None
    bytes_written: int | None

    @property
    def llvm_ir(self) -> str:
        """The generated code."""
        return self.compiled.llvm_ir


@dataclass(frozen=True, slots=True)
class Details:
    """What a compiled graph was made of, and its readable driver: `source` is its text."""

    plan: Plan
    kernels: list[KernelReport]
    refusals: list[Refusal]
    binding: driver.Binding
    readable: driver.Run
    source: str


class CompiledGraph:
    """A compiled graph: ``compiled(list of inputs) -> tuple of results``; the list is emptied as memory can be
    released. `key`: the digest under which its plan is kept, if it is; `details`: are asked for when they are needed;
    `readable_calls`: so many are still to come before the native driver is made."""

    def __init__(
        self,
        name: str,
        run: driver.Run,
        seconds: dict[str, float],
        details: Callable[[], Details],
        key: str = "",
        readable_calls: int = 0,
    ) -> None:
        self.name, self.run, self.seconds, self.key = name, run, seconds, key
        self._details = details
        self._readable_calls = readable_calls
        driver.keep_freed_memory()

    @property
    def plan(self) -> Plan:
        """What running it does."""
        return self._details().plan

    @property
    def kernels(self) -> list[KernelReport]:
        """Its kernels."""
        return self._details().kernels

    @property
    def refusals(self) -> list[Refusal]:
        """What was not fused."""
        return self._details().refusals

    @property
    def binding(self) -> driver.Binding:
        """What its plan is run with."""
        return self._details().binding

    @property
    def source(self) -> str:
        """The text of its readable driver."""
        return self._details().source

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        if self._readable_calls > 0:
            self._readable_calls -= 1
            if not self._readable_calls:
                self.run = self._native_driver()
        return self.run(inputs)

    def _native_driver(self) -> driver.Run:
        """Made late, since a process makes its machine code in some 40 ms; the readable one where torch lacks what it
        needs."""
        from bolide.inductor.runtime.native.driver import build

        kernels = [kernel.compiled for kernel in self.kernels]
        with compiling:
            return build(self.plan, self.binding, kernels, self.run) or self.run

    def timed(self, inputs: list[Any], clock: driver.Clock) -> tuple[Any, ...]:
        """Runs once, every launch and library call by itself, which the clock notes."""
        function, _ = driver.build(self.plan, self.binding, f"{self.name} timed", clock)
        return function(inputs)


class Planned(NamedTuple):
    """A graph's plan before code is generated for it; `constants`: its tensors by name; `sizes`: those that the call
    has for which it is compiled."""

    scheduled: Scheduled
    constants: dict[str, torch.Tensor]
    sizes: dict[str, int]


def plan_graph(
    gm: torch.fx.GraphModule,
    info: GraphInfo,
    machine: Machine,
    name: str,
    seconds: dict[str, float],
    tuner: Tuner | None = None,
) -> Planned:
    """Lowers and schedules a graph, see `compile_graph`. `seconds` takes what each part takes."""
    with timed(seconds, "lower"):
        # gradients may be one tensor, as eager's are
        constants: dict[str, torch.Tensor] = {}
        program = lower(_outlined(gm), () if info.kind == "backward" else info.visible_outputs, constants, machine)
    names = _argument_names(gm)
    static = [names[position] for position in info.static_inputs]
    told = program.size_vars.keys() - _data(gm)
    known = {n: program.size_vars[n] for n in names if n in told}
    with nullcontext(tuner) if tuner or not config.max_autotune else _search(name, machine, known) as chosen:
        scheduled = schedule_program(program, names, static, machine, chosen)
    seconds.update(scheduled.seconds)
    _record_layouts(gm, scheduled.strides)
    return Planned(scheduled, constants, known)


def _outlined(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with calls of one graph for the regions that are alike, which few programs have."""
    if not any("nested" in node.meta for node in gm.graph.nodes):
        return gm
    from bolide.inductor import outline

    return outline.outlined(gm)


def compile_graph(
    gm: torch.fx.GraphModule, info: GraphInfo, machine: Machine | None = None, tuner: Tuner | None = None
) -> CompiledGraph:
    """Compiles a functional ATen graph (the contract is in docs/inductor.md) for a machine, this one if none is given,
    with the options of `inductor.config` as they are now. `tuner` chooses schedules and libraries."""
    machine = machine or _machine_of(gm)
    name = f"{info.kind}_{next(_numbers)}"
    seconds: dict[str, float] = {}
    _compile_steps(gm, machine)
    if tuner or not is_on():
        return _finished(name, _made(gm, info, machine, tuner, name, seconds), seconds)
    made, key = _kept_or_made(gm, info, machine, name, seconds)
    return _finished(name, made, seconds, key)


def load_graph(kind: str, key: str, constants: dict[str, torch.Tensor], lines: Sequence[str]) -> CompiledGraph | None:
    """A graph whose plan is kept (`CompiledGraph.key`), without the graph; None where the plan, or machine code of its
    kernels, is gone. `constants`: by the names that the plan has for them; `lines`: of its calls (`saved.lines_of`)."""
    from bolide.inductor import saved

    name = f"{kind}_{next(_numbers)}"
    seconds: dict[str, float] = {}
    with timed(seconds, "find"):
        found = saved.find_plan(key, lines)
    return None if found is None else _loaded(name, found, constants, seconds, key)


def _loaded(
    name: str, found: Found, constants: dict[str, torch.Tensor], seconds: dict[str, float], key: str
) -> CompiledGraph:
    """A graph that was found, with its native driver, if its program is kept; its plan is read when it is needed."""
    from bolide.inductor.runtime.native.driver import load

    @functools.cache
    def details() -> Details:
        return _details(name, (found.scheduled, constants, found.kernels))

    if config.native_after and found.program:
        held = [constants[name] for name in found.constants]
        with timed(seconds, "driver"), compiling:
            run = load(found.program, [code.address for code in found.codes], held, details, found.codes)
        if run is not None:
            return CompiledGraph(name, run, seconds, details, key)
    return _finished(name, (found.scheduled, constants, found.kernels), seconds, key)


def _machine_of(gm: torch.fx.GraphModule) -> Machine:
    """The machine for a graph: a GPU's if anything in it is on one."""
    devices = (device_of(node.meta.get("val")) for node in gm.graph.nodes)
    return machine_for(next((device for device in devices if device.type == "cuda"), CPU))


def _finished(name: str, made: Made, seconds: dict[str, float], key: str = "") -> CompiledGraph:
    """The graph with its readable driver."""
    with timed(seconds, "driver"):
        details = _details(name, made)
    if events.subscribers:
        for stage, taken in seconds.items():
            events.emit(events.Stage(name, stage, taken, {}))
    return CompiledGraph(name, details.readable, seconds, lambda: details, key, config.native_after)


def _details(name: str, made: Made) -> Details:
    scheduled, constants, compiled = made
    plan = scheduled.plan

    binding = driver.Binding(binder(compiled), constants, scheduled.objects, failure(compiled))
    run, source = driver.build(plan, binding, name)
    kernels = [
        KernelReport(kernel.name, kernel.origins, kernel, schedule, code, _bytes(kernel, "out"), _bytes(kernel, "in"))
        for kernel, schedule, code in zip(plan.kernels, scheduled.schedules, compiled)
    ]
    return Details(plan, kernels, scheduled.refusals, binding, run, source)


@dataclass(frozen=True, slots=True)
class _Step:
    """What is known of a step of a loop as a graph."""

    visible_outputs: frozenset[int]
    kind: Literal["inference"] = "inference"
    static_inputs: frozenset[int] = frozenset()


def _compile_steps(gm: torch.fx.GraphModule, machine: Machine) -> None:
    """Compiles the steps of scans, and of loops' gradients, in a graph and in the graphs that it calls otherwise."""
    for node in gm.graph.nodes:
        if node.target in (scan, unwind):
            steps: Steps | Unwinding = lookup(node.args[-1])
            results = [cast(tuple[object, ...], graph.graph.output_node().args[0]) for graph in steps.graphs]
            runs = [
                compile_graph(graph, _Step(frozenset(range(len(given)))), machine)
                for graph, given in zip(steps.graphs, results)
            ]
            made = replace(steps, runs=tuple(runs)) if isinstance(steps, Unwinding) else replace(steps, run=runs[0])
            node.args = (*node.args[:-1], enter(made))
        elif node.target in (branch, repeat):
            for part in lookup(node.args[-1]).graphs:
                _compile_steps(part, machine)


Made = tuple[Scheduled, dict[str, torch.Tensor], list[CompiledKernel]]
"""The plan of a graph, its constants, and its kernels' machine code."""


def _kept_or_made(
    gm: torch.fx.GraphModule, info: GraphInfo, machine: Machine, name: str, seconds: dict[str, float]
) -> tuple[Made, str]:
    """What is kept of a graph, or else what is made of it, and the digest under which it is kept."""
    from bolide.inductor import saved

    with timed(seconds, "key"):
        key = saved.key_of(gm, info, machine)
    if key is None:
        return _made(gm, info, machine, None, name, seconds), ""
    with timed(seconds, "find"):
        known = saved.find(key, gm, machine)
    if known is not None:
        _record_layouts(gm, known[0].strides)
        return known, key.digest
    made = _made(gm, info, machine, None, name, seconds)
    with timed(seconds, "keep"):
        kept = saved.keep(key, gm, machine, *made[:2])
    return made, key.digest if kept else ""


def _made(
    gm: torch.fx.GraphModule,
    info: GraphInfo,
    machine: Machine,
    tuner: Tuner | None,
    name: str,
    seconds: dict[str, float],
) -> Made:
    scheduled, constants, known = plan_graph(gm, info, machine, name, seconds, tuner)
    with timed(seconds, "codegen"):
        compiled = compile_kernels(scheduled.plan.kernels, machine, known)
    return scheduled, constants, compiled


def _search(name: str, machine: Machine, sizes: Mapping[str, int]) -> AbstractContextManager[Tuner]:
    from bolide.inductor.search import searching  # brings the progress bar along

    return searching(name, machine, sizes)


def _data(gm: torch.fx.GraphModule) -> set[str]:
    """The sizes that are data: their hints are no sizes of a call."""
    values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    return {name for value in values if isinstance(value, torch.SymInt) for name in value.node.env.facts.names}


def _record_layouts(gm: torch.fx.GraphModule, strides: Sequence[tuple[Expr, ...] | None]) -> None:
    """Notes in ``meta["val"]`` the strides of those results whose layout was free."""
    (results,) = next(node for node in reversed(gm.graph.nodes) if node.op == "output").args
    for node, stride in zip(results, strides):
        if stride is not None and all(s.is_const for s in stride):
            actual = tuple([s.value for s in stride])
            if actual != tuple(node.meta["val"].stride):
                node.meta["val"] = node.meta["val"]._replace(stride=actual)


def _argument_names(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """The names of the call's arguments in order; a size goes by the name of its variable, so that expressions over
    sizes can be evaluated."""
    names = []
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        names.append(str(as_expr(value)) if isinstance(value, torch.SymInt) else input_name(node))
    return tuple(names)


def _bytes(kernel: Kernel, other: str) -> int | None:
    """The size of all parameters but those of the `other` role; None where it is symbolic."""
    params = [param for param in kernel.params if param.role != other]
    if not all(param.numel.is_const for param in params):
        return None
    return sum(param.numel.value * param.dtype.itemsize for param in params)
