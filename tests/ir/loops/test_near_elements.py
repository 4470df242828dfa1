"""Vectors of elements that lie a few apart: coordinates of points, colours, the parts of what is put together last."""

from __future__ import annotations

import random
import re

import pytest
import torch

from tests.schedule_tools import assert_same, compiled

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape) * 50).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_they_are_stored_and_loaded_in_whole_vectors(count: int, dtype: torch.dtype) -> None:
    """LLVM makes one store of each lane where a masked one has another number of lanes than a power of two."""
    rows, columns = random.randrange(1, 5), random.randrange(1, 80)
    parts = [numbers(dtype, rows, columns) for _ in range(count)]

    def together(*parts):
        return torch.stack(parts, -1)

    def apart(whole):
        return whole[..., 0].logical_not() ^ whole[..., -1].logical_not()

    whole = together(*parts)
    for program, inputs in ((together, parts), (apart, [whole])):
        graph = compiled(program, tuple(inputs))
        assert_same(graph([*inputs])[0], program(*inputs))
        lanes = [int(each) for k in graph.kernels for each in re.findall(r"llvm\.masked\.\w+\.v(\d+)", k.llvm_ir)]
        assert all(each & (each - 1) == 0 for each in lanes), sorted(lanes)
