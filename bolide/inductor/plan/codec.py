"""Plans, kernels and programs as bytes, and back.

The bytes are a heading (format, checksum), the *names* in order of first appearance, the *notes* (texts for people) in
order, and the body: tagged values, in which a name is a number and a note is nothing. So the hash of the body is a hash
of what is done, whatever things are called. No pickle: only the classes of `RECORDS` come out.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TypeVar

import torch

from bolide.inductor.ir.definitions import Program
from bolide.inductor.ir.loops import Kernel, Node
from bolide.inductor.ir.program_check import check_program
from bolide.inductor.ir.verify import verify as verify_kernel
from bolide.inductor.ir.walks import nodes_below
from bolide.inductor.plan.plan import CannotLeave, DamagedBytes, Plan
from bolide.inductor.plan.records import NAME, NOTE, RECORDS, conforms, layout_text, role_of
from bolide.inductor.plan.schemas import operator_of, overload_of
from bolide.inductor.plan.steps import Call, Foreign, Operator, Value
from bolide.inductor.plan.verify import verify
from bolide.symbolic import Expr
from bolide.symbolic.expr import pack_atom, rebuild
from bolide.tracing.graph import Handle

__all__ = ["CannotLeave", "DamagedBytes", "decode", "digest", "encode"]

T = TypeVar("T")
HEADING = b"bolide\0" + hashlib.sha256(layout_text().encode()).digest()[:8]
"""Changes with the classes that are written."""

(NONE, FALSE, TRUE, INT, FLOAT, COMPLEX, TEXT, NAMED, NOTED, TUPLE, LIST, DICT, CONSTANT, DEVICE, OPERATOR) = range(15)
(NEW_EXPR, OLD_EXPR, NODE, RECORD) = range(15, 19)
_CLASSES = list(RECORDS)
_NUMBERS = {cls: number for number, cls in enumerate(_CLASSES)}
_FIELDS = {cls: [(field, role_of(spec)) for field, spec in fields.items()] for cls, fields in RECORDS.items()}
_CONSTANTS = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
}


def encode(value: object) -> bytes:
    """A plan, kernel or program as bytes. Raises CannotLeave where it needs objects of this process."""
    writer = _Writer()
    writer.value(value)
    head = _Writer()
    head.value(tuple(writer.names))
    head.value(tuple(writer.notes))
    content = bytes(head.body + writer.body)
    return HEADING + hashlib.sha256(content).digest() + content


def decode(data: bytes, cls: type[T]) -> T:
    """What `encode` was given, of this class. Raises DamagedBytes."""
    start = len(HEADING) + 32
    if data[: len(HEADING)] != HEADING:
        raise DamagedBytes("these bytes are of another kind, or of another version")
    content = data[start:]
    if hashlib.sha256(content).digest() != data[len(HEADING) : start]:
        raise DamagedBytes("the checksum does not fit")
    reader = _Reader(content)
    try:
        reader.names = reader.texts()
        reader.notes = reader.texts()[::-1]
        found = reader.value()
        if reader.at != len(content) or not isinstance(found, cls):
            raise DamagedBytes(f"these bytes are no {cls.__name__}, or more than that")
        _verify(found)
    except DamagedBytes:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, struct.error) as fault:
        raise DamagedBytes(f"the content makes no sense: {type(fault).__name__}: {fault}") from None
    return found


def _verify(found: object) -> None:
    if isinstance(found, Plan):
        verify(found)
    for kernel in found.kernels if isinstance(found, Plan) else (found,):
        if isinstance(kernel, Kernel):
            verify_kernel(kernel, {})  # what the program assumes of its sizes is not known here
    if isinstance(found, Program):
        check_program(found)


def digest(value: object) -> str:
    """A hash of a plan, kernel or program: of what is done, not of names and notes; the same in every process.

    Raises CannotLeave as `encode` does: objects of a process have no lasting identity."""
    writer = _Writer()
    writer.value(value)
    return hashlib.sha256(HEADING + writer.body).hexdigest()


class _Writer:
    """Appends values to `body`."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.names: dict[str, int] = {}
        self.notes: list[str] = []
        self.exprs: dict[Expr, int] = {}
        self.nodes: dict[Node, int] = {}

    def tag(self, tag: int) -> None:
        self.body.append(tag)

    def number(self, number: int) -> None:
        """An integer of any size: seven bits a byte, the sign in the lowest one."""
        left = number << 1 if number >= 0 else (-number << 1) - 1
        while left > 127:
            self.body.append(left & 127 | 128)
            left >>= 7
        self.body.append(left)

    def text(self, text: str) -> None:
        data = text.encode()
        self.number(len(data))
        self.body += data

    def value(self, value: object, role: str = "") -> None:
        """A value; `role`: what the texts in it are."""
        if type(value) in _FIELDS:
            self._record(value)
        elif value is None or isinstance(value, bool):
            self.tag(NONE if value is None else TRUE if value else FALSE)
        elif isinstance(value, Handle):
            raise CannotLeave("the number of a table of this process")
        elif isinstance(value, (int, float, complex)):
            self._plain(value)
        elif isinstance(value, str):
            self._text(value, role)
        elif isinstance(value, (tuple, list)):
            self.tag(TUPLE if isinstance(value, tuple) else LIST)
            self.number(len(value))
            for item in value:
                self.value(item, role)
        elif isinstance(value, dict):
            self.tag(DICT)
            self.value(tuple(value), role)
            self.value(tuple(value.values()))
        elif isinstance(value, Expr):
            self._expr(value)
        elif isinstance(value, Node):
            self._node(value)
        else:
            self._object(value)

    def _plain(self, value: complex) -> None:
        if isinstance(value, int):
            self.tag(INT)
            self.number(value)
        elif isinstance(value, float):
            self.tag(FLOAT)
            self.body += struct.pack("<d", value)
        else:
            self.tag(COMPLEX)
            self.body += struct.pack("<dd", value.real, value.imag)

    def _text(self, value: str, role: str) -> None:
        if role == NOTE:
            self.tag(NOTED)
            self.notes.append(value)
        elif role == NAME and not value.startswith("$"):  # those say which operand they are
            self.tag(NAMED)
            self.number(self.names.setdefault(value, len(self.names)))
        else:
            self.tag(TEXT)
            self.text(value)

    def _expr(self, expr: Expr) -> None:
        known = self.exprs.get(expr)
        if known is not None:
            self.tag(OLD_EXPR)
            self.number(known)
            return
        self.tag(NEW_EXPR)
        self.number(expr.offset)
        self.number(len(expr.terms))
        for mono, coefficient in expr.terms:
            self.number(coefficient)
            self.number(len(mono))
            for atom in mono:
                kind, *parts = pack_atom(atom)
                self.value(kind)
                for part in parts:
                    self.value(part, NAME)
        self.exprs[expr] = len(self.exprs)

    def _node(self, root: Node) -> None:
        """The nodes below that are new, operands first, then which one is meant."""
        new = list(nodes_below((root,), self.nodes.__contains__))
        self.tag(NODE)
        self.number(len(new))
        for node in new:
            self.text(node.op)
            self.value(node.dtype)
            self.number(len(node.src))
            for operand in node.src:
                self.number(self.nodes[operand])
            self.value(node.arg, NAME if node.op == "acc" else "")
            self.nodes[node] = len(self.nodes)
        self.number(self.nodes[root])

    def _object(self, value: object) -> None:
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            self.tag(CONSTANT)
            self.text(str(value))
        elif isinstance(value, torch.device):
            self.tag(DEVICE)
            self.text(str(value))
        elif isinstance(value, torch._ops.OpOverload):
            self.tag(OPERATOR)
            operator = operator_of(value)
            self.text(operator.name)
            self.text(operator.overload)
        else:
            raise CannotLeave(f"{type(value).__name__} {value!r} is an object of this process")

    def _record(self, value: object) -> None:
        if isinstance(value, Call) and _has_foreign(value.arguments):
            where = f", at {value.where}" if value.where else ""
            raise CannotLeave(f"{value.operator} is given an object of this process{where}")
        self.tag(RECORD)
        self.number(_NUMBERS[type(value)])
        for field, role in _FIELDS[type(value)]:
            self.value(getattr(value, field), role)


def _has_foreign(value: Value) -> bool:
    return any(map(_has_foreign, value)) if isinstance(value, tuple) else isinstance(value, Foreign)


class _Reader:
    """Reads values from `data`, from `at` on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.names: list[str] = []
        self.notes: list[str] = []  # the next one last
        self.exprs: list[Expr] = []
        self.nodes: list[Node] = []

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise IndexError("the end is reached")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return -((number + 1) >> 1) if number & 1 else number >> 1

    def count(self) -> int:
        """How many things follow: each takes a byte or more."""
        number = self.number()
        if not 0 <= number <= len(self.data) - self.at:
            raise IndexError("more is announced than there is")
        return number

    def text(self) -> str:
        return self.take(self.count()).decode()

    def texts(self) -> list[str]:
        found = self.value()
        if not isinstance(found, tuple) or not all(isinstance(item, str) for item in found):
            raise TypeError("these are no texts")
        return list(found)

    def value(self) -> object:
        self.at += 1
        return _READ[self.data[self.at - 1]](self)

    def known(self, table: list[T]) -> T:
        """The thing of that number in a table."""
        number = self.number()
        if number < 0:
            raise IndexError("there is no such thing")
        return table[number]

    def items(self) -> list[object]:
        return [self.value() for _ in range(self.count())]

    def dict(self) -> dict[object, object]:
        keys, values = self.value(), self.value()
        if not isinstance(keys, tuple) or not isinstance(values, tuple) or len(keys) != len(values):
            raise TypeError("keys and values are tuples")
        return dict(zip(keys, values))

    def expr(self) -> Expr:
        offset = self.number()
        terms = []
        for _ in range(self.count()):
            coefficient = self.number()
            terms.append((tuple([self.atom() for _ in range(self.count())]), coefficient))
        self.exprs.append(rebuild(terms, offset))
        return self.exprs[-1]

    def atom(self) -> tuple[object, ...]:
        kind = self.value()
        parts = [self.value() for _ in range(3 if kind == "var" else 2)]
        right = _is_variable(parts) if kind == "var" else all(isinstance(part, Expr) for part in parts)
        if kind not in ("var", "//", "%", "min", "max") or not right:
            raise TypeError("this is no part of an expression")
        return (kind, *parts)

    def node(self) -> Node:
        for _ in range(self.count()):
            op, dtype = self.text(), self.value()
            src = tuple([self.known(self.nodes) for _ in range(self.count())])
            arg = self.value()
            if not isinstance(dtype, torch.dtype):
                raise TypeError("a node has a dtype")
            self.nodes.append(Node.make(op, dtype, src, arg))
        return self.known(self.nodes)

    def record(self) -> object:
        cls = self.known(_CLASSES)
        values = {}
        for field, spec in RECORDS[cls].items():
            values[field] = self.value()
            if not conforms(values[field], spec):
                raise TypeError(f"{field} of {cls.__name__} is {values[field]!r}")
        return cls(**values)


def _is_variable(parts: list[object]) -> bool:
    name, lo, hi = parts
    return isinstance(name, str) and isinstance(lo, int | None) and isinstance(hi, int | Expr | None)


_READ = {
    NONE: lambda reader: None,
    FALSE: lambda reader: False,
    TRUE: lambda reader: True,
    INT: _Reader.number,
    FLOAT: lambda reader: struct.unpack("<d", reader.take(8))[0],
    COMPLEX: lambda reader: complex(*struct.unpack("<dd", reader.take(16))),
    TEXT: _Reader.text,
    NAMED: lambda reader: reader.known(reader.names),
    NOTED: lambda reader: reader.notes.pop(),
    TUPLE: lambda reader: tuple(reader.items()),
    LIST: _Reader.items,
    DICT: _Reader.dict,
    CONSTANT: lambda reader: _CONSTANTS[reader.text()],
    DEVICE: lambda reader: torch.device(reader.text()),
    OPERATOR: lambda reader: overload_of(Operator(reader.text(), reader.text())),
    NEW_EXPR: _Reader.expr,
    OLD_EXPR: lambda reader: reader.known(reader.exprs),
    NODE: _Reader.node,
    RECORD: _Reader.record,
}
