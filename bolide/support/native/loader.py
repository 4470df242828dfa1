"""Object files of LLVM's, put into memory by hand on Linux and x86-64, so that a process that makes no code need not
load LLVM (20 ms).

Sections follow each other in one mapping, with a stub for each function of the process behind them: a jump, and the
address that it goes to. The code becomes executable when it is whole, and cannot be written then.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bolide.support.symbols import symbol_address

_MAGIC = b"\x7fELF\x02\x01\x01"  # of 64 bits, little-endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_JUMP = bytes.fromhex("ff25020000000000")  # jmp *2(%rip), and two bytes that are never run

_RELA, _NOBITS, _SYMTAB, _UNWIND = 4, 8, 2, 0x70000001
_WRITE, _ALLOC, _THREAD = 0x1, 0x2, 0x400
_ABSOLUTE, _RELATIVE, _CALL, _SLOTS = 1, 2, 4, (9, 41, 42)


class _Section(NamedTuple):
    """As ELF has it."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class Unknown(Exception):
    """An object file with something in it that only LLVM knows how to load."""


class Code:
    """Loaded code: where its functions are. It is released with this object."""

    def __init__(self, memory: mmap.mmap, addresses: Mapping[str, int], frames: Sequence[int]) -> None:
        self.addresses = addresses
        for frame in frames:
            _frames("__register_frame")(frame)
        weakref.finalize(self, _released, memory, frames).atexit = False


def _released(memory: mmap.mmap, frames: Sequence[int]) -> None:
    """`memory` goes with this call."""
    for frame in frames:
        _frames("__deregister_frame")(frame)


def _frames(name: str) -> Callable[[int], None]:
    """A function of the library that goes through frames when C++ throws. Raises Unknown where there is none."""
    address = symbol_address(name)
    if address is None:
        raise Unknown(name)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


def load_object(image: bytes, imports: Mapping[str, int], exports: Sequence[str]) -> Code:
    """The code of an object file; `imports`: addresses of what it calls. Raises Unknown where LLVM has to do it."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or not image.startswith(_MAGIC):
        raise Unknown("not an object file for x86-64 and Linux")
    sections = _sections(image)
    places, end = _placed(image, sections)
    stubs = {name: end + 16 * number for number, name in enumerate(imports)}
    memory = mmap.mmap(-1, end + 16 * len(stubs) or 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, place in places.items():
        section = sections[number]
        memory[place : place + section.size] = image[section.offset : section.offset + section.size]
    for name, place in stubs.items():
        memory[place : place + 16] = _JUMP + imports[name].to_bytes(8, "little")
    table = next((section for section in sections if section.kind == _SYMTAB), None)
    symbols = [] if table is None else _symbols(image, table, sections[table.link].offset, places, stubs)
    for section in sections:
        if section.kind == _RELA and section.info in places:
            _relocate(memory, base, image, section, places[section.info], symbols)
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(memory)), mmap.PROT_READ | mmap.PROT_EXEC):
        raise Unknown("memory that may be run")
    known = {symbol.name: base + symbol.place for symbol in symbols if symbol.place is not None}
    frames = [base + place for number, place in places.items() if sections[number].kind == _UNWIND]
    return Code(memory, {name: known[name] for name in exports}, frames)


def _sections(image: bytes) -> list[_Section]:
    (start,), (count,) = struct.unpack_from("<Q", image, 0x28), struct.unpack_from("<H", image, 0x3C)
    return [_Section(*_SECTION.unpack_from(image, start + number * _SECTION.size)) for number in range(count)]


def _placed(image: bytes, sections: Sequence[_Section]) -> tuple[dict[int, int], int]:
    """Where each section that is loaded goes, and where the stubs begin."""
    places, end = {}, 0
    (names,) = struct.unpack_from("<H", image, 0x3E)
    for number, section in enumerate(sections):
        if not section.flags & _ALLOC or not section.size:
            continue
        settled = _name(image, sections[names].offset + section.name).startswith(".data.rel.ro")  # once it is loaded
        written = section.flags & _WRITE and not settled
        if written or section.flags & _THREAD or section.kind == _NOBITS or section.align > mmap.PAGESIZE:
            raise Unknown("a section of data that may be written")
        places[number] = end = -(-end // max(section.align, 1)) * max(section.align, 1)
        end += section.size + 4  # a zero, with which a table of frames ends
    return places, -(-end // 16) * 16


class _Symbol(NamedTuple):
    """`place`: where it is in the mapping, None for one that is not; `stub`: of a function of the process."""

    name: str
    place: int | None
    stub: int | None


def _name(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode()


def _symbols(
    image: bytes, table: _Section, names: int, places: Mapping[int, int], stubs: Mapping[str, int]
) -> list[_Symbol]:
    """The rows of a table, whose `names` are there."""
    found = []
    for start, _, _, section, value, _ in _SYMBOL.iter_unpack(image[table.offset : table.offset + table.size]):
        name = _name(image, names + start)
        found.append(_Symbol(name, places[section] + value if section in places else None, stubs.get(name)))
    return found


def _relocate(
    memory: mmap.mmap, base: int, image: bytes, section: _Section, start: int, symbols: Sequence[_Symbol]
) -> None:
    """Write what a table of relocations asks for into the section that is at `start`."""
    for offset, info, addend in _RELOCATION.iter_unpack(image[section.offset : section.offset + section.size]):
        at, kind, symbol = start + offset, info & 0xFFFFFFFF, symbols[info >> 32]
        target = symbol.place if symbol.place is not None else symbol.stub
        if target is None:
            raise Unknown(f"the symbol {symbol.name!r}")
        if kind == _CALL or (kind == _RELATIVE and symbol.place is not None):
            struct.pack_into("<i", memory, at, target + addend - at)
        elif kind in _SLOTS and symbol.place is None:
            struct.pack_into("<i", memory, at, target + 8 + addend - at)
        elif kind == _ABSOLUTE:
            struct.pack_into("<Q", memory, at, base + target + addend)
        else:
            raise Unknown(f"a relocation of kind {kind}")
