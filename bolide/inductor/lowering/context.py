"""The state of one lowering, and `lower` itself: FX graph in, `Program` out."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeGuard

import torch
import torch.fx

from bolide.inductor.ir.definitions import (
    Computed,
    Definition,
    Extern,
    Input,
    Layout,
    Origin,
    Program,
    Scatter,
    View,
    WriteBack,
    axis_vars,
)
from bolide.inductor.ir.loops import CPU, Node, ReduceOp, ScatterMode
from bolide.inductor.ir.walks import nodes_below, roots_of
from bolide.inductor.lowering import scalars as sc
from bolide.inductor.lowering.registry import EXTERN, LOWERINGS, TAKE_SIZES
from bolide.inductor.lowering.values import (
    ONE,
    ZERO,
    Coords,
    IndexFormula,
    Operand,
    Reader,
    TensorValue,
    Updated,
    broadcast,
    exprs,
    same_layout,
    strided,
)
from bolide.inductor.machine import Machine, host_machine
from bolide.symbolic import Expr, as_expr
from bolide.tracing import TensorMeta
from bolide.tracing.called.branches import branch, placeholders, region, repeat
from bolide.tracing.graph import lookup, mapped
from bolide.tracing.numbers.data import binds
from bolide.tracing.traits import traits_of

aten = torch.ops.aten
COPY_ = aten.copy_.default

_AT_START = Layout((), ZERO)  # of a number

_COMPARED = (torch.int32, torch.int64)  # the types whose extremes a GPU finds atomically
_INTO_VIEWS = {aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default}
_BY_INDEX = {
    aten.index_put.default,
    aten._unsafe_index_put.default,
    aten.index_copy.default,
    aten.index_add.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
}


class Lowering:
    """One graph being lowered. Lowering functions get it as `ctx`; `node` is the FX node they lower; `constants` are
    those of this graph and of the ones around it, by the names of their buffers; `machine` is asked what pays."""

    def __init__(self, constants: dict[str, torch.Tensor], machine: Machine) -> None:
        self.constants, self.machine = constants, machine
        self.inputs: list[Input] = []
        self.definitions: list[Definition] = []
        self.values: dict[torch.fx.Node, Any] = {}
        self.layouts: dict[str, Layout] = {}  # declared layouts
        self.shapes: dict[str, Coords] = {}
        self.devices: dict[str, torch.device] = {}
        self.computed: dict[str, int] = {}  # buffers whose layout may still be declared -> place in definitions
        self.copies: dict[object, str] = {}
        self.checked: set[object] = set()  # indices whose bounds are checked already
        self.updates: set[torch.fx.Node] = set()  # scatters of which an input becomes the result
        self.updated: dict[str, Updated] = {}  # what they have made
        self.regions: dict[int, Program] = {}  # of graphs that several calls have
        self.node: torch.fx.Node
        self._names = 0
        self._axes = 0
        self._sizes: dict[tuple[object, ...], Coords] = {}
        self._symbolic: dict[Expr, Expr] = {}

    # ---- what is known of the node ----------------------------------------------------------------------------------

    @property
    def meta(self) -> TensorMeta:
        """The traced result of a node with one result."""
        meta: TensorMeta = self.node.meta["val"]
        return meta

    @property
    def metas(self) -> tuple[TensorMeta, ...]:
        """The traced results of a node with several."""
        metas: tuple[TensorMeta, ...] = self.node.meta["val"]
        return metas

    def shape_of(self, meta: TensorMeta | torch.Tensor) -> Coords:
        return self.sizes(meta.shape)

    def sizes(self, sizes: Sequence[object]) -> Coords:
        """Ints or SymInts as Exprs."""
        key = tuple(sizes)
        if any(type(size) is not int for size in key):
            return tuple(self._size(size) if isinstance(size, torch.SymInt) else as_expr(size) for size in key)
        known = self._sizes.get(key)
        if known is None:
            known = self._sizes[key] = exprs(key)
        return known

    def _size(self, size: torch.SymInt) -> Expr:
        """A symbolic size as an Expr; a number where the guards say that it is 0 or 1: then it may have been broadcast,
        or left out."""
        expr = as_expr(size)
        known = self._symbolic.get(expr)
        if known is None:
            assumed = size.node.env.is_assumed
            known = ONE if assumed(expr.eq(1)) else ZERO if assumed(expr.eq(0)) else expr
            self._symbolic[expr] = known
        return known

    @property
    def out(self) -> tuple[Coords, torch.dtype]:
        """Shape and dtype of the node's only result."""
        meta = self.meta
        return self.shape_of(meta), meta.dtype

    @property
    def device(self) -> torch.device:
        """Where the node's (first) result is."""
        return device_of(self.node.meta.get("val"))

    @property
    def origin(self) -> Origin:
        """What is noted as the origin of a definition."""
        return Origin(self.node.name)

    @property
    def origin_of_call(self) -> Origin:
        """The same with the line of the program."""
        where = self.node.meta.get("where")
        return Origin(self.node.name, "" if where is None else str(where))

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
        self.definitions.append(definition)
        return self.known(definition.name, definition.dtype, definition.shape, definition.layout, definition.device)

    def known(
        self, name: str, dtype: torch.dtype, shape: Coords, layout: Layout | None, device: torch.device
    ) -> TensorValue:
        """The buffer `name` as a tensor."""
        if layout is not None:
            self.layouts[name] = layout
        self.shapes[name], self.devices[name] = shape, device
        return TensorValue(name, dtype, shape)

    def compute(
        self,
        shape: Coords,
        dtype: torch.dtype,
        body: Reader,
        layout: Layout | None = None,
        hint: str = "",
        device: torch.device | None = None,
    ) -> TensorValue:
        """The tensor of `shape` whose element at the coordinates i is body(i), converted to `dtype`, where the node's
        result is, or on `device`."""
        names, coords = self.axes(shape)
        value = sc.cast(body(coords), dtype)
        place = device or self.device
        defined = Computed(self.name(hint), dtype, shape, names, value, layout=layout, origin=self.origin, device=place)
        result = self._add(defined)
        if value.op in ("index", "const"):
            return replace(result, formula=IndexFormula(names, value))
        return result

    def reduce(
        self,
        shape: Coords,
        dtype: torch.dtype,
        reduce_shape: Coords,
        op: ReduceOp,
        body: Callable[[Coords, Coords], Node],
        position: Reader | None = None,
        hint: str = "",
    ) -> TensorValue:
        """The tensor of `shape` whose element at i is `op` over r in `reduce_shape` of body(i, r), accumulated in
        the body's dtype, converted to `dtype`.

        argmin/argmax: `position`(r) is what is returned."""
        names, coords = self.axes(shape)
        reduce_names, reduce_coords = self.axes(reduce_shape, "r")
        ranges = tuple((name, size) for name, size in zip(reduce_names, reduce_shape) if size is not ONE)
        value = body(coords, reduce_coords)
        place = position(reduce_coords) if position else None
        made: dict[str, Any] = {"origin": self.origin, "device": self.device}
        if ranges:
            return self._add(Computed(self.name(hint), dtype, shape, names, value, op, ranges, place, **made))
        return self._add(Computed(self.name(hint), dtype, shape, names, sc.cast(place or value, dtype), **made))

    def scan(self, shape: Coords, dtype: torch.dtype, body: Reader, op: ReduceOp, dim: int) -> TensorValue:
        """The tensor of `shape` whose element at i is `op` over the places up to i in `dim` of body, accumulated in
        the body's dtype, converted to `dtype`."""
        names, coords = self.axes(shape)
        value = body(coords)
        made: dict[str, Any] = {"origin": self.origin, "device": self.device}
        if shape[dim] is ONE:
            return self._add(Computed(self.name(), dtype, shape, names, sc.cast(value, dtype), **made))
        return self._add(Computed(self.name(), dtype, shape, names, value, op, scan=names[dim], **made))

    def scatter(
        self,
        base: TensorValue,
        extents: Coords,
        coords: Callable[[Coords], tuple[Coords, tuple[Node, ...]]],
        value: Reader,
        mode: ScatterMode,
    ) -> TensorValue:
        """A copy of `base` into which value(i) is written, or added and so on, at coords(i), for i over `extents`. An
        input that becomes the result is updated through the view that `base` is of it: then all of it is copied."""
        through = self.node in self.updates
        whole = base if through or not base.maps else self.copy(base)
        names, axes = self.axes(extents)
        places, operands = coords(axes)
        scattered = Scatter(
            self.name(),
            base.dtype,
            self.shapes[whole.buffer],
            whole.buffer,
            names,
            extents,
            whole.at(places),
            operands,
            sc.cast(value(axes), base.dtype),
            mode,
            origin=self.origin,
            device=self.devices[whole.buffer],
        )
        result = self._add(scattered)
        result = replace(result, shape=base.shape, maps=whole.maps)
        if through:
            self.updated[result.buffer] = Updated(whole.buffer)
            self.updated[result.buffer].within(result)
        return result

    def copy(self, value: TensorValue, layout: Layout | None = None) -> TensorValue:
        return self.compute(value.shape, value.dtype, value.load, layout, device=self.devices[value.buffer])

    # ---- operands ---------------------------------------------------------------------------------------------------

    def operand(self, value: Operand, coords: Coords, dtype: torch.dtype) -> Node:
        """The element of `value` (a tensor that broadcasts against `coords`, a size or a number) that meets
        `coords`, converted to `dtype`."""
        if isinstance(value, TensorValue):
            return sc.cast(value.load(broadcast(value.shape, coords)), dtype)
        return sc.index(value, dtype) if isinstance(value, Expr) else sc.const(value, dtype)

    def reader(self, value: Operand, dtype: torch.dtype) -> Reader:
        """The elements of `value`, converted to `dtype`."""
        return lambda coords: self.operand(value, coords, dtype)

    def each(self, dtype: torch.dtype, body: Callable[..., Node], *values: Operand) -> Reader:
        """`body` of the elements of `values`, which broadcast and are converted to `dtype`."""
        return lambda coords: body(*[self.operand(value, coords, dtype) for value in values])

    # ---- tensors as ATen sees them ----------------------------------------------------------------------------------

    def layout_of(self, buffer: str) -> Layout:
        """The declared layout, or row-major."""
        return self.layouts.get(buffer) or Layout.row_major(self.shapes[buffer])

    def as_view(self, value: TensorValue, wanted: Coords | None = None) -> View:
        """`value` as a strided view of a buffer; a copy is made where it is none. `wanted`: the strides it must
        have."""
        if not value.maps:
            buffer = value.buffer
            if wanted is not None and buffer in self.computed:
                self._declare(buffer, wanted)
            elif wanted is not None and not same_layout(value.shape, self.layout_of(buffer).stride, wanted):
                buffer = self._copied(value, wanted)
            return View(buffer, value.shape, None, None)
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
            layout = None if wanted is None else Layout(wanted, ZERO)
            buffer = self.copies[key] = self.copy(value, layout).buffer
        return buffer

    def _declare(self, buffer: str, stride: Coords) -> None:
        """Fixes the layout of a computed buffer."""
        place = self.computed.pop(buffer)
        layout = self.layouts[buffer] = Layout(stride, ZERO)
        definition = self.definitions[place]
        assert isinstance(definition, (Computed, Scatter))
        self.definitions[place] = replace(definition, layout=layout)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def effect(self, op: torch._ops.OpOverload, *args: object) -> None:
        """A call without results, there for the error it may raise."""
        given = tuple(self.as_view(arg) if isinstance(arg, TensorValue) else arg for arg in args)
        self.definitions.append(Extern((), op, given, {}, (), (), (), origin=self.origin_of_call))

    def _argument(self, node: torch.fx.Node, any_layout: bool) -> object:
        """What a call is given for `node`: a tensor with the strides that eager's has, unless it takes `any_layout`."""
        value = self.values[node]
        if not isinstance(value, TensorValue):
            return value
        return self.as_view(value, None if any_layout else self.sizes(node.meta["val"].stride))

    def bind(self, size: Expr) -> Expr:
        """The node as a call that tells the value of a size variable."""
        node = self.node
        assert isinstance(node.target, torch._ops.OpOverload)
        args = _given(node.args, lambda source: self._argument(source, any_layout=True))
        scalar = ((torch.int64,), ((),), (_AT_START,))
        self.definitions.append(
            Extern((size.text(),), node.target, args, {}, *scalar, origin=self.origin_of_call, binds=True)
        )
        return size

    def extern(self, wanted: Sequence[bool] | None = None) -> object:
        """The node as an ATen call; its value. `wanted`: which of its results are asked for, where that is its last
        argument."""
        node = self.node
        assert isinstance(node.target, torch._ops.OpOverload)
        any_layout = bool(traits_of(node.target).product)  # the result's does not depend on theirs
        args, kwargs = _given((node.args, node.kwargs), lambda source: self._argument(source, any_layout))
        if wanted is None:
            return self.call(args, kwargs)
        meta = tuple([item if asked else None for item, asked in zip(node.meta["val"], wanted)])
        return self.call((*args[:-1], list(wanted)), kwargs, meta)

    def call(
        self, args: tuple[object, ...], kwargs: dict[str, object], wanted: Sequence[object] | None = None
    ) -> object:
        """A call of the node's operation with these arguments; its value. `wanted`: the node's metas, None for results
        that are not asked for."""
        node = self.node
        assert isinstance(node.target, torch._ops.OpOverload)
        meta = node.meta["val"] if wanted is None else wanted
        several = type(meta) in (tuple, list)  # a TensorMeta is a tuple as well
        metas = [item if _is_tensor(item) else None for item in (meta if several else () if meta is None else (meta,))]
        names = tuple(None if item is None else self.name() for item in metas)
        shapes = tuple(() if item is None else self.shape_of(item) for item in metas)
        layouts = tuple(_AT_START if item is None else Layout(self.sizes(item.stride), ZERO) for item in metas)
        dtypes = tuple(torch.int64 if item is None else item.dtype for item in metas)
        device = self.device
        devices = tuple([device if item is None else device_of(item) for item in metas])
        call = Extern(names, node.target, args, kwargs, dtypes, shapes, layouts, self.origin_of_call, device=device)
        self.definitions.append(replace(call, devices=devices) if len({device, *devices}) > 1 else call)
        results = tuple(
            None if name is None else self.known(name, dtype, shape, layout, place)
            for name, dtype, shape, layout, place in zip(names, dtypes, shapes, layouts, devices)
        )
        return results if several else results[0] if results else None

    def multiplied(self, left: TensorValue, right: TensorValue) -> TensorValue:
        """The products of batches of matrices, (batch, rows, inner) by (batch, inner, columns), as one call."""
        shape, device = (*left.shape[:2], right.shape[2]), self.device
        name, layout = self.name("bmm"), Layout.row_major(shape)
        given = (self.as_view(left), self.as_view(right))
        made = ((left.dtype,), (shape,), (layout,))
        self.definitions.append(
            Extern((name,), aten.bmm.default, given, {}, *made, origin=self.origin_of_call, device=device)
        )
        return self.known(name, left.dtype, shape, layout, device)

    def take_constants(self, programs: Sequence[Program]) -> None:
        """The constants of programs inside this one are its own, too."""
        known = {source.name for source in self.inputs}
        for source in [source for program in programs for source in program.inputs]:
            if source.name in self.constants and source.name not in known:
                known.add(source.name)
                self.inputs.append(source)


@lru_cache(maxsize=4096)
def view_axes(shape: Coords) -> tuple[tuple[str, ...], Coords]:
    """The axes of a View of this shape. They are its own, so the same names serve everywhere."""
    names = tuple(f"v{dim}" for dim in range(len(shape)))
    return names, axis_vars(zip(names, shape))


def _is_tensor(meta: object) -> TypeGuard[TensorMeta]:
    """Whether a traced value is one tensor (of a constant the value is the tensor itself)."""
    return hasattr(meta, "dtype")


def device_of(meta: object) -> torch.device:
    """The device of a traced value, or of the first one that has one."""
    while type(meta) in (tuple, list) and meta:
        meta = next((item for item in meta if _is_tensor(item)), None)  # type: ignore[attr-defined]
    device: torch.device = getattr(meta, "device", CPU)
    return CPU if device.type == "cpu" else device


def _given(arg: Any, value_of: Callable[[torch.fx.Node], object]) -> Any:
    """Arguments of a node with values for nodes and Exprs for sizes."""

    def given(part: object) -> object:
        if isinstance(part, torch.fx.Node):
            return value_of(part)
        return as_expr(part) if isinstance(part, torch.SymInt) else part

    return mapped(arg, given)


def _has_sized_number(target: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether a size is given where an operation takes any number (a factor, an exponent), which lowerings look at."""
    if Expr not in map(type, args) and Expr not in map(type, kwargs.values()):
        return False
    given = dict(zip((argument.name for argument in target._schema.arguments), args)) | kwargs
    for argument in target._schema.arguments:
        kind = argument.type
        if isinstance(kind, torch._C.OptionalType):
            kind = kind.getElementType()
        if isinstance(kind, torch._C.NumberType) and isinstance(given.get(argument.name), Expr):
            return True
    return False


def _supported(node: torch.fx.Node, machine: Machine) -> bool:
    """Whether every tensor among arguments and results has a dtype of ours, every number is real, and all are on one
    device: the CPU, or the machine's."""
    if complex in map(type, node.args) or complex in map(type, node.kwargs.values()):
        return False
    device = device_of(node.meta["val"])
    if device.type not in ("cpu", machine.device):
        return False
    metas: list[Any] = [node.meta["val"], *(arg.meta["val"] for arg in node.all_input_nodes)]
    while metas:
        meta = metas.pop()
        if type(meta) in (tuple, list):
            metas.extend(meta)
        elif _is_tensor(meta) and (meta.dtype not in sc.SUPPORTED_DTYPES or meta.device != device):
            return False
    return True


#: names like those of sizes, axes and buffers
_OURS = re.compile(r"[a-z]\d+\w*|row\d+|\w+_[a-z]\d+|given_\w*")


def input_name(node: torch.fx.Node) -> str:
    """The name of the buffer that a placeholder or a constant is: the user's, unless it could be one of ours."""
    return f"given_{node.name}" if _OURS.fullmatch(node.name) else node.name


def _input(ctx: Lowering, name: str, meta: TensorMeta | torch.Tensor) -> TensorValue:
    stride = meta.stride() if isinstance(meta, torch.Tensor) else meta.stride
    layout = Layout(ctx.sizes(stride), ZERO)
    source = Input(name, meta.dtype, ctx.shape_of(meta), layout, device_of(meta))
    ctx.inputs.append(source)
    return ctx.known(source.name, source.dtype, source.shape, source.layout, source.device)


def _call(ctx: Lowering, node: torch.fx.Node) -> object:
    target, meta = node.target, node.meta["val"]
    if target is operator.getitem:
        return ctx.values[node.args[0]][node.args[1]]  # type: ignore[index]
    if target is region:
        return _of_region(ctx, *_given(node.args, ctx.values.__getitem__))
    if target in (branch, repeat):
        return _of_programs(ctx, *_given(node.args, ctx.values.__getitem__))
    if binds(node):
        return ctx.bind(as_expr(meta))
    if isinstance(meta, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return as_expr(meta) if isinstance(meta, torch.SymInt) else meta
    if target in LOWERINGS and _supported(node, ctx.machine):
        assert isinstance(target, torch._ops.OpOverload)
        if _is_tensor(meta) and any(size is ZERO for size in ctx.shape_of(meta)):
            # no element to compute: no lowering need think of it
            return ctx.compute(*ctx.out, lambda coords: sc.const(0, meta.dtype))
        args, kwargs = _given((node.args, node.kwargs), ctx.values.__getitem__)
        if target in TAKE_SIZES or not _has_sized_number(target, args, kwargs):
            if ctx.machine.device == "cpu":
                result = LOWERINGS[target](ctx, *args, **kwargs)
                return ctx.extern() if result is EXTERN else result
            before, checked, copies = len(ctx.definitions), set(ctx.checked), dict(ctx.copies)
            result = LOWERINGS[target](ctx, *args, **kwargs)
            if result is not EXTERN and _on_gpu(ctx.definitions[before:]):
                return result
            if result is not EXTERN:  # with its checks of indices: a call makes its own
                del ctx.definitions[before:]
                ctx.checked, ctx.copies = checked, copies
    return ctx.extern()


def _on_gpu(definitions: Sequence[Definition]) -> bool:
    """Whether a GPU has all operations of these definitions, and runs them side by side. Scatters whose points may meet
    are libraries' there, but for those that join atomically, in any order; under `use_deterministic_algorithms` these
    and scans as well: eager refuses some of them."""
    from bolide.inductor.codegen.cuda.operations import supported

    deterministic = torch.are_deterministic_algorithms_enabled()
    computed = [definition for definition in definitions if isinstance(definition, (Computed, Scatter))]
    for definition in computed:
        if isinstance(definition, Scatter) and definition.operands:
            extreme = definition.mode in ("min", "max") and definition.dtype in _COMPARED
            ordered = not (extreme or definition.mode == "add") or deterministic
        else:
            ordered = deterministic and isinstance(definition, Computed) and definition.scan is not None
        if ordered:
            return False
    nodes = nodes_below([root for definition in computed for root in roots_of(definition)])
    return all(supported(node.op, node.src[0].dtype if node.src else node.dtype) for node in nodes)


def _of_programs(
    ctx: Lowering,
    first: TensorValue | list[TensorValue],
    operands: list[TensorValue],
    sizes: list[object],
    table: int,
) -> object:
    """A branch, whose `first` argument chooses, or a loop, which carries that along, with a program for each graph."""
    flag: tuple[View, ...] = ()
    if isinstance(first, list):
        operands = [*first, *operands]
    elif first.dtype in sc.SUPPORTED_DTYPES:
        is_flag = first.dtype is torch.bool
        flag = (ctx.as_view(first if is_flag else ctx.compute(first.shape, torch.bool, first.load)),)
    else:
        return ctx.extern()
    graphs = lookup(table).graphs
    slots = [slot.meta["val"] for slot in placeholders(graphs[0])]
    given = [ctx.as_view(value, ctx.sizes(slot.stride)) for value, slot in zip(operands, slots)]
    results = [range(len(graph.graph.output_node().args[0])) for graph in graphs]
    programs = [lower(graph, fresh, ctx.constants, ctx.machine) for graph, fresh in zip(graphs, results)]
    ctx.take_constants(programs)
    return ctx.call((*flag, given, [as_expr(size) for size in sizes], programs), {})


def _of_region(ctx: Lowering, operands: list[TensorValue], sizes: list[object], table: int) -> object:
    """A call of a graph that others call, too: all of them have one program."""
    (graph,) = lookup(table).graphs
    if table not in ctx.regions:
        results = range(len(graph.graph.output_node().args[0]))
        ctx.regions[table] = lower(graph, results, ctx.constants, ctx.machine)
        ctx.take_constants([ctx.regions[table]])
    slots = [slot.meta["val"] for slot in placeholders(graph)]
    given = [ctx.as_view(value, ctx.sizes(slot.stride)) for value, slot in zip(operands, slots)]
    return ctx.call((given, [as_expr(size) for size in sizes], [ctx.regions[table]]), {})


def lower(
    gm: torch.fx.GraphModule,
    fresh: Collection[int] = (),
    constants: dict[str, torch.Tensor] | None = None,
    machine: Machine | None = None,
) -> Program:
    """The definitions of a functional ATen graph. Every result gets exactly the strides of its ``meta["val"]``: a
    caller sees them, or another graph was traced with them.

    Args:
        gm: as the contract of a graph in docs/inductor.md says; every node has ``meta["val"]``.
        fresh: the places of results that must be memory of their own, whatever operation made them.
        constants: those of the graphs around this one, by the names of their buffers; its own are added.
        machine: what the program is for; this one, if none is given.
    """
    ctx = Lowering({} if constants is None else constants, machine or host_machine())
    ctx.updates = {node for write in gm.graph.nodes if write.target is COPY_ for node in updates_of(write)}
    size_vars: dict[str, int] = {}
    results: list[Any] = []
    write_backs: list[WriteBack] = []
    for node in gm.graph.nodes:
        ctx.node = node
        if node.op == "placeholder":
            meta = node.meta["val"]
            if _is_tensor(meta):
                ctx.values[node] = _input(ctx, input_name(node), meta)
            else:
                ctx.values[node] = size = as_expr(meta) if isinstance(meta, torch.SymInt) else meta
                size_vars[str(size)] = meta.node.hint if isinstance(meta, torch.SymInt) else meta
        elif node.op == "get_attr":
            name, constant = f"c{len(ctx.constants)}_{node.name}", getattr(gm, str(node.target))
            ctx.constants[name] = constant
            ctx.values[node] = _input(ctx, name, node.meta.get("val") or constant)
        elif node.op == "output":
            taken = {source.name for source in ctx.inputs}
            results = [_result(ctx, arg, taken if at in fresh else None) for at, arg in enumerate(node.args[0])]
        elif node.target is COPY_:
            write_backs.append(_write_back(ctx, node))
        else:
            ctx.values[node] = _call(ctx, node)
            if binds(node):
                size_vars[str(ctx.values[node])] = node.meta["val"].node.hint
    return Program(ctx.inputs, [*ctx.definitions, *write_backs], results, size_vars)


# ---- updates of inputs ----------------------------------------------------------------------------------------------


def updates_of(write: torch.fx.Node) -> set[torch.fx.Node]:
    """The scatters that ``copy_(input, value)`` ends with: the last gives the value, and every one has the one before
    it as its first operand, through views that show no element twice. Empty where they begin with another input."""
    root = write.args[1]
    while isinstance(root, torch.fx.Node) and (root.target in _INTO_VIEWS | _BY_INDEX or _is_map(root)):
        root = root.args[0]
    assert isinstance(root, torch.fx.Node)
    return _between(root, write.args[1]) if root is write.args[0] or root.op == "call_function" else set()


def _between(first: object, last: object) -> set[torch.fx.Node]:
    """What is scattered into a view may be an update itself, of a smaller view."""
    updates: set[torch.fx.Node] = set()
    node = last
    while isinstance(node, torch.fx.Node) and node is not first:
        if node.target in _INTO_VIEWS:
            updates |= {node, *_between(first, node.args[1])}
        elif node.target in _BY_INDEX:
            updates.add(node)
        elif not _is_map(node):
            return set()
        node = node.args[0]
    return updates if node is first else set()


def _is_map(node: torch.fx.Node) -> bool:
    """Whether it is a view that shows each element at most once."""
    traits = traits_of(node.target)
    return traits.view and not (traits.expands or traits.overlaps)


# ---- results --------------------------------------------------------------------------------------------------------


def _result(ctx: Lowering, arg: object, taken: set[str] | None) -> object:
    """One result; with `taken` in a buffer that is not among these, and then is."""
    if not isinstance(arg, torch.fx.Node):
        return as_expr(arg) if isinstance(arg, torch.SymInt) else arg
    value = ctx.values[arg]
    if not isinstance(value, TensorValue):
        return value
    stride = ctx.sizes(arg.meta["val"].stride)
    view = ctx.as_view(value, stride)
    if taken is not None:
        if view.buffer in taken:
            view = View(ctx.copy(value, Layout(stride, ZERO)).buffer, value.shape, None, None)
        taken.add(view.buffer)
    return view


def _write_back(ctx: Lowering, node: torch.fx.Node) -> WriteBack:
    target, source = node.args[:2]
    assert isinstance(target, torch.fx.Node) and isinstance(source, torch.fx.Node)
    value, meta = ctx.values[source], target.meta["val"]
    shape = ctx.shape_of(meta)
    if value.dtype is not meta.dtype or value.shape != shape:
        value = ctx.compute(shape, meta.dtype, ctx.reader(value, meta.dtype))
    _, axes = view_axes(shape)
    if value.maps and value.at(axes) == axes and ctx.shapes[value.buffer] == shape:  # there and back again
        value = replace(value, maps=())
    return WriteBack(input_name(target), ctx.as_view(value))
