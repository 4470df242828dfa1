"""The state of one lowering, and `lower` itself: FX graph in, `Program` out."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.fx

from bolide.inductor.ir.definitions import (
    Computed,
    Definition,
    Extern,
    Input,
    Layout,
    Program,
    Scatter,
    View,
    WriteBack,
)
from bolide.inductor.ir.loops import Node, ReduceOp
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.registry import EXTERN, LOWERINGS, TAKE_SIZES
from bolide.inductor.lowering.values import (
    Coords,
    Formula,
    TensorValue,
    contiguous,
    exprs,
    same_layout,
    strided,
)
from bolide.symbolic import Expr, as_expr
from bolide.tracing.numbers.data import binds
from bolide.tracing.traits import traits_of

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Lowering:
    """One graph being lowered. Lowering functions get it as `ctx`; `node` is the FX node they lower."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.definitions: list[Definition] = []
        self.values: dict[torch.fx.Node, Any] = {}
        self.layouts: dict[str, Layout] = {}  # declared layouts
        self.shapes: dict[str, Coords] = {}
        self.computed: dict[str, int] = {}  # buffers whose layout may still be declared -> place in definitions
        self.copies: dict[Any, str] = {}
        self.checked: set[Any] = set()  # indices whose bounds are checked already
        self.node: torch.fx.Node = None  # type: ignore[assignment]
        self._names = 0
        self._axes = 0
        self._sizes: dict[tuple[Any, ...], Coords] = {}
        self._symbolic: dict[Expr, Expr] = {}

    # ---- what is known of the node ----------------------------------------------------------------------------------

    @property
    def meta(self) -> Any:
        """The traced result of the node: TensorMeta, number, or a tuple of them."""
        return self.node.meta["val"]

    def shape_of(self, meta: Any) -> Coords:
        return self.sizes(meta.shape)

    def sizes(self, sizes: Sequence[Any]) -> Coords:
        """Ints or SymInts as Exprs."""
        key = tuple(sizes)
        if any(type(size) is not int for size in key):
            return tuple(as_expr(size) if type(size) is not torch.SymInt else self._size(size) for size in key)
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = exprs(key)
        return found

    def _size(self, size: torch.SymInt) -> Expr:
        """A symbolic size as an Expr; a number where the guards say that it is 0 or 1: then it may have been broadcast,
        or left out."""
        expr = as_expr(size)
        found = self._symbolic.get(expr)
        if found is None:
            assumed = size.node.env.is_assumed
            found = _ONE if assumed(expr.eq(1)) else _ZERO if assumed(expr.eq(0)) else expr
            self._symbolic[expr] = found
        return found

    @property
    def out(self) -> tuple[Coords, torch.dtype]:
        """Shape and dtype of the node's only result."""
        meta = self.meta
        return self.shape_of(meta), meta.dtype

    # ---- making definitions -----------------------------------------------------------------------------------------

    def name(self, hint: str = "") -> str:
        self._names += 1
        return f"b{self._names}_{hint or self.node.name}"

    def axes(self, shape: Coords, prefix: str = "i") -> tuple[tuple[str, ...], Coords]:
        """Fresh axes over `shape`: their names and their variables."""
        start = self._axes
        self._axes = start + len(shape)
        names = tuple(f"{prefix}{start + k}" for k in range(len(shape)))
        return names, tuple(
            [Expr.var(name, 0, size.value - 1 if size.is_const else size - 1) for name, size in zip(names, shape)]
        )

    def _add(self, definition: Computed | Scatter) -> TensorValue:
        if definition.layout is None:
            self.computed[definition.name] = len(self.definitions)
        else:
            self.layouts[definition.name] = definition.layout
        self.shapes[definition.name] = definition.shape
        self.definitions.append(definition)
        return TensorValue(definition.name, definition.dtype, definition.shape)

    def compute(
        self,
        shape: Coords,
        dtype: torch.dtype,
        body: Callable[[Coords], Node],
        layout: Layout | None = None,
        hint: str = "",
    ) -> TensorValue:
        """The tensor of `shape` whose element at the coordinates i is body(i), converted to `dtype`."""
        names, coords = self.axes(shape)
        value = sc.cast(body(coords), dtype)
        result = self._add(Computed(self.name(hint), dtype, shape, names, value, layout=layout, origin=self.node))
        if value.op in ("index", "const"):
            return replace(result, formula=Formula(names, value))
        return result

    def reduce(
        self,
        shape: Coords,
        dtype: torch.dtype,
        reduce_shape: Coords,
        op: ReduceOp,
        body: Callable[[Coords, Coords], Node],
        position: Callable[[Coords], Node] | None = None,
        hint: str = "",
    ) -> TensorValue:
        """The tensor of `shape` whose element at i is `op` over r in `reduce_shape` of body(i, r), accumulated in
        the body's dtype, converted to `dtype`.

        argmin/argmax: `position`(r) is what is returned."""
        names, coords = self.axes(shape)
        reduce_names, reduce_coords = self.axes(reduce_shape, "r")
        ranges = tuple((name, size) for name, size in zip(reduce_names, reduce_shape) if size is not _ONE)
        value = body(coords, reduce_coords)
        if not ranges:
            value = sc.cast(position(reduce_coords) if position else value, dtype)
            return self._add(Computed(self.name(hint), dtype, shape, names, value, origin=self.node))
        return self._add(
            Computed(
                self.name(hint),
                dtype,
                shape,
                names,
                value,
                op,
                ranges,
                position(reduce_coords) if position else None,
                origin=self.node,
            )
        )

    def scatter(
        self,
        base: TensorValue,
        extents: Coords,
        coords: Callable[[Coords], tuple[Coords, tuple[Node, ...]]],
        value: Callable[[Coords], Node],
        mode: str,
    ) -> TensorValue:
        """A copy of `base` into which value(i) is written (or added) at coords(i), for i over `extents`."""
        whole = base if not base.maps else self.copy(base)
        names, axes = self.axes(extents)
        places, operands = coords(axes)
        return self._add(
            Scatter(
                self.name(),
                base.dtype,
                base.shape,
                whole.buffer,
                names,
                extents,
                places,
                operands,
                sc.cast(value(axes), base.dtype),
                mode,  # type: ignore[arg-type]
                origin=self.node,
            )
        )

    def copy(self, value: TensorValue, layout: Layout | None = None) -> TensorValue:
        return self.compute(value.shape, value.dtype, value.load, layout)

    # ---- operands ---------------------------------------------------------------------------------------------------

    def operand(self, value: Any, coords: Coords, dtype: torch.dtype) -> Node:
        """The element of `value` (a tensor that broadcasts against `coords`, a size or a number) that meets
        `coords`, converted to `dtype`."""
        if type(value) is TensorValue:
            return sc.cast(value.load(broadcast(value.shape, coords)), dtype)
        if type(value) is Expr:
            return sc.index(value, dtype)
        return sc.const(value, dtype)

    # ---- tensors as ATen sees them ----------------------------------------------------------------------------------

    def layout_of(self, buffer: str) -> Layout:
        """The declared layout, or row-major."""
        return self.layouts.get(buffer) or contiguous(self.shapes[buffer])

    def as_view(self, value: TensorValue, wanted: Coords | None = None) -> View:
        """`value` as a strided view of a buffer; a copy is made where it is none. `wanted`: the strides it must
        have."""
        if not value.maps:
            buffer = value.buffer
            if wanted is None or same_layout(value.shape, self.layout_of(buffer).stride, wanted):
                if wanted is not None and buffer in self.computed:
                    self._declare(buffer, wanted)
                return View(buffer, value.shape, None, None)
            if buffer in self.computed:
                self._declare(buffer, wanted)
                return View(buffer, value.shape, None, None)
            return View(self._copied(value, wanted), value.shape, None, None)
        names, axes = view_axes(value.shape)
        coords = value.at(axes)
        layout = strided(self.layout_of(value.buffer), coords, axes)
        if layout is None or (wanted is not None and not same_layout(value.shape, layout.stride, wanted)):
            return View(self._copied(value, wanted), value.shape, None, None)
        self.computed.pop(value.buffer, None)
        return View(value.buffer, value.shape, wanted or layout.stride, layout.offset, names, coords)

    def _copied(self, value: TensorValue, wanted: Coords | None) -> str:
        key = (value.buffer, value.maps, value.shape, wanted)
        buffer = self.copies.get(key)
        if buffer is None:
            layout = None if wanted is None else Layout(wanted, Expr.const(0))
            buffer = self.copies[key] = self.copy(value, layout).buffer
        return buffer

    def _declare(self, buffer: str, stride: Coords) -> None:
        """Fixes the layout of a computed buffer."""
        place = self.computed.pop(buffer)
        layout = self.layouts[buffer] = Layout(stride, Expr.const(0))
        definition = self.definitions[place]
        assert isinstance(definition, (Computed, Scatter))
        self.definitions[place] = replace(definition, layout=layout)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def effect(self, op: Any, *args: Any) -> None:
        """A call without results, there for the error it may raise."""
        args = tuple(self.as_view(arg) if type(arg) is TensorValue else arg for arg in args)
        self.definitions.append(Extern((), op, args, {}, (), (), (), origin=self.node))

    def bind(self, size: Expr) -> Expr:
        """The node as a call that tells the value of a size variable."""
        node = self.node
        assert isinstance(node.target, torch._ops.OpOverload)
        args = tuple(
            self.as_view(a) if type(a) is TensorValue else a for a in (_argument(a, self.values) for a in node.args)
        )
        scalar = ((torch.int64,), ((),), (Layout((), Expr.const(0)),))
        self.definitions.append(Extern((size.text(),), node.target, args, {}, *scalar, origin=node, binds=True))
        return size

    def extern(self) -> Any:
        """The node as an ATen call; its value."""
        node = self.node
        free = traits_of(node.target).product  # the result's layout does not depend on theirs

        def convert(arg: Any) -> Any:
            if isinstance(arg, torch.fx.Node):
                value = self.values[arg]
                if type(value) is not TensorValue:
                    return value
                return self.as_view(value, None if free else self.sizes(arg.meta["val"].stride))
            if isinstance(arg, (list, tuple)):
                return type(arg)(convert(item) for item in arg)
            return as_expr(arg) if isinstance(arg, torch.SymInt) else arg

        args = tuple(convert(arg) for arg in node.args)
        kwargs = {key: convert(arg) for key, arg in node.kwargs.items()}
        meta = node.meta["val"]
        several = type(meta) in (tuple, list)  # a TensorMeta is a tuple as well
        metas = [
            item if hasattr(item, "dtype") else None for item in (meta if several else () if meta is None else (meta,))
        ]
        names = tuple(None if item is None else self.name() for item in metas)
        shapes = tuple(() if item is None else self.shape_of(item) for item in metas)
        layouts = tuple(
            Layout((), Expr.const(0)) if item is None else Layout(self.sizes(item.stride), Expr.const(0))
            for item in metas
        )
        dtypes = tuple(torch.int64 if item is None else item.dtype for item in metas)
        assert isinstance(node.target, torch._ops.OpOverload)
        self.definitions.append(Extern(names, node.target, args, kwargs, dtypes, shapes, layouts, origin=node))
        results: list[Any] = []
        for name, dtype, shape, layout in zip(names, dtypes, shapes, layouts):
            if name is not None:
                self.layouts[name], self.shapes[name] = layout, shape
            results.append(None if name is None else TensorValue(name, dtype, shape))
        return tuple(results) if several else results[0] if results else None


@lru_cache(maxsize=4096)
def view_axes(shape: Coords) -> tuple[tuple[str, ...], Coords]:
    """The axes of a View of this shape. They are its own, so the same names serve everywhere."""
    names = tuple(f"v{dim}" for dim in range(len(shape)))
    return names, tuple(Expr.var(name, 0, size - 1) for name, size in zip(names, shape))


def broadcast(shape: Coords, coords: Coords) -> Coords:
    """The coordinates of an operand of `shape` that meet `coords` of the result."""
    if len(shape) != len(coords):
        coords = coords[len(coords) - len(shape) :]
    for size in shape:
        if size.is_const and size.value == 1:
            return tuple(_ZERO if size is _ONE else coord for coord, size in zip(coords, shape))
    return coords


_ZERO, _ONE = Expr.const(0), Expr.const(1)


def _argument(arg: Any, values: dict[torch.fx.Node, Any]) -> Any:
    if isinstance(arg, torch.fx.Node):
        return values[arg]
    if isinstance(arg, (list, tuple)):
        return type(arg)(_argument(item, values) for item in arg)
    if isinstance(arg, torch.SymInt):
        return as_expr(arg)
    return arg


def _has_sized_number(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a size is given where an operation takes any number (a factor, an exponent), which lowerings look at."""
    if Expr not in map(type, args) and Expr not in map(type, kwargs.values()):
        return False
    given = dict(zip((argument.name for argument in target._schema.arguments), args)) | kwargs
    return any(
        type(given.get(argument.name)) is Expr and isinstance(_plain(argument.type), torch._C.NumberType)
        for argument in target._schema.arguments
    )


def _plain(kind: Any) -> Any:
    """The type of an argument that may be None."""
    return kind.getElementType() if isinstance(kind, torch._C.OptionalType) else kind


def _supported(node: torch.fx.Node) -> bool:
    """Whether every tensor among arguments and results has a dtype of ours and is on the CPU, and every number is
    real."""
    if complex in map(type, node.args) or complex in map(type, node.kwargs.values()):
        return False
    metas: list[Any] = [node.meta["val"], *(arg.meta["val"] for arg in node.all_input_nodes)]
    while metas:
        meta = metas.pop()
        if type(meta) in (tuple, list):
            metas.extend(meta)
        elif hasattr(meta, "dtype") and (meta.dtype not in sc.SUPPORTED_DTYPES or meta.device.type != "cpu"):
            return False
    return True


#: names like those of sizes, axes and buffers
_OURS = re.compile(r"[a-z]\d+\w*|row\d+|\w+_[a-z]\d+|given_\w*")


def input_name(node: torch.fx.Node) -> str:
    """The name of the buffer that a placeholder or a constant is: the user's, unless it could be one of ours."""
    return f"given_{node.name}" if _OURS.fullmatch(node.name) else node.name


def _input(ctx: Lowering, node: torch.fx.Node, meta: Any) -> None:
    stride = meta.stride if not callable(meta.stride) else meta.stride()
    shape = ctx.shape_of(meta)
    layout = Layout(ctx.sizes(stride), Expr.const(0))
    name = input_name(node)
    ctx.inputs.append(Input(name, meta.dtype, shape, layout))
    ctx.layouts[name], ctx.shapes[name] = layout, shape
    ctx.values[node] = TensorValue(name, meta.dtype, shape)


def _call(ctx: Lowering, node: torch.fx.Node) -> Any:
    target = node.target
    if target is operator.getitem:
        return ctx.values[node.args[0]][node.args[1]]  # type: ignore[index]
    meta = node.meta["val"]
    if binds(node):
        return ctx.bind(as_expr(meta))
    if isinstance(meta, _SYMBOLIC) or type(meta) in (int, float, bool):
        return as_expr(meta) if isinstance(meta, torch.SymInt) else meta
    function = LOWERINGS.get(target)
    if function is not None and _supported(node):
        if hasattr(meta, "dtype") and any(size is _ZERO for size in ctx.shape_of(meta)):
            # no element to compute: no lowering need think of it
            return ctx.compute(ctx.shape_of(meta), meta.dtype, lambda coords: sc.const(0, meta.dtype))
        args = tuple(_argument(arg, ctx.values) for arg in node.args)
        kwargs = {key: _argument(arg, ctx.values) for key, arg in node.kwargs.items()}
        if target in TAKE_SIZES or not _has_sized_number(target, args, kwargs):
            result = function(ctx, *args, **kwargs)
            if result is not EXTERN:
                return result
    return ctx.extern()


def lower(gm: torch.fx.GraphModule, fresh: Collection[int] = ()) -> Program:
    """The definitions of a functional ATen graph.

    Every result gets exactly the strides of its ``meta["val"]``: a caller sees
    them, or another graph was traced with them.

    Args:
        gm: as the contract of a graph in docs/inductor.md says; every node has ``meta["val"]``.
        fresh: the places of results that must be memory of their own, whatever operation made them.
    """
    ctx = Lowering()
    size_vars: dict[str, int] = {}
    results: list[Any] = []
    write_backs: list[WriteBack] = []
    for node in gm.graph.nodes:
        ctx.node = node
        if node.op == "placeholder":
            meta = node.meta["val"]
            if hasattr(meta, "dtype"):
                _input(ctx, node, meta)
            else:
                ctx.values[node] = size = as_expr(meta) if isinstance(meta, torch.SymInt) else meta
                size_vars[str(size)] = meta.node.hint if isinstance(meta, torch.SymInt) else meta
        elif node.op == "get_attr":
            _input(ctx, node, node.meta.get("val", None) or getattr(gm, node.target))
        elif node.op == "output":
            taken = {source.name for source in ctx.inputs}
            results = [_result(ctx, arg, taken if at in fresh else None) for at, arg in enumerate(node.args[0])]
        elif node.target is torch.ops.aten.copy_.default:
            write_backs.append(_write_back(ctx, node))
        else:
            ctx.values[node] = _call(ctx, node)
            if binds(node):
                size_vars[str(ctx.values[node])] = node.meta["val"].node.hint
    return Program(ctx.inputs, [*ctx.definitions, *write_backs], results, size_vars)


def _result(ctx: Lowering, arg: Any, taken: set[str] | None) -> Any:
    """One result; with `taken` in a buffer that is not among these, and then is."""
    if not isinstance(arg, torch.fx.Node):
        return as_expr(arg) if isinstance(arg, torch.SymInt) else arg
    value = ctx.values[arg]
    if type(value) is not TensorValue:
        return value
    stride = ctx.sizes(arg.meta["val"].stride)
    view = ctx.as_view(value, stride)
    if taken is not None:
        if view.buffer in taken:
            view = View(ctx.copy(value, Layout(stride, Expr.const(0))).buffer, value.shape, None, None)
        taken.add(view.buffer)
    return view


def _write_back(ctx: Lowering, node: torch.fx.Node) -> WriteBack:
    target, source = node.args[:2]
    assert isinstance(target, torch.fx.Node) and isinstance(source, torch.fx.Node)
    value = ctx.values[source]
    shape = ctx.shape_of(target.meta["val"])
    dtype = target.meta["val"].dtype
    if value.dtype is not dtype or value.shape != shape:
        source_value = value
        value = ctx.compute(shape, dtype, lambda coords: ctx.operand(source_value, coords, dtype))
    return WriteBack(input_name(target), ctx.as_view(value))


__all__ = ["Lowering", "input_name", "lower"]
