"""Class statements and imports."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

import torch

from bolide.dynamo import operations
from bolide.dynamo.calls import intercept
from bolide.dynamo.frames import Frame
from bolide.dynamo.interpreter import Machine, opcode
from bolide.dynamo.values.attributes import load_attribute
from bolide.dynamo.values.kinds import MISSING, is_library_namespace
from bolide.dynamo.values.outside import Outside
from bolide.support.errors import Unsupported

# ---- class statements ------------------------------------------------------------------------------------------------


@opcode("LOAD_BUILD_CLASS")
def _load_build_class(vm: Machine, frame: Frame, arg: Any) -> None:
    frame.stack.append(builtins.__build_class__)


@intercept(builtins.__build_class__)
def _build_class(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The body is interpreted with a namespace of its own, then the metaclass is called natively, and `__set_name__` of
    what the body has made is interpreted."""
    body, name, *bases = args
    resolved = tuple(types.resolve_bases(bases))
    meta, namespace, keywords = types.prepare_class(name, resolved, kwargs)
    if any(type(part) is Outside for part in [*resolved, *keywords.values()]):
        raise Unsupported("a class statement with outside objects", vm.where(), kind="class_statement")
    _refuse_hooks(vm, meta, resolved)
    cell = vm.evaluate_body(body, namespace)
    if resolved != tuple(bases):
        namespace["__orig_bases__"] = tuple(bases)
    named = {key: value for key, value in namespace.items() if _set_name(vm, value) is not None}
    for key in named:
        namespace[key] = None
    made = meta(name, resolved, namespace, **keywords)
    vm.world.own_classes[id(made)] = made
    for key, value in named.items():
        type.__setattr__(made, key, value)
    if type(cell) is types.CellType:
        cell.cell_contents = made
    for key, value in named.items():
        vm.evaluate(_set_name(vm, value), [value, made, key])
    return made


def _set_name(vm: Machine, value: Any) -> Any:
    return operations.python_method(vm.world, operations.class_of(value), "__set_name__")


def _refuse_hooks(vm: Machine, meta: type, bases: tuple[type, ...]) -> None:
    """Code of the outside world that making a class would run natively may do anything there."""
    hooks = [vm.world.lookup(base, "__init_subclass__") for base in bases]
    hooks += [vm.world.lookup(meta, method) for method in ("__new__", "__init__")]
    for hook in hooks:
        function = getattr(hook, "__func__", hook)
        if type(function) is not types.FunctionType or id(function) in vm.own_functions:
            continue
        if not is_library_namespace(function.__globals__):
            raise Unsupported(
                f"making a class runs {function.__qualname__}",
                vm.where(),
                "define the class outside the function",
                kind="class_statement",
            )


# ---- imports ---------------------------------------------------------------------------------------------------------


def _really(function: Any, *args: Any) -> Any:
    """A native call whose operations on tensors are not the program's: those of a module that is imported."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return function(*args)


@opcode("IMPORT_NAME")
def _import_name(vm: Machine, frame: Frame, arg: str) -> None:
    names = frame.stack.pop()
    level = frame.stack.pop()
    frame.stack.append(_really(__import__, arg, frame.globals, None, names, level))


@opcode("IMPORT_FROM")
def _import_from(vm: Machine, frame: Frame, arg: str) -> Any:
    module = frame.stack[-1]
    if isinstance(module, types.ModuleType):
        _really(getattr, module, arg, None)  # modules that load their parts when they are asked for
    try:
        return vm.answer(frame, load_attribute(vm, module, arg))
    except AttributeError:
        pass
    name = getattr(module, "__name__", "<unknown module name>")
    submodule = sys.modules.get(f"{name}.{arg}", MISSING)
    if submodule is not MISSING:
        frame.stack.append(submodule)
        return None
    path = getattr(module, "__file__", None)
    text = f"cannot import name {arg!r} from {name!r} ({path or 'unknown location'})"
    raise ImportError(text, name=name, path=path)
