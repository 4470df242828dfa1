"""When the engine's backward passes are captured."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator

import torch

from bolide.dynamo.compiled_autograd import engine
from bolide.dynamo.compiled_autograd.instance import AutogradCompilerInstance, CompilerFn, counters
from bolide.dynamo.compiled_autograd.running import region
from bolide.support import log
from bolide.support.caches import on_reset
from bolide.tracing import modes

_cpp = torch._C._dynamo.compiled_autograd


Setting = tuple[Callable[[], AutogradCompilerInstance] | None, bool]  # what captures (None: nothing does), dynamic


class _State:
    """Of the process: the settings of the contexts that are open, in whatever threads, the newest last; what was there
    before the first; `standing`: what ends what `always` has begun."""

    def __init__(self) -> None:
        self.open: dict[object, Setting] = {}
        self.before: modes.HookSetting = (None, False)
        self.standing: contextlib.ExitStack | None = None

    @property
    def enabled(self) -> bool:
        return self.newest[0] is not None

    @property
    def newest(self) -> modes.HookSetting:
        return [self.before, *self.open.values()][-1]

    def add(self, context: object, setting: Setting) -> None:
        with modes.uncaptured.lock:
            before = modes.uncaptured.put(*setting)
            if not self.open:
                self.before = before
                engine.install()
            self.open[context] = setting

    def remove(self, context: object) -> None:
        with modes.uncaptured.lock:
            if self.open.pop(context, None):  # there has been no reset
                modes.uncaptured.put(*self.newest)
            if not self.open:
                engine.uninstall()


state = _State()


@contextlib.contextmanager
def enable(compiler_fn: CompilerFn, dynamic: bool = True) -> Iterator[None]:
    """Backward passes that begin inside are captured: each as a graph (an `fx.GraphModule`), for which `compiler_fn`
    gives what runs in its place. One that was captured before runs without another capture.

    dynamic: sizes are symbolic. Otherwise each set of sizes is captured.

    Raises TypeError for what cannot be called with a graph alone, as a backend cannot.
    """
    if not callable(compiler_fn):
        raise TypeError(f"compiler_fn must be a function of a graph module, not {compiler_fn!r}")
    if not isinstance(dynamic, bool):
        raise TypeError(f"dynamic must be True or False, not {dynamic!r}")
    with _captured(compiler_fn, dynamic):
        yield


@contextlib.contextmanager
def _captured(compiler_fn: CompilerFn, dynamic: bool, by_function: bool = False) -> Iterator[None]:
    factory = functools.partial(AutogradCompilerInstance, compiler_fn, by_function)
    with _put(factory, dynamic), _on_this_thread():
        yield


@contextlib.contextmanager
def disable() -> Iterator[None]:
    """Backward passes that begin inside are the engine's."""
    with _put(None, False):
        yield


@contextlib.contextmanager
def _put(factory: Callable[[], AutogradCompilerInstance] | None, dynamic: bool) -> Iterator[None]:
    context = object()
    state.add(context, (factory, dynamic))
    if factory is not None:
        verbose = log.artifact("compiled_autograd_verbose")
        _cpp.set_verbose_logger(verbose if verbose.isEnabledFor(logging.DEBUG) else None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        state.remove(context)


@contextlib.contextmanager
def _on_this_thread() -> Iterator[None]:
    """The engine runs no other threads."""
    before = torch.autograd.is_multithreading_enabled()
    torch._C._set_multithreading_enabled(False)
    try:
        yield
    finally:
        torch._C._set_multithreading_enabled(before)


def always(compiler_fn: CompilerFn | None, *, by_function: bool = False) -> None:
    """As in `enable`, from now on; with None no longer. by_function: the backend of a compiled function goes before
    `compiler_fn`, for passes that its backward is a part of."""
    if state.standing is not None:
        state.standing.close()
        state.standing = None
    if compiler_fn is not None:
        state.standing = contextlib.ExitStack()
        state.standing.enter_context(_captured(compiler_fn, True, by_function))


def reset() -> None:
    """Nothing is captured any more, and what was captured is forgotten. Raises RuntimeError inside a captured backward
    pass."""
    if region.entered:
        raise RuntimeError("compiled autograd cannot be reset inside a captured backward pass")
    always(None)
    with modes.uncaptured.lock:
        state.open.clear()
        state.before = None, False
        modes.uncaptured.put(None, False)
        engine.uninstall()
    _cpp.set_verbose_logger(None)
    _forget()


@on_reset
def _forget() -> None:
    engine.between_passes(_clear)


def _clear() -> None:
    _cpp.clear_cache()
    counters.clear()
