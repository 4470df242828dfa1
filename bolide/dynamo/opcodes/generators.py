"""Handlers of generators, coroutines, `await` and `async for`."""

from __future__ import annotations

import inspect
import types
from typing import Any, NoReturn

from bolide.dynamo.machine import operations
from bolide.dynamo.machine.calls import SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Machine, Slot, opcode, polyfill
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.polyfills import generators
from bolide.dynamo.program.kinds import MISSING, name_in_c
from bolide.dynamo.world.frames import Frame, Generator
from bolide.support.errors import Unsupported


def _asynchronous(vm: Machine) -> Unsupported:
    return vm.unsupported("an asynchronous generator", "asynchronous", "iterate over it outside the compiled function")


@opcode("RETURN_GENERATOR")
def _return_generator(vm: Machine, frame: Frame, arg: object) -> bool:
    flags = frame.code.code.co_flags
    if flags & inspect.CO_ASYNC_GENERATOR:
        raise _asynchronous(vm)
    kind = "coroutine" if flags & inspect.CO_COROUTINE else "generator"
    generator = Generator(frame, getattr(frame.function, "__qualname__", frame.code.qualname), kind)
    vm.note_generator(generator)
    vm.frames.pop()
    vm.give(frame, generator)
    return True


@opcode("YIELD_VALUE")
def _yield_value(vm: Machine, frame: Frame, arg: object) -> bool:
    value = frame.stack.pop()
    vm.frames.pop()
    generator = frame.generator
    assert generator is not None
    generator.running = False
    frame.generator = None  # so that a suspended generator goes away with its last reference
    vm.frames[-1].stack.append(value)
    return True


@opcode("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(vm: Machine, frame: Frame, arg: object) -> bool | None:
    value = frame.stack.pop()
    if type(value) is Generator and value.kind == "coroutine":
        if not frame.code.code.co_flags & _DRIVEN:
            raise TypeError("cannot 'yield from' a coroutine object in a non-coroutine generator")
        frame.stack.append(value)
        return None
    own = vm.world.classes.python_method(class_of(value), "__iter__") is not None
    return vm.call(frame, polyfill("delegated") if own else iter, [value])


@opcode("SEND")
def _send(vm: Machine, frame: Frame, arg: int) -> bool | None:
    value = frame.stack.pop()
    receiver = frame.stack[-1]
    if type(receiver) is Generator:
        return vm.resume(receiver, value, "send", arg)
    if value is not None:
        cls = class_of(receiver)
        if not hasattr(cls, "send"):
            raise AttributeError(f"'{name_in_c(cls)}' object has no attribute 'send'")
    try:
        frame.stack.append(next(receiver) if value is None else receiver.send(value))
    except StopIteration as stop:
        frame.stack.append(stop.value)
        frame.pc = arg
    return None


@opcode("END_SEND")
def _end_send(vm: Machine, frame: Frame, arg: object) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW")
def _cleanup_throw(vm: Machine, frame: Frame, arg: object) -> bool | None:
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        vm.unwind(error, "reraised")
        return True
    del frame.stack[-3:]
    frame.stack += [None, error.value]
    return None


@opcode("STOPITERATION_ERROR")
def _stopiteration_error(vm: Machine, frame: Frame, arg: object) -> None:
    """What 3.12 wraps around the body of a generator; `Machine.unwind` turns StopIteration into RuntimeError for all
    versions."""


# ---- the methods of generators ---------------------------------------------------------------------------------------


def _advance(vm: Machine, generator: Generator, value: object) -> object:
    return SWITCHED if vm.resume(generator, value, "stop") else vm.frames[-1].stack.pop()


intercept(generators.generator_next)(lambda vm, args, kwargs: _advance(vm, args[0], None))
intercept(generators.generator_send)(lambda vm, args, kwargs: _advance(vm, args[0], args[1]))


@intercept(generators.delegate_of_generator)
def _delegate(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> object:
    generator = args[0]
    if not generator.started or generator.done or generator.running:
        return None
    vm.refuse_foreign(generator)
    return generator.frame.delegate()


_THROWN: Slot[tuple[int, Any]] = Slot(lambda: (0, None))


@intercept(generators.raise_in_generator)
def _raise_in_generator(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> object:
    generator, error, given = args
    kept = None if any(each is error for each in given) else given
    _THROWN.put(vm, (id(error), kept))  # by id: its traceback would keep what is dropped alive
    vm.throw(generator, error)
    return SWITCHED


@intercept(generators.given_to_throw)
def _given_to_throw(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> object:
    thrown, given = _THROWN.of(vm)
    return given if given is not None and thrown == id(args[0]) else (args[0],)


intercept(generators.is_stepped_by_code)(
    lambda vm, args, kwargs: vm.world.classes.python_method(class_of(args[0]), "__next__") is not None
)


# ---- asynchronous code -----------------------------------------------------------------------------------------------


_DRIVEN = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE  # what may be awaited, and await


def _method_of(vm: Machine, value: object, name: str, refusal: str) -> object:
    """The special method of a value; raises TypeError where it has none."""
    method = operations.special_method(vm, value, name)
    if method is MISSING:
        raise TypeError(refusal.format(class_of(value).__name__))
    return method


@opcode("GET_AWAITABLE")
def _get_awaitable(vm: Machine, frame: Frame, arg: object) -> bool | None:
    value = frame.stack.pop()
    if type(value) is Generator:
        if not value.frame.code.code.co_flags & _DRIVEN:
            raise TypeError("object generator can't be used in 'await' expression")
        frame.stack.append(value)
        return None
    method = _method_of(vm, value, "__await__", "object {} can't be used in 'await' expression")
    if not isinstance(getattr(method, "__func__", None), types.FunctionType):
        remedy = "await it outside the compiled function"
        raise vm.unsupported("await of an object of an event loop", "asynchronous", remedy)
    return vm.call(frame, method, [])


@opcode("GET_AITER")
def _get_aiter(vm: Machine, frame: Frame, arg: object) -> bool | None:
    refusal = "'async for' requires an object with __aiter__ method, got {}"
    return vm.call(frame, _method_of(vm, frame.stack.pop(), "__aiter__", refusal), [])


@opcode("GET_ANEXT")
def _get_anext(vm: Machine, frame: Frame, arg: object) -> bool | None:
    refusal = "'async for' requires an iterator with __anext__ method, got {}"
    return vm.call(frame, _method_of(vm, frame.stack[-1], "__anext__", refusal), [])


@opcode("END_ASYNC_FOR")
def _end_async_for(vm: Machine, frame: Frame, arg: int) -> bool | None:
    """`arg`: how many values below the exception belong to the loop; in 3.10 there is a running handler among them."""
    error = frame.stack.pop()
    if not isinstance(error, StopAsyncIteration):
        vm.unwind(error, "reraised")
        return True
    del frame.stack[-arg:]
    if arg > 1:
        frame.exceptions.pop()
    return None


@opcode("ASYNC_GEN_WRAP")
def _async_gen_wrap(vm: Machine, frame: Frame, arg: object) -> NoReturn:
    raise _asynchronous(vm)
