"""Removal of nodes that give their own argument back."""

from __future__ import annotations

from typing import Any

import torch.fx as fx

from bolide.functorch.graphs import argument_nodes, results, root
from bolide.symbolic import same_size
from bolide.tracing import TensorMeta
from bolide.tracing.traits import traits_of


def remove_noops(graph: fx.Graph) -> fx.Graph:
    """Removes views that change nothing and copies of values that nobody else can see or change.

    A copy of a placeholder or constant stays (its owner may write to the original while the copy is saved for
    backward); so does a copy that is a result, or whose views are.
    """
    pinned = {root(node) for node in argument_nodes(results(graph))}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(source, fx.Node):
            continue
        traits = traits_of(node.target)
        if traits.copy:
            origin = root(source)
            removable = origin.op == "call_function" and origin not in pinned and node not in pinned
        else:
            removable = traits.view
        if removable and _same_layout(node.meta.get("val"), source.meta.get("val")):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    return graph


def _same_layout(one: Any, other: Any) -> bool:
    """Do two values have the same dtype, device, sizes and strides, whatever the symbols in these are?"""
    if not isinstance(one, TensorMeta) or not isinstance(other, TensorMeta):
        return False
    if one.dtype != other.dtype or one.device != other.device:
        return False
    layout, reference = (*one.shape, *one.stride, one.offset), (*other.shape, *other.stride, other.offset)
    return len(layout) == len(reference) and all(map(same_size, layout, reference))
