"""Definitions that become two: a Scatter becomes a copy of its base and an update of the copy; a long reduction to few
results becomes partial results and their reduction, so that all threads have work."""

from __future__ import annotations

from dataclasses import replace

from bolide.inductor.ir.definitions import Computed, Definition, Element, Program, Scatter, axis_var, axis_vars, volume
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.walks import loads_of, substitute
from bolide.symbolic import Expr

FEW_ROWS = 16  # fewer results of reductions along memory
FEW_COLUMNS = 128  # fewer results of reductions across memory
LONG = 1 << 15  # elements to reduce for one result
MOST_PARTS = 64
FEWEST_PARTS = 4
SPLITTABLE = ("sum", "prod", "min", "max", "any", "all")


def expand_scatters(program: Program) -> Program:
    """Every Scatter becomes the copy of its base, under its own name, and the update of that copy."""
    done: list[Definition] = []
    for definition in program.definitions:
        if isinstance(definition, Scatter) and definition.base != definition.name:
            name, dtype, shape = definition.name, definition.dtype, definition.shape
            axes = tuple([f"{name}_c{i}" for i in range(len(shape))])
            value = Node.make("load", dtype, (), Element(definition.base, axis_vars(zip(axes, shape))))
            copy = Computed(
                *(name, dtype, shape, axes, value),
                layout=definition.layout,
                origin=definition.origin,
                device=definition.device,
            )
            done += [copy, replace(definition, base=name)]
        else:
            done.append(definition)
    return replace(program, definitions=done)


def split_reductions(program: Program) -> Program:
    """The program with every long reduction to few results as partial results and their reduction.

    Static sizes only. The number of parts is a divisor of one reduced extent, at most MOST_PARTS."""
    done: list[Definition] = []
    for definition in program.definitions:
        if isinstance(definition, Computed) and definition.reduce_op in SPLITTABLE:
            done += _split(definition) or [definition]
        else:
            done.append(definition)
    return replace(program, definitions=done)


def _split(definition: Computed) -> list[Definition] | None:
    results, length = volume(definition.shape), volume(extent for _, extent in definition.reduce_axes)
    if not (results.is_const and length.is_const and length.value >= LONG):
        return None
    if results.value >= (FEW_ROWS if _along_memory(definition) else FEW_COLUMNS):
        return None
    name, extent = definition.reduce_axes[0]
    parts = next((n for n in range(MOST_PARTS, FEWEST_PARTS - 1, -1) if extent.value % n == 0), None)
    if parts is None or results.value * parts < FEWEST_PARTS:
        return None
    part, within = f"{name}s", f"{name}w"
    size = Expr.const(extent.value // parts)
    count = Expr.const(parts)
    value = substitute({name: axis_var(part, count) * size + axis_var(within, size)})(definition.value)
    partial = replace(
        definition,
        name=f"{definition.name}_parts",
        dtype=value.dtype,
        shape=(count, *definition.shape),
        axes=(part, *definition.axes),
        value=value,
        reduce_axes=((within, size), *definition.reduce_axes[1:]),
        layout=None,
    )
    last = f"{name}p"
    axes = tuple([f"{axis}p" for axis in definition.axes])
    coords = (axis_var(last, count), *axis_vars(zip(axes, definition.shape)))
    load = Node.make("load", value.dtype, (), Element(partial.name, coords))
    return [partial, replace(definition, axes=axes, value=load, reduce_axes=((last, count),), absorbed=())]


def _along_memory(definition: Computed) -> bool:
    """Whether most of what is reduced is read along its last dimension."""
    reduced = {name for name, _ in definition.reduce_axes}
    last = [node.arg.coords[-1].free_vars for node in loads_of((definition.value,)) if node.arg.coords]
    return 2 * sum(not reduced.isdisjoint(names) for names in last) >= len(last)
