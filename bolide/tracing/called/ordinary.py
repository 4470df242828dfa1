"""Control flow in graphs that leave bolide: the operators of torch, whose graphs are modules of the graph module."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch.fx.node import Argument

from bolide.tracing.called.branches import branch, placeholders, repeat, scan
from bolide.tracing.described import describe
from bolide.tracing.graph import lookup
from bolide.tracing.traits import traits_of

_operators = torch.ops.higher_order
_NAMES: dict[object, tuple[HigherOrderOperator, tuple[str, ...]]] = {
    branch: (_operators.cond, ("true_graph", "false_graph")),
    repeat: (_operators.while_loop, ("while_loop_cond_graph", "while_loop_body_graph")),
    scan: (_operators.scan, ("scan_combine_graph",)),
}
_MAP = _operators.map_impl, ("body_graph",)


def with_operators(module: fx.GraphModule) -> None:
    """Puts `torch.ops.higher_order.cond` and the like in the place of branches and loops of ours, at any depth."""
    graph, numbers = module.graph, itertools.count()
    for node in list(graph.nodes):
        if node.target not in _NAMES:
            continue
        *firsts, operands, sizes, _ = cast(tuple[list[fx.Node], ...], node.args)
        table = lookup(cast(int, node.args[-1]))
        target, names = _MAP if node.target is scan and not firsts[0] else _NAMES[node.target]
        count = len(table.metas)
        while node.target is scan and not any(item.args[1] == count - 1 for item in node.users):
            count -= 1  # what steps were given, for gradients
        parts = [_leaving(part, "cond_graph" in name, count) for name, part in zip(names, table.graphs)]
        given, number = _read(parts, [*operands, *sizes]), next(numbers)
        turned = node.target is scan and table.reverse
        with graph.inserting_before(node):
            ways: list[Argument] = []
            for name, part in zip(names, parts):
                part.recompile()
                module.add_module(f"{name}_{number}", part)
                ways.append(graph.get_attr(f"{name}_{number}"))
            if turned:
                firsts[1] = [_flipped(graph, x) for x in firsts[1]]
            others = firsts[1:] if target is _MAP[0] else firsts
            args = (*others, *ways) if node.target is branch else (*ways, *others)
            call = graph.call_function(target, (*args, tuple(given)))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)
        for item in list(call.users) if turned else ():
            if cast(int, item.args[1]) >= table.carried:
                with graph.inserting_after(item):
                    flipped = _flipped(graph, item)
                item.replace_all_uses_with(flipped, lambda user: user is not flipped)  # noqa: B023  (called at once)


def _flipped(graph: fx.Graph, value: fx.Node) -> fx.Node:
    """torch's operators know no reverse order."""
    flipped = graph.call_function(torch.ops.aten.flip.default, (value, [0]))
    flipped.meta = dict(value.meta)
    return flipped


def _read(parts: Sequence[fx.GraphModule], operands: Sequence[fx.Node]) -> list[fx.Node]:
    """Those operands, the last arguments of all parts, that one of these reads; the others are arguments no more."""
    slots = list(zip(*map(placeholders, parts)))
    given = []
    for pair, value in zip(slots[len(slots) - len(operands) :], operands):
        if any(slot.users for slot in pair):
            given.append(value)
        else:
            for slot in pair:
                slot.graph.erase_node(slot)
    return given


def _leaving(part: fx.GraphModule, single: bool, count: int) -> fx.GraphModule:
    """A copy of a way of a branch, or of a part of a loop. `single`: its result is no tuple, else it has `count`."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in part.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    results = [copies[node] for node in cast(tuple[fx.Node, ...], part.graph.output_node().args[0])[:count]]
    given = tuple(map(_uncopied, results, [results] * len(results)))
    graph.output(given[0] if single else given)
    for node in reversed(graph.nodes):
        if node.target is torch.ops.aten.clone.default and not node.users:
            graph.erase_node(node)
    module = fx.GraphModule(part, graph, "Way")
    with_operators(module)
    describe(graph, replace=True)
    return module


def _uncopied(result: fx.Node, results: Sequence[fx.Node]) -> fx.Node:
    """What a result is a copy of, if nobody else has that. (Ways give results in memory of their own.)"""
    source = result.args[0]
    if not isinstance(source, fx.Node) or source.op != "call_function" or source.target is operator.getitem:
        return result
    shared = sum(other.args[0] is source for other in results) > 1 or traits_of(source.target).view
    layouts = [node.meta["val"]._replace(offset=0, requires_grad=False) for node in (source, result)]
    return result if shared or layouts[0] != layouts[1] else source
