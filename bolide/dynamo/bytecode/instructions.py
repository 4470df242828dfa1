"""CPython bytecode in one uniform form.

`decode(code)` turns a code object of CPython 3.10 to 3.13 into parallel lists of operation names, resolved arguments
and lines, in which jumps go to indices and names, constants and operators are the objects themselves. What the versions
spell differently is normalised (`forms`). It is cached for each code object.
"""

from __future__ import annotations

import copy
import dis
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from bolide.dynamo.bytecode import blocks as bytecode_blocks
from bolide.dynamo.bytecode.forms import (
    HANDLER,
    SKIPPED,
    VERSION,
    VERSIONS,
    JumpTarget,
    Part,
    Raw,
    Row,
    forms,
    locals_of,
    prologue,
)
from bolide.support.caches import on_reset
from bolide.support.origins import is_ours, is_plumbing
from bolide.tracing import UserFrame

_FORMS = forms(VERSION)


class Code:
    """A decoded code object. `ops[i]`, `args[i]`, `lines[i]` describe instruction i; `bound` is filled by the
    interpreter with handlers. `skipped`: why it is run for real and only what it calls is captured, else "".
    `plumbing`: it is torch's, bolide's or the standard library's: errors are better reported at its caller."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.ops: list[str] = []
        self.args: list[Any] = []
        self.lines: list[int] = []
        self.bound: list[tuple[Callable[..., Any], Any]] | None = None
        self.argcount = code.co_argcount
        self.cellvars, self.freevars = code.co_cellvars, code.co_freevars
        self.locals_names = locals_of(code)
        self.qualname: str = getattr(code, "co_qualname", code.co_name)  # from 3.11 on
        self.exceptions: list[Row] = []
        self.skipped = ""
        self.ours = is_ours(code)
        self.plumbing = is_plumbing(code.co_filename)
        self.user_frames: dict[int, UserFrame] = {}

    def rows_at(self, index: int) -> list[Row]:
        """The rows of the exception table for instruction `index`, innermost last."""
        return [row for row in self.exceptions if row.start <= index < row.end]

    def handler(self, index: int) -> Row | None:
        """Where an exception at instruction `index` is handled by the program (not merely changed on its way out)."""
        rows = self.rows_at(index)
        return rows[-1] if rows and self.ops[rows[-1].target] != "STOPITERATION_ERROR" else None

    def frame_at(self, index: int) -> UserFrame:
        """The user's frame description for instruction `index` (interned per line)."""
        line = self.lines[index] if 0 <= index < len(self.lines) else self.code.co_firstlineno
        frame = self.user_frames.get(line)
        if frame is None:
            frame = self.user_frames[line] = UserFrame(self.code.co_filename, line, self.qualname)
        return frame


_cache: dict[types.CodeType, Code] = {}
_CACHE_LIMIT = 1 << 10
_OWN_REFERENCES = 5  # to a code object: the table, its `Code`, a list, a variable and the argument of `getrefcount`


@on_reset
def _forget_the_dead() -> None:
    """Code that nobody else has goes; that of functions which live stays decoded."""
    for code in list(_cache):
        if sys.getrefcount(code) <= _OWN_REFERENCES:
            del _cache[code]


def decode(code: types.CodeType) -> Code:
    """The decoded form of `code`. Raises NotImplementedError on interpreter versions that have no decoder yet."""
    decoded = _cache.get(code)
    if decoded is None:
        if VERSION not in VERSIONS:
            raise NotImplementedError(f"capture on Python {VERSION[0]}.{VERSION[1]}")
        if len(_cache) >= _CACHE_LIMIT:
            _cache.clear()
        decoded = _cache[code] = _decode(code)
    return decoded


@functools.lru_cache(_CACHE_LIMIT)
def skipped(code: types.CodeType, why: str) -> Code:
    """The decoded form of code that is not captured itself."""
    decoded = copy.copy(decode(code))
    decoded.bound, decoded.skipped = None, why
    return decoded


on_reset(skipped.cache_clear)


def _decode(code: types.CodeType) -> Code:
    result = Code(code)
    raw = _raw_instructions(code)
    rows = bytecode_blocks.rows(code, raw) if VERSION == (3, 10) else _exception_table(code)
    starts = {0: prologue(code), **({row.target: HANDLER for row in rows} if VERSION == (3, 10) else {})}
    lines = _lines(code)
    index_of: dict[int, int] = {}  # byte offset -> index of the instruction there, or of the next one kept
    keywords = False
    for instruction in raw:
        first = len(result.ops)
        index_of.update(dict.fromkeys(range(instruction.start, instruction.after, 2), first))
        parts = _parts(code, instruction)
        if keywords and instruction.name == "CALL":
            parts = [("CALL_KW", instruction.arg)]
        if instruction.name == "SET_FUNCTION_ATTRIBUTE":  # 3.13 says one by one what MAKE_FUNCTION has on the stack
            result.args[-1] |= instruction.arg
            parts = []
        keywords = instruction.name == "KW_NAMES" or (keywords and instruction.name == "PRECALL")
        for name, arg in [*starts.get(instruction.start, ()), *parts]:
            result.ops.append(name)
            result.args.append(arg)
            result.lines.append(lines.get(instruction.offset, code.co_firstlineno))
    index_of[len(code.co_code)] = len(result.ops)
    for i, arg in enumerate(result.args):
        if type(arg) is JumpTarget:
            result.args[i] = index_of[arg.offset] + arg.skip
    result.exceptions = [
        row._replace(start=index_of[row.start], end=index_of[row.end], target=index_of[row.target]) for row in rows
    ]
    return result


def _parts(code: types.CodeType, instruction: Raw) -> list[Part]:
    if instruction.name in SKIPPED:
        return []
    form = _FORMS.get(instruction.name)
    return [(instruction.name, instruction.arg)] if form is None else form(code, instruction)


def _raw_instructions(code: types.CodeType) -> list[Raw]:
    instructions: list[Raw] = []
    data = code.co_code
    extended = 0
    start = i = 0
    while i < len(data):
        name = dis.opname[data[i]]
        arg = data[i + 1] | extended
        offset = i
        i += 2
        if name == "EXTENDED_ARG":
            extended = arg << 8
            continue
        while i < len(data) and data[i] == 0:  # CACHE
            i += 2
        instructions.append(Raw(name, arg, offset, start, i))
        extended, start = 0, i
    return instructions


def _lines(code: types.CodeType) -> dict[int, int]:
    lines = {}
    last = code.co_firstlineno
    for start, end, line in code.co_lines():
        last = line if line is not None else last
        for offset in range(start, end, 2):
            lines[offset] = last
    return lines


def _exception_table(code: types.CodeType) -> list[Row]:
    """Rows of `co_exceptiontable` (format: Objects/exception_handling_notes.txt of CPython: 6-bit big-endian
    varints)."""
    data = iter(code.co_exceptiontable)
    rows = []

    def varint(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(data)
            value = (value << 6) | (first & 63)
        return value

    for first in data:
        start = varint(first) * 2
        length = varint(next(data)) * 2
        target = varint(next(data)) * 2
        depth_lasti = varint(next(data))
        rows.append(Row(start, start + length, target, depth_lasti >> 1, None, bool(depth_lasti & 1)))
    return rows
