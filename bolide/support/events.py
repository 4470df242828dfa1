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
    """A part of a compilation ended: ``capture``, ``joint``, ``partition``, ``lower``, ``schedule``, ``codegen`` …;
    time in seconds.
    """

    stage: str
    seconds: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured(Event):
    """A program was captured; `program` is the `dynamo.program.Captured`, `guards` its assumptions as readable text."""

    program: Any
    guards: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Graph(Event):
    """A graph was handed to a graph compiler; `kind` is inference, forward, backward or joint; `graph` is the
    `fx.GraphModule`.
    """

    kind: str
    graph: Any


@dataclass(frozen=True)
class Compiled(Event):
    """A graph became runnable. `artifact` is the backend's object (`inductor.CompiledGraph`, or a plain callable);
    `seconds` is the time of this compilation.
    """

    kind: str
    artifact: Any
    seconds: float


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
    """An assumption of version `index` did not hold, so the function is captured again."""

    index: int
    guard: str
    expected: str
    actual: str
    where: UserFrame | None


@dataclass(frozen=True)
class Fallback(Event):
    """A call ran in eager."""

    reason: str
    kind: str
    where: UserFrame | None
    remedy: str | None
    error: BaseException | None = None


Subscriber = Callable[[Any], None]
subscribers: list[Subscriber] = []


def emit(event: Event) -> None:
    """Hand `event` to every subscriber. Callers on a hot path test `subscribers` first."""
    for subscriber in tuple(subscribers):
        subscriber(event)


@contextmanager
def subscribed(subscriber: Subscriber) -> Iterator[None]:
    """Let `subscriber` receive every event inside the block."""
    subscribers.append(subscriber)
    try:
        yield
    finally:
        subscribers.remove(subscriber)
