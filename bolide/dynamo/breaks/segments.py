"""The live state of an interrupted program: its frame stack taken apart into a `Shape` (where each frame stands, what
is bound) and a flat list of values, and put together again.

The shape identifies a *program point*; the values are the arguments of the segment that continues there.
"""

from __future__ import annotations

import functools
import itertools
import keyword
import sys
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from bolide.dynamo.bytecode.flow import live_during_call, live_locals
from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.dynamo.machine.originals import BODIES
from bolide.dynamo.opcodes.stack import NULL
from bolide.dynamo.polyfills import WHOLE
from bolide.dynamo.program.kinds import CONSTANT_TYPES, MISSING, WEAK_CONTAINERS, contents_of
from bolide.dynamo.world.frames import Frame, Generator
from bolide.dynamo.world.outside import is_finalised
from bolide.support.caches import on_reset
from bolide.support.errors import Unsupported, UserFrame

VALUED = frozenset({"instance", "default"})  # what `then_value` is a value of the program for
_JUMPING = frozenset({"for", "send"})  # `then_value` says where the caller goes on when the generator returns


class FrameShape(NamedTuple):
    """Everything of a frame but its values. `bound`: the fast locals that are saved; `stack`: False for a NULL;
    `errors`: how many exceptions are being handled; `constant`: `then_value`, where it is not a value of the program;
    `generator`: whether it is the body of a generator; `snapshot`: whether it has a dict of its variables.
    """

    code: Code
    pc: int
    namespace: int
    bound: tuple[int, ...]
    stack: tuple[bool, ...]
    errors: int
    then: str
    constant: Any
    generator: bool
    snapshot: bool

    def places(self) -> list[tuple[str, int]]:
        """Of each value of the frame, in order, what it is, and the number of the variable or of the place."""
        return [
            *(("variable", index) for index in self.bound),
            *(("stack", index) for index, value in enumerate(self.stack) if value),
            *(("error", index) for index in range(self.errors)),
            *[("result", 0)] * (self.then in VALUED),
            *[("generator", 0)] * self.generator,
            *[("variables", 0)] * self.snapshot,
        ]


class Shape:
    """A program point: the shapes of all frames, outermost first. Equal shapes are the same point.

    `namespaces`: the frames' globals.
    """

    __slots__ = ("_hash", "frames", "namespaces")

    def __init__(self, frames: tuple[FrameShape, ...], namespaces: tuple[dict[str, Any], ...]) -> None:
        self.frames, self.namespaces = frames, namespaces
        self._hash = hash(frames)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.frames == other.frames

    def names(self) -> tuple[str, ...]:
        """A distinct identifier for each value, after the user's variables."""
        taken: dict[str, None] = {}
        for frame in self.frames:
            for kind, index in frame.places():
                name = f"{kind}{index}" if kind in ("stack", "error") else kind
                if kind == "variable":
                    name = frame.code.locals_names[index]
                name = name if name.isidentifier() and not keyword.iskeyword(name) else "iterable"
                distinct, count = name, 0
                while distinct in taken:
                    count += 1
                    distinct = f"{name}_{count}"
                taken[distinct] = None
        return tuple(taken)

    def where(self) -> tuple[UserFrame, ...]:
        """The user's lines, outermost first."""
        return tuple(f.code.frame_at(f.pc) for f in self.frames if not f.code.plumbing)


class Suspended:
    """What the function of a segment answers when it ended in front of an operation that has to run in eager: that one
    only, or (`onwards`) all until a point is reached that has entries. `expected`: in words, what the program raises on
    the way, as capture has found. `values`: None when they have been taken, to be run on with.
    """

    __slots__ = ("expected", "onwards", "shape", "values")

    def __init__(self, shape: Shape, values: tuple[Any, ...], onwards: bool = False) -> None:
        self.shape, self.onwards = shape, onwards
        self.values: tuple[Any, ...] | None = values
        self.expected: str | None = None

    def frames(self) -> list[Frame]:
        """The frames; the values are theirs alone from here on."""
        assert self.values is not None
        frames = unflatten(self.shape, self.values)
        self.values = None
        return frames


def refuse_halfway(frames: Sequence[Frame]) -> None:
    """Raises Unsupported for frames of the program inside of something that is made anew as a whole behind a break."""
    for frame in frames:
        if frame.code.code in WHOLE:
            raise Unsupported(f"a break inside {WHOLE[frame.code.code]}", None, kind="escape")
        if frame.globals.get("__name__") not in _OF_WEAK:
            continue
        owner = next(iter(frame.locals), None)
        if type(owner) in WEAK_CONTAINERS or weakref.KeyedRef in (owner, type(owner)):
            raise Unsupported(f"a break inside {frame.code.qualname} of what the program has made", None, kind="escape")


_OF_WEAK = ("weakref", "_weakrefset")


def flatten(frames: Sequence[Frame], whole: bool = False) -> tuple[Shape, list[Any]]:
    """The point at which `frames` (outermost first) stand and the values that are live there; with `whole`, those of
    all variables, for an operation that looks at frames.

    Raises Unsupported for frames that cannot be taken apart."""
    values: list[Any] = []
    shapes = tuple([_flatten(frame, callee, values, whole) for frame, callee in zip(frames, [*frames[1:], None])])
    return Shape(shapes, tuple([frame.globals for frame in frames])), values


def _flatten(frame: Frame, callee: Frame | None, values: list[Any], whole: bool) -> FrameShape:
    if frame.namespace is not None or frame.pc < _prologue(frame.code):
        reason = "a break inside the body of a class, or before a function has begun"
        raise Unsupported(reason, None, kind="class_statement")
    if whole or frame.code.code in BODIES:
        live = -1
    elif callee is None:
        live = live_locals(frame.code)[frame.pc]
    else:
        live = live_during_call(frame.code, frame.pc, callee.then_value if callee.then in _JUMPING else None)
    bound = []
    for index, value in enumerate(frame.locals):
        if value is not MISSING and (live >> index & 1 or is_finalised(value) or _may_be_referred_to(value, frame)):
            bound.append(index)
            values.append(value)
    stack = tuple([value is not NULL for value in frame.stack])
    values += frame.stack if all(stack) else [value for value in frame.stack if value is not NULL]
    values += frame.exceptions
    constant = frame.then_value
    if frame.then in VALUED:
        values.append(constant)
        constant = None
    if frame.generator is not None:
        values.append(frame.generator.native or frame.generator)
    if frame.snapshot is not None:
        values.append(frame.snapshot)
    return FrameShape(
        frame.code,
        frame.pc,
        id(frame.globals),
        tuple(bound),
        stack,
        len(frame.exceptions),
        frame.then,
        constant,
        frame.generator is not None,
        frame.snapshot is not None,
    )


def _may_be_referred_to(value: Any, frame: Frame) -> bool:
    """Whether the next operation may refer weakly to an object that a variable holds, which keeps it alive."""
    if type(value) in CONSTANT_TYPES or issubclass(type(value), torch.Tensor):
        return False
    return any(value is operand for operand in frame.stack)


def are_held(frames: list[Frame]) -> bool:
    """Whether something else, a traceback, keeps frames alive whose generators would end otherwise when the frames do:
    what stands in `flatten` for the frames, and is not kept alive, may not take their place. `frames` is a list of its
    own.
    """
    for frame in frames:
        if sys.getrefcount(frame) > _FREE + (frame.generator is not None):
            values = (*frame.locals, *frame.stack)
            if any(is_finalised(contents_of(v) if type(v) is types.CellType else v) for v in values):
                return True
    return False


_FREE = 4  # references to a frame on a stack: from there, from the list, and two while they are counted


@functools.lru_cache(1 << 12)
def _prologue(code: Code) -> int:
    """How many instructions set the frame up."""
    return next(i for i, name in enumerate(code.ops) if not UNIFORM[name].begins)


on_reset(_prologue.cache_clear)


def unflatten(shape: Shape, values: Iterable[Any]) -> list[Frame]:
    """The frames that `flatten` has taken apart, with other values in the places of the first ones."""
    rest = iter(values)
    frames = []
    for part, namespace in zip(shape.frames, shape.namespaces):
        variables = [MISSING] * len(part.code.locals_names)
        for index in part.bound:
            variables[index] = next(rest)
        frame = Frame(part.code, namespace, variables)
        frame.pc = part.pc
        frame.stack = [next(rest) if value else NULL for value in part.stack]
        frame.exceptions = [next(rest) for _ in range(part.errors)]
        frame.then = part.then
        frame.then_value = next(rest) if part.then in VALUED else part.constant
        if part.generator:
            _adopt(next(rest), frame)
        if part.snapshot:
            frame.snapshot = next(rest)
        frames.append(frame)
    return frames


def _adopt(owner: Any, frame: Frame) -> None:
    """Make `frame` the running body of a generator: one of the interpreter's, or the native one it lives in."""
    record = owner
    if type(owner) is not Generator:
        record = owner.gi_frame.f_locals["record"]
        record.native = owner  # until it yields or returns
    record.frame, frame.generator = frame, record
    record.started = record.running = True


def is_building(shape: Shape, values: Sequence[Any]) -> list[bool]:
    """For each value, whether it is a list that a comprehension is making: nobody reads it before that has ended."""
    answers: list[bool] = []
    for part in shape.frames:
        first = len(answers) + len(part.bound)
        stack = values[first : first + sum(part.stack)]
        below = [type(value) is list and hasattr(type(above), "__next__") for value, above in itertools.pairwise(stack)]
        loops = sum(start <= part.pc < end for start, end in _comprehensions(part.code))
        known = sum(below) == loops  # otherwise it cannot be told from a list and an iterator that are operands
        on_stack = iter([*(known and is_list for is_list in below), False])
        answers += [kind == "stack" and next(on_stack) for kind, _ in part.places()]
    return answers


def _comprehensions(code: Code) -> list[tuple[int, int]]:
    """Where the loops are that make a list: in frames of their own up to 3.11, in the frame around them since."""
    return [
        (at, end)
        for at, (name, end) in enumerate(zip(code.ops, code.args))
        if name == "FOR_ITER" and code.ops[at - 1] in ("SWAP", "LOAD_FAST") and code.ops[at - 2] == "BUILD_LIST"
    ]


def is_local(shape: Shape) -> list[bool]:
    """For each value, whether it is a plain fast local (and so needs to be looked at only when it is read)."""
    answers: list[bool] = []
    for part in shape.frames:
        variables = part.code.code.co_varnames
        own = {index for index, name in enumerate(variables) if name not in part.code.cellvars}
        answers += [kind == "variable" and index in own for kind, index in part.places()]
    return answers
