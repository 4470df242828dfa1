"""What `bolide.reset` has to empty: every in-process cache registers a function that empties it."""

from __future__ import annotations

from collections.abc import Callable

_resets: list[Callable[[], None]] = []


def on_reset(function: Callable[[], None]) -> Callable[[], None]:
    """Register `function`, also as a decorator."""
    _resets.append(function)
    return function


def reset() -> None:
    """Empty every registered cache."""
    for function in _resets:
        function()
