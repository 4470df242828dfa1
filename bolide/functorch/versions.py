"""What is compiled for arguments of one kind, and what a call does besides running graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.utils import _pytree as pytree

from bolide.functorch.graphs import Runner
from bolide.functorch.signature import with_sizes
from bolide.symbolic import Cond, Expr, Ratio
from bolide.tracing.rng import token_of

Leaves = Sequence[Any]


class Taken(NamedTuple):
    """An input of a graph: the leaf at this position of the arguments, or the tensor that it is a view of, or all of
    the memory that it lies in; of a generator the token."""

    at: int
    part: Literal["leaf", "base", "storage", "token"] = "leaf"

    def of(self, leaves: Leaves) -> Tensor:
        leaf: Tensor = leaves[self.at]
        if self.part == "leaf":
            return leaf
        if self.part == "token":
            return token_of(leaves[self.at])
        if self.part == "base":
            assert leaf._base is not None
            return leaf._base
        storage = leaf.untyped_storage()
        whole: Any = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        tensor: Tensor = whole.set_(storage, 0, (storage.nbytes() // leaf.element_size(),), (1,))
        return tensor


class Given(NamedTuple):
    """A leaf of the result: the result of the graphs (a tensor, one that becomes a leaf of autograd's, or the number in
    it) or the argument at a place, a constant, which may be made of sizes, or a shape made of such."""

    kind: Literal["result", "leaf", "number", "argument", "constant", "shape"]
    value: Any


Layout = tuple[Any, ...]
"""Sizes and strides, and the offset where that counts: integers, or `Expr`s of symbols."""


@dataclass(frozen=True, slots=True)
class Version:
    """What was compiled for arguments of one kind.

    `outside`: tensors that are reached in another way than as arguments; they are leaves behind those of the arguments;
    `sizes`: the symbols, by name, as pairs of an input and a dimension; `layouts`: sizes and strides of inputs, where
    arguments are not known by theirs; `guards`: what is assumed of the symbols; `fixed`: leaves whose sizes, strides
    and offset have to be these; `apart`: inputs, with leaves that lie in their memory and may count writes by
    themselves; `flags`: leaves that require grad from now on, or do not; `reshaped`: leaves that the call gives other
    sizes and strides, and by how much their offset changes; `renewed`: leaves that become a result; `derived`:
    tensors in the memory of an input that get the history of a result, whose value they have; `held`: values that are
    known by their identity; `handles`: the program handles errors, so what a graph raises is for the program.
    """

    run: Runner
    outside: tuple[Tensor, ...]
    inputs: tuple[Taken, ...]
    sizes: dict[str, tuple[int, int]]
    layouts: tuple[Layout, ...]
    guards: tuple[Cond, ...]
    fixed: dict[Taken, Layout]
    apart: dict[int, tuple[int, ...]]
    flags: dict[int, bool]
    reshaped: dict[int, Layout]
    renewed: dict[int, int]
    derived: dict[Taken, int]
    outputs: tuple[Given, ...]
    spec: pytree.TreeSpec
    held: tuple[object, ...]
    handles: bool

    def fits(self, leaves: Leaves) -> bool:
        """Whether it serves these arguments."""
        if any(places_of(taken.of(leaves)) != layout for taken, layout in self.fixed.items()):
            return False
        if not self.layouts:
            return True
        leaves = [*leaves, *self.outside]
        tensors = [taken.of(leaves) for taken in self.inputs]
        values = self._values(tensors)
        if any(value < 2 for value in values.values()):  # to the trace, these are numbers
            return False
        layouts = ((*tensor.shape, *tensor.stride()) for tensor in tensors)
        same = all(real == with_sizes(wanted, values) for real, wanted in zip(layouts, self.layouts))
        return same and all(guard.holds_at(guard.expr.evaluate(values)) for guard in self.guards)

    def _values(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        return {name: tensors[at].shape[dim] for name, (at, dim) in self.sizes.items()}

    def __call__(self, leaves: Leaves) -> Any:
        leaves = [*leaves, *self.outside]
        for at, wanted in self.flags.items():
            leaves[at].requires_grad_(wanted)
        tensors = [taken.of(leaves) for taken in self.inputs]
        values = self._values(tensors)
        before = {at: places_of(leaves[at]) for at in self.reshaped}
        for at, layout in self.reshaped.items():
            old = _reshape(leaves[at], with_sizes(layout, values))
            if Taken(at) in self.inputs:
                tensors[self.inputs.index(Taken(at))] = old
        counted = [(tensors[at], [leaves[place] for place in places]) for at, places in self.apart.items()]
        versions = [(base._version, [leaf._version for leaf in own]) for base, own in counted]
        try:
            results = self.run([*tensors, *values.values()])
        except Exception:
            for at, places in before.items():
                _place(leaves[at], places)
            raise
        for (base, own), (version, old_versions) in zip(counted, versions):
            if base._version != version:
                torch._C._increment_version([leaf for leaf, old in zip(own, old_versions) if leaf._version == old])
        for taken, place in self.derived.items():
            written = taken.of(leaves)
            with torch.enable_grad(), torch.autograd.grad_mode._unsafe_preserve_version_counter(written):
                written.copy_(results[place])
        with torch.no_grad():
            for at, place in self.renewed.items():
                leaves[at].set_(results[place])
        return pytree.tree_unflatten([_found(given, results, leaves, values) for given in self.outputs], self.spec)


class _Unchanged(torch.autograd.Function):
    """The same memory. Gradients go where those of the tensor go, and are as if its shape did not change."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return tensor.detach()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor | None) -> Tensor | None:
        return grad


def _reshape(tensor: Tensor, layout: Sequence[int]) -> Tensor:
    """Gives a tensor other sizes and strides, and moves its offset; what looks at its memory as it was. The graphs get
    this: what they save, write and look at belongs to a tensor that does not change its shape any more. It is a view
    of the tensor if autograd knows of the new shape."""
    before = tensor.shape, tensor.stride(), int(tensor.storage_offset())
    unchanged: Tensor | None = None
    if tensor.requires_grad and not _is_told(tensor):
        with torch.enable_grad():
            unchanged = _Unchanged.apply(tensor)  # type: ignore[no-untyped-call]
    _place(tensor, (*layout[:-1], before[-1] + layout[-1]))
    if unchanged is not None:
        return unchanged
    with torch.enable_grad():
        return tensor.as_strided(*before)


def _place(tensor: Tensor, places: Sequence[int]) -> None:
    """Changes where the elements of a tensor lie."""
    rank = len(places) // 2
    with torch.set_grad_enabled(_is_told(tensor)):
        tensor.as_strided_(places[:rank], places[rank:-1], places[-1])


def _is_told(tensor: Tensor) -> bool:
    """Whether autograd gets to know of another shape of a tensor."""
    return torch.is_grad_enabled() and not tensor.is_leaf


def _found(given: Given, results: Sequence[Any], leaves: Leaves, sizes: dict[str, int]) -> Any:
    value = given.value
    if given.kind == "constant":
        if isinstance(value, Ratio):
            return value.over.evaluate(sizes) / value.under
        return value.evaluate(sizes) if isinstance(value, Expr) else value
    if given.kind == "shape":
        return torch.Size([_found(size, results, leaves, sizes) for size in value])
    if given.kind == "argument":
        return leaves[value]
    if given.kind == "leaf":
        return results[value].requires_grad_()
    return results[value].item() if given.kind == "number" else results[value]


def places_of(tensor: Tensor) -> tuple[int, ...]:
    """Where the elements of a tensor lie."""
    return (*tensor.shape, *tensor.stride(), tensor.storage_offset())
