"""The cost model of partitioning: bytes of memory traffic, and what it costs to compute a value again, in the same
unit (see `tracing.traits`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch.fx as fx

from bolide.functorch.graphs import is_getitem, is_tensor, is_tuple, readers_through_views
from bolide.tracing.traits import NEVER, traits_of

INFINITE = float("inf")


def nbytes(value: Any) -> int:
    """Bytes of a traced value (a tensor's elements, not its storage; sizes that are symbols count by their hint); 0
    for numbers and None.
    """
    if is_tuple(value):
        return sum(map(nbytes, value))
    if not hasattr(value, "dtype"):
        return 0
    size = int(value.dtype.itemsize)
    for extent in value.shape:
        size *= hint(extent)
    return size


def hint(extent: Any) -> int:
    """A size as a number: the one seen while tracing, where it is a symbol. (What stands for data may be less than 0 in
    a difference.)"""
    return extent if isinstance(extent, int) else max(0, int(extent.node.hint))


def node_bytes(node: fx.Node) -> int:
    return nbytes(node.meta.get("val"))


def recompute(node: fx.Node) -> float:
    """What computing `node` once more costs, given its inputs, in bytes of traffic; `NEVER` for what must run once
    (matmuls, convolutions, sorts, random seeds …).
    """
    if node.op == "get_attr" or is_getitem(node):
        return 0.0
    if not is_tensor(node) and not is_tuple(node.meta["val"]):
        return 0.0 if node.op == "call_function" else NEVER  # arithmetic on sizes
    traits = traits_of(node.target)
    if traits.again == NEVER:
        return NEVER
    read = 2.0 * sum(map(node_bytes, node.all_input_nodes)) if traits.reduces else 0.0
    return read + traits.again * node_bytes(node)


def fuses(node: fx.Node) -> bool:
    """Does this op read its operands where they are computed?"""
    return recompute(node) < NEVER or traits_of(node.target).loops


def is_read_by_extern(node: fx.Node, readers: Container[fx.Node]) -> bool:
    """Does one of `readers` need `node` in memory, directly or through views, because it does not fuse?"""
    return any(reader in readers and not fuses(reader) for reader in readers_through_views(node))


def is_in_memory(node: fx.Node, readers: Container[fx.Node]) -> bool:
    """Will `node` be in memory for the sake of its `readers`? One that does not fuse wants it there; several are taken
    to lie apart, with a matmul or the like between them (a residual stream), so that one kernel cannot serve them all.
    """
    reading = [reader for reader in readers_through_views(node) if reader in readers and not is_getitem(reader)]
    return len(set(reading)) > 1 or any(not fuses(reader) for reader in reading)
