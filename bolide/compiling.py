"""`bolide.compile`, and the one place where the three stages meet: capture → differentiate → generate."""

from __future__ import annotations

import functools
import inspect
import time
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, overload

import torch
from torch import fx, nn

from bolide import functorch, inductor
from bolide.dynamo import module as modules
from bolide.dynamo.capture import capture
from bolide.dynamo.config import config
from bolide.dynamo.dispatch import Dispatcher
from bolide.dynamo.program import Captured
from bolide.dynamo.replay import Runner
from bolide.functorch import GraphInfo
from bolide.support import events
from bolide.support.errors import BolideWarning, CompileError, Unsupported, UserFrame, unknown_name
from bolide.support.garbage import collector_paused
from bolide.tracing import TensorMeta

T = TypeVar("T", bound=Callable[..., Any])
GraphCompiler = Callable[[fx.GraphModule, GraphInfo], Callable[[list[Any]], Any]]

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {},
    "max-autotune-no-cudagraphs": {},
}


@dataclass(frozen=True)
class Settings:
    """The arguments of `compile`, checked."""

    fullgraph: bool
    dynamic: bool | None
    backend: str
    options: tuple[tuple[str, Any], ...]


# ---- backends --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackendKind:
    """How the graphs of a program are made and compiled.

    `devices`: the device types it has code for (None: all). `tags` exclude a backend from `list_backends`.
    """

    graph_compiler: GraphCompiler
    partition: Literal["default", "min_cut"]
    devices: frozenset[str] | None = None
    tags: tuple[str, ...] = ()


_backends: dict[str, BackendKind] = {
    "inductor": BackendKind(inductor.compile_graph, "min_cut", frozenset({"cpu"})),
    "aot_eager": BackendKind(functorch.interpret, "min_cut", tags=("debug",)),
    "eager": BackendKind(functorch.interpret, "default", tags=("debug",)),
}


def list_backends(exclude_tags: tuple[str, ...] = ("debug", "experimental")) -> list[str]:
    """Names of the backends that have none of `exclude_tags`, sorted."""
    return sorted(name for name, kind in _backends.items() if not set(exclude_tags or ()) & set(kind.tags))


def _run_backend(settings: Settings, name: str, captured: Captured) -> Runner:
    kind = _backends[settings.backend]
    _check_devices(captured, kind.devices)
    compiler = functools.partial(_compile_graph, kind.graph_compiler, dict(settings.options), name)
    return functorch.compile_trace(
        captured.trace,
        captured.outputs,
        forward_compiler=compiler,
        backward_compiler=compiler,
        partition=kind.partition,
    )


def _check_devices(captured: Captured, devices: frozenset[str] | None) -> None:
    """Raises Unsupported when a tensor of the program lives where the backend has no code for."""
    if devices is None:
        return
    for node in captured.trace.graph.nodes:
        meta = node.meta.get("val")
        for value in meta if type(meta) in (tuple, list) else (meta,):
            if isinstance(value, TensorMeta) and value.device.type not in devices:
                raise Unsupported(
                    f"a tensor is on device {value.device}, and code is generated for {', '.join(devices)} only",
                    node.meta.get("where"),
                    'move it, or use backend="aot_eager"',
                    kind="input",
                )


def _compile_graph(
    compiler: GraphCompiler, options: dict[str, Any], name: str, graph: fx.GraphModule, info: GraphInfo
) -> Callable[[list[Any]], Any]:
    """Compile one graph. If the compiler fails, the graph is interpreted by ATen calls instead, unless
    `suppress_errors` is off.
    """
    if events.subscribers:
        events.emit(events.Graph(name, info.kind, graph))
    start = time.perf_counter()
    try:
        with collector_paused(), inductor.config.patch(options):
            compiled = compiler(graph, info)
    except Exception as error:
        failure = CompileError(f"{info.kind} graph", name, error)
        if not config.suppress_errors:
            raise failure from error
        warnings.warn(f"{failure}; this graph runs through ATen calls", BolideWarning, stacklevel=2)
        if events.subscribers:
            events.emit(events.Fallback(name, str(failure), "bug", None, None, failure))
        compiled = functorch.interpret(graph, info)
    if events.subscribers:
        events.emit(events.Compiled(name, info.kind, compiled, time.perf_counter() - start))
    return compiled


# ---- compile ---------------------------------------------------------------------------------------------------------


@overload
def compile(
    model: T,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> T: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[T], T]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "inductor",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """A faster callable with the behaviour of `model`; it is compiled when first called, and again when an assumption
    about its arguments or surroundings fails.

    model: a function, method, `nn.Module` or any callable; without it, a decorator is returned. A module comes back as
    a module that shares everything with it.
    fullgraph: raise `Unsupported` at the first thing that cannot be captured, instead of running in eager with a
    warning.
    dynamic: accepted for compatibility; sizes are fixed in each compiled version at present.
    backend: ``inductor``, or for debugging ``aot_eager`` (ATen calls, min-cut partition) or ``eager`` (ATen calls,
    default partition).
    mode: ``default``, ``reduce-overhead``, ``max-autotune`` or ``max-autotune-no-cudagraphs``; excludes `options`.
    options: values for `bolide.inductor.config` while compiling.
    disable: return `model` as it is.

    Raises TypeError for what cannot be called or has the wrong type, ValueError for unknown names, with the nearest
    ones.
    """
    settings = _settings(fullgraph, dynamic, backend, mode, options)
    if model is None:
        return functools.partial(_compile, settings=settings, disable=disable)
    return _compile(model, settings, disable)


def _settings(fullgraph: Any, dynamic: Any, backend: Any, mode: Any, options: Any) -> Settings:
    if not isinstance(fullgraph, bool):
        raise TypeError(f"fullgraph must be True or False, not {fullgraph!r}")
    if not (dynamic is None or isinstance(dynamic, bool)):
        raise TypeError(f"dynamic must be None, True or False, not {dynamic!r}")
    if not isinstance(backend, str):
        raise TypeError(f"backend must be the name of a backend ({', '.join(sorted(_backends))}), not {backend!r}")
    if backend not in _backends:
        raise ValueError(unknown_name("backend", backend, _backends))
    if mode is not None and options is not None:
        raise ValueError(
            "mode and options exclude each other: give the options that the mode stands for, or only one of the two"
        )
    if mode is not None and mode not in MODES:
        raise ValueError(unknown_name("mode", mode, MODES))
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(
            f"options must be a dict of bolide.inductor.config names and values, not {type(options).__name__}"
        )
    chosen = dict(options or MODES[mode or "default"])
    known = inductor.config.shallow_copy_dict()
    for name in chosen:
        if name not in known:
            raise ValueError(unknown_name("option", name, known))
    inductor.config.patch(chosen)
    return Settings(fullgraph, dynamic, backend, tuple(chosen.items()))


def _compile(model: Any, settings: Settings, disable: bool) -> Any:
    if isinstance(model, type) or not callable(model):
        what = f"the class {model.__qualname__}" if isinstance(model, type) else repr(model)
        raise TypeError(f"compile expects a function, a method or an nn.Module (an instance), not {what}")
    if disable or config.disable:
        return model
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return _refuse(model, settings, "TorchScript has compiled it already", "compile the Python it was made from")
    if isinstance(model, modules.CompiledModule):
        model = model._orig_mod
    if isinstance(model, nn.Module):
        rebuild = functools.partial(_compile, settings=settings, disable=False)
        return modules.wrap(model, _of_target(model, settings), rebuild)
    if isinstance(model, types.MethodType):
        return types.MethodType(_compile(model.__func__, settings, False), model.__self__)
    if not isinstance(model, types.FunctionType):
        return functools.update_wrapper(functools.partial(_of_target(model, settings), model), model)
    if hasattr(model, "_bolide"):
        model = model._bolide.original
    code = model.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return _refuse(
            model, settings, "it is a generator or coroutine function", "compile the functions that it calls"
        )
    return _dispatcher(model, settings, model.__qualname__, code).function


def call_target(target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What is captured for a module or another callable object."""
    return target(*args, **kwargs)


def _of_target(target: Any, settings: Settings) -> Callable[..., Any]:
    name = getattr(target, "__qualname__", type(target).__qualname__)
    code = getattr(target.forward if isinstance(target, nn.Module) else type(target).__call__, "__code__", None)
    return _dispatcher(cast(types.FunctionType, call_target), settings, name, type(target), code).function


def _dispatcher(
    original: types.FunctionType, settings: Settings, name: str, key: object, place: types.CodeType | None = None
) -> Dispatcher:
    backend = functools.partial(_run_backend, settings, name)
    return Dispatcher(original, capture, backend, name=name, key=key, place=place, fullgraph=settings.fullgraph)


def _refuse(model: Any, settings: Settings, reason: str, remedy: str) -> Any:
    """`model` itself, with a warning (an error with fullgraph), because nothing of it can be compiled."""
    code = getattr(model, "__code__", None)
    where = UserFrame(code.co_filename, code.co_firstlineno, model.__qualname__) if code else None
    error = Unsupported(reason, where, remedy)
    if settings.fullgraph:
        raise error
    warnings.warn(
        f"{getattr(model, '__qualname__', type(model).__qualname__)} runs in eager: {error}",
        BolideWarning,
        stacklevel=4,
    )
    return model
