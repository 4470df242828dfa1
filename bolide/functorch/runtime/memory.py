"""What a compiled function keeps alive between its forward and its backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.fx as fx

from bolide.functorch.cost import node_bytes
from bolide.functorch.graphs import maker
from bolide.support.errors import UserFrame


@dataclass(frozen=True, slots=True)
class SavedValue:
    """One value saved for the backward. `bytes` is 0 for the program's inputs, which live anyway; sizes that are
    symbols count by the size seen while tracing. `where` is the user's line that computed it.
    """

    name: str
    operation: str
    bytes: int
    where: UserFrame | None

    def __str__(self) -> str:
        return f"{self.bytes / 2**20:9.2f} MiB  {self.operation}  {self.where or ''}"


def saved_values(saved: Iterable[fx.Node]) -> tuple[SavedValue, ...]:
    """Describes saved nodes, largest first."""
    described = [_described(node) for node in saved]
    return tuple(sorted(described, key=lambda value: -value.bytes))


def _described(node: fx.Node) -> SavedValue:
    where = node.meta.get("where")
    if node.op == "placeholder":
        return SavedValue(node.name, "input", 0, where)
    return SavedValue(node.name, str(maker(node).target), node_bytes(node), where)
