"""Removal of what is not needed: what nothing reads, what gives its own argument back, what was computed before."""

from __future__ import annotations

from typing import Any

import torch.fx as fx

from bolide.functorch.graphs import argument_nodes, aten, is_getitem, is_impure, results, root
from bolide.symbolic import same_size
from bolide.tracing import TensorMeta
from bolide.tracing.traits import traits_of


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
# _scaled_dot_product_efficient_attention_backward(grad, query, key, value, bias, out, logsumexp, philox_seed,
# philox_offset, dropout_p, …)
_DROPOUT, _PHILOX = 9, (7, 8)
_UNREAD = (
    (aten.native_batch_norm_backward.default, _TRAIN, True, _RUNNING),
    (aten._scaled_dot_product_efficient_attention_backward.default, _DROPOUT, 0.0, _PHILOX),
)


def drop_unread_arguments(graph: fx.Graph) -> fx.Graph:
    """Cuts edges along which no value flows: in training, the formula of BatchNorm's backward uses the batch's own
    statistics. The running ones must not be saved for it: the next forward changes them, which eager allows. Attention
    without dropout reads no state of random numbers, which lies on the CPU, where CUDA graphs record nothing.
    """
    for target, option, value, unread in _UNREAD:
        for node in graph.find_nodes(op="call_function", target=target):
            if node.args[option] == value:
                for position in unread:
                    node.update_arg(position, None)
    return graph


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
            earlier = seen.setdefault((node.target, key_of(node.args), key_of(node.kwargs)), node)
        except TypeError:  # an argument that cannot be compared: leave the node alone
            continue
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)
    return graph


def key_of(value: Any) -> Any:
    """A hashable stand-in for an argument: equal exactly when the arguments are, with 1, 1.0 and True kept apart."""
    if isinstance(value, ATOMS):
        return (type(value), repr(value))
    if isinstance(value, (tuple, list)):
        return tuple([key_of(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, key_of(item)) for name, item in value.items()])
    if isinstance(value, slice):
        return (slice, key_of(value.start), key_of(value.stop), key_of(value.step))
    return value
