"""Compiled functions: a public function with the user's signature in front of a chain of entries, and what happens
when no entry fits.

The public function calls `top`, the newest entry. An entry whose guards fail calls the entry made before it; after the
oldest comes `Dispatcher.miss`, which captures and compiles a new one or runs the original in eager. A hit takes no
lock. Misses of all threads take turns: whoever waited looks again first.
"""

from __future__ import annotations

import functools
import threading
import time
import traceback
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from bolide.dynamo import guards
from bolide.dynamo.config import config
from bolide.dynamo.program import Captured, Guard
from bolide.dynamo.replay import Entry, Runner, make_entry
from bolide.dynamo.signature import Signature
from bolide.dynamo.sources import Namespace
from bolide.dynamo.state import state
from bolide.support import events, log
from bolide.support.caches import on_reset
from bolide.support.errors import BolideWarning, CompileError, RecompileError, Unsupported, UserFrame
from bolide.support.garbage import collector_paused

Backend = Callable[[Captured], Runner]

_log = log.logger("dynamo")
_turn = threading.RLock()
_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


class Capture(Protocol):
    """`dynamo.capture.capture`."""

    def __call__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured: ...


class _Unfit(Exception):
    """The entry made for a call does not fit that call."""


class Dispatcher:
    """The compiled versions of one function.

    original: the user's function, called for eager and for inlining
    place: where the user wrote it, for messages
    key: functions with the same key share `accumulated_cache_size_limit`
    function: the public function
    """

    def __init__(
        self,
        original: types.FunctionType,
        capture: Capture,
        backend: Backend,
        *,
        name: str = "",
        key: object = None,
        place: types.CodeType | None = None,
        fullgraph: bool = False,
    ) -> None:
        self.original = original
        self.capture = capture
        self.backend = backend
        self.name = name or original.__qualname__
        self.key = original.__code__ if key is None else key
        code = place or original.__code__
        self.place = UserFrame(code.co_filename, code.co_firstlineno, self.name)
        self.fullgraph = fullgraph
        self.signature = Signature.of(original.__code__)
        self.entries: tuple[Entry, ...] = ()
        self.given_up = False
        self.misfit: str | None = None
        self._failures: Counter[object] = Counter()
        self._warned: set[str] = set()
        self._scope, self._top, self.function = self._public()
        self._scope[self._top] = self.miss
        _dispatchers.add(self)

    def _public(self) -> tuple[dict[str, Any], str, types.FunctionType]:
        """The public function: the user's parameters and defaults, forwarded to `top`."""
        namespace = Namespace(self.signature.names)
        top = namespace.fresh("top")
        declare, forward = self.signature.declare, self.signature.forward
        text = f"def public({declare}):\n    return {top}({forward})\n"
        exec(compile(text, f"<bolide {self.name}>", "exec", dont_inherit=True), namespace.values)
        function: types.FunctionType = namespace.values.pop("public")
        functools.update_wrapper(function, self.original)
        function.__defaults__ = self.original.__defaults__
        function.__kwdefaults__ = self.original.__kwdefaults__
        function._bolide = self  # type: ignore[attr-defined]
        return namespace.values, top, function

    def reset(self) -> None:
        """Forget every entry and every failure."""
        self._scope[self._top] = self.miss
        self.entries = ()
        self.given_up = False
        self.misfit = None
        self._failures.clear()
        self._warned.clear()

    # ---- misses ------------------------------------------------------------------------------------------------------

    def miss(self, *args: Any, **kwargs: Any) -> Any:
        """No entry fits this call: compile one, or run the original."""
        if state.entering is self:
            raise _Unfit
        expected: BaseException | None = None
        ready = False
        if not (self.given_up or config.disable or state.stage or state.disabled):
            try:
                ready = self._compile(args, kwargs)
            except Unsupported as error:
                if self.fullgraph and error.kind != "user_exception":
                    raise
                expected = self._fall_back(error)
            except CompileError as error:
                if self.fullgraph or not config.suppress_errors:
                    raise
                self._bug(error)
        if ready:
            return self._enter(args, kwargs)
        result = self.original(*args, **kwargs)
        if expected is not None:
            self._warn(f"capture met {type(expected).__name__}: {expected}, which eager did not raise", None, None)
        return result

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call again, now that there is an entry for these arguments. If it does not fit either, run the original."""
        state.entering = self
        try:
            return self.function(*args, **kwargs)
        except _Unfit:
            pass
        finally:
            state.entering = None
        self._misfit(args, kwargs)
        return self.original(*args, **kwargs)

    def _misfit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The entry made for a call does not fit it: another thread has changed something meanwhile, so that the next
        call tries again. When the very same guard fails with the same value twice, it is a fault of bolide.
        """
        failure = guards.first_failure(self.entries[-1].guards, self.signature, args, kwargs) if self.entries else None
        if failure is None:
            return
        what = f"{guards.text(failure[0])} does not hold for the call that was captured, found {failure[1]}"
        if what != self.misfit:
            self.misfit = what
            return
        error = CompileError("guards", self.name, AssertionError(what))
        if self.fullgraph or not config.suppress_errors:
            raise error
        self._bug(error)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Make sure that there is an entry for this call; False if another thread has given this function up meanwhile.

        Raises Unsupported, CompileError or RecompileError.
        """
        reason = guards.busy()
        if reason is not None:
            raise Unsupported(reason, kind="state", remedy="call the compiled function outside of it")
        with _turn:
            if self.given_up or self._fitting(args, kwargs):
                return not self.given_up
            self._check_limits()
            try:
                with collector_paused():
                    self._install(self._make(args, kwargs))
            finally:
                state.stage = None
        return True

    def _fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an entry fits, made by another thread meanwhile. If not, tell which guards failed."""
        for index, entry in enumerate(self.entries):
            failure = guards.first_failure(entry.guards, self.signature, args, kwargs)
            if failure is None:
                return True
            self._guard_failed(index, *failure)
        return False

    def _guard_failed(self, index: int, guard: Guard, actual: str) -> None:
        wanted = guards.text(guard)
        _log.debug(
            "%s: version %d does not fit: expected %s, found %s (read at %s)",
            self.name,
            index,
            wanted,
            actual,
            guard.where,
        )
        if events.subscribers:
            events.emit(events.GuardFailed(self.name, index, wanted, wanted, actual, guard.where))
        if index == len(self.entries) - 1:
            self._last_failure = f"{wanted}, found {actual}", guard.where
            if config.error_on_recompile:
                raise RecompileError(
                    f"{self.name} would be compiled again: expected {self._last_failure[0]}" + _at(guard.where)
                )

    def _check_limits(self) -> None:
        total = sum(len(d.entries) for d in list(_dispatchers) if d.key is self.key)
        if len(self.entries) < config.cache_size_limit and total < config.accumulated_cache_size_limit:
            return
        which = "cache_size_limit" if len(self.entries) >= config.cache_size_limit else "accumulated_cache_size_limit"
        reason = f"it was compiled {total} times ({which})"
        changing = ""
        if self.entries:
            changing, read_at = self._last_failure
            changing = f"; the guard that failed last: expected {changing}{_at(read_at)}"
        self.given_up = True
        raise Unsupported(
            reason + changing,
            self.place,
            f"keep that value fixed between calls, or raise bolide.dynamo.config.{which}",
            kind="limit",
        )

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        start = time.perf_counter()
        state.stage = "capture"
        surroundings = guards.global_state()
        captured = self.capture(self.original, args, kwargs)
        state.stage = "backend"
        if events.subscribers:
            shown = tuple(map(guards.text, guards.prepare(captured.guards, surroundings)))
            events.emit(events.Captured(self.name, captured, shown, time.perf_counter() - start))
        try:
            run = self.backend(captured)
        except (Unsupported, CompileError):
            raise
        except Exception as error:
            raise CompileError("backend", self.name, error) from error
        checks = guards.prepare(captured.guards, surroundings)  # backward code of the user's was read meanwhile, too
        following = self.entries[-1].function if self.entries else self.miss
        entry = make_entry(self.signature, captured, checks, run, following)
        if events.subscribers:
            seconds = time.perf_counter() - start
            events.emit(events.Installed(self.name, len(self.entries), entry.source, seconds))
        return entry

    def _install(self, entry: Entry) -> None:
        self.entries = (*self.entries, entry)
        self._scope[self._top] = entry.function

    # ---- running in eager --------------------------------------------------------------------------------------------

    def _fall_back(self, error: Unsupported) -> BaseException | None:
        """Account for a capture that failed. Returns the exception that eager is expected to raise, if the user's code
        is what failed.
        """
        if events.subscribers:
            events.emit(events.Fallback(self.name, error.reason, error.kind, error.where, error.remedy, error))
        if error.kind == "state" or error.kind == "input":
            self._warn(error.reason, error.where, error.remedy, error.operation)
            return None
        self._failures[error.reason, error.where] += 1
        if error.kind == "user_exception":
            self.given_up |= self._failures.total() >= config.cache_size_limit
            return error.__cause__
        self.given_up |= (
            self._failures[error.reason, error.where] > 1 or self._failures.total() >= config.cache_size_limit
        )
        self._warn(error.reason, error.where, error.remedy, error.operation)
        return None

    def _bug(self, error: CompileError) -> None:
        if events.subscribers:
            events.emit(events.Fallback(self.name, str(error), "bug", None, None, error))
        self._failures["bug"] += 1
        self.given_up |= self._failures["bug"] > 1
        detail = "".join(traceback.format_exception(error)) if config.verbose else ""
        remedy = "please report it; BOLIDE_VERBOSE=1 shows the traceback, suppress_errors=False raises it"
        self._warn(f"{error}{detail and chr(10) + detail}", None, remedy)

    def _warn(self, reason: str, where: UserFrame | None, remedy: str | None, operation: str | None = None) -> None:
        """One warning for each reason."""
        if reason in self._warned:
            return
        self._warned.add(reason)
        lines = [f"{self.name} runs in eager: {reason}"]
        lines += [f"  operation: {operation}"] if operation else []
        lines += [f"  at: {where}"] if where else []
        lines += [f"  remedy: {remedy}"] if remedy else []
        place = where or self.place
        warnings.warn_explicit("\n".join(lines), BolideWarning, place.file, place.line)


def _at(where: UserFrame | None) -> str:
    return f" (read at {where})" if where else ""


@on_reset
def reset() -> None:
    """Drop the compiled versions of every function."""
    with _turn:
        for dispatcher in list(_dispatchers):
            dispatcher.reset()
