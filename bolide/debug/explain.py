"""`bolide.explain(fn)(*args)`: what was compiled, what was assumed, what was not compiled and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bolide.compiling import compile as compile_function
from bolide.inductor.compile_graph import CompiledGraph
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.plan import Call, Launch
from bolide.support import events


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel. `origins` are the operations fused into it, `launches` how often a call of the graph runs it.

    Bytes are None where sizes are symbolic. `microseconds` is the time of all its launches in one call, None where it
    was not measured.
    """

    name: str
    origins: tuple[str, ...]
    loops: str
    llvm_ir: str
    bytes_read: int | None
    bytes_written: int | None
    launches: int
    microseconds: float | None


@dataclass(frozen=True, slots=True)
class ExternInfo:
    """A library call that stays: how often a call of the graph makes it, and the time of all of them."""

    operation: str
    calls: int
    microseconds: float | None


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """One graph given to the graph compiler: `kind` is inference, forward or backward; `code` is its Python text.

    `externs` are the ATen calls that stay, `refusals` the fusions that were refused with their reasons, `plan` the
    steps of a call, `driver` the source that runs them.
    """

    function: str
    kind: str
    code: str
    nodes: int
    seconds: float
    kernels: tuple[KernelInfo, ...]
    externs: tuple[ExternInfo, ...]
    refusals: tuple[str, ...]
    plan: str
    driver: str


@dataclass(frozen=True, slots=True)
class GuardInfo:
    """The assumptions of one compiled version of a function, as readable text."""

    function: str
    guards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BreakInfo:
    """A call that ran in eager, or had to be captured again: what, why, where, and what to do about it."""

    function: str
    kind: str
    reason: str
    where: str
    remedy: str


@dataclass(frozen=True, slots=True)
class StageInfo:
    """Seconds that one stage of compiling took."""

    function: str
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What bolide did with a function, as data; `str` gives text for people."""

    function: str
    graphs: tuple[GraphInfo, ...] = ()
    guards: tuple[GuardInfo, ...] = ()
    breaks: tuple[BreakInfo, ...] = ()
    stages: tuple[StageInfo, ...] = ()
    captures: int = 0
    seconds: float = 0.0

    @property
    def kernel_launches(self) -> int:
        """Kernels that one call runs, over all graphs."""
        return sum(k.launches for g in self.graphs for k in g.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, tuples, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(text(self))


def text(explanation: Explanation) -> Iterator[str]:
    """The lines of an explanation."""
    e = explanation
    kernels = len({k.name for g in e.graphs for k in g.kernels})
    yield (
        f"{e.function}: {e.captures} captured, {len(e.graphs)} graphs, {kernels} kernels "
        f"({e.kernel_launches} launches), {len(e.breaks)} breaks, {e.seconds:.2f} s"
    )
    for graph in e.graphs:
        yield f"\ngraph {graph.kind} of {graph.function}: {graph.nodes} operations, compiled in {graph.seconds:.3f} s"
        yield from (f"  {line}" for line in graph.code.strip().splitlines())
        for kernel in graph.kernels:
            times = f" ×{kernel.launches}" if kernel.launches != 1 else ""
            yield f"  kernel {kernel.name}{times}: {', '.join(kernel.origins)}"
        if graph.externs:
            yield f"  ATen calls: {', '.join(f'{e.operation} ×{e.calls}' for e in graph.externs)}"
        yield from (f"  not fused: {reason}" for reason in graph.refusals)
    for guards in e.guards:
        yield f"\nguards of {guards.function}:"
        yield from (f"  {guard}" for guard in guards.guards)
    if e.breaks:
        yield "\nnot compiled:"
    for b in e.breaks:
        yield f"  {b.function}: {b.reason}"
        yield from (f"    {label}: {value}" for label, value in (("at", b.where), ("remedy", b.remedy)) if value)
    if e.stages:
        yield "\nseconds by stage:"
    for stage, seconds in total_by_stage(e.stages).items():
        yield f"  {stage}: {seconds:.4f}"


def total_by_stage(stages: tuple[StageInfo, ...]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for s in stages:
        totals[s.stage] = totals.get(s.stage, 0.0) + s.seconds
    return totals


@dataclass(slots=True)
class Collector:
    """Gathers trace events while it listens, and turns them into an Explanation."""

    function: str
    events: list[Any] = field(default_factory=list)
    seconds: float = 0.0
    clocks: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def listening(self) -> Iterator[Collector]:
        begin = time.perf_counter()
        with events.subscribed(self.events.append):
            yield self
        self.seconds += time.perf_counter() - begin

    def time_steps(self, work: Callable[[], object], repeats: int = 5) -> None:
        """Measures every kernel and library call of the graphs seen so far while `work` runs them.

        Each is run by itself, so the sum is more than a call takes; the smallest of the repeats counts.
        """
        graphs = [e.artifact for e in self.events if isinstance(e, events.Compiled)]
        graphs = [g for g in graphs if isinstance(g, CompiledGraph)]
        ordinary = [g.run for g in graphs]
        clocks: dict[str, list[dict[str, float]]] = {g.name: [] for g in graphs}
        for graph in graphs:
            graph.run = clocked(graph, clocks[graph.name])
        try:
            for _ in range(repeats):
                work()
        finally:
            for graph, run in zip(graphs, ordinary, strict=True):
                graph.run = run
        for name, runs in clocks.items():
            if runs:
                self.clocks[name] = {step: min(run[step] for run in runs) for step in runs[0]}

    def explanation(self) -> Explanation:
        graphs: list[GraphInfo] = []
        pending: dict[tuple[str, str], Any] = {}
        for event in self.events:
            if isinstance(event, events.Graph):
                pending[event.name, event.kind] = event.graph
            elif isinstance(event, events.Compiled):
                graphs.append(graph_info(event, pending.get((event.name, event.kind)), self.clocks))
        return Explanation(
            function=self.function,
            graphs=tuple(graphs),
            guards=tuple(GuardInfo(e.name, e.guards) for e in self.events if isinstance(e, events.Captured)),
            breaks=tuple(b for e in self.events for b in break_info(e)),
            stages=tuple(s for e in self.events for s in stage_info(e)),
            captures=sum(isinstance(e, events.Captured) for e in self.events),
            seconds=self.seconds,
        )


def clocked(graph: CompiledGraph, runs: list[dict[str, float]]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A runner that notes the microseconds of each kernel and each operation, summed over the call."""

    def run(inputs: list[Any]) -> tuple[Any, ...]:
        results, clock = graph.timed(inputs)
        total: dict[str, float] = {}
        for step, seconds in clock:
            total[step] = total.get(step, 0.0) + seconds * 1e6
        runs.append(total)
        return results

    return run


def graph_info(event: events.Compiled, graph: Any, clocks: dict[str, dict[str, float]]) -> GraphInfo:
    """The data of a compiled graph; a graph that is interpreted has no kernels."""
    code, nodes = "", 0
    if graph is not None:
        code = graph.graph.python_code("self").src.strip()
        nodes = sum(n.op.startswith("call_") for n in graph.graph.nodes)
    artifact = event.artifact
    if not isinstance(artifact, CompiledGraph):
        return GraphInfo(event.name, event.kind, code, nodes, event.seconds, (), (), (), "", "")
    clock = clocks.get(artifact.name, {})
    launches = Counter(step.kernel for step in artifact.plan.steps if isinstance(step, Launch))
    calls = Counter(str(step.op) for step in artifact.plan.steps if isinstance(step, Call))
    return GraphInfo(
        function=event.name,
        kind=event.kind,
        code=code,
        nodes=nodes,
        seconds=event.seconds,
        kernels=tuple(
            KernelInfo(
                k.name,
                k.origins,
                kernel_text(k.ir),
                k.llvm_ir,
                k.bytes_read,
                k.bytes_written,
                launches[i],
                clock.get(k.name),
            )
            for i, k in enumerate(artifact.kernels)
        ),
        externs=tuple(ExternInfo(name, count, clock.get(name)) for name, count in calls.items()),
        refusals=tuple(dict.fromkeys(f"{r.first} / {r.second}: {r.reason}" for r in artifact.refusals)),
        plan=artifact.plan.text(),
        driver=artifact.source,
    )


def stage_info(event: Any) -> Iterator[StageInfo]:
    """The stage whose end an event tells of, if it does."""
    if isinstance(event, events.Captured):
        yield StageInfo(event.name, "capture", event.seconds)
    elif isinstance(event, events.Stage):
        yield StageInfo(event.name, event.stage, event.seconds)


def break_info(event: Any) -> Iterator[BreakInfo]:
    """The break that an event tells of, if it does."""
    if isinstance(event, (events.Fallback, events.Break)):
        yield BreakInfo(event.name, event.kind, event.reason, str(event.where or ""), event.remedy or "")
    elif isinstance(event, events.GuardFailed):
        reason = f"captured again: {event.guard} was {event.expected}, is {event.actual}"
        yield BreakInfo(event.name, "recompile", reason, str(event.where or ""), "")


def explain(fn: Callable[..., Any], *, backward: bool = True, **options: Any) -> Callable[..., Explanation]:
    """A function that calls `fn` once, freshly compiled, and tells what was compiled.

    The call is a real one: effects of `fn` (printing, BatchNorm statistics) happen. With `backward`, the gradients of
    the results that require grad are computed as well, so that the backward graph is shown; no tensor's ``.grad``
    changes. `options` are those of `compile`.
    """

    def run(*args: Any, **kwargs: Any) -> Explanation:
        state = getattr(fn, "_bolide", None)
        original = fn if state is None else state.original
        name = getattr(original, "__qualname__", type(original).__qualname__)
        collector = Collector(name)
        with collector.listening():
            result = compile_function(original, **options)(*args, **kwargs)
            if backward:
                differentiate(result)
        return collector.explanation()

    return run


def differentiate(result: Any) -> None:
    """Runs the backward of all tensors in `result` that require grad, without touching any ``.grad``."""
    outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    leaves = list(leaf_variables(outputs).values())
    if outputs and leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True)


def leaf_variables(outputs: list[Tensor]) -> dict[int, Tensor]:
    """The leaves that the gradients of `outputs` flow to, by id."""
    found: dict[int, Tensor] = {id(t): t for t in outputs if t.grad_fn is None}
    seen: set[Any] = set()
    todo: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        todo += [following for following, _ in node.next_functions if following is not None]
    return found
