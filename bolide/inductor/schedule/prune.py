"""Removes definitions that nothing needs."""

from __future__ import annotations

from typing import Any

from bolide.inductor.ir.definitions import Computed, Definition, Extern, Program, Scatter, View, WriteBack
from bolide.inductor.plan import map_refs
from bolide.inductor.schedule.stages import loads_of
from bolide.tracing.traits import traits_of


def reads(definition: Definition) -> set[str]:
    """The buffers a definition reads."""
    if isinstance(definition, Computed):
        position = () if definition.position is None else (definition.position,)
        return {node.arg.buffer for node in loads_of((definition.value, *position))}
    if isinstance(definition, Scatter):
        return {node.arg.buffer for node in loads_of((definition.value, *definition.operands))} | {definition.base}
    if isinstance(definition, WriteBack):
        return {definition.source.buffer}
    return viewed((definition.args, definition.kwargs)) | set(definition.mutates)


def viewed(value: Any) -> set[str]:
    """The buffers that Views anywhere in a value look at."""
    found: set[str] = set()
    map_refs(value, View, lambda view: found.add(view.buffer))
    return found


def writes(definition: Definition) -> tuple[str, ...]:
    """The buffers a definition makes or changes."""
    if isinstance(definition, Extern):
        return (*(name for name in definition.names if name is not None), *definition.mutates)
    return (definition.target,) if isinstance(definition, WriteBack) else (definition.name,)


def prune(program: Program) -> Program:
    """The program without the definitions that no result, write-back or impure call depends on."""
    needed = viewed(program.results)
    kept: list[Definition] = []
    for definition in reversed(program.definitions):
        effect = isinstance(definition, WriteBack) or (isinstance(definition, Extern) and impure(definition))
        if effect or not needed.isdisjoint(writes(definition)):
            needed |= reads(definition)
            kept.append(definition)
    kept.reverse()
    return Program(program.inputs, kept, program.results, program.size_vars)


def impure(extern: Extern) -> bool:
    """Whether a call does more than make its results: later numbers follow from what it draws, too."""
    return traits_of(extern.op).seeded or bool(extern.mutates) or extern.binds or not extern.names
