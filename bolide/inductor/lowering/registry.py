"""The registry: ATen overload → lowering function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

#: overload -> f(ctx, *args, **kwargs) -> value; args are the FX node's with nodes replaced by their values. `EXTERN`
#: as the answer: this case runs as an ATen call.
LOWERINGS: dict[Any, Callable[..., Any]] = {}

EXTERN = object()

F = TypeVar("F", bound=Callable[..., Any])


def lowering(*overloads: Any) -> Callable[[F], F]:
    """Registers a function as the lowering of `overloads`."""

    def register(function: F) -> F:
        for overload in overloads:
            if overload in LOWERINGS:
                raise ValueError(f"two lowerings for {overload}")
            LOWERINGS[overload] = function
        return function

    return register
