"""Splits a joint graph into a forward and a backward graph: which values are saved in between, and which are computed
again.

A joint graph's placeholders are the inputs followed by the tangents, its results those of the forward followed by the
gradients. The choice is a minimum cut: every value that the backward can reach without tangents is a pair of vertices
joined by an edge that costs what saving it costs; computing it again costs an edge from the source; what must not be
computed again hangs on the source, what the backward reads on the sink. The cheapest cut is the cheapest set of saved
values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
import torch.fx as fx

from bolide.functorch.cost import INFINITE, is_in_memory, is_read_by_extern, node_bytes, recompute
from bolide.functorch.graphs import (
    argument_nodes,
    aten,
    extract,
    is_getitem,
    is_impure,
    is_size,
    is_tensor,
    is_tuple,
    is_view,
    maker,
    placeholders,
    readers_through_views,
    results,
    root,
)
from bolide.tracing.called.derivatives import derivative
from bolide.tracing.graph import behind, closure
from bolide.tracing.libraries import POLICIES, Policy, policy_of
from bolide.tracing.numbers.data import binds
from bolide.tracing.traits import NEVER
from bolide.tracing.wrappers import Form


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint graph: the first `inputs` placeholders are the inputs, the others the tangents; the first `outputs`
    results belong to the forward, the others are gradients. `written` are the inputs whose memory changes in the call,
    `steady` those that nobody writes to between a forward and its backward: parameters, leaves that require grad.
    `wrapped`: the inputs whose gradient is a wrapper, and how it is put together of the last results, in this order.
    """

    graph: fx.Graph
    inputs: int
    outputs: int
    written: frozenset[int] = frozenset()
    steady: frozenset[int] = frozenset()
    wrapped: Mapping[int, Form] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Partition:
    """`forward` has the joint graph's inputs, and its outputs followed by further saved values as results. `backward`
    takes the saved values in order (tensors, then numbers), then the tangents; its results are the gradients.

    `saved` holds nodes of the joint graph; `saved_at` says where each is found in the list of all inputs followed by
    all of the forward's results.
    """

    forward: fx.Graph
    backward: fx.Graph
    saved: tuple[fx.Node, ...]
    saved_at: tuple[int, ...]


Strategy = Literal["default", "min_cut"] | Callable[[Joint], Partition]


_OF_OTHERS = ("default_partition", "min_cut_rematerialization_partition", "draw_graph", "draw_joint_graph")


def __getattr__(name: str) -> Any:
    """PyTorch's partition functions, which are loaded when they are asked for."""
    if name in _OF_OTHERS:
        return getattr(importlib.import_module("bolide.functorch.foreign"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def partition(joint: Joint, strategy: Strategy = "min_cut", recomputable: Container[object] | None = None) -> Partition:
    """Splits `joint`. "default" saves what eager's formulas save; "min_cut" what costs the least time, but no more
    bytes (beyond rounding); anything else is called. `recomputable`: the operations that may be done again (None:
    those that cost little).
    """
    if callable(strategy):
        return strategy(joint)
    needs = analyse(joint, recomputable)
    return split(joint, needs, read_by_backward(needs) if strategy == "default" else cheapest(needs))


def cheapest(needs: Needs) -> list[fx.Node]:
    """The values whose saving costs the least time, but no more bytes than the default choice."""
    default = read_by_backward(needs)
    traffic = sum(price_of_saving(node, needs) for node in default if node.op != "placeholder")
    if possible_gain(needs, default) <= needs.policy.worth_a_cut * traffic:
        return default
    saved = cut(needs).saved
    return saved if saved_bytes(saved) <= 1.01 * saved_bytes(default) else default


def saved_bytes(saved: Iterable[fx.Node]) -> int:
    """Bytes kept alive for the backward beyond the inputs, which live anyway."""
    return sum(node_bytes(node) for node in saved if node.op != "placeholder")


# ---- what the backward needs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Needs:
    """`candidates`: nodes that the backward needs and that depend on no tangent, in order; `demanded`: those that it
    reads directly; `readers`: the nodes of the backward that depend on tangents; `in_forward`: nodes that the forward
    computes in any case; `backward_only`: candidates that it does not compute, but could save; `visible`: its results;
    `checkpointed`: nodes that the program wants computed again; `held`: those that code of the program's is given in
    the backward, which may write to this very memory; `exposed`: inputs and results that eager does not save, so that
    the program may write to them before the backward; `recomputable`: see `partition`; `again`: what computing a node
    once more costs, as `cost.recompute` says it; `policy`: of the device that the graph is for.
    """

    candidates: list[fx.Node]
    demanded: set[fx.Node]
    readers: set[fx.Node]
    in_forward: set[fx.Node]
    backward_only: set[fx.Node]
    visible: set[fx.Node]
    checkpointed: set[fx.Node]
    held: set[fx.Node]
    exposed: set[fx.Node]
    recomputable: Container[object] | None = None
    again: Callable[[fx.Node], float] = recompute
    policy: Policy = POLICIES["cpu"]

    def savable(self, node: fx.Node) -> bool:
        """Views are never saved (what they look at is), nor are tuples (their items are), constants (they are there),
        arithmetic on sizes and what is checkpointed.
        """
        if is_size(node):
            return node.op == "placeholder" or isinstance(node.target, torch._ops.OpOverload)
        return (
            node.op != "get_attr"
            and not is_view(node)
            and not is_tuple(node.meta["val"])
            and node not in self.checkpointed
        )


def forward_nodes(joint: Joint) -> set[fx.Node]:
    """The nodes that the forward computes in any case: for its results, for writes and random draws."""
    graph = joint.graph
    with_tangents = closure(placeholders(graph)[joint.inputs :], lambda node: node.users)
    impure = [node for node in graph.nodes if is_impure(node) and node.op == "call_function"]
    start = argument_nodes(results(graph)[: joint.outputs]) + [node for node in impure if node not in with_tangents]
    nodes = behind(start)
    nodes.update([user for node in nodes for user in node.users if is_getitem(user)])
    return nodes


def analyse(joint: Joint, recomputable: Container[object] | None = None) -> Needs:
    graph = joint.graph
    flat = results(graph)
    outputs, gradients = argument_nodes(flat[: joint.outputs]), argument_nodes(flat[joint.outputs :])
    with_tangents = closure(placeholders(graph)[joint.inputs :], lambda node: node.users)
    needed = behind(gradients)
    in_forward = forward_nodes(joint)
    candidates = [node for node in graph.nodes if node in needed and node not in with_tangents]
    readers = needed & with_tangents
    demanded = set(gradients).intersection(candidates)
    demanded.update(node for node in candidates if not readers.isdisjoint(node.users))
    backward_only: set[fx.Node] = set()
    checkpointed = _checkpointed(graph, in_forward)
    called = graph.find_nodes(op="call_function", target=derivative)
    held = {root(operand) for node in called for operand in node.all_input_nodes if is_tensor(operand)}
    visible = set(outputs)
    device = next((node.meta["val"].device for node in placeholders(graph) if is_tensor(node)), torch.device("cpu"))
    inputs = enumerate(placeholders(graph)[: joint.inputs])
    outside = [*visible, *(slot for at, slot in inputs if at not in joint.steady)]
    exposed = {root(node) for node in outside if is_tensor(node) and "scores" not in root(node).meta}
    facts = candidates, demanded, readers, in_forward, backward_only, visible, checkpointed, held, exposed, recomputable
    needs = Needs(*facts, policy=policy_of(device))
    backward_only.update(node for node in candidates if node not in in_forward and needs.savable(node))
    exposed.difference_update(read_by_backward(needs))
    return needs


def _checkpointed(graph: fx.Graph, in_forward: set[fx.Node]) -> set[fx.Node]:
    """The nodes of checkpointed regions (``meta["region"]``) but for a region's results, which others in the forward
    read, for what its policy saves (``meta["save"]``), and for what cannot be done twice.
    """
    again: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        region = node.meta.get("region")
        if region is None or "save" in node.meta or is_impure(maker(node)):
            continue
        looks_on = [user for user in node.users if is_view(user) or is_getitem(user)]
        if all(user in again for user in looks_on if user in in_forward) and all(
            user.meta.get("region") is region for user in node.users if user in in_forward or user.op == "output"
        ):
            again.add(node)
    return again


# ---- the two choices -------------------------------------------------------------------------------------------------


def read_by_backward(needs: Needs) -> list[fx.Node]:
    """The default choice, eager's: the values of the forward that the backward's formulas read; what the forward does
    not compute is left to the backward, but for what code of the program's may write to there.
    """

    def is_saved(node: fx.Node) -> bool:
        early = node.op == "placeholder" or node in needs.in_forward or node in needs.held
        return early and needs.savable(node)

    read = closure(needs.demanded, lambda node: () if is_saved(node) else node.all_input_nodes)
    return [node for node in needs.candidates if node in read and is_saved(node)]


def possible_gain(needs: Needs, saved: list[fx.Node]) -> float:
    """An upper bound of what any choice can gain over the default one, in bytes of traffic; found without a flow.

    A saved value can be computed again instead: that gains at most the difference of the two prices. Or what only the
    backward computes is saved in place of the values that it is made of.
    """
    price = {node: price_of_saving(node, needs) if node.op != "placeholder" else 0.0 for node in saved}
    gain = 0.0
    parts_of: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in needs.candidates:
        if node in price:
            parts_of[node] = frozenset([node])
            if price[node] and _may_run_in_backward(node, needs):
                gain += max(0.0, price[node] - sum(price_of_again(step, needs) for step in {node, maker(node)}))
        else:
            parts_of[node] = frozenset().union(*[parts_of[source] for source in node.all_input_nodes])
            if node in needs.backward_only:
                gain += max(0.0, sum(price[part] for part in parts_of[node]) - price_of_saving(node, needs))
    return gain


class Cut(NamedTuple):
    """The values that are `saved`, and those of the forward that the backward computes `again`."""

    saved: list[fx.Node]
    again: list[fx.Node]


def cut(needs: Needs, saving: Callable[[fx.Node], float] | None = None) -> Cut:
    """The minimum cut. `saving`: the price of saving a value (None: `price_of_saving`)."""
    saving = saving or (lambda node: price_of_saving(node, needs))
    if not needs.demanded:
        return Cut([], [])
    from bolide.functorch.cuts.mincut import minimum_cut

    source, sink = 0, 1
    number = {node: 2 * index + 2 for index, node in enumerate(needs.candidates)}
    edges: list[tuple[int, int, float]] = []
    for node, entry in number.items():
        edges.append((entry, entry + 1, saving(node) if needs.savable(node) else INFINITE))
        again = price_of_again(node, needs) if _may_run_in_backward(node, needs) else INFINITE
        if again:
            edges.append((source, entry, again))
        if node in needs.demanded:
            edges.append((entry + 1, sink, INFINITE))
        edges.extend((number[input_node] + 1, entry, INFINITE) for input_node in node.all_input_nodes)
    reached = minimum_cut(2 * len(number) + 2, edges, source, sink)
    saved = [node for node, entry in number.items() if reached[entry] and not reached[entry + 1]]
    return Cut(saved, [node for node, entry in number.items() if not reached[entry] and node in needs.in_forward])


def price_of_saving(node: fx.Node, needs: Needs) -> float:
    """Reading the value back, and writing it if the forward does not anyway. Of an input, which takes no memory, what
    its readers read of it, but two are still read rather than one value of theirs written and read. What is exposed is
    not saved: autograd would refuse a backward after a write to it. (The scores of a loss are not counted as exposed,
    `passes.norms`: not to save them would make the backward keep a second value of their size.)
    """
    if node in needs.exposed:
        return INFINITE
    if node.op == "placeholder":
        read = max(map(node_bytes, readers_through_views(node)), default=0)
        return 1.0 + needs.policy.input_byte * min(read, node_bytes(node))
    by_extern = recompute(maker(node)) == NEVER
    written = node in needs.visible or by_extern or is_in_memory(node, needs.in_forward)
    early = 1.05 if node in needs.backward_only else 1.0  # where it makes no difference, the backward does its own work
    return node_bytes(node) * (1.0 if written else 2.0) * early + 8.0


def _may_run_in_backward(node: fx.Node, needs: Needs) -> bool:
    if node.op == "placeholder" or is_impure(node) or node in needs.held:
        return False
    if node in needs.in_forward and "region" in node.meta and node not in needs.checkpointed:
        return not needs.savable(node)  # a region's result: without it the next region would start with this one's
    if node not in needs.in_forward or node in needs.checkpointed:
        return True
    if needs.recomputable is None or is_view(node) or is_size(node):
        return needs.again(node) < NEVER
    target: Any = maker(node).target
    return target in needs.recomputable or getattr(target, "overloadpacket", None) in needs.recomputable


def price_of_again(node: fx.Node, needs: Needs) -> float:
    """The arithmetic, and the traffic if the backward needs the value in memory. Zero for what only the backward wants:
    that is computed once wherever it happens.
    """
    if node not in needs.in_forward or "region" in node.meta:
        return 0.0
    in_memory = is_tensor(node) and not is_view(node) and is_read_by_extern(node, needs.readers)
    return needs.again(node) + (2.0 * node_bytes(node) if in_memory else 0.0)


# ---- two graphs out of one -----------------------------------------------------------------------------------------


def split(joint: Joint, needs: Needs, saved: list[fx.Node], late: bool = False) -> Partition:
    """The two graphs where these values are saved. `late`: what is computed again lives as short as it can."""
    graph = joint.graph
    flat, slots = results(graph), placeholders(graph)
    inputs, tangents = slots[: joint.inputs], slots[joint.inputs :]
    data_sizes = [node for node in graph.nodes if binds(node)]
    sizes = [node for node in (*inputs, *data_sizes) if is_size(node) and node not in saved]  # metas speak of them
    saved = sorted([*saved, *sizes], key=lambda node: not is_tensor(node))
    values: list[Any] = [*inputs, *flat[: joint.outputs]]
    before_write = {
        inputs[index]: _copy_of_input(graph, inputs[index]) for index in joint.written if inputs[index] in saved
    }
    position = {node: index for index, node in reversed(list(enumerate(values))) if isinstance(node, fx.Node)}
    saved_at = []
    for node in saved:
        node = before_write.get(node, node)
        if node not in position:
            position[node] = len(values)
            values.append(node)
        saved_at.append(position[node])
    calls = [node for node in graph.nodes if node.op == "call_function" and node in needs.in_forward]
    effects = [node for node in calls if is_impure(node)]
    writes = [node for node in effects if node.target is aten.copy_.default]
    others = [node for node in effects if node.target is not aten.copy_.default]
    forward = extract(graph, inputs, values[len(inputs) :], writes, others)
    backward = extract(graph, [*saved, *tangents], flat[joint.outputs :], [])
    if needs.checkpointed or late:
        delay(backward, len(saved))
    return Partition(forward, backward, tuple(saved), tuple(saved_at))


def _copy_of_input(graph: fx.Graph, slot: fx.Node) -> fx.Node:
    """The value of an input from before it is written to."""
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        clone = graph.call_function(aten.clone.default, (slot,))
    clone.meta = dict(slot.meta)
    return clone


def delay(graph: fx.Graph, saved: int) -> None:
    """Moves what depends on no tangent right before its first reader, so that values that are computed again live as
    short as they can. The first `saved` placeholders of `graph` are no tangents.
    """
    with_tangents = closure(placeholders(graph)[saved:], lambda node: node.users)
    order = {node: index for index, node in enumerate(graph.nodes)}
    placed = with_tangents | set(placeholders(graph))

    def waiting(node: fx.Node) -> list[fx.Node]:
        return [source for source in node.all_input_nodes if source not in placed]

    for node in order:
        if node.op == "output" or node in with_tangents:
            early = closure(waiting(node), waiting)
            for source in sorted(early, key=order.__getitem__):
                node.prepend(source)
            placed.update(early)
