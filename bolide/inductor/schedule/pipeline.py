"""The passes of scheduling, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from bolide.inductor.config import config
from bolide.inductor.ir.definitions import Extern, Program, Result, View
from bolide.inductor.ir.loops import ATOMIC, Kernel
from bolide.inductor.ir.structure import Structure
from bolide.inductor.ir.walks import programs_in, viewed
from bolide.inductor.machine import Machine, machine_for
from bolide.inductor.plan import Block, Plan, TensorInput
from bolide.inductor.schedule.grouping import group
from bolide.inductor.schedule.inline import inline, prune
from bolide.inductor.schedule.layouts import Homes, decide_layouts, find_homes, settle
from bolide.inductor.schedule.loop_writer import kernel_of, pieces_of, schedule_of
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.schedule.order import checks_first, lifetimes_of, order_for_memory, writes_late
from bolide.inductor.schedule.products import Choose, Way, accumulate_products, choose_libraries
from bolide.inductor.schedule.split import split_reductions, split_scans, split_scatters, update_in_place
from bolide.inductor.schedule.stages import (
    Group,
    Refusal,
    Scheduling,
    Unit,
    description_of,
    unit_reads,
    with_parts_outside,
)
from bolide.inductor.schedule.steps import StepWriter
from bolide.symbolic import Expr
from bolide.tracing.called.branches import region

if TYPE_CHECKING:
    from bolide.inductor.plan.batches import Batcher


@dataclass(slots=True)
class Scheduled:
    """What scheduling made: the plan with its kernels, and what explain shows."""

    plan: Plan
    schedules: list[Schedule]  # of the plan's kernels
    objects: tuple[object, ...]  # that the plan's `Foreign`s are
    strides: list[tuple[Expr, ...] | None]  # of every result that is a whole buffer
    refusals: list[Refusal]
    seconds: dict[str, float]


def program_passes(
    machine: Machine, fusion: bool, static: Collection[str] = (), choose: Choose | None = None
) -> dict[str, Callable[[Program], Program]]:
    """The passes over a program by name, in order. `static`: inputs whose memory lives anyway. `choose` chooses
    libraries."""
    passes: dict[str, Callable[[Program], Program]] = {
        "prune": prune,
        "accumulate": accumulate_products,
        "inline": partial(inline, machine=machine, static=static),
        "split": partial(split_reductions, machine=machine),
        "split scans": partial(split_scans, machine=machine),
        "split scatters": partial(split_scatters, machine=machine),
        "libraries": partial(choose_libraries, machine=machine, choose=choose),
        "checks": checks_first,
        "writes": writes_late,
        "scatters": update_in_place,
    }
    if not fusion:
        del passes["inline"]
    return passes


class Tuner(Protocol):
    """What may choose otherwise than rules do."""

    def schedule(self, usual: Schedule, kernel_of: Callable[[Schedule], Kernel]) -> Schedule:
        """The schedule of a kernel; `kernel_of` makes the kernel of a schedule."""

    def library(self, ways: Sequence[Way], program_of: Callable[[Way], Program]) -> Way:
        """The way in which a call is run, see `Choose`."""


@dataclass(slots=True)
class _Known:
    """A kernel of the plan, which does for all groups of one description: its place, its buffers by the numbers that
    they have in the description, and the graph's nodes that it computes."""

    place: int
    numbers: dict[str, int]
    origins: dict[str, None]


@dataclass(slots=True)
class _Job:
    """What is the same for a program and for those that its calls run; what there is of the plan and the report."""

    machine: Machine
    tuner: Tuner | None
    kernels: list[Kernel] = field(default_factory=list)
    known: dict[Structure, _Known] = field(default_factory=dict)
    schedules: dict[int, Schedule] = field(default_factory=dict)
    objects: list[object] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    written: dict[int, _Written] = field(default_factory=dict)  # programs in others, by their ids
    batcher: Batcher | None = None

    def machine_of(self, device: torch.device) -> Machine:
        """The machine of a device."""
        return self.machine if device.type == self.machine.device else machine_for(device)


@dataclass(frozen=True, slots=True)
class _Written:
    """A program that others call, its steps, and what is known of its buffers."""

    program: Program
    block: Block
    ctx: Scheduling


def schedule_program(
    program: Program, inputs: tuple[str, ...], static: Collection[str], machine: Machine, tuner: Tuner | None = None
) -> Scheduled:
    """Kernels and plan of a program for a machine. `inputs` are the names of the call's arguments, tensors and sizes,
    in order; `static` those whose memory lives anyway."""
    job = _Job(machine, tuner)
    if machine.device == "cuda":
        from bolide.inductor.plan.batches import Batcher

        job.batcher = Batcher(job.kernels, lambda kernel: job.machine_of(kernel.device).device == "cuda")
    block, ctx, constants = _scheduled(job, program, inputs, static)
    sources: dict[int, tuple[int, ...]] = {place: (place,) for place in range(len(job.kernels))}
    if job.batcher is not None:
        from bolide.inductor.plan.batches import without_unused

        block, places = without_unused(block, job.kernels)
        sources = {place: job.batcher.sources.get(place, (place,)) for place in places}
    origins = {known.place: known.origins for known in job.known.values()}
    kernels = tuple(
        [
            replace(
                job.kernels[place], origins=tuple(dict.fromkeys([name for known in some for name in origins[known]]))
            )
            for place, some in sources.items()
        ]
    )
    if machine.device == "cuda":
        from bolide.inductor.schedule.calls.assertions import asserted
        from bolide.inductor.schedule.calls.transfers import settled

        block, kernels = asserted(settled(block, constants, kernels), kernels)
    plan = Plan(block.inputs, constants, kernels, block.steps, block.results)
    strides = [
        ctx.buffers[result.buffer].layout.stride if isinstance(result, View) and result.stride is None else None
        for result in ctx.results
    ]
    schedules = [job.schedules[first] for first, *_ in sources.values()]
    return Scheduled(plan, schedules, tuple(job.objects), strides, job.refusals, job.seconds)


def _scheduled(
    job: _Job, program: Program, inputs: Sequence[str], static: Collection[str], keeps: bool = False, part: bool = False
) -> tuple[Block, Scheduling, tuple[TensorInput, ...]]:
    """The steps of a program, what is known of its buffers, and its constants. `keeps`: it does not give up its
    inputs; `part`: its steps become some of another one's."""
    seconds = job.seconds
    choose = None if job.tuner is None else job.tuner.library
    for name, run in program_passes(job.machine, config.fusion, static, choose).items():
        with timed(seconds, name):
            program = run(program)
    with timed(seconds, "layouts"):
        ctx = Scheduling(program.results, decide_layouts(program), job.machine, job.refusals, program.size_vars)
    with timed(seconds, "group"):
        times = lifetimes_of(program, static)
        units = group(program, ctx, times, config.fusion)
    with timed(seconds, "order"):
        units = order_for_memory(units, times, job.machine.fewest_bytes)
    blocks = {id(unit): _blocks(job, unit) for unit in units if isinstance(unit, Extern)}
    with timed(seconds, "emit"):
        writer = StepWriter(ctx, inputs, program.inputs, job.kernels, job.objects)
        homes = find_homes(units, ctx, program)
        _write(job, units, ctx, writer, homes, blocks)
        return writer.finish(ctx.results, job.batcher, keeps, part), ctx, writer.constants


def _blocks(job: _Job, extern: Extern) -> list[_Written]:
    """The programs that a call runs, as blocks of its tensors and sizes."""
    blocks = []
    for program in programs_in(extern.args):
        known = job.written.get(id(program))
        if known is None:
            *_, tensors, sizes, _ = extern.args
            names = [given.name for given in program.inputs[: len(tensors)]]
            names += [*program.size_vars][: len(sizes)]
            block, ctx, _ = _scheduled(job, program, names, names, keeps=True, part=extern.op is region)
            known = job.written[id(program)] = _Written(program, block, ctx)
        blocks.append(known)
    return blocks


def _write(
    job: _Job,
    units: list[Unit],
    ctx: Scheduling,
    writer: StepWriter,
    homes: Homes,
    blocks: Mapping[int, list[_Written]],
) -> None:
    """Writes the steps of all units; `blocks`: those of calls, by their identity."""
    readers = _outside_readers(units, ctx.results)
    for unit in units:
        if isinstance(unit, Group):
            stored = {s.name for s in unit.stages if s.mode != "define" or readers.get(s.name, set()) - {id(unit)}}
            place, arguments = _kernel(job, unit, stored, ctx)
            if not settle(homes, unit, job.kernels[place], arguments, ctx):
                place, arguments = _kernel(job, unit, stored, ctx)
            writer.launch(place, arguments, homes.of)
        elif isinstance(unit, Extern) and unit.op is region:
            (known,) = blocks[id(unit)]
            writer.region(unit, known.block, known.ctx.buffers)
        elif isinstance(unit, Extern) and blocks[id(unit)]:
            writer.blocks(unit, [known.block for known in blocks[id(unit)]])
        elif isinstance(unit, Extern):
            writer.call(unit, homes.of)
        elif homes.of.get(unit.source.buffer) != unit.target:
            writer.write_back(unit)


def _kernel(job: _Job, group: Group, stored: set[str], ctx: Scheduling) -> tuple[int, tuple[str, ...]]:
    """The place of the kernel of a group, and the buffers that are its arguments."""
    group = with_parts_outside(group)
    description, buffers = description_of(group, stored, ctx.buffers)
    known = job.known.get(description)
    if known is None:
        name = f"k{len(job.kernels)}_{group.stages[-1].name}"
        schedule, kernel = _new_kernel(job, group, stored, ctx, name)
        numbers = {buffer: number for number, buffer in enumerate(buffers)}
        known = job.known[description] = _Known(len(job.kernels), numbers, {})
        job.schedules[len(job.kernels)] = schedule
        job.kernels.append(kernel)
    known.origins.update(dict.fromkeys([origin for stage in group.stages for origin in stage.origins]))
    return known.place, tuple([buffers[known.numbers[param.name]] for param in job.kernels[known.place].params])


def _new_kernel(job: _Job, group: Group, stored: set[str], ctx: Scheduling, name: str) -> tuple[Schedule, Kernel]:
    device = ctx.buffers[group.stages[0].name].device
    machine = job.machine_of(device)
    if machine.device == "cuda":
        group = _with_atomics(group)
    chosen, pieces = schedule_of(group, pieces_of(group, stored, ctx.buffers), machine, ctx.sizes)

    def kernel_for(schedule: Schedule) -> Kernel:
        return kernel_of(group, pieces, schedule, ctx.buffers, machine, name)

    sorts = any(stage.reduce_op == "sort" for stage in group.stages)  # which goes in one way
    if job.tuner is None or sorts or machine is not ctx.machine:  # the host's, in a graph for a GPU
        return chosen, kernel_for(chosen)
    schedule = job.tuner.schedule(chosen, kernel_for)
    return schedule, kernel_for(schedule)


def _with_atomics(group: Group) -> Group:
    """The group as a GPU runs it: points of scatters that may meet join atomically, and in any order."""
    stages = [
        replace(stage, mode=ATOMIC[stage.mode]) if stage.mode in ATOMIC and stage.operands else stage
        for stage in group.stages
    ]
    return replace(group, stages=tuple(stages))


def _outside_readers(units: list[Unit], results: list[Result]) -> dict[str, set[int]]:
    """For every buffer the units that read it from memory; 0 stands for the results."""
    readers: dict[str, set[int]] = {name: {0} for name in viewed(results)}
    for unit in units:
        for name in unit_reads(unit):
            readers.setdefault(name, set()).add(id(unit))
    return readers


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Notes how long the body takes, besides what is noted by this name."""
    start = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
