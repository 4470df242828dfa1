"""Inlining: a pointwise definition that is cheaper to compute again than to keep is substituted into its readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from bolide.inductor.ir.definitions import Computed, Definition, Element, Extern, Program, Scatter
from bolide.inductor.ir.loops import Node
from bolide.inductor.schedule.prune import prune, reads, viewed
from bolide.inductor.schedule.stages import loads_of, nodes_below, rewrite, substitute_arg
from bolide.symbolic import Expr

#: Cost of an operation in units of one vector instruction; anything else costs 1.
COSTS = {
    **dict.fromkeys(("const", "index", "load", "bitcast", "acc"), 0),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "recip", "floordiv", "truncdiv", "mod", "fmod"), 4),
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "sin", "cos"), 12
    ),
    **dict.fromkeys(
        ("pow", "tan", "erfc", "erfinv", "lgamma", "digamma", "asin", "acos", "atan", "atan2", "sinh", "cosh"), 25
    ),
    **dict.fromkeys(("asinh", "acosh", "atanh", "hypot"), 25),
    **dict.fromkeys(("philox", "philox_normal"), 40),
}
Made = dict[tuple[str, tuple[Expr, ...], tuple[Node, ...]], Node]  # (producer, coordinates, their operands) -> value

MOST_NODES = 400  # larger definitions are not inlined further: compile time grows, registers run out
FREE = 6  # with one load or none, this much work is done again in every reader
CHEAP = 16  # this much work is done again at a second point of the same reader, or for every element of a broadcast


ROUNDS = 3  # a reader that is itself inlined leaves fewer readers behind


def inline(program: Program) -> Program:
    """The program with cheap or singly read pointwise definitions substituted into their readers."""
    for _ in range(ROUNDS):
        inlined: dict[str, Computed] = {}
        program = prune(_round(program, inlined))
        if not inlined:
            break
    return program


def _round(program: Program, inlined: dict[str, Computed]) -> Program:
    fixed = _kept_in_memory(program)
    readers = _readers(program.definitions)
    made: Made = {}
    done: list[Definition] = []
    for definition in program.definitions:
        if isinstance(definition, (Computed, Scatter)):
            definition = _with_inlined(definition, inlined, made)
            if isinstance(definition, Computed) and _worth(definition, fixed, readers.get(definition.name, [])):
                inlined[definition.name] = definition
        done.append(definition)
    return Program(program.inputs, done, program.results, program.size_vars)


def _kept_in_memory(program: Program) -> frozenset[str]:
    """Buffers that need memory whatever is inlined, and readers of buffers that a call changes."""
    kept = viewed(program.results)
    changed: set[str] = set()
    for definition in program.definitions:
        if isinstance(definition, Extern):
            kept |= reads(definition)
            changed.update(definition.mutates)
        elif isinstance(definition, Scatter):
            kept.add(definition.name)
        elif not isinstance(definition, Computed):
            kept.add(definition.source.buffer)
    if changed:
        kept.update(d.name for d in program.definitions if isinstance(d, Computed) and not changed.isdisjoint(reads(d)))
    return frozenset(kept)


def _readers(definitions: Iterable[Definition]) -> dict[str, list[Definition]]:
    readers: dict[str, list[Definition]] = {}
    for definition in definitions:
        for name in reads(definition):
            readers.setdefault(name, []).append(definition)
    return readers


def cost_of(roots: Iterable[Node]) -> tuple[int, int, int]:
    """(work in vector instructions, distinct loads, nodes) of values."""
    nodes = nodes_below(roots)
    return sum([COSTS.get(node.op, 1) for node in nodes]), sum([node.op == "load" for node in nodes]), len(nodes)


def _worth(definition: Computed, fixed: frozenset[str], readers: list[Definition]) -> bool:
    """Whether readers compute the definition themselves."""
    if definition.reduce_op is not None or definition.name in fixed:
        return False
    work, loads, count = cost_of((definition.value,))
    if count > MOST_NODES:
        return False
    points = [_points(reader, definition.name) for reader in readers]
    if any(indirect for _, indirect in points) and not _indirect_allowed(definition):
        return False
    again = sum([number for number, _ in points]) > 1
    expands = any(_elements(reader) is not _volume(definition.shape) for reader in readers)
    if loads <= 1 and work <= FREE:
        return True
    if len(readers) == 1:
        return not (again or expands) or work <= CHEAP
    return not again and not expands and loads <= 2 and work <= FREE


def _points(reader: Definition, name: str) -> tuple[int, bool]:
    """At how many different coordinates a definition reads a buffer, and whether some depend on data."""
    assert isinstance(reader, (Computed, Scatter))
    if isinstance(reader, Scatter):
        roots: tuple[Node, ...] = (reader.value, *reader.operands)
    else:
        roots = (reader.value,) if reader.position is None else (reader.value, reader.position)
    elements = {node.arg: _indirect(node) for node in loads_of(roots) if node.arg.buffer == name}
    if isinstance(reader, Scatter) and reader.base == name:
        elements[Element(name, ())] = False
    return len(elements), any(elements.values())


def _indirect_allowed(definition: Computed) -> bool:
    """Whether the definition can be computed at coordinates that depend on data."""
    nodes = nodes_below((definition.value,))
    places = any(node.op in ("index", "philox", "philox_normal") for node in nodes)
    return not places and not any(_indirect(node) for node in nodes if node.op == "load")


def _indirect(load: Node) -> bool:
    return len(load.src) > (1 if load.arg.masked else 0)


def _volume(extents: Iterable[Expr]) -> Expr:
    total = Expr.const(1)
    for extent in extents:
        total = total * extent
    return total


def _elements(reader: Definition) -> Expr:
    if isinstance(reader, Scatter):
        return _volume(reader.extents)
    assert isinstance(reader, Computed)
    return _volume((*reader.shape, *(extent for _, extent in reader.reduce_axes)))


# ---- substitution --------------------------------------------------------------------------------------------------


def _with_inlined(definition: Computed | Scatter, inlined: dict[str, Computed], made: Made) -> Computed | Scatter:
    """The definition with loads of inlined buffers replaced by their values."""
    used = [inlined[name] for name in sorted(reads(definition)) if name in inlined]
    if not used:
        return definition
    absorbed = _absorbed(definition, used)
    memo: dict[Node, Node] = {}

    def rule(old: Node, src: tuple[Node, ...]) -> Node | None:
        if old.op != "load" or old.arg.buffer not in inlined:
            return None
        value = value_at(inlined[old.arg.buffer], Node.make("load", old.dtype, src, old.arg), made)
        return masked(value, src[-1]) if old.arg.masked else value

    def new(node: Node) -> Node:
        return rewrite(node, rule, memo)

    if isinstance(definition, Computed):
        position = None if definition.position is None else new(definition.position)
        return replace(definition, value=new(definition.value), position=position, absorbed=absorbed)
    operands = tuple([new(operand) for operand in definition.operands])
    return replace(definition, value=new(definition.value), operands=operands, absorbed=absorbed)


def _absorbed(definition: Computed | Scatter, used: Iterable[Computed]) -> tuple[torch.fx.Node, ...]:
    nodes = dict.fromkeys(definition.absorbed)
    for producer in used:
        nodes.update(dict.fromkeys(producer.absorbed))
        if producer.origin is not None:
            nodes[producer.origin] = None
    return tuple(nodes)


def value_at(producer: Computed, load: Node, made: Made) -> Node:
    """The value of a definition at the coordinates of a load, which may depend on the load's operands."""
    element: Element = load.arg
    operands = load.src[:-1] if element.masked else load.src
    key = (producer.name, element.coords, operands)
    node = made.get(key)
    if node is None:
        axes = dict(zip(producer.axes, element.coords))
        if not axes and not operands:
            return producer.value  # a number is the same wherever it is read

        def rule(old: Node, src: tuple[Node, ...]) -> Node | None:
            arg = substitute_arg(old, axes)
            if arg is old.arg:
                return None
            if operands and old.op == "load" and any("$" in name for c in arg.coords for name in c.free_vars):
                src = (*operands, *src)  # the producer's loads have no operands but, perhaps, a mask
            return Node.make(old.op, old.dtype, src, arg)

        node = made[key] = rewrite(producer.value, rule, {})
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

    return select(mask, rewrite(value, rule, {}))


def select(mask: Node, value: Node) -> Node:
    """`value` where `mask` holds, else 0."""
    zero = False if value.dtype is torch.bool else 0.0 if value.dtype.is_floating_point else 0
    return Node.make("where", value.dtype, (mask, value, Node.make("const", value.dtype, (), zero)))
