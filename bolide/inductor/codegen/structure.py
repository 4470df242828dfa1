"""When two kernels are the same but for names: then they are compiled once."""

from __future__ import annotations

from collections.abc import Sequence

from bolide.inductor.ir.loops import Access, Init, Kernel, Loop, Node, Stmt, Update
from bolide.inductor.ir.walks import nodes_below, roots_of
from bolide.symbolic import Expr
from bolide.symbolic.expr import Atom

Structure = tuple[object, ...]


def structure_of(kernel: Kernel) -> Structure:
    """A hashable description in which names are numbers, given in order of first declaration. Kernels with equal
    descriptions differ in a one-to-one renaming at most, so they have the same machine code."""
    return _Describer(kernel).description()


class _Describer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers: dict[str, int] = {}
        self.variables: dict[str, int] = {}
        self.accumulators: dict[str, int] = {}
        self.nodes: dict[Node, int] = {}
        self.values: list[Structure] = []
        self.exprs: dict[Expr, Structure] = {}

    def description(self) -> Structure:
        kernel = self.kernel
        for size in kernel.sizes:
            _number(self.variables, size)
        buffers = []
        for buffer in kernel.buffers:
            _number(self.buffers, buffer.name)
            buffers.append((buffer.dtype, self.expr(buffer.numel)))
        counts = (len(kernel.params), len(kernel.locals), len(kernel.sizes))
        return counts, tuple(buffers), self.body(kernel.body), tuple(self.values)

    def body(self, statements: Sequence[Stmt]) -> Structure:
        return tuple(map(self.statement, statements))

    def statement(self, statement: Stmt) -> Structure:
        if isinstance(statement, Loop):
            axis = statement.axis
            extent = self.expr(axis.extent)
            return axis.kind, _number(self.variables, axis.name), extent, self.body(statement.body)
        if isinstance(statement, Init):
            return statement.op, statement.dtype, _number(self.accumulators, statement.name)
        if isinstance(statement, Update):
            return self.accumulators[statement.name], *map(self.node, roots_of(statement))
        return statement.mode, self.access(statement.access), *map(self.node, roots_of(statement))

    def access(self, access: Access) -> Structure:
        return self.buffers[access.buffer], self.expr(access.index), access.masked

    def node(self, root: Node) -> int:
        for node in nodes_below((root,), self.nodes.__contains__):
            src = tuple(self.nodes[operand] for operand in node.src)
            self.values.append((node.op, node.dtype, src, self.argument(node)))
            self.nodes[node] = len(self.nodes)
        return self.nodes[root]

    def argument(self, node: Node) -> object:
        arg = node.arg
        if isinstance(arg, Access):
            return self.access(arg)
        if isinstance(arg, Expr):
            return self.expr(arg)
        if node.op == "acc":
            return self.accumulators[arg]
        if node.op.startswith("philox"):
            return arg[0], self.expr(arg[1])
        return type(arg), repr(arg)  # told apart as nodes are: 0.0 from -0.0, 1 from True

    def expr(self, expr: Expr) -> Structure:
        if expr not in self.exprs:
            terms = sorted((tuple(map(self.atom, mono)), coefficient) for mono, coefficient in expr.terms)
            self.exprs[expr] = (expr.offset, *terms)
        return self.exprs[expr]

    def atom(self, atom: Atom) -> Structure:
        """The atom as what can be sorted. The bounds belong to it: the code for a division depends on them."""
        if atom.kind == "var":
            known = self.variables.get(atom.key)
            return "var", f"{atom.key if known is None else known} {atom.lo} {atom.hi}"
        return atom.kind, *map(self.expr, atom.args)


def _number(names: dict[str, int], name: str) -> int:
    return names.setdefault(name, len(names))
