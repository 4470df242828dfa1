"""How many neighbouring elements a thread takes at a time: as many as 128 bits hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from bolide.inductor.codegen.analysis import cost
from bolide.inductor.codegen.scope import multiple_of, step_along
from bolide.inductor.ir.loops import Access, Axis, Loop, Stmt, Store, Update
from bolide.inductor.ir.walks import loads_of, roots_in, statements
from bolide.symbolic import Expr

#: Bytes of the widest loads and stores.
WIDEST = 16
#: Bytes of each row that a thread takes of a column.
WORD = 4
#: Instructions of a loop's body times elements: more would take more registers than there are.
_MOST = 1 << 10
#: Elements at places of their own that a thread loads at a time.
MOST_GATHERED = 8
#: Turns that are written out, one after the other, so that loads do not wait for each other.
_TURNS = 8
#: Iterations of a thread's loop that are written out, and instructions of these times elements. Where they store, too:
#: half as many, as they need the more registers. (H200, GELU's gradient and its sum, bfloat16: 0.88 of the time.)
_AT_ONCE, _UNROLLED = 8, 320


def width_of(axis: Axis, body: Sequence[Stmt], team: int = 1, held: frozenset[str] = frozenset()) -> int:
    """Elements that a thread takes at a time of a loop, which a team of so many threads shares. A power of two. `held`:
    buffers that are no memory."""
    loops = [statement for statement in body if isinstance(statement, Loop)]
    accesses = [(access.index, dtype) for access, dtype in _accesses(loops or body) if access.buffer not in held]
    sizes = [dtype.itemsize for index, dtype in accesses if _is_run(index, axis.name, WIDEST // dtype.itemsize)]
    if not sizes or (loops and team > 1):
        return 1
    width = max(1, (WORD if loops else WIDEST) // max(sizes))
    if team == 1 and not loops and any(len(node.src) > node.arg.masked for node in loads_of(roots_in(body))):
        width = _width_of_gathering(axis, sizes, width)
    while width > 1 and (_is_starved(axis.extent, width, team) or width * cost(body) > _MOST):
        width //= 2
    return width


def _width_of_gathering(axis: Axis, sizes: Sequence[int], width: int) -> int:
    """Elements that a thread takes at a time where data say what is loaded, so that it has several loads in flight.
    Indices of 8 bytes that lie along the axis do not make it take fewer; without these whole rows are loaded, of which
    it takes twice as many as of others. `width`: what it takes if that does not divide the axis."""
    data = [size for size in sizes if size < 8] or sizes
    more = min(WIDEST // max(data), MOST_GATHERED) if max(sizes) == 8 else 2 * WIDEST // max(data)
    return more if multiple_of(axis.extent) % more == 0 else width


def iterations_at_once(loop: Loop, width: int, team: int) -> int:
    """Iterations, of so many elements each, that a thread takes at a time of a loop which adds up what it loads, or
    copies rows (of a tile), a few elements of each."""
    body, is_tile = loop.body, loop.axis.kind == "serial"
    if is_tile:
        if not (len(body) == 1 and isinstance(body[0], Loop)):
            return 1
        width = -(-(body[0].axis.extent.bounds()[1] or _UNROLLED * team) // team)
        body = body[0].body
    kinds = {type(statement) for statement in body}
    allowed = {Store, Update} if team == 1 and Update in kinds else {Store} if is_tile else {Update}
    if not kinds <= allowed or not any(True for _ in loads_of(roots_in(body))):
        return 1
    storing = Store in kinds and not is_tile
    times, most = _AT_ONCE // 2 if storing else _AT_ONCE, 2 * _UNROLLED if Store in kinds else _UNROLLED
    while times > 1 and times * width * cost(body) > most:
        times //= 2
    return times


def is_short(body: Sequence[Stmt], turns: int, width: int) -> bool:
    """Whether a thread's turns in a loop are few enough to be written out."""
    has_loops = any(isinstance(statement, Loop) for statement in body)
    return not has_loops and turns <= _TURNS and turns * width * cost(body) <= 2 * _MOST


def _is_starved(extent: Expr, width: int, team: int) -> bool:
    """Whether half of a team's threads would have nothing to do, or a last one less than all its elements."""
    most = extent.bounds()[1]
    if most is not None and (most < width if team == 1 else 2 * most <= width * team):
        return True
    return team > 1 and multiple_of(extent) % width != 0


def _is_run(index: Expr, axis: str, most: int) -> bool:
    step = step_along(index, axis, most)
    return step is not None and step.is_const and step.value == 1


def _accesses(body: Sequence[Stmt]) -> Iterator[tuple[Access, torch.dtype]]:
    for node in loads_of(roots_in(body)):
        yield node.arg, node.dtype
    for statement in statements(body):
        if isinstance(statement, Store):
            yield statement.access, statement.value.dtype
