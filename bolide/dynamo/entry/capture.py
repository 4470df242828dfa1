"""Capture: the start of a program in (a call, or the state in which a segment ended), a `Captured` out."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad

from bolide.dynamo.breaks.reified import exception_effects, generator_effects, unfinished_variables
from bolide.dynamo.breaks.segments import Shape, are_held, flatten, is_building, is_local, refuse_halfway, unflatten
from bolide.dynamo.bytecode.instructions import decode
from bolide.dynamo.config import config
from bolide.dynamo.entry import registrations  # noqa: F401  (importing it fills the tables of handlers)
from bolide.dynamo.entry.input_data import answer, data_of, guard_offset
from bolide.dynamo.entry.module import call_target, forward_of
from bolide.dynamo.guards.sizes import NeedsNumbers, SizeHistory, Symbols
from bolide.dynamo.library.contexts import context_effects
from bolide.dynamo.library.marks import HOLDERS
from bolide.dynamo.library.notices import Notices
from bolide.dynamo.library.provenance import around
from bolide.dynamo.library.standard import HELD_LOCKS
from bolide.dynamo.machine.breaking import break_is_error, refuse_float, refuse_integer, refuse_many, refuse_value
from bolide.dynamo.machine.caches import refuse_seen
from bolide.dynamo.machine.calls import call
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.numbers import derive, named, needed
from bolide.dynamo.opcodes.forks import is_shared, note_copy
from bolide.dynamo.program.captured import Break, Captured, Effect, Guard, Recipe, Source, effect_of
from bolide.dynamo.program.kinds import CONSTANT_TYPES, MODULE_INTERNALS
from bolide.dynamo.state import state
from bolide.dynamo.torch_calls.hooks import hook_effects, refuse_results_in_between
from bolide.dynamo.torch_calls.state import enter_around, function_mode_effects, rely_on_current_device
from bolide.dynamo.world.outside import Deferred, Overlay, Snapshot
from bolide.dynamo.world.rebuild import Rebuilder
from bolide.dynamo.world.world import World
from bolide.support.errors import CompileError, Unsupported
from bolide.tracing import Trace, TracedTensor, modes
from bolide.tracing.calls import CallRecorder, nowhere
from bolide.tracing.rules import answers
from bolide.tracing.tensor import AliasGroup, Data, Listener

_torch: Any = torch._C
Start = Callable[[Machine], None]  # pushes the frames a run begins with
Table = Mapping[OpOverload, Callable[..., Any]]
Decompositions = Callable[[], Table]  # gives what is recorded in place of operations


def capture(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    history: SizeHistory | None = None,
    *,
    breaks: bool = True,
    record_calls: bool = False,
    draws_as_eager: bool = False,
    decompositions: Decompositions = dict,
) -> Captured:
    """Interpret one call of `fn` (a function or bound method) on the given real arguments, without changing anything
    outside. What cannot be captured ends the segment in front of it, unless `breaks` is off. With `record_calls` the
    calls of torch's functions are recorded as well; with them, or with `draws_as_eager`, random numbers are eager's;
    `decompositions` are recorded in place of operations.

    Raises Unsupported where the program cannot be captured; kind "user_exception" (with `__cause__`) when the program
    itself raised."""
    code = (fn.__func__ if type(fn) is types.MethodType else fn).__code__
    start = functools.partial(_start_call, fn, args, kwargs)
    return _capture(start, code, history, record_calls, draws_as_eager, breaks, decompositions)


def capture_rest(
    shape: Shape,
    values: tuple[object, ...],
    history: SizeHistory | None = None,
    *,
    breaks: bool = True,
    record_calls: bool = False,
    draws_as_eager: bool = False,
    decompositions: Decompositions = dict,
) -> Captured:
    """As `capture`, for a program that goes on where a segment ended: at the point `shape`, with real values."""
    start = functools.partial(_start_frames, shape, values)
    code = shape.frames[0].code.code
    return _capture(start, code, history, record_calls, draws_as_eager, breaks, decompositions)


def _capture(
    start: Start,
    code: types.CodeType,
    history: SizeHistory | None,
    record_calls: bool,
    draws_as_eager: bool,
    breaks: bool,
    decompositions: Decompositions,
) -> Captured:
    history = history or SizeHistory("", False)
    manner = record_calls, draws_as_eager, breaks, decompositions()
    attempt = functools.partial(_Attempt, start, code, history, *manner)
    learnt = history.learnt
    while True:
        first = attempt()
        known = learnt.lessons
        try:
            return _capture_from(first, attempt, breaks)
        except NeedsNumbers as error:
            if not history.fix(error.needed):
                raise
        except Unsupported:
            if learnt.lessons == known:
                raise
        finally:
            del first
        # a branch that was one of the graph is a break now, symbols are numbers, or one tensor is one input


def _capture_from(first: _Attempt, attempt: Callable[[], _Attempt], breaks: bool) -> Captured:
    begin = time.perf_counter()
    learnt = first.symbols.history.learnt
    notices, loops, lessons = Notices(learnt.warned), set(learnt.loops), learnt.lessons
    outcome = _unless_unsupported(first, notices, None, None)
    again = isinstance(outcome, Unsupported) and learnt.lessons > lessons
    if not again and loops != learnt.loops:  # one that was unrolled ends the segment at its first item
        first.machine.forget()
        first = attempt()
        outcome = _unless_unsupported(first, notices, None, None)
    if isinstance(outcome, Captured):
        _show(notices, None)
        return outcome
    if not again and not isinstance(outcome, NeedsNumbers):
        outcome = _up_to_break(first, attempt, breaks, notices, outcome, begin)
        if isinstance(outcome, Captured):
            first.machine.forget()
            return outcome
    try:
        raise outcome
    finally:
        first.machine.forget()
        del outcome, first, attempt  # its traceback leads to this frame: no cycle may keep the program's values alive


def _up_to_break(
    first: _Attempt,
    attempt: Callable[[], _Attempt],
    breaks: bool,
    notices: Notices,
    refusal: Unsupported,
    begin: float,
) -> Captured | Unsupported:
    """The segment that ends in front of what the `first` attempt has refused; or the error that is to be raised."""
    if refusal.kind == "bug" and not config.suppress_errors:
        raise CompileError("capture", first.code.co_name, refusal.__cause__ or refusal)
    first.symbols.check()
    draw = needed(first.machine, refusal)
    if draw is not None:
        first.machine.progress.tick, refusal = draw
    if refusal.final or not breaks or break_is_error(first.machine):
        refusal.final = True
    elif refusal.about.scope != "user" or _raises_again(first, refusal):
        seconds = time.perf_counter() - begin
        stack = tuple(f.code.frame_at(f.pc - 1) for f in first.machine.frames[1:] if not f.code.plumbing)
        ending = Break(refusal.kind, refusal.reason, refusal.operation, refusal.where, refusal.remedy, stack, seconds)
        for stop in first.stops():
            captured = _unless_unsupported(attempt(), notices, stop, ending)
            if isinstance(captured, Captured):
                _show(notices, stop)
                return captured
            del captured  # the state there cannot be rebuilt: earlier
    _show(notices, None)
    return refusal


def _raises_again(first: _Attempt, refusal: Unsupported) -> bool:
    """Whether the program has raised an exception where it has done so before: it is one that callers handle. What is
    raised once costs no compilation. Not a RuntimeError of torch's, nor what is raised for it, which may tell how a
    value was made: of what a segment gives, that is otherwise."""
    error, met = refusal.__cause__, set[int]()
    while error is not None and id(error) not in met:  # a program may have made a ring of them
        if type(error) is RuntimeError and id(error) != first.machine.progress.stated:
            return False
        met.add(id(error))
        error = error.__context__
    raised, before = first.symbols.history.learnt.raised, len(first.symbols.history.learnt.raised)
    raised.add(refusal.where)
    return refusal.kind == "user_exception" and len(raised) == before


def _show(notices: Notices, stop: int | None) -> None:
    """Show what torch has warned of. Raises Unsupported where a filter makes that an error of the user's line."""
    try:
        notices.show(stop)
    except Warning as error:
        raise Unsupported(f"the program raised {type(error).__name__}: {error}", kind="user_exception") from error


def _unless_unsupported(
    attempt: _Attempt, notices: Notices, stop: int | None, ending: Break | None
) -> Captured | Unsupported:
    """What an attempt gives. It is made outside of any ``except`` block: the program's exceptions would see it."""
    try:
        with notices.kept(attempt.machine):
            return attempt.run(stop, ending)
    except BaseException as error:
        if isinstance(error, Unsupported) and error.kind in ("input", "tensor_write") and attempt.world.inputs.twins:
            attempt.symbols.history.learnt.joined = True
        _release(attempt.world, attempt.machine, attempt.rebuilder)
        if not isinstance(error, Unsupported):
            raise
        if stop is not None:
            attempt.machine.forget()
        return error


def _release(world: World, machine: Machine, rebuilder: Rebuilder | None) -> None:
    """The capture is over: the values of the program and of its caller live no longer because of it."""
    suspended = [generator.frame for ref in machine.own_generators if (generator := ref()) is not None]
    for frame in (*machine.frames, *suspended):
        frame.move()
    world.release()
    if rebuilder is not None:
        rebuilder.release()


def _forget(world: World, machine: Machine, rebuilder: Rebuilder) -> None:
    """As `_release`, when nobody asks any more what was met. What the program has made refers to the machine."""
    _release(world, machine, rebuilder)
    calls = machine.recorder
    if calls is not None:
        calls.release()
    machine.forget()


def _lives_on(machine: Machine) -> Unsupported:
    reason = "a generator that has not come to its end lives on in a reference cycle or in a traceback"
    return Unsupported(reason, machine.where(), "use it up or close it", kind="iterator")


class _Program:
    """What the outside world asks of the program that a machine interprets (`world.parts.RunningProgram`)."""

    def __init__(self, machine: Machine, breaks: bool) -> None:
        self.machine, self.breaks = machine, breaks
        self.where, self.has_ended, self.appends = machine.where, machine.has_ended, machine.appends
        self.measures, self.reads_back = machine.measures, machine.reads_back
        self.evaluate, self.lose = machine.evaluate, machine.progress.lose
        self.own_functions = machine.own_functions

    def answer(self, value: object) -> bool | None:
        return answer(self.machine, self.breaks, value)

    def fix_float(self, name: str, value: float) -> None:
        if self.breaks:
            refuse_float(self.machine, name, value)

    def fix_count(self, source: Source, value: object, what: str = "the number of items") -> None:
        # In front of the first instruction of a function there is no break: all of it would run in eager.
        if self.breaks and (self.machine.progress.started or self.machine.world.lifetimes.resumed):
            refuse_many(self.machine, source, value, what)


class _Listener(Listener):
    """Answers the recorder for the machine that interprets the program."""

    def __init__(self, machine: Machine, calls: CallRecorder | None, breaks: bool) -> None:
        self.machine, self.calls, self.breaks = machine, calls, breaks

    def data_of(self, place: int) -> Data | None:
        return data_of(self.machine, place)

    def is_shared(self, group: AliasGroup) -> bool:
        return is_shared(self.machine, group)

    def copied(self, of: AliasGroup, copy: AliasGroup) -> None:
        note_copy(self.machine, of, copy)

    def offset_read(self, place: int) -> None:
        guard_offset(self.machine.world, place)

    def current_device_read(self) -> None:
        rely_on_current_device(self.machine)

    def checked(self, condition: TracedTensor) -> None:
        if self.calls is not None:
            self.calls.check(condition)


class _Attempt:
    """One interpretation from the start, with a world of its own."""

    def __init__(
        self,
        start: Start,
        code: types.CodeType,
        history: SizeHistory,
        record_calls: bool,
        draws_as_eager: bool,
        breaks: bool,
        decompositions: Table,
    ) -> None:
        self.start, self.code = start, code
        answers.remember = config.fake_tensor_cache_enabled
        answers.crosscheck = config.fake_tensor_cache_crosscheck_enabled
        self.trace = Trace()
        self.trace.decompositions = decompositions
        open_to_data = None if history.data_symbols else False
        numbers, sizes = config.capture_scalar_outputs, config.capture_dynamic_output_shape_ops
        self.trace.captures_numbers = open_to_data if numbers is None else numbers
        self.trace.captures_sizes = open_to_data if sizes is None else sizes
        self.trace.derivation.for_real, self.trace.derivation.opaque = history.called_for_real, history.opaque
        self.trace.compliant_only = config.only_allow_pt2_compliant_ops
        if config.do_not_emit_runtime_asserts:
            self.trace.shapes.require = None
        self.symbols = Symbols(history, self.trace)
        self.world = World(self.trace, self.symbols)
        self.rebuilder: Rebuilder | None = None
        self.machine = Machine(self.world, self.trace, call)
        self.world.serve(_Program(self.machine, breaks))
        if breaks:
            self.trace.shapes.needed = functools.partial(refuse_value, self.machine)
        self.trace.shapes.exact = state.exporting
        if not state.exporting:
            self.trace.shapes.too_large = functools.partial(refuse_integer, self.machine)
            self.trace.shapes.derive = functools.partial(derive, self.world)
            self.trace.shapes.named = functools.partial(named, self.world)
        self.calls = CallRecorder(self.trace, self.machine.modes.setters) if record_calls else None
        self.trace.tell(_Listener(self.machine, self.calls, breaks))
        self.trace.draws_as_eager = record_calls or draws_as_eager
        self.machine.recorder = self.calls
        self.modes_around: list[object] = []  # the function modes at the beginning, and at the end
        self.modes_left: list[object] = []
        self.world.guards.add(None, "global_state", None)

    def stops(self) -> list[int]:
        """Where the segment may end after this attempt was stopped by something unsupported: in front of that
        instruction, or of one of the calls that have led to it, innermost first; where the state cannot be rebuilt at
        any of them, ever earlier. Instruction 0 is no end.
        """
        progress = self.machine.progress
        if not progress.started:
            return []
        calls = {frame.tick for frame in self.machine.frames[1:-1]}
        stops = sorted({stop for stop in (progress.tick, *calls) if 0 < stop <= progress.tick}, reverse=True)
        earlier = stops[-1] // 2 if stops else 0
        while earlier > 0:
            stops.append(earlier)
            earlier //= 2
        return stops

    def run(self, stop: int | None, ending: Break | None) -> Captured:
        """Interpret to the end, or to the instruction number `stop`, where the segment ends for the reason `ending`."""
        machine = self.machine
        try:
            result, shape, changed = self._interpret(stop, ending)
        except Unsupported as error:
            error.where = error.where or machine.where()
            raise
        except (Exception, GeneratorExit, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and error is not machine.progress.escaping:
                raise  # it comes from the keyboard
            reason = f"the program raised {type(error).__name__}"
            with contextlib.suppress(Unsupported):  # a tensor's text is in it
                reason += f": {error}"
            raise Unsupported(reason, machine.where(), None, "user_exception") from error
        finally:
            self._close()
        return self._captured(result, shape, None if shape is None else ending, changed)

    def _interpret(self, stop: int | None, ending: Break | None) -> tuple[object, Shape | None, list[modes.Setting]]:
        """What the program gives, and the modes that it changes; where it stops instead, the shape there, and the
        values that are live."""
        machine = self.machine
        before = machine.modes.before = modes.settings()
        around_it = modes.functions_around()
        if self.calls is not None:
            self.calls.around = functools.partial(around, machine)
        result: object
        shape: Shape | None = None
        # modes are left in the reverse order
        with self.trace.recording(), self.calls or contextlib.nullcontext(), _native_state(machine):
            entered = modes.stacks()
            self.modes_around = enter_around(machine, around_it)
            self.start(machine)
            if machine.run(stop):
                result = machine.frames[0].stack.pop()
            else:
                if are_held(machine.frames[1:]):
                    raise _lives_on(machine)
                refuse_halfway(machine.frames[1:])
                shape, values = flatten(machine.frames[1:], ending is not None and ending.kind == "frame_access")
                result = tuple(values)
            changed = modes.own(modes.changed(before, modes.settings()), machine.modes.setters)
            if HELD_LOCKS.of(machine) or any(isinstance(manager, HOLDERS) for manager in machine.modes.entered):
                raise Unsupported("a native context is entered before a break and left after it", kind="context")
            if forward_ad._current_level >= 0:
                raise Unsupported("a dual level is entered before a break and left after it", kind="context")
            if modes.stacks() != entered:
                raise Unsupported("a mode is entered before a break and left after it", kind="context")
        return result, shape, changed

    def _close(self) -> None:
        """The interpretation is over: the trace asks the machine nothing any more, which is no part of what is
        captured."""
        shapes = self.trace.shapes
        shapes.needed = shapes.too_large = shapes.derive = shapes.named = None
        self.trace.tell(Listener())
        functions = self.machine.modes.functions
        self.modes_left, functions.active = functions.active, []
        open_to_data = self.trace.captures_numbers is None or self.trace.captures_sizes is None
        self.symbols.history.met_data = open_to_data and bool(self.trace.shapes.facts.names)
        self.trace.captures_numbers = bool(self.trace.captures_numbers)
        self.trace.captures_sizes = bool(self.trace.captures_sizes)
        if self.calls is not None:
            self.calls.around = nowhere

    def _captured(
        self, result: object, shape: Shape | None, ending: Break | None, changed: list[modes.Setting]
    ) -> Captured:
        """What was interpreted as data. Raises Unsupported where that cannot be."""
        machine, world = self.machine, self.world
        place = machine.where() if shape is not None else decode(self.code).frame_at(-1)
        world.end(place)
        world.inputs.unmask()
        rebuilder = self.rebuilder = Rebuilder(world, shape is None)
        recipe = rebuilder.recipe(result)
        written = rebuilder.effects()
        effects = generator_effects(rebuilder) + exception_effects(rebuilder)
        effects += hook_effects(rebuilder) + context_effects(machine, rebuilder)
        effects += _deferred(machine.later.calls, rebuilder)
        effects += [effect_of(setter, *rebuilder.constants(*args)) for setter, args in changed]
        effects += function_mode_effects(rebuilder, self.modes_around, self.modes_left)
        checks = _deferred(machine.later.checks, rebuilder)
        rebuilder.refuse_histories()
        refuse_seen(machine, rebuilder.memo)
        if ending is not None and ending.kind == "inner_gradient":
            refuse_results_in_between(rebuilder.outputs, place)
        world.aliases.refuse(rebuilder.outputs, results=rebuilder.ends)
        if any(tensor.grad_fn is not None for tensor in self.trace.renewed):
            raise Unsupported("an input whose data was assigned is written to", place, kind="tensor_write")
        effects = [*checks, *rebuilder.fills, *written, *rebuilder.positions, *effects]
        unfinished = machine.unfinished() + unfinished_variables(world)
        if any(id(generator) not in rebuilder.memo for generator in unfinished):
            raise _lives_on(machine)
        _guard_aliasing(world, self.trace)
        _guard_derivatives(world)
        _guard_identities(world)
        world.rely_on_hashes()
        _refuse_twins(world)
        for leaf in self.trace.frozen:  # the real ones require grad while the graph runs
            leaf.requires_grad_()
        return Captured(
            decode(self.code).qualname,
            self.trace,
            world.inputs.sources,
            rebuilder.outputs,
            world.guards.all,
            recipe,
            effects,
            sizes=self.symbols.done(),
            calls=self.calls,
            examples=world.inputs.tensors if self.calls or state.exporting else (),
            generators=tuple(recipe for recipe in world.drawn_from.values() if not recipe.value.is_drawn),
            draws=tuple(world.draws),
            flags=tuple(world.journal.flags),
            shape=shape,
            ending=ending,
            reliance=world.guards.reliance,
            under_functions=bool(self.modes_around),
            release=functools.partial(_forget, world, machine, rebuilder),
        )


def _deferred(calls: Iterable[tuple[object, list[object], dict[str, object]]], rebuilder: Rebuilder) -> list[Effect]:
    """The calls that were put off until the graph has run."""
    effects = []
    for function, args, kwargs in calls:
        parts = tuple(rebuilder.recipe(arg) for arg in args)
        named = tuple((key, rebuilder.recipe(value)) for key, value in kwargs.items())
        effects.append(Effect("call", None, None, Recipe("call", function, parts, named)))
    return effects


# ---- starts ----------------------------------------------------------------------------------------------------------

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _start_call(fn: object, args: tuple[object, ...], kwargs: dict[str, object], machine: Machine) -> None:
    world = machine.world
    values, keywords = _arguments(world, fn, args, kwargs)
    if type(fn) is types.MethodType:
        fn = types.MethodType(fn.__func__, world.wrap(fn.__self__, Source("object", None, None, fn.__self__)))
    machine.progress.started = True
    machine.call(machine.frames[0], fn, values, keywords)


def _start_frames(shape: Shape, given: tuple[Any, ...], machine: Machine) -> None:
    """The frames of an interrupted program. Cells and what is on the value stacks is there from the start, a variable
    is looked at when it is read."""
    world = machine.world
    world.lifetimes.resumed = True
    values = []
    facts = zip(given, shape.names(), is_local(shape), is_building(shape, given), strict=True)
    for value, name, local, building in facts:
        source = Source("local", None, name)
        wrap = world.lifetimes.later if local else world.containers.building if building else world.wrap
        values.append(wrap(value, source))
    machine.progress.started = True
    machine.frames += unflatten(shape, values)


def _arguments(
    world: World, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments as values; their sources are the parameters of `fn`'s signature."""
    bound = type(fn) is types.MethodType
    function = fn.__func__ if bound else fn
    code = function.__code__
    names = code.co_varnames[bound : code.co_argcount]
    variadic = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]
    forward = forward_of(args[0]) if function is call_target else None
    passed_on = () if forward is None else forward.__code__.co_varnames[1 : forward.__code__.co_argcount]
    wrap = functools.partial(_argument, world, code if forward is None else forward.__code__)
    values = []
    for i, arg in enumerate(args):
        name = None
        if i < len(names):
            source = Source("local", None, name := names[i])
        elif code.co_flags & inspect.CO_VARARGS:
            base = Source("local", None, variadic[0])
            if i == len(names):
                world.guards.add(base, "length", len(args) - len(names))
            source = Source("item", base, place := i - len(names))
            name = passed_on[place] if place < len(passed_on) else None
        else:
            raise TypeError(
                f"{function.__qualname__}() takes {len(names)} positional arguments but {len(args)} were given"
            )
        values.append(wrap(name, arg, source))
    if len(args) <= len(names) and code.co_flags & inspect.CO_VARARGS:
        world.guards.add(Source("local", None, variadic[0]), "length", 0)
    declared = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    extra = [key for key in kwargs if key not in declared]
    keywords = {}
    rest = None
    if code.co_flags & inspect.CO_VARKEYWORDS:
        rest = Source("local", None, variadic[bool(code.co_flags & inspect.CO_VARARGS)])
        world.guards.add(rest, "dict_keys", extra)
    for key, value in kwargs.items():
        source = Source("local", None, key) if key in declared else Source("dict_value", rest, key)
        keywords[key] = wrap(key if key in (*declared, *passed_on) else None, value, source)
    _guard_defaults(world, function, names[: len(args)], kwargs)
    return values, keywords


def _argument(world: World, code: types.CodeType, name: str | None, arg: Any, source: Source) -> Any:
    """The value of an argument; `name`: the parameter that it is for `code`, which gets it as it is. A container whose
    length changes is looked at where it is read: there is the break. So is a tensor of which nothing can be captured
    (sparse, quantised, nested)."""
    plain = name is not None and name not in code.co_cellvars and not code.co_flags & _SUSPENDS
    if plain and _has_other_lengths(world, arg, source, []):
        return world.lifetimes.later(arg, source)
    try:
        return world.wrap(arg, source)
    except Unsupported as error:
        if not plain or error.kind != "input" or not isinstance(arg, torch.Tensor):
            raise
    return Deferred(arg, source)


def _has_other_lengths(world: World, value: object, source: Source, around: list[object]) -> bool:
    """Whether the length of a container, or of one in it, changes from call to call. `around`: those that it is in."""
    if type(value) is range:
        return world.symbols.is_one_of_many(source, len(value))
    if (type(value) is not list and type(value) is not tuple) or any(value is outer for outer in around):
        return False
    parts = enumerate(value)
    return world.symbols.is_one_of_many(source, len(value)) or any(
        _has_other_lengths(world, part, Source("item", source, place), [*around, value]) for place, part in parts
    )


def _guard_defaults(
    world: World, function: types.FunctionType, given: tuple[str, ...], kwargs: dict[str, object]
) -> None:
    """Parameters that took their default are guarded too: another call may pass them."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    pairs = [*zip(names, defaults), *(function.__kwdefaults__ or {}).items()]
    for name, default in pairs:
        if name not in given and name not in kwargs:
            world.wrap(default, Source("local", None, name))


def _guard_aliasing(world: World, trace: Trace) -> None:
    """When an input is written to, no other input may share its memory."""
    tensors, sources = world.inputs.tensors, world.inputs.sources
    made = world.inputs.made
    mutated = [i for i in trace.mutated_inputs() if tensors[i].numel() and i not in made]
    if not mutated:
        return
    given = [i for i in range(len(sources)) if i not in made]
    storages: dict[int, list[int]] = {}
    for i in given:
        if tensors[i].numel():
            storages.setdefault(tensors[i].untyped_storage().data_ptr(), []).append(i)
    if any(len(storages[tensors[i].untyped_storage().data_ptr()]) > 1 for i in mutated):
        reason = "an input that is written to shares its memory with another one"
        raise world.guards.refusal("input", reason, "clone one of them")
    # Members of modules do not share memory with members, but an argument that is written to may be part of one.
    every = not all(_is_member(sources[i]) for i in mutated)
    written = set(mutated)
    loose = [i for i in given if every or i in written or not _is_member(sources[i])]
    among = set(loose)
    families = [[i for i in family if i in among] for family in storages.values()]
    groups = [loose]
    if any(len(family) > 1 for family in families):  # inputs that are only read share memory with each other
        groups = [[i, j] for i in mutated for j in loose if i != j]
    for group in groups:
        if len(group) > 1:
            world.guards.all.append(Guard(None, "not_aliased", tuple(sources[i] for i in group)))


def _guard_derivatives(world: World) -> None:
    """An input by which the program takes derivatives must be no other input: what is computed of that would count."""
    inputs, flagged = world.inputs, {source for source, _ in world.journal.flags}
    derived_by = inputs.derived_by | {i for i, source in enumerate(inputs.sources) if source in flagged}
    kinds = [(real.dtype, real.dim(), real.requires_grad) for real in inputs.tensors]
    for i, other in itertools.product(derived_by, range(len(kinds))):
        if i != other and kinds[i] == kinds[other] and not {i, other} & inputs.made:
            places = inputs.sources[i], inputs.sources[other]
            if not (all(map(_is_member, places)) or (other in derived_by and other < i)):
                world.guards.all.append(Guard(None, "distinct", places))


def _refuse_twins(world: World) -> None:
    """Raises Unsupported where it counts that two inputs are one tensor."""
    relied = [set(guard.expected) for guard in world.guards.all if guard.kind in ("distinct", "not_aliased")]
    if any(twins <= places for twins in map(set, world.inputs.twins) for places in relied):
        raise world.guards.refusal("input", "two inputs are one tensor, and the program sees it")


def _guard_identities(world: World) -> None:
    """An outside object that is written to must not be one of the others of its class that were read."""
    seen = world.identities.seen
    places = {id(change.place): change.place for change in world.journal.changes()}.values()
    changed = [(place.real, place.source) for place in places if isinstance(place, Snapshot)]
    changed += [(p.owner, p.source) for p in places if isinstance(p, Overlay) and id(p.owner) in seen]
    grown = [(g.real, g.source) for g in world.journal.grown.values()]
    read = [*((real, source) for real, _, source in seen.values()), *grown]
    for written, source in changed + grown:
        for real, other in read:
            if real is written or type(real) is not type(written) or type(real) in CONSTANT_TYPES:
                continue
            if other.key not in MODULE_INTERNALS and not (other.kind == "object" and source.kind == "object"):
                world.guards.all.append(Guard(None, "distinct", (other, source)))


def _is_member(source: Source) -> bool:
    return source.kind == "dict_value" and source.base is not None and source.base.key in ("_parameters", "_buffers")


@contextlib.contextmanager
def _native_state(machine: Machine) -> Iterator[None]:
    """Puts back what the program did to torch's global modes, wherever it stopped. What other threads do stays. Casts
    that autocast keeps until its region ends are given up: those made here are of tensors that stand for others."""
    before, entered, asks = modes.settings(), modes.stacks(), _torch._get_torch_function_state()
    try:
        yield
    finally:
        for manager in reversed(machine.modes.entered):
            manager.__exit__(None, None, None)
        while forward_ad._current_level >= 0:  # the program has not come to its end
            forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]
        _torch._set_torch_function_state(asks)
        modes.leave_to(entered)
        modes.apply(modes.own(modes.changed(modes.settings(), before), machine.modes.setters))
        torch.clear_autocast_cache()
