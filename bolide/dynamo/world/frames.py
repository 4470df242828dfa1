"""Reified frames: everything a suspended Python frame is, as plain data."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from bolide.dynamo.bytecode.instructions import VERSION, Code, decode
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING
from bolide.support.errors import Unsupported, UserFrame

_GENERATORS_HAVE_CALLERS = VERSION >= (3, 12)  # whether the frame of a generator that has ended knows who resumed it


class Frame:
    """One frame of the interpreted program.

    `pc` is the index of the next instruction; `locals` are CPython's fast locals (variables, cells, free variables),
    MISSING when unbound; `exceptions` are the handled exceptions (`PUSH_EXC_INFO`); `then` says what becomes of the
    result (see `Machine.finish`): "push" onto the caller's stack, "drop", or "instance" (push `then_value` instead, as
    after `__init__`). `generator` is set while the frame runs as the body of one. `namespace` is the local namespace of
    a class body. `tick` is the number of its last instruction after which another frame was on top.

    What refers to a frame keeps its variables alive, as in CPython: exceptions do, by their tracebacks. One that has
    `ended` refers to the frame that it was called from, `back`. `snapshot` is what `locals()` has answered, where that
    is the same dict each time.
    """

    __slots__ = (
        "back",
        "code",
        "ended",
        "exceptions",
        "function",
        "generator",
        "globals",
        "locals",
        "namespace",
        "pc",
        "snapshot",
        "stack",
        "then",
        "then_value",
        "tick",
    )

    def __init__(self, code: Code, namespace: dict[str, Any], local_values: list[Any], function: Any = None) -> None:
        self.code = code
        self.globals = namespace
        self.locals = local_values
        self.function = function
        self.pc = 0
        self.stack: list[Any] = []
        self.exceptions: list[Any] = []
        self.generator: Generator | None = None
        self.namespace: dict[str, Any] | None = None
        self.then = "push"
        self.then_value: Any = None
        self.tick = 0
        self.back: Frame | types.FrameType | None = None
        self.ended = False
        self.snapshot: dict[str, Any] | None = None

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

    def as_locals(self, variables: dict[str, Any]) -> dict[str, Any]:
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

    def delegate(self) -> Any:
        """What the suspended body of a generator yields from, or None."""
        ops, args = self.code.ops, self.code.args
        return self.stack[-1] if ops[self.pc] == "JUMP" and ops[args[self.pc]] == "SEND" else None

    def end_delegation(self, value: Any) -> None:
        """What it yields from has returned `value`."""
        self.stack.append(value)
        self.pc = self.code.args[self.code.args[self.pc]]


class Generator:
    """A suspended frame that yields. `started`, `running` and `done` as in CPython; `kind`: "generator" or "coroutine".

    CPython runs the `finally` blocks of a suspended generator when its last reference goes; `abandon` is told of that
    while a program is interpreted. `native` is the native generator that a frame on the stack of real frames is the
    body of (see `reified`). `source` says where the generator of the outside world is found that this one stands for;
    the body of a `foreign` one is run by CPython: it cannot be resumed here, and what it holds is not known.
    """

    __slots__ = (
        "__weakref__",
        "abandon",
        "done",
        "foreign",
        "frame",
        "kind",
        "name",
        "native",
        "running",
        "source",
        "started",
    )

    def __init__(self, frame: Frame, name: str, kind: str = "generator") -> None:
        self.frame, self.name, self.kind = frame, name, kind
        self.started = self.running = self.done = self.foreign = False
        self.abandon: Callable[[Generator], None] | None = None
        self.native: Any = None
        self.source: Source | None = None

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


def refuse_drop(value: Any, where: Callable[[], UserFrame | None]) -> None:
    """Something of the outside world no longer holds `value`. Raises Unsupported for a generator from before a break:
    perhaps it held the last reference, which decides what is run.
    """
    if type(value) is Generator and value.source is not None and value.cleans_up():
        raise dropped_generator(where())


def dropped_generator(where: UserFrame | None) -> Unsupported:
    """Says that a generator from before a break may be dropped."""
    reason = "a generator that was made before a break is dropped before its end"
    return Unsupported(reason, where, "use it up or close it", kind="iterator")


def bind(function: types.FunctionType, args: list[Any], kwargs: dict[str, Any] | None) -> list[Any]:
    """The fast locals of a call. Raises TypeError as CPython does when the arguments do not fit."""
    code = function.__code__
    argcount = code.co_argcount
    slots: list[Any] = [MISSING] * len(decode(code).locals_names)
    if not kwargs and len(args) == argcount and not code.co_kwonlyargcount and not code.co_flags & 0x0C:
        slots[:argcount] = args
    elif not _bind(function, slots, args, kwargs or {}):
        # CPython knows best what does not fit; it never comes to the body.
        function(*args, **(kwargs or {}))
        raise AssertionError(f"CPython accepts a call of {function.__qualname__} that was refused")
    return slots


def _bind(function: types.FunctionType, slots: list[Any], args: list[Any], kwargs: dict[str, Any]) -> bool:
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
    extra: dict[str, Any] | None = None
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
    return _bind_defaults(function, slots, total)


def _bind_defaults(function: types.FunctionType, slots: list[Any], total: int) -> bool:
    code = function.__code__
    defaults = function.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    keyword_defaults = function.__kwdefaults__ or {}
    for i in range(total):
        if slots[i] is MISSING:
            if first <= i < code.co_argcount:
                slots[i] = defaults[i - first]
            elif i >= code.co_argcount and code.co_varnames[i] in keyword_defaults:
                slots[i] = keyword_defaults[code.co_varnames[i]]
            else:
                return False
    return True
