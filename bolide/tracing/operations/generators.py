"""Random generators. While recording, one of the user's is known by a stand-in, a generator that nobody draws from; in
the graph an operation that draws from it is ``bolide::drawn``, which finds the real one in a `GeneratorSlot`. Seeds and
states are asked and set by operations of their own, in their places among the draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from bolide.support.errors import Unsupported
from bolide.symbolic import Size
from bolide.tracing.graph import enter, lookup, operator
from bolide.tracing.meta import TensorMeta
from bolide.tracing.operations.writes import call_on_copies, drawn
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rng import GeneratorSlot
from bolide.tracing.rules.registry import rule


def stand_in(trace: Recorder, device: torch.device) -> tuple[torch.Generator, GeneratorSlot]:
    """A stand-in for a generator of the user's, and where the graph will find the real one."""
    entry = torch.Generator(device), GeneratorSlot()
    trace.generators[entry[0]._cdata] = entry  # type: ignore[attr-defined]
    return entry


def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator among an operation's arguments (few operations take one that has no name)."""
    given = kwargs.get("generator") if kwargs else None
    if given is None and args and isinstance(args[-1], torch.Generator):
        given = args[-1]
    return given


def is_default(generator: torch.Generator) -> bool:
    """Whether it is torch's own. (Python objects of generators come and go.)"""
    return bool(generator._cdata == torch.default_generator._cdata)  # type: ignore[attr-defined]


def draw(
    trace: Recorder, generator: torch.Generator, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record an operation that draws from `generator`."""
    replacement = None if is_default(generator) else slot_of(trace, generator)
    args = tuple(replacement if arg is generator else arg for arg in args)
    kwargs = {name: replacement if arg is generator else arg for name, arg in kwargs.items()}
    if replacement is None:
        return trace.dispatch(func, args, kwargs)
    return call_on_copies(trace, func, args, kwargs, drawn)


def slot_of(trace: Recorder, generator: torch.Generator) -> GeneratorSlot:
    """The slot of the generator that a stand-in stands for. Raises Unsupported for any other generator."""
    known = trace.generators.get(generator._cdata)  # type: ignore[attr-defined]
    if known is None:
        reason = "a random number generator that is not known"
        raise Unsupported(reason, trace.where, "make it outside the compiled function", kind="generator_state")
    return known[1]


# ---- states ----------------------------------------------------------------------------------------------------------

STATE_SIZE = torch.Generator().get_state().numel()
_SEEDS = 1 << 64


def seeding(seed: Callable[[int], object]) -> Callable[[Size], None]:
    """`seed`, which seeds a generator, as a function that stands in graphs of calls."""
    table = enter(seed)

    def manual_seed(value: Size) -> None:
        set_seed(_signed(value), table)

    return manual_seed


def asking(ask: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same for `ask`, which asks a generator for its state."""
    table = enter(ask)

    def state_of_generator() -> Tensor:
        return get_state(table)  # type: ignore[no-any-return]

    return state_of_generator


def restoring(put: Callable[[Tensor], object]) -> Callable[[Tensor], None]:
    """The same for `put`, which gives a generator a state."""
    table = enter(put)

    def restore_generator(state: Tensor) -> None:
        set_state(state, table)

    return restore_generator


def _signed(seed: Size) -> Size:
    """The number of 64 bits with a sign that seeds as `seed` does."""
    return seed - _SEEDS if type(seed) is int and seed >= _SEEDS // 2 else seed


def record_seed(trace: Recorder, seed: Callable[[int], object], value: Size) -> None:
    """Record that a generator is seeded. `value`: a number of 64 bits, with a sign or without, or a symbolic one."""
    _state_changes(trace, set_seed, trace.unwrap(_signed(value)), enter(seed))


def record_state(trace: Recorder, ask: Callable[[], Tensor]) -> Any:
    """Record that a generator is asked for its state."""
    return trace.wrap(_state_changes(trace, get_state, enter(ask)))


def record_new_state(trace: Recorder, put: Callable[[Tensor], object], state: Tensor) -> None:
    """Record that a generator gets a state."""
    _state_changes(trace, set_state, trace.unwrap(state), enter(put))


def _state_changes(trace: Recorder, func: OpOverload, *args: object) -> Any:
    """What is drawn later must depend on the state of now, what was drawn earlier must not."""
    trace.forget_seed()
    return trace.call(func, *args)


def _tell(value: object, table: int) -> None:
    lookup(table)(value)


_SEEDED = torch.Tag.nondeterministic_seeded
set_seed = operator("set_seed(SymInt seed, int table) -> ()", _tell, _SEEDED)
set_state = operator("set_state(Tensor state, int table) -> ()", _tell, _SEEDED)
get_state = operator("get_state(int table) -> Tensor", lambda table: lookup(table)(), _SEEDED)
STATES = frozenset({set_seed, get_state, set_state})
"""The operations on generators' states."""


@rule("bolide::set_seed", "bolide::set_state")
def _no_result(value: object, table: int) -> None:
    return None


@rule("bolide::get_state")
def _state_meta(table: int) -> TensorMeta:
    return TensorMeta((STATE_SIZE,), (1,), 0, torch.uint8, torch.device("cpu"))
