"""Calls that break by the user's will, and those of torch's that always do; regions that hold a native object."""

from __future__ import annotations

import types
import warnings

import torch
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import EventList
from torch.profiler import profiler

from bolide.dynamo.library.handlers import Args, Kwargs, answers, refuse
from bolide.dynamo.machine.breaking import BREAK_IS_ERROR
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.switches import disable, graph_break, set_break_is_error
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported

# Context managers that hold a native object, or what is to be put back: only the one that was entered can be left.
HOLDERS = (torch.inference_mode, record_function, warnings.catch_warnings)


def _methods_of(*classes: type) -> list[types.FunctionType]:
    """Methods and getters in Python, but for `__init__`."""
    found = [item.fget if type(item) is property else item for cls in classes for item in vars(cls).values()]
    return [item for item in found if isinstance(item, types.FunctionType) and item.__name__ != "__init__"]


@intercept(graph_break)
def _graph_break(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    message = str(*args, *kwargs.values()) or "a break was asked for"
    raise Unsupported(message, vm.where(), kind="graph_break", operation="graph_break()")


refuse(
    *(disable.__enter__, disable.__exit__),
    reason="a region that is never compiled",
    kind="disabled",
    operation="with disable()",
)
# A profiler of the process is begun and ended once, and what it has recorded is other data at every call.
refuse(
    *_methods_of(torch.autograd.profiler.profile, profiler.profile, profiler._KinetoProfile, EventList),
    reason="a profiler is used",
    kind="context",
    operation="torch.profiler.profile()",
)
# It traces the function itself and folds what is constant in it, which nothing is here.
refuse(
    torch.func.linearize,
    reason="torch.func.linearize traces its function",
    kind="operator",
    remedy="use torch.func.jvp",
    operation="linearize",
)


@answers(set_break_is_error)
def _set_break_is_error(vm: Machine, value: bool) -> object:
    before = BREAK_IS_ERROR.of(vm)
    BREAK_IS_ERROR.put(vm, value)
    vm.later.calls.append((set_break_is_error, [value], {}))
    return before


_OPEN_RECORDS: Slot[list[tuple[object, record_function]]] = Slot(list)


@answers(record_function.__enter__)
def _begin_record(vm: Machine, record: object) -> object:
    """One of the outside world, as a decorator has, stays as it is: another one is entered in its place."""
    if type(record) is not Outside:
        return NATIVE
    own = record_function(record.real.name)
    own.__enter__()  # type: ignore[no-untyped-call]
    vm.modes.entered.append(own)
    _OPEN_RECORDS.of(vm).append((record.real, own))
    return record


@answers(record_function.__exit__)
def _end_record(vm: Machine, record: object, *error: object) -> object:
    if type(record) is not Outside:
        return NATIVE
    open_records = _OPEN_RECORDS.of(vm)
    if not open_records or open_records[-1][0] is not record.real:
        raise _held(record)
    own = open_records.pop()[1]
    vm.modes.entered.remove(own)
    return own.__exit__(None, None, None)


@intercept(*[method for cls in HOLDERS if cls is not record_function for method in (cls.__enter__, cls.__exit__)])
def _leave_native(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if type(args[0]) is Outside:
        raise _held(args[0])
    return NATIVE


def _held(manager: Outside) -> Unsupported:
    name = f"{manager.cls.__qualname__}.__exit__"
    return Unsupported("a native context is entered or left", kind="context", operation=name)
