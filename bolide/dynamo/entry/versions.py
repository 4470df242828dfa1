"""The compiled versions of one point of a program: the start of a function, or the place where a segment ended.

The entry that a call has fitted last is tried first (it is the one that callers enter); when its guards fail, it asks
`Versions.others`, which tries the rest in the order of their last use; when none fits, `Versions.miss` captures and
compiles a new one or goes on in eager. A hit waits for no lock. Misses of all threads take turns: whoever waited looks
again first.
"""

from __future__ import annotations

import re
import time
import traceback
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar

import torch

from bolide.dynamo.breaks.segments import Shape
from bolide.dynamo.config import config
from bolide.dynamo.entry.limits import counted, made_under
from bolide.dynamo.entry.metrics import CompilationMetrics, compilation_metrics
from bolide.dynamo.entry.replay import Entry, Runner, make_entry, replay_of
from bolide.dynamo.guards import asked
from bolide.dynamo.guards import texts as guards
from bolide.dynamo.guards.filters import GuardFail, GuardFailed, GuardFilter, select
from bolide.dynamo.guards.sizes import SizeHistory, shape_guards, specialised
from bolide.dynamo.machine.faults import comes_from_outside, release
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import Break, Captured, GlobalState, Guard, Replay
from bolide.dynamo.program.sources import Signature
from bolide.dynamo.state import state
from bolide.support import events, leaks, log
from bolide.support.caches import on_reset
from bolide.support.errors import (
    BolideError,
    BolideWarning,
    CompileError,
    FixedSizesNeeded,
    RecompileError,
    Unsupported,
    UserFrame,
    describe,
    forgive,
)
from bolide.support.garbage import collector_paused
from bolide.support.locks import compiling, tables
from bolide.support.profiling import profiled
from bolide.tracing import modes
from bolide.tracing.called.derivatives import Underivable

P = ParamSpec("P")
T = TypeVar("T")
Backend = Callable[[Captured], Runner]

_log = log.logger("dynamo")
_all: weakref.WeakSet[Versions] = weakref.WeakSet()


def _known() -> list[Versions]:
    with tables:
        return list(_all)


class NestedTrace(RuntimeError):
    """A compiled function is called while a tracer of torch's is at work."""


def _needs_data(captured: Captured) -> bool:
    """Whether a program ends where data has to be known."""
    return captured.ending is not None and captured.ending.kind.startswith("data_")


def _ends_alike(captured: Captured, other: Captured) -> bool:
    """Whether two programs end in a break at the same line."""
    return captured.ending is not None and other.ending is not None and captured.ending.where == other.ending.where


class OtherParameters(TypeError):
    """The user's function has got code with other parameters."""


class _Unfit(Exception):
    """The entry made for a call does not fit that call."""


@dataclass(frozen=True)
class Wishes:
    """What a user asked for. `fullgraph`: what cannot be captured is an error; `dynamic`: see `SizeHistory`;
    `guard_filter` chooses the guards that are kept; `guard_fail` is told which one did not hold."""

    fullgraph: bool = False
    dynamic: bool | None = None
    guard_filter: GuardFilter | None = None
    guard_fail: GuardFailed | None = None


class Keeper(Protocol):
    """Keeps entries for other processes, and finds those of others (docs/saved.md)."""

    def find(self, versions: Versions, args: tuple[object, ...], kwargs: dict[str, object]) -> Entry | None:
        """An entry made elsewhere that fits this call. Nothing of the program's is run. Raises Unsupported where it is
        known that nothing can be captured."""

    def keep(self, versions: Versions, captured: Captured, guards: Sequence[Guard], replay: Replay) -> None:
        """Keep an entry that was made just now; `guards`: all of its, also those that are not asked here."""

    def refused(self, versions: Versions, error: Unsupported) -> None:
        """Keep that nothing can be captured at a point."""


recorder: Callable[..., None] | None = None
"""Writes a record of a failure, as `replay_record_enabled` asks for: of a CompileError, and the graph that it is of, if
there is one. `bolide` sets it, as the code is that of `debug`."""

_PATIENCE = 4  # calls that are made again in eager before data are no symbols any more
_FORMS = 8  # times the limit is that of calls of all forms
_PHASE = 32  # calls in eager, once the limit is reached, before an entry makes room for another one,
_SHARE = 1 / 20  # and the share of time that making new ones may take


class Versions(ABC):
    """The entries of one point, and what happens when none fits.

    name: of the function, or of the segment that starts here
    key: points with the same key share `accumulated_cache_size_limit`
    place: where the user wrote it, for messages
    signature: the parameters of the entries
    shape: where a segment has ended that goes on here; None at the start of a function
    """

    keeper: Keeper | None = None
    shape: Shape | None = None

    def __init__(
        self,
        name: str,
        key: object,
        place: UserFrame,
        signature: Signature,
        backend: Backend,
        wishes: Wishes,
    ) -> None:
        self.name, self.key, self.place, self.signature = name, key, place, signature
        self.backend, self.wishes = backend, wishes
        self.reset()
        with tables:
            _all.add(self)

    def reset(self) -> None:
        """Drop every entry and every failure."""
        self.entries: tuple[Entry, ...] = ()  # newest last
        self.order: tuple[Entry, ...] = ()  # the same, by last use
        self.sizes = SizeHistory(self.name, self.wishes.dynamic, place=self.place)
        self.given_up = False
        self.called = False  # with the stance eager_then_compile
        self.misfit: str | None = None
        self.kept: list[str] = []  # the digests of its entries' records
        self.refusals: list[tuple[str, UserFrame | None]] = []  # why entries could not be kept, and at which lines
        self._failures: Counter[object] = Counter()
        self._warned: set[str] = set()
        self._refused: Counter[object] = Counter()  # how often nothing was made for tensors that cannot be inputs
        self._made_again = 0  # how many calls were made again in eager
        self._left = 0  # calls in eager before an entry makes room, once the limit is reached
        self._newest = (0.0, 0.0)  # when the last entry was made, and in how many seconds

    @abstractmethod
    def enter(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Run the newest entry that fits, else `miss`."""

    @abstractmethod
    def eager(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Go on without an entry."""

    @abstractmethod
    def capture_now(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Captured:
        """Capture from here. Raises Unsupported."""

    @abstractmethod
    def known(self, shape: Shape) -> Shape:
        """The one shape that stands for all that are equal: they are compared at every break. Raises what would go
        wrong when its frames are put together."""

    @abstractmethod
    def failed(self, error: Unsupported) -> str | None:
        """Account for a capture that failed. Returns what eager is expected to do, if the user's code is what failed:
        in words, for the exception leads to the values of the capture."""

    @abstractmethod
    def lead(self, entry: Entry) -> None:
        """Let callers enter at `entry`."""

    def install(self, entry: Entry) -> None:
        """Make `entry` the newest one."""
        self.entries = (*self.entries, entry)
        self._put_first(entry)

    def _put_first(self, entry: Entry) -> None:
        self.order = (entry, *(other for other in self.order if other is not entry))
        self.lead(entry)

    def others(self, number: int, *values: Any) -> tuple[Callable[..., object], list[object]] | None:
        """For a call that entry `number` does not fit: the function that goes on in the entry that does, which is tried
        first from now on, and what its check has found. None if no other entry fits.
        """
        return self._asked(self._other, number, values)

    def _asked(self, question: Callable[P, T], *about: P.args, **named: P.kwargs) -> T | None:
        """What `question`, which runs nothing of the program's, answers. None where it fails: eager takes over."""
        try:
            return question(*about, **named)
        except Exception as error:
            self._not_compiled(error)
            return None

    def _other(self, number: int, values: tuple[Any, ...]) -> tuple[Callable[..., object], list[object]] | None:
        order = self.order
        for place, entry in enumerate(order):
            wanted = entry.check.form(*values) if entry.number != number else None
            if wanted is not None:
                self._used(order, place)
                return entry.passed, wanted
        return None

    def _used(self, order: tuple[Entry, ...], place: int) -> None:
        """Try an entry of `order` first from now on, unless another thread compiles: that is not waited for."""
        if not compiling.acquire(blocking=False):
            return
        try:
            if self.order is order:
                self.order = (order[place], *order[:place], *order[place + 1 :])
                self.lead(order[place])
        finally:
            compiling.release()

    # ---- misses ------------------------------------------------------------------------------------------------------

    def miss(self, /, *args: object, **kwargs: object) -> Any:
        """No entry fits this call: compile one, or run the original."""
        if state.entering is self:
            raise _Unfit
        if not config.detect_leaks or state.stage:
            return self._miss(args, kwargs)
        try:
            result = self._miss(args, kwargs)
        except BaseException as error:
            leaks.refuse_in(self.name, error, "the exception")
            raise
        leaks.refuse_in(self.name, result, "the result")
        return result

    def _miss(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        expected: str | None = None
        ready = False
        try:
            ready = self.wanted(args, kwargs) and self._compile(args, kwargs)
        except BaseException as error:
            expected = self._not_compiled(error)
        if ready:
            return self._enter(args, kwargs)
        result = self.eager(args, kwargs)
        return result if expected is None else self.without_error(expected, result)

    def wanted(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether a call that no entry fits is to be compiled."""
        if state.stance != "default" and not state.stage and self._stays_eager(args, kwargs):
            return False
        if config.disable or state.stage or state.disabled or (self.given_up and not self._makes_room()):
            return False
        known = self._refused
        return not known or known[guards.refusals((*args, *kwargs.values()))] < config.cache_size_limit

    def _makes_room(self) -> bool:
        """Whether an entry makes room for one that fits this call, though there are as many as there may be. Programs
        have phases, as layers are unfrozen one after the other. It is the entry that was used last the longest ago, and
        only after some calls that none fits: entries that take turns are not to be made anew all the time."""
        self._left -= self._left > 1
        made, seconds = self._newest
        if self._left != 1 or (time.perf_counter() - made) * _SHARE < seconds:
            return False
        with compiling:
            if self._left == 1:  # no other thread was here
                self.order, oldest = self.order[:-1], self.order[-1:]
                self.entries = tuple([entry for entry in self.entries if entry not in oldest])
                self.given_up, self._left = False, 0
        return True

    def without_error(self, expected: str, result: Any) -> Any:
        """Eager has come to `result`, and capture was `expected` to meet an exception of the program's."""
        self.tell_not_raised(expected)
        return result

    def _not_compiled(self, error: BaseException) -> str | None:
        """Account for what kept a call from being compiled, or raise it, if that is not for eager to settle. Returns
        what eager is expected to do, as `failed`."""
        if isinstance(error, Unsupported):
            if (self.wishes.fullgraph or error.final) and error.about.scope != "user":
                raise error
            return self.failed(error)
        if isinstance(error, (BolideError, NestedTrace, OtherParameters)) and not isinstance(error, CompileError):
            raise error
        if isinstance(error, modes.Interrupted):
            raise error.error from None
        if not isinstance(error, Exception) or comes_from_outside(error):
            raise error
        self.bug(error if isinstance(error, CompileError) else CompileError("looking for a version", self.name, error))
        return None

    def _stays_eager(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """What the stance says of a call that no entry fits. Raises RecompileError with ``fail_on_recompile``."""
        if state.stance == "fail_on_recompile":
            self._fitting(args, kwargs)  # tells of the guards that failed
            why = f": expected {self._last_failure[0]}{_at(self._last_failure[1])}" if self.entries else ""
            raise RecompileError(f"{self.name} would be compiled, and the stance is fail_on_recompile{why}")
        first, self.called = not self.called, True
        return state.stance != "eager_then_compile" or first

    def _enter(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Call again, now that there is an entry for these arguments. If it does not fit either, run the original."""
        state.entering = self
        try:
            return self.enter(args, kwargs)
        except _Unfit:
            pass
        finally:
            state.entering = None
        self._asked(self._misfit, args, kwargs)
        return self.eager(args, kwargs)

    def _misfit(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The entry made for a call does not fit it: another thread has changed something meanwhile, so that the next
        call tries again. When the very same guard fails with the same value twice, it is a fault of bolide.
        """
        failure = asked.first_failure(self.entries[-1].guards, self.signature, args, kwargs) if self.entries else None
        if failure is None:
            return
        what = f"{guards.text(failure[0])} does not hold for the call that was captured, found {failure[1]}"
        if what != self.misfit:
            self.misfit = what
            return
        self.bug(CompileError("guards", self.name, AssertionError(what)))

    def _compile(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Make sure that there is an entry for this call; False if another thread has given this function up meanwhile,
        or tensors have no data.

        Raises Unsupported, CompileError or RecompileError.
        """
        reason = guards.busy()
        if guards.nested_trace():
            raise NestedTrace(
                f"the compiled function {self.name} is called while {reason}; call the function that it was made from, "
                "or set bolide.dynamo.config.error_on_nested_fx_trace (error_on_nested_jit_trace) to False: then it "
                "runs in eager there"
            )
        if guards.without_data((*args, *kwargs.values())):
            return False
        if reason is not None:
            raise Unsupported(reason, kind="state", remedy="call the compiled function outside of it")
        with compiling:
            if self.given_up:
                return False
            fitting = self._fitting(args, kwargs)
            if fitting is not None:
                self._put_first(fitting)
                return True
            self._check_limits(args, kwargs)
            with leaks.watched(self.name) if config.detect_leaks else collector_paused():
                self._make_entry(args, kwargs)
        return True

    def _make_entry(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        outer, state.call = state.call, (self, args, kwargs)
        try:
            with modes.undisturbed(), profiled(config.cprofile, self.name):
                entry = None if self.keeper is None else self.keeper.find(self, args, kwargs)
                self.install(self._make(args, kwargs) if entry is None else entry)
        except BaseException as error:
            release(error)
            if isinstance(error, (Unsupported, CompileError)):
                self._measure(None, 0, 0.0, 0.0, error)
            if isinstance(error, Unsupported) and error.kind == "input" and not (self.wishes.fullgraph or error.final):
                refusals = guards.refusals((*args, *kwargs.values()))
                self._refused[refusals] += bool(refusals)
            if isinstance(error, CompileError) and config.replay_record_enabled and recorder is not None:
                recorder(error)
            raise
        finally:
            state.stage, state.call = None, outer

    def _fitting(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Entry | None:
        """The entry that fits, made by another thread meanwhile. If there is none, tell which guards failed."""
        for entry in self.entries:
            failure = asked.first_failure(entry.guards, self.signature, args, kwargs)
            if failure is None:
                return entry
            self._guard_failed(entry, failure)
        return None

    def _guard_failed(self, entry: Entry, failure: asked.Failure) -> None:
        guard, actual, tensor = failure
        wanted = guards.text(guard)
        _log.debug(
            "%s: version %d does not fit: expected %s, found %s (read at %s)",
            self.name,
            entry.number,
            wanted,
            actual,
            guard.where,
        )
        if self.wishes.guard_fail is not None:
            self.wishes.guard_fail(GuardFail(f"expected {wanted}, found {actual}", self.key))  # type: ignore[arg-type]
        if events.subscribers:
            from bolide.dynamo.guards.advice import remedy

            told = guard.where or self.place, remedy(guard, tensor)
            events.emit(events.GuardFailed(self.name, entry.number, wanted, wanted, actual, *told))
        if entry is self.entries[-1]:
            self._last_failure = f"{wanted}, found {actual}", guard.where
            if config.error_on_recompile:
                raise RecompileError(
                    f"{self.name} would be compiled again: expected {self._last_failure[0]}" + _at(guard.where)
                )

    def _alike(self, args: tuple[object, ...], kwargs: dict[str, object], *besides: str) -> list[Sequence[Guard]]:
        """The guards of the entries that were made for calls of the same form under the same modes. `besides`: kinds of
        guards of which no form is made."""
        own = made_under([entry.guards for entry in self.entries], guards.global_state())
        names = {name for each in own for guard in each if guard.kind == "dict_keys" for name in guard.expected}
        of_same = (None, *besides)
        return [each for each in own if asked.other_form(each, names, self.signature, args, kwargs) in of_same]

    def _is_full(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether there are as many entries as there may be for calls of this form, or for all."""
        limit = config.cache_size_limit
        if not limit <= len(self.entries) < limit * _FORMS:
            return len(self.entries) >= limit
        return counted(self._alike(args, kwargs)) >= limit

    def _check_limits(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        total, own = sum(len(d.entries) for d in _known() if d.key is self.key), self._is_full(args, kwargs)
        if not own and total < config.accumulated_cache_size_limit:
            return
        which = "cache_size_limit" if own else "accumulated_cache_size_limit"
        reason = f"it was compiled {len(self.entries) if own else total} times ({which})"
        changing = ""
        if self.entries:
            changing, read_at = self._last_failure
            changing = f"; the guard that failed last: expected {changing}{_at(read_at)}"
        error = Unsupported(
            reason + changing,
            self.place,
            f"keep that value fixed between calls, or raise bolide.dynamo.config.{which}",
            kind="limit",
        )
        if config.fail_on_recompile_limit_hit:
            raise RecompileError(str(error))
        self.given_up = True
        if own:
            self._left = _PHASE
        raise error

    def _make(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Entry:
        """Capture and compile, again where it was found meanwhile that something is to be called for real, or that the
        program cannot be compiled with data as symbols: then it breaks where it reads them."""
        while True:
            known = self._known_derivatives()
            try:
                return self._make_once(args, kwargs)
            except (Unsupported, CompileError) as error:
                final = isinstance(error, Unsupported) and error.final
                if isinstance(error, Underivable):
                    self.sizes.underivable(error.key, error.reason)
                if isinstance(error, FixedSizesNeeded):
                    forgive(error)
                    continue
                if isinstance(error, Unsupported) and self._known_derivatives() > known:
                    continue
                if final or not (self.sizes.data_symbols and self.sizes.met_data):
                    raise
                self.sizes.data_symbols = False
                _log.info("%s: data are no symbols: %s", self.name, error)

    def _known_derivatives(self) -> int:
        return len(self.sizes.opaque) + len(self.sizes.called_for_real)

    def _make_once(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Entry:
        start = time.perf_counter()
        state.stage = "capture"
        surroundings = guards.global_state()
        self.sizes.versions = len(self._alike(args, kwargs, "length"))
        try:
            captured = self._captured(args, kwargs)
        except BolideError:
            raise
        except Exception as error:
            raise CompileError("capture", self.name, error) from error
        try:
            return self._entry(captured, start, surroundings)
        except BolideError:
            raise
        except Exception as error:
            raise CompileError("entry", self.name, error) from error
        finally:
            _let_go(captured)

    def _captured(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Captured:
        """What the call is captured as. If that ends where data has to be known which changes from call to call, and
        there is room for a version for this very data, that is tried; also where a break would be an error. Likewise
        if it ends at all, and bools of the graph may be the reason."""
        sizes = self.sizes
        sizes.left_unread = sizes.undecided = False
        captured: Captured | None = None
        try:
            captured = self._capture_fixed(args, kwargs)
        except Unsupported as error:
            if not sizes.undecided and (error.final or not sizes.left_unread):
                raise
            forgive(error)
        undecided = sizes.undecided
        unread = captured and _needs_data(captured) and sizes.left_unread and not sizes.is_crowded()
        if captured and not (unread or (undecided and captured.ending)):
            return captured
        sizes.reads_anew = True
        try:
            other = self._capture_fixed(args, kwargs)
        except Unsupported as error:
            if captured is None:
                raise
            forgive(error)
            return captured
        finally:
            sizes.reads_anew = False
        if captured is None:
            return other
        worse = _ends_alike(captured, other) if undecided else _needs_data(other)
        kept, dropped = (captured, other) if worse else (other, captured)
        _let_go(dropped)
        return kept

    def _capture_fixed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Captured:
        """As captured when what the program needs to know is no symbol any more."""
        captured = self.capture_now(args, kwargs)
        try:
            while self.sizes.fix(specialised(captured)):
                _let_go(captured)
                captured = self.capture_now(args, kwargs)
        except BaseException:
            _let_go(captured)
            raise
        return captured

    def _entry(self, captured: Captured, start: float, surroundings: GlobalState) -> Entry:
        """The entry of what was captured since `start`. Raises CompileError for a fault of the backend's."""
        captured.name = self.name
        state.stage = "backend"
        captured_after = time.perf_counter() - start
        if events.subscribers:
            operations = sum(node.op == "call_function" for node in captured.trace.graph.nodes)
            shown = tuple(map(guards.text, guards.prepare(captured.guards, surroundings)))
            for guard in filter(guards.is_of_data, captured.guards):
                assert guard.source is not None and guard.source.base is not None
                place = sources.text(guard.source.base)
                events.emit(events.DataRead(self.name, place, str(guard.expected), guard.where))
            events.emit(events.Captured(self.name, captured, shown, captured_after, operations))
        if captured.ending is not None:
            self._tell_break(captured.ending)
        try:
            run = self.backend(captured)
        except FixedSizesNeeded:
            if not self.sizes.fix_all(captured):
                raise Unsupported(
                    "a size that is marked as dynamic has to be known", self.place, kind="operator"
                ) from None
            raise
        except (Unsupported, CompileError):
            raise
        except Exception as error:
            raise CompileError("backend", self.name, error) from error
        if torch._C._autograd._profiler_enabled():
            run = _recorded(run, self.name)
        self.sizes.fix(specialised(captured))
        known = [*captured.guards, *shape_guards(captured)]
        checks = guards.prepare(known, surroundings)  # backward code of the user's was read meanwhile, too
        replay = replay_of(captured)
        entry = self.entry_of(replay, checks, run)
        if self.keeper is not None:
            self.keeper.keep(self, captured, checks, replay)
        now = time.perf_counter()
        seconds = now - start
        self._newest = now, seconds
        self._measure(captured, len(entry.guards), captured_after, seconds)
        if events.subscribers:
            events.emit(events.Installed(self.name, entry.number, entry.source, seconds))
        return entry

    def entry_of(self, replay: Replay, checks: Sequence[Guard], run: Runner) -> Entry:
        """The entry of a segment that is run by `run`, with those of its guards that are kept."""
        checks = select(checks, self.wishes.guard_filter)
        if isinstance(replay.shape, Shape):
            replay = replace(replay, shape=self.known(replay.shape))
        number = self.entries[-1].number + 1 if self.entries else 0
        return make_entry(self.signature, replay, checks, run, number, self.others, self.miss, self.again)

    def _measure(
        self,
        captured: Captured | None,
        checks: int,
        captured_after: float,
        seconds: float,
        error: BolideError | None = None,
    ) -> None:
        if config.log_compilation_metrics:
            operations = 0 if captured is None else len(captured.trace.graph.nodes)
            failure = None if error is None else getattr(error, "reason", str(error))
            metrics = CompilationMetrics(
                *(self.name, len(self.entries), operations, checks, captured_after, seconds, failure, self.place),
                fail_type=None if error is None else type(error).__name__,
                fail_place=getattr(error, "where", None),
                graph_input_count=0 if captured is None else len(captured.trace.inputs),
            )
            compilation_metrics.append(metrics)

    def _tell_break(self, ending: Break) -> None:
        _log.info("%s ends in a break: %s (%s)", self.name, ending.reason, ending.where)
        if ending.kind == "bug":
            self.warn(Unsupported(ending.reason, ending.where, kind="bug"))
        if events.subscribers:
            e = ending
            place = e.where or self.place
            events.emit(events.Break(self.name, e.kind, e.reason, e.operation, place, e.remedy, e.stack, e.seconds))

    def tell_not_raised(self, expected: str) -> None:
        """Warn of an exception that only capture has met. None of those that were met ends a segment."""
        self.sizes.learnt.raised.clear()
        self.warn(Unsupported(f"while it was captured, {expected}, which eager did not raise", kind="bug"))

    # ---- running in eager --------------------------------------------------------------------------------------------

    def again(self, fault: Exception | None, /, *args: object, **kwargs: object) -> Any:
        """The graph of an entry has raised, before any effect: the call is made in eager. `fault`: the error if it is
        one that eager does not raise."""
        self._asked(self._lose_patience)
        result = self.eager(args, kwargs)
        if fault is not None:
            if self.wishes.fullgraph or not config.suppress_errors:
                raise fault
            reason = f"the compiled graph raised what eager does not: {type(fault).__name__}: {fault}"
            self.warn(Unsupported(reason, kind="bug"))
        return result

    def _lose_patience(self) -> None:
        """What was taken for true of data seldom is."""
        self._made_again += 1
        if self._made_again == _PATIENCE and self.sizes.data_symbols and self.sizes.met_data:
            with compiling:
                self.reset()
                self.sizes.data_symbols = False

    def bug(self, error: CompileError) -> None:
        """A fault of bolide's, or of a backend's: it is told of, and eager takes over. Raises it if errors are not
        suppressed.
        """
        if self.wishes.fullgraph or not config.suppress_errors:
            raise error
        if events.subscribers:
            events.emit(events.Fallback(self.name, str(error), "bug", None, None, error))
        self._failures["bug"] += 1
        self.given_up |= self._failures["bug"] > 1
        detail = "".join(traceback.format_exception(error)) if config.verbose else ""
        told = Unsupported(f"{error}{detail and chr(10) + detail}", remedy=error.remedy, kind="bug")
        self.warn(told, f"{error.stage}: {error.__cause__!r}")

    def warn(self, error: Unsupported, cause: str | None = None) -> None:
        """One warning for each reason; for each `cause` if that is given."""
        e, known = error, cause or same_reason(error)
        if known in self._warned:
            return
        self._warned.add(known)
        text = describe(f"{self.name} runs in eager", e.kind, e.reason, e.operation, e.where, e.remedy)
        place = e.where or self.place
        warnings.warn_explicit(text, BolideWarning, place.file, place.line)


def same_reason(error: Unsupported) -> str:
    """What refusals say that differ by sizes alone. A limit is told of once at a place, whatever the guard."""
    reason = re.sub(r"\d+", "#", error.reason)
    return f"{reason.partition(';')[0]} {error.where}" if error.kind == "limit" else reason


def _let_go(captured: Captured) -> None:
    """What was captured is compiled: who keeps it keeps none of the call's values."""
    release, captured.release = captured.release, lambda: None
    release()


def _recorded(run: Runner, name: str) -> Runner:
    """What is compiled while a profiler is on shows in its records."""

    def recorded(inputs: list[object]) -> Sequence[Any]:
        with torch.autograd.profiler.record_function(f"bolide {name}"):
            return run(inputs)

    return recorded


def _at(where: UserFrame | None) -> str:
    return f" (read at {where})" if where else ""


@on_reset
def reset() -> None:
    """Drop the compiled versions of every function."""
    with compiling:
        for versions in _known():
            versions.reset()
