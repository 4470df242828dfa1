"""The registry: ATen overload → lowering function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

#: overload -> f(ctx, *args, **kwargs) -> value; args are the FX node's with nodes replaced by their values. `EXTERN`
#: as the answer: this case runs as an ATen call.
LOWERINGS: dict[object, Callable[..., object]] = {}

EXTERN = object()

#: those of them whose numbers (`Scalar` in the schema) may be sizes: `Expr`s. The others get Python's numbers only, and
#: a call with a size for a number is ATen's.
TAKE_SIZES: set[object] = set()

F = TypeVar("F", bound=Callable[..., object])


def lowering(*overloads: object, takes_sizes: bool = False) -> Callable[[F], F]:
    """Registers a function as the lowering of `overloads`. `takes_sizes`: whether its numbers may be `Expr`s."""

    def register(function: F) -> F:
        for overload in overloads:
            if overload in LOWERINGS:
                raise ValueError(f"two lowerings for {overload}")
            LOWERINGS[overload] = function
        if takes_sizes:
            TAKE_SIZES.update(overloads)
        return function

    return register
