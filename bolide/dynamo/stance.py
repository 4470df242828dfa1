"""`set_stance`: whether compiled functions compile, at run time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bolide.dynamo.state import state
from bolide.support.errors import unknown_name

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class set_stance:
    """How compiled functions behave in this thread from now on; as context manager or decorator, for a while.

    ``default``: compile as needed. ``force_eager``: run everything in eager. ``eager_on_recompile``: use what is
    compiled, run everything else in eager. ``fail_on_recompile``: raise `RecompileError` instead of compiling.
    ``eager_then_compile``: the first call of each function runs in eager.

    Raises ValueError for an unknown stance, with the nearest ones.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            raise ValueError(unknown_name("stance", stance, STANCES))
        self.stance = stance
        self._before = state.stance
        _take(stance)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _take(self._before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        _take(self._before)

        @functools.wraps(fn)
        def standing(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return fn(*args, **kwargs)

        return standing


def _take(stance: str) -> None:
    state.disabled += (stance == "force_eager") - (state.stance == "force_eager")  # no guard holds while disabled
    state.stance = stance
