"""Backward graphs for results whose tangents do not come, and gradients of which data decide whether there are any."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.fx as fx

from bolide.functorch.cost import hint
from bolide.functorch.graphs import aten, copied, give, is_getitem, output_node, placeholders, results
from bolide.functorch.passes.simplify import remove_dead
from bolide.symbolic import contiguous_strides
from bolide.tracing import TensorMeta, Trace
from bolide.tracing.called.branches import Branches, branch
from bolide.tracing.called.derivatives import derivative
from bolide.tracing.graph import closure, lookup


def without_tangents(graph: fx.Graph, tangents: Iterable[fx.Node], missing: Iterable[fx.Node]) -> fx.Graph:
    """A copy of a backward graph without the placeholders `missing`, some of its `tangents`.

    As in the autograd engine, what depends on missing tangents only is missing itself, and a gradient that is missing
    is None; where a missing value meets a present one, it counts as zero (or is left out of a sum).
    """
    whole, copies = copied(graph)
    absent = {copies[slot] for slot in missing}
    dropped = list(absent)
    dependent = closure([copies[slot] for slot in tangents], lambda node: node.users)
    for node in list(whole.nodes):
        sources = [source for source in node.all_input_nodes if source in dependent]
        lost = [source for source in sources if source in absent]
        if not lost or node.op == "output":
            continue
        rest = _rest_of_sum(node, lost)
        if len(lost) == len(sources) and (rest is None or not _is_zero_gradient(rest)):
            absent.add(node)
        elif rest is not None:
            node.replace_all_uses_with(rest)
        else:
            for source in lost:
                node.replace_input_with(source, _zeros(node, source.meta["val"]))
    give(whole, [None if value in absent else value for value in results(whole)])
    for node in reversed(whole.nodes):
        if node in absent and node.op == "call_function" and not node.users:  # code of the program's that does not run
            whole.erase_node(node)
    remove_dead(whole)
    for slot in dropped:
        whole.erase_node(slot)
    return whole


def _rest_of_sum(node: fx.Node, lost: list[fx.Node]) -> fx.Node | None:
    """The other operand of a plain sum with one missing operand."""
    if node.target is not aten.add.Tensor or node.kwargs or len(lost) != 1:
        return None
    rest = [operand for operand in node.args if operand is not lost[0]]
    if len(rest) == 1 and isinstance(rest[0], fx.Node) and rest[0].meta["val"] == node.meta["val"]:
        return rest[0]
    return None


def _is_zero_gradient(node: fx.Node) -> bool:
    """Whether a value is made of zeros only: of a formula that does not need its tangent, for an empty result. In eager
    that gradient is there."""
    behind = closure([node], lambda value: value.all_input_nodes)
    sources = [value for value in behind if value.op != "call_function" or value.target is aten.full.default]
    sources = [value for value in sources if not isinstance(value.meta["val"], torch.SymInt)]
    return bool(sources) and all(value.target is aten.full.default and value.args[1] == 0 for value in sources)


def _zeros(reader: fx.Node, meta: TensorMeta) -> fx.Node:
    """Zeros in place of a tangent, with its order of dimensions in memory: layouts of what follows depend on it."""
    order = sorted(range(meta.ndim), key=lambda dim: -hint(meta.stride[dim]))
    shape = tuple([meta.shape[dim] for dim in order])
    options: dict[str, Any] = {"dtype": meta.dtype, "device": meta.device}
    with reader.graph.inserting_before(reader):
        zeros = reader.graph.call_function(
            aten.full.default, ([_extent(reader.graph, size) for size in shape], 0), options
        )
        zeros.meta = {**reader.meta, "val": meta._replace(shape=shape, stride=contiguous_strides(shape), offset=0)}
        if order == sorted(order):
            return zeros
        back = [order.index(dim) for dim in range(meta.ndim)]
        turned = reader.graph.call_function(aten.permute.default, (zeros, back))
    stride = tuple([zeros.meta["val"].stride[place] for place in back])
    turned.meta = {**reader.meta, "val": meta._replace(stride=stride, offset=0)}
    return turned


def _extent(graph: fx.Graph, size: int | torch.SymInt) -> int | fx.Node:
    """A size as it stands in the graph: symbols are placeholders of it."""
    if not isinstance(size, torch.SymInt):
        return size
    sizes = Trace()
    sizes.graph, sizes.shapes = graph, size.node.env
    known = [node for node in placeholders(graph) if isinstance(node.meta["val"], torch.SymInt)]
    sizes._size_nodes = {node.meta["val"].node.expr: node for node in known}
    node: int | fx.Node = sizes.size_node(size.node.expr)
    return node


# ---- gradients that branches decide about ----------------------------------------------------------------------------


def with_presence(graph: fx.Graph, tangents: Iterable[fx.Node]) -> tuple[fx.Graph, tuple[int, ...]]:
    """A backward graph whose results are followed by truth values: whether each of those gradients is there whose
    positions are given, too. Data decide about them where a branch was taken that does not use an input, and code of
    the program's where its derivative is called. What is never there is None.
    """
    if not any(_table(node) or node.target is derivative for node in graph.nodes):
        return graph, ()
    whole, copies = copied(graph)
    known = _Presence(whole, [copies[slot] for slot in tangents])
    told = [known.of(value) if isinstance(value, fx.Node) else False for value in results(whole)]
    flags = tuple([place for place, there in enumerate(told) if isinstance(there, fx.Node)])
    gradients = [value if there is not False else None for value, there in zip(results(whole), told)]
    give(whole, [*gradients, *[told[place] for place in flags]])
    remove_dead(whole)
    return whole, flags


def _table(node: fx.Node) -> Branches | None:
    """The gradient of a branch that a node computes, where an operand may have none."""
    if node.target is not branch:
        return None
    table: Branches = lookup(node.args[3])  # type: ignore[arg-type]
    return table if not all(reached for way in table.reach for tangent in way for reached in tangent) else None


There = bool | fx.Node
"""Whether a value is there in eager: known, or told by a node."""


class _Presence:
    """For each value of a backward graph, whether it is there; a list for each of several."""

    def __init__(self, graph: fx.Graph, tangents: Iterable[fx.Node]) -> None:
        self.graph = graph
        self.end = output_node(graph)
        self.nodes: dict[object, fx.Node] = {}
        self.known: dict[fx.Node, There | list[There]] = dict.fromkeys(tangents, True)
        for node in list(graph.nodes):
            sources = [source for source in node.all_input_nodes if self.known.get(source, False) is not False]
            if node in self.known or not sources or node.op == "output":
                continue
            several = self.known[sources[0]]
            if node.target is branch:
                self.known[node] = self._of_branch(node, lookup(node.args[3]))
            elif node.target is derivative:
                self.known[node] = self._told_by(node)
            elif is_getitem(node) and isinstance(several, list):
                self.known[node] = several[node.args[1]]
            else:
                self.known[node] = self._any(map(self.of, sources))

    def of(self, node: fx.Node) -> There:
        there = self.known.get(node, False)
        return self._any(there) if isinstance(there, list) else there

    def _any(self, parts: Iterable[There]) -> There:
        none: There = False
        return reduce(self._either, parts, none)

    def _of_branch(self, node: fx.Node, table: Branches) -> There | list[There]:
        if not table.reach:
            return True
        pred, operands = node.args[:2]
        tangents = [self.of(operand) for operand in operands[len(operands) - len(table.reach[0]) :]]  # type: ignore

        def reached(place: int, way: Sequence[Sequence[bool]]) -> There:
            return self._any(tangent for tangent, reach in zip(tangents, way) if reach[place])

        places = range(len(table.metas))
        return [self._chosen(pred, *(reached(place, way) for way in table.reach)) for place in places]

    def _told_by(self, node: fx.Node) -> list[There]:
        """The truth values that a called derivative gives behind its gradients."""
        metas = node.meta["val"]
        told: list[There] = []
        for place in range(len(metas) // 2, len(metas)):
            with self.graph.inserting_after(node):
                flag = self.graph.call_function(operator.getitem, (node, place))
            flag.meta["val"] = metas[place]
            told.append(flag)
        return told

    def _either(self, first: There, second: There) -> There:
        if first is True or second is True:
            return True
        if first is False or second is False or first is second:
            return second if first is False else first
        return self._node(aten.logical_or.default, first, second)

    def _chosen(self, pred: Any, first: There, second: There) -> There:
        """`first` if the condition is true, else `second`."""
        if first is second:
            return first
        truth = self._node(aten.ne.Scalar, self._node(aten.view.default, pred, ()), 0)
        left = self._both(truth, first)
        right = self._both(self._node(aten.logical_not.default, truth), second)
        return self._either(left, right)

    def _both(self, truth: fx.Node, there: There) -> There:
        if isinstance(there, fx.Node):
            return self._node(aten.logical_and.default, truth, there)
        return truth if there else False

    def _node(self, target: Any, *args: Any) -> fx.Node:
        known = self.nodes.get((target, args))
        if known is None:
            with self.graph.inserting_before(self.end):
                known = self.graph.call_function(target, tuple([list(arg) if arg == () else arg for arg in args]))
            dtype = args[0].meta["val"].dtype if target is aten.view.default else torch.bool
            known.meta["val"] = TensorMeta((), (), 0, dtype, args[0].meta["val"].device)
            self.nodes[target, args] = known
        return known
