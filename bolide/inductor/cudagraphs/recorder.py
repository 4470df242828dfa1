"""A compiled graph that is recorded, and the trees of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, cast
from weakref import ref

import torch
from torch import fx

from bolide.inductor.compiled_graph import GraphInfo
from bolide.inductor.config import config
from bolide.inductor.cudagraphs.cuda import Cuda
from bolide.inductor.cudagraphs.device import Device
from bolide.inductor.cudagraphs.function import Function, Run, Subject, Writes
from bolide.inductor.cudagraphs.gate import Gate
from bolide.inductor.cudagraphs.reasons import device_in, why_not, written_inputs
from bolide.inductor.cudagraphs.tree import Moment, Tree
from bolide.support import events
from bolide.support.caches import on_reset
from bolide.support.errors import UserFrame

DEVICES: dict[str, Callable[[], Device]] = {"cuda": Cuda}
"""By device type."""

Clock = Callable[[], Moment]
"""Tells where the program is."""


Place: TypeAlias = tuple[str, int, int, int]
"""Whose tree it is: the type of a device, its number, a stream, and a graph, where each has a tree of its own, or 0."""


class _Own(threading.local):
    """The trees of a thread."""

    def __init__(self) -> None:
        self.trees: dict[Place, Tree] = {}


@dataclass(slots=True)
class Forest:
    """All trees. Those of threads that have ended, or that were reset, are kept while results of theirs are alive."""

    own: _Own = field(default_factory=_Own)
    all: list[tuple[ref[threading.Thread], Place, Tree]] = field(default_factory=list)
    left: list[Tree] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    gate: Gate = field(default_factory=Gate)

    def tree(self, device: Device, place: Place, moment: Moment, saved: list[object] | None) -> Tree:
        """The tree that a call belongs to: for a backward pass the one that holds what was `saved`, if one does, else
        this thread's at `place`."""
        if saved is not None:
            for _, at, tree in self.all:
                if at[:2] == place[:2] and tree.holds(saved):
                    return tree
        known = self.own.trees.get(place)
        return known if known is not None else self._plant(device, place, moment)

    def _plant(self, device: Device, place: Place, moment: Moment) -> Tree:
        tree = self.own.trees[place] = Tree(device, place[1], moment, self.gate)
        with self.lock:
            ended = [entry for entry in self.all if (thread := entry[0]()) is None or not thread.is_alive()]
            self.all = [entry for entry in self.all if entry not in ended]
            self.left = [old for old in [*self.left, *[old for *_, old in ended]] if not old.all_dead()]
            self.all.append((ref(threading.current_thread()), place, tree))
        return tree

    def clear(self) -> None:
        """Drops all recordings."""
        with self.lock:
            left = [*self.left, *[tree for *_, tree in self.all]]
            self.own, self.all, self.left = _Own(), [], [tree for tree in left if not tree.all_dead()]


forest = Forest()
on_reset(forest.clear)


class _Switch(threading.local):
    off = False


_switch = _Switch()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Recorded graphs run as they are in this thread meanwhile."""
    before, _switch.off = _switch.off, True
    try:
        yield
    finally:
        _switch.off = before


class Recorder:
    """A compiled graph, recorded for each set of numbers that it is called with twice. `trees`: whether recordings of
    all graphs share memory; `most_sizes`: for so many sets of numbers at most; `moment` tells where the program is."""

    def __init__(
        self, subject: Subject, device: Device, place: torch.device, trees: bool, most_sizes: int, moment: Clock
    ) -> None:
        self.subject, self.device, self.trees, self.most_sizes, self.moment = subject, device, trees, most_sizes, moment
        self.index = place.index or 0
        self.key = (place.type, self.index)
        self.functions: dict[tuple[object, ...], Function] = {}
        self.told: set[str] = set()

    def __call__(self, inputs: list[object]) -> Sequence[object]:
        moment = self.moment()
        if _switch.off or self.device.is_capturing():
            return self.subject.run(inputs)
        numbers = tuple([value for value in inputs if not isinstance(value, torch.Tensor)])
        function = self.functions.get(numbers)
        if function is None:
            function = self._function(numbers)
        if function is None or function.reason:
            with forest.gate:
                return self.subject.run(inputs)
        own = 0 if self.trees else id(self)
        place = (*self.key, self.device.stream(self.index), own)
        tree = forest.tree(self.device, place, moment, inputs if self.subject.kind == "backward" else None)
        results = tree.run(function, inputs, moment)
        if function.reason:
            self._tell(function.reason)
        return results

    def _function(self, numbers: tuple[object, ...]) -> Function | None:
        if len(self.functions) >= self.most_sizes:
            sizes = f"it was called with other sizes {len(self.functions)} times"
            self._tell(f"{sizes} (triton.cudagraph_dynamic_shape_warn_limit)")
            return None
        return self.functions.setdefault(numbers, Function(self.subject))

    def _tell(self, reason: str) -> None:
        if reason not in self.told:
            self.told.add(reason)
            refuse(self.subject.name, self.subject.kind, reason, None)


def refuse(name: str, kind: str, reason: str, where: UserFrame | None) -> None:
    """Tells why a graph runs without being recorded."""
    if events.subscribers:
        events.emit(events.NotRecorded(name, kind, reason, where))


def recorded(run: Run, graph: fx.GraphModule, name: str, info: GraphInfo, writes: Writes, moment: Clock) -> Run:
    """What runs a compiled graph by recordings of it, with the options as they are now; `run` itself, with a reason,
    if there can be none."""
    options = config.triton
    place = device_in(graph.graph)
    made = DEVICES.get(place.type) if place is not None else None
    if place is None or made is None:
        refuse(name, info.kind, f"it is on {place or 'no device'}, which records no graphs", None)
        return run
    written = written_inputs(graph.graph)
    found = why_not(graph.graph, place, not options.cudagraph_skip_dynamic_graphs)
    if found is None and written and writes == "never":
        found = (
            f"it writes to input {min(written)}, and the options forbid it (cudagraph_*support_input_mutation)",
            None,
        )
    if found is not None:
        refuse(name, info.kind, *found)
        return run
    subject = Subject(
        name,
        info.kind,
        run,
        info.static_inputs,
        written,
        info.visible_outputs,
        _constants(graph),
        _lines(graph.graph),
        writes,
        cast(int, options.cudagraph_unexpected_rerecord_limit),
    )
    most_sizes = cast(int, options.cudagraph_dynamic_shape_warn_limit)
    return Recorder(subject, made(), place, bool(options.cudagraph_trees), most_sizes, moment)


def _constants(graph: fx.GraphModule) -> frozenset[int]:
    """Where the constants of a graph lie."""
    named = [getattr(graph, str(node.target)) for node in graph.graph.find_nodes(op="get_attr")]
    tensors = [value for value in named if isinstance(value, torch.Tensor)]
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)


def _lines(graph: fx.Graph) -> tuple[str, ...]:
    """The user's line of each result, for messages."""
    (results,) = next(node for node in reversed(graph.nodes) if node.op == "output").args
    assert isinstance(results, (tuple, list))
    wheres = [value.meta.get("where") if isinstance(value, fx.Node) else None for value in results]
    return tuple(f" ({where})" if where is not None else "" for where in wheres)
