"""Tracebacks of the interpreted program.

Python knows nothing of reified frames: an exception that passes through them gets an entry for each by hand, with a
frame object that has the name, file and line of the user's code, and refers to the reified frame.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from bolide.dynamo.world.frames import Frame
from bolide.support.caches import on_reset
from bolide.support.origins import is_ours


def _stub(frame: Frame | None) -> Iterator[None]:
    yield


Entry = tuple[str, str, str, int]  # file, name, qualified name, line


def add_entry(error: BaseException, frame: Frame) -> None:
    """Note that `error` passes through `frame`, which lives as long as the traceback. What that says of bolide's own
    frames is dropped."""
    trace = _foreign(error.__traceback__)
    if not frame.code.ours:
        entry = _entry(frame)
        trace = types.TracebackType(trace, _frame(entry, frame), -1, entry[3])
    error.__traceback__ = trace


def _entry(frame: Frame) -> Entry:
    code, index = frame.code, frame.pc - 1
    line = code.lines[index] if 0 <= index < len(code.lines) else code.code.co_firstlineno
    return (code.code.co_filename, code.code.co_name, code.qualname, line)


def frame_object(frame: Frame) -> types.FrameType:
    """A frame object that says where a frame stands."""
    return _frame(_entry(frame), frame)


def name_tensors(error: BaseException) -> None:
    """Give traced tensors, in what native code says of them, the name of the class that the program sees."""
    said = error.args[0] if error.args else None
    if type(said) is str and "TracedTensor" in said:
        seen = torch.nn.Parameter if isinstance(getattr(error, "obj", None), torch.nn.Parameter) else torch.Tensor
        error.args = (said.replace("TracedTensor", seen.__name__), *error.args[1:])


def entries(trace: types.TracebackType | None) -> tuple[Entry, ...]:
    """What a traceback says, outermost frame first."""
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append((code.co_filename, code.co_name, getattr(code, "co_qualname", code.co_name), trace.tb_lineno))
        trace = trace.tb_next
    return tuple(found)


def entries_of(error: BaseException) -> tuple[Entry, ...]:
    """What the traceback of an exception says."""
    return entries(error.__traceback__)


def restored(said: tuple[Entry, ...]) -> types.TracebackType | None:
    """A traceback that says this, and holds no variables."""
    trace = None
    for entry in reversed(said):
        trace = types.TracebackType(trace, _frame(entry, None), -1, entry[3])
    return trace


def _foreign(trace: types.TracebackType | None) -> types.TracebackType | None:
    """What comes after the last frame of bolide's."""
    found = trace
    while trace is not None:
        if is_ours(trace.tb_frame.f_code) or is_stand_in(trace.tb_frame.f_code):
            found = trace.tb_next
        trace = trace.tb_next
    return found


@functools.lru_cache(1 << 12)
def _stub_of(entry: Entry) -> types.FunctionType:
    file, name, qualname, line = entry
    named: dict[str, Any] = {"co_name": name, "co_filename": file, "co_firstlineno": line}
    if sys.version_info >= (3, 11):
        named["co_qualname"] = qualname
    return types.FunctionType(_stub.__code__.replace(**named), {})


on_reset(_stub_of.cache_clear)


def _frame(entry: Entry, kept: Frame | None) -> types.FrameType:
    frame: types.FrameType = _stub_of(entry)(kept).gi_frame  # it has no caller that it would keep alive
    return frame


def held(error: BaseException) -> Iterator[Any]:
    """What the frames that have ended hold, which live only as long as the tracebacks of `error` and of its context and
    cause, perhaps."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        at = errors.pop()
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        errors += [at.__context__, at.__cause__]
        yield from held_by(at.__traceback__)


def held_by(trace: types.TracebackType | None) -> Iterator[Any]:
    """What the frames that have ended hold, which live only as long as a traceback, perhaps."""
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            yield from _of_ended(value) if type(value) is Frame else (value,)
        trace = trace.tb_next


def _of_ended(frame: Frame | types.FrameType | None) -> Iterator[Any]:
    """The variables of a frame, and of those that it was called from, that have ended."""
    while isinstance(frame, Frame):
        if frame.ended:
            yield from frame.locals
        frame = frame.back


def is_stand_in(code: types.CodeType) -> bool:
    """Whether a frame of this code only looks like one of the user's."""
    return any(type(constant) is functools.partial for constant in code.co_consts)
