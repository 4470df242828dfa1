"""Exceptions that come up while a program is interpreted, and are none of the program's.

The interpreter raises the program's exceptions on purpose, or native code does that it calls for the program. What
comes up otherwise is a fault of bolide's, which a handler of the program must never catch.

What is known of an exception is where it comes from. One that native code raises, called by bolide's own, may be of
both: most of what the interpreter does for the program is native (``int(text)``, ``a + b``), and errors of those are
the program's. So a fault of this kind (a ValueError or TypeError in our code) is taken for the program's: its handler
may catch it while capturing. Where none does, eager runs, and a warning says that it has not raised.

What a compiled graph raises is eager's to raise: nothing outside has been changed until then, so the call is made again
in eager, which applies the effects that come before the failing operation, raises its own error at the user's line, or
handles it.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import signal
import sys
import traceback
import types
from typing import Any

from bolide.dynamo.config import config
from bolide.dynamo.world.frames import entries_of, restored_trace
from bolide.support.caches import on_reset
from bolide.support.errors import BolideError, Refuted, Unsupported
from bolide.support.origins import innermost, is_ours
from bolide.tracing.modes import saved_tensor_hooks

_MISSING_NAMES = (AttributeError, NameError)
_MISSING_ITEMS = (KeyError, IndexError)
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_NAME")
_STAND_INS = (
    *("Outside", "ProgramIterator", "SymInt", "SymBool", "TracedFloat", "TracedText", "TracedArray", "Traced_"),
    *("Stream", "'Generator'", "Either"),
)


def is_fault(error: BaseException) -> bool:
    """Whether an exception comes from a mistake in bolide's own code: an attribute, a name or an item that is not
    there, or an assertion."""
    last = innermost(error)
    if last is None or not is_ours(last.tb_frame.f_code):
        return False
    name = _instruction(last)
    if name.startswith(_LOADS):
        return isinstance(error, _MISSING_NAMES)
    if name == "BINARY_SUBSCR":
        return isinstance(error, _MISSING_ITEMS)
    return isinstance(error, AssertionError) and last.tb_lasti in _asserts(last.tb_frame.f_code)


def names_stand_in(error: BaseException) -> bool:
    """Whether native code complains of a value that stands for another while capturing: it must not get it, and eager
    says something else, if it complains at all."""
    if not isinstance(error, TypeError):
        return False
    last = innermost(error)
    if last is None or not is_ours(last.tb_frame.f_code) or _raises(last):
        return False
    return any(stand_in in str(error) for stand_in in _STAND_INS)


def is_exhausted(error: BaseException) -> bool:
    """Whether an exception says that the interpreter's own calls are nested too deeply. One that the program raises
    comes from a ``raise``."""
    if not isinstance(error, RecursionError):
        return False
    last = innermost(error)
    return last is None or not is_ours(last.tb_frame.f_code) or not _raises(last)


def release(error: BaseException) -> None:
    """A capture has failed: the values of the program that were in its frames live no longer because of the exception,
    nor can they be reached from it. What it leads to of the program's own, from before the capture, is left alone.
    """
    if isinstance(error, Unsupported) and error.about.scope == "user":  # eager raises its own
        error.__cause__ = error.__context__ = None
    waiting: list[BaseException | None] = [error]
    for each in waiting:
        if each is None:
            continue
        if each.__traceback__ is not None and is_ours(each.__traceback__.tb_frame.f_code):
            traceback.clear_frames(each.__traceback__)
            _clear_callers(each.__traceback__.tb_frame)
            if isinstance(each, AttributeError):
                each.obj = None
            if isinstance(each, Unsupported) and not config.verbose:  # its text says where the program is refused
                each.__traceback__ = None
            else:  # frames that are cleared still refer to their functions, and those to variables of outer ones
                each.__traceback__ = restored_trace(entries_of(each))
        for other in (each.__cause__, each.__context__):
            if not any(other is known for known in waiting):
                waiting.append(other)


def _clear_callers(frame: types.FrameType) -> None:
    """A frame refers to those that it was called from, which have ended meanwhile, up to one that is still running."""
    caller = frame.f_back
    with contextlib.suppress(RuntimeError):
        while caller is not None and is_ours(caller.f_code):
            caller.clear()
            caller = caller.f_back


def _raises(trace: types.TracebackType) -> bool:
    return _instruction(trace) == "RAISE_VARARGS"


def _instruction(trace: types.TracebackType) -> str:
    """The instruction that raised."""
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]]


@functools.lru_cache(1 << 10)
def _asserts(code: types.CodeType) -> frozenset[int]:
    """The places of the instructions that raise for an ``assert``."""
    offsets, asserts = [], False
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_ASSERTION_ERROR":
            asserts = True
        elif instruction.opname == "RAISE_VARARGS":
            offsets += [instruction.offset] if asserts else []
            asserts = False
    return frozenset(offsets)


on_reset(_asserts.cache_clear)


def real_depth() -> int:
    """How many real frames are below this one that are not bolide's."""
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth += not is_ours(frame.f_code)
        frame = frame.f_back
    return depth


# ---- what a graph raises ---------------------------------------------------------------------------------------------

_NEVER_TORCHS = (AttributeError, KeyError, NameError, AssertionError, RecursionError)


def settle(error: Exception, expected: bool) -> Exception | None:
    """For what a graph has raised: None if eager is known to raise, too (or handles it), else the error, which is a
    fault if eager does not. `expected`: some operation of the graph raises for some data. Raises the error itself where
    the call is not to be made again: bolide's own verdicts, and what has nothing to do with the graph.
    """
    if isinstance(error, Refuted):
        return None
    if isinstance(error, BolideError) or comes_from_outside(error):
        raise error
    if expected and not isinstance(error, _NEVER_TORCHS):
        return None
    return error


def comes_from_outside(error: Exception) -> bool:
    """Whether a handler of a signal has raised it, or a hook of saved tensors (checkpoints stop so what they compute
    again), or another thread has put it there (`PyThreadState_SetAsyncExc`)."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    handlers += saved_tensor_hooks() or ()
    if any(getattr(handler, "__code__", None) in codes for handler in handlers):
        return True
    builtin = type(error).__module__.partition(".")[0] in ("builtins", "torch")
    return not builtin and bool(codes) and codes[-1].co_filename.startswith("<bolide")
