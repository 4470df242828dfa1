"""Removal of nodes that nothing reads."""

from __future__ import annotations

import torch.fx as fx

from bolide.functorch.graphs import is_impure


def remove_dead(graph: fx.Graph) -> fx.Graph:
    """Erases every node without users, except placeholders, writes and random draws (which move the generator on, as
    eager does).
    """
    for node in reversed(graph.nodes):
        if not node.users and not is_impure(node):
            graph.erase_node(node)
    return graph
