"""The backward graph of a compiled function as a part of another capture: that of a whole backward pass."""

from __future__ import annotations

import torch
import torch.fx as fx
from torch._ops import OpOverload

from bolide.functorch.cost import hint
from bolide.functorch.graphs import aten, copied, is_impure, placeholders
from bolide.tracing.graph import graph_module


def traceable(graph: fx.Graph, tangents: int, constants: dict[str, torch.Tensor], name: str) -> fx.GraphModule | None:
    """A copy of a backward graph whose last `tangents` arguments may have any layout. None where a part of it cannot be
    called by itself: random numbers, writes, branches, code of the program's."""
    if any(_is_bound(node) for node in graph.nodes):
        return None
    copy, _ = copied(graph)
    slots = placeholders(copy)
    for slot in slots[len(slots) - tangents :]:
        _lay_out(copy, slot, slots[-1])
    module = graph_module(copy, constants, name)
    module.real_recompile()  # capture goes through its code
    return module


def _is_bound(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    foreign = isinstance(node.target, OpOverload) and node.target.namespace not in ("aten", "prims")
    return foreign or is_impure(node)


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
