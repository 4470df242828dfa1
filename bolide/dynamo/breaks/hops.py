"""Hops: generated functions that take a suspended program over the operation it has ended in front of, to the next
point, where the way is known.

`Concrete` runs any instruction on reified frames. Most breaks go the same way each time: one call of a function in C,
then instructions that move values about. Once that way has been gone, it is written down as one Python function of the
live values:

def hop(suspended):
    (v0, v1, v2) = suspended.values             # x, the iterator, os.getpid
    suspended.values = None
    if type(v2) not in direct or v2 in looking or isinstance(v2, type) and makes_classes(v2):  # looks at frames
        return left(s0, (v0, v1, v2), None, True)
    try:
        v3 = v2()
    except BaseException as error:
        return left(s1, (v0, v1, v2), error)
    del v2, v3
    try:
        v4 = next(v1)
    except StopIteration:
        return left(s2, (v0,))
    except BaseException as error:
        return left(s3, (v0, v1), error)
    return point, (v0, v1)

Whatever comes otherwise is answered by `Left`: the frames, as they are then, go on in `Concrete`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from bolide.dynamo.breaks.concrete import DIRECT, LOOKING, SCALARS, Concrete, iterates_natively
from bolide.dynamo.breaks.segments import Shape, Suspended, flatten, unflatten
from bolide.dynamo.bytecode.flow import live_locals
from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.dynamo.machine.callers import makes_classes
from bolide.dynamo.machine.interpreter import OPCODES
from bolide.dynamo.opcodes.stack import NULL
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.program.sources import Namespace
from bolide.dynamo.world.frames import Frame
from bolide.dynamo.world.outside import is_finalised
from bolide.support.registers import register

Hop = Callable[[Suspended], Any]
"""Answers the next point (None: the program's end) and the values there (the program's result), or `Left`."""

Way = list[tuple[int, int]]
"""The instructions that were run, each by the number of its frame and its index."""

LONGEST = 40


class Left(Suspended):
    """Where a hop was left: in front of an instruction (`first`: the one that the segment has ended in front of), or
    after one that has raised `error`.
    """

    __slots__ = ("error", "first")

    def __init__(
        self, shape: Shape, values: tuple[Any, ...], error: BaseException | None = None, first: bool = False
    ) -> None:
        super().__init__(shape, values)
        self.error, self.first = error, first


def make_hop(shape: Shape, way: Way, final: Shape | None, point: object) -> Hop | None:
    """The hop that goes the same way as the frames of `shape` went, to the point of shape `final` (None: to the end).
    None where that cannot be written down.
    """
    if len(way) > LONGEST or any(part.errors or part.generator or part.snapshot for part in shape.frames):
        return None
    writer = _Writer(shape)
    try:
        writer.write(way, final, point)
    except _NoHop:
        return None
    return writer.function()


class _NoHop(Exception):
    """An instruction that is not written down."""


class _Writer:
    """The text of a hop. `running`: the frames, with names of variables for their values. `at`: the instruction that is
    written down, `first`: whether it is the one that the segment has ended in front of, `following`: where the frame
    went on."""

    at: int
    first: bool
    following: int | None

    def __init__(self, shape: Shape) -> None:
        self.namespace = Namespace(())
        self.fresh = (f"v{number}" for number in itertools.count())
        self.lines: list[str] = []
        self.running = Concrete(unflatten(shape, self.fresh))
        self.given = self.names()
        self.left = self.namespace.reference(Left, "left")

    def function(self) -> Hop:
        taken = f"    {_tuple(self.given)} = suspended.values\n" if self.given else ""
        body = "".join(f"    {line}\n" for line in self.lines)
        text = f"def hop(suspended):\n{taken}    suspended.values = None\n{body}"
        scope = self.namespace.values
        exec(compile(text, __file__, "exec", dont_inherit=True), scope)
        hop: Hop = scope.pop("hop")
        return hop

    def names(self) -> list[str]:
        """The variables of the present point."""
        return flatten(self.running.frames, whole=True)[1]

    # -- the way

    def write(self, way: Way, final: Shape | None, point: object) -> None:
        known = set(self.given)
        for number, (depth, pc) in enumerate(way):
            frames = self.running.frames
            if (len(frames) - 1, frames[-1].pc) != (depth, pc):
                raise _NoHop
            self.following = way[number + 1][1] if number + 1 < len(way) and way[number + 1][0] == depth else None
            if self.following is None and final is not None and len(final.frames) == depth + 1:
                self.following = final.frames[-1].pc
            self.at, self.first = pc, number == 0
            self.instruction(frames[-1])
            used = {self.running.result} if self.running.done else set(self.names())
            gone = sorted(name for name in known - used if name[0] == "v")
            if gone:
                self.lines.append(f"del {', '.join(gone)}")
            known = used
            if self.running.done:
                break
        if final is not None:
            self.arrive(final, point)
        elif self.running.done:
            self.lines.append(f"return None, {self.running.result}")
        else:
            raise _NoHop

    def instruction(self, frame: Frame) -> None:
        """Write the next instruction of the top frame down."""
        name, arg = frame.code.ops[frame.pc], frame.code.args[frame.pc]
        frame.pc += 1
        if name in _INSTRUCTIONS:
            _INSTRUCTIONS[name](self, frame, arg)
        elif UNIFORM[name].asks == "nothing":
            arg = self.namespace.reference(arg, "constant") if name == "LOAD_CONST" else arg
            OPCODES[name](self.running.machine, frame, arg)
        else:
            raise _NoHop

    def arrive(self, final: Shape, point: object) -> None:
        """Answer `point`: the way ends here unless the next instruction works on a Python number this time. Variables
        that are not read any more are let go there, unless that could be seen."""
        if self.running.done:
            raise _NoHop
        frame = self.running.frames[-1]
        if frame.code.ops[frame.pc] == "LOAD_FAST":
            name = frame.locals[frame.code.args[frame.pc]]
            if name is MISSING:
                raise _NoHop
            self.leave_if(self.are_scalars(name), frame.pc)
        live = live_locals(frame.code)[frame.pc]
        dead = [i for i, name in enumerate(frame.locals) if name is not MISSING and not live >> i & 1]
        for index in dead:
            finalised = self.namespace.reference(is_finalised, "finalised")
            self.leave_if(f"{finalised}({frame.locals[index]})", frame.pc)
        for index in dead:
            frame.locals[index] = MISSING
        shape, names = flatten(self.running.frames, whole=True)
        if shape != final:
            raise _NoHop
        self.lines.append(f"return {self.namespace.reference(point, 'point')}, {_tuple(names)}")

    # -- ways out

    def leave(self, pc: int, stack: list[Any] | None = None, more: str = "") -> str:
        """The statement that answers `Left`, in front of another instruction of the top frame, with another stack if it
        is given."""
        frames = self.running.frames
        frame = frames[-1]
        before = frame.pc, frame.stack
        frame.pc, frame.stack = pc, frame.stack if stack is None else stack
        shape, names = flatten(frames, whole=True)
        frame.pc, frame.stack = before
        return f"return {self.left}({self.namespace.reference(shape, 's')}, {_tuple(names)}{more})"

    def leave_if(self, condition: str, pc: int | None = None) -> None:
        """Leave where a condition holds, in front of the present instruction unless another one is given."""
        self.lines.append(f"if {condition}: {self.leave(self.at if pc is None else pc)}")

    def guarded(self, expression: str) -> str:
        """The variable for the value of an expression that may raise."""
        variable, raised = next(self.fresh), self.leave(self.at + 1, more=", error")
        self.lines += ["try:", f"    {variable} = {expression}", "except BaseException as error:", f"    {raised}"]
        return variable

    # -- expressions

    def are_scalars(self, *names: str) -> str:
        scalars = self.namespace.reference(SCALARS, "scalars")
        return " and ".join(f"type({name}) in {scalars}" for name in names)


def _tuple(names: Iterable[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


_INSTRUCTIONS: dict[str, Callable[[_Writer, Frame, Any], None]] = {}
"""Those that do more than move values about."""

_instruction = register(_INSTRUCTIONS)


@_instruction("LOAD_FAST")
def _load_fast(writer: _Writer, frame: Frame, arg: int) -> None:
    name = frame.locals[arg]
    if name is MISSING or writer.first:
        raise _NoHop
    if frame.code.ops[frame.pc] not in ("RETURN_VALUE", "STORE_FAST"):
        writer.leave_if(f"not ({writer.are_scalars(name)})")
    frame.stack.append(name)


_EXPRESSIONS = {
    "BINARY_OP": "{arg}({0}, {1})",
    "COMPARE_OP": "{arg}({0}, {1})",
    "CONTAINS_OP": "({0} in {1}) != {arg}",
    "UNARY_NOT": "not {0}",
    "UNARY_OP": "{arg}({0})",
}
"""Instructions that replace values by that of an expression. They are light on Python numbers."""


@_instruction(*_EXPRESSIONS)
def _expression(writer: _Writer, frame: Frame, arg: Any) -> None:
    name = frame.code.ops[writer.at]
    count = UNIFORM[name].taken(arg)
    operands = frame.stack[-count:]
    if NULL in operands:
        raise _NoHop
    if not writer.first:
        writer.leave_if(f"not ({writer.are_scalars(*operands)})")
    value = _EXPRESSIONS[name].format(*operands, arg=writer.namespace.reference(arg, "arg"))
    frame.stack[-count:] = [writer.guarded(value)]


@_instruction("BINARY_SUBSCR")
def _binary_subscr(writer: _Writer, frame: Frame, arg: object) -> None:
    if not writer.first:
        raise _NoHop
    frame.stack[-2:] = [writer.guarded(f"{frame.stack[-2]}[{frame.stack[-1]}]")]


@_instruction("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE")
def _pop_jump_if(writer: _Writer, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if not writer.first:
        writer.leave_if(f"not ({writer.are_scalars(value)})")
    truth = writer.guarded(f"not not {value}")
    frame.stack.pop()
    wanted = frame.code.ops[writer.at].endswith("TRUE")
    _jump(writer, frame, arg, f"{truth} is not {wanted is (writer.following == arg)}")
    writer.lines.append(f"del {truth}")


@_instruction("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
def _pop_jump_if_none(writer: _Writer, frame: Frame, arg: int) -> None:
    value, on_none = frame.stack.pop(), frame.code.ops[writer.at].endswith("IF_NONE")
    _jump(writer, frame, arg, f"({value} is None) is not {on_none is (writer.following == arg)}")


def _jump(writer: _Writer, frame: Frame, target: int, otherwise: str) -> None:
    """Go on where the frame went on, and leave where a condition says that this is the other way."""
    jumped = writer.following == target
    writer.leave_if(otherwise, frame.pc if jumped else target)
    frame.pc = target if jumped else frame.pc


@_instruction("FOR_ITER")
def _for_iter(writer: _Writer, frame: Frame, arg: int) -> None:
    iterator, before = frame.stack[-1], frame.stack[:-1]
    if not writer.first:
        natively = writer.namespace.reference(iterates_natively, "natively")
        writer.leave_if(f"not {natively}({iterator})")
    item = next(writer.fresh)
    failed = f"except BaseException as error: {writer.leave(frame.pc, more=', error')}"
    writer.lines += ["try:", f"    {item} = next({iterator})"]
    if writer.following == arg:
        gave = writer.leave(frame.pc, [*frame.stack, item])
        writer.lines += ["except StopIteration: pass", failed, f"else: {gave}"]
        frame.stack, frame.pc = before, arg
    else:
        writer.lines += [f"except StopIteration: {writer.leave(arg, before)}", failed]
        frame.stack.append(item)


_CALLED = {"CALL": 2, "CALL_KW": 2, "CALL_FUNCTION": 1, "CALL_FUNCTION_KW": 1}
"""How many places on the stack hold what is called, see `opcodes.control._invoke`."""


@_instruction(*_CALLED)
def _call(writer: _Writer, frame: Frame, arg: int) -> None:
    """A call of a function in C. The names of keywords have been loaded just before."""
    if not writer.first:
        raise _NoHop
    ops, args, slots = frame.code.ops, frame.code.args, _CALLED[frame.code.ops[writer.at]]
    has_names = ops[writer.at].endswith("KW")
    if has_names and ops[writer.at - 1] != "LOAD_CONST":
        raise _NoHop
    names = args[writer.at - 1] if has_names else ()
    end = len(frame.stack) - has_names
    at = end - arg - slots
    function, *given = [name for name in frame.stack[at:end] if name is not NULL]
    split = len(given) - len(names)
    words = given[:split] + [f"{key}={name}" for key, name in zip(names, given[split:])]
    direct, looking = writer.namespace.reference(DIRECT, "direct"), writer.namespace.reference(LOOKING, "looking")
    makes = f"isinstance({function}, type) and {writer.namespace.reference(makes_classes, 'makes_classes')}({function})"
    writer.lines += [
        f"if type({function}) not in {direct} or {function} in {looking} or {makes}:",
        f"    {writer.leave(writer.at, more=', None, True')}",
    ]
    frame.stack[at:] = [writer.guarded(f"{function}({', '.join(words)})")]


@_instruction("RETURN_VALUE")
def _return(writer: _Writer, frame: Frame, arg: object) -> None:
    if writer.first or frame.then not in ("push", "drop"):
        raise _NoHop
    writer.running.machine.finish(frame, frame.stack.pop())
