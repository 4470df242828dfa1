"""Walks over nodes, statements and definitions, and their rewriting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from bolide.inductor.ir.definitions import Definition, Extern, Program, Scatter, View, WriteBack
from bolide.inductor.ir.loops import Loop, Node, Stmt, Store, Update
from bolide.inductor.ir.scalar_ops import DRAWS
from bolide.support.caches import on_reset
from bolide.symbolic import Expr
from bolide.tracing import fallible
from bolide.tracing.graph import mapped
from bolide.tracing.traits import traits_of

Rule = Callable[[Node, tuple[Node, ...]], Node | None]
"""From a node and its new operands to the new node; None: the node with these operands."""


#: Elements so far apart are not taken out of the same whole vectors.
FAR = 5


class HoldsNodes(Protocol):
    """A statement, definition or stage with scalar nodes: `position` and `operands` where it has them."""

    @property
    def value(self) -> Node: ...

    @property
    def position(self) -> Node | None: ...

    @property
    def operands(self) -> tuple[Node, ...]: ...


H = TypeVar("H", bound=HoldsNodes)


def roots_of(holder: HoldsNodes) -> tuple[Node, ...]:
    """The nodes that it uses itself."""
    position = () if holder.position is None else (holder.position,)
    return (holder.value, *position, *holder.operands)


def with_roots(holder: H, new: Callable[[Node], Node], **changes: Any) -> H:
    """It with `new(node)` for each of its nodes, and other `changes`."""
    changes["value"] = new(holder.value)
    if holder.position is not None:
        changes["position"] = new(holder.position)
    if holder.operands:
        changes["operands"] = tuple([new(operand) for operand in holder.operands])
    return replace(holder, **changes)  # type: ignore[type-var]


# ---- nodes ----------------------------------------------------------------------------------------------------------


def nodes_below(roots: Iterable[Node], known: Callable[[Node], bool] | None = None) -> Iterator[Node]:
    """Every node under the roots, operands first, each once; a node that is `known` is left out, with what only it is
    made of. No recursion: chains may be long."""
    seen: set[Node] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen and not (known is not None and known(node)):
            seen.add(node)
            stack.append((node, True))
            stack.extend([(operand, False) for operand in reversed(node.src)])


@functools.lru_cache(maxsize=1 << 14)
def _loads_below(root: Node) -> tuple[Node, ...]:
    return tuple([node for node in nodes_below((root,)) if node.op == "load"])


on_reset(_loads_below.cache_clear)


def loads_of(roots: Iterable[Node]) -> list[Node]:
    """The distinct load nodes below the roots."""
    return list(dict.fromkeys([node for root in roots for node in _loads_below(root)]))


def index_vars(node: Node) -> frozenset[str]:
    """The names in the index expressions of a node itself."""
    indexed = node.arg if node.op in ("load", "index") else node.arg[1] if node.op in DRAWS else None
    return frozenset() if indexed is None else indexed.free_vars


def is_indirect(load: Node) -> bool:
    """Whether the place that is read depends on data."""
    return len(load.src) > int(load.arg.masked)


def crosses(index: Expr, along: str, across: str) -> bool:
    """Whether an address moves by one along one axis, and by FAR or more along the other."""
    near, far = index.coefficient(along), index.coefficient(across)
    if near is None or far is None or not (near.is_const and near.value == 1):
        return False
    return not far.is_const or abs(far.value) >= FAR


def rewriter(rule: Rule) -> Callable[[Node], Node]:
    """A function that rebuilds nodes bottom-up by a rule, and remembers what is done."""
    memo: dict[Node, Node] = {}

    def rewrite(root: Node) -> Node:
        for node in nodes_below((root,), memo.__contains__):
            src = tuple([memo[operand] for operand in node.src])
            new = rule(node, src)
            if new is None:
                new = node if src == node.src else Node.make(node.op, node.dtype, src, node.arg)
            memo[node] = new
        return memo[root]

    return rewrite


def substitute(axes: Mapping[str, Expr]) -> Callable[[Node], Node]:
    """A function that replaces index variables in nodes."""

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        arg = substituted_arg(node, axes)
        return None if arg is node.arg else Node.make(node.op, node.dtype, src, arg)

    return rewriter(rule)


def substituted_arg(node: Node, axes: Mapping[str, Expr]) -> Any:
    """The `arg` of a node with index variables replaced; the same object if there are none."""
    if node.op in ("load", "index"):
        return node.arg.subs(axes)
    return (node.arg[0], node.arg[1].subs(axes)) if node.op in DRAWS else node.arg


# ---- statements -----------------------------------------------------------------------------------------------------


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, outer before inner, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def bound_nest(statement: Stmt) -> list[Loop]:
    """The loops of a statement whose axes are bound to threads or the grid, outermost first; none if it is not such a
    loop."""
    nest: list[Loop] = []
    while isinstance(statement, Loop) and statement.axis.bound not in (None, "team"):
        nest.append(statement)
        if len(statement.body) != 1:
            break
        (statement,) = statement.body
    return nest


def roots_in(body: Iterable[Stmt]) -> Iterator[Node]:
    """The nodes that statements use, those inside loops included."""
    for statement in statements(body):
        if isinstance(statement, (Store, Update)):
            yield from roots_of(statement)


# ---- definitions ----------------------------------------------------------------------------------------------------


def map_leaves(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], object]) -> Any:
    """`value` with every instance of `kind`, at any depth of lists, tuples and dicts, replaced."""
    return mapped(value, lambda leaf: change(leaf) if isinstance(leaf, kind) else leaf)


def views_in(value: object) -> list[View]:
    """The Views anywhere in a value."""
    views: list[View] = []
    map_leaves(value, View, views.append)
    return views


def programs_in(value: object) -> list[Program]:
    """The Programs anywhere in a value."""
    programs: list[Program] = []
    map_leaves(value, Program, programs.append)
    return programs


def viewed(value: object) -> set[str]:
    """The buffers that Views anywhere in a value look at."""
    return {view.buffer for view in views_in(value)}


def reads(definition: Definition) -> set[str]:
    """The buffers a definition reads."""
    if isinstance(definition, Extern):
        return viewed((definition.args, definition.kwargs))
    if isinstance(definition, WriteBack):
        return {definition.source.buffer}
    names = {node.arg.buffer for node in loads_of(roots_of(definition))}
    return names | {definition.base} if isinstance(definition, Scatter) else names


def writes(definition: Definition) -> tuple[str, ...]:
    """The buffers a definition makes or changes."""
    if isinstance(definition, Extern):
        return tuple(name for name in definition.names if name is not None)
    return (definition.target,) if isinstance(definition, WriteBack) else (definition.name,)


def readers_of(definitions: Iterable[Definition]) -> dict[str, list[Definition]]:
    """The definitions that read each buffer."""
    readers: dict[str, list[Definition]] = {}
    for definition in definitions:
        for name in reads(definition):
            readers.setdefault(name, []).append(definition)
    return readers


def is_impure(extern: Extern) -> bool:
    """Whether a call does more than make its results: later numbers follow from what it draws, too."""
    return traits_of(extern.op).seeded or extern.binds or not extern.names


def may_raise(definition: Definition) -> bool:
    """Whether a call may raise, with these sizes and types, for some data. (Memory may run out anywhere.)"""
    if not isinstance(definition, Extern):
        return False
    library = definition.op.namespace == "mkldnn"
    return definition.binds or (not library and fallible.call_may_raise(definition.op, definition.dtypes))
