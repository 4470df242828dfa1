"""From a captured program to a function that runs it: through the functional graphs of bolide's own stages, or through
a backend that takes one graph of torch's functions.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, fx

from bolide import functorch, inductor
from bolide.dynamo.backends import CompilerFn
from bolide.dynamo.config import config
from bolide.dynamo.entry import versions
from bolide.dynamo.entry.replay import Runner
from bolide.dynamo.library import provenance
from bolide.dynamo.program.captured import Captured, Source
from bolide.dynamo.state import state, which_call
from bolide.functorch import GraphCompiler, GraphInfo
from bolide.functorch.graphs import constants_of, placeholders
from bolide.support import errors, events
from bolide.support.errors import BolideWarning, CompileError, Unsupported
from bolide.support.garbage import collector_paused
from bolide.support.locks import compiling
from bolide.tracing import TensorMeta, modes
from bolide.tracing.called.branches import branch, repeat
from bolide.tracing.described import describe, example

if TYPE_CHECKING:
    from bolide.inductor.cudagraphs.function import Run, Writes

Partition = Literal["default", "min_cut"]

watched: Callable[[Literal["aot", "dynamo"], CompilerFn, str], CompilerFn] | None = None
"""Makes of a compiler one that reports graphs on which it fails, as `repro_after` asks for; the name is the captured
function's. `bolide` sets it, as the code is that of `debug`."""


# ---- the functional graphs -------------------------------------------------------------------------------------------


def run_trace(
    captured: Captured,
    compiler: GraphCompiler,
    partition: Partition,
    options: Mapping[str, object],
    devices: frozenset[str] | None = None,
    whole: Callable[[fx.GraphModule], Callable[..., object]] | None = None,
) -> Runner:
    """The forward and backward graphs of a program, each compiled by `compiler`; by `whole` a captured backward pass
    that the program's is a part of.

    options: values for `inductor.config` while compiling; devices: the device types it has code for (None: all).
    Programs of fewer operations than `minimum_call_count` are interpreted. Where grad mode is off at the beginning and
    a result requires grad all the same, it was switched on meanwhile.

    Raises Unsupported for tensors on other devices.
    """
    _check_devices(captured, devices)
    if sum(node.op == "call_function" for node in captured.trace.graph.nodes) < config.minimum_call_count:
        compiler = functorch.interpret
    compiling = functools.partial(compile_graph, compiler, dict(options), captured.name)
    switched = not torch.is_grad_enabled() and any(output.requires_grad for output in captured.outputs)
    with torch.enable_grad() if switched else contextlib.nullcontext():
        return functorch.compile_trace(
            captured.trace,
            captured.outputs,
            forward_compiler=compiling,
            backward_compiler=compiling,
            partition=partition,
            title=captured.name,
            on_fault=functools.partial(interpreted, captured.trace.graph, captured.name),
            whole=whole,
            with_grad=switched,
            made=functools.partial(setattr, captured, "program"),
            constants=_constants(captured) if options.get("freezing", inductor.config.freezing) else frozenset(),
        )


def _constants(captured: Captured) -> frozenset[int]:
    """The inputs that are parameters or buffers of modules."""

    def is_kept(source: Source, tensor: Tensor) -> bool:
        member = source.base is not None and source.base.key in ("_parameters", "_buffers")
        return member or isinstance(tensor, torch.nn.Parameter)

    inputs = zip(captured.inputs, captured.trace.leaves)
    return frozenset(index for index, (source, tensor) in enumerate(inputs) if is_kept(source, tensor))


def interpreted(graph: fx.Graph, name: str, error: Exception) -> GraphCompiler:
    """Our code failed around the compiler of a backward. Its graph runs by ATen calls, unless `suppress_errors` is
    off."""
    failure = CompileError("backward graph", name, error)
    if not config.suppress_errors:
        raise failure from error
    _warn_of_graph(graph, name, failure)
    return functorch.interpret


def _check_devices(captured: Captured, devices: frozenset[str] | None) -> None:
    if devices is None:
        return
    for node in captured.trace.graph.nodes:
        if node.op == "placeholder" and not node.users:  # a model without data gives its shape to functional_call
            continue
        meta = node.meta.get("val")
        for value in meta if type(meta) in (tuple, list) else (meta,):
            if isinstance(value, TensorMeta) and value.device.type not in devices:
                raise Unsupported(
                    f"a tensor is on device {value.device}, and code is generated for {', '.join(devices)} only",
                    node.meta.get("where"),
                    kind="device",
                )


def compile_graph(
    compiler: GraphCompiler, options: dict[str, object], name: str, graph: fx.GraphModule, info: GraphInfo
) -> Callable[[list[Any]], Any]:
    """Compile one graph. If the compiler fails, the graph is interpreted by ATen calls instead, unless
    `suppress_errors` is off.
    """
    if not config.use_lazy_graph_module:
        graph.code  # noqa: B018  (generates it)
    if config.repro_after == "aot" and watched is not None:
        compiler = watched("aot", compiler, name)
    if events.subscribers:
        events.emit(events.Graph(name, info.kind, graph))
    start = time.perf_counter()
    try:
        with collector_paused(), inductor.config.patch(options):
            compiled = compiler(graph, info)
    except Exception as error:
        failure = CompileError(f"{info.kind} graph", name, error)
        if config.replay_record_enabled and versions.recorder is not None:
            versions.recorder(failure, graph)
        if not config.suppress_errors:
            raise failure from error
        _warn_of_graph(graph.graph, name, failure)
        if events.subscribers:
            events.emit(events.Fallback(name, str(failure), "bug", None, None, failure))
        compiled = functorch.interpret(graph, info)
    if events.subscribers:
        events.emit(events.Compiled(name, info.kind, compiled, time.perf_counter() - start))
    if config.verify_correctness and info.kind != "backward":
        compiled = _verified(compiled, functorch.interpret(graph, info), name)
    if compiler is recording_interpreter:
        kept, supported = config.cudagraph_backend_keep_input_mutation, config.cudagraph_backend_support_input_mutation
        return _recorded(compiled, graph, name, info, "back" if not kept else "in place" if supported else "never")
    with inductor.config.patch(options):
        if not inductor.config.triton.cudagraphs:
            return compiled
        supported = bool(inductor.config.triton.cudagraph_support_input_mutation)
        return _recorded(compiled, graph, name, info, "either" if supported else "never")


def recording_interpreter(graph: fx.GraphModule, info: GraphInfo) -> Callable[[list[Any]], Any]:
    """The compiler of the backend cudagraphs: ATen calls, which are recorded."""
    return functorch.interpret(graph, info)


def _recorded(compiled: Run, graph: fx.GraphModule, name: str, info: GraphInfo, writes: Writes) -> Run:
    from bolide.inductor.cudagraphs.recorder import recorded

    return recorded(compiled, graph, name, info, writes, _moment)


def _moment() -> tuple[int, int]:
    """Which call of the program this is, and how often it has said that a step of CUDA graphs begins, also by torch's
    function."""
    torchs = sys.modules.get("torch._inductor.cudagraph_trees")
    return which_call(), state.steps - (0 if torchs is None else torchs.MarkStepBox.mark_step_counter)


def _warn_of_graph(graph: fx.Graph, name: str, failure: CompileError) -> None:
    where = next((node.meta["where"] for node in graph.nodes if node.meta.get("where") is not None), None)
    what = f"{name}: a graph runs through ATen calls"
    text = errors.describe(what, "bug", str(failure), None, where, failure.remedy)
    if where is None:
        warnings.warn(text, BolideWarning, stacklevel=3)
    else:
        warnings.warn_explicit(text, BolideWarning, where.file, where.line)


# ---- one graph of torch's functions ----------------------------------------------------------------------------------


def run_calls(
    captured: Captured,
    compiler_fn: CompilerFn,
    options: Mapping[str, object],
    parameters: Sequence[str] = (),
    floats: bool = False,
) -> Runner:
    """The program as one graph of torch's functions, compiled by `compiler_fn` and differentiated by eager's autograd.
    Where such a graph would not do what the program does, the functional graphs are given to it, one by one.

    parameters: see `provenance.path`; floats: see `CallRecorder.finish`.
    """
    graph, name = None, captured.name
    if config.repro_after == "dynamo" and watched is not None:
        compiler_fn = watched("dynamo", compiler_fn, name)
    if captured.calls is not None:
        names = provenance.input_names(captured, parameters)
        graph = captured.calls.finish(captured.outputs, config.dead_code_elimination, (), names, floats)
    if graph is None:
        compiler = functools.partial(_foreign_graph, compiler_fn, options, name)
        return run_trace(captured, compiler, "default", {})
    if events.subscribers:
        events.emit(events.Graph(name, "calls", graph))
    start = time.perf_counter()
    sizes = [int(size.node.hint) for size in captured.trace.sizes]
    if sum(node.op.startswith("call_") for node in graph.graph.nodes) < config.minimum_call_count:
        compiler_fn, options = _as_it_is, {}
    provenance.describe_modules(graph.graph, parameters)
    describe(graph.graph, replace=True)
    asked = functools.partial(_given, compiler_fn, options=options, name=name)
    compiled = _for_all_sizes(asked, graph, [*captured.examples, *sizes])
    if events.subscribers:
        events.emit(events.Compiled(name, "calls", compiled, time.perf_counter() - start))
    run = _unboxed(compiled)
    if config.verify_correctness:
        run = _verified(run, _unboxed(graph), name)
    if captured.calls is not None and captured.calls.changes_modes:
        return _keeping_modes(run, captured.calls.modes_set)
    return run


def _as_it_is(graph: fx.GraphModule, examples: list[object]) -> Callable[..., Any]:
    """The backend of graphs that are not worth a backend."""
    return graph


def _unboxed(compiled: Callable[..., Any]) -> Callable[[list[Any]], Sequence[Any]]:
    def run(inputs: list[Any]) -> Sequence[Any]:
        given = tuple(inputs)
        inputs.clear()
        outputs: Sequence[Any] = compiled(*given)
        return outputs

    return run


def _keeping_modes(
    run: Callable[[list[object]], Sequence[object]], setters: Collection[object]
) -> Callable[[list[Any]], Sequence[Any]]:
    """Puts back torch's modes that the graph changes, also when it is left by an exception."""

    def guarded(inputs: list[object]) -> Sequence[Any]:
        before = modes.settings()
        try:
            return run(inputs)
        finally:
            modes.apply(modes.own(modes.changed(modes.settings(), before), setters))

    return guarded


def _foreign_graph(
    compiler_fn: CompilerFn, options: Mapping[str, object], name: str, graph: fx.GraphModule, info: GraphInfo
) -> Callable[[list[Any]], Any]:
    examples = [example(node.meta["val"]) for node in placeholders(graph.graph)]
    if any(node.target in (branch, repeat) for node in graph.graph.nodes):
        from bolide.tracing.called.ordinary import with_operators

        with_operators(graph)
    describe(graph.graph)
    asked = functools.partial(_given, compiler_fn, options=options, name=name)
    return _unboxed(_for_all_sizes(asked, graph, examples))


def _for_all_sizes(asked: Callable[..., Callable[..., object]], graph: fx.GraphModule, examples: list[object]) -> Any:
    """What a backend makes of a graph, for all sizes if they are symbolic. It may have taken those of the examples for
    constants, and nobody can tell: unless it answers the graph itself, it is asked anew for other sizes, up to
    `cache_size_limit` times, and then the graph runs as it is.
    """
    symbolic = [at for at, slot in enumerate(placeholders(graph.graph)) if _is_symbolic(slot.meta["val"])]
    if not symbolic:
        return asked(graph, examples)
    attributes = constants_of(graph)
    untouched = copy.deepcopy(graph.graph)
    first = asked(graph, examples)
    if first is graph or getattr(first, "__self__", None) is graph:
        return first

    def sizes_of(values: Sequence[object]) -> tuple[Any, ...]:
        chosen = [values[place] for place in symbolic]
        return tuple((*v.shape, *v.stride()) if isinstance(v, Tensor) else v for v in chosen)

    known = {sizes_of(examples): first}
    plain = fx.GraphModule(attributes, untouched, type(graph).__name__)

    def run(*inputs: object) -> Any:
        sizes = sizes_of(inputs)
        compiled = known.get(sizes)
        if compiled is None and len(known) < config.cache_size_limit:
            with compiling:
                other = fx.GraphModule(attributes, copy.deepcopy(untouched), type(graph).__name__)
                compiled = known[sizes] = asked(other, list(inputs))
        return (compiled or plain)(*inputs)

    return run


def _is_symbolic(meta: object) -> bool:
    sizes = (*meta.shape, *meta.stride) if isinstance(meta, TensorMeta) else (meta,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _given(
    compiler_fn: CompilerFn, graph: fx.GraphModule, examples: list[object], options: Mapping[str, object], name: str
) -> Callable[..., Any]:
    """What a backend makes of a graph of the function `name`. Raises CompileError, which names the backend."""
    try:
        with modes.random_kept():
            compiled = compiler_fn(graph, examples, **options)
        if not callable(compiled):
            raise TypeError(f"it returned {type(compiled).__name__}; a backend must return a callable")
    except Unsupported:
        raise
    except Exception as error:
        raise CompileError("backend", name, error, f"the backend {_name(compiler_fn)}") from error
    return cast(Callable[..., object], compiled)


def _name(compiler_fn: CompilerFn) -> str:
    while isinstance(compiler_fn, functools.partial):
        compiler_fn = compiler_fn.func
    return getattr(compiler_fn, "__qualname__", type(compiler_fn).__qualname__)


# ---- verify_correctness ----------------------------------------------------------------------------------------------


def _verified(
    run: Callable[[list[Any]], Any], reference: Callable[[list[Any]], Any], name: str
) -> Callable[[list[Any]], Any]:
    """`run`, whose first call is made by `reference` as well, on copies and with the same random numbers."""
    todo = True

    def verified(inputs: list[Any]) -> Any:
        nonlocal todo
        if not todo:
            return run(inputs)
        todo = False
        copies = [_copied(value) for value in inputs]
        expected_writes, writes = list(copies), list(inputs)
        state = torch.get_rng_state()
        expected = reference(copies)
        torch.set_rng_state(state)
        outputs = run(inputs)
        pairs = zip([*expected, *expected_writes], [*outputs, *writes])
        for position, (wanted, actual) in enumerate(pairs):
            differs = difference(wanted, actual)
            if differs is not None:
                what = f"result {position}" if position < len(expected) else f"argument {position - len(expected)}"
                raise CompileError("verify_correctness", name, AssertionError(f"{what} {differs}"))
        return outputs

    return verified


def _copied(value: object) -> Any:
    if not isinstance(value, Tensor):
        return value
    copy = value.detach().clone(memory_format=torch.preserve_format)
    return copy.requires_grad_(value.requires_grad)


def difference(wanted: object, actual: object, exact: object = None) -> str | None:
    """How a result differs from the expected one, beyond the tolerances of the configuration. `exact`: the result in
    float64, if it is known; what is nearly as close to it as `wanted` is does not differ."""
    if not isinstance(wanted, Tensor) or not isinstance(actual, Tensor):
        return None if wanted == actual else f"is {actual!r} instead of {wanted!r}"
    if wanted.shape != actual.shape or wanted.dtype != actual.dtype:
        return f"is {actual.dtype}{list(actual.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    wanted, actual = wanted.detach(), actual.detach()
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return None if config.repro_ignore_non_fp or torch.equal(wanted, actual) else "has other values"
    scale = max(1.0, float(wanted.abs().nan_to_num().max())) if wanted.numel() else 1.0
    if torch.allclose(actual, wanted, rtol=0.0, atol=config.repro_tolerance * scale, equal_nan=True):
        return None
    if isinstance(exact, Tensor) and exact.shape == wanted.shape:
        ours, theirs = _mean_error(actual, exact), _mean_error(wanted, exact)
        if ours <= 2 * theirs + config.repro_tolerance / 10 * scale:
            return None
    return f"differs by up to {float((wanted - actual).abs().max()):.3g}, at values of up to {scale:.3g}"


def _mean_error(value: Tensor, exact: Tensor) -> float:
    """The root of the mean square of how far off a tensor is."""
    return float((value.to(exact.dtype) - exact.detach()).abs().square().mean().sqrt())
