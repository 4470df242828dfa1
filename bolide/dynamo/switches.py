"""What users say about compiling while their program runs: `disable`, `graph_break`, `error_on_graph_break`,
`set_stance`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from bolide.dynamo.backends import CompilerFn, lookup_backend
from bolide.dynamo.state import original_of, own_mark, state
from bolide.support.errors import unknown_name


class disable:
    """Run code in eager: ``disable(fn)`` and ``@disable`` give a function that runs so, ``with disable():`` a block.

    recursive: what is called inside runs in eager as well, compiled functions too. With False only the frame of `fn`
    itself does: functions and modules of the program that it calls are captured where captured code calls it. Captured
    code breaks around such a function, and says `reason`. Of a module, `forward` is marked.
    """

    def __new__(
        cls, fn: Callable[..., object] | None = None, recursive: bool = True, *, reason: str | None = None
    ) -> Any:
        if fn is not None:
            return cls(recursive=recursive, reason=reason)(fn)
        return super().__new__(cls)

    def __init__(self, fn: None = None, recursive: bool = True, *, reason: str | None = None) -> None:
        self.recursive, self.reason = recursive, reason

    def __enter__(self) -> None:
        state.disabled += self.recursive

    def __exit__(self, *error: object) -> None:
        state.disabled -= self.recursive

    def __call__(self, fn: Callable[..., object]) -> Callable[..., Any]:
        if isinstance(fn, nn.Module):
            fn.forward = self(fn.forward)
            return fn
        called = original_of(fn)

        @functools.wraps(called)
        def eager(*args: object, **kwargs: object) -> Any:
            with self:
                return called(*args, **kwargs)

        eager._bolide_disabled = self.reason or True  # type: ignore[attr-defined]
        eager._bolide_disabled_recursive = self.recursive  # type: ignore[attr-defined]
        return eager


def is_dynamo_disable_recursive(method: Callable[..., object]) -> bool | None:
    """Whether a function that `disable` has made is disabled with all that it calls; None for any other function."""
    mark: bool | None = own_mark(method, "_bolide_disabled_recursive")
    return mark


def graph_break(msg: str = "") -> None:
    """Captured code breaks here, in eager nothing happens. `msg` stands in the reason."""


class error_on_graph_break:
    """``with error_on_graph_break(True):`` (also a decorator): a break inside raises `Unsupported` as with
    ``fullgraph=True``; with False, breaks are allowed again. It holds for compiled functions that are called inside,
    and for captured code inside of it.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        if not isinstance(error_on_graph_break, bool):
            raise TypeError(f"error_on_graph_break must be True or False, not {error_on_graph_break!r}")
        self.wanted = error_on_graph_break
        self.before: list[bool] = []

    def __enter__(self) -> None:
        self.before.append(set_break_is_error(self.wanted))

    def __exit__(self, *error: object) -> None:
        set_break_is_error(self.before.pop())

    def __call__(self, fn: Callable[..., object]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def watched(*args: object, **kwargs: object) -> Any:
            with error_on_graph_break(self.wanted):
                return fn(*args, **kwargs)

        return watched


def set_break_is_error(value: bool) -> bool:
    """Whether breaks of this thread are errors from now on; what it was before."""
    before, state.break_is_error = state.break_is_error, value
    return before


# ---- stances ---------------------------------------------------------------------------------------------------------


STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class set_stance:
    """How compiled functions behave in this thread from now on; as context manager or decorator, for a while.

    ``default``: compile as needed. ``force_eager``: run everything in eager. ``eager_on_recompile``: use what is
    compiled, run everything else in eager. ``fail_on_recompile``: raise `RecompileError` instead of compiling.
    ``eager_then_compile``: the first call of each function runs in eager.
    force_backend: with ``default``, what is compiled from now on is given to this backend (its name, or a callable)
    instead of the one that was named in `compile`.
    skip_guard_eval_unsafe: no effect: guards that cost next to nothing are always checked.

    Raises ValueError for an unknown stance or backend, with the nearest ones, and for a backend with another stance.
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | CompilerFn | None = None,
    ) -> None:
        if stance not in STANCES:
            raise ValueError(unknown_name("stance", stance, STANCES))
        if force_backend is not None and stance != "default":
            raise ValueError(f"force_backend is for the stance default, not {stance}")
        self.stance = stance
        self.backend = None if force_backend is None else lookup_backend(force_backend)
        self._before = state.stance, state.backend
        _take(self.stance, self.backend)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _take(*self._before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        _take(*self._before)

        @functools.wraps(fn)
        def standing(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance, force_backend=self.backend):
                return fn(*args, **kwargs)

        return standing


def run(fn: Callable[..., object]) -> Callable[..., Any]:
    """`fn`, in which what is compiled already is used, and everything else runs in eager."""
    return set_stance("eager_on_recompile")(fn)


def _take(stance: str, backend: CompilerFn | None) -> None:
    state.disabled += (stance == "force_eager") - (state.stance == "force_eager")  # no guard holds while disabled
    state.stance, state.backend = stance, backend
