"""The tensor level of inductor's IR: each computed buffer is one definition over its own index space.

Lowering turns every ATen node into definitions; it takes no decision about memory or fusion. Views are never buffers:
they are index maps, folded into the coordinates of the loads that read through them. Scheduling then inlines, fuses,
orders and lays out definitions, and emits loop IR (`ir.loops`).

At this level a ``load`` node's `arg` is an `Element` (buffer and one coordinate per dimension), not yet an `Access`
(linear address): the layout is not decided yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bolide.inductor.ir.loops import CPU, Node, ReduceOp, ScatterMode
from bolide.symbolic import Expr, contiguous_strides


@dataclass(frozen=True, slots=True)
class Element:
    """The element of `buffer` at `coords` (one Expr per dimension, within bounds unless the load is masked; ``$0, $1
    …`` stand for the load's integer operands)."""

    buffer: str
    coords: tuple[Expr, ...]
    masked: bool = False

    @property
    def free_vars(self) -> frozenset[str]:
        return frozenset().union(*[coord.free_vars for coord in self.coords])

    def subs(self, axes: Mapping[str, Expr]) -> Element:
        """The element with index variables replaced; the same object if there are none."""
        coords = tuple([coord.subs(axes) for coord in self.coords])
        return self if coords == self.coords else Element(self.buffer, coords, self.masked)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a buffer are: strides and offset count elements."""

    stride: tuple[Expr, ...]
    offset: Expr

    @staticmethod
    def row_major(shape: Sequence[Expr]) -> Layout:
        return Layout(contiguous_strides(shape), Expr.const(0))

    def address(self, coords: Iterable[Expr]) -> Expr:
        """The distance in elements of an element from the buffer's start."""
        total = self.offset
        for coord, stride in zip(coords, self.stride):
            total = total + coord * stride
        return total


def axis_var(name: str, extent: Expr) -> Expr:
    """The index variable of an axis, with its bounds."""
    return Expr.var(name, 0, extent - 1)


def axis_vars(space: Iterable[tuple[str, Expr]]) -> tuple[Expr, ...]:
    return tuple([axis_var(name, extent) for name, extent in space])


def volume(extents: Iterable[Expr]) -> Expr:
    """How many points a space has."""
    points = Expr.const(1)
    for extent in extents:
        points = points * extent
    return points


def part_length(extent: Expr, part: Expr, size: int) -> Expr:
    """The length of a part, by its number, of an axis that is cut in parts of `size`: the last has what is left."""
    return Expr.const(size) if extent.is_const and extent.value % size == 0 else Expr.min(extent - part * size, size)


def ravel(coords: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The row-major position of `coords` in `shape`."""
    linear = Expr.const(0)
    for coord, size in zip(coords, shape):
        linear = linear * size + coord
    return linear


def unravel(linear: Expr, shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """The inverse of `ravel`, for 0 <= linear < volume(shape)."""
    coords: list[Expr] = []
    for size in reversed(shape[1:]):
        coords.append(linear % size)
        linear = linear // size
    coords.extend([linear] if shape else [])
    return tuple(reversed(coords))


@dataclass(frozen=True, slots=True)
class Origin:
    """What a definition comes from: the name of the graph's node and, of calls, the line of the program."""

    name: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input (placeholder or constant)."""

    name: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    layout: Layout
    device: torch.device = CPU


@dataclass(frozen=True, slots=True)
class Computed:
    """buffer[axes] = value, or, with `reduce_op`, the reduction of value over `reduce_axes`.

    `axes[i]` names the index variable of dimension i with extent `shape[i]` (bounds 0 … extent - 1; an axis of
    constant extent 1 does not occur in the coordinates); `reduce_axes` are (name, extent). Axis names are unique in a
    Program. A reduction accumulates in `value.dtype`, and its result is converted to `dtype`. For argmin/argmax `value`
    is what is compared and `position` the int64 node that is returned. `layout` is the layout the consumer must see
    (visible results, arguments of calls whose result depends on it), or None: the scheduler's choice."""

    name: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    axes: tuple[str, ...]
    value: Node
    reduce_op: ReduceOp | None = None
    reduce_axes: tuple[tuple[str, Expr], ...] = ()
    position: Node | None = None
    layout: Layout | None = None
    origin: Origin | None = None
    absorbed: tuple[Origin, ...] = ()  # whose work was substituted into this definition
    scan: str | None = None  # the axis along which each element is the reduction of those up to it, itself included
    run: int | None = None  # a scan begins anew at each multiple of this; element p of dimension 0 reduces run number p
    device: torch.device = CPU
    operands: ClassVar[tuple[Node, ...]] = ()

    @property
    def coords(self) -> tuple[Expr, ...]:
        """The element that is computed."""
        return axis_vars(zip(self.axes, self.shape))


@dataclass(frozen=True, slots=True)
class Scatter:
    """name = a copy of `base` (a buffer of the same shape), then for every point of `axes`: name[coords] = value, or,
    with another mode than ``set``, what that operation gives of the element and the value.

    `coords` may use ``$0, $1 …`` for `operands`. With mode ``set`` and repeated coordinates the last in row-major
    order of the axes wins (as eager on CPU does for index_put/scatter). Without operands no two points have the same
    coordinates. Where `base` is `name`, that buffer itself is updated."""

    name: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    base: str
    axes: tuple[str, ...]
    extents: tuple[Expr, ...]
    coords: tuple[Expr, ...]
    operands: tuple[Node, ...]
    value: Node
    mode: ScatterMode = "set"
    layout: Layout | None = None
    origin: Origin | None = None
    absorbed: tuple[Origin, ...] = ()
    device: torch.device = CPU
    position: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class View:
    """A strided view of a buffer as a tensor handed to an Extern, or returned: index `axes` ↦ element `coords` of
    `buffer`, a plain strided map.

    `stride` and `offset` hold for a buffer in its declared layout (row-major where that is None); None: the whole
    buffer as it is."""

    buffer: str
    shape: tuple[Expr, ...]
    stride: tuple[Expr, ...] | None
    offset: Expr | None
    axes: tuple[str, ...] = ()
    coords: tuple[Expr, ...] | None = None  # None exactly when stride is


@dataclass(frozen=True, slots=True)
class Extern:
    """One ATen call run as it is. `args`/`kwargs` are the FX node's, with `View`s for tensors and Exprs for symbolic
    integers, and the `Program`s of operations that run graphs: on the tensors, then the sizes, that these are given,
    and on constants of the program around them, by name. `names[i]` is the buffer of result i (None: not a tensor or
    unused). `shapes`, `dtypes`, `layouts` describe the results as ATen makes them, on `device`, or on the
    `devices` of each where they are on several. A call without results is there for its effect (an error it may raise)
    and is never dropped. With `binds` the call gives an integer, the
    value of the size variable that is its only name."""

    names: tuple[str | None, ...]
    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[Expr, ...], ...]
    layouts: tuple[Layout, ...]
    origin: Origin | None = None
    binds: bool = False
    device: torch.device = CPU
    devices: tuple[torch.device, ...] = ()

    def device_of(self, name: str) -> torch.device:
        """Where a result is."""
        return self.devices[self.names.index(name)] if self.devices else self.device


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Graph input `target` receives the elements of `source` (same shape), after every other read of `target`."""

    target: str
    source: View


Definition = Computed | Scatter | Extern | WriteBack
Result = View | Expr | int | None
Described = tuple[torch.dtype, tuple[Expr, ...], Layout | None]  # a buffer: its dtype, shape, declared layout


@dataclass(slots=True)
class Program:
    """A lowered graph, in a valid order of execution. `results` are Views, ints, Exprs or None, one per element of
    the graph's output tuple.

    `inputs` follow the placeholders that are tensors, then the graph's constants (`get_attr`); `size_vars` names the
    placeholders that are sizes, and the sizes that Externs bind, and gives the value each had while tracing: what is
    likely, not what is so."""

    inputs: list[Input]
    definitions: list[Definition]
    results: list[Result]
    size_vars: dict[str, int]

    def buffers(self) -> dict[str, Described]:
        """Every buffer by name."""
        known: dict[str, Described] = {given.name: (given.dtype, given.shape, given.layout) for given in self.inputs}
        for definition in self.definitions:
            known.update(described(definition))
        return known


def described(definition: Definition) -> dict[str, Described]:
    """The buffers that a definition makes."""
    if isinstance(definition, Extern):
        buffers = zip(definition.names, definition.dtypes, definition.shapes, definition.layouts)
        return {name: (dtype, shape, layout) for name, dtype, shape, layout in buffers if name is not None}
    if isinstance(definition, WriteBack):
        return {}
    return {definition.name: (definition.dtype, definition.shape, definition.layout)}
