"""Callbacks that hooks queue for the end of a backward pass (`Variable._execution_engine.queue_callback`). The engine
loses those that are queued while a captured backward runs; they are kept here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch
from torch.autograd import Variable

from bolide.dynamo.library.marks import disallow_in_graph


class _Queues(threading.local):
    """Of this thread: the queue of each captured backward that is running, the innermost last."""

    open: list[list[Callable[[], None]]]

    def __init__(self) -> None:
        self.open = []


_queues = _Queues()


class _Engine:
    """The engine, but that callbacks go to the captured backward that runs in this thread."""

    def __init__(self, engine: torch._C._ImperativeEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    @disallow_in_graph
    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Call it when the backward pass has ended."""
        if _queues.open:
            _queues.open[-1].append(callback)
        else:
            self._engine.queue_callback(callback)

    @disallow_in_graph
    def run_backward(self, *args: object, **kwargs: object) -> object:
        """A backward pass inside: its callbacks are its own."""
        waiting, _queues.open = _queues.open, []
        try:
            return self._engine.run_backward(*args, **kwargs)
        finally:
            _queues.open = waiting


def install() -> None:
    """Put the engine that keeps callbacks in the place of torch's."""
    if not isinstance(Variable._execution_engine, _Engine):
        Variable._execution_engine = _Engine(Variable._execution_engine)  # type: ignore[assignment]


def uninstall() -> None:
    """Put torch's engine back."""
    if isinstance(Variable._execution_engine, _Engine):
        Variable._execution_engine = Variable._execution_engine._engine


@contextlib.contextmanager
def queue() -> Iterator[None]:
    """While a captured backward runs."""
    _queues.open.append([])
    try:
        yield
    finally:
        _queues.open.pop()


def run() -> None:
    """Call what is queued, in order; callbacks may queue more."""
    waiting = _queues.open[-1]
    while waiting:
        waiting.pop(0)()
