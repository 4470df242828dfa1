"""From a group of stages to one loop IR kernel.

A group is emitted as nested loops over its outer axes; inside, *passes* over its inner axes. The level of a value is
the number of reductions that must be complete before
it can be computed; pass k computes what has level k: reductions are updated and full-space values stored in the loop
over the inner axes, row values behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bolide.inductor.ir.definitions import Element
from bolide.inductor.ir.loops import Access, Axis, AxisKind, Init, Kernel, Local, Loop, Node, Param, Stmt, Store, Update
from bolide.inductor.schedule.inline import select
from bolide.inductor.schedule.nest import Nest, choose_nest
from bolide.inductor.schedule.scratch import Pass, save_across_passes
from bolide.inductor.schedule.stages import Context, Group, Stage, rewrite, substitution
from bolide.symbolic import Expr


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage with addresses in place of coordinates. `target` is None for a value that stays inside the kernel."""

    stage: Stage
    value: Node
    position: Node | None
    operands: tuple[Node, ...]
    target: Expr | None


def emit(group: Group, stored: frozenset[str], ctx: Context, name: str) -> Kernel:
    """The kernel of `group`; of the buffers it defines only those in `stored` get memory."""
    pieces = _resolve(group, stored, ctx)
    nest = choose_nest(group, _accesses(pieces))
    pieces = _renamed(pieces, nest)
    inside, scratch = _passes(pieces, nest)
    body = _outer_loops(nest, inside)
    params = _params(pieces, ctx)
    sizes = sorted(_size_names(pieces, nest).union(*(param.numel.free_vars for param in params)))
    origins = tuple(dict.fromkeys(origin for stage in group.stages for origin in stage.origins))
    return Kernel(name, params, body, tuple(sizes), tuple(scratch), origins)


def address(buffer: str, coords: Sequence[Expr], ctx: Context) -> Expr:
    """The distance in elements of an element from the buffer's start."""
    layout = ctx.buffers[buffer].layout
    total = layout.offset
    for coord, stride in zip(coords, layout.stride):
        total = total + coord * stride
    return total


def _resolve(group: Group, stored: frozenset[str], ctx: Context) -> list[Piece]:
    """Values of earlier stages in place of the loads that read them; addresses in place of coordinates."""
    inside: dict[str, Node] = {}
    memo: dict[Node, Node] = {}

    def resolve(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op != "load":
            return None
        element: Element = node.arg
        value = inside.get(element.buffer)
        if value is not None:
            return select(src[-1], value) if element.masked else value
        return Node.make(
            "load",
            node.dtype,
            src,
            Access(element.buffer, address(element.buffer, element.coords, ctx), element.masked),
        )

    pieces = []
    for stage in group.stages:
        value = rewrite(stage.value, resolve, memo)
        position = None if stage.position is None else rewrite(stage.position, resolve, memo)
        operands = tuple([rewrite(operand, resolve, memo) for operand in stage.operands])
        target = address(stage.name, stage.coords, ctx) if stage.name in stored else None
        pieces.append(Piece(stage, value, position, operands, target))
        if stage.mode == "define":
            inside[stage.name] = _result(stage, value)
    return pieces


def _result(stage: Stage, value: Node) -> Node:
    """What a reader inside the kernel sees: the accumulator of a reduction, rounded to the buffer's dtype."""
    if stage.reduce_op is not None:
        dtype = stage.dtype if stage.position is not None else value.dtype
        value = Node.make("acc", dtype, (), stage.name)
    return value if value.dtype == stage.dtype else Node.make("cast", stage.dtype, (value,))


def _accesses(pieces: Iterable[Piece]) -> list[tuple[Expr, bool]]:
    """Every address and index expression of the pieces, and whether it is the address of an access."""
    found: dict[tuple[Expr, bool], None] = {}
    seen: set[Node] = set()
    stack: list[Node] = []
    for piece in pieces:
        if piece.target is not None:
            found[piece.target, True] = None
        stack += _roots(piece)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(node.src)
        if node.op == "load":
            found[node.arg.index, True] = None
        elif node.op == "index":
            found[node.arg, False] = None
        elif node.op in ("philox", "philox_normal"):
            found[node.arg[1], False] = None
    return list(found)


def _roots(piece: Piece) -> list[Node]:
    return [piece.value, *(() if piece.position is None else (piece.position,)), *piece.operands]


def _renamed(pieces: list[Piece], nest: Nest) -> list[Piece]:
    """The pieces over the axes of the nest."""
    if not nest.rename:
        return pieces
    memo: dict[Node, Node] = {}
    axes = nest.rename
    plain = substitution(axes)

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op != "load":
            return plain(node, src)
        access: Access = node.arg
        index = access.index.subs(axes)
        return (
            None
            if index is access.index
            else Node.make("load", node.dtype, src, Access(access.buffer, index, access.masked))
        )

    def again(node: Node) -> Node:
        return rewrite(node, rule, memo)

    return [
        replace(
            piece,
            value=again(piece.value),
            position=None if piece.position is None else again(piece.position),
            operands=tuple([again(operand) for operand in piece.operands]),
            target=None if piece.target is None else piece.target.subs(axes),
        )
        for piece in pieces
    ]


# ---- statements ----------------------------------------------------------------------------------------------------


def _passes(pieces: list[Piece], nest: Nest) -> tuple[tuple[Stmt, ...], list[Local]]:
    """The statements inside the outer loops, and the scratch memory that they use."""
    level_of = _leveller({piece.stage.name: piece for piece in pieces})
    before: list[Stmt] = []
    passes: dict[int, Pass] = {}

    def run(level: int) -> Pass:
        return passes.setdefault(level, Pass([], [], []))

    for piece in pieces:
        stage, level = piece.stage, level_of(piece.value)
        if stage.reduce_op is not None:
            run(level).inits.append(Init(stage.name, stage.reduce_op, piece.value.dtype))
            run(level).inside.append(Update(stage.name, piece.value, piece.position))
            if piece.target is not None:
                run(level).behind.append(_store(piece, _result(stage, piece.value)))
        elif piece.target is not None:
            store = _store(piece, _result(stage, piece.value))
            if nest.inner and _is_full(stage, nest):
                run(level).inside.append(store)
            elif level == 0:
                before.append(store)
            else:
                run(level - 1).behind.append(store)
    ordered = [passes[level] for level in sorted(passes)]
    scratch = save_across_passes(ordered, nest.inner, nest.vector) if len(ordered) > 1 else []
    body: list[Stmt] = list(before)
    for current in ordered:
        body += current.inits
        if current.inside:
            body += _inner_loops(nest, current.inside, reducing=bool(current.inits))
        body += current.behind
    return tuple(body), scratch


def _is_full(stage: Stage, nest: Nest) -> bool:
    return len(stage.axes) == nest.full_rank


def _leveller(by_name: dict[str, Piece]) -> Callable[[Node], int]:
    memo: dict[Node, int] = {}

    def level(node: Node) -> int:
        known = memo.get(node)
        if known is None:
            known = max([level(src) for src in node.src], default=0)
            if node.op == "acc":
                known = level(by_name[node.arg].value) + 1
            memo[node] = known
        return known

    return level


def _store(piece: Piece, value: Node) -> Store:
    assert piece.target is not None
    mode: Literal["set", "add"] = "add" if piece.stage.mode == "add" else "set"
    return Store(Access(piece.stage.name, piece.target), value, piece.operands, mode)


def _inner_loops(nest: Nest, body: list[Stmt], reducing: bool) -> list[Stmt]:
    """`body` in the loops over the inner axes."""
    statements: tuple[Stmt, ...] = tuple(body)
    for position, (name, extent) in enumerate(reversed(nest.inner)):
        vector = position == 0 and nest.vector == name
        kind: AxisKind = ("reduce_vector" if vector else "reduce") if reducing else ("vector" if vector else "serial")
        statements = (Loop(Axis(name, extent, kind), statements),)
    return list(statements)


def _outer_loops(nest: Nest, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for name, extent in reversed(nest.outer):
        kind: AxisKind = "vector" if name == nest.vector else "serial" if name in nest.serial else "parallel"
        body = (Loop(Axis(name, extent, kind), body),)
    if not nest.outer and any(isinstance(statement, Init) for statement in body):
        body = (Loop(Axis("once", Expr.const(1), "parallel"), body),)  # accumulators live inside a top-level loop
    return body


# ---- parameters ----------------------------------------------------------------------------------------------------


def _params(pieces: list[Piece], ctx: Context) -> tuple[Param, ...]:
    read: dict[str, None] = {}
    written: dict[str, bool] = {}
    seen: set[Node] = set()
    stack: list[Node] = []
    for piece in pieces:
        stack += _roots(piece)
        if piece.target is not None:
            written[piece.stage.name] = written.get(piece.stage.name, False) or piece.stage.mode != "define"
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.src)
            if node.op == "load":
                read[node.arg.buffer] = None
    params = []
    for name in dict.fromkeys([*written, *reversed(read)]):
        buffer = ctx.buffers[name]
        role = "in" if name not in written else "inout" if name in read or written[name] else "out"
        params.append(Param(name, buffer.dtype, role, buffer.span))  # type: ignore[arg-type]
    return tuple(params)


def _size_names(pieces: list[Piece], nest: Nest) -> set[str]:
    axes = {name for name, _ in (*nest.outer, *nest.inner)}
    found: set[str] = set()
    for _, extent in (*nest.outer, *nest.inner):
        found |= extent.free_vars
    for expr, _ in _accesses(pieces):
        found |= expr.free_vars
    return {name for name in found if name not in axes and not name.startswith("$")}
