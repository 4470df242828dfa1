"""Where the elements of every buffer are."""

from __future__ import annotations

from bolide.inductor.ir.definitions import Computed, Element, Extern, Layout, Program, Scatter, View
from bolide.inductor.plan import map_refs
from bolide.inductor.schedule.stages import Buffer, axis_var, loads_of
from bolide.symbolic import Expr, contiguous_strides, is_packed

ZERO = Expr.const(0)


def decide_layouts(program: Program) -> dict[str, Buffer]:
    """The buffers of a program. Inputs and results of library calls are as they come; what a consumer must see is as it
    must be; any other buffer is laid out like what it is computed from, so that chains keep one order of memory.
    """
    buffers: dict[str, Buffer] = {}
    for given in program.inputs:
        buffers[given.name] = Buffer(given.dtype, given.shape, Layout(given.layout.stride, ZERO))
    fixed = _strided_views(program)
    for definition in program.definitions:
        if isinstance(definition, (Computed, Scatter)):
            layout = definition.layout
            if layout is None and isinstance(definition, Computed) and definition.name not in fixed:
                layout = _like_operands(definition, buffers)
            if definition.name not in buffers:  # the update of a scatter works in the buffer of its copy
                layout = layout or Layout(contiguous_strides(definition.shape), ZERO)
                buffers[definition.name] = Buffer(definition.dtype, definition.shape, layout)
        elif isinstance(definition, Extern):
            for name, dtype, shape, layout in zip(
                definition.names, definition.dtypes, definition.shapes, definition.layouts
            ):
                if name is not None:
                    buffers[name] = Buffer(dtype, shape, layout)
    return buffers


def _strided_views(program: Program) -> set[str]:
    """Buffers of which a call or a result is a strided view: its strides hold for the row-major layout."""
    found: set[str] = set()

    def note(view: View) -> None:
        if view.stride is not None:
            found.add(view.buffer)

    map_refs(program.results, View, note)
    for definition in program.definitions:
        if isinstance(definition, Extern):
            map_refs((definition.args, definition.kwargs), View, note)
        elif not isinstance(definition, (Computed, Scatter)):
            note(definition.source)
    return found


def _like_operands(definition: Computed, buffers: dict[str, Buffer]) -> Layout | None:
    """The layout that all operands read element by element have, if it is dense and not row-major."""
    if definition.reduce_op is not None or len(definition.shape) < 3:
        return None
    coords = tuple([axis_var(name, extent) for name, extent in zip(definition.axes, definition.shape)])
    strides = set()
    for node in loads_of((definition.value,)):
        element: Element = node.arg
        if element.coords == coords and not element.masked:
            strides.add(buffers[element.buffer].layout.stride)
    if len(strides) != 1:
        return None
    stride = strides.pop()
    return Layout(stride, ZERO) if _dense(definition.shape, stride) else None


def _dense(shape: tuple[Expr, ...], stride: tuple[Expr, ...]) -> bool:
    """Whether a layout has no gaps and no overlaps (static sizes only)."""
    if not all(expr.is_const for expr in (*shape, *stride)):
        return False
    order = sorted(range(len(shape)), key=lambda dim: (stride[dim].value, shape[dim].value))
    return is_packed(shape, stride, order)
