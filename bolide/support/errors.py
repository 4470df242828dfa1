"""Every exception and warning of bolide. A message always says where the user's code is, which operation it was, why,
and what to do about it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from linecache import getline
from typing import Any

from bolide.support.kinds import KINDS, BreakKind


@dataclass(frozen=True, slots=True)
class UserFrame:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'

    @property
    def text(self) -> str:
        """The line itself, "" when the file cannot be read."""
        return getline(self.file, self.line).strip()


class BolideError(RuntimeError):
    """Base of all errors that bolide raises on its own account; a RuntimeError, as those of PyTorch's compiler are."""


class BolideWarning(UserWarning):
    """Something runs in eager, or more slowly than it could; the result is right."""


class _Watch(threading.local):
    """`refusals`: those that were made in this thread since the native code was called that is running now."""

    refusals: list[Unsupported] | None = None


_watch = _Watch()


class Unsupported(BolideError):
    """A part of the user's program that cannot be captured.

    `reason` says why, in one clause; `operation` is what was being done (`print(...)`, `Tensor.item`); `where` is the
    user's line; `remedy` is advice.
    `kind` names a `BreakKind`, whose scope says how dispatch treats it: ``user`` (the user's own code raised;
    ``__cause__`` is the exception, eager runs so that it surfaces with its own traceback), ``call`` (only this call
    cannot be compiled) or ``program``. `final`: breaks were not allowed where it was met, so it is the user's error.
    """

    def __init__(
        self,
        reason: str,
        where: UserFrame | None = None,
        remedy: str | None = None,
        kind: str = "unsupported",
        operation: str | None = None,
    ) -> None:
        self.reason = reason
        self.where = where
        self.remedy = remedy
        self.kind = kind
        self.operation = operation
        self.final = False
        super().__init__(reason)
        if _watch.refusals is not None:
            _watch.refusals.append(self)

    @property
    def about(self) -> BreakKind:
        """The entry of this error's kind in the registry."""
        return KINDS[self.kind]

    def __str__(self) -> str:
        return describe("cannot capture", self.kind, self.reason, self.operation, self.where, self.remedy)


class FixedSizesNeeded(Unsupported):
    """A part of the program that torch computes only if sizes are numbers: it is captured again with this call's."""


def insistent(call: Callable[..., object], *args: object) -> Any:
    """What `call` gives. When it answers, or raises something else, although something in it was refused, that refusal
    is raised: nobody in between may catch it (an ``except Exception`` of a library, C code that clears errors).
    """
    outer = _watch.refusals
    refusals = _watch.refusals = []
    refusal = None
    try:
        return call(*args)
    except Unsupported as error:
        refusal = error
        raise
    finally:
        _watch.refusals = outer
        if refusals:
            if outer is not None:
                outer += refusals
            swallowed = None if refusal is not None else refusals[0]
            refusals.clear()  # a refusal's traceback leads to this frame: no cycle may keep the program's values alive
            refusal = None
            if swallowed is not None:
                try:
                    raise swallowed from None
                finally:
                    del swallowed


def forgive(refusal: Unsupported) -> None:
    """What was refused has been done in another way."""
    if _watch.refusals is not None and refusal in _watch.refusals:
        _watch.refusals.remove(refusal)


def describe(
    what: str, kind: str, reason: str, operation: str | None, where: UserFrame | None, remedy: str | None
) -> str:
    """The lines that every message about something not captured has; the remedy is the kind's unless one is given."""
    about = KINDS[kind]
    lines = [f"{what}: {reason} [{about.code}]"]
    lines += [f"  operation: {operation}"] if operation else []
    if where is not None:
        lines += [f"  at: {where}"]
        lines += [f"    {where.text}"] if where.text else []
    lines += [f"  remedy: {remedy or about.remedy}"] if about.scope != "user" else []
    return "\n".join(lines)


class Refuted(BolideError):
    """Something that a compiled program takes for true is not so in this call. It is raised before any effect: the call
    is to be made in eager.
    """


class CompileError(BolideError):
    """A stage failed on a captured program: a fault of `maker`, of bolide or of a backend, not of the user.
    ``__cause__`` is the original exception. `recorded`: a record of it was written (`replay_record_enabled`).
    """

    def __init__(self, stage: str, function: str, cause: BaseException, maker: str = "bolide") -> None:
        self.stage = stage
        self.function = function
        self.recorded = False
        self.remedy = None if maker == "bolide" else f"use another backend, or mend {maker}"
        super().__init__(f"{maker} failed to compile {function} ({stage}): {type(cause).__name__}: {cause}")
        self.__cause__ = cause


class HalfwayError(BolideError):
    """A fault of bolide's while it was `doing` something for `function` that cannot be done again in eager.
    ``__cause__`` is the original exception."""

    def __init__(self, doing: str, function: str, cause: BaseException) -> None:
        self.doing, self.function = doing, function
        reason = f"{type(cause).__name__}: {cause}"
        super().__init__(describe(f"bolide failed in {function} ({doing})", "halfway", reason, None, None, None))
        self.__cause__ = cause


class Leak(BolideError):
    """With `detect_leaks`: something that stands for a value of the program while it is captured is there when the call
    of `function` is over. `way`: where, from the object to what holds it."""

    def __init__(self, function: str, way: str) -> None:
        self.function, self.way = function, way
        super().__init__(f"a call of {function} leaves behind what only its capture knows:\n  {way}")


class WrongResult(BolideError):
    """An operator, or a hook, gave a tensor that is not what was compiled for."""


class RecompileError(BolideError):
    """A guard failed while `error_on_recompile` was set, or the last version that may be compiled does not fit while
    `fail_on_recompile_limit_hit` was."""


class ConstraintError(BolideError):
    """A size that was marked dynamic has to be one number for the program to work, or one that was marked unbacked
    decides what the program does, or the program assumes more of one than `dynamic_shapes` says. `value`: that number,
    or the condition. `name`: what `dynamic_shapes` calls the size; `shape_id`: what its mark says of which ones are
    equal."""

    def __init__(
        self,
        size: str,
        value: int | str,
        where: UserFrame | None,
        name: str | None = None,
        shape_id: object = None,
    ) -> None:
        self.size, self.value, self.where, self.shape_id = size, value, where, shape_id
        if isinstance(value, int):
            lines = [f"{size} was marked dynamic, but the program works for {size} == {value} only"]
            remedy = (
                "write that line without the size's value, mark it with maybe_mark_dynamic, or set "
                "bolide.dynamo.config.allow_ignore_mark_dynamic"
            )
        elif name is not None:
            lines = [f"{size} is {name!r} in dynamic_shapes, but the program works where {value} only"]
            remedy = (
                f"say so there, as with Dim({name!r}, min=..., max=...) or one name for equal sizes, or use Dim.AUTO"
            )
        else:
            lines = [f"{size} was marked unbacked, but the program asks whether {value}"]
            remedy = (
                "state before that line what holds for all sizes, as in torch._check(...), or mark it with mark_dynamic"
            )
        if where is not None:
            lines += [f"  at: {where}", f"    {where.text}"]
        super().__init__("\n".join([*lines, f"  remedy: {remedy}"]))


def unknown_name(what: str, name: object, valid: Iterable[str]) -> str:
    """The message for a name that is not one of `valid`, with the nearest ones offered.

    >>> unknown_name("mode", "defualt", ["default", "max-autotune"])
    "unknown mode 'defualt'; did you mean 'default'?"
    """
    names = sorted(valid)
    near = get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"valid: {', '.join(map(repr, names))}"
    return f"unknown {what} {name!r}; {hint}"
