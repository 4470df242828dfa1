"""Who may use devices while a graph is captured: nobody else.

CUDA and PyTorch allow one capture in a process at a time. Meanwhile no thread may replay a graph or wait for a whole
device: that fails, and with it the capture.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 0.2
"""Seconds that a thread waits to be alone. Others may be within for long, or even wait for this one."""

LONGEST = 60.0
"""Seconds that others wait for one that is alone. What it captures may wait for them."""


class Gate:
    """Calls of graphs go through it together; one that records is alone within. A thread may enter again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._within: dict[int, int] = {}  # how often threads have entered
        self._alone: int | None = None  # the thread that is alone, or waits for that

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if self._alone is not None and me not in self._within:
                self._changed.wait_for(lambda: self._alone is None, LONGEST)
            self._within[me] = self._within.get(me, 0) + 1

    def __exit__(self, *error: object) -> None:
        me = threading.get_ident()
        with self._lock:
            self._within[me] -= 1
            if not self._within[me]:
                del self._within[me]
                if self._alone is not None:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this thread, which is within, is alone; if so, it stays so. Not if another one wants that, or does
        not leave soon."""
        me = threading.get_ident()
        with self._lock:
            is_free = self._alone is None
            if is_free:
                self._alone = me
                is_free = self._changed.wait_for(lambda: self._within.keys() <= {me}, PATIENCE)
                if not is_free:
                    self._release()
        try:
            yield is_free
        finally:
            if is_free:
                with self._lock:
                    self._release()

    def _release(self) -> None:
        self._alone = None
        self._changed.notify_all()
