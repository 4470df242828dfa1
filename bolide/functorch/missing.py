"""Backward graphs for results whose tangents do not come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.fx as fx

from bolide.functorch.graphs import aten, output_node, placeholders, results
from bolide.functorch.partitioners import closure, extract
from bolide.functorch.passes.dead import remove_dead
from bolide.tracing import TensorMeta
from bolide.tracing.meta import contiguous_strides


def without_tangents(graph: fx.Graph, tangents: Iterable[fx.Node], missing: Iterable[fx.Node]) -> fx.Graph:
    """A copy of a backward graph without the placeholders `missing`, some of its `tangents`.

    As in the autograd engine, what depends on missing tangents only is missing itself, and a gradient that is missing
    is None; where a missing value meets a present one, it counts as zero (or is left out of a sum).
    """
    slots = placeholders(graph)
    whole = extract(graph, slots, results(graph), [])
    copies = dict(zip(slots, placeholders(whole)))
    absent = {copies[slot] for slot in missing}
    dropped = list(absent)
    dependent = closure([copies[slot] for slot in tangents], lambda node: node.users)
    for node in list(whole.nodes):
        sources = [source for source in node.all_input_nodes if source in dependent]
        lost = [source for source in sources if source in absent]
        if not lost or node.op == "output":
            continue
        if len(lost) == len(sources):
            absent.add(node)
        elif (rest := _rest_of_sum(node, lost)) is not None:
            node.replace_all_uses_with(rest)
        else:
            for source in lost:
                node.replace_input_with(source, _zeros(node, source.meta["val"]))
    end = output_node(whole)
    end.args = (tuple([None if value in absent else value for value in results(whole)]),)
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


def _zeros(reader: fx.Node, meta: TensorMeta) -> fx.Node:
    with reader.graph.inserting_before(reader):
        options: dict[str, Any] = {"dtype": meta.dtype, "device": meta.device}
        zeros = reader.graph.call_function(aten.full.default, (list(meta.shape), 0), options)
    zeros.meta = {**reader.meta, "val": meta._replace(stride=contiguous_strides(meta.shape), offset=0)}
    return zeros
