"""What tools for graphs share: equal computations merged, names of operations, inputs and results of any `fx.Graph`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import _pytree as pytree

from bolide.functorch.passes.simplify import key_of
from bolide.tracing.graph import closure

_IN_PLACE = "iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor setitem delitem"
WRITING = {getattr(operator, name) for name in _IN_PLACE.split()}
"""Python's operators that write to their first argument."""


def get_aten_target(node: fx.Node) -> object:
    """The operation that a node calls, without its overload; what calls no ATen operation has its target itself."""
    return getattr(node.target, "overloadpacket", node.target)


def get_placeholders(graph: fx.Graph) -> list[fx.Node]:
    """The inputs of a graph, in order."""
    return list(graph.find_nodes(op="placeholder"))


def get_outputs(graph: fx.Graph) -> list[object]:
    """The results of a graph in flat form. Raises AssertionError where it has no output node."""
    for node in graph.find_nodes(op="output"):
        return pytree.tree_leaves(node.args[0])
    raise AssertionError("No output node found")


def strip_overloads(gm: fx.GraphModule) -> None:
    """Lets the nodes of `gm` call operations by name, whose overload is chosen when they run."""
    for node in gm.graph.nodes:
        node.target = get_aten_target(node)
    gm.recompile()


# ---- kinds of calls --------------------------------------------------------------------------------------------------


def _overloads(node: fx.Node) -> Sequence[OpOverload]:
    """The ATen operations that a node may call: of functions and methods of torch those of the same name."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return (target,)
    name = target if node.op == "call_method" else getattr(target, "__name__", "")
    packet = target if isinstance(target, OpOverloadPacket) else getattr(torch.ops.aten, name, None)
    return [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else ()


def writes(node: fx.Node) -> bool:
    """Whether a node may write to its arguments."""
    if node.op not in ("call_function", "call_method"):
        return False
    asked = node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True
    return asked or node.target in WRITING or any(map(_writes_first, _overloads(node)))


def _writes_first(overload: OpOverload) -> bool:
    """Whether an argument other than ``out=`` is written to."""
    arguments = [argument for argument in overload._schema.arguments if not argument.kwarg_only]
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in arguments)


def _differs_each_time(node: fx.Node) -> bool:
    """Whether a node gives another value when it is called once more: random numbers, memory as it was found."""
    overloads = _overloads(node)
    random = any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)
    return random or any(overload._schema.name.startswith(("aten::empty", "aten::new_empty")) for overload in overloads)


# ---- equal computations ----------------------------------------------------------------------------------------------


def fx_graph_cse(fx_g: fx.Graph) -> fx.Graph:
    """A new graph in which nodes with the same target and arguments are one.

    Constants that are equal but of different types are different. Random and uninitialised values are not merged, nor
    what writes, nor what is computed before a write and after it, nor values whose memory is written to, or is that of
    a result: the caller may write to one of two equal results.
    """
    merged = fx.Graph()
    own_memory = _sharing_memory_with_results(fx_g) | _written(fx_g)
    copies: dict[fx.Node, fx.Node] = {}
    seen: dict[object, fx.Node] = {}
    for node in fx_g.nodes:
        writing = writes(node)
        computes = node.op == "call_function" or (node.op == "call_method" and _overloads(node))
        apart = not computes or writing or node in own_memory or _differs_each_time(node)
        if writing:
            seen.clear()
        key = None if apart else _key(node, copies)
        if key is None:
            copies[node] = merged.node_copy(node, copies.__getitem__)
        elif key in seen:
            copies[node] = seen[key]
        else:
            copies[node] = seen[key] = merged.node_copy(node, copies.__getitem__)
    return merged


def _key(node: fx.Node, copies: dict[fx.Node, fx.Node]) -> object:
    """What equal computations have in common; None where an argument cannot be compared."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
    key = (node.op, node.target, key_of(args), key_of(dict(sorted(kwargs.items()))))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _sharing_memory_with_results(graph: fx.Graph) -> set[fx.Node]:
    """The results, and what is known to be in their memory."""
    results = closure([node for node in get_outputs(graph) if isinstance(node, fx.Node)], _viewed)
    storages = {_storage(node) for node in results} - {None}
    return results | {node for node in graph.nodes if _storage(node) in storages}


def _viewed(node: fx.Node) -> list[fx.Node]:
    """What a node may give a view, or an item, of."""
    returns = [given for overload in _overloads(node) for given in overload._schema.returns]
    views = any(given.alias_info is not None and not given.alias_info.is_write for given in returns)
    return node.all_input_nodes[:1] if views or node.target is operator.getitem else []


def _written(graph: fx.Graph) -> set[fx.Node]:
    """What is written to, or, where an operator stands in functional form, would be by the operator itself; and what
    that may be a view of: the first arguments that have led there."""
    calls = [node for node in graph.nodes if writes(node)]
    start = [source for node in calls for source in node.all_input_nodes]
    start += [source for node in graph.nodes if node.target in _FUNCTIONAL for source in node.all_input_nodes]
    return closure(start, lambda node: [arg for arg in node.args[:1] if isinstance(arg, fx.Node)])


_FUNCTIONAL = (torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2)


def _storage(node: fx.Node) -> int | None:
    """The memory of a node's example value, if it has one."""
    value = node.meta.get("val")
    try:
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
    except NotImplementedError:  # a tensor without memory of its own
        return None
