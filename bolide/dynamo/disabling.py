"""What users say about breaks: `disable`, `graph_break`, `error_on_graph_break`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import nn

from bolide.dynamo.state import own_mark, state


class disable:
    """Run code in eager: ``disable(fn)`` and ``@disable`` give a function that runs so, ``with disable():`` a block.

    recursive: what is called inside runs in eager as well, compiled functions too. With False only the frame of `fn`
    itself does: functions and modules of the program that it calls are captured where captured code calls it. Captured
    code breaks around such a function, and says `reason`. Of a module, `forward` is marked.
    """

    def __new__(cls, fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
        if fn is not None:
            return cls(recursive=recursive, reason=reason)(fn)
        return super().__new__(cls)

    def __init__(self, fn: None = None, recursive: bool = True, *, reason: str | None = None) -> None:
        self.recursive, self.reason = recursive, reason

    def __enter__(self) -> None:
        state.disabled += self.recursive

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state.disabled -= self.recursive

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(fn, nn.Module):
            fn.forward = self(fn.forward)
            return fn
        compiled = own_mark(fn, "_bolide")
        called = fn if compiled is None else compiled.original

        @functools.wraps(called)
        def eager(*args: Any, **kwargs: Any) -> Any:
            with self:
                return called(*args, **kwargs)

        eager._bolide_disabled = self.reason or True  # type: ignore[attr-defined]
        eager._bolide_disabled_recursive = self.recursive  # type: ignore[attr-defined]
        return eager


def is_dynamo_disable_recursive(method: Callable[..., Any]) -> bool | None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_break_is_error(self.before.pop())

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(self.wanted):
                return fn(*args, **kwargs)

        return watched


def set_break_is_error(value: bool) -> bool:
    """Whether breaks of this thread are errors from now on; what it was before."""
    before, state.break_is_error = state.break_is_error, value
    return before
