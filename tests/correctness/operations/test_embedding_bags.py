"""Sums and means of rows of a table: shape rules are the kernels', results and gradients are eager's, and no gradient
is left to ATen's kernel, which sorts the indices."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.inductor.plan import Call, all_steps
from bolide.tracing.meta import meta_of
from bolide.tracing.rules import infer
from tests.plan_tools import plans

ROWS, WIDTH = 40, 8
OPTIONS: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "weighted": {"mode": "sum", "weighted": True},
    "with ends": {"mode": "mean", "include_last_offset": True},
    "sum with ends": {"mode": "sum", "include_last_offset": True},
    "mean but padding": {"mode": "mean", "padding_idx": 3},
    "weighted but padding": {"mode": "sum", "padding_idx": 3, "weighted": True},
    "by frequency": {"mode": "mean", "scale_grad_by_freq": True},
}


def bags(table: Tensor, indices: Tensor, offsets: Tensor, factors: Tensor | None, options: dict[str, Any]) -> Tensor:
    return F.embedding_bag(indices, table, offsets, per_sample_weights=factors, **options).sin()


def drawn(count: int, options: dict[str, Any], dtype: torch.dtype, number: torch.dtype) -> tuple[Any, ...]:
    """A table, indices, where bags start, some of them empty, and factors."""
    starts = [0, *sorted(random.choices(range(count), k=4))] + [count] * ("include_last_offset" in options)
    factors = torch.randn(count, dtype=dtype, requires_grad=True) if "weighted" in options else None
    table = torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=True)
    indices, offsets = torch.randint(0, ROWS, (count,), dtype=number), torch.tensor(starts, dtype=number)
    return table, indices, offsets, factors, {name: value for name, value in options.items() if name != "weighted"}


@pytest.mark.filterwarnings("error::bolide.support.errors.BolideWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_results_and_gradients(name: str, dynamic: bool | None, seed: int) -> None:
    numbers = random.choice([torch.int64, torch.int32])
    for dtype in (torch.float32, torch.float64):
        compiled = bolide.compile(bags, dynamic=dynamic)
        for count in random.sample(range(6, 60), 2):
            given = drawn(count, OPTIONS[name], dtype, numbers)
            leaves = [leaf for leaf in given[:4] if leaf is not None and leaf.is_floating_point()]
            mine, eager = compiled(*given), bags(*given)
            torch.testing.assert_close(mine, eager)
            grads = [torch.autograd.grad(result.square().sum(), leaves) for result in (mine, eager)]
            torch.testing.assert_close(*grads)
            with torch.no_grad():
                torch.testing.assert_close(compiled(*given), eager.detach())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_are_made_by_kernels(mode: str, seed: int) -> None:
    given = drawn(30, {"mode": mode}, torch.float32, torch.int64)
    with plans() as graphs:
        bolide.compile(bags)(*given).sum().backward()
    called = [str(step.operator) for g in graphs for step in all_steps(g.plan.steps) if isinstance(step, Call)]
    assert len(graphs) == 2 and not [call for call in called if "backward" in call or "sort" in call], called


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_rule_says_what_kernels_give_for_large_tables(dtype: torch.dtype, seed: int) -> None:
    """Meta kernels say what a GPU's give."""
    indices, offsets = torch.randint(0, 9, (9,)), torch.tensor([0, 3, 5, 9])
    factors = [None, torch.ones(9, dtype=dtype), torch.ones(18, dtype=dtype)[::2]]
    choices = itertools.product(range(3), (False, True), (-1, 0), factors, (1, 8), (torch.int64, torch.int32))
    for mode, ends, padding, factor, width, number in choices:
        if factor is not None and mode:
            continue
        rows = torch.randn(1 << 12, width, dtype=dtype)  # of more elements than are tried for real
        for table in (rows, torch.randn(width, 1 << 12, dtype=dtype).t()):
            for func in (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default):
                given = (table, indices.to(number), offsets, False, mode, False, factor, ends, padding)
                metas = [meta_of(each) if isinstance(each, Tensor) else each for each in given]
                told, real = infer(func, metas, {}), func(*given)
                assert list(told) == [meta_of(result) for result in real], given[3:]
