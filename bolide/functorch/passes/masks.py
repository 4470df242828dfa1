"""Writes through a mask of what was read through it (`x[mask] = y[mask] * 2`): a selection between whole tensors, which
needs neither the places of the mask nor their number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeGuard

import torch
import torch.fx as fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from bolide.functorch.graphs import aten
from bolide.functorch.passes.norms import Writer
from bolide.functorch.passes.simplify import remove_dead
from bolide.symbolic import same_sizes
from bolide.tracing import TensorMeta
from bolide.tracing.numbers.data import binds

_MAY_RAISE = ("div", "remainder", "fmod", "pow", "shift", "gcd", "lcm")
"""Parts of names of operations that refuse some integers."""


def select(graph: fx.Graph, targets: Sequence[OpOverload]) -> None:
    """Replaces such writes, nodes with these targets, where nothing else reads the elements on the way."""
    masks: set[fx.Node] = set()
    for put in [node for target in targets for node in graph.find_nodes(op="call_function", target=target)]:
        x, indices, value, *accumulate = put.args
        if True in accumulate or len(indices) != 1 or not _is_tensor(value) or not _is_tensor(x):  # type: ignore
            continue
        mask = indices[0]  # type: ignore[index]
        if not _is_tensor(mask) or mask.meta["val"].dtype is not torch.bool or not mask.meta["val"].ndim:
            continue
        if value.meta["val"].ndim != x.meta["val"].ndim - mask.meta["val"].ndim + 1:
            continue
        chain = _Chain(mask)
        if chain.reaches(value, put) and not chain.is_seen(put):
            _select(put, chain, x, value)
            masks.add(mask)
    if masks:
        remove_dead(graph)
        for nonzero in graph.find_nodes(op="call_function", target=aten.nonzero.default):
            if nonzero.args[0] in masks:
                _drop_count(nonzero)


def _is_tensor(node: object) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), TensorMeta)


class _Chain:
    """Pointwise operations on elements that are read through a mask."""

    def __init__(self, mask: fx.Node) -> None:
        self.mask, self.nodes = mask, dict[fx.Node, fx.Node | None]()  # those that read, and what of

    def reaches(self, node: fx.Node, put: fx.Node) -> bool:
        """Whether a value has an element, or row, for each that the mask shows, and how it comes about is known."""
        if node in self.nodes:
            return True
        if node.op != "call_function":
            return False
        source = self._read_of(node)
        if source is None and not (_is_pointwise(node) and self._fit(node, put)):
            return False
        self.nodes[node] = source
        return True

    def _fit(self, node: fx.Node, put: fx.Node) -> bool:
        """Whether operands are of the chain, or the same for all rows."""
        rank, found = node.meta["val"].ndim, False
        for operand in node.all_input_nodes:
            if self.reaches(operand, put):
                found = True
            elif not _is_tensor(operand) or operand.meta["val"].ndim >= rank:
                return False
            if operand in self.nodes and operand.meta["val"].ndim != rank:
                return False
        return found

    def _read_of(self, node: fx.Node) -> fx.Node | None:
        """What `node` reads through the mask: all of its leading dimensions, at the mask's places."""
        if node.target is not aten.index.Tensor:
            return None
        source, places = node.args
        shape = self.mask.meta["val"].shape
        if not _is_tensor(source) or not isinstance(places, (list, tuple)) or source.meta["val"].ndim < len(shape):
            return None
        fits = len(places) == len(shape) and same_sizes(source.meta["val"].shape[: len(shape)], shape)
        return source if fits and all(self._is_place(place, dim) for dim, place in enumerate(places)) else None

    def _is_place(self, place: object, dim: int) -> bool:
        if not isinstance(place, fx.Node) or place.target is not aten.select.int or place.args[1:] != (1, dim):
            return False
        nonzero = place.args[0]
        return isinstance(nonzero, fx.Node) and nonzero.target is aten.nonzero.default and nonzero.args[0] is self.mask

    def is_seen(self, put: fx.Node) -> bool:
        """Whether something else reads the elements, which then are computed anyway."""
        return any(user is not put and user not in self.nodes for node in self.nodes for user in node.users)


def _is_pointwise(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags or node.kwargs:
        return False
    if not _is_tensor(node) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    integers = not any(_is_tensor(arg) and arg.meta["val"].dtype.is_floating_point for arg in node.args)
    return not (integers and any(part in target._opname for part in _MAY_RAISE))


def _select(put: fx.Node, chain: _Chain, x: fx.Node, value: fx.Node) -> None:
    write = Writer(put, value.meta["val"].shape[0].node.env)
    whole: dict[fx.Node, fx.Node] = {}

    def of_whole(arg: Argument) -> Argument:
        return whole.get(arg, arg) if isinstance(arg, fx.Node) else arg

    for node, source in chain.nodes.items():  # operands come first
        whole[node] = source or write(node.target, *fx.map_arg(node.args, of_whole))  # type: ignore[misc]
    mask, meta = chain.mask, put.meta["val"]
    for _ in range(meta.ndim - mask.meta["val"].ndim):
        mask = write(aten.unsqueeze.default, mask, mask.meta["val"].ndim)
    selected = write(aten.where.self, mask, whole[value], x)
    selected.meta["val"] = meta
    put.replace_all_uses_with(selected)
    put.graph.erase_node(put)


def _drop_count(nonzero: fx.Node) -> None:
    """Removes the places of a mask, and their number, if no size speaks of it."""
    counts = list(nonzero.users)
    if any(not binds(count) or count.users for count in counts):
        return
    names = {name for count in counts for name in _symbols(count)}
    others = (node for node in nonzero.graph.nodes if node is not nonzero and node not in counts)
    if not any(names & _symbols(node) for node in others):
        for node in (*counts, nonzero):
            nonzero.graph.erase_node(node)


def _symbols(node: fx.Node) -> set[str]:
    """The names of the symbols in what is known of a value."""
    meta = node.meta.get("val")
    metas = meta if isinstance(meta, (list, tuple)) else [meta]
    sizes = [[*each.shape, *each.stride] if isinstance(each, TensorMeta) else [each] for each in metas]
    symbols = [size for size in itertools.chain(*sizes) if isinstance(size, torch.SymInt)]
    return {name for size in symbols for name in size.node.expr.variables()}
