"""A tree of recordings in one pool: which of them has followed which, and where in it the program is now.

The program's place is a *path* from the root: the recordings whose results may still be alive. A call follows the path,
by a recording that fits or by a new one, or it begins a new *step* at the root; then what is left of the path is
forbidden, since its memory will be written again. See docs/inductor/cuda-graphs.md.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bolide.inductor.cudagraphs.device import Device, Graph, Layout, Pool
from bolide.inductor.cudagraphs.function import Function, Subject, overlaps
from bolide.inductor.cudagraphs.gate import Gate
from bolide.inductor.cudagraphs.recording import (
    Children,
    Inputs,
    Recording,
    Sorted,
    copy_all,
    living,
    rebuilt,
    taken,
)

_Captured: TypeAlias = tuple[Graph, Sequence[object], list[Layout], dict[int, Tensor]]

Moment = tuple[int, int]
"""Which call of the program this is, and how often it has said that a step begins."""


class Tree:
    """The recordings of one thread on one stream of one device. A backward pass, which runs in a thread of autograd's,
    uses the tree that holds what it saved; so there is a lock."""

    def __init__(self, device: Device, index: int, moment: Moment, gate: Gate) -> None:
        self.device, self.index, self.gate = device, index, gate
        self.lock = threading.RLock()
        self.roots: Children = WeakKeyDictionary()
        self.path: tuple[Recording, ...] = ()
        self.owned = False  # whether the living results own their memory, as they were recorded and not replayed
        self.held: list[object] = []
        self.step = 1
        self.calls: Counter[int] = Counter()  # of this step, by subject, in the order of the first calls
        self.moment, self.marks = moment, moment[1]

    @cached_property
    def pool(self) -> Pool:
        """Made when something is recorded."""
        return self.device.pool(self.index)

    def run(self, function: Function, inputs: Inputs, moment: Moment) -> Sequence[object]:
        """Runs a function: by a graph, if it is warm and can be recorded."""
        with self.lock, self.gate:
            self.held = []
            backward = function.subject.kind == "backward"
            if not backward:
                self._enter(function.subject, inputs, moment)
            if not function.warm:
                return function.warm_up(inputs)
            results = self._followed(function, inputs)
            if backward:
                # Whoever accumulates gradients sees that others hold them, too, and copies: `.grad` outlives a step.
                self.held = [*results]
                for recording in self.path:
                    recording.answered = True
            return results

    def holds(self, inputs: Inputs) -> bool:
        """Whether an input is a living result of this tree."""
        with self.lock:
            addresses = self._addresses()
        return any(isinstance(x, Tensor) and x.untyped_storage().data_ptr() in addresses for x in inputs)

    def all_dead(self) -> bool:
        """Whether no result is alive."""
        return not living(self.path)

    def _addresses(self) -> dict[int, tuple[int, int]]:
        return {self.path[-1].ref(place).address: place for place in living(self.path)}

    # ---- steps

    def _enter(self, subject: Subject, inputs: Inputs, moment: Moment) -> None:
        if self._begins(subject, inputs, moment):
            addresses = self._addresses()
            for at, value in enumerate(inputs):
                if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in addresses:
                    inputs[at] = value.detach().clone(memory_format=torch.preserve_format)
            self.end(f"step {self.step + 1} began with a call of {subject.name}")
            self.step += 1
            self.calls.clear()
        self.calls[subject.number] += 1
        self.moment = moment

    def _begins(self, subject: Subject, inputs: Inputs, moment: Moment) -> bool:
        """Whether a call begins a step. If the program ever says so, it decides. Else a step begins when what this one
        began with is called again, unless a backward pass is to come. Some programs begin otherwise than they go on: so
        does the third call of anything, if nothing is lost with it but what the second has given."""
        if moment[1] != self.marks:
            return moment[1] != self.moment[1]
        count = self.calls[subject.number]
        if not count or moment[0] == self.moment[0] or any(recording.pending() for recording in self.path):
            return False
        return next(iter(self.calls)) == subject.number or (count > 1 and self._keeps(subject, inputs))

    def _keeps(self, subject: Subject, inputs: Inputs) -> bool:
        given = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, Tensor)}
        return all(
            self.path[depth].origin == subject.number or self.path[depth].ref((depth, at)).address in given
            for depth, at in living(self.path)
        )

    def end(self, reason: str = "") -> None:
        """Ends the path. What is alive still may not be used any more, for `reason`."""
        for depth, at in living(self.path):
            recording = self.path[depth]
            ref = recording.ref((depth, at))
            if self.owned:
                self.pool.free(ref.storage)
            self.pool.forbid(ref.storage, ref.tensor(), _overwritten(recording, at, reason))
        self.path, self.owned = (), False

    # ---- following the path

    def _followed(self, function: Function, inputs: Inputs) -> Sequence[object]:
        recording = self._fitting(function, inputs)
        if recording is None and self.path and self.all_dead():
            self.end()
            recording = self._fitting(function, inputs)
        if recording is None:
            return self._recorded(function, inputs)
        self.path = recording.path
        recording.step, recording.answered = self.step, False
        return recording.replay(inputs, self.pool)

    def _next(self) -> Children:
        return self.path[-1].children if self.path else self.roots

    def _fitting(self, function: Function, inputs: Inputs) -> Recording | None:
        known = self._next().get(function, ())
        return next((recording for recording in known if recording.takes(inputs, self.pool)), None)

    # ---- recording

    def _recorded(self, function: Function, inputs: Inputs) -> Sequence[object]:
        subject = function.subject
        if function.recordings >= subject.most_recordings:
            function.reason = (
                f"it was recorded {function.recordings} times (triton.cudagraph_unexpected_rerecord_limit): addresses "
                "of parameters change, or results of earlier calls are kept"
            )
            return subject.run(inputs)
        found = self._sorted(function, inputs)
        if isinstance(found, str):
            function.reason = found
            return subject.run(inputs)
        with self.gate.alone() as is_alone:
            return self._record(function, inputs, found) if is_alone else subject.run(inputs)

    def _record(self, function: Function, inputs: Inputs, found: Sorted) -> Sequence[object]:
        subject = function.subject
        self._resume()
        before = set(living(self.path))
        last = self.path[-1].live if self.path else ()
        originals = _Originals(self, inputs, found)
        captured = self._captured(function, inputs, found)
        if captured is None:
            return subject.run(originals.restored(self))
        graph, results, layouts, kept = captured
        now = set(living(self.path))
        recording = Recording(
            subject.name,
            subject.kind,
            subject.number,
            subject.visible,
            (),
            graph,
            found,
            self._targets(layouts),
            [],
            tuple(place for place in last if place not in before),
            tuple(before - now),
            step=self.step,
        )
        recording.path = (*self.path, recording)
        recording.lines = subject.lines
        recording.finish(results, originals.storages(), subject.constants)
        graph.replay()
        copy_all([originals.tensors[place] for place in found.returned], [kept[place] for place in found.returned])
        kept.clear()
        recording.checkpoint = self.pool.checkpoint()
        self._next().setdefault(function, []).append(recording)
        self.path, self.owned = recording.path, True
        function.recordings += 1
        return results

    def _captured(self, function: Function, inputs: Inputs, found: Sorted) -> _Captured | None:
        """A graph of the device, what it gives, how its copies of inputs lie, and those that are written back. None if
        that fails."""
        try:
            given, layouts, kept = self._buffers(inputs, found)
            with self.pool.capture() as graph:
                results = function.subject.run(given)
        except Exception as error:
            function.failed(error)
            return None
        return graph, results, layouts, kept

    def _targets(self, layouts: list[Layout]) -> list[Tensor]:
        """What inputs are copied to; also outside of the inference mode that it is recorded in."""
        with torch.inference_mode(False):
            return [rebuilt(self.pool, layout, None) for layout in layouts]

    def _resume(self) -> None:
        """The allocator learns what is alive of the path, if the path was replayed."""
        if self.path and not self.owned:
            last = self.path[-1]
            refs = [last.ref(place) for place in last.live]
            alive = [ref.storage for ref in refs if ref.alive]
            self.pool.restore(last.checkpoint, alive, [ref.address for ref in refs if not ref.alive])
            self.owned = True

    def _sorted(self, function: Function, inputs: Inputs) -> Sorted | str:
        """Which inputs are copied; or why none can be."""
        subject, managed = function.subject, self._addresses()
        found = Sorted((), [], {}, (), ())
        for at, value in enumerate(inputs):
            if not isinstance(value, Tensor):
                continue
            place, written = managed.get(value.untyped_storage().data_ptr()), at in subject.written
            stays = place is not None or function.stays(at, value)
            if written and not stays and subject.writes == "in place":
                return f"input {at} is written to where it lies, and its address changes"
            if stays and not (written and subject.writes == "back"):
                found.fixed += (at,)
                found.addresses.append(value.data_ptr())
                if place is not None:
                    found.managed[at] = place
            elif overlaps(value):
                return f"elements of input {at} share memory"
            else:
                found.copied += (at,)
                found.returned += (at,) if written else ()
        return found

    def _buffers(self, inputs: Inputs, found: Sorted) -> tuple[Inputs, list[Layout], dict[int, Tensor]]:
        """The inputs to record with, of which `found.copied` are copies in the pool, and how these lie; the list of
        inputs is emptied. Those that are written back are kept until that is done."""
        given, layouts, kept = [*inputs], list[Layout](), dict[int, Tensor]()
        with torch.inference_mode(False), torch.no_grad(), self.pool.allocating():
            for place, value in zip(found.copied, taken(inputs, found.copied), strict=True):
                buffer = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                given[place] = buffer
                layouts.append(Layout.of(buffer))
                if place in found.returned:
                    kept[place] = buffer
            copy_all(taken(given, found.copied), taken(inputs, found.copied))
        inputs.clear()
        return given, layouts, kept


class _Originals:
    """The inputs of a recording, should it fail. Those that lie in the tree's own memory are not held, as they may die
    meanwhile: a failed recording has not overwritten them."""

    def __init__(self, tree: Tree, inputs: Inputs, found: Sorted) -> None:
        self.count, self.numbers = len(inputs), {at: x for at, x in enumerate(inputs) if not isinstance(x, Tensor)}
        outside = [at for at, x in enumerate(inputs) if isinstance(x, Tensor) and at not in found.managed]
        self.tensors = dict(zip(outside, taken(inputs, outside), strict=True))
        self.refs = {at: tree.path[-1].ref(place) for at, place in found.managed.items()}
        self.layouts = dict(zip(self.refs, map(Layout.of, taken(inputs, self.refs)), strict=True))
        self.fixed = [at for at in found.fixed if at not in found.managed]

    def storages(self) -> dict[int, int]:
        """The inputs that are read where they lie, by the address of their storage; without those that have died, as
        something else may lie there now."""
        managed = {ref.address: at for at, ref in self.refs.items() if ref.alive}
        return managed | {self.tensors[at].untyped_storage().data_ptr(): at for at in self.fixed}

    def restored(self, tree: Tree) -> Inputs:
        """The inputs as they were given."""
        known: dict[int, object] = {**self.numbers, **self.tensors}
        known.update({at: rebuilt(tree.pool, layout, self.refs[at]) for at, layout in self.layouts.items()})
        return [known[at] for at in range(self.count)]


def _overwritten(recording: Recording, at: int, reason: str) -> str:
    line = recording.lines[at] if at < len(recording.lines) else ""
    return (
        f"result {at} of the {recording.kind} graph of {recording.name}{line}, which CUDA graphs made in step "
        f"{recording.step}, is gone: its memory is written again, since {reason or 'the compiled functions were reset'}"
        "\n  remedy: clone() what is needed longer than a step; a step begins when a function is called again, or with "
        "bolide.cudagraph_mark_step_begin(), which the program may call where its steps do begin"
    )
