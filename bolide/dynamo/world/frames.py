"""Reified frames: everything a suspended Python frame is, as plain data; and what tracebacks say of them."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bolide.dynamo.bytecode.forms import VERSION
from bolide.dynamo.bytecode.instructions import Code, decode
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING
from bolide.support.caches import on_reset
from bolide.support.errors import Unsupported, UserFrame
from bolide.support.origins import is_ours

_GENERATORS_HAVE_CALLERS = VERSION >= (3, 12)  # whether the frame of a generator that has ended knows who resumed it


@dataclass(slots=True, eq=False, repr=False)
class Frame:
    """One frame of the interpreted program. What refers to a frame keeps its variables alive, as in CPython: exceptions
    do, by their tracebacks."""

    code: Code
    globals: dict[str, Any]
    locals: list[Any]  # CPython's fast locals (variables, cells, free variables), MISSING when unbound
    function: Any = None
    pc: int = 0  # the index of the next instruction
    stack: list[Any] = field(default_factory=list)
    exceptions: list[BaseException] = field(default_factory=list)  # those that are handled (`PUSH_EXC_INFO`)
    generator: Generator | None = None  # set while the frame runs as the body of one
    namespace: dict[str, Any] | None = None  # the local namespace of a class body
    then: str = "push"  # what `Machine.finish` does with the result: "push" it for the caller, "drop", or "instance"
    then_value: Any = None  # pushed instead with "instance", as after `__init__`
    tick: int = 0  # the number of its last instruction after which another frame was on top
    back: Frame | types.FrameType | None = None  # the one that it was called from, when it has ended
    ended: bool = False
    snapshot: dict[str, Any] | None = None  # what `locals()` has answered, where that is the same dict each time

    def end(self, caller: Frame) -> None:
        """The frame has returned to `caller`, or raised there."""
        self.ended = True
        self.stack, self.exceptions = [], []
        if self.code.ours:
            self.locals = []  # stands for a function written in C, which has no frame
        if self.generator is None or _GENERATORS_HAVE_CALLERS:
            self.back = caller
        if self.generator is not None:
            self.generator.finish()

    def as_locals(self, variables: dict[str, object]) -> dict[str, object]:
        """What `locals()` answers. Up to 3.12 it is one dict, which holds the values of then as long as the frame
        lives."""
        if VERSION >= (3, 13):
            return variables
        if self.snapshot is None:
            self.snapshot = {}
        for name in self.code.locals_names:
            if name not in variables:
                self.snapshot.pop(name, None)
        self.snapshot.update(variables)
        return self.snapshot

    def move(self) -> None:
        """What the frame holds goes on in another frame: tracebacks that refer to this one hold nothing."""
        self.locals, self.stack, self.exceptions = [], [], []
        self.function = self.snapshot = self.namespace = self.then_value = None

    def delegate(self) -> object:
        """What the suspended body of a generator yields from, or None."""
        ops, args = self.code.ops, self.code.args
        return self.stack[-1] if ops[self.pc] == "JUMP" and ops[args[self.pc]] == "SEND" else None

    def end_delegation(self, value: object) -> None:
        """What it yields from has returned `value`."""
        self.stack.append(value)
        self.pc = self.code.args[self.code.args[self.pc]]


class Generator:
    """A suspended frame that yields. `started`, `running` and `done` as in CPython; `kind`: "generator" or "coroutine".
    The body of a `foreign` one is run by CPython: it cannot be resumed here, and what it holds is not known. CPython
    runs the `finally` blocks of a suspended generator when its last reference goes."""

    __slots__ = (
        *("__weakref__", "abandon", "done", "foreign", "frame", "kind", "name", "native", "running", "source"),
        "started",
    )

    def __init__(self, frame: Frame, name: str, kind: str = "generator") -> None:
        self.frame, self.name, self.kind = frame, name, kind
        self.started = self.running = self.done = self.foreign = False
        self.abandon: Callable[[Generator], None] | None = None  # told when the last reference goes, while interpreting
        self.native: Any = None  # the generator that a frame on the stack of real frames is the body of (`reified`)
        self.source: Source | None = None  # of the generator of the outside world that this one stands for

    def __repr__(self) -> str:
        raise Unsupported(f"the text of a {self.kind} is asked for by native code", kind="iterator")

    def finish(self) -> None:
        """The body has come to its end; its frame is let go."""
        ended = self.frame
        self.done, self.running, self.native = True, False, None
        self.frame, ended.generator = Frame(ended.code, ended.globals, []), None

    def begin_anew(self) -> None:
        """The body has raised, and goes on from its beginning with its parameters as they are now."""
        ended, names = self.frame, self.frame.code.code.co_varnames
        parameters = ended.code.code.co_argcount
        kept = [MISSING if parameters <= i < len(names) else value for i, value in enumerate(ended.locals)]
        self.frame = Frame(ended.code, ended.globals, kept, ended.function)
        self.frame.pc = ended.code.ops.index("RETURN_GENERATOR") + 1
        self.started, self.running, self.native, ended.generator = False, False, None, None

    def cleans_up(self) -> bool:
        """Whether code of the program runs when the generator is dropped: in its body, or in that of a generator which
        only it holds."""
        if self.running or self.done or not self.started:
            return False
        frame = self.frame
        if self.foreign or frame.code.handler(frame.pc - 1) is not None:
            return True
        return any(type(value) is Generator and value.cleans_up() for value in (*frame.locals, *frame.stack))

    def __del__(self) -> None:
        if self.abandon is not None:
            self.abandon(self)


def refuse_drop(value: object, where: Callable[[], UserFrame | None]) -> None:
    """Something of the outside world no longer holds `value`. Raises Unsupported for a generator from before a break:
    perhaps it held the last reference, which decides what is run.
    """
    if type(value) is Generator and value.source is not None and value.cleans_up():
        raise dropped_generator(where())


def dropped_generator(where: UserFrame | None) -> Unsupported:
    """Says that a generator from before a break may be dropped."""
    reason = "a generator that was made before a break is dropped before its end"
    return Unsupported(reason, where, "use it up or close it", kind="iterator")


Default = Callable[[types.FunctionType, str, Hashable, object], object]
"""What stands for a function's default, given the attribute that it is in, its place there, and its value."""


def bind(
    function: types.FunctionType, args: list[object], kwargs: dict[str, object] | None, default: Default
) -> list[object]:
    """The fast locals of a call. Raises TypeError as CPython does when the arguments do not fit."""
    code = function.__code__
    argcount = code.co_argcount
    slots: list[object] = [MISSING] * len(decode(code).locals_names)
    if not kwargs and len(args) == argcount and not code.co_kwonlyargcount and not code.co_flags & 0x0C:
        slots[:argcount] = args
    elif not _bind(function, slots, args, kwargs or {}, default):
        # CPython knows best what does not fit; it never comes to the body.
        function(*args, **(kwargs or {}))
        raise AssertionError(f"CPython accepts a call of {function.__qualname__} that was refused")
    return slots


def _bind(
    function: types.FunctionType, slots: list[object], args: list[object], kwargs: dict[str, object], default: Default
) -> bool:
    """Fill the parameters of a call; False when the arguments do not fit."""
    code = function.__code__
    argcount, given = code.co_argcount, len(args)
    names = code.co_varnames
    total = argcount + code.co_kwonlyargcount
    slots[: min(given, argcount)] = args[:argcount]
    position = total
    if code.co_flags & 0x04:
        slots[position] = tuple(args[argcount:])
        position += 1
    elif given > argcount:
        return False
    extra: dict[str, object] | None = None
    if code.co_flags & 0x08:
        extra = slots[position] = {}
    first = code.co_posonlyargcount
    by_keyword = names[first:total]
    for name, value in kwargs.items():
        if not isinstance(name, str):
            return False
        if name in by_keyword:
            index = first + by_keyword.index(name)
            if slots[index] is not MISSING:
                return False
            slots[index] = value
        elif extra is None:
            return False
        else:
            extra[name] = value
    return _bind_defaults(function, slots, total, default)


def _bind_defaults(function: types.FunctionType, slots: list[object], total: int, default: Default) -> bool:
    code = function.__code__
    defaults = function.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    keyword_defaults = function.__kwdefaults__ or {}
    for i in range(total):
        if slots[i] is MISSING:
            if first <= i < code.co_argcount:
                slots[i] = default(function, "__defaults__", i - first, defaults[i - first])
            elif i >= code.co_argcount and (name := code.co_varnames[i]) in keyword_defaults:
                slots[i] = default(function, "__kwdefaults__", name, keyword_defaults[name])
            else:
                return False
    return True


# ---- tracebacks ------------------------------------------------------------------------------------------------------

# Python knows nothing of reified frames: an exception that passes through them gets an entry for each by hand, with a
# frame object that has the name, file and line of the user's code, and refers to the reified frame.


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
    lines = []
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append((code.co_filename, code.co_name, getattr(code, "co_qualname", code.co_name), trace.tb_lineno))
        trace = trace.tb_next
    return tuple(lines)


def entries_of(error: BaseException) -> tuple[Entry, ...]:
    """What the traceback of an exception says."""
    return entries(error.__traceback__)


def restored_trace(said: tuple[Entry, ...]) -> types.TracebackType | None:
    """A traceback that says this, and holds no variables."""
    trace = None
    for entry in reversed(said):
        trace = types.TracebackType(trace, _frame(entry, None), -1, entry[3])
    return trace


def _foreign(trace: types.TracebackType | None) -> types.TracebackType | None:
    """What comes after the last frame of bolide's."""
    foreign = trace
    while trace is not None:
        if is_ours(trace.tb_frame.f_code) or is_stand_in(trace.tb_frame.f_code):
            foreign = trace.tb_next
        trace = trace.tb_next
    return foreign


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


def held(error: BaseException) -> Iterator[object]:
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


def held_by(trace: types.TracebackType | None) -> Iterator[object]:
    """What the frames that have ended hold, which live only as long as a traceback, perhaps."""
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            yield from _of_ended(value) if type(value) is Frame else (value,)
        trace = trace.tb_next


def _of_ended(frame: Frame | types.FrameType | None) -> Iterator[object]:
    """The variables of a frame, and of those that it was called from, that have ended."""
    while isinstance(frame, Frame):
        if frame.ended:
            yield from frame.locals
        frame = frame.back


def is_stand_in(code: types.CodeType) -> bool:
    """Whether a frame of this code only looks like one of the user's."""
    return any(type(constant) is functools.partial for constant in code.co_consts)
