"""Where the elements of every buffer are."""

from __future__ import annotations

from bolide.inductor.ir.definitions import Computed, Extern, Layout, Program, Scatter
from bolide.inductor.schedule.stages import Buffer, contiguous_strides
from bolide.symbolic import Expr

ZERO = Expr.const(0)


def decide_layouts(program: Program) -> dict[str, Buffer]:
    """The buffers of a program. Inputs and results of library calls are as they come; what a consumer must see is as
    it must be; all others are contiguous."""
    buffers: dict[str, Buffer] = {}
    for given in program.inputs:
        buffers[given.name] = Buffer(given.dtype, given.shape, Layout(given.layout.stride, ZERO))
    for definition in program.definitions:
        if isinstance(definition, (Computed, Scatter)):
            layout = definition.layout or Layout(contiguous_strides(definition.shape), ZERO)
            buffers[definition.name] = Buffer(definition.dtype, definition.shape, layout)
        elif isinstance(definition, Extern):
            for name, dtype, shape, layout in zip(
                definition.names, definition.dtypes, definition.shapes, definition.layouts
            ):
                if name is not None:
                    buffers[name] = Buffer(dtype, shape, layout)
    return buffers
