"""What every part of this package says about FX graphs: the contract with graph compilers, kinds of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, TypeGuard

import torch
import torch.fx as fx

from bolide.tracing import TensorMeta
from bolide.tracing.called.derivatives import derivative
from bolide.tracing.graph import Graph, closure
from bolide.tracing.numbers.data import binds
from bolide.tracing.rng import drops_nothing
from bolide.tracing.traits import traits_of

aten = torch.ops.aten

Runner = Callable[[list[Any]], Sequence[Any]]
"""Runs graphs: takes one flat list of real values (which it may empty, so that memory is released early) and gives one
flat sequence."""


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """What a graph compiler has to know besides the graph.

    `static_inputs`: positions of placeholders whose tensors are the same objects in every call (parameters).
    `visible_outputs`: positions of results that leave the compiled function: their strides must be those of
    ``meta["val"]``; any other result is only read by the backward graph and may have any strides, which the compiler
    then records in ``meta["val"]``.
    """

    kind: Literal["inference", "forward", "backward"]
    static_inputs: frozenset[int]
    visible_outputs: frozenset[int]


GraphCompiler = Callable[[fx.GraphModule, GraphInfo], Runner]


def constants_of(module: fx.GraphModule) -> dict[str, Any]:
    """The attributes that a module's graph reads."""
    return {str(node.target): getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")}


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """The graph's placeholders, which come before all other nodes, in order."""
    return list(takewhile(lambda node: node.op == "placeholder", graph.nodes))


def output_node(graph: fx.Graph) -> fx.Node:
    last: fx.Node = next(iter(reversed(graph.nodes)))
    return last


def results(graph: fx.Graph) -> tuple[Any, ...]:
    """The flat results of a graph: nodes, ints or None."""
    flat = output_node(graph).args[0]
    assert isinstance(flat, (tuple, list))
    return tuple(flat)


def give(graph: fx.Graph, values: Iterable[Any]) -> None:
    """Makes these the results of a finished graph."""
    output_node(graph).args = (tuple(values),)


def extract(
    graph: fx.Graph, slots: list[fx.Node], values: Iterable[Any], writes: list[fx.Node], effects: Iterable[fx.Node] = ()
) -> fx.Graph:
    """The part of `graph` that computes `values` from `slots` (which become placeholders) and has the `effects` (draws,
    checks), then does `writes`, in the original order.
    """
    values, done = list(values), set(slots)
    start = [*argument_nodes(values), *writes, *effects]
    needed = closure(start, lambda node: () if node in done else node.all_input_nodes)
    part = Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for slot in slots:
        copies[slot] = part.placeholder(slot.name)
        copies[slot].meta = dict(slot.meta)
    done.update(writes)
    for node in graph.nodes:
        if node in needed and node not in done:
            copies[node] = part.node_copy(node, copies.__getitem__)
    for node in writes:
        part.node_copy(node, copies.__getitem__)
    part.output(tuple([copies[value] if isinstance(value, fx.Node) else value for value in values]))
    return part


def copied(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of what a graph's results are made of, and the copies of all its placeholders."""
    slots = placeholders(graph)
    copy = extract(graph, slots, results(graph), [])
    return copy, dict(zip(slots, placeholders(copy)))


def is_tensor(node: fx.Node) -> bool:
    """Is the node's value one tensor (not a number or a tuple)?"""
    return isinstance(node.meta["val"], TensorMeta)


def is_size(node: fx.Node) -> bool:
    """Is the node's value a symbolic number?"""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat))


def is_tuple(value: object) -> TypeGuard[Sequence[Any]]:
    """Is a traced value a tuple of values? (A TensorMeta is a tuple to Python, but one value to us.)"""
    return isinstance(value, (tuple, list)) and not isinstance(value, TensorMeta)


def argument_nodes(values: Iterable[object]) -> list[fx.Node]:
    return [value for value in values if isinstance(value, fx.Node)]


# ---- kinds of ops ----------------------------------------------------------------------------------------------------


def is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def maker(node: fx.Node) -> fx.Node:
    """The node that computes this one's value: of an item the one that makes all of them."""
    source = node.args[0] if is_getitem(node) else node
    assert isinstance(source, fx.Node)
    return source


def is_view(node: fx.Node) -> bool:
    """Does this node only look at its first argument (including one item of a split)?"""
    return traits_of(maker(node).target).view


def root(node: fx.Node) -> fx.Node:
    """The node whose memory this one looks at."""
    while is_view(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def readers_through_views(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes, other than views, that read this one directly or through views (more than once if by several ways)."""
    for user in node.users:
        if is_view(user):
            yield from readers_through_views(user)
        else:
            yield user


def is_impure(node: fx.Node) -> bool:
    """Must this node stay, stay single and stay in order? (Placeholders, writes, random draws.)"""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    if binds(node) or node.target is derivative:  # sizes of other values speak of it; the code may do what it likes
        return True
    return traits_of(node.target).impure and not drops_nothing(node)
