"""A small writer of LLVM IR text: typed values with operators, blocks, and structured phis.

`Value` overloads the arithmetic operators (on both numbers and values), so that formulas in `math32` read as formulas.
Numbers become constants of the other operand's type. Nothing here knows of kernels.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Union

from bolide.inductor.machine import Target

Operand = Union["Value", int, float]

#: Bits of each scalar type.
BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "i128": 128,
    "half": 16,
    "bfloat": 16,
    "float": 32,
    "double": 64,
    "ptr": 64,
}
FLOATS = frozenset(("half", "bfloat", "float", "double"))
_ZERO = "0x" + "0" * 16


def llvm_type(scalar: str, lanes: int) -> str:
    """The LLVM name of a scalar (lanes = 1) or vector type."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def number_text(value: float, scalar: str) -> str:
    """The LLVM spelling of a number; a float is spelled as the double that it equals. A half must be within range."""
    if scalar in ("float", "double"):
        double = to_float32(float(value)) if scalar == "float" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', double))[0]:016X}"
    if scalar == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', float(value)))[0]:04X}"
    bits = BITS[scalar]
    wrapped = int(value) & ((1 << bits) - 1)
    if bits == 1:
        return "true" if wrapped else "false"
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def to_float32(value: float) -> float:
    """The nearest float32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:  # struct refuses finite numbers beyond float32's range; rounding makes them infinite
        return float("inf") if value > 0 else float("-inf")


def mangle(scalar: str, lanes: int) -> str:
    """The suffix LLVM gives overloaded intrinsics for a type."""
    name = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}.get(scalar, scalar)
    return name if lanes == 1 else f"v{lanes}{name}"


def _operator(integer: str, floating: str, swap: bool = False) -> Callable[[Value, Operand], Value]:
    """A method of `Value` that writes an instruction; `swap`: the value is its second operand."""

    def write(value: Value, other: Operand) -> Value:
        operand = value.b.like(other, value)
        left, right = (operand, value) if swap else (value, operand)
        return value.b.binary(floating if value.scalar in FLOATS else integer, left, right)

    return write


class Value:
    """An SSA value or a constant: `text` is how operands spell it; its type is `lanes` × `scalar`."""

    __slots__ = ("b", "lanes", "scalar", "text")

    def __init__(self, b: Builder, text: str, scalar: str, lanes: int) -> None:
        self.b, self.text, self.scalar, self.lanes = b, text, scalar, lanes

    @property
    def type(self) -> str:
        return llvm_type(self.scalar, self.lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def number(self) -> int | None:
        """Which integer that is not negative it is, if it is one that is known."""
        return int(self.text) if self.text.isdigit() else None

    __add__ = __radd__ = _operator("add", "fadd")
    __sub__ = _operator("sub", "fsub")
    __rsub__ = _operator("sub", "fsub", swap=True)
    __mul__ = __rmul__ = _operator("mul", "fmul")
    __truediv__ = _operator("fdiv", "fdiv")
    __rtruediv__ = _operator("fdiv", "fdiv", swap=True)
    __and__ = _operator("and", "and")
    __or__ = _operator("or", "or")
    __xor__ = _operator("xor", "xor")
    __lshift__ = _operator("shl", "shl")

    def __neg__(self) -> Value:
        if self.scalar in FLOATS:
            return self.b.emit(f"fneg {self}", self.scalar, self.lanes)
        return self.b.like(0, self) - self


class Builder:
    """Writes one function for `target`. `declarations` (shared by the functions of a module) collects what it calls."""

    def __init__(self, declarations: dict[str, str], target: Target) -> None:
        self.lines: list[str] = []
        self.declarations, self.target = declarations, target
        self.block = "entry"
        self._count = 0
        self._held: dict[str, str] = {}  # the names of constants that registers hold

    # ---- values ----

    def emit(self, instruction: str, scalar: str, lanes: int = 1) -> Value:
        """Append ``%new = instruction`` and return the new value."""
        name = "%" + self.new_label("v")
        self.lines.append(f"  {name} = {instruction}")
        return Value(self, name, scalar, lanes)

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def const(self, value: float, scalar: str, lanes: int = 1) -> Value:
        text = number_text(value, scalar)
        return Value(self, text, scalar, 1) if lanes == 1 else self._everywhere(scalar, text, lanes)

    def _everywhere(self, scalar: str, text: str, lanes: int) -> Value:
        """A constant in all lanes. LLVM's fast level would load a float from memory at each use, in each iteration of a
        loop, so a CPU's registers hold it from the function's start on, as far as there are some (`body`)."""
        constant = Value(self, f"splat ({scalar} {text})", scalar, lanes)
        if self.target.triple or scalar not in ("float", "double") or text == _ZERO:
            return constant
        if str(constant) not in self._held:
            self._held[str(constant)] = "%" + self.new_label("c")
        return Value(self, self._held[str(constant)], scalar, lanes)

    def body(self) -> list[str]:
        """The function's lines, from its first block on, which begins with the constants that registers hold."""
        return ["entry:", *(f"  {name} = freeze {constant}" for constant, name in self._held.items()), *self.lines]

    def hidden(self, value: Value) -> Value:
        """The value, of which LLVM knows nothing. (Of a masked store of 16 bits whose mask it knows to be on in one
        lane only, LLVM 22 may make a store of 32 bits.)"""
        return self.emit(f'call {value.type} asm "", "=r,0"({value})', value.scalar, value.lanes)

    def like(self, value: Operand, model: Value) -> Value:
        """`value` itself, or the number as a constant of the model's type."""
        return value if isinstance(value, Value) else self.const(value, model.scalar, model.lanes)

    def binary(self, op: str, left: Value, right: Value) -> Value:
        return self.emit(f"{op} {left}, {right.text}", left.scalar, left.lanes)

    def compare(self, predicate: str, left: Value, right: Operand) -> Value:
        """`predicate` with its kind: ``"fcmp olt"``, ``"icmp eq"`` …"""
        return self.emit(f"{predicate} {left}, {self.like(right, left).text}", "i1", left.lanes)

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        model = yes if isinstance(yes, Value) else no
        assert isinstance(model, Value)
        yes, no = self.like(yes, model), self.like(no, model)
        return self.emit(f"select {condition}, {yes}, {no}", model.scalar, model.lanes)

    def convert(self, op: str, value: Value, scalar: str) -> Value:
        """`op` is an LLVM conversion (``sext``, ``fptosi``, ``bitcast`` …)."""
        return self.emit(f"{op} {value} to {llvm_type(scalar, value.lanes)}", scalar, value.lanes)

    def bitcast(self, value: Value, scalar: str) -> Value:
        return self.convert("bitcast", value, scalar)

    def call(self, name: str, args: tuple[Value, ...], scalar: str, lanes: int = 1) -> Value:
        """Call an external function or intrinsic, declaring it in the module."""
        self.declare(name, args, llvm_type(scalar, lanes))
        return self.emit(
            f"call {llvm_type(scalar, lanes)} @{name}({', '.join(str(arg) for arg in args)})", scalar, lanes
        )

    def call_void(self, name: str, args: tuple[Value, ...]) -> None:
        self.declare(name, args, "void")
        self.do(f"call void @{name}({', '.join(str(arg) for arg in args)})")

    def declare(self, name: str, args: tuple[Value, ...], result: str) -> None:
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} @{name}({', '.join(arg.type for arg in args)})"

    def text(self, value: str) -> Value:
        """The address of the characters, which end with a zero, in the memory of a GPU."""
        symbol, code = f"text_{zlib.crc32(value.encode()):08x}", value.encode() + b"\0"
        kind, characters = f"[{len(code)} x i8]", "".join(f"\\{byte:02X}" for byte in code)
        self.declarations[symbol] = f'@{symbol} = internal addrspace(1) constant {kind} c"{characters}"'
        return Value(self, f"addrspacecast (ptr addrspace(1) @{symbol} to ptr)", "ptr", 1)

    def intrinsic(self, name: str, *args: Value) -> Value:
        """An LLVM intrinsic overloaded on the type of its first argument, which is also the type of its result."""
        first = args[0]
        return self.call(f"llvm.{name}.{mangle(first.scalar, first.lanes)}", args, first.scalar, first.lanes)

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        return self.intrinsic("fma", a, self.like(b, a), self.like(c, a))

    # ---- lanes ----

    def splat(self, value: Value, lanes: int) -> Value:
        if value.lanes == lanes:
            return value
        if not value.text.startswith("%"):  # constants have their own spelling
            return self._everywhere(value.scalar, value.text, lanes)
        kind = llvm_type(value.scalar, lanes)
        first = self.emit(f"insertelement {kind} poison, {value}, i64 0", value.scalar, lanes)
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.emit(f"shufflevector {first}, {kind} poison, {zeros}", value.scalar, lanes)

    def shuffle(self, value: Value, order: list[int], other: str = "poison") -> Value:
        """The lanes of `value`, followed by those of `other`, in an order."""
        mask = ", ".join(f"i32 {index}" for index in order)
        operands = f"{value}, {value.type} {other}, <{len(order)} x i32> <{mask}>"
        return self.emit(f"shufflevector {operands}", value.scalar, len(order))

    def apart(self, value: Value, stride: int) -> Value:
        """The lanes of `value` `stride` lanes apart, with zeros in between, and behind them up to a power of two: LLVM
        has no masked stores for other numbers of lanes, and makes one of each lane."""
        used = value.lanes * stride
        order = [value.lanes if j % stride or j >= used else j // stride for j in range(1 << (used - 1).bit_length())]
        return self.shuffle(value, order, "zeroinitializer")

    def concat(self, left: Value, right: Value) -> Value:
        return self.shuffle(left, list(range(2 * left.lanes)), right.text)

    def extract(self, value: Value, lane: int) -> Value:
        if value.lanes == 1:
            return value
        return self.emit(f"extractelement {value}, i64 {lane}", value.scalar)

    def insert(self, vector: Value, element: Value, lane: int) -> Value:
        return self.emit(f"insertelement {vector}, {element}, i64 {lane}", vector.scalar, vector.lanes)

    def lane_numbers(self, scalar: str, lanes: int) -> Value:
        """<0, 1, 2, …>"""
        if lanes == 1:
            return self.const(0, scalar)
        return Value(self, "<" + ", ".join(f"{scalar} {lane}" for lane in range(lanes)) + ">", scalar, lanes)

    def in_chunks(self, function: Callable[..., Value], width: int, args: tuple[Value, ...]) -> Value:
        """`function` of values with any number of lanes, where it takes `width` lanes only: wider values go in pieces,
        narrower ones are filled up with copies of their first lane."""
        lanes = args[0].lanes
        if lanes == width:
            return function(*args)
        if lanes < width:
            order = [lane if lane < lanes else 0 for lane in range(width)]
            result = function(*(self.splat(arg, width) if lanes == 1 else self.shuffle(arg, order) for arg in args))
            return self.extract(result, 0) if lanes == 1 else self.shuffle(result, list(range(lanes)))
        low, high = list(range(lanes // 2)), list(range(lanes // 2, lanes))
        left = self.in_chunks(function, width, tuple(self.shuffle(arg, low) for arg in args))
        return self.concat(left, self.in_chunks(function, width, tuple(self.shuffle(arg, high) for arg in args)))

    # ---- blocks ----

    def label(self, name: str) -> None:
        self.block = name
        self.lines.append(f"{name}:")

    def new_label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def jump(self, target: str) -> None:
        self.do(f"br label %{target}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.do(f"br {condition}, label %{yes}, label %{no}")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """What is written inside is run under a condition."""
        then, after = self.new_label("then"), self.new_label("after")
        self.branch(condition, then, after)
        self.label(then)
        yield
        self.jump(after)
        self.label(after)

    def phi(self, scalar: str, lanes: int, start: Value, start_block: str) -> tuple[Value, int]:
        """A phi whose value from the back edge is not known yet: returns it and a ticket for `close_phi`."""
        name = "%" + self.new_label("p")
        kind = llvm_type(scalar, lanes)
        self.lines.append(f"  {name} = phi {kind} [ {start.text}, %{start_block} ], [ ")
        return Value(self, name, scalar, lanes), len(self.lines) - 1

    def close_phi(self, ticket: int, value: Value, block: str) -> None:
        self.lines[ticket] += f"{value.text}, %{block} ]"

    def merge(self, left: Value, left_block: str, right: Value, right_block: str) -> Value:
        """The phi at the join of two blocks."""
        return self.emit(
            f"phi {left.type} [ {left.text}, %{left_block} ], [ {right.text}, %{right_block} ]", left.scalar, left.lanes
        )
