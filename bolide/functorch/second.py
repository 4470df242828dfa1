"""Gradients of gradients: a backward pass that is a differentiable program itself.

A compiled backward works on values that the forward has saved, which have no history. When the backward is asked for
with ``create_graph=True``, the gradients are computed anew from the program's inputs instead: the forward graph is
replayed on traced tensors, the autograd engine derives it with ``create_graph``, and the result is compiled as any
other trace. So it has a backward of its own, and so on to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.fx as fx

from bolide.functorch.graphs import Runner, aten, is_getitem, is_impure, is_tensor, placeholders, results
from bolide.support.errors import CompileError, Unsupported
from bolide.support.garbage import collector_paused
from bolide.tracing import Trace, TracedTensor

Gradients = tuple[torch.Tensor | None, ...]
SecondOrder = Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor | None]], Gradients | None]
"""Takes the forward's inputs (with their history), what it has drawn (see `draws_read`), and the tangents of its
results; gives one differentiable gradient for each input, or None when it cannot."""

Compile = Callable[[Trace, Sequence[TracedTensor]], Runner]


def second_order(
    forward: fx.Graph, outputs: int, constants: dict[str, torch.Tensor], compile_trace: Compile
) -> SecondOrder:
    """The differentiable backward of the first `outputs` results of a forward graph. It is made when it is first
    needed, once for each combination of sizes, layouts and histories of its arguments.
    """
    made: dict[Any, tuple[Runner, list[int]] | None] = {}

    def gradients(
        inputs: Sequence[Any], drawn: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> Gradients | None:
        key = (*map(_key, inputs), None, *map(_key, tangents))
        if key not in made:
            made[key] = _build(forward, outputs, constants, compile_trace, inputs, drawn, tangents)
        found = made[key]
        if found is None:
            return None
        run, places = found
        arguments = [value for value in (*inputs, *drawn, *tangents) if isinstance(value, torch.Tensor)]
        with torch._C._DisableAutocast():
            computed = dict(zip(places, run(arguments), strict=True))
        return tuple([computed.get(place) for place in range(len(inputs))])

    return gradients


def _key(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad, value.is_leaf


def _build(
    forward: fx.Graph,
    outputs: int,
    constants: dict[str, torch.Tensor],
    compile_trace: Compile,
    inputs: Sequence[Any],
    drawn: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
) -> tuple[Runner, list[int]] | None:
    """The compiled gradients and which inputs they belong to; None for a program that cannot be derived twice."""
    trace = Trace()
    values = [_input(trace, value, f"x{place}") for place, value in enumerate(inputs)]
    random = [_input(trace, value, f"drawn{place}") for place, value in enumerate(drawn)]
    weights = [_input(trace, tangent, f"tangent{place}") for place, tangent in enumerate(tangents)]
    try:
        with collector_paused(), torch.enable_grad(), torch._C._DisableAutocast(), trace.recording():
            made = list(_replay(forward, outputs, constants, values, random))
            pairs = [(out, weight) for out, weight in zip(made, weights) if weight is not None and out.requires_grad]
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
    graph: fx.Graph, outputs: int, constants: dict[str, torch.Tensor], inputs: Sequence[Any], drawn: Sequence[Any]
) -> Iterator[Any]:
    """The first `outputs` results of `graph` on traced inputs, without its effects on the inputs."""
    wanted = results(graph)[:outputs]
    needed = _needed(wanted)
    known: dict[fx.Node, Any] = dict(zip(placeholders(graph), inputs, strict=True))
    known |= zip(draws_read(graph, outputs), drawn, strict=True)

    def value_of(node: fx.Node) -> Any:
        return known[node]

    for node in graph.nodes:
        if node in needed and node not in known:
            if node.op == "get_attr":
                known[node] = constants[str(node.target)]
            elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and is_impure(node):
                raise Unsupported("random numbers that depend on a tensor would be drawn again", kind="operator")
            elif _updates_statistics(node):
                x, weight, bias, _, _, *rest = fx.map_arg(node.args, known.get)
                known[node] = aten._native_batch_norm_legit.no_stats(x, weight, bias, *rest)
            else:
                known[node] = node.target(*fx.map_arg(node.args, value_of), **fx.map_arg(node.kwargs, value_of))
    return (known[node] for node in wanted)


def draws_read(forward: fx.Graph, outputs: int) -> list[fx.Node]:
    """What the first `outputs` results depend on that is drawn, from numbers alone: the seed, permutations, …"""
    needed = _needed(results(forward)[:outputs])
    return [node for node in forward.nodes if node in needed and _is_drawn(node)]


def _is_drawn(node: fx.Node) -> bool:
    source = cast(fx.Node, node.args[0]) if is_getitem(node) else node
    tags = getattr(source.target, "tags", ())
    memory_only = all(operand.target is aten.full.default for operand in source.all_input_nodes)
    return is_tensor(node) and torch.Tag.nondeterministic_seeded in tags and memory_only


def _updates_statistics(node: fx.Node) -> bool:
    """Whether a node is a BatchNorm in training, whose results but for the new statistics do not depend on the old ones
    (arguments 3 and 4), which have been overwritten by now."""
    return node.target is aten._native_batch_norm_legit_functional.default and node.args[5] is True


def inputs_read(forward: fx.Graph, outputs: int) -> list[int]:
    """The positions of the tensors among the inputs that the first `outputs` results depend on."""
    needed = _needed(results(forward)[:outputs])
    return [at for at, node in enumerate(placeholders(forward)) if node in needed and is_tensor(node)]


def _needed(wanted: Sequence[Any]) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    pending = [node for node in wanted if isinstance(node, fx.Node)]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            read = node.args[:3] if _updates_statistics(node) else () if _is_drawn(node) else node.all_input_nodes
            pending += [other for other in read if isinstance(other, fx.Node)]
    return needed
