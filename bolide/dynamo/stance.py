"""`set_stance`: whether compiled functions compile, at run time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bolide.dynamo.backends import CompilerFn, lookup_backend
from bolide.dynamo.state import state
from bolide.support.errors import unknown_name

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _take(*self._before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        _take(*self._before)

        @functools.wraps(fn)
        def standing(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance, force_backend=self.backend):
                return fn(*args, **kwargs)

        return standing


def run(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, in which what is compiled already is used, and everything else runs in eager."""

    @functools.wraps(fn)
    def running(*args: Any, **kwargs: Any) -> Any:
        with set_stance("eager_on_recompile"):
            return fn(*args, **kwargs)

    return running


def _take(stance: str, backend: CompilerFn | None) -> None:
    state.disabled += (stance == "force_eager") - (state.stance == "force_eager")  # no guard holds while disabled
    state.stance, state.backend = stance, backend
