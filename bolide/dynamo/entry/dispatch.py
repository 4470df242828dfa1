"""Compiled functions: a public function with the user's signature in front of its entries, and the segments that
follow when an entry ends in a break.

The public function calls `top`, the entry used last (see `versions`). An entry that ends in a break hands over to
`Dispatcher.resume`: the instruction that could not be captured is run for real, then the segment that starts at the
point reached is entered, until one returns. This is a loop, however often the program breaks.
"""

from __future__ import annotations

import functools
import inspect
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.breaks.concrete import Concrete, rehearse
from bolide.dynamo.breaks.hops import Hop, Left, Way, make_hop
from bolide.dynamo.breaks.segments import Shape, Suspended, are_held, flatten
from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.dynamo.config import config
from bolide.dynamo.entry.capture import capture_rest
from bolide.dynamo.entry.limits import Trial, drawn, has_derivative, moment
from bolide.dynamo.entry.replay import Entry
from bolide.dynamo.entry.versions import Backend, OtherParameters, Versions, Wishes, same_reason
from bolide.dynamo.guards.sizes import SizeHistory
from bolide.dynamo.machine.faults import comes_from_outside
from bolide.dynamo.program.captured import Captured
from bolide.dynamo.program.sources import Namespace, Signature
from bolide.dynamo.state import state, which_call
from bolide.dynamo.world.frames import Frame
from bolide.support import events, log
from bolide.support.errors import BolideError, CompileError, HalfwayError, Unsupported, UserFrame
from bolide.support.locks import compiling

_log = log.logger("dynamo")
OMITTED: object = type("Omitted", (), {"__slots__": (), "__repr__": lambda self: "<default>"})()

# torch.compile leaves the frames of what is compiled here alone. Where it looks into a call (in its own regions, which
# `torch.cond` and its kin make in eager), it finds the user's function behind what is called: `_torchdynamo_inline`.
_skip = torch._C._dynamo.eval_frame._FrameAction.SKIP
_LEFT_ALONE = torch._C._dynamo.eval_frame._FrameExecStrategy(_skip, _skip)
_set_strategy = torch._C._dynamo.eval_frame.set_code_exec_strategy


Capture = Callable[[types.FunctionType, tuple[object, ...], dict[str, object], SizeHistory], Captured]
CaptureRest = Callable[[Shape, tuple[object, ...], SizeHistory], Captured]


class Dispatcher(Versions):
    """A compiled function."""

    def __init__(
        self,
        original: types.FunctionType,
        capture: Capture,
        backend: Backend,
        *,
        rest: CaptureRest = capture_rest,
        name: str = "",
        key: object = None,
        place: types.CodeType | None = None,
        wishes: Wishes | None = None,
    ) -> None:
        self.original = original  # the user's function, called for eager and for inlining
        self.capture, self.rest = capture, rest
        name = name or original.__qualname__
        code = place or original.__code__
        signature = Signature.of(original.__code__)
        self.function = self._public(name, signature)
        key = original.__code__ if key is None else key
        frame = UserFrame(code.co_filename, code.co_firstlineno, name)
        super().__init__(name, key, frame, signature, backend, wishes or Wishes())

    def _public(self, name: str, signature: Signature) -> types.FunctionType:
        """The public function: the user's parameters, forwarded to `top`. Its code comes in three forms, the second for
        functions with breaks, the third while these are tried.
        """
        self._namespace = Namespace(signature.names)
        self._scope = self._namespace.values
        self._top, self._resume = self._namespace.fresh("top"), self._namespace.fresh("resume")
        self._tried = self._namespace.fresh("tried")
        self._scope[self._resume], self._scope[self._tried] = self.resume, self.tried
        self._codes = self._write(name, signature)
        function = types.FunctionType(self._codes[0], self._scope)
        functools.update_wrapper(function, self.original)
        self._omit(function)
        function._bolide = self  # type: ignore[attr-defined]
        return function

    def _write(self, name: str, signature: Signature) -> list[types.CodeType]:
        """The three forms of the public function's code."""
        before, passed = self._defaults(signature)
        call = f"{self._top}({passed})"
        codes = []
        for body in (call, f"{self._resume}({call})", f"{self._tried}({passed})"):
            text = f"def public({signature.declare}):\n{before}    return {body}\n"
            exec(compile(text, f"<bolide {name}>", "exec", dont_inherit=True), self._scope)
            codes.append(self._scope.pop("public").__code__)
            _set_strategy(codes[-1], _LEFT_ALONE)
        return codes

    def _defaults(self, signature: Signature) -> tuple[str, str]:
        """For the public function: a statement that sees to it that the user's function has the defaults it had, and
        what is passed on, with these for what was omitted. (The user may assign other ones at any time.)
        """
        function, reference = self.original, self._namespace.reference
        defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
        if not defaults and not keywords:
            return "", signature.forward
        end = function.__code__.co_argcount
        held = {name: reference(value) for name, value in zip(signature.names[end - len(defaults) : end], defaults)}
        held |= {name: f"{reference(keywords)}[{name!r}]" for name in keywords}
        omitted = reference(OMITTED, "omitted")
        passed = signature.passing({name: f"{text} if {name} is {omitted} else {name}" for name, text in held.items()})
        same = [
            f"{reference(function, 'f')}.{name} is {reference(getattr(function, name), name)}"
            for name in ("__defaults__", "__kwdefaults__")
        ]
        other = reference(self._other_defaults, "other_defaults")
        return f"    if not ({' and '.join(same)}): return {other}({signature.forward})\n", passed

    def _omit(self, function: types.FunctionType) -> None:
        """Mark the parameters of the public function that may be omitted."""
        function.__defaults__ = (OMITTED,) * len(self.original.__defaults__ or ()) or None
        function.__kwdefaults__ = dict.fromkeys(self.original.__kwdefaults__ or (), OMITTED) or None

    def _other_defaults(self, /, *args: object, **kwargs: object) -> Any:
        """A call, with marks for what was omitted, after the user's function was given other defaults."""
        form = self._codes.index(self.function.__code__)
        self._codes = self._write(self.name, self.signature)
        self.function.__code__ = self._codes[form]
        self._omit(self.function)
        count = next((i for i, value in enumerate(args) if value is OMITTED), len(args))
        named = dict(zip(self.signature.names[count:], args[count:])) | kwargs
        return self.function(*args[:count], **{name: value for name, value in named.items() if value is not OMITTED})

    def reset(self) -> None:
        super().reset()
        self.points: dict[Shape, Point] = {}  # where segments have ended, and what is compiled to go on there
        self.heads: set[tuple[Code, int]] = set()  # the innermost frames of points that have entries
        self.shapes: dict[Shape, Shape] = {}  # where segments end
        self.hops: dict[Shape, Hop | None] = {}  # by where segments have ended
        self.seen: set[Shape] = set()  # where they have ended once
        self.trial: Trial | None = None
        self.trials = 0  # how many there were because of versions
        self.looked = False  # whether there was one because of breaks
        self.passed = 0  # how many breaks were gone through by calls that have compiled nothing
        self.made = self.misses = 0  # how many entries, of all points, and how often one was to be made
        self.retired = False  # a trial has shown that eager is faster
        self.most, self.longer = 0.0, 0  # seconds that calls may take since, and how many took longer
        self._scope[self._top] = self.miss
        self.function.__code__ = self._codes[0]

    def enter(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        return self.function(*args, **kwargs)

    def eager(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        return self.original(*args, **kwargs)

    def miss(self, /, *args: object, **kwargs: object) -> Any:
        return super().miss(*args, **kwargs)

    def wanted(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        if Signature.of(self.original.__code__) != self.signature:
            what = "was given code with other parameters after it was compiled; compile it again"
            raise OtherParameters(f"{self.name} {what}")
        return super().wanted(args, kwargs)

    def capture_now(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Captured:
        return self.capture(self.original, args, kwargs, self.sizes)

    def known(self, shape: Shape) -> Shape:
        shape = self.shapes.setdefault(shape, shape)
        rehearse(shape)
        return shape

    def lead(self, entry: Entry) -> None:
        entry.function._torchdynamo_inline = self.original  # type: ignore[attr-defined]
        self._scope[self._top] = entry.function

    def install(self, entry: Entry) -> None:
        super().install(entry)
        if entry.breaks and self.trial is None:
            self.function.__code__ = self._codes[1]
        self.count()

    def _make_entry(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self.misses += 1
        super()._make_entry(args, kwargs)

    def failed(self, error: Unsupported) -> str | None:
        if events.subscribers:
            where = error.where or self.place
            events.emit(events.Fallback(self.name, error.reason, error.kind, where, error.remedy, error))
        if error.about.scope == "call":
            self.warn(error)
            return None
        self._failures[same_reason(error), error.where] += 1
        self.given_up |= self._failures.total() >= config.cache_size_limit
        if error.about.scope == "user":
            return error.reason if error.kind == "user_exception" else None
        self.given_up |= self._failures[same_reason(error), error.where] > 1
        self.warn(error)
        return None

    # ---- trials ------------------------------------------------------------------------------------------------------

    def count(self) -> None:
        """There is one more entry. Measure whether it is worth it, where segments were compiled again and again: at
        twice the limit that a function without breaks has, and whenever it was twice as often since."""
        self.made += 1
        again = self.made - 1 - sum(bool(point.entries) for point in self.points.values())
        if again >= config.cache_size_limit << self.trials + 1 and self._try():
            self.trials += 1

    def _try(self, breaks: int = 0) -> bool:
        """Measure from now on, unless that is done already, or may not be; for what a call has `breaks` if not 0."""
        if self.trial is not None or not config.eager_if_faster:
            return False
        if not self.points or self.original.__code__.co_flags & _SUSPENDS:
            return False
        self.trial = Trial(breaks)
        self.function.__code__ = self._codes[2]
        return True

    def _note_breaks(self, breaks: int) -> None:
        """A call that has compiled nothing has gone through breaks. What is between many of them, or in calls that
        are made often, may not be worth it."""
        self.passed += breaks
        if breaks >= _MANY or self.passed >= _OFTEN:
            with compiling:
                self.looked = True
                self._try(breaks)

    def tried(self, /, *args: object, **kwargs: object) -> object:
        """A call while it is measured which calls are faster."""
        trial = self.trial
        if trial is None or state.stage or state.disabled or config.disable or state.stance != "default":
            return self.resume(self._scope[self._top](*args, **kwargs))
        before, eagerly, misses, start = drawn(), trial.eagerly(), self.misses, moment()
        result = None
        try:
            result = self.eager(args, kwargs) if eagerly else self.resume(self._scope[self._top](*args, **kwargs))
            return result
        finally:  # exceptions that callers handle are results, too
            trial.note(eagerly, moment() - start, self.misses - misses)
            stays = has_derivative(result) or drawn() != before  # eager draws other numbers: a seed is to mean the same
            if stays or trial.is_over:
                with compiling:
                    self._end(trial, None if stays else trial.verdict)

    def _end(self, trial: Trial, verdict: str | None) -> None:
        """A trial is over: go on as before, or in eager, if there is a reason."""
        if self.trial is not trial:
            return  # another thread was here
        self.trial = None
        self.function.__code__ = self._codes[1]
        if verdict is None:
            return
        reason = f"it has {self.made} versions, and {verdict}"
        self.reset()
        self.given_up = self.retired = True
        self.most = trial.most
        self._scope[self._top] = self.watched
        _log.info("%s runs in eager: %s", self.name, reason)
        if events.subscribers:
            events.emit(events.Fallback(self.name, reason, "limit", self.place, _UNTRIED))

    def watched(self, /, *args: object, **kwargs: object) -> object:
        """A call in eager, after a trial. Where calls come to take far longer than those of the trial, as with larger
        tensors, they are compiled again, for good unless that needs many versions."""
        start = time.perf_counter()
        result = self.original(*args, **kwargs)
        if time.perf_counter() - start > self.most:
            with compiling:
                self.longer += 1
                if self.longer >= _LONGER and self.retired:
                    self.reset()
                    self.looked = True
        return result

    # ---- breaks ------------------------------------------------------------------------------------------------------

    def resume(self, result: object) -> Any:
        """The rest of a call whose first entry has answered `result`."""
        state.resuming += 1
        try:
            return self._resumed(result)
        finally:
            state.resuming -= 1
            which_call()

    def _resumed(self, result: object) -> Any:
        state.entering = None
        name, expected = self.name, None
        running: Concrete | None = None
        misses, count = self.misses, 0
        while type(result) is Suspended:
            count += _REAL if result.onwards else 1
            expected = result.expected or expected
            start = time.perf_counter() if events.subscribers else 0.0
            fault = None
            try:
                running = running or Concrete()
                point, values = self._past(running, result)
            except Exception as error:
                if _is_final(running, error):
                    raise
                fault = error
            if fault is not None:  # not in the handler, which exceptions of the program would see
                point, values = None, self._rescue(running or Concrete(), result, fault)
            if start:
                events.emit(events.Resumed(name, point.name if point else "", time.perf_counter() - start))
            if point is None:
                result = values
                break
            name = point.name
            result = point.top(*values)
            del values
        if expected is not None:
            self.tell_not_raised(expected)
        if not self.looked and self.misses == misses:
            try:
                self._note_breaks(count)
            except Exception as error:  # the call has its result
                self.bug(CompileError("counting breaks", name, error))
        return result

    def _past(self, running: Concrete, suspended: Suspended) -> tuple[Point | None, Any]:
        """Go on from where a segment has ended: the next point and the values that are live there, or None and the
        result."""
        hop = None if suspended.onwards else self.hops.get(suspended.shape)
        reached = None if hop is None else hop(suspended)
        return reached if type(reached) is tuple else self._walk(running, suspended, reached)

    def _rescue(self, running: Concrete, suspended: Suspended, error: Exception) -> Any:
        """The result, where bolide has failed between two instructions: frames run on to the end, with a warning. In
        the middle of one nothing can take over: eager would do again what was done until there.
        """
        if suspended.values is None and not running.is_whole:
            raise HalfwayError("a break", self.name, error) from error
        self.bug(CompileError("a break", self.name, error))
        try:
            if suspended.values is not None:
                running.restart(suspended.frames())
            while not running.done:
                running.step()
        except Exception as other:
            if _is_final(running, other):
                raise
            raise HalfwayError("a break", self.name, other) from other
        return running.result

    def _walk(self, running: Concrete, suspended: Suspended, left: Left | None) -> tuple[Point | None, Any]:
        """As `_past`, on frames; from where its hop was `left`, if it has one."""
        shape, disabled = suspended.shape, state.disabled
        running.restart((suspended if left is None else left).frames())
        if left is None or left.first:
            running.advance()
        else:
            if left.error is not None:
                running.unwind(left.error)
            running.glide()
        if suspended.onwards:
            self._go_on(running, disabled)
        while not running.done and are_held(running.frames):
            running.step()
        final, live = (None, []) if running.done else flatten(running.frames)
        point = None if final is None else self.point(final)
        if left is None and not suspended.onwards:
            self._learn(shape, running.way, final, point)
        elif left is not None and left.first:
            self.hops[shape] = None
        values = running.result if point is None else tuple(live)
        running.let_go()
        return point, values

    def _learn(self, shape: Shape, way: Way, final: Shape | None, point: Point | None) -> None:
        """The frames of `shape` went this way: when they do for the second time, it is written down."""
        if shape in self.hops:
            return
        if shape not in self.seen:
            self.seen.add(shape)
            return
        self.hops[shape] = None  # also where it cannot be
        self.hops[shape] = make_hop(shape, way, final, point)

    def _go_on(self, running: Concrete, disabled: int) -> None:
        """Run frames for real until a point is reached that has entries, or a region that is never compiled is left
        (`disabled`: in how many the frames have begun), or to the end. A frame that alone is not compiled is run to its
        end, or to a call that may be captured.
        """
        alone = bool(running.machine.frames[-1].code.skipped)
        while not running.done and state.disabled >= disabled:
            top = running.machine.frames[-1]
            if alone and not self._stays_alone(running, top):
                return
            if (top.code, top.pc) in self.heads:
                known = self.points.get(flatten(running.frames)[0])
                if known is not None and known.entries and not known.given_up:
                    return
            running.step()

    def _stays_alone(self, running: Concrete, top: Frame) -> bool:
        """Whether the next instruction is one of the same frame that is not captured."""
        if not top.code.skipped or not UNIFORM[top.code.ops[top.pc]].calls:
            return bool(top.code.skipped)
        known = self.points.get(flatten(running.frames)[0])
        return known is not None and known.single

    def point(self, shape: Shape) -> Point:
        """The versions that go on at `shape`."""
        point = self.points.get(shape)
        if point is None:
            point = self.points.setdefault(shape, Point(self, shape, len(self.points) + 1))
        return point


_MANY, _OFTEN = 4, 32  # breaks in a call, and in all, after which it is measured whether eager is faster
_LONGER = 4  # calls in eager that take longer than those that were measured
_REAL = 1000  # breaks that as much as is run for real counts as: it may take any time
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # a call runs nothing yet
_UNTRIED = "compile the functions with tensor operations that it calls instead"


def _is_final(running: Concrete | None, error: Exception) -> bool:
    """Whether an error is the program's, or comes from outside, or is a verdict of bolide's."""
    known = isinstance(error, BolideError) or (running is not None and running.leaving)
    return known or comes_from_outside(error)


def _of_original(dispatcher: Dispatcher, /, *args: object, **kwargs: object) -> Any:
    """A call, with marks for what was omitted, as the user's function gets it."""
    count = next((i for i, value in enumerate(args) if value is OMITTED), len(args))
    named = dict(zip(dispatcher.signature.names[count:], args[count:])) | kwargs
    given = {name: value for name, value in named.items() if value is not OMITTED}
    return dispatcher.original(*args[:count], **given)


def _result(dispatcher: Dispatcher, result: object) -> Any:
    return result


Dispatcher.miss._torchdynamo_inline = _of_original  # type: ignore[attr-defined]
Dispatcher.watched._torchdynamo_inline = _of_original  # type: ignore[attr-defined]
Dispatcher.tried._torchdynamo_inline = _of_original  # type: ignore[attr-defined]
Dispatcher._other_defaults._torchdynamo_inline = _of_original  # type: ignore[attr-defined]
Dispatcher.resume._torchdynamo_inline = _result  # type: ignore[attr-defined]


class Point(Versions):
    """A place where segments of a function have ended. Its entries take the values that are live there, and answer the
    function's result, or `Suspended` when they end in a break themselves.
    """

    shape: Shape

    def __init__(self, root: Dispatcher, shape: Shape, number: int) -> None:
        self.root, self.shape, self.keeper = root, shape, root.keeper
        names = shape.names()
        joined = ", ".join(names)
        where = shape.where()
        place = where[-1] if where else root.place
        signature = Signature(names, joined, joined)
        super().__init__(f"{root.name}/{number}", root.key, place, signature, root.backend, root.wishes)

    def reset(self) -> None:
        super().reset()
        self.sizes.learnt = self.root.sizes.learnt
        self.single = False  # nothing can be captured here: one instruction is run for real
        self.top: Callable[..., object] = self.miss

    def enter(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        return self.top(*args)

    def eager(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Go on for real: by one instruction where only that one cannot be captured. It is not done here, where the
        values are referred to by more than the program.
        """
        return Suspended(self.shape, args, onwards=not self.single or bool(self.shape.frames[-1].code.skipped))

    def wanted(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        return not self.root.retired and super().wanted(args, kwargs)

    def capture_now(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Captured:
        return self.root.rest(self.shape, args, self.sizes)

    def _make_entry(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self.root.misses += 1
        try:
            super()._make_entry(args, kwargs)
        except Unsupported as error:
            self.single = error.about.scope != "user"
            raise

    def known(self, shape: Shape) -> Shape:
        return self.root.known(shape)

    def lead(self, entry: Entry) -> None:
        self.top = entry.function

    def install(self, entry: Entry) -> None:
        super().install(entry)
        last = self.shape.frames[-1]
        self.root.heads.add((last.code, last.pc))
        self.root.count()

    def failed(self, error: Unsupported) -> str | None:
        if error.about.scope == "program" and error.kind != "limit":
            self._failures[same_reason(error), error.where] += 1
            self.given_up |= self._failures[same_reason(error), error.where] > 1
            if self.keeper is not None:
                self.keeper.refused(self, error)
            _log.info("%s: one instruction runs in eager: %s (%s)", self.name, error.reason, error.where)
        elif error.kind == "limit":
            self.warn(error)
        elif error.about.scope == "user":  # the next call is likely to be captured in vain, too
            self._failures[same_reason(error), error.where] += 1
            self.given_up |= self._failures.total() >= config.cache_size_limit
        return error.reason if error.kind == "user_exception" else None

    def without_error(self, expected: str, result: Suspended) -> Suspended:
        result.expected = expected  # it is still to be seen
        return result

    def warn(self, error: Unsupported, cause: str | None = None) -> None:
        self.root.warn(error, cause)
