"""Why a graph cannot be recorded, as far as the graph tells."""

from __future__ import annotations

import torch
from torch import fx

from bolide.support.errors import UserFrame
from bolide.symbolic.sizes import is_data
from bolide.tracing.called.branches import branch, repeat, scan, unwind
from bolide.tracing.meta import TensorMeta, found_in
from bolide.tracing.numbers.data import binds
from bolide.tracing.operations.generators import STATES
from bolide.tracing.operations.writes import drawn

_CHOSEN_BY_THE_HOST = (branch, repeat, scan, unwind)
_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)


def device_in(graph: fx.Graph) -> torch.device | None:
    """The device that is not the CPU of the first tensor that is on one, or else the CPU; None without tensors."""
    devices = [found for node in graph.nodes for found in _devices(node)]
    return next((device for device in devices if device.type != "cpu"), devices[0] if devices else None)


def why_not(graph: fx.Graph, device: torch.device, dynamic: bool = True) -> tuple[str, UserFrame | None] | None:
    """Why a graph on `device` is not recorded, and the user's line; None if it can be. `dynamic`: whether one with
    symbolic sizes may be."""
    for node in graph.nodes:
        reason = _of(node, device, dynamic)
        if reason is not None:
            return reason, node.meta.get("where")
    return None


def _devices(node: fx.Node) -> list[torch.device]:
    """The devices of what a node gives and somebody uses; of several values the nodes that take them tell."""
    value = node.meta.get("val")
    unused = node.op == "output" or (node.op == "placeholder" and not node.users)
    return [value.device] if isinstance(value, TensorMeta) and not unused else []


def _of(node: fx.Node, device: torch.device, dynamic: bool) -> str | None:
    if node.op == "placeholder":  # one that stands for a generator is on no device
        for user in node.users:
            if (reason := _of_generator(user)) is not None:
                return reason
    for other in _devices(node):
        if other.type != device.type:
            return f"{node.name} is on {other}, and a graph of {device} runs on that device alone"
        if other.index != device.index:
            return f"{node.name} is on {other}, and a graph runs on one device, here {device}"
    if node.op == "placeholder":
        symbolic = not dynamic and isinstance(node.meta.get("val"), torch.SymInt)
        return "its sizes are symbolic (triton.cudagraph_skip_dynamic_graphs)" if symbolic else None
    if node.op != "call_function":
        return None
    if node.target in _CHOSEN_BY_THE_HOST:
        return f"{node.target} chooses by data what runs"
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if binds(node):
        return f"{node.target} makes a number of data, for which the host waits"
    if any(is_data(size) for meta in found_in(node.meta.get("val"), TensorMeta) for size in meta.shape):
        return f"the sizes that {node.target} gives depend on data"
    if _UNSAFE is not None and _UNSAFE in node.target.tags:
        return f"{node.target} is marked as unsafe in CUDA graphs (torch.Tag.cudagraph_unsafe)"
    return _of_generator(node)


def _of_generator(node: fx.Node) -> str | None:
    """What an operation does with a generator that a replay would not do."""
    if node.target in STATES:
        return "it sets or asks the state of a random generator, which a replay does not"
    if node.target is drawn or node.kwargs.get("generator") is not None:
        return "it draws from a generator of the program's"
    return None


def written_inputs(graph: fx.Graph) -> frozenset[int]:
    """The places of inputs that a graph writes to."""
    slots = {node: at for at, node in enumerate(graph.find_nodes(op="placeholder"))}
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return frozenset(slots[node.args[0]] for node in copies if node.args[0] in slots)
