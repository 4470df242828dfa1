"""Tracebacks of the interpreted program.

Python knows nothing of reified frames: an exception that passes through them gets an entry for each by hand, with a
frame object that has the name, file and line of the user's code and nothing else.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from bolide.dynamo.bytecode import Code

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _stub() -> Iterator[None]:
    yield


def add_entry(error: BaseException, code: Code, index: int) -> None:
    """Note that `error` passes through a frame of `code` at instruction `index`. What the traceback says of bolide's
    own frames is dropped."""
    trace = _foreign(error.__traceback__)
    if not code.code.co_filename.startswith(_OURS):
        line = code.lines[index] if 0 <= index < len(code.lines) else code.code.co_firstlineno
        trace = types.TracebackType(trace, _frame(code, line), -1, line)
    error.__traceback__ = trace


def _foreign(trace: types.TracebackType | None) -> types.TracebackType | None:
    """What comes after the last frame of bolide's."""
    found = trace
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(_OURS):
            found = trace.tb_next
        trace = trace.tb_next
    return found


def _frame(code: Code, line: int) -> types.FrameType:
    frame = code.trace_frames.get(line)
    if frame is None:
        named: dict[str, Any] = {"co_name": code.code.co_name}
        if sys.version_info >= (3, 11):
            named["co_qualname"] = code.qualname
        stub = _stub.__code__.replace(co_filename=code.code.co_filename, co_firstlineno=line, **named)
        generator = types.FunctionType(stub, {})()  # its frame has no caller that it would keep alive
        frame = code.trace_frames[line] = generator.gi_frame
    return frame
