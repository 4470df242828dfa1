"""The passes of scheduling, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from bolide.inductor.config import config
from bolide.inductor.ir.definitions import Extern, Program, Result, View
from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.walks import viewed
from bolide.inductor.machine import Machine
from bolide.inductor.plan import Plan
from bolide.inductor.schedule.grouping import group
from bolide.inductor.schedule.inline import inline, prune
from bolide.inductor.schedule.layouts import Homes, decide_layouts, find_homes, settle
from bolide.inductor.schedule.loop_writer import kernel_of, pieces_of, schedule_of
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.schedule.order import checks_first, order_for_memory, writes_late
from bolide.inductor.schedule.products import accumulate_products, choose_libraries
from bolide.inductor.schedule.split import split_reductions, update_in_place
from bolide.inductor.schedule.stages import Group, Refusal, Scheduling, Unit, unit_reads
from bolide.inductor.schedule.steps import StepWriter
from bolide.symbolic import Expr


@dataclass(slots=True)
class Scheduled:
    """What scheduling made: the plan with its kernels, and what explain shows."""

    plan: Plan
    schedules: list[Schedule]  # of the plan's kernels
    objects: tuple[object, ...]  # that the plan's `Foreign`s are
    strides: list[tuple[Expr, ...] | None]  # of every result that is a whole buffer
    refusals: list[Refusal]
    seconds: dict[str, float]


def program_passes(machine: Machine, fusion: bool) -> dict[str, Callable[[Program], Program]]:
    """The passes over a program by name, in order."""
    passes: dict[str, Callable[[Program], Program]] = {
        "prune": prune,
        "accumulate": accumulate_products,
        "inline": inline,
        "split": partial(split_reductions, machine=machine),
        "libraries": choose_libraries,
        "checks": checks_first,
        "writes": writes_late,
        "scatters": update_in_place,
    }
    if not fusion:
        del passes["inline"]
    return passes


Tune = Callable[[Schedule], Schedule]


def schedule_program(
    program: Program, inputs: tuple[str, ...], static: Collection[str], machine: Machine, tune: Tune | None = None
) -> Scheduled:
    """Kernels and plan of a program for a machine. `inputs` are the names of the call's arguments, tensors and sizes,
    in order; `static` those whose memory lives anyway; `tune` changes the schedule of each kernel."""
    seconds: dict[str, float] = {}
    for name, run in program_passes(machine, config.fusion).items():
        with timed(seconds, name):
            program = run(program)
    with timed(seconds, "layouts"):
        ctx = Scheduling(program.results, decide_layouts(program), machine)
    with timed(seconds, "group"):
        units = group(program, ctx, config.fusion)
    with timed(seconds, "order"):
        units = order_for_memory(units, ctx, static)
    with timed(seconds, "emit"):
        writer = StepWriter(ctx, inputs, program.inputs)
        homes = find_homes(units, ctx, program)
        schedules = _write(units, ctx, writer, homes, tune or (lambda schedule: schedule))
        plan = writer.finish(ctx.results)
    strides = [
        ctx.buffers[result.buffer].layout.stride if isinstance(result, View) and result.stride is None else None
        for result in program.results
    ]
    return Scheduled(plan, schedules, tuple(writer.objects), strides, ctx.refusals, seconds)


def _write(units: list[Unit], ctx: Scheduling, writer: StepWriter, homes: Homes, tune: Tune) -> list[Schedule]:
    """Writes the steps of all units; gives the schedules of their kernels."""
    schedules = []
    readers = _outside_readers(units, ctx.results)
    for unit in units:
        if isinstance(unit, Group):
            stored = {s.name for s in unit.stages if s.mode != "define" or readers.get(s.name, set()) - {id(unit)}}
            name = f"k{len(writer.kernels)}_{unit.stages[-1].name}"
            schedule, kernel = _kernel(unit, stored, ctx, name, tune)
            if not settle(homes, unit, kernel, ctx):
                schedule, kernel = _kernel(unit, stored, ctx, name, tune)
            writer.launch(kernel, homes.of)
            schedules.append(schedule)
        elif isinstance(unit, Extern):
            writer.call(unit)
        elif homes.of.get(unit.source.buffer) != unit.target:
            writer.write_back(unit)
    return schedules


def _kernel(group: Group, stored: set[str], ctx: Scheduling, name: str, tune: Tune) -> tuple[Schedule, Kernel]:
    pieces = pieces_of(group, stored, ctx.buffers)
    schedule = tune(schedule_of(group, pieces, ctx.machine))
    return schedule, kernel_of(group, pieces, schedule, ctx, name)


def _outside_readers(units: list[Unit], results: list[Result]) -> dict[str, set[int]]:
    """For every buffer the units that read it from memory; 0 stands for the results."""
    readers: dict[str, set[int]] = {name: {0} for name in viewed(results)}
    for unit in units:
        for name in unit_reads(unit):
            readers.setdefault(name, set()).add(id(unit))
    return readers


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Notes how long the body takes."""
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
