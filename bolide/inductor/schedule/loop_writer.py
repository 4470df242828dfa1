"""From a group of stages to one loop IR kernel.

A group becomes nested loops over its outer axes; inside, *passes* over its inner axes. The level of a value is the
number of reductions that must be complete before it can be computed; pass k computes what has level k: reductions are
updated and full-space values stored in the loop over the inner axes, row values behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from bolide.inductor.ir.definitions import Element, axis_var, ravel, volume
from bolide.inductor.ir.loops import (
    Access,
    Axis,
    Bound,
    Init,
    Kernel,
    Local,
    Loop,
    Node,
    Param,
    Stmt,
    Store,
    StoreMode,
    Update,
)
from bolide.inductor.ir.rewrites import in_blocks, in_parts, in_shared_tiles, jammed, on_grid, on_threads, split_at
from bolide.inductor.ir.scalar_ops import DRAWS
from bolide.inductor.ir.walks import loads_of, rewriter, roots_of, substitute, with_roots
from bolide.inductor.machine import Machine
from bolide.inductor.schedule.inline import cast, select
from bolide.inductor.schedule.nest import Schedule, choose_schedule, cut, in_teams, in_warps, one_after_another
from bolide.inductor.schedule.scratch import Pass, save_across_passes
from bolide.inductor.schedule.stages import Buffer, Group, Parts, Stage
from bolide.symbolic import Expr


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage whose loads have addresses in place of coordinates, and the address that it is stored at (None: it stays
    inside the kernel)."""

    stage: Stage
    target: Expr | None


def schedule_of(
    group: Group, pieces: list[Piece], machine: Machine, sizes: Mapping[str, int]
) -> tuple[Schedule, list[Piece]]:
    """The schedule that is chosen for a group, and the pieces over the schedule's axes. `sizes`: as they were while the
    program was traced."""
    nodes = _nodes(pieces)
    targets = frozenset(piece.target for piece in pieces if piece.target is not None)
    schedule = choose_schedule(group, _addresses(pieces, nodes), targets, _indices(nodes), machine)
    pieces = _renamed(pieces, dict(schedule.rename))
    if machine.device == "cuda":
        picks = any(piece.stage.position is not None for piece in pieces)
        scans = any(piece.stage.scan for piece in pieces)
        sorts = any(piece.stage.reduce_op == "sort" for piece in pieces)
        schedule = in_warps(schedule) if sorts else in_teams(schedule, machine, picks, sizes, scans)
    if schedule.inner:
        return schedule, pieces
    schedule = cut(schedule, _stores_of(pieces), machine)
    if machine.device != "cuda" or schedule.blocks:
        return schedule, pieces
    schedule, step = one_after_another(schedule, _stores_of(pieces))
    return schedule, _renamed(pieces, step)


def _stores_of(pieces: list[Piece]) -> list[Store]:
    return [_store(piece.stage, piece.target) for piece in pieces if piece.target is not None]


def _renamed(pieces: list[Piece], axes: Mapping[str, Expr]) -> list[Piece]:
    """The pieces over other axes."""
    if not axes:
        return pieces
    new = substitute(axes)
    return [
        Piece(with_roots(piece.stage, new), None if piece.target is None else piece.target.subs(axes))
        for piece in pieces
    ]


def kernel_of(
    group: Group, pieces: list[Piece], schedule: Schedule, buffers: dict[str, Buffer], machine: Machine, name: str
) -> Kernel:
    """The kernel of a group of these pieces, which are over the schedule's axes, as the schedule says."""
    nodes = _nodes(pieces)
    inside, scratch = _passes(pieces, len(group.space), schedule, machine)
    if schedule.parts is not None:
        body, columns = _in_row_parts(pieces, schedule, schedule.parts, inside)
        scratch = [*scratch, *columns]
    elif schedule.blocks and schedule.team > 1:
        are_whole = schedule.team > machine.lanes
        body, scratch = in_shared_tiles(schedule.outer, schedule.blocks, inside, are_whole)
    else:
        body = _outer_loops(schedule, inside)
    if schedule.splits:
        body = split_at(body, dict(schedule.splits))
    if schedule.jam is not None:
        body = jammed(body, *schedule.jam)
    params = _params(pieces, nodes, buffers)
    devices = {buffers[param.name].device for param in params}
    assert len(devices) == 1, f"{name} works on several devices: {devices}"
    (device,) = devices
    body = (*_cleared(pieces), *(on_threads(body) if device.type == "cpu" else on_grid(body)))
    space = schedule.space
    if schedule.parts is not None:
        space = (*space, (schedule.parts.axis, schedule.parts.count))
    indexed = [*_addresses(pieces, nodes), *_indices(nodes), *(extent for _, extent in space)]
    names = {name for expr in (*indexed, *(param.numel for param in params)) for name in expr.free_vars}
    sizes = sorted(name for name in names.difference(dict(space)) if not name.startswith("$"))
    return Kernel(name, params, body, tuple(sizes), tuple(scratch), (), device, schedule.grain, schedule.team)


def pieces_of(group: Group, stored: set[str], buffers: dict[str, Buffer]) -> list[Piece]:
    """The stages of a group, with values of earlier stages in place of the loads that read them, and addresses in place
    of coordinates; of the buffers that the group defines only those in `stored` get memory."""
    inside: dict[str, Node] = {}

    def resolve(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op != "load":
            return None
        element: Element = node.arg
        value = inside.get(element.buffer)
        if value is not None:
            return select(src[-1], value) if element.masked else value
        address = buffers[element.buffer].layout.address(element.coords)
        return Node.make("load", node.dtype, src, Access(element.buffer, address, element.masked))

    new = rewriter(resolve)
    pieces = []
    for stage in group.stages:
        stage = with_roots(stage, new)
        target = buffers[stage.name].layout.address(stage.coords) if stage.name in stored else None
        pieces.append(Piece(stage, target))
        if stage.mode == "define":
            inside[stage.name] = _result(stage)
    return pieces


def _result(stage: Stage) -> Node:
    """What a reader inside the kernel sees: the accumulator of a reduction, rounded to the buffer's dtype."""
    value = stage.value
    if stage.reduce_op is not None:
        dtype = stage.dtype if stage.position is not None else value.dtype
        value = Node.make("acc", dtype, (), stage.name)
    return cast(value, stage.dtype)


def _nodes(pieces: Iterable[Piece]) -> Iterable[Node]:
    """All nodes, once each: the last piece's first, from its value down."""
    seen: dict[Node, None] = {}
    stack = [root for piece in pieces for root in roots_of(piece.stage)]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            stack.extend(node.src)
    return seen


def _addresses(pieces: list[Piece], nodes: Iterable[Node]) -> list[Expr]:
    """The addresses of stores and loads."""
    targets = [piece.target for piece in pieces if piece.target is not None]
    return list(dict.fromkeys([*targets, *(node.arg.index for node in nodes if node.op == "load")]))


def _indices(nodes: Iterable[Node]) -> list[Expr]:
    """The index expressions that are values."""
    own = [node.arg[1] if node.op in DRAWS else node.arg if node.op == "index" else None for node in nodes]
    return list(dict.fromkeys([expr for expr in own if expr is not None]))


# ---- statements ----------------------------------------------------------------------------------------------------


def _passes(
    pieces: list[Piece], full_rank: int, schedule: Schedule, machine: Machine
) -> tuple[tuple[Stmt, ...], list[Local]]:
    """The statements inside the outer loops, and the scratch memory that they use."""
    level_of = _leveller({piece.stage.name: piece.stage for piece in pieces})
    body: list[Stmt] = []
    passes: dict[int, Pass] = {}

    def run(level: int) -> Pass:
        return passes.setdefault(level, Pass([], [], []))

    for piece in pieces:
        stage, level = piece.stage, level_of(piece.stage.value)
        store = [] if piece.target is None else [_store(stage, piece.target)]
        if schedule.parts is not None and stage.parts is not None:
            run(level).inside.append(_added_to_column(stage, schedule))
        elif stage.reduce_op is not None:
            run(level).inits.append(Init(stage.name, stage.reduce_op, stage.value.dtype))
            run(level).inside.append(Update(stage.name, stage.value, stage.position))
            (run(level).inside if stage.scan else run(level).behind).extend(store)
        elif store:
            if machine.device == "cuda" and _is_flag_of_row(stage, piece.target, schedule):
                run(level).inits.append(Init(stage.name, "any", torch.bool))
                run(level).inside.append(Update(stage.name, stage.value))
                flag = Node.make("acc", torch.bool, (), stage.name)
                run(level).behind.append(replace(store[0], value=flag))
            elif schedule.inner and len(stage.axes) == full_rank:
                run(level).inside += store
            elif level == 0:
                body += store
            else:
                run(level - 1).behind += store
    ordered = [passes[level] for level in sorted(passes)]
    scratch = save_across_passes(ordered, schedule, machine) if len(ordered) > 1 else []
    scans = any(piece.stage.scan for piece in pieces)
    if machine.device == "cuda" and len(schedule.inner) > 1 and not scans and not _reads_its_own(ordered):
        for current in ordered[1::2]:
            current.inside[:] = _backwards(current.inside, schedule)
    for current in ordered:
        body += current.inits
        if current.inside:
            axes = schedule.inner if current.inits else [_storing(axis) for axis in schedule.inner]
            if scans:  # of one scan, and what is made of it
                bound: Bound | None = "team" if schedule.team > 1 else None
                axes = [replace(axis, kind="scan", bound=bound) for axis in schedule.inner]
            body += _loops(axes, tuple(current.inside))
        body += current.behind
    return tuple(body), scratch


def _reads_its_own(passes: Iterable[Pass]) -> bool:
    """Whether a pass reads what one of them stores: a thread reads there what it has stored itself, in its order."""
    inside = [statement for each in passes for statement in each.inside if isinstance(statement, (Store, Update))]
    stored = {statement.access.buffer for statement in inside if isinstance(statement, Store)}
    return any(load.arg.buffer in stored for statement in inside for load in loads_of(roots_of(statement)))


def _backwards(inside: Sequence[Stmt], schedule: Schedule) -> list[Stmt]:
    """A pass over a row that goes through it from its end: caches hold what the pass before it has read last."""
    axis = next(axis for axis in schedule.inner if axis.name != schedule.vector)
    place = {axis.name: axis.extent - 1 - axis_var(axis.name, axis.extent)}
    new = substitute(place)
    turned: list[Stmt] = []
    for statement in inside:
        assert isinstance(statement, (Store, Update))
        if isinstance(statement, Store):
            access = replace(statement.access, index=statement.access.index.subs(place))
            statement = replace(statement, access=access)
        turned.append(with_roots(statement, new))
    return turned


def _column(stage: Stage, schedule: Schedule) -> Access:
    """The scratch memory with a part's sum of a column."""
    coords = [axis_var(axis.name, axis.extent) for axis in schedule.inner]
    return Access(f"{stage.name}_sums", ravel(coords, [axis.extent for axis in schedule.inner]))


def _added_to_column(stage: Stage, schedule: Schedule) -> Store:
    return Store(_column(stage, schedule), stage.value, mode="add")


def _in_row_parts(
    pieces: list[Piece], schedule: Schedule, parts: Parts, inside: tuple[Stmt, ...]
) -> tuple[tuple[Stmt, ...], list[Local]]:
    """What is done for each row, in loops over the parts of rows and the rows of each; and scratch memory for sums of
    columns, with zeros before the rows of a part, and stored behind them."""
    summed = [piece for piece in pieces if piece.stage.parts is not None and piece.target is not None]
    places = [_column(piece.stage, schedule) for piece in summed]
    dtypes = [piece.stage.value.dtype for piece in summed]
    zeros = [Store(place, Node.make("const", dtype, (), 0.0)) for place, dtype in zip(places, dtypes)]
    sums = [Node.make("load", dtype, (), place) for place, dtype in zip(places, dtypes)]
    results = [_given(piece, value) for piece, value in zip(summed, sums)]
    storing = [_storing(axis) for axis in schedule.inner]
    rows = in_parts(schedule.outer, parts.axis, parts.count, parts.size, inside)
    number = Axis(parts.axis, parts.count, "parallel")
    body = Loop(number, (*_loops(storing, tuple(zeros)), *rows, *_loops(storing, tuple(results))))
    room = volume(axis.extent for axis in schedule.inner)
    return (body,), [Local(place.buffer, dtype, room) for place, dtype in zip(places, dtypes)]


def _given(piece: Piece, value: Node) -> Store:
    assert piece.target is not None
    return Store(Access(piece.stage.name, piece.target), cast(value, piece.stage.dtype))


def _is_flag_of_row(stage: Stage, target: Expr | None, schedule: Schedule) -> bool:
    """Whether a stage sets one flag for all of a row: a store in the row's loop would hold up the loads behind it."""
    if stage.mode != "any" or stage.operands or target is None or not schedule.inner:
        return False
    return target.free_vars.isdisjoint(axis.name for axis in schedule.inner)


def _leveller(by_name: dict[str, Stage]) -> Callable[[Node], int]:
    memo: dict[Node, int] = {}

    def level(node: Node) -> int:
        if node not in memo:
            is_accumulator = node.op == "acc"
            below = [by_name[node.arg].value] if is_accumulator else node.src
            behind = is_accumulator and by_name[node.arg].scan is None  # what is scanned is read in the same loop
            memo[node] = max(map(level, below), default=0) + behind
        return memo[node]

    return level


def _store(stage: Stage, target: Expr) -> Store:
    mode: StoreMode = "set" if stage.mode == "define" else stage.mode
    return Store(Access(stage.name, target), _result(stage), stage.operands, mode)


def _cleared(pieces: list[Piece]) -> list[Store]:
    """What comes before all loops: flags are off."""
    off = Node.make("const", torch.bool, (), False)
    marks = [piece for piece in pieces if piece.stage.mode == "any"]
    return [Store(Access(piece.stage.name, piece.target), off) for piece in marks if piece.target is not None]


def _storing(axis: Axis) -> Axis:
    """The axis of a reduction in a pass that only stores."""
    return replace(axis, kind="vector" if axis.kind == "reduce_vector" else "serial")


def _outer_loops(schedule: Schedule, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    if not schedule.outer and any(isinstance(statement, Init) for statement in body):
        # accumulators live inside a top-level loop
        return _loops((Axis("once", Expr.const(1), "parallel"),), body)
    if schedule.blocks:
        return in_blocks(schedule.outer, dict(schedule.blocks), body)
    return _loops(schedule.outer, body)


def _loops(axes: Sequence[Axis], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`body` in loops over these axes."""
    for axis in reversed(axes):
        body = (Loop(axis, body),)
    return body


# ---- parameters ----------------------------------------------------------------------------------------------------


def _params(pieces: list[Piece], nodes: Iterable[Node], buffers: dict[str, Buffer]) -> tuple[Param, ...]:
    read = dict.fromkeys(node.arg.buffer for node in nodes if node.op == "load")
    written: dict[str, bool] = {}
    for piece in pieces:
        if piece.target is not None:
            written[piece.stage.name] = written.get(piece.stage.name, False) or piece.stage.updates
    params = []
    for name in dict.fromkeys([*written, *reversed(read)]):
        role: Literal["in", "out", "inout"] = "in"
        if name in written:
            role = "inout" if name in read or written[name] else "out"
        params.append(Param(name, buffers[name].dtype, role, buffers[name].span))
    return tuple(params)
