"""What this thread is doing: whether it compiles, and whether compiled functions are switched off. What functions are
marked with.
"""

from __future__ import annotations

import threading
from types import FunctionType
from typing import Any


class ThreadState(threading.local):
    """`stage`: ``capture`` or ``backend`` while compiling; `disabled`: how many `disable` regions are entered;
    `entering`: the dispatcher that has just compiled an entry and is calling it; `stance`, `backend`: see
    `switches.set_stance`; `break_is_error`: see `switches.error_on_graph_break`; `exporting`: whether the capture is
    one of `export`.
    """

    stage: str | None = None
    disabled: int = 0
    entering: object = None
    stance: str = "default"
    backend: Any = None
    break_is_error: bool = False
    exporting: bool = False


state = ThreadState()
CALLBACK = "_bolide_callback"  # marks what native code is given in place of a function of the program, which it names


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
