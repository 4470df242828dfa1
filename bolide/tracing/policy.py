"""What passes over graphs decide by that depends on what the graph runs on: bounds that were measured there.

`inductor.machine.Machine` says what kernels are made by; this is known without knowing the processor's instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


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


POLICIES = {"cpu": Policy()}
"""By type of device."""


def policy_of(device: torch.device) -> Policy:
    """The policy for graphs on this device: a CPU's for all that have none of their own."""
    return POLICIES.get(device.type) or POLICIES["cpu"]
