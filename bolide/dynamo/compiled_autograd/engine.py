"""The engine as programs call it (`Variable._execution_engine`), while backward passes are captured: what it is asked
to derive is known here, and so are the callbacks that hooks queue for the end of a pass, which the engine would lose.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.autograd.graph import Node as GradNode

from bolide.dynamo.library.marks import disallow_in_graph
from bolide.tracing import modes

End = torch.Tensor | GradientEdge  # of a backward pass


class _Passes(threading.local):
    """Of this thread: what the running backward pass derives, and by what (nothing: leaves); and the queue of callbacks
    of each captured one that runs inside of it, the innermost last."""

    outputs: Sequence[End] = ()
    inputs: Sequence[End] = ()
    running = False
    held = False  # the hook, until the engine has called it
    queues: list[list[Callable[[], None]]]

    def __init__(self) -> None:
        self.queues = []


_passes = _Passes()


class _Engine:
    """The engine, but that callbacks go to the captured backward that runs in this thread."""

    def __init__(self, engine: torch._C._ImperativeEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    @disallow_in_graph
    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Call it when the backward pass has ended."""
        if _passes.queues:
            _passes.queues[-1].append(callback)
        else:
            self._engine.queue_callback(callback)

    @disallow_in_graph
    def run_backward(self, outputs: Sequence[End], *args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        """A backward pass; the callbacks of one inside of another are its own."""
        around = _passes.outputs, _passes.inputs, _passes.queues
        inputs = cast(Sequence[End], kwargs.get("inputs", args[3] if len(args) > 3 else ()))
        _passes.outputs, _passes.inputs, _passes.queues = outputs, inputs or (), []
        try:
            with _one_at_a_time():
                return self._engine.run_backward(outputs, *args, **kwargs)
        finally:
            _passes.outputs, _passes.inputs, _passes.queues = around


_turn = threading.RLock()
_waiting: list[Callable[[], None]] = []  # for the end of the pass of another thread


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Around a backward pass. Torch's hook is one for the process and knows one pass at a time: threads take turns. A
    pass inside of another one, and of a thread that compiles, is the engine's: that waits for nobody, as the thread may
    hold locks."""
    if modes.uncaptured.off_here:
        yield
        return
    with _turn:
        inside, _passes.running = _passes.running, True
        _passes.held = not inside and modes.uncaptured.hold()
        try:
            with contextlib.nullcontext() if _passes.held else modes.uncaptured:
                yield
        finally:
            begun()
            _passes.running = inside
            while _waiting and not inside:
                _waiting.pop()()


def begun() -> None:
    """The engine has called the hook for this thread's pass."""
    if _passes.held:
        _passes.held = False
        modes.uncaptured.let_go()


def between_passes(action: Callable[[], None]) -> None:
    """Do it when no thread runs a pass: now, or when that is over."""
    if _passes.running or not _turn.acquire(blocking=False):
        _waiting.append(action)
        return
    try:
        action()
    finally:
        _turn.release()


def install() -> None:
    """Put the engine that keeps callbacks in the place of torch's."""
    if not isinstance(Variable._execution_engine, _Engine):
        Variable._execution_engine = _Engine(Variable._execution_engine)  # type: ignore[assignment]


def uninstall() -> None:
    """Put torch's engine back."""
    if isinstance(Variable._execution_engine, _Engine):
        Variable._execution_engine = Variable._execution_engine._engine


def ends() -> tuple[list[GradNode], list[GradNode]]:
    """The nodes at which this thread's backward pass begins, and those to which it goes (none: to all leaves)."""
    return [_node(out) for out in _passes.outputs], [_node(end) for end in _passes.inputs]


def _node(end: End) -> GradNode:
    return (end if isinstance(end, GradientEdge) else get_gradient_edge(end)).node


@contextlib.contextmanager
def queue() -> Iterator[None]:
    """While a captured backward runs."""
    _passes.queues.append([])
    try:
        yield
    finally:
        _passes.queues.pop()


def call_back() -> None:
    """Call what is queued, in order; callbacks may queue more."""
    waiting = _passes.queues[-1]
    while waiting:
        waiting.pop(0)()
