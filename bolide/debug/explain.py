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
from bolide.dynamo.state import original_of
from bolide.functorch.runtime.memory import SavedValue, table
from bolide.inductor import CompiledGraph
from bolide.inductor.ir.printer import kernel_text
from bolide.inductor.plan import Call, Launch, Plan, TensorInput, all_steps, tensors_given
from bolide.inductor.runtime.driver import Clock, EventClock, HostClock
from bolide.support import events
from bolide.support.kinds import KINDS


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel. `origins` are the operations fused into it, `launches` how often a call of the graph runs it,
    `schedule` what its axes are bound to, and why.

    Bytes are None where sizes are symbolic. `microseconds` is the time of all its launches in one call, None where it
    was not measured; of one on a GPU by the device's own clock.
    """

    name: str
    origins: tuple[str, ...]
    schedule: str
    loops: str
    llvm_ir: str
    bytes_read: int | None
    bytes_written: int | None
    launches: int
    microseconds: float | None
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class ExternInfo:
    """A library call that stays: how often a call of the graph makes it, and the time of all of them."""

    operation: str
    calls: int
    microseconds: float | None


@dataclass(frozen=True, slots=True)
class CompiledInfo:
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
class BreakInfo:
    """Something that ran in eager. `kind` and `code` are those of `support.kinds`; `source` is the user's line itself.

    A break between segments says how long it takes: `ms_capture` the capturing that had to be repeated, `ms_call` the
    operation and the rebuilding of live values at each call (None where it was not measured). `next` holds the segments
    in which calls went on. `between` is False where a whole call ran in eager.
    """

    function: str
    kind: str
    code: str
    reason: str
    operation: str
    where: str
    source: str
    remedy: str
    between: bool = False
    next: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    ms_capture: float | None = None
    ms_call: float | None = None


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One compiled version of a segment: a part of a program without breaks, of `operations` operations of the graph.

    `guards` are its assumptions as readable text, `broken` what it ends with (None: the program's end).
    """

    function: str
    operations: int
    guards: tuple[str, ...]
    seconds: float
    broken: BreakInfo | None


@dataclass(frozen=True, slots=True)
class RecompileInfo:
    """An assumption of an earlier version that did not hold: its text, the value found, the line that made it."""

    function: str
    version: int
    guard: str
    actual: str
    where: str
    source: str
    remedy: str


@dataclass(frozen=True, slots=True)
class NoteInfo:
    """A size or number that was fixed (`kind` ``specialised``), a tensor whose data is read (``read``), a function that
    is not captured by choice (``skipped``), or whether a graph's plan was found in the cache (``cache``)."""

    function: str
    kind: str
    what: str
    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class StageInfo:
    """Seconds that one stage of compiling took."""

    function: str
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SavedInfo:
    """What a differentiated segment keeps for its backward, the largest first."""

    function: str
    values: tuple[SavedValue, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What bolide did with a function, as data; `str` gives text for people."""

    function: str
    segments: tuple[SegmentInfo, ...] = ()
    breaks: tuple[BreakInfo, ...] = ()
    recompiles: tuple[RecompileInfo, ...] = ()
    notes: tuple[NoteInfo, ...] = ()
    graphs: tuple[CompiledInfo, ...] = ()
    stages: tuple[StageInfo, ...] = ()
    seconds: float = 0.0
    saved: tuple[SavedInfo, ...] = ()

    @property
    def captures(self) -> int:
        """Segments that were captured."""
        return len(self.segments)

    @property
    def kernel_launches(self) -> int:
        """Kernels that one call runs, over all graphs."""
        return sum(k.launches for g in self.graphs for k in g.kernels)

    @property
    def graph_count(self) -> int:
        """As in TorchDynamo's explanation: `captures`."""
        return self.captures

    @property
    def graph_break_count(self) -> int:
        """As there: how many segments end in a break."""
        return sum(b.between for b in self.breaks)

    @property
    def break_reasons(self) -> tuple[BreakInfo, ...]:
        """As there: `breaks`."""
        return self.breaks

    @property
    def op_count(self) -> int:
        """As there: operations in all graphs that were captured."""
        return sum(s.operations for s in self.segments)

    @property
    def out_guards(self) -> tuple[str, ...]:
        """As there: the guards of all segments."""
        return tuple(guard for s in self.segments for guard in s.guards)

    @property
    def compile_times(self) -> str:
        """As there: the seconds of each stage, as text."""
        return "\n".join(f"{s.function} {s.stage}: {s.seconds:.4f} s" for s in self.stages)

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
        f"{e.function}: {counted(e.captures, 'segment')}, {counted(len(e.breaks), 'break')}, "
        f"{counted(len(e.recompiles), 'recompilation')}, {counted(len(e.graphs), 'graph')}, "
        f"{counted(kernels, 'kernel')} ({counted(e.kernel_launches, 'launch', 'es')}), {e.seconds:.2f} s"
    )
    for segment in e.segments:
        yield (
            f"\nsegment {segment.function}: {counted(segment.operations, 'operation')}, "
            f"{counted(len(segment.guards), 'guard')}, captured in {segment.seconds * 1e3:.1f} ms"
        )
        if segment.broken is not None:
            yield from (f"  {line}" for line in break_text(segment.broken))
    whole = [b for b in e.breaks if not any(b is s.broken for s in e.segments)]
    if whole:
        yield "\nnot compiled:"
    for b in whole:
        yield from (f"  {line}" for line in break_text(b))
    if e.recompiles:
        yield "\ncompiled again:"
    for r in e.recompiles:
        yield f"  {r.function}: version {r.version} assumed {r.guard}, found {r.actual}"
        yield from located(r.where, r.source, r.remedy)
    for note in e.notes:
        yield f"\n{note.kind}: {note.what} in {note.function}: {note.reason}{f' ({note.where})' if note.where else ''}"
    for graph in e.graphs:
        yield f"\ngraph {graph.kind} of {graph.function}: {graph.nodes} operations, compiled in {graph.seconds:.3f} s"
        yield from (f"  {line}" for line in graph.code.strip().splitlines())
        for kernel in graph.kernels:
            times = f" ×{kernel.launches}" if kernel.launches != 1 else ""
            yield f"  kernel {kernel.name}{times}: {', '.join(kernel.origins)}"
            yield from (f"    {line}" for line in kernel.schedule.splitlines())
        if graph.externs:
            yield f"  ATen calls: {', '.join(f'{e.operation} ×{e.calls}' for e in graph.externs)}"
        yield from (f"  not fused: {reason}" for reason in graph.refusals)
    for kept in e.saved:
        total = sum(value.bytes for value in kept.values) / 2**20
        yield f"\nsaved for the backward of {kept.function}: {total:.2f} MiB"
        yield from (f"  {line}" for line in table(kept.values).splitlines())
    for segment in e.segments:
        yield f"\nguards of {segment.function}:"
        yield from (f"  {guard}" for guard in segment.guards)
    if e.stages:
        yield "\nseconds by stage:"
    for stage, seconds in total_by_stage(e.stages).items():
        yield f"  {stage}: {seconds:.4f}"


def counted(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"


def break_text(b: BreakInfo) -> Iterator[str]:
    """The lines of one break."""
    yield f"{'breaks' if b.between else b.function + ' runs in eager'}: {b.reason} [{b.code}]"
    yield from ([f"  operation: {b.operation}"] if b.operation else [])
    yield from located(b.where, b.source, "")
    yield from (f"  called from: {frame}" for frame in reversed(b.stack) if frame != b.where)
    yield from ([f"  remedy: {b.remedy}"] if b.remedy else [])
    times = [(b.ms_call, "a call"), (b.ms_capture, "to capture again")]
    costs = [f"{ms:.3g} ms {what}" for ms, what in times if ms is not None]
    yield from ([f"  cost: {', '.join(costs)}"] if costs else [])
    yield from ([f"  goes on in: {', '.join(b.next)}"] if b.next else [])


def located(where: str, source: str, remedy: str) -> Iterator[str]:
    yield from ([f"  at: {where}"] if where else [])
    yield from ([f"    {source}"] if source else [])
    yield from ([f"  remedy: {remedy}"] if remedy else [])


def total_by_stage(stages: tuple[StageInfo, ...]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for s in stages:
        totals[s.stage] = totals.get(s.stage, 0.0) + s.seconds
    return totals


@dataclass(slots=True)
class Collector:
    """Gathers trace events while it listens, and turns them into an Explanation."""

    function: str
    events: list[object] = field(default_factory=list)
    seconds: float = 0.0
    clocks: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def listening(self) -> Iterator[Collector]:
        begin = time.perf_counter()
        with events.subscribed(self.events.append):
            yield self
        self.seconds += time.perf_counter() - begin

    def time_steps(self, work: Callable[[], object]) -> None:
        """Measures every kernel and library call of the graphs seen so far while `work` runs them.

        Each is run by itself, so the sum is more than a call takes; the smallest of five times counts.
        """
        graphs = [e.artifact for e in self.events if isinstance(e, events.Compiled)]
        graphs = [g for g in graphs if isinstance(g, CompiledGraph)]
        ordinary = [g.run for g in graphs]
        clocks: dict[str, list[dict[str, float]]] = {g.name: [] for g in graphs}
        for graph in graphs:
            graph.run = clocked(graph, clocks[graph.name])
        from bolide.inductor.cudagraphs.recorder import unrecorded

        try:
            for _ in range(5):
                with unrecorded():
                    work()
        finally:
            for graph, run in zip(graphs, ordinary, strict=True):
                graph.run = run
        for name, runs in clocks.items():
            if runs:
                self.clocks[name] = {step: min(run[step] for run in runs) for step in runs[0]}

    def explanation(self) -> Explanation:
        graphs: list[CompiledInfo] = []
        pending: dict[tuple[str, str], object] = {}
        for event in self.events:
            if isinstance(event, events.Graph):
                pending[event.name, event.kind] = event.graph
            elif isinstance(event, events.Compiled):
                graphs.append(compiled_info(event, pending.get((event.name, event.kind)), self.clocks))
        breaks = [break_info(e, self.events) for e in self.events if isinstance(e, (events.Break, events.Fallback))]
        return Explanation(
            function=self.function,
            segments=tuple(segment_infos(self.events, breaks)),
            breaks=tuple(breaks),
            recompiles=tuple(recompile_info(e) for e in self.events if isinstance(e, events.GuardFailed)),
            notes=tuple(note for e in self.events for note in note_info(e)),
            graphs=tuple(graphs),
            stages=tuple(s for e in self.events for s in stage_info(e)),
            saved=tuple(s for e in self.events for s in saved_info(e)),
            seconds=self.seconds,
        )


def clock_for(plan: Plan) -> Clock:
    """The clock of a plan's steps: a GPU's, if any of them is there."""
    devices = [kernel.device for kernel in plan.kernels]
    devices += [given.type.device for given in plan.inputs if isinstance(given, TensorInput)]
    calls = [step for step in all_steps(plan.steps) if isinstance(step, Call)]
    devices += [result.type.device for call in calls for result in tensors_given(call)]
    return EventClock() if any(device.type == "cuda" for device in devices) else HostClock()


def clocked(graph: CompiledGraph, runs: list[dict[str, float]]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A runner that notes the microseconds of each kernel and each operation, summed over the call."""

    def run(inputs: list[object]) -> tuple[Any, ...]:
        clock = clock_for(graph.plan)
        results = graph.timed(inputs, clock)
        total: dict[str, float] = {}
        for step, seconds in clock.times():
            total[step] = total.get(step, 0.0) + seconds * 1e6
        runs.append(total)
        return results

    return run


def compiled_info(event: events.Compiled, graph: Any, clocks: dict[str, dict[str, float]]) -> CompiledInfo:
    """The data of a compiled graph; a graph that is interpreted has no kernels."""
    code, nodes = "", 0
    if graph is not None:
        code = graph.graph.python_code("self").src.strip()
        nodes = sum(n.op.startswith("call_") for n in graph.graph.nodes)
    artifact = event.artifact
    if not isinstance(artifact, CompiledGraph):
        return CompiledInfo(event.name, event.kind, code, nodes, event.seconds, (), (), (), "", "")
    clock = clocks.get(artifact.name, {})
    launches = Counter(step.kernel for step in all_steps(artifact.plan.steps) if isinstance(step, Launch))
    calls = Counter(str(step.operator) for step in all_steps(artifact.plan.steps) if isinstance(step, Call))
    return CompiledInfo(
        function=event.name,
        kind=event.kind,
        code=code,
        nodes=nodes,
        seconds=event.seconds,
        kernels=tuple(
            KernelInfo(
                k.name,
                k.origins,
                k.schedule.text(),
                kernel_text(k.ir),
                k.llvm_ir,
                k.bytes_read,
                k.bytes_written,
                launches[i],
                clock.get(k.name),
                str(k.ir.device),
            )
            for i, k in enumerate(artifact.kernels)
        ),
        externs=tuple(ExternInfo(name, count, clock.get(name)) for name, count in calls.items()),
        refusals=tuple(dict.fromkeys(f"{r.first} / {r.second}: {r.reason}" for r in artifact.refusals)),
        plan=artifact.plan.text(),
        driver=artifact.source,
    )


def saved_info(event: object) -> Iterator[SavedInfo]:
    """What an event tells of saved values."""
    if isinstance(event, events.Stage) and "saved" in event.detail:
        yield SavedInfo(event.name, event.detail["saved"])


def stage_info(event: object) -> Iterator[StageInfo]:
    """The stage whose end an event tells of, if it does."""
    if isinstance(event, events.Captured):
        yield StageInfo(event.name, "capture", event.seconds)
    elif isinstance(event, events.Stage):
        yield StageInfo(event.name, event.stage, event.seconds)


def segment_infos(told: list[object], breaks: list[BreakInfo]) -> Iterator[SegmentInfo]:
    """The segments in the order in which they were captured; the event of a break follows that of its segment."""
    ends = iter([b for b in breaks if b.between])
    for event, following in zip(told, [*told[1:], None]):
        if isinstance(event, events.Captured):
            broken = next(ends) if isinstance(following, events.Break) else None
            yield SegmentInfo(event.name, event.operations, event.guards, event.seconds, broken)


def break_info(event: events.Break | events.Fallback, told: list[object]) -> BreakInfo:
    """A break, with the mean time of its operation over the calls that were told of."""
    about = KINDS[event.kind]
    line = event.where
    remedy = event.remedy or (about.remedy if about.scope != "user" else "")
    texts = (str(line or ""), line.text if line else "", remedy)
    if isinstance(event, events.Fallback):
        operation = getattr(event.error, "operation", None) or ""
        return BreakInfo(event.name, event.kind, about.code, event.reason, operation, *texts)
    resumed = [e for e in told if isinstance(e, events.Resumed) and e.name == event.name]
    return BreakInfo(
        event.name,
        event.kind,
        about.code,
        event.reason,
        event.operation or "",
        *texts,
        between=True,
        next=tuple(dict.fromkeys(e.next for e in resumed if e.next)),
        stack=tuple(map(str, event.stack)),
        ms_capture=None if event.seconds is None else event.seconds * 1e3,
        ms_call=sum(e.seconds for e in resumed) / len(resumed) * 1e3 if resumed else None,
    )


def recompile_info(e: events.GuardFailed) -> RecompileInfo:
    where, source = str(e.where or ""), e.where.text if e.where else ""
    return RecompileInfo(e.name, e.index, e.guard, e.actual, where, source, e.remedy)


def note_info(event: object) -> Iterator[NoteInfo]:
    """What an event tells of sizes that were fixed, and of what was skipped or not recorded."""
    if isinstance(event, events.Specialised):
        yield NoteInfo(
            event.name, "specialised", f"{event.source} = {event.value}", event.reason, str(event.where or "")
        )
    elif isinstance(event, events.DataRead):
        reason = "the data of this tensor is read, and compared at every call (specialize_data)"
        yield NoteInfo(event.name, "read", f"{event.source} = {event.value}", reason, str(event.where or ""))
    elif isinstance(event, events.CacheLookup) and event.kind == "plans":
        yield NoteInfo(event.name, "cache", "plan", "found" if event.hit else f"not found: {event.reason}", "")
    elif isinstance(event, events.NotRecorded):
        yield NoteInfo(event.name, "not recorded", f"{event.kind} graph", event.reason, str(event.where or ""))
    elif isinstance(event, events.Skipped):
        yield NoteInfo(event.name, "skipped", event.function, event.reason, str(event.where or ""))


def explain(fn: Callable[..., Any], *, backward: bool = True, **options: Any) -> Callable[..., Explanation]:
    """A function that calls `fn` once, freshly compiled, and tells what was compiled.

    The call is a real one: effects of `fn` (printing, BatchNorm statistics) happen. With `backward`, the gradients of
    the results that require grad are computed as well, so that the backward graph is shown; no tensor's ``.grad``
    changes. `options` are those of `compile`.
    """

    def run(*args: Any, **kwargs: Any) -> Explanation:
        original = original_of(fn)
        name = getattr(original, "__qualname__", type(original).__qualname__)
        collector = Collector(name)
        with collector.listening():
            result = compile_function(original, **options)(*args, **kwargs)
            if backward:
                differentiate(result)
        return collector.explanation()

    return run


def differentiate(result: object) -> None:
    """Runs the backward of all tensors in `result` that require grad, without touching any ``.grad``."""
    outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    leaves = list(leaf_variables(outputs).values())
    if outputs and leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True)


def leaf_variables(outputs: list[Tensor]) -> dict[int, Tensor]:
    """The leaves that the gradients of `outputs` flow to, by id."""
    variables: dict[int, Tensor] = {id(t): t for t in outputs if t.grad_fn is None}
    seen: set[Any] = set()
    todo: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            variables[id(node.variable)] = node.variable
        todo += [following for following, _ in node.next_functions if following is not None]
    return variables
