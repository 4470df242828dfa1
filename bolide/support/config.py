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
import copy
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from bolide.support.errors import unknown_name

T = TypeVar("T")

_NAMED = (set, frozenset, dict)  # containers whose members may be functions or classes


@dataclass(frozen=True)
class Option:
    """`env`: environment variables that set the first value, the first one found counts. `compiled`: whether the
    option changes what is compiled. `types`: types that are accepted besides the default's. `note`: why it has no
    effect here, for names that are kept for compatibility.
    """

    default: Any
    doc: str
    env: tuple[str, ...] = ()
    compiled: bool = True
    choices: tuple[Any, ...] = ()
    types: tuple[type, ...] = ()
    note: str = ""

    def accept(self, name: str, value: object) -> None:
        """Raises TypeError or ValueError when `value` cannot be the value of this option."""
        if self.choices:
            if not any(value == choice and type(value) is type(choice) for choice in self.choices):
                raise ValueError(f"{name} must be one of {', '.join(map(repr, self.choices))}, not {value!r}")
            return
        accepted = (type(self.default), *self.types)
        if type(value) not in accepted and not (type(value) is int and float in accepted):
            names = " or ".join("None" if cls is type(None) else cls.__name__ for cls in accepted)
            raise TypeError(f"{name} must be {names}, not {type(value).__name__} ({value!r})")

    def parse(self, text: str) -> Any:
        """The value that the text of an environment variable stands for."""
        switch = text.strip().lower()
        if bool in (type(self.default), *self.types) and (switch in _OFF or switch in _ON or str not in self.types):
            return switch not in _OFF
        return type(self.default)(text) if type(self.default) in (int, float) else text


_OFF = ("", "0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")


def option(
    default: T,
    doc: str,
    *,
    env: tuple[str, ...] = (),
    compiled: bool = True,
    choices: tuple[Any, ...] = (),
    types: tuple[type, ...] = (),
    note: str = "",
) -> T:
    """Declare an option in the body of a `Config` class."""
    return Option(default, doc, env, compiled, choices, types, note)  # type: ignore[return-value]


class Group:
    """Declares options whose names begin with a word and a dot, in the body of a `Config` class: with ``triton =
    Group(cudagraphs=option(…))`` there is the option ``triton.cudagraphs``, which is ``config.triton.cudagraphs``,
    too."""

    def __init__(self, **declared: object) -> None:
        self.declared = declared

    def __get__(self, config: Config, owner: type[Config]) -> Members:
        prefix = next(name for name, value in vars(owner).items() if value is self)
        return Members(config, prefix)


class Members:
    """The options of a group, as attributes."""

    def __init__(self, config: Config, prefix: str) -> None:
        vars(self).update(_config=config, _prefix=prefix)

    def __getattr__(self, name: str) -> object:
        return getattr(self._config, f"{self._prefix}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._config, f"{self._prefix}.{name}", value)


class Config:
    """Base of the config objects; see the module's text."""

    _options: dict[str, Option] = {}
    _aliases: dict[str, str] = {}  # other names of options
    _watched: dict[str, Callable[..., None]] = {}  # by option, see `watch`

    def __init_subclass__(cls) -> None:
        cls._options = {}
        for name, value in vars(cls).items():
            found = {f"{name}.{key}": each for key, each in value.declared.items()} if isinstance(value, Group) else {}
            members = {name: value, **found}.items()
            cls._options.update({key: each for key, each in members if isinstance(each, Option)})

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        for name, declared in self._options.items():
            given = next((environment[key] for key in declared.env if key in environment), None)
            setattr(self, name, copy.copy(declared.default) if given is None else declared.parse(given))

    def watch(self, name: str, function: Callable[..., None]) -> None:
        """Call `function` with each value that an option is given from now on."""
        object.__setattr__(self, "_watched", {**self._watched, name: function})  # not of others of the class

    def __setattr__(self, name: str, value: object) -> None:
        self._declared(name).accept(name, value)
        object.__setattr__(self, self._aliases.get(name, name), value)
        if name in self._watched:
            self._watched[name](value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"option {name!r} cannot be deleted")

    def __getattr__(self, name: str) -> Any:
        if name in self._aliases:
            return getattr(self, self._aliases[name])
        if name.startswith("__"):  # asked by Python at each import: looking for a name like it would take milliseconds
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(unknown_name("option", name, self._options))

    def _declared(self, name: str) -> Option:
        declared = self._options.get(self._aliases.get(name, name))
        if declared is None:
            raise AttributeError(unknown_name("option", name, self._options))
        return declared

    def describe(self, name: str) -> str:
        """The documentation of one option."""
        declared = self._declared(name)
        return f"{declared.doc} ({declared.note})" if declared.note else declared.doc

    def markdown(self) -> str:
        """A table of the options: name, default, environment variables, documentation."""
        lines = ["| option | default | environment | meaning |", "|---|---|---|---|"]
        for name, declared in self._options.items():
            default = (
                sorted(map(_plain, declared.default)) if isinstance(declared.default, _NAMED) else declared.default
            )
            shown = f"`{default!r}`" if len(repr(default)) <= 40 and "/" not in repr(default) else "see the source"
            names = ", ".join(f"`{variable}`" for variable in declared.env)
            lines.append(f"| `{name}` | {shown} | {names} | {self.describe(name)} |")
        return "\n".join(lines) + "\n"

    def shallow_copy_dict(self) -> dict[str, Any]:
        """Every option and its present value."""
        return {name: getattr(self, name) for name in self._options}

    def get_hash(self) -> str:
        """A digest of the values of those options that change what is compiled; the same in every process."""
        values = {name: _plain(getattr(self, name)) for name, declared in self._options.items() if declared.compiled}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def save_config(self) -> bytes:
        """The present values as JSON, for `load_config`; without options that hold functions or classes."""
        values = self.shallow_copy_dict().items()
        return json.dumps({name: sorted(v) if type(v) is set else v for name, v in values if _is_plain(v)}).encode()

    def load_config(self, saved: bytes) -> None:
        """Set the values that `save_config` wrote; all or, when one is refused, none."""
        values = json.loads(saved)
        sets = {name for name in values if isinstance(self._declared(name).default, set)}
        self._assign({name: set(value) if name in sets else value for name, value in values.items()})

    def patch(
        self, changes: Mapping[str, object] | str | None = None, value: object = None, /, **more: object
    ) -> Patch:
        """Other values for a while: ``patch(name=value)``, ``patch("name", value)`` or ``patch({"name": value})``, as
        context manager or decorator.
        """
        named = {changes: value} if isinstance(changes, str) else dict(changes or {})
        named.update(more)
        self._check(named)
        return Patch(self, named)

    def _check(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            self._declared(name).accept(name, value)

    def _assign(self, values: Mapping[str, object]) -> None:
        self._check(values)
        for name, value in values.items():
            setattr(self, name, value)


def publish(config: Config, module: str) -> None:
    """Let a config object be the module that it is made in: ``import package.config as config`` is the object too."""
    for name, value in list(vars(sys.modules[module]).items()):
        object.__setattr__(config, name, value)
    sys.modules[module] = config  # type: ignore[assignment]


class Patch(contextlib.ContextDecorator):
    """What `Config.patch` returns. One patch may be entered many times, also nested."""

    def __init__(self, config: Config, changes: dict[str, object]) -> None:
        self.config = config
        self.changes = changes
        self._before: list[dict[str, object]] = []

    def __enter__(self) -> None:
        self._before.append({name: getattr(self.config, name) for name in self.changes})
        self.config._assign(self.changes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.config._assign(self._before.pop())


def _is_plain(value: object) -> bool:
    """Whether JSON can hold the value (a set as a list)."""
    return not isinstance(value, _NAMED) or all(isinstance(member, str) for member in value)


def _plain(value: object) -> Any:
    """A value as JSON can hold it: functions and classes by their names."""
    if isinstance(value, dict):
        return sorted([_plain(key), _plain(item)] for key, item in value.items())
    if isinstance(value, _NAMED):
        return sorted(_plain(member) for member in value)
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    return repr(value)
