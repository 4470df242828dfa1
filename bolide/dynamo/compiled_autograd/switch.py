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

_cpp = torch._C._dynamo.compiled_autograd


class _State:
    """Of the process: whether backward passes are captured; `standing`: what ends what `always` has begun."""

    enabled = False
    standing: contextlib.ExitStack | None = None


state = _State()


@contextlib.contextmanager
def enable(compiler_fn: CompilerFn, dynamic: bool = True) -> Iterator[None]:
    """Backward passes that begin inside are captured: each as a graph (an `fx.GraphModule`), for which `compiler_fn`
    gives what runs in its place. One that was captured before runs without another capture.

    dynamic: sizes are symbolic. Otherwise each set of sizes is captured.
    """
    if not isinstance(dynamic, bool):
        raise TypeError(f"dynamic must be True or False, not {dynamic!r}")
    with _put(functools.partial(AutogradCompilerInstance, compiler_fn), dynamic), _on_this_thread():
        yield


@contextlib.contextmanager
def disable() -> Iterator[None]:
    """Backward passes that begin inside are the engine's."""
    with _put(None, False):
        yield


@contextlib.contextmanager
def _put(factory: Callable[[], AutogradCompilerInstance] | None, dynamic: bool) -> Iterator[None]:
    before = _cpp.set_autograd_compiler(factory, dynamic)  # type: ignore[arg-type]
    was, state.enabled = state.enabled, factory is not None
    if factory is not None:
        engine.install()
        verbose = log.artifact("compiled_autograd_verbose")
        _cpp.set_verbose_logger(verbose if verbose.isEnabledFor(logging.DEBUG) else None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        _cpp.set_autograd_compiler(*before)
        state.enabled = was
        if not was:
            engine.uninstall()


@contextlib.contextmanager
def _on_this_thread() -> Iterator[None]:
    """The engine runs no other threads."""
    before = torch.autograd.is_multithreading_enabled()
    torch._C._set_multithreading_enabled(False)
    try:
        yield
    finally:
        torch._C._set_multithreading_enabled(before)


def always(compiler_fn: CompilerFn | None) -> None:
    """As in `enable`, from now on; with None no longer."""
    if state.standing is not None:
        state.standing.close()
        state.standing = None
    if compiler_fn is not None:
        state.standing = contextlib.ExitStack()
        state.standing.enter_context(enable(compiler_fn))


def reset() -> None:
    """Nothing is captured any more, and what was captured is forgotten. Raises RuntimeError inside a captured backward
    pass."""
    if region.entered:
        raise RuntimeError("compiled autograd cannot be reset inside a captured backward pass")
    always(None)
    _cpp.set_autograd_compiler(None, False)
    _cpp.set_verbose_logger(None)
    state.enabled = False
    engine.uninstall()
    _forget()


@on_reset
def _forget() -> None:
    if not region.entered:
        _cpp.clear_cache()
        counters.clear()
