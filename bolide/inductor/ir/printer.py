"""Programs and kernels as text for people, golden files and error messages."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from bolide.inductor.ir.definitions import (
    Definition,
    Element,
    Extern,
    Layout,
    Program,
    Scatter,
    View,
    WriteBack,
    described,
)
from bolide.inductor.ir.loops import ATOMIC, Access, Axis, Init, Kernel, Loop, Node, Stmt, Store, Update
from bolide.inductor.ir.scalar_ops import JOINED_BY, SCALAR_OPS
from bolide.inductor.ir.walks import nodes_below, roots_in, roots_of
from bolide.symbolic import Expr

#: A line of text and the statement that it stands for.
Line = tuple[Stmt | None, str]


# ---- scalars --------------------------------------------------------------------------------------------------------


_SIGNS = {"set": "=", "add": "+=", "mul": "*=", "min": "min=", "max": "max=", "any": "|="}
_SIGNS |= {atomic: f"atomic {_SIGNS[mode]}" for mode, atomic in ATOMIC.items()}


def node_text(node: Node, names: Mapping[Node, str] | None = None) -> str:
    """A scalar expression, written out in full but for nodes that have names."""
    if names and node in names:
        return names[node]
    if node.op == "const":
        return repr(node.arg)
    if node.op == "index":
        return f"({node.arg})"
    if node.op == "acc":
        return str(node.arg)
    args = [node_text(operand, names) for operand in node.src]
    if node.op == "load":
        return _place(node.arg, args)
    known = SCALAR_OPS.get(node.op)
    if known is not None and known.sign and len(args) == 2:
        return f"({args[0]} {known.sign} {args[1]})"
    if node.op == "cast":
        return f"{dtype_text(node.dtype)}({args[0]})"
    if node.op.startswith("philox"):
        args.extend(str(part) for part in node.arg)
    return f"{node.op}({', '.join(args)})"


def _place(place: Access | Element, args: list[str]) -> str:
    """`args`: texts of the operands, which are used up."""
    mask = f" if {args.pop()}" if place.masked else ""
    operands = "; " + ", ".join(f"${k} = {arg}" for k, arg in enumerate(args)) if args else ""
    index = str(place.index) if isinstance(place, Access) else _list(place.coords)
    return f"{place.buffer}[{index}{operands}{mask}]"


def dtype_text(dtype: torch.dtype) -> str:
    """f32, bf16, i64, u8 …"""
    return str(dtype).removeprefix("torch.").replace("float", "f").replace("uint", "u").replace("int", "i")


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


# ---- kernels --------------------------------------------------------------------------------------------------------


def kernel_text(kernel: Kernel) -> str:
    """The whole kernel."""
    return "\n".join(text for _, text in kernel_lines(kernel))


def kernel_lines(kernel: Kernel) -> list[Line]:
    """The text, each line with its statement (None for the head). Values used more than once get a name, t0, t1 …"""
    params = ", ".join(f"{p.role} {p.name}: {dtype_text(p.dtype)}[{p.numel}]" for p in kernel.params)
    sizes = "; " + ", ".join(kernel.sizes) if kernel.sizes else ""
    lines: list[Line] = [(None, f"kernel {kernel.name}({params}{sizes})")]
    if kernel.origins:
        lines.append((None, "  # " + ", ".join(kernel.origins)))
    if kernel.grain is not None:
        lines.append((None, f"  grain {kernel.grain}"))
    if kernel.team > 1:
        lines.append((None, f"  teams of {kernel.team}"))
    if kernel.batch > 1:
        lines.append((None, f"  batches of {kernel.batch}"))
    lines.extend((None, f"  local {local.name}: {dtype_text(local.dtype)}[{local.numel}]") for local in kernel.locals)
    lines.extend((None, f"  flag {flag.name}: {flag.message!r}") for flag in kernel.flags)
    _KernelPrinter(kernel, lines).body(kernel.body, "  ")
    return lines


def axis_text(axis: Axis) -> str:
    """``parallel i < 8 on threads``"""
    return f"{axis.kind} {axis.name} < {axis.extent}{f' on {axis.bound}' if axis.bound else ''}"


class _KernelPrinter:
    def __init__(self, kernel: Kernel, lines: list[Line]) -> None:
        self.lines = lines
        self.names: dict[Node, str] = {}
        self.signs: dict[str, str] = {}  # of accumulators
        self.count = 0
        roots = list(roots_in(kernel.body))
        self.uses = Counter(roots)
        for node in nodes_below(roots):
            self.uses.update(node.src)

    def body(self, statements: Iterable[Stmt], indent: str) -> None:
        """Statements of one block; names given to values there end with the block."""
        outer = dict(self.names)
        for statement in statements:
            if isinstance(statement, Loop):
                axis = statement.axis
                self.lines.append((statement, f"{indent}{axis_text(axis)}:"))
                self.body(statement.body, indent + "  ")
            else:
                self.lines.append((statement, indent + self.statement(statement, indent)))
        self.names = outer

    def statement(self, statement: Init | Update | Store, indent: str) -> str:
        if isinstance(statement, Init):
            joining = SCALAR_OPS.get(JOINED_BY.get(statement.op, ""))
            self.signs[statement.name] = (joining and joining.sign) or statement.op
            return f"{statement.name}: {statement.op} {dtype_text(statement.dtype)}"
        if isinstance(statement, Update):
            value, *position = [self.value(node, statement, indent) for node in roots_of(statement)]
            return f"{statement.name} {self.signs.get(statement.name, '?')}= {' @ '.join([value, *position])}"
        place = _place(statement.access, [self.value(node, statement, indent) for node in statement.operands])
        op = _SIGNS[statement.mode]
        return f"{place} {op} {self.value(statement.value, statement, indent)}"

    def value(self, node: Node, statement: Stmt, indent: str) -> str:
        """The text of an operand; shared values below it are named on lines of their own first."""
        for inner in nodes_below((node,), self.names.__contains__):
            if inner is not node and self.uses[inner] > 1 and inner.src:
                name = f"t{self.count}"
                self.lines.append((statement, f"{indent}{name} = {node_text(inner, self.names)}"))
                self.names[inner] = name
                self.count += 1
        return node_text(node, self.names)


# ---- programs -------------------------------------------------------------------------------------------------------


def program_text(program: Program) -> str:
    """One line a definition: ``b2_sum: f32[4] = sum(b1_exp[i0, r1] for r1 < 8)``."""
    lines = [f"sizes {_list(program.size_vars)}"] if program.size_vars else []
    lines += [f"input {given.name}: {_type(given.dtype, given.shape, given.layout)}" for given in program.inputs]
    lines += map(definition_text, program.definitions)
    return "\n".join([*lines, f"return {', '.join(map(_argument, program.results))}"])


def definition_text(definition: Definition) -> str:
    """One definition as a line of text."""
    if isinstance(definition, WriteBack):
        return f"{definition.target} <- {_argument(definition.source)}"
    if isinstance(definition, Extern):
        results = ", ".join(f"{name}: {_type(*parts)}" for name, parts in described(definition).items())
        args = [
            *map(_argument, definition.args),
            *(f"{key}={_argument(arg)}" for key, arg in definition.kwargs.items()),
        ]
        return f"{results or '_'} = call {definition.op}({', '.join(args)})"
    value = node_text(definition.value)
    if isinstance(definition, Scatter):
        place = _place(Element("", definition.coords), [node_text(operand) for operand in definition.operands])
        points = _ranges(zip(definition.axes, definition.extents))
        value = f"{definition.base} with {place} {_SIGNS[definition.mode]} {value} for {points}"
        return f"{definition.name}: {_type(definition.dtype, definition.shape, None)} = {value}"
    if definition.reduce_op is not None:
        place = "" if definition.position is None else f" at {node_text(definition.position)}"
        runs = "" if definition.run is None else f" in runs of {definition.run}"
        where = f"up to {definition.scan}{runs}" if definition.scan else f"for {_ranges(definition.reduce_axes)}{runs}"
        value = f"{definition.reduce_op}({value}{place} {where})"
    kind = _type(definition.dtype, definition.shape, definition.layout)
    return f"{definition.name}[{_list(definition.axes)}]: {kind} = {value}"


def _ranges(axes: Iterable[tuple[str, Expr]]) -> str:
    return ", ".join(f"{name} < {extent}" for name, extent in axes)


def _type(dtype: torch.dtype, shape: Sequence[Expr], layout: Layout | None) -> str:
    return f"{dtype_text(dtype)}[{_list(shape)}]" + (f" @({_list(layout.stride)})" if layout is not None else "")


def _argument(arg: object) -> str:
    if isinstance(arg, View):
        if arg.stride is None:
            return arg.buffer
        return f"{arg.buffer}.view(({_list(arg.shape)}), ({_list(arg.stride)}), {arg.offset})"
    if isinstance(arg, Program):
        return "{\n" + textwrap.indent(program_text(arg), "  ") + "\n}"
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(map(_argument, arg))}]"
    return repr(arg)
