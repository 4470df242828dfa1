"""Compiled graphs that are kept: what they are found by, and how they come back (docs/caches.md).

An entry is a heading (JSON: where the machine code of each kernel is, the names of constants, as the program has them,
and the device), the native driver's program, and the graph's plan, which is read only where somebody asks for it."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
import torch.fx

from bolide.inductor.codegen.compiler import load_places, loaded_kernels, places_of
from bolide.inductor.config import config
from bolide.inductor.ir.loops import CPU
from bolide.inductor.lowering import LOWERINGS
from bolide.inductor.machine import Machine, host_machine, machine_for
from bolide.inductor.plan import Call, Plan
from bolide.inductor.plan.plan import CannotLeave, DamagedBytes
from bolide.inductor.plan.steps import Step, all_steps, with_blocks
from bolide.inductor.runtime.cuda.driver_api import driver_version
from bolide.inductor.runtime.kernels import Code, CompiledKernel, Place
from bolide.inductor.runtime.native.driver import written
from bolide.inductor.schedule import Scheduled
from bolide.support import artifacts
from bolide.support.artifacts import Key
from bolide.support.engine import object_key
from bolide.symbolic import Expr, as_expr
from bolide.tracing import TensorMeta
from bolide.tracing.called.branches import Branches, Repetition, branch, repeat
from bolide.tracing.graph import Handle, lookup
from bolide.tracing.operations.writes import ON_COPIES, operator_in


class About(Protocol):
    """What `compiled_graph.GraphInfo` says of a graph."""

    @property
    def kind(self) -> str: ...

    @property
    def static_inputs(self) -> frozenset[int]: ...

    @property
    def visible_outputs(self) -> frozenset[int]: ...


def key_of(gm: torch.fx.GraphModule, info: About, machine: Machine) -> Key | None:
    """What a graph is found by; None if it has objects of this process in it."""
    try:
        text = graph_text(gm)
    except CannotLeave:
        return None
    about = f"{info.kind} {sorted(info.static_inputs)} {sorted(info.visible_outputs)}"
    names = {
        "graph": artifacts.digest_of(f"{about}\n{text}"),
        "machine": repr(machine),
        "threads": str(machine.threads),
        "bolide": artifacts.sources_digest(),
        "lowerings": lowerings_digest(),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "default dtype": str(torch.get_default_dtype()),
        "mkldnn": str(torch.backends.mkldnn.enabled),
    }
    if machine.device == "cuda":
        names["driver"] = driver_version()
        names["deterministic"] = str(torch.are_deterministic_algorithms_enabled())
    options = config.shallow_copy_dict().items()
    # those of CUDA graphs say how a graph runs, not what it is
    names |= {f"options.{name}": repr(value) for name, value in options if not name.startswith("triton.")}
    return Key("plans", names, f"{info.kind} graph")


_LENGTHS = struct.Struct("<II")  # of the heading, of the program


@dataclass
class Found:
    """What is kept of a graph, with the machine code of its kernels. `constants`: their names, as `program` numbers
    them; `line`: gives a line of the user's program for what stands in the plan at a call."""

    codes: list[Code]
    constants: list[str]
    program: memoryview
    payload: memoryview
    machine: Machine
    line: Callable[[str], str]

    @cached_property
    def scheduled(self) -> Scheduled:
        """Its plan, and what is told of it. Raises DamagedBytes."""
        from bolide.inductor.plan.codec import decode
        from bolide.inductor.plan.records import SavedGraph

        saved = decode(bytes(self.payload), SavedGraph)
        plan = _with_lines(saved.plan, self.line)
        return Scheduled(plan, [*saved.schedules], (), [*saved.strides], [*saved.refusals], {})

    @property
    def kernels(self) -> list[CompiledKernel]:
        """Its kernels."""
        return loaded_kernels(self.scheduled.plan.kernels, self.machine, self.codes)


def find(
    key: Key, gm: torch.fx.GraphModule, machine: Machine
) -> tuple[Scheduled, dict[str, torch.Tensor], list[CompiledKernel]] | None:
    """What is kept of a graph: its plan, constants and kernels; None unless all of it is there."""
    nodes = [node for _, node in _all_nodes(gm)]
    found = _found(artifacts.find(key), machine, lambda place: str(nodes[int(place)].meta["where"]))
    try:
        return None if found is None else (found.scheduled, _constants(gm), found.kernels)
    except DamagedBytes:
        return None


def find_plan(digest: str, lines: Sequence[str]) -> Found | None:
    """As `find`, by the digest of a graph's key, for its device's machine. `lines`: those of its calls, in order."""
    entry, rest = artifacts.find_place(("plans", digest)), iter(lines)
    return None if entry is None else _found(entry.payload, None, lambda _: next(rest, ""))


def places_of_plan(digest: str) -> list[artifacts.Place]:
    """What has to be there besides a plan for it to run: the objects and images with its kernels' machine code."""
    entry, target = artifacts.find_place(("plans", digest)), host_machine().target
    places = _parts(entry.payload)[0] if entry is not None else ()
    modules = dict.fromkeys(place.module for place in places)
    images = dict.fromkeys(place.image for place in places if place.image)
    objects = [("objects", object_key(module, target.cpu, target.features).digest) for module in modules]
    return [*objects, *(("images", image) for image in images)]


def _parts(payload: bytes) -> tuple[list[Place], list[str], torch.device, memoryview, memoryview]:
    """Where the machine code of kernels is, the names of constants, the device, the program, and the plan."""
    data = memoryview(payload)
    heading, program = _LENGTHS.unpack_from(data)
    start, end = _LENGTHS.size + heading, _LENGTHS.size + heading + program
    places, constants, device = json.loads(bytes(data[_LENGTHS.size : start]))
    return [Place(*place) for place in places], constants, torch.device(device), data[start:end], data[end:]


def _found(payload: bytes | None, machine: Machine | None, line: Callable[[str], str]) -> Found | None:
    if payload is None:
        return None
    places, constants, device, program, graph = _parts(payload)
    machine = machine or _machine_of(device)
    codes = None if machine is None else load_places(places, machine)
    return None if machine is None or codes is None else Found(codes, constants, program, graph, machine, line)


def _machine_of(device: torch.device) -> Machine | None:
    """The machine of a device; None for a GPU that is not here."""
    here = device.type == "cpu" or (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count())
    return machine_for(device) if here else None


def lines_of(plan: Plan) -> tuple[str, ...]:
    """The lines of the program at a plan's calls."""
    return tuple(step.where for step in all_steps(plan.steps) if isinstance(step, Call) and step.where)


def keep(
    key: Key,
    gm: torch.fx.GraphModule,
    machine: Machine,
    scheduled: Scheduled,
    constants: Mapping[str, torch.Tensor],
) -> bool:
    """Keep a graph whose kernels are compiled, unless there are objects of this process in it. Whether it is kept."""
    from bolide.inductor.plan.codec import encode
    from bolide.inductor.plan.records import SavedGraph

    if scheduled.objects or [*constants] != [*_constants(gm)]:
        return False
    nodes = enumerate(_all_nodes(gm))
    lines = {str(node.meta["where"]): str(place) for place, (_, node) in nodes if node.meta.get("where")}
    plan = _with_lines(scheduled.plan, lambda line: lines.get(line, ""))
    saved = SavedGraph(plan, tuple(scheduled.schedules), tuple(scheduled.strides), tuple(scheduled.refusals))
    names = [constant.name for constant in plan.constants]
    device = next((kernel.device for kernel in plan.kernels if kernel.device.type == machine.device), CPU)
    heading = json.dumps([places_of(plan.kernels, machine), names, str(device)]).encode()
    program = (written(plan) if config.native_after else None) or b""
    artifacts.keep(key, b"".join((_LENGTHS.pack(len(heading), len(program)), heading, program, encode(saved))))
    return True


def _constants(gm: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """As lowering names them."""
    held = enumerate((owner, node) for owner, node in _all_nodes(gm) if node.op == "get_attr")
    return {f"c{place}_{node.name}": getattr(owner, str(node.target)) for place, (owner, node) in held}


def _with_lines(plan: Plan, change: Callable[[str], str]) -> Plan:
    """The plan with other lines of the program at its calls: those of who wrote an equal graph are elsewhere."""

    def changed(step: Step) -> Step:
        if isinstance(step, Call):
            return replace(step, where=change(step.where)) if step.where else step
        return with_blocks(step, lambda block: replace(block, steps=tuple(map(changed, block.steps))))

    return replace(plan, steps=tuple(map(changed, plan.steps)))


def _all_nodes(gm: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.GraphModule, torch.fx.Node]]:
    """The nodes of a graph, and of the graphs that become blocks of its plan, in the order in which they are lowered;
    each with its module."""
    for node in gm.graph.nodes:
        yield gm, node
        for part in lookup(node.args[-1]).graphs if node.target in (branch, repeat) else ():
            yield from _all_nodes(part)


def lowerings_digest() -> str:
    """A digest of where the lowerings come from: a program may have put one of its own into the table."""
    found = [f"{op} {made.__module__} {getattr(made, '__qualname__', '')}" for op, made in LOWERINGS.items()]
    return artifacts.digest_of("\n".join(sorted(found)))


# ---- graphs as text --------------------------------------------------------------------------------------------------


def graph_text(gm: torch.fx.GraphModule) -> str:
    """All that lowering reads of a graph, but the lines of the program and the data of constants. Raises CannotLeave
    for one with objects of this process in it."""
    text = _Text()
    lines = []
    for node in gm.graph.nodes:
        value = getattr(gm, str(node.target)) if node.op == "get_attr" else None
        constant = "" if value is None else f"{value.dtype} {value.device} {[*value.shape]} {value.stride()}"
        parts = [node.op, _target(node), constant, text.of(node.args), text.of(node.kwargs)]
        lines.append(f"{node.name} = {' '.join(parts)}: {text.of(node.meta.get('val'))}")
    return "\n".join(lines)


def _target(node: torch.fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        said = f" {operator_in(str(node.args[2]))._schema}" if target in ON_COPIES else ""
        return str(target) if target.namespace == "aten" else f"{target._schema}{said}"
    if node.op != "call_function":
        return str(target)
    name = name_of_arithmetic(target)
    if name is None:
        raise CannotLeave(f"{target} is a function of this process")
    return ".".join(name)


_ARITHMETIC = ("_operator", "math", "torch")
"""Modules with functions of sizes: `operator.mul`, `torch.sym_max`."""


def name_of_arithmetic(function: object) -> tuple[str, str] | None:
    """The module and the name of a function that graphs compute sizes with; None for others."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    found = module in _ARITHMETIC and getattr(sys.modules[module], name, None) is function
    return (module, name) if found else None


def arithmetic_of(module: str, name: str) -> Callable[..., object]:
    """The function of that name. Raises ValueError or AttributeError where there is none."""
    if module not in _ARITHMETIC:
        raise ValueError(f"{module} has no arithmetic")
    found: Callable[..., object] = getattr(sys.modules[module], name)
    return found


class _Text:
    """Values as text, in which different ones are different."""

    def __init__(self) -> None:
        self.metas: dict[int, str] = {}
        self.exprs: dict[Expr, str] = {}

    def of(self, value: object) -> str:
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, torch.fx.Node):
            return value.name
        if isinstance(value, TensorMeta):
            return self.meta(value)
        if isinstance(value, (tuple, list)):
            return f"[{', '.join(map(self.of, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join([f'{key}: {self.of(item)}' for key, item in value.items()])}}}"
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if type(value) is Handle and isinstance(lookup(value), (Branches, Repetition)):
            return self.table(lookup(value))
        raise CannotLeave(f"{type(value).__name__} {value!r} is an object of this process")

    def table(self, table: Branches | Repetition) -> str:
        """What a branch or a loop goes over."""
        graphs = "\n".join(map(graph_text, table.graphs))
        return f"{type(table).__name__} {self.of(table.metas)}\n{graphs}\nend"

    def meta(self, meta: TensorMeta) -> str:
        known = self.metas.get(id(meta))
        if known is None:
            sizes = [*map(self.of, (*meta.shape, None, *meta.stride, None, meta.offset))]
            known = self.metas[id(meta)] = f"{meta.dtype} {meta.device} {' '.join(sizes)} {meta.requires_grad}"
        return known

    def size(self, size: torch.SymInt) -> str:
        """What a size is made of, and what is known of it."""
        from bolide.inductor.plan.codec import encode

        expr = as_expr(size)
        known = self.exprs.get(expr)
        if known is None:
            assumed = [size.node.env.is_assumed(expr.eq(number)) for number in (0, 1)]
            known = f"{expr.text()} {artifacts.digest_of(encode(expr).hex())} {assumed} {size.node.hint}"
            self.exprs[expr] = known
        return known


_PLAIN = {bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
