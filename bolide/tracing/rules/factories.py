"""Shape rules of what makes tensors: of numbers, of random numbers, and what fills memory as a given tensor has it."""

from __future__ import annotations

import math
from typing import Any

import torch

from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules.common import Ints, fresh, laid_out_like, require, row_major
from bolide.tracing.rules.registry import rule


def _numbers(
    shape: Ints, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: object
) -> TensorMeta:
    """The meta of a tensor of numbers, for the options that factories take."""
    return fresh(shape, dtype or torch.get_default_dtype(), torch.device(device or "cpu"))


@rule("full")
def _full(size: Ints, value: object, **options: Any) -> TensorMeta:
    return _numbers(size, **options)


@rule("arange", "arange.start", "arange.start_step")
def _arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: torch.dtype | None = None, **options: Any
) -> TensorMeta:
    start, end = (0, start) if end is None else (start, end)
    require(step != 0, "step must be nonzero")
    upwards = (end >= start) if step > 0 else (end <= start)
    require(upwards, "upper bound and lower bound inconsistent with step sign")
    if dtype is None:
        floats = any(isinstance(number, (float, torch.SymFloat)) for number in (start, end, step))
        dtype = torch.get_default_dtype() if floats else torch.int64
    if not dtype.is_floating_point:
        start, end, step = (int(n) if isinstance(n, float) else n for n in (start, end, step))
    if dtype is not torch.int64 and all(isinstance(number, (int, float)) for number in (start, end, step)):
        count = math.ceil((float(end) - float(start)) / float(step))  # rounded, as ATen has it
    elif all(isinstance(number, (int, torch.SymInt)) for number in (start, end, step)):
        count = -((start - end) // step)
    else:
        count = -int(-(end - start) // step)
    return _numbers((count,), dtype, **options)


@rule("eye", "eye.m")
def _eye(rows: int, columns: int | None = None, **options: Any) -> TensorMeta:
    columns = rows if columns is None else columns
    require(rows >= 0, f"n must be greater or equal to 0, got {rows}")
    require(columns >= 0, f"m must be greater or equal to 0, got {columns}")
    return _numbers((rows, columns), **options)


@rule("bolide::rng_seed")
def _seed(device: torch.device | None = None) -> TensorMeta:
    return _numbers((), torch.int64, device=device)


@rule("bolide::rand", "bolide::randn")
def _draw(seed: TensorMeta, counter: int, size: Ints) -> TensorMeta:
    return row_major(seed, size, torch.float32)


@rule("uniform", "normal_functional", "random.to", "bernoulli.Tensor")
def _fill(like: TensorMeta, *_: object, generator: None = None) -> TensorMeta:
    return laid_out_like(like)


@rule("bernoulli.p")
def _bernoulli(like: TensorMeta, *_: object, p: object = 0.5, generator: None = None) -> TensorMeta:
    return row_major(like)
