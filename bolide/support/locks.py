"""The two locks of the process. Calls that fit a compiled version take neither.

A thread may take a lock again that it holds: a signal handler or a finaliser may compile while its thread does. A fork
waits until nobody else holds one, so that they are free, and what they guard is whole, in the new process.
"""

from __future__ import annotations

import os
import threading

compiling = threading.RLock()  # to be taken first
tables = threading.RLock()  # shared tables, for the length of one look-up or addition


def _take() -> None:
    compiling.acquire()
    tables.acquire()


def _leave() -> None:
    tables.release()
    compiling.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_leave, after_in_child=_leave)
