"""Handlers of exceptions and of `with`."""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Iterator
from typing import Any

from bolide.dynamo.bytecode.forms import VERSION
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.calls import intercept
from bolide.dynamo.machine.interpreter import Machine, opcode
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.world.frames import Frame
from bolide.dynamo.world.outside import Outside

_Group: Any = getattr(builtins, "BaseExceptionGroup", ())  # from 3.11 on

# ---- handlers --------------------------------------------------------------------------------------------------------


@opcode("PUSH_EXC_INFO")
def _push_exc_info(vm: Machine, frame: Frame, arg: object) -> None:
    error = frame.stack.pop()
    frame.stack.append(frame.exceptions[-1] if frame.exceptions else None)
    frame.stack.append(error)
    frame.exceptions.append(error)


@opcode("POP_EXCEPT")
def _pop_except(vm: Machine, frame: Frame, arg: object) -> None:
    frame.stack.pop()
    frame.exceptions.pop()


def _classes(wanted: object, groups: bool) -> Iterator[type]:
    """The classes of an `except` clause."""
    for cls in wanted if isinstance(wanted, tuple) else (wanted,):
        if isinstance(cls, tuple):
            yield from _classes(cls, groups)
        elif not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
        elif groups and issubclass(cls, _Group):
            raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
        else:
            yield cls


def _matches(error: object, wanted: object, groups: bool = False) -> bool:
    """As `except` compares: by the classes themselves, `__instancecheck__` has no say."""
    classes = list(_classes(wanted, groups))
    return any(cls in type(error).__mro__ for cls in classes)


@opcode("CHECK_EXC_MATCH")
def _check_exc_match(vm: Machine, frame: Frame, arg: object) -> None:
    wanted = frame.stack.pop()
    frame.stack.append(_matches(frame.stack[-1], wanted))


@opcode("CHECK_EG_MATCH")
def _check_eg_match(vm: Machine, frame: Frame, arg: object) -> None:
    """`except*`: (group, classes) become (what is left, what matched), None for nothing."""
    wanted = frame.stack.pop()
    error = frame.stack.pop()
    if _matches(error, wanted, True):
        matched: Any = error if isinstance(error, _Group) else _Group("", (error,))
        frame.stack += [None, matched]
    elif isinstance(error, _Group):
        matched, rest = error.split(tuple(_classes(wanted, True)))
        frame.stack += [rest, matched]
    else:
        matched = None
        frame.stack += [error, None]
    if matched is not None:
        frame.exceptions[-1] = matched


@opcode("PREP_RERAISE_STAR")
def _prep_reraise_star(vm: Machine, frame: Frame, arg: object) -> None:
    """(what was caught, what the clauses raised and left over) becomes what goes on, None for nothing."""
    results = [error for error in frame.stack.pop() if error is not None]
    caught = frame.stack.pop()
    if not isinstance(caught, _Group):  # a naked exception was wrapped for the clauses
        frame.stack.append(results[0] if results else None)
        return
    raised = [error for error in results if not _is_part(error, caught)]
    left = [error for error in results if _is_part(error, caught)]
    leaves = {id(leaf) for error in left for leaf in _leaves(error)}
    rest = caught.subgroup(lambda error: id(error) in leaves) if leaves else None
    if raised and rest is not None:
        raised.append(rest)
    if len(raised) > 1:
        frame.stack.append(_Group("", raised))
    else:
        frame.stack.append(raised[0] if raised else rest)


def _is_part(error: Any, group: Any) -> bool:
    """Whether an exception group is a part of `group` that `except*` split off, rather than a new exception."""
    return isinstance(error, _Group) and _LINKS(error) == _LINKS(group)


_LINKS = operator.attrgetter("__traceback__", "__cause__", "__context__")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, _Group):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


@intercept(sys.exc_info)
def _exc_info(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> object:
    error = vm.handled()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


if VERSION >= (3, 11):
    intercept(sys.exception)(lambda vm, args, kwargs: vm.handled())


# ---- raising ---------------------------------------------------------------------------------------------------------


@opcode("RERAISE")
def _reraise(vm: Machine, frame: Frame, arg: object) -> bool:
    vm.unwind(frame.stack.pop(), "reraised")  # the argument only says which line a traceback should show
    return True


@opcode("RAISE_VARARGS")
def _raise(vm: Machine, frame: Frame, arg: int) -> bool | None:
    if arg == 0:
        error = frame.exceptions[-1] if frame.exceptions else vm.handled()
        if error is None:
            raise RuntimeError("No active exception to reraise")
        vm.unwind(error, "reraised")
        return True
    cause = frame.stack.pop() if arg == 2 else MISSING
    error = frame.stack.pop()
    if any(type(part) is Outside and issubclass(part.cls, BaseException) for part in (error, cause)):
        raise vm.unsupported("an exception of the outside world is raised", "outside_object", "raise a new one")
    if isinstance(error, type) and issubclass(error, BaseException):
        if cause is MISSING:  # make the instance, then raise that
            frame.pc -= 1
            return vm.call(frame, error, [])
        error = vm.evaluate(error, [])
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if cause is not MISSING:
        if isinstance(cause, type) and issubclass(cause, BaseException):
            cause = vm.evaluate(cause, [])
        if cause is not None and not isinstance(cause, BaseException):
            raise TypeError("exception causes must derive from BaseException")
        error.__cause__ = cause
    if error.__traceback__ is None and not frame.code.plumbing:
        vm.progress.stated = id(error)
    if isinstance(error, KeyboardInterrupt):  # of the program's own
        vm.unwind(error)
        return True
    raise error


# ---- with ------------------------------------------------------------------------------------------------------------


def enter_manager(vm: Machine, frame: Frame, names: tuple[str, str], protocol: str) -> bool | None:
    """The context manager on the stack becomes its bound exit method, then the result of its enter method is pushed."""
    manager = frame.stack.pop()
    leave, enter = [operations.special_method(vm, manager, name) for name in names]
    if leave is MISSING or enter is MISSING:
        if VERSION == (3, 10):
            raise AttributeError(names[1] if enter is MISSING else names[0])
        missed = "" if enter is MISSING else f" (missed {names[0]} method)"
        name = class_of(manager).__name__
        raise TypeError(f"{name!r} object does not support the {protocol} protocol{missed}")
    frame.stack.append(leave)
    return vm.call(frame, enter, [])


@opcode("BEFORE_WITH")
def _before_with(vm: Machine, frame: Frame, arg: object) -> bool | None:
    return enter_manager(vm, frame, ("__exit__", "__enter__"), "context manager")


@opcode("BEFORE_ASYNC_WITH")
def _before_async_with(vm: Machine, frame: Frame, arg: object) -> bool | None:
    return enter_manager(vm, frame, ("__aexit__", "__aenter__"), "asynchronous context manager")


@opcode("WITH_EXCEPT_START")
def _with_except_start(vm: Machine, frame: Frame, arg: tuple[int, int]) -> bool | None:
    """`arg`: how deep `__exit__` and the exception are."""
    error = frame.stack[-arg[1]]
    return vm.call(frame, frame.stack[-arg[0]], [type(error), error, error.__traceback__])
