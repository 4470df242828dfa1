"""Calls that find the user's frames above them, where the frames that they come from are no longer, or not yet, real
ones: `warnings.warn(stacklevel=2)`, `sys._getframe`, a logger that says who calls it.
"""

from __future__ import annotations

import collections
import enum
import functools
import keyword
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bolide.dynamo.program.kinds import MISSING, contents_of
from bolide.dynamo.world.frames import Frame
from bolide.support.caches import on_reset

_CALLED = 987654321  # stands for what is called

_NAMES = ("NamedTuple", "TypedDict", "TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")
_MAKERS = [type.__new__, collections.namedtuple, *(getattr(typing, name) for name in _NAMES if hasattr(typing, name))]
_MAKER_IDS = frozenset(map(id, _MAKERS))


def makes_classes(function: object) -> bool:
    """Whether a call makes a class, or what stands for one, whose ``__module__`` is that of the frame which calls."""
    if isinstance(function, type):
        return issubclass(function, type) or isinstance(function, enum.EnumMeta) or id(function) in _MAKER_IDS
    return id(function) in _MAKER_IDS


class Caller(NamedTuple):
    """A frame of the user's that calls something at a line: of code of this name, in a file."""

    file: str
    name: str
    qualname: str
    line: int
    namespace: dict[str, Any]


def callers_of(frames: Iterable[Frame]) -> tuple[Caller, ...]:
    """Where frames stand, but for those of bolide's own functions."""
    return tuple(caller_of(frame) for frame in frames if not frame.code.ours)


def caller_of(frame: Frame) -> Caller:
    """Where a frame stands."""
    code, line = frame.code, frame.code.lines[max(frame.pc - 1, 0)]
    return Caller(code.code.co_filename, code.code.co_name, code.qualname, line, frame.globals)


def variables(frame: Frame) -> dict[str, Any]:
    """What `locals()` says of a frame of real values."""
    values = {}
    for name, value in zip(frame.code.locals_names, frame.locals, strict=True):
        if type(value) is types.CellType and (name in frame.code.cellvars or name in frame.code.freevars):
            value = contents_of(value)
        if value is not MISSING:
            values[name] = value
    return values


@dataclass(frozen=True, eq=False)
class Within:
    """`function`, called from frames that look like `callers` (outermost first), without their variables."""

    function: Callable[..., Any]
    callers: tuple[Caller, ...]

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        calls = [functools.partial(self.function, *args, **kwargs)]
        for caller in reversed(self.callers):
            calls.append(_from(caller, {}, calls[-1]))
        return _call_outermost(calls)


def call_within(frames: Sequence[Frame], function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function from frames that look like `frames`, outermost first, whose values are real."""
    if not callable(function):
        return function(*args, **kwargs)  # raises, by its own name
    calls = [functools.partial(function, *args, **kwargs)]
    for frame in reversed(frames):
        if not frame.code.ours:
            calls.append(_from(caller_of(frame), variables(frame), calls[-1]))
    return _call_outermost(calls)


def _call_outermost(calls: list[functools.partial[Any]]) -> Any:
    """Make the last call, which makes the others. They are constants of code, where the garbage collector does not see
    them: what they hold is taken from them."""
    try:
        return calls[-1]()
    finally:
        for call in calls:
            call.__setstate__((_nothing, (), {}, None))  # type: ignore[attr-defined]


def _nothing() -> None:
    pass


def _from(caller: Caller, values: dict[str, Any], call: functools.partial[Any]) -> functools.partial[Any]:
    """`call`, called from a frame with the name, line, globals and variables of the user's."""
    names = tuple(name for name in values if name.isidentifier() and not keyword.iskeyword(name))
    code = _stand_in(*caller[:4], names)
    constants = tuple(call if constant == _CALLED else constant for constant in code.co_consts)
    function = types.FunctionType(code.replace(co_consts=constants), caller.namespace)
    return functools.partial(function, *(values[name] for name in names))


@functools.lru_cache(1 << 12)
def _stand_in(file: str, name: str, qualname: str, line: int, names: tuple[str, ...]) -> types.CodeType:
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a number is not callable
        exec(f"def stub({', '.join(names)}): return {_CALLED}()", scope)
    code: types.CodeType = scope["stub"].__code__
    named = {"co_qualname": qualname} if hasattr(code, "co_qualname") else {}
    return code.replace(co_firstlineno=line, co_name=name, co_filename=file, **named)  # type: ignore[arg-type]


on_reset(_stand_in.cache_clear)
