"""Loops over slices of tensors: `bolide::scan` makes a step, a graph of its own, for each slice along the first
dimension.

A step is given what the one before carries on, its slices, and the same operands and sizes as all others; it gives what
it carries on, and results, which are stacked. The gradient of a scan is a scan the other way round: it carries the
gradients of what was carried, and the sums of those of the operands. What the steps were given is a result of the
forward. So there are gradients of any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.fx as fx

from bolide.symbolic import same_sizes
from bolide.tracing.called.branches import (
    REPLAYED,
    Numbers,
    Part,
    Places,
    Steps,
    Tensors,
    common_layout,
    engine_run,
    fresh_copy,
    is_continuous,
    laid_out,
    looped,
    part_module,
    placeholders,
    run_again,
    scan,
    size_operand,
)
from bolide.tracing.graph import LazyGraphModule, enter, lookup
from bolide.tracing.rules.common import row_major
from bolide.tracing.tensor import TracedTensor
from bolide.tracing.trace import Trace


def over_slices(
    trace: Trace,
    part: Part,
    results: Sequence[TracedTensor],
    inside: Sequence[TracedTensor],
    given: tuple[Sequence[TracedTensor], Sequence[TracedTensor]],
    reverse: bool,
) -> list[TracedTensor]:
    """A scan whose step was recorded in `part`, with the values `inside` for what is carried and the slices; it begins
    with the first tensors of `given` and goes over the second ones. As those of torch's, all results have a gradient if
    anything has that the step reads."""
    init, xs = given
    known = set(map(id, inside))
    others = [operand for operand in part.operands if id(operand) not in known]
    place = Places([*inside, *others], [part])
    metas = [common_layout([result.meta]) for result in results[: len(init)]]
    metas += [row_major(result.meta) for result in results[len(init) :]]
    graph = place.graph_of(part, results, metas)
    steps = Steps((graph,), len(init), len(xs), len(others), tuple(metas), reverse)
    return _applied(trace, steps, place.sizes(trace), [*init, *xs, *others])


def _keeping(steps: Steps) -> Steps:
    """Steps that give, too, what is carried to them."""
    if steps.kept or not steps.carried:
        return steps
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    results: list[fx.Node] = []
    for node in steps.graphs[0].graph.nodes:
        if node.op == "output":
            results = list(map(copies.__getitem__, cast(Sequence[fx.Node], node.args[0])))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    metas = [row_major(meta) for meta in steps.slots()[: steps.carried]]
    for slot, meta in zip(placeholders(steps.graphs[0]), metas):
        copy = graph.call_function(
            torch.ops.aten.clone.default, (copies[slot],), {"memory_format": torch.contiguous_format}
        )
        copy.meta["val"] = meta
        results.append(copy)
    graph.output(tuple(results)).meta["val"] = None
    module = LazyGraphModule(steps.graphs[0], graph, class_name="Step")
    return replace(steps, graphs=(module,), metas=(*steps.metas, *metas), kept=len(metas), run=None, gradients={})


def _applied(trace: Trace, steps: Steps, sizes: Numbers, tensors: Sequence[TracedTensor]) -> list[TracedTensor]:
    count = len(steps.metas)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        steps = _keeping(steps)
    return list(Scan.apply(trace, enter(steps), sizes, *tensors))[:count]  # type: ignore[no-untyped-call]


class Scan(torch.autograd.Function):
    """The operation `bolide::scan` on traced tensors, with its gradient."""

    @staticmethod
    def forward(ctx: Any, trace: Trace, table: int, sizes: Numbers, *tensors: TracedTensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.trace, ctx.table, ctx.sizes = trace, table, sizes
        results = _recorded(trace, table, sizes, tensors)
        ctx.save_for_backward(*tensors, *results[len(results) - lookup(table).kept :])
        ctx.mark_non_differentiable(*[result for result in results if not is_continuous(result)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *tangents: TracedTensor | None) -> tuple[TracedTensor | None, ...]:
        steps: Steps = lookup(ctx.table)
        trace, needed = ctx.trace, ctx.needs_input_grad[3:]
        saved = list(ctx.saved_tensors)
        tensors, kept = saved[: len(needed)], saved[len(needed) :]
        present = tuple([tangent is not None for tangent in tangents])
        if (needed, present) not in steps.gradients:
            steps.gradients[needed, present] = derived(steps, needed, present)
        gradient = steps.gradients[needed, present]
        plan = GradientPlan.of(steps, needed, present)
        slots = gradient.slots()
        begin = [tangents[place] if present[place] else None for place in plan.carried] + [None] * len(plan.operands)
        first = steps.carried + steps.over
        zeros = [
            trace.wrap(trace.filled(meta, 0)) if tangent is None else tangent for tangent, meta in zip(begin, slots)
        ]
        over = [*kept, *tensors[steps.carried : first], *[tangents[place] for place in plan.results]]
        given = [*zeros, *over, *tensors[first:]]
        results = _applied(trace, gradient, ctx.sizes, given)
        gradients: list[TracedTensor | None] = [None] * len(tensors)
        places = [*plan.carried, *plan.operands, *plan.over]
        for place, value in zip(places, results):
            gradients[place] = value if needed[place] else None
        return (None, None, None, *gradients)


@dataclass(frozen=True)
class GradientPlan:
    """The places, among the arguments of steps, of what the gradient's steps carry gradients of (`carried`, and sums of
    gradients for `operands`), of the slices that get some (`over`), and, among the results of a scan, of those that
    have a tangent (`results`)."""

    carried: list[int]
    operands: list[int]
    over: list[int]
    results: list[int]

    @classmethod
    def of(cls, steps: Steps, needed: Sequence[bool], present: Sequence[bool]) -> GradientPlan:
        first = steps.carried + steps.over
        return cls(
            [place for place in range(steps.carried) if is_continuous(steps.metas[place])],
            [place for place in range(first, len(needed)) if needed[place]],
            [place for place in range(steps.carried, first) if needed[place]],
            [place for place in range(steps.carried, len(present)) if present[place]],
        )


def derived(steps: Steps, needed: Sequence[bool], present: Sequence[bool]) -> Steps:
    """The steps of the gradient. Each is one step run once more on new leaves, and derived."""
    plan, slots = GradientPlan.of(steps, needed, present), steps.slots()
    first, sizes = steps.carried + steps.over, steps.sizes()
    tape = Trace()
    if sizes:
        tape.shapes = sizes[0].node.env
    sums = [row_major(slots[place]) for place in (*plan.carried, *plan.operands)]
    befores = [row_major(meta) for meta in slots[: steps.carried]]
    tangents = [steps.metas[place] for place in plan.results]
    metas = [*sums, *befores, *slots[steps.carried : first], *tangents, *slots[first:]]
    nodes = [tape.slot("operand", meta) for meta in metas]
    given_sizes = [size_operand(tape, size.node.expr) for size in sizes]
    size_nodes = [tape.size_node(size.node.expr) for size in sizes]
    with tape.alone(), torch.enable_grad(), torch._C._DisableAutocast():
        ends = [len(sums), len(sums) + steps.carried + steps.over, len(metas) - steps.operands]
        arguments = [*nodes[ends[0] : ends[1]], *nodes[ends[2] :]]
        leaves = [
            TracedTensor.make(
                tape, meta, laid_out(tape, node, meta), requires_grad=place in plan.carried or needed[place]
            )
            for place, (node, meta) in enumerate(zip(arguments, slots))
        ]
        weights = [TracedTensor.make(tape, meta, node) for meta, node in zip(metas, nodes)]
        tape.differentiates = True
        outputs = list(run_again(tape, steps.graphs[0], [*leaves, *given_sizes]))
        tape.differentiates = False
        pairs = list(zip([outputs[place] for place in plan.carried], weights))
        pairs += zip([outputs[place] for place in plan.results], weights[ends[1] : ends[2]])
        wanted = [*plan.carried, *plan.operands, *plan.over]
        gradients = list(engine_run(pairs, tuple([leaves[place] for place in wanted])))
        for at in range(len(plan.carried), len(sums)):
            gradients[at] = weights[at] if gradients[at] is None else weights[at] + gradients[at]
        results = [row_major(slots[place]) for place in wanted]
        given = [
            tape.filled(meta, 0) if gradient is None else fresh_copy(tape, gradient, meta)
            for gradient, meta in zip(gradients, results)
        ]
    module = part_module(tape, list(zip([*nodes, *size_nodes], [*metas, *sizes])), given)
    over = steps.carried + steps.over + len(tangents)
    return Steps((module,), len(sums), over, steps.operands, tuple(results), not steps.reverse)


def _recorded(trace: Trace, table: int, sizes: Numbers, tensors: Sequence[TracedTensor]) -> list[TracedTensor]:
    steps: Steps = lookup(table)
    nodes = []
    for place, (tensor, meta) in enumerate(zip(tensors, steps.slots())):
        node = trace.adopt(tensor).node
        if steps.carried <= place < steps.carried + steps.over:
            own = node.meta["val"]
            whole = row_major(meta, own.shape)
            nodes.append(node if same_sizes(own.stride[1:], meta.stride) else trace.restride(node, whole))
        else:
            nodes.append(laid_out(trace, node, meta))
    first = steps.carried + steps.over
    made = trace.call(
        scan, nodes[: steps.carried], nodes[steps.carried : first], nodes[first:], trace.unwrap(sizes), table
    )
    return [trace.wrap(node) for node in made]


def _replayed(
    trace: Trace | None,
    init: list[TracedTensor],
    xs: list[TracedTensor],
    operands: Tensors,
    sizes: Numbers,
    table: int,
) -> Tensors:
    """A node `bolide::scan` once more: its step is recorded again, as sizes may be others."""
    steps: Steps = lookup(table)
    graph, rest = steps.graphs[0], [*operands, *sizes]
    if trace is None:
        return looped(steps, init, xs, rest, lambda values: list(run_again(None, graph, values)))
    inside = cast(list[TracedTensor], [*[value.detach() for value in init], *[x.select(0, 0) for x in xs]])
    part = Part(trace)
    with part.alone():
        values = list(run_again(part, graph, [*inside, *rest]))
    results = [part.adopt(value) for value in values]
    return over_slices(trace, part, results, inside, (init, xs), steps.reverse)


REPLAYED[scan] = _replayed
