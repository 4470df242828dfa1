"""Sums in scratch memory of which each thread of a team only ever touches the elements that it is dealt: it holds these
itself, in registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bolide.inductor.codegen.cuda.widths import is_short, width_of
from bolide.inductor.ir.definitions import axis_var
from bolide.inductor.ir.loops import ATOMIC, VECTOR_KINDS, Access, Axis, Init, Kernel, Loop, Stmt, Store
from bolide.inductor.ir.walks import loads_of, roots_in, roots_of, statements


def held_by_threads(kernel: Kernel) -> frozenset[str]:
    """The scratch buffers that are added to, and touched in loops of the team only, at the place of the loop's axis, if
    a thread has few turns in these: then the places of its elements are known."""
    added = {s.access.buffer for s in statements(kernel.body) if isinstance(s, Store) and s.mode == "add"}
    held = {local.name: local.numel for local in kernel.locals if local.numel.is_const and local.name in added}
    for access, axis, is_plain in _accesses(kernel.body, None) if held else ():
        extent = held.get(access.buffer)
        if extent is None:
            continue
        shared = axis is not None and axis.bound == "team" and axis.kind in VECTOR_KINDS and axis.extent is extent
        if not (is_plain and shared and axis is not None and access.index is axis_var(axis.name, extent)):
            del held[access.buffer]
    names = frozenset(held)
    width = width_of_held(kernel, names)
    loops = [loop for loop in _loops(kernel.body) if touches(loop, names)]
    few = all(is_short(loop.body, -(-loop.axis.extent.value // (kernel.team * width)), width) for loop in loops)
    return names if few else frozenset()


def width_of_held(kernel: Kernel, held: frozenset[str]) -> int:
    """Elements that a thread takes at a time of each loop that touches what threads hold: the same number in all, so
    that it meets its own. Loops that load something else decide on it, if there are any."""
    loops = [loop for loop in _loops(kernel.body) if touches(loop, held)]
    given = [loop for loop in loops if any(node.arg.buffer not in held for node in loads_of(roots_in(loop.body)))]
    return min([width_of(loop.axis, loop.body, kernel.team, held) for loop in given or loops], default=1)


def touches(loop: Loop, held: frozenset[str]) -> bool:
    """Whether a loop loads or stores any of these buffers."""
    return bool(held) and any(access.buffer in held for access, _, _ in _accesses((loop,), None))


def _loops(body: Iterable[Stmt]) -> Iterator[Loop]:
    """The loops that a team shares."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from (statement,) if statement.axis.bound == "team" else _loops(statement.body)


def _accesses(body: Iterable[Stmt], axis: Axis | None) -> Iterator[tuple[Access, Axis | None, bool]]:
    """What statements touch, each with the loop right around it, and whether it is one element, known by its place."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from _accesses(statement.body, statement.axis)
        elif not isinstance(statement, Init):
            for node in loads_of(roots_of(statement)):
                yield node.arg, axis, not node.src
            if isinstance(statement, Store):
                yield statement.access, axis, not statement.operands and statement.mode not in ATOMIC.values()
