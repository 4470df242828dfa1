"""When two things made of nodes are the same but for names: equal kernels are compiled once, equal groups are one
kernel."""

from __future__ import annotations

from collections.abc import Sequence

from bolide.inductor.ir.definitions import Element
from bolide.inductor.ir.loops import Access, Init, Kernel, Loop, Node, Stmt, Update
from bolide.inductor.ir.walks import nodes_below, roots_of
from bolide.symbolic import Expr
from bolide.symbolic.expr import Atom

Structure = tuple[object, ...]


def structure_of(kernel: Kernel) -> Structure:
    """A hashable description in which names are numbers, given in order of first declaration. Kernels with equal
    descriptions differ in a one-to-one renaming at most, so they have the same machine code."""
    describer = _KernelDescriber()
    for size in kernel.sizes:
        number(describer.variables, size)
    buffers = []
    for buffer in kernel.buffers:
        number(describer.buffers, buffer.name)
        buffers.append((buffer.dtype, describer.expr(buffer.numel)))
    counts = (len(kernel.params), len(kernel.locals), len(kernel.sizes))
    place = (str(kernel.device), kernel.grain, kernel.team, kernel.batch, *[flag.message for flag in kernel.flags])
    return counts, place, tuple(buffers), describer.body(kernel.body), tuple(describer.values)


class Describer:
    """Numbers names as it meets them. Variables that nobody has numbered keep their names. `values` describes the nodes
    that `node` has numbered."""

    def __init__(self) -> None:
        self.buffers: dict[str, int] = {}
        self.variables: dict[str, int] = {}
        self.accumulators: dict[str, int] = {}
        self.values: list[Structure] = []
        self._nodes: dict[Node, int] = {}
        self._exprs: dict[Expr, Structure] = {}

    def node(self, root: Node) -> int:
        for node in nodes_below((root,), self._nodes.__contains__):
            src = tuple([self._nodes[operand] for operand in node.src])
            self.values.append((node.op, node.dtype, src, self.argument(node)))
            self._nodes[node] = len(self._nodes)
        return self._nodes[root]

    def argument(self, node: Node) -> object:
        arg = node.arg
        if isinstance(arg, Access):
            return self.access(arg)
        if isinstance(arg, Element):
            return number(self.buffers, arg.buffer), *map(self.expr, arg.coords), arg.masked
        if isinstance(arg, Expr):
            return self.expr(arg)
        if node.op == "acc":
            return self.accumulators[arg]
        if node.op.startswith("philox"):
            return arg[0], self.expr(arg[1])
        return type(arg), repr(arg)  # told apart as nodes are: 0.0 from -0.0, 1 from True

    def access(self, access: Access) -> Structure:
        return self.buffers[access.buffer], self.expr(access.index), access.masked

    def expr(self, expr: Expr) -> Structure:
        if expr not in self._exprs:
            terms = sorted([(tuple(map(self.atom, mono)), coefficient) for mono, coefficient in expr.terms])
            self._exprs[expr] = (expr.offset, *terms)
        return self._exprs[expr]

    def atom(self, atom: Atom) -> Structure:
        """The atom as what can be sorted. The bounds belong to it: the code for a division depends on them."""
        if atom.kind == "var":
            known = self.variables.get(atom.key)
            return "var", f"{atom.key if known is None else known} {atom.lo} {atom.hi}"
        return atom.kind, *map(self.expr, atom.args)


class _KernelDescriber(Describer):
    def body(self, statements: Sequence[Stmt]) -> Structure:
        return tuple(map(self.statement, statements))

    def statement(self, statement: Stmt) -> Structure:
        if isinstance(statement, Loop):
            axis = statement.axis
            extent = self.expr(axis.extent)
            return axis.kind, axis.bound, number(self.variables, axis.name), extent, self.body(statement.body)
        if isinstance(statement, Init):
            return statement.op, statement.dtype, number(self.accumulators, statement.name)
        if isinstance(statement, Update):
            return self.accumulators[statement.name], *map(self.node, roots_of(statement))
        return statement.mode, self.access(statement.access), *map(self.node, roots_of(statement))


def number(names: dict[str, int], name: str) -> int:
    """The number of a name, the next one if it is new."""
    return names.setdefault(name, len(names))
