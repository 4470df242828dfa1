"""Removal of what nothing reads: nodes, and arguments that an op takes but does not read."""

from __future__ import annotations

import torch.fx as fx

from bolide.functorch.graphs import aten, is_impure


def remove_dead(graph: fx.Graph) -> fx.Graph:
    """Erases every node without users, except placeholders, writes and random draws (which move the generator on, as
    eager does).
    """
    for node in reversed(graph.nodes):
        if not node.users and not is_impure(node):
            graph.erase_node(node)
    return graph


# native_batch_norm_backward(grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
# output_mask)
_TRAIN, _RUNNING = 7, (3, 4)


def drop_unread_arguments(graph: fx.Graph) -> fx.Graph:
    """Cuts edges along which no value flows: in training, the formula of BatchNorm's backward uses the batch's own
    statistics. The running ones must not be saved for it: the next forward changes them, which eager allows.
    """
    for node in graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if node.args[_TRAIN] is True:
            for position in _RUNNING:
                node.update_arg(position, None)
    return graph
