"""What objects and classes have: `dir`, `vars`, `__subclasses__`. Each list is guarded as a whole, so that a name that
comes later is seen."""

from __future__ import annotations

import types
from typing import Any

import torch

from bolide.dynamo.library.frame_names import variables
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.attributes import class_namespace, function_attributes, load_attribute
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.operations import class_of, polyfill
from bolide.dynamo.machine.tensors import own_attributes
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import is_library_namespace
from bolide.dynamo.world.classes import names_in_class
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor

Args = list[Any]
Kwargs = dict[str, Any]


@intercept(vars)
def _vars(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1 or kwargs:
        return NATIVE  # raises its own error
    return load_attribute(vm, args[0], "__dict__") if args else variables(vm)


@intercept(vars(type)["__dict__"].__get__)
def _namespace_of_class(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """As `inspect` asks for it."""
    if not args or kwargs or not isinstance(args[0], type):
        return NATIVE
    return class_namespace(vm, args[0], vars(args[0]))


@intercept(dir)
def _dir(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1 or kwargs:
        return NATIVE
    if not args:
        return sorted(variables(vm))
    value = args[0]
    if type(value) is TracedTensor and value.face is None:
        return Call(torch.Tensor.__dir__, [value])
    method = operations.python_method(vm.world, class_of(value), "__dir__")
    if method is not None:
        return Call(polyfill("sorted_call"), [method, value])
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
        raise Unsupported(f"dir() of an outside {value.cls.__name__} object", vm.where(), None, "outside_object")
    return sorted({*dir(value.cls), *value.attrs.materialise()})


@intercept(torch.Tensor.__dir__)
def _dir_of_tensor(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    value = args[0]
    if type(value) is not TracedTensor or value.face is not None:
        return NATIVE
    gone = {"volatile"} if value.is_cuda else {"volatile", "__cuda_array_interface__"}
    return sorted({*dir(load_attribute(vm, value, "__class__")), *own_attributes(vm, value)} - gone)


def _rely_on_names(vm: Machine, cls: type) -> None:
    if any(base in vm.world.classes for base in cls.__mro__):
        raise Unsupported("dir() of a class that is written to", vm.where(), None, "outside_object")
    vm.world.rely_on_answer(cls, names_in_class)


def _of_module(vm: Machine, module: types.ModuleType) -> list[str]:
    if is_library_namespace(vars(module)):
        return dir(module)
    written = vm.world.globals.get(id(vars(module)))
    if "__dir__" in vars(module) or (written is not None and written.changes()):
        raise Unsupported("dir() of a module that is written to, or has its own", vm.where(), None, "outside_object")
    vm.world.guard(
        Source("apply", Source("object", None, None, module), (), _names_in_module), "equals", _names_in_module(module)
    )
    return dir(module)


def _names_in_module(module: Any) -> tuple[str, ...]:
    return tuple(sorted(vars(module)))


@intercept(type.__subclasses__)
def _subclasses(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or kwargs or not isinstance(args[0], type) or id(args[0]) in vm.world.own_classes:
        return NATIVE
    found = _subclasses_of(args[0])
    if any(id(cls) in vm.world.own_classes for cls in found):
        raise Unsupported("subclasses of which the program has made one", vm.where(), None, "outside_object")
    vm.world.guard(Source("apply", Source("object", None, None, args[0]), (), _subclasses_of), "equals", found)
    return list(found)


def _subclasses_of(cls: Any) -> tuple[type, ...]:
    return tuple(type.__subclasses__(cls))
