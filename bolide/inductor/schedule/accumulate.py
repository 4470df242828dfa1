"""Sums of matrix products, as gradients of weights that are used more than once, become products that add to a matrix.

So the terms of a long sum do not all exist at the same time, and no kernel reads them again.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bolide.inductor.ir.definitions import Computed, Definition, Extern, Layout, Program, View
from bolide.inductor.schedule.prune import reads, viewed
from bolide.inductor.schedule.stages import axis_var
from bolide.symbolic import Expr, contiguous_strides

aten = torch.ops.aten


def accumulate_products(program: Program) -> Program:
    """The program with ``x + a @ b`` as one call where nothing but such sums and results read it."""
    if any(isinstance(definition, Extern) and definition.mutates for definition in program.definitions):
        return program
    readers: dict[str, list[Definition]] = {}
    for definition in program.definitions:
        for name in reads(definition):
            readers.setdefault(name, []).append(definition)
    kept = viewed(program.results)
    products = {
        definition.names[0]: definition
        for definition in program.definitions
        if isinstance(definition, Extern)
        and definition.op is aten.mm.default
        and definition.names[0] not in kept
        and len(readers.get(definition.names[0] or "", ())) == 1
    }
    if not products:
        return program
    shapes = {name: shape for name, (_, shape, _) in program.named().items()}
    order = {name: place for place, name in enumerate(products)}
    sums: dict[str, tuple[str, str]] = {}  # sum -> (the other operand, the product)
    for definition in reversed(program.definitions):
        operands = _operands(definition, shapes)
        if operands is None or not all(_name(r) in sums for r in readers.get(_name(definition), ())):
            continue
        last = max(operands, key=lambda name: order.get(name, -1))
        if last in products:
            other = operands[0] if operands[1] == last else operands[1]
            sums[_name(definition)] = (other, last)
    taken = {product for _, product in sums.values()}
    done: list[Definition] = []
    for definition in program.definitions:
        if _name(definition) in sums and isinstance(definition, Computed):
            other, last = sums[definition.name]
            product = products[last]
            args = (View(other, definition.shape, None, None), *product.args)
            done.append(replace(product, names=(definition.name,), op=aten.addmm.default, args=args))
        elif _name(definition) not in taken:
            done.append(definition)
    return Program(program.inputs, done, program.results, program.size_vars)


def _name(definition: Definition) -> str:
    if isinstance(definition, Extern):
        return definition.names[0] or "" if len(definition.names) == 1 else ""
    return getattr(definition, "name", "")


def _operands(definition: Definition, shapes: dict[str, tuple[Expr, ...]]) -> tuple[str, str] | None:
    """The two whole float32 matrices that a definition adds element by element, as a row-major one. `shapes` are those
    of all buffers: the first rows and columns of a larger matrix are read at the same coordinates."""
    if not isinstance(definition, Computed) or definition.value.op != "add" or len(definition.shape) != 2:
        return None
    row_major = Layout(contiguous_strides(definition.shape), Expr.const(0))
    coords = tuple([axis_var(name, extent) for name, extent in zip(definition.axes, definition.shape)])
    plain = definition.reduce_op is None and definition.layout in (None, row_major)
    loads = definition.value.src
    if not plain or any(load.op != "load" or load.src or load.arg.coords != coords for load in loads):
        return None
    first, second = (load.arg.buffer for load in loads)
    if first == second or definition.dtype is not torch.float32:
        return None
    return (first, second) if shapes[first] == shapes[second] == definition.shape else None
