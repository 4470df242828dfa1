"""What scheduling works on: definitions in loop form, their groups, and the rewriting of scalar nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from bolide.inductor.ir.definitions import Computed, Element, Extern, Layout, Scatter, WriteBack
from bolide.inductor.ir.loops import Node, ReduceOp
from bolide.support.caches import on_reset
from bolide.symbolic import Expr

Space = tuple[tuple[str, Expr], ...]  # (axis name, extent), outermost first


@dataclass(frozen=True, slots=True)
class Stage:
    """``name[coords] = value`` for every point of `axes`; with `reduce_op`, the reduction of `value` over
    `reduce_axes`.

    A plain definition has one axis per dimension and `coords` are those axes; fusion renames and splits axes, so that
    `coords` become expressions of them.
    `mode` ``add``, or ``operands``, come from a Scatter: `coords` may then use ``$0, $1 …``, and the stage updates a
    buffer which already has contents.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    axes: Space
    coords: tuple[Expr, ...]
    value: Node
    reduce_op: ReduceOp | None = None
    reduce_axes: Space = ()
    position: Node | None = None
    operands: tuple[Node, ...] = ()
    mode: Literal["define", "set", "add"] = "define"
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Stages that become one kernel, in a valid order. All of them run over `outer`; inside, `inner` is the space of
    their reductions and of the stages over the
    full space. Every stage's axes are exactly `outer`, or `outer` and `inner`."""

    stages: tuple[Stage, ...]
    outer: Space
    inner: Space = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two things were not fused (or one not inlined): kept for explain."""

    first: str
    second: str
    reason: str


Unit = Group | Extern | WriteBack


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that kernels and library calls share. `layout.offset` counts from the address that kernels are given (an
    input's data pointer)."""

    dtype: torch.dtype
    shape: tuple[Expr, ...]
    layout: Layout

    @property
    def span(self) -> Expr:
        """How many elements lie between the first and the last one, both included."""
        if any(extent.is_const and extent.value == 0 for extent in self.shape):
            return Expr.const(0)
        last = Expr.const(1)
        for extent, stride in zip(self.shape, self.layout.stride):
            last = last + (extent - 1) * stride
        return last + self.layout.offset


@dataclass(slots=True)
class Context:
    """What the passes may look at and add to."""

    kind: str
    results: list[Any]
    buffers: dict[str, Buffer] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)


def axis_var(name: str, extent: Expr) -> Expr:
    """The index variable of an axis, with its bounds."""
    return Expr.var(name, 0, extent - 1)


def is_one(extent: Expr) -> bool:
    return extent.is_const and extent.value == 1


def product(extents: Iterable[Expr]) -> Expr:
    total = Expr.const(1)
    for extent in extents:
        total = total * extent
    return total


# ---- scalar nodes --------------------------------------------------------------------------------------------------


def nodes_below(roots: Iterable[Node]) -> list[Node]:
    """Every node the roots are made of, operands first, each once."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in seen:
            stack.pop()
            continue
        waiting = [src for src in node.src if src not in seen]
        if waiting:
            stack += waiting
        else:
            seen.add(node)
            order.append(node)
            stack.pop()
    return order


@functools.lru_cache(maxsize=1 << 14)
def _loads_below(root: Node) -> tuple[Node, ...]:
    return tuple([node for node in nodes_below((root,)) if node.op == "load"])


on_reset(_loads_below.cache_clear)


def loads_of(roots: Iterable[Node]) -> list[Node]:
    """The distinct load nodes below the roots."""
    return list(dict.fromkeys([node for root in roots for node in _loads_below(root)]))


def stage_roots(stage: Stage) -> tuple[Node, ...]:
    position = () if stage.position is None else (stage.position,)
    return (stage.value, *position, *stage.operands)


def reads_of(stage: Stage) -> set[str]:
    """The buffers a stage reads (not the one it updates)."""
    return {node.arg.buffer for node in loads_of(stage_roots(stage))}


def rewrite(root: Node, replace: Callable[[Node, tuple[Node, ...]], Node | None], memo: dict[Node, Node]) -> Node:
    """`root` rebuilt bottom-up: `replace(node, new operands)` gives the new node, or None to keep the node with its
    new operands."""
    done = memo.get(root)
    if done is not None:
        return done
    for node in nodes_below((root,)):
        if node in memo:
            continue
        src = tuple([memo[s] for s in node.src])
        new = replace(node, src)
        if new is None:
            new = node if src == node.src else Node.make(node.op, node.dtype, src, node.arg)
        memo[node] = new
    return memo[root]


def substitution(axes: Mapping[str, Expr]) -> Callable[[Node, tuple[Node, ...]], Node | None]:
    """A `rewrite` rule that replaces index variables by expressions."""

    def replace(node: Node, src: tuple[Node, ...]) -> Node | None:
        arg = substitute_arg(node, axes)
        return None if arg is node.arg else Node.make(node.op, node.dtype, src, arg)

    return replace


def substitute_arg(node: Node, axes: Mapping[str, Expr]) -> Any:
    """The `arg` of a node with index variables replaced (the same object when there is nothing to replace)."""
    if node.op == "load":
        element: Element = node.arg
        return Element(element.buffer, tuple([c.subs(axes) for c in element.coords]), element.masked)
    if node.op == "index":
        return node.arg.subs(axes)
    if node.op in ("philox", "philox_normal"):
        return (node.arg[0], node.arg[1].subs(axes))
    return node.arg


def stage_of(definition: Computed) -> Stage:
    """The loop form of a definition. Axes of extent 1 are left out; a reduction over one element is no reduction."""
    space = tuple([(name, extent) for name, extent in zip(definition.axes, definition.shape) if not is_one(extent)])
    coords = tuple([axis_var(name, extent) for name, extent in zip(definition.axes, definition.shape)])
    reduced = tuple([axis for axis in definition.reduce_axes if not is_one(axis[1])])
    value, op, position = definition.value, definition.reduce_op, definition.position
    if op is not None and not reduced:
        value, op, position = value if position is None else position, None, None
    return Stage(
        definition.name,
        definition.dtype,
        definition.shape,
        space,
        coords,
        value,
        op,
        reduced,
        position,
        origins=_origins(definition),
    )


def scatter_stage(definition: Scatter) -> Stage:
    """The updating part of a Scatter; the copy of its base is a stage of its own."""
    return Stage(
        definition.name,
        definition.dtype,
        definition.shape,
        tuple([axis for axis in zip(definition.axes, definition.extents) if not is_one(axis[1])]),
        definition.coords,
        definition.value,
        operands=definition.operands,
        mode=definition.mode,
        origins=_origins(definition),
    )


def _origins(definition: Computed | Scatter) -> tuple[str, ...]:
    own = () if definition.origin is None else (definition.origin.name,)
    return (*(node.name for node in definition.absorbed), *own)
