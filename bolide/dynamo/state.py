"""What this thread is doing: whether it compiles, and whether compiled functions are switched off. What functions are
marked with.
"""

from __future__ import annotations

import threading
from types import FunctionType
from typing import Any


class ThreadState(threading.local):
    """What one thread is doing."""

    stage: str | None = None  # "capture" or "backend" while compiling
    disabled: int = 0  # how many `disable` regions are entered
    entering: object = None  # the dispatcher that has just compiled an entry and is calling it
    stance: str = "default"  # see `switches.set_stance`
    backend: Any = None  # likewise
    break_is_error: bool = False  # see `switches.error_on_graph_break`
    exporting: bool = False  # whether the capture is one of `export`
    resuming: int = 0  # how many calls of compiled functions this thread is in that have gone on after a break
    calls: int = 0  # how many calls of compiled functions there were, from outside of them, as far as anybody asked
    steps: int = 0  # how often the program has said that a step begins
    call: tuple[object, tuple[object, ...], dict[str, object]] | None = (
        None  # what it compiles: a `Versions`, for these
    )


state = ThreadState()
CALLBACK = "_bolide_callback"  # marks what native code is given in place of a function of the program, which it names


def which_call() -> int:
    """The number of the call of a compiled function from outside of them that this thread is in; another number each
    time outside of `resuming`, as a graph runs once in a call without breaks."""
    if not state.resuming:
        state.calls += 1
    return state.calls


def is_compiling() -> bool:
    """Whether this thread is compiling. Captured code that asks sees True."""
    return state.stage is not None


def is_dynamo_compiling() -> bool:
    """Whether this thread is capturing. Captured code that asks sees True."""
    return state.stage == "capture"


def is_exporting() -> bool:
    """Whether this thread captures a program for `export`. Code that is captured so sees True."""
    return state.exporting


def original_of(function: Any) -> Any:
    """The function that a compiled one was made from; any other is its own."""
    compiled = own_mark(function, "_bolide")
    return function if compiled is None else compiled.original


def own_mark(function: object, name: str) -> Any:
    """The attribute `name` that a function was marked with, None without it; a mark that `functools.wraps` has copied
    from the function inside does not count.
    """
    marks = function.__dict__ if isinstance(function, FunctionType) else {}
    mark = marks.get(name)
    if mark is None:
        return None
    inside = getattr(marks.get("__wrapped__"), "__dict__", {})
    return None if inside.get(name) is mark else mark
