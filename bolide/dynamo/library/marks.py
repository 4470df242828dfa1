"""What users say about functions: how capture treats calls of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.overrides import handle_torch_function

from bolide.dynamo.library.handlers import Args, Kwargs
from bolide.dynamo.machine.calls import INTERCEPTS, Intercept, intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.native_calls import refuse_wrapper
from bolide.dynamo.machine.stand_ins import SYMBOLIC, concrete
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES
from bolide.dynamo.state import is_exporting, state
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor
from bolide.tracing.meta import found_in
from bolide.tracing.recording import folding

T = TypeVar("T", bound=Callable[..., Any])


def allow_in_graph(fn: Any) -> Any:
    """Calls of `fn` (or of each function of a list) are not looked into: capture runs them on traced tensors and writes
    the call into the graph. Python effects and branches inside happen once, at capture, without guards; backends trace
    through the call.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(each) for each in fn]
    _check(fn)
    _intercept(fn, functools.partial(_in_graph, fn))
    return fn


def nonstrict_trace(traceable_fn: T) -> T:
    """As `allow_in_graph` for one function: PyTorch's name for such calls. Arguments may be values of any kind that the
    program has made, containers of tensors among them; objects of the outside world are refused.
    """
    allow_in_graph(traceable_fn)
    return traceable_fn


def _in_graph(fn: Callable[..., Any], vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    given = [*args, *kwargs.values()]
    if any(type(value) is Outside for value in given):
        raise Unsupported(
            "a function that is allowed in the graph is given an object of the outside world",
            vm.where(),
            kind="native_call",
            operation=f"{getattr(fn, '__qualname__', fn)}(...)",
        )
    vm.trace.where = vm.where()
    if torch._C._is_torch_function_mode_enabled():  # a graph of torch's functions is recorded: as one call
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        result = handle_torch_function(fn, tensors, *args, **kwargs)
    else:
        result = fn(*args, **kwargs)
    for made in found_in(result, torch.Tensor):
        refuse_wrapper(vm, fn, made)
    return result


def assume_constant_result(fn: T) -> T:
    """Calls of `fn` are made once, at capture, with real arguments; the result is a constant of the compiled version,
    without a guard.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    _check(fn)
    _intercept(fn, functools.partial(constant_result, fn))
    return fn


def constant_result(fn: Callable[..., Any], vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """The result of a call whose result is assumed to be constant."""
    operation = f"{getattr(fn, '__qualname__', fn)}(...)"
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        real = [_present(vm, value, operation) for value in args]
        named = {key: _present(vm, value, operation) for key, value in kwargs.items()}
        result = fn(*real, **named)
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
    found = None
    if isinstance(value, TracedTensor):
        found = folding.present_tensor(vm.trace.constants, value, vm.world.inputs.tensors)
    if found is None:
        reason = "the result of a function is assumed to be constant, of a tensor that cannot be computed twice"
        raise Unsupported(reason, vm.where(), "give it Python values only", "native_call", operation)
    return found


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

        def substitute(vm: Machine, args: Args, kwargs: Kwargs) -> object:
            return Call(traceable_fn, args, kwargs)

        _intercept(original_fn, substitute)
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
    """Says that `fn` is called often, with equal graphs. Such calls need no mark here: equal kernels are compiled once
    anyway. Returns `fn`.
    """
    _check(fn)
    return fn


def disallow_in_graph(fn: Any) -> Any:
    """Calls of `fn` (or of each function of a list) are breaks: they are made for real, with real values.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    return _refusing(fn, "a function that is not allowed in a graph is called", final=False)


def forbid_in_graph(fn: Any) -> Any:
    """Calls of `fn` (or of each function of a list) in captured code are errors.

    Returns `fn`. Raises TypeError for what cannot be called.
    """
    return _refusing(fn, "a function that is forbidden in a graph is called", final=True)


def _refusing(fn: Any, reason: str, final: bool) -> Any:
    if isinstance(fn, (list, tuple)):
        return [_refusing(each, reason, final) for each in fn]
    _check(fn)

    def refuse(vm: Machine, args: Args, kwargs: Kwargs) -> object:
        name = f"{getattr(fn, '__qualname__', fn)}(...)"
        error = Unsupported(reason, vm.where(), "remove the mark", "disabled", name)
        error.final = final
        raise error

    _intercept(fn, refuse)
    return fn


@intercept(is_exporting, torch.compiler.is_exporting)
def _is_exporting(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return state.exporting


def cudagraph_mark_step_begin() -> None:
    """Says that a new step begins, so that the memory of CUDA graphs' results may be used again. Nothing to do on
    CPUs.
    """


def _intercept(fn: Any, handler: Intercept) -> None:
    """The last mark of a function counts."""
    forget([fn])
    intercept(fn)(handler)


def forget(functions: Iterable[Callable[..., Any]]) -> None:
    """Take the marks of functions back."""
    for fn in functions:
        INTERCEPTS.pop(fn, None)


def _check(fn: Any) -> None:
    if not callable(fn):
        raise TypeError(f"expected a function, not {fn!r}")
