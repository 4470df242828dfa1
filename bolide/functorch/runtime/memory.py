"""What a compiled function keeps alive between its forward and its backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.fx as fx

from bolide.functorch.cost import nbytes, node_bytes, recompute
from bolide.functorch.graphs import is_size, maker
from bolide.support.errors import UserFrame
from bolide.tracing.rng import draws
from bolide.tracing.traits import NEVER


@dataclass(frozen=True, slots=True)
class SavedValue:
    """One value saved for the backward. `bytes` is 0 for the program's inputs, which live anyway; sizes that are
    symbols count by the size seen while tracing. `where` is the user's line that computed it; `why` says what else
    could be done, and `readers` what reads it in the joint graph.
    """

    name: str
    operation: str
    bytes: int
    where: UserFrame | None
    why: str = ""
    readers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.bytes / 2**20:9.2f} MiB  {self.operation}  {self.where or ''}  {self.why}"


def saved_values(saved: Iterable[fx.Node]) -> tuple[SavedValue, ...]:
    """Describes saved nodes of a joint graph (`Partition.saved`), largest first."""
    described = [_described(node) for node in saved]
    return tuple(sorted(described, key=lambda value: -value.bytes))


def _described(node: fx.Node) -> SavedValue:
    operation = "input" if node.op == "placeholder" else str(maker(node).target)
    size = 0 if node.op == "placeholder" else node_bytes(node)
    readers = tuple(user.name for user in node.users)
    return SavedValue(node.name, operation, size, node.meta.get("where"), _why(node), readers)


def _why(node: fx.Node) -> str:
    """Why a value is kept rather than computed again."""
    if node.op == "placeholder":
        return "a size of the inputs" if is_size(node) else "an input, which lives anyway"
    if is_size(node):
        return "a size that is data"
    if any(user.op == "output" for user in node.users):
        return "a result of the program as well"
    if "save" in node.meta:
        return "the program's checkpoint keeps it"
    step = maker(node)
    if draws(step):
        return "random: it is drawn once"
    if recompute(step) == NEVER:
        return "costly to compute again"
    sources = sum(nbytes(source.meta.get("val")) for source in step.all_input_nodes)
    return f"cheap, but made of {sources / 2**20:.2f} MiB, which would have to be there instead"


def table(values: Iterable[SavedValue]) -> str:
    """Saved values as lines of text: bytes, operation, the user's line, why."""
    rows = [("MiB", "value", "operation", "why", "line")]
    rows += [(f"{v.bytes / 2**20:.2f}", v.name, v.operation, v.why, str(v.where or "")) for v in values]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row[1:], widths[1:])).rstrip()
        for row in rows
    )
