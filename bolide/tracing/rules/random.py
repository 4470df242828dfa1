"""Shape rules of random number operations: our own, and those that fill memory as a given tensor has it."""

from __future__ import annotations

import torch

from bolide.symbolic import contiguous_strides
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import Ints, laid_out_like, row_major
from bolide.tracing.rules.registry import rule


@rule("bolide::rng_seed")
def _seed() -> TensorMeta:
    return TensorMeta((), (), 0, torch.int64, torch.device("cpu"))


@rule("bolide::rand", "bolide::randn")
def _draw(seed: TensorMeta, counter: int, size: Ints) -> TensorMeta:
    shape = tuple(size)
    return TensorMeta(shape, contiguous_strides(shape), 0, torch.float32, seed.device)


@rule("aten::uniform", "aten::normal_functional", "aten::random.to", "aten::bernoulli.Tensor")
def _fill(like: TensorMeta, *_: object, generator: None = None) -> TensorMeta:
    return laid_out_like(like)


@rule("aten::bernoulli.p")
def _bernoulli(like: TensorMeta, *_: object, p: object = 0.5, generator: None = None) -> TensorMeta:
    return row_major(like)
