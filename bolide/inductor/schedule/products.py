"""Matrix products and convolutions: sums of products become products that add, and which library call runs each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from bolide.inductor.ir.definitions import (
    Computed,
    Definition,
    Described,
    Element,
    Extern,
    Layout,
    Program,
    View,
    axis_var,
    axis_vars,
)
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.walks import readers_of, viewed
from bolide.inductor.machine import Machine
from bolide.inductor.schedule.stages import is_one
from bolide.symbolic import Expr, contiguous_strides
from bolide.tracing import libraries

aten = torch.ops.aten
PRODUCTS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default))


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


def _is_small(product: Extern, buffers: Mapping[str, Described], machine: Machine) -> bool:
    """Whether a kernel computes a product sooner than a call of a library starts and ends (2 to 3 us). Code for
    transposed operands that are not whole tiles takes too long to make."""
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
    return plain and ready and worth and 0 < prod(extent.value for extent in extents) <= machine.most_multiplications


def _definitions(product: Extern, buffers: Mapping[str, Described]) -> list[Definition]:
    """A product as the sum that it is. The second operand is laid out by rows before, if it is not."""
    *biases, a, b = product.args
    name, (dtype,), (shape,), (layout,) = _name(product), product.dtypes, product.shapes, product.layouts
    done: list[Definition] = []
    if not _has_rows(b, buffers):
        axes = tuple([f"{name}_r{i}" for i in range(len(b.shape))])
        value = _element(b, axis_vars(zip(axes, b.shape)), dtype)
        rows = Computed(f"{name}_rows", dtype, b.shape, axes, value, layout=Layout.row_major(b.shape))
        done.append(replace(rows, origin=product.origin, device=product.device))
        b = View(f"{name}_rows", b.shape, None, None)
    axes, inner = tuple([f"{name}_i{i}" for i in range(len(shape))]), (f"{name}_k", a.shape[-1])
    *batch, row, column = axis_vars(zip(axes, shape))
    place = axis_var(*inner)
    factors = (_element(a, (*batch, row, place), dtype), _element(b, (*batch, place, column), dtype))
    value = Node.make("product", dtype, factors)
    total = Computed(name, dtype, shape, axes, value, "sum", (inner,), layout=layout)
    total = replace(total, origin=product.origin, device=product.device)
    if not biases:
        return [*done, total]
    (bias,) = biases
    axes = tuple([f"{name}_o{i}" for i in range(len(shape))])
    coords = axis_vars(zip(axes, shape))
    along = zip(reversed(bias.shape), reversed(coords))
    at = [Expr.const(0) if is_one(extent) else coord for extent, coord in along][::-1]
    whole = View(f"{name}_product", shape, None, None)
    added = Node.make("add", dtype, (_element(whole, coords, dtype), _element(bias, tuple(at), dtype)))
    result = replace(total, axes=axes, value=added, reduce_op=None, reduce_axes=())
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


def choose_libraries(program: Program, machine: Machine) -> Program:
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
        calls: list[Definition] = [definition]
        if isinstance(definition, Extern) and definition.device.type == "cpu":
            if definition.op in PRODUCTS and _is_small(definition, buffers, machine):
                calls = _definitions(definition, buffers)
            elif definition.op in (aten.mm.default, aten.addmm.default):
                calls = [_linear(definition, buffers, program.size_vars)]
            elif definition.op is aten.convolution_backward.default:
                calls = [*_weight_gradient(definition, machine)]
        done += calls
    return replace(program, definitions=done)


def _weight_gradient(extern: Extern, machine: Machine) -> list[Extern]:
    """A convolution's backward with the weight gradient on its own, where that pays."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = extern.args
    shapes = (*grad.shape, *weight.shape)
    if not wanted[1] or transposed or groups != 1 or len(weight.shape) != 4 or not all(e.is_const for e in shapes):
        return [extern]
    size = [extent.value for extent in weight.shape]
    places = grad.shape[0].value * grad.shape[2].value * grad.shape[3].value
    dtype = extern.dtypes[1]
    plain = libraries.takes(dtype) and extern.layouts[1] == Layout.row_major(weight.shape)
    if not plain or places > machine.most_places or prod(size) < machine.fewest_weights:
        return [extern]

    def part(result: int, op: torch._ops.OpOverload, args: tuple[Any, ...], shape: tuple[Expr, ...]) -> Extern:
        layout = Layout.row_major(shape)
        return Extern((extern.names[result],), op, args, {}, (dtype,), (shape,), (layout,), extern.origin)

    lists = (list(stride), list(padding), list(dilation))
    parts = [part(1, torch.ops.bolide.conv_weight_gradient.default, (grad, x, size, *lists), weight.shape)]
    if wanted[2]:  # on its own too: asked for a bias gradient, oneDNN computes the weight gradient along with it
        parts.append(part(2, aten.sum.dim_IntList, (grad, [0, 2, 3]), weight.shape[:1]))
    if wanted[0]:
        args = (*extern.args[:-1], [True, False, False])
        parts.append(replace(extern, args=args, names=(extern.names[0], None, None)))
    return parts


def _linear(extern: Extern, buffers: Mapping[str, Described], likely: Mapping[str, int]) -> Extern:
    """a @ b (+ bias) as a linear layer with weight b.T, where that does."""
    *biases, a, b = extern.args
    bias = biases[0] if biases else None
    if bias is not None:
        scaled = any(factor != 1 for factor in extern.kwargs.values())
        if scaled or not isinstance(bias, View):
            return extern
        if bias.shape not in (b.shape[1:], (a.shape[0], b.shape[1])) or not _row_major(bias, buffers):
            return extern  # oneDNN takes any bias for one without gaps
    extents = [extent.evaluate(likely) for extent in (*a.shape, b.shape[1])]
    if libraries.fastest(extern.dtypes[0], *extents, by_columns=_is_by_columns(a, buffers)) != "onednn":
        return extern
    weight = _transposed(b, buffers)
    if not _has_no_gaps(weight):  # oneDNN then falls back to a loop that is a thousand times slower
        return extern
    if bias is not None and len(bias.shape) == 2:
        args: tuple[object, ...] = (a, bias, weight, None, "add")
        return replace(extern, op=torch.ops.mkldnn._linear_pointwise.binary, args=args, kwargs={})
    args = (a, weight, bias, "none", [], "")
    return replace(extern, op=torch.ops.mkldnn._linear_pointwise.default, args=args, kwargs={})


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
