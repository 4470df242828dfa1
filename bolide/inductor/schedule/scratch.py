"""Values that several passes over a row need: computed once, then read back from where the first pass stored them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bolide.inductor.ir.loops import Access, Init, Local, Node, Stmt, Store, Update
from bolide.inductor.schedule.inline import COSTS
from bolide.inductor.schedule.stages import Space, axis_var, product, rewrite
from bolide.symbolic import Expr, contiguous_strides

IRREGULAR = 8  # cost of a load under a mask, or one lane at a time
WORTH_SCRATCH = 10  # a value of this cost is kept in scratch memory
WORTH_READING = 2  # a value of this cost that is stored anyway is read back
LONGEST_ROW = 1 << 13  # elements of a row in scratch memory: it must stay in the first-level cache, and on the stack
MOST_SCRATCH = 4


@dataclass(slots=True)
class Pass:
    """One run over the inner axes: `inits` before the loop, `inside` in it, `behind` after it."""

    inits: list[Init]
    inside: list[Stmt]
    behind: list[Stmt]


def save_across_passes(passes: list[Pass], inner: Space, vector: str | None) -> list[Local]:
    """Changes the passes so that costly values are computed in one only; gives the scratch memory that this takes."""
    state = _State(frozenset(name for name, _ in inner), vector)
    locals_: list[Local] = []
    saved: dict[Node, Node] = {}  # value -> load that reads it back
    made_in: dict[Node, Pass] = {}
    room = product(extent for _, extent in inner)
    small = room.is_const and room.value <= LONGEST_ROW and any(name == vector for name, _ in inner)
    for current in passes:
        _read_back(current, saved)
        stored = {store.value: store.access for each in passes for store in _plain_stores(each)}
        for node in _frontier(current.inside, made_in, stored, small, state):
            if node in stored:
                access = stored[node]
            elif len(locals_) < MOST_SCRATCH:
                name = f"row{len(locals_)}"
                locals_.append(Local(name, node.dtype, room))
                access = Access(name, _row_index(inner))
                made_in[node].inside.insert(0, Store(access, node))
            else:
                continue
            saved[node] = Node.make("load", node.dtype, (), access)
        _read_back(current, saved)
        for node in _full_nodes(current.inside, state):
            made_in.setdefault(node, current)
    return locals_


class _State:
    """What is known of nodes: whether they vary inside a row, and what they cost."""

    def __init__(self, inner: frozenset[str], vector: str | None) -> None:
        self.inner = inner
        self.vector = vector
        self._full: dict[Node, bool] = {}
        self._cost: dict[Node, int] = {}

    def full(self, node: Node) -> bool:
        known = self._full.get(node)
        if known is None:
            own = {"load": lambda a: a.index, "index": lambda a: a}.get(node.op)
            if node.op in ("philox", "philox_normal"):
                varies = not node.arg[1].free_vars.isdisjoint(self.inner)
            else:
                varies = own is not None and not own(node.arg).free_vars.isdisjoint(self.inner)
            known = self._full[node] = varies or any(self.full(src) for src in node.src)
        return known

    def cost(self, node: Node) -> int:
        """An upper bound: shared operands count every time."""
        known = self._cost.get(node)
        if known is None:
            if not self.full(node):
                known = 0
            elif node.op == "load":
                step = node.arg.index.coefficient(self.vector) if self.vector else None
                regular = step is not None and step.is_const and step.value in (0, 1) and not node.src
                known = (1 if regular else IRREGULAR) + sum([self.cost(src) for src in node.src])
            else:
                known = COSTS.get(node.op, 1) + sum([self.cost(src) for src in node.src])
            self._cost[node] = known
        return known


def _plain_stores(current: Pass) -> Iterator[Store]:
    for statement in current.inside:
        if isinstance(statement, Store) and statement.mode == "set" and not statement.src:
            yield statement


def _roots(statements: Iterable[Stmt]) -> Iterator[Node]:
    for statement in statements:
        if isinstance(statement, Store):
            yield from (statement.value, *statement.src)
        elif isinstance(statement, Update):
            yield statement.value
            if statement.position is not None:
                yield statement.position


def _full_nodes(statements: Iterable[Stmt], state: _State) -> Iterator[Node]:
    seen: set[Node] = set()
    stack = list(_roots(statements))
    while stack:
        node = stack.pop()
        if node not in seen and state.full(node):
            seen.add(node)
            yield node
            stack.extend(node.src)


def _frontier(
    statements: Iterable[Stmt],
    made_in: dict[Node, Pass],
    stored: dict[Node, Access],
    small: bool,
    state: _State,
) -> list[Node]:
    """The largest values that an earlier pass computed and that are worth keeping."""
    found: list[Node] = []
    seen: set[Node] = set()
    stack = list(_roots(statements))
    while stack:
        node = stack.pop()
        if node in seen or not state.full(node):
            continue
        seen.add(node)
        if node in made_in:
            cost = state.cost(node)
            if cost >= WORTH_READING if node in stored else small and cost >= WORTH_SCRATCH:
                found.append(node)
                continue
        stack.extend(node.src)
    return found


def _read_back(current: Pass, saved: dict[Node, Node]) -> None:
    """Puts the loads of saved values in the place of the values."""
    if not saved:
        return
    memo: dict[Node, Node] = {}

    def rule(old: Node, src: tuple[Node, ...]) -> Node:
        new = old if src == old.src else Node.make(old.op, old.dtype, src, old.arg)
        return saved.get(new, new)

    def again(node: Node) -> Node:
        return rewrite(node, rule, memo)

    for place, statement in enumerate(current.inside):
        if isinstance(statement, Store):
            src = tuple([again(operand) for operand in statement.src])
            current.inside[place] = replace(statement, value=again(statement.value), src=src)
        elif isinstance(statement, Update):
            position = None if statement.position is None else again(statement.position)
            current.inside[place] = replace(statement, value=again(statement.value), position=position)


def _row_index(inner: Space) -> Expr:
    total = Expr.const(0)
    for (name, extent), stride in zip(inner, contiguous_strides(tuple([e for _, e in inner]))):
        total = total + axis_var(name, extent) * stride
    return total
