"""`python -m benchmarks.backward`: a backward pass of a 10-layer MLP by the engine and by compiled autograd, in turn in
one process: medians of both in processor time, so that a busy machine does not matter, and the time of the first pass:
captured only, and compiled as well, beside PyTorch's compiled autograd in a process of its own.

At width 1024 fresh gradients are 40 MB. Where glibc has given that memory back to the system, page faults take as long
as the passes, and vary: MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000 leaves them out.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import bolide
from benchmarks.report import table
from bolide.dynamo import compiled_autograd


def seconds(model: torch.nn.Module, x: torch.Tensor, clock: Callable[[], float] = time.perf_counter) -> float:
    """Of one backward pass, all in this thread; the forward, in eager, is not timed."""
    model.zero_grad()
    loss = model(x).sum()
    start = clock()
    loss.backward()
    return clock() - start


def mlp(width: int, depth: int = 10) -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)])


def first_passes(autograd: Any, enable: Callable[[Any], Any], compile: Callable[..., Any], width: int) -> list[float]:
    """The seconds of a first pass: where it is captured, and where it is compiled, too. What is loaded and set up by
    the first capture of a process is not counted."""
    found = []
    for compiler in (lambda graph: graph, compile):
        autograd.reset()
        with enable(compiler):
            seconds(mlp(3, 2), torch.randn(2, 3))
            found.append(seconds(mlp(width), torch.randn(8, width)))
    return found


def measured(width: int, rounds: int) -> list[str]:
    """The row of a width: eager's and the captured pass's median, their ratio, first passes and PyTorch's."""
    ours = first_passes(compiled_autograd, compiled_autograd.enable, bolide.compile, width)
    theirs = json.loads(subprocess.check_output([sys.executable, "-m", __spec__.name, str(width)], text=True))
    model, x = mlp(width), torch.randn(8, width)
    eager, captured = [], []
    with compiled_autograd.enable(bolide.compile):
        seconds(model, x)
        seconds(model, x)
    for _ in range(rounds):
        eager.append(seconds(model, x, time.thread_time))
        with compiled_autograd.enable(bolide.compile):
            captured.append(seconds(model, x, time.thread_time))
    one, other = statistics.median(eager), statistics.median(captured)
    first = [f"{value * 1e3:.0f}" for value in (*ours, *theirs)]
    return [str(width), f"{one * 1e6:.0f}", f"{other * 1e6:.0f}", f"{other / one:.2f}", *first]


HEADINGS = ["width", "eager µs", "captured µs", "ratio", "capture ms", "with compiling", "PyTorch's", "with compiling"]

if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:]:
        theirs = importlib.import_module("torch._dynamo.compiled_autograd")
        print(json.dumps(first_passes(theirs, theirs._enable, torch.compile, int(sys.argv[1]))))
    else:
        print("\n".join(table(HEADINGS, [measured(64, 400), measured(1024, 40)])))
