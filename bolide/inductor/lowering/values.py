"""What an FX node is while a graph is lowered: a buffer seen through index maps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from bolide.inductor.ir.definitions import Element, Layout, volume
from bolide.inductor.ir.loops import Node
from bolide.inductor.lowering import scalars as sc
from bolide.symbolic import Expr, as_expr

Coords = tuple[Expr, ...]
IndexMap = Callable[[Coords], Coords]

Reader = Callable[[Coords], Node]
"""From coordinates to the element there."""

ZERO = Expr.const(0)
ONE = Expr.const(1)


@dataclass(frozen=True, slots=True)
class IndexFormula:
    """Elements that need no memory: a constant, or an index expression over `axes`."""

    axes: tuple[str, ...]
    value: Node

    def at(self, coords: Coords) -> Node:
        """The element at `coords`."""
        value = self.value
        return value if value.op == "const" else sc.index(value.arg.subs(dict(zip(self.axes, coords))))


@dataclass(frozen=True, slots=True, eq=False)
class TensorValue:
    """A tensor of `shape` and `dtype`: element `coords` is the element of `buffer` at `coords` sent through `maps`, one
    after the other. `formula`: what the buffer's elements are, where that is simpler than reading them."""

    buffer: str
    dtype: torch.dtype
    shape: Coords
    maps: tuple[IndexMap, ...] = ()
    formula: IndexFormula | None = None

    @property
    def is_empty(self) -> bool:
        """Whether a dimension has size 0."""
        return any(size is ZERO for size in self.shape)

    @property
    def may_be_empty(self) -> bool:
        """Whether a dimension has size 0, or turns out to have it: nowhere in it may be written to."""
        return any(size.least() < 1 for size in self.shape)

    def at(self, coords: Coords) -> Coords:
        """The coordinates in the buffer of the element `coords`."""
        for step in self.maps:
            coords = step(coords)
        return coords

    def load(self, coords: Coords) -> Node:
        """The element `coords` as a scalar."""
        if self.formula is not None:
            return self.formula.at(self.at(coords))
        return Node.make("load", self.dtype, (), Element(self.buffer, self.at(coords)))

    def load_if(self, condition: Node, coords: Coords) -> Node:
        """The element `coords`, or 0 where `condition` is false: then `coords` may be out of bounds."""
        if condition.op == "const" and condition.arg:
            return self.load(coords)
        if self.formula is not None:
            return sc.where(condition, self.load(coords), sc.const(0, self.dtype))
        return Node.make("load", self.dtype, (condition,), Element(self.buffer, self.at(coords), masked=True))

    def load_indirect(self, coords: Coords, operands: tuple[Node, ...], condition: Node | None = None) -> Node:
        """The element `coords`, in which ``$k`` is the value of `operands[k]`, which must be within bounds; or 0 where
        there is a `condition` that is false: then they may be out of bounds. In a dimension that may be empty nothing
        is, so that there is one."""
        if condition is None:
            indexed = [size for coord, size in zip(coords, self.shape) if any(v[0] == "$" for v in coord.free_vars)]
            some = [sc.gt(sc.index(size), 0) for size in indexed if size.least() < 1]
            condition = functools.reduce(sc.logical_and, some) if some else None
        if condition is not None:
            element = Element(self.buffer, self.at(coords), masked=True)
            return Node.make("load", self.dtype, (*operands, condition), element)
        known = {f"${k}": place for k, place in enumerate(map(sc.index_value, operands)) if place is not None}
        if known:
            coords = tuple(coord.subs(known) for coord in coords)
        if len(known) == len(operands):
            return self.load(coords)
        return Node.make("load", self.dtype, operands, Element(self.buffer, self.at(coords)))

    def view(self, shape: Sequence[Expr], step: IndexMap) -> TensorValue:
        """This tensor reindexed: element `c` of the result is element `step(c)` of this one."""
        return TensorValue(self.buffer, self.dtype, tuple(shape), (step, *self.maps), self.formula)


@dataclass(slots=True)
class Updated:
    """A buffer that is `base` but for elements that each of `views` of it (their maps, and number of elements)
    shows."""

    base: str
    views: set[tuple[tuple[IndexMap, ...], Expr]] = field(default_factory=set)

    def within(self, view: TensorValue) -> None:
        """Note a view that shows them."""
        self.views.add((view.maps, volume(view.shape)))

    def is_within(self, view: TensorValue) -> bool:
        """Whether a view is known to show them: it is one of `views`, or all elements of one in another shape."""
        count = volume(view.shape)
        return any(count is number and view.maps[len(view.maps) - len(maps) :] == maps for maps, number in self.views)


MaybeTensor = TensorValue | None
NumberOrSize = sc.Number | Expr
Operand = TensorValue | NumberOrSize
"""What an elementwise operation takes: a tensor, a size or a number."""


def replaced(coords: Coords, dim: int, *instead: Expr) -> Coords:
    """`coords` with `instead` at place `dim`."""
    return (*coords[:dim], *instead, *coords[dim + 1 :])


def broadcast(shape: Coords, coords: Coords) -> Coords:
    """The coordinates of an operand of `shape` that meet `coords` of the result."""
    if len(shape) != len(coords):
        coords = coords[len(coords) - len(shape) :]
    if any(size is ONE for size in shape):
        return tuple(ZERO if size is ONE else coord for coord, size in zip(coords, shape))
    return coords


def broadcast_shape(*shapes: Coords) -> Coords:
    """The shape of tensors together, whose shapes eager has found compatible; of equal sizes the last one's."""
    rank = max(map(len, shapes))
    result = [ONE] * rank
    for shape in shapes:
        for k, size in enumerate(shape, rank - len(shape)):
            if size is not ONE:
                result[k] = size
    return tuple(result)


def exprs(sizes: Sequence[object]) -> Coords:
    """Sizes (ints or SymInts) as index expressions."""
    return tuple(map(as_expr, sizes))


def same_layout(shape: Sequence[Expr], a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Whether strides `a` and `b` place the elements of a tensor of `shape` alike (strides of dimensions of size 1
    say nothing)."""
    return all(x is y or size is ONE for size, x, y in zip(shape, a, b)) or any(size is ZERO for size in shape)


def strided(layout: Layout, coords: Coords, axes: Sequence[Expr]) -> Layout | None:
    """`coords` of a buffer of `layout`, functions of the variables `axes`, as a strided map; None if it is not one.
    `axes` of size 1 are constants."""
    linear = layout.address(coords)
    strides: list[Expr] = []
    for axis in axes:
        if axis.is_const:
            strides.append(ONE)
            continue
        (name,) = axis.free_vars
        coefficient = linear.coefficient(name)
        if coefficient is None or not coefficient.free_vars.isdisjoint(n for a in axes for n in a.free_vars):
            return None
        strides.append(coefficient)
        linear = linear - axis * coefficient
    if any(not linear.free_vars.isdisjoint(axis.free_vars) for axis in axes):
        return None
    return Layout(tuple(strides), linear)
