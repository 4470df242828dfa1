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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bolide.dynamo.breaks.concrete import DIRECT, LOOKING, SCALARS, iterates_natively
from bolide.dynamo.breaks.segments import VALUED, FrameShape, Shape, Suspended
from bolide.dynamo.bytecode.flow import live_locals
from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.dynamo.machine.callers import makes_classes
from bolide.dynamo.machine.interpreter import OPCODES
from bolide.dynamo.program.sources import Namespace
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


class _Frame:
    """A frame whose values are names of variables: None stands for an unbound local, or for NULL on the stack."""

    def __init__(self, part: FrameShape, names: Iterator[str]) -> None:
        self.part, self.code, self.pc = part, part.code, part.pc
        self.locals: list[str | None] = [None] * len(part.code.locals_names)
        for index in part.bound:
            self.locals[index] = next(names)
        self.stack = [next(names) if value else None for value in part.stack]
        self.then_value = next(names) if part.then in VALUED else None

    def names(self) -> Iterator[str]:
        """In the order of `segments.flatten`."""
        for name in (*self.locals, *self.stack, self.then_value):
            if name is not None:
                yield name

    def shape(self) -> FrameShape:
        bound = tuple([index for index, name in enumerate(self.locals) if name is not None])
        return self.part._replace(pc=self.pc, bound=bound, stack=tuple([name is not None for name in self.stack]))


class _Writer:
    def __init__(self, shape: Shape) -> None:
        self.start = shape
        self.namespace = Namespace(())
        self.fresh = (f"v{number}" for number in itertools.count())
        self.lines: list[str] = []
        self.frames = [_Frame(part, self.fresh) for part in shape.frames]
        self.given = [name for frame in self.frames for name in frame.names()]
        self.result: str | None = None
        self.left = self.namespace.reference(Left, "left")

    def function(self) -> Hop:
        taken = f"    ({''.join(f'{name}, ' for name in self.given)}) = suspended.values\n" if self.given else ""
        body = "".join(f"    {line}\n" for line in self.lines)
        text = f"def hop(suspended):\n{taken}    suspended.values = None\n{body}"
        scope = self.namespace.values
        exec(compile(text, __file__, "exec", dont_inherit=True), scope)
        hop: Hop = scope.pop("hop")
        return hop

    # -- the way

    def write(self, way: Way, final: Shape | None, point: object) -> None:
        known = set(self.given)
        for number, (depth, pc) in enumerate(way):
            frame = self.frames[-1]
            if (len(self.frames) - 1, frame.pc) != (depth, pc):
                raise _NoHop
            following = way[number + 1][1] if number + 1 < len(way) and way[number + 1][0] == depth else None
            if following is None and final is not None and len(final.frames) == depth + 1:
                following = final.frames[-1].pc
            self.instruction(frame, following, first=number == 0)
            used = {name for each in self.frames for name in each.names()} | {self.result or "None"}
            gone = sorted(name for name in known - used if name[0] == "v")
            if gone:
                self.lines.append(f"del {', '.join(gone)}")
            known = used
            if self.result is not None:
                break
        if final is None:
            if self.result is None:
                raise _NoHop
            self.lines.append(f"return None, {self.result}")
            return
        self.arrive(final, point)

    def arrive(self, final: Shape, point: object) -> None:
        """Answer `point`. Variables that are not read any more are let go there, unless that could be seen."""
        frame = self.frames[-1]
        self.look_on(frame)
        kept, live = list(frame.locals), live_locals(frame.code)[frame.pc]
        dead = [index for index, name in enumerate(kept) if name is not None and not live >> index & 1]
        for index in dead:
            finalised = self.namespace.reference(is_finalised, "finalised")
            self.lines.append(f"if {finalised}({kept[index]}): {self.leave(frame.pc)}")
        for index in dead:
            frame.locals[index] = None
        if self.shape() != final:
            raise _NoHop
        names = "".join(f"{name}, " for each in self.frames for name in each.names())
        self.lines.append(f"return {self.namespace.reference(point, 'point')}, ({names})")

    def look_on(self, frame: _Frame) -> None:
        """The way ends here unless the next instruction works on a Python number this time."""
        if frame.code.ops[frame.pc] == "LOAD_FAST":
            name = frame.locals[frame.code.args[frame.pc]]
            self.lines.append(f"if {self.is_scalar(name)}: {self.leave(frame.pc)}")

    # -- ways out

    def shape(self, pc: int | None = None, stack: list[str | None] | None = None) -> Shape:
        """The present point, with another instruction and stack of the top frame if they are given."""
        frame = self.frames[-1]
        before = frame.pc, frame.stack
        frame.pc, frame.stack = frame.pc if pc is None else pc, frame.stack if stack is None else stack
        shape = Shape(tuple([each.shape() for each in self.frames]), self.start.namespaces[: len(self.frames)])
        frame.pc, frame.stack = before
        return shape

    def leave(self, pc: int, stack: list[str | None] | None = None, more: str = "") -> str:
        """The statement that answers `Left`."""
        shape = self.namespace.reference(self.shape(pc, stack), "s")
        frame = self.frames[-1]
        before, frame.stack = frame.stack, frame.stack if stack is None else stack
        names = "".join(f"{name}, " for each in self.frames for name in each.names())
        frame.stack = before
        return f"return {self.left}({shape}, ({names}){more})"

    def guarded(self, statement: str, pc: int) -> None:
        """A statement that may raise, for the instruction at `pc`."""
        self.lines += [
            "try:",
            f"    {statement}",
            "except BaseException as error:",
            f"    {self.leave(pc + 1, more=', error')}",
        ]

    def is_scalar(self, *names: str | None) -> str:
        scalars = self.namespace.reference(SCALARS, "scalars")
        return " and ".join(f"type({name}) in {scalars}" for name in names)

    # -- instructions

    def instruction(self, frame: _Frame, following: int | None, first: bool) -> None:
        """Write the next instruction of the top frame down; `following`: where the frame went on."""
        name, arg, pc = frame.code.ops[frame.pc], frame.code.args[frame.pc], frame.pc
        handler = _INSTRUCTIONS.get(name)
        if handler is not None:
            handler(self, frame, arg, following, first)
        elif UNIFORM[name].asks == "nothing":
            move: Any = OPCODES[name]
            move(None, frame, arg)  # names as well as values
        else:
            raise _NoHop
        if self.frames and self.frames[-1] is frame and frame.pc == pc:
            frame.pc += 1


_Written = Callable[[_Writer, _Frame, Any, "int | None", bool], None]
_INSTRUCTIONS: dict[str, _Written] = {}


_instruction = register(_INSTRUCTIONS)


@_instruction("PUSH_NULL")
def _push_null(writer: _Writer, frame: _Frame, arg: Any, following: int | None, first: bool) -> None:
    frame.stack.append(None)


@_instruction("LOAD_CONST")
def _load_const(writer: _Writer, frame: _Frame, arg: Any, following: int | None, first: bool) -> None:
    frame.stack.append(writer.namespace.reference(arg, "constant"))


@_instruction("LOAD_FAST")
def _load_fast(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    name = frame.locals[arg]
    if name is None or first:
        raise _NoHop
    if frame.code.ops[frame.pc + 1] not in ("RETURN_VALUE", "STORE_FAST"):
        writer.lines.append(f"if not ({writer.is_scalar(name)}): {writer.leave(frame.pc)}")
    frame.stack.append(name)


def _expression(name: str, text: str) -> None:
    """An instruction that replaces values by that of an expression. It is light on Python numbers."""
    count = UNIFORM[name].taken(None)

    @_instruction(name)
    def written(writer: _Writer, frame: _Frame, arg: Any, following: int | None, first: bool) -> None:
        operands = frame.stack[-count:]
        if None in operands:
            raise _NoHop
        if not first:
            writer.lines.append(f"if not ({writer.is_scalar(*operands)}): {writer.leave(frame.pc)}")
        made = next(writer.fresh)
        value = text.format(*operands, arg=writer.namespace.reference(arg, "arg"))
        writer.guarded(f"{made} = {value}", frame.pc)
        frame.stack[-count:] = [made]


for _name, _text in (
    ("BINARY_OP", "{arg}({0}, {1})"),
    ("COMPARE_OP", "{arg}({0}, {1})"),
    ("CONTAINS_OP", "({0} in {1}) != {arg}"),
    ("UNARY_NOT", "not {0}"),
    ("UNARY_OP", "{arg}({0})"),
):
    _expression(_name, _text)


@_instruction("BINARY_SUBSCR")
def _binary_subscr(writer: _Writer, frame: _Frame, arg: Any, following: int | None, first: bool) -> None:
    if not first:
        raise _NoHop
    made = next(writer.fresh)
    writer.guarded(f"{made} = {frame.stack[-2]}[{frame.stack[-1]}]", frame.pc)
    frame.stack[-2:] = [made]


@_instruction("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE")
def _pop_jump_if(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    value, pc = frame.stack[-1], frame.pc
    if not first:
        writer.lines.append(f"if not ({writer.is_scalar(value)}): {writer.leave(pc)}")
    truth = next(writer.fresh)
    writer.guarded(f"{truth} = not not {value}", pc)
    frame.stack.pop()
    wanted = frame.code.ops[pc].endswith("TRUE")
    jumped = following == arg
    writer.lines.append(f"if {truth} is not {wanted is jumped}: {writer.leave(pc + 1 if jumped else arg)}")
    writer.lines.append(f"del {truth}")
    frame.pc = arg if jumped else pc + 1


@_instruction("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")
def _pop_jump_if_none(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    value, pc = frame.stack.pop(), frame.pc
    jumped = following == arg
    is_none = frame.code.ops[pc].endswith("IF_NONE") is jumped
    writer.lines.append(f"if ({value} is None) is not {is_none}: {writer.leave(pc + 1 if jumped else arg)}")
    frame.pc = arg if jumped else pc + 1


@_instruction("FOR_ITER")
def _for_iter(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    iterator, pc = frame.stack[-1], frame.pc
    if not first:
        natively = writer.namespace.reference(iterates_natively, "natively")
        writer.lines.append(f"if not {natively}({iterator}): {writer.leave(pc)}")
    made = next(writer.fresh)
    failed = [f"except BaseException as error: {writer.leave(pc + 1, more=', error')}"]
    before = frame.stack[:-1]
    if following == arg:
        frame.stack.append(made)
        found = writer.leave(pc + 1)
        frame.stack.pop()
        writer.lines += ["try:", f"    {made} = next({iterator})", "except StopIteration: pass", *failed]
        writer.lines += [f"else: {found}"]
        frame.stack, frame.pc = before, arg
        return
    writer.lines += ["try:", f"    {made} = next({iterator})"]
    writer.lines += [f"except StopIteration: {writer.leave(arg, before)}", *failed]
    frame.stack.append(made)


@_instruction("CALL")
def _call(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    _called(writer, frame, len(frame.stack) - arg - 2, 2, first, ())


@_instruction("CALL_KW")
def _call_kw(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    _called(writer, frame, len(frame.stack) - arg - 3, 2, first, _names_of(frame))


@_instruction("CALL_FUNCTION")
def _call_function(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    _called(writer, frame, len(frame.stack) - arg - 1, 1, first, ())


@_instruction("CALL_FUNCTION_KW")
def _call_function_kw(writer: _Writer, frame: _Frame, arg: int, following: int | None, first: bool) -> None:
    _called(writer, frame, len(frame.stack) - arg - 2, 1, first, _names_of(frame))


def _names_of(frame: _Frame) -> Sequence[str]:
    """The names of the keywords, which have been loaded just before."""
    code, pc = frame.code, frame.pc
    if code.ops[pc - 1] != "LOAD_CONST":
        raise _NoHop
    names: Sequence[str] = code.args[pc - 1]
    return names


def _called(writer: _Writer, frame: _Frame, at: int, slots: int, first: bool, names: Sequence[str]) -> None:
    """A call of a function in C: of what stands in the `slots` from `at` on, see `opcodes.control._invoke`."""
    if not first:
        raise _NoHop
    function, *owner = [name for name in frame.stack[at : at + slots] if name is not None]
    given = owner + frame.stack[at + slots : len(frame.stack) - bool(names)]
    split = len(given) - len(names)
    words = [str(name) for name in given[:split]] + [f"{key}={name}" for key, name in zip(names, given[split:])]
    direct, looking = writer.namespace.reference(DIRECT, "direct"), writer.namespace.reference(LOOKING, "looking")
    makes = f"isinstance({function}, type) and {writer.namespace.reference(makes_classes, 'makes_classes')}({function})"
    writer.lines += [
        f"if type({function}) not in {direct} or {function} in {looking} or {makes}:",
        f"    {writer.leave(frame.pc, more=', None, True')}",
    ]
    made = next(writer.fresh)
    writer.guarded(f"{made} = {function}({', '.join(words)})", frame.pc)
    frame.stack[at:] = [made]


@_instruction("RETURN_VALUE")
def _return(writer: _Writer, frame: _Frame, arg: Any, following: int | None, first: bool) -> None:
    if first or frame.part.then not in ("push", "drop"):
        raise _NoHop
    value = frame.stack.pop()
    writer.frames.pop()
    if not writer.frames:
        writer.result = value
    elif frame.part.then == "push":
        writer.frames[-1].stack.append(value)
