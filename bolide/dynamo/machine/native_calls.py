"""Calls of native code on values: what it is given in place of what only the program can look into."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import operator
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from bolide.dynamo import policy
from bolide.dynamo.config import config
from bolide.dynamo.machine.breaking import refuse_symbols
from bolide.dynamo.machine.callers import makes_classes
from bolide.dynamo.machine.faults import names_stand_in
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.numbers import derived, drawn, is_generator
from bolide.dynamo.machine.stand_ins import (
    PENDING,
    PLAIN,
    SETS,
    SYMBOLIC,
    as_number,
    class_of,
    concrete,
    is_number,
    is_overridable,
    note_order,
    overridden,
    overrides,
    settle_keys,
)
from bolide.dynamo.program.kinds import FUNCTION_APPLY, LOCK_TYPES, MISSING, contents_of
from bolide.dynamo.state import CALLBACK
from bolide.dynamo.world.arrays import TracedScalar
from bolide.dynamo.world.frames import Frame, Generator
from bolide.dynamo.world.iterators import Stream
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.texts import TracedText
from bolide.support.errors import Unsupported, insistent
from bolide.tracing import TracedTensor, computes_itself, modes
from bolide.tracing.meta import WITHOUT_DATA, DataDependent

BUILTIN_TYPES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
HASHABLE = frozenset(
    {
        types.FunctionType,
        type,
        torch._ops.OpOverload,
        torch._ops.OpOverloadPacket,
        type(torch.nn.Parameter),
        type(torch.nn.Buffer),
        type(torch.Tensor),
        type(torch.FloatTensor),
        type(torch.Generator),
        functools._lru_cache_wrapper,
        *BUILTIN_TYPES,
        type(torch.ops),
        type(numpy.linspace),
        numpy.ufunc,
    }
)
"""Classes of callables that are looked up in tables."""

_SIMPLE = (PLAIN - {types.FunctionType, list, tuple, dict, torch.Size}) | {
    TracedTensor,
    torch.dtype,
    torch.memory_format,
    torch.layout,
    type,
}
_SIMPLE |= {types.BuiltinFunctionType, types.MethodDescriptorType}
_CONTAINERS = (list, dict, set, frozenset, collections.deque, str, bytes, bytearray)
_DATA = (list, tuple, dict, collections.deque)
_COMPUTING = (
    *LOCK_TYPES,
    *(threading.Lock, threading.RLock, threading.local, threading.get_ident),
    *(os.fspath, os.strerror, os.stat_result, os.terminal_size, torch._C.DispatchKeySet, *policy.ASKED_AGAIN),
)
_COMPUTING_IDS = frozenset(map(id, _COMPUTING))  # functions need not be hashable
_NUMBERS = (int, float, complex, bool)
_UNCHANGEABLE = (str, bytes, tuple, frozenset)
_PLAIN_CLASSES = (int, float, str, bytes)
_MAKERS = ("__new__", "__init__", "__init_subclass__")
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)


_OF_NAMEDTUPLES = ("._replace", "._make", "._asdict")  # they keep what they are given


@functools.cache
def runs_as_is(module: str, name: str) -> bool:
    """Whether what has this qualified name in this module is run natively."""
    if module.startswith(("bolide.tracing.", "bolide.dynamo.world.arrays")):  # what a traced tensor or array does
        return True
    if module == "collections" and name.endswith(_OF_NAMEDTUPLES):
        return False
    return module.partition(".")[0] in policy.NATIVE_ROOTS and not f"{module}.{name}".startswith(policy.INTERPRETED)


def runs_natively(function: types.FunctionType) -> bool:
    """Whether a Python function belongs to torch or to a part of the standard library that is run as it is."""
    module = function.__globals__.get("__name__")
    if not isinstance(module, str) or not runs_as_is(module, function.__qualname__):
        return False
    return not module.startswith(tuple(config.allowed_functions_module_string_ignorelist))


def is_native(vm: Machine, function: types.FunctionType) -> bool:
    """Whether a function is run natively in this run."""
    return runs_natively(function) and id(function) not in vm.own_functions and not _wraps_program(function)


def _wraps_program(function: types.FunctionType) -> bool:
    """Whether a library's function closes over code of the program, as the results of its decorators do
    (`torch.no_grad()`, `once_differentiable`, `torch.func.grad`): that code has to be interpreted."""
    for cell in function.__closure__ or ():
        value = contents_of(cell)
        while type(value) in (functools.partial, types.MethodType):
            value = value.func if type(value) is functools.partial else value.__func__
        if type(value) is types.FunctionType and value is not function:
            is_ours = str(value.__globals__.get("__name__")).startswith("bolide.dynamo.")
            if not is_ours and (not runs_natively(value) or _wraps_program(value)):
                return True
        elif isinstance(value, torch.nn.Module):
            return True
    return False


def native(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> Any:
    """Call `function` for real and push its result; or answer the Call that must be made instead.

    Containers of the outside world are given as their copies; what only the program can iterate over becomes a list
    or an iterator; functions of the program become functions that are interpreted when native code calls them."""
    if not SYMBOLIC.keys().isdisjoint(map(type, args)) and (number := derived(vm, function, args, kwargs)) is not None:
        frame.stack.append(number)
        return None
    if args and type(args[0]) is Outside and is_generator(args[0].real):
        frame.stack.append(drawn_or_refused(vm, function, args, kwargs or {}))
        return None
    prepared: list[Any] | None = None
    for i, arg in enumerate(args):
        if type(arg) not in _SIMPLE:
            if overrides(arg) and is_overridable(function) and not vm.modes.functions.asks:
                return overridden(function, [*args, *(kwargs or {}).values()], args, kwargs or {})
            value = _prepare(vm, function, arg, i == 0 and type(function) in _METHODS)
            if type(value) is Call:
                return Call.polyfill("drained_call", function, args, kwargs or {})
            if value is not arg:
                prepared = prepared or list(args)
                prepared[i] = value
    words = kwargs or {}
    if any(type(arg) not in _SIMPLE for arg in words.values()):
        if any(map(overrides, words.values())) and is_overridable(function):
            return overridden(function, [*args, *words.values()], args, words)
        words = {key: arg if type(arg) in _SIMPLE else _prepare(vm, function, arg) for key, arg in words.items()}
        if any(type(value) is Call for value in words.values()):
            return Call.polyfill("drained_call", function, args, kwargs)
    for arg in args:
        if type(arg) in SETS and not _ignores_order(function):
            note_order(vm, arg)
    if not _compares_no_keys(function):
        settle_keys(vm, *args, *words.values())
    if policy.is_refused(_module_of(function)) or not _only_computes(function):
        frame.stack.append(drawn_or_refused(vm, function, args, words))
        return None
    vm.trace.where = vm.where()
    if function is torch.Tensor.cuda or any(map(_is_current_device, [*args, *words.values()])):
        vm.trace.listener.current_device_read()
    try:
        with setting_modes(vm) if _may_set_modes(function, args) else _PLAINLY:
            called = vm.within(function) if makes_classes(function) else function
            result = insistent(vm.perform, called, prepared or args, words)
    except Exception as error:
        refuse_symbols(vm, [*args, *words.values()], error)
        if type(error) is RuntimeError and str(error).startswith(WITHOUT_DATA):
            raise DataDependent(f"{shown(function)}(...)", vm.where()) from error
        if type(error) is TypeError and names_stand_in(error):  # it looked into a container and took one for itself
            raise _given(vm, function, "an outside object") from error
        raise
    refuse_wrapper(vm, function, result)
    if prepared is not None and result is prepared[0] and type(args[0]) is Outside:
        result = _own_answer(args[0], result)
    frame.stack.append(result)
    return None


_WITHOUT_ORDER = (len, sorted, min, max, any, all, set, frozenset, isinstance, type, bool, id, hash, operator.contains)
_LOOKING = (
    *(len, sorted, min, max, any, all, sum, list, tuple, iter, next, enumerate, zip, reversed),
    *(isinstance, type, bool, id),
)
_GOING_THROUGH = (sorted, min, max, any, all, sum, list, tuple, enumerate, zip)
"""What sees no difference between a set and a list with its items."""
_KEEPING_KEYS = frozenset({"keys", "values", "items", "copy", "pop", "popitem", "clear", "append", "extend", "insert"})
_KEEPING_KEYS |= {"__iter__", "__len__"}


def _compares_no_keys(function: object) -> bool:
    """Whether a function asks of no key of its arguments whether it is another one; those of torch are given none."""
    if isinstance(function, BUILTIN_TYPES) and issubclass(_holder(function), _CONTAINERS):
        return function.__name__ in _KEEPING_KEYS
    return any(function is known for known in _LOOKING) or _is_of_torch(function)


_IN_ORDER = ("pop", "__iter__", "__repr__", "__str__", "__reduce__")


def _ignores_order(function: object) -> bool:
    """Whether what a function does with a set is the same in whatever order the set has its members."""
    if isinstance(function, BUILTIN_TYPES) and _holder(function) in SETS:
        return function.__name__ not in _IN_ORDER
    return any(function is known for known in _WITHOUT_ORDER)


def _own_answer(given: Outside, stands_for: Any) -> object:
    """What native code means that answers what stands for an object from outside: the object, which operators in place
    have changed; of an instance of a subclass of what cannot change, a plain copy."""
    if not isinstance(stands_for, _UNCHANGEABLE) or given.cls is type(stands_for):
        return given
    return frozenset([*stands_for]) if isinstance(stands_for, frozenset) else stands_for


def refuse_wrapper(vm: Machine, function: object, result: object) -> None:
    """What native code has made around traced tensors would compute on them without being interpreted."""
    if issubclass(type(result), torch.Tensor) and computes_itself(type(result)):
        reason = f"{shown(function)} makes a {type(result).__name__}, a subclass of Tensor"
        raise vm.unsupported(reason, "input", "make it outside the compiled function", f"{shown(function)}(...)")


@contextlib.contextmanager
def setting_modes(vm: Machine) -> Iterator[None]:
    """Around native code that may set torch's modes: those that it has set are the program's, not another thread's."""
    before = modes.shared()
    try:
        yield
    finally:
        vm.modes.setters.update(setter for setter, _ in modes.changed(before, modes.shared()))


def _is_current_device(value: object) -> bool:
    """Whether a value names a GPU without a number."""
    if type(value) is torch.device:
        return value.type == "cuda" and value.index is None
    return type(value) is str and value == "cuda"


_PLAINLY = contextlib.nullcontext()


def _may_set_modes(function: object, args: list[Any]) -> bool:
    """Whether a native call may be one that sets torch's modes: of torch's, not about tensors; or the next step of a
    context manager. Looking at all of them takes a microsecond."""
    if args and args[0].__class__ is types.GeneratorType:
        return True
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and module.startswith("torch") and not any(a.__class__ is TracedTensor for a in args)


def for_real(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A native call whose operations on tensors are not the program's: those of a module that is imported, say."""
    native = torch._C
    with native._DisableTorchDispatch(), native.DisableTorchFunction(), native._DisablePythonDispatcher():
        return function(*args, **kwargs)


def _module_of(function: object) -> object:
    return getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__


# Classes and modules by the names that users know them by.
_SHOWN = {
    "_VariableFunctionsClass": "torch",
    "TracedTensor": "Tensor",
    "TensorBase": "Tensor",
    "posix": "os",
    "_io": "io",
    "genericpath": "os.path",
    "posixpath": "os.path",
}


def shown(function: object) -> str:
    """The name of a function, or of an object's class, for messages."""
    while type(function) is types.MethodType:
        function = function.__func__
    value = function.real if type(function) is Outside else function
    named = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    owner, dot, rest = named.__qualname__.partition(".")
    if dot:
        return f"{_SHOWN.get(owner, owner)}.{rest}"
    module = getattr(named, "__module__", None) or ""
    library = module.partition(".")[0] in sys.stdlib_module_names and module not in ("builtins", "__main__")
    return f"{_SHOWN.get(module, module)}.{owner}" if library else owner


_LOOKED_AT = (types.FunctionType, functools._lru_cache_wrapper)


def recorded_as(vm: Machine, function: object, args: list[Any], compute: Callable[[], Any], **kwargs: object) -> Any:
    """What `compute` gives, recorded as a call of `function` where a graph of calls is wanted."""
    vm.trace.where = vm.where()
    calls = vm.recorder
    return compute() if calls is None else calls.as_one(function, args, compute, **kwargs)


def _only_computes(function: object) -> bool:
    """Whether what is run natively has no effect of its own; Python functions, also cached
    ones, have been looked at before (`is_native`, `calls._cached`)."""
    if policy.is_python_class(type(function)) and not isinstance(function, type):
        return True
    if isinstance(function, _LOOKED_AT) or id(function) in _COMPUTING_IDS:
        return True
    if type(function) is types.BuiltinFunctionType and not function.__name__:  # it reads a property of pybind11's
        return True
    if isinstance(function, type):  # made by what it has inherited from a class in C
        makers = (function.__new__, "__self__"), (inspect.getattr_static(function, "__init__"), "__objclass__")
        owners = [getattr(maker, place, object) for maker, place in makers]
        return all(policy.only_computes(owner.__module__) for owner in owners)
    if type(function) is types.BuiltinFunctionType and not isinstance(function.__self__, (types.ModuleType, type)):
        function = getattr(type(function.__self__), function.__name__, function)
    owner = getattr(function, "__objclass__", None)
    if type(function) is types.BuiltinFunctionType and isinstance(function.__self__, type):  # a class method in C
        name, kinds = function.__name__, (types.ClassMethodDescriptorType, types.BuiltinFunctionType)
        owner = next((base for base in function.__self__.__mro__ if type(vars(base).get(name)) in kinds), None)
    return policy.only_computes(_module_of(function) if owner is None else owner.__module__)


def refused(vm: Machine, function: object) -> Unsupported:
    """The refusal of a function whose result or effect is of the moment."""
    name = shown(function)
    reason = f"what {name} returns or does differs from call to call"
    return vm.unsupported(reason, "moment", "call it outside the compiled function", f"{name}(...)")


def drawn_or_refused(vm: Machine, function: object, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The value of a call whose result is of the moment, if it draws random numbers."""
    number = drawn(vm, function, args, kwargs, shown(function))
    if number is MISSING:
        raise refused(vm, function)
    return number


def _prepare(vm: Machine, function: Any, arg: Any, is_owner: bool = False) -> Any:
    """What native code is given for `arg`; a Call when it has to be made a list by the program first. `is_owner`: it is
    what a method of a built-in type works on."""
    cls = type(arg)
    if cls in SYMBOLIC:
        return arg if _takes_symbols(function) else concrete(vm, arg)
    if cls is TracedText:
        keeps = keeps_objects(function) and _holder(function) is not str and _takes_symbols(function)
        return arg if keeps else concrete(vm, arg)
    if cls is Outside:
        return _outside(vm, function, arg, is_owner)
    if issubclass(cls, TracedScalar) and _holder(function) in _NUMBERS:  # they ask for the class
        vm.trace.where = vm.where()
        return arg.concrete()
    if cls is Stream and is_owner:
        raise _given(vm, function, "an iterator from outside")
    if is_number(arg):
        return as_number(arg) if _is_of_torch(function) else arg
    if cls in _CALLABLES:
        return callback(vm, arg) if _calls(function) and not is_owner else arg
    if cls is Generator:
        if keeps_objects(function):
            return arg
        return Call(None, []) if _iterates(function) else ProgramIterator(vm, arg)
    if (cls is tuple or cls is list) and any(map(is_number, arg)) and _is_of_torch(function):
        return cls(map(as_number, arg))
    if cls in _DATA and (type(function) is types.FunctionType or _holder(function) is str or _is_of_numpy(function)):
        return native_data(arg) if _takes_symbols(function) else concrete_data(vm, arg)
    if cls is torch.Size and _is_of_numpy(function):
        return concrete_data(vm, tuple(arg))
    if not isinstance(arg, (type, list, tuple)) and _iterates(function):
        return Call(None, []) if vm.world.classes.python_method(class_of(arg), "__iter__") is not None else arg
    return arg


def _holder(function: object) -> type:
    """The class whose native method a function is."""
    return getattr(function, "__objclass__", None) or type(getattr(function, "__self__", None))


def _is_of_numpy(function: object) -> bool:
    """Whether a native function makes arrays of the sequences that it is given: of symbolic numbers, it would make
    arrays of objects."""
    return isinstance(function, numpy.ufunc) or str(_module_of(function)).partition(".")[0] == "numpy"


def _is_of_torch(function: object) -> bool:
    """Whether a native function is torch's, or ours in place of one."""
    module = str(getattr(function, "__module__", ""))
    return module.startswith(("torch", "bolide.tracing.")) or issubclass(_holder(function), torch._C.TensorBase)


def _takes_symbols(function: object) -> bool:
    """Whether a native function may be given symbolic numbers: torch's, and those that only keep what they get."""
    if _is_of_torch(function):
        return True
    holder = _holder(function)
    if issubclass(holder, (dict, set, frozenset)):
        return False
    return keeps_objects(function) or _makes_record(function)


def _makes_record(function: Any) -> bool:
    """Whether a function is a method of named tuples that makes others, or dicts, of their items."""
    code = getattr(getattr(function, "__func__", function), "__globals__", {})
    return code is vars(collections) and function.__name__ in ("_make", "_replace", "_asdict")


def _outside(vm: Machine, function: object, arg: Outside, is_owner: bool) -> object:
    if keeps_objects(function) and not is_owner and not _is_index(vm, function, arg):
        return arg
    if vm.world.classes.python_method(arg.cls, "__iter__") is not None and _iterates(function):
        return Call(None, [])
    asked = arg.questions()
    if asked is not None and function in _GOING_THROUGH:
        return asked.listed()
    container = arg.container()
    if container is not None:
        return container
    if _reads_as_plain(function, arg.cls) and (plain := arg.plain()) is not MISSING:
        return plain
    if type(function) is types.WrapperDescriptorType and function.__objclass__ in _NUMBERS and not is_owner:
        return NotImplemented  # as operators of numbers answer for any other object
    wraps = function is functools.cmp_to_key or type(function) is types.FunctionType
    if wraps and callable(arg.real) and _calls(function):
        return callback(vm, arg)
    raise _given(vm, function, f"an outside {arg.cls.__name__} object")


def _reads_as_plain(function: object, cls: type) -> bool:
    """Whether a native function makes no difference between an instance of this subclass of int, str or the like and
    a plain one: it is a method of those, or the class has no special methods of its own."""
    if isinstance(function, type) and not _only_computes(function):
        return False
    if getattr(function, "__objclass__", None) in _PLAIN_CLASSES:
        return True
    own = [item for base in cls.__mro__ if policy.is_python_class(base) for item in vars(base).items()]
    return not any(
        name[:2] == "__" and type(value) is types.FunctionType and name not in _MAKERS for name, value in own
    )


def _given(vm: Machine, function: object, what: str) -> Unsupported:
    name = f"{shown(function)}(...)"
    return vm.unsupported(f"{what} is given to native code", "native_call", operation=name)


def concrete_data(vm: Machine, value: object) -> object:
    """Containers with numbers in place of symbolic ones and copies of those from outside; others as they are."""
    return native_data(value, lambda number: concrete(vm, number))


def native_data(value: Any, number: Callable[[Any], Any] = lambda number: number) -> Any:
    """Containers with copies in place of those from outside; `number` says what symbolic numbers become."""
    cls = type(value)
    if cls in PENDING:
        return number(value)
    if cls is Outside and (container := value.container()) is not None:
        return native_data(container, number)
    if cls is dict:
        parts = {native_data(key, number): native_data(item, number) for key, item in value.items()}
        return parts if any(a is not b for a, b in zip(parts.values(), value.values())) else value
    if cls in (list, tuple, collections.deque):
        items = [native_data(item, number) for item in value]
        return cls(items) if any(a is not b for a, b in zip(items, value)) else value
    return value


def _is_index(vm: Machine, function: Any, arg: Outside) -> bool:
    """Whether a method of a sequence may take an object for an index."""
    return not issubclass(_holder(function), (dict, set, frozenset)) and (
        function.__name__ in ("__getitem__", "__setitem__", "__delitem__", "insert", "pop")
        and vm.world.classes.python_method(arg.cls, "__index__") is not None
    )


def _container_method(function: Any) -> str | None:
    """The name of a built-in container's method, bound or not."""
    owner = getattr(function, "__self__", None)
    holder = getattr(function, "__objclass__", None) or (owner if isinstance(owner, type) else type(owner))
    if issubclass(holder, _CONTAINERS):
        name: str = function.__name__
        return name
    return None


def keeps_objects(function: object) -> bool:
    """Whether a native function only stores or looks up the objects it is given."""
    if (name := _container_method(function)) is not None:
        return name in policy.ITEM_METHODS
    if isinstance(function, type) and issubclass(function, BaseException):
        return True
    return type(function) in HASHABLE and function in policy.KEEPERS


def _iterates(function: object) -> bool:
    """Whether a native function iterates over its arguments."""
    name = _container_method(function)
    if name is not None and not isinstance(function, type):
        return name in policy.ITERATING_METHODS
    return type(function) in HASHABLE and function in policy.ITERATING


def _calls(function: object) -> bool:
    """Whether a native function calls the functions it is given. Classes keep what they are given, and so do
    containers."""
    if type(function) is types.FunctionType:
        return str(function.__globals__.get("__name__")).partition(".")[0] in policy.CALLING_ROOTS
    if isinstance(function, type) or not isinstance(function, BUILTIN_TYPES):
        return False
    return _container_method(function) is None and function not in policy.KEEPERS


class ProgramIterator:
    """An iterator of the program as native code may use it: each step is a nested run."""

    __slots__ = ("value", "vm")

    def __init__(self, vm: Machine, value: object) -> None:
        self.vm, self.value = vm, value

    def __iter__(self) -> ProgramIterator:
        return self

    def __next__(self) -> object:
        return self.vm.evaluate(next, [self.value])


def callback(vm: Machine, value: object) -> object:
    """A function of the program as native code may call it: each call is a nested run."""
    function = value.__func__ if type(value) is types.MethodType else None
    if isinstance(function, BUILTIN_TYPES) and function is not FUNCTION_APPLY:
        return value
    if type(value) is types.FunctionType and (is_native(vm, value) or value.__globals__ is globals()):
        return value

    def run(*args: object, **kwargs: object) -> object:
        return vm.evaluate(value, list(args), kwargs)

    wrapped = functools.wraps(value)(run) if type(value) is types.FunctionType else run
    setattr(wrapped, CALLBACK, value)
    return wrapped
