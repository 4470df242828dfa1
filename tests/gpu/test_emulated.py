"""A few programs, drawn by the seed, compiled for a GPU that this machine plays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu_emulated
import pytest
import torch

import bolide

SWEEP = Path(__file__).with_name("sweep.py")
SLOW = ("model", "math", "1000", "5000", "5001", "768", "long", "large", "tall")


@pytest.mark.parametrize("device", ["emulated", "native"])
def test_some_programs(device: str, seed: int) -> None:
    checked(device, seed, "--count", "4", "--without", *SLOW)


@pytest.mark.parametrize("device", ["emulated", "native"])
def test_programs_of_nothing(device: str, seed: int) -> None:
    """Tensors without elements are what schedules, and what joins launches, divide by."""
    checked(device, seed, "--only", "empty")


def test_sums_of_any_length(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Threads add up several elements at a time, and the rest one by one."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)
    fast = bolide.compile(lambda x: (x.sum(0), x.argmax(0), (x * x).sum(1)), dynamic=True, fullgraph=True)
    for rows in (*range(2, 20), 31, 33):
        x = torch.randn(rows, 5)
        for mine, theirs in zip(fast(x), (x.sum(0), x.argmax(0), (x * x).sum(1)), strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_columns_of_any_length_in_parts(dynamic: bool, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What is left behind parts of one length, each part takes an element of."""
    gpu_emulated.emulate(monkeypatch.setattr)
    torch.manual_seed(seed)

    def reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), (1 + x / 1e3).prod(0), x.amin(0), (x > 3.4).any(0), x.argmax(0)

    fast = bolide.compile(reduced, dynamic=dynamic, fullgraph=True)
    for rows in (4099, 4160, 5, 70) if dynamic else (4099,):
        x = torch.randn(rows, 3)
        for mine, theirs in zip(fast(x), reduced(x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def checked(device: str, seed: int, *which: str) -> None:
    options = ["--device", device, "--jobs", "1", "--each", "100", "--seed", str(seed % 10000), *which]
    done = subprocess.run([sys.executable, SWEEP, *options], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
