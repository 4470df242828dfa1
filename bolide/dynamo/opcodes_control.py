"""Handlers of control flow: jumps, loops, calls, returns, generators, exceptions, `with`."""

from __future__ import annotations

import inspect
from typing import Any

from bolide.dynamo import operations
from bolide.dynamo.frames import Frame, Generator
from bolide.dynamo.interpreter import Call, Machine, opcode
from bolide.dynamo.opcodes import NULL, _pop_many
from bolide.dynamo.values.outside import MISSING
from bolide.support.errors import Unsupported

# ---- jumps and loops -------------------------------------------------------------------------------------------------


@opcode("JUMP")
def _jump(vm: Machine, frame: Frame, arg: int) -> None:
    frame.pc = arg


def _branch(vm: Machine, frame: Frame, target: int, wanted: bool) -> Any:
    value = frame.stack.pop()
    if value is not True and value is not False:
        value = operations.truth(vm, value)
        if type(value) is Call:  # interpret __bool__ or __len__, then branch on its result
            frame.pc -= 1
            return vm.answer(frame, value)
    if value is wanted:
        frame.pc = target
    return None


@opcode("POP_JUMP_IF_FALSE")
def _pop_jump_if_false(vm: Machine, frame: Frame, arg: int) -> Any:
    return _branch(vm, frame, arg, False)


@opcode("POP_JUMP_IF_TRUE")
def _pop_jump_if_true(vm: Machine, frame: Frame, arg: int) -> Any:
    return _branch(vm, frame, arg, True)


@opcode("POP_JUMP_IF_NONE")
def _pop_jump_if_none(vm: Machine, frame: Frame, arg: int) -> None:
    if frame.stack.pop() is None:
        frame.pc = arg


@opcode("POP_JUMP_IF_NOT_NONE")
def _pop_jump_if_not_none(vm: Machine, frame: Frame, arg: int) -> None:
    if frame.stack.pop() is not None:
        frame.pc = arg


@opcode("GET_ITER")
def _get_iter(vm: Machine, frame: Frame, arg: Any) -> Any:
    value = frame.stack.pop()
    if type(value) is Generator:
        frame.stack.append(value)
        return None
    items = operations.native_iterable(vm, value)
    if items is MISSING:
        return vm.call(frame, operations.polyfill("iterate"), [value])
    frame.stack.append(iter(items))
    return None


@opcode("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(vm: Machine, frame: Frame, arg: Any) -> Any:
    return _get_iter(vm, frame, arg)


@opcode("FOR_ITER")
def _for_iter(vm: Machine, frame: Frame, arg: int) -> Any:
    iterator = frame.stack[-1]
    if type(iterator) is Generator:
        return vm.resume(iterator, None, "for", arg)
    try:
        value = next(iterator)
    except StopIteration:
        frame.stack.pop()
        frame.pc = arg
        return None
    frame.stack.append(value)
    return None


# ---- calls -----------------------------------------------------------------------------------------------------------


def _invoke(vm: Machine, frame: Frame, first: Any, second: Any, args: list[Any], names: tuple[str, ...] = ()) -> Any:
    """Call what stands in two slots: a function and NULL, in any order, or an unbound method and its owner."""
    kwargs: dict[str, Any] | None = None
    if names:
        kwargs = dict(zip(names, args[-len(names) :]))
        del args[-len(names) :]
    if first is NULL:
        first = second
    elif second is not NULL:
        args.insert(0, second)
    return vm.call(frame, first, args, kwargs)


@opcode("CALL")
def _call(vm: Machine, frame: Frame, arg: int) -> Any:
    args = _pop_many(frame, arg)
    second = frame.stack.pop()
    return _invoke(vm, frame, frame.stack.pop(), second, args)


@opcode("CALL_KW")
def _call_kw(vm: Machine, frame: Frame, arg: int) -> Any:
    names = frame.stack.pop()
    args = _pop_many(frame, arg)
    second = frame.stack.pop()
    return _invoke(vm, frame, frame.stack.pop(), second, args, names)


@opcode("CALL_FUNCTION")
def _call_function(vm: Machine, frame: Frame, arg: int) -> Any:
    """CALL of 3.10: the function stands alone."""
    args = _pop_many(frame, arg)
    return vm.call(frame, frame.stack.pop(), args)


@opcode("CALL_FUNCTION_KW")
def _call_function_kw(vm: Machine, frame: Frame, arg: int) -> Any:
    names = frame.stack.pop()
    args = _pop_many(frame, arg)
    return _invoke(vm, frame, frame.stack.pop(), NULL, args, names)


@opcode("CALL_FUNCTION_EX")
def _call_function_ex(vm: Machine, frame: Frame, arg: tuple[bool, bool]) -> Any:
    """`arg`: whether there are keywords, whether NULL stands beside the function."""
    stack = frame.stack
    kwargs = stack.pop() if arg[0] else None
    args = stack.pop()
    items = operations.native_iterable(vm, args)
    if items is MISSING:
        stack.append(args)
        if kwargs is not None:
            raise Unsupported(
                "f(*iterator, **kwargs) with an iterator of the program's own", vm.where(), "pass *list(iterator)"
            )
        frame.pc -= 1
        stack.pop()
        return vm.call(frame, operations.polyfill("drain"), [args])
    function = stack.pop()
    if arg[1]:
        other = stack.pop()
        function = other if function is NULL else function
    return vm.call(frame, function, list(items), dict(kwargs) if kwargs else None)


@opcode("RETURN_VALUE")
def _return_value(vm: Machine, frame: Frame, arg: Any) -> bool:
    vm.finish(frame, frame.stack.pop())
    return True


@opcode("RETURN_CONST")
def _return_const(vm: Machine, frame: Frame, arg: Any) -> bool:
    vm.finish(frame, arg)
    return True


# ---- generators ------------------------------------------------------------------------------------------------------


@opcode("RETURN_GENERATOR")
def _return_generator(vm: Machine, frame: Frame, arg: Any) -> bool:
    if not frame.code.code.co_flags & inspect.CO_GENERATOR:
        raise Unsupported("a coroutine", vm.where(), "await it outside the compiled function")
    generator = Generator(frame, frame.code.qualname)
    vm.finish(frame, generator)
    frame.generator = generator
    return True


@opcode("YIELD_VALUE")
def _yield_value(vm: Machine, frame: Frame, arg: Any) -> bool:
    value = frame.stack.pop()
    vm.frames.pop()
    assert frame.generator is not None
    frame.generator.running = False
    vm.frames[-1].stack.append(value)
    return True


@opcode("SEND")
def _send(vm: Machine, frame: Frame, arg: int) -> Any:
    value = frame.stack.pop()
    receiver = frame.stack[-1]
    if type(receiver) is Generator:
        return vm.resume(receiver, value, "send", arg)
    try:
        frame.stack.append(next(receiver) if value is None else receiver.send(value))
    except StopIteration as stop:
        frame.stack.append(stop.value)
        frame.pc = arg
    return None


@opcode("END_SEND")
def _end_send(vm: Machine, frame: Frame, arg: Any) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW")
def _cleanup_throw(vm: Machine, frame: Frame, arg: Any) -> None:
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        raise error
    del frame.stack[-3:]
    frame.stack += [None, error.value]


@opcode("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "ASYNC_GEN_WRAP", "END_ASYNC_FOR")
def _asynchronous(vm: Machine, frame: Frame, arg: Any) -> None:
    raise Unsupported("asynchronous code", vm.where(), "keep await and async for outside the compiled function")


# ---- exceptions ------------------------------------------------------------------------------------------------------


@opcode("PUSH_EXC_INFO")
def _push_exc_info(vm: Machine, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    frame.stack.append(frame.exceptions[-1] if frame.exceptions else None)
    frame.stack.append(error)
    frame.exceptions.append(error)


@opcode("POP_EXCEPT")
def _pop_except(vm: Machine, frame: Frame, arg: Any) -> None:
    frame.stack.pop()
    if frame.exceptions:
        frame.exceptions.pop()


@opcode("CHECK_EXC_MATCH")
def _check_exc_match(vm: Machine, frame: Frame, arg: Any) -> None:
    cls = frame.stack.pop()
    frame.stack.append(isinstance(frame.stack[-1], cls))


@opcode("RERAISE")
def _reraise(vm: Machine, frame: Frame, arg: int) -> None:
    raise frame.stack.pop()  # `arg` only says which line a traceback should show


@opcode("RAISE_VARARGS")
def _raise(vm: Machine, frame: Frame, arg: int) -> Any:
    if arg == 0:
        for at in reversed(vm.frames):
            if at.exceptions:
                raise at.exceptions[-1]
        raise RuntimeError("No active exception to reraise")
    cause = frame.stack.pop() if arg == 2 else MISSING
    error = frame.stack.pop()
    if isinstance(error, type) and issubclass(error, BaseException):  # make the instance, then raise that
        frame.pc -= 1
        if cause is not MISSING:
            raise Unsupported("raise of a class with a cause", vm.where(), "raise an instance")
        return vm.call(frame, error, [])
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if cause is not MISSING:
        error.__cause__ = cause() if isinstance(cause, type) else cause
    handled = next((at.exceptions[-1] for at in reversed(vm.frames) if at.exceptions), None)
    if handled is not None and handled is not error and error.__context__ is None:
        error.__context__ = handled
    raise error


@opcode("LOAD_ASSERTION_ERROR")
def _load_assertion_error(vm: Machine, frame: Frame, arg: Any) -> None:
    frame.stack.append(AssertionError)


@opcode("BEFORE_WITH")
def _before_with(vm: Machine, frame: Frame, arg: Any) -> Any:
    """`manager` becomes its bound `__exit__`, then the result of `__enter__` is pushed."""
    manager = frame.stack.pop()
    leave = operations.special_method(vm, manager, "__exit__")
    enter = operations.special_method(vm, manager, "__enter__")
    if leave is MISSING or enter is MISSING:
        raise TypeError(
            f"{operations.class_of(manager).__name__!r} object does not support the context manager protocol"
        )
    frame.stack.append(leave)
    return vm.call(frame, enter, [])


@opcode("WITH_EXCEPT_START")
def _with_except_start(vm: Machine, frame: Frame, arg: tuple[int, int]) -> Any:
    """`arg`: how deep `__exit__` and the exception are."""
    error = frame.stack[-arg[1]]
    return vm.call(frame, frame.stack[-arg[0]], [type(error), error, error.__traceback__])


@opcode("STOPITERATION_ERROR")
def _stopiteration_error(vm: Machine, frame: Frame, arg: Any) -> None:
    value = frame.stack[-1]
    if isinstance(value, StopIteration):
        error = RuntimeError("generator raised StopIteration")
        error.__cause__ = value
        frame.stack[-1] = error
