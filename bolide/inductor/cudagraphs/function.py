"""What is recorded: a compiled graph, called with certain numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from bolide.inductor.cudagraphs.results import Ref

Run: TypeAlias = Callable[[list[object]], Sequence[object]]
"""A compiled graph: takes a list, which it empties."""


MOST_FAILURES = 3
"""After so many failures a graph is not recorded any more."""


Writes: TypeAlias = Literal["either", "in place", "back", "never"]
"""What becomes of writes to inputs: the graph writes where these lie, if their addresses stay, or else to copies that
are written back; or one of these always; or graphs that write are not recorded."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A graph that may be recorded. `static`: the places of parameters; `written`: of inputs that it writes to;
    `visible`: of results that leave the compiled function; `constants`: where its constants lie; `lines`: what each
    result is, for messages."""

    name: str
    kind: str
    run: Run
    static: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    visible: frozenset[int] = frozenset()
    constants: frozenset[int] = frozenset()
    lines: tuple[str, ...] = ()
    writes: Writes = "either"
    most_recordings: int = 128
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Function:
    """A graph with its numbers. `reason`: why it is not recorded any more; `kept`: its inputs in the run before, by
    place; `recordings`: how many there are; `failures`: how often recording it has failed."""

    subject: Subject
    reason: str = ""
    warm: bool = False
    recordings: int = 0
    failures: int = 0
    kept: dict[int, Ref] = field(default_factory=dict)

    def warm_up(self, inputs: list[object]) -> Sequence[object]:
        """The first run, which loads kernels and lets libraries choose theirs; it is not recorded."""
        self.kept = {at: Ref(value, value.data_ptr()) for at, value in enumerate(inputs) if isinstance(value, Tensor)}
        results = self.subject.run(inputs)
        self.warm = True
        return results

    def failed(self, error: Exception) -> None:
        """Notes that recording it failed. Something else may have been the cause: so it is tried again, for a while."""
        self.failures += 1
        if self.failures == MOST_FAILURES:
            self.reason = f"recording it failed: {type(error).__name__}: {error}"

    def stays(self, place: int, tensor: Tensor) -> bool:
        """Whether an input is a parameter, or lies where it lay in the first run, in memory that was kept since."""
        if place in self.subject.static:
            return True
        ref = self.kept.get(place)
        if ref is None or not ref.alive or ref.address != tensor.data_ptr():
            return False
        return bool(ref.storage == tensor.untyped_storage()._cdata)


def overlaps(tensor: Tensor) -> bool:
    """Whether elements of a tensor share memory otherwise than by repetition, so that it cannot be copied to."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return bool(torch._debug_has_internal_overlap(tensor) != 0) and not _apart(tensor)


def _apart(tensor: Tensor) -> bool:
    """Whether each dimension steps over all that lies below it."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride < reach:
            return False
        reach += (size - 1) * stride
    return True
