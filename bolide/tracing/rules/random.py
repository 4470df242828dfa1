"""Shape rules of random number operations: our own, and those that fill memory as a given tensor has it."""

from __future__ import annotations

from typing import Any

import torch

from bolide.symbolic import contiguous_strides
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import like_strides
from bolide.tracing.rules.registry import rule


@rule("bolide::rng_seed")
def _seed() -> TensorMeta:
    return TensorMeta((), (), 0, torch.int64, torch.device("cpu"))


@rule("bolide::rand", "bolide::randn")
def _draw(seed: TensorMeta, counter: int, size: list[Any]) -> TensorMeta:
    shape = tuple(size)
    return TensorMeta(shape, contiguous_strides(shape), 0, torch.float32, seed.device)


@rule("aten::uniform", "aten::normal_functional", "aten::random.to", "aten::bernoulli.Tensor")
def _fill(like: TensorMeta, *parameters: Any, generator: None = None) -> TensorMeta:
    return TensorMeta(like.shape, like_strides(like), 0, like.dtype, like.device)


@rule("aten::bernoulli.p")
def _bernoulli(like: TensorMeta, *parameters: Any, p: Any = 0.5, generator: None = None) -> TensorMeta:
    return TensorMeta(like.shape, contiguous_strides(like.shape), 0, like.dtype, like.device)
