"""Handlers of class statements, imports, and type parameters (3.12 on): `def f[T](x: T)`, `class C[T]`, `type A = ...`.

CPython computes bounds and values of aliases when they are first asked for; here that is done at once.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.dynamo.library.imports import absolute_name, cannot_import, imported, rely_on_module
from bolide.dynamo.machine.attributes import load_attribute
from bolide.dynamo.machine.calls import intercept
from bolide.dynamo.machine.interpreter import Machine, opcode
from bolide.dynamo.machine.native_calls import for_real
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.opcodes.stack import pop_many
from bolide.dynamo.polyfills import generic
from bolide.dynamo.program.kinds import MISSING, is_library_namespace
from bolide.dynamo.world.frames import Frame
from bolide.dynamo.world.outside import Outside

# ---- class statements ------------------------------------------------------------------------------------------------


@opcode("LOAD_BUILD_CLASS")
def _load_build_class(vm: Machine, frame: Frame, arg: object) -> None:
    frame.stack.append(builtins.__build_class__)


@intercept(builtins.__build_class__)
def _build_class(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> object:
    """The body is interpreted with a namespace of its own, then the metaclass is called natively, and `__set_name__` of
    what the body has made is interpreted."""
    body, name, *bases = args
    _refuse_hooks(vm, [kwargs.get("metaclass"), *map(type, bases)], ("__prepare__", "__mro_entries__"))
    resolved = tuple(types.resolve_bases(bases))
    meta, namespace, keywords = types.prepare_class(name, resolved, kwargs)
    if any(type(part) is Outside for part in [*resolved, *keywords.values()]):
        raise vm.unsupported("a class statement with outside objects", "class_statement")
    _refuse_hooks(vm, [meta], ("__new__", "__init__"))
    hooked = [base for top in resolved for base in top.__mro__ if "__init_subclass__" in vars(base)]
    _refuse_hooks(vm, [base for base in hooked if id(base) not in vm.world.classes.own], ("__init_subclass__",))
    cell = vm.evaluate_body(body, namespace)
    if resolved != tuple(bases):
        namespace["__orig_bases__"] = tuple(bases)
    named = {key: value for key, value in namespace.items() if _set_name(vm, value) is not None}
    for key in named:
        namespace[key] = None
    own = {base: vars(base)["__init_subclass__"] for base in hooked if id(base) in vm.world.classes.own}
    cls = _without_hooks(own, functools.partial(meta, name, resolved, namespace, **({} if own else keywords)))
    vm.world.classes.own[id(cls)] = cls
    for key, value in named.items():
        type.__setattr__(cls, key, value)
    if type(cell) is types.CellType:
        cell.cell_contents = cls
    for key, value in named.items():
        vm.evaluate(_set_name(vm, value), [value, cls, key])
    if own:
        vm.evaluate(generic.init_subclass, [cls, keywords])
    return cls


def _without_hooks(hooks: dict[type, Any], make: Callable[[], type]) -> type:
    """Make a class whose bases, made by the program, are not to be told."""
    for base in hooks:
        type.__setattr__(base, "__init_subclass__", classmethod(lambda cls: None))
    try:
        return make()
    finally:
        for base, hook in hooks.items():
            type.__setattr__(base, "__init_subclass__", hook)


def _set_name(vm: Machine, value: object) -> object:
    return vm.world.classes.python_method(class_of(value), "__set_name__")


def _refuse_hooks(vm: Machine, classes: Iterable[Any], names: Sequence[str]) -> None:
    """Raises Unsupported where making a class would run methods of the user's natively: they may do anything."""
    for hook in [vm.world.classes.lookup(cls, name) for cls in classes if isinstance(cls, type) for name in names]:
        function = getattr(hook, "__func__", hook)
        if type(function) is types.FunctionType and not is_library_namespace(function.__globals__):
            reason, remedy = f"making a class runs {function.__qualname__}", "define the class outside the function"
            raise vm.unsupported(reason, "class_statement", remedy)


# ---- imports ---------------------------------------------------------------------------------------------------------


@opcode("IMPORT_NAME")
def _import_name(vm: Machine, frame: Frame, arg: str) -> None:
    names = frame.stack.pop()
    level = frame.stack.pop()
    known = absolute_name(frame.globals, arg, level)
    frame.stack.append(imported(vm, known, lambda: __import__(arg, frame.globals, None, names, level)))


@opcode("IMPORT_FROM")
def _import_from(vm: Machine, frame: Frame, arg: str) -> bool | None:
    module = frame.stack[-1]
    if isinstance(module, types.ModuleType):
        for_real(getattr, module, arg, None)  # modules that load their parts when they are asked for
    try:
        return vm.answer(frame, load_attribute(vm, module, arg))
    except AttributeError:
        pass
    name = getattr(module, "__name__", "<unknown module name>")
    rely_on_module(vm, f"{name}.{arg}")
    submodule = sys.modules.get(f"{name}.{arg}", MISSING)
    if submodule is not MISSING:
        frame.stack.append(submodule)
        return None
    raise cannot_import(module, arg)


# ---- type parameters -------------------------------------------------------------------------------------------------

_typing: Any = typing  # most of these are there from 3.12 on only


def _computed(vm: Machine, function: object) -> Any:
    try:
        return vm.evaluate(function, [])
    except Exception as error:
        reason = f"a type parameter whose value raises {type(error).__name__} at its definition"
        raise vm.unsupported(reason, "class_statement") from error


def _refuse_default(vm: Machine, *values: object) -> NoReturn:
    remedy = "define it outside the compiled function"
    raise vm.unsupported("a type parameter with a default", "class_statement", remedy)


def _generic(vm: Machine, parameters: Iterable[Any]) -> Any:
    unpacked = [_typing.Unpack[each] if isinstance(each, _typing.TypeVarTuple) else each for each in parameters]
    return _typing.Generic[tuple(unpacked)]


def _alias(vm: Machine, parts: tuple[str, Any, object]) -> Any:
    name, parameters, compute = parts
    return _typing.TypeAliasType(name, _computed(vm, compute), type_params=parameters or ())


def _with_parameters(vm: Machine, function: Any, parameters: object) -> Any:
    function.__type_params__ = parameters
    return function


def _pushes(name: str, compute: Callable[..., Any]) -> None:
    """The operation that pushes what is computed of the values that it pops."""
    count = UNIFORM[name].taken(None)

    @opcode(name)
    def push(vm: Machine, frame: Frame, arg: object) -> None:
        frame.stack.append(compute(vm, *pop_many(frame, count)))


_pushes("TYPEVAR", lambda vm, name: _typing.TypeVar(name, infer_variance=True))
_pushes(
    "TYPEVAR_WITH_BOUND", lambda vm, name, bound: _typing.TypeVar(name, bound=_computed(vm, bound), infer_variance=True)
)
_pushes(
    "TYPEVAR_WITH_CONSTRAINTS",
    lambda vm, name, kinds: _typing.TypeVar(name, *_computed(vm, kinds), infer_variance=True),
)
_pushes("PARAMSPEC", lambda vm, name: _typing.ParamSpec(name, infer_variance=True))
_pushes("TYPEVARTUPLE", lambda vm, name: _typing.TypeVarTuple(name))
_pushes("SET_TYPEPARAM_DEFAULT", _refuse_default)
_pushes("SUBSCRIPT_GENERIC", _generic)
_pushes("TYPEALIAS", _alias)
_pushes("SET_FUNCTION_TYPE_PARAMS", _with_parameters)
