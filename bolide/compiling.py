"""`bolide.compile`, and the one place where the three stages meet: capture → differentiate → generate."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import torch
from torch import fx, nn
from torch.fx._lazy_graph_module import _LazyGraphModule

from bolide import functorch, inductor
from bolide.backends import Partition, recording_interpreter, run_calls, run_trace
from bolide.dynamo.backends import (
    CompilerFn,
    get_default_backend,
    lookup_backend,
    register_backend,
    register_debug_backend,
)
from bolide.dynamo.config import config
from bolide.dynamo.entry import module as modules
from bolide.dynamo.entry.capture import Decompositions, Table, capture, capture_rest
from bolide.dynamo.entry.dispatch import Dispatcher
from bolide.dynamo.entry.replay import Entry, Runner
from bolide.dynamo.entry.versions import Versions, Wishes
from bolide.dynamo.library.marks import assume_constant_result
from bolide.dynamo.machine.calls import has_intercept, intercept
from bolide.dynamo.program.captured import Captured, Guard, Replay
from bolide.dynamo.state import original_of, state
from bolide.dynamo.torch_calls.state import nested_compile
from bolide.functorch import GraphCompiler
from bolide.functorch.runtime.wrappers import Backward
from bolide.support import events
from bolide.support.artifacts import is_on, switch
from bolide.support.errors import BolideWarning, Unsupported, UserFrame, unknown_name

if TYPE_CHECKING:
    from bolide.saving.keeper import Keeper

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Settings:
    """The arguments of `compile`, checked."""

    wishes: Wishes
    backend: CompilerFn
    options: tuple[tuple[str, Any], ...]


# ---- backends --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TraceBackend:
    """A backend that takes the functional graphs of a program, forward and backward, instead of one graph of torch's
    functions. `devices`: the device types it has code for (None: all). `decompositions` gives what is recorded in place
    of operations. `inner`: it compiles a graph that it was given.
    """

    name: str
    compiler: GraphCompiler
    partition: Partition
    devices: frozenset[str] | None = None
    decompositions: Decompositions = dict
    inner: bool = False

    def takes_calls(self) -> bool:
        """Whether it is given graphs of torch's functions all the same, as these are what `repro_after` looks at."""
        return config.repro_after == "dynamo" and not self.inner

    def draws_as_eager(self) -> bool:
        """Whether random numbers are eager's: those of a graph that it was given are, and where ATen runs all."""
        return self.inner or self.compiler is functorch.interpret

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[object], **options: object) -> Callable[..., Any]:
        """As any other backend: `gm` compiled when it is first called."""
        return _compile_forward(gm, replace(self, inner=True), **options)


def eager(gm: fx.GraphModule, example_inputs: Sequence[object], **options: object) -> Callable[..., Any]:
    """Runs the captured calls of torch's functions as they are."""
    return gm.forward


def ts(gm: fx.GraphModule, example_inputs: Sequence[object], **options: object) -> Callable[..., Any]:
    """TorchScript: the captured calls scripted and frozen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its own TorchScript deprecated
        return cast(Callable[..., object], torch.jit.freeze(torch.jit.script(gm.eval())))


@functools.cache
def _core() -> Table:
    """torch's decompositions into core ATen operations."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions().items())  # type: ignore[no-untyped-call]


_DEVICES = frozenset({"cpu", "cuda"} if torch.version.hip is None else {"cpu"})  # AMD's GPUs are called cuda, too
_INDUCTOR = TraceBackend("inductor", inductor.compile_graph, "min_cut", _DEVICES)
register_backend(_INDUCTOR, "inductor")
for _backend in (
    TraceBackend("aot_eager", functorch.interpret, "min_cut"),
    TraceBackend("aot_eager_default_partitioner", functorch.interpret, "default"),
    TraceBackend("aot_eager_decomp_partition", functorch.interpret, "min_cut", decompositions=_core),
):
    register_debug_backend(_backend, _backend.name)
register_debug_backend(eager)
register_debug_backend(ts)
register_backend(TraceBackend("cudagraphs", recording_interpreter, "min_cut"), "cudagraphs")


def _run_backend(settings: Settings, parameters: Sequence[str], captured: Captured) -> Runner:
    backend, options = settings.backend, dict(settings.options)
    if state.backend is not None:
        backend, options = state.backend, {}
    if isinstance(backend, TraceBackend):
        if not backend.takes_calls():
            if config.compiled_autograd and captured.trace.derivation.passes:
                _count_capture()
            whole = functools.partial(compile, backend=backend, options=options, dynamic=True)
            return run_trace(captured, backend.compiler, backend.partition, options, backend.devices, whole)
        options = {"options": options}
    return run_calls(captured, backend, options, parameters, floats=backend is eager)


# ---- compile ---------------------------------------------------------------------------------------------------------


@overload
def compile(
    model: T,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | CompilerFn | None = ...,
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
    backend: str | CompilerFn | None = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[T], T]: ...


def compile(
    model: object = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | CompilerFn | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> Any:
    """A faster callable with the behaviour of `model`; it is compiled when first called, and again when an assumption
    about its arguments or surroundings fails.

    model: a function, method, `nn.Module` or any callable; without it, a decorator is returned. A module comes back as
    a module that shares everything with it; a class comes back itself, with its `forward` (of modules) or ``__call__``
    compiled.
    fullgraph: raise `Unsupported` at the first thing that cannot be captured, instead of running in eager with a
    warning.
    dynamic: None: a size, integer or float that differs from the first call's is symbolic from the next compiled
    version on; True: all sizes, and integers among the arguments, are symbolic from the start; False: none ever.
    backend: None: the default (``inductor``, see `set_default_backend`); for debugging ``eager`` (torch's functions),
    ``aot_eager`` (ATen calls); any other name of `bolide.dynamo.list_backends(None)`; or a callable
    ``(gm: fx.GraphModule, example_inputs: list[Tensor]) -> callable``, which gets `mode` and `options` as keywords if
    they are given.
    mode: ``default``, ``reduce-overhead`` (the option `triton.cudagraphs`; nothing else on the CPU),
    ``max-autotune-no-cudagraphs`` (the option `max_autotune`: schedules and libraries are chosen by running them) or
    ``max-autotune`` (both); excludes `options`.
    options: values for `bolide.inductor.config` while compiling; ``guard_filter_fn`` (see
    `bolide.dynamo.guards.filters`) chooses which guards are kept, ``guard_fail_fn`` is told (as a `GuardFail`) which
    one did not hold.
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
    compiler = lookup_backend(get_default_backend() if backend is None else backend)
    if mode is not None and options is not None:
        raise ValueError(
            "mode and options exclude each other: give the options that the mode stands for, or only one of the two"
        )
    if mode is not None and mode not in inductor.MODES:
        raise ValueError(unknown_name("mode", mode, inductor.MODES))
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(
            f"options must be a dict of bolide.inductor.config names and values, not {type(options).__name__}"
        )
    chosen = dict(options or inductor.MODES[mode or "default"])
    hooks = {name: chosen.pop(name, None) for name in ("guard_filter_fn", "guard_fail_fn")}
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise TypeError(f"{name} must be a function, not {hook!r}")
    wishes = Wishes(fullgraph, dynamic, *hooks.values())
    if not isinstance(compiler, TraceBackend):
        given = {"mode": mode if mode != "default" else None, "options": chosen if options and chosen else None}
        passed = tuple((k, v) for k, v in given.items() if v is not None)
        return Settings(wishes, compiler, passed)
    known = inductor.config.shallow_copy_dict()
    for name in chosen:
        if name not in known:
            raise ValueError(unknown_name("option", name, known))
    inductor.config.patch(chosen)
    return Settings(wishes, compiler, tuple(chosen.items()))


def _compile(model: object, settings: Settings, disable: bool) -> Any:
    if isinstance(model, (classmethod, staticmethod)):
        return type(model)(_compile(model.__func__, settings, disable))
    if isinstance(model, property) and model.fget is not None:
        return model.getter(_compile(model.fget, settings, disable))
    if isinstance(model, type):
        return _compile_class(model, settings, disable)
    if not callable(model):
        raise TypeError(f"compile expects a function, a method or an nn.Module, not {model!r}")
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
    if not isinstance(model, types.FunctionType) or has_intercept(model):
        return functools.update_wrapper(functools.partial(_of_target(model, settings), model), model)
    model = original_of(model)
    code = model.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return _refuse(
            model, settings, "it is a generator or coroutine function", "compile the functions that it calls"
        )
    return _dispatcher(model, settings, model.__qualname__, code).function


def _compile_class(cls: type, settings: Settings, disable: bool) -> type:
    """`cls`, whose instances' calls are compiled from now on: `forward` of modules, ``__call__`` of others."""
    name = "forward" if issubclass(cls, nn.Module) else "__call__"
    method = getattr(cls, name, None)
    if not isinstance(method, types.FunctionType) or cls.__module__.partition(".")[0] == "torch":
        raise TypeError(
            f"compile expects a function, a method or an nn.Module (an instance), not the class {cls.__qualname__}; of "
            f"classes, it takes the program's own with a method {name}"
        )
    setattr(cls, name, _compile(method, settings, disable))
    return cls


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[object],
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A faster callable with the behaviour of a graph module (`bolide.inductor.compile`); it is compiled when it is
    first called. `torch.compile(…, backend="bolide")` calls this.
    """
    return _compile_forward(gm, "inductor", options=options, mode=mode)


def _compile_forward(gm: fx.GraphModule, backend: str | CompilerFn, **arguments: Any) -> Callable[..., Any]:
    if isinstance(gm, _LazyGraphModule):
        gm.force_recompile(gm)  # its forward writes itself when it is first called
    return compile(gm.forward, backend=backend, **arguments)


def _of_target(target: object, settings: Settings) -> Callable[..., Any]:
    name = getattr(target, "__qualname__", type(target).__qualname__)
    code = getattr(target.forward if isinstance(target, nn.Module) else type(target).__call__, "__code__", None)
    parameters = code.co_varnames[: code.co_argcount] if code is not None else ("self",)
    return _dispatcher(
        cast(types.FunctionType, modules.call_target), settings, name, type(target), code, parameters=parameters
    ).function


def _captured(settings: Settings, how: Callable[..., Captured], *call: object) -> Captured:
    """A call, captured in the manner that its backend wants."""
    backend, breaks = settings.backend, not settings.wishes.fullgraph
    if isinstance(backend, TraceBackend) and not backend.takes_calls():
        return how(*call, breaks=breaks, draws_as_eager=backend.draws_as_eager(), decompositions=backend.decompositions)
    return how(*call, breaks=breaks, record_calls=True)


def _dispatcher(
    original: types.FunctionType,
    settings: Settings,
    name: str,
    key: object,
    place: types.CodeType | None = None,
    parameters: Sequence[str] = (),
) -> Dispatcher:
    backend = functools.partial(_run_backend, settings, parameters)
    dispatcher = Dispatcher(
        original,
        functools.partial(_captured, settings, capture),
        backend,
        rest=functools.partial(_captured, settings, capture_rest),
        name=name,
        key=key,
        place=place,
        wishes=settings.wishes,
    )
    if settings.backend is _INDUCTOR and settings.wishes.guard_filter is None:
        dispatcher.keeper = LazyKeeper(functools.partial(_keeper, original, key, settings))
    return dispatcher


def _keeper(original: types.FunctionType, key: object, settings: Settings) -> Keeper:
    from bolide.saving.keeper import Keeper  # when something is compiled

    target = key if isinstance(key, type) else original
    options, wishes = dict(settings.options), settings.wishes
    whole = functools.partial(compile, backend=settings.backend, options=options, dynamic=True)
    asked = {"fullgraph": wishes.fullgraph, "dynamic": wishes.dynamic, "options": options or None}
    return Keeper(original, target, asked, whole)


class LazyKeeper:
    """A keeper that is loaded when something is compiled. `asked`: whether it is there with the cache off, too."""

    def __init__(self, make: Callable[[], Keeper]) -> None:
        self.keeper = functools.cache(make)
        self.asked = False

    def find(self, versions: Versions, args: tuple[object, ...], kwargs: dict[str, object]) -> Entry | None:
        """As `Keeper.find`."""
        return self.keeper().find(versions, args, kwargs) if is_on() or self.asked else None

    def keep(self, versions: Versions, captured: Captured, guards: Sequence[Guard], replay: Replay) -> None:
        """As `Keeper.keep`."""
        if is_on() or self.asked:
            self.keeper().keep(versions, captured, guards, replay)

    def refused(self, versions: Versions, error: Unsupported) -> None:
        """As `Keeper.refused`."""
        if is_on() or self.asked:
            self.keeper().refused(versions, error)


def _refuse(model: Any, settings: Settings, reason: str, remedy: str) -> Any:
    """`model` itself, with a warning (an error with fullgraph), because nothing of it can be compiled."""
    code = getattr(model, "__code__", None)
    where = UserFrame(code.co_filename, code.co_firstlineno, model.__qualname__) if code else None
    error = Unsupported(reason, where, remedy, kind="generator" if code else "native_call")
    if settings.wishes.fullgraph:
        raise error
    name = getattr(model, "__qualname__", type(model).__qualname__)
    if events.subscribers:
        events.emit(events.Skipped(name, name, reason, where))
    warnings.warn(f"{name} runs in eager: {error}", BolideWarning, stacklevel=4)
    return model


def _count_capture() -> None:
    """A program that derives was captured, its backward passes with it."""
    from bolide.dynamo import compiled_autograd

    compiled_autograd.counters["compiled_autograd"]["captures"] += 1


def _capture_backwards(wanted: bool) -> None:
    """What the option `compiled_autograd` does."""
    from bolide.dynamo import compiled_autograd

    compiled_autograd.always(functools.partial(compile, dynamic=True) if wanted else None, by_function=True)


intercept(compile)(nested_compile)
assume_constant_result(Backward.module)
config.watch("compiled_autograd", _capture_backwards)
config.watch("force_disable_caches", switch)
switch(config.force_disable_caches)
