"""Warnings of torch's own that come while a program is captured, which is interpreted more than once: they are shown
when it has been, each once, at the user's line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from bolide.dynamo.machine.callers import Caller, caller_of
from bolide.dynamo.machine.interpreter import Machine
from bolide.support.origins import OURS


class Notice(NamedTuple):
    """A warning, of instruction `tick`. `caller`: the user's line; None where torch's own code says which line is meant
    (`filename`, `lineno`)."""

    tick: int
    message: Warning | str
    category: type[Warning]
    filename: str
    lineno: int
    caller: Caller | None

    @property
    def key(self) -> tuple[Any, ...]:
        line = (self.filename, self.lineno) if self.caller is None else (self.caller.file, self.caller.line)
        return str(self.message), self.category, *line


class Notices:
    """The warnings of one capture. `shown`: those of earlier captures of the function."""

    def __init__(self, shown: set[Any]) -> None:
        self.notices: list[Notice] = []
        self.shown = shown

    @contextlib.contextmanager
    def kept(self, machine: Machine) -> Iterator[None]:
        """While it is active, warnings of this thread that would be shown are kept. What the user's filters turn into
        errors is raised as ever: they are asked of the user's line, as warnings of bolide's own lines pass."""
        before, thread = warnings.showwarning, threading.get_ident()

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: Any = None,
            line: str | None = None,
        ) -> None:
            if threading.get_ident() != thread:
                before(message, category, filename, lineno, file, line)
                return
            caller = None
            if filename.startswith(OURS):
                frames = [frame for frame in machine.frames[1:] if not frame.code.ours]
                caller = caller_of(frames[-1]) if frames else None
                _forget(message, category, filename)
                if caller is not None:
                    _raise_what_is_an_error(message, category, caller)
            self.notices.append(Notice(machine.progress.tick, message, category, filename, lineno, caller))

        warnings.filterwarnings("always", module=r"bolide\.")
        passing = warnings.filters[0]
        warnings.showwarning = show
        try:
            yield
        finally:
            filters = cast(list[Any], warnings.filters)
            if passing in filters:
                filters.remove(passing)
            if warnings.showwarning is show:
                warnings.showwarning = before

    def show(self, stop: int | None) -> None:
        """Show the warnings of what was captured: the program up to instruction `stop`, or to its end."""
        for notice in self.notices:
            if (stop is not None and notice.tick > stop) or notice.key in self.shown:
                continue
            self.shown.add(notice.key)
            if notice.caller is None:
                warnings.showwarning(notice.message, notice.category, notice.filename, notice.lineno)
                continue
            caller = notice.caller
            warnings.warn_explicit(
                notice.message,
                notice.category,
                caller.file,
                caller.line,
                caller.namespace.get("__name__"),
                caller.namespace.setdefault("__warningregistry__", {}),
            )


def _raise_what_is_an_error(message: Warning | str, category: type[Warning], caller: Caller) -> None:
    """Ask the filters of the user's line. What they remember of warnings that they showed is as before."""
    once = getattr(warnings, "onceregistry", {})
    known, showing = dict(once), warnings.showwarning
    warnings.showwarning = lambda *args, **kwargs: None
    try:
        module = caller.namespace.get("__name__")
        warnings.warn_explicit(message, category, caller.file, caller.line, module, {})
    finally:
        warnings.showwarning = showing
        once.clear()
        once.update(known)


def _forget(message: Warning | str, category: type[Warning], filename: str) -> None:
    """The filters have not seen this warning: where it comes from is another line of the user's each time. Modules that
    are loaded when they are asked for something are not asked."""
    getattr(warnings, "onceregistry", {}).pop((str(message), category), None)
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", {})
        if namespace.get("__file__") == filename:
            namespace.pop("__warningregistry__", None)
