"""Gradients of gradients: a backward pass that is a differentiable program itself.

A compiled backward works on values that the forward has saved, which have no history. When the backward is asked for
with ``create_graph=True``, the gradients are computed anew from the program's inputs instead: the forward as it was
recorded (a `Tape`; optimised graphs do not know which values no derivative goes through) is replayed on traced tensors,
the autograd engine derives it with ``create_graph``, and the result is compiled as any other trace. So it has a
backward of its own, and so on to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.fx as fx

from bolide.functorch.graphs import (
    Runner,
    argument_nodes,
    aten,
    is_getitem,
    is_impure,
    is_tensor,
    placeholders,
    results,
)
from bolide.functorch.partitioners import Joint
from bolide.functorch.transformed import outside
from bolide.support.errors import CompileError, Unsupported
from bolide.support.garbage import collector_paused
from bolide.tracing import Trace, TracedTensor
from bolide.tracing.called.branches import branch, replayed, separated
from bolide.tracing.called.derivatives import check_phases
from bolide.tracing.graph import closure
from bolide.tracing.traits import traits_of

Gradients = tuple[torch.Tensor | None, ...]
SecondOrder = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor | None]], Gradients | None]
"""Takes the forward's inputs (with their history), what it has kept (see `Tape`), and the tangents of its
results; gives one differentiable gradient for each input, or None when it cannot."""

Compile = Callable[[Trace, Sequence[TracedTensor]], Runner]


class Step(NamedTuple):
    """A node and what it was when the tape was made: passes change graphs in place."""

    node: fx.Node
    target: Any
    args: Any
    kwargs: Any


class Tape(NamedTuple):
    """How the results `wanted` of a program are computed from the `inputs`, in order, as it was recorded. `kept`: what
    is not computed again but kept from the forward: random numbers, and values that no derivative goes through made
    of inputs that the program writes to; `names`: by which optimised graphs know them, or what they are copies of.
    `read`: the positions of the tensors among the inputs that it reads."""

    inputs: list[fx.Node]
    steps: list[Step]
    wanted: list[Any]
    kept: list[fx.Node]
    names: list[list[str]]
    read: list[int]


def tape_of(joint: Joint) -> Tape:
    """The forward of a joint graph that no pass has changed yet."""
    wanted = list(results(joint.graph)[: joint.outputs])
    inputs = placeholders(joint.graph)[: joint.inputs]
    lost = {inputs[place] for place in joint.written}
    spoilt = _made_of(joint.graph, lost) if lost else set()
    kept = {node for node in joint.graph.nodes if _is_drawn(node) or (node in spoilt and _is_apart(node))}
    needed = _needed(wanted, kept)
    order = [node for node in joint.graph.nodes if node in needed]
    steps = [Step(node, node.target, node.args, node.kwargs) for node in order if node.op != "placeholder"]
    read = [at for at, node in enumerate(inputs) if node in needed and is_tensor(node)]
    known = [node for node in order if node in kept]
    return Tape(inputs, steps, wanted, known, [list(_names(node)) for node in known], read)


def _names(node: fx.Node) -> Iterator[str]:
    yield node.name
    while traits_of(node.target).copy and isinstance(source := node.args[0], fx.Node):
        node = source
        yield node.name


def _made_of(graph: fx.Graph, sources: set[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on `sources`."""
    found = set(sources)
    for node in graph.nodes:
        if not found.isdisjoint(_read_by(node)):
            found.add(node)
    return found


def _is_apart(node: fx.Node) -> bool:
    return node.op == "call_function" and bool(node.meta.get("cut")) and is_tensor(node)


def second_order(
    tape: Tape, constants: dict[str, torch.Tensor], compile_trace: Compile, *, data: bool = False
) -> SecondOrder:
    """The differentiable backward of a program. It is made when it is first needed, once for each combination of sizes,
    layouts and histories of its arguments. What cannot be made, and programs with sizes that are `data`, are replayed
    in eager.
    """
    made: dict[Any, tuple[Runner, list[int]] | None] = {}

    def gradients(
        inputs: Sequence[Any], kept: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> Gradients | None:
        if data:
            return in_eager(tape, constants, inputs, kept, tangents)
        key = (*map(_key, inputs), None, *map(_key, tangents))
        if key not in made:
            made[key] = _build(tape, constants, compile_trace, inputs, kept, tangents)
        found = made[key]
        if found is None:
            return in_eager(tape, constants, inputs, kept, tangents)
        run, places = found
        arguments = [value for value in (*inputs, *kept, *tangents) if isinstance(value, torch.Tensor)]
        with torch._C._DisableAutocast():
            computed = dict(zip(places, run(arguments), strict=True))
        return tuple([computed.get(place) for place in range(len(inputs))])

    return gradients


def in_eager(
    tape: Tape,
    constants: dict[str, torch.Tensor],
    inputs: Sequence[Any],
    kept: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
) -> Gradients | None:
    """The gradients of the program run again operation by operation, as eager computes them (differentiable in grad
    mode); None where one of the operations has no derivative."""
    roots = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    differentiable = torch.is_grad_enabled()
    try:
        with torch.enable_grad(), torch._C._DisableAutocast():
            with outside():
                made = list(_replay(None, tape, constants, inputs, kept))
            pairs = [(o, tangent) for o, tangent in zip(made, tangents) if tangent is not None and o.requires_grad]
            outs, weights = zip(*pairs)
            gradients = torch.autograd.grad(outs, roots, weights, create_graph=differentiable, allow_unused=True)
            derived = iter(gradients)
    except (RuntimeError, NotImplementedError, Unsupported):
        return None
    return tuple([next(derived) if any(value is root for root in roots) else None for value in inputs])


def _key(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad, value.is_leaf


def _build(
    tape: Tape,
    constants: dict[str, torch.Tensor],
    compile_trace: Compile,
    inputs: Sequence[Any],
    kept: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
) -> tuple[Runner, list[int]] | None:
    """The compiled gradients and which inputs they belong to; None for a program that cannot be derived twice."""
    trace = Trace()
    trace.derivation.running = True
    values = [_input(trace, value, f"x{place}") for place, value in enumerate(inputs)]
    again = [_input(trace, value, f"kept{place}") for place, value in enumerate(kept)]
    weights = [_input(trace, tangent, f"tangent{place}") for place, tangent in enumerate(tangents)]
    try:
        with collector_paused(), torch.enable_grad(), torch._C._DisableAutocast(), trace.recording():
            made = list(_replay(trace, tape, constants, values, again))
            pairs = [(out, weight) for out, weight in zip(made, weights) if weight is not None and out.requires_grad]
            check_phases(trace, [out for out, _ in pairs])
            places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad]
            derived: Sequence[Any] = torch.autograd.Variable._execution_engine.run_backward(
                tuple([out for out, _ in pairs]),
                tuple([weight for _, weight in pairs]),
                keep_graph=True,
                create_graph=True,
                inputs=tuple([values[place] for place in places]),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        present = [(place, gradient) for place, gradient in zip(places, derived) if gradient is not None]
        with collector_paused(), torch.enable_grad(), torch._C._DisableAutocast():
            run = compile_trace(trace, [gradient for _, gradient in present])
    except (RuntimeError, NotImplementedError, Unsupported, CompileError):
        return None
    return run, [place for place, _ in present]


def _input(trace: Trace, value: Any, name: str) -> Any:
    return trace.input(value, name) if isinstance(value, torch.Tensor) else value


def _replay(
    trace: Trace | None, tape: Tape, constants: dict[str, torch.Tensor], inputs: Sequence[Any], kept: Sequence[Any]
) -> Iterator[Any]:
    """The results of a tape on traced inputs, without its effects on the inputs."""
    known: dict[fx.Node, Any] = dict(zip(tape.inputs, inputs, strict=True))
    known |= zip(tape.kept, kept, strict=True)

    def value_of(node: fx.Node) -> Any:
        return known[node]

    value: Any
    for node, target, args, kwargs in tape.steps:
        if node in known:
            continue
        if node.op == "get_attr":
            value = constants[str(target)]
        elif traits_of(target).seeded and is_impure(node):
            raise Unsupported("random numbers that depend on a tensor would be drawn again", kind="operator")
        elif _updates_statistics(target, args):
            x, weight, bias, _, _, *rest = fx.map_arg(args, known.get)
            value = aten._native_batch_norm_legit.no_stats(x, weight, bias, *rest)
        elif target is branch:
            value = replayed(trace, *fx.map_arg(args, value_of))
        else:
            value = target(*fx.map_arg(args, value_of), **fx.map_arg(kwargs, value_of))
        known[node] = separated(value) if node.meta.get("cut") else value
    return (known[node] for node in tape.wanted)


def _is_drawn(node: fx.Node) -> bool:
    """Whether a node is drawn, from numbers alone: the seed, permutations, …"""
    if node.op != "call_function":
        return False
    source = cast(fx.Node, node.args[0]) if is_getitem(node) else node
    if not traits_of(source.target).seeded or not is_tensor(node):
        return False
    return all(operand.target is aten.full.default for operand in source.all_input_nodes)


def _updates_statistics(target: Any, args: Any) -> bool:
    """Whether a node is a BatchNorm in training, whose results but for the new statistics do not depend on the old ones
    (arguments 3 and 4), which have been overwritten by now."""
    return target is aten._native_batch_norm_legit_functional.default and args[5] is True


def _read_by(node: fx.Node) -> list[fx.Node]:
    """What the value of a node that counts is computed from."""
    read = node.args[:3] if _updates_statistics(node.target, node.args) else node.all_input_nodes
    return [other for other in read if isinstance(other, fx.Node)]


def _needed(wanted: Sequence[Any], kept: set[fx.Node]) -> set[fx.Node]:
    return closure(argument_nodes(wanted), lambda node: () if node in kept else _read_by(node))
