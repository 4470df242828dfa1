"""A graph whose nodes are made without checks that cost more than the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx as fx


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
