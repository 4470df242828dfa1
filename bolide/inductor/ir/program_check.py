"""The check that a `Program` is well formed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from bolide.inductor.ir.definitions import Computed, Definition, Described, Extern, Program, Scatter, View, described
from bolide.inductor.ir.printer import definition_text
from bolide.inductor.ir.scalar_ops import fault_of
from bolide.inductor.ir.walks import nodes_below, programs_in, roots_of, viewed, views_in
from bolide.symbolic import Expr


class InvalidProgram(ValueError):
    """A `Program` that breaks the rules of `ir.definitions`; the message shows the definitions around the fault."""


def check_program(program: Program) -> None:
    """Raises InvalidProgram unless every buffer is defined once and before use, ranks and dtypes agree, and only
    axes in scope occur."""
    known: dict[str, Described] = {given.name: (given.dtype, given.shape, None) for given in program.inputs}
    axes: set[str] = set()
    for position, definition in enumerate(program.definitions):
        try:
            _check(definition, known, axes)
            for name, parts in described(definition).items():
                _require(name not in known, f"{name} is defined twice")
                known[name] = parts
        except InvalidProgram as fault:
            around = program.definitions[max(position - 2, 0) : position + 3]
            shown = "\n".join(f"{'->' if d is definition else '  '} {definition_text(d)}" for d in around)
            raise InvalidProgram(f"{fault}\n{shown}") from None
    missing = viewed(program.results) - known.keys()
    if missing:
        raise InvalidProgram(f"the result {missing.pop()} is not defined")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise InvalidProgram(what)


def _check(definition: Definition, known: dict[str, Described], axes: set[str]) -> None:
    if isinstance(definition, Computed):
        _require(len(definition.axes) == len(definition.shape), "one axis for each dimension")
        _check_nodes(definition, [*definition.axes, *(name for name, _ in definition.reduce_axes)], known, axes)
        reduces = bool(definition.reduce_axes) != (definition.scan is not None)
        _require(reduces == (definition.reduce_op is not None), "a reduction has axes, or one that it runs along")
        _require(definition.scan in (None, *definition.axes), "a scan runs along one of its axes")
        in_parts = definition.scan is None and len(definition.reduce_axes) == 1
        _require(definition.run is None or definition.scan is not None or in_parts, "runs are parts of one axis")
        same = definition.value.dtype is definition.dtype or definition.reduce_op is not None
        _require(same, f"the value is {definition.value.dtype}, the buffer {definition.dtype}")
        placed = definition.reduce_op in ("argmin", "argmax")
        _require((definition.position is not None) == placed, "argmin and argmax have a position")
    elif isinstance(definition, Scatter):
        _check_nodes(definition, definition.axes, known, axes)
        same = definition.base in known and known[definition.base][:2] == (definition.dtype, definition.shape)
        _require(same, f"base {definition.base} differs")
        _require(definition.value.dtype is definition.dtype, "the value has the buffer's dtype")
        _check_coords(definition.coords, definition.shape, set(definition.axes), len(definition.operands))
    elif isinstance(definition, Extern):
        for view in views_in((definition.args, definition.kwargs)):
            _check_view(view, known)
        for program in programs_in(definition.args):
            check_program(program)
            constants = [given for given in program.inputs if given.name in known]
            _require(all(known[given.name][0] is given.dtype for given in constants), "a constant is another one")
    else:
        _check_view(definition.source, known)
        _require(definition.target in known, f"{definition.target} is not defined")
        _require(known[definition.target][1] == definition.source.shape, "a write-back keeps the shape")


def _check_view(view: View, known: dict[str, Described]) -> None:
    _require(view.buffer in known, f"{view.buffer} is not defined")
    if view.coords is not None:
        _check_coords(view.coords, known[view.buffer][1], set(view.axes), 0)
    else:
        _require(view.shape == known[view.buffer][1], f"{view.buffer} is passed whole with another shape")


def _check_coords(coords: Sequence[Expr], shape: Sequence[Expr], axes: set[str], operands: int) -> None:
    _require(len(coords) == len(shape), f"{len(coords)} coordinates for rank {len(shape)}")
    allowed = axes | {f"${k}" for k in range(operands)}
    sizes = {name for size in shape for name in size.free_vars}
    for coord in coords:
        foreign = coord.free_vars - allowed - sizes
        wild = sorted(name for name in foreign if name[0] in "ir$" and name[1:].isdigit())
        _require(not wild, f"{', '.join(wild)} not in scope")


def _check_nodes(
    definition: Computed | Scatter, own: Iterable[str], known: dict[str, Described], axes: set[str]
) -> None:
    """Check the nodes of a definition, whose `own` axes join `axes`, those of the definitions before."""
    scope: set[str] = set()
    for name in own:
        _require(name not in axes, f"axis {name} occurs in another definition")
        axes.add(name)
        scope.add(name)
    for node in nodes_below(roots_of(definition)):
        fault = fault_of(node.op, [operand.dtype for operand in node.src], node.dtype)
        _require(fault is None, fault or "")
        if node.op == "index":
            _check_coords([node.arg], [node.arg], scope, 0)
        if node.op == "load":
            element = node.arg
            _require(element.buffer in known, f"{element.buffer} is not defined")
            dtype, shape, _ = known[element.buffer]
            _require(node.dtype is dtype, f"{element.buffer} is {dtype}, read as {node.dtype}")
            _check_coords(element.coords, shape, scope, len(node.src) - element.masked)
            _require(not element.masked or node.src[-1].dtype is torch.bool, "a mask is a bool")
