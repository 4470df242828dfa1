"""What is true of every plan: it is well formed, and its text and its bytes give it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import bolide
from bolide.inductor import CompiledGraph
from bolide.inductor.plan import Call, Foreign, Plan, all_steps
from bolide.inductor.plan.codec import CannotLeave, decode, encode
from bolide.inductor.plan.parse import parse
from bolide.inductor.plan.verify import verify
from bolide.inductor.runtime.native import assemble as assembling
from bolide.inductor.runtime.native.linking import Program
from bolide.support import events


@contextmanager
def plans() -> Iterator[list[CompiledGraph]]:
    """The graphs that are compiled inside."""
    found: list[CompiledGraph] = []

    def note(event: object) -> None:
        if isinstance(event, events.Compiled) and isinstance(event.artifact, CompiledGraph):
            found.append(event.artifact)

    with events.subscribed(note):
        yield found


@contextmanager
def native_programs() -> Iterator[list[Program]]:
    """Graphs have a native driver from their second call inside: the programs that are made."""
    made: list[Program] = []
    assemble = assembling.assemble

    def noting(*args: Any) -> Program:
        made.append(assemble(*args))
        return made[-1]

    bolide.reset()
    with mock.patch.object(assembling, "assemble", noting), bolide.inductor.config.patch(native_after=2):
        yield made
    bolide.reset()


def plans_of(program: Callable[..., Any], *inputs: Any, **options: Any) -> list[CompiledGraph]:
    """The graphs of a program called with these."""
    with plans() as found:
        bolide.compile(program, **options)(*inputs)
    return found


def has_foreign(plan: Plan) -> bool:
    return any(
        isinstance(argument, Foreign)
        for step in all_steps(plan.steps)
        if isinstance(step, Call)
        for argument in step.arguments
    )


MOST_STEPS = 60


def checking(build: Callable[..., Any]) -> Callable[..., Any]:
    """The maker of drivers, which checks what it is given: large plans take too long to be read again."""

    def checked(plan: Plan, *args: Any) -> Any:
        if len(plan.steps) <= MOST_STEPS:
            check_plan(plan)
        else:
            verify(plan)
        return build(plan, *args)

    return checked


def check_plan(plan: Plan) -> None:
    """The plan is well formed, and comes back from its text and from its bytes."""
    verify(plan)
    text = plan.text()
    again = parse(text, plan.kernels)
    assert again.text() == text
    assert again == plan, text
    if has_foreign(plan):
        try:
            encode(plan)
        except CannotLeave:
            return
        raise AssertionError("a plan with objects of the process was encoded")
    data = encode(plan)
    read = decode(data, Plan)
    assert read == plan, text
    assert encode(read) == data
