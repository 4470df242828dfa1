"""Handlers of type parameters (3.12 on): `def f[T](x: T)`, `class C[T]`, `type A[T] = ...`.

CPython computes bounds and values of aliases when they are first asked for; here that is done at once."""

from __future__ import annotations

import typing
from typing import Any

from bolide.dynamo.frames import Frame
from bolide.dynamo.interpreter import Machine, opcode
from bolide.support.errors import Unsupported

_typing: Any = typing


def _computed(vm: Machine, function: Any) -> Any:
    try:
        return vm.evaluate(function, [])
    except Exception as error:
        raise Unsupported(
            f"a type parameter whose value raises {type(error).__name__} at its definition",
            vm.where(),
            kind="class_statement",
        ) from error


@opcode("TYPEVAR")
def _typevar(vm: Machine, frame: Frame, arg: Any) -> None:
    frame.stack.append(_typing.TypeVar(frame.stack.pop(), infer_variance=True))


@opcode("TYPEVAR_WITH_BOUND")
def _typevar_with_bound(vm: Machine, frame: Frame, arg: Any) -> None:
    bound = _computed(vm, frame.stack.pop())
    frame.stack.append(_typing.TypeVar(frame.stack.pop(), bound=bound, infer_variance=True))


@opcode("TYPEVAR_WITH_CONSTRAINTS")
def _typevar_with_constraints(vm: Machine, frame: Frame, arg: Any) -> None:
    constraints = _computed(vm, frame.stack.pop())
    frame.stack.append(_typing.TypeVar(frame.stack.pop(), *constraints, infer_variance=True))


@opcode("PARAMSPEC")
def _paramspec(vm: Machine, frame: Frame, arg: Any) -> None:
    frame.stack.append(_typing.ParamSpec(frame.stack.pop(), infer_variance=True))


@opcode("TYPEVARTUPLE")
def _typevartuple(vm: Machine, frame: Frame, arg: Any) -> None:
    frame.stack.append(_typing.TypeVarTuple(frame.stack.pop()))


@opcode("SET_TYPEPARAM_DEFAULT")
def _set_typeparam_default(vm: Machine, frame: Frame, arg: Any) -> None:
    raise Unsupported(
        "a type parameter with a default", vm.where(), "define it outside the compiled function", kind="class_statement"
    )


@opcode("SUBSCRIPT_GENERIC")
def _subscript_generic(vm: Machine, frame: Frame, arg: Any) -> None:
    parameters = frame.stack.pop()
    unpacked = [_typing.Unpack[p] if isinstance(p, _typing.TypeVarTuple) else p for p in parameters]
    frame.stack.append(_typing.Generic[tuple(unpacked)])


@opcode("TYPEALIAS")
def _typealias(vm: Machine, frame: Frame, arg: Any) -> None:
    name, parameters, compute = frame.stack.pop()
    value = _computed(vm, compute)
    frame.stack.append(_typing.TypeAliasType(name, value, type_params=parameters or ()))


@opcode("SET_FUNCTION_TYPE_PARAMS")
def _set_function_type_params(vm: Machine, frame: Frame, arg: Any) -> None:
    parameters = frame.stack.pop()
    frame.stack[-1].__type_params__ = parameters
