"""What every part of this package says about FX graphs: the contract with graph compilers, graph modules whose code is
made only when it is looked at, kinds of ATen ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import torch
import torch.fx as fx

from bolide.tracing import TensorMeta
from bolide.tracing.called.derivatives import derivative
from bolide.tracing.numbers.data import binds
from bolide.tracing.rng import drops_nothing
from bolide.tracing.traits import traits_of

aten = torch.ops.aten

Runner = Callable[[list[torch.Tensor]], Sequence[Any]]
"""Takes the real inputs in the order of `trace.inputs` (and empties the list when memory may be released), gives the
real outputs.
"""

CompiledGraph = Callable[[list[Any]], Sequence[Any]]
"""A compiled graph: takes one flat list (which it may empty) and gives one flat sequence."""


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


GraphCompiler = Callable[[fx.GraphModule, GraphInfo], CompiledGraph]


class LazyGraphModule(fx.GraphModule):
    """A GraphModule whose Python code is generated when it is first called or read: generating it costs more than all
    passes together, and compilers never need it.
    """

    _generated: Any = None

    def recompile(self) -> Any:
        self._generated = None
        return None

    def _generate(self) -> Any:
        if self._generated is None:
            self._generated = fx.GraphModule.recompile(self)  # replaces this instance's class's `forward`
        return self._generated

    def real_recompile(self) -> Any:
        """What `torch.fx` calls on lazily generated modules before it prints, copies or saves them."""
        return self._generate()

    @property
    def code(self) -> str:
        self._generate()
        return str(self._code)

    def forward(self, *args: Any) -> Any:
        self._generate()
        return type(self).forward(self, *args)


def graph_module(graph: fx.Graph, constants: dict[str, torch.Tensor], name: str) -> fx.GraphModule:
    """Wraps a graph; `constants` are the real tensors that its ``get_attr`` nodes reach."""
    used = {node.target: constants[str(node.target)] for node in graph.find_nodes(op="get_attr")}
    return LazyGraphModule(used, graph, class_name=name)


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


def is_tensor(node: fx.Node) -> bool:
    """Is the node's value one tensor (not a number or a tuple)?"""
    return isinstance(node.meta["val"], TensorMeta)


def is_size(node: fx.Node) -> bool:
    """Is the node's value a symbolic number?"""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat))


def is_tuple(value: Any) -> bool:
    """Is a traced value a tuple of values? (A TensorMeta is a tuple to Python, but one value to us.)"""
    return isinstance(value, (tuple, list)) and not isinstance(value, TensorMeta)


def argument_nodes(values: Iterable[Any]) -> list[fx.Node]:
    return [value for value in values if isinstance(value, fx.Node)]


# ---- kinds of ops ----------------------------------------------------------------------------------------------------


def is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def is_view(node: fx.Node) -> bool:
    """Does this node only look at its first argument (including one item of a split)?"""
    if traits_of(node.target).view:
        return True
    return is_getitem(node) and isinstance(node.args[0], fx.Node) and traits_of(node.args[0].target).view


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
