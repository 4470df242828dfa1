"""Reified frames: everything a suspended Python frame is, as plain data."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from bolide.dynamo.bytecode import Code, decode
from bolide.dynamo.values.outside import MISSING

_BUILTINS = vars(builtins)


class Frame:
    """One frame of the interpreted program.

    `pc` is the index of the next instruction; `locals` are CPython's fast locals (variables, cells, free variables),
    MISSING when unbound; `exceptions` are the handled exceptions (`PUSH_EXC_INFO`); `then` says what becomes of the
    result (see `Machine.finish`): "push" onto the caller's stack, "drop", or "instance" (push `then_value` instead, as
    after `__init__`). `generator` is set while the frame runs as the body of one. `namespace` is the local namespace of a
    class body. `tick` is the number of its last instruction after which another frame was on top.
    """

    __slots__ = (
        "code",
        "exceptions",
        "function",
        "generator",
        "globals",
        "locals",
        "namespace",
        "pc",
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

    def delegate(self) -> Any:
        """What the suspended body of a generator yields from, or None."""
        ops, args = self.code.ops, self.code.args
        return self.stack[-1] if ops[self.pc] == "JUMP" and ops[args[self.pc]] == "SEND" else None


class Generator:
    """A suspended frame that yields. `started`, `running` and `done` as in CPython; `kind`: "generator" or "coroutine".

    CPython runs the `finally` blocks of a suspended generator when its last reference goes; `abandon` is what does that
    while a program is interpreted. `native` is the native generator that a frame on the stack of real frames is the
    body of (see `reified`)."""

    __slots__ = ("__weakref__", "abandon", "done", "frame", "kind", "name", "native", "running", "started")

    def __init__(self, frame: Frame, name: str, kind: str = "generator") -> None:
        self.frame, self.name, self.kind = frame, name, kind
        self.started = self.running = self.done = False
        self.abandon: Callable[[Generator], None] | None = None
        self.native: Any = None

    def finish(self) -> None:
        """The body has come to its end; what it held is let go."""
        self.done, self.running, self.native = True, False, None
        self.frame.generator, self.frame.locals, self.frame.stack = None, [], []

    def __del__(self) -> None:
        if self.abandon is not None and self.started and not (self.done or self.running):
            if self.frame.code.handler(self.frame.pc - 1) is not None:
                self.abandon(self)


def bind(function: types.FunctionType, args: list[Any], kwargs: dict[str, Any] | None) -> list[Any]:
    """The fast locals of a call. Raises TypeError as CPython does when the arguments do not fit."""
    code = function.__code__
    decoded = decode(code)
    argcount = code.co_argcount
    given = len(args)
    slots: list[Any] = [MISSING] * len(decoded.locals_names)
    if kwargs is None and given == argcount and not code.co_kwonlyargcount and not code.co_flags & 0x0C:
        slots[:argcount] = args
        return slots
    names = code.co_varnames
    total = argcount + code.co_kwonlyargcount
    slots[: min(given, argcount)] = args[:argcount]
    position = total
    if code.co_flags & 0x04:
        slots[position] = tuple(args[argcount:])
        position += 1
    elif given > argcount:
        raise TypeError(f"{function.__qualname__}() takes {argcount} positional arguments but {given} were given")
    extra: dict[str, Any] | None = None
    if code.co_flags & 0x08:
        extra = slots[position] = {}
    if kwargs:
        _bind_keywords(function, slots, kwargs, extra, names[code.co_posonlyargcount : total], code.co_posonlyargcount)
    _bind_defaults(function, slots, names, argcount, total)
    return slots


def _bind_keywords(
    function: types.FunctionType,
    slots: list[Any],
    kwargs: dict[str, Any],
    extra: dict[str, Any] | None,
    names: tuple[str, ...],
    first: int,
) -> None:
    for name, value in kwargs.items():
        if name in names:
            index = first + names.index(name)
            if slots[index] is not MISSING:
                raise TypeError(f"{function.__qualname__}() got multiple values for argument '{name}'")
            slots[index] = value
        elif extra is not None:
            extra[name] = value
        else:
            raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument '{name}'")


def _bind_defaults(
    function: types.FunctionType, slots: list[Any], names: tuple[str, ...], argcount: int, total: int
) -> None:
    defaults = function.__defaults__ or ()
    first = argcount - len(defaults)
    keyword_defaults = function.__kwdefaults__ or {}
    missing = []
    for i in range(total):
        if slots[i] is MISSING:
            if i < argcount and i >= first:
                slots[i] = defaults[i - first]
            elif i >= argcount and names[i] in keyword_defaults:
                slots[i] = keyword_defaults[names[i]]
            else:
                missing.append(names[i])
    if missing:
        raise TypeError(f"{function.__qualname__}() missing required arguments: {', '.join(map(repr, missing))}")


def load_builtin(namespace: dict[str, Any], name: str) -> Any:
    """The builtin `name` as seen from module globals, or MISSING."""
    return _BUILTINS.get(name, MISSING)
