"""Which library multiplies matrices fastest on this host: measured when it is first asked, for classes of shapes, and
remembered.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from bolide.tracing.policy import policy_of

Library = Literal["aten", "onednn", "packed"]
"""ATen's own choice (MKL, for float32); oneDNN with weights as they are; oneDNN with packed weights."""

GAIN = 0.95
"""A library is chosen before an earlier one in the list if it takes at most this share of its time."""
REPEATS = 5


class Class(NamedTuple):
    """Products that are alike, (rows × inner) @ (inner × columns), by the least of them. `by_columns`: the first
    operand is stored so, which MKL takes as it is and oneDNN's calls copy; `threads`: how many may compute."""

    dtype: torch.dtype
    rows: int
    inner: int
    columns: int
    by_columns: bool = False
    threads: int = 1


_ROWS, _WIDTHS = (1, 2, 4, 16, 64, 256), (64, 256, 1024)
_MOST = 1 << 24  # multiplications of what is measured: larger products are as these are

MEASURED: dict[Class, dict[Library, float]] = {}
"""Seconds by library: what may be kept for other processes of this host."""
_lock = threading.Lock()
_CPU = torch.device("cpu")


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


def fastest(
    dtype: torch.dtype, rows: int, inner: int, columns: int, *, by_columns: bool = False, packed: bool = False
) -> Library:
    """The library for (rows × inner) @ (inner × columns) on torch's number of threads; `packed`: whether the second
    operand may be packed before.

    The same answer for the same class of shapes and number of threads in all of a process."""
    if not takes(dtype) or rows * inner * columns < policy_of(_CPU).fewest_measured:
        return "aten"
    times = times_of(class_of(dtype, rows, inner, columns)._replace(by_columns=by_columns, threads=_threads()))
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


def _threads() -> int:
    """Torch's number of threads, as a power of two."""
    return 1 << (torch.get_num_threads().bit_length() - 1)


def _floor(extent: int, steps: tuple[int, ...]) -> int:
    """The largest step that is not above `extent`, or the least."""
    return max((step for step in steps if step <= extent), default=steps[0])


def times_of(product: Class) -> dict[Library, float]:
    """Seconds that each library takes, measured once."""
    with _lock:
        times = MEASURED.get(product)
        if times is None:
            times = MEASURED[product] = _measure(product)
    return times


def _measure(product: Class) -> dict[Library, float]:
    dtype, rows, inner, columns, by_columns, threads = product
    linear, pack = torch.ops.mkldnn._linear_pointwise.default._op, torch.ops.mkldnn._reorder_linear_weight.default._op
    multiply = torch.ops.aten.addmm.default._op
    with torch.no_grad(), torch._C._DisableAutocast():
        x = torch.zeros(inner, rows, dtype=dtype).t() if by_columns else torch.zeros(rows, inner, dtype=dtype)
        weight = torch.zeros(columns, inner, dtype=dtype)
        packed, turned, bias = pack(weight, rows), weight.t(), torch.zeros(columns, dtype=dtype)
        return _times(
            {
                "aten": lambda: multiply(bias, x, turned),
                "onednn": lambda: linear(x, weight, bias, "none", [], ""),
                "packed": lambda: linear(x, packed, bias, "none", [], ""),
            },
            time.thread_time if threads == 1 else time.perf_counter,
        )


def _times(calls: dict[Library, Callable[[], object]], clock: Callable[[], float]) -> dict[Library, float]:
    """The least time of each call, by a clock in seconds; they take turns. Several threads have no clock but the
    wall's, which a busy machine slows: for one thread it is processor time."""
    times = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()  # oneDNN makes its code now
    for _ in range(REPEATS):
        for name, call in calls.items():
            start = clock()
            call()
            times[name] = min(times[name], clock() - start)
    return times
