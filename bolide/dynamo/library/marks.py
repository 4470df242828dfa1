"""What users say about functions and regions: how capture treats calls of them."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import torch
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import EventList
from torch.overrides import handle_torch_function
from torch.profiler import profiler
from torch.utils import _pytree as pytree

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_each, refuse
from bolide.dynamo.machine.breaking import BREAK_IS_ERROR
from bolide.dynamo.machine.calls import INTERCEPTS, NATIVE, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, Slot
from bolide.dynamo.machine.native_calls import refuse_wrapper
from bolide.dynamo.machine.stand_ins import SYMBOLIC, concrete
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES
from bolide.dynamo.state import is_exporting, state
from bolide.dynamo.switches import disable, graph_break, set_break_is_error
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor
from bolide.tracing.meta import found_in
from bolide.tracing.recording import folding

T = TypeVar("T", bound=Callable[..., Any])
MARKED: set[object] = set()
"""The functions that the program has marked."""


def allow_in_graph(fn: Any) -> Any:
    """Calls of `fn` (or of each function of a list) are not looked into: capture runs them on traced tensors and writes
    the call into the graph. Python effects and branches inside happen once, at capture, without guards; backends trace
    through the call.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    return _mark(fn, _in_graph)


def nonstrict_trace(traceable_fn: T) -> T:
    """As `allow_in_graph` for one function: PyTorch's name for such calls. Arguments may be values of any kind that the
    program has made, containers of tensors among them; objects of the outside world are refused.
    """
    allow_in_graph(traceable_fn)
    return traceable_fn


def _in_graph(fn: Callable[..., Any], vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    given = [*args, *kwargs.values()]
    if any(type(value) is Outside for value in given):
        reason = "a function that is allowed in the graph is given an object of the outside world"
        raise vm.unsupported(reason, "native_call", operation=_call_of(fn))
    vm.trace.where = vm.where()
    if torch._C._is_torch_function_mode_enabled():  # a graph of torch's functions is recorded: as one call
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        result = handle_torch_function(fn, tensors, *args, **kwargs)
    else:
        try:
            result = fn(*args, **kwargs)
        except RuntimeError as error:
            if "with symbolic sizes/strides" not in str(error):
                raise
            reason = "code in C++ asks for sizes as numbers, and they are symbolic here"
            raise vm.unsupported(reason, "native_call", operation=_call_of(fn)) from error
    for tensor in found_in(result, torch.Tensor):
        refuse_wrapper(vm, fn, tensor)
    return result


def assume_constant_result(fn: T) -> T:
    """Calls of `fn` are made once, at capture, with real arguments; the result is a constant of the compiled version,
    without a guard.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    _check(fn)
    _mark(fn, constant_result)
    return fn


def constant_result(fn: Callable[..., Any], vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """The result of a call whose result is assumed to be constant."""
    operation = _call_of(fn)
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        values = [_present(vm, value, operation) for value in args]
        named = {key: _present(vm, value, operation) for key, value in kwargs.items()}
        result = fn(*values, **named)
        given = {id(leaf) for leaf in pytree.tree_leaves((values, named)) if type(leaf) is torch.Tensor}
        if any(id(leaf) in given for leaf in pytree.tree_leaves(result)):  # that would be the argument of each call
            result = pytree.tree_map(lambda leaf: leaf.detach().clone() if id(leaf) in given else leaf, result)
    if type(result) in CONSTANT_TYPES:
        return result
    return vm.world.wrap(result, Source("object", None, None, result))


def _present(vm: Machine, value: Any, operation: str) -> Any:
    """What a value of the program is in this call."""
    cls = type(value)
    if cls is Outside:
        return value.real
    if cls in (list, tuple):
        return cls([_present(vm, item, operation) for item in value])
    if cls is dict:
        return {key: _present(vm, item, operation) for key, item in value.items()}
    if cls in SYMBOLIC:
        return concrete(vm, value)
    if not isinstance(value, torch.Tensor):
        return value
    data = None
    if isinstance(value, TracedTensor):
        data = folding.present_tensor(vm.trace.constants, value, vm.world.inputs.tensors)
    if data is None:
        reason = "the result of a function is assumed to be constant, of a tensor that cannot be computed twice"
        raise vm.unsupported(reason, "native_call", "give it Python values only", operation)
    return data


def substitute_in_graph(
    original_fn: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
    is_embedded_type: bool = False,
) -> Callable[[T], T]:
    """A decorator: capture interprets the decorated Python function wherever `original_fn`, which may be written in C,
    is called. The other arguments are PyTorch's; constants are always folded here.

    Raises TypeError for what cannot be called, and when the parameters differ by name or kind (unless
    `skip_signature_check`).
    """
    _check(original_fn)

    def register(traceable_fn: T) -> T:
        _check(traceable_fn)
        if not skip_signature_check:
            _check_signatures(original_fn, traceable_fn)
        _mark(original_fn, lambda _, vm, args, kwargs: Call(traceable_fn, args, kwargs))
        return traceable_fn

    return register


def _check_signatures(original_fn: Callable[..., Any], traceable_fn: Callable[..., Any]) -> None:
    try:
        wanted = inspect.signature(original_fn)
    except ValueError:
        return  # a function in C without a text signature
    shapes = [[(p.name, p.kind) for p in s.parameters.values()] for s in (wanted, inspect.signature(traceable_fn))]
    if shapes[0] != shapes[1]:
        raise TypeError(
            f"{original_fn} has the signature {wanted}, its substitute {inspect.signature(traceable_fn)}; make them "
            "equal or pass skip_signature_check=True"
        )


def nested_compile_region(fn: T) -> T:
    """Says that `fn` is called often, with equal graphs, for which code is generated once: it is marked as by torch's
    function of this name. Returns what stands for it. Raises TypeError for what is no function.
    """
    _check(fn)
    marked: T = torch.compiler.nested_compile_region(fn)
    return marked


def disallow_in_graph(fn: Any) -> Any:
    """Calls of `fn` (or of each function of a list) are breaks: they are made for real, with real values.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    return _mark(fn, functools.partial(_refuse, "a function that is not allowed in a graph is called", False), True)


def forbid_in_graph(fn: Any) -> Any:
    """Calls of `fn` (or of each function of a list) in captured code are errors.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    return _mark(fn, functools.partial(_refuse, "a function that is forbidden in a graph is called", True), True)


def _refuse(reason: str, final: bool, fn: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> NoReturn:
    error = vm.unsupported(reason, "disabled", "remove the mark", _call_of(fn))
    error.final = final
    raise error


def _call_of(fn: Callable[..., object]) -> str:
    return f"{getattr(fn, '__qualname__', fn)}(...)"


intercept(is_exporting, torch.compiler.is_exporting)(lambda vm, args, kwargs: state.exporting)


def cudagraph_mark_step_begin() -> None:
    """Says that a new step begins, so that the memory of the results of CUDA graphs is used again, also where a
    backward pass is still to come. Captured code breaks here.
    """
    state.steps += 1


intercept(cudagraph_mark_step_begin)(
    functools.partial(_refuse, "a step of CUDA graphs begins here", False, cudagraph_mark_step_begin)
)


def _mark(fn: Any, handler: Callable[..., object], breaks: bool = False) -> Any:
    """Enter a handler, which is told the function, for `fn` or each of a list; the last mark of a function counts.
    `breaks`: it never answers."""
    if isinstance(fn, (list, tuple)):
        return [_mark(each, handler, breaks) for each in fn]
    _check(fn)
    forget([fn])
    intercept_each([fn])(handler if breaks else functools.partial(_unseen, handler))
    if not str(getattr(fn, "__module__", "")).startswith("bolide"):
        MARKED.add(fn)
    return fn


def _unseen(handler: Callable[..., object], fn: Any, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """The answer of a handler; what `fn` does is not guarded, so another process may not rely on it."""
    if fn in MARKED:
        reason = f"{_call_of(fn)} is called, which is marked (allow_in_graph, …): its code is not looked at"
        vm.world.guards.reliance.reasons.append((reason, vm.where()))
    return handler(fn, vm, args, kwargs)


def forget(functions: Iterable[Callable[..., Any]]) -> None:
    """Take the marks of functions back."""
    for fn in functions:
        INTERCEPTS.pop(fn, None)
        MARKED.discard(fn)


def _check(fn: Any) -> None:
    if not callable(fn):
        raise TypeError(f"expected a function, not {fn!r}")


# ---- breaks by the user's will, and those of torch's that always do; regions that hold a native object ---------------


# Context managers that hold a native object, or what is to be put back: only the one that was entered can be left.
HOLDERS = (torch.inference_mode, record_function, warnings.catch_warnings)


def _methods_of(*classes: type) -> list[types.FunctionType]:
    """Methods and getters in Python, but for `__init__`."""
    members = [item.fget if type(item) is property else item for cls in classes for item in vars(cls).values()]
    return [item for item in members if isinstance(item, types.FunctionType) and item.__name__ != "__init__"]


@intercept(graph_break)
def _graph_break(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    message = str(*args, *kwargs.values()) or "a break was asked for"
    raise vm.unsupported(message, "graph_break", operation="graph_break()")


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
