"""Random generators of the user's. While recording, each is known by a stand-in, a generator that nobody draws from; in
the graph an operation that draws from it is ``bolide::drawn``, which finds the real one in a `Slot`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from bolide.support.errors import Unsupported
from bolide.tracing.writing_ops import call_on_copies, drawn

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace


class Slot(threading.local):
    """Where a graph finds a generator: it is put there before the graph runs, in the thread that runs it."""

    generator: torch.Generator | None = None

    def put(self, generator: torch.Generator) -> None:
        self.generator = generator

    def get(self) -> torch.Generator | None:
        return self.generator


def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator among an operation's arguments (few operations take one that has no name)."""
    given = kwargs.get("generator") if kwargs else None
    if given is None and args and isinstance(args[-1], torch.Generator):
        given = args[-1]
    return given


def is_default(generator: torch.Generator) -> bool:
    """Whether it is torch's own. (Python objects of generators come and go.)"""
    return bool(generator._cdata == torch.default_generator._cdata)  # type: ignore[attr-defined]


def draw(trace: Trace, generator: torch.Generator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record an operation that draws from `generator`."""
    replacement: Any = None
    if not is_default(generator):
        replacement = slot_of(trace, generator)
    args = tuple(replacement if arg is generator else arg for arg in args)
    kwargs = {name: replacement if arg is generator else arg for name, arg in kwargs.items()}
    if replacement is None:
        return trace.dispatch(func, args, kwargs)
    return call_on_copies(trace, func, args, kwargs, drawn)


def slot_of(trace: Trace, generator: torch.Generator) -> Slot:
    """The slot of the generator that a stand-in stands for. Raises Unsupported for any other generator."""
    known = trace.generators.get(generator._cdata)  # type: ignore[attr-defined]
    if known is None:
        raise Unsupported(
            "a random number generator that is made in the program",
            trace.where,
            "make it outside the compiled function",
            kind="generator_state",
        )
    return known[1]
