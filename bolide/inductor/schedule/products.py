"""Matrix products and convolutions: sums of products become products that add, and which library call, or kernel, runs
each: by bounds and by what was measured of its class (`tracing.libraries`), or by a search that runs all ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal

import torch

from bolide.inductor.ir.definitions import (
    Computed,
    Definition,
    Described,
    Element,
    Extern,
    Input,
    Layout,
    Program,
    Result,
    View,
    axis_var,
    axis_vars,
    volume,
)
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.walks import map_leaves, readers_of, viewed, views_in
from bolide.inductor.machine import Machine
from bolide.inductor.runtime.externs import GROUPED
from bolide.inductor.schedule.inline import cast
from bolide.inductor.schedule.stages import is_one
from bolide.symbolic import Expr, contiguous_strides
from bolide.tracing import libraries

aten = torch.ops.aten
PRODUCTS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default))

Way = Literal["aten", "onednn", "kernel", "product"]
"""ATen's call as it is; oneDNN's; a kernel of ours; a weight gradient as a product of matrices."""
Choose = Callable[[Sequence[Way], Callable[[Way], Program]], Way]
"""Chooses among ways that compute the same, of which rules would take the first; it is given what makes the program
that runs the call, and nothing else, in one of them."""

TRIED = 4
"""Kernels are tried for products of so many times the multiplications up to which they are taken untried."""


# ---- sums of products -----------------------------------------------------------------------------------------------


def accumulate_products(program: Program) -> Program:
    """The program with ``x + a @ b`` as one call where nothing but such sums and results read it: gradients of weights
    that are used more than once. So the terms of a long sum do not all exist at the same time, and no kernel reads them
    again."""
    readers = readers_of(program.definitions)
    kept = viewed(program.results)
    products = {
        _name(call): call
        for call in program.definitions
        if isinstance(call, Extern) and call.op is aten.mm.default
        if _name(call) not in kept and len(readers.get(_name(call), ())) == 1
    }
    if not products:
        return program
    shapes = {name: shape for name, (_, shape, _) in program.buffers().items()}
    order = {name: position for position, name in enumerate(products)}
    sums: dict[str, tuple[str, str]] = {}  # sum -> (the other operand, the product)
    for definition in reversed(program.definitions):
        operands = _operands(definition, shapes)
        if operands is None or not all(_name(reader) in sums for reader in readers.get(_name(definition), ())):
            continue
        last = max(operands, key=lambda name: order.get(name, -1))
        if last in products:
            sums[_name(definition)] = (operands[1] if operands[0] == last else operands[0], last)
    taken = {product for _, product in sums.values()}
    done: list[Definition] = []
    for definition in program.definitions:
        if _name(definition) in sums and isinstance(definition, Computed):
            other, last = sums[definition.name]
            args = (View(other, definition.shape, None, None), *products[last].args)
            done.append(replace(products[last], names=(definition.name,), op=aten.addmm.default, args=args))
        elif _name(definition) not in taken:
            done.append(definition)
    return replace(program, definitions=done)


def _name(definition: Definition) -> str:
    if isinstance(definition, Extern):
        return definition.names[0] or "" if len(definition.names) == 1 else ""
    return getattr(definition, "name", "")


def _operands(definition: Definition, shapes: Mapping[str, tuple[Expr, ...]]) -> tuple[str, str] | None:
    """The two whole float32 matrices that a definition adds element by element, as a row-major one. `shapes` are those
    of all buffers: the first rows and columns of a larger matrix are read at the same coordinates."""
    if not isinstance(definition, Computed) or definition.value.op != "add" or len(definition.shape) != 2:
        return None
    plain = definition.reduce_op is None and definition.layout in (None, Layout.row_major(definition.shape))
    loads = definition.value.src
    if not plain or any(load.op != "load" or load.src or load.arg.coords != definition.coords for load in loads):
        return None
    first, second = (load.arg.buffer for load in loads)
    if first == second or definition.dtype is not torch.float32:
        return None
    return (first, second) if shapes[first] == shapes[second] == definition.shape else None


# ---- small products -------------------------------------------------------------------------------------------------


def _is_small(product: Extern, buffers: Mapping[str, Described], machine: Machine, times: int = 1) -> bool:
    """Whether a kernel computes a product sooner than a call of a library starts and ends (2 to 3 us); `times`: of so
    many times as many multiplications. Code for transposed operands that are not whole tiles takes too long to make."""
    *biases, a, b = product.args
    extents = [*a.shape, b.shape[-1]]
    if any(factor != 1 for factor in product.kwargs.values()) or not all(extent.is_const for extent in extents):
        return False
    plain = product.dtypes[0] in (torch.float32, torch.float64) and all(isinstance(bias, View) for bias in biases)
    *_, rows, inner, columns = [extent.value for extent in extents]
    ready = _has_rows(b, buffers)
    ready = ready or (
        inner % machine.tile == columns % machine.tile == 0 and inner * columns <= machine.most_laid_out * rows
    )
    worth = columns >= machine.lanes and inner > 1
    most = machine.most_multiplications * times
    return plain and ready and worth and 0 < prod(extent.value for extent in extents) <= most


def _is_of_few_rows(product: Extern, buffers: Mapping[str, Described], machine: Machine) -> bool:
    """Whether a kernel of a GPU may compute a product about as fast as memory gives the second operand: it is read once
    for each of a few rows, along what is summed (a layer's weight, one token)."""
    *biases, a, b = product.args
    if any(factor != 1 for factor in product.kwargs.values()) or not all(isinstance(bias, View) for bias in biases):
        return False
    extents = [*a.shape, b.shape[-1]]
    if len(a.shape) != 2 or not all(extent.is_const for extent in extents):
        return False
    rows, inner, columns = [extent.value for extent in extents]
    few = 0 < rows <= machine.most_rows and columns > 0 and inner >= machine.least_summed
    lies = _row_major(a, buffers) and _row_major(_transposed(b, buffers), buffers)
    return few and lies and product.dtypes[0].is_floating_point


def _definitions(product: Extern, buffers: Mapping[str, Described], by_rows: bool = True) -> list[Definition]:
    """A product as the sum that it is, in float32 at least. The second operand is laid out by rows before, if it is not
    and is to be (`by_rows`)."""
    *biases, a, b = product.args
    name, (dtype,), (shape,), (layout,) = _name(product), product.dtypes, product.shapes, product.layouts
    done: list[Definition] = []
    if by_rows and not _has_rows(b, buffers):
        axes = tuple([f"{name}_r{i}" for i in range(len(b.shape))])
        value = _element(b, axis_vars(zip(axes, b.shape)), dtype)
        rows = Computed(f"{name}_rows", dtype, b.shape, axes, value, layout=Layout.row_major(b.shape))
        done.append(replace(rows, origin=product.origin, device=product.device))
        b = View(f"{name}_rows", b.shape, None, None)
    axes, inner = tuple([f"{name}_i{i}" for i in range(len(shape))]), (f"{name}_k", a.shape[-1])
    *batch, row, column = axis_vars(zip(axes, shape))
    place = axis_var(*inner)
    factors = (_element(a, (*batch, row, place), dtype), _element(b, (*batch, place, column), dtype))
    wide = torch.promote_types(dtype, torch.float32)
    value = Node.make("product", wide, tuple([cast(each, wide) for each in factors]))
    total = Computed(name, dtype, shape, axes, value, "sum", (inner,), layout=layout)
    total = replace(total, origin=product.origin, device=product.device)
    if not biases:
        return [*done, total]
    (bias,) = biases
    total = replace(total, dtype=wide)
    axes = tuple([f"{name}_o{i}" for i in range(len(shape))])
    coords = axis_vars(zip(axes, shape))
    along = zip(reversed(bias.shape), reversed(coords))
    at = [Expr.const(0) if is_one(extent) else coord for extent, coord in along][::-1]
    whole = View(f"{name}_product", shape, None, None)
    added = Node.make("add", wide, (_element(whole, coords, wide), cast(_element(bias, tuple(at), dtype), wide)))
    result = replace(total, dtype=dtype, axes=axes, value=cast(added, dtype), reduce_op=None, reduce_axes=())
    return [*done, replace(total, name=whole.buffer, layout=None), result]


def _element(view: View, coords: tuple[Expr, ...], dtype: torch.dtype) -> Node:
    """The element of a view at these coordinates."""
    if view.coords is not None:
        place = dict(zip(view.axes, coords))
        coords = tuple([coord.subs(place) for coord in view.coords])
    return Node.make("load", dtype, (), Element(view.buffer, coords))


def _has_rows(view: View, buffers: Mapping[str, Described]) -> bool:
    """Whether elements of a row are side by side."""
    if view.stride is not None:
        return is_one(view.stride[-1])
    layout = buffers[view.buffer][2]
    return layout is None or is_one(layout.stride[-1])


# ---- library calls --------------------------------------------------------------------------------------------------


def choose_libraries(program: Program, machine: Machine, choose: Choose | None = None) -> Program:
    """The program with matrix products and convolutions given to the library call that is fastest, and small products
    as definitions.

    Products are measured (`tracing.libraries`). On AMD EPYC (Zen 5), one thread, in float32, MKL reaches 100 GFLOP/s,
    oneDNN 220 to 240, for every orientation of the operands; in bfloat16 ATen uses oneDNN by itself. Weight gradient
    of a 3×3 convolution of 512 to 512 channels at 4×4, batch 2: 10.3 ms, as a product 1.0 ms; at batch 8 9.1 and 4.6.
    In bfloat16, batch 2, 2.9 and 1.9 ms.
    """
    buffers = program.buffers()
    done: list[Definition] = []
    for definition in program.definitions:
        if isinstance(definition, Extern) and definition.op in _WAYS:
            way = _usual(definition, buffers, program.size_vars, machine)
            if choose is not None:
                way = _chosen(way, definition, buffers, program.size_vars, machine, choose)
            done += _run(way, definition, buffers, machine) or [definition]
        else:
            done.append(_in_groups(definition, machine))
    return replace(program, definitions=done)


def _in_groups(definition: Definition, machine: Machine) -> Definition:
    """A product of groups of rows by an operator of ours, where oneDNN may be faster than what it calls."""
    if not isinstance(definition, Extern) or machine.device != "cpu" or not definition.dtypes:
        return definition
    ours = GROUPED.get(definition.op.name())  # type: ignore[no-untyped-call]
    return definition if ours is None or not libraries.takes(definition.dtypes[0]) else replace(definition, op=ours)


def _usual(extern: Extern, buffers: Mapping[str, Described], likely: Mapping[str, int], machine: Machine) -> Way:
    """The way of a call that rules take: on a GPU only a search takes another one than ATen's."""
    if machine.device == "cuda":
        return "aten"
    if extern.op in PRODUCTS and _is_small(extern, buffers, machine):
        return "kernel"
    if extern.op in (aten.mm.default, aten.addmm.default):
        a, b = extern.args[-2:]
        extents = [extent.evaluate(likely) for extent in (*a.shape, b.shape[1])]
        fastest = libraries.fastest(extern.dtypes[0], *extents, by_columns=_is_by_columns(a, buffers))
        return "onednn" if fastest == "onednn" else "aten"
    if extern.op is aten.convolution_backward.default:
        (batch, _, *places), weights = extern.args[0].shape, volume(extern.args[2].shape)
        positions = batch * volume(places)
        few = positions.is_const and positions.value <= machine.most_places
        return "product" if few and weights.is_const and weights.value >= machine.fewest_weights else "aten"
    return "aten"


def _chosen(
    usual: Way,
    extern: Extern,
    buffers: Mapping[str, Described],
    likely: Mapping[str, int],
    machine: Machine,
    choose: Choose,
) -> Way:
    """The way of a call that a search takes, of those that there are."""
    there = [way for way in (usual, "aten", *_WAYS[extern.op]) if way == "aten" or _run(way, extern, buffers, machine)]
    ways: list[Way] = [*dict.fromkeys(there)]
    if len(ways) == 1:
        return ways[0]
    alone, inputs = _alone(extern, buffers, likely)
    if not all(extent.is_const for given in inputs for extent in given.shape):
        return usual
    known = {given.name: (given.dtype, given.shape, given.layout) for given in inputs}

    def program_of(way: Way) -> Program:
        results: list[Result] = [
            View(name, shape, None, None) for name, shape in zip(alone.names, alone.shapes) if name is not None
        ]
        return Program(inputs, _run(way, alone, known, machine) or [alone], results, {})

    return choose(ways, program_of)


def _alone(extern: Extern, buffers: Mapping[str, Described], likely: Mapping[str, int]) -> tuple[Extern, list[Input]]:
    """A call of tensors of its own that are as its operands are, for the sizes that are likely."""
    inputs: list[Input] = []

    def sized(extents: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple([extent.subs(likely) for extent in extents])

    def operand(view: View) -> View:
        dtype, shape, layout = buffers[view.buffer]
        stride = view.stride or (layout and layout.stride) or contiguous_strides(shape)
        given = Input(f"x{len(inputs)}", dtype, sized(view.shape), Layout(sized(stride), Expr.const(0)), extern.device)
        inputs.append(given)
        return View(given.name, given.shape, None, None)

    def likely_one(leaf: View | Expr) -> View | Expr:
        return operand(leaf) if isinstance(leaf, View) else leaf.subs(likely)

    args = map_leaves(extern.args, (View, Expr), likely_one)
    names = tuple([name and f"r{place}" for place, name in enumerate(extern.names)])
    shapes = tuple([sized(shape) for shape in extern.shapes])
    layouts = tuple([Layout(sized(layout.stride), layout.offset.subs(likely)) for layout in extern.layouts])
    return replace(extern, names=names, args=args, shapes=shapes, layouts=layouts, origin=None), inputs


# ---- ways -----------------------------------------------------------------------------------------------------------


def _run(way: Way, extern: Extern, buffers: Mapping[str, Described], machine: Machine) -> list[Definition]:
    """The definitions that run a call in this way; none where that cannot be, or is the call as it is."""
    if way not in _WAYS[extern.op] or (way != "kernel" and machine.device != "cpu"):
        return []
    return _WAYS[extern.op][way](extern, buffers, machine)


def _kernel(product: Extern, buffers: Mapping[str, Described], machine: Machine) -> list[Definition]:
    if machine.device == "cuda":
        return _definitions(product, buffers, by_rows=False) if _is_of_few_rows(product, buffers, machine) else []
    return _definitions(product, buffers) if _is_small(product, buffers, machine, TRIED) else []


def _weight_gradient(extern: Extern, buffers: Mapping[str, Described], machine: Machine) -> list[Definition]:
    """A convolution's backward with the weight gradient on its own."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = extern.args
    shapes = (*grad.shape, *weight.shape)
    if not wanted[1] or transposed or groups != 1 or len(weight.shape) != 4 or not all(e.is_const for e in shapes):
        return []
    dtype, size = extern.dtypes[1], [extent.value for extent in weight.shape]
    if not libraries.takes(dtype) or extern.layouts[1] != Layout.row_major(weight.shape):
        return []

    def part(result: int, op: torch._ops.OpOverload, args: tuple[Any, ...], shape: tuple[Expr, ...]) -> Extern:
        layout = Layout.row_major(shape)
        return Extern((extern.names[result],), op, args, {}, (dtype,), (shape,), (layout,), extern.origin)

    lists = (list(stride), list(padding), list(dilation))
    parts: list[Definition] = [
        part(1, torch.ops.bolide.conv_weight_gradient.default, (grad, x, size, *lists), weight.shape)
    ]
    if wanted[2]:  # on its own too: asked for a bias gradient, oneDNN computes the weight gradient along with it
        parts.append(part(2, aten.sum.dim_IntList, (grad, [0, 2, 3]), weight.shape[:1]))
    if wanted[0]:
        args = (*extern.args[:-1], [True, False, False])
        parts.append(replace(extern, args=args, names=(extern.names[0], None, None)))
    return parts


def _convolution(extern: Extern, buffers: Mapping[str, Described], machine: Machine) -> list[Definition]:
    """A two-dimensional convolution by oneDNN, where ATen takes loops of its own for some."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = extern.args
    operands = views_in(extern.args)
    plain = not transposed and len(weight.shape) == 4 and all(_row_major(view, buffers) for view in operands)
    if not plain or not libraries.takes(extern.dtypes[0]) or extern.layouts[0] != Layout.row_major(extern.shapes[0]):
        return []
    args: tuple[object, ...] = (x, weight, bias, padding, stride, dilation, groups, "none", [], "")
    return [replace(extern, op=torch.ops.mkldnn._convolution_pointwise.default, args=args, kwargs={})]


def _linear(extern: Extern, buffers: Mapping[str, Described], machine: Machine) -> list[Definition]:
    """a @ b (+ bias) as a linear layer with weight b.T."""
    *biases, a, b = extern.args
    bias = biases[0] if biases else None
    if not libraries.takes(extern.dtypes[0]):
        return []
    if bias is not None:
        scaled = any(factor != 1 for factor in extern.kwargs.values())
        if scaled or not isinstance(bias, View):
            return []
        if bias.shape not in (b.shape[1:], (a.shape[0], b.shape[1])) or not _row_major(bias, buffers):
            return []  # oneDNN takes any bias for one without gaps
    weight = _transposed(b, buffers)
    if not _has_no_gaps(weight):  # oneDNN then falls back to a loop that is a thousand times slower
        return []
    if bias is not None and len(bias.shape) == 2:
        args: tuple[object, ...] = (a, bias, weight, None, "add")
        return [replace(extern, op=torch.ops.mkldnn._linear_pointwise.binary, args=args, kwargs={})]
    args = (a, weight, bias, "none", [], "")
    return [replace(extern, op=torch.ops.mkldnn._linear_pointwise.default, args=args, kwargs={})]


_WAYS: dict[
    torch._ops.OpOverload,
    dict[Way, Callable[[Extern, Mapping[str, Described], Machine], list[Definition]]],
] = {
    aten.mm.default: {"kernel": _kernel, "onednn": _linear},
    aten.addmm.default: {"kernel": _kernel, "onednn": _linear},
    aten.bmm.default: {"kernel": _kernel},
    aten.convolution.default: {"onednn": _convolution},
    aten.convolution_backward.default: {"product": _weight_gradient},
}
"""The ways of an operation besides the call as it is."""


def _transposed(view: View, buffers: Mapping[str, Described]) -> View:
    if view.stride is not None:
        return replace(view, shape=view.shape[::-1], stride=view.stride[::-1], axes=view.axes[::-1])
    _, shape, layout = buffers[view.buffer]
    layout = layout or Layout.row_major(shape)
    axes = tuple([f"{view.buffer}_t{i}" for i in range(len(shape))])
    return View(view.buffer, shape[::-1], layout.stride[::-1], layout.offset, axes[::-1], axis_vars(zip(axes, shape)))


def _is_by_columns(view: View, buffers: Mapping[str, Described]) -> bool:
    """Whether a matrix is stored by columns and not by rows."""
    return _row_major(_transposed(view, buffers), buffers) and not _row_major(view, buffers)


def _row_major(view: View, buffers: Mapping[str, Described]) -> bool:
    _, shape, layout = buffers[view.buffer]
    stride = view.stride or (layout and layout.stride) or contiguous_strides(shape)
    return stride == contiguous_strides(view.shape)


def _has_no_gaps(matrix: View) -> bool:
    """Whether a matrix is stored without gaps, by rows or by columns."""
    rows, columns = matrix.shape
    one = Expr.const(1)
    return matrix.stride in ((columns, one), (one, rows))
