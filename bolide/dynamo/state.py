"""What this thread is doing: whether it compiles, and whether compiled functions are switched off."""

from __future__ import annotations

import threading


class ThreadState(threading.local):
    """`stage`: ``capture`` or ``backend`` while compiling; `disabled`: how many `disable` regions are entered."""

    stage: str | None = None
    disabled: int = 0


state = ThreadState()


def is_compiling() -> bool:
    """Whether this thread is compiling. Captured code that asks sees True."""
    return state.stage is not None


def is_dynamo_compiling() -> bool:
    """Whether this thread is capturing. Captured code that asks sees True."""
    return state.stage == "capture"
