"""The names of a frame as a program asks for them: `globals`, `locals`, `vars()`, `dir()`, and code run among them by
`eval` and `exec`."""

from __future__ import annotations
import __future__

import builtins
import functools
import operator
import types
from typing import Any

from bolide.dynamo.machine.calls import intercept
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING, is_library_namespace
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported

Args = list[Any]
Kwargs = dict[str, Any]

_FUTURE: int = functools.reduce(
    operator.or_, [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]
)


def _refusal(vm: Machine, what: str) -> Unsupported:
    return Unsupported(what, vm.where(), kind="frame_access")


def variables(vm: Machine) -> dict[str, Any]:
    """The variables of the frame on top that have values."""
    frame = vm.frames[-1]
    if frame.namespace is not None:
        return frame.namespace
    found = {}
    for index, name in enumerate(frame.code.locals_names):
        value = vm.local(frame, index)
        if type(value) is types.CellType and (name in frame.code.cellvars or name in frame.code.freevars):
            value = vm.world.load_cell(value, name)
        if value is not MISSING:
            found[name] = value
    return frame.as_locals(found)


@intercept(builtins.globals)
def _globals(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    namespace = vm.frames[-1].globals
    if vm.world.is_own_namespace(namespace):
        return namespace
    if is_library_namespace(namespace):
        raise _refusal(vm, "globals() of a library")
    known = vm.world.seen.get(id(namespace))
    if known is None:
        source = Source("object", None, None, namespace)
        view = Outside.over(vm.world, namespace, vm.world.globals_of(namespace), source)
        known = vm.world.seen[id(namespace)] = (namespace, view, source)
    return known[1]


@intercept(builtins.locals)
def _locals(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return variables(vm)


def _code(vm: Machine, source: Any, mode: str) -> types.CodeType:
    """The code of `eval` or `exec`; raises their SyntaxError."""
    if type(source) is types.CodeType and not source.co_freevars:
        return source
    if type(source) is not str:
        raise _refusal(vm, f"{mode} of an object")
    flags = vm.frames[-1].code.code.co_flags & _FUTURE
    text = source.lstrip(" \t") if mode == "eval" else source
    made: types.CodeType = compile(text, "<string>", mode, flags, dont_inherit=True)
    return made


def _namespaces(vm: Machine, given: Args) -> tuple[dict[str, Any], Any]:
    """The global and the local names of code that is run."""
    names, own = [*given, None, None][:2]
    if names is None:
        return vm.frames[-1].globals, variables(vm) if own is None else own
    if type(names) is dict:
        if not vm.world.is_own_namespace(names):
            vm.world.own_namespaces[id(names)] = names
            builtin = builtins.__dict__
            names.setdefault("__builtins__", vm.world.mirror(builtin, Source("object", None, None, builtin)))
        return names, names if own is None else own
    if type(names) is Outside and id(names.real) in vm.world.globals:
        return names.real, names if own is None else own
    raise _refusal(vm, "code is run among the names of an object from outside")


def _run(vm: Machine, mode: str, args: Args, kwargs: Kwargs) -> Any:
    given = [*args[1:], *(kwargs[name] for name in ("globals", "locals") if name in kwargs)]
    code = _code(vm, args[0], mode)
    namespace, own = _namespaces(vm, given)
    if type(own) is not dict:
        raise _refusal(vm, "code is run among the names of an object")
    function = types.FunctionType(code, namespace)
    vm.note_function(function)
    return vm.evaluate_body(function, own)


@intercept(builtins.eval)
def _eval(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return _run(vm, "eval", args, kwargs)


@intercept(builtins.exec)
def _exec(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    _run(vm, "exec", args, {name: value for name, value in kwargs.items() if name != "closure"})


__all__ = ["variables"]
