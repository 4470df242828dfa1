"""Equal computations are done once."""

from __future__ import annotations

from typing import Any

import torch.fx as fx

from bolide.functorch.graphs import argument_nodes, is_getitem, is_impure, results, root

ATOMS = (int, float, bool, complex)


def merge_equal(graph: fx.Graph) -> fx.Graph:
    """Replaces each node by an earlier one with the same target and arguments.

    Two results of the graph are never merged into one, nor into views of one memory: the user may write to one of them.
    """
    visible = {root(node) for node in argument_nodes(results(graph))}
    visible |= {maker for node in visible if is_getitem(node) for maker in node.all_input_nodes}
    seen: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output" or is_impure(node) or root(node) in visible:
            continue
        try:
            earlier = seen.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        except TypeError:  # an argument that cannot be compared: leave the node alone
            continue
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)
    return graph


def _key(value: Any) -> Any:
    """A hashable stand-in for an argument: equal exactly when the arguments are, with 1, 1.0 and True kept apart."""
    if isinstance(value, ATOMS):
        return (type(value), repr(value))
    if isinstance(value, (tuple, list)):
        return tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key(item)) for name, item in value.items()])
    if isinstance(value, slice):
        return (slice, _key(value.start), _key(value.stop), _key(value.step))
    return value
