"""Random generators, torch's own and the user's: they are handed to operations; operations of the graph seed them, ask
for their states and set these. Those that the program makes are made before the graph runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.machine.calls import Intercept, intercept
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.machine.native_calls import recorded_as
from bolide.dynamo.program.captured import Recipe, Source
from bolide.dynamo.torch_calls.state import read_state
from bolide.dynamo.world.outside import attribute_source
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.dynamo.world.world import WRAPPERS, World
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor
from bolide.tracing.operations import generators

Args = list[Any]
Kwargs = dict[str, Any]


def _refused(vm: Machine, operation: str, reason: str) -> Unsupported:
    return Unsupported(
        reason, vm.where(), "do this outside the compiled function", operation=operation, kind="generator_state"
    )


# ---- generators as values --------------------------------------------------------------------------------------------


def _wrap(world: World, real: torch.Generator, source: Source) -> torch.Generator:
    if generators.is_default(real):
        world.guards.add(source, "is", real)
        return world.identities.mirror(real, source)  # type: ignore[no-any-return]
    world.guards.add(attribute_source(source, "device"), "equals", real.device)
    return world.identities.mirror(_stand_in(world, real.device, Recipe("source", source)), source)  # type: ignore[no-any-return]


def _stand_in(world: World, device: torch.device, recipe: Recipe) -> torch.Generator:
    stand_in, slot = generators.stand_in(world.trace, device)
    world.drawn_from[id(stand_in)] = slot, recipe
    return stand_in


def _recipe(rebuilder: Rebuilder, generator: torch.Generator) -> Recipe:
    if generators.is_default(generator):
        return Recipe("constant", generator)
    return rebuilder.world.drawn_from[id(generator)][1]  # type: ignore[no-any-return]


WRAPPERS[torch.Generator] = _wrap
RECIPES[torch.Generator] = _recipe


@intercept(torch.Generator)
def _make(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    device = torch.Generator(*args, **kwargs).device
    return _stand_in(vm.world, device, Recipe("call", torch.Generator, (Recipe("constant", device),)))


# ---- seeds and states ------------------------------------------------------------------------------------------------


_SEEDS: Slot[dict[int, Any]] = Slot(dict, undone=True)
"""What seeds are known: of a generator, by address, the number that it was seeded with, or None once it was given a
state."""


def _set_seed(vm: Machine, generator: torch.Generator, seed: Any, function: Callable[[int], Any]) -> None:
    if type(seed) is torch.SymInt:
        _SEEDS.of(vm)[generator._cdata] = None  # type: ignore[attr-defined]
    elif type(seed) is int and -(2**63) <= seed < 2**64:
        _SEEDS.of(vm)[generator._cdata] = seed % 2**64  # type: ignore[attr-defined]
    else:
        what = "data" if type(seed) is TracedTensor else f"a {type(seed).__name__} that is no number of 64 bits"
        raise _refused(vm, "manual_seed", f"a generator is seeded with {what}")
    record = functools.partial(generators.record_seed, vm.trace, function, seed)
    recorded_as(vm, generators.seeding(function), [seed], record)


def _set_state(vm: Machine, generator: torch.Generator, state: Any, function: Callable[..., Any]) -> None:
    if type(state) is not TracedTensor or state.dtype is not torch.uint8 or state.shape != (generators.STATE_SIZE,):
        raise _refused(vm, "set_state", "what a generator is given is no state of one")
    _SEEDS.of(vm)[generator._cdata] = None  # type: ignore[attr-defined]
    record = functools.partial(generators.record_new_state, vm.trace, function, state)
    recorded_as(vm, generators.restoring(function), [state], record)


def _get_state(vm: Machine, function: Callable[[], torch.Tensor]) -> Any:
    return recorded_as(
        vm, generators.asking(function), [], functools.partial(generators.record_state, vm.trace, function)
    )


def _initial_seed(vm: Machine, generator: torch.Generator) -> int:
    seeds = _SEEDS.of(vm)
    if generator._cdata in seeds:  # type: ignore[attr-defined]
        known = seeds[generator._cdata]  # type: ignore[attr-defined]
        if known is None:
            raise _refused(vm, "initial_seed", "a generator with a new state, or a seed that varies, is asked for it")
        return known  # type: ignore[no-any-return]
    if generators.is_default(generator):
        return read_state(vm, torch.default_generator.initial_seed, [])  # type: ignore[no-any-return]
    place = vm.world.identities.place_of(generator)
    if place is None:
        return generator.initial_seed()
    raise _refused(vm, "Generator.initial_seed", "a generator from outside is asked for its seed")


@intercept(torch.manual_seed)
def _manual_seed(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    (seed,) = [*args, *kwargs.values()]
    if type(seed) in (float, bool):
        seed = int(seed)
    _set_seed(vm, torch.default_generator, seed, torch.manual_seed)
    return torch.default_generator


@intercept(torch.get_rng_state)
def _get_rng_state(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return _get_state(vm, torch.default_generator.get_state)


@intercept(torch.set_rng_state)
def _set_rng_state(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    (state,) = [*args, *kwargs.values()]
    _set_state(vm, torch.default_generator, state, torch.default_generator.set_state)


@intercept(torch.initial_seed)
def _torch_initial_seed(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return _initial_seed(vm, torch.default_generator)


def _holder(vm: Machine, generator: torch.Generator) -> Any:
    """What has the methods of a generator when the graph runs."""
    return generator if generators.is_default(generator) else generators.slot_of(vm.trace, generator)


@intercept(torch.Generator.manual_seed)
def _generator_manual_seed(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    generator, seed = args
    _set_seed(vm, generator, seed, _holder(vm, generator).manual_seed)
    return generator


@intercept(torch.Generator.get_state)
def _generator_get_state(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return _get_state(vm, _holder(vm, *args).get_state)


@intercept(torch.Generator.set_state)
def _generator_set_state(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    generator, state = args
    _set_state(vm, generator, state, _holder(vm, generator).set_state)
    return generator


@intercept(torch.Generator.initial_seed)
def _generator_initial_seed(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return _initial_seed(vm, *args)


# ---- what remains ----------------------------------------------------------------------------------------------------


def _refusal(name: str, reason: str) -> Intercept:
    def refuse(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
        raise _refused(vm, name, reason)

    return refuse


intercept(torch.seed, torch.Generator.seed)(_refusal("seed", "a seed that nobody chose is a number of the moment"))
for _name in ("clone_state", "get_offset", "set_offset", "graphsafe_get_state", "graphsafe_set_state"):
    _reason = "a generator is copied, or moved within its numbers"
    intercept(getattr(torch.Generator, _name))(_refusal(f"Generator.{_name}", _reason))
