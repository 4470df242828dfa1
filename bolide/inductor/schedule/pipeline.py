"""The passes of scheduling, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from bolide.inductor.config import config
from bolide.inductor.ir.definitions import Extern, Program, Result, View
from bolide.inductor.ir.walks import viewed
from bolide.inductor.machine import Machine
from bolide.inductor.plan import Plan
from bolide.inductor.schedule.grouping import group
from bolide.inductor.schedule.inline import inline, prune
from bolide.inductor.schedule.layouts import Homes, decide_layouts, find_homes, free_layouts, settle
from bolide.inductor.schedule.loop_writer import kernel_of
from bolide.inductor.schedule.order import checks_first, order_for_memory
from bolide.inductor.schedule.products import accumulate_products, choose_libraries
from bolide.inductor.schedule.split import split_reductions, update_in_place
from bolide.inductor.schedule.stages import Group, Refusal, Scheduling, Unit, unit_reads
from bolide.inductor.schedule.steps import StepWriter
from bolide.symbolic import Expr


@dataclass(slots=True)
class Schedule:
    """What scheduling made: the plan with its kernels, and what explain shows."""

    plan: Plan
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
        "scatters": update_in_place,
    }
    if not fusion:
        del passes["inline"]
    return passes


def schedule_program(program: Program, inputs: tuple[str, ...], static: Collection[str], machine: Machine) -> Schedule:
    """Kernels and plan of a program for a machine. `inputs` are the names of the call's arguments, tensors and sizes,
    in order; `static` those whose memory lives anyway."""
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
        plan = _plan_of(units, ctx, writer, find_homes(units, ctx, free_layouts(program)))
    strides = [
        ctx.buffers[result.buffer].layout.stride if isinstance(result, View) and result.stride is None else None
        for result in program.results
    ]
    return Schedule(plan, tuple(writer.objects), strides, ctx.refusals, seconds)


def _plan_of(units: list[Unit], ctx: Scheduling, writer: StepWriter, homes: Homes) -> Plan:
    readers = _outside_readers(units, ctx.results)
    for unit in units:
        if isinstance(unit, Group):
            stored = {s.name for s in unit.stages if s.mode != "define" or readers.get(s.name, set()) - {id(unit)}}
            name = f"k{len(writer.kernels)}_{unit.stages[-1].name}"
            kernel = kernel_of(unit, stored, ctx, name)
            if not settle(homes, unit, kernel, ctx):
                kernel = kernel_of(unit, stored, ctx, name)
            writer.launch(kernel, homes.of)
        elif isinstance(unit, Extern):
            writer.call(unit)
        elif homes.of.get(unit.source.buffer) != unit.target:
            writer.write_back(unit)
    return writer.finish(ctx.results)


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
