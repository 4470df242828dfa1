"""The journal of writes: what the program has changed of the outside world so far, asked in one place."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.world.iterators import Stream
from bolide.dynamo.world.outside import Cell, Deferred, Grown, Overlay, Snapshot
from bolide.dynamo.world.parts import Write

Place = Overlay | Snapshot | Cell | Grown | Stream


class Change(NamedTuple):
    """A difference between what a place of the outside world was and what it is for the program: `key` is that of an
    overlay. `before` and `now`: the values, for containers their items, for iterators how many were drawn."""

    place: Place
    key: Any
    before: Any
    now: Any

    def gone(self) -> list[object]:
        """What has been written over, or taken out."""
        if isinstance(self.place, Snapshot):
            return self.place.gone()
        before = self.before.real if type(self.before) is Deferred else self.before
        return [before] if isinstance(self.place, (Overlay, Cell)) else []

    def parts(self) -> list[object]:
        """All that tells it from another change, each part by its identity."""
        if isinstance(self.place, Stream):
            return [self.place, *[None] * self.now]
        return [self.place, self.key, *(self.now if isinstance(self.place, (Snapshot, Grown)) else (self.now,))]


class Written:
    """What was written by some moment: false if nothing was. Two are equal if nothing was written in between."""

    def __init__(self, parts: list[object]) -> None:
        self.parts = parts

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Written) or len(self.parts) != len(other.parts):
            return False
        return all(map(operator.is_, self.parts, other.parts))

    __hash__ = None  # type: ignore[assignment]


class Journal:
    """Knows every place of the outside world that the program may write to: it is noted here when it is first read.

    Native code writes to copies and tells nobody, so changes are found by comparing. While ways of branches are gone
    (`forks`: how many), each write to an overlay or a cell is also in `writes`, and can be undone.
    """

    def __init__(self) -> None:
        self.overlays: list[Overlay] = []
        self.touched: set[int] = set()  # the places of overlays that are written to, or that native code may change
        self.overlay_of: dict[int, Overlay] = {}  # by id of the real dict
        self.snapshots: dict[int, Snapshot] = {}  # by id of the copy
        self.cells: dict[int, Cell] = {}  # by id
        self.grown: dict[int, Grown] = {}  # by id of the real list
        self.streams: list[Stream] = []
        self.snapshot_of: dict[int, Snapshot] = {}  # by id of the real container
        self.flags: list[tuple[Source, bool]] = []  # inputs whose `requires_grad` the program changes, and to what
        self.hooks: dict[int, Any] = {}  # those that the program has put on inputs, by id of their handles
        self.exceptions: list[tuple[BaseException, dict[str, object]]] = []  # of outside, and their state at first
        self.forks = 0
        self.ways = 0  # how many ways have been gone for the outermost branch
        self.writes: list[Write] = []

    def keep(self, snapshot: Snapshot) -> object:
        """Look after a copy of a container; it is given back."""
        self.snapshots[id(snapshot.copy)] = self.snapshot_of[id(snapshot.real)] = snapshot
        return snapshot.copy

    def changes(self) -> Iterator[Change]:
        """Every write so far, in the order in which entries make them. Iterators go first: they were drawn from before
        what they iterate over was written to (`Stream`)."""
        for stream in self.streams:
            if stream.taken:
                yield Change(stream, None, 0, stream.taken)
        for place in sorted(self.touched):
            overlay = self.overlays[place]
            for key, value in overlay.changes():
                yield Change(overlay, key, overlay.original.get(key, MISSING), value)
        for snapshot in self.snapshots.values():
            if snapshot.changed():
                yield Change(snapshot, None, snapshot.before, snapshot.copy)
        for cell in self.cells.values():
            if cell.now is not cell.before:
                yield Change(cell, None, cell.before, cell.now)
        for grown in self.grown.values():
            if grown.items and not grown.whole:
                yield Change(grown, None, [], grown.items)

    def so_far(self) -> Written:
        """What has been written by now, to compare with later."""
        return Written([part for change in self.changes() for part in change.parts()])

    def is_written(self, real: object) -> bool:
        """Whether the program has written to an outside list, set, deque or dict."""
        grown, overlay = self.grown.get(id(real)), self.overlay_of.get(id(real))
        if grown is not None and not grown.whole:
            return bool(grown.items)
        snapshot = self.snapshot_of.get(id(real))
        return (snapshot is not None and snapshot.changed()) or (overlay is not None and any(overlay.changes()))

    # -- branches

    def reached(self) -> Iterator[object]:
        """What the program has in the places that it may write to."""
        for overlay in self.overlays:
            if overlay.complete is not None:
                yield overlay.complete
            if overlay.written:
                yield from overlay.known.values()
        for snapshot in self.snapshots.values():
            yield snapshot.copy
        for cell in self.cells.values():
            yield cell.now
        for grown in self.grown.values():
            yield grown.items
        for error, _ in self.exceptions:
            yield error

    def progress(self) -> list[int]:
        """What cannot be undone: how far iterators have come, which lists have been read."""
        return [*[stream.taken for stream in self.streams if stream.taken], *[g.whole for g in self.grown.values()]]

    def undo(self, mark: int) -> None:
        """Take back the writes to overlays and cells, but for the first `mark`."""
        while len(self.writes) > mark:
            self.writes.pop().undo()
