"""Where the threads of a team must wait for each other: before one touches what another one may have written, or writes
what another one may still read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bolide.inductor.codegen.analysis import Dependences, changed_by
from bolide.inductor.ir.loops import Axis, Init, Kernel, Loop, Node, Param, Stmt, Store, Update
from bolide.inductor.ir.ranges import Touched, are_apart
from bolide.inductor.ir.walks import loads_of, roots_of

#: Loads that come early: more would take too many registers.
MOST_EARLY = 8


class _Use(NamedTuple):
    buffer: str
    stores: bool
    by_first: bool  # by the first thread of the team alone
    place: Touched


@dataclass(slots=True)
class Hazards:
    """What the team has read and written since its last barrier. Of what is written: whether by its first thread alone.

    The result of a kernel may lie in an operand of as many elements of as many bytes (`schedule.reuse`), whose elements
    are read before new ones are stored there: its reads count as reads of the result."""

    kernel: Kernel
    held: frozenset[str] = frozenset()  # buffers of which each thread has its own elements
    read: set[str] = field(default_factory=set)
    written: dict[str, bool] = field(default_factory=dict)

    def meets(self, statement: Stmt) -> bool:
        """Whether the team must wait before a statement. A loop that it runs together, with a barrier inside where one
        is needed, may be begun by a thread that is ahead; but values are read before it starts."""
        uses = list(self._uses(statement))
        if any(use.buffer in self.written for use in uses if not use.stores):
            return True
        if is_together(statement):
            return False
        return any(self._is_unsafe(use) for use in uses if use.stores)

    def _is_unsafe(self, use: _Use) -> bool:
        wrote = self.written.get(use.buffer)
        return not self.read.isdisjoint(self._kin(use.buffer)) or (wrote is not None and not (wrote and use.by_first))

    def note(self, statement: Stmt) -> None:
        """A statement has run."""
        self._add(self._uses(statement))

    def _uses(self, statement: Stmt, axes: tuple[Axis, ...] = ()) -> Iterator[_Use]:
        return (use for use in _uses(statement, axes) if use.buffer not in self.held)

    def _add(self, uses: Iterator[_Use] | Sequence[_Use]) -> None:
        for use in uses:
            if use.stores:
                self.written[use.buffer] = use.by_first and self.written.get(use.buffer, True)
            else:
                self.read.add(use.buffer)

    def begin(self, loop: Loop, outer: tuple[Axis, ...]) -> None:
        """A loop that the team runs together begins: an iteration may find all that the one before it has touched,
        unless no two of them touch the same elements."""
        uses = list(self._uses(loop, outer))
        for store in uses:
            kin = self._kin(store.buffer)
            if store.stores:
                others = [use for use in uses if use.buffer in kin]
                if not all(are_apart(store.place, other.place, (loop.axis.name,)) for other in others):
                    self._add(others)

    def _kin(self, buffer: str) -> set[str]:
        """The buffers that may lie in the same memory."""
        params = {param.name: param for param in self.kernel.params}
        mine = params.get(buffer)
        return {buffer} if mine is None else {name for name, other in params.items() if _may_be(mine, other)}

    def clear(self) -> None:
        """All threads have waited for each other."""
        self.read.clear()
        self.written.clear()

    def copy(self) -> Hazards:
        return Hazards(self.kernel, self.held, set(self.read), dict(self.written))

    def add(self, other: Hazards) -> None:
        """What another way here has left."""
        self.read |= other.read
        for name, by_first in other.written.items():
            self.written[name] = by_first and self.written.get(name, True)


def _may_be(one: Param, other: Param) -> bool:
    return one is other or (one.numel is other.numel and one.dtype.itemsize == other.dtype.itemsize)


def is_together(statement: Stmt) -> bool:
    """Whether it is a loop whose iterations the team runs together, one after the other."""
    return isinstance(statement, Loop) and statement.axis.bound != "team"


def early_loads(body: Sequence[Stmt], dependences: Dependences) -> list[Node]:
    """The loads of stores and updates that can come before all of these, as nothing before them writes what they read:
    behind a store each would wait, as it might read what was stored."""
    plain = [statement for statement in body if isinstance(statement, (Store, Update))]
    if len(body) < 2 or len(plain) < len(body):
        return []
    changed: set[str] = set()
    early: dict[Node, None] = {}
    for statement in plain:
        loads = loads_of(roots_of(statement))
        early.update((load, None) for load in loads if changed.isdisjoint(dependences.names(load)))
        changed |= changed_by((statement,))
    return [*early][:MOST_EARLY]


def _uses(statement: Stmt, axes: tuple[Axis, ...], by_first: bool = True) -> Iterator[_Use]:
    if isinstance(statement, Loop):
        alone = by_first and statement.axis.bound != "team"
        for inner in statement.body:
            yield from _uses(inner, (*axes, statement.axis), alone)
    elif not isinstance(statement, Init):
        for node in loads_of(roots_of(statement)):
            yield _Use(node.arg.buffer, False, False, Touched(node.arg.index, axes))
        if isinstance(statement, Store):
            if statement.mode not in ("set", "any"):
                yield _Use(statement.access.buffer, False, by_first, Touched(statement.access.index, axes))
            yield _Use(statement.access.buffer, True, by_first, Touched(statement.access.index, axes))
