"""What `bolide.reset` has to empty: every in-process cache registers a function that empties it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_resets: list[Callable[[], None]] = []


def on_reset(function: Callable[[], None]) -> Callable[[], None]:
    """Register `function`, also as a decorator."""
    _resets.append(function)
    return function


def reset() -> None:
    """Empty every registered cache."""
    for function in _resets:
        function()


def by_class(function: Callable[[type], T]) -> Callable[[type], T]:
    """Remember what a function says of each class, as long as that lives: programs make classes, too."""
    known: dict[int, tuple[weakref.ref[type], T]] = {}

    def answer(cls: type) -> T:
        entry = known.get(id(cls))
        if entry is None:
            key = id(cls)
            entry = known[key] = (weakref.ref(cls, lambda _: known.pop(key, None)), function(cls))
        return entry[1]

    on_reset(known.clear)
    return answer
