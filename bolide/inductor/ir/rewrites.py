"""Loop IR to loop IR, as a schedule says: nests in blocks, iterations side by side, loops split where a condition on
their axis changes, or the way in which an address follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import torch

from bolide.inductor.ir.definitions import axis_var, part_length, unravel, volume
from bolide.inductor.ir.loops import (
    VECTOR_KINDS,
    Access,
    Axis,
    AxisKind,
    Init,
    Kernel,
    Local,
    Loop,
    Node,
    Stmt,
    Store,
    Update,
)
from bolide.inductor.ir.walks import (
    bound_nest,
    crosses,
    loads_of,
    nodes_below,
    rewriter,
    roots_in,
    statements,
    substitute,
    substituted_arg,
    with_roots,
)
from bolide.symbolic import Expr
from bolide.symbolic.expr import Atom

Rewriter = Callable[[Node], Node]

# ---- blocks --------------------------------------------------------------------------------------------------------


def in_blocks(axes: Sequence[Axis], blocks: Mapping[str, int], stores: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Stores in loops over `axes`, some of which run in blocks of so many iterations.

    The loops over blocks are parallel, inside the other parallel loops; the serial loops follow, and the loops within
    the blocks are innermost: vector for the vector axis, tile for another one. ``vector v, serial s`` (rows that are
    scattered) becomes ``parallel v's blocks, serial s, vector v in its block``; ``parallel p, vector v`` (a
    transposition) ``parallel v's blocks, parallel p's tiles, vector v in its block, tile p``."""
    cut = sorted([axis for axis in axes if axis.name in blocks], key=lambda axis: axis.kind != "vector")
    outside, inside, place = [], [], {}
    for axis in cut:
        size, block = blocks[axis.name], f"{axis.name}b"
        outside.append(Axis(block, axis.extent.ceildiv(size), "parallel"))
        inside.append(_inside(axis, block, size, "vector" if axis.kind == "vector" else "tile"))
        first = axis_var(block, outside[-1].extent) * size
        place[axis.name] = first + axis_var(axis.name, inside[-1].extent)
    parallel = [axis for axis in axes if axis not in cut and axis.kind == "parallel"]
    serial = [axis for axis in axes if axis not in cut and axis.kind != "parallel"]
    new = substitute(place)
    body: tuple[Stmt, ...] = tuple([_moved(store, place, new) for store in stores])
    for axis in reversed([*parallel, *outside, *serial, *inside]):
        body = (Loop(axis, body),)
    return body


def in_parts(axes: Sequence[Axis], number: str, count: Expr, size: int, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A loop over the rows of part `number` of `count`, each of so many iterations of the nest of `axes`."""
    extent = volume(axis.extent for axis in axes)
    rows = _inside(Axis(axes[-1].name, extent, "serial"), number, size, "serial")
    row = axis_var(number, count) * size + axis_var(rows.name, rows.extent)
    place = _places(row, axes)
    new = substitute(place)
    return (Loop(rows, tuple([_moved(statement, place, new) for statement in body])),)


def _places(iteration: Expr, axes: Sequence[Axis]) -> dict[str, Expr]:
    """The place on each axis of an iteration of a nest, by its number."""
    return dict(zip([axis.name for axis in axes], unravel(iteration, [axis.extent for axis in axes])))


def _inside(axis: Axis, block: str, size: int, kind: AxisKind) -> Axis:
    """The axis within a block: shorter in the last one, unless `size` divides it."""
    number = axis_var(block, axis.extent.ceildiv(size))
    return Axis(axis.name, part_length(axis.extent, number, size), kind)


def _moved(statement: Stmt, place: Mapping[str, Expr], new: Rewriter) -> Stmt:
    """A statement with axes at other places; `new` does so in nodes."""
    if isinstance(statement, Loop):
        extent = statement.axis.extent.subs(place)
        body = tuple([_moved(inner, place, new) for inner in statement.body])
        return Loop(replace(statement.axis, extent=extent), body)
    if isinstance(statement, Init):
        return statement
    if isinstance(statement, Update):
        return with_roots(statement, new)
    return with_roots(statement, new, access=statement.access.subs(place))


def in_shared_tiles(
    axes: Sequence[Axis], blocks: Sequence[tuple[str, int]], stores: Sequence[Stmt], are_whole: bool = False
) -> tuple[tuple[Stmt, ...], list[Local]]:
    """Stores in loops over `axes`, of which two are in `blocks`: the vector axis, and one along which loads that go
    across memory are consecutive. Of each block these loads are made along the second axis, into scratch memory, which
    the stores read along the first. (Where a block is not whole, loads meet in the last element; none of it is used.)

    ``parallel p, vector v`` becomes ``parallel p's blocks, parallel v's blocks`` (so that what is written side by side
    is next to each other) with ``serial v, vector p`` and ``serial p, vector v`` inside. Rows of scratch memory are
    four bytes longer than they need to be: its banks take a column at a time then, too. `are_whole`: all blocks are,
    and each of the two nests is one loop."""
    by_name = {axis.name: axis for axis in axes}
    (vector, height), (along, width) = [(by_name[name], size) for name, size in blocks]
    outside, inside, place, known = [], [], {}, {}
    for axis, size in ((vector, height), (along, width)):
        block = Axis(f"{axis.name}b", axis.extent.ceildiv(size), "parallel")
        first = axis_var(block.name, block.extent) * size
        outside.append(block)
        inside.append(_inside(axis, block.name, size, "vector" if axis is vector else "serial"))
        place[axis.name] = first + axis_var(axis.name, inside[-1].extent)
        known[axis.name] = Expr.min(first + axis_var(axis.name, Expr.const(size)), axis.extent - 1)
    loads = [node for node in loads_of(roots_in(stores)) if not node.src]
    loads = [node for node in loads if crosses(node.arg.index, along.name, vector.name)]
    rooms = [
        Local(f"{node.arg.buffer}_tile{n}", node.dtype, Expr.const(height * (width + _spare(node))))
        for n, node in enumerate(loads)
    ]
    names = {node: room.name for node, room in zip(loads, rooms)}
    spare = {room.name: _spare(node) for node, room in zip(loads, rooms)}

    def held(room: str, one: Expr, other: Expr) -> Access:
        row, column = axis_var(vector.name, one), axis_var(along.name, other)
        return Access(room, row * (width + spare[room]) + column)

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node in names:
            return Node.make("load", node.dtype, (), held(names[node], inside[0].extent, inside[1].extent))
        arg = substituted_arg(node, place)
        return None if arg is node.arg and src == node.src else Node.make(node.op, node.dtype, src, arg)

    read = [
        Store(held(room, Expr.const(height), Expr.const(width)), substitute(known)(node))
        for node, room in names.items()
    ]
    rows = (
        replace(vector, extent=Expr.const(height), kind="serial"),
        replace(along, extent=Expr.const(width), kind="vector"),
    )
    body: tuple[Stmt, ...] = (
        Loop(rows[0], (Loop(rows[1], tuple(read)),)),
        Loop(inside[1], (Loop(inside[0], tuple([_moved(store, place, rewriter(rule)) for store in stores])),)),
    )
    if are_whole:
        body = tuple([_as_one(loop) for loop in body if isinstance(loop, Loop)])
    for axis in reversed([*(axis for axis in axes if axis not in (vector, along)), *reversed(outside)]):
        body = (Loop(axis, body),)
    return body, rooms


def _spare(node: Node) -> int:
    """Elements of a row of a tile more than there are: 4 bytes, as banks of shared memory have."""
    return max(1, 4 // node.dtype.itemsize)


def _as_one(loop: Loop) -> Loop:
    """Two loops of known extents, one in the other, as one."""
    (inner,) = loop.body
    assert isinstance(inner, Loop)
    axis = replace(inner.axis, extent=loop.axis.extent * inner.axis.extent)
    place = _places(axis_var(axis.name, axis.extent), (loop.axis, inner.axis))
    return Loop(axis, tuple([_moved(statement, place, substitute(place)) for statement in inner.body]))


# ---- threads ---------------------------------------------------------------------------------------------------------


def on_threads(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A kernel's body with axes bound to threads: those of the perfect nests of parallel loops at its top, as far as
    their extents are known there, and of vector loops without any around them."""
    return tuple([_bound(statement, frozenset()) for statement in body])


def _bound(statement: Stmt, outer: frozenset[str]) -> Stmt:
    if not isinstance(statement, Loop) or not outer.isdisjoint(statement.axis.extent.free_vars):
        return statement
    axis = statement.axis
    if axis.kind != "parallel" and (axis.kind != "vector" or outer):
        return statement
    inside = statement.body
    if axis.kind == "parallel" and len(inside) == 1:
        inside = (_bound(inside[0], outer | {axis.name}),)
    return Loop(replace(axis, bound="threads"), inside)


# ---- grid and team ---------------------------------------------------------------------------------------------------


def on_grid(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A kernel's body with axes bound as a GPU has them: those of the perfect nests of parallel loops at its top, with
    a vector loop that is all there is inside, to the grid; other vector loops to a team."""
    return tuple([_on_grid(statement, frozenset()) for statement in body])


def _on_grid(statement: Stmt, outer: frozenset[str]) -> Stmt:
    if not isinstance(statement, Loop):
        return statement
    axis = statement.axis
    if axis.kind not in ("parallel", "vector") or not outer.isdisjoint(axis.extent.free_vars):
        return _in_team(statement)
    inside = statement.body
    if axis.kind == "parallel" and len(inside) == 1:
        inside = (_on_grid(inside[0], outer | {axis.name}),)
    elif axis.kind == "parallel":
        inside = tuple([_in_team(inner) for inner in inside])
    return Loop(replace(axis, bound="grid"), inside)


def _in_team(statement: Stmt) -> Stmt:
    if not isinstance(statement, Loop):
        return statement
    if statement.axis.kind in VECTOR_KINDS:
        return Loop(replace(statement.axis, bound="team"), statement.body)
    return Loop(statement.axis, tuple([_in_team(inner) for inner in statement.body]))


# ---- any extent ------------------------------------------------------------------------------------------------------

ANY = "any"
RUN = 16


def of_any_extent(kernel: Kernel) -> tuple[Kernel, tuple[Expr, ...]]:
    """The kernel with a size, `ANY`, in place of the extent of its outermost axis on the grid, and the value of that
    size; or the kernel as it is, unless it is one nest of a known extent that reads and writes at places that move
    along with the axis. What differs in nothing but that extent becomes equal; of two extents both are multiples of
    `RUN`, or neither is, as the code depends on it."""
    (statement, *others) = kernel.body
    nest = [] if others else bound_nest(statement)
    if not nest or nest[0].axis.bound != "grid" or not all(loop.axis.extent.is_const for loop in nest):
        return kernel, ()
    axis, steps = nest[0].axis, _steps(kernel, nest[0].axis.name)
    extent, inside = axis.extent.value, volume(loop.axis.extent for loop in nest[1:]).value
    if not inside:
        return kernel, ()
    run = RUN if extent % RUN == 0 else 1
    most = (1 << 31) // (inside * run) - 1
    if steps is None or extent < 2 or extent // run > most:
        return kernel, ()
    size = Expr.var(ANY, 1, most)
    whole = size * run
    place = {axis.name: axis_var(axis.name, whole)}
    (body,) = [_moved(statement, place, substitute(place))]
    assert isinstance(body, Loop)
    params = tuple([replace(p, numel=p.numel + (whole - extent) * steps.get(p.name, 0)) for p in kernel.params])
    body = replace(body, axis=replace(axis, extent=whole))
    return replace(kernel, params=params, body=(body,), sizes=(*kernel.sizes, ANY)), (Expr.const(extent // run),)


def _steps(kernel: Kernel, axis: str) -> dict[str, int] | None:
    """How far the places in each buffer move along an axis; None where these depend on data, move backwards, or not all
    alike."""
    loads = loads_of(roots_in(kernel.body))
    stores = [statement for statement in statements(kernel.body) if isinstance(statement, Store)]
    if any(load.src for load in loads) or any(store.operands for store in stores):
        return None
    steps: dict[str, int] = {}
    for access in (*(load.arg for load in loads), *(store.access for store in stores)):
        step = access.index.coefficient(axis)
        if (
            step is None
            or not step.is_const
            or step.value < 0
            or steps.setdefault(access.buffer, step.value) != step.value
        ):
            return None
    return steps


# ---- rows side by side ----------------------------------------------------------------------------------------------


def jammed(body: tuple[Stmt, ...], name: str, count: int) -> tuple[Stmt, ...]:
    """The body with `count` iterations of the parallel axis `name`, whose extent is a number, side by side in one: what
    is the same in all of them is computed once. What is left of the axis is one more iteration."""
    loops: list[Stmt] = []
    for statement in body:
        if not isinstance(statement, Loop):
            loops.append(statement)
        elif statement.axis.name != name:
            loops.append(replace(statement, body=jammed(statement.body, name, count)))
        else:
            whole, rest = divmod(statement.axis.extent.value, count)
            parts = [(0, whole, count), (whole * count, 1, rest)]
            loops += [_side_by_side(statement, *part) for part in parts if part[1] * part[2]]
    return tuple(loops)


def _side_by_side(loop: Loop, start: int, times: int, count: int) -> Loop:
    """`times` iterations, each of which does `count` of those of `loop`, from `start` on."""
    axis = replace(loop.axis, extent=Expr.const(times))
    first = axis_var(axis.name, axis.extent) * count + start
    places = [{axis.name: first + row} for row in range(count)]
    rows = [(f"_{row}", place, _renaming(place, f"_{row}")) for row, place in enumerate(places)]

    def copies(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        done: list[Stmt] = []
        for statement in body:
            if isinstance(statement, Loop):
                done.append(replace(statement, body=copies(statement.body)))
            elif isinstance(statement, Init):
                done += [replace(statement, name=statement.name + suffix) for suffix, _, _ in rows]
            elif isinstance(statement, Update):
                done += [with_roots(statement, new, name=statement.name + suffix) for suffix, _, new in rows]
            else:
                done += [with_roots(statement, new, access=statement.access.subs(place)) for _, place, new in rows]
        return tuple(done)

    return Loop(axis, copies(loop.body))


def _renaming(place: Mapping[str, Expr], suffix: str) -> Callable[[Node], Node]:
    """A function that replaces index variables in nodes, and accumulators by those with a suffix."""

    def rule(node: Node, src: tuple[Node, ...]) -> Node:
        arg = node.arg + suffix if node.op == "acc" else substituted_arg(node, place)
        return Node.make(node.op, node.dtype, src, arg)

    return rewriter(rule)


# ---- loops split at bounds -----------------------------------------------------------------------------------------


def split_at(body: tuple[Stmt, ...], places: Mapping[str, Sequence[int]]) -> tuple[Stmt, ...]:
    """The body, loops over stores, with each axis of `places` split at those of its places where a condition on it
    alone changes: in each piece the condition is known, and its selections and masks go."""
    done: list[Stmt] = []
    for statement in body:
        if isinstance(statement, Loop):
            done += [replace(piece, body=split_at(piece.body, places)) for piece in _pieces(statement, places)]
        else:
            done.append(statement)
    return tuple(done)


def _pieces(loop: Loop, places: Mapping[str, Sequence[int]]) -> list[Loop]:
    axis = loop.axis
    wanted = places.get(axis.name)
    if wanted is None:
        return [loop]
    pieces = pieces_of(axis, nodes_below(roots_in(loop.body)), wanted)
    if len(pieces) == 1:
        return [loop]
    return [_piece(loop, start, length) for start, length in pieces]


def _piece(loop: Loop, start: int, length: int) -> Loop:
    place, new = piece_of(loop.axis, start, length)
    axis = replace(loop.axis, extent=Expr.const(length))
    return Loop(axis, tuple([_moved(statement, place, new) for statement in loop.body]))


def pieces_of(axis: Axis, nodes: Iterable[Node], wanted: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """(start, length) of the pieces of an axis, whose extent is a number, in which all conditions on it alone are
    known, and addresses follow it in one way; `wanted`: the only places where it may be split."""
    extent = axis.extent.value
    inside = {place for node in nodes for place in _edges(node, axis.name, extent) if 0 < place < extent}
    edges = [0, *sorted(inside if wanted is None else inside.intersection(wanted)), extent]
    return [(start, end - start) for start, end in pairwise(edges)]


def piece_of(axis: Axis, start: int, length: int) -> tuple[dict[str, Expr], Rewriter]:
    """What becomes of the axis in a piece of it, and a function that makes the nodes of the piece."""
    place = {axis.name: axis_var(axis.name, Expr.const(length)) + start}

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        arg = substituted_arg(node, place)
        new = node if arg is node.arg and src == node.src else Node.make(node.op, node.dtype, src, arg)
        return _simpler(new)

    return place, rewriter(rule)


def is_bound(node: Node) -> bool:
    """Whether a node compares an index with 0."""
    return node.op == "ge" and node.src[0].op == "index" and node.src[1].op == "const" and node.src[1].arg == 0


def has_edges(node: Node) -> bool:
    """Whether an axis may be worth a split for a node's sake: it compares an index with 0, or turns on its way."""
    return is_bound(node) or (node.op == "load" and any(atom.kind in _TURNING for atom in _atoms(node.arg.index)))


_TURNING = ("min", "max", "%")
_MOST_TURNS = 2  # of an address that begins anew


def _atoms(expr: Expr) -> list[Atom]:
    return [atom for mono, _ in expr.terms for atom in mono]


def _edges(node: Node, axis: str, extent: int) -> Iterator[int]:
    """The places on the axis from which on a comparison `index >= 0` has another value than before, or an address goes
    on in another way: borders that repeat or mirror what they surround, rows that are rolled."""
    if is_bound(node):
        yield from _thresholds(node.src[0].arg, axis)
    elif node.op == "load":
        for atom in _atoms(node.arg.index):
            if atom.kind == "%":
                whole, divisor = atom.args
                yield from _returns(whole, divisor, axis, extent)
            elif atom.kind in _TURNING:
                for one, other in combinations(_compared(atom), 2):
                    yield from _thresholds(one - other, axis)


def _compared(atom: Atom) -> list[Expr]:
    """Of which expressions the least or the greatest is taken, in turn."""
    found = []
    for arg in atom.args:
        inner = [each for each in _atoms(arg) if each.kind in ("min", "max")]
        found += _compared(inner[0]) if len(inner) == 1 and arg.offset == 0 and len(arg.terms) == 1 else [arg]
    return found


def _thresholds(expr: Expr, axis: str) -> list[int]:
    """The first place on the axis at which `expr >= 0` has another value than before, where it is of the axis alone."""
    step = expr.coefficient(axis)
    if expr.free_vars != {axis} or step is None or not step.is_const:
        return []
    return [-(expr.offset // step.value) if step.value > 0 else expr.offset // -step.value + 1]


def _returns(whole: Expr, divisor: Expr, axis: str, extent: int) -> list[int]:
    """Where on the axis a remainder begins anew, if that is seldom."""
    if not divisor.is_const or whole.coefficient(axis) != Expr.const(1) or whole.free_vars != {axis}:
        return []
    first, last = whole.offset // divisor.value, (whole.offset + extent - 1) // divisor.value
    turns = range(first + 1, last + 1) if last - first <= _MOST_TURNS else ()
    return [turn * divisor.value - whole.offset for turn in turns]


def _simpler(node: Node) -> Node:
    """The node, or what it is known to be where a condition below it is known."""
    src = node.src
    if node.op == "ge" and src[0].op == "index" and src[1].op == "const":
        known = src[0].arg.ge(int(src[1].arg))
        return _truth(known.value) if known.is_const else node
    if node.op in ("and", "or") and node.dtype is torch.bool:
        decides = node.op == "or"
        for mine, other in (src, src[::-1]):
            if mine.op == "const":
                return mine if mine.arg is decides else other
    if node.op == "where" and src[0].op == "const":
        return src[1] if src[0].arg else src[2]
    if node.op == "load" and node.arg.masked and src[-1].op == "const":
        if src[-1].arg:
            return Node.make("load", node.dtype, src[:-1], replace(node.arg, masked=False))
        zero = False if node.dtype is torch.bool else 0.0 if node.dtype.is_floating_point else 0
        return Node.make("const", node.dtype, (), zero)
    return node


def _truth(value: bool) -> Node:
    return Node.make("const", torch.bool, (), value)
