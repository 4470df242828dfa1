"""Random generators, torch's own and the user's: they are handed to operations; operations of the graph seed them, ask
for their states and set these. Those that the program makes are made before the graph runs."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo.library.handlers import Args, Kwargs, answers, refuse
from bolide.dynamo.machine.calls import intercept
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
from bolide.tracing.rng import token_of

_REMEDY = "do this outside the compiled function"


def _refused(vm: Machine, operation: str, reason: str) -> Unsupported:
    return vm.unsupported(reason, "generator_state", _REMEDY, operation)


# ---- generators as values --------------------------------------------------------------------------------------------


def _wrap(world: World, real: torch.Generator, source: Source) -> torch.Generator:
    if generators.is_default(real):
        world.guards.add(source, "is", real)
        return world.identities.mirror(real, source)  # type: ignore[no-any-return]
    world.guards.add(source, "type", type(real))
    world.guards.add(attribute_source(source, "device"), "equals", real.device)
    return world.identities.mirror(_stand_in(world, real, source), source)  # type: ignore[no-any-return]


def _stand_in(world: World, real: torch.Generator, source: Source) -> torch.Generator:
    stand_in = generators.stand_in(world.trace, real.device, lambda: world.inputs.make(source, token_of, real))
    world.drawn_from[id(stand_in)] = Recipe("source", source)
    return stand_in


def _recipe(rebuilder: Rebuilder, generator: torch.Generator) -> Recipe:
    if generators.is_default(generator):
        return Recipe("constant", generator)
    return rebuilder.world.drawn_from[id(generator)]


WRAPPERS[torch.Generator] = _wrap
RECIPES[torch.Generator] = _recipe


@intercept(torch.Generator)
def _make(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    real = torch.Generator(*args, **kwargs)
    source = Source("drawn", None, len(vm.world.draws))
    vm.world.draws.append(Recipe("call", torch.Generator, (Recipe("constant", real.device),)))
    return _stand_in(vm.world, real, source)


# ---- seeds and states ------------------------------------------------------------------------------------------------


_SEEDS: Slot[dict[int, int | None]] = Slot(dict, undone=True)
"""What seeds are known: of a generator, by address, the number that it was seeded with, or None once it was given a
state."""


@answers(torch.Generator.manual_seed)
def _manual_seed(vm: Machine, generator: Any, seed: object) -> object:
    _note_seed(vm, generator, seed)
    operands = seed, generators.known_token(vm.trace, generator)
    recorded_as(vm, generators.seed_generator, [*operands], lambda: generators.record_seed(vm.trace, *operands))
    return generator


def _note_seed(vm: Machine, generator: Any, seed: object) -> None:
    if type(seed) is torch.SymInt:
        _SEEDS.of(vm)[generator._cdata] = None
    elif type(seed) is int and -(2**63) <= seed < 2**64:
        _SEEDS.of(vm)[generator._cdata] = seed % 2**64
    else:
        what = "data" if type(seed) is TracedTensor else f"a {type(seed).__name__} that is no number of 64 bits"
        raise _refused(vm, "manual_seed", f"a generator is seeded with {what}")


@answers(torch.manual_seed)
def _manual_seed_of_default(vm: Machine, seed: Any) -> object:
    given = int(seed) if type(seed) in (float, bool) else seed
    _note_seed(vm, torch.default_generator, given)
    recorded_as(vm, generators.seed_all, [given], lambda: generators.record_seed(vm.trace, given))
    return torch.default_generator


@answers(torch.Generator.get_state)
def _get_state(vm: Machine, generator: torch.Generator) -> object:
    operands = generators.known_token(vm.trace, generator), generator.get_state().numel()
    return recorded_as(
        vm, generators.state_of_generator, [*operands], lambda: generators.record_state(vm.trace, *operands)
    )


@answers(torch.Generator.set_state)
def _set_state(vm: Machine, generator: Any, new_state: torch.Tensor) -> object:
    known = type(new_state) is TracedTensor and new_state.dtype is torch.uint8
    if not known or new_state.shape != generator.get_state().shape:
        raise _refused(vm, "set_state", "what a generator is given is no state of one")
    _SEEDS.of(vm)[generator._cdata] = None
    operands = new_state, generators.known_token(vm.trace, generator)
    recorded_as(vm, generators.restore_generator, [*operands], lambda: generators.record_new_state(vm.trace, *operands))
    return generator


@answers(torch.Generator.initial_seed)
def _initial_seed(vm: Machine, generator: Any) -> object:
    seeds = _SEEDS.of(vm)
    if generator._cdata in seeds:
        known = seeds[generator._cdata]
        if known is None:
            raise _refused(vm, "initial_seed", "a generator with a new state, or a seed that varies, is asked for it")
        return known
    if generators.is_default(generator):
        return read_state(vm, torch.default_generator.initial_seed, [])
    if vm.world.identities.place_of(generator) is None:
        return generator.initial_seed()
    raise _refused(vm, "Generator.initial_seed", "a generator from outside is asked for its seed")


@answers(torch.set_rng_state)
def _set_state_of_default(vm: Machine, new_state: torch.Tensor) -> None:
    _set_state(vm, torch.default_generator, new_state)


answers(torch.get_rng_state)(lambda vm: _get_state(vm, torch.default_generator))
answers(torch.initial_seed)(lambda vm: _initial_seed(vm, torch.default_generator))

# ---- what remains ----------------------------------------------------------------------------------------------------

_reason = "a seed that nobody chose is a number of the moment"
refuse(torch.seed, torch.Generator.seed, reason=_reason, kind="generator_state", remedy=_REMEDY, operation="seed")
_reason = "a generator is copied, or moved within its numbers"
for _name in ("clone_state", "get_offset", "set_offset", "graphsafe_get_state", "graphsafe_set_state"):
    _method, _operation = getattr(torch.Generator, _name), f"Generator.{_name}"
    refuse(_method, reason=_reason, kind="generator_state", remedy=_REMEDY, operation=_operation)
