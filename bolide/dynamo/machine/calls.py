"""How a call is made: by pushing a frame, by an intercept of our own, or natively on values."""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import logging
import operator
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bolide.dynamo import policy
from bolide.dynamo.bytecode.instructions import skipped
from bolide.dynamo.config import config
from bolide.dynamo.machine import caches
from bolide.dynamo.machine.attributes import load_attribute
from bolide.dynamo.machine.breaking import is_disabled, refuse_disabled, skipped_function, waits
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill
from bolide.dynamo.machine.native_calls import (
    BUILTIN_TYPES,
    HASHABLE,
    drawn_or_refused,
    is_native,
    native,
    refused,
    runs_as_is,
    runs_natively,
    shown,
)
from bolide.dynamo.machine.operations import has_mapping_code, is_lazy
from bolide.dynamo.machine.stand_ins import (
    PENDING,
    PLAIN,
    asks_modes,
    behind,
    class_of,
    goes_to_class,
    makes_tensors,
    real_value,
)
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING, PROXIES, is_library_namespace
from bolide.dynamo.state import CALLBACK, own_mark
from bolide.dynamo.world.frames import Frame
from bolide.dynamo.world.outside import Outside, attribute_source
from bolide.support.errors import Unsupported
from bolide.tracing import masked_among, unmasked, without_wrapper

Intercept = Callable[[Machine, "list[Any]", "dict[str, Any]"], Any]

INTERCEPTS: dict[Any, Intercept] = {}
LATE: dict[str, Callable[[], None]] = {}
"""What fills in `INTERCEPTS` for the functions of a module, which torch does not import by itself."""

NATIVE: Any = type("Native", (), {"__slots__": ()})()  # an intercept has nothing to say: make the call as any other
SWITCHED: Any = type("Switched", (), {"__slots__": ()})()  # an intercept pushed a frame itself


def intercept(*functions: Any) -> Callable[[Intercept], Intercept]:
    """Register our own answer to calls of `functions`. It returns a value, a Call, SWITCHED or NATIVE."""

    def register(handler: Intercept) -> Intercept:
        for function in functions:
            is_python = isinstance(function, types.FunctionType)
            called = without_wrapper(function) if is_python else function
            if called in INTERCEPTS:
                raise ValueError(f"two intercepts for {called}")
            INTERCEPTS[called] = handler if is_python else _of_arity(handler, function)
        return handler

    return register


#: of functions without a signature
_ARITIES: dict[Any, tuple[int, int]] = {getattr: (2, 3), iter: (1, 2), next: (1, 2), type: (1, 3), vars: (0, 1)}


@functools.cache  # when first called: signatures take a third of importing everything
def _arity(function: Any) -> tuple[int, int] | None:
    """The least and the most arguments of a function written in C; None if it may be any number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _ARITIES.get(function, (1, sys.maxsize) if type(function) is types.MethodDescriptorType else None)
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return None
    return sum(p.default is p.empty for p in parameters), len(parameters)


def has_intercept(function: types.FunctionType) -> bool:
    """Whether calls of a Python function have an answer of ours."""
    late = LATE.pop(str(function.__globals__.get("__name__")), None)
    if late is not None:
        late()
    return without_wrapper(function) in INTERCEPTS


def _of_arity(handler: Intercept, function: Any) -> Intercept:
    """The handler of a function written in C, which raises its own TypeError for a wrong number of arguments."""

    def checked(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
        bounds = _arity(function)
        if bounds is not None and not (bounds[0] <= len(args) + len(kwargs) <= bounds[1]):
            function(*[PENDING[type(arg)]() if type(arg) in PENDING else arg for arg in args], **kwargs)
        return handler(vm, args, kwargs)

    return checked


def call(vm: Machine, frame: Frame, function: object, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    """Call `function`: push its frame (and answer True), or push its result onto `frame`."""
    try:
        if frame.code.skipped:
            _refuse_in_skipped(vm, frame, function)
        return _call(vm, frame, function, args, kwargs)
    except Unsupported as error:
        if error.operation is None:
            error.operation = f"{shown(function)}(...)"
        raise


def _call(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    while True:
        cls = type(function)
        if cls is types.MethodType:
            args = [function.__self__, *args]
            function = function.__func__
            continue
        if cls is types.FunctionType:
            function = without_wrapper(function)
        elif cls is types.BuiltinFunctionType or cls is types.MethodWrapperType:
            unbound = _unbound(function)
            if unbound is not None:
                args = [function.__self__, *args]
                function, cls = unbound, type(unbound)
        if cls in HASHABLE:
            if function in config.constant_functions:
                frame.stack.append(config.constant_functions[function])
                return None
            if config.reorderable_logging_functions and waits(vm, function, args, kwargs):
                frame.stack.append(None)
                return None
            handler = INTERCEPTS.get(function)
            if handler is not None:
                masked = masked_among([*args, *(kwargs or {}).values()]) if vm.world.inputs.masked else ()
                result = _ask(vm, handler, function, args, kwargs or {}, masked)
                if type(result) is Call:
                    function, args, kwargs = result.function, result.args, result.kwargs
                    continue
                if result is SWITCHED:
                    return True
                if result is not NATIVE:
                    frame.stack.append(result)
                    return None
        if cls is types.FunctionType:
            request = _python_function(vm, frame, function, args, kwargs)
        elif cls in BUILTIN_TYPES:
            request = native(vm, frame, function, args, kwargs)
        elif isinstance(function, type):
            request = _instantiate(vm, frame, function, args, kwargs)
        else:
            request = _call_object(vm, frame, function, args, kwargs)
        if type(request) is not Call:
            return request
        function, args, kwargs = request.function, request.args, request.kwargs


def _ask(
    vm: Machine, handler: Intercept, function: object, args: list[Any], kwargs: dict[str, Any], masked: Sequence[Any]
) -> object:
    """The answer of an intercept. A function of torch's that would ask the class of a tensor asks it; where it may
    not, the `masked` tensors are like others."""
    if vm.modes.functions.active and _goes_to_modes(vm, function):
        return NATIVE
    if not masked or not goes_to_class(function):
        return handler(vm, args, kwargs)
    if torch._C._is_torch_function_enabled():
        return NATIVE
    with unmasked(masked):
        return handler(vm, args, kwargs)


def _goes_to_modes(vm: Machine, function: object) -> bool:
    """Whether torch asks the program's function modes what a function returns."""
    functions = vm.modes.functions
    return functions.enabled and (asks_modes(function) if functions.asks else makes_tensors(function))


def _unbound(function: Any) -> Any:
    """The descriptor of a bound method written in C if its calls are intercepted, else None."""
    owner = function.__self__
    if owner is None or type(owner) is types.ModuleType:
        return None
    name = function.__name__
    unbound = getattr(type(owner), name, None)
    if unbound is None and isinstance(owner, type):
        held = (vars(cls).get(name) for cls in owner.__mro__)
        unbound = next((found for found in held if type(found) is types.ClassMethodDescriptorType), None)
    return unbound if type(unbound) in HASHABLE and unbound in INTERCEPTS else None


def _python_function(vm: Machine, frame: Frame, function: types.FunctionType, args: list[Any], kwargs: Any) -> Any:
    if function.__dict__ or function.__module__ == "torch._dynamo.decorators":
        compiled = own_mark(function, "_bolide")
        if compiled is not None and getattr(compiled, "original", None) is not None:
            return Call(compiled.original, args, kwargs)
        program = own_mark(function, CALLBACK)
        if program is not None:  # native code was given it, and has called the program with it
            return Call(program, args, kwargs)
        alone = skipped_function(function)
        if alone is not None:
            mark = is_disabled(function)
            return _enter_skipped(vm, alone, args, kwargs, f": {mark}" if isinstance(mark, str) else "")
        refuse_disabled(vm, function)
        inlined = own_mark(function, "_torchdynamo_inline")  # what torch.compile has wrapped
        if inlined is not None:
            if type(inlined) is not types.FunctionType:
                source = attribute_source(vm.world.identities.source_of(function), "_torchdynamo_inline")
                inlined = vm.world.wrap(inlined, source)
            return Call(inlined, args, kwargs)
    if function.__globals__.get("__name__") in LATE and has_intercept(function):
        return Call(function, args, kwargs)
    answers = policy.ANSWERS.get(function.__module__)
    if answers is not None and function.__qualname__ in answers:
        frame.stack.append(answers[function.__qualname__])
        return None
    if policy.is_refused(function.__module__, function.__qualname__):
        raise refused(vm, function)
    if is_native(vm, function):
        words = kwargs or {}
        given = [*args, *words.values()]
        if function in policy.SIGNATURES:
            for value in given:
                vm.world.functions.rely_on_signature(value)
        if not any(type(value) is Outside for value in given):
            _rely_on_cells(vm, function)
            request = native(vm, frame, function, args, kwargs)
            if function.__name__ == "__enter__":
                vm.modes.entered.append(args[0])
            elif function.__name__ == "__exit__" and args[0] in vm.modes.entered:
                vm.modes.entered.remove(args[0])
            return request
        root = function.__globals__["__name__"].partition(".")[0]
        if root in ("inspect", "typing") and not any(isinstance(real_value(a), inspect.BoundArguments) for a in args):
            words = {name: real_value(value) for name, value in words.items()}
            frame.stack.append(function(*map(real_value, args), **words))
            return None
    vm.enter(function, args, kwargs)
    return True


def _rely_on_cells(vm: Machine, function: types.FunctionType) -> None:
    """Guard what a library's function holds that was made for one call only (as `torch.func.vjp` makes one): it is run
    natively. Raises Unsupported where that is more than functions and constants."""
    for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars):
        if id(cell) not in vm.world.namespaces.outside_cells:
            continue
        held = vm.world.namespaces.load_cell(cell, name)
        if held is not MISSING and held is not cell.cell_contents:
            reason = f"{function.__qualname__}, which a library has made in another call, is called"
            raise vm.unsupported(reason, "native_call", "make it inside the compiled function")
        if type(held) is types.FunctionType:
            _rely_on_cells(vm, held)


def _enter_skipped(vm: Machine, function: Any, args: list[Any], kwargs: Any, reason: str) -> bool:
    if type(function) is types.MethodType:
        owner = function.__self__
        function, args = function.__func__, [vm.world.wrap(owner, Source("object", None, None, owner)), *args]
    frame = vm.enter(function, args, kwargs)
    why = f"{frame.code.qualname} is not compiled itself, by disable(recursive=False)"
    frame.code = skipped(frame.code.code, why + reason)
    return True


def _refuse_in_skipped(vm: Machine, frame: Frame, function: object) -> None:
    """In a frame that is run for real, only functions and modules of the program are captured."""
    while type(function) is types.MethodType:
        function = function.__func__
    is_module = type(function) is Outside and issubclass(function.cls, torch.nn.Module)
    if not is_module and (type(function) is not types.FunctionType or is_native(vm, function)):
        raise vm.unsupported(frame.code.skipped, "disabled")


# ---- classes ---------------------------------------------------------------------------------------------------------


def _instantiate(vm: Machine, frame: Frame, cls: type, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    world = vm.world
    if policy.is_refused(cls.__module__):
        raise refused(vm, cls)
    if issubclass(type(cls), enum.EnumMeta):
        return native(vm, frame, cls, args, kwargs)
    meta_call = world.classes.lookup(type(cls), "__call__")
    if type(meta_call) is types.FunctionType and not runs_as_is(type(cls).__module__, type(cls).__qualname__):
        return Call(meta_call, [cls, *args], kwargs)
    return construct(vm, frame, cls, args, kwargs)


def construct(vm: Machine, frame: Frame, cls: type, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    """`type.__call__(cls, ...)`."""
    if type(vm.world.classes.lookup(cls, "__del__")) is types.FunctionType:
        operation = f"{cls.__qualname__}(...)"
        raise vm.unsupported("an object with a method __del__ is made", "finaliser", operation=operation)
    new, init = vm.world.classes.lookup(cls, "__new__"), vm.world.classes.lookup(cls, "__init__")
    for name in ("__hash__", "__eq__"):  # native containers call these
        vm.world.classes.rely_on(cls, name)
    new = getattr(new, "__func__", new)
    if init in _FILLING and type(new) is not types.FunctionType and is_filled(vm, args, kwargs or {}):
        return Call.polyfill("make_dict", cls, tuple(args), kwargs or {})
    python_new, python_init = type(new) is types.FunctionType, type(init) is types.FunctionType
    of_program = new is torch.Tensor.__new__ and cls.__module__.partition(".")[0] != "torch"
    if of_program or (python_new and not runs_natively(new)) or (python_new and python_init):
        return Call.polyfill("instantiate", cls, tuple(args), kwargs or {})
    is_abstract = bool(cls.__flags__ & (1 << 20))
    if is_abstract or not python_init or (runs_natively(init) and not any(type(a) is Outside for a in args)):
        return native(vm, frame, cls, args, kwargs)
    is_plain = new is object.__new__ or issubclass(cls, (dict, list, set))
    instance: Any = new(cls) if is_plain else new(cls, *args, **(kwargs or {}))
    callee = vm.enter(init, [instance, *args], kwargs)
    callee.then, callee.then_value = "instance", instance
    return True


_FILLING = (dict.__init__, collections.OrderedDict.__init__)


def is_filled(vm: Machine, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether the program puts items into a new dict: a mapping is asked for its keys, or native code, which keeps what
    it is given by name, would be given a list in place of it."""
    return any(asks_for_keys(vm, arg) for arg in args[:1]) or any(is_lazy(vm, value) for value in kwargs.values())


def asks_for_keys(vm: Machine, value: object) -> bool:
    """Whether code of the program's is asked where a dict is made of a value: for its keys, or the items of these."""
    cls = class_of(value)
    if cls in PLAIN or not policy.is_python_class(cls):
        return False
    if issubclass(cls, dict) and not has_mapping_code(vm.world, cls):
        return False
    try:
        load_attribute(vm, value, "keys")
    except AttributeError:
        return False
    return True


def _call_object(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    cls = type(function)
    known = _OBJECTS.get(cls)
    if known is not None:
        return known(vm, frame, function, args, kwargs)
    seen = function.cls if cls is Outside else PENDING.get(cls, cls)
    if seen in PROXIES:
        return Call(behind(vm, function), args, kwargs)
    if seen is torch.jit.ScriptFunction and cls is Outside and hasattr(function.real, "_torchdynamo_inline"):
        vm.world.guards.add(function.source, "is", function.real)
        return Call(function.real._torchdynamo_inline, args, kwargs)
    method = vm.world.classes.lookup(seen, "__call__")
    if type(method) is types.FunctionType:
        if runs_natively(method) and cls is not Outside:
            return native(vm, frame, function, args, kwargs)
        return Call(method, [function, *args], kwargs)
    if method is MISSING:
        raise TypeError(f"'{seen.__name__}' object is not callable")
    if cls is not Outside:
        return native(vm, frame, function, args, kwargs)
    if not policy.is_refused(getattr(function.real, "__module__", None)):
        raise vm.unsupported(f"a call of an outside {seen.__name__} object", "outside_object")
    frame.stack.append(drawn_or_refused(vm, function.real, args, kwargs or {}))
    return None


def _cached(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: Any) -> Any:
    """A logger's cached function, such as `warning_once`, says what it says once, after the graph has run; a library's
    predicates on constants run natively; the user's are a matter of the cache (`caches.py`)."""
    if args and issubclass(class_of(args[0]), logging.Logger):
        vm.later.calls.append((function, args, kwargs or {}))
        frame.stack.append(None)
        return None
    if _is_of_library(function):
        if all(type(a) in PLAIN for a in args):
            return native(vm, frame, function, args, kwargs)
        return Call(function.__wrapped__, args, kwargs)
    answer = caches.held(vm, function, args, kwargs or {})
    if type(answer) is Call:
        return answer
    frame.stack.append(answer)
    return None


def referent(vm: Machine, reference: Any) -> Any:
    """What a weak reference refers to. The reference itself is guarded, and whether that still lives."""
    target = weakref.ref.__call__(reference)
    source = vm.world.identities.place_of(reference)
    if source is not None:
        vm.world.lifetimes.refuse_deaths(target)
        return vm.world.wrap(target, Source("apply", source, (), weakref.ref.__call__))
    known = vm.world.identities.seen.get(id(target))
    return target if known is None or known[0] is not target else known[1]


def _weak_reference(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: Any) -> Any:
    if args or kwargs:
        return native(vm, frame, function, args, kwargs)  # raises its own error
    frame.stack.append(referent(vm, function))
    return None


def _getter(name: str) -> Callable[..., Any]:
    def call(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: Any) -> Any:
        return Call(polyfill(name), [*args, function.__reduce__()[1]], kwargs)

    return call


def _method_caller(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: Any) -> Any:
    maker, parts = function.__reduce__()
    words = maker.keywords if type(maker) is functools.partial else {}
    name = maker.args[0] if type(maker) is functools.partial else parts[0]
    positional = parts if type(maker) is functools.partial else parts[1:]
    return Call(polyfill("call_method"), [*args, name, positional, words], kwargs)


_OBJECTS: dict[type, Callable[..., Any]] = {
    functools.partial: lambda vm, frame, function, args, kwargs: Call(
        function.func, [*function.args, *args], {**function.keywords, **(kwargs or {})}
    ),
    functools._lru_cache_wrapper: _cached,
    weakref.ReferenceType: _weak_reference,
    weakref.KeyedRef: _weak_reference,
    operator.attrgetter: _getter("get_attributes"),
    operator.itemgetter: _getter("get_items"),
    operator.methodcaller: _method_caller,
}
"""How objects of these classes are called."""


def _is_of_library(function: Any) -> bool:
    """Whether an `lru_cache` function belongs to a library, whose predicates on constants are constants."""
    wrapped = function.__wrapped__
    return type(wrapped) is types.FunctionType and is_library_namespace(wrapped.__globals__)
