"""Where the elements of every buffer are."""

from __future__ import annotations

from bolide.inductor.ir.definitions import Computed, Extern, Layout, Program, WriteBack, described
from bolide.inductor.ir.walks import loads_of, views_in
from bolide.inductor.schedule.stages import Buffer
from bolide.symbolic import Expr, is_packed

ZERO = Expr.const(0)


def decide_layouts(program: Program) -> dict[str, Buffer]:
    """The buffers of a program. Inputs and results of library calls are as they come; what a consumer must see is as it
    must be; any other buffer is laid out like what it is computed from, so that chains keep one order of memory."""
    buffers: dict[str, Buffer] = {}
    for given in program.inputs:
        buffers[given.name] = Buffer(given.dtype, given.shape, Layout(given.layout.stride, ZERO), given.device)
    fixed = _strided_views(program)
    for definition in program.definitions:
        if isinstance(definition, WriteBack):
            continue
        for name, (dtype, shape, layout) in described(definition).items():
            if layout is None and isinstance(definition, Computed) and name not in fixed:
                layout = _like_operands(definition, buffers)
            if name not in buffers:  # the update of a scatter works in the buffer of its copy
                buffers[name] = Buffer(dtype, shape, layout or Layout.row_major(shape), definition.device)
    return buffers


def _strided_views(program: Program) -> set[str]:
    """Buffers of which a call or a result is a strided view: its strides hold for the row-major layout."""
    views = views_in(program.results)
    for definition in program.definitions:
        if isinstance(definition, Extern):
            views += views_in((definition.args, definition.kwargs))
        elif isinstance(definition, WriteBack):
            views.append(definition.source)
    return {view.buffer for view in views if view.stride is not None}


def _like_operands(definition: Computed, buffers: dict[str, Buffer]) -> Layout | None:
    """The layout that all operands read element by element have, if it is dense and not row-major."""
    if definition.reduce_op is not None or len(definition.shape) < 3:
        return None
    elements = [node.arg for node in loads_of((definition.value,)) if node.arg.coords == definition.coords]
    strides = {buffers[element.buffer].layout.stride for element in elements if not element.masked}
    if len(strides) != 1:
        return None
    stride = strides.pop()
    return Layout(stride, ZERO) if _is_dense(definition.shape, stride) else None


def _is_dense(shape: tuple[Expr, ...], stride: tuple[Expr, ...]) -> bool:
    """Whether a layout has no gaps and no overlaps (static sizes only)."""
    if not all(expr.is_const for expr in (*shape, *stride)):
        return False
    order = sorted(range(len(shape)), key=lambda dim: (stride[dim].value, shape[dim].value))
    return is_packed(shape, stride, order)
