"""Symbolic sizes of a graph as data: what they are made of, and what was assumed of their symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bolide.saving.contents import Value
from bolide.symbolic import Cond, ShapeEnv
from bolide.symbolic.assumptions import Assumptions


def pack_sizes(shapes: Assumptions, value: Callable[[Value], Value]) -> dict[str, Value]:
    """The symbols of a finished trace. `value` packs expressions."""

    def conditions(found: Iterable[Cond]) -> list[Value]:
        return [[each.op, value(each.expr)] for each in sorted(found, key=Cond.text)]

    return {
        "hints": shapes.hints,
        "data": sorted(shapes.facts.names),
        "guards": conditions(shapes.guards),
        "facts": conditions(shapes.facts.known),
    }


def unpack_sizes(data: Mapping[str, Value], value: Callable[[Value], Value]) -> ShapeEnv:
    """What `pack_sizes` was given."""
    shapes = ShapeEnv()
    shapes.hints.update(data["hints"])
    shapes.facts.names.update(data["data"])
    shapes.guards.update(dict.fromkeys([Cond(op, value(expr)) for op, expr in data["guards"]]))
    for op, expr in data["facts"]:
        shapes.facts.add(Cond(op, value(expr)))
    shapes.closed = True
    return shapes
