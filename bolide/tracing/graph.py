"""Graphs: nodes made without checks that cost more than the nodes, walks over nodes and their arguments, and what nodes
refer to by number."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx as fx
from torch._ops import OpOverload


class Graph(fx.Graph):
    """An `fx.Graph` for trusted makers: arguments are nodes, Python constants and containers of those, never symbols.

    From torch 2.13 on `fx.Graph` looks through all arguments of every new node for raw symbols, 30 µs a node.
    """

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        """As `fx.Graph.create_node`."""
        namespace = self._graph_namespace
        unique = namespace.create_name(name if name is not None else self._target_to_str(target), None)
        node = fx.Node(self, unique, op, target, args or (), kwargs or {}, type_expr)
        namespace.associate_name_with_obj(unique, node)
        self._insert(node)
        self._find_nodes_lookup_table.insert(node)
        self._len += 1
        return node

    def node_copy(self, node: fx.Node, arg_transform: Callable[[fx.Node], Any] = lambda node: node) -> fx.Node:
        """As `fx.Graph.node_copy`."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), arg_transform)
        copy = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copy.meta = node.meta.copy()
        return copy


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with all in it changed, at any depth of lists, tuples and dicts; named tuples are single things."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        items = [mapped(item, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return {key: mapped(item, change) for key, item in value.items()} if isinstance(value, dict) else change(value)


def closure(start: Iterable[fx.Node], neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    """Everything reached from `start`, itself included; the output node is not a neighbour."""
    seen = set(start)
    stack = list(seen)
    while stack:
        for node in neighbours(stack.pop()):
            if node not in seen and node.op != "output":
                seen.add(node)
                stack.append(node)
    return seen


def behind(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes, and all that they are computed from."""
    return closure(nodes, lambda node: node.all_input_nodes)


def evaluated(
    graph: fx.GraphModule,
    inputs: Iterable[object],
    call: Callable[[fx.Node, tuple[Any, ...], dict[str, Any]], Any],
    lift: Callable[[torch.Tensor], object] = lambda constant: constant,
) -> dict[fx.Node, Any]:
    """The values of all nodes: `call` is given each node that calls something, `lift` each constant."""
    values = dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            values[node] = lift(getattr(graph, str(node.target)))
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = call(node, args, kwargs)
    return values


# ---- modules ---------------------------------------------------------------------------------------------------------


class LazyGraphModule(fx.GraphModule):
    """A GraphModule whose Python code is generated when it is first called or read: generating it costs more than all
    passes together, and compilers never need it.
    """

    _generated: Any = None

    def recompile(self) -> Any:
        self._generated = None

    def real_recompile(self) -> Any:
        """What `torch.fx` calls on lazily generated modules before it prints, copies or saves them."""
        if self._generated is None:
            self._generated = fx.GraphModule.recompile(self)  # replaces this instance's class's `forward`
        return self._generated

    @property
    def code(self) -> str:
        self.real_recompile()
        return str(self._code)

    def forward(self, *args: object) -> object:
        self.real_recompile()
        return type(self).forward(self, *args)


def graph_module(graph: fx.Graph, constants: dict[str, torch.Tensor], name: str) -> LazyGraphModule:
    """Wraps a graph; `constants` are the real tensors that its ``get_attr`` nodes reach."""
    used = {node.target: constants[str(node.target)] for node in graph.find_nodes(op="get_attr")}
    return LazyGraphModule(used, graph, class_name=name)


# ---- operators of ours -----------------------------------------------------------------------------------------------

_library: Any = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(schema: str, kernel: Callable[..., Any], *tags: torch.Tag) -> OpOverload:
    """A new operator `bolide::…`, which stands in graphs and calls `kernel` when they run."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=tags)
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    overload: OpOverload = getattr(torch.ops.bolide, name).default
    return overload


# ---- tables: graphs, and calls, that no argument of an operation can hold --------------------------------------------


class Handle(int):
    """The number of a table in a graph. It holds what it refers to: so that lives as long as a graph, or a plan made of
    one, in which the number stands."""

    table: Any

    def __deepcopy__(self, memo: object) -> Handle:
        return self


_tables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def enter(table: object) -> Handle:
    """A number under which operations find `table`."""
    handle = Handle(next(_numbers))
    handle.table = table
    _tables[int(handle)] = table
    return handle


def lookup(number: int) -> Any:
    """The table of that number. Raises KeyError when no graph has it any more."""
    return _tables[number]
