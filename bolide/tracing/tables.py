"""What operations in a graph refer to by number: graphs, and calls, that no argument of an operation can hold."""

from __future__ import annotations

import itertools
from typing import Any

TABLES: dict[int, Any] = {}
_numbers = itertools.count()


def enter(table: Any) -> int:
    """A number under which operations find `table`."""
    number = next(_numbers)
    TABLES[number] = table
    return number
