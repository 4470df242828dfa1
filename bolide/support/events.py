"""What the compiler tells about its work: plain data handed to whoever subscribed. Nobody listening costs one truth
test.

>>> seen = []
>>> with subscribed(seen.append):
...     emit(Stage("f", "capture", 0.25))
>>> seen[0].seconds
0.25
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bolide.support.errors import UserFrame


@dataclass(frozen=True)
class Event:
    """`name`: the compiled function that the event belongs to."""

    name: str


@dataclass(frozen=True)
class Stage(Event):
    """A part of a compilation ended: ``capture``, ``differentiate``, a pass over the graph (``remove_dead``, …), a step
    of the inductor (``lower``, …, ``emit``, ``codegen``, ``driver``), and how many seconds it took."""

    stage: str
    seconds: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured(Event):
    """A program was captured; `program` is the `dynamo.program.Captured`, `guards` its assumptions as readable text,
    `operations` the number of recorded operations.
    """

    program: Any
    guards: tuple[str, ...]
    seconds: float
    operations: int


@dataclass(frozen=True)
class Graph(Event):
    """A graph (`fx.GraphModule`) went to a graph compiler; `kind`: inference, forward, backward or joint."""

    kind: str
    graph: Any


@dataclass(frozen=True)
class BackwardCaptured(Event):
    """Compiled autograd has captured a backward pass: as `graph` (an `fx.GraphModule`); `reasons` say why nothing that
    was captured before fits, if torch tells.
    """

    graph: object
    seconds: float
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Compiled(Event):
    """A graph became runnable. `artifact` is the backend's object (`inductor.CompiledGraph`, or a plain callable);
    `seconds` is the time of this compilation.
    """

    kind: str
    artifact: Any
    seconds: float


@dataclass(frozen=True)
class CacheLookup(Event):
    """Something was looked for among what was kept: `kind` is one of ``support.artifacts.KINDS``; `reason`: why it
    was not found.
    """

    kind: str
    hit: bool
    reason: str = ""


@dataclass(frozen=True)
class NotKept(Event):
    """An entry of a function is not kept for other processes; `where`: the user's line that has to do with it."""

    reason: str
    where: UserFrame | None


@dataclass(frozen=True)
class Installed(Event):
    """A compiled version is in place: `index` counts the versions of this function from 0; `source` is the generated
    Python of the entry.
    """

    index: int
    source: str
    seconds: float


@dataclass(frozen=True)
class GuardFailed(Event):
    """An assumption of version `index` did not hold, so the function is captured again. `where` is the user's line that
    made the assumption; `remedy` says how to avoid the recompilation.
    """

    index: int
    guard: str
    expected: str
    actual: str
    where: UserFrame | None
    remedy: str = ""


@dataclass(frozen=True)
class Fallback(Event):
    """A call ran in eager."""

    reason: str
    kind: str
    where: UserFrame | None
    remedy: str | None
    error: BaseException | None = None


@dataclass(frozen=True)
class Break(Event):
    """A segment ends before an operation that runs in eager; the next segment starts right after it.

    `name` is the segment that ends (the compiled function's name for the first one, then ``name/1`` and so on).
    `kind` is a name in `support.kinds`. `stack` holds the user's frames, outermost first; `where` is the innermost one.
    `seconds`: what capturing again because of it took, None where nothing had to be repeated.
    """

    kind: str
    reason: str
    operation: str | None
    where: UserFrame | None
    remedy: str | None
    stack: tuple[UserFrame, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class Resumed(Event):
    """At run time: the operation that segment `name` broke at was run in eager, which took `seconds`, the rebuilding of
    live values included; the program goes on in segment `next` ("": it has ended).
    """

    next: str
    seconds: float


@dataclass(frozen=True)
class DataRead(Event):
    """What is in the tensor `source` was read, at `where`: its text `value` is compared at every call."""

    source: str
    value: str
    where: UserFrame | None


@dataclass(frozen=True)
class Specialised(Event):
    """A size or number that could have stayed symbolic was fixed: `source` (``x.shape[0]``) to `value`, because of
    `reason`.
    """

    source: str
    value: str
    reason: str
    where: UserFrame | None


@dataclass(frozen=True)
class Skipped(Event):
    """A function was called that is not captured by choice (disabled, on a skip list); it runs in eager."""

    function: str
    reason: str
    where: UserFrame | None


@dataclass(frozen=True)
class NotRecorded(Event):
    """A graph is not, or not any more, recorded as a CUDA graph, for this reason. `kind`: as of `Graph`."""

    kind: str
    reason: str
    where: UserFrame | None


Subscriber = Callable[[Any], None]
subscribers: list[Subscriber] = []


def emit(event: Event) -> None:
    """Hand `event` to every subscriber. Callers on a hot path test `subscribers` first."""
    for subscriber in tuple(subscribers):
        subscriber(event)


def is_watched() -> bool:
    """Whether somebody looks at compilations, and not only at the cache: what is called is compiled then, though
    another process has done it.
    """
    return any(subscriber not in passive for subscriber in subscribers)


passive: list[Subscriber] = []
"""The subscribers that are told of what happens, and need nothing to happen for it."""


@contextmanager
def subscribed(subscriber: Subscriber) -> Iterator[None]:
    """Let `subscriber` receive every event inside the block."""
    subscribers.append(subscriber)
    try:
        yield
    finally:
        subscribers.remove(subscriber)
