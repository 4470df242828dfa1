"""`capture`: a function and its arguments in, a `Captured` out."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch

from bolide.dynamo import builtins as _builtins
from bolide.dynamo import opcodes as _opcodes
from bolide.dynamo import opcodes_control as _opcodes_control
from bolide.dynamo import torch_autograd as _torch_autograd
from bolide.dynamo.calls import call
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.program import Captured, Effect, Guard, Recipe, Source
from bolide.dynamo.values.outside import CONSTANT_TYPES, MODULE_INTERNALS, World
from bolide.dynamo.values.rebuild import Rebuilder
from bolide.support.errors import Unsupported, UserFrame
from bolide.tracing import Trace

REGISTRATIONS = (_builtins, _opcodes, _opcodes_control, _torch_autograd)  # importing these modules registers their handlers


def capture(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Interpret one call of `fn` (a function or bound method) on the given real arguments, without changing anything
    outside.

    Raises Unsupported where the program cannot be captured; kind "user_exception" (with `__cause__`) when the program
    itself raised."""
    function: Any = fn.__func__ if type(fn) is types.MethodType else fn
    trace = Trace()
    world = World(trace)
    machine = Machine(world, trace, call)
    world.own_functions = machine.own_functions
    world.guard(None, "global_state", None)
    grad_mode = torch.is_grad_enabled()
    try:
        with trace.recording(), _native_state(machine):  # modes are left in the reverse order
            values, keywords = _arguments(world, fn, args, kwargs)
            if type(fn) is types.MethodType:
                fn = types.MethodType(fn.__func__, world.wrap(fn.__self__, Source("object", None, None, fn.__self__)))
            result = machine.evaluate(fn, values, keywords)
            grad_after = torch.is_grad_enabled()
    except Unsupported as error:
        error.where = error.where or machine.where()
        raise
    except (Exception, GeneratorExit, SystemExit) as error:
        raise Unsupported(
            f"the program raised {type(error).__name__}: {error}", machine.where(), None, "user_exception"
        ) from error
    world.where = functools.partial(_definition, function.__code__)
    rebuilder = Rebuilder(world)
    recipe = rebuilder.recipe(result)
    effects = rebuilder.effects()
    for function, call_args, call_kwargs in machine.deferred:
        parts = tuple(rebuilder.recipe(arg) for arg in call_args)
        named = tuple((key, rebuilder.recipe(value)) for key, value in call_kwargs.items())
        effects.append(Effect("call", None, None, Recipe("call", function, parts, named)))
    if grad_after != grad_mode:
        effects.append(
            Effect("call", None, None, Recipe("call", torch._C._set_grad_enabled, (Recipe("constant", grad_after),)))
        )
    _guard_aliasing(world, trace)
    _guard_identities(world)
    return Captured(function.__qualname__, trace, world.inputs, rebuilder.outputs, world.guards, recipe, effects)


def _definition(code: types.CodeType) -> UserFrame:
    return UserFrame(code.co_filename, code.co_firstlineno, code.co_qualname)


def _arguments(
    world: World, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments as values; their sources are the parameters of `fn`'s signature."""
    function = fn
    if type(fn) is types.MethodType:
        function = fn.__func__
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    if type(fn) is types.MethodType:
        names = names[1:]
    variadic = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]
    values = []
    for i, arg in enumerate(args):
        if i < len(names):
            source = Source("local", None, names[i])
        elif code.co_flags & inspect.CO_VARARGS:
            base = Source("local", None, variadic[0])
            if i == len(names):
                world.guard(base, "length", len(args) - len(names))
            source = Source("item", base, i - len(names))
        else:
            raise TypeError(
                f"{function.__qualname__}() takes {len(names)} positional arguments but {len(args)} were given"
            )
        values.append(world.wrap(arg, source))
    if len(args) <= len(names) and code.co_flags & inspect.CO_VARARGS:
        world.guard(Source("local", None, variadic[0]), "length", 0)
    declared = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    extra = [key for key in kwargs if key not in declared]
    keywords = {}
    rest = Source("local", None, variadic[-1]) if code.co_flags & inspect.CO_VARKEYWORDS else None
    if rest is not None:
        world.guard(rest, "dict_keys", extra)
    for key, value in kwargs.items():
        source = Source("local", None, key) if key in declared else Source("dict_value", rest, key)
        keywords[key] = world.wrap(value, source)
    _guard_defaults(world, function, names[: len(args)], kwargs)
    return values, keywords


def _guard_defaults(world: World, function: types.FunctionType, given: tuple[str, ...], kwargs: dict[str, Any]) -> None:
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
    mutated = trace.mutated_inputs()
    if not mutated:
        return
    storages: dict[int, list[int]] = {}
    for i, tensor in enumerate(world.input_tensors):
        if tensor.numel():
            storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(i)
    for i in mutated:
        shared = (
            storages.get(world.input_tensors[i].untyped_storage().data_ptr(), [])
            if world.input_tensors[i].numel()
            else []
        )
        if len(shared) > 1:
            raise Unsupported(
                "an input that is written to shares its memory with another one",
                world.where(),
                "clone one of them",
                "input",
            )
    loose = [i for i, source in enumerate(world.inputs) if i in mutated or not _is_member(source)]
    if len(loose) > 1:
        world.guards.append(Guard(None, "not_aliased", tuple(world.inputs[i] for i in loose)))


def _guard_identities(world: World) -> None:
    """An outside object that is written to must not be one of the others of its class that were read."""
    changed = {id(s.real): s.source for s in world.snapshots.values() if s.changed()}
    for overlay in world.overlays:
        if overlay.owner is not None and overlay.changes():
            changed[id(overlay.owner)] = overlay.source
    for key, source in changed.items():
        for real, _, other in world.seen.values():
            written = world.seen.get(key)
            if (
                written is None
                or real is written[0]
                or type(real) is not type(written[0])
                or type(real) in CONSTANT_TYPES
            ):
                continue
            if other.key not in MODULE_INTERNALS and not (other.kind == "object" and source.kind == "object"):
                world.guards.append(Guard(other, "distinct", source))


def _is_member(source: Source) -> bool:
    return source.kind == "dict_value" and source.base is not None and source.base.key in ("_parameters", "_buffers")


@contextlib.contextmanager
def _native_state(machine: Machine) -> Iterator[None]:
    """Puts torch's global modes back, whatever the program did and wherever it stopped."""
    grad = torch.is_grad_enabled()
    try:
        yield
    finally:
        for manager in reversed(machine.entered):
            manager.__exit__(None, None, None)
        torch._C._set_grad_enabled(grad)
