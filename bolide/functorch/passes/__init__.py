"""Passes over the recorded graph: pure in spirit, `f(graph) -> graph`, run in the order of `PASSES` by one runner that
times and checks them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.fx as fx

from bolide.functorch.config import config
from bolide.functorch.passes.attention import fuse_attention
from bolide.functorch.passes.channels_last import lay_out_convolutions
from bolide.functorch.passes.heads import share_heads
from bolide.functorch.passes.simplify import drop_unread_arguments, merge_equal, remove_dead, remove_noops
from bolide.support import events

Pass = Callable[[fx.Graph], fx.Graph]

PASSES: tuple[Pass, ...] = (remove_dead, drop_unread_arguments, remove_noops, merge_equal, remove_dead)
INFERENCE_PASSES: tuple[Pass, ...] = (*PASSES, fuse_attention, share_heads, lay_out_convolutions)


def run_passes(graph: fx.Graph, name: str, passes: tuple[Pass, ...] = PASSES, *, check: bool = False) -> fx.Graph:
    """Runs `passes` over `graph`, which is changed in place and returned. `check` lints the graph after each pass."""
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
    return graph
