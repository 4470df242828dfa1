"""`disable`: code that is never compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bolide.dynamo.state import state


class disable:
    """Run code in eager: ``disable(fn)`` and ``@disable`` give a function that runs so, ``with disable():`` a block.

    recursive: compiled functions that are called inside run in eager as well. With False only `fn` itself is not
    captured.
    """

    def __new__(cls, fn: Callable[..., Any] | None = None, recursive: bool = True) -> Any:
        if fn is not None:
            return cls(recursive=recursive)(fn)
        return super().__new__(cls)

    def __init__(self, fn: None = None, recursive: bool = True) -> None:
        self.recursive = recursive

    def __enter__(self) -> None:
        state.disabled += self.recursive

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state.disabled -= self.recursive

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(fn, "_bolide", None)
        called = fn if original is None else original.original

        @functools.wraps(called)
        def eager(*args: Any, **kwargs: Any) -> Any:
            with self:
                return called(*args, **kwargs)

        eager._bolide_disabled = True  # type: ignore[attr-defined]
        return eager
