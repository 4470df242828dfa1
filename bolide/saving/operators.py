"""Operators that a program registers from Python (`torch.library.custom_op`): what another process must have the same
of, where a graph with one was derived. Its derivative and its shapes are functions that ran while that was made."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

import torch

from bolide.dynamo.program.kinds import (
    MISSING,
    contents_of,
    is_constant,
    is_library_class,
    is_library_file,
    is_library_namespace,
)
from bolide.saving.contents import CannotSave, Value, content_of

_KNOWN = ("aten", "bolide")
"""Namespaces of operators whose behaviour is known by the versions of PyTorch and of bolide."""
_MOST = 100  # functions of one operator


def content_of_operator(operator: torch._ops.OpOverload) -> str:
    """What tells an operator from another one of its name; "" where versions do. Raises CannotSave where nothing
    does."""
    if operator.namespace in _KNOWN:
        return ""
    defined = torch._library.custom_ops.OPDEFS.get(operator._schema.name)
    if defined is None:
        raise CannotSave(f"{operator} is called, which may be another one in another process")
    parts = [str(operator._schema)]
    seen: dict[int, types.FunctionType] = {}
    waiting = [*_functions_in(list(vars(defined).values()))]
    while waiting:
        function = waiting.pop(0)
        if id(function) in seen:
            continue
        if len(seen) >= _MOST:
            raise CannotSave(f"{operator} calls too many functions")
        seen[id(function)] = function
        parts.append(content_of(function))
        for name, value in _read_by(function):
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif is_constant(value):
                parts.append(f"{name} {content_of(value)}")
            elif not _is_trusted(value):
                raise CannotSave(f"{operator} reads {name}, which may be another one in another process")
    return "\n".join(parts)


def _functions_in(values: list[Value]) -> Iterator[types.FunctionType]:
    for value in values:
        if isinstance(value, types.FunctionType):
            yield value
        elif type(value) is dict:
            yield from _functions_in(list(value.values()))


def _read_by(function: types.FunctionType) -> Iterator[tuple[str, Value]]:
    """What a function, and code nested in it, reads of its closure and its globals; of one of a library's only the
    functions that it stands for."""
    code = function.__code__
    trusted = is_library_file(code.co_filename)
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        held = contents_of(cell)
        if isinstance(held, types.FunctionType) or not (trusted or held is MISSING):
            yield name, held
    waiting = [] if trusted else [code]
    while waiting:
        code = waiting.pop()
        waiting += [part for part in code.co_consts if type(part) is types.CodeType]
        for name in sorted({step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}):
            if (value := function.__globals__.get(name, MISSING)) is not MISSING:
                yield name, value


def _is_trusted(value: Value) -> bool:
    """Whether a value is a library's, or says what it is by itself."""
    if isinstance(value, types.ModuleType):
        return is_library_namespace(vars(value))
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, types.BuiltinFunctionType)):
        return True
    return is_library_class(value if isinstance(value, type) else type(value))
