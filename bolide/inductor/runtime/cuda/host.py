"""A kernel's host function (`codegen.cuda.host`) in this process, and its table of 64-bit words: what
`driver_api.Entries` says (launch, set_current, stream, context, where the error is noted, get_current), then the
handles of the kernel's regions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from bolide.inductor.runtime.cuda.driver_api import Entries, Module
from bolide.support.engine import Library

ENTRY, TABLE = "kernel", "table"
ERROR, GET_CURRENT, FUNCTIONS = 4, 5, 6


@dataclass(frozen=True, slots=True)
class Host:
    """A kernel's host function in this process."""

    library: Library
    module: Module

    @property
    def address(self) -> int:
        return self.library.addresses[ENTRY]


def bound(library: Library, handles: Sequence[int], module: Module, entries: Entries) -> Host:
    """The host function of a library of its own (`host_text`), whose regions have these handles in a module."""
    table = (ctypes.c_int64 * (FUNCTIONS + len(handles))).from_address(library.addresses[TABLE])
    error = ctypes.addressof(entries.error)
    known = [entries.launch, entries.set_current, entries.stream, entries.context, error, entries.get_current]
    table[:] = [*known, *handles]
    return Host(library, module)
