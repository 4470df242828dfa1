"""The backward graph of a compiled function as a part of another capture: that of a whole backward pass."""

from __future__ import annotations

import torch
import torch.fx as fx

from bolide.functorch.cost import hint
from bolide.functorch.graphs import aten, copied, is_impure, placeholders
from bolide.tracing.graph import graph_module
from bolide.tracing.rng import draws


def traceable(graph: fx.Graph, tangents: int, constants: dict[str, torch.Tensor], name: str) -> fx.GraphModule | None:
    """A copy of a backward graph whose last `tangents` arguments may have any layout. None where a part of it cannot be
    done again: writes, sizes that are data, code of the program's."""
    if any(is_impure(node) and node.op == "call_function" and not draws(node) for node in graph.nodes):
        return None
    copy, _ = copied(graph)
    slots = placeholders(copy)
    for slot in slots[len(slots) - tangents :]:
        _lay_out(copy, slot, slots[-1])
    return graph_module(copy, constants, name)


def _lay_out(graph: fx.Graph, slot: fx.Node, last: fx.Node) -> None:
    """Brings a tangent into the layout that the graph was recorded for, which is dense."""
    readers, stride = [*slot.users], slot.meta["val"].stride
    order = sorted(range(len(stride)), key=lambda dim: -hint(stride[dim]))
    back = [order.index(dim) for dim in range(len(stride))]
    value = slot
    with graph.inserting_before(last.next):
        for target, *rest in ((aten.permute.default, order), (aten.contiguous.default,), (aten.permute.default, back)):
            if not rest or order != [*range(len(order))]:
                value = graph.call_function(target, (value, *rest))
    for reader in readers:
        reader.replace_input_with(slot, value)
