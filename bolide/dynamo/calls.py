"""How a call is made: by pushing a frame, by an intercept of our own, or natively on values."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.frames import Frame, Generator
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.operations import PLAIN, polyfill, python_method
from bolide.dynamo.values.outside import MISSING, Outside, is_library_namespace
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor, without_wrapper

Intercept = Callable[[Machine, "list[Any]", "dict[str, Any]"], Any]

INTERCEPTS: dict[Any, Intercept] = {}
NATIVE: Any = type("Native", (), {"__slots__": ()})()  # an intercept has nothing to say: make the call as any other
SWITCHED: Any = type("Switched", (), {"__slots__": ()})()  # an intercept pushed a frame itself

_SIMPLE = PLAIN | {TracedTensor, torch.dtype, torch.memory_format, torch.layout, types.BuiltinFunctionType, type}
_BUILTIN_TYPES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)

# Modules whose Python functions are run natively: they neither keep state nor call back into the program, or torch
# itself is what they are.
_NATIVE_ROOTS = frozenset(
    [
        "torch",
        "inspect",
        "re",
        "abc",
        "_abc",
        "typing",
        "enum",
        "dataclasses",
        "os",
        "posixpath",
        "ntpath",
        "genericpath",
        "importlib",
        "string",
        "textwrap",
        "types",
        "numbers",
        "copyreg",
        "packaging",
        "functools",
        "sys",
        "threading",
        "weakref",
        "_weakrefset",
        "operator",
        "fractions",
        "decimal",
        "math",
        "sre_parse",
        "collections",
        "keyword",
        "warnings",
        "tokenize",
        "linecache",
        "typing_extensions",
        "ast",
        "dis",
        "opcode",
        "copy",
        "platform",
    ]
)
_INTERPRETED = (
    "torch.nn.modules",
    "torch.nn.parallel",
    "torch.nn.utils",
    "torch.nn.parameter",
    "torch.utils._pytree",
    "torch.utils.checkpoint",
    "torch.optim",
    "torch.distributions",
    "torch.ao",
    "collections.abc",
    "torch.amp.grad_scaler",
)
# Native functions that call the functions they are given at once.
_CALLERS: set[Any] = {sorted, min, max, map, filter, functools.reduce, list.sort}
# Modules whose functions give another result at every call, or write to the outside world.
_REFUSED_MODULES = frozenset(
    {
        "random",
        "time",
        "socket",
        "subprocess",
        "_random",
        "io",
        "_io",
        "shutil",
        "tempfile",
        "secrets",
        "uuid",
        "numpy.random",
    }
)


def intercept(*functions: Any) -> Callable[[Intercept], Intercept]:
    """Register our own answer to calls of `functions`. It returns a value, a Call, SWITCHED or NATIVE."""

    def register(handler: Intercept) -> Intercept:
        for function in functions:
            INTERCEPTS[without_wrapper(function) if isinstance(function, types.FunctionType) else function] = handler
        return handler

    return register


@functools.cache
def _native_module(name: str) -> bool:
    return name.partition(".")[0] in _NATIVE_ROOTS and not name.startswith(_INTERPRETED)


def runs_natively(function: types.FunctionType) -> bool:
    """Whether a Python function belongs to torch or to a part of the standard library that is run as it is."""
    module = function.__globals__.get("__name__")
    return isinstance(module, str) and _native_module(module)


def _is_native(vm: Machine, function: types.FunctionType) -> bool:
    return runs_natively(function) and id(function) not in vm.own_functions and not _wraps_program(function)


def _is_ours(function: types.FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).startswith("bolide.dynamo.")


def _wraps_program(function: types.FunctionType) -> bool:
    """Whether a library's function closes over code of the program, as the results of its decorators do
    (`torch.no_grad()`, `once_differentiable`, `torch.func.grad`): that code has to be interpreted."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        while type(value) in (functools.partial, types.MethodType):
            value = value.func if type(value) is functools.partial else value.__func__
        if type(value) is types.FunctionType:
            if not _is_ours(value) and (not runs_natively(value) or _wraps_program(value)):
                return True
        elif isinstance(value, torch.nn.Module):
            return True
    return False


def call(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    """Call `function`: push its frame (and answer True), or push its result onto `frame`."""
    while True:
        cls = type(function)
        if cls is types.MethodType:
            args = [function.__self__, *args]
            function = function.__func__
            continue
        if cls is types.FunctionType:
            function = without_wrapper(function)
        if cls in _HASHABLE:
            handler = INTERCEPTS.get(function)
            if handler is not None:
                result = handler(vm, args, kwargs or {})
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
        elif cls in _BUILTIN_TYPES:
            request = native(vm, frame, function, args, kwargs)
        elif isinstance(function, type):
            request = _instantiate(vm, frame, function, args, kwargs)
        else:
            request = _call_object(vm, frame, function, args, kwargs)
        if type(request) is not Call:
            return request
        function, args, kwargs = request.function, request.args, request.kwargs


_HASHABLE = frozenset(
    {
        types.FunctionType,
        type,
        type(torch.nn.Parameter),
        type(torch.nn.Buffer),
        functools._lru_cache_wrapper,
        *_BUILTIN_TYPES,
        type(torch.ops),
    }
)


def _python_function(vm: Machine, frame: Frame, function: types.FunctionType, args: list[Any], kwargs: Any) -> Any:
    compiled = function.__dict__.get("_bolide") if function.__dict__ else None
    if compiled is not None and getattr(compiled, "original", None) is not None:
        return Call(compiled.original, args, kwargs)
    if function.__module__ in _REFUSED_MODULES:
        raise _refused(vm, function)
    if _is_native(vm, function):
        if not any(type(a) is Outside for a in args) and not (
            kwargs and any(type(a) is Outside for a in kwargs.values())
        ):
            request = native(vm, frame, function, args, kwargs)
            if function.__name__ == "__enter__":
                vm.entered.append(args[0])
            elif function.__name__ == "__exit__" and args[0] in vm.entered:
                vm.entered.remove(args[0])
            return request
        root = function.__globals__["__name__"].partition(".")[0]
        if root in ("inspect", "typing", "weakref"):
            frame.stack.append(function(*[_real(a) for a in args], **{k: _real(v) for k, v in (kwargs or {}).items()}))
            return None
    vm.enter(function, args, kwargs)
    return True


def _real(value: Any) -> Any:
    if type(value) is Outside:
        return value.real
    if type(value) is types.MethodType:
        return types.MethodType(value.__func__, _real(value.__self__))
    return value


def native(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    """Call `function` for real. Containers of the outside world are given as their copies, lazy iterables are drained
    first."""
    prepared = None
    for i, arg in enumerate(args):
        if type(arg) not in _SIMPLE:
            value = _prepare(vm, function, arg, i)
            if type(value) is Call:
                return Call(polyfill("drained_call"), [function, args, kwargs or {}])
            if value is not arg:
                prepared = prepared or list(args)
                prepared[i] = value
    if kwargs:
        kwargs = {
            key: _prepare(vm, function, arg, -1) if type(arg) not in _SIMPLE else arg for key, arg in kwargs.items()
        }
        if _is_caller(function):
            kwargs = {key: _callback(vm, arg) for key, arg in kwargs.items()}
    if _is_caller(function):
        prepared = [_callback(vm, arg) for arg in (prepared or args)]
    if (
        getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
    ) in _REFUSED_MODULES:
        raise _refused(vm, function)
    vm.trace.where = vm.where()
    frame.stack.append(function(*(prepared or args), **(kwargs or {})))
    return None


def _refused(vm: Machine, function: Any) -> Unsupported:
    name = f"{function.__qualname__}(...)"
    return Unsupported(
        "its result or effect is of the moment", vm.where(), "call it outside the compiled function", operation=name
    )


def _prepare(vm: Machine, function: Any, arg: Any, position: int) -> Any:
    """What native code is given for `arg`; a Call when it has to be drained by the program."""
    cls = type(arg)
    if cls is Outside:
        if _keeps_objects(function):
            return arg
        if position >= 0 and python_method(vm.world, arg.cls, "__iter__") is not None and _iterates(function):
            return Call(None, [])
        if arg.items is not None:
            return arg.items.materialise()
        name = getattr(function, "__qualname__", repr(function))
        raise Unsupported(
            f"an outside {arg.cls.__name__} object is given to native code", vm.where(), operation=f"{name}(...)"
        )
    lazy = cls is Generator or (
        not isinstance(arg, (type, list, tuple)) and python_method(vm.world, cls, "__iter__") is not None
    )
    if lazy and position >= 0 and _iterates(function):
        return Call(None, [])
    return arg


_ITEM_METHODS = frozenset(
    [
        "append",
        "insert",
        "index",
        "count",
        "remove",
        "add",
        "discard",
        "get",
        "setdefault",
        "pop",
        "__setitem__",
        "__getitem__",
        "__contains__",
        "appendleft",
        "fromkeys",
    ]
)
_ITERATING_METHODS = frozenset(
    ["extend", "extendleft", "update", "join", "union", "intersection", "difference", "__init__", "__ior__", "fromkeys"]
)
_KEEPERS: frozenset[Any] = frozenset(
    {id, types.MethodType, object.__setattr__, repr, str, slice, weakref.ref, functools.partial}
)
_ITERATING: frozenset[Any] = frozenset(
    {
        list,
        tuple,
        set,
        frozenset,
        dict,
        sorted,
        sum,
        min,
        max,
        collections.deque,
        collections.OrderedDict,
        collections.Counter,
        torch.Size,
    }
    | {math.prod, math.fsum, itertools.chain, itertools.islice, itertools.product, bytes, reversed}
)


def _container_method(function: Any) -> str | None:
    """The name of a built-in container's method, bound or not."""
    owner = getattr(function, "__self__", None)
    holder = getattr(function, "__objclass__", None) or type(owner)
    if issubclass(holder, (list, dict, set, frozenset, collections.deque, str)):
        name: str = function.__name__
        return name
    return None


def _keeps_objects(function: Any) -> bool:
    """Whether a native function only stores or looks up the objects it is given."""
    name = _container_method(function)
    if name is not None:
        return name in _ITEM_METHODS
    return type(function) in _HASHABLE and function in _KEEPERS


def _iterates(function: Any) -> bool:
    """Whether a native function iterates over its arguments."""
    name = _container_method(function)
    if name is not None and not isinstance(function, type):
        return name in _ITERATING_METHODS
    return type(function) in _HASHABLE and function in _ITERATING


def _is_caller(function: Any) -> bool:
    """Whether a native function calls the functions it is given."""
    if type(function) is types.FunctionType:
        return str(function.__globals__.get("__name__")).partition(".")[0] in ("torch", "re")
    return type(function) in _HASHABLE and (function in _CALLERS or _container_method(function) == "sort")


def _callback(vm: Machine, value: Any) -> Any:
    """Functions of the program as native code may call them: each call is a nested run."""
    if type(value) in (types.FunctionType, types.MethodType, functools.partial) or (
        type(value) is Outside and callable(value.real)
    ):
        if type(value) is types.FunctionType and _is_native(vm, value):
            return value
        if type(value) is types.MethodType and isinstance(value.__func__, _BUILTIN_TYPES):
            return value

        def callback(*args: Any, **kwargs: Any) -> Any:
            return vm.evaluate(value, list(args), kwargs)

        return functools.wraps(value)(callback) if type(value) is types.FunctionType else callback
    return value


# ---- classes ---------------------------------------------------------------------------------------------------------


def _instantiate(vm: Machine, frame: Frame, cls: type, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    world = vm.world
    meta_call = world.lookup(type(cls), "__call__")
    if type(meta_call) is types.FunctionType and not _native_module(type(cls).__module__):
        return Call(meta_call, [cls, *args], kwargs)
    return construct(vm, frame, cls, args, kwargs)


def construct(vm: Machine, frame: Frame, cls: type, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    """`type.__call__(cls, ...)`."""
    new, init = vm.world.lookup(cls, "__new__"), vm.world.lookup(cls, "__init__")
    new = getattr(new, "__func__", new)
    python_new, python_init = type(new) is types.FunctionType, type(init) is types.FunctionType
    if (python_new and not runs_natively(new)) or (python_new and python_init):
        return Call(polyfill("instantiate"), [cls, tuple(args), kwargs or {}])
    if not python_init or (runs_natively(init) and not any(type(a) is Outside for a in args)):
        return native(vm, frame, cls, args, kwargs)
    if cls.__flags__ & (1 << 20):  # abstract
        return native(vm, frame, cls, args, kwargs)
    made: Any
    if new is object.__new__ or issubclass(cls, (dict, list, set)):
        made = new(cls)
    else:
        made = new(cls, *args, **(kwargs or {}))
    callee = vm.enter(init, [made, *args], kwargs)
    callee.then, callee.then_value = "instance", made
    return True


def _call_object(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    cls = type(function)
    if cls is functools.partial:
        return Call(function.func, [*function.args, *args], {**function.keywords, **(kwargs or {})})
    if cls is functools._lru_cache_wrapper:
        if runs_natively_cached(function) and all(type(a) in PLAIN for a in args):
            return native(vm, frame, function, args, kwargs)
        return Call(function.__wrapped__, args, kwargs)
    real = function.cls if cls is Outside else cls
    method = vm.world.lookup(real, "__call__")
    if type(method) is types.FunctionType:
        if runs_natively(method) and cls is not Outside:
            return native(vm, frame, function, args, kwargs)
        return Call(method, [function, *args], kwargs)
    if method is MISSING or cls is Outside:
        if method is not MISSING:
            raise Unsupported(f"a call of an outside {real.__name__} object", vm.where())
        raise TypeError(f"'{real.__name__}' object is not callable")
    return native(vm, frame, function, args, kwargs)


def runs_natively_cached(function: Any) -> bool:
    """Whether an `lru_cache` function belongs to a library, whose predicates on constants are constants."""
    wrapped = function.__wrapped__
    return type(wrapped) is types.FunctionType and is_library_namespace(wrapped.__globals__)


__all__ = ["INTERCEPTS", "NATIVE", "SWITCHED", "call", "construct", "intercept", "native"]
