"""Handlers of control flow: jumps, loops, calls, returns."""

from __future__ import annotations

from typing import Any

from bolide.dynamo.machine import operations
from bolide.dynamo.machine.breaking import break_is_error, can_fork, checked, compared_number
from bolide.dynamo.machine.interpreter import Call, Machine, opcode, polyfill
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.opcodes.forks import attempted, fork
from bolide.dynamo.opcodes.stack import NULL, described, is_iterable, pop_many
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.world.frames import Frame, Generator
from bolide.support.errors import Unsupported, forgive
from bolide.tracing import TracedTensor
from bolide.tracing.meta import DataDependent

# ---- jumps and loops -------------------------------------------------------------------------------------------------


@opcode("JUMP")
def _jump(vm: Machine, frame: Frame, arg: int) -> None:
    frame.pc = arg


def _branch(vm: Machine, frame: Frame, target: int, wanted: bool) -> bool | None:
    value = frame.stack.pop()
    if value is not True and value is not False:
        truth = _truth(vm, frame, value, target, wanted)
        if isinstance(truth, Unsupported):
            try:
                _fork(vm, frame, value, target, wanted, truth)
            finally:
                del truth  # its traceback leads to this frame: a cycle would keep the program's values alive
            return None
        if type(truth) is Call:  # interpret __bool__ or __len__, then branch on its result
            frame.pc -= 1
            return vm.answer(frame, truth)
        value = truth
    if value is wanted:
        frame.pc = target
    return None


def _truth(vm: Machine, frame: Frame, value: Any, target: int, wanted: bool) -> Any:
    """What a branch is decided by: a truth, or the Call that gives it; what is not supported where data decide."""
    if type(value) is TracedTensor and value.numel() != 1:
        return operations.truth(vm, value)  # raises
    try:
        if type(value) is TracedTensor and not vm.trace.captures_numbers and vm.trace.known(value) is None:
            truth = checked(vm, frame, value, target, wanted)  # rather a check than a guard of its data
            value = value if truth is None else truth
            if truth is None and vm.trace.captures_numbers is None and can_fork(vm, frame.code, frame.pc - 1):
                known = vm.trace.read(value)  # no symbol is made for it
                return DataDependent("bool(tensor)", vm.where(), "data_branch") if known is None else bool(value)
        return operations.truth(vm, value)
    except Unsupported as error:
        if error.kind not in operations.DATA_DECIDES:
            raise
        truth = checked(vm, frame, value, target, wanted)
        if truth is not None:
            forgive(error)
        return error if truth is None else truth


def _fork(vm: Machine, frame: Frame, value: object, target: int, wanted: bool, refused: Unsupported) -> None:
    """Both ways of a branch become parts of the graph, or guards ask which one is gone, or the branch is a break."""
    at, apart = frame.pc, vm.world.symbols.history.learnt.apart
    try:
        if can_fork(vm, frame.code, at - 1):
            why = attempted(vm, frame, lambda: fork(vm, frame, value, target, wanted))
            if why is None:
                forgive(refused)
                return
            refused.reason += f" (and no branch of the graph: {why})"
            if vm.world.program.answer(value) is not None:
                apart[frame.code, at - 1] = str(why)  # it is captured again, with guards
            raise refused
        answer = vm.world.program.answer(value)
        if answer is None:
            if (frame.code, at - 1) in apart:
                refused.reason += f" (and no branch of the graph: {apart[frame.code, at - 1]})"
            raise refused
        forgive(refused)
        frame.pc = target if answer is wanted else at
    finally:
        del refused  # as above


@opcode("POP_JUMP_IF_FALSE")
def _pop_jump_if_false(vm: Machine, frame: Frame, arg: int) -> bool | None:
    return _branch(vm, frame, arg, False)


@opcode("POP_JUMP_IF_TRUE")
def _pop_jump_if_true(vm: Machine, frame: Frame, arg: int) -> bool | None:
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
def _get_iter(vm: Machine, frame: Frame, arg: object) -> bool | None:
    value = frame.stack.pop()
    if type(value) is Generator:
        frame.stack.append(value)
        return None
    items = operations.native_iterable(vm, value)
    if items is MISSING:
        return vm.call(frame, polyfill("iterate"), [value])
    frame.stack.append(iter(items))
    return None


@opcode("FOR_ITER")
def _for_iter(vm: Machine, frame: Frame, arg: int) -> bool | None:
    iterator = frame.stack[-1]
    loops = vm.world.symbols.history.learnt.loops
    if loops and (frame.code, frame.pc - 1) in loops and not break_is_error(vm):
        raise vm.unsupported("a loop whose length is another one in each call", "size_loop")
    if type(iterator) is Generator:
        return vm.resume(iterator, None, "for", arg)
    try:
        value = next(iterator)
    except StopIteration:
        frame.stack.pop()
        frame.pc = arg
        if frame.stack:
            vm.world.containers.built(frame.stack[-1])
        return None
    frame.stack.append(value)
    return None


# ---- calls -----------------------------------------------------------------------------------------------------------


def _invoke(
    vm: Machine, frame: Frame, first: object, second: object, args: list[Any], names: tuple[str, ...] = ()
) -> bool | None:
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
def _call(vm: Machine, frame: Frame, arg: int) -> bool | None:
    args = pop_many(frame, arg)
    second = frame.stack.pop()
    first = frame.stack.pop()
    number = compared_number(vm, frame, second if first is NULL else first, args)
    if number is None:
        return _invoke(vm, frame, first, second, args)
    frame.stack.append(number)
    return None


@opcode("CALL_KW")
def _call_kw(vm: Machine, frame: Frame, arg: int) -> bool | None:
    names = frame.stack.pop()
    args = pop_many(frame, arg)
    second = frame.stack.pop()
    return _invoke(vm, frame, frame.stack.pop(), second, args, names)


@opcode("CALL_FUNCTION")
def _call_function(vm: Machine, frame: Frame, arg: int) -> bool | None:
    """CALL of 3.10: the function stands alone."""
    args = pop_many(frame, arg)
    return vm.call(frame, frame.stack.pop(), args)


@opcode("CALL_FUNCTION_KW")
def _call_function_kw(vm: Machine, frame: Frame, arg: int) -> bool | None:
    names = frame.stack.pop()
    args = pop_many(frame, arg)
    return _invoke(vm, frame, frame.stack.pop(), NULL, args, names)


def _positional(vm: Machine, args: object, function: object) -> object:
    """The items of `*args`."""
    if not is_iterable(vm, args):
        name = class_of(args).__name__
        raise TypeError(f"{described(function)} argument after * must be an iterable, not {name}")
    items = operations.native_iterable(vm, args)
    return vm.evaluate(polyfill("drain"), [args]) if items is MISSING else items


@opcode("CALL_FUNCTION_EX")
def _call_function_ex(vm: Machine, frame: Frame, arg: tuple[bool, bool]) -> bool | None:
    """`arg`: whether there are keywords, whether NULL stands beside the function."""
    stack = frame.stack
    kwargs = stack.pop() if arg[0] else None
    args = stack.pop()
    if type(args) is not tuple:
        args = _positional(vm, args, stack[-1] if stack[-1] is not NULL else stack[-2])
    function = stack.pop()
    if arg[1]:
        other = stack.pop()
        function = other if function is NULL else function
    return vm.call(frame, function, list(args), dict(kwargs) if kwargs else None)


@opcode("RETURN_VALUE")
def _return_value(vm: Machine, frame: Frame, arg: object) -> bool:
    vm.finish(frame, frame.stack.pop())
    return True
