"""The interpreter: a trampoline over an explicit stack of frames.

A call of interpreted Python pushes a `Frame`; Python's own stack does not grow with the program's. Only where native
code calls back into the program (a sort
key, `torch.vmap`) a nested run of the same machine is started.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NoReturn, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from bolide.dynamo import polyfills
from bolide.dynamo.bytecode.instructions import Code, decode
from bolide.dynamo.bytecode.uniform import CALLS, UNIFORM
from bolide.dynamo.machine.callers import Within, callers_of
from bolide.dynamo.machine.faults import is_exhausted, is_fault, names_stand_in, real_depth
from bolide.dynamo.machine.originals import LASTING
from bolide.dynamo.polyfills import generators
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES, is_opaque
from bolide.dynamo.world.frames import Frame, Generator, add_entry, bind, name_tensors
from bolide.dynamo.world.outside import Deferred, Torn, attribute_source
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported, UserFrame
from bolide.support.registers import register
from bolide.tracing import Trace, modes
from bolide.tracing.called.branches import Part
from bolide.tracing.calls import CallRecorder

Handler = Callable[["Machine", Frame, Any], "bool | None"]

OPCODES: dict[str, Handler] = {}


opcode = register(OPCODES)
"""Registers the handler of operations (uniform names of `bytecode.decode`). A handler returns True when it changed the
top of the frame stack."""


def polyfill(name: str) -> types.FunctionType:
    """The polyfill of this name: a Python function that is interpreted."""
    return polyfills.BY_NAME[name]


class Call:
    """What an operation answers when its result is that of a call which has to be interpreted."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: object, args: list[Any], kwargs: dict[str, Any] | None = None) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    @classmethod
    def polyfill(cls, name: str, *args: object) -> Call:
        """The call of a polyfill."""
        return cls(polyfill(name), list(args))


T = TypeVar("T")

Origin = Literal["raised", "thrown", "passed", "reraised"]
"""How an exception has come to a frame."""

Dispatch = Callable[["Machine", Frame, Any, list[Any], "dict[str, Any] | None"], "bool | None"]


def _bound(code: Code) -> list[tuple[Handler, Any]]:
    """The handlers and arguments of a code object. Raises Unsupported when an operation has no handler."""
    handlers = []
    for index, name in enumerate(code.ops):
        handler = OPCODES.get(name)
        if handler is None:
            remedy = "move this code out of the compiled function"
            raise Unsupported(f"bytecode operation {name}", code.frame_at(index), remedy, kind="bytecode")
        handlers.append((_skipped if code.skipped and not UNIFORM[name].calls else handler, code.args[index]))
    return handlers


def _skipped(vm: Machine, frame: Frame, arg: object) -> NoReturn:
    """Any instruction, but for calls, of code that is run for real."""
    raise vm.unsupported(frame.code.skipped, "disabled")


_SCRATCH = decode((lambda: None).__code__)
_PLAINLY = contextlib.nullcontext()
_NESTED_MOST = 60  # nested runs take C's stack; some ten of Python's frames each


class Slot(Generic[T]):
    """What one module remembers for the length of a run, and owns; `make` gives what it is at first. `undone`: a dict
    of what the program can tell, which the ways of a branch must leave alike (`opcodes.undo`); not for counters."""

    __slots__ = ("make", "undone")

    def __init__(self, make: Callable[[], T], undone: bool = False) -> None:
        self.make, self.undone = make, undone

    def of(self, vm: Machine) -> T:
        """What is remembered in this run."""
        if self not in vm.slots:
            vm.slots[self] = self.make()
        return vm.slots[self]  # type: ignore[no-any-return]

    def put(self, vm: Machine, value: T) -> None:
        """Remember something else."""
        vm.slots[self] = value


@dataclass
class Progress:
    """How far a run has come; its instructions are numbered from 0."""

    running: bool = False  # whether `Machine.run` is at work
    started: bool = False  # whether it has come to the first instruction
    tick: int = 0  # the number of the instruction that was not supported, or has raised
    raised: int = 0  # the id of what the program has raised last
    stated: int = 0  # the id of what a ``raise`` in the user's code was the first to raise, the last one
    lost: Unsupported | None = None  # what went wrong where nothing can be raised
    escaping: BaseException | None = None  # the exception that left a nested run, or a KeyboardInterrupt
    end: int = 0  # the number of the instruction to stop in front of
    ticks: Iterator[int] = field(default_factory=lambda: iter(()))  # the numbers of the instructions to come

    def present(self) -> int:
        """The number of the instruction that is being run."""
        return self.end - 1 - operator.length_hint(self.ticks)

    def lose(self, error: Unsupported) -> None:
        """Note what is not supported about the present instruction, where nothing can be raised."""
        if self.running and self.lost is None:
            self.lost, self.tick = error, self.present()


LaterCall = tuple[Callable[..., object], list[Any], dict[str, Any]]


@dataclass
class Later:
    """What is called when the graph has run: checks of data, in front of all effects; and other calls."""

    checks: list[LaterCall] = field(default_factory=list)
    calls: list[LaterCall] = field(default_factory=list)


class FunctionModes:
    """The function modes that are active in the program (`active`, outermost first). Torch's own stack has none of
    them while the program is interpreted, so that they do not see what the interpreter asks of tensors; stand-ins are
    there while native code runs. `stand_in` makes one.
    """

    stand_in: ClassVar[Callable[[Machine, object], TorchFunctionMode]]

    def __init__(self, vm: Machine) -> None:
        self._vm = weakref.ref(vm)  # which has these: a cycle would be one for each call with a break
        self.active: list[object] = []

    @property
    def vm(self) -> Machine:
        """Whose modes they are."""
        vm = self._vm()
        assert vm is not None
        return vm

    @property
    def enabled(self) -> bool:
        """Whether torch asks any."""
        if not self.active:
            return False
        state = torch._C._get_torch_function_state()  # type: ignore[attr-defined]
        return state is not torch._C._TorchFunctionState.ALL_DISABLED  # type: ignore[attr-defined,no-any-return]

    @property
    def asks(self) -> bool:
        """Whether torch asks code of the program: those of default devices are none."""
        return self.enabled and not all(map(modes.is_device_context, self.active))

    @contextlib.contextmanager
    def on_stack(self) -> Iterator[None]:
        """While native code runs for the program."""
        active, self.active = self.active, []
        depth = torch._C._len_torch_function_stack()
        for mode in active:
            torch._C._push_on_torch_function_stack(FunctionModes.stand_in(self.vm, mode))
        try:
            yield
            if torch._C._len_torch_function_stack() != depth + len(active):
                raise self.vm.unsupported("a function mode is entered or left by native code", "context")
        finally:
            while torch._C._len_torch_function_stack() > depth:
                torch._C._pop_torch_function_stack()
            self.active = active

    @contextlib.contextmanager
    def off_stack(self) -> Iterator[None]:
        """While the program is interpreted in the middle of native code."""
        outer, taken = self.active, []
        while modes.asks_program():
            taken.append(torch._C._pop_torch_function_stack())
        self.active = [*outer, *(mode.mode for mode in reversed(taken))]
        count = len(self.active)
        try:
            yield
            if taken and len(self.active) != count:
                raise self.vm.unsupported(
                    "a function mode is entered inside of native code and left outside", "context"
                )
        finally:
            self.active = outer if taken else self.active
            for mode in reversed(taken):
                torch._C._push_on_torch_function_stack(mode)


@dataclass
class Modes:
    """Torch's modes as they were at the beginning; the setters of those that are one for all threads and that the
    program changes; the native context managers that are entered now; the function modes; and whom torch asked at the
    beginning (`modes.asked`)."""

    functions: FunctionModes
    before: list[modes.Setting] = field(default_factory=list)
    asked: tuple[bool, bool] = field(default_factory=modes.asked)
    setters: set[Callable[..., object]] = field(default_factory=set)
    entered: list[Any] = field(default_factory=list)


@dataclass
class Depth:
    """How many frames there may be (0: not known yet); how many nested runs are at work; and how many reentrant
    checkpoints, which eager runs without grad mode."""

    most: int = 0
    nested: int = 0
    reentrant: int = 0


class Machine:
    """The state of one run: the outside world, the trace, the frame stack. `dispatch` is how calls are made
    (`calls.call`). `own_functions` (by id) and `own_generators` are those that the program has made. `recorder`: where
    a graph of calls is wanted. `slots`: what other modules remember. `settle`: what has an instruction done that reads
    an `Either`, where there is one."""

    def __init__(self, world: World, trace: Trace, dispatch: Dispatch) -> None:
        self.world, self.trace = world, trace
        self.frames: list[Frame] = [Frame(_SCRATCH, {}, [])]
        self.base = 1
        self.progress, self.later, self.depth = Progress(), Later(), Depth()
        self.modes = Modes(FunctionModes(self))
        self.own_functions: dict[int, weakref.ref[types.FunctionType]] = {}
        self.own_generators: list[weakref.ref[Generator]] = []
        self.recorder: CallRecorder | None = None
        self.slots: dict[Slot[Any], Any] = {}
        self.settle: Callable[[Machine, Frame, Handler, object], bool] | None = None
        self._dispatch = dispatch

    def forget(self) -> None:
        """Nobody asks any more what was met in the run: what the program has made may refer to the machine."""
        self.progress.escaping = self.progress.lost = None
        for known in (self.slots, self.own_functions, self.own_generators, self.later.calls, self.later.checks):
            known.clear()

    # -- where we are

    def where(self) -> UserFrame | None:
        """The innermost frame of the user's (or a model library's) code, rather than of torch or the standard
        library."""
        for frame in reversed(self.frames):
            if not frame.code.plumbing and frame.code is not _SCRATCH:
                return frame.code.frame_at(frame.pc - 1)
        return None

    def unsupported(
        self, reason: str, kind: str = "unsupported", remedy: str | None = None, operation: str | None = None
    ) -> Unsupported:
        """The refusal of what is done here."""
        return Unsupported(reason, self.where(), remedy, kind, operation)

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called later, from frames that look like the user's of now."""
        return Within(function, callers_of(self.frames))

    # -- running

    def call(
        self, frame: Frame, function: object, args: list[Any], kwargs: dict[str, Any] | None = None
    ) -> bool | None:
        """Call `function`; its result will be pushed onto `frame`, which is the top one. True when a frame was
        pushed."""
        return self._dispatch(self, frame, function, args, kwargs)

    def answer(self, frame: Frame, result: object) -> bool | None:
        """Push an operation's result, making the call first that it asks for."""
        if type(result) is Call:
            return self._dispatch(self, frame, result.function, result.args, result.kwargs)
        frame.stack.append(result)
        return None

    def do(self, frame: Frame, request: Call | None) -> bool | None:
        """Make the call that an operation asks for, if any, and drop its result."""
        if request is None:
            return None
        if self.call(frame, request.function, request.args, request.kwargs):
            self.frames[-1].then = "drop"
            return True
        frame.stack.pop()
        return None

    def run(self, stop: int | None = None) -> bool:
        """Run the frames that were pushed, the outermost run of the machine. True when they came to their end, with the
        result on `frames[0]`'s stack; False when they stopped before instruction number `stop` (counted from 0).

        Interpretation is deterministic: whatever a run meets at its instruction n, another run from the same start
        stops in front of with ``stop=n``.
        """
        progress, done = self.progress, False
        progress.end = sys.maxsize if stop is None else stop
        progress.ticks = iter(range(progress.end))
        progress.running = True
        try:
            done = self.run_on(progress.ticks)
        except BaseException:
            if progress.lost is None:
                raise
        finally:
            progress.running = False
        lost, progress.lost = progress.lost, None
        if lost is None:
            return done
        try:
            raise lost
        finally:
            del lost  # its traceback leads to this frame: a cycle would keep the program's values alive

    def evaluate(self, function: object, args: list[Any], kwargs: dict[str, Any] | None = None) -> Any:
        """Run a call to its end in a nested run and return its result; the program's exceptions propagate."""
        return self._nested(lambda scratch: self.call(scratch, function, args, kwargs))

    def perform(self, function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
        """Call one of torch's functions, or an operator, for the program, under its function modes."""
        with self.modes.functions.on_stack() if self.modes.functions.active else _PLAINLY:
            result: T = self.trace.perform(function, args, kwargs)
            return result

    def note_function(self, function: types.FunctionType) -> None:
        """A function has been made by the program."""
        own, key = self.own_functions, id(function)
        own[key] = weakref.ref(function, lambda _: own.pop(key, None))

    def local(self, frame: Frame, index: int) -> object:
        """A fast local, MISSING when unbound; one of a continued frame is wrapped now."""
        value = frame.locals[index]
        if type(value) is Torn:
            raise self.world.torn(value)
        if type(value) is Deferred:
            grown = self.world.containers.grown(value.real, value.source)
            if grown is not None:
                return grown
            value = frame.locals[index] = self.world.wrap(value.real, value.source)
        return value

    def has_ended(self) -> bool:
        """Whether the outermost frame has returned."""
        return len(self.frames) == 1

    def appends(self) -> bool:
        """Whether the present instruction pushes a value of which the next one takes the attribute `append`."""
        frame = self.frames[-1]
        code, at = frame.code, frame.pc
        if not 0 < at < len(code.ops) or code.ops[at] not in ("LOAD_METHOD", "LOAD_ATTR") or code.args[at] != "append":
            return False
        return UNIFORM[code.ops[at - 1]].finds or (self.world.containers.returned and code.ops[at - 1] in CALLS)

    def measures(self) -> bool:
        """Whether the present instruction pushes a value of which the next one, a call of `len`, takes the length."""
        frame = self.frames[-1]
        code, at = frame.code, frame.pc
        if not 0 < at < len(code.ops) or code.ops[at] not in CALLS or code.args[at] != 1:
            return False
        called = frame.stack[-2:] if code.ops[at] == "CALL" else frame.stack[-1:]
        return UNIFORM[code.ops[at - 1]].finds and any(value is len for value in called)

    def reads_back(self) -> int:
        """How far from its end the item is that the next two instructions take of what the present one pushes (`[-1]`),
        0 if they do not."""
        frame = self.frames[-1]
        code, at = frame.code, frame.pc
        if not 0 < at < len(code.ops) - 1 or code.ops[at : at + 2] != ["LOAD_CONST", "BINARY_SUBSCR"]:
            return 0
        index = code.args[at]
        return -index if type(index) is int and index < 0 and UNIFORM[code.ops[at - 1]].finds else 0

    def evaluate_body(self, function: types.FunctionType, namespace: Any) -> Any:
        """Run the body of a class statement on `namespace`; what it returns is the `__class__` cell or None."""

        def start(scratch: Frame) -> bool:
            self.enter(function, [], None).namespace = namespace
            return True

        return self._nested(start)

    def _nested(self, start: Callable[[Frame], Any]) -> Any:
        scratch = Frame(_SCRATCH, {}, [])
        scratch.back = self.frames[-1]
        if self.depth.nested >= _NESTED_MOST:
            raise self.unsupported("native code and the program call each other in many layers", "recursion")
        self.frames.append(scratch)
        outer, self.base = self.base, len(self.frames)
        self.depth.nested += 1
        try:
            with self.modes.functions.off_stack() if torch._C._len_torch_function_stack() else _PLAINLY:
                if start(scratch):
                    self.run_on(itertools.repeat(0))
            return scratch.stack.pop()
        finally:
            self.depth.nested -= 1
            del self.frames[self.base - 1 :]
            self.base = outer

    def enter(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any] | None) -> Frame:
        """Push the frame of a call of a Python function."""
        code = decode(function.__code__)
        self.world.guards.reliance.codes.add(function.__code__)
        if id(function) not in self.own_functions:
            self.world.functions.rely_on_code(function)
        frame = Frame(code, function.__globals__, bind(function, args, kwargs, self._default), function)
        if len(self.frames) > self.depth.most:
            self._refuse_depth()
        self.frames.append(frame)
        return frame

    def _refuse_depth(self) -> None:
        """Raises Unsupported where the program's calls are as deep as Python lets them be. How deep it is called itself
        is found when its first call is made."""
        if not self.depth.most:
            self.depth.most = max(sys.getrecursionlimit() - real_depth(), 1)
        if len(self.frames) > self.depth.most:
            raise self.unsupported("the program's calls are nested as deeply as Python allows", "recursion")

    def _default(self, function: types.FunctionType, attribute: str, key: Hashable, value: Any) -> Any:
        """What stands for the default of a parameter. Constants of a function that is known as such are guarded with
        it (`rely_on_code`)."""
        if id(function) in self.own_functions:
            return value
        fixed = type(value) in CONSTANT_TYPES or isinstance(value, type) or is_opaque(value)
        if fixed and not self.world.functions.is_known_by_code(function):
            return value
        base = self.world.identities.source_of(function)
        return self.world.wrap(value, Source("item", attribute_source(base, attribute), key))

    def run_on(self, ticks: Iterator[int]) -> bool:
        """Run until the frame stack is back at `base`, one instruction for each tick. False when the ticks ran out."""
        frames, watched = self.frames, self.world.lifetimes.watched
        tick = 0
        while len(frames) > self.base:
            frame = frames[-1]
            if watched:
                self.world.lifetimes.look_for_drops()
            try:
                bound = frame.code.bound
                if bound is None:
                    bound = frame.code.bound = _bound(frame.code)
                for tick in ticks:
                    handler, arg = bound[frame.pc]
                    frame.pc += 1
                    if self.settle is not None and self.settle(self, frame, handler, arg):
                        continue
                    if handler(self, frame, arg):
                        frame.tick = tick
                        break
                else:
                    return False
            except Unsupported:
                if self.progress.lost is None:
                    self.progress.tick = tick
                raise
            except KeyboardInterrupt as error:
                if error is not self.progress.escaping:  # it comes from the keyboard
                    raise
                self.unwind(error)
            except BaseException as error:
                frame.tick = tick
                if self.base == 1 and self.progress.raised != id(error):  # one that goes on after a handler is no other
                    self.progress.raised = id(error)
                    self.progress.tick = next((f.tick for f in reversed(frames[1:]) if not f.code.ours), 0)
                self.unwind(error)
        return True

    def finish(self, frame: Frame, value: object) -> None:
        """The top frame returns `value`."""
        then, generator = frame.then, frame.generator
        self.frames.pop()
        caller = self.frames[-1]
        frame.end(caller)
        if generator is not None:
            self._return_of_generator(caller, then, frame.then_value, value)
        else:
            self.give(frame, value)

    def give(self, frame: Frame, value: object) -> None:
        """Hand a value to the caller, now on top, that has called `frame`."""
        caller = self.frames[-1]
        if frame.then == "push":
            caller.stack.append(value)
        elif frame.then == "instance":
            if value is not None:
                raise TypeError(f"__init__() should return None, not '{type(value).__name__}'")
            caller.stack.append(frame.then_value)

    def handled(self) -> BaseException | None:
        """The exception that is being handled (`sys.exception()`). What stands for code in C handles none that others
        could see."""
        for frame in reversed(self.frames):
            if frame.exceptions and not frame.code.ours:
                return frame.exceptions[-1]  # type: ignore[no-any-return]
        return None

    def unwind(self, error: BaseException, origin: Origin = "raised") -> None:
        """Find the handler of an exception in the top frame; raise it when no frame of this run has one. One that is
        raised there gets its `__context__` (that of one which has passed through real frames is right already); one
        that goes on after a handler is not noted again in the traceback."""
        frames = self.frames
        if origin == "raised" and error is not self.progress.escaping:
            self._refuse_fault(error)
            name_tensors(error)
            _set_context(error, self.handled())
        elif origin == "thrown" and frames[-1].exceptions:
            _set_context(error, frames[-1].exceptions[-1])
        noted = origin == "reraised"
        while len(frames) > self.base:
            frame = frames[-1]
            at = frame.pc - 1
            rows = frame.code.rows_at(at)
            if not noted:
                add_entry(error, frame)
            noted = False
            if rows:
                row = rows[-1]
                del frame.stack[row.depth :]
                if row.handled is not None:
                    del frame.exceptions[row.handled :]
                if row.lasti:
                    frame.stack.append(at)
                frame.stack.append(error)
                frame.pc = row.target
                self.progress.escaping = None
                return
            frames.pop()
            generator = frame.generator
            if generator is not None and frame.code.code in LASTING:
                generator.begin_anew()
                frame.end(frames[-1])
                if isinstance(error, StopIteration) and frame.then != "stop":  # as a `next` in C that raises it
                    self._return_of_generator(frames[-1], frame.then, frame.then_value, error.value)
                    self.progress.escaping = None
                    return
                continue
            frame.end(frames[-1])
            if generator is not None and isinstance(error, StopIteration):
                wrapped = RuntimeError(f"{generator.kind} raised StopIteration")
                wrapped.__cause__ = wrapped.__context__ = error
                error = wrapped
        self.progress.escaping = error if self.base > 1 or isinstance(error, KeyboardInterrupt) else None
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context  # it was raised before
            del error  # its traceback leads to this frame: a cycle would keep the program's values alive

    def _refuse_fault(self, error: BaseException) -> None:
        """Raises Unsupported for an exception that is not the program's, which may not catch it."""
        if is_exhausted(error):
            reason = "native code that the program calls goes deeper than Python allows here"
            raise self.unsupported(reason, "recursion")
        if is_fault(error):
            reason = f"capture met {type(error).__name__}: {error}"
            raise self.unsupported(reason, "bug") from error
        if names_stand_in(error):
            reason = f"native code is given what stands for another value: {error}"
            raise self.unsupported(reason, "native_call") from error

    # -- generators

    def resume(self, generator: Generator, value: object, then: str, then_value: object = None) -> bool:
        """Continue a generator; what it yields is pushed onto the present top frame. `then` says what its return does
        there: "for" (drop the iterator below and jump to `then_value`), "send" (as SEND), "default" (push `then_value`)
        or "stop" (raise StopIteration). False when it was exhausted already, and the result is there."""
        frame = generator.frame
        if generator.running:
            raise ValueError(f"{generator.kind} already executing")
        if generator.done:
            if generator.kind == "coroutine":
                raise RuntimeError("cannot reuse already awaited coroutine")
            self._return_of_generator(self.frames[-1], then, then_value, None)
            return False
        if not generator.started and value is not None:
            raise TypeError(f"can't send non-None value to a just-started {generator.kind}")
        self.refuse_foreign(generator)
        frame.stack.append(value)
        self.proceed(generator, then, then_value)
        return True

    def proceed(self, generator: Generator, then: str, then_value: object) -> None:
        """Put the body of a suspended generator on top of the frame stack, without sending it anything."""
        frame = generator.frame
        generator.started = generator.running = True
        frame.generator, frame.then, frame.then_value = generator, then, then_value
        self.frames.append(frame)

    def refuse_foreign(self, generator: Generator) -> None:
        """Raises Unsupported for a generator whose body is CPython's."""
        if generator.foreign:
            reason = "a generator of the outside world is resumed"
            raise self.unsupported(reason, "iterator", "make it inside the compiled function")

    def throw(self, generator: Generator, error: BaseException) -> None:
        """Raise `error` where a generator is suspended: in the generator of the program that it yields from, if any.
        GeneratorExit is raised in the outer one, whose inner one was closed before."""
        if generator.running:
            raise ValueError(f"{generator.kind} already executing")
        if generator.done:
            self.unwind(error, "reraised")  # the generator has no frame any more
            return
        self.refuse_foreign(generator)
        self.proceed(generator, "stop", None)
        frame = generator.frame
        inner = frame.delegate()
        while type(inner) is Generator and not isinstance(error, GeneratorExit):
            self.refuse_foreign(inner)
            frame.pc -= 1  # to YIELD_VALUE, as if SEND had just been done
            self.proceed(inner, "send", frame.code.args[frame.pc - 1])
            frame = inner.frame
            inner = frame.delegate()
        if inner is not None and not isinstance(error, GeneratorExit) and hasattr(inner, "throw"):
            raise self.unsupported("throw into an iterator of the outside", "iterator")
        self.unwind(error, "thrown")

    def _return_of_generator(self, caller: Frame, then: str, then_value: Any, value: Any) -> None:
        if then == "for":
            caller.stack.pop()
            caller.pc = then_value
            if caller.stack:
                self.world.containers.built(caller.stack[-1])
        elif then == "send":
            caller.stack.append(value)
            caller.pc = then_value
        elif then == "default":
            caller.stack.append(then_value)
        else:
            raise StopIteration() if value is None else StopIteration(value)

    def note_generator(self, generator: Generator) -> None:
        """A generator has been made by the program."""
        generator.abandon = self._close_abandoned
        self.own_generators.append(weakref.ref(generator))

    def unfinished(self) -> list[Generator]:
        """The program's generators that are alive, and would do something if they were dropped."""
        alive = [generator for ref in self.own_generators if (generator := ref()) is not None]
        return [generator for generator in alive if generator.cleans_up()]

    def _close_abandoned(self, generator: Generator) -> None:
        """Run the `finally` blocks of a suspended generator whose last reference has gone."""
        if not self.progress.running or not generator.cleans_up():
            return
        try:
            self.evaluate(generators.generator_close, [generator])
        except Unsupported as error:
            self.progress.lose(error)
        except Exception as error:
            reason = f"a generator that is dropped raises {type(error).__name__}"
            self.progress.lose(self.unsupported(reason, "iterator", "use it up or close it"))


def _set_context(error: BaseException, handled: BaseException | None) -> None:
    """What `raise` does: `handled` becomes the context of `error`, without making a cycle; one may be there already."""
    if handled is None or handled is error:
        return
    seen: list[BaseException] = []
    at: BaseException | None = handled
    while at is not None and not any(at is known for known in seen):
        seen.append(at)
        if at.__context__ is error:
            at.__context__ = None
        at = at.__context__
    error.__context__ = handled


@contextlib.contextmanager
def part_of(vm: Machine) -> Iterator[Part]:
    """While it is active, what is interpreted is recorded as a graph of its own. Casts that autocast keeps are of one
    part."""
    outer, part = vm.trace, Part(vm.trace)
    vm.trace = part
    vm.world.inside += 1
    torch.clear_autocast_cache()
    try:
        with part.alone():
            yield part
    finally:
        torch.clear_autocast_cache()
        vm.world.inside -= 1
        vm.trace = outer
