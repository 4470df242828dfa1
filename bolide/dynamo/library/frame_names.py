"""The names of a frame as a program asks for them: `globals`, `locals`, `vars()`, `dir()`, and code run among them by
`eval` and `exec`; the names that objects have."""

from __future__ import annotations
import __future__

import builtins
import functools
import inspect
import operator
import types
from typing import Any

import torch

from bolide.dynamo.library.handlers import Args, Kwargs, intercept_table
from bolide.dynamo.machine.attributes import class_namespace, function_attributes, load_attribute
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.machine.tensors import own_attributes
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING, is_library_namespace
from bolide.dynamo.world.classes import names_in_class
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.parts import Seen
from bolide.tracing import TracedTensor

_FUTURE: int = functools.reduce(
    operator.or_, [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]
)


def variables(vm: Machine) -> dict[str, Any]:
    """The variables of the frame on top that have values."""
    frame = vm.frames[-1]
    if frame.namespace is not None:
        return frame.namespace
    values = {}
    for index, name in enumerate(frame.code.locals_names):
        value = vm.local(frame, index)
        if type(value) is types.CellType and (name in frame.code.cellvars or name in frame.code.freevars):
            value = vm.world.namespaces.load_cell(value, name)
        if value is not MISSING:
            values[name] = value
    return frame.as_locals(values)


@intercept(builtins.globals)
def _globals(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    namespace = vm.frames[-1].globals
    if vm.world.namespaces.is_own(namespace):
        return namespace
    if is_library_namespace(namespace):
        raise vm.unsupported("globals() of a library", "frame_access")
    known = vm.world.identities.seen.get(id(namespace))
    if known is None:
        source = Source("object", None, None, namespace)
        view = Outside.over(vm.world, namespace, vm.world.namespaces.globals_of(namespace), source)
        known = vm.world.identities.seen[id(namespace)] = Seen(namespace, view, source)
    return known.value


intercept(builtins.locals)(lambda vm, args, kwargs: variables(vm))


def _code(vm: Machine, source: Any, mode: str) -> types.CodeType:
    """The code of `eval` or `exec`; raises their SyntaxError."""
    if type(source) is types.CodeType and not source.co_freevars:
        return source
    if type(source) is not str:
        raise vm.unsupported(f"{mode} of an object", "frame_access")
    flags = vm.frames[-1].code.code.co_flags & _FUTURE
    text = source.lstrip(" \t") if mode == "eval" else source
    return compile(text, "<string>", mode, flags, dont_inherit=True)  # type: ignore[no-any-return]


def _namespaces(vm: Machine, given: Args) -> tuple[dict[str, Any], Any]:
    """The global and the local names of code that is run."""
    names, own = [*given, None, None][:2]
    if names is None:
        return vm.frames[-1].globals, variables(vm) if own is None else own
    if type(names) is dict:
        if not vm.world.namespaces.is_own(names):
            vm.world.namespaces.own[id(names)] = names
            builtin = builtins.__dict__
            names.setdefault("__builtins__", vm.world.identities.mirror(builtin, Source("object", None, None, builtin)))
        return names, names if own is None else own
    if type(names) is Outside and id(names.real) in vm.world.namespaces.globals:
        return names.real, names if own is None else own
    raise vm.unsupported("code is run among the names of an object from outside", "frame_access")


@intercept_table({builtins.eval: "eval", builtins.exec: "exec"})
def _run(function: object, mode: str, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    given = [*args[1:], *(kwargs[name] for name in ("globals", "locals") if name in kwargs)]
    code = _code(vm, args[0], mode)
    namespace, own = _namespaces(vm, given)
    if type(own) is not dict:
        raise vm.unsupported("code is run among the names of an object", "frame_access")
    body = types.FunctionType(code, namespace)
    vm.note_function(body)
    result = vm.evaluate_body(body, own)
    return result if mode == "eval" else None


# ---- what objects and classes have: each list is guarded as a whole, so that a name that comes later is seen ---------


@intercept(vars)
def _vars(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) > 1 or kwargs:
        return NATIVE  # raises its own error
    return load_attribute(vm, args[0], "__dict__") if args else variables(vm)


@intercept(vars(type)["__dict__"].__get__)
def _namespace_of_class(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """As `inspect` asks for it."""
    if not args or kwargs or not isinstance(args[0], type):
        return NATIVE
    return class_namespace(vm, args[0], vars(args[0]))


@intercept(vars(type)["__mro__"].__get__)
def _order_of_class(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Likewise; it says of what is no class that it is none."""
    if len(args) != 1 or kwargs or isinstance(args[0], type):
        return NATIVE
    name = class_of(args[0]).__name__
    raise TypeError(f"descriptor '__mro__' for 'type' objects doesn't apply to a '{name}' object")


@intercept(dir)
def _dir(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) > 1 or kwargs:
        return NATIVE
    if not args:
        return sorted(variables(vm))
    value = args[0]
    if type(value) is TracedTensor and value.face is None:
        return Call(torch.Tensor.__dir__, [value])
    method = vm.world.classes.python_method(class_of(value), "__dir__")
    if method is not None:
        return Call(polyfill("composed"), [sorted, method, value])
    if type(value) is types.ModuleType:
        return _of_module(vm, value)
    if isinstance(value, type):
        _rely_on_names(vm, value)
        return dir(value)
    _rely_on_names(vm, class_of(value))
    if type(value) is types.FunctionType and id(value) not in vm.own_functions:
        attributes = function_attributes(vm, value)
        return dir(value) if attributes is None else sorted({*dir(types.FunctionType), *attributes.materialise()})
    if type(value) is not Outside:
        return dir(value)
    if value.attrs is None:
        raise vm.unsupported(f"dir() of an outside {value.cls.__name__} object", "outside_object")
    return sorted({*dir(value.cls), *value.attrs.materialise()})


@intercept(inspect.getmembers)
def _members(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    value = args[0]
    _rely_on_names(vm, value if isinstance(value, type) else class_of(value))
    if isinstance(value, type):
        for name in dir(value):
            vm.world.classes.lookup(value, name)
    return NATIVE


@intercept(torch.Tensor.__dir__)
def _dir_of_tensor(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    value = args[0]
    if type(value) is not TracedTensor or value.face is not None:
        return NATIVE
    gone = {"volatile"} if value.is_cuda else {"volatile", "__cuda_array_interface__"}
    return sorted({*dir(load_attribute(vm, value, "__class__")), *own_attributes(vm, value)} - gone)


def _rely_on_names(vm: Machine, cls: type) -> None:
    if any(base in vm.world.classes.written for base in cls.__mro__):
        raise vm.unsupported("dir() of a class that is written to", "outside_object")
    vm.world.classes.rely_on_answer(cls, names_in_class)


def _of_module(vm: Machine, module: types.ModuleType) -> list[str]:
    if is_library_namespace(vars(module)):
        return dir(module)
    written = vm.world.namespaces.globals.get(id(vars(module)))
    if "__dir__" in vars(module) or (written is not None and written.changes()):
        raise vm.unsupported("dir() of a module that is written to, or has its own", "outside_object")
    source = Source("apply", Source("object", None, None, module), (), _names_in_module)
    vm.world.guards.add(source, "equals", _names_in_module(module))
    return dir(module)


def _names_in_module(module: Any) -> tuple[str, ...]:
    return tuple(sorted(vars(module)))


@intercept(type.__subclasses__)
def _subclasses(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1 or kwargs or not isinstance(args[0], type) or id(args[0]) in vm.world.classes.own:
        return NATIVE
    subclasses = _subclasses_of(args[0])
    if any(id(cls) in vm.world.classes.own for cls in subclasses):
        raise vm.unsupported("subclasses of which the program has made one", "outside_object")
    source = Source("apply", Source("object", None, None, args[0]), (), _subclasses_of)
    vm.world.guards.add(source, "equals", subclasses)
    return list(subclasses)


def _subclasses_of(cls: Any) -> tuple[type, ...]:
    return tuple(type.__subclasses__(cls))
