"""Values that several passes over a row need: computed once, then read back from where the first pass stored them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bolide.inductor.ir.definitions import Layout, axis_vars, volume
from bolide.inductor.ir.loops import Access, Init, Local, Node, Stmt, Store, Update
from bolide.inductor.ir.scalar_ops import SCALAR_OPS
from bolide.inductor.ir.walks import index_vars, nodes_below, rewriter, roots_in, with_roots
from bolide.inductor.machine import Machine
from bolide.inductor.schedule.nest import Schedule


@dataclass(slots=True)
class Pass:
    """One run over the inner axes: `inits` before the loop, `inside` in it, `behind` after it."""

    inits: list[Init]
    inside: list[Stmt]
    behind: list[Stmt]


def save_across_passes(passes: list[Pass], schedule: Schedule, machine: Machine) -> list[Local]:
    """Changes the passes so that costly values are computed in one only; gives the scratch memory that this takes."""
    inner, vector = tuple([(axis.name, axis.extent) for axis in schedule.inner]), schedule.vector
    state = _State(frozenset(name for name, _ in inner), vector, machine)
    locals_: list[Local] = []
    saved: dict[Node, Node] = {}  # value -> load that reads it back
    computed_in: dict[Node, Pass] = {}
    room = volume(extent for _, extent in inner)
    index = Layout.row_major([extent for _, extent in inner]).address(axis_vars(inner))
    fits = room.is_const and room.value <= machine.longest_row
    small = fits and schedule.scratch > 0 and any(name == vector for name, _ in inner)
    for current in passes:
        _read_back(current, saved)
        stores = [s for each in passes for s in each.inside if isinstance(s, Store)]
        stored = {store.value: store.access for store in stores if store.mode == "set" and not store.operands}
        for node in _frontier(current.inside, computed_in, stored, small, state):
            if node in stored:
                access = stored[node]
            elif len(locals_) < schedule.scratch and room.value * node.dtype.itemsize <= machine.most_local_bytes:
                name = f"row{len(locals_)}"
                locals_.append(Local(name, node.dtype, room))
                access = Access(name, index)
                computed_in[node].inside.insert(0, Store(access, node))
            else:
                continue
            saved[node] = Node.make("load", node.dtype, (), access)
        _read_back(current, saved)
        for node in nodes_below(roots_in(current.inside), lambda node: not state.full(node)):
            computed_in.setdefault(node, current)
    return locals_


class _State:
    """What is known of nodes: whether they vary inside a row, and what they cost."""

    def __init__(self, inner: frozenset[str], vector: str | None, machine: Machine) -> None:
        self.inner = inner
        self.vector = vector
        self.machine = machine
        self._full: dict[Node, bool] = {}
        self._cost: dict[Node, int] = {}

    def full(self, node: Node) -> bool:
        if node not in self._full:
            self._full[node] = not index_vars(node).isdisjoint(self.inner) or any(map(self.full, node.src))
        return self._full[node]

    def cost(self, node: Node) -> int:
        """An upper bound: shared operands count every time."""
        if node not in self._cost:
            own = SCALAR_OPS[node.op].work
            if node.op == "load":
                step = node.arg.index.coefficient(self.vector) if self.vector else None
                regular = step is not None and step.is_const and step.value in (0, 1) and not node.src
                own = 1 if regular else self.machine.irregular_load
            self._cost[node] = own + sum(map(self.cost, node.src)) if self.full(node) else 0
        return self._cost[node]


def _frontier(
    statements: Iterable[Stmt],
    computed_in: dict[Node, Pass],
    stored: dict[Node, Access],
    small: bool,
    state: _State,
) -> list[Node]:
    """The largest values that an earlier pass computed and that are worth keeping."""
    frontier: list[Node] = []
    seen: set[Node] = set()
    stack = list(roots_in(statements))
    while stack:
        node = stack.pop()
        if node in seen or not state.full(node):
            continue
        seen.add(node)
        if node in computed_in:
            cost = state.cost(node)
            machine = state.machine
            if cost >= machine.stored_work if node in stored else small and cost >= machine.scratch_work:
                frontier.append(node)
                continue
        stack.extend(node.src)
    return frontier


def _read_back(current: Pass, saved: dict[Node, Node]) -> None:
    """Puts the loads of saved values in the place of the values."""
    if not saved:
        return

    def rule(old: Node, src: tuple[Node, ...]) -> Node:
        new = old if src == old.src else Node.make(old.op, old.dtype, src, old.arg)
        return saved.get(new, new)

    again = rewriter(rule)
    for position, statement in enumerate(current.inside):
        if isinstance(statement, (Store, Update)):
            current.inside[position] = with_roots(statement, again)
