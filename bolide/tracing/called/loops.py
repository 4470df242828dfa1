"""Loops as long as data say: `bolide::repeat`, and `bolide::unwind`, which is its gradient.

The backward goes through the loop again from its first values, keeps what each step is given, and then takes the
gradients of the steps, the last one first. So the forward keeps nothing but its arguments. Gradients of gradients are
those of the loop run again in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.fx as fx

from bolide.support.errors import Unsupported
from bolide.symbolic import same_sizes
from bolide.tracing.called.branches import (
    REPLAYED,
    Numbers,
    Part,
    Places,
    Repetition,
    Steps,
    Tensors,
    Unwinding,
    common_layout,
    is_continuous,
    laid_out,
    placeholders,
    repeat,
    run_again,
    unwind,
)
from bolide.tracing.called.scans import GradientPlan, derived
from bolide.tracing.graph import enter, lookup
from bolide.tracing.meta import TensorMeta
from bolide.tracing.tensor import TracedTensor
from bolide.tracing.trace import Trace

Recorded = tuple[Part, Sequence[TracedTensor]]  # a graph under way, and its results


def looped(
    trace: Trace,
    first: Sequence[TracedTensor],
    inside: Sequence[TracedTensor],
    others: Sequence[TracedTensor],
    parts: Sequence[Recorded],
) -> list[TracedTensor]:
    """What a loop makes of the values `first`. `parts`: a condition and a step, recorded with the values `inside` for
    what is carried along, and with `others`."""
    place = Places([*inside, *others], [part for part, _ in parts])
    metas = [[common_layout([result.meta]) for result in results] for _, results in parts]
    goes_on, step = [place.graph_of(part, results, own) for (part, results), own in zip(parts, metas)]
    table = enter(Repetition((goes_on, step), tuple(metas[1])))
    return list(Loop.apply(trace, table, place.sizes(trace), len(first), *first, *others))  # type: ignore[no-untyped-call]


def _once_more(
    trace: Trace, table: Repetition, carried: Sequence[TracedTensor], rest: Sequence[object]
) -> tuple[list[TracedTensor], list[Recorded]]:
    """Stand-ins for what is carried along, and the condition and the step as recorded anew: sizes may be others."""
    inside = cast(list[TracedTensor], [value.detach() for value in carried])
    parts: list[Recorded] = []
    for graph in table.graphs[:2]:
        part = Part(trace)
        with part.alone(), torch.enable_grad():  # it may be derived
            values = list(run_again(part, graph, [*inside, *rest]))
        parts.append((part, [part.adopt(value) for value in values]))
    return inside, parts


def _replayed(
    trace: Trace | None, carried: list[TracedTensor], operands: list[TracedTensor], sizes: Numbers, table: int
) -> Tensors:
    """A node `bolide::repeat` once more."""
    loop, rest = lookup(table), [*operands, *sizes]
    if trace is not None:
        inside, parts = _once_more(trace, loop, carried, rest)
        return looped(trace, carried, inside, operands, parts)
    goes_on, step = loop.graphs
    values: list[torch.Tensor] = [value.clone() for value in carried]
    while next(run_again(None, goes_on, [*values, *rest])).item():
        values = list(run_again(None, step, [*values, *rest]))
    return values


class Loop(torch.autograd.Function):
    """The operation `bolide::repeat` on traced tensors, with its gradient: `count` of them are carried along."""

    @staticmethod
    def forward(ctx: Any, trace: Trace, table: int, sizes: Numbers, count: int, *tensors: TracedTensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.trace, ctx.table, ctx.sizes, ctx.count = trace, table, sizes, count
        ctx.save_for_backward(*tensors)
        results = _called(trace, repeat, (), tensors[:count], tensors[count:], sizes, table)
        ctx.mark_non_differentiable(*[result for result in results if not is_continuous(result)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *tangents: TracedTensor | None) -> tuple[TracedTensor | None, ...]:
        if torch.is_grad_enabled():
            raise Unsupported("gradients of gradients of a loop whose length is data", ctx.trace.where, kind="operator")
        tensors, count, needed = ctx.saved_tensors, ctx.count, ctx.needs_input_grad[4:]
        loop, plan = _unwinding(lookup(ctx.table), count, needed)
        begin = [tangents[place] for place in plan.carried] + [None] * len(plan.operands)
        sums = [
            ctx.trace.wrap(ctx.trace.filled(meta, 0)) if tangent is None else tangent
            for tangent, meta in zip(begin, loop.metas)
        ]
        found = _called(ctx.trace, unwind, sums, tensors[:count], tensors[count:], ctx.sizes, enter(loop))
        gradients: list[TracedTensor | None] = [None] * len(tensors)
        for place, value in zip([*plan.carried, *plan.operands], found):
            gradients[place] = value if needed[place] else None
        return (None, None, None, None, *gradients)


def _called(
    trace: Trace,
    target: torch._ops.OpOverload,
    sums: Sequence[TracedTensor],
    carried: Sequence[TracedTensor],
    operands: Sequence[TracedTensor],
    sizes: Numbers,
    table: int,
) -> list[TracedTensor]:
    """Records one of the two operations."""
    loop = lookup(table)
    slots = [slot.meta["val"] for slot in placeholders(loop.graphs[0])]
    nodes = [_in_layout(trace, tensor, slot) for tensor, slot in zip([*carried, *operands], slots)]
    begin = [[laid_out(trace, trace.adopt(each).node, meta) for each, meta in zip(sums, loop.metas)]] if sums else []
    given = *begin, nodes[: len(carried)], nodes[len(carried) :], trace.unwrap(list(sizes))
    return [trace.wrap(node) for node in trace.call(target, *given, table)]


def _in_layout(trace: Trace, tensor: TracedTensor, slot: TensorMeta) -> fx.Node:
    node = trace.adopt(tensor).node
    return node if same_sizes(node.meta["val"].stride, slot.stride) else laid_out(trace, node, slot)


# ---- the gradient ----------------------------------------------------------------------------------------------------


def _unwinding(loop: Repetition, carried: int, needed: tuple[bool, ...]) -> tuple[Unwinding, GradientPlan]:
    steps = Steps((loop.graphs[1],), carried, 0, len(needed) - carried, loop.metas, False)
    back = derived(steps, needed, ())
    unwinding = Unwinding((*loop.graphs, *back.graphs), needed, back.metas)
    return unwinding, GradientPlan.of(steps, needed, ())


def _unwound(
    trace: Trace | None,
    sums: list[TracedTensor],
    carried: list[TracedTensor],
    operands: list[TracedTensor],
    sizes: Numbers,
    table: int,
) -> Tensors:
    """A node `bolide::unwind` once more."""
    loop: Unwinding = lookup(table)
    if trace is None:
        return unwind(sums, carried, operands, sizes, table)  # type: ignore[no-any-return]
    inside, parts = _once_more(trace, cast(Repetition, loop), carried, [*operands, *sizes])
    place = Places([*inside, *operands], [part for part, _ in parts])
    metas = [[common_layout([result.meta]) for result in results] for _, results in parts]
    goes_on, step = [place.graph_of(part, results, own) for (part, results), own in zip(parts, metas)]
    again, _ = _unwinding(Repetition((goes_on, step), tuple(metas[1])), len(carried), loop.needed)
    return _called(trace, unwind, sums, carried, operands, place.sizes(trace), enter(again))


REPLAYED[repeat] = _replayed
REPLAYED[unwind] = _unwound
