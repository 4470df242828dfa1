"""Control flow in graphs that leave bolide: the operators of torch, whose graphs are modules of the graph module."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from bolide.tracing.called.branches import branch, placeholders, repeat
from bolide.tracing.described import describe
from bolide.tracing.graph import lookup
from bolide.tracing.traits import traits_of

_operators = torch.ops.higher_order
_NAMES: dict[Any, tuple[Any, tuple[str, str]]] = {
    branch: (_operators.cond, ("true_graph", "false_graph")),
    repeat: (_operators.while_loop, ("while_loop_cond_graph", "while_loop_body_graph")),
}


def with_operators(module: fx.GraphModule) -> None:
    """Puts `torch.ops.higher_order.cond` and `while_loop` in the place of branches and loops of ours, at any depth."""
    graph, count = module.graph, dict.fromkeys(_NAMES, 0)
    for node in list(graph.nodes):
        if node.target not in _NAMES:
            continue
        target, names = _NAMES[node.target]
        first, operands, sizes, table = cast(tuple[Any, list[fx.Node], list[Any], int], node.args)
        carried = first if node.target is repeat else ()
        parts = [_leaving(part, "cond_graph" in name) for name, part in zip(names, lookup(table).graphs)]
        slots = list(zip(*map(placeholders, parts)))[len(carried) :]
        given: list[Any] = []
        for pair, value in zip(slots, (*operands, *sizes)):
            if any(slot.users for slot in pair):
                given.append(value)
            else:
                for slot in pair:
                    slot.graph.erase_node(slot)
        with graph.inserting_before(node):
            ways = []
            for name, part in zip(names, parts):
                part.recompile()
                module.add_module(f"{name}_{count[node.target]}", part)
                ways.append(graph.get_attr(f"{name}_{count[node.target]}"))
            args = (*ways, tuple(carried)) if carried else (first, *ways)
            call = graph.call_function(target, (*args, tuple(given)))
        count[node.target] += 1
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)


def _leaving(part: fx.GraphModule, single: bool) -> fx.GraphModule:
    """A copy of a way of a branch, or of a part of a loop. `single`: its result is no tuple."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in part.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    results = [copies[node] for node in cast(tuple[fx.Node, ...], part.graph.output_node().args[0])]
    given = tuple(map(_uncopied, results, [results] * len(results)))
    graph.output(given[0] if single else given)
    for node in results:
        if not node.users:
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
