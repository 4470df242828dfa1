"""Loop IR as text for people, golden files and error messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from bolide.inductor.ir.loops import Access, Axis, Init, Kernel, Loop, Node, Stmt, Store, Update

SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.bool: "bool",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
JOIN = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&=", "xor": "^="}

#: A line of text and the statement that it stands for.
Line = tuple[Stmt | None, str]


def kernel_text(kernel: Kernel) -> str:
    """The whole kernel."""
    return "\n".join(text for _, text in kernel_lines(kernel))


def kernel_lines(kernel: Kernel) -> list[Line]:
    """The text, each line with its statement (None for the head). Values used more than once get a name, t0, t1 …"""
    params = ", ".join(f"{p.role} {p.name}: {_short(p.dtype)}[{p.numel}]" for p in kernel.params)
    sizes = "; " + ", ".join(kernel.sizes) if kernel.sizes else ""
    lines: list[Line] = [(None, f"kernel {kernel.name}({params}{sizes})")]
    if kernel.origins:
        lines.append((None, "  # " + ", ".join(kernel.origins)))
    lines.extend((None, f"  local {local.name}: {_short(local.dtype)}[{local.numel}]") for local in kernel.locals)
    _Printer(kernel, lines).body(kernel.body, "  ")
    return lines


def node_text(node: Node) -> str:
    """One scalar expression, written out in full."""
    return _Printer(None, []).inline(node)


def _short(dtype: torch.dtype) -> str:
    return SHORT.get(dtype, str(dtype).removeprefix("torch."))


class _Printer:
    def __init__(self, kernel: Kernel | None, lines: list[Line]) -> None:
        self.lines = lines
        self.uses = _uses(kernel.body) if kernel is not None else Counter()
        self.names: dict[Node, str] = {}
        self.ops: dict[str, str] = {}
        self.count = 0

    def body(self, statements: Iterable[Stmt], indent: str) -> None:
        """Statements of one block; names given to values there end with the block."""
        outer = dict(self.names)
        for statement in statements:
            if isinstance(statement, Loop):
                axis: Axis = statement.axis
                self.lines.append((statement, f"{indent}{axis.kind} {axis.name} < {axis.extent}:"))
                self.body(statement.body, indent + "  ")
                continue
            if isinstance(statement, Init):
                self.ops[statement.name] = statement.op
                text = f"{statement.name}: {statement.op} {_short(statement.dtype)}"
            elif isinstance(statement, Update):
                text = self._update(statement, indent)
            else:
                text = self._store(statement, indent)
            self.lines.append((statement, indent + text))
        self.names = outer

    def _update(self, statement: Update, indent: str) -> str:
        value = self.value(statement.value, statement, indent)
        position = f" @ {self.value(statement.position, statement, indent)}" if statement.position else ""
        op = self.ops.get(statement.name, "?")
        return f"{statement.name} {JOIN.get(op, f'{op}=')} {value}{position}"

    def _store(self, statement: Store, indent: str) -> str:
        where = self.access(statement.access, statement.src, statement, indent)
        op = {"set": "=", "add": "+=", "atomic_add": "atomic +="}[statement.mode]
        return f"{where} {op} {self.value(statement.value, statement, indent)}"

    def value(self, node: Node, statement: Stmt, indent: str) -> str:
        """The text of an operand; shared values below it are named on lines of their own first."""
        stack, order = [(node, False)], []
        seen: set[Node] = set()
        while stack:
            inner, ready = stack.pop()
            if ready:
                order.append(inner)
            elif inner not in seen and inner not in self.names:
                seen.add(inner)
                stack.append((inner, True))
                stack.extend((operand, False) for operand in reversed(inner.src))
        for inner in order:
            if inner is not node and self.uses[inner] > 1 and inner.src:
                text = f"{indent}t{self.count} = {self.inline(inner)}"
                self.lines.append((statement, text))
                self.names[inner] = f"t{self.count}"
                self.count += 1
        return self.inline(node)

    def inline(self, node: Node) -> str:
        """An expression; named values as their names."""
        if node in self.names:
            return self.names[node]
        if node.op == "const":
            return repr(node.arg)
        if node.op == "index":
            return f"({node.arg})"
        if node.op == "acc":
            return str(node.arg)
        args = [self.inline(operand) for operand in node.src]
        if node.op == "load":
            return _access_text(node.arg, args)
        if node.op in INFIX and len(args) == 2:
            return f"({args[0]} {INFIX[node.op]} {args[1]})"
        if node.op in ("cast", "bitcast"):
            return f"{_short(node.dtype)}{'.bits' if node.op == 'bitcast' else ''}({args[0]})"
        if node.op.startswith("philox"):
            args.extend(str(part) for part in node.arg)
        return f"{node.op}({', '.join(args)})"

    def access(self, access: Access, src: tuple[Node, ...], statement: Stmt, indent: str) -> str:
        return _access_text(access, [self.value(node, statement, indent) for node in src])


def _access_text(access: Access, args: list[str]) -> str:
    mask = f" if {args.pop()}" if access.masked else ""
    operands = "; " + ", ".join(f"${k} = {arg}" for k, arg in enumerate(args)) if args else ""
    return f"{access.buffer}[{access.index}{operands}{mask}]"


def _uses(statements: Iterable[Stmt]) -> Counter[Node]:
    """How often each node is used by others and by statements."""
    uses: Counter[Node] = Counter()
    stack: list[Node] = []

    def visit(body: Iterable[Stmt]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                visit(statement.body)
            elif isinstance(statement, Store):
                stack.extend((statement.value, *statement.src))
            elif isinstance(statement, Update):
                stack.extend((statement.value, *([statement.position] if statement.position else [])))

    visit(statements)
    while stack:
        node = stack.pop()
        uses[node] += 1
        if uses[node] == 1:
            stack.extend(node.src)
    return uses
