"""Readable text of a `Program`, and its check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bolide.inductor.ir.definitions import (
    Computed,
    Definition,
    Element,
    Extern,
    Layout,
    Program,
    Scatter,
    View,
    WriteBack,
)
from bolide.inductor.ir.loops import SCALAR_OPS, Node
from bolide.inductor.ir.printer import INFIX, SHORT
from bolide.symbolic import Expr

# ---- text ----------------------------------------------------------------------------------------------------------


def program_text(program: Program) -> str:
    """One line a definition: ``b2_sum: f32[4] = sum(b1_exp[i0, r1] for r1 < 8)``."""
    lines = [f"sizes {', '.join(program.size_vars)}"] if program.size_vars else []
    for source in program.inputs:
        lines.append(f"input {source.name}: {_type(source.dtype, source.shape)}{_layout(source.layout)}")
    lines.extend(definition_text(definition) for definition in program.definitions)
    lines.append(f"return {', '.join(_argument(result) for result in program.results)}")
    return "\n".join(lines)


def definition_text(definition: Definition) -> str:
    """One definition as a line of text."""
    if isinstance(definition, Computed):
        value = node_text(definition.value)
        if definition.reduce_op is not None:
            ranges = ", ".join(f"{name} < {extent.text()}" for name, extent in definition.reduce_axes)
            place = "" if definition.position is None else f" at {node_text(definition.position)}"
            value = f"{definition.reduce_op}({value}{place} for {ranges})"
        name = f"{definition.name}[{', '.join(definition.axes)}]"
        return f"{name}: {_type(definition.dtype, definition.shape)}{_layout(definition.layout)} = {value}"
    if isinstance(definition, Scatter):
        ranges = ", ".join(f"{name} < {extent.text()}" for name, extent in zip(definition.axes, definition.extents))
        place = ", ".join(_coord(coord, definition.operands) for coord in definition.coords)
        sign = "=" if definition.mode == "set" else "+="
        written = f"[{place}] {sign} {node_text(definition.value)} for {ranges}"
        return f"{definition.name}: {_type(definition.dtype, definition.shape)} = {definition.base} with {written}"
    if isinstance(definition, WriteBack):
        return f"{definition.target} <- {_argument(definition.source)}"
    made = zip(definition.names, definition.dtypes, definition.shapes, definition.layouts)
    results = ", ".join(
        f"{name}: {_type(dtype, shape)}{_layout(layout)}" for name, dtype, shape, layout in made if name
    )
    given = [_argument(arg) for arg in definition.args]
    given += [f"{key}={_argument(arg)}" for key, arg in definition.kwargs.items()]
    return f"{results or '_'} = call {definition.op}({', '.join(given)})"


def node_text(node: Node) -> str:
    """A scalar expression as text."""
    src = [node_text(operand) for operand in node.src]
    if node.op == "const":
        return repr(node.arg)
    if node.op == "index":
        return str(node.arg.text())
    if node.op == "load":
        element: Element = node.arg
        mask = f" if {src.pop()} else 0" if element.masked else ""
        place = ", ".join(_coord(coord, node.src) for coord in element.coords)
        return f"({element.buffer}[{place}]{mask})" if mask else f"{element.buffer}[{place}]"
    if node.op in INFIX and len(src) == 2:
        return f"({src[0]} {INFIX[node.op]} {src[1]})"
    if node.op in ("cast", "bitcast"):
        return f"{node.op}[{SHORT[node.dtype]}]({src[0]})"
    extra = [] if node.arg is None else [str(node.arg)]
    return f"{node.op}({', '.join(src + extra)})"


def _coord(coord: Expr, operands: Sequence[Node]) -> str:
    text = coord.text()
    for place, operand in reversed(list(enumerate(operands))):
        text = text.replace(f"${place}", node_text(operand))
    return text


def _type(dtype: torch.dtype, shape: Sequence[Expr]) -> str:
    return f"{SHORT.get(dtype, dtype)}[{', '.join(size.text() for size in shape)}]"


def _layout(layout: Layout | None) -> str:
    return "" if layout is None else f" @({', '.join(stride.text() for stride in layout.stride)})"


def _argument(arg: Any) -> str:
    if isinstance(arg, View):
        if arg.stride is None or arg.offset is None:
            return arg.buffer
        shape, stride = (", ".join(size.text() for size in sizes) for sizes in (arg.shape, arg.stride))
        return f"{arg.buffer}.view(({shape}), ({stride}), {arg.offset.text()})"
    if isinstance(arg, Expr):
        return arg.text()
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(_argument(item) for item in arg)}]"
    return repr(arg)


# ---- check ---------------------------------------------------------------------------------------------------------


class InvalidProgram(ValueError):
    """A `Program` that breaks the rules of `ir.definitions`; the message shows the definitions around the fault."""


def check_program(program: Program) -> None:
    """Raises InvalidProgram unless every buffer is defined once and before use, ranks and dtypes agree, and only
    axes in scope occur."""
    known = {source.name: (source.dtype, source.shape) for source in program.inputs}
    axes: set[str] = set()
    for place, definition in enumerate(program.definitions):
        try:
            for name, dtype, shape in _check(definition, known, axes):
                _require(name not in known, f"{name} is defined twice")
                known[name] = (dtype, tuple(shape))
        except _Fault as fault:
            around = program.definitions[max(place - 2, 0) : place + 3]
            shown = "\n".join(f"{'->' if d is definition else '  '} {definition_text(d)}" for d in around)
            raise InvalidProgram(f"{fault}\n{shown}") from None
    for result in program.results:
        if isinstance(result, View) and result.buffer not in known:
            raise InvalidProgram(f"the result {result.buffer} is not defined")


class _Fault(Exception):
    pass


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _Fault(what)


_Known = dict[str, tuple[torch.dtype, tuple[Expr, ...]]]


def _check(
    definition: Definition, known: _Known, axes: set[str]
) -> Iterator[tuple[str, torch.dtype, tuple[Expr, ...]]]:
    """Checks one definition; the buffers it makes."""
    if isinstance(definition, Computed):
        _require(len(definition.axes) == len(definition.shape), "one axis for each dimension")
        names = [*definition.axes, *(name for name, _ in definition.reduce_axes)]
        _new_axes(names, axes)
        _check_node(definition.value, known, set(names))
        _require(bool(definition.reduce_axes) == (definition.reduce_op is not None), "a reduction has axes")
        same = definition.value.dtype is definition.dtype or definition.reduce_op is not None
        _require(same, f"the value is {definition.value.dtype}, the buffer {definition.dtype}")
        placed = definition.reduce_op in ("argmin", "argmax")
        _require((definition.position is not None) == placed, "argmin and argmax have a position")
        yield definition.name, definition.dtype, definition.shape
    elif isinstance(definition, Scatter):
        _new_axes(definition.axes, axes)
        _require(known.get(definition.base) == (definition.dtype, definition.shape), f"base {definition.base} differs")
        for node in (definition.value, *definition.operands):
            _check_node(node, known, set(definition.axes))
        _require(definition.value.dtype is definition.dtype, "the value has the buffer's dtype")
        _check_coords(definition.coords, definition.shape, set(definition.axes), len(definition.operands))
        yield definition.name, definition.dtype, definition.shape
    elif isinstance(definition, Extern):
        for view in _views((definition.args, definition.kwargs)):
            _check_view(view, known)
        made = zip(definition.names, definition.dtypes, definition.shapes)
        yield from ((name, dtype, shape) for name, dtype, shape in made if name is not None)
    else:
        _check_view(definition.source, known)
        _require(definition.target in known, f"{definition.target} is not defined")
        _require(known[definition.target][1] == definition.source.shape, "a write-back keeps the shape")


def _new_axes(names: Sequence[str], axes: set[str]) -> None:
    for name in names:
        _require(name not in axes, f"axis {name} occurs in another definition")
        axes.add(name)


def _views(arg: Any) -> Iterator[View]:
    if isinstance(arg, View):
        yield arg
    elif isinstance(arg, (list, tuple, dict)):
        for item in arg.values() if isinstance(arg, dict) else arg:
            yield from _views(item)


def _check_view(view: View, known: _Known) -> None:
    _require(view.buffer in known, f"{view.buffer} is not defined")
    if view.coords is not None:
        _check_coords(view.coords, known[view.buffer][1], set(view.axes), 0)
    else:
        _require(view.shape == known[view.buffer][1], f"{view.buffer} is passed whole with another shape")


def _check_coords(coords: Sequence[Expr], shape: Sequence[Expr], axes: set[str], operands: int) -> None:
    _require(len(coords) == len(shape), f"{len(coords)} coordinates for rank {len(shape)}")
    allowed = axes | {f"${place}" for place in range(operands)}
    sizes = {name for size in shape for name in size.free_vars}
    for coord in coords:
        foreign = coord.free_vars - allowed - sizes
        wild = sorted(name for name in foreign if name[0] in "ir$" and name[1:].isdigit())
        _require(not wild, f"{', '.join(wild)} not in scope")


def _check_node(node: Node, known: _Known, axes: set[str], seen: set[Node] | None = None) -> None:
    seen = set() if seen is None else seen
    if node in seen:
        return
    seen.add(node)
    _require(node.op in SCALAR_OPS, f"unknown scalar op {node.op}")
    count = SCALAR_OPS[node.op][0]
    _require(count in (-1, len(node.src)), f"{node.op} takes {count} operands")
    if node.op == "load":
        element: Element = node.arg
        _require(element.buffer in known, f"{element.buffer} is not defined")
        dtype, shape = known[element.buffer]
        _require(node.dtype is dtype, f"{element.buffer} is {dtype}, read as {node.dtype}")
        _check_coords(element.coords, shape, axes, len(node.src) - element.masked)
        _require(not element.masked or node.src[-1].dtype is torch.bool, "a mask is a bool")
    elif node.op == "index":
        _check_coords([node.arg], [node.arg], axes, 0)
    elif node.op == "where":
        _require(node.src[0].dtype is torch.bool, "a condition is a bool")
        _require(node.src[1].dtype is node.src[2].dtype is node.dtype, "both branches have the result's dtype")
    elif len(node.src) == 2:
        _require(node.src[0].dtype is node.src[1].dtype, f"{node.op} of {node.src[0].dtype} and {node.src[1].dtype}")
    for operand in node.src:
        _check_node(operand, known, axes, seen)
