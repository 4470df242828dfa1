"""What capture does by the user's will: functions that are never captured, breaks that are errors, output that waits
until the graph has run.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from bolide.dynamo.config import config
from bolide.dynamo.disabling import set_break_is_error
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.state import state
from bolide.dynamo.values.outside import CONSTANT_TYPES
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
