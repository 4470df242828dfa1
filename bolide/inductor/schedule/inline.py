"""Inlining: a pointwise definition that is cheaper to compute again than to keep is substituted into its readers; what
nothing needs is dropped."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from bolide.inductor.ir.definitions import (
    Computed,
    Definition,
    Element,
    Extern,
    Origin,
    Program,
    Scatter,
    WriteBack,
    axis_var,
    volume,
)
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.scalar_ops import SCALAR_OPS
from bolide.inductor.ir.walks import (
    index_vars,
    is_impure,
    is_indirect,
    loads_of,
    nodes_below,
    readers_of,
    reads,
    rewriter,
    roots_of,
    substitute,
    substituted_arg,
    viewed,
    with_roots,
    writes,
)
from bolide.inductor.machine import Machine
from bolide.inductor.schedule.order import Lifetimes, lifetimes_of
from bolide.inductor.schedule.stages import is_one
from bolide.symbolic import Expr

#: (producer, coordinates, their operands) -> value
Inlined = dict[tuple[str, tuple[Expr, ...], tuple[Node, ...]], Node]

ROUNDS = 3  # a reader that is itself inlined leaves fewer readers behind


def prune(program: Program) -> Program:
    """The program without the definitions that no result, write-back or impure call depends on."""
    needed = viewed(program.results)
    kept: list[Definition] = []
    for definition in reversed(program.definitions):
        effect = isinstance(definition, WriteBack) or (isinstance(definition, Extern) and is_impure(definition))
        if effect or not needed.isdisjoint(writes(definition)):
            needed |= reads(definition)
            kept.append(definition)
    return replace(program, definitions=kept[::-1])


def inline(program: Program, machine: Machine, static: Collection[str] = ()) -> Program:
    """The program with cheap or singly read pointwise definitions substituted into their readers. `static`: inputs
    whose memory lives anyway."""
    for _ in range(ROUNDS):
        inlined: dict[str, Computed] = {}
        program = prune(_round(program, inlined, machine, lifetimes_of(program, static)))
        if not inlined:
            break
    return program


def _round(program: Program, inlined: dict[str, Computed], machine: Machine, times: Lifetimes) -> Program:
    fixed = _kept_in_memory(program)
    readers = readers_of(program.definitions)
    values: Inlined = {}
    known: dict[str, Computed] = {}
    done: list[Definition] = []
    for definition in program.definitions:
        if isinstance(definition, (Computed, Scatter)):
            definition = _with_inlined(definition, inlined, values)
            if isinstance(definition, Computed):
                definition = of_one_term(definition, known, values)
                if machine.device == "cuda":
                    definition = of_shares(definition, known)
                known[definition.name] = definition
            given = readers.get(definition.name, [])
            free = definition.name not in fixed
            if free and isinstance(definition, Computed) and _worth(definition, given, machine, times):
                inlined[definition.name] = definition
        done.append(definition)
    return replace(program, definitions=done)


def _kept_in_memory(program: Program) -> frozenset[str]:
    """Buffers that need memory whatever is inlined."""
    kept = viewed(program.results)
    for definition in program.definitions:
        if isinstance(definition, Extern):
            kept |= reads(definition)
        elif isinstance(definition, Scatter):
            kept |= {definition.name, definition.base}
        elif not isinstance(definition, Computed):
            kept.add(definition.source.buffer)
    return frozenset(kept)


def _worth(definition: Computed, readers: list[Definition], machine: Machine, times: Lifetimes) -> bool:
    """Whether readers compute the definition themselves. If they run later, what it is made of lives longer for that:
    it may not be twice as large. (A reader of nothing else can run next, when both lie in memory anyway.)"""
    if definition.reduce_op is not None:
        return False
    ops = [node.op for node in nodes_below((definition.value,))]
    work, loads = sum([SCALAR_OPS[op].work for op in ops]), _loads(definition, machine)
    if len(ops) > machine.most_inlined:
        return False
    points = [_points(reader, definition.name) for reader in readers]
    if any(indirect for _, indirect in points) and not _indirect_allowed(definition):
        return False
    again = sum([number for number, _ in points]) > 1
    expands = any(_iterations(reader) is not volume(definition.shape) for reader in readers)
    next_wave, later = times.wave[definition.name] + 1, times.last.get(definition.name, 0)
    waits = later > next_wave or (later == next_wave and any(set(reads(each)) != {definition.name} for each in readers))
    if waits and times.wasted(reads(definition), (definition.name,), later) > 0:
        return False
    if loads <= 1 and work <= machine.free_work:
        return True
    if len(readers) == 1:
        return not (again or expands) or work <= machine.cheap_work
    if machine.holds_rows and not expands and max([number for number, _ in points]) == 1 and work <= machine.cheap_work:
        return _is_read_anyway(definition, readers)
    return not again and not expands and loads <= 2 and work <= machine.free_work


def _loads(definition: Computed, machine: Machine) -> int:
    """The loads that count, of a definition that is computed again."""
    return len(_whole_loads(definition) if machine.holds_rows else loads_of((definition.value,)))


def _whole_loads(definition: Computed) -> list[Node]:
    """The loads of a definition but for what is the same along some of its axes."""
    axes = {name for name, extent in zip(definition.axes, definition.shape) if not is_one(extent)}
    return [load for load in loads_of((definition.value,)) if load.src or load.arg.free_vars >= axes]


def _is_read_anyway(definition: Computed, readers: list[Definition]) -> bool:
    """Whether a value need not be stored for those who read it when it has been summed: they load what it is made of,
    but for one operand, which they load in its place (gradients through a batch norm and what follows it)."""
    made_of = {load.arg.buffer for load in _whole_loads(definition)}
    later = [reader for reader in readers if isinstance(reader, Computed) and reader.reduce_op is None]
    return len(later) < len(readers) and all(len(made_of - reads(reader)) <= 1 for reader in later)


def _points(reader: Definition, name: str) -> tuple[int, bool]:
    """At how many different coordinates a definition reads a buffer, and whether some depend on data."""
    assert isinstance(reader, (Computed, Scatter))
    elements = {node.arg: is_indirect(node) for node in loads_of(roots_of(reader)) if node.arg.buffer == name}
    if isinstance(reader, Scatter) and reader.base == name:
        elements[Element(name, ())] = False
    return len(elements), any(elements.values())


def _indirect_allowed(definition: Computed) -> bool:
    """Whether the definition can be computed at coordinates that depend on data."""
    nodes = nodes_below((definition.value,))
    return not any(is_indirect(n) if n.op == "load" else n.op in ("index", "philox", "philox_normal") for n in nodes)


def _iterations(reader: Definition) -> Expr:
    if isinstance(reader, Scatter):
        return volume(reader.extents)
    assert isinstance(reader, Computed)
    return volume((*reader.shape, *(extent for _, extent in reader.reduce_axes)))


# ---- substitution --------------------------------------------------------------------------------------------------


def _with_inlined(definition: Computed | Scatter, inlined: dict[str, Computed], values: Inlined) -> Computed | Scatter:
    """The definition with loads of inlined buffers replaced by their values."""
    used = [inlined[name] for name in sorted(reads(definition)) if name in inlined]
    if not used:
        return definition

    def rule(old: Node, src: tuple[Node, ...]) -> Node | None:
        if old.op != "load" or old.arg.buffer not in inlined:
            return None
        value = value_at(inlined[old.arg.buffer], Node.make("load", old.dtype, src, old.arg), values)
        return masked(value, src[-1]) if old.arg.masked else value

    return with_roots(definition, rewriter(rule), absorbed=_absorbed(definition, used))


def _absorbed(definition: Computed | Scatter, used: Iterable[Computed]) -> tuple[Origin, ...]:
    nodes = [node for producer in used for node in (*producer.absorbed, producer.origin) if node is not None]
    return tuple(dict.fromkeys([*definition.absorbed, *nodes]))


def value_at(producer: Computed, load: Node, values: Inlined) -> Node:
    """The value of a definition at the coordinates of a load, which may depend on the load's operands."""
    element: Element = load.arg
    operands = load.src[:-1] if element.masked else load.src
    key = (producer.name, element.coords, operands)
    node = values.get(key)
    if node is None:
        axes = dict(zip(producer.axes, element.coords))
        if not axes and not operands:
            return producer.value  # a number is the same wherever it is read

        def rule(old: Node, src: tuple[Node, ...]) -> Node | None:
            arg = substituted_arg(old, axes)
            if arg is old.arg:
                return None
            if operands and old.op == "load" and any("$" in name for name in arg.free_vars):
                src = (*operands, *src)  # the producer's loads have no operands but, perhaps, a mask
            return Node.make(old.op, old.dtype, src, arg)

        node = values[key] = rewriter(rule)(producer.value)
    return node


def masked(value: Node, mask: Node) -> Node:
    """`value` where `mask` holds, else 0; no load below it is done where the mask is false."""

    def rule(old: Node, src: tuple[Node, ...]) -> Node | None:
        if old.op != "load":
            return None
        element: Element = old.arg
        if element.masked:
            both = Node.make("and", torch.bool, (src[-1], mask))
            return Node.make("load", old.dtype, (*src[:-1], both), element)
        return Node.make("load", old.dtype, (*src, mask), replace(element, masked=True))

    return select(mask, rewriter(rule)(value))


def cast(value: Node, dtype: torch.dtype) -> Node:
    """A value in another type, if that is another one."""
    return value if value.dtype is dtype else Node.make("cast", dtype, (value,))


def select(mask: Node, value: Node) -> Node:
    """`value` where `mask` holds, else 0."""
    zero = False if value.dtype is torch.bool else 0.0 if value.dtype.is_floating_point else 0
    return Node.make("where", value.dtype, (mask, value, Node.make("const", value.dtype, (), zero)))


# ---- sums of one term ----------------------------------------------------------------------------------------------


def of_one_term(definition: Computed, known: Mapping[str, Computed], values: Inlined) -> Computed:
    """A sum in which only the term at a known place is not 0 (the gradient of a loss at its target) as that term, if
    the place is in range: ``sum over r of where(t == r and c, v, 0)`` is ``where(0 <= t < extent and c, v, 0)``.
    `known`: what it may be a sum of, by name."""
    if definition.reduce_op != "sum" or definition.scan is not None or len(definition.reduce_axes) != 1:
        return definition
    if not _selects(definition.value, known):
        return definition
    ((axis, extent),) = definition.reduce_axes
    casts, value = [], definition.value
    while (inside := _looked_into(value, known, values)) is not None:
        casts += [value.dtype] if value.op == "cast" else []
        value = inside
    if value.op != "where" or not _is_zero(value.src[2]):
        return definition
    condition, term, zero = value.src
    parts = [*_conjuncts(condition)]
    told, place = next(((part, at) for part in parts if (at := _equal_to(part, axis)) is not None), (None, None))
    others = [part for part in parts if part is not told]
    if place is None or any(axis in index_vars(node) for node in nodes_below((place, term, *others))):
        return definition
    for op, bound in (("ge", Expr.const(0)), ("lt", extent)):
        others.append(Node.make(op, torch.bool, (place, _number(bound))))
    value = Node.make("where", value.dtype, (functools.reduce(_both, others), term, zero))
    for dtype in (*reversed(casts), definition.dtype):
        value = cast(value, dtype)
    return replace(definition, value=value, reduce_op=None, reduce_axes=())


def of_shares(definition: Computed, known: Mapping[str, Computed]) -> Computed:
    """A sum of e^(v - m), where m is the largest v, with terms that are as exact as the sum needs (`exp_term`): one is
    1, and of e^x an error of |x| roundings is less than one of 1."""
    value = definition.value
    if definition.reduce_op != "sum" or value.op != "exp" or value.src[0].op != "sub":
        return definition
    term, top = value.src[0].src
    if top.op != "load" or top.src or top.arg.buffer not in known:
        return definition
    largest = known[top.arg.buffer]
    if largest.reduce_op != "max" or len(largest.reduce_axes) != len(definition.reduce_axes):
        return definition
    if any(mine[1] is not other[1] for mine, other in zip(largest.reduce_axes, definition.reduce_axes)):
        return definition
    place = dict(zip(largest.axes, top.arg.coords))
    place |= {mine[0]: axis_var(*other) for mine, other in zip(largest.reduce_axes, definition.reduce_axes)}
    if substitute(place)(largest.value) is not term:
        return definition
    return replace(definition, value=Node.make("exp_term", value.dtype, value.src))


def _selects(value: Node, known: Mapping[str, Computed]) -> bool:
    """Whether a value is, rounded or stored in between, a selection: quickly, without writing anything out."""
    while value.op == "cast" or (value.op == "load" and not value.src and value.arg.buffer in known):
        value = value.src[0] if value.op == "cast" else known[value.arg.buffer].value
    return value.op == "where" and _is_zero(value.src[2])


def _looked_into(value: Node, known: Mapping[str, Computed], values: Inlined) -> Node | None:
    """The float that is rounded, or what is computed where it is loaded."""
    if value.op == "cast" and value.dtype.is_floating_point and value.src[0].dtype.is_floating_point:
        return value.src[0]
    if value.op != "load" or value.src or value.arg.buffer not in known:
        return None
    producer = known[value.arg.buffer]
    return value_at(producer, value, values) if producer.reduce_op is None else None


def _both(one: Node, other: Node) -> Node:
    return Node.make("and", torch.bool, (one, other))


def _number(value: Expr) -> Node:
    op, arg = ("const", value.value) if value.is_const else ("index", value)
    return Node.make(op, torch.int64, (), arg)


def _is_zero(node: Node) -> bool:
    return node.op == "const" and node.arg == 0


def _conjuncts(node: Node) -> Iterator[Node]:
    """Conditions that hold all together where one does."""
    if node.op == "and" and node.dtype is torch.bool:
        for operand in node.src:
            yield from _conjuncts(operand)
    else:
        yield node


def _equal_to(node: Node, axis: str) -> Node | None:
    """What a condition says that the place on an axis is."""
    if node.op != "eq" or node.src[0].dtype is not torch.int64:
        return None
    for mine, other in (node.src, node.src[::-1]):
        if mine.op == "index" and mine.arg.free_vars == {axis}:
            step, first = mine.arg.coefficient(axis), mine.arg.subs({axis: 0})
            return other if step is not None and is_one(step) and first == Expr.const(0) else None
    return None
