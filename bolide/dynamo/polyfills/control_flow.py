"""torch's control-flow operators, written as the Python they stand for.

Loops of known length are unrolled into the graph, derivatives included. A condition that depends on data is the break
that the same ``if`` or ``while`` would be.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._higher_order_ops import scan as torchs_scan
from torch.utils import _pytree as pytree

_inner = [part for part in torchs_scan.__code__.co_consts if isinstance(part, types.CodeType)]
MOVES_RESULTS = any("movedim" in part.co_names for part in _inner)
"""Whether this torch stacks the results of a scan along the dimension that it goes over."""


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """`torch.cond`"""
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, made: Any) -> Any:
    """`while_loop`: the body gives the next carried values, arranged as in `made`."""
    spec, carried = pytree.tree_structure(carried_inputs), pytree.tree_leaves(carried_inputs)
    while cond_fn(*pytree.tree_unflatten(carried, spec)):
        carried = pytree.tree_leaves(body_fn(*pytree.tree_unflatten(carried, spec)))
    return pytree.tree_unflatten(carried, pytree.tree_structure(made))


def both(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    """`torch.cond` where a transform has one condition for each item of a batch."""
    return pytree.tree_map(lambda a, b: torch.where(pred, a, b), true_fn(*operands), false_fn(*operands))


def applied(function: Any, *args: Any) -> Any:
    """A step of a loop that is unrolled (see `torch_control_flow`)."""
    return function(*args)


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """`scan`: (last carry, results stacked along the first dimension, in later versions of torch along `dim`)."""
    leaves = pytree.tree_leaves(xs)
    if not leaves:
        return init, []
    if dim < 0:
        dim += leaves[0].dim()
    slices, spec = _slices(xs, dim)
    carry, made = init, []
    for position in range(len(slices))[:: -1 if reverse else 1]:
        carry, result = applied(combine_fn, carry, pytree.tree_unflatten(slices[position], spec))
        made.append(result)
    results = _stacked(made[::-1] if reverse else made)
    if dim and MOVES_RESULTS:
        results = pytree.tree_map(lambda result: result.movedim(0, dim) if dim < result.dim() else result, results)
    return carry, results


def associative_scan(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """`associative_scan`: the running combination along `dim`, neighbours first: as deep as the length's logarithm, in
    torch's order, so rounding is the same.
    """
    leaves, spec = pytree.tree_flatten(xs)
    elements = [leaf.movedim(dim, 0) for leaf in leaves]
    if reverse:
        elements = [element.flip(0) for element in elements]
    over = pytree.tree_unflatten([0] * len(leaves), spec)
    combine = torch.vmap(combine_fn, (over, over)) if combine_mode == "generic" else combine_fn

    def combined(left: Any, right: Any) -> Any:
        made = combine(pytree.tree_unflatten(left, spec), pytree.tree_unflatten(right, spec))
        return pytree.tree_leaves(made)

    def scanned(items: Any) -> Any:
        count = items[0].shape[0]
        if count < 2:
            return items
        odd = scanned(combined([item[:-1:2] for item in items], [item[1::2] for item in items]))
        if count == 2:
            even = [item[:1] for item in items]
        else:
            before = odd if count % 2 else [item[:-1] for item in odd]
            rest = combined(before, [item[2::2] for item in items])
            even = [torch.cat([item[:1], others]) for item, others in zip(items, rest)]
        return [_interleaved(*both) for both in zip(even, odd)]

    results = scanned(elements)
    if reverse:
        results = [result.flip(0) for result in results]
    return pytree.tree_unflatten([result.movedim(0, dim) for result in results], spec)


def _interleaved(even: Any, odd: Any) -> Any:
    count = odd.shape[0]
    pairs = torch.stack([even[:count], odd], 1).flatten(0, 1)
    return pairs if even.shape[0] == count else torch.cat([pairs, even[count:]])


def map_over(f: Any, xs: Any, *args: Any) -> Any:
    """`map`: f of every slice along the first dimension, stacked."""
    slices, spec = _slices(xs, 0)
    return _stacked([applied(f, pytree.tree_unflatten(leaves, spec), *args) for leaves in slices])


def _slices(xs: Any, dim: int) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    return [list(items) for items in zip(*[leaf.unbind(dim) for leaf in leaves], strict=True)], spec


def _stacked(made: Any) -> Any:
    flat = [pytree.tree_flatten(item) for item in made]
    spec = flat[0][1]
    return pytree.tree_unflatten([torch.stack(items) for items in zip(*[leaves for leaves, _ in flat])], spec)
