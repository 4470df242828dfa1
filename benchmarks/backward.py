"""`python -m benchmarks.backward`: a backward pass of a 10-layer MLP by the engine and by compiled autograd, in turn in
one process: medians of both, and the time of the first pass, which is captured and compiled.
"""

from __future__ import annotations

import statistics
import time

import torch

import bolide
from benchmarks.report import table
from bolide.dynamo import compiled_autograd


def seconds(model: torch.nn.Module, x: torch.Tensor) -> float:
    """Of one backward pass; the forward, in eager, is not timed."""
    model.zero_grad()
    loss = model(x).sum()
    start = time.perf_counter()
    loss.backward()
    return time.perf_counter() - start


def measured(width: int, rounds: int) -> list[str]:
    """The row of a width: eager's and the captured pass's median, their ratio, and the first captured pass."""
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(10)])
    x = torch.randn(8, width)
    eager, captured = [], []
    with compiled_autograd.enable(bolide.compile):
        first = seconds(model, x)
        seconds(model, x)
    for _ in range(rounds):
        eager.append(seconds(model, x))
        with compiled_autograd.enable(bolide.compile):
            captured.append(seconds(model, x))
    one, other = statistics.median(eager), statistics.median(captured)
    return [str(width), f"{one * 1e6:.0f}", f"{other * 1e6:.0f}", f"{other / one:.2f}", f"{first * 1e3:.0f}"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = [measured(64, 400), measured(1024, 40)]
    print("\n".join(table(["width", "eager µs", "captured µs", "ratio", "first pass ms"], rows)))
