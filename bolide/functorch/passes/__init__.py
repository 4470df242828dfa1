"""Passes over the recorded graph: pure in spirit, `f(graph) -> graph`, run in the order of `PASSES` by one runner that
times and checks them, over the ways of branches and the bodies of loops as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch.fx as fx

from bolide.functorch.config import config
from bolide.functorch.graphs import aten
from bolide.functorch.passes.attention import fuse_attention
from bolide.functorch.passes.channels_last import lay_out_convolutions
from bolide.functorch.passes.heads import share_heads
from bolide.functorch.passes.simplify import drop_unread_arguments, merge_equal, remove_dead, remove_noops
from bolide.support import events
from bolide.tracing.called.branches import OVER_GRAPHS, Branches, Region, Repetition, Steps, Unwinding
from bolide.tracing.graph import Graph, LazyGraphModule, enter, lookup

Pass = Callable[[fx.Graph], fx.Graph]


def select_masked(graph: fx.Graph) -> fx.Graph:
    """Makes writes through a mask of what was read through it selections (`masks.py`)."""
    if any(graph.find_nodes(op="call_function", target=target) for target in _PUTS):
        from bolide.functorch.passes import masks

        masks.select(graph, _PUTS)
    return graph


_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)

PASSES: tuple[Pass, ...] = (
    *(remove_dead, drop_unread_arguments, remove_noops, merge_equal, select_masked, remove_dead),
)
INFERENCE_PASSES: tuple[Pass, ...] = (*PASSES, fuse_attention, share_heads, lay_out_convolutions)


def run_passes(graph: fx.Graph, name: str, passes: tuple[Pass, ...] = PASSES, *, check: bool = False) -> fx.Graph:
    """Runs `passes` over `graph`, which is changed in place and returned. The graphs of its branches and loops are
    replaced by copies that have gone through them. `check` lints the graphs after each pass."""
    check = check or config.debug_assert
    for step in passes:
        if step is merge_equal and not config.cse:
            continue
        before, started = len(graph.nodes), time.perf_counter()
        graph = step(graph)
        if check:
            graph.lint()
        if events.subscribers:
            detail = {"nodes before": before, "nodes after": len(graph.nodes)}
            events.emit(events.Stage(name, step.__name__, time.perf_counter() - started, detail))
    for target in OVER_GRAPHS:
        for node in graph.find_nodes(op="call_function", target=target):
            table: Region | Branches | Repetition | Steps | Unwinding = lookup(node.args[-1])  # type: ignore[arg-type]
            parts = tuple([_copied(part) for part in table.graphs])
            for part in parts:
                run_passes(part.graph, f"{name}.way", passes, check=check)
            node.args = (*node.args[:-1], enter(replace(table, graphs=parts)))  # type: ignore[arg-type]
    return graph


def _copied(part: fx.GraphModule) -> fx.GraphModule:
    """A way to be changed: the original may be replayed for gradients of gradients, which are those of its operations
    as recorded."""
    copy = Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in part.graph.nodes:
        copies[node] = copy.node_copy(node, copies.__getitem__)
    return LazyGraphModule(part, copy, class_name="Way")
