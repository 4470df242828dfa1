"""Values that the interpreter has its own form of, when they live across a break: generators, exceptions, `super`.

A generator is a native generator object around a reified body.

At run time the program's generator is a real one, of this module's `_body`, which runs the reified frame for real when
native code resumes it. Captured code sees the frame itself, resumes it without leaving the graph, and puts the state
that it reached back as an effect.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from collections.abc import Generator as NativeGenerator
from typing import Any

from bolide.dynamo.breaks.concrete import NATIVE, REIFIED, Concrete
from bolide.dynamo.breaks.segments import Shape, flatten, is_local, unflatten
from bolide.dynamo.bytecode.instructions import decode
from bolide.dynamo.machine.attributes import Super
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.originals import begun_of, original_of, values_of
from bolide.dynamo.program.captured import Effect, Recipe, Source
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.world.frames import (
    Frame,
    Generator,
    dropped_generator,
    entries,
    entries_of,
    held,
    held_by,
    restored_trace,
)
from bolide.dynamo.world.parts import Seen
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.dynamo.world.texts import TracedText
from bolide.dynamo.world.world import WRAPPERS, World
from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting

# ---- at run time -----------------------------------------------------------------------------------------------------


def _body(record: Generator) -> NativeGenerator[Any, Any, Any]:
    """What a native generator runs; `record` holds the reified frame."""
    result = None
    while True:
        value, error = None, None
        try:
            value = yield result
        except BaseException as thrown:
            error = thrown
        if record.done and error is None:
            return None
        try:
            result = _resume(record, value, error)
        finally:
            del error  # its traceback leads to this frame: a cycle would keep alive what resumed this
        if record.done:
            return result


REIFIED.add(_body.__code__)


def _resume(record: Generator, value: Any, error: BaseException | None) -> Any:
    """Run the frame until it yields or returns; what it gives."""
    running = Concrete([])
    machine = running.machine
    base = machine.frames[0]
    base.back = sys._getframe(1).f_back  # what resumes the generator
    try:
        if error is None:
            machine.resume(record, value, "send", 0)
        else:
            inner = record.frame.delegate() if record.started and not record.done else None
            if inner is not None and hasattr(inner, "throw") and not isinstance(error, GeneratorExit):
                try:
                    return inner.throw(error)
                except StopIteration as stop:
                    record.frame.end_delegation(stop.value)
                    error = None
                except BaseException as failure:
                    error = failure
            _raise_in(machine, record, error)
        while not running.done:
            running.step()
        return running.result
    finally:
        base.back = None  # up to 3.10 a frame that has ended keeps its variables
        del error  # as in `_body`


def _raise_in(machine: Machine, record: Generator, error: BaseException | None) -> None:
    """Continue a suspended frame, by raising `error` unless that is None."""
    try:
        if record.done:
            assert error is not None
            raise error
        inner = record.frame.delegate() if record.started and isinstance(error, GeneratorExit) else None
        machine.proceed(record, "send", 0)
        if inner is not None and hasattr(inner, "close"):
            try:
                inner.close()
            except BaseException as failure:
                error = failure
        if error is not None:
            machine.unwind(error, "thrown")
    finally:
        del error  # as in `_body`


def is_reified(value: Any) -> bool:
    """Whether a native generator has a reified body."""
    return type(value) is types.GeneratorType and value.gi_code is _body.__code__


def record_of(value: Any) -> Generator:
    """The state of a generator with a reified body that has not come to its end."""
    record: Generator = value.gi_frame.f_locals["record"]
    return record


def make_generator(name: str) -> Any:
    """A generator whose state is still to be set."""
    generator: Any = _body(Generator(Frame(_NOTHING, {}, []), name))
    generator.__name__ = name.rpartition(".")[2]
    generator.__qualname__ = name
    next(generator)  # to where it waits to be resumed
    return generator


def set_state(generator: Any, shape: Shape | None, started: bool, values: tuple[Any, ...]) -> Any:
    """Give a generator the state that captured code has left it in; without a shape it is exhausted."""
    record = record_of(generator)
    record.running, record.native = False, None  # a record that refers to its generator would keep it alive
    record.started = started
    if shape is None:
        record.finish()
    else:
        (record.frame,) = unflatten(shape, values)
    return generator


def suspended(generator: Any) -> tuple[Any, ...]:
    """Where a suspended generator stands (None: at its end), whether it has started, and the values that live in it."""
    record = record_of(generator)
    shape, values = (None, []) if record.done else flatten([record.frame])
    return (shape, record.started, *values)


# ---- while capturing -------------------------------------------------------------------------------------------------


@fleeting
class Mirrored:
    """A generator of the outside world and the one that stands for it: the program holds the only references to that,
    until it has been dropped. `before` is where it stood.
    """

    __slots__ = ("before", "dropped", "handle", "real", "source")

    def __init__(self, world: World, real: Any, source: Source, generator: Generator) -> None:
        self.real, self.source, self.handle = real, source, weakref.ref(generator)
        self.before: tuple[Any, ...] | None = None
        self.dropped: Generator | None = None
        generator.source, generator.abandon = source, functools.partial(self._drop, world)

    def _drop(self, world: World, generator: Generator) -> None:
        """Something of the outside world may hold the real one; where that decides what is run, it is a break. What the
        outermost frame holds at its end goes with the entry's variables."""
        self.dropped = generator
        if generator.cleans_up() and not world.program.has_ended():
            world.program.lose(dropped_generator(world.guards.where()))

    def forget(self) -> None:
        """The capture is over."""
        self.stand_in.abandon = None

    @property
    def stand_in(self) -> Generator:
        """What stands for the real one."""
        generator = self.dropped or self.handle()
        assert generator is not None
        return generator


def unfinished_variables(world: World) -> list[Generator]:
    """The generators from before a break that were found in variables, still live, and would do something if they were
    dropped.
    """
    mirrored = world.lifetimes.generators.values()
    generators = [each.handle() for each in mirrored if each.source.base is None and each.dropped is None]
    return [generator for generator in generators if generator is not None and generator.cleans_up()]


def wrap_generator(world: World, real: Any, source: Source) -> Any:
    """The generator that stands for a native one. A running one gets its frame from the frame stack it is on."""
    mirror = world.lifetimes.generators.get(id(real))
    if mirror is not None:
        if mirror.source is not source:
            world.guards.add(source, "same", mirror.source)
        return mirror.stand_in
    world.guards.add(source, "type", types.GeneratorType)
    if not is_reified(real) or real.gi_frame is None:
        return _wrap_foreign(world, real, source)
    record = record_of(real)
    generator = Generator(Frame(_NOTHING, {}, []), record.name, record.kind)
    mirrored = world.lifetimes.generators[id(real)] = Mirrored(world, real, source, generator)
    if record.running:
        generator.started = generator.running = True
        return generator
    shape, started, *reals = suspended(real)
    state = Source("apply", source, (), suspended)
    for index, known in enumerate((shape, started)):
        world.guards.add(Source("item", state, index), "equals", known)
    generator.started, generator.done = started, shape is None
    if shape is not None:
        values = []
        for index, (value, local) in enumerate(zip(reals, is_local(shape), strict=True), 2):
            where = Source("item", state, index)
            values.append(world.lifetimes.later(value, where) if local else world.wrap(value, where))
        (generator.frame,) = unflatten(shape, values)
    mirrored.before = _position(generator.frame)
    return generator


def _wrap_foreign(world: World, real: Any, source: Source) -> Generator:
    """What stands for a generator whose body CPython runs: the program can see that it is dropped."""
    state = inspect.getgeneratorstate(real)
    world.guards.add(Source("apply", source, (), inspect.getgeneratorstate), "equals", state)
    generator = Generator(Frame(decode(real.gi_code), {}, []), real.__qualname__)
    generator.foreign, generator.done = True, state == inspect.GEN_CLOSED
    generator.running, generator.started = state == inspect.GEN_RUNNING, state != inspect.GEN_CREATED
    mirrored = world.lifetimes.generators[id(real)] = Mirrored(world, real, source, generator)
    mirrored.before = _position(generator.frame)
    return generator


def _position(frame: Frame) -> tuple[Any, ...]:
    return (frame.pc, *map(id, frame.locals), *map(id, frame.stack))


def generator_effects(rebuilder: Rebuilder) -> list[Effect]:
    """What puts the generators of the outside world that the program has resumed into their new state."""
    effects = []
    for mirrored in rebuilder.world.lifetimes.generators.values():
        generator = mirrored.stand_in
        if generator.running or mirrored.before == _position(generator.frame):
            continue
        parts = (Recipe("source", mirrored.source), *_state(rebuilder, generator))
        effects.append(Effect("call", None, None, Recipe("call", set_state, parts)))
    return effects


def _state(rebuilder: Rebuilder, value: Generator) -> tuple[Recipe, ...]:
    shape, values = (None, []) if value.done else flatten([value.frame])
    parts = tuple(rebuilder.recipe(item) for item in values)
    return (*rebuilder.constants(shape, value.started), Recipe("tuple", None, parts))


def _variable(rebuilder: Rebuilder, value: object, made: Callable[..., object] | None) -> Recipe:
    """A variable of what stands for an iterator in C, and what is made of it."""
    recipe = rebuilder.whole_list(value) if type(value) is list else rebuilder.recipe(value)
    return recipe if made is None else Recipe("call", made, (recipe,))


def _recipe(rebuilder: Rebuilder, value: Generator) -> Recipe:
    """A generator that the program has made, or that was there before."""
    original = original_of(value) if rebuilder.ends and value.kind == "generator" else None
    if original is not None and not value.running:
        if value.done:
            make, *parts = original.empty
            return Recipe("call", make, rebuilder.constants(*parts))
        parts = [_variable(rebuilder, *item) for item in zip(values_of(value), begun_of(original))]
        return Recipe("call", original.make, tuple(parts))
    if value.source is not None:
        return Recipe("source", value.source)
    if value.kind != "generator":
        raise Unsupported("a coroutine lives across a break", rebuilder.world.guards.where(), kind="asynchronous")
    recipe = Recipe("call", make_generator, rebuilder.constants(value.name))
    if value.running:
        return recipe  # `unflatten` joins it with its frame
    return Recipe("call", set_state, (recipe, *_state(rebuilder, value)))


# ---- exceptions ------------------------------------------------------------------------------------------------------


def _refuse_held(world: World, values: Iterable[Any]) -> None:
    """Raises Unsupported where code of the program may run when a native generator among `values` is dropped."""
    held_back = [value for value in values if type(value) is types.GeneratorType and value.gi_frame is not None]
    if any(not is_reified(value) or record_of(value).cleans_up() for value in held_back):
        reason = "the traceback of an exception holds a generator that has not come to its end"
        raise Unsupported(reason, world.guards.where(), "close the generator", kind="iterator")


def wrap_traceback(world: World, real: types.TracebackType, source: Source) -> Any:
    """A traceback that says the same."""
    _refuse_held(world, held_by(real))
    said = entries(real)
    world.guards.add(Source("apply", source, (), entries), "equals", said)
    return world.identities.mirror(restored_trace(said), source)


_GROUP = getattr(builtins, "BaseExceptionGroup", None)  # from 3.11 on
_LINKS = ("__cause__", "__context__", "__suppress_context__")


def wrap_exception(world: World, real: BaseException, source: Source) -> BaseException:
    """An exception of the outside world as one that the program can raise and catch; its changes become effects."""
    cls = type(real)
    _refuse_held(world, held(real))
    args = world.wrap(real.args, Source("attr", source, "args"))
    copy = cls.__new__(cls, *[str(arg) if type(arg) is TracedText else arg for arg in args])
    copy.args = args
    world.identities.mirror(copy, source)
    world.identities.seen[id(real)] = Seen(real, copy, source)  # an exception may be its own context
    for base in cls.__mro__:
        for name, member in vars(base).items() if base is not _GROUP else ():  # a group's are its arguments
            if type(member) is types.MemberDescriptorType and name not in _LINKS and hasattr(real, name):
                value = world.wrap(getattr(real, name), Source("attr", source, name))
                if getattr(copy, name, MISSING) is not value:  # an OSError says None where it was set to None
                    setattr(copy, name, value)
    namespace = Source("attr", source, "__dict__")
    world.guards.add(namespace, "dict_keys", list(vars(real)))
    for name, value in vars(real).items():
        vars(copy)[name] = world.wrap(value, Source("dict_value", namespace, name))
    world.guards.add(Source("apply", source, (), entries_of), "equals", entries_of(real))
    copy.__traceback__ = restored_trace(entries_of(real))
    for name in _LINKS:
        setattr(copy, name, world.wrap(getattr(real, name), Source("attr", source, name)))
    world.journal.exceptions.append((copy, _exception_state(copy)))
    return copy


def _exception_state(value: BaseException) -> dict[str, Any]:
    state = {**vars(value), "args": value.args, "__traceback__": value.__traceback__}
    return {**state, **{name: getattr(value, name) for name in _LINKS}}


def exception_effects(rebuilder: Rebuilder) -> list[Effect]:
    """What the program has changed of exceptions of the outside world."""
    effects = []
    for copy, before in rebuilder.world.journal.exceptions:
        target = rebuilder.recipe(copy)
        rebuilder.refuse_held(copy)
        for name, value in _exception_state(copy).items():
            if value is not before.get(name, MISSING):
                effects.append(Effect("setattr", target, name, rebuilder.recipe(value)))
    return effects


# ---- `super`, of which the interpreter has its own; generator functions that are started in eager --------------------


def _wrap_super(world: World, real: Any, source: Source) -> Any:
    cls = world.wrap(real.__thisclass__, Source("attr", source, "__thisclass__"))
    return world.identities.mirror(Super(cls, world.wrap(real.__self__, Source("attr", source, "__self__"))), source)


def _return_generator(vm: Machine, frame: Frame, arg: Any) -> bool:
    generator = make_generator(frame.code.qualname)
    record_of(generator).frame = frame
    vm.frames.pop()
    vm.give(frame, generator)
    return True


_NOTHING: Any = Concrete([]).machine.frames[0].code
WRAPPERS[types.GeneratorType] = wrap_generator
RECIPES[Generator] = _recipe
WRAPPERS[types.TracebackType] = wrap_traceback
WRAPPERS[BaseException] = wrap_exception
WRAPPERS[super] = _wrap_super
RECIPES[Super] = lambda rebuilder, value: Recipe("call", super, tuple(map(rebuilder.recipe, (value.cls, value.owner))))
NATIVE["RETURN_GENERATOR"] = _return_generator
