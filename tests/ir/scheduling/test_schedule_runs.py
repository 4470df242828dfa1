"""Axes that an access divides are split into loops over runs, and copies of runs go along what they read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bolide.inductor.ir.printer import kernel_text
from tests.schedule_tools import check

Program = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, tuple[Program, tuple[int, ...]]] = {
    "heads to rows": (lambda x: x.transpose(1, 2).reshape(2, 6, -1) * 1.5, (2, 3, 6, 32)),
    "patches": (lambda x: x.view(2, 3, 2, 4, 32).permute(0, 2, 1, 3, 4).reshape(2, 2, -1).sin(), (2, 24, 32)),
    "twice": (lambda x: x.permute(2, 1, 0, 3).reshape(5, -1) + 1, (3, 4, 5, 16)),
    "runs too short": (lambda x: x.transpose(1, 2).reshape(2, 6, -1) * 1.5, (2, 3, 6, 4)),
    "padded": (
        lambda x: torch.nn.functional.pad(x.transpose(1, 2).reshape(2, 6, -1), (3, 2)) * 1.5,
        (2, 3, 6, 32),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_runs(name: str, dtype: torch.dtype) -> None:
    program, shape = PROGRAMS[name]
    graph = check(program, (torch.randn(shape) * 9).to(dtype), rtol=1e-2, atol=1e-2)
    divides = any("//" in kernel_text(kernel) for kernel in graph.plan.kernels)
    assert divides == (name in ("runs too short", "padded")), kernel_text(graph.plan.kernels[0])


def test_runs_are_copied_in_the_order_in_which_they_are_read() -> None:
    graph = check(lambda x: x.view(4, 8, 16, 64).transpose(1, 2).contiguous(), torch.randn(4, 8, 1024))
    (kernel,) = graph.plan.kernels
    steps = [line.split() for line in kernel_text(kernel).splitlines() if "parallel" in line]
    assert [step[3:] for step in steps] == [[n, "on", "threads:"] for n in ("4", "8", "16")], kernel_text(kernel)
