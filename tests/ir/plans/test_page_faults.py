"""Steady calls take no new pages from the system, with malloc as it is by default, where blocks are smaller than 32 MB.

Each program runs in a process of its own, since malloc learns from what a process has freed."""

from __future__ import annotations

import os
import platform
import random
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch, bolide

torch.set_num_threads(1)
rows, depth, native_after = map(int, sys.argv[2:])
weights = [torch.randn(256, 256, requires_grad=True) for _ in range(depth)]

def layers(x):
    for weight in weights:
        x = torch.relu(torch.mm(x, weight * 0.05))
    return x

def inference(x):
    with torch.no_grad():
        return layers(x).sum()

def training(x):
    layers(x).sum().backward()

bolide.inductor.config.native_after = native_after
step, x = bolide.compile(globals()[sys.argv[1]]), torch.randn(rows, 256)
faults = []
for _ in range(16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(x)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(faults[8:])[4])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other mallocs have other limits")
@pytest.mark.parametrize("native_after", [0, 2], ids=["readable", "native"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_steady_calls_map_no_pages(mode: str, native_after: int) -> None:
    rows, depth = random.randrange(2000, 6000), random.randrange(3, 7)
    arguments = [mode, *map(str, (rows, depth, native_after))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    line = [sys.executable, "-c", PROGRAM, *arguments]
    told = subprocess.run(line, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert int(told.stdout) < 100, arguments
