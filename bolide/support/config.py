"""Configuration: a class with one typed attribute per option, each with a line of documentation.

    class DemoConfig(Config):
        cache_size_limit: int = option(8, "Most compiled versions of one function.")
        verbose: bool = option(False, "Log more.", env=("BOLIDE_VERBOSE", "TORCHDYNAMO_VERBOSE"))

    config = DemoConfig()
    with config.patch(verbose=True): ...

Unknown names and values of a wrong type are refused, the former with the nearest valid names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from bolide.support.errors import unknown_name

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """`env`: environment variables that set the first value, the first one found counts. `compiled`: whether the
    option changes what is compiled.
    """

    default: Any
    doc: str
    env: tuple[str, ...] = ()
    compiled: bool = True
    choices: tuple[Any, ...] = ()

    def accept(self, name: str, value: Any) -> None:
        """Raises TypeError or ValueError when `value` cannot be the value of this option."""
        if self.choices:
            if value not in self.choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, self.choices))}, not {value!r}")
        elif self.default is not None and type(value) is not type(self.default):
            raise TypeError(f"{name} must be {type(self.default).__name__}, not {type(value).__name__} ({value!r})")

    def parse(self, text: str) -> Any:
        """The value that the text of an environment variable stands for."""
        if isinstance(self.default, bool):
            return text.strip().lower() not in ("", "0", "false", "no", "off")
        return type(self.default)(text) if isinstance(self.default, (int, float)) else text


def option(
    default: T, doc: str, *, env: tuple[str, ...] = (), compiled: bool = True, choices: tuple[Any, ...] = ()
) -> T:
    """Declare an option in the body of a `Config` class."""
    return Option(default, doc, env, compiled, choices)  # type: ignore[return-value]


class Config:
    """Base of the config objects; see the module's text."""

    _options: dict[str, Option] = {}

    def __init_subclass__(cls) -> None:
        cls._options = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        for name, declared in self._options.items():
            given = next((environment[key] for key in declared.env if key in environment), None)
            setattr(self, name, declared.default if given is None else declared.parse(given))

    def __setattr__(self, name: str, value: Any) -> None:
        self._declared(name).accept(name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"option {name!r} cannot be deleted")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unknown_name("option", name, self._options))

    def _declared(self, name: str) -> Option:
        declared = self._options.get(name)
        if declared is None:
            raise AttributeError(unknown_name("option", name, self._options))
        return declared

    def describe(self, name: str) -> str:
        """The documentation of one option."""
        return self._declared(name).doc

    def shallow_copy_dict(self) -> dict[str, Any]:
        """Every option and its present value."""
        return {name: getattr(self, name) for name in self._options}

    def get_hash(self) -> str:
        """A digest of the values of those options that change what is compiled."""
        values = {name: repr(getattr(self, name)) for name, declared in self._options.items() if declared.compiled}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def save_config(self) -> bytes:
        """The present values, for `load_config`."""
        return json.dumps(self.shallow_copy_dict()).encode()

    def load_config(self, saved: bytes) -> None:
        """Set the values that `save_config` wrote; all or, when one is refused, none."""
        self._assign(json.loads(saved))

    def patch(self, changes: Mapping[str, Any] | str | None = None, value: Any = None, /, **more: Any) -> Patch:
        """Other values for a while: ``patch(name=value)``, ``patch("name", value)`` or ``patch({"name": value})``, as
        context manager or decorator.
        """
        named = {changes: value} if isinstance(changes, str) else dict(changes or {})
        named.update(more)
        self._check(named)
        return Patch(self, named)

    def _check(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._declared(name).accept(name, value)

    def _assign(self, values: Mapping[str, Any]) -> None:
        self._check(values)
        for name, value in values.items():
            setattr(self, name, value)


class Patch(contextlib.ContextDecorator):
    """What `Config.patch` returns. One patch may be entered many times, also nested."""

    def __init__(self, config: Config, changes: dict[str, Any]) -> None:
        self.config = config
        self.changes = changes
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._before.append({name: getattr(self.config, name) for name in self.changes})
        self.config._assign(self.changes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.config._assign(self._before.pop())


__all__ = ["Config", "Option", "Patch", "option"]
