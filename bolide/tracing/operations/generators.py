"""Random generators. While recording, one of the user's is known by a stand-in, a generator that nobody draws from. In
the graph it is a token (`rng.token_of`), an input by which operations find the real one: ``bolide::drawn``, which draws
from it, and those that ask for seeds and states and set them, in their places among the draws."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from bolide.support.errors import Unsupported
from bolide.symbolic import Size
from bolide.tracing.graph import operator
from bolide.tracing.meta import TensorMeta
from bolide.tracing.operations.writes import call_on_copies
from bolide.tracing.recording.recorder import Recorder
from bolide.tracing.rng import held_by
from bolide.tracing.rules.registry import rule
from bolide.tracing.tensor import TracedTensor


def stand_in(trace: Recorder, device: torch.device, token: Callable[[], TracedTensor]) -> torch.Generator:
    """A stand-in for a generator of the user's, whose token is asked for when it is first needed."""
    made = torch.Generator(device)
    trace.generators[made._cdata] = made, functools.cache(token)  # type: ignore[attr-defined]
    return made


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
    token = known_token(trace, generator)
    args = tuple(token if arg is generator else arg for arg in args)
    kwargs = {name: token if arg is generator else arg for name, arg in kwargs.items()}
    return trace.dispatch(func, args, kwargs) if token is None else call_on_copies(trace, func, args, kwargs, token)


def known_token(trace: Recorder, generator: torch.Generator) -> Tensor | None:
    """The token of the generator that a stand-in stands for; None for torch's own. Raises Unsupported for any other."""
    if is_default(generator):
        return None
    known = trace.generators.get(generator._cdata)  # type: ignore[attr-defined]
    if known is None:
        reason = "a random number generator that is not known"
        raise Unsupported(reason, trace.where, "make it outside the compiled function", kind="generator_state")
    token: Tensor = trace.adopt(known[1]())
    return token


def generator_of(token: Tensor, device: str) -> torch.Generator:
    """The generator behind a token, which stands in graphs of calls: a stand-in where these are recorded again."""
    if not isinstance(token, TracedTensor):
        return held_by(token)
    trace: Any = token._trace
    known = (made for made, of in trace.generators.values() if of() is token)
    return next(known, None) or stand_in(trace, torch.device(device), lambda: token)


# ---- states ----------------------------------------------------------------------------------------------------------

_SEEDS = 1 << 64


def seed_generator(seed: Size, token: Tensor | None) -> None:
    """Seed a generator, by an operation of the graph. `seed`: a number of 64 bits, with a sign or without, or a
    symbolic one."""
    set_seed(_signed(seed), token)


def seed_all(seed: Size) -> None:
    """As `torch.manual_seed`: torch's own of every device."""
    set_seeds(_signed(seed))


def state_of_generator(token: Tensor | None, size: int) -> Tensor:
    """A generator's state of so many bytes, by an operation of the graph."""
    return get_state(token, size)  # type: ignore[no-any-return]


def restore_generator(state: Tensor, token: Tensor | None) -> None:
    """Give a generator a state, by an operation of the graph."""
    set_state(state, token)


def _signed(seed: Size) -> Size:
    """The number of 64 bits with a sign that seeds as `seed` does."""
    return seed - _SEEDS if type(seed) is int and seed >= _SEEDS // 2 else seed


def record_seed(trace: Recorder, seed: Any, *token: Tensor | None) -> None:
    """Record that a generator is seeded, or without `token` all of torch's own. `seed`: as of `seed_generator`."""
    _state_changes(trace, set_seed if token else set_seeds, _signed(seed), *token)


def record_state(trace: Recorder, token: Tensor | None, size: int) -> Any:
    """Record that a generator is asked for its state of so many bytes."""
    return trace.wrap(_state_changes(trace, get_state, token, size))


def record_new_state(trace: Recorder, state: Tensor, token: Tensor | None) -> None:
    """Record that a generator gets a state."""
    _state_changes(trace, set_state, state, token)


def _state_changes(trace: Recorder, func: OpOverload, *args: object) -> Any:
    """What is drawn later must depend on the state of now, what was drawn earlier must not."""
    trace.forget_seed()
    return trace.call(func, *map(trace.unwrap, args))


_SEEDED = torch.Tag.nondeterministic_seeded
_TOKEN = "Tensor? token"


def _seed(seed: int, token: Tensor | None) -> None:
    held_by(token).manual_seed(seed)


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)


def _put_state(state: Tensor, token: Tensor | None) -> None:
    held_by(token).set_state(state)


set_seed = operator(f"set_seed(SymInt seed, {_TOKEN}) -> ()", _seed, _SEEDED)
set_seeds = operator("set_seeds(SymInt seed) -> ()", _seed_all, _SEEDED)
set_state = operator(f"set_state(Tensor state, {_TOKEN}) -> ()", _put_state, _SEEDED)
get_state = operator(f"get_state({_TOKEN}, int size) -> Tensor", lambda token, _: held_by(token).get_state(), _SEEDED)
STATES = frozenset({set_seed, set_seeds, get_state, set_state})
"""The operations on generators' states."""


@rule("bolide::set_seed", "bolide::set_seeds", "bolide::set_state")
def _no_result(*args: object) -> None:
    return None


@rule("bolide::get_state")
def _state_meta(token: object, size: int) -> TensorMeta:
    return TensorMeta((size,), (1,), 0, torch.uint8, torch.device("cpu"))
