"""Which library multiplies matrices fastest on this host, and whether attention in 16 bits is faster as products:
measured when it is first asked, for classes of shapes, and remembered. Bounds that were measured before are a `Policy`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import torch

from bolide.support import artifacts
from bolide.support.artifacts import Key

Library = Literal["aten", "onednn", "packed"]
"""ATen's own choice (MKL, for float32); oneDNN with weights as they are; oneDNN with packed weights."""

Way = Literal["fused", "products"]
"""Attention in torch's fused kernel, or as matrix products with kernels in between."""

GAIN = 0.95
"""A library is chosen before an earlier one in the list if it takes at most this share of its time."""
REPEATS = 5


_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds for graphs on a kind of device. The defaults are a CPU's; where they are from is said at each."""

    #: Attention that is written out becomes the fused kernel for so many scores, of so many queries and keys each:
    #: where they do not stay in the caches. Of 64 terms in float32 on one thread of AMD EPYC (Zen 5), 1×8×512×512
    #: scores take 13.7 ms one after the other and 6.5 in the kernel, 2×4×256×256 take 1.48 and 1.64.
    least_scores: int = 1 << 20
    least_length: int = 256
    #: So many scores of attention in 16 bits may be stored for products: the fused kernel needs no memory for them.
    most_stored_scores: int = 1 << 23
    #: A convolution of all channels runs in channels_last from so many results on, with at most so many weights, which
    #: are brought into that order in every call. Two threads: ResNet-18 at batch 8, 224×224 takes 101 ms row-major and
    #: 83 with these bounds, ResNet-50 297 and 241. At batch 2, 128×128, below them, that order costs 7 %.
    least_convolved: int = 3 << 18
    most_reordered: int = 1 << 18
    #: Types of such a convolution, and whether one of 1×1 gains as well, which on a CPU takes the order that it gets.
    #: A GPU's tensor cores want channels_last in 16 bits: cuDNN brings every operand into that order otherwise.
    convolved_types: frozenset[torch.dtype] = frozenset((torch.float32,))
    gains_pointwise: bool = False
    #: One of each channel by itself, from so many results on. One thread, 3×3 on 2×96×32×32: 950 µs row-major, 78 µs
    #: in channels_last; 7×7 on 8×96×56×56: 11.1 and 3.6 ms.
    least_depthwise: int = 1 << 14
    #: Constant weights of products of so many multiplications are packed: what a call costs decides for fewer.
    fewest_packed: int = 1 << 17
    #: Products of fewer multiplications than this are ATen's, for the same reason; no library is measured for them.
    fewest_measured: int = 1 << 18
    #: Arithmetic of a matrix product that takes as long as a byte of memory traffic: some 100 GFLOP/s and 12 GB/s of a
    #: core.
    flops_per_byte: float = 8.0
    #: The part of all traffic for saved values that must be at stake before a partition's flow is computed.
    worth_a_cut: float = 0.25
    #: What reading a byte of an input costs in the backward, where reading one of a saved value costs 1.
    input_byte: float = 0.75
    #: Whether the gradient of maxima in windows is a kernel, which reads places of any type.
    narrows_places: bool = False


_NEVER = 1 << 62
POLICIES = {
    "cpu": Policy(),
    "cuda": Policy(
        least_scores=_NEVER,
        most_stored_scores=0,
        least_convolved=0,
        most_reordered=_NEVER,
        convolved_types=frozenset((torch.bfloat16, torch.float16)),
        gains_pointwise=True,
        least_depthwise=_NEVER,
        fewest_packed=_NEVER,
        fewest_measured=_NEVER,
        flops_per_byte=15.0,  # float32 of a Hopper GPU: 60 TFLOP/s and 4 TB/s
        narrows_places=True,
    ),
}
"""By type of device."""


def policy_of(device: torch.device) -> Policy:
    """The policy for graphs on this device: a CPU's for all that have none of their own."""
    return POLICIES.get(device.type) or POLICIES["cpu"]


class Class(NamedTuple):
    """Products that are alike, (rows × inner) @ (inner × columns), by the least of them. `by_columns`: the first
    operand is stored so, which MKL takes as it is and oneDNN's calls copy; `threads`: how many may compute."""

    dtype: torch.dtype
    rows: int
    inner: int
    columns: int
    by_columns: bool = False
    threads: int = 1


class Attention(NamedTuple):
    """Attention in 16 bits that is alike: of so many heads with so many queries, keys and terms, forward or backward;
    `threads`: how many may compute."""

    dtype: torch.dtype
    heads: int
    queries: int
    keys: int
    terms: int
    causal: bool
    backward: bool
    threads: int


_LENGTHS, _TERMS = (1, 16, 64, 128, 256, 512, 1024), (16, 32, 64, 128)

_ROWS, _WIDTHS = (1, 2, 4, 16, 64, 256), (64, 256, 1024)
_MOST = 1 << 24  # multiplications of what is measured: larger products are as these are

MEASURED: dict[Class, dict[Library, float]] = {}
ATTENTION: dict[Attention, dict[Way, float]] = {}
"""Seconds by library and way, in this process."""
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
    """Seconds that each library takes, measured once on a machine, or in a process that keeps nothing."""
    return _remembered(product, MEASURED, _measure)


Alike = TypeVar("Alike", bound=NamedTuple)
Choice = TypeVar("Choice", bound=str)


def _remembered(
    alike: Alike, known: dict[Alike, dict[Choice, float]], measure: Callable[[Alike], dict[Choice, float]]
) -> dict[Choice, float]:
    """The times that are known in this process, or kept from another one, or measured now."""
    with _lock:
        times = known.get(alike)
        if times is None:
            key = Key("libraries", {type(alike).__name__: repr(tuple(alike)), **_environment()})
            kept = artifacts.find(key)
            times = known[alike] = measure(alike) if kept is None else json.loads(kept)
            if kept is None:
                artifacts.keep(key, json.dumps(times).encode())
    return times


@functools.cache
def _environment() -> dict[str, str]:
    """What the times of products depend on besides their class."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        cpu = next((line for line in file if line.startswith("model name")), cpu).strip()
    return {"torch": torch.__version__, "cpu": cpu, "cores": str(os.cpu_count())}


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


def _times(calls: dict[_Name, Callable[[], object]], clock: Callable[[], float]) -> dict[_Name, float]:
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


# ---- attention -------------------------------------------------------------------------------------------------------


def attention(dtype: torch.dtype, heads: int, queries: int, keys: int, terms: int, causal: bool, backward: bool) -> Way:
    """How attention in 16 bits is faster on torch's number of threads; `heads` are those of all the batch."""
    if heads * queries * keys > policy_of(_CPU).most_stored_scores:
        return "fused"
    threads = _threads()
    lengths = (_floor(queries, _LENGTHS), _floor(keys, _LENGTHS), _floor(terms, _TERMS))
    alike = Attention(dtype, min(heads, 4 * threads), *lengths, causal, backward, threads)
    times = _remembered(alike, ATTENTION, _measure_attention)
    return "products" if times["products"] < times["fused"] else "fused"


def _measure_attention(alike: Attention) -> dict[Way, float]:
    """ATen's operations, into memory that is there, stand for kernels, which are faster."""
    dtype, heads, queries, keys, terms, causal, backward, threads = alike
    aten, wide = torch.ops.aten, torch.float32
    narrow = dtype if takes(dtype) else wide
    fused = aten._scaled_dot_product_flash_attention_for_cpu.default._op
    fused_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default._op
    multiply, softmax, slope = aten.bmm.out._op, aten._softmax.out._op, aten._softmax_backward_data.out._op
    with torch.no_grad(), torch._C._DisableAutocast():
        q, g = (torch.zeros(1, heads, queries, terms, dtype=dtype) for _ in range(2))
        k, v = (torch.zeros(1, heads, keys, terms, dtype=dtype) for _ in range(2))
        out, logs = fused(q, k, v, 0.0, causal)
        scores, weights, gains = (torch.zeros(heads, queries, keys) for _ in range(3))
        rows, columns = (torch.zeros(heads, length, terms) for length in (queries, keys))
        dense, slopes = (weights.to(narrow, copy=True) for _ in range(2))
        by_query, by_key = rows.to(narrow, copy=True), columns.to(narrow, copy=True)
        found, found_by_key = by_query.clone(), by_key.clone()

        def by_rows(left: torch.Tensor, right: torch.Tensor, into: torch.Tensor) -> None:
            multiply(rows.copy_(left[0]), columns.copy_(right[0]).transpose(1, 2), out=into)

        def forward() -> None:
            by_rows(q, k, scores)
            softmax(scores, -1, False, out=weights)
            multiply(weights, columns.copy_(v[0]), out=rows)
            out.copy_(rows)

        def gradients() -> None:
            by_rows(q, k, scores)
            softmax(scores, -1, False, out=weights)
            by_rows(g, v, gains)
            slopes.copy_(slope(gains, weights, -1, wide, grad_input=scores))
            multiply(slopes, by_key.copy_(k[0]), out=found)
            multiply(slopes.transpose(1, 2), by_query.copy_(q[0]), out=found_by_key)
            multiply(dense.copy_(weights).transpose(1, 2), by_query.copy_(g[0]), out=found_by_key)

        calls: dict[Way, Callable[[], object]] = {
            "fused": lambda: fused(q, k, v, 0.0, causal),
            "products": forward,
        }
        if backward:
            calls = {
                "fused": lambda: fused_backward(g, q, k, v, out, logs, 0.0, causal),
                "products": gradients,
            }
        return _times(calls, time.thread_time if threads == 1 else time.perf_counter)
