"""Regions of a graph that are alike become calls of one graph, which is lowered and scheduled once.

A region is what the program computes in one call of a function that `torch.compiler.nested_compile_region` has marked
(``meta["nested"]``: the call), or the derivative of that. Its steps stand in the plan as if it had been written out:
only kernels that would reach over its border differ.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from bolide.symbolic import as_expr
from bolide.tracing import TensorMeta
from bolide.tracing.called.branches import Region, region
from bolide.tracing.graph import Graph, LazyGraphModule, behind, closure, enter
from bolide.tracing.rng import drops_nothing
from bolide.tracing.traits import traits_of

FEWEST = 4
"""Smaller regions are left in the graph."""


def outlined(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module that does the same, with calls of one graph in place of regions that are alike; itself where there
    are none."""
    if any(map(_is_data, gm.graph.nodes)):
        return gm
    sizes = [slot for slot in gm.graph.find_nodes(op="placeholder") if not _is_tensors(slot)]
    alike: dict[object, list[_Call]] = {}
    for part in _regions(gm.graph):
        call = _Call.of(part)
        alike.setdefault(call.key, []).append(call)
    shared = [calls for calls in alike.values() if len(calls) > 1]
    order = _order(gm.graph, {node: call for calls in shared for call in calls for node in call.nodes})
    return gm if not shared or order is None else _rewritten(gm, shared, order, sizes)


def _is_tensors(node: fx.Node) -> bool:
    """Whether a node's value is a tensor or several, no number."""
    return isinstance(node.meta.get("val"), (tuple, list))  # as what is known of a tensor is


def _is_data(node: fx.Node) -> bool:
    """Whether a node's value is a number that depends on data, or may."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return bool(value.node.env.facts.names)
    return isinstance(value, (torch.SymFloat, torch.SymBool))


# ---- regions ---------------------------------------------------------------------------------------------------------


def _regions(graph: fx.Graph) -> list[list[fx.Node]]:
    """The nodes of each region, in order."""
    tags: dict[fx.Node, object] = {}
    for node in graph.nodes:
        first = next(iter(node.all_input_nodes), node)
        tag = tags.get(first) if node.target is operator.getitem else node.meta.get("nested")
        outside = _is_view(node) and tags.get(first) is not tag  # a view of what the region is given
        if tag is not None and _may_move(node) and not outside:
            tags[node] = tag
    parts: dict[object, set[fx.Node]] = {}
    for node, tag in tags.items():
        parts.setdefault(tag, set()).add(node)
    place = {node: index for index, node in enumerate(graph.nodes)}
    found = []
    for part in parts.values():
        between = _between(part, place)
        if len(part) >= FEWEST and all(_may_move(node) and node not in tags for node in between):
            found.append(sorted(part | between, key=place.__getitem__))
    return found


def _may_move(node: fx.Node) -> bool:
    if node.op != "call_function" or not _is_tensors(node):
        return False
    return drops_nothing(node) or not traits_of(node.target).impure


def _is_view(node: fx.Node) -> bool:
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return traits_of(node.target).view


def _between(part: set[fx.Node], place: Mapping[fx.Node, int]) -> set[fx.Node]:
    """The nodes outside of a region that read something of it, and that it reads."""
    first, last = min(map(place.__getitem__, part)), max(map(place.__getitem__, part))

    def near(nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return [node for node in nodes if first < place[node] < last and node not in part]

    after = closure([node for member in part for node in near(member.users)], lambda node: near(node.users))
    before = [node for member in part for node in near(member.all_input_nodes)]
    return after & closure(before, lambda node: near(node.all_input_nodes))


@dataclass(eq=False)
class _Call:
    """A region: its `nodes`, those of them that others read but for views (`results`), the tensors that it reads
    (`operands`), and what regions that are alike have in common (`key`)."""

    nodes: list[fx.Node]
    results: list[fx.Node]
    operands: list[fx.Node]
    key: object

    @classmethod
    def of(cls, nodes: list[fx.Node]) -> _Call:
        own = set(nodes)
        bases: set[fx.Node] = set()
        for node in nodes:
            if any(user not in own for user in node.users):
                while _is_view(node):
                    node = node.all_input_nodes[0]
                bases.add(node)
        results = [node for node in nodes if node in bases]
        computed = closure(results, lambda node: [source for source in node.all_input_nodes if source in own])
        places: dict[fx.Node, object] = {}
        operands: list[fx.Node] = []
        rows: list[object] = []
        for node in nodes:
            if node in computed:
                for source in node.all_input_nodes:
                    if source not in places and _is_tensors(source):
                        places[source] = len(operands)
                        operands.append(source)
                        rows.append(_told(source.meta["val"], places))
                rows.append((node.target, _told((node.args, node.kwargs, node.meta["val"]), places)))
                places[node] = -len(places) - 1
        return cls(nodes, results, operands, (*rows, *map(places.__getitem__, results)))


def _told(value: object, places: Mapping[fx.Node, object]) -> object:
    """A value of a graph as it counts in keys."""
    if isinstance(value, TensorMeta):
        return _told((*value.shape, None, *value.stride), places), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return type(value), *[_told(item, places) for item in value]
    if isinstance(value, dict):
        return tuple([(key, _told(item, places)) for key, item in value.items()])
    if isinstance(value, fx.Node):
        return (places[value],) if value in places else as_expr(value.meta["val"])
    if isinstance(value, (float, complex)):
        return type(value), str(value)  # 0.0 is not -0.0
    return as_expr(value) if isinstance(value, torch.SymInt) else (type(value), value)


# ---- the graph -------------------------------------------------------------------------------------------------------


def _order(graph: fx.Graph, call_of: Mapping[fx.Node, _Call]) -> list[fx.Node | _Call] | None:
    """An order of the nodes that are left and of calls in which each has what it reads; None if there is none."""
    place: dict[fx.Node | _Call, int] = {}
    for index, node in enumerate(graph.nodes):
        place[call_of.get(node, node)] = index
    reads = {item: {call_of.get(source, source) for source in _sources(item)} - {item} for item in place}
    readers: dict[fx.Node | _Call, list[fx.Node | _Call]] = {item: [] for item in place}
    for item, sources in reads.items():
        for source in sources:
            readers[source].append(item)
    items = {index: item for item, index in place.items()}
    ready = [index for index, item in items.items() if not reads[item]]
    order = []
    while ready:
        item = items[heapq.heappop(ready)]
        order.append(item)
        for reader in readers[item]:
            reads[reader].discard(item)
            if not reads[reader]:
                heapq.heappush(ready, place[reader])
    return order if len(order) == len(items) else None


def _sources(item: fx.Node | _Call) -> Iterable[fx.Node]:
    if isinstance(item, fx.Node):
        return item.all_input_nodes
    return [source for node in item.nodes for source in node.all_input_nodes]


def _rewritten(
    gm: fx.GraphModule, shared: list[list[_Call]], order: list[fx.Node | _Call], sizes: list[fx.Node]
) -> fx.GraphModule:
    tables: dict[_Call, int] = {}
    for calls in shared:
        tables |= dict.fromkeys(calls, enter(_table(calls[0], sizes)))
    graph = Graph()
    values: dict[fx.Node, fx.Node] = {}

    def value_of(node: fx.Node) -> fx.Node:
        if node not in values:  # a view in a region
            values[node] = graph.node_copy(node, value_of)
        return values[node]

    for item in order:
        if isinstance(item, fx.Node):
            value_of(item)
            continue
        operands = [value_of(operand) for operand in item.operands]
        call = graph.call_function(region, (operands, list(map(value_of, sizes)), tables[item]))
        call.meta = {**item.nodes[0].meta, "val": [node.meta["val"] for node in item.results]}
        for at, result in enumerate(item.results):
            values[result] = graph.call_function(operator.getitem, (call, at))
            values[result].meta = dict(result.meta)
    return LazyGraphModule(gm, graph, class_name="Outlined")


def _table(call: _Call, sizes: list[fx.Node]) -> Region:
    """The graph of a region, and of those that are alike."""
    graph = Graph()
    values: dict[fx.Node, fx.Node] = {}
    for slot in (*call.operands, *sizes):
        values[slot] = graph.placeholder(slot.name)
        values[slot].meta = {"val": slot.meta["val"]}

    def value_of(node: fx.Node) -> fx.Node:
        if node not in values:
            values[node] = graph.node_copy(node, value_of)
        return values[node]

    for node in sorted(behind(call.results) & set(call.nodes), key=call.nodes.index):
        value_of(node)
    graph.output(tuple(map(value_of, call.results))).meta["val"] = None
    metas = tuple([node.meta["val"] for node in call.results])
    return Region((LazyGraphModule({}, graph, class_name="Region"),), metas)
