"""What capture does by the user's will: functions that are never captured, breaks that are errors, output that waits
until the graph has run.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.config import config
from bolide.dynamo.disabling import set_break_is_error
from bolide.dynamo.frames import Frame
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.state import state
from bolide.dynamo.values.kinds import CONSTANT_TYPES
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor


def break_is_error(vm: Machine) -> bool:
    """Whether a break where the machine stands is an error."""
    return bool(vm.memory.get(set_break_is_error, state.break_is_error))


def is_disabled(function: types.FunctionType) -> bool:
    """Whether a function is marked never to be captured, by `disable` or by torch's."""
    marks = function.__dict__
    if "_bolide_disabled" in marks or marks.get("_torchdynamo_disable"):
        return True
    return function.__name__ == "graph_break" and function.__module__ == "torch._dynamo.decorators"


def refuse_disabled(vm: Machine, function: types.FunctionType) -> None:
    """Raises Unsupported for a function that is never captured."""
    if is_disabled(function):
        name = f"{function.__qualname__}(...)"
        raise Unsupported("a function that is never compiled is called", vm.where(), kind="disabled", operation=name)


def waits(vm: Machine, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any] | None) -> bool:
    """Put a call for output off until the graph has run, if the user allows that and what it shows can be kept as it is
    now.
    """
    if function not in config.reorderable_logging_functions:
        return False
    try:
        kept = [_kept(arg) for arg in args]
        named = {key: _kept(value) for key, value in (kwargs or {}).items()}
    except TypeError:
        return False
    vm.deferred.append((function, kept, named))
    return True


def _kept(value: Any) -> Any:
    """A value that later writes do not reach. Raises TypeError for an object."""
    cls = type(value)
    if cls is TracedTensor:
        return value.clone()
    if cls in (list, tuple):
        return cls([_kept(item) for item in value])
    if cls is dict:
        return {key: _kept(item) for key, item in value.items()}
    if cls not in CONSTANT_TYPES:
        raise TypeError
    return value


def check_assertion(condition: Any, args: tuple[Any, ...]) -> None:
    """An ``assert`` of the program, made when the graph has run."""
    if not condition:
        raise AssertionError(*args)


def supposed(vm: Machine, condition: torch.SymBool, message: str, error: str) -> bool:
    """Whether a condition on symbols holds; one on data is checked in the graph."""
    vm.trace.where = vm.where()
    return bool(condition.node.env.suppose(condition.node.expr, message, error))


def asserts(vm: Machine, frame: Frame, condition: Any) -> bool:
    """Whether the branch that the top frame is at, data deciding, is that of an ``assert`` with a constant message;
    if so the condition is looked at when the graph has run, before any other effect; one on numbers that are data, in
    the graph.
    """
    code, at = frame.code, frame.pc
    if not config.rewrite_assert_with_torch_assert or code.ops[at] != "LOAD_ASSERTION_ERROR":
        return False
    if type(condition) is not torch.SymBool and (type(condition) is not TracedTensor or condition.numel() != 1):
        return False
    rest = code.ops[at + 1 : at + 4]
    if rest[0] == "RAISE_VARARGS":
        message: tuple[Any, ...] = ()
    elif rest[0] == "LOAD_CONST" and rest[1].startswith("CALL") and rest[2] == "RAISE_VARARGS":
        message = (code.args[at + 1],)
    else:
        return False
    if config.do_not_emit_runtime_asserts:
        return True
    if type(condition) is torch.SymBool:
        if message and type(message[0]) is not str:
            return False
        return supposed(vm, condition, *message or ("",), error="AssertionError")
    vm.memory.setdefault(check_assertion, []).append((condition.detach().clone(), message))
    return True
