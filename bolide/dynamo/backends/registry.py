"""Names of backends: those that are registered here, and those that other packages offer by entry points (the groups
``bolide_backends`` and ``torch_dynamo_backends``), which are loaded when they are first used.

A backend is a function ``(gm: fx.GraphModule, example_inputs: list[Tensor], **options) -> callable``; the callable
takes what `gm` takes, one by one, and returns what `gm` returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, overload

from bolide.support.errors import BolideError, unknown_name

CompilerFn = Callable[..., Any]

GROUPS = ("bolide_backends", "torch_dynamo_backends")
"""Entry-point groups; a name in an earlier one hides the same name in a later one."""

OWN = "bolide"
"""bolide's own backend for torch.compile is in the second group too, and is none for bolide."""

_registered: dict[str, CompilerFn] = {}
_tags: dict[str, frozenset[str]] = {}
_default: list[str | CompilerFn] = []  # the one that was set last


@overload
def register_backend(compiler_fn: CompilerFn, name: str | None = None, tags: Iterable[str] = ()) -> CompilerFn: ...


@overload
def register_backend(
    compiler_fn: None = None, name: str | None = None, tags: Iterable[str] = ()
) -> Callable[[CompilerFn], CompilerFn]: ...


def register_backend(compiler_fn: Any = None, name: str | None = None, tags: Iterable[str] = ()) -> Any:
    """Register a backend under `name` (its ``__name__`` by default), also as a decorator with or without arguments.

    tags: words by which `list_backends` leaves it out (``debug``, ``experimental``).

    Raises TypeError for what cannot be called, ValueError for a name that is taken by another backend.
    """
    if compiler_fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    if not callable(compiler_fn):
        raise TypeError(f"a backend is a function of a graph module and example inputs, not {compiler_fn!r}")
    name = name or compiler_fn.__name__
    if _registered.get(name, compiler_fn) is not compiler_fn:
        raise ValueError(f"a backend {name!r} is registered already: {_registered[name]!r}")
    _registered[name] = compiler_fn
    _tags[name] = frozenset(tags)
    return compiler_fn


register_debug_backend = functools.partial(register_backend, tags=("debug",))
register_experimental_backend = functools.partial(register_backend, tags=("experimental",))


@functools.cache
def _offered() -> dict[str, EntryPoint]:
    """What installed packages offer, by name."""
    points: dict[str, EntryPoint] = {}
    for group in GROUPS:
        for point in entry_points(group=group):
            if point.name != OWN:
                points.setdefault(point.name, point)
    return points


def list_backends(exclude_tags: Iterable[str] | None = ("debug", "experimental")) -> list[str]:
    """Names of the backends that have none of `exclude_tags`, sorted; those of other packages included, without loading
    them.
    """
    excluded = frozenset(exclude_tags or ())
    return sorted(name for name in {*_registered, *_offered()} if not _tags.get(name, frozenset()) & excluded)


def lookup_backend(backend: str | CompilerFn) -> CompilerFn:
    """The backend of a name; a callable is its own.

    Raises TypeError for anything else, ValueError for an unknown name, with the nearest ones, and BolideError when
    the package that offers it cannot be imported.
    """
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise TypeError(
            f"backend must be the name of a backend ({', '.join(sorted(_registered))}) or a callable, not {backend!r}"
        )
    if backend not in _registered:
        point = _offered().get(backend)
        if point is None:
            raise ValueError(unknown_name("backend", backend, [*_registered, *_offered()]))
        try:
            loaded = point.load()
        except Exception as error:
            raise BolideError(
                f"the backend {backend!r} ({point.value}, entry point of group {point.group}) cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        register_backend(loaded, backend)
    return _registered[backend]


def set_default_backend(backend: str | CompilerFn | None) -> None:
    """The backend of what is compiled from now on without naming one; None: ``inductor`` again.

    Raises what `lookup_backend` raises.
    """
    if backend is not None:
        lookup_backend(backend)
    _default[:] = [] if backend is None else [backend]


def get_default_backend() -> str | CompilerFn:
    """The backend of what is compiled without naming one."""
    return _default[0] if _default else "inductor"
