"""What can be read off a kernel before any code is written: what values depend on, what they cost, how many lanes a
loop gets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from bolide.inductor.codegen import math32
from bolide.inductor.codegen.builder import to_float32
from bolide.inductor.ir.loops import Init, Kernel, Loop, Node, Stmt, Store, Update
from bolide.inductor.ir.scalar_ops import DRAWS, SCALAR_OPS
from bolide.inductor.ir.walks import index_vars, nodes_below, roots_in, statements
from bolide.inductor.machine import Machine
from bolide.symbolic import Expr

#: In the names a value depends on, stands for "reads memory".
READS = "load"

#: Give one of their operands, perhaps with another sign, or a whole number near it: a bfloat16 of bfloat16s.
EXACT = frozenset(
    ("where", "neg", "abs", "min", "max", "fmin", "fmax", "copysign", "sign", "floor", "ceil", "trunc", "round")
)
#: Give a NaN only as the processor's arithmetic does: an operand's, or its own, whose lower half is zero. The C library
#: and Sleef do not.
ARITHMETIC = EXACT | math32.INLINE.keys()
ARITHMETIC |= {"add", "sub", "mul", "product", "quotient", "div", "fma", "sqrt", "rsqrt", "recip", "erf_plus_1"}


class Dependences:
    """The names each node depends on: axes, ``acc:x`` (an accumulator's value), ``buf:x`` (contents of a buffer that
    the kernel writes), and `READS`. `short`, `choices`: what is known of the values; `copied`: those that are stored as
    they are."""

    def __init__(self, kernel: Kernel) -> None:
        self.short = ShortFloats(kernel)
        self.choices = Choices()
        stores = [statement for statement in statements(kernel.body) if isinstance(statement, Store)]
        self.written = {store.access.buffer for store in stores}
        self.copied = {store.value for store in stores if store.mode == "set"}
        self._names: dict[Node, frozenset[str]] = {}

    def names(self, node: Node) -> frozenset[str]:
        """Everything `node` depends on."""
        if node not in self._names:
            for inner in nodes_below((node,), self._names.__contains__):
                self._names[inner] = self._own(inner).union(*(self._names[operand] for operand in inner.src))
        return self._names[node]

    def _own(self, node: Node) -> frozenset[str]:
        if node.op == "acc":
            return frozenset((f"acc:{node.arg}",))
        if node.op != "load":
            return index_vars(node)
        buffer = node.arg.buffer
        return index_vars(node).union((READS, f"buf:{buffer}") if buffer in self.written else (READS,))


class ShortFloats:
    """Which float32 values are known to be short: a bfloat16, so that the lower half of their bits is zero."""

    def __init__(self, kernel: Kernel) -> None:
        self._updates: dict[str, list[Node]] = {}
        for statement in statements(kernel.body):
            if isinstance(statement, Update):
                self._updates.setdefault(statement.name, []).append(statement.value)
        self._known: dict[Node, tuple[bool, bool]] = {}

    def is_short(self, node: Node) -> bool:
        """Whether every value of `node` is short."""
        return self._facts(node)[0]

    def has_short_nans(self, node: Node) -> bool:
        """Whether the value of `node` is short wherever it is NaN."""
        return self._facts(node)[1]

    def _facts(self, node: Node) -> tuple[bool, bool]:
        if node not in self._known:
            for inner in nodes_below((node,), self._known.__contains__):
                self._known[inner] = self._own(inner)
        return self._known[node]

    def _own(self, node: Node) -> tuple[bool, bool]:
        if node.dtype is not torch.float32:
            return False, False
        if node.op == "cast":
            source = node.src[0].dtype
            return source is torch.bfloat16, source is torch.bfloat16 or not source.is_floating_point
        if node.op == "const":
            return struct.pack("<f", to_float32(node.arg))[:2] == b"\0\0", True
        if node.op == "acc":
            self._known[node] = False, False  # of an accumulator that is made of itself
            return False, all(self.has_short_nans(value) for value in self._updates.get(node.arg, ()))
        operands = [self._known[operand] for operand in node.src if operand.dtype is torch.float32]
        short, short_nans = (all(facts) for facts in zip(*operands)) if operands else (False, False)
        return short and node.op in EXACT, node.op in DRAWS or (short_nans and node.op in ARITHMETIC)


#: A condition, and the numbers that a value is where it holds, and elsewhere.
Choice = tuple[Node, float, float]


class Choices:
    """Which floating-point values are made of one condition and constants: so they are one of two numbers."""

    def __init__(self) -> None:
        self._known: dict[Node, Choice | None] = {}

    def of(self, node: Node) -> Choice | None:
        if node not in self._known:
            for inner in nodes_below((node,), self._known.__contains__):
                self._known[inner] = self._own(inner)
        return self._known[node]

    def _own(self, node: Node) -> Choice | None:
        if not node.dtype.is_floating_point or not node.src or node.op == "load" or node.op in DRAWS:
            return None
        conditions: dict[Node, None] = {}
        sides: list[tuple[torch.Tensor, torch.Tensor]] = []
        for operand in node.src:
            choice = (operand, 1, 0) if operand.dtype is torch.bool and operand.op != "const" else self._known[operand]
            if choice is None and operand.op != "const":
                return None
            yes, no = choice[1:] if choice else (operand.arg, operand.arg)
            conditions.update({} if choice is None else {choice[0]: None})
            sides.append((torch.tensor(yes, dtype=operand.dtype), torch.tensor(no, dtype=operand.dtype)))
        if len(conditions) != 1:
            return None
        yes, no = (_evaluated(node, [side[k] for side in sides]) for k in (0, 1))
        return next(iter(conditions)), yes, no


def _evaluated(node: Node, operands: Sequence[torch.Tensor]) -> float:
    """The number that an operation gives of numbers."""
    if node.op == "cast":
        return float(operands[0].to(node.dtype))
    evaluate = SCALAR_OPS[node.op].evaluate
    assert evaluate is not None
    return float(evaluate(*operands))


def changed_by(body: Sequence[Stmt]) -> frozenset[str]:
    """The names whose value changes when these statements run."""
    names = set()
    for statement in statements(body):
        if isinstance(statement, Loop):
            names.add(statement.axis.name)
        elif isinstance(statement, (Init, Update)):
            names.add(f"acc:{statement.name}")
        else:
            names.add(f"buf:{statement.access.buffer}")
    return frozenset(names)


def updated_in(body: Sequence[Stmt]) -> list[str]:
    """Accumulators updated there, in order of first update."""
    return list(dict.fromkeys(s.name for s in statements(body) if isinstance(s, Update)))


def cost(body: Sequence[Stmt]) -> int:
    """Vector instructions that one pass over `body` takes, loops counted once."""
    operations = sum(SCALAR_OPS[node.op].instructions for node in nodes_below(roots_in(body)))
    return operations + sum(1 for _ in statements(body))


def is_mark(statement: Stmt) -> bool:
    """Whether a statement stores a flag, which it hardly ever does."""
    return isinstance(statement, Store) and statement.mode == "any"


def lanes_for(loop: Loop, machine: Machine) -> int:
    """Lanes of a vector loop: the register's (of 64 bits if all that is stored or accumulated has them, else of 32, or
    of fewer where narrower elements are only moved), times a few where little work stands between two updates of an
    accumulator (they wait for each other), and no more than a short extent can use."""
    sizes = [s.value.dtype.itemsize for s in statements(loop.body) if isinstance(s, (Store, Update)) and not is_mark(s)]
    moved = [s for s in loop.body if not is_mark(s)]
    moves = moved and all(isinstance(s, Store) and s.mode == "set" and s.value.op == "load" for s in moved)
    bits = 64 if min(sizes, default=4) == 8 else min(32, 8 * max(sizes)) if moves else 32
    lanes = machine.target.vector_bits // bits
    if loop.axis.kind != "scan" and (loop.axis.kind == "reduce_vector" or updated_in(loop.body)):
        work = cost(loop.body)
        lanes *= 4 if work <= machine.light // 2 else 2 if work <= machine.light else 1
    lanes = max(lanes, machine.target.vector_bits // 16) if takes_pairs(loop, machine) else lanes
    limit = loop.axis.extent.bounds()[1]
    while limit is not None and lanes > 1 and lanes // 2 >= limit:
        lanes //= 2
    return lanes


def takes_pairs(loop: Loop, machine: Machine) -> bool:
    """Whether all that a vector loop reads and writes along its axis are runs of bfloat16s, which it computes with as
    float32s, and no place on the axis is a value: then it does not matter in which lane an element is. (Costly bodies
    that have a mask in every iteration do not take pairs.)"""
    axis, lanes = loop.axis, machine.target.vector_bits // 16
    is_whole = axis.extent.is_const and axis.extent.value % lanes == 0
    if axis.kind not in ("vector", "reduce_vector") or not (is_whole or cost(loop.body) <= machine.twice):
        return False
    joined = all(_joins_pairs(statement, axis.name) for statement in statements(loop.body))
    return joined and all(_suits_pairs(node, axis.name) for node in nodes_below(roots_in(loop.body)))


def _joins_pairs(statement: Stmt, axis: str) -> bool:
    if isinstance(statement, Loop):
        return statement.axis.kind in ("serial", "reduce")
    if isinstance(statement, Init):
        return statement.dtype is not torch.bfloat16
    value = statement.value
    if isinstance(statement, Update):
        return value.dtype is not torch.bfloat16
    plain = statement.mode == "set" and not statement.operands and _is_run(statement.access.index, axis)
    return plain and value.dtype is torch.bfloat16 and value.op == "cast"


def _suits_pairs(node: Node, axis: str) -> bool:
    if node.op == "load" and axis in node.arg.index.free_vars:
        return node.dtype is torch.bfloat16 and not node.src and _is_run(node.arg.index, axis)
    if any(operand.dtype is torch.bfloat16 for operand in node.src):
        return node.op == "cast" and node.dtype is torch.float32
    from_floats = node.dtype is not torch.bfloat16 or node.op in ("cast", "load")
    return from_floats and not (node.op == "load" and node.src) and axis not in index_vars(node)


def _is_run(index: Expr, axis: str) -> bool:
    step = index.coefficient(axis)
    return step is not None and step.is_const and step.value == 1


def _is_long(loop: Loop, least: int) -> bool:
    most = loop.axis.extent.bounds()[1]
    return loop.axis.kind == "reduce" and (most is None or most >= least)


def strip_lanes(loop: Loop, lanes: int, machine: Machine) -> int:
    """Lanes of a vector loop around long reductions that run across memory: more than `lanes`, so that longer runs of
    memory are read, if its accumulators then fill half of the registers (there are 32 of 512 bits, 16 of fewer)."""
    reductions = [inner for inner in loop.body if isinstance(inner, Loop) and _is_long(inner, machine.long)]
    updates = {s.name: s for s in statements(reductions) if isinstance(s, Update)}
    if loop.axis.kind != "vector" or not updates or cost(loop.body) > machine.light:
        return lanes
    vector_bits = machine.target.vector_bits
    bits = sum(max(32, 8 * s.value.dtype.itemsize) + (0 if s.position is None else 32) for s in updates.values())
    strip = vector_bits // 32 * vector_bits // bits
    strip = 1 << strip.bit_length() - 1
    extent = loop.axis.extent.bounds()[1]
    return lanes if extent is not None and extent < strip else max(lanes, strip)
