"""Ahead-of-time autograd: from a finished trace to a function that behaves as the traced program does, gradients
included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
import torch.fx as fx

from bolide.functorch.compilers import interpret
from bolide.functorch.config import config
from bolide.functorch.graphs import (
    GraphCompiler,
    GraphInfo,
    Runner,
    aten,
    give,
    is_size,
    is_tensor,
    placeholders,
    results,
)
from bolide.functorch.joint import finish_inference, finish_joint, parameters_of, tangent_meta
from bolide.functorch.partitioners import Joint, Partition, Strategy, forward_nodes, partition
from bolide.functorch.passes import INFERENCE_PASSES, PASSES, Pass, run_passes
from bolide.functorch.passes.freezing import Frozen, freeze, split_constants
from bolide.functorch.passes.norms import split_norms
from bolide.functorch.runtime.histories import histories
from bolide.functorch.runtime.memory import saved_values
from bolide.functorch.runtime.missing import with_presence, without_tangents
from bolide.functorch.runtime.program import Compiled, Derivative, Program, Training
from bolide.functorch.runtime.second import SecondOrder, Tape, in_eager, second_order, tape_of
from bolide.functorch.runtime.underived import without_underived
from bolide.functorch.runtime.wrappers import (
    Backward,
    BackwardFor,
    Crossing,
    dropping_absent,
    writing_unseen,
)
from bolide.functorch.signature import Signature, describe, is_symbolic
from bolide.support import events
from bolide.support.errors import BolideError, Unsupported
from bolide.symbolic import Expr, as_expr
from bolide.tracing import TensorMeta, Trace, TracedTensor
from bolide.tracing.graph import graph_module
from bolide.tracing.tensor import leaves_behind, takes_gradient


def compile_trace(
    trace: Trace,
    outputs: Sequence[TracedTensor],
    *,
    forward_compiler: GraphCompiler,
    backward_compiler: GraphCompiler,
    partition: Strategy = "min_cut",
    title: str = "a graph",
    on_fault: Callable[[Exception], GraphCompiler] | None = None,
    constants: frozenset[int] = frozenset(),
    plain: bool = False,
    whole: Callable[[fx.GraphModule], Callable[..., object]] | None = None,
    with_grad: bool = False,
    made: Callable[[Compiled], None] | None = None,
) -> Runner:
    """Compiles a finished trace; call it in the global state (grad mode, autocast) in which the result will be called.

    The runner takes the real inputs in the order of `trace.inputs`, then the sizes, and returns the real `outputs`,
    which have eager's history, strides and aliases; inputs are written to as eager does. Without anything to
    differentiate there is one graph, and no autograd function. Otherwise the trace is extended to a joint graph, and
    split by `partition` ("default" saves what eager saves, "min_cut" what costs least, a function does it itself); the
    backward graph is compiled when it first runs. The program's forward is over then: `on_fault` is told what fails
    and gives the compiler for another attempt. Errors of a backward that runs say that it is that of `title`. The
    inputs at `constants` rarely change: what is made of them alone is computed once where nothing is differentiated
    (see `freezing`). `whole` compiles a captured backward pass of which this program's backward is a part
    (`CompiledFunction.whole`). With `plain` no operation takes the place of recorded ones, and the backward is compiled
    at once. The runner switches gradients on with `with_grad`. `made` is told of what the runner is made of.

    Raises `Unsupported` for a program without a backward, and for outputs whose history cannot be reproduced.
    """
    request = Request(
        forward_compiler, backward_compiler, partition, "graph", title, on_fault, constants, plain, whole, with_grad
    )
    return _compile(trace, outputs, request, made)


@dataclass(frozen=True, slots=True)
class Request:
    """How a trace is to be compiled, see `compile_trace`."""

    forward_compiler: GraphCompiler
    backward_compiler: GraphCompiler
    strategy: Strategy = "min_cut"
    name: str = "graph"
    title: str = "a graph"
    on_fault: Callable[[Exception], GraphCompiler] | None = None
    constants: frozenset[int] = frozenset()
    plain: bool = False
    whole: Callable[[fx.GraphModule], Callable[..., object]] | None = None
    with_grad: bool = False
    again: bool = False  # of gradients: nobody else may hold what they are made of, their own derivatives need it

    @property
    def inference_passes(self) -> tuple[Pass, ...]:
        return PASSES if self.plain else INFERENCE_PASSES

    def forward(self, graph: fx.Graph, constants: dict[str, torch.Tensor], info: GraphInfo) -> Runner:
        """The compiled forward, or inference, graph."""
        return self.forward_compiler(graph_module(graph, constants, self.name), info)


def _compile(
    trace: Trace,
    outputs: Sequence[TracedTensor],
    request: Request,
    made: Callable[[Compiled], None] | None = None,
) -> Runner:
    signature, faults = without_underived(describe(trace, outputs), trace.leaves, trace.derivation.is_own)
    derivative, training, backward = None, None, None
    if signature.differentiable:
        forward, derivative, training = _compile_training(trace, signature, request)
        backward = backward_of(partial(_given, derivative), training, trace.constants, request)
    else:
        forward = _compile_inference(trace, signature, request)
    unseen = () if isinstance(forward, Frozen) else tuple(w.input for w in signature.writes if not w.counted)
    program = Program(
        unseen=unseen,
        without_grad=training is None and torch.is_grad_enabled() and any(leaf.requires_grad for leaf in trace.leaves),
        without_autocast=torch._C._is_any_autocast_enabled(),
        with_grad=request.with_grad,
        training=training,
        faults=faults,
        counted=tuple(write for write in signature.writes if write.result is None and write.counted),
        outputs=signature.outputs,
        writes=signature.writes,
        symbols=_symbols(trace),
        numbers={
            str(as_expr(node.meta["val"])): len(signature.results) + place
            for place, node in enumerate(signature.numbers)
        },
    )
    if made is not None:
        made(Compiled(program, forward, trace.constants, derivative, backward))
    return program.runner(forward, backward, trace.constants, request.whole)


def inference_graph(
    trace: Trace, outputs: Sequence[TracedTensor], name: str, static: frozenset[int]
) -> tuple[fx.GraphModule, GraphInfo, Signature]:
    """The one graph of a finished trace without anything to differentiate, and how its outputs are made of the graph's
    results. `static`: the inputs that are the same in every call. Raises Unsupported where results require grad."""
    signature = describe(trace, outputs)
    if signature.differentiable:
        reason = "its results require grad, and there is no backward pass"
        raise Unsupported(reason, remedy="call it under torch.no_grad(), or detach the inputs", kind="global_state")
    finish_inference(trace, signature)
    graph = run_passes(trace.graph, name, INFERENCE_PASSES)
    info = GraphInfo("inference", static, frozenset(range(len(signature.results))))
    return graph_module(graph, trace.constants, name), info, signature


def _compile_inference(trace: Trace, signature: Signature, request: Request) -> Runner:
    finish_inference(trace, signature)
    visible = frozenset(range(len(signature.results)))
    constants = request.constants - {write.input for write in signature.writes}
    if constants:
        return _compile_frozen(trace, signature, request, visible, constants)
    graph = run_passes(trace.graph, request.name, request.inference_passes)
    return request.forward(graph, trace.constants, GraphInfo("inference", parameters_of(trace), visible))


def _compile_frozen(
    trace: Trace, signature: Signature, request: Request, visible: frozenset[int], constants: frozenset[int]
) -> Runner:
    """The inference graph, of which what is made of `constants` alone is computed once, by ATen."""
    shapes = trace.shapes if trace.has_symbols else None
    graph = freeze(run_passes(trace.graph, request.name), constants, shapes)
    split = split_constants(run_passes(graph, request.name, request.inference_passes), constants)
    if split is None:
        info = GraphInfo("inference", parameters_of(trace), visible)
        return request.forward(trace.graph, trace.constants, info)
    parameters = parameters_of(trace)
    static = {place for place, position in enumerate(split.rest_takes) if position in parameters}
    static.update(range(len(split.rest_takes), len(placeholders(split.rest))))
    rest_info = GraphInfo("inference", frozenset(static), visible)
    rest = request.forward(split.rest, trace.constants, rest_info)
    unseen = [split.rest_takes.index(write.input) for write in signature.writes if not write.counted]
    rest = writing_unseen(rest, unseen) if unseen else rest
    constants_info = GraphInfo("inference", frozenset(), frozenset())
    first = interpret(graph_module(split.constants, trace.constants, request.name), constants_info)
    return Frozen(split, first, rest)


def _compile_training(trace: Trace, signature: Signature, request: Request) -> tuple[Runner, Derivative, Training]:
    if request.constants and events.subscribers:
        reason = "results require grad: call it under torch.no_grad()"
        events.emit(events.Stage(request.name, "freeze", 0.0, {"refused": reason}))
    behind = {id(leaf) for leaf in leaves_behind(r.tensor.grad_fn for r in signature.results if r.tensor is not None)}
    apart = histories([None if r.tensor is None else r.tensor.grad_fn for r in signature.results])
    derivable = not trace.derivation.lost  # which the backward may set, too
    joint, tape, parts = _differentiated(trace, signature, request, derivable)
    parameters = parameters_of(trace)
    kept = None if tape is None else _kept_results(parts.forward, joint.inputs, tape)
    info = GraphInfo("forward", parameters, frozenset(range(joint.outputs)))
    forward = request.forward(parts.forward, trace.constants, info)
    crossing = _crossing(signature, parts, trace, tape, kept or ())
    loose = () if request.again else crossing.loose
    crossing = replace(crossing, histories=apart, loose=loose, wrapped=joint.wrapped)
    _take_real_layouts(parts, joint.inputs)
    static = frozenset(position for position, at in enumerate(crossing.tensors) if at in parameters)
    derivative = Derivative(
        parts.backward, len(parts.saved), static, None if kept is None else tape, bool(trace.shapes.facts.names)
    )
    detached = tuple(i for i, leaf in enumerate(trace.leaves) if leaf is not trace.inputs[i] and id(leaf) not in behind)
    anchored = not any(takes_gradient(leaf) and id(leaf) in behind for leaf in trace.leaves)
    return forward, derivative, Training(crossing, detached, anchored, derivative.tape is not None)


def _given(derivative: Derivative) -> Derivative:
    return derivative


def backward_of(
    of: Callable[[], Derivative],
    training: Training,
    constants: dict[str, torch.Tensor],
    request: Request,
    known: Callable[[tuple[int, ...]], Runner | None] | None = None,
) -> Backward:
    """The backward of a program, whose graphs `of` gives when they are needed. `known` gives the compiled backward for
    the case that these tangents do not come, if there is one."""
    crossing = training.crossing
    graph_for = _graph_for(of, crossing)
    backward_for = _backward_for(graph_for, of, constants, request)
    seen_for = _backward_for(graph_for, of, constants, replace(request, backward_compiler=interpret, on_fault=None))

    def compiled_for(missing: tuple[int, ...]) -> Runner:
        run = None if known is None else known(missing)
        if run is None:
            run = backward_for(missing)
            if backward.told is not None:
                backward.told(missing, run)
        return run

    twice, eager = (_second(of, request), _second(of, None)) if training.twice else (None, None)
    module_for = partial(_traceable, graph_for, constants, request.name)
    needed = partial(_needed, of, graph_for)
    backward = Backward(crossing, compiled_for, seen_for, module_for, needed, twice, eager, request.title)
    if request.plain:
        _ = backward.compiled[()]
    return backward


def _second(of: Callable[[], Derivative], request: Request | None) -> SecondOrder:
    """Gradients of gradients: compiled as is requested, or in eager."""

    @cache
    def second() -> SecondOrder:
        tape = of().tape
        assert tape is not None
        if request is None:
            return partial(in_eager, tape)
        again = partial(_compile, request=replace(request, name=f"{request.name}.backward", again=True))
        return second_order(tape, again, data=of().data)

    return lambda inputs, kept, tangents: second()(inputs, kept, tangents)


def partitioned(joint: Joint, strategy: Strategy, recomputable: Container[object] | None = None) -> Partition:
    """As `partition`, but "min_cut" keeps to the activation-memory budget."""
    budget = config.activation_memory_budget
    if strategy != "min_cut" or budget == 1:
        return partition(joint, strategy, recomputable)
    from bolide.functorch.cuts.budget import partition_within

    return partition_within(joint, budget, recomputable)


def _differentiated(
    trace: Trace, signature: Signature, request: Request, derivable: bool
) -> tuple[Joint, Tape | None, Partition]:
    """The joint graph, its forward as recorded (if the backward is `derivable`), and the two graphs."""
    started = time.perf_counter()
    try:
        joint = finish_joint(trace, signature)
    except NotImplementedError as error:
        raise Unsupported(str(error), remedy="run it under torch.no_grad()", kind="operator") from error
    tape = tape_of(joint, trace.constants, trace.derivation.functions) if derivable else None
    if not request.plain and request.strategy != "default":  # which saves what eager saves
        forward, shapes = forward_nodes(joint), trace.shapes if trace.has_symbols else None
        split_norms(joint.graph, forward, shapes)
        if pools := list(joint.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default)):
            from bolide.functorch.passes import places

            places.narrow(pools, forward, shapes)
    run_passes(joint.graph, request.name)
    parts = partitioned(joint, request.strategy)
    if events.subscribers:
        values = saved_values(parts.saved)
        detail = {"nodes": len(joint.graph.nodes), "saved bytes": sum(v.bytes for v in values), "saved": values}
        events.emit(events.Stage(request.name, "differentiate", time.perf_counter() - started, detail))
    return joint, tape, parts


BackwardGraph = tuple[fx.Graph, tuple[int, ...], int]


def _graph_for(of: Callable[[], Derivative], crossing: Crossing) -> Callable[[tuple[int, ...]], BackwardGraph]:
    """Gives the backward graph for the case that the tangents of some results do not come, the `flags` behind its
    gradients (see `with_presence`), and how many tangents it takes."""
    expected = [place for place, stride in enumerate(crossing.tangents) if stride is not None]

    def graph_for(missing: tuple[int, ...]) -> BackwardGraph:
        graph = of().graph
        tangent_slots = placeholders(graph)[of().saved :]
        present = dict(zip(expected, tangent_slots))
        if missing:
            graph = without_tangents(graph, tangent_slots, [present.pop(index) for index in missing])
        slots = placeholders(graph)
        return *with_presence(graph, slots[len(slots) - len(present) :]), len(present)

    return graph_for


def _needed(
    of: Callable[[], Derivative], graph_for: Callable[[tuple[int, ...]], BackwardGraph], missing: tuple[int, ...]
) -> list[int]:
    """The places of the saved values that the backward reads where the tangents of some results do not come."""
    slots = placeholders(graph_for(missing)[0])[: of().saved]
    return [place for place, slot in enumerate(slots) if slot.users]


def _traceable(
    graph_for: Callable[[tuple[int, ...]], BackwardGraph],
    constants: dict[str, torch.Tensor],
    name: str,
    missing: tuple[int, ...],
) -> fx.GraphModule | None:
    from bolide.functorch.runtime.inlined import traceable  # compiled autograd needs it, which few programs use

    graph, flags, tangents = graph_for(missing)
    return None if flags else traceable(graph, tangents, constants, name)


def _backward_for(
    graph_for: Callable[[tuple[int, ...]], BackwardGraph],
    of: Callable[[], Derivative],
    constants: dict[str, torch.Tensor],
    request: Request,
) -> BackwardFor:
    """Compiles the backward graph."""

    def compiled(compiler: GraphCompiler, missing: tuple[int, ...]) -> Runner:
        graph, flags, _ = graph_for(missing)
        gradients = frozenset(index for index, value in enumerate(results(graph)) if isinstance(value, fx.Node))
        info = GraphInfo("backward", of().static, gradients)
        run = compiler(graph_module(graph, constants, request.name), info)
        return dropping_absent(run, flags) if flags else run

    def backward_for(missing: tuple[int, ...]) -> Runner:
        try:
            return compiled(request.backward_compiler, missing)
        except BolideError:
            raise
        except Exception as error:
            if request.on_fault is None:
                raise
            return compiled(request.on_fault(error), missing)

    return backward_for


def _kept_results(forward: fx.Graph, inputs: int, tape: Tape) -> tuple[int, ...] | None:
    """Where what is kept for a tape is found in the list of all inputs followed by all results, of which it becomes a
    part. None if the optimised graph has it no more."""
    named = {node.name: node for node in forward.nodes}
    kept = [next((named[name] for name in names if name in named), None) for names in tape.names]
    if None in kept:
        return None
    values = [*results(forward)]
    places = {node: place for place, node in reversed([*enumerate(values)])}
    for node in kept:
        if places.setdefault(node, len(values)) == len(values):
            values.append(node)
    give(forward, values)
    return tuple([inputs + places[node] for node in kept])


def _numbers(trace: Trace) -> frozenset[int]:
    """The inputs of no dimension and no history: that of a float is nobody else's, and dies with the call."""
    leaves = enumerate(trace.leaves)
    return frozenset(index for index, leaf in leaves if not leaf.dim() and not leaf.requires_grad)


def _symbols(trace: Trace) -> tuple[str, ...]:
    return tuple(as_expr(size).text() for size in trace.sizes)


def _crossing(
    signature: Signature, parts: Partition, trace: Trace, tape: Tape | None, kept: tuple[int, ...]
) -> Crossing:
    tensors = [at for node, at in zip(parts.saved, parts.saved_at) if is_tensor(node)]
    tangents = [None if result.tensor is None else _strides(tangent_meta(result.meta)) for result in signature.results]
    tangents += [None] * len(signature.numbers)
    apart, parameters = frozenset(tensors), parameters_of(trace)
    read = [at for at in (tape.read if tape else ()) if at not in apart]
    held = parameters | _numbers(trace)
    loose = [at for at in read if at not in held]
    shared = {place: result.shares for place, result in enumerate(signature.results) if result.shares is not None}
    symbols: dict[str, int] = {}
    if is_symbolic(tangents) or any(is_symbolic(alias.chain) for alias in shared.values()):
        symbols = {name: len(trace.inputs) + place for place, name in enumerate(_symbols(trace))}
        sizes = [(node, at) for node, at in zip(parts.saved, parts.saved_at) if is_size(node)]
        symbols |= {str(as_expr(node.meta["val"])): at for node, at in sizes}
    return Crossing(
        results=len(tangents),
        tensors=tuple(tensors),
        numbers=parts.saved_at[len(tensors) :],
        tangents=tuple(tangents),
        symbols=symbols,
        read=tuple(read),
        loose=tuple(loose),
        kept=kept,
        shared=shared,
    )


def _strides(meta: TensorMeta) -> tuple[int | Expr, ...]:
    return tuple(step if type(step) is int else as_expr(step) for step in meta.stride)


def _take_real_layouts(parts: Partition, inputs: int) -> None:
    """The forward's compiler chose how saved values lie in memory; the backward is compiled for that."""
    values = results(parts.forward)
    for slot, at in zip(placeholders(parts.backward), parts.saved_at):
        if at >= inputs:
            slot.meta["val"] = values[at - inputs].meta["val"]
