"""CPython bytecode in one uniform form.

`decode(code)` turns a code object of CPython 3.11 or 3.12 into parallel lists of operation names, resolved arguments
and lines. What the
versions spell differently is normalised here, so that handlers see one form:

- jumps are absolute indices into the instruction list, forward and backward forms have one name (`JUMP`,
  `POP_JUMP_IF_TRUE`, …);
- names, constants, comparison and arithmetic operators are resolved to the objects themselves;
- inline caches, `EXTENDED_ARG`, `PRECALL`, `NOP` and `RESUME` are gone (jumps to them go to what follows);
- the exception table maps instruction indices.

Decoding is cached per code object.
"""

from __future__ import annotations

import dis
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from bolide.tracing import UserFrame

VERSION = sys.version_info[:2]

_CACHES: list[int] = getattr(dis, "_inline_cache_entries", [0] * 256) if VERSION < (3, 13) else [0] * 256
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL", "NOP", "RESUME"})
_BINARY_OPS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (operator.add, "+"),
    (operator.and_, "&"),
    (operator.floordiv, "//"),
    (operator.lshift, "<<"),
    (operator.matmul, "@"),
    (operator.mul, "*"),
    (operator.mod, "%"),
    (operator.or_, "|"),
    (operator.pow, "**"),
    (operator.rshift, ">>"),
    (operator.sub, "-"),
    (operator.truediv, "/"),
    (operator.xor, "^"),
    (operator.iadd, "+="),
    (operator.iand, "&="),
    (operator.ifloordiv, "//="),
    (operator.ilshift, "<<="),
    (operator.imatmul, "@="),
    (operator.imul, "*="),
    (operator.imod, "%="),
    (operator.ior, "|="),
    (operator.ipow, "**="),
    (operator.irshift, ">>="),
    (operator.isub, "-="),
    (operator.itruediv, "/="),
    (operator.ixor, "^="),
]
BINARY_SYMBOLS: dict[Callable[[Any, Any], Any], str] = dict(_BINARY_OPS)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
# `x and y` of 3.11, written as 3.12 does: COPY, POP_JUMP_IF, POP_TOP.
_OR_POP = frozenset({"JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP"})
_JUMPS = {
    "JUMP_IF_FALSE_OR_POP": "POP_JUMP_IF_FALSE",
    "JUMP_IF_TRUE_OR_POP": "POP_JUMP_IF_TRUE",
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
    "POP_JUMP_FORWARD_IF_FALSE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_FORWARD_IF_TRUE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_FORWARD_IF_NONE": "POP_JUMP_IF_NONE",
    "POP_JUMP_FORWARD_IF_NOT_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_BACKWARD_IF_FALSE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_TRUE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_BACKWARD_IF_NONE": "POP_JUMP_IF_NONE",
    "POP_JUMP_BACKWARD_IF_NOT_NONE": "POP_JUMP_IF_NOT_NONE",
}


class ExceptionEntry:
    """One row of the exception table: instructions `start` ≤ i < `end` are handled at `target` with the stack cut to
    `depth`."""

    __slots__ = ("depth", "end", "push_offset", "start", "target")

    def __init__(self, start: int, end: int, target: int, depth: int, push_offset: bool) -> None:
        self.start, self.end, self.target, self.depth, self.push_offset = start, end, target, depth, push_offset


class Code:
    """A decoded code object. `ops[i]`, `args[i]`, `lines[i]` describe instruction i; `bound` is filled by the
    interpreter with handlers."""

    __slots__ = (
        "argcount",
        "args",
        "bound",
        "cellvars",
        "code",
        "exceptions",
        "freevars",
        "is_generator",
        "lines",
        "locals_names",
        "ops",
        "plumbing",
        "user_frames",
    )

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.ops: list[str] = []
        self.args: list[Any] = []
        self.lines: list[int] = []
        self.bound: list[tuple[Callable[..., Any], Any]] | None = None
        self.argcount = code.co_argcount
        self.cellvars, self.freevars = code.co_cellvars, code.co_freevars
        names = list(code.co_varnames)
        names += [name for name in code.co_cellvars if name not in code.co_varnames]
        names += code.co_freevars
        self.locals_names = names
        self.is_generator = bool(code.co_flags & 0x20)
        self.exceptions: list[ExceptionEntry] = []
        self.plumbing = _is_plumbing(code.co_filename)
        self.user_frames: dict[int, UserFrame] = {}

    def frame_at(self, index: int) -> UserFrame:
        """The user's frame description for instruction `index` (interned per line)."""
        line = self.lines[index] if 0 <= index < len(self.lines) else self.code.co_firstlineno
        found = self.user_frames.get(line)
        if found is None:
            found = self.user_frames[line] = UserFrame(self.code.co_filename, line, self.code.co_qualname)
        return found


_PLUMBING = tuple(
    os.path.dirname(path) + os.sep for path in (torch.__file__, os.path.dirname(os.path.abspath(__file__)))
)
_STDLIB = os.path.dirname(os.__file__) + os.sep


def _is_plumbing(filename: str) -> bool:
    """Whether a file is torch's, bolide's or the standard library's, so that an error is better reported at its
    caller."""
    return filename.startswith(_PLUMBING) or (filename.startswith(_STDLIB) and "site-packages" not in filename)


_cache: dict[types.CodeType, Code] = {}


def decode(code: types.CodeType) -> Code:
    """The decoded form of `code`. Raises NotImplementedError on interpreter versions that have no decoder yet."""
    found = _cache.get(code)
    if found is None:
        if VERSION not in ((3, 11), (3, 12)):
            raise NotImplementedError(f"capture on Python {VERSION[0]}.{VERSION[1]}")
        found = _cache[code] = _decode(code)
    return found


def _decode(code: types.CodeType) -> Code:
    result = Code(code)
    raw = _raw_instructions(code)
    index_of: dict[int, int] = {}  # byte offset -> index of the instruction there, or of the next one kept
    for offset, start, opname, _arg in raw:
        kept = len(result.ops)
        index_of[offset] = index_of[start] = kept
        if opname in _OR_POP:
            result.ops += [opname, "", ""]
        elif opname not in _SKIPPED:
            result.ops.append(opname)
    index_of[len(code.co_code)] = len(result.ops)
    line_of = _lines(code)
    position = 0
    for offset, _start, opname, arg in raw:
        if opname in _SKIPPED:
            continue
        name, value = _resolve(code, opname, arg, offset, index_of)
        parts = [("COPY", 1), (name, value), ("POP_TOP", 0)] if opname in _OR_POP else [(name, value)]
        for name, value in parts:
            result.ops[position] = name
            result.args.append(value)
            result.lines.append(line_of.get(offset, code.co_firstlineno))
            position += 1
    result.exceptions = _exception_table(code, index_of)
    return result


def _raw_instructions(code: types.CodeType) -> list[tuple[int, int, str, int]]:
    """(offset, offset of its first EXTENDED_ARG, name, argument) of every instruction, caches left out."""
    out = []
    data = code.co_code
    opname = dis.opname
    extended = 0
    start = -1
    i = 0
    while i < len(data):
        op = data[i]
        arg = data[i + 1] | extended
        name = opname[op]
        if start < 0:
            start = i
        if name == "EXTENDED_ARG":
            extended = arg << 8
            i += 2
            continue
        out.append((i, start, name, arg))
        extended, start = 0, -1
        i += 2 + 2 * _CACHES[op]
    return out


def _lines(code: types.CodeType) -> dict[int, int]:
    out = {}
    last = code.co_firstlineno
    for start, end, line in code.co_lines():
        last = line if line is not None else last
        for offset in range(start, end, 2):
            out[offset] = last
    return out


def _jump_target(opname: str, arg: int, offset: int) -> int:
    after = offset + 2 + 2 * _CACHES[dis.opmap[opname]]
    return after - 2 * arg if "BACKWARD" in opname else after + 2 * arg


def _resolve(code: types.CodeType, opname: str, arg: int, offset: int, index_of: dict[int, int]) -> tuple[str, Any]:
    """The uniform name and the resolved argument of one instruction."""
    op = dis.opmap[opname]
    if op in dis.hasjrel:
        target = index_of[_jump_target(opname, arg, offset)]
        if opname == "FOR_ITER" and VERSION >= (3, 12):
            target += 1  # past END_FOR: the handler pops the exhausted iterator itself
        return _JUMPS.get(opname, opname), target
    if opname in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES"):
        return opname, code.co_consts[arg]
    if opname == "LOAD_GLOBAL":
        return opname, (code.co_names[arg >> 1], bool(arg & 1))
    if opname == "LOAD_ATTR" and VERSION >= (3, 12):
        return ("LOAD_METHOD" if arg & 1 else "LOAD_ATTR"), code.co_names[arg >> 1]
    if opname == "LOAD_SUPER_ATTR":
        return opname, (code.co_names[arg >> 2], bool(arg & 1))
    if op in dis.hasname:
        return opname, code.co_names[arg]
    if opname == "BINARY_OP":
        return opname, _BINARY_OPS[arg][0]
    if opname == "COMPARE_OP":
        return opname, COMPARISONS[dis.cmp_op[arg >> 4 if VERSION >= (3, 12) else arg]]
    return opname, arg


def _exception_table(code: types.CodeType, index_of: dict[int, int]) -> list[ExceptionEntry]:
    """Rows of `co_exceptiontable` (format: Objects/exception_handling_notes.txt of CPython: 6-bit big-endian
    varints)."""
    data = iter(code.co_exceptiontable)
    out = []

    def varint(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(data)
            value = (value << 6) | (first & 63)
        return value

    def boundary(offset: int) -> int:
        while offset not in index_of:  # a boundary may lie in the caches of an instruction
            offset += 2
        return index_of[offset]

    for first in data:
        start = varint(first) * 2
        length = varint(next(data)) * 2
        target = varint(next(data)) * 2
        depth_lasti = varint(next(data))
        out.append(
            ExceptionEntry(
                boundary(start), boundary(start + length), boundary(target), depth_lasti >> 1, bool(depth_lasti & 1)
            )
        )
    return out
