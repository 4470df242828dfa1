"""Which library multiplies matrices fastest on this host: measured when it is first asked, for classes of shapes, and
remembered.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch

from bolide.support.symbols import symbol_address

Library = Literal["aten", "onednn", "packed"]
"""ATen's own choice (MKL, for float32); oneDNN with weights as they are; oneDNN with packed weights."""

GAIN = 0.95
"""A library is chosen before an earlier one in the list if it takes at most this share of its time."""
REPEATS = 3
FEWEST = 1 << 18
"""Products of fewer multiplications are ATen's: what it takes to start a call decides."""


class Class(NamedTuple):
    """Products that are alike, (rows × inner) @ (inner × columns), by the least of them."""

    dtype: torch.dtype
    rows: int
    inner: int
    columns: int


_ROWS, _WIDTHS = (1, 2, 4, 16, 64, 256), (64, 256, 1024)
_MOST = 1 << 24  # multiplications of what is measured: larger products are as these are

MEASURED: dict[Class, dict[Library, float]] = {}
"""Seconds by library, on one thread: what may be kept for other processes of this host."""
_lock = threading.Lock()


@functools.cache
def has_onednn() -> bool:
    """Whether torch was built with oneDNN, and with its operators for compilers."""
    ops = ("_linear_pointwise", "_reorder_linear_weight", "_convolution_pointwise", "_reorder_convolution_weight")
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and all(hasattr(torch.ops.mkldnn, name) for name in ops)


@functools.cache
def _supports_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def takes(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes in this type here."""
    if not has_onednn() or not torch.backends.mkldnn.enabled:
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and _supports_bfloat16())


def fastest(dtype: torch.dtype, rows: int, inner: int, columns: int, *, packed: bool = False) -> Library:
    """The library for (rows × inner) @ (inner × columns); `packed`: whether the second operand may be packed before.

    The same answer for the same class of shapes in all of a process."""
    if not takes(dtype) or rows * inner * columns < FEWEST:
        return "aten"
    times = times_of(class_of(dtype, rows, inner, columns))
    best: Library = "aten"
    for library in times:
        if (packed or library != "packed") and times[library] < GAIN * times[best]:
            best = library
    return best


def class_of(dtype: torch.dtype, rows: int, inner: int, columns: int) -> Class:
    """The class of a product."""
    few = _floor(rows, _ROWS)
    wide, high = _floor(columns, _WIDTHS), _floor(inner, _WIDTHS)
    while few * wide * high > _MOST:
        wide, high = min(wide, 256), min(high, 256)
    return Class(dtype, few, high, wide)


def _floor(extent: int, steps: tuple[int, ...]) -> int:
    """The largest step that is not above `extent`, or the least."""
    return max((step for step in steps if step <= extent), default=steps[0])


def times_of(product: Class) -> dict[Library, float]:
    """Seconds that each library takes, on one thread, measured once."""
    with _lock:
        times = MEASURED.get(product)
        if times is None:
            times = MEASURED[product] = _measure(product)
    return times


def _measure(product: Class) -> dict[Library, float]:
    dtype, rows, inner, columns = product
    linear, pack = torch.ops.mkldnn._linear_pointwise.default._op, torch.ops.mkldnn._reorder_linear_weight.default._op
    multiply = torch.ops.aten.addmm.default._op
    with torch.no_grad(), torch._C._DisableAutocast(), _one_thread():
        x, weight = torch.zeros(rows, inner, dtype=dtype), torch.zeros(columns, inner, dtype=dtype)
        packed, turned, bias = pack(weight, rows), weight.t(), torch.zeros(columns, dtype=dtype)
        return _times(
            {
                "aten": lambda: multiply(bias, x, turned),
                "onednn": lambda: linear(x, weight, bias, "none", [], ""),
                "packed": lambda: linear(x, packed, bias, "none", [], ""),
            }
        )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Lets libraries use the calling thread alone: with others, a busy machine would be measured. The settings are
    the thread's own: that of OpenMP, and that of MKL, which goes before (0: it follows OpenMP's)."""
    before = torch.get_num_threads()
    _call("omp_set_num_threads", 1)
    mkl_before = _call("MKL_Set_Num_Threads_Local", 1)
    try:
        yield
    finally:
        _call("MKL_Set_Num_Threads_Local", mkl_before)
        _call("omp_set_num_threads", before)


def _call(name: str, count: int) -> int:
    """Calls a function of the libraries inside torch; 0 if there is none of this name."""
    address = symbol_address(name)
    return int(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(address)(count)) if address else 0


def _times(calls: dict[Library, Callable[[], object]]) -> dict[Library, float]:
    """The least processor time of each call; they take turns."""
    times = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()  # oneDNN makes its code now
    for _ in range(REPEATS):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            times[name] = min(times[name], time.thread_time() - start)
    return times
