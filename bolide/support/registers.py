"""Tables that decorators fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

V = TypeVar("V")


class Register(Protocol[V]):
    """Called with keys, a decorator that enters what it decorates under all of them."""

    def __call__(self, *keys: str) -> Callable[[V], V]: ...


def register(table: dict[str, V], key: Callable[[str], str] = str) -> Register[V]:
    """A decorator that fills `table`, under what `key` makes of keys. ValueError for one that is there already."""

    def under(*keys: str) -> Callable[[V], V]:
        def enter(value: V) -> V:
            for name in map(key, keys):
                if name in table:
                    raise ValueError(f"two entries for {name}")
                table[name] = value
            return value

        return enter

    return under
