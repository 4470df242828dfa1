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


def _stub(variables: list[Any]) -> Iterator[None]:
    yield


def add_entry(error: BaseException, code: Code, index: int, variables: list[Any]) -> None:
    """Note that `error` passes through a frame of `code` at instruction `index`. What the traceback says of bolide's
    own frames is dropped. `variables`: those of a frame that ends, which live as long as the traceback."""
    trace = _foreign(error.__traceback__)
    if not code.code.co_filename.startswith(_OURS):
        line = code.lines[index] if 0 <= index < len(code.lines) else code.code.co_firstlineno
        trace = types.TracebackType(trace, _frame(code, line, variables), -1, line)
    error.__traceback__ = trace


def _foreign(trace: types.TracebackType | None) -> types.TracebackType | None:
    """What comes after the last frame of bolide's."""
    found = trace
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(_OURS):
            found = trace.tb_next
        trace = trace.tb_next
    return found


def _frame(code: Code, line: int, variables: list[Any]) -> types.FrameType:
    stub = code.trace_stubs.get(line)
    if stub is None:
        named: dict[str, Any] = {"co_name": code.code.co_name}
        if sys.version_info >= (3, 11):
            named["co_qualname"] = code.qualname
        named |= {"co_filename": code.code.co_filename, "co_firstlineno": line}
        stub = code.trace_stubs[line] = types.FunctionType(_stub.__code__.replace(**named), {})
    frame: types.FrameType = stub(variables).gi_frame  # it has no caller that it would keep alive
    return frame


def held(error: BaseException) -> Iterator[Any]:
    """What lives only as long as the tracebacks of `error` and of its context and cause, perhaps."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        at = errors.pop()
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        errors += [at.__context__, at.__cause__]
        trace = at.__traceback__
        while trace is not None:
            for value in trace.tb_frame.f_locals.values():
                yield from value if type(value) is list else (value,)
            trace = trace.tb_next
