"""What operations in a graph refer to by number: graphs, and calls, that no argument of an operation can hold.

The number that stands in a graph is a `Handle`, which holds what it refers to: so that lives as long as a graph, or a
plan made of one, in which the number stands.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any


class Handle(int):
    """A number of a table; `table` is what it refers to."""

    table: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        return self


_tables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def enter(table: Any) -> Handle:
    """A number under which operations find `table`."""
    handle = Handle(next(_numbers))
    handle.table = table
    _tables[int(handle)] = table
    return handle


def lookup(number: int) -> Any:
    """The table of that number. Raises KeyError when no graph has it any more."""
    return _tables[number]
