"""Grouping keeps dependences, whatever it joins, and its cost is linear in the program."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from bolide.inductor.lowering import lower
from bolide.inductor.machine import host_machine
from bolide.inductor.schedule import grouping, schedule_program
from tests.schedule_tools import check, compiled, graph_of


def random_program(seed: int, length: int = 40):
    """A function with products, which stay units of their own, between pointwise work and sums that read any of what
    was made before: many pairs have a third unit between them."""
    plan = random.Random(seed)
    steps = [(plan.choice("mpprs"), plan.random(), plan.random()) for _ in range(length)]
    kept = plan.sample(range(length - 1), 5)

    def program(x, y):
        values = [x, y]
        for kind, one, other in steps:
            a = values[int(one * len(values))] if one < 0.3 else values[-1 - int(one * min(4, len(values)))]
            b = values[int(other * len(values))]
            if kind == "m":
                values.append(torch.tanh(a @ b))
            elif kind == "p":
                values.append(torch.sin(a) * b)
            elif kind == "r":
                values.append(a - b.amax(-1, keepdim=True))
            else:
                values.append(b + a.mean(0))
        return [values[2 + place] for place in kept] + [values[-1]]

    return program


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    torch.manual_seed(seed)
    check(random_program(seed), torch.randn(6, 6) / 4, torch.randn(6, 6) / 4, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_few_steps_only_join_less(seed, monkeypatch):
    torch.manual_seed(seed)
    x, y = torch.randn(6, 6) / 4, torch.randn(6, 6) / 4
    usual = len(compiled(random_program(seed), (x, y)).kernels)
    monkeypatch.setattr(grouping, "MOST_STEPS", 3)
    assert len(check(random_program(seed), x, y, rtol=1e-3, atol=1e-4).kernels) >= usual


def blocks(number: int):
    """So many blocks that share a mask and a table, as those of a transformer do."""

    def program(x, w, mask, table):
        x, table = x + table, table.cos() + table.cumsum(0)
        kept = []
        for _ in range(number):
            scores = torch.softmax((x @ w) * table + mask, -1)
            x = F.layer_norm(x + scores @ w, (8,))
            x = x + F.gelu(x @ w) * table
            kept.append(x.sum(0))
        return [x, torch.stack(kept)]

    return program


def steps_of_grouping(number: int) -> int:
    """How many lines of its file grouping runs."""
    gm, _ = graph_of(blocks(number), [torch.randn(8, 8) for _ in range(4)])
    program = lower(gm, frozenset())
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename == grouping.__file__ else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        schedule_program(program, ("x0", "x1", "x2", "x3"), (), host_machine())
    finally:
        sys.settrace(before)
    return lines


def test_grouping_is_linear():
    """A further block costs the same behind many as behind few."""
    few, more, many, most = (steps_of_grouping(number) for number in (20, 25, 60, 65))
    assert most - many < 1.1 * (more - few)
