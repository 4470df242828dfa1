"""Loop IR to loop IR: nests in tiles, iterations side by side, loops split where a condition on their axis changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from bolide.inductor.ir.definitions import axis_var
from bolide.inductor.ir.loops import TILE, Axis, AxisKind, Init, Loop, Node, Stmt, Store, Update
from bolide.inductor.ir.walks import (
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

#: Vector iterations of a block of tiles: so many rows are read side by side.
BLOCK = 64
#: A row is updated in pieces of so many elements, of which there are at least a few for threads to share.
ROW_PIECES = (256, 128, 64, 32)
FEWEST_PIECES = 4
#: A loop is split into at most so many, of a vector axis only if one is so long; all have at most so many nodes.
MOST_PIECES = 4
LONGEST_AT_LEAST = 16
MOST_NODES = 250

# ---- tiles ---------------------------------------------------------------------------------------------------------


def tiled(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body in tiles, if it is a nest of pointwise stores that would read across memory; else as it is.

    ``parallel …, vector v: out[v + …] = f(x[p + S·v])`` becomes ``parallel v's blocks, parallel p's tiles, vector v in
    its block, tile p: …``."""
    axes, stores = _nest(body)
    along = _shared([_unit_axes(store.access.index, axes) for store in stores])
    loads = [node.arg.index for node in loads_of(roots_in(stores)) if not node.src] if along else []
    for vector in along:
        for axis in axes:
            if axis is not vector and any(crosses(index, axis.name, vector.name) for index in loads):
                return _in_tiles(axes, vector, axis, stores) if min(map(_extent, (vector, axis))) >= TILE else body
    return body


def _nest(body: Sequence[Stmt]) -> tuple[list[Axis], list[Store]]:
    """The axes and stores of a perfect nest of parallel loops with one vector loop innermost; none if it is another."""
    axes: list[Axis] = []
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].axis.kind in ("parallel", "vector"):
        axes.append(body[0].axis)
        body = body[0].body
    stores = [statement for statement in body if isinstance(statement, Store)]
    plain = len(stores) == len(body) and all(s.mode == "set" and not s.operands for s in stores)
    names = {axis.name for axis in axes}
    if not (plain and len(axes) > 1 and axes[-1].kind == "vector") or _rereads(stores):
        return [], []
    return ([], []) if any(not names.isdisjoint(axis.extent.free_vars) for axis in axes) else (axes, stores)


def _rereads(stores: Sequence[Store]) -> bool:
    stored = {store.access.buffer for store in stores}
    return any(node.arg.buffer in stored for node in loads_of(roots_in(stores)))


def _unit_axes(index: Expr, axes: Sequence[Axis]) -> list[Axis]:
    coefficients = [(axis, index.coefficient(axis.name)) for axis in axes]
    return [axis for axis, by in coefficients if by is not None and by.is_const and by.value == 1]


def _shared(sets: Sequence[list[Axis]]) -> list[Axis]:
    return [axis for axis in sets[0] if all(axis in other for other in sets)] if sets else []


def _extent(axis: Axis) -> int:
    """A number to compare extents by; symbolic ones count as large."""
    return axis.extent.value if axis.extent.is_const else 1 << 40


def _in_tiles(axes: Sequence[Axis], vector: Axis, tile: Axis, stores: Sequence[Store]) -> tuple[Stmt, ...]:
    others = [replace(axis, kind="parallel") for axis in axes if axis not in (vector, tile)]
    blocks, steps = f"{vector.name}b", f"{tile.name}b"
    block_axes = [_blocks(vector, blocks, BLOCK), _blocks(tile, steps, TILE)]
    inner = [_inside(vector, blocks, BLOCK, "vector"), _inside(tile, steps, TILE, "tile")]
    place = {
        vector.name: axis_var(blocks, block_axes[0].extent) * BLOCK + axis_var(vector.name, inner[0].extent),
        tile.name: axis_var(steps, block_axes[1].extent) * TILE + axis_var(tile.name, inner[1].extent),
    }
    new = substitute(place)
    body: tuple[Stmt, ...] = tuple([with_roots(store, new, access=store.access.subs(place)) for store in stores])
    for axis in reversed([*others, *block_axes, *inner]):
        body = (Loop(axis, body),)
    return body


def _blocks(axis: Axis, name: str, size: int) -> Axis:
    return Axis(name, axis.extent.ceildiv(size), "parallel")


def _inside(axis: Axis, block: str, size: int, kind: AxisKind) -> Axis:
    """The axis within a block: shorter in the last one, unless `size` divides it."""
    if axis.extent.is_const and axis.extent.value % size == 0:
        return Axis(axis.name, Expr.const(size), kind)
    left = axis.extent - axis_var(block, axis.extent.ceildiv(size)) * size
    return Axis(axis.name, Expr.min(left, size), kind)


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


# ---- scatters ------------------------------------------------------------------------------------------------------


def rows_outside(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """``vector v: serial s: stores`` (a scatter of rows) as ``parallel blocks of v: serial s: vector v in its block``:
    whole pieces of rows are updated, and the place of each is found once for all of them."""
    loop = body[0] if len(body) == 1 else None
    if not isinstance(loop, Loop):
        return body
    if loop.axis.kind == "parallel":
        return (replace(loop, body=rows_outside(loop.body)),)
    kinds, inside = [], loop.body
    while len(inside) == 1 and isinstance(only := inside[0], Loop):
        kinds.append(only.axis)
        inside = only.body
    size = next((size for size in ROW_PIECES if _extent(loop.axis) >= FEWEST_PIECES * size), None)
    stores = [statement for statement in inside if isinstance(statement, Store)]
    plain = loop.axis.kind == "vector" and all(axis.kind == "serial" for axis in kinds)
    if not (kinds and plain and size is not None and len(stores) == len(inside)):
        return body
    block = f"{loop.axis.name}b"
    outer, vector = _blocks(loop.axis, block, size), _inside(loop.axis, block, size, "vector")
    place = {loop.axis.name: axis_var(block, outer.extent) * size + axis_var(vector.name, vector.extent)}
    new = substitute(place)
    inside = tuple([with_roots(store, new, access=store.access.subs(place)) for store in stores])
    for axis in reversed([outer, *kinds, vector]):
        inside = (Loop(axis, inside),)
    return inside


# ---- loops split at bounds -----------------------------------------------------------------------------------------


def split_at_bounds(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body with loops over pointwise stores split where a condition on their axis alone changes (the parts of a
    concatenation, halves that are rotated): in each piece it is known, and its selections and masks go."""
    loops = [statement for statement in body if isinstance(statement, Loop) and _is_pointwise(statement)]
    if not any(node.op == "ge" and node.src[0].op == "index" for node in nodes_below(roots_in(loops))):
        return body
    done: list[Stmt] = []
    for statement in body:
        if isinstance(statement, Loop) and _is_pointwise(statement):
            done += [replace(piece, body=split_at_bounds(piece.body)) for piece in _pieces(statement)]
        else:
            done.append(statement)
    return tuple(done)


def _is_pointwise(loop: Loop) -> bool:
    """Whether only stores are inside."""
    return all(isinstance(s, (Loop, Store)) for s in statements(loop.body))


def _pieces(loop: Loop) -> list[Loop]:
    axis = loop.axis
    if not axis.extent.is_const:
        return [loop]
    nodes = list(nodes_below(roots_in(loop.body)))
    inside = {place for node in nodes if (place := _threshold(node, axis.name)) is not None}
    edges = [0, *sorted(place for place in inside if 0 < place < axis.extent.value), axis.extent.value]
    lengths = [end - start for start, end in pairwise(edges)]
    long = axis.kind != "vector" or max(lengths) >= LONGEST_AT_LEAST
    if len(lengths) == 1 or len(lengths) > MOST_PIECES or not long or len(lengths) * len(nodes) > MOST_NODES:
        return [loop]
    return [_piece(loop, start, length) for start, length in zip(edges, lengths)]


def _threshold(node: Node, axis: str) -> int | None:
    """The first place on the axis at which a comparison `index >= 0` has another value than before."""
    if node.op != "ge" or node.src[0].op != "index" or node.src[1].op != "const" or node.src[1].arg != 0:
        return None
    expr: Expr = node.src[0].arg
    step = expr.coefficient(axis)
    if expr.free_vars != {axis} or step is None or not step.is_const:
        return None
    return -(expr.offset // step.value) if step.value > 0 else expr.offset // -step.value + 1


def _piece(loop: Loop, start: int, length: int) -> Loop:
    axis = replace(loop.axis, extent=Expr.const(length))
    place = {axis.name: axis_var(axis.name, axis.extent) + start}

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        arg = substituted_arg(node, place)
        new = node if arg is node.arg and src == node.src else Node.make(node.op, node.dtype, src, arg)
        return _simpler(new)

    new = rewriter(rule)

    def moved(statement: Stmt) -> Stmt:
        if isinstance(statement, Loop):
            extent = statement.axis.extent.subs(place)
            return Loop(replace(statement.axis, extent=extent), tuple(map(moved, statement.body)))
        assert isinstance(statement, Store)
        return with_roots(statement, new, access=statement.access.subs(place))

    return Loop(axis, tuple(map(moved, loop.body)))


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
