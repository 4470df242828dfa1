"""What a compiled graph raises is eager's to raise: nothing outside has been changed until then, so the call is made
again in eager, which applies the effects that come before the failing operation, raises its own error at the user's
line, or handles it.
"""

from __future__ import annotations

import signal
import types
from collections.abc import Iterator
from typing import Any

from bolide.support.errors import BolideError, Refuted
from bolide.tracing.modes import saved_tensor_hooks

_OF_PYTHON = (AttributeError, KeyError, NameError, AssertionError, RecursionError)


def settle(error: Exception, expected: bool) -> Exception | None:
    """For what a graph has raised: None if eager is known to raise, too (or handles it), else the error, which is a
    fault if eager does not. `expected`: some operation of the graph raises for some data. Raises the error itself where
    the call is not to be made again: bolide's own verdicts, and what has nothing to do with the graph.
    """
    if isinstance(error, Refuted):
        return None
    if isinstance(error, BolideError) or comes_from_outside(error):
        raise error
    if expected and not isinstance(error, _OF_PYTHON):
        return None
    return error


def comes_from_outside(error: Exception) -> bool:
    """Whether a handler of a signal has raised it, or a hook of saved tensors (checkpoints stop so what they compute
    again), or another thread has put it there (`PyThreadState_SetAsyncExc`)."""
    codes = [frame.f_code for frame in _frames(error)]
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    handlers += saved_tensor_hooks() or ()
    if any(getattr(handler, "__code__", None) in codes for handler in handlers):
        return True
    builtin = type(error).__module__.partition(".")[0] in ("builtins", "torch")
    return not builtin and bool(codes) and codes[-1].co_filename.startswith("<bolide")


def _frames(error: BaseException) -> Iterator[types.FrameType]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame
        step = step.tb_next
